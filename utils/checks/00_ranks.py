"""The visible checks of lesson 00. Each is quick: one to three runs of one to four ranks. Form: see registry.py."""

from __future__ import annotations

import math
import operator
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import reduce
from statistics import median
from typing import Any

import torch

from .. import simulate
from ..cluster.hardware import Cluster, Gpu, Link
from ..events.event import Region
from ..kit.gpu_topology import recorded, speed
from ..kit.slow_memory import SlowMemory, unwritten
from ..text.units import quantity
from .answer import Answer, CheckFailed
from .compare import expect, plural
from .inputs import Draws
from .marking import check
from .runner import Runner


def expect_close(
    got: Any, wanted: float, seen: str, recognise: dict[str, float] | None = None, rtol: float = 1e-9
) -> None:
    """Raise CheckFailed unless `got` is a number equal to `wanted` up to rounding."""
    if not isinstance(got, int | float) or isinstance(got, bool):
        raise CheckFailed(f"{seen} {got!r}", "a number", "Take .item() of it." if isinstance(got, torch.Tensor) else "")
    if math.isclose(got, wanted, rel_tol=rtol):
        return
    usual = (words for words, wrong in (recognise or {}).items() if math.isclose(got, wrong, rel_tol=1e-6))
    mistake = next(usual, "")
    raise CheckFailed(f"{seen} {got:.6g}", f"{wanted:.6g}", mistake and f"That is {mistake}.")


def pair(got: Any, rank: int, first: str, second: str) -> tuple[Any, Any]:
    """The two things that a rank returned. Raises CheckFailed if it did not return two."""
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise CheckFailed(f"rank {rank} returned {got!r}", f"two things: {first} and {second}")
    one, other = got
    return one, other


# ---- part 1


@check("hello-ranks")
def hello_ranks_values(run: Runner) -> None:
    for world_size in (4, 2):
        results = run(world_size).results
        if run.situation:  # it names the ranks if a function takes `rank`
            raise CheckFailed("your function takes `rank`", "a function without arguments", "Ask `dist` for it.")
        judge_hello(results)


def judge_hello(results: list[Any]) -> None:
    world_size = len(results)
    for rank, me in enumerate(results):
        if not isinstance(me, dict):
            raise CheckFailed(f"rank {rank} returned {me!r}", "a dict")
        wanted: dict[str, Any] = {"rank": rank, "world_size": world_size, "device": "cpu"}
        for name, right in wanted.items():
            if name not in me:
                raise CheckFailed(f"rank {rank} says nothing about {name!r}: it returned {me}")
            got = me[name]
            if callable(got) or str(got).startswith("<function"):
                raise CheckFailed(f"rank {rank}: {name!r} is a function", f"{right!r}", "Call it: write () after it.")
            usual: dict[str, Any] = {"a torch.device, not its name: take str(...) of it": torch.device("cpu")}
            if name == "rank":
                usual = {"how many ranks there are: ask get_rank()": world_size, "rank 0's: each has its own": 0}
            if name == "world_size":
                usual = {"this rank's own number: ask get_world_size()": rank, "the number of the last rank": rank}
            expect(got, right, f"rank {rank} says that its {name} is", {w: x for w, x in usual.items() if x != right})
    processes = [me.get("process") for me in results]
    if len(set(processes)) < world_size or os.getpid() in processes:
        raise CheckFailed(
            f"the processes are {processes}", "a different one on each rank", "Leave that line as it was."
        )


MEET = (
    "all ranks must name the same path, a new one for each meeting; each names its own rank, and all the same "
    "world_size. init_process_group waits until every rank has called it."
)


@check("rendezvous-by-hand", if_stuck=MEET)
def rendezvous_by_hand_values(run: Runner) -> None:
    judge_rendezvous(run, [7, 5, 9, 4], meetings=2)


def judge_rendezvous(run: Runner, numbers: list[int], meetings: int) -> None:
    world_size = len(numbers)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"meeting-{number}") for number in range(meetings)]
        try:
            results = run(world_size, numbers, [paths] * world_size).results
        except CheckFailed as failed:
            raise explain_rendezvous(failed) from None
    for rank, got in enumerate(results):
        gathered, is_left = pair(got, rank, "the numbers", "whether there is a group")
        for met in gathered:
            usual = {
                "the right numbers in a different order: a rank did not give its own `rank`": sorted_like(met, numbers),
            }
            expect(met, numbers, f"rank {rank} gathered", usual)
        if len(gathered) != meetings:
            raise CheckFailed(f"rank {rank} met the others {len(gathered)} times", f"{meetings} times, once per path")
        if is_left is not False:
            raise CheckFailed(
                f"rank {rank} still has a process group at the end",
                mistake="Each meeting ends with dist.destroy_process_group(), the last one too.",
            )


def sorted_like(met: Any, numbers: list[int]) -> Any:
    """`met` if it has the same numbers in any order, else None."""
    return met if isinstance(met, list) and sorted(met) == sorted(numbers) else None


def explain_rendezvous(failed: CheckFailed) -> CheckFailed:
    """What torch means by some of its errors."""
    meanings = {
        "twice": "The first meeting must be over before the second: call dist.destroy_process_group() after each "
        "gathering, on every rank.",
        "has not been initialized": "There is no process group, or no longer: each rank calls "
        "dist.init_process_group before the gathering and dist.destroy_process_group after it.",
        "MASTER_ADDR": "Without a store, PyTorch looks for a meeting place in the environment: give it store=store.",
        "incompatible constructor": "store= takes the store, dist.FileStore(path, world_size), and not its path.",
        "must be positive": "With a store, PyTorch needs rank= and world_size= too.",
        "rank < size": "Each rank names the same world_size: how many ranks there are in all.",
        "Wait timeout": f"A rank did not come: {MEET}",
    }
    for words, meaning in meanings.items():
        if words in failed.saw and not failed.mistake:
            return CheckFailed(failed.saw, failed.expected, meaning)
    return failed


TURNS = "the barrier is inside an `if`, so not all ranks call it."


@check("take-turns", if_stuck=TURNS)
def take_turns_values(run: Runner) -> None:
    for order in ([2, 0, 3, 1], [1, 0]):
        judge_lines(run, order)


def judge_lines(run: Runner, order: list[int]) -> None:
    right = [f"rank {rank}" for rank in order]
    for rank, got in enumerate(turns(run, order).results):
        usual = {
            "in the order of the ranks: use `order`": sorted(right),
            "the right lines in a different order: there is no barrier between one turn and the next": shuffled(
                got, right
            ),
        }
        if isinstance(got, list) and len(got) < len(right):
            usual["incomplete: you read before every rank had written"] = got
        if isinstance(got, list) and len(got) > len(right) and set(got) == set(right):
            usual["some lines several times: in each turn only one rank writes"] = got
        expect(got, right, f"order {order}: rank {rank} read", {w: x for w, x in usual.items() if x != right})


def shuffled(got: Any, right: list[str]) -> Any:
    return got if isinstance(got, list) and sorted(map(str, got)) == sorted(right) else None


def turns(run: Runner, order: list[int]) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        return run(len(order), [os.path.join(folder, "lines")] * len(order), order=order)


@check("take-turns", judges="traffic", if_stuck=TURNS)
def take_turns_traffic(run: Runner) -> str:
    for order in ([2, 0, 3, 1], [0, 1]):
        expect_barriers_between(turns(run, order), order)
    return "there is a barrier between each turn and the next, and before the reading."


def expect_barriers_between(answer: Answer, order: list[int]) -> None:
    """Raise CheckFailed unless barriers keep each append after the one before, and each read after the last append.

    b's access certainly follows a's if b has left more barriers before it than a had entered by the end of its own.
    """
    strangers = sorted({event.op for event in answer.events} - {"barrier"})
    if strangers:
        raise CheckFailed(f"your function calls {', '.join(strangers)}", "dist.barrier() alone")
    appends = {rank: accesses(answer, rank, "append") for rank in order}
    for rank in order:
        if len(appends[rank]) != 1:
            times = plural(len(appends[rank]), "line")
            raise CheckFailed(f"rank {rank} appended {times} to the file", "1 line, by file.append(...)")
    for before, after in zip(order, order[1:], strict=False):
        expect_after(answer, before, appends[before][0], after, appends[after][0], "writes")
    for rank in order:
        reads = accesses(answer, rank, "read")
        if not reads:
            raise CheckFailed(f"rank {rank} did not read the file", "file.lines() at the end")
        expect_after(answer, order[-1], appends[order[-1]][0], rank, reads[-1], "reads")


def accesses(answer: Answer, rank: int, name: str) -> list[Region]:
    return [region for region in answer.run.regions if region.rank == rank and region.name == name]


def expect_after(answer: Answer, first: int, one: Region, second: int, other: Region, verb: str) -> None:
    entered = sum(e.rank == first and e.start <= one.end for e in answer.events)
    left = sum(e.rank == second and e.end is not None and e.end <= other.start for e in answer.events)
    if first != second and left <= entered:
        raise CheckFailed(
            f"rank {second} {verb} without a barrier after the turn of rank {first}",
            "a barrier between them",
            "In this run the order may have been right by luck: nothing guarantees it.",
        )


# ---- part 2

LISTS: list[list[float]] = [[10, 20], [30], [], [40, 50, 60]]


def averages_and_readings(run: Runner, lists: Sequence[Sequence[float]]) -> list[tuple[Any, Any]]:
    results = run(len(lists), lists).results
    return [pair(got, rank, "the average", "the reading") for rank, got in enumerate(results)]


CALLS_ALL = "a rank with an empty list still has to make the calls that the others make."


@check("one-failing-rank", if_stuck=CALLS_ALL)
def one_failing_rank_values(run: Runner) -> None:
    for lists in (LISTS, [[1.5], [5.25, 6.5], []]):
        judge_average(run, lists)


def judge_average(run: Runner, lists: Sequence[Sequence[float]]) -> None:
    everything = [number for numbers in lists for number in numbers]
    averages = [sum(numbers) / len(numbers) if numbers else 0 for numbers in lists]
    filled = [sum(numbers) / len(numbers) for numbers in lists if numbers]
    for rank, (got, _) in enumerate(averages_and_readings(run, lists)):
        usual = {
            "the average of the ranks' averages: longer lists must count for more": sum(averages) / len(lists),
            "the average of the averages of ranks that have numbers: longer lists must count for more": sum(filled)
            / len(filled),
            "the sum of all numbers": sum(everything),
            "the average per rank, not per number: what do you divide by?": sum(everything) / len(lists),
            "this rank's own average": averages[rank],
            "the sum of all numbers divided by this rank's own count: sum the counts too": sum(everything)
            / max(1, len(lists[rank])),
            "the result when fractions are cut off: keep floats, dtype=torch.float64": sum(map(int, map(sum, lists)))
            / len(everything),
        }
        expect_close(got, sum(everything) / len(everything), f"rank {rank} returned", usual, rtol=1e-6)


@check("one-failing-rank", judges="reading", if_stuck=CALLS_ALL)
def one_failing_rank_reading(run: Runner) -> None:
    lists = [[1.0], [2.0]]
    reading = averages_and_readings(run, lists)[0][1]
    advice = {
        "raised": "One number: it is in the first line of the report.",
        "error": "The name alone, as a string: it is in the first line of the report, before the colon.",
        "waited": "A list of numbers: the last line of the report names them, in brackets.",
    }
    expect_reading(reading, {"raised": 2, "error": "ZeroDivisionError", "waited": [0, 1, 3]}, advice)


def expect_reading(reading: Any, right: dict[str, Any], advice: dict[str, str]) -> None:
    """Raise CheckFailed at the first entry that the report contradicts. It does not give the right value away."""
    if not isinstance(reading, dict):
        raise CheckFailed(f"the reading is {reading!r}", f"a dict with the entries {', '.join(right)}")
    for name, wanted in right.items():
        got: Any = reading.get(name)
        if sorted(got) != wanted if isinstance(wanted, list) and is_numbers(got) else got != wanted:
            says = f"your reading says {name!r}: {got!r}, but the report does not"
            raise CheckFailed(f"your reading leaves {name!r} empty" if got is None else says, mistake=advice[name])


def is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple | set) and all(isinstance(item, int) for item in value)


STOPS = "a rank left the loop while others stayed. All must decide by the same number."
LOSSES = [[6.0, 4.0, 2.0, 0.9], [5.0, 0.5, 1.0, 0.3], [7.0, 3.0, 0.6, 0.3]]


@check("one-deadlock", if_stuck=STOPS)
def one_deadlock_values(run: Runner) -> None:
    judge_training(run, LOSSES)
    judge_training(run, [[4.0, 1.5, 0.5, 1.0, 0.25], [0.0, 0.25, 0.5, 0.5, 0.25]])


def judge_training(run: Runner, losses: list[list[float]]) -> None:
    world_size = len(losses)
    right = steps_until_small(losses)
    answer = run(world_size, losses)
    for rank, got in enumerate(answer.results):
        averages, _ = pair(got, rank, "the averages", "the reading")
        if not isinstance(averages, list) or len(averages) != len(right):
            many = plural(len(averages), "step") if isinstance(averages, list) else repr(averages)
            raise CheckFailed(
                f"rank {rank} made {many}", plural(len(right), "step"), stopping_mistake(averages, right, losses)
            )
        for step, (one, wanted) in enumerate(zip(averages, right, strict=True)):
            expect_close(one, wanted, f"rank {rank}, step {step}: the average is", rtol=1e-6)
        if [event.op for event in answer.events if event.rank == rank][-1:] != ["barrier"]:
            raise CheckFailed(f"rank {rank} did not end at the barrier", "dist.barrier() after the loop")


def steps_until_small(losses: list[list[float]]) -> list[float]:
    averages = [sum(step) / len(losses) for step in zip(*losses, strict=True)]
    small = [step for step, average in enumerate(averages) if average < 1]
    return averages[: small[0] + 1] if small else averages


def stopping_mistake(averages: Any, right: list[Any], losses: list[list[float]]) -> str:
    if not isinstance(averages, list) or not averages:
        return ""
    if len(averages) > len(right):
        return "You continue although the average is below 1. The average decides."
    if averages == right[:-1] and right[-1] < 1:
        return "The step whose average is below 1 is the last one, and it counts too."
    last_step = [losses_of_rank[len(averages) - 1] for losses_of_rank in losses]
    return "You stop when one of the losses is below 1. The average decides." if min(last_step) < 1 else ""


@check("one-deadlock", judges="reading", if_stuck=STOPS)
def one_deadlock_reading(run: Runner) -> None:
    reading = run(2, [[0.5], [0.25]]).results[0]
    reading = pair(reading, 0, "the averages", "the reading")[1]
    where = "A list of numbers: each rank has a line in the report that names the call it waits in."
    steps = "Rank 1 left after the step in which its own loss was below 1: count the steps up to that one."
    right = {"in all_reduce": [0, 2], "in barrier": [1], "steps": 2}
    expect_reading(reading, right, {"in all_reduce": where, "in barrier": where, "steps": steps})


# ---- part 3


@check("memory-wall")
def memory_wall_values(run: Runner) -> None:
    for parameters, memory in ((7e9, 80e9), (5e9, 80e9), (70e9, 180e9)):
        judge_wall(run, parameters, memory, 16)


def judge_wall(run: Runner, parameters: float, memory: float, each: float) -> None:
    got = run(1, parameters=parameters, gpu_memory=memory, bytes_per_parameter=each).results[0]
    state, gpus = pair(got, 0, "bytes", "a number of GPUs")
    about = f"{parameters / 1e9:g} billion parameters, {each} bytes each, GPUs of {memory / 1e9:g} GB:"
    wanted = parameters * each
    expect_close(
        state,
        wanted,
        f"{about} the state takes",
        {
            "the parameters alone": parameters * 2,
            "in GB: return bytes": wanted / 1e9,
            "in GiB: return bytes": wanted / 2**30,
            "the number of GPUs: the bytes come first": math.ceil(wanted / memory),
        },
    )
    needed = int(-(-wanted // memory))
    gpus = operator.index(gpus) if hasattr(gpus, "__index__") else gpus  # an integer of NumPy is one too
    usual = {
        "the right number, but a float: take int(...) of it": float(needed),
        "rounded down: then a part fits nowhere": int(wanted // memory),
        "one too many: a state that fits exactly needs no extra GPU": needed + 1 if wanted == needed * memory else None,
        "not a whole number of GPUs: round up": wanted / memory,
        "rounded to the nearest: round up, or a part fits nowhere": round(wanted / memory),
    }
    wrong = {words: x for words, x in usual.items() if isinstance(x, float) or x != needed}
    expect(gpus, needed, f"{about} GPUs needed:", wrong)


# ---- part 4

# (bytes of a copy, its bytes/s); some touch exactly as many bytes as a level holds
COPIES = [(2048, 64e9), (8192, 96e9), (16384, 128e9), (32768, 48e9), (65536, 40e9), (500_000, 12e9), (10**7, 10e9)]
LEVELS = {"L1": 32768.0, "L2": 1_000_000.0, "memory": math.inf}


@check("bandwidth-of-levels")
def bandwidth_of_levels_values(run: Runner) -> None:
    judge_levels(run, COPIES, LEVELS)
    judge_levels(run, [(20, 10.0), (50, 20.0), (60, 2.0)], {"L1": 100.0, "memory": math.inf})


LEFT_OUT = "A copy belongs to the first level that has room for it. Levels without a copy are left out."


def judge_levels(run: Runner, copies: list[tuple[int, float]], levels: dict[str, float]) -> None:
    nbytes = [n for n, _ in copies]
    got = run(1, nbytes=nbytes, seconds=[2 * n / rate for n, rate in copies], levels=levels).results[0]
    right = level_rates(copies, levels, touched=2)
    if not isinstance(got, dict) or set(got) != set(right):
        names = list(got) if isinstance(got, dict) else got
        raise CheckFailed(f"you returned {names}", f"the levels {list(right)}", LEFT_OUT)
    half = level_rates(copies, levels, touched=1)
    mean = level_rates(copies, levels, touched=2, of_all=lambda rates: sum(rates) / len(rates))
    best = level_rates(copies, levels, touched=2, of_all=max)
    fits = {name: median(rate for n, rate in copies if 2 * n <= levels[name]) for name in right}
    for name, wanted in right.items():
        usual = {
            "half of it: a copy of n bytes reads n and writes n": wanted / 2,
            "what you get if copies of n bytes touch n bytes: they touch 2 n, which must fit": half.get(name, 0),
            "half of what you get if copies touch n bytes: they touch and move 2 n": half.get(name, 0) / 2,
            "the mean: take the median": mean[name],
            "the best: take the median": best[name],
            "the time per byte: bandwidth is bytes per second": 1 / wanted,
            "in GB/s: return bytes/s": wanted / 1e9,
            "of all copies that fit: each belongs to the first level that has room for it, and to no other": fits[name],
        }
        expect_close(got[name], wanted, f"the bandwidth of {name} is", usual)


def level_rates(
    copies: list[tuple[int, float]],
    levels: dict[str, float],
    touched: int,
    of_all: Callable[[list[float]], float] = median,
) -> dict[str, float]:
    lower, found = 0.0, {}
    for name, size in levels.items():
        inside = [rate for n, rate in copies if lower < touched * n <= size]
        if inside:
            found[name] = of_all(inside)
        lower = size
    return found


@check("arithmetic-intensity")
def arithmetic_intensity_values(run: Runner) -> None:
    for shape in ((8, 4, 2), (256, 256, 256)):
        for element_size in (2, 4):
            judge_intensity(run, shape, element_size)


def judge_intensity(run: Runner, shape: tuple[int, int, int], element_size: int) -> None:
    m, k, n = shape
    got = run(1, m=m, k=k, n=n, element_size=element_size).results[0]
    numbers, products = m * k + k * n + m * n, m * k * n
    usual = {
        "FLOP per NUMBER moved: divide by bytes": 2 * products / numbers,
        "half of it: k multiplications AND k additions for each result": products / numbers / element_size,
        "without the output, which is written too": 2 * products / (m * k + k * n) / element_size,
        "the inverse: FLOP divided by bytes": numbers * element_size / (2 * products),
    }
    seen = f"({m}, {k}) @ ({k}, {n}), {element_size} bytes per number: you returned"
    expect_close(got, 2 * products / numbers / element_size, seen, usual)


GPU = Gpu(flops={"bf16": 400e12, "fp32": 50e12}, memory=80e9, bandwidth=2e12, launch=3e-6)


@check("roofline-time")
def roofline_time_values(run: Runner) -> None:
    for flops, moved in ((4e9, 2e9), (4e12, 2e9), (0.0, 4e6), (8e8, 2e6)):
        for dtype in ("bfloat16", "float32"):
            judge_roofline(run, flops, moved, GPU, dtype)


def judge_roofline(run: Runner, flops: float, moved: float, gpu: Gpu, dtype: str) -> None:
    got = run(1, flops=flops, moved=moved, gpu=gpu, dtype=dtype).results[0]
    seconds, bound = pair(got, 0, "seconds", "the bound")
    about = f"{quantity(flops, 'FLOP')} and {quantity(moved, 'B')} in {dtype}:"
    computing, moving = flops / gpu.peak(dtype), moved / gpu.bandwidth
    expect_seconds(seconds, computing, moving, gpu.launch, f"{about} you returned")
    usual = {"the bound if the launch counts as moving: it counts as neither": "memory"}
    right = "memory" if moving > computing else "compute"
    expect(bound, right, f"{about} bound by", usual if moving + gpu.launch > computing >= moving else None)


def expect_seconds(got: Any, computing: float, moving: float, launch: float, seen: str) -> None:
    usual = {
        "the sum of computing and moving: they overlap, so the longer one counts": computing + moving + launch,
        "without the launch, which comes on top of the longer one": max(computing, moving),
        "the shorter of the two: the longer one counts": min(computing, moving) + launch,
        "computing alone": computing + launch,
        "moving alone": moving + launch,
    }
    right = max(computing, moving) + launch
    expect_close(got, right, seen, {w: x for w, x in usual.items() if not math.isclose(x, right)})


@check("roofline-time", judges="time")
def roofline_time_time(run: Runner) -> str:
    return judge_clock(run, [("add", 10**7), ("relu", 10**6), ("matmul", 64), ("matmul", 2048)], torch.bfloat16)


def judge_clock(run: Runner, operations: list[tuple[str, int]], dtype: torch.dtype) -> str:
    """Compare predictions with the clock of a virtual GPU that runs the operations."""
    nowhere = Link(0, math.inf)
    one = Cluster("one GPU", 1, 1, gpu=GPU, intra=nowhere, inter=nowhere)
    said = []
    for name, n in operations:
        flops, moved = counts(name, n, dtype.itemsize)
        short = str(dtype).removeprefix("torch.")
        got = run(1, flops=float(flops), moved=float(moved), gpu=GPU, dtype=short).results[0]
        predicted, _ = pair(got, 0, "seconds", "the bound")
        took = simulate(operate, 1, name, n, dtype, cluster=one).elapsed
        expect_close(predicted, took, f"{name} of size {n:,}: you predict", {}, rtol=1e-6)
        said.append(f"{name} {n:,}: {quantity(took, 's')}")
    return f"the virtual GPU took what you predicted: {', '.join(said)}."


def operate(rank: int, world_size: int, name: str, n: int, dtype: torch.dtype) -> None:
    shape = (n, n) if name == "matmul" else (n,)
    x, y = (torch.empty(shape, dtype=dtype) for _ in range(2))
    operations: dict[str, Callable[..., torch.Tensor]] = {
        "add": torch.add,
        "matmul": torch.matmul,
        "relu": lambda x, y: torch.relu(x),
    }
    operations[name](x, y)


def counts(name: str, n: int, element_size: int) -> tuple[int, int]:
    """(FLOP, bytes moved). An addition's few FLOP are never the bound."""
    if name == "matmul":
        return 2 * n**3, 3 * n * n * element_size
    return (n, 3 * n * element_size) if name == "add" else (0, 2 * n * element_size)


# ---- part 5


@check("fused-chain")
def fused_chain_values(run: Runner) -> None:
    for numel, room in ((20, 16), (10, 16)):
        [x] = run.draws.different_integers(1, numel)
        judge_chain(run, x - 15, room)


def judge_chain(run: Runner, x: torch.Tensor, room: int, scale: float = 2.0, shift: float = 3.0) -> None:
    got = chained(run, x, room, scale, shift).arrays["y"]
    right = (x * scale + shift).clamp(min=0).to(x.dtype)
    last = torch.where(torch.arange(x.numel()) < x.numel() // (room // 4) * (room // 4), right, unwritten(x.numel()))
    usual: dict[str, Any] = {
        "nothing: no number of y was stored": unwritten(x.numel(), dtype=x.dtype),
        "without the last, shorter block": last.to(x.dtype) if x.dtype.is_floating_point else None,
        "without the relu: numbers below 0 become 0": x * scale + shift,
        "with the shift first: scale, then shift": ((x + shift) * scale).clamp(min=0),
        "with the relu first: it comes last": x.clamp(min=0) * scale + shift,
        "x itself": x,
    }
    expect(got, right, "y is", usual)


def chained(run: Runner, x: torch.Tensor, room: int, scale: float = 2.0, shift: float = 3.0) -> SlowMemory:
    memory = SlowMemory({"x": x, "y": unwritten(x.numel(), dtype=x.dtype)}, room)
    got = run(1, [memory], numel=x.numel(), scale=scale, shift=shift).results[0]
    return returned_memory(got, {"x": x})


def returned_memory(got: Any, inputs: dict[str, torch.Tensor]) -> SlowMemory:
    if not isinstance(got, SlowMemory):
        raise CheckFailed(f"you returned {got!r}", "the memory")
    for name, before in inputs.items():
        expect(got.arrays[name], before, f"afterwards {name!r} is")
    return got


FAR = "The numbers in memory.arrays are far away: only memory.load and memory.store move them to the chip and back."


@check("fused-chain", judges="traffic")
def fused_chain_traffic(run: Runner) -> str:
    return judge_chain_traffic(run, 1000, 256)


def judge_chain_traffic(run: Runner, numel: int, room: int) -> str:
    x = torch.arange(numel, dtype=torch.float32) - numel // 2
    memory = chained(run, x, room)
    for verb, got, wanted in (("loaded", memory.loaded, 4 * numel), ("stored", memory.stored, 4 * numel)):
        if got != wanted:
            few = f"Some numbers were never {verb}. {FAR}"
            many = "A number that is already on the chip need not go back to memory and be loaded again."
            raise CheckFailed(f"you {verb} {got:,} bytes", f"{wanted:,}: each once", few if got < wanted else many)
    return f"{memory.moved:,} bytes moved; as three operations it would be {24 * numel:,}."


@check("tiled-matmul")
def tiled_matmul_values(run: Runner) -> None:
    for m, k, n, tile in ((4, 4, 4, 2), (4, 6, 8, 2)):
        judge_product(run, m, k, n, tile)


def judge_product(run: Runner, m: int, k: int, n: int, tile: int, dtype: torch.dtype = torch.float32) -> None:
    a, b = matrices(run.draws, m, k, n, dtype)
    got = multiplied(run, a, b, tile).arrays["c"]
    last = a[:, (k - 1) // tile * tile :] @ b[(k - 1) // tile * tile :]
    usual: dict[str, Any] = {
        "nothing: no number of c was stored": unwritten(m, n, dtype=dtype),
        "the last product of tiles: add them up along the inner dimension": last,
        "the first product of tiles: go on along the inner dimension": a[:, :tile] @ b[:tile],
        "twice the product": 2 * (a @ b),
    }
    if m == n == k:
        usual |= {"b @ a": b @ a, "a times b transposed": a @ b.T}
        usual["a product element by element: use @"] = by_tiles(a, b, tile, lambda i, j, s: a[i, s] * b[s, j])
        swapped = by_tiles(a, b, tile, lambda i, j, s: a[i, s] @ b[j, s])
        usual["made with the wrong tiles of b: its rows go along the inner dimension, its columns are C's"] = swapped
    expect(got, a @ b, "c is", {w: x for w, x in usual.items() if not torch.equal(x, a @ b)})


def by_tiles(a: torch.Tensor, b: torch.Tensor, tile: int, product: Callable[..., torch.Tensor]) -> torch.Tensor | None:
    """The matrix that square tiles make from product(rows, columns, inner); None if some are cut off."""
    if len(a) % tile:
        return None
    parts = [slice(start, start + tile) for start in range(0, len(a), tile)]
    return torch.cat(
        [torch.cat([reduce(torch.add, [product(i, j, s) for s in parts]) for j in parts], dim=1) for i in parts]
    )


def matrices(draws: Draws, m: int, k: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Small whole numbers: every product is exact, in bfloat16 too."""
    [a], [b] = draws.different_integers(1, (m, k)), draws.different_integers(1, (k, n), seed=1)
    return (a % 4).to(dtype), (b % 3).to(dtype)


def multiplied(run: Runner, a: torch.Tensor, b: torch.Tensor, tile: int) -> SlowMemory:
    (m, k), n = a.shape, b.shape[1]
    memory = SlowMemory({"a": a, "b": b, "c": unwritten(m, n, dtype=a.dtype)}, room=4 * tile * tile)
    return returned_memory(run(1, [memory], m=m, k=k, n=n).results[0], {"a": a, "b": b})


@check("tiled-matmul", judges="traffic")
def tiled_matmul_traffic(run: Runner) -> str:
    return judge_product_traffic(run, 16, 16, 16, 4)


def judge_product_traffic(run: Runner, m: int, k: int, n: int, tile: int) -> str:
    a, b = matrices(run.draws, m, k, n, torch.float32)
    memory = multiplied(run, a, b, tile)
    loads, stores = 4 * (m * k * math.ceil(n / tile) + k * n * math.ceil(m / tile)), 4 * m * n
    if memory.stored != stores:
        raise CheckFailed(
            f"you stored {memory.stored:,} bytes",
            f"{stores:,}: each number of c once",
            "A tile of c stays on the chip until it is complete." if memory.stored > stores else "A part is missing.",
        )
    if memory.loaded > loads:
        raise CheckFailed(
            f"you loaded {memory.loaded:,} bytes",
            f"{loads:,} at most",
            f"{memory.loaded / loads:.3g} times what is needed: each step takes one tile of a and one of b.",
        )
    if memory.loaded < 4 * (m * k + k * n):
        raise CheckFailed(
            f"you loaded {memory.loaded:,} bytes", "all of a and b", f"Some numbers were never loaded. {FAR}"
        )
    naive = 4 * 2 * m * n * k
    return f"{memory.loaded:,} bytes loaded; number by number it would be {naive:,}."


# ---- part 6

BRIDGED = [["X", "NV4"], ["NV4", "X"]]
PCIE = [
    ["X", "SYS", "PIX", "SYS"],
    ["SYS", "X", "SYS", "NODE"],
    ["PIX", "SYS", "X", "SYS"],
    ["SYS", "NODE", "SYS", "X"],
]


@check("read-topology")
def read_topology_values(run: Runner) -> None:
    judge_topology(run, recorded("two-bridged"), BRIDGED)
    judge_topology(run, recorded("four-pcie"), PCIE)


def judge_topology(run: Runner, text: str, right: list[list[str]]) -> None:
    got = run(1, [text]).results[0]
    gpus = len(right)
    if not isinstance(got, list) or not all(isinstance(row, list) for row in got):
        raise CheckFailed(f"you returned {got!r:.100}", "a list of lists of strings")
    if len(got) != gpus:
        words = "Only rows of GPUs count: no header, no NICs, no legend." if len(got) > gpus else ""
        raise CheckFailed(f"{gpus} GPUs: you returned {plural(len(got), 'row')}", str(gpus), words)
    for gpu, (row, wanted) in enumerate(zip(got, right, strict=True)):
        usual = {
            "with the GPU's name in front": [f"GPU{gpu}", *wanted],
            "shifted: the first word of a line is its name": [f"GPU{gpu}", *wanted[:-1]],
        }
        if len(row) > gpus and row[:gpus] == wanted:
            usual["with columns that are not GPUs but NICs or affinities"] = row
        if [item.strip() for item in row] == wanted:
            usual["with white space around the labels"] = row
        expect(row, wanted, f"{gpus} GPUs: row {gpu} is", {w: x for w, x in usual.items() if x != wanted})


CUBE_MESH_EDGES = {
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 6), (3, 7), (4, 7), (5, 6)], "NV2"),
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 3), (4, 5), (4, 6), (5, 7), (6, 7)], "NV1"),
}


def links_of(size: int, edges: dict[tuple[int, int], str], other: str = "SYS") -> list[list[str]]:
    """The matrix in which edges[i, j], i < j, join GPUs, and `other` those that have no edge."""
    return [["X" if i == j else edges.get((min(i, j), max(i, j)), other) for j in range(size)] for i in range(size)]


@check("best-ring")
def best_ring_values(run: Runner) -> None:
    judge_ring(run, links_of(8, CUBE_MESH_EDGES))
    judge_ring(run, links_of(4, {(0, 2): "NV2", (1, 2): "PIX", (1, 3): "NV1", (0, 3): "PHB", (0, 1): "NV4"}))


def judge_ring(run: Runner, matrix: list[list[str]]) -> None:
    gpus = len(matrix)
    got = run(1, matrix=matrix).results[0]
    if not is_numbers(got) or isinstance(got, set) or sorted(got) != list(range(gpus)):
        twice = is_numbers(got) and len(got) == gpus + 1 and list(got)[0] == list(got)[-1]
        words = "Don't name the first one again at the end: a ring is closed anyway." if twice else ""
        raise CheckFailed(f"{gpus} GPUs: you returned {got!r:.100}", "a list of all GPUs, each once", words)
    if got[0] != 0:
        raise CheckFailed(f"{gpus} GPUs: you returned {got}", "an order that begins with GPU 0")
    label, one, two = slowest_link(matrix, list(got))
    best = fastest_threshold(matrix)
    if speed(label) < best:
        closing = {one, two} == {got[0], got[-1]}
        raise CheckFailed(
            f"{gpus} GPUs, ring {list(got)}: its slowest link is {label}, between GPU {one} and GPU {two}",
            "a ring with a faster one",
            "A ring is closed: the link from the last to the first counts too." if closing else "",
        )


def slowest_link(matrix: list[list[str]], ring: list[int]) -> tuple[str, int, int]:
    joints = [(matrix[one][two], one, two) for one, two in zip(ring, [*ring[1:], ring[0]], strict=True)]
    return min(joints, key=lambda joint: speed(joint[0]))


def fastest_threshold(matrix: list[list[str]]) -> int:
    """The largest speed such that links of at least that speed hold a ring of all GPUs."""
    speeds = {speed(label) for row in matrix for label in row if label != "X"}
    return max(least for least in speeds if closes(matrix, [0], least))


def closes(matrix: list[list[str]], path: list[int], least: int) -> bool:
    """Whether `path` can be extended to a ring of all GPUs, with links of at least this speed."""
    here = path[-1]
    if len(path) == len(matrix):
        return speed(matrix[here][path[0]]) >= least
    onward = [gpu for gpu in range(len(matrix)) if gpu not in path and speed(matrix[here][gpu]) >= least]
    return any(closes(matrix, [*path, gpu], least) for gpu in onward)
