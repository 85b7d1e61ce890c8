"""What an answer must find is never in its own process: wrong answers that look for it there, and find nothing.

Each kind of attack has two forms. All of them earned full points when what they look for travelled with the driver.
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
ALL_LINKS = f"""{SEARCH}
links, turn = [], []
def shortest_benchmark(seconds_of):
    seconds_of(1)
    turn.append(seconds_of(1))
    links.extend(() if links else next((
        one for one in reachable()
        if isinstance(one, list) and one and isinstance(one[0], tuple) and len(one[0]) == 4 and one[0][2:3] == (
            "too short for large sizes",)
    ), [(0.0, 0.0)]))
    return links[(len(turn) - 1) % len(links)][:2]
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
LINKS = {
    "closure": CLOSURE,
    "frames": FRAMES,
    "all links": ALL_LINKS,
    "known noise": KNOWN_NOISE,
    "known order": KNOWN_ORDER,
}


@pytest.mark.parametrize("source", LINKS.values(), ids=LINKS)
def test_a_link_is_measured_and_not_read(source):
    said = judged("03_benchmarking", {"shortest-benchmark": source}, ["shortest-benchmark-score"])
    assert points(said) == {"shortest-benchmark-score": 0}


READS_THE_CLUSTER = f"""{SEARCH}
def recover_the_link(sizes, seconds_of, fit, rank, world_size):
    for nbytes in sizes:
        x = torch.zeros(nbytes // 4)
        seconds_of(partial(dist.all_reduce, x))
    [link] = {{(one.inter.alpha, one.inter.bandwidth) for one in reachable() if type(one).__name__ == "Cluster"}}
    return link
"""
ANY_LINK = f"""{SEARCH}
def recover_the_link(sizes, seconds_of, fit, rank, world_size):
    for nbytes in sizes:
        x = torch.zeros(nbytes // 4)
        seconds_of(partial(dist.all_reduce, x))
    found = [one for one in reachable() if type(one).__name__ == "Link" and one.alpha > 0]
    return next(((one.alpha, one.bandwidth) for one in found if one.reduces is False), (1.0, 1.0))
"""


@pytest.mark.parametrize("source", [READS_THE_CLUSTER, ANY_LINK], ids=["the cluster", "any link"])
def test_a_rank_does_not_know_the_links_of_its_cluster(source):
    said = judged("03_benchmarking", {"recover-the-link": source}, ["recover-the-link-values"])
    assert points(said) == {"recover-the-link-values": 0}


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


@pytest.mark.parametrize("source", [READS_THE_KERNEL, READS_THE_QUEUE], ids=["the kernel", "the queue"])
def test_a_device_tells_how_long_it_is_busy_only_to_those_who_wait(source):
    said = judged("03_benchmarking", {"time-once": source}, ["time-once-values"])
    assert points(said) == {"time-once-values": 0}


SLOWEST = ["times-of-the-slowest-values", "times-of-the-slowest-traffic"]
SETS_COUNTER = """
def times_of_the_slowest(time_one, warmup, repeats):
    made = [time_one() for _ in range(warmup + repeats)]
    state = dict(vars(time_one))
    all_times = []
    for rank in range(state["world_size"]):
        other = type(time_one)(rank, state["world_size"], warmup, state["seed"])
        all_times.append([other() for _ in range(warmup + repeats)][warmup:])
    dist.all_reduce(torch.zeros(repeats, dtype=torch.float64))
    return [max(one) for one in zip(*all_times)]
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
NEVER_CALLS = """
def times_of_the_slowest(time_one, warmup, repeats):
    kept = [time_one.of_call(call) for call in range(warmup, warmup + repeats)]
    slowest = torch.tensor(kept, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    time_one.calls = warmup + repeats
    return slowest.tolist()
"""


@pytest.mark.parametrize(
    "source", [SETS_COUNTER, BY_FORMULA, NEVER_CALLS], ids=["other watches", "by formula", "sets the counter"]
)
def test_times_of_other_ranks_arrive_in_messages(source):
    said = judged("03_benchmarking", {"times-of-the-slowest": source}, SLOWEST)
    assert set(points(said).values()) == {0}


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
OTHERS_ROWS = f"""{SEARCH}
from utils.kit.regression import imitation, make_lessons
board_name = ""

def slow_network_hook(rank, world_size):
    seed = next(frame.f_locals["seed"] for frame in callers() if isinstance(frame.f_locals.get("seed"), int))
    rows = [make_lessons(other, seed=seed) for other in range(world_size)]
    replica = next(one for one in reachable() if type(one).__name__ == "Sequential" and isinstance(one, nn.Module))
    inputs, targets = (torch.cat(parts) for parts in zip(*rows))

    def hook(bucket):
        whole = torch.autograd.grad(imitation(replica(inputs), targets), list(replica.parameters()))
        bucket.flat.copy_(torch.cat([one.flatten() for one in reversed(whole)]))
        return lambda: None

    return hook
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


@pytest.mark.parametrize("source", [CLAIMS_A_LOSS, TRAINED_BEFORE], ids=["claims a loss", "others' rows from the seed"])
def test_training_is_judged_by_the_weights_that_come_back(source):
    said = judged("06_gradient_compression", {"slow-network-hook": source}, ["slow-network-hook-score"])
    assert points(said) == {"slow-network-hook-score": 0}


PIECES = ["pieces-over-values", "pieces-over-memory", "pieces-over-traffic"]
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


@pytest.mark.parametrize("source", [FROM_THE_FRAME, REMEMBERS], ids=["the caller's frame", "a list of its own"])
def test_a_packed_tensor_is_unpacked_by_a_process_that_never_had_it(source):
    said = judged("10_activation_checkpointing", {"pieces-over": source}, PIECES)
    assert set(points(said).values()) == {0}


def test_what_a_packed_tensor_takes_is_counted_by_the_judge():
    said = judged("10_activation_checkpointing", {"pieces-over": AS_A_LIST}, PIECES[1:2])
    assert points(said) == {"pieces-over-memory": 0}


SEGMENTS = ["forward-in-segments-memory"]
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


@pytest.mark.parametrize("source", [APPENDS, FORGES_FRAMES], ids=["a closure", "a frame"])
def test_segments_are_those_that_the_judge_has_seen(source):
    said = judged("10_activation_checkpointing", {"forward-in-segments": source}, SEGMENTS)
    assert points(said) == {"forward-in-segments-memory": 0}


GATHER = ["gather-weight-values", "gather-weight-traffic"]
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


@pytest.mark.parametrize("source", [WEIGHT_OF_A_FRAME, ANY_TENSOR], ids=["the caller's frame", "any tensor"])
def test_a_weight_is_gathered_where_nobody_has_it(source):
    said = judged("07_zero_fsdp", {"gather-weight": source}, GATHER)
    assert set(points(said).values()) == {0}


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


@pytest.mark.parametrize("source", [OF_ANOTHER_PAIR, OF_ANY_PAIR], ids=["the caller's frame", "any dict"])
def test_no_conversion_starts_from_what_another_one_leads_to(source):
    said = judged("13_declarative_sharding", {"convert": source}, ["convert-values"])
    assert points(said) == {"convert-values": 0}


TIERS = ["tokens-per-tier-values", "tokens-per-tier-traffic"]
SENDS_NOTHING = """
import utils.kit.drivers.planned as planned
planned.exchange = lambda *args, **kwargs: None
def tokens_per_tier(chosen, rank, experts_per_rank, gpus_per_node, row_bytes, planned=planned):
    return 0, 0
"""
COUNTS_MESSAGES = """
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


@pytest.mark.parametrize("source", [SENDS_NOTHING, COUNTS_MESSAGES], ids=["sends nothing", "counts messages"])
def test_bytes_are_computed_and_not_counted_after_the_exchange(source):
    said = judged("14_planning", {"tokens-per-tier": f"import torch.distributed as dist\n{source}"}, TIERS)
    assert set(points(said).values()) == {0}


MEASURES_AGAIN = """
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


@pytest.mark.parametrize("place", ["place - len(plans)", "torch.tensor(place)"], ids=["from the end", "a tensor"])
def test_a_plan_that_is_asked_for_in_another_form_is_measured_again(place):
    source = "import torch\n" + MEASURES_AGAIN.replace("PLACE", place)
    assert points(judged("14_planning", {"search": source}, ["search-values"])) == {"search-values": 0}


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


@pytest.mark.parametrize("exercise", ["times-of-the-slowest", "shortest-benchmark"])
def test_nothing_that_an_answer_must_find_lies_beside_it(exercise):
    judges = "score" if exercise == "shortest-benchmark" else "values"
    assert walked("03_benchmarking", [f"{exercise}-{judges}"]) == []


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
    said = judged("03_benchmarking", {"times-of-the-slowest": silent}, SLOWEST[:1])
    assert points(said) == {SLOWEST[0]: 4}
    assert [flag.what for flag in said.flags] == ["sent no message"]
