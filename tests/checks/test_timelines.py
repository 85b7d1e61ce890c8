"""utils/checks/timelines.py: a failed check shows a slow run beside the solution's, or a deadlock, once."""

import textwrap
from collections import defaultdict

import pytest
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from utils import RankError, Run, region, simulate, spawn
from utils.checks import Case, CheckFailed, checks_for, expect_time, oracle, registry, timelines
from utils.checks.progress import Progress
from utils.checks.runner import Runner
from utils.cluster.hardware import links

CLOCK = links(2, 1e-3, 1e6)


@oracle(time=[(2,)])
def there_and_back(draws, world_size: int) -> Case:
    xs = draws.different_integers(world_size, 3)
    return Case([xs], clock=CLOCK, time=lambda answer: expect_time(answer, CLOCK.intra.seconds(12)))


def both_at_once(x, rank, world_size):
    other = torch.empty_like(x)
    sending = dist.isend(x, dst=1 - rank)
    dist.recv(other, src=1 - rank)
    sending.wait()
    return other


def in_turn(x, rank, world_size):
    other = torch.empty_like(x)
    for turn in range(world_size):
        if turn == rank:
            dist.send(x, dst=1 - rank)
        else:
            dist.recv(other, src=1 - rank)
    return other


def both_receive_first(x, rank, world_size):
    other = torch.empty_like(x)
    with region("turn round"):
        x = x.flip(0)
    dist.broadcast(other, src=0)
    dist.recv(other, src=1 - rank)
    dist.send(x, dst=1 - rank)
    return other


def receives_in_flight(x, rank, world_size):
    other, never = torch.empty_like(x), torch.empty_like(x)
    dist.irecv(never, src=1 - rank)
    dist.irecv(other, src=1 - rank).wait()
    return other


for function in (both_at_once, in_turn, both_receive_first):
    function.__name__ = "there_and_back"


@pytest.fixture
def check(tmp_path, monkeypatch):
    checks = checks_for("02_all_reduce")
    [one] = there_and_back.checks()
    checks.checks, checks.progress = {(one.exercise, one.judges): one}, Progress({})
    checks.room = tmp_path
    monkeypatch.setenv(timelines.VARIABLE, str(tmp_path / timelines.TIMELINES))
    return checks


def test_a_run_is_written_down_and_read_again(check, tmp_path):
    check(both_at_once, judges="time")
    runner = Runner(both_at_once)
    there_and_back.checks()[0](runner)
    [run] = runner.runs
    again = timelines.solutions_run(tmp_path, "there-and-back", like=run)
    assert [(event.op, event.rank, event.peer, event.start, event.end) for event in again.events] == [
        (event.op, event.rank, event.peer, event.start, pytest.approx(event.end)) for event in run.events
    ]
    assert again.timeline(beside=run)
    assert timelines.solutions_run(tmp_path, "another", like=run) is None


def test_no_line_of_the_solution_is_written_down():
    def program(rank, world_size):
        return both_at_once(torch.ones(2), rank, world_size)

    run = simulate(program, 2)
    assert all(event.where and event.callers for event in run.events)
    again = timelines.from_data(timelines.as_data(run))
    assert {(event.where, event.callers) for event in again.events} == {("", ())}


def test_it_is_shown_beside_a_slow_run_once_and_only_in_a_notebook(check, monkeypatch):
    shown = []
    monkeypatch.setattr(registry, "display_below", shown.append)
    check(both_at_once, judges="time")
    monkeypatch.delenv(timelines.VARIABLE)
    monkeypatch.setattr(registry, "in_notebook", lambda: False)
    with pytest.raises(CheckFailed):
        check(in_turn, judges="time")
    assert shown == []
    monkeypatch.setattr(registry, "in_notebook", lambda: True)
    for _ in range(2):
        with pytest.raises(CheckFailed):
            check(in_turn, judges="time")
    [both] = shown
    assert [lane.heading for lane in both.lanes] == ["Your run", "", "The solution's run", ""]


def test_nothing_is_written_down_unless_the_build_asks(check, tmp_path, monkeypatch):
    monkeypatch.delenv(timelines.VARIABLE)
    check(both_at_once, judges="time")
    assert list(tmp_path.iterdir()) == []


def bars_at(picture) -> dict[str, list[tuple[float, float]]]:
    """{kind of bar: where its copies start and end, as parts of the panel's width}"""
    spans = defaultdict(list)
    for bar in picture.bars:
        spans[bar.what].append((bar.start / picture.span, bar.end / picture.span))
    return spans


def never_return(spans) -> bool:
    """Whether these bars reach the right edge, and can be seen even if the call was the run's last event."""
    return all(right == pytest.approx(1) and left < 0.81 for left, right in spans)


@pytest.mark.parametrize("world", [{"clock": CLOCK}, {}])
def test_a_deadlock_is_shown_once_with_the_calls_that_never_return(check, world, monkeypatch):
    shown = []
    monkeypatch.setattr(registry, "display_below", shown.append)
    monkeypatch.setattr(registry, "in_notebook", lambda: True)

    @oracle("there-and-back", values=[(2,)])
    def there_and_back(draws, world_size: int) -> Case:
        return Case([draws.different_integers(world_size, 3)], cluster=world.get("clock"))

    [one] = there_and_back.checks()
    check.checks[one.exercise, one.judges] = one
    for _ in range(2):
        with pytest.raises(CheckFailed) as failed:
            check(both_receive_first)
    assert failed.value.deadlock is not None
    [picture] = shown
    assert picture.title == "Your run, until no rank could move" and "never returns" in picture.legend
    lines = [lane.line for lane in picture.lanes]
    assert all(line.startswith(f"waits in recv from {1 - rank} · ") for rank, line in enumerate(lines))
    assert all(line.endswith(":  dist.recv(other, src=1 - rank)") for line in lines)
    assert picture.arrows == [(0, 1), (1, 0)]
    bars = bars_at(picture)
    assert len(bars["blocking: recv"]) == 2 and never_return(bars["blocking: recv"])
    assert all(end < 0.81 for _, end in bars["blocking: broadcast"] + bars["compute: turn round"])


def test_asynchronous_calls_that_never_end_are_drawn_to_the_end():
    failed = pytest.raises(CheckFailed, Runner(receives_in_flight), 2, [torch.ones(3), torch.ones(3)]).value
    receives = bars_at(timelines.until_stuck(failed.deadlock))["asynchronous: recv"]
    assert len(receives) == 4 and never_return(receives)


def makes_a_group(rank, world_size):
    dist.barrier()
    if rank == 0:
        dist.new_group([0, 1])
    dist.recv(torch.empty(1), src=1 - rank)


def asks_the_store(rank, world_size):
    if rank == 0:
        dist.distributed_c10d._get_default_store().wait(["nobody sets it"])
    dist.barrier()


def barrier_alone(rank, world_size):
    if rank == 0:
        dist.barrier()


@pytest.mark.parametrize(
    "function, lines, arrows",
    [
        (makes_a_group, ["waits in new_group [0, 1]", "waits in recv from 0"], [(0, 1), (1, 0)]),
        (asks_the_store, ["waits for the store", "waits in barrier"], [(1, 0)]),
        (barrier_alone, ["waits in barrier", "has finished"], [(0, 1)]),
    ],
)
def test_each_rank_that_waits_is_striped_with_its_line_and_an_arrow(function, lines, arrows):
    with pytest.raises(RankError) as error:
        simulate(function, 2)
    picture = timelines.until_stuck(error.value)
    assert [lane.line.partition(" · ")[0] for lane in picture.lanes] == lines and picture.arrows == arrows
    never = {bar.lane for bar in picture.bars if bar.look == picture.legend["never returns"]}
    assert never == {at for at, line in enumerate(lines) if line.startswith("waits")}
    assert all("test_timelines.py, line " in lane.line for lane in picture.lanes if lane.line.startswith("waits"))


@pytest.mark.parametrize("function, op", [(makes_a_group, "new_group"), (asks_the_store, "idle")])
def test_real_ranks_that_wait_are_striped_too(function, op):
    with pytest.raises(RankError) as error:
        spawn(function, 2, timeout=3)
    assert error.value.waiting[0].op == op and sorted(error.value.waiting) == [0, 1]


def test_the_picture_comes_below_the_message():
    """In the order in which a notebook shows them."""
    code = """
        from utils.checks import registry
        def fail():
            registry.display_below("the" + " picture")
            raise ValueError("the message")
    """
    shell = InteractiveShell.instance()
    try:
        with capture_output(display=False) as said:
            for cell in (textwrap.dedent(code), "fail()", "1 + 1"):
                shell.run_cell(cell)
        assert said.stdout.index("the message") < said.stdout.index("the picture")
        assert said.stdout.count("the picture") == 1
    finally:
        InteractiveShell.clear_instance()


def test_a_run_in_which_no_rank_communicated_has_nothing_to_show(check):
    """As that of an answer which only computes: what went wrong is in the message."""
    check(both_at_once, judges="time")
    failed = CheckFailed("it took 3 s")
    failed.run = Run(2, "virtual", "", [None] * 2, [""] * 2, [], 3.0)
    assert timelines.to_look_at(failed, check.room, "there-and-back") is None


def test_a_run_as_quick_as_the_solutions_has_nothing_to_show(check):
    """It failed because its values are wrong."""
    check(both_at_once, judges="time")
    failed, runner = CheckFailed("rank 1 returned 3"), Runner(both_at_once)
    there_and_back.checks()[0](runner)
    [failed.run] = runner.runs
    assert timelines.to_look_at(failed, check.room, "there-and-back") is None
