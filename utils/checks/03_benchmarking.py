"""The visible checks of lesson 03. Times are those of virtual clusters, so they are the same in every run.

Nothing here judges how fast this machine is. A student's benchmark runs on a network whose true figures are known, and
its result is compared with them, and with the results of the usual mistakes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from numbers import Real
from typing import TypeGuard

import torch
import torch.distributed as dist

from ..benchmark import nccl_conventions
from ..benchmark.machine import probes
from ..text.units import quantity
from .answer import Answer, CheckFailed
from .compare import expect_unchanged
from .marking import check
from .runner import Runner, links
from .traffic import expect_calls

ALPHA, BANDWIDTH = 1e-3, 1e6  # of the links below: slow, so that times are easy to read
FLOAT = 4  # bytes of a float32


# ---- comparing numbers


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def near(got: object, wanted: object, rtol: float = 1e-6) -> bool:
    """Whether both are numbers and equal up to rounding; lists and tuples item by item."""
    if isinstance(wanted, list | tuple):
        if not isinstance(got, list | tuple) or len(got) != len(wanted):
            return False
        return all(near(a, b, rtol) for a, b in zip(got, wanted, strict=True))
    if isinstance(got, torch.Tensor) and got.numel() == 1:
        got = got.item()
    if not is_number(got) or not is_number(wanted):
        return got is wanted
    return math.isclose(got, wanted, rel_tol=rtol, abs_tol=1e-15)


def expect_near(
    got: object,
    wanted: object,
    who: str,
    recognise: Mapping[str, object] | None = None,
    rtol: float = 1e-6,
    show: Callable[[object], str] | None = None,
) -> None:
    """Raise CheckFailed unless `got` is `wanted` up to rounding. recognise: as in `expect`."""
    if near(got, wanted, rtol):
        return
    show = show or in_words
    mistake = next((words for words, wrong in (recognise or {}).items() if near(got, wrong, max(rtol, 1e-6))), "")
    raise CheckFailed(f"{who} {show(got)}", show(wanted), mistake and f"That is {mistake}.")


def in_words(value: object) -> str:
    if isinstance(value, list | tuple):
        left, right = "()" if isinstance(value, tuple) else "[]"
        return left + ", ".join(map(in_words, value)) + right
    if isinstance(value, torch.Tensor):
        return f"{value.tolist()} (a tensor)"
    return f"{value:.9g}" if is_number(value) and not isinstance(value, int) else repr(value)


def seconds(value: object) -> str:
    return quantity(value, "s") if is_number(value) and value >= 0 else in_words(value)


# ---- time-once


class Device:
    """A rank's device with a queue, in virtual time, and the collective that the rank starts.

    queued   seconds of earlier work still in its queue at the beginning
    kernel   seconds of work that the operation gives the device after its collective
    handle   the operation only starts the collective and returns a handle. As on a GPU, waiting for that handle only
             puts the kernel into the queue
    """

    def __init__(self, numel: int, queued: float = 0.0, kernel: float = 0.0, handle: bool = False) -> None:
        self.numel, self.kernel, self.handle = numel, kernel, handle
        self.free_at = queued

    def operation(self) -> Handle | None:
        work = dist.all_reduce(torch.ones(self.numel), async_op=True)
        if self.handle:
            return Handle(self, work)
        Handle(self, work).wait()
        return None

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.free_at - time.perf_counter()))


class Handle:
    """What `Device.operation` returns when the device has handles."""

    def __init__(self, device: Device, work: dist.Work) -> None:
        self.device, self.work = device, work

    def wait(self) -> None:
        self.work.wait()
        self.device.free_at = max(self.device.free_at, time.perf_counter()) + self.device.kernel


def ring(world_size: int, nbytes: int, alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> float:
    """Seconds of a ring all-reduce."""
    return 2 * (world_size - 1) * (alpha + nbytes / world_size / bandwidth)


def meeting(world_size: int) -> float:
    """Seconds of a barrier: up a tree and down again, or twice around a ring, whichever takes less."""
    return min(2 * (world_size - 1), 2 * (world_size - 1).bit_length()) * ALPHA


BUSY = "the time including earlier work still in the queue: synchronize before you start the clock"
LATE = (
    "the time including the wait for rank 1, which was not ready yet: synchronize on each rank, then meet at the "
    "barrier, and only then start the clock"
)


def time_devices(run: Runner, devices: list[Device]) -> Answer:
    """The student's function on ranks with these devices."""
    world_size = len(devices)
    operations, synchronizes = [one.operation for one in devices], [one.synchronize for one in devices]
    cluster = links(world_size, ALPHA, BANDWIDTH)
    return run.virtual(world_size, operations, synchronizes, cluster=cluster, device="cpu")


def judge_time_once(run: Runner, devices: list[Device], story: str) -> None:
    truth, barrier = ring(len(devices), devices[0].numel * FLOAT), meeting(len(devices))
    late = max(one.free_at for one in devices)
    for rank, got in enumerate(time_devices(run, devices).results):
        right = truth + devices[rank].kernel
        usual = {
            "the time to START it: if it returns a handle, the collective is over after handle.wait()": 0.0,
            "the time without the work it gave the device: synchronize at the end, too": truth,
            "the time including the barrier: start the clock after it, and use no barrier at the end": right + barrier,
            "the time including two barriers: use only one, before the clock starts": right + 2 * barrier,
            "the right time with the wrong sign: subtract the start from the end": -right,
            "the time in milliseconds: return seconds": right * 1e3,
            "the time in nanoseconds: return seconds": right * 1e9,
        }
        if late and is_number(got) and abs(got - late) < truth + 2 * barrier:
            usual = {BUSY if devices[rank].free_at else LATE: got}
        expect_near(got, right, f"{story}: rank {rank} measured", usual, show=seconds)


@check("time-once", if_stuck="every rank must call the barrier and the operation, once and in this order.")
def time_once_values(run: Runner) -> None:
    judge_time_once(run, [Device(1000, handle=True) for _ in range(4)], "an operation that returns a handle")
    late = [Device(1000, queued=0.5 * (rank == 1)) for rank in range(4)]
    judge_time_once(run, late, "rank 1 has 500 ms of earlier work in its queue")
    judge_time_once(
        run, [Device(1000, kernel=0.02, handle=True) for _ in range(4)], "a handle, and a device that needs 20 ms more"
    )


@check("time-once", judges="traffic", if_stuck="every rank must call the barrier and the operation, once each.")
def time_once_traffic(run: Runner) -> str:
    return expect_calls(time_devices(run, [Device(10, handle=True) for _ in range(2)]), ["barrier", "all_reduce"])


# ---- times-of-the-slowest


class Stopwatch:
    """Stands in for time_one: returns a prepared time at each call. Warm-up calls are slow."""

    def __init__(self, rank: int, world_size: int, warmup: int, seed: int = 0) -> None:
        self.rank, self.world_size, self.warmup, self.seed, self.calls = rank, world_size, warmup, seed, 0

    def __call__(self) -> float:
        self.calls += 1
        return self.of_call(self.calls - 1)

    def of_call(self, call: int) -> float:
        """Seconds: different for each rank and call, not a float32, with a different slowest rank each time."""
        turn = (self.rank + call + self.seed) % self.world_size
        return 100.0 * (call < self.warmup) + (1 + call % 5 + 10 * turn) * 1e-3 + 1e-12 * (call + self.rank)


def judge_slowest(run: Runner, world_size: int, warmup: int, repeats: int, seed: int = 0) -> None:
    watches = [Stopwatch(rank, world_size, warmup, seed) for rank in range(world_size)]
    answer = run(world_size, watches, warmup=warmup, repeats=repeats)
    times = [[watch.of_call(call) for watch in watches] for call in range(warmup + repeats)]  # [call][rank]
    right = [max(of_ranks) for of_ranks in times[warmup:]]
    for rank, got in reversed(list(enumerate(answer.results))):  # rank 0's own times are also those of rank 0
        for called in {watch.calls for (watch,) in answer.inputs_after} - {warmup + repeats}:
            raise CheckFailed(
                f"time_one was called {called} times",
                f"{warmup + repeats}: {warmup} to warm up, {repeats} to keep",
                "Warm-up calls come on top of the repeats, and their times are thrown away.",
            )
        mine = [times[call][rank] for call in range(warmup, warmup + repeats)]
        together = list(zip(*times[warmup:], strict=True))  # [rank][repeat]
        usual = {
            "this rank's own times: take the largest over the ranks": mine,
            "the times of the rank that was slowest overall: each repeat has its own slowest rank": list(
                max(together, key=sum)
            ),
            "the result of sorting before the ranks were compared: that compares different repeats": [
                max(one) for one in zip(*map(sorted, together), strict=True)
            ],
            "the largest of all in a list: return one number for each repeat": [max(right)],
            "the largest of all: return a list, one number for each repeat": max(right),
            "rank 0's times: rank 0 is not always the slowest": [one[0] for one in times[warmup:]],
            "the mean over the ranks: the collective is over when the slowest rank is done": [
                sum(one) / world_size for one in times[warmup:]
            ],
            "the sum over the ranks: op=dist.ReduceOp.MAX takes the largest": [sum(one) for one in times[warmup:]],
            "the fastest rank's times: take the largest": [min(one) for one in times[warmup:]],
            "the times of the warm-up: throw the first calls' times away": [max(one) for one in times[:repeats]],
            "all the times, the warm-up's included: throw those away": [max(one) for one in times],
            "the largest of all repeats: take the largest of each repeat": [max(right)] * repeats,
            "the right times rounded to float32: use dtype=torch.float64": torch.tensor(
                right, dtype=torch.float32
            ).tolist(),
        }
        if rank and near(answer.results[0], right, 1e-15):
            usual |= {"wrong on this rank, though right on rank 0: all ranks need the result, so all_reduce": got}
        expect_near(got, right, f"rank {rank} returned", usual, rtol=1e-15)


@check("times-of-the-slowest", if_stuck="every rank must call time_one the same number of times, then all_reduce once.")
def times_of_the_slowest_values(run: Runner) -> None:
    judge_slowest(run, 3, warmup=2, repeats=4, seed=2)


@check("times-of-the-slowest", judges="traffic", if_stuck="every rank calls all_reduce once.")
def times_of_the_slowest_traffic(run: Runner) -> str:
    answer = run(2, [Stopwatch(rank, 2, 1) for rank in range(2)], warmup=1, repeats=5)
    return expect_calls(answer, ["all_reduce"], [5 * 8])


# ---- functions of numbers alone: each rank of a run gets a different case


def judge_median(run: Runner, cases: list[list[float]]) -> None:
    answer = run(len(cases), [list(case) for case in cases])
    for case, got in zip(cases, answer.results, strict=True):
        middle = torch.tensor(case, dtype=torch.float64).quantile(0.5).item()
        distances = [abs(each - middle) for each in case]
        spread = torch.tensor(distances, dtype=torch.float64).quantile(0.5).item() / middle
        mean = sum(case) / len(case)
        deviation = (sum((each - mean) ** 2 for each in case) / len(case)) ** 0.5
        lower, upper = sorted(case)[(len(case) - 1) // 2], sorted(case)[len(case) // 2]
        who = f"for {in_words(case)} you returned"
        if not isinstance(got, list | tuple) or len(got) != 2:
            raise CheckFailed(f"{who} {in_words(got)}", "two numbers: (median, spread)")
        usual = {
            "the mean: one outlier can move it anywhere": mean,
            "the minimum: a lucky time that may never come again": min(case),
            "the maximum": max(case),
            "the middle of an unsorted list: sort first": case[len(case) // 2],
            "the lower of the two in the middle: take the value halfway between": lower,
            "the upper of the two in the middle: take the value halfway between": upper,
        }
        expect_near(got[0], middle, f"{who} the median", usual)
        spreads = {
            "the spread in seconds: divide by the median": spread * middle,
            "the standard deviation: it follows the outlier": deviation / middle,
            "the standard deviation over the mean: it follows the outlier": deviation / mean,
            "the whole range: one outlier makes it large": (max(case) - min(case)) / middle,
            "the mean distance: take the median of the distances, too": sum(distances) / len(case) / middle,
            "the largest distance: one outlier makes it large": max(distances) / middle,
            "the spread as a fraction of the mean: divide by the median": spread * middle / mean,
            "the distance from the mean: take the distances from the median": torch.tensor(
                [abs(each - mean) for each in case], dtype=torch.float64
            )
            .quantile(0.5)
            .item()
            / middle,
            "a percentage: return the fraction, 0.5 for 50 %": 100 * spread,
            "the median of signed distances: take their absolute values": torch.tensor(
                [each - middle for each in case], dtype=torch.float64
            )
            .quantile(0.5)
            .item()
            / middle,
        }
        expect_near(got[1], spread, f"{who} the spread", spreads)
    expect_unchanged(answer, cases)


@check("median-and-spread")
def median_and_spread_values(run: Runner) -> None:
    judge_median(run, [[1.0, 5.0, 2.0, 80.0, 3.0], [8.0, 2.0, 70.0, 3.0, 4.0, 6.0]])


def judge_bytes(run: Runner, collectives: list[str], passed_in: list[int]) -> None:
    world_size = len(collectives)
    answer = run(world_size, collectives, passed_in)
    for collective, nbytes, got in zip(collectives, passed_in, answer.results, strict=True):
        usual = {
            "one chunk of it: S is the whole tensor, all chunks together": nbytes / world_size,
            "what all ranks hold together: S counts the data gathered, scattered or exchanged only once": nbytes
            * world_size,
            "the bytes that one rank must send: that comes later, in busbw": nbytes * (world_size - 1) / world_size,
            "twice the whole: the two phases come later, in busbw": 2 * nbytes,
            "what this rank passes in: here that is one chunk of the whole": nbytes,
            "the bytes that a rank of a ring sends: that comes later, in busbw": 2
            * nbytes
            * (world_size - 1)
            / world_size,
        }
        right = nccl_conventions.total_bytes(collective, nbytes, world_size)
        by = "the root" if collective == "scatter" else "each rank"
        who = f"{collective} of {world_size} ranks, {nbytes:,} bytes passed in by {by}: you returned"
        expect_near(got, right, who, usual)


@check("counted-bytes")
def counted_bytes_values(run: Runner) -> None:
    for four in (nccl_conventions.OPS[:4], nccl_conventions.OPS[4:]):
        judge_bytes(run, list(four), [4000, 8000, 1200, 400])


def judge_bandwidths(run: Runner, collectives: list[str], nbytes: int, took: float) -> None:
    world_size = len(collectives)
    answer = run(world_size, collectives, nbytes=nbytes, seconds=took)
    for collective, got in zip(collectives, answer.results, strict=True):
        algbw, busbw = (
            nccl_conventions.algbw(nbytes, took),
            nccl_conventions.busbw(collective, nbytes, took, world_size),
        )
        who = f"{collective} of {world_size} ranks, {nbytes:,} bytes in {quantity(took, 's')}: you returned"
        if not isinstance(got, list | tuple) or len(got) != 2:
            raise CheckFailed(f"{who} {in_words(got)}", "two numbers: (algbw, busbw)")
        units = {
            "bytes/s: divide by 1e9": 1e9,
            "GiB/s, divided by 2**30: GB are 1e9 bytes": 1e9 / 2**30,
            "gigabits: a byte has eight bits, and bytes are asked for": 8,
            "MB/s: divide by 1e9": 1e3,
        }
        wrong = {words: algbw * factor for words, factor in units.items()}
        wrong |= {"P times too large: nbytes already is S, the whole": algbw * world_size}
        expect_near(got[0], algbw, f"{who} algbw", wrong)
        others = 1 - 1 / world_size
        usual = {
            "algbw: busbw has the factor of the collective": algbw,
            "twice too much: only what is sent counts, and only an all-reduce has two phases": 2 * busbw,
            "half of it: an all-reduce has two phases": busbw / 2,
            "P times too small: divide one rank's bytes by its time, not by P times that": busbw / world_size,
            "algbw times the factor of an all-gather, (P - 1) / P": algbw * others,
            "algbw times the factor of an all-reduce, 2 (P - 1) / P": algbw * 2 * others,
            "algbw with a factor of 2: P ranks need 2 (P - 1) / P": algbw * 2,
            "algbw with (P - 1) instead of (P - 1) / P: S is already the whole": algbw * (world_size - 1),
            "algbw with 2 (P - 1) instead of 2 (P - 1) / P": algbw * 2 * (world_size - 1),
            "busbw without the part that a rank keeps: this collective passes the whole on": busbw * others,
            "0, because // rounds down: use /": 0.0,
            "algbw with the factor upside down: multiply by it": algbw * algbw / busbw if busbw else math.inf,
            "algbw with (P - 1) / P upside down": 2 * algbw / others if others else math.inf,
        }
        usual |= {f"in {words}": busbw * factor for words, factor in units.items()}
        expect_near(got[1], busbw, f"{who} busbw", usual)


@check("bandwidths")
def bandwidths_values(run: Runner) -> None:
    for four in (nccl_conventions.OPS[:4], nccl_conventions.OPS[4:]):
        judge_bandwidths(run, list(four), 600_000_000, 0.02)


# ---- find-the-mistakes


def algbw_and_busbw(collective: str, nbytes: int, seconds: float, world_size: int) -> tuple[float, float]:
    """What the student's function gets as `bandwidths`, so that it does not depend on the previous exercise."""
    return nccl_conventions.algbw(nbytes, seconds), nccl_conventions.busbw(collective, nbytes, seconds, world_size)


def judge_review(run: Runner, claims: list[tuple[str, list[str] | None, float]]) -> None:
    """claims: one (collective, mistakes, relative error) per rank. The size and the time are made up."""
    world_size, nbytes, took = len(claims), 3 << 28, 0.0125
    factors = {"GiB": 1e9 / 2**30, "one chunk": 1 / world_size, "both ways": 2.0}
    cases = []
    for collective, mistakes, off in claims:
        algbw, busbw = algbw_and_busbw(collective, nbytes, took, world_size)
        each = factors | {"algbw": algbw / busbw}
        cases.append((busbw, busbw * math.prod(each[one] for one in mistakes or []) * (1 + off)))
    claimed, collectives = [claim for _, claim in cases], [collective for collective, _, _ in claims]
    answer = run(world_size, claimed, collectives, nbytes=nbytes, seconds=took, bandwidths=algbw_and_busbw)
    for (collective, mistakes, _), (busbw, claim), got in zip(claims, cases, answer.results, strict=True):
        who = f"{collective} of {world_size} ranks, claimed {claim:.4g} GB/s: you returned"
        if not isinstance(got, list | tuple) or len(got) != 2:
            raise CheckFailed(f"{who} {in_words(got)}", "two things: (busbw, mistakes)")
        usual = {
            "the claim: the first number must be the right busbw": claim,
            "algbw: the first number must be the right busbw": algbw_and_busbw(collective, nbytes, took, world_size)[0],
        }
        if is_number(got[0]) and abs(got[0] - claim) <= 0.01 * claim:
            usual |= {"the number with the mistakes in it: the first number must be the right busbw": got[0]}
        expect_near(got[0], busbw, who, usual)
        judge_mistakes(got[1], mistakes, who)


def judge_mistakes(got: object, right: list[str] | None, who: str) -> None:
    found = sorted(map(str, got)) if isinstance(got, list | tuple | set | frozenset) else got
    if found == (right if right is None else sorted(right)):
        return
    hint = ""
    if isinstance(got, str):
        hint = "A list of names is asked for."
    elif right == []:
        hint = "The claim is right. The empty list of mistakes is a subset, too, and its product is 1."
    elif right is None:
        hint = "No subset explains this claim. Is your tolerance 1 % of the claim?"
    elif got is None:
        hint = (
            "One of your four factors is not right, or the tolerance is too small, or you return before you try pairs."
        )
    elif isinstance(found, list) and len(found) < len(right):
        hint = "Fewer mistakes come close, but not within 1 % of the claim: too large or too small, both count."
    elif isinstance(found, list) and len(found) > len(right):
        hint = "Try the small subsets first, and return the first that explains the claim."
    raise CheckFailed(f"{who} {got!r}", f"{right!r}", hint)


@check("find-the-mistakes")
def find_the_mistakes_values(run: Runner) -> None:
    judge_review(
        run,
        [
            ("all_reduce", ["GiB"], 0.004),
            ("reduce_scatter", ["GiB", "one chunk"], -0.004),
            ("all_gather", ["both ways"], 0),
            ("reduce_scatter", [], 0.006),
            ("all_to_all", ["algbw"], 0),
            ("reduce_scatter", None, 0.10),
        ],
    )


# ---- sweep-sizes


def sizes_by_hand(smallest: int, largest: int, step: int, world_size: int, itemsize: int, grain: int = 0) -> list[int]:
    """The sizes of the sweep; grain: a multiple to round down to instead of the right one, world_size * itemsize."""
    grain = grain or world_size * itemsize
    powers = (smallest * step**power for power in range(64))
    return sorted({nbytes // grain * grain for nbytes in powers if nbytes <= largest} - {0})


def judge_sizes(run: Runner, cases: list[tuple[int, int, int, int]]) -> None:
    """cases: (smallest, largest, step, itemsize), as many as there are ranks."""
    world_size = len(cases)
    answer = run(world_size, *(list(column) for column in zip(*cases, strict=True)))
    for (smallest, largest, step, itemsize), got in zip(cases, answer.results, strict=True):
        every = smallest, largest, step, world_size, itemsize
        right = sizes_by_hand(*every)
        powers = [nbytes for nbytes in (smallest * step**power for power in range(64)) if nbytes <= largest]
        grain = world_size * itemsize
        rounded_at_once, nbytes = [], smallest
        while nbytes <= largest:
            nbytes = nbytes // grain * grain or nbytes
            rounded_at_once += [nbytes] * (nbytes % grain == 0)
            nbytes *= step
        usual = {
            "a list with sizes that can't be cut into P equal chunks of whole elements: round down": powers,
            "the sizes rounded to whole elements only: each rank needs a chunk of them": sizes_by_hand(
                *every, grain=itemsize
            ),
            "the sizes rounded to a multiple of P bytes: an element has several bytes": sizes_by_hand(
                *every, grain=world_size
            ),
            "the sizes rounded up: round down": sorted({-(-nbytes // grain) * grain for nbytes in powers}),
            "the sizes rounded to the nearest multiple: round down": sorted(
                {round(nbytes / grain) * grain for nbytes in powers} - {0}
            ),
            "the number of elements on each rank: sizes are in bytes": [nbytes // grain for nbytes in right],
            "a list where the sizes that are too small were raised: leave them out": [
                max(nbytes // grain, 1) * grain for nbytes in powers
            ],
            "a list without the smallest: one element for each rank is a size, too": [
                nbytes for nbytes in right if nbytes > grain
            ],
            "nothing: leave out a size that is too small, and go on with the next": [] if right else None,
            "a list with a size of 0: leave it out": [0, *right],
            "a list with sizes of 0: leave them out": [nbytes // grain * grain for nbytes in powers],
            "a list without the largest: `largest` itself counts": [
                nbytes for nbytes in right if nbytes < largest - largest % grain
            ],
            "the sizes rounded before they were multiplied: multiply the unrounded ones": rounded_at_once,
        }
        if isinstance(got, list) and got == right and not all(isinstance(nbytes, int) for nbytes in got):
            raise CheckFailed(f"you returned {got}", f"{right}", "Sizes are whole numbers: // instead of /.")
        who = (
            f"from {smallest} to {largest}, step {step}, {world_size} ranks, {itemsize} bytes per element: you returned"
        )
        expect_near(got, right, who, usual)


@check("sweep-sizes")
def sweep_sizes_values(run: Runner) -> None:
    judge_sizes(run, [(10, 1000, 2, 4), (1024, 16384, 4, 4), (5, 300, 3, 8)])


# ---- fit


def relative_fit(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """The right answer, computed independently: Cramer's rule on exact fractions."""
    n, t = [Fraction(size) for size in sizes], [Fraction(time) for time in times]
    return solve(n, t, [1 / each**2 for each in t])


def solve(
    n: Sequence[Fraction | float], t: Sequence[Fraction | float], weights: Sequence[Fraction | float]
) -> tuple[float, float]:
    w = sum(weights)
    mean_n = sum(weight * size for weight, size in zip(weights, n, strict=True)) / w
    mean_t = sum(weight * time for weight, time in zip(weights, t, strict=True)) / w
    above = sum(a * (b - mean_n) * (c - mean_t) for a, b, c in zip(weights, n, t, strict=True))
    slope = above / sum(a * (b - mean_n) ** 2 for a, b in zip(weights, n, strict=True))
    return float(mean_t - slope * mean_n), float(slope)


def weighted(sizes: Sequence[float], times: Sequence[float], power: int) -> tuple[float, float]:
    """The fit with weights 1 / t ** power in the sum of squares; 2 is right."""
    n, t = [Fraction(size) for size in sizes], [Fraction(time) for time in times]
    return solve(n, t, [1 / each**power for each in t])


def disturbed(alpha: float, bandwidth: float, sizes: list[int], by: float) -> list[float]:
    """Times of a line, alternately too long and too short by the share `by`."""
    return [(alpha + size / bandwidth) * (1 + by * (-1) ** place) for place, size in enumerate(sizes)]


def judge_fit(run: Runner, cases: list[tuple[list[int], list[float]]]) -> None:
    """cases: (sizes, times)."""
    answer = run(len(cases), [list(sizes) for sizes, _ in cases], [list(times) for _, times in cases])
    for (sizes, times), got in zip(cases, answer.results, strict=True):
        right = relative_fit(sizes, times)
        who = f"for {len(sizes)} sizes from {sizes[0]:,} to {sizes[-1]:,} bytes you returned (alpha, beta) ="
        usual = {
            "ordinary least squares: divide each error by its time": weighted(sizes, times, 0),
            "the fit weighted by 1 / t: the squares need 1 / t ** 2, so divide the errors, not their squares": weighted(
                sizes, times, 1
            ),
            "the fit weighted by 1 / t ** 4: each row is divided by t once": weighted(sizes, times, 4),
            "a line through 0: fit alpha, too": (0.0, through_zero(sizes, times)),
            "the solution with t on the right-hand side: divided by t, it is 1": row_solution(sizes, times, times),
            "(beta, alpha): the latency comes first": right[::-1],
            "(alpha, bandwidth): beta is in seconds per byte": (right[0], 1 / right[1]),
            "the line with its negative alpha set to 0: return it as it comes out": (0.0, right[1]),
            "the line through the first and the last point: all sizes count": line_through(sizes, times),
            "the right line, but rounded: compute in float64": got if near(got, right, 1e-3) else None,
        }
        expect_near(got, right, who, usual, rtol=1e-8)
    expect_unchanged(answer, [list(sizes) for sizes, _ in cases], [list(times) for _, times in cases])


def through_zero(sizes: Sequence[float], times: Sequence[float]) -> float:
    shares = [size / time for size, time in zip(sizes, times, strict=True)]
    return sum(shares) / sum(share**2 for share in shares)


def row_solution(sizes: Sequence[float], times: Sequence[float], wanted: Sequence[float]) -> tuple[float, float]:
    """The least-squares solution of the rows (1 / t, n / t) for right-hand sides other than 1."""
    weights = [1 / time**2 for time in times]
    return solve(sizes, [time * each for time, each in zip(times, wanted, strict=True)], weights)


def line_through(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    slope = (times[-1] - times[0]) / (sizes[-1] - sizes[0])
    return times[0] - slope * sizes[0], slope


POWERS = [1024 * 4**power for power in range(9)]


@check("fit")
def fit_values(run: Runner) -> None:
    judge_fit(
        run,
        [
            (POWERS, disturbed(40e-6, 5e9, POWERS, 0.05)),
            (POWERS[::2], disturbed(2e-3, 1e8, POWERS[::2], -0.2)),
        ],
    )


# ---- size-for-share, crossover, held-out-errors


def judge_share(run: Runner, cases: list[tuple[float, float, float]]) -> None:
    """cases: (share, alpha, beta)."""
    answer = run(len(cases), *(list(column) for column in zip(*cases, strict=True)))
    for (share, alpha, beta), got in zip(cases, answer.results, strict=True):
        usual = {
            "the half-bandwidth size: the share matters": alpha / beta,
            "share * alpha / beta: at that size the latency still takes most of the time": share * alpha / beta,
            "for the share that is missing: s / (1 - s), not (1 - s) / s": (1 - share) / share * alpha / beta,
            "1 / (1 - s) times alpha / beta: that is s / (1 - s) and one more": alpha / beta / (1 - share),
            "multiplied: seconds divided by seconds a byte are bytes": share / (1 - share) * alpha * beta,
            "rounded: return it as it is": math.floor(share / (1 - share) * alpha / beta * (1 - 1e-12)),
            "upside down: seconds divided by seconds per byte are bytes": share / (1 - share) * beta / alpha
            if alpha
            else math.inf,
        }
        who = f"share {share}, alpha {quantity(alpha, 's')}, 1 / beta {quantity(1 / beta, 'B/s')}: you returned"
        expect_near(got, share / (1 - share) * alpha / beta, who, usual)


@check("size-for-share")
def size_for_share_values(run: Runner) -> None:
    judge_share(run, [(0.8, 5e-6, 1e-9), (0.5, 1e-6, 1 / 450e9), (0.25, 2e-3, 1e-6)])


def judge_crossover(run: Runner, cases: list[tuple[tuple[float, float], tuple[float, float], float | None]]) -> None:
    """cases: (one, other, size or None)."""
    ones, others, sizes = (list(column) for column in zip(*cases, strict=True))
    answer = run(len(cases), ones, others, catch=ZeroDivisionError)
    for one, other, right, got in zip(ones, others, sizes, answer.results, strict=True):
        who = f"lines {in_words(one)} and {in_words(other)}: you returned"
        if isinstance(got, ZeroDivisionError):
            raise CheckFailed(
                f"lines {in_words(one)} and {in_words(other)}: your function divided by zero",
                in_words(right),
                "Two lines with the same beta are parallel: test for that before you divide.",
            )
        (alpha_one, beta_one), (alpha_other, beta_other) = one, other
        usual = {
            "None though they meet: below that size one is faster, above it the other": None,
            "a size though they only meet below 0: return None": abs(
                (alpha_other - alpha_one) / (beta_one - beta_other)
            )
            if right is None and beta_one != beta_other and alpha_one != alpha_other
            else math.nan,
            "the right size with the wrong sign": -right if right else math.nan,
            "not above 0: return None": 0.0,
            "upside down: seconds divided by seconds per byte are bytes": 1 / right if right else math.nan,
            "the result of adding: subtract one line from the other": (alpha_one + alpha_other)
            / (beta_one + beta_other),
            "a size below 0, which can't be sent: return None": (alpha_other - alpha_one) / (beta_one - beta_other)
            if beta_one != beta_other
            else math.nan,
            "infinite: with the same beta they never meet, so return None": math.inf,
            "the half-bandwidth size of the first": alpha_one / beta_one,
            "the half-bandwidth size of the second": alpha_other / beta_other,
        }
        expect_near(got, right, who, usual)


@check("crossover")
def crossover_values(run: Runner) -> None:
    judge_crossover(
        run,
        [
            ((10e-6, 3e-9), (50e-6, 1e-9), 20_000.0),
            ((50e-6, 1e-9), (10e-6, 3e-9), 20_000.0),
            ((10e-6, 1e-9), (50e-6, 3e-9), None),
            ((10e-6, 2e-9), (50e-6, 2e-9), None),
        ],
    )


class Average:
    """Stands in for fit: returns the mean of the times as alpha, and the mean size in ns as beta."""

    def __call__(self, sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
        if len(sizes) != len(seconds) or len(sizes) < 2:
            raise ValueError(
                f"fit got {len(sizes)} sizes and {len(seconds)} times: pass it all sizes but one, and their times"
            )
        return sum(seconds) / len(seconds), sum(sizes) / len(sizes) * 1e-9


def judge_held_out(run: Runner, cases: list[tuple[list[int], list[float]]]) -> None:
    """cases: (sizes, times)."""
    model = Average()
    answer = run(len(cases), [list(sizes) for sizes, _ in cases], [list(times) for _, times in cases], fit=model)
    for (sizes, times), got in zip(cases, answer.results, strict=True):
        seen, places = model(sizes, times), range(len(sizes))
        lines = [model(sizes[:one] + sizes[one + 1 :], times[:one] + times[one + 1 :]) for one in places]
        predictions = [alpha + size * beta for size, (alpha, beta) in zip(sizes, lines, strict=True)]
        pairs = list(zip(predictions, times, strict=True))
        right = [predicted / measured - 1 for predicted, measured in pairs]
        usual = {
            "the error of a fit that has seen the size itself: leave it out": [
                (seen[0] + size * seen[1]) / measured - 1 for size, measured in zip(sizes, times, strict=True)
            ],
            "the error of a prediction for the index in the list: predict for the size": [
                (alpha + place * beta) / measured - 1
                for place, ((alpha, beta), measured) in enumerate(zip(lines, times, strict=True))
            ],
            "the error in seconds: divide by the measured time": [
                predicted - measured for predicted, measured in pairs
            ],
            "the error without its sign: keep it": [abs(error) for error in right],
            "the error with the wrong sign: return predicted / measured - 1": [-error for error in right],
            "the error relative to the prediction: divide by the measured time": [1 - m / p for p, m in pairs],
            "measured / predicted - 1: the other way round": [m / p - 1 for p, m in pairs],
            "predicted / measured: subtract 1": [p / m for p, m in pairs],
            "the error in percent: return the fraction": [100 * error for error in right],
        }
        expect_near(got, right, f"for {len(sizes)} sizes, with the check's own fit, you returned", usual)
    expect_unchanged(answer, [list(sizes) for sizes, _ in cases], [list(times) for _, times in cases])


@check("held-out-errors")
def held_out_errors_values(run: Runner) -> None:
    judge_held_out(run, [([1000, 2000, 4000], [0.01, 0.03, 0.02]), ([10, 500, 700, 900], [0.5, 0.1, 0.7, 0.2])])


# ---- recover-the-link


class Stopped:
    """Stands in for a benchmark on one rank, so that the exercise depends on no other. Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, operation: object) -> float:
        if not callable(operation):
            raise TypeError("seconds_of takes a function that it can call, not the return value of all_reduce")
        self.calls += 1
        dist.barrier()
        began_at = time.perf_counter()
        handle = operation()
        if hasattr(handle, "wait"):
            handle.wait()
        if time.perf_counter() == began_at:
            raise ValueError("the function passed to seconds_of took no time: it must call all_reduce")
        return time.perf_counter() - began_at


def line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Stands in for fit, by that of benchmark/machine/probes.py."""
    link = probes.fit(dict(zip(sizes, seconds, strict=True)))
    return link.alpha, 1 / link.bandwidth


def judge_link(run: Runner, world_size: int, alpha: float, bandwidth: float, sizes: list[int]) -> None:
    cluster = links(world_size, alpha, bandwidth)
    watches = [Stopped() for _ in range(world_size)]
    answer = run.virtual(world_size, [list(sizes)] * world_size, watches, cluster=cluster, device="cpu", fit=line)
    for called in {watch.calls for _, watch in answer.inputs_after} - {len(sizes)}:
        raise CheckFailed(
            f"seconds_of was called {called} times for {len(sizes)} sizes",
            f"{len(sizes)}",
            "Let seconds_of do the timing: once for each size, with an operation that calls all_reduce.",
        )
    steps = 2 * world_size - 2
    fitted = steps * alpha, bandwidth * world_size / steps
    for rank, got in enumerate(answer.results):
        who = f"rank {rank} of {world_size} returned (alpha, bandwidth) ="
        usual = {
            "the fitted line itself: it has 2 (P - 1) steps, each of n / P bytes": fitted,
            "(alpha, beta) of the fitted line: return those of one link": (fitted[0], 1 / fitted[1]),
            "(alpha, beta) of the link: the bandwidth is 1 / beta": (alpha, 1 / bandwidth),
        }
        if isinstance(got, list | tuple) and len(got) == 2:
            judge_half(got[0], alpha, f"rank {rank} of {world_size} returned alpha", steps, usual, got, "s")
            judge_half(
                got[1], bandwidth, f"rank {rank} of {world_size} returned the bandwidth", steps, usual, got, "B/s"
            )
        expect_near(got, (alpha, bandwidth), who, usual)


def judge_half(
    got: object, right: float, who: str, steps: int, both: Mapping[str, object], pair: object, unit: str
) -> None:
    """One of the two numbers, with the factors by which answers are usually off."""
    world_size = steps // 2 + 1
    usual = {words: got for words, wrong in both.items() if near(pair, wrong)}
    for factor, words in (
        (2, "an all-reduce has two phases of P - 1 steps"),
        (steps, "the line has 2 (P - 1) latencies, and the link one"),
        (world_size, "each step moves n / P bytes, not n"),
        (world_size - 1, "count the steps again"),
        (steps / world_size, "divide by the 2 (P - 1) steps, not by P"),
        (world_size**2, "the chunk n / P counts once, and on the right side of the fraction"),
        (1e9, "return bytes/s, as the docstring says"),
        (world_size / (world_size - 1), "a ring of P ranks has P - 1 steps in each phase, not P"),
    ):
        usual |= {f"{factor:.3g} times too large: {words}": right * factor}
        usual |= {f"{factor:.3g} times too small: {words}": right / factor}
    usual["beta of the link: the bandwidth is 1 / beta"] = 1 / right
    expect_near(got, right, who, usual, show=lambda value: quantity(value, unit) if is_number(value) else repr(value))


@check(
    "recover-the-link",
    if_stuck="every rank must call seconds_of for every size, with an operation that calls all_reduce.",
)
def recover_the_link_values(run: Runner) -> None:
    judge_link(run, 4, ALPHA, BANDWIDTH, [8000, 16_000, 64_000])
