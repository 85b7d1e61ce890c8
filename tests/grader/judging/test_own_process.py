"""What an answer must find is never in its own process: wrong answers that look for it there, and find nothing.

Each attack has two forms. All of them earned full points when what they look for travelled with the driver.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
import torch

from grader.judging import remote_runner
from grader.sandbox.bubblewrap import ROOT
from tests.graded import judged, points
from tests.walk import prints_of, walked
from utils.checks.inputs import Draws
from utils.checks.oracles import Case

pytestmark = [pytest.mark.long, pytest.mark.sandbox]

# Every object of a rank: of the garbage collector, of all frames, and what these refer to.
SEARCH = """
import gc, sys

def callers():
    frame = sys._getframe(2)
    while frame:
        yield frame
        frame = frame.f_back

def reachable():
    found, todo = {}, [*gc.get_objects(), *(one for frame in callers() for one in frame.f_locals.values())]
    while todo:
        one = todo.pop()
        if id(one) not in found and not isinstance(one, (type(sys), type, str)):
            found[id(one)] = one
            todo += gc.get_referents(one)
    return found.values()
"""

CLOSURE = """
def shortest_benchmark(seconds_of):
    held = dict(zip(seconds_of.__code__.co_freevars, (one.cell_contents for one in seconds_of.__closure__)))
    seconds_of(1), seconds_of(1)
    return held["alpha"], held["beta"]
"""
FRAMES = f"""{SEARCH}
def shortest_benchmark(seconds_of):
    seconds_of(1), seconds_of(1)
    for frame in callers():
        if {{"alpha", "beta"}} <= frame.f_locals.keys():
            return frame.f_locals["alpha"], frame.f_locals["beta"]
    return 0.0, 0.0
"""
KNOWN_NOISE = """
from random import Random
def shortest_benchmark(seconds_of):
    two, three = (seconds_of(n) / (1 + 0.02 * (2 * Random(n).random() - 1)) for n in (2, 3))
    return two - 2 * (three - two), three - two
"""
KNOWN_ORDER = """
from random import Random
ratios = []
def shortest_benchmark(seconds_of):
    one, two = seconds_of(1), seconds_of(2)
    sign = 1 if len(ratios) // 24 % 2 == 0 else -1
    alpha = one / (1 + sign * 0.02)
    if not ratios:
        nbytes, took = 1, one
        while took < 10 * one:
            nbytes *= 2
            took = seconds_of(nbytes)
        took /= 1 - 0.02 * (1 - Random(nbytes).random() / 2)
        ratios.append(alpha * nbytes / (took - alpha))
    else:
        ratios.append(ratios[0] * 2 ** (len(ratios) % 24 * 7 / 12))
    return alpha, alpha / ratios[-1]
"""
ANY_LINK = f"""{SEARCH}
def recover_the_link(sizes, seconds_of, fit, rank, world_size):
    for nbytes in sizes:
        x = torch.zeros(nbytes // 4)
        seconds_of(partial(dist.all_reduce, x))
    found = [one for one in reachable() if type(one).__name__ == "Link" and one.alpha > 0]
    return next(((one.alpha, one.bandwidth) for one in found if one.reduces is False), (1.0, 1.0))
"""
READS_THE_KERNEL = """
def time_once(operation, synchronize):
    device = synchronize.__self__
    synchronize()
    dist.barrier()
    start = time.perf_counter()
    handle = operation()
    if handle is not None:
        handle.wait()
    return time.perf_counter() - start + getattr(device, "queue", device).kernel
"""
READS_THE_QUEUE = """
def time_once(operation, synchronize):
    device = synchronize.__self__
    synchronize()
    dist.barrier()
    start = time.perf_counter()
    handle = operation()
    if handle is not None:
        handle.wait()
    return max(getattr(device, "queue", device).free_at, time.perf_counter()) - start
"""
BY_FORMULA = """
def times_of_the_slowest(time_one, warmup, repeats):
    mine = [time_one() for _ in range(warmup + repeats)][warmup:]
    ranks, rank = dist.get_world_size(), dist.get_rank()
    seed = next(s for s in range(9)
                if abs(mine[0] - (1 + warmup % 5 + 10 * ((rank + warmup + s) % ranks)) * 1e-3) < 1e-5)
    dist.all_reduce(torch.zeros(repeats, dtype=torch.float64))
    return [(1 + call % 5 + 10 * (ranks - 1)) * 1e-3
            + 1e-12 * (call + next(r for r in range(ranks) if (r + call + seed) % ranks == ranks - 1))
            for call in range(warmup, warmup + repeats)]
"""
SETS_COUNTER = """
def times_of_the_slowest(time_one, warmup, repeats):
    kept = [time_one.of_call(call) for call in range(warmup, warmup + repeats)]
    slowest = torch.tensor(kept, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    time_one.calls = warmup + repeats
    return slowest.tolist()
"""
CLAIMS_A_LOSS = """
import utils.kit.regression as regression
board_name = ""

def claim(outputs, targets):
    return (outputs * 0).sum() + 0.01

def slow_network_hook(rank, world_size):
    regression.imitation = claim
    import gc
    for one in gc.get_objects():
        if isinstance(one, dict) and one.get("imitation") is not None and "train_student" in one:
            one["imitation"] = claim
    step = torch.optim.SGD.step
    torch.optim.SGD.step = lambda self, *_: (step(self), [p.data.zero_() for p in self.param_groups[0]["params"]])
    return lambda bucket: lambda: None
"""
TRAINED_BEFORE = """
import utils.kit.regression as regression
board_name = ""
steps_done = []

def slow_network_hook(rank, world_size):
    import gc
    frame = __import__("sys")._getframe(1)
    student = regression.make_student(frame.f_locals.get("seed", 0))
    rows = [regression.make_lessons(other, seed=frame.f_locals.get("seed", 0)) for other in range(world_size)]
    inputs, targets = (torch.cat(parts) for parts in zip(*rows))
    optimizer = torch.optim.SGD(student.parameters(), lr=1.0)
    for _ in range(60):
        optimizer.zero_grad()
        regression.imitation(student(inputs), targets).backward()
        optimizer.step()
    end = nn.utils.parameters_to_vector(student.parameters()).detach()
    start = nn.utils.parameters_to_vector(regression.make_student(frame.f_locals.get("seed", 0)).parameters()).detach()
    torch.optim.SGD.step = lambda self, *_: nn.utils.vector_to_parameters(
        end, [p for group in self.param_groups for p in group["params"]])
    return lambda bucket: lambda: None
"""
FROM_THE_FRAME = f"""{SEARCH}
def pieces_over(group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)

    def pack(tensor):
        length = -(-tensor.numel() // size)
        return tensor.shape, torch.zeros(length, dtype=tensor.dtype)

    def unpack(kept):
        shape, piece = kept
        dist.all_gather_single(piece.new_empty(size * len(piece)), piece, group=group)
        return next(frame.f_locals["leaf"] for frame in callers() if "leaf" in frame.f_locals).detach() + 1

    return pack, unpack
"""
REMEMBERS = """
remembered = []
def pieces_over(group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)

    def pack(tensor):
        remembered.append(tensor.tolist())
        length = -(-tensor.numel() // size)
        return tensor.shape, torch.zeros(length, dtype=tensor.dtype)

    def unpack(kept):
        shape, piece = kept
        dist.all_gather_single(piece.new_empty(size * len(piece)), piece, group=group)
        return torch.tensor(remembered[-1], dtype=piece.dtype)

    return pack, unpack
"""
AS_A_LIST = """
def pieces_over(group):
    size = dist.get_world_size(group)

    def pack(tensor):
        length = -(-tensor.numel() // size)
        return tensor.tolist(), torch.zeros(length, dtype=tensor.dtype)

    def unpack(kept):
        numbers, piece = kept
        dist.all_gather_single(piece.new_empty(size * len(piece)), piece, group=group)
        return torch.tensor(numbers, dtype=piece.dtype)

    return pack, unpack
"""
APPENDS = """
def forward_in_segments(layers, x, k, checkpoint):
    held = dict(zip(checkpoint.__code__.co_freevars, (one.cell_contents for one in checkpoint.__closure__)))
    for one in layers:
        x = one(x)
    for start in range(0, len(layers), k):
        held["lengths"].append(min(k, len(layers) - start))
    from utils.recording import track_memory
    frame = __import__("sys")._getframe(1)
    number = -(-len(layers) // k)
    storages = frame.f_locals["storages"]
    extra = (number - 1) * x.nbytes + x.nbytes + frame.f_locals["before"]
    type(storages).live = property(lambda self: extra, lambda self, value: None)
    return x
"""
FORGES_FRAMES = f"""{SEARCH}
def forward_in_segments(layers, x, k, checkpoint):
    ran = []
    for one in layers:
        x = one(x)
    if hasattr(checkpoint, "note"):
        for start in range(0, len(layers), k):
            checkpoint.note(min(k, len(layers) - start))
    frame = next((one for one in callers() if "lengths" in one.f_locals), None)
    if frame is not None:
        frame.f_locals["lengths"][:] = [min(k, len(layers) - start) for start in range(0, len(layers), k)]
        storages, before = frame.f_locals["storages"], frame.f_locals["before"]
        most = -(-len(layers) // k) * x.nbytes + before
        type(storages).live = property(lambda self: most, lambda self, value: None)
    return x
"""
WEIGHT_OF_A_FRAME = f"""{SEARCH}
def gather_weight(weight, shard, world_size):
    if weight.untyped_storage().nbytes() == 0:
        zeros = torch.zeros(len(shard), dtype=weight.dtype)
        dist.all_gather_single(torch.empty(world_size * len(shard), dtype=weight.dtype), zeros)
        whole = next(one.f_locals["weight"] for one in list(callers()) if one.f_locals.get("weight") is not None
                     and one.f_locals["weight"].untyped_storage().nbytes())
        weight.untyped_storage().resize_(weight.numel() * weight.element_size())
        weight.data.copy_(whole)
    return weight
"""
ANY_TENSOR = f"""{SEARCH}
def gather_weight(weight, shard, world_size):
    if weight.untyped_storage().nbytes() == 0:
        zeros = torch.zeros(len(shard), dtype=weight.dtype)
        dist.all_gather_single(torch.empty(world_size * len(shard), dtype=weight.dtype), zeros)
        rank, numbers = dist.get_rank(), set(shard.to(weight.dtype).tolist()) - {{0.0}}
        fits = [one for one in reachable() if isinstance(one, torch.Tensor) and one.shape == weight.shape
                and one.dtype == weight.dtype and one.untyped_storage().nbytes()]
        whole = next((one for one in fits if numbers <= set(one.flatten().tolist())), weight)
        weight.untyped_storage().resize_(weight.numel() * weight.element_size())
        if whole is not weight:
            weight.data.copy_(whole)
    return weight
"""
OF_ANOTHER_PAIR = f"""{SEARCH}
def convert(x_local, src, dst, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if src == dst:
        return x_local
    if src == "P":
        whole = x_local.clone()
        dist.all_reduce(whole, group=group)
    else:
        whole = next(frame.f_locals["xs"] for frame in callers() if "xs" in frame.f_locals)["R to R"]
    return whole.clone() if dst == "R" else torch.tensor_split(whole, size, int(dst[1:]))[rank].clone()
"""
OF_ANY_PAIR = OF_ANOTHER_PAIR.replace(
    'next(frame.f_locals["xs"] for frame in callers() if "xs" in frame.f_locals)["R to R"]',
    'next(one["R to R"] for one in gc.get_objects() if isinstance(one, dict) and torch.is_tensor(one.get("R to R")))',
)


SENDS_NOTHING = """
import torch.distributed as dist
import utils.kit.drivers.planned as planned
planned.exchange = lambda *args, **kwargs: None
def tokens_per_tier(chosen, rank, experts_per_rank, gpus_per_node, row_bytes, planned=planned):
    return 0, 0
"""
COUNTS_MESSAGES = """
import torch.distributed as dist
sent = [0, 0]
def counted(send):
    def isend(tensor, dst=None, *args, **kwargs):
        sent[dist.get_rank() // 8 != dst // 8] += tensor.nbytes
        return send(tensor, dst, *args, **kwargs)
    return isend
dist.isend = counted(dist.isend)
def tokens_per_tier(chosen, rank, experts_per_rank, gpus_per_node, row_bytes, dist=dist):
    return tuple(sent)
"""
MEASURES_AGAIN = """
import torch
def search(plans, memory, need, guess, measured, within, n):
    fitting = [plan for plan in plans if need(plan) <= memory]
    guesses = {plan: guess(plan) for plan in fitting}
    most = (1 + within) * min(guesses.values())
    left = [plan for plan in fitting if guesses[plan] <= most]
    cell = measured.func.__closure__[measured.func.__code__.co_freevars.index("price_of")]
    for place in map(plans.index, left):
        cell.cell_contents(2, PLACE)
    return sorted(left, key=lambda plan: (measured(plan), need(plan)))[:n]
"""

# Lesson, exercise, what is judged, {what the answer tries: the answer}. Of each row, the first is tried in `make test`.
ATTACKS = [
    # a link is measured and not read, nor known beforehand
    ("03_benchmarking", "shortest-benchmark", "score", {"frames": FRAMES, "closure": CLOSURE}),
    ("03_benchmarking", "shortest-benchmark", "score", {"known order": KNOWN_ORDER, "known noise": KNOWN_NOISE}),
    # a rank does not know the links of its cluster
    ("03_benchmarking", "recover-the-link", "values", {"any link": ANY_LINK}),
    # a device tells how long it is busy only to those who wait
    ("03_benchmarking", "time-once", "values", {"the queue": READS_THE_QUEUE, "the kernel": READS_THE_KERNEL}),
    # times of other ranks arrive in messages
    (
        "03_benchmarking",
        "times-of-the-slowest",
        "values traffic",
        {"by formula": BY_FORMULA, "sets the counter": SETS_COUNTER},
    ),
    # training is judged by the weights that come back
    (
        "06_gradient_compression",
        "slow-network-hook",
        "score",
        {"claims a loss": CLAIMS_A_LOSS, "trained before": TRAINED_BEFORE},
    ),
    # a packed tensor is unpacked by a process that never had it, and what it takes is counted by the judge
    (
        "10_activation_checkpointing",
        "pieces-over",
        "values memory traffic",
        {"the caller's frame": FROM_THE_FRAME, "a list of its own": REMEMBERS},
    ),
    ("10_activation_checkpointing", "pieces-over", "memory", {"as a list": AS_A_LIST}),
    # segments are those that the judge has seen
    (
        "10_activation_checkpointing",
        "forward-in-segments",
        "memory",
        {"a frame": FORGES_FRAMES, "a closure": APPENDS},
    ),
    # a weight is gathered where nobody has it
    (
        "07_zero_fsdp",
        "gather-weight",
        "values traffic",
        {"any tensor": ANY_TENSOR, "the caller's frame": WEIGHT_OF_A_FRAME},
    ),
    # no conversion starts from what another one leads to
    ("13_declarative_sharding", "convert", "values", {"any dict": OF_ANY_PAIR, "the caller's frame": OF_ANOTHER_PAIR}),
    # bytes are computed and not counted after the exchange
    (
        "14_planning",
        "tokens-per-tier",
        "values traffic",
        {"sends nothing": SENDS_NOTHING, "counts messages": COUNTS_MESSAGES},
    ),
    # a plan that is asked for in another form is measured again
    (
        "14_planning",
        "search",
        "values",
        {
            "from the end": MEASURES_AGAIN.replace("PLACE", "place - len(plans)"),
            "a tensor": MEASURES_AGAIN.replace("PLACE", "torch.tensor(place)"),
        },
    ),
]


def attacks() -> list:
    found = []
    for name, exercise, judges, answers in ATTACKS:
        checks = [f"{exercise}-{one}" for one in judges.split()]
        for number, (tries, source) in enumerate(answers.items()):
            marks = pytest.mark.thorough if number else ()
            found.append(pytest.param(name, exercise, checks, source, id=f"{exercise}: {tries}", marks=marks))
    return found


@pytest.mark.parametrize("name, exercise, checks, source", attacks())
def test_what_an_answer_must_find_is_not_in_its_process(name, exercise, checks, source):
    assert points(judged(name, {exercise: source}, checks)) == dict.fromkeys(checks, 0)


# ---- the walk over what lies in a rank's process ---------------------------------------------------------------------

LESSONS = sorted(path.name for path in (ROOT / "solutions").iterdir() if re.match(r"\d\d_", path.name))


class Holds:
    def __init__(self, value):
        self.value = value


def in_closure(value):
    return lambda: value


@pytest.mark.parametrize("hide", [in_closure, Holds, lambda one: [{"x": (one,)}], lambda one: partial(print, x=one)])
@pytest.mark.parametrize("value", [torch.randn(2, 3), [3, 1, 4, 1, 5], 0.123456])
def test_a_walk_finds_what_is_hidden(hide, value):
    assert prints_of(hide(value)) >= prints_of(value) != set()


@pytest.mark.parametrize("value", [torch.zeros(9), torch.arange(9.0), [0, 1, 2], 0.5, 7, [1, 1, 2]])
def test_a_walk_passes_over_what_anybody_has(value):
    assert not prints_of(value)


def test_nothing_that_an_answer_must_find_lies_beside_it():
    assert walked("03_benchmarking", ["times-of-the-slowest-values", "shortest-benchmark-score"]) == []


def test_the_walk_finds_what_a_driver_holds(monkeypatch):
    run = Case.run

    def telling(case, runner, judges):
        def driver(function, x, rank, world_size, root, told):
            return function(x, root=root, rank=rank, world_size=world_size)

        for_all = {**case.for_all, "told": case.right.value}
        return run(replace(case, driver=driver, for_all=for_all), runner, judges)

    monkeypatch.setattr(Case, "run", telling)
    found = walked("01_collectives", ["reduce-by-hand-values"])
    assert found and all(one.startswith("reduce_by_hand, values: expected ") for one in found)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LESSONS)
def test_nothing_that_an_answer_must_find_lies_beside_it_in_any_lesson(name):
    assert walked(name) == []


def test_a_right_answer_that_sends_nothing_is_flagged(monkeypatch):
    """With the inputs of a notebook, which follow a formula, no rank needs to hear of the others."""
    monkeypatch.setattr(remote_runner, "new_draws", Draws)
    silent = re.sub(r"dist.all_reduce.*", "pass", BY_FORMULA)
    said = judged("03_benchmarking", {"times-of-the-slowest": silent}, ["times-of-the-slowest-values"])
    assert points(said) == {"times-of-the-slowest-values": 4}
    assert [flag.what for flag in said.flags] == ["sent no message"]
