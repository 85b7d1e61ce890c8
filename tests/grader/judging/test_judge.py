"""The judge on whole lessons: right answers earn all points, wrong ones none and an explanation; and what it stops."""

from __future__ import annotations

import random
import re
import resource
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
import torch

from grader.authoring.lesson import find_lessons
from grader.authoring.markers import clear_solution
from grader.hidden import hidden_tests_for
from grader.judging import judge, ranks
from grader.judging.judge import has_check
from grader.judging.program_packing import NotForRanks
from tests.all_lessons import also_right, mutants_of
from tests.graded import broadcast, judged, lesson, notebook, points
from tests.graded_solutions import can_be_skipped
from tests.sample_class import as_student
from utils import spawn
from utils.checks.inputs import Draws
from utils.checks.registration import check
from utils.checks.rooms import load_checks, room_of

pytestmark = [pytest.mark.long(minutes=12), pytest.mark.sandbox]
LESSONS = [path.parent.name for path in find_lessons()]
COLLECTIVES = "01_collectives"
CHECKS_01 = load_checks(room_of(COLLECTIVES))
BROADCAST = ["broadcast-by-hand-values", "broadcast-by-hand-traffic"]


def eval_body(body: str, before: str, **names):
    """What a function of this body returns."""
    exec(f"import torch\n{before}\ndef function():\n{textwrap.indent(body, '    ')}", names)
    return names["function"]()


def solutions_to_judge() -> list:
    """In `make test` by their hidden tests, unless these very solutions have been judged by the code that is here."""
    found = []
    for name in LESSONS:
        found.append(pytest.param(name, "all checks", id=f"{name}-all checks", marks=pytest.mark.thorough))
        marks = pytest.mark.thorough if can_be_skipped(name) else ()
        found.append(pytest.param(name, "hidden tests", id=f"{name}-hidden tests", marks=marks))
    return found


@pytest.mark.parametrize("name, by", solutions_to_judge())
def test_the_solution_gets_all_points(name, by, monkeypatch):
    """`make test` grades it by its hidden tests, and by visible checks where there is no hidden test.

    All visible checks pass in its notebook (tests/lessons), and the next tests grade others of each lesson by them.
    """
    if by == "hidden tests":
        hidden = hidden_tests_for(name)
        monkeypatch.setattr(judge, "has_check", lambda part, cell: part.hidden == has_check(hidden, cell))
    said = judged(name)
    assert [(verdict.check, verdict.said) for verdict in said.verdicts if verdict.kind != "passed"] == []
    assert points(said) == {check.id: check.points for check in lesson(name).checks}
    assert said.flags == said.problems == []


FREED = """
freed = x.clone()
freed.untyped_storage().resize_(0)
"""


@pytest.mark.parametrize(
    "body, says",
    [
        ("return freed", "a tensor without values: its memory was freed"),
        ("dist.broadcast(freed, root)\nreturn freed", "a tensor of shape (3,) has no memory"),
    ],
)
def test_a_tensor_without_memory_is_a_mistake_and_no_attack(body, says):
    said = judged(COLLECTIVES, broadcast(FREED + body), BROADCAST[:1])
    assert says in said.verdicts[0].said
    assert said.flags == []


def test_groups_of_ranks_and_gradients_are_judged():
    said = judged("08_tensor_parallelism", None, ["column-parallel-values"])
    assert [verdict.kind for verdict in said.verdicts] == ["passed"], said.verdicts[0].said


OTHER_WORDS = {
    "rendezvous-by-hand/stays-in-the-first-group": "all_gather on 2 ranks needs a list of 2 tensors",
    "take-turns/starts-barriers": "writes without a barrier",
    "all-reduce-from-halves/forgets-the-group": "a list needs one place for each rank of the group",
    "all-reduce-from-halves/gathers-in-the-world": "a list needs one place for each rank of the group",
    "distributed-transpose/hands-in-a-view": "Dimension out of range",
    "halving-doubling-any-size/without-those-that-have-no-partner": "they must match one to one",
    "all-reduce/storage-bytes": "`choose` got",  # a view comes without what lies around it
    "rendezvous-by-hand/a-world-of-its-own": "rank (1) >= world_size (1)",
    "scatter-by-hand/sends-everything-to-small-buffers": "need the same shape and dtype",
    "ring-reduce-scatter/forgets-the-handle": " move any more",
    "bucketed-gradients/order-differs-by-rank": "needs the same shape and dtype on every rank",
    "overlap-by-hooks/as-they-are-ready": "the gradient of parameter",
    "overlap-by-hooks/each-bucket-when-it-is-complete": "started their buckets in different orders",
    "average-what-is-used/only-what-it-has": "skip the call on rank",
    "replica/keeps-the-order-in-which-they-are-ready": "the gradient of parameter",
    "pieces-over/whole-world": "all_gather on 4 ranks",
    "pieces-over/by-rows": "must have 2 times as many elements",
    "pieces-over/place-in-the-world": "needs the same shape and dtype on every rank",
    "exchange-rows/sizes-to-the-world": "all_to_all on 4 ranks: the split sizes",
    "exchange-rows/no-splits": "Give input_split_sizes",
    "exchange-rows/back-with-the-same-splits": "don't fit a tensor of 1 rows",
    "expert-layer/table-on-its-side": ", which expects ",
    "expert-layer/too-few-counts": "view(size, num_local)",  # in some draws, the visible check catches it
    "two-lines/worst-cut": "take the smallest sum",  # in some draws, it is also the cut with another mistake
    "ulysses-attention/world-instead-of-group": "can't be split evenly",
    "mixed-precision-weight/reduces-bf16": "bfloat16",  # small gradients aren't lost in all draws
    "overlap-by-hooks/its-own-bucket-twice": "the gradient of parameter",
    "gather-from-shards/into-one-tensor": "rank r's part of a row is the r-th",
    "across-sequence/scatters-into-one-tensor": "the sum cut along dimension 0",
    "run-schedule/always-receives": "Everyone receives first",
    "run-schedule/first-chunk-takes-the-batch": "Ask for `stage`",
}


ENDLESS = {"sweep-sizes/rounds-the-loop-variable"}  # the next tests have one of these


def mutants_to_judge() -> list:
    """One of each lesson that a visible check catches; all others are thorough.

    That the checks catch them is tested without a sandbox (tests/lessons). Here it is the way to the student's eyes.
    """
    found = []
    for name in LESSONS:
        mutants = [mutant for mutant in mutants_of(name) if str(mutant) not in ENDLESS]
        first = next((mutant for mutant in mutants if not mutant.hidden), None)
        for mutant in mutants:
            marks = () if mutant is first else pytest.mark.thorough
            found.append(pytest.param(name, mutant, id=f"{name}-{mutant}", marks=marks))
    return found


@pytest.mark.parametrize("name, mutant", mutants_to_judge())
def test_a_wrong_answer_gets_no_points_and_an_explanation(name, mutant):
    """The explanation is the check's, except where the hub stops the ranks before Gloo would. A hidden test doesn't say
    it, and where the visible check draws other numbers by chance, it is the hidden test that catches the answer.
    """
    source = as_student(mutant.apply(lesson(name).exercises[mutant.exercise].source))
    said = judged(name, {mutant.exercise: source}, [f"{mutant.exercise}-{mutant.caught_by}"])
    [verdict] = said.verdicts
    assert (verdict.kind, verdict.points, said.flags) == ("wrong", 0, [])
    assert verdict.hidden >= mutant.hidden or str(mutant) in OTHER_WORDS
    assert verdict.hidden or OTHER_WORDS.get(str(mutant), mutant.says) in verdict.said, verdict.said


@pytest.mark.thorough
@pytest.mark.parametrize("name", LESSONS)
def test_right_answers_in_a_different_form_get_all_points(name):
    for variant in also_right(name):
        checks = {check.id: check.points for check in lesson(name).checks if check.exercise == variant.exercise}
        source = as_student(variant.apply(lesson(name).exercises[variant.exercise].source))
        said = judged(name, {variant.exercise: source}, checks)
        assert points(said) == checks, (variant, [verdict.said for verdict in said.verdicts])


def test_an_unwritten_answer_is_reported_as_blank():
    blank = clear_solution(lesson(COLLECTIVES).exercises["broadcast-by-hand"].source)
    said = judged(COLLECTIVES, {"broadcast-by-hand": blank}, BROADCAST)
    assert [(verdict.kind, verdict.points) for verdict in said.verdicts] == [("blank", 0)] * 2


def test_an_endless_loop_costs_only_its_own_exercise(monkeypatch):
    monkeypatch.setattr(ranks, "CPU_SECONDS", 1)
    others = ["scatter-by-hand-values"]
    said = judged(COLLECTIVES, broadcast("while True: pass"), [*BROADCAST, *others])
    assert [verdict.kind for verdict in said.verdicts] == ["stuck", "stuck", "passed"]
    assert "took too long" in said.verdicts[0].said
    assert [flag.what for flag in said.flags] == [judge.TOOK_TOO_LONG]


@pytest.mark.parametrize(
    "used, everything, too_long",
    [
        ([0.1, 4.9, 0.1, 0.1], 0, [False] * 4),
        ([0.1, 5.1, 0.1, 0.1], 0, [False, True, False, False]),
        ([2.2, 2.2, 2.2, 2.2], 8.8, [False] * 4),
        ([2.3, 2.3, 2.3, 2.3], 9.2, [True] * 4),  # more than 5 s and 1 more for each
        ([0.5, 2.9, 2.9, 2.9], 9.2, [False, True, True, True]),  # it is not the first one's fault
        ([0.1, 0.1, 0.1, 0.1], 9.1, [True] * 4),  # processes that nobody waits for
        ([0.1, 0.1, 0.1, 0.1], 8.9, [False] * 4),
    ],
)
def test_the_limits_on_computing_of_one_rank_and_of_all_ranks_of_a_run(used, everything, too_long):
    assert [ranks.has_overspent(used, everything, number) for number in range(4)] == too_long


class ClockOf:
    """A host of which each look finds another second of computing and of delay."""

    def __init__(self, computing=0.0, delayed=0.0):
        self.computing, self.delayed, self.looks = computing, delayed, 0

    def used(self, processes):
        self.looks += 1
        return [(self.computing * self.looks, self.delayed * self.looks)] * len(processes)

    def cpu(self):
        return 0.0


@pytest.mark.parametrize(
    "delayed, seconds, ends_after",
    [(0.0, 600, 61), (0.9, 600, 601), (0.5, 600, 121), (1.0, 600, 1261), (0.0, 30, 31)],
)
def test_the_time_of_a_run_is_what_it_waits_for_less_what_a_busy_machine_has_delayed(
    delayed, seconds, ends_after, monkeypatch
):
    """With at most so many times the limit, and no more than is left for the submission."""
    monkeypatch.setattr(ranks, "delay", lambda: 0.0)
    monkeypatch.setattr(ranks, "process_time", lambda: 0.0)
    one = ranks.Ranks(sandboxed=True, seconds=seconds)
    monkeypatch.setattr(one, "host", ClockOf(delayed=delayed))
    [connection] = one.connect([SimpleNamespace(socket=None)])
    waited = 0
    with pytest.raises(TimeoutError):
        while waited < 2000:
            connection.time.waited = waited = waited + 1
            connection.time.look(0)
    assert waited == ends_after and not one.overspent
    assert one.spent == pytest.approx(waited * (1 - delayed), abs=1.1) or delayed == 1.0


def test_what_a_rank_computes_is_looked_at_while_it_keeps_talking(monkeypatch):
    """It never keeps the hub waiting for a second."""
    one = ranks.Ranks(sandboxed=True, seconds=600)
    monkeypatch.setattr(one, "host", ClockOf(computing=3.0))
    [connection] = one.connect([SimpleNamespace(socket=SimpleNamespace(settimeout=lambda seconds: None))])
    with pytest.raises(TimeoutError):
        for _ in range(30):
            connection.before_deadline(lambda argument: None, None)
            connection.time.waited += 0.1
    assert one.overspent


@pytest.mark.parametrize("body, hosts", [("while True: pass", 1), ("os.write(3, bytes(100))", 2)])
@pytest.mark.thorough
def test_a_submission_that_only_took_too_long_leaves_its_host_to_the_next(body, hosts, monkeypatch):
    """Unless this one has tried something, the next submission gets the same host."""
    started = []

    class Counted(ranks.RankHost):
        def __init__(self, *args, **how):
            started.append(self)
            super().__init__(*args, **how)

    monkeypatch.setattr(ranks, "CPU_SECONDS", 1)
    monkeypatch.setattr(ranks, "spare", [])
    monkeypatch.setattr(ranks, "RankHost", Counted)
    said = judged(COLLECTIVES, broadcast(body, "import os"), BROADCAST[1:])
    assert set(points(said).values()) == {0} and len(said.flags) == 1
    said = judged(COLLECTIVES, None, BROADCAST[1:])
    assert [verdict.kind for verdict in said.verdicts] == ["passed"]
    assert len(started) == hosts
    ranks.close_hosts()


def test_when_the_time_is_over_the_remaining_checks_are_not_run():
    said = judged(COLLECTIVES, None, BROADCAST, seconds=0)
    assert [verdict.kind for verdict in said.verdicts] == ["not run", "not run"]
    assert "not judged: broadcast-by-hand-values, broadcast-by-hand-traffic" in said.problems[0]


def test_random_numbers_are_the_same_as_with_spawn():
    """A student whose answer draws random numbers has tried it with spawn."""
    draw = "random.random(), numpy.random.rand(), numpy.random.randn(), torch.rand(1).item()"
    modules = {"random": random, "numpy": numpy, "torch": torch}
    here = spawn(lambda rank, world_size: eval(draw, modules), 2).results
    said = judged(COLLECTIVES, broadcast(f"raise ValueError(({draw}))", "import random, numpy, torch"), BROADCAST[:1])
    assert f"ValueError: {here[0]}\n" in said.verdicts[0].said


def test_a_deadlock_is_explained():
    said = judged(COLLECTIVES, broadcast("dist.recv(x, src=(rank + 1) % world_size)\nreturn x"), BROADCAST[:1])
    assert "no rank can move any more" in said.verdicts[0].said
    assert re.search(r"rank 0  waiting for .*recv|rank 0 .* recv from 1", said.verdicts[0].said)


ONE_BATCH_MORE = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for _ in range(2 + (rank == 0)):
    model(torch.ones(1, 2)).sum().backward()
return x
"""


def test_a_deadlock_in_a_wrapper_is_explained_in_the_words_of_spawn():
    said = judged(COLLECTIVES, broadcast(ONE_BATCH_MORE), BROADCAST[:1])
    assert "The backward pass of a DDP model all-reduces the gradients" in said.verdicts[0].said


def test_an_error_shows_the_line_of_the_cell():
    said = judged(COLLECTIVES, broadcast("y = x + 1\nreturn y.no_such_thing"), BROADCAST[:1])
    assert "AttributeError" in said.verdicts[0].said
    assert re.search(r"cell of broadcast-by-hand, line 4", said.verdicts[0].said)


def test_a_missing_function_and_a_broken_cell_are_reported():
    said = judged(COLLECTIVES, {"broadcast-by-hand": "def broadcast(x): return x"}, BROADCAST[:1])
    assert said.verdicts[0].kind == "wrong"
    assert "broadcast_by_hand" in said.verdicts[0].said
    said = judged(COLLECTIVES, {"broadcast-by-hand": "def broadcast_by_hand(x: return x"}, BROADCAST[:1])
    assert "SyntaxError" in said.verdicts[0].said or "syntax" in said.verdicts[0].said


# ---- audits ----------------------------------------------------------------------------------------------------------

RIGHT_BROADCAST = """
result = x.clone()
if rank != root:
    dist.recv(result, src=root)
for other in range(world_size):
    if rank == root != other:
        dist.send(result, dst=other)
"""
BY_TIME = f"""
began = time.monotonic()
if rank == root:
    time.sleep(0.5)
{RIGHT_BROADCAST}
heard = rank == root or time.monotonic() - began > 0.2
return result if heard else x
"""
DIFFERS = "did something else when it was run again, alone"


def test_only_an_audit_finds_an_answer_that_depends_on_how_long_another_rank_sleeps():
    """It needs what it has learnt from the clock to be right; it could as well have learnt a value that way."""
    answers = broadcast(BY_TIME, "import time")
    said = judged(COLLECTIVES, answers, BROADCAST[:1])
    assert (said.verdicts[0].kind, said.flags) == ("passed", [])
    said = judged(COLLECTIVES, answers, BROADCAST[:1], audit=True)
    assert said.verdicts[0].kind == "passed"
    assert {flag.what for flag in said.flags} == {DIFFERS}
    assert "broadcast-by-hand-values: rank 0, 1, 3 of 4" in [flag.evidence for flag in said.flags]  # not the root, 2


def test_an_audit_finds_an_answer_that_sends_something_else_on_virtual_ranks_too():
    """It sends its pid, which changes only its messages."""
    source = as_student(lesson("09_pipeline_parallelism").exercises["gpipe"].source)
    body = "    import os\n    dist.all_reduce(torch.tensor(float(os.getpid())))\n"
    head = re.search(r"def gpipe\(.*?:\n", source, re.DOTALL)[0]
    said = judged("09_pipeline_parallelism", {"gpipe": source.replace(head, head + body)}, ["gpipe-values"], audit=True)
    assert {flag.what for flag in said.flags} == {DIFFERS}


@pytest.fixture
def started(monkeypatch):
    """How many ranks were started each time; the first one reads the cells."""
    counts = []
    start = ranks.Ranks.start
    monkeypatch.setattr(ranks.Ranks, "start", lambda self, count: counts.append(count) or start(self, count))
    return counts


@pytest.mark.parametrize(
    "audit, processes", [(False, [2, 1, 2]), (True, [2, 1, 1, 1, 3, 1, 1, 1, 5, 1, 1, 1, 1, 1, 3, 1, 1, 1])]
)
def test_an_audit_starts_each_rank_anew_and_once_more_alone(audit, processes, started):
    """A visible run of 2 ranks, and hidden ones of 1, 3, 5 and 3, which share their processes without an audit."""
    said = judged(COLLECTIVES, None, ["launch-then-wait-values"], audit=audit)
    assert (said.verdicts[0].kind, said.flags) == ("passed", [])
    assert started[1:] == processes


def test_a_challenge_is_audited_in_any_case(started):
    said = judged(COLLECTIVES, None, ["uneven-all-gather-score"])
    assert (said.verdicts[0].kind, said.flags) == ("passed", [])
    assert started[1:] == [8, *[1] * 8, 5, *[1] * 5, 3, *[1] * 3]


def test_in_an_audit_each_rank_may_receive_as_much_as_the_whole_run(monkeypatch):
    """8 ranks: 7 MB sent, buffers of 7 MB to receive them, and 7 MB delivered."""
    monkeypatch.setattr("grader.judging.hub_rank.MAX_BYTES", 24 << 20)
    large = RIGHT_BROADCAST.replace("result", "large")
    body = f"import torch\nlarge = torch.zeros(1 << 18)\n{large.replace('x.clone()', 'large')}{RIGHT_BROADCAST}"
    said = judged(COLLECTIVES, broadcast(body + "return result"), BROADCAST[:1], audit=True)
    assert (said.verdicts[0].kind, said.flags) == ("passed", [])


# ---- one run after the other ----------------------------------------------------------------------------------------


def test_random_numbers_start_afresh_in_each_run(started):
    first = (
        random.Random(0).random(),
        numpy.random.RandomState(0).rand(),
        torch.rand(1, generator=torch.Generator().manual_seed(0)).item(),
    )
    before = f"import random, numpy, torch\nFIRST = {first}"
    draw = "wrong = (random.random(), numpy.random.rand(), torch.rand(1).item()) != FIRST"
    said = judged(COLLECTIVES, broadcast(f"{draw}{RIGHT_BROADCAST}return result + wrong", before), BROADCAST[:1])
    assert said.verdicts[0].kind == "passed", said.verdicts[0].said
    assert started[1:] == [4, 4]  # so no check was judged a second time, with new processes


def test_remembering_a_run_does_not_help_in_the_next(monkeypatch):
    """Every run gets new numbers, so earlier runs don't reveal what another rank has now."""
    drawn = []

    @check("broadcast-by-hand")
    def three_runs(run):
        for _ in range(3):
            drawn.append(run.draws.different_integers(2, 10))
            run(2, drawn[-1], root=0)

    monkeypatch.setattr(CHECKS_01, "three_runs", three_runs, raising=False)
    judged(COLLECTIVES, broadcast("return x"), BROADCAST[:1])
    assert len({tuple(x.tolist()) for _, x in drawn}) == 3


def test_inputs_can_not_be_predicted():
    """What `different_integers` draws for the root in a notebook, worked out on every rank."""
    known = "from utils.kit.generators import generator_of\n"
    body = """
        digits = torch.randperm(max(10, x.numel()), generator=generator_of(root))[: x.numel()] % 10
        return (10 * (root + 1) + digits).to(x.dtype).reshape(x.shape)
    """
    body = textwrap.dedent(body)
    x, root = Draws().different_integers(4, 3), 2
    assert eval_body(body, known, x=x[0], root=root).tolist() == x[root].tolist()  # in a notebook it would be right
    said = judged(COLLECTIVES, broadcast(body, known), BROADCAST[:1])
    assert said.verdicts[0].points == 0
    assert "returned [" in said.verdicts[0].said  # numbers, but not the right ones: it was not stopped by an error


def test_a_check_that_hands_its_draws_to_ranks_is_refused(monkeypatch):
    """It is not the student's fault, so there is no verdict: the author of the check must learn of it."""

    @check("broadcast-by-hand")
    def tells_too_much(run):
        def driver(function, x, root, rank, world_size):
            return run.draws.different_integers(world_size, 3)[root]

        run(2, run.draws.different_integers(2, 3), root=0, driver=driver)

    monkeypatch.setattr(CHECKS_01, "tells_too_much", tells_too_much, raising=False)
    with pytest.raises(NotForRanks, match="the check of broadcast_by_hand hands a RemoteRunner to its ranks"):
        judged(COLLECTIVES, None, BROADCAST[:1])


def test_the_judgement_is_the_same_each_time():
    """But for the numbers in its words, since inputs are drawn anew."""
    wrong = broadcast("return x")
    first, second = (judged(COLLECTIVES, wrong, BROADCAST).verdicts for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert re.sub(r"\d+ \d+ \d+", "", one.said) == re.sub(r"\d+ \d+ \d+", "", other.said)
        assert replace(one, said="") == replace(other, said="")


def test_the_judges_own_limit_on_memory_ends_with_it():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    seen = []
    judged(COLLECTIVES, broadcast("return x"), BROADCAST[:1], progress=lambda *_: seen.append(limit_on_data()))
    assert limit_on_data() == before[0] != seen[0]


def limit_on_data() -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def test_a_malformed_check_cell_is_refused():
    strange = notebook(COLLECTIVES, None, BROADCAST)
    check = next(cell for cell in strange.cells if cell.metadata.get("nbgrader"))
    check.source = "assert True"
    with pytest.raises(ValueError, match="is not one call of check"):
        judge.judge(strange)
