"""`spawn` from plain Python: results, output, order, refusals, and the reports when a rank goes wrong."""

import concurrent.futures
import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel import zygote_here
from utils import RankCrashed, RankFailed, RankTimeout, WorldStuck, spawn
from utils.worlds.real.world import RealWorld
from utils.worlds.real.zygote import client

pytestmark = pytest.mark.long


def sum_of_ranks(rank, world_size, factor=1):
    x = torch.full((3,), float(factor * rank))
    dist.all_reduce(x)
    return x


def leftovers() -> tuple[int, list[str]]:
    """Open descriptors of this process, and folders that worlds left behind."""
    return len(os.listdir("/proc/self/fd")), os.listdir(tempfile.gettempdir())


def ranks_alive() -> list[int]:
    """Children of the zygote."""
    pid = client.zygote.process.pid
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(child) for child in children.read().split()]


# --- what comes back


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_results_come_back_by_rank(world_size):
    run = spawn(sum_of_ranks, world_size, 2)
    expected = torch.full((3,), 2.0 * sum(range(world_size)))
    assert len(run.results) == world_size
    assert all(torch.equal(result, expected) for result in run.results)
    assert run.world_size == world_size
    assert run.elapsed > 0


def test_arguments_reach_the_function_by_position_and_by_name():
    def program(rank, world_size, a, b=0, *, c):
        return (rank, world_size, a, b, c)

    assert spawn(program, 2, 1, 2, c=3).results == [(0, 2, 1, 2, 3), (1, 2, 1, 2, 3)]


def test_repr_is_the_same_every_time():
    assert repr(spawn(sum_of_ranks, 2)) == repr(spawn(sum_of_ranks, 2)) == "Run(2 ranks, spawn, gloo)"


def test_ranks_are_separate_processes_that_start_in_the_same_state():
    seen = []

    def program(rank, world_size):
        seen.append(rank)
        return os.getpid(), seen, torch.rand(1).item(), torch.get_num_threads()

    first, second = spawn(program, 2), spawn(program, 2)
    pids = {result[0] for run in (first, second) for result in run.results}
    assert len(pids) == 4 and os.getpid() not in pids
    assert [result[1] for result in first.results] == [[0], [1]]
    assert len({result[2] for run in (first, second) for result in run.results}) == 1
    assert {result[3] for result in first.results} == {1}
    assert seen == []


def test_values_arrive_on_their_own():
    def program(rank, world_size):
        big = torch.zeros(1_000_000)
        weight = torch.nn.Parameter(torch.ones(2))
        return {
            "slice": big[:2],
            "graph": (weight * 2).sum(),
            "weight": weight,
            "bf16": torch.ones(2, dtype=torch.bfloat16),
        }

    result = spawn(program, 1).results[0]
    assert result["slice"].untyped_storage().nbytes() == 8
    assert not result["graph"].requires_grad and result["graph"] == 4
    assert torch.equal(result["weight"].detach(), torch.ones(2))
    assert result["bf16"].dtype == torch.bfloat16


def test_a_large_value_arrives_whole():
    assert spawn(lambda rank, n: torch.arange(10_000_000), 2).results[1][-1] == 9_999_999


def test_ranks_see_the_current_environment_folder_and_modules(tmp_path, monkeypatch):
    def program(rank, world_size):
        import edited_between_calls

        return os.environ["COLOUR"], os.getcwd(), edited_between_calls.VALUE

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for colour, value in (("red", 1), ("blue", 2)):
        (tmp_path / "edited_between_calls.py").write_text(f"VALUE = {value}\nSIZE = {'x' * value!r}\n")
        monkeypatch.setenv("COLOUR", colour)
        assert spawn(program, 1).results == [(colour, str(tmp_path), value)]


def test_events_tell_who_called_what():
    def program(rank, world_size):
        x = torch.zeros(4)
        dist.broadcast(x, src=1)
        if rank == 0:
            dist.send(torch.ones(2, dtype=torch.float64), dst=1, tag=7)
        else:
            dist.recv(torch.ones(2, dtype=torch.float64), src=0, tag=7)
        work = dist.all_reduce(x, async_op=True)
        work.wait()

    run = spawn(program, 2)
    seen = [(e.rank, e.index, e.op, e.peer, e.bytes, e.dtype, e.is_async, e.tag) for e in run.events]
    assert seen == [
        (0, 0, "broadcast", 1, 16, "float32", False, 0),
        (0, 1, "send", 1, 16, "float64", False, 7),
        (0, 2, "all_reduce", None, 16, "float32", True, 0),
        (1, 0, "broadcast", 1, 16, "float32", False, 0),
        (1, 1, "recv", 0, 16, "float64", False, 7),
        (1, 2, "all_reduce", None, 16, "float32", True, 0),
    ]
    assert all(0 < e.start <= e.end <= run.elapsed for e in run.events)
    assert all(e.where.rpartition(":")[0] == __file__ for e in run.events)
    assert run.traffic().sent(0) == (1, 16) and run.traffic().received(1) == (1, 16) and run.traffic().sent(1) == (0, 0)


def test_torchs_own_wrappers_are_recorded():
    def program(rank, world_size):
        from torch.distributed.fsdp import fully_shard

        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        sharded = fully_shard(torch.nn.Linear(2, 2), mesh=dist.device_mesh.init_device_mesh("cpu", (world_size,)))
        sharded(torch.ones(1, 2)).sum().backward()

    ops = {event.op for event in spawn(program, 2).events}
    assert {"all_reduce", "all_gather", "reduce_scatter"} <= ops


def test_events_of_sub_groups_have_global_ranks():
    def program(rank, world_size):
        pair = dist.new_group([1, 2])
        x = torch.full((1,), float(rank))
        if rank in (1, 2):
            dist.broadcast(x, src=2, group=pair)
        return x.item()

    run = spawn(program, 3)
    assert run.results == [0.0, 2.0, 2.0]
    assert {(e.rank, e.peer, e.members) for e in run.events if e.op == "broadcast"} == {(1, 2, (1, 2)), (2, 2, (1, 2))}


# --- what is printed


def test_output_comes_in_order_with_the_rank_in_front(capsys):
    def program(rank, world_size):
        print("before", rank)
        dist.barrier()
        print("after", rank, end="")
        sys.stderr.write("\nto stderr\n")

    run = spawn(program, 3)
    out, err = capsys.readouterr()
    lines = [f"[rank {r}] before {r}" for r in range(3)]
    lines += [line for r in range(3) for line in (f"[rank {r}] after {r}", f"[rank {r}] to stderr")]
    assert out.splitlines() == lines
    assert err == ""
    assert run.output[1] == "before 1\nafter 1\nto stderr\n"


def test_all_ways_of_writing_arrive(capfd):
    def program(rank, world_size):
        import logging
        import warnings

        print("ünïcødé ✓ 中文")
        os.write(1, b"straight to the descriptor\n")
        warnings.warn("look out", stacklevel=1)
        logging.warning("logged")
        print("10 %\r50 %\r100 %")
        print("no newline at the end", end="")

    output = spawn(program, 1).output[0]
    for text in (
        "ünïcødé ✓ 中文\n",
        "straight to the descriptor\n",
        "look out",
        "logged",
        "100 %\n",
        "no newline at the end\n",
    ):
        assert text in output
    assert "50 %" not in output
    assert capfd.readouterr().err == ""


def test_a_print_that_looks_like_a_crash_is_shown(capsys):
    spawn(lambda rank, n: print("  what(): is a good question"), 1)
    assert capsys.readouterr().out == "[rank 0]   what(): is a good question\n"


def test_large_output_is_not_lost(capsys):
    def program(rank, world_size):
        for number in range(20_000):
            print(f"line {number} of rank {rank} " + "x" * 80)

    run = spawn(program, 2)
    capsys.readouterr()
    for rank in range(2):
        lines = run.output[rank].splitlines()
        assert len(lines) == 20_000 and lines[-1].startswith(f"line 19999 of rank {rank}")


def test_first_lines_are_shown_while_ranks_are_running(capsys, tmp_path):
    """A rank waits for a file that appears only once its first line has been shown."""
    flag = tmp_path / "seen"

    def program(rank, world_size, flag):
        print("started", flush=True)
        while not os.path.exists(flag):
            time.sleep(0.01)

    shown = []
    real_write = sys.stdout.write

    def write(text):
        shown.append(text)
        flag.touch()
        return real_write(text)

    sys.stdout.write = write
    try:
        spawn(program, 2, str(flag), timeout=20)
    finally:
        del sys.stdout.write
    assert "[rank 0] started" in shown[0]


def test_input_does_not_hang():
    with pytest.raises(RankFailed, match="EOFError"):
        spawn(lambda rank, n: input("name? "), 1)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), max_size=4))
def test_order_of_output_is_by_synchronisations_then_rank(world_size, counts):
    """counts[phase][rank]: how many lines a rank prints between two barriers."""

    def program(rank, world_size):
        for phase, per_rank in enumerate(counts):
            for number in range(per_rank[rank]):
                print(phase, number)
            dist.barrier()

    run_lines = []
    original, sys.stdout = (
        sys.stdout,
        type("Sink", (), {"write": lambda self, t: run_lines.append(t), "flush": lambda self: None})(),
    )
    try:
        spawn(program, world_size)
    finally:
        sys.stdout = original
    expected = [
        f"[rank {rank}] {phase} {number}"
        for phase, per_rank in enumerate(counts)
        for rank in range(world_size)
        for number in range(per_rank[rank])
    ]
    assert "".join(run_lines).splitlines() == expected


# --- refusals, before any process starts


@pytest.mark.parametrize(
    "world_size, error, words",
    [
        (0, ValueError, "at least 1, and got 0"),
        (-1, ValueError, "at least 1, and got -1"),
        (2.5, TypeError, "a whole number; got 2.5"),
        ("4", TypeError, "a whole number; got '4'"),
        (True, TypeError, "a whole number; got True"),
        (None, TypeError, "a whole number; got None"),
        (10_000, ValueError, "at most 128"),
    ],
)
def test_an_impossible_world_size(world_size, error, words):
    with pytest.raises(error, match=words):
        spawn(sum_of_ranks, world_size)


def test_a_numpy_world_size_is_fine():
    import numpy

    assert spawn(sum_of_ranks, numpy.int64(2)).world_size == 2


@pytest.mark.parametrize("timeout", [0, -3, "soon", True, float("nan")])
def test_an_impossible_timeout(timeout):
    with pytest.raises(ValueError, match="timeout is in seconds"):
        spawn(sum_of_ranks, 2, timeout=timeout)


def test_a_function_without_a_rank_parameter():
    def hello():
        return 1

    with pytest.raises(TypeError, match=r"def hello\(rank, world_size, \.\.\.\)"):
        spawn(hello, 2)
    with pytest.raises(TypeError, match=r"takes its rank and the world size first"):
        spawn(lambda rank: rank, 2)


def test_passing_a_result_instead_of_a_function():
    with pytest.raises(TypeError, match="Pass it without calling it"):
        spawn(sum_of_ranks(0, 1) if dist.is_initialized() else None, 2)


def test_a_missing_argument_is_named():
    def program(rank, world_size, batch):
        return batch

    with pytest.raises(TypeError, match="'batch'"):
        spawn(program, 2)


def test_a_variable_that_cannot_be_pickled_is_named():
    lock = threading.Lock()

    def program(rank, world_size):
        return lock.locked()

    with pytest.raises(TypeError, match="`lock`, which program uses, .a lock. can't be sent to the ranks"):
        spawn(program, 2)
    with pytest.raises(TypeError, match="argument 0"):
        spawn(sum_of_ranks, 2, lock)


def test_an_unknown_backend_and_nccl_without_gpus():
    with pytest.raises(ValueError, match='"gloo" or "nccl"'):
        spawn(sum_of_ranks, 2, backend="mpi")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="this machine has 0"):
            spawn(sum_of_ranks, 2, backend="nccl")


def test_spawn_inside_a_rank_is_refused():
    with pytest.raises(RankFailed, match="Call it from the notebook, not from a rank program"):
        spawn(lambda rank, n: spawn(sum_of_ranks, 2), 2)


# --- failures


def test_the_rank_that_raised_is_named_and_not_those_that_waited():
    def program(rank, world_size):
        if rank == 2:
            raise ValueError("the batch is empty")
        dist.barrier()

    with pytest.raises(RankFailed) as caught:
        spawn(program, 4)
    report = str(caught.value)
    assert report.startswith("rank 2 raised ValueError: the batch is empty")
    assert 'raise ValueError("the batch is empty")' in report
    assert "Ranks 0, 1 and 3 were waiting in barrier" in report
    assert "onnection" not in report
    assert caught.value.rank == 2


def test_the_same_mistake_on_every_rank_is_reported_once():
    with pytest.raises(RankFailed) as caught:
        spawn(lambda rank, n: undefined_name, 3)  # noqa: F821
    assert str(caught.value).count("NameError") == 1
    assert str(caught.value).startswith("ranks 0, 1 and 2 raised NameError")


def test_a_very_deep_traceback_is_cut_in_the_middle():
    def down(n):
        return down(n + 1)

    with pytest.raises(RankFailed) as caught:
        spawn(lambda rank, n: down(0), 1)
    report = str(caught.value)
    assert "RecursionError" in report and "more calls" in report and len(report.splitlines()) < 30


def test_a_finished_rank_is_not_blamed_for_leaving():
    def program(rank, world_size):
        if rank == 0:
            dist.barrier()

    with pytest.raises(WorldStuck) as caught:
        spawn(program, 3)
    assert "Ranks 1 and 2 never called this barrier and have finished" in str(caught.value)


@pytest.mark.parametrize("after_a_barrier", [False, True])
@pytest.mark.parametrize(
    "death, words",
    [
        (lambda: os._exit(7), "exited with code 7"),
        (lambda: os._exit(0), "exited with code 0"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL .*ran out of memory"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "killed by SIGSEGV"),
    ],
)
def test_a_rank_that_dies_is_named(death, words, after_a_barrier):
    def program(rank, world_size):
        if after_a_barrier:
            dist.barrier()
        if rank == 1:
            death()
        dist.barrier()

    with pytest.raises(RankCrashed, match=f"(?s)rank 1 .*{words}") as caught:
        spawn(program, 3)
    assert caught.value.rank == 1
    assert torch.equal(spawn(sum_of_ranks, 2).results[0], torch.ones(3))


def test_sys_exit_with_a_message_is_a_failure_and_without_one_is_not():
    with pytest.raises(RankFailed, match="SystemExit: no data"):
        spawn(lambda rank, n: sys.exit("no data"), 2)
    assert spawn(lambda rank, n: sys.exit(0), 2).results == [None, None]


def test_different_dtypes_are_explained(capsys):
    def program(rank, world_size):
        dist.all_reduce(torch.ones(1000, dtype=torch.float64 if rank == 0 else torch.float32))

    with pytest.raises(
        RankCrashed, match=r"rank 0 brought float64 \[1000\], rank 1 brought float32 \[1000\]"
    ) as caught:
        spawn(program, 2)
    said = str(caught.value) + capsys.readouterr().out
    assert "terminate called" not in said and "the library's last words" not in said  # they say less than we know


def test_a_receive_without_a_send():
    def program(rank, world_size):
        if rank == 1:
            dist.recv(torch.ones(1), src=0)

    with pytest.raises(
        WorldStuck, match="Rank 1 waits for a message from rank 0, which has finished without sending it"
    ):
        spawn(program, 2)


def test_an_asynchronous_call_that_never_ends():
    def program(rank, world_size):
        if rank == 0:
            dist.irecv(torch.ones(1), src=1).wait()

    with pytest.raises(WorldStuck, match=r"rank 0  waits in recv from 1 .*irecv"):
        spawn(program, 2)


def test_a_slow_rank_is_not_a_stuck_world():
    def program(rank, world_size):
        if rank == 0:
            time.sleep(1.5)  # longer than it takes to look for a deadlock
        dist.barrier()
        return "done"

    assert spawn(program, 2).results == ["done", "done"]


def test_a_time_out_reports_where_each_rank_was():
    def program(rank, world_size):
        while rank == 1:
            pass
        dist.barrier()

    zygote_here()
    with pytest.raises(RankTimeout) as caught:
        spawn(program, 2, timeout=1)
    report = str(caught.value)
    assert "have not finished after 1 s" in report
    assert "rank 0  waits in barrier" in report
    assert re.search(r"rank 1  is running .*: +(while rank == 1:|pass)", report), report
    assert caught.value.rank == 1
    assert not ranks_alive()


def test_ranks_that_finish_while_a_time_out_is_reported_were_late_all_the_same(monkeypatch):
    ask = RealWorld.what_ranks_do
    monkeypatch.setattr(RealWorld, "what_ranks_do", lambda world: ask(world)._replace(unfinished=[]))
    with pytest.raises(RankTimeout, match="ranks 0 and 1 have not finished after 1 s"):
        spawn(lambda rank, world_size: time.sleep(600), 2, timeout=1)


def test_importing_torch_does_not_use_up_the_time():
    """A fresh zygote takes longer than this to be ready; the ranks themselves do not."""
    client.zygote.process.kill()
    client.zygote.process.wait()
    assert spawn(sum_of_ranks, 2, timeout=0.5).results


def test_output_before_a_failure_is_kept(capsys):
    def program(rank, world_size):
        print("so far so good")
        raise RuntimeError("stop")

    with pytest.raises(RankFailed) as caught:
        spawn(program, 2)
    assert caught.value.output == ["so far so good\n"] * 2
    assert capsys.readouterr().out.count("so far so good") == 2


def test_a_rank_is_not_stuck_in_a_call_that_raised():
    def program(rank, world_size):
        if rank == 0:
            with contextlib.suppress(RuntimeError):
                dist.irecv(torch.ones(1), src=1).wait(timedelta(milliseconds=100))
            time.sleep(1)  # longer than it takes to look for a deadlock
        return "done"

    assert spawn(program, 2).results == ["done", "done"]


def test_a_waiting_thread_does_not_make_a_world_stuck():
    def program(rank, world_size):
        box = torch.zeros(1)
        listener = threading.Thread(target=lambda: dist.recv(box, src=(rank - 1) % world_size))
        listener.start()
        time.sleep(1)
        dist.send(torch.full((1,), float(rank)), dst=(rank + 1) % world_size)
        listener.join()
        return box.item()

    assert spawn(program, 3).results == [2.0, 0.0, 1.0]


def test_a_thread_that_is_still_running_is_waited_for(capsys):
    def program(rank, world_size):
        threading.Thread(target=lambda: (time.sleep(0.2), print("at last"))).start()
        threading.Thread(target=lambda: (time.sleep(60), print("never")), daemon=True).start()
        concurrent.futures.ThreadPoolExecutor().submit(str)  # never shut down; Python ends it by itself

    spawn(program, 2)
    assert capsys.readouterr().out == "[rank 0] at last\n[rank 1] at last\n"


@pytest.mark.parametrize("threads, expected", [("3", 3), ("2,4", 2), ("many", 1), ("0", 1), ("", 1)])
def test_a_rank_has_one_thread_by_default(monkeypatch, threads, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert spawn(lambda rank, n: torch.get_num_threads(), 1).results == [expected]


def test_a_network_interface_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    with pytest.raises(RankFailed, match="interface 'eth77'; this machine has .*lo"):
        spawn(sum_of_ranks, 2)


@pytest.mark.parametrize("peer", [-1, 2])
def test_a_neighbour_that_does_not_exist_is_named(peer):
    def program(rank, world_size):
        dist.send(torch.ones(1), dst=peer)

    with pytest.raises(RankFailed, match=f"rank {peer}"):
        spawn(program, 2)


def test_classes_of_the_program_travel_in_object_collectives():
    class Point:
        def __init__(self, x):
            self.x = x

    def program(rank, world_size):
        everyone = [None] * world_size
        dist.all_gather_object(everyone, Point(rank))
        return [point.x for point in everyone]

    assert spawn(program, 2).results == [[0, 1], [0, 1]]


def test_a_fork_of_a_rank_does_not_answer_for_it():
    def program(rank, world_size):
        return "child" if os.fork() == 0 else "parent"

    assert spawn(program, 2).results == ["parent", "parent"]


def test_what_a_rank_started_ends_with_it():
    def program(rank, world_size):
        import subprocess

        return subprocess.Popen(["sleep", "600"]).pid

    for pid in spawn(program, 2).results:
        deadline = time.monotonic() + 5
        while os.path.exists(f"/proc/{pid}") and "Z" not in open(f"/proc/{pid}/stat").read().rpartition(")")[2][:3]:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize(
    "mischief",
    [
        lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 1),
        lambda: os.close(1),
        lambda: setattr(sys, "stdout", None),
        lambda: sys.stdout.close(),
        lambda: setattr(sys, "stdout", object()),
    ],
)
def test_a_rank_may_do_anything_to_its_output(mischief):
    def program(rank, world_size):
        mischief()
        dist.barrier()
        return rank

    assert spawn(program, 2, timeout=20).results == [0, 1]


def test_a_signal_without_a_name():
    with pytest.raises(RankCrashed, match="rank 0 was killed by signal 40"):
        spawn(lambda rank, n: os.kill(os.getpid(), 40), 1)


def test_the_first_of_two_crashes_is_the_one_to_look_at():
    def program(rank, world_size):
        if rank == 1:
            os._exit(3)
        time.sleep(0.3)
        os._exit(4)

    with pytest.raises(RankCrashed, match="rank 1 exited with code 3"):
        spawn(program, 2)


def test_notes_causes_and_members_of_a_group_are_reported():
    def program(rank, world_size):
        try:
            {}["lr"]
        except KeyError as error:
            wrong = ValueError("bad settings")
            wrong.add_note("see settings.toml")
            raise ExceptionGroup("several", [wrong, TypeError("and this")]) from error

    with pytest.raises(RankFailed) as caught:
        spawn(program, 1)
    for words in ("several", "caused by KeyError: 'lr'", "one of them: ValueError: bad settings", "see settings.toml"):
        assert words in str(caught.value)


def test_a_students_own_connection_error_is_blamed():
    def program(rank, world_size):
        raise ValueError("rank 0 has a bug") if rank == 0 else RuntimeError("Connection refused: my database")

    with pytest.raises(RankFailed, match="Connection refused: my database") as caught:
        spawn(program, 2)
    assert "rank 0 has a bug" in str(caught.value)


def test_an_error_carries_the_results_so_far():
    def program(rank, world_size):
        return rank if rank == 0 else 1 / 0

    with pytest.raises(RankFailed) as caught:
        spawn(program, 2)
    assert caught.value.results in ([0, None], [None, None])  # rank 0 may not have finished


def test_printing_in_an_endless_loop_is_stopped(monkeypatch, capsys):
    monkeypatch.setattr("utils.worlds.real.watchdog.MAX_PRINTED", 1 << 20)

    def program(rank, world_size):
        while rank == 1:
            print("again and again " * 100)
        dist.barrier()

    with pytest.raises(RankFailed, match="(?s)rank 1 has printed more than 1 MB.*endless loop.*line [0-9]+:"):
        spawn(program, 2)
    capsys.readouterr()


def test_an_async_function_is_refused():
    async def program(rank, world_size):
        return rank

    with pytest.raises(TypeError, match="program is async"):
        spawn(program, 2)


def test_a_deleted_folder_is_reported_in_one_line(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError, match="folder has been deleted"):
        spawn(sum_of_ranks, 8)
    assert len(os.listdir("/proc/self/fd")) == before


# --- nothing is left behind


def test_many_calls_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spawn(sum_of_ranks, 2)
    zygote_here()
    descriptors, folders = leftovers()
    for _ in range(20):
        spawn(sum_of_ranks, 2)
    for _ in range(3):
        with pytest.raises(RankFailed):
            spawn(lambda rank, n: 1 / 0, 2)
    assert leftovers() == (descriptors, folders)
    assert not ranks_alive()


def test_from_threads_at_the_same_time():
    results = {}

    def call(number):
        results[number] = spawn(sum_of_ranks, 2, number).results[0][0].item()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: 0.0, 1: 1.0, 2: 2.0}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_nccl_where_there_are_gpus():
    def program(rank, world_size):
        from utils import get_device

        x = torch.full((4,), float(rank), device=get_device())
        dist.all_reduce(x)
        return x, dist.get_backend()

    run = spawn(program, 2)
    assert run.backend == "nccl"
    assert all(torch.equal(x, torch.ones(4)) and backend == "nccl" for x, backend in run.results)


def test_a_report_is_about_ranks_as_they_were_before_they_were_ended(monkeypatch):
    """Ending a stuck rank may make it finish: its partners are gone, and so its call raises."""
    end = RealWorld.end

    def end_and_hear_of_it(world):
        end(world)
        for state in world.states:
            state.finished = True

    monkeypatch.setattr(RealWorld, "end", end_and_hear_of_it)
    with pytest.raises(WorldStuck, match="rank 1 can't move any more, and the other has finished"):
        spawn(barrier_of_rank_1, 2)


def barrier_of_rank_1(rank, world_size):
    if rank == 1:
        dist.barrier()
