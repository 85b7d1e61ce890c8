"""The grader against answers to real exercises that a student at the keyboard would try, beside the right ones."""

from __future__ import annotations

import re
import textwrap

import pytest

from grader.judging import hidden_words
from grader.judging.hidden_words import case_of, differences, veiled
from tests.graded import answer, broadcast, judged, lesson, points, some
from tests.sample_class import as_student
from utils.checks import CheckFailed, Draws

pytestmark = [pytest.mark.long, pytest.mark.sandbox]
MATMUL = ["tiled-matmul-values", "tiled-matmul-traffic"]
CHAIN = ["fused-chain-values", "fused-chain-traffic"]
OVERLAP = ["overlap-by-hooks-values", "overlap-by-hooks-traffic", "overlap-by-hooks-time"]
BROADCAST = ["broadcast-by-hand-values"]


# ---- memory that counts ----------------------------------------------------------------------------------------------

PRODUCT = """
memory.store("c", torch.tensor([[sum(a[i][s] * b[s][j] for s in range(k)) for j in range(n)] for i in range(m)]))
return memory
"""
EACH_NUMBER = """
def numbers(name, rows, columns):
    at = lambda place: slice(place, place + 1)
    return [[memory.load(name, at(i), at(j)).item() for j in range(columns)] for i in range(rows)]
a, b = numbers("a", m, k), numbers("b", k, n)
"""
READS = {
    "item by item": EACH_NUMBER,
    "a copy of each tile": """
steps = range(0, max(m, k, n), 4)
def whole(name):
    rows = [[memory.load(name, slice(i, i + 4), slice(j, j + 4)).clone() for j in steps] for i in steps]
    return torch.cat([torch.cat(row, 1) for row in rows]).tolist()
a, b = whole("a"), whole("b")
""",
    "the arrays": 'a, b = memory.arrays["a"].tolist(), memory.arrays["b"].tolist()',
    "everything that is alive": """
import gc
found = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.dim() == 2 and not one.is_meta]
a, b = ([one.tolist() for one in found if one.shape == shape][0] for shape in ((m, k), (k, n)))
""",
    "letting go in words alone": EACH_NUMBER.replace(".item()", "").replace(
        "a, b = ",
        "import weakref\nweakref.finalize = lambda *_: type('', (), {})()\na, b = ",
    ),
}


@pytest.mark.parametrize("reads", some(READS, "item by item", "the arrays", "everything that is alive"))
def test_numbers_that_were_kept_outside_the_chip_earn_no_traffic_points(reads):
    said = judged("04_cost_models", answer("tiled-matmul", "memory, m, k, n", reads + PRODUCT), MATMUL)
    assert points(said)["tiled-matmul-traffic"] == 0


def test_a_right_product_in_tiles_earns_them():
    said = judged("04_cost_models", None, [*MATMUL, *CHAIN])
    assert [verdict.said for verdict in said.verdicts if verdict.kind != "passed"] == []


def test_an_array_says_its_shape_and_its_dtype_and_nothing_else():
    body = """
found = memory.arrays["x"]
assert found.shape == (numel,) and found.dtype.is_floating_point is isinstance(scale, float)
for start in range(0, numel, memory.room // 4):
    here = slice(start, start + memory.room // 4)
    memory.store("y", torch.relu(memory.load("x", here) * scale + shift), here)
return memory
"""
    said = judged("04_cost_models", answer("fused-chain", "memory, numel, scale, shift", body), CHAIN)
    assert points(said) == {"fused-chain-values": 2, "fused-chain-traffic": 2}
    reads = body.replace('memory.load("x", here)', "found[here]")
    said = judged("04_cost_models", answer("fused-chain", "memory, numel, scale, shift", reads), CHAIN)
    assert set(points(said).values()) == {0}
    assert all("only memory.load and memory.store" in verdict.said for verdict in said.verdicts)


# ---- references ------------------------------------------------------------------------------------------------------

# Each leads to a reference, if there is one, or raises one of NOT_THERE. The first two come before all imports.
LOOKS = [
    "import sys\n[one] = [one for one in sys.modules if '.checks' in one][:1]",
    "import gc\n[one] = [one for one in gc.get_objects() if type(one).__name__ == 'Oracle'][:1]",
    "from utils.checks import checks_for\nchecks_for('01_collectives')",
    "import importlib\nimportlib.import_module('checks_01')",
    "import utils, glob\n[path] = glob.glob(utils.__path__[0] + '/checks/rooms/02*/frozen_cases.json')",
    "import utils, os\nos.stat(os.path.dirname(utils.__file__) + '/checks/__pycache__')",
    "import grader.hidden",
]
NOT_THERE = "ImportError, FileNotFoundError, ValueError"


def test_a_graded_rank_finds_no_check():
    body = f"""
found = []
for look in {LOOKS}:
    try:
        exec(look, {{}})
        found.append(look)
    except ({NOT_THERE}):
        pass
raise RuntimeError(f"found {{found}}")
"""
    said = judged("01_collectives", broadcast(body), BROADCAST)
    assert "RuntimeError: found []" in said.verdicts[0].said


# ---- time ------------------------------------------------------------------------------------------------------------

STOPS_THE_CLOCK = """    import gc
    for one in gc.get_objects():
        if type(one).__name__ == "RemoteRank":
            type(one).compute = lambda self, seconds: None
"""


def test_a_clock_that_stands_still_earns_nothing_and_is_shown_to_the_instructor():
    right = as_student(lesson("05_data_parallelism").exercises["overlap-by-hooks"].source)
    body = right.replace("    parameters = list", f"{STOPS_THE_CLOCK}    parameters = list", 1)
    said = judged("05_data_parallelism", {"overlap-by-hooks": body}, OVERLAP)
    assert points(said)["overlap-by-hooks-time"] == 0
    assert [flag.what for flag in said.flags] == ["claims what is impossible"]


IN_SECRET = {
    "a thread": """
        import threading
        made = []
        thread = threading.Thread(target=lambda: made.append(layer(x.clone(), weight.clone())))
        thread.start()
        thread.join()
        x = made[0]
    """,
    "no dispatch mode": """
        from torch.utils._python_dispatch import _disable_current_modes
        with _disable_current_modes():
            x = layer(x, weight)
    """,
}


@pytest.mark.parametrize("computes", IN_SECRET.values(), ids=IN_SECRET)
def test_layers_that_are_computed_where_no_clock_runs_earn_no_points_for_time(computes):
    """Nothing is prefetched. Only the last layer is computed openly, which would make up for that."""
    body = f"""
dim = x.shape[1]
for number, shard in enumerate(shards):
    weight = shard.new_empty(world_size * len(shard))
    dist.all_gather_single(weight, shard)
    weight = weight[: dim * dim].view(dim, dim)
    if number + 1 == len(shards):
        return layer(x, weight)
{textwrap.indent(textwrap.dedent(computes), "    ")}
"""
    heads = answer("prefetched-forward", "x, shards, rank, world_size", body)
    said = judged("07_zero_fsdp", heads, ["prefetched-forward-values", "prefetched-forward-time"])
    assert points(said) == {"prefetched-forward-values": 2, "prefetched-forward-time": 0}
    assert [flag.what for flag in said.flags] == ["claims what is impossible"]


def test_where_computing_is_free_a_rank_that_sleeps_tells_nobody_anything():
    """Otherwise empty messages could carry numbers, in the times at which they arrive."""
    body = """
import time
if rank == root:
    time.sleep(0.25)
    for other in range(world_size):
        if other != root:
            dist.send(x, dst=other)
    return x.clone()
kept = torch.empty_like(x)
dist.recv(kept, src=root)
assert time.perf_counter() < 0.25, "it can tell the time"
return kept
"""
    heads = answer("tree-all-reduce", "x, team, rank", "root, world_size = team[0], len(team)\n" + body)
    heads["tree-all-reduce"] = heads["tree-all-reduce"].replace("range(world_size)", "team")
    [verdict] = judged("02_all_reduce", heads, ["tree-all-reduce-time"]).verdicts
    assert verdict.points == 0 and "it can tell the time" not in verdict.said and "returned" in verdict.said


# ---- hidden tests ----------------------------------------------------------------------------------------------------

SENDS = """
kept = x.clone()
if rank != root:
    dist.recv(kept, src=root)
for other in range(world_size if rank == root else 0):
    if other != root:
        dist.send(kept, dst=other)
"""
TELLS = {
    "message": "raise ValueError(f'SECRET {x.tolist()} {world_size} {root}')",
    "type": "raise type('SECRET' + str(x.tolist()), (Exception,), {})",
    "file": "exec(compile('raise ValueError', f'SECRET {x.tolist()}', 'exec'))",
    "cell": "exec(compile('raise ValueError', f'cell of SECRET-{int(x.sum())}', 'exec'))",
    "cell by its number": "exec(compile('raise ValueError', f'cell {int(abs(x).sum()) + 4200}', 'exec'))",
    "another cell, which is not in use": "exec(compile('raise ValueError', 'cell of SECRET', 'exec'))",
    "line": "exec(compile('\\n' * 7777 + 'raise ValueError', 'cell of broadcast-by-hand', 'exec'))",
    "function": "exec('def SECRET(): raise ValueError\\nSECRET()')",
    "output": "print('SECRET', x); raise ValueError",
    "exit": "import os; os._exit(int(x.sum()) % 200)",
    "deadlock": "dist.recv(kept, src=(rank + 1) % world_size)",
    "region": "from utils import region; region(f'SECRET {x}').__enter__(); raise ValueError",
    "result": "return [f'SECRET {x.tolist()}']",
    "exception as a result": "return ValueError(f'SECRET {x.tolist()}')",
    "name of a type": "return type('SECRET', (), {})()",
}


@pytest.mark.parametrize(
    "tells", some(TELLS, "message", "type", "cell by its number", "line", "exit", "deadlock", "result")
)
def test_a_hidden_test_does_not_repeat_what_the_answer_says(tells):
    body = f"{SENDS}if world_size not in (2, 3, 4):\n    {tells}\nreturn kept"
    said = judged("01_collectives", broadcast(body), BROADCAST)
    [verdict] = said.verdicts
    assert verdict.points == 0 and verdict.hidden
    told = f"{verdict.said} {verdict.mistake}"
    assert "with a different number of ranks" in told
    told = told.replace(f"line {10 + tells.count(chr(10))}", "its line")
    assert not re.search(r"SECRET|\d{2}|7777|int64|float64|\b[3-9] ranks|root [0-9]|\(\d", told), told


def test_how_a_case_differs_from_those_of_the_visible_check():
    xs = Draws().different_integers(3, (2, 3))
    visible = [case_of(3, [xs], {"root": 1}, ["root"]), case_of(2, [xs[:2]], {"root": 0}, ["root"])]
    turned = [x.double().T for x in xs]
    assert differences(case_of(3, [xs], {"root": 1}, ["root"]), visible) == "in a case with different numbers"
    assert differences(case_of(5, [xs], {"root": 1}, ["root"]), visible) == "in a case with a different number of ranks"
    said = differences(case_of(3, [turned], {"root": 1}, ["root"]), visible)
    assert said == "in a case with a different dtype, a different shape and a tensor that is not contiguous"


def test_only_the_students_own_words_say_how_a_case_differs():
    visible = [case_of(2, [[1, 2]], {"width": 4, "there": 1}, ["width"], on_ranks=False)]
    other = case_of(3, [[1, 2, 3]], {"width": 8, "there": 2}, ["width"], on_ranks=False)
    assert differences(other, visible) == "in a case with a different `width`"


def test_a_veiled_message_keeps_the_words_of_the_mistake_without_its_numbers():
    failed = CheckFailed(
        "rank 3 returned [41 42]", "[1 2]", "3.5 times the bytes of 8 ranks: rank 0 keeps float64 and 1/2."
    )
    failed.header = "sums · traffic · hidden test · 8 ranks, float64 (3,)      not passed"
    other = veiled(failed, "traffic", "", "in a case with different numbers")
    assert other.header == "sums · traffic · hidden test".ljust(68) + "  not passed"
    assert other.saw == "its traffic is not right, in a case with different numbers"
    assert other.mistake == "... times the bytes of ... ranks: rank 0 keeps float64 and 1/...."
    assert len(veiled(CheckFailed("", "", "x" * 10_000), "values", "", "").mistake) == hidden_words.MAX_WORDS


# ---- what outlives a run ---------------------------------------------------------------------------------------------

LEAVES = {
    "marks": """
        import builtins, os
        wrong = hasattr(builtins, "here") or "HERE" in os.environ or os.path.exists("/tmp/here")
        builtins.here, os.environ["HERE"] = True, "1"
        open("/tmp/here", "w").close()
        return 0 * kept if wrong else kept
    """,
    "a patched function": """
        was, dist.send = dist.send, lambda *args, **kwargs: None
        return kept
    """,
    "another dtype, no gradients": "torch.set_default_dtype(torch.half); torch.set_grad_enabled(False); return kept",
    "tensors without values": "torch.set_default_device('meta'); return kept",
    "warnings that are errors": "import warnings; warnings.simplefilter('error'); return kept",
    "a thread that calls on": """
        import threading, time
        def call():
            time.sleep(0.02)
            dist.barrier()
        threading.Thread(target=call, daemon=True).start()
        return kept
    """,
    "an end of its own": """
        import atexit, gc, os, signal
        class Last:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGKILL)
        torch.last = last = Last()
        last.itself = last
        if getattr(torch, "before", None):
            del torch.last, last
            gc.collect()
        torch.before = True
        return kept
    """,
}


@pytest.mark.parametrize(
    "leaves",
    some(
        LEAVES,
        "marks",
        "a patched function",
        "another dtype, no gradients",
        "a thread that calls on",
        "an end of its own",
    ),
)
def test_a_right_answer_is_right_whatever_it_leaves_in_its_process(leaves):
    """The runs of a check share their processes. What an earlier run has done to one never costs points or a flag."""
    said = judged(
        "01_collectives",
        broadcast(SENDS + textwrap.dedent(leaves)),
        BROADCAST,
    )
    assert [(verdict.kind, verdict.said) for verdict in said.verdicts if verdict.kind != "passed"] == []
    assert said.flags == said.problems == []
