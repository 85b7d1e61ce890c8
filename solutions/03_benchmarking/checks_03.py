"""The checks of lesson 03. Times are those of virtual clusters, so they are the same in every run.

Nothing here judges how fast this machine is. A student's benchmark runs on a network whose true figures are known, and
its result is compared with them, and with the results of the usual mistakes. Where the answer is a formula, the cases
are recorded, and the oracle is hidden.
"""

from __future__ import annotations

import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from numbers import Real
from pathlib import Path
from random import Random
from statistics import mean, median, median_high, median_low, pstdev
from typing import Any

import torch
import torch.distributed as dist

from utils.benchmark import nccl_conventions
from utils.benchmark.machine import probes
from utils.checks.answer import Answer, CheckFailed
from utils.checks.compare import expect
from utils.checks.equality import equal_values, is_number
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, always, as_tuple, every, oracle, side_by_side, vary
from utils.checks.scores import Measure
from utils.checks.traffic import expect_calls
from utils.cluster.collective_costs import Layout, cost
from utils.cluster.hardware import links
from utils.kit.witness import Witness
from utils.text.units import quantity

ROOM = Path(__file__).parent

ALPHA, BANDWIDTH = 1e-3, 1e6  # the links below: slow, so that times are easy to read
RTOL = 1e-6

median_and_spread = frozen_cases(ROOM, "median-and-spread")


### BEGIN HIDDEN TESTS


@oracle(values=[([3e-5], [2.0, 2.0, 2.0, 9.0], [7e-3, 1e-3], [4.0, 3.0, 2.0, 1.0, 9.0, 60.0, 5.0])])
def hidden_median_and_spread(_: Draws, *lists: list[float]) -> Case:
    return side_by_side([summarised(times) for times in lists])


def summarised(times: list[float]) -> Case:
    middle, average = median(times), mean(times)
    distances = [abs(each - middle) for each in times]
    spread = median(distances)
    return Case(
        [[times]],
        right={"the median": middle, "the spread": spread / middle},
        rtol=RTOL,
        mistakes={
            "the median": {
                "the mean: one outlier can move it anywhere": average,
                "the minimum: a lucky time that may never come again": min(times),
                "the middle of an unsorted list: sort first": times[len(times) // 2],
                "the lower of the two in the middle: take the value halfway between": median_low(times),
                "the upper of the two in the middle: take the value halfway between": median_high(times),
            },
            "the spread": {
                "the spread in seconds: divide by the median": spread,
                "the spread in percent: return a share": 100 * spread / middle,
                "the range: the outlier decides it": (max(times) - min(times)) / middle,
                "the largest distance: the outlier decides it": max(distances) / middle,
                "the standard deviation: it follows the outlier": pstdev(times) / middle,
                "the distance between quartiles: take the median of the distances": (
                    (sorted(times)[3 * len(times) // 4] - sorted(times)[len(times) // 4]) / middle
                ),
                "the mean distance: take the median of the distances, too": mean(distances) / middle,
                "a share of each time: divide by the median": median(abs(each - middle) / each for each in times),
                "the distance from the mean: take the distances from the median": (
                    median(abs(each - average) for each in times) / middle
                ),
                "the median of signed distances: take their absolute values": (
                    median(each - middle for each in times) / middle
                ),
            },
        },
        seen=f"for {times} you returned {{part}}",
    )


### END HIDDEN TESTS
counted_bytes = frozen_cases(ROOM, "counted-bytes")


### BEGIN HIDDEN TESTS
OPS = list(nccl_conventions.OPS)


@oracle(
    values=[
        (["gather", "reduce_scatter", "all_gather"], [12, 24, 1000]),
        (["all_gather", "scatter", "all_to_all", "reduce", "broadcast"], [40] * 5),
        (["all_gather"], [64]),
        (OPS, [800] * 8),
    ]
)
def hidden_counted_bytes(_: Draws, collectives: list[str], passed_in: list[int]) -> Case:
    world_size = len(collectives)

    def counted(collective: str, nbytes: int) -> Case:
        by = "the root" if collective == "scatter" else "each rank"
        others = (world_size - 1) / world_size
        return Case(
            [[collective], [nbytes]],
            right=float(nccl_conventions.total_bytes(collective, nbytes, world_size)),
            rtol=RTOL,
            mistakes={
                "one chunk of it: S is the whole tensor, all chunks together": nbytes / world_size,
                "P times the whole: a rank hands in one chunk only to all-gather and gather": nbytes * world_size,
                "the bytes that one rank must send: that comes later, in busbw": nbytes * others,
                "twice the whole: the two phases come later, in busbw": 2 * nbytes,
                "the other ranks' chunks: this rank's own counts, too": nbytes * (world_size - 1),
                "what this rank passes in: here that is one chunk of the whole": nbytes,
            },
            seen=f"{collective} of {world_size} ranks, {nbytes:,} bytes passed in by {by}: you returned",
        )

    return side_by_side([counted(*one) for one in zip(collectives, passed_in, strict=True)])


### END HIDDEN TESTS
bandwidths = frozen_cases(ROOM, "bandwidths")


### BEGIN HIDDEN TESTS


@oracle(
    values=[
        *[(OPS[:size], 1 << 20, 3e-5) for size in (2, 3, 5)],
        (OPS[3:], 12_345_678, 0.5),
        (OPS, 64, 1e-3),
        (["all_reduce"], 4096, 1e-6),  # one rank sends nothing
    ]
)
def hidden_bandwidths(_: Draws, collectives: list[str], nbytes: int, took: float) -> Case:
    return side_by_side([bandwidth_of(one, len(collectives), nbytes, took) for one in collectives])


def bandwidth_of(collective: str, world_size: int, nbytes: int, took: float) -> Case:
    algbw = nccl_conventions.algbw(nbytes, took)
    busbw = nccl_conventions.busbw(collective, nbytes, took, world_size)
    others = 1 - 1 / world_size
    factors = {
        "algbw, as if the factor were 1: that is so for broadcast and reduce alone": algbw,
        "twice the right one: only what is sent counts, and only an all-reduce has two phases": 2 * busbw,
        "P times the right one: `nbytes` is already the size of the whole": busbw * world_size,
        "P times too small: divide one rank's bytes by its time, not by P times that": busbw / world_size,
        "0, because // rounds down: use /": 0.0,
    }
    if collective in ("broadcast", "reduce"):
        whole = "In a broadcast or reduce nothing is cut into chunks: a rank passes on the whole, so busbw is algbw"
        factors["algbw times P - 1: a rank passes the whole on once"] = algbw * (world_size - 1)
        factors[f"algbw times (P - 1) / P, the factor of an all-gather. {whole}"] = algbw * others
        factors[f"algbw times 2 (P - 1) / P, the factor of an all-reduce. {whole}"] = algbw * 2 * others
    elif others:
        factors["algbw with (P - 1) / P upside down: a rank sends less than S in each phase"] = busbw / others**2
        factors["algbw / P, for one chunk: the least that must be sent is P - 1 chunks"] = algbw / world_size
        factors["algbw with P - 1 / P: write (P - 1) / P"] = busbw / others * (world_size - 1 / world_size)
    if collective == "all_reduce":
        factors["half the right one: an all-reduce has two phases"] = busbw / 2
        factors["the result of rounding the factor down by //: use /"] = algbw * (2 * (world_size - 1) // world_size)
        factors["algbw with a factor of 2: P ranks need 2 (P - 1) / P"] = algbw * 2
        factors["algbw with 2 (P - 1) instead of 2 (P - 1) / P"] = algbw * 2 * (world_size - 1)
    return Case(
        [[collective]],
        for_all={"nbytes": nbytes, "seconds": took},
        right={"algbw": algbw, "busbw": busbw},
        rtol=RTOL,
        mistakes={
            "algbw": {
                "GiB/s, divided by 2**30: GB are 1e9 bytes": algbw * 1e9 / 2**30,
                "bytes/s: for GB/s, divide by 1e9": algbw * 1e9,
            },
            "busbw": factors,
        },
        seen=f"{collective} of {world_size} ranks, {nbytes:,} bytes in {quantity(took, 's')}: you returned {{part}}",
    )


### END HIDDEN TESTS
sweep_sizes = frozen_cases(ROOM, "sweep-sizes")


### BEGIN HIDDEN TESTS


@oracle(
    values=[
        ((1, 100, 2, 1), (4, 4, 3, 2), (100, 5000, 3, 8), (24, 24, 10, 4), (9, 3, 2, 4)),
        ((1, 70, 2, 8),),
        ((33, 4000, 2, 4), (64, 1 << 20, 16, 2)),
    ],
    if_stuck="whether `nbytes` becomes 0, since 0 times `step` is still 0. Keep `nbytes`, and round down a copy.",
)
def hidden_sweep_sizes(_: Draws, *sweeps: tuple[int, int, int, int]) -> Case:
    """For each rank (smallest, largest, step, itemsize)."""
    return side_by_side([swept(*sweep, len(sweeps)) for sweep in sweeps])


def swept(smallest: int, largest: int, step: int, itemsize: int, world_size: int) -> Case:
    powers = [nbytes for nbytes in (smallest * step**power for power in range(64)) if nbytes <= largest]
    grain = world_size * itemsize

    right = sorted({nbytes // grain * grain for nbytes in powers} - {0})
    sweep = f"from {smallest} to {largest}, step {step}, {world_size} ranks, {itemsize} bytes per element"
    return Case(
        [[smallest], [largest], [step], [itemsize]],
        right=every(right),
        seen=f"{sweep}: you returned",
    )


### END HIDDEN TESTS
NO_BYTES = "less than one byte, so the units are wrong: seconds divided by seconds per byte give bytes"
size_for_share = frozen_cases(
    ROOM, "size-for-share", explain=lambda got, _: NO_BYTES * (is_number(got) and 0 < abs(got) < 1)
)


### BEGIN HIDDEN TESTS


@oracle(values=[((0.9, 4e-5, 1 / 5e9), (0.99, 1e-6, 1e-11), (0.1, 3.0, 2.0), (0.5, 0.0, 1e-9))])
def hidden_size_for_share(_: Draws, *wanted: tuple[float, float, float]) -> Case:
    """For each rank (share, alpha, beta)."""
    return side_by_side([size_for(*one) for one in wanted])


def size_for(share: float, alpha: float, beta: float) -> Case:
    odds, half = share / (1 - share), alpha / beta
    mistakes = {
        "the half-bandwidth size: the share matters": half,
        "s / (1 - s) * alpha, which are seconds: divide by beta": odds * alpha,
        "2 * s * alpha / beta, which is right for a half alone": 2 * share * half,
        "s / (1 + s) * alpha / beta: what changes sides in the equation changes its sign": share / (1 + share) * half,
        "share * alpha / beta: at that size the latency still takes most of the time": share * half,
        "for the share that is missing: s / (1 - s), not (1 - s) / s": half / odds,
        "1 / (1 - s) times alpha / beta. Solve again: n = s * (alpha / beta + n), and collect n on the left. "
        "For s = 0.5 it must give alpha / beta": half / (1 - share),
        "(1 - s) * alpha / beta: the closer s is to 1, the larger the size must be": (1 - share) * half,
        "the size for `share` bytes/s: set it equal to share / beta": share * alpha / (1 - share * beta),
        "the right size, rounded: return it as it comes out": math.floor(odds * half * (1 - 1e-12)),
    }
    if alpha:
        mistakes["the fraction upside down: seconds divided by seconds per byte are bytes"] = odds / half
    return Case(
        [[share], [alpha], [beta]],
        right=odds * half,
        rtol=RTOL,
        mistakes=mistakes,
        advice={"ZeroDivisionError": "alpha may be 0: solve for n so that nothing is divided by alpha."},
        seen=f"share {share}, alpha {quantity(alpha, 's')}, 1 / beta {quantity(1 / beta, 'B/s')}: you returned",
    )


### END HIDDEN TESTS
crossover = frozen_cases(ROOM, "crossover")


### BEGIN HIDDEN TESTS


@oracle(
    values=[
        (
            ((1.0, 0.5), (3.0, 0.25), 8.0),
            ((1e-5, 1e-9), (1e-5, 1e-9), None),  # the same line
            ((3e-5, 4e-9), (1e-5, 1e-9), None),
            ((0.0, 2e-9), (1e-6, 1e-9), 1000.0),
            ((2e-6, 1 / 25e9), (1e-5, 1 / 50e9), 400_000.0),  # two network cards: betas far below a nanosecond
            ((2e-6, 1 / 400e9), (1.2e-5, 1 / 402e9), 8.04e8),  # hardly different
        )
    ]
)
def hidden_crossover(_: Draws, *pairs: tuple[Line, Line, float | None]) -> Case:
    """For each rank two lines, and the size at which they meet."""
    return side_by_side([meeting(*pair) for pair in pairs])


def meeting(one: Line, other: Line, right: float | None) -> Case:
    (alpha_one, beta_one), (alpha_other, beta_other) = one, other
    apart = abs(beta_one - beta_other)
    lost = (
        f"their betas differ by {apart:.1e}, and that counts. Test for equality with ==, without a tolerance"
        if apart <= 1e-9
        else "is the sign of one difference wrong?"
        if alpha_one < alpha_other
        else "the one with less latency may come first or second"
    )
    mistakes: dict[str, float | None] = {
        "0, and a size must be above 0: return None": 0.0,
        "infinite: with the same beta they never meet, so return None": math.inf,
    }
    if right:
        mistakes[f"None, but these lines do meet: {lost}"] = None
        mistakes["the fraction upside down: seconds divided by seconds per byte are bytes"] = 1 / right
        mistakes["the time that both take there: return the size"] = alpha_one + right * beta_one
        mistakes["the result of adding the betas: subtract them"] = right * apart / (beta_one + beta_other)
        rounded = (alpha_other - alpha_one) // (beta_one - beta_other)
        mistakes["the right size, rounded: return it as it comes out"] = rounded
        mistakes["the right size with the wrong sign"] = -right
    elif beta_one != beta_other and alpha_one != alpha_other:
        below = (alpha_other - alpha_one) / (beta_one - beta_other)
        mistakes[
            "the size without its sign, but these lines only meet below 0: keep the sign (no abs(), no larger minus "
            "smaller), and return None unless the size is above 0"
        ] = -below
        mistakes["a size below 0, which can't be sent: return None"] = below
    return Case(
        [[one], [other]],
        right=right,
        rtol=RTOL,
        mistakes=mistakes,
        seen=f"lines ({alpha_one:.4g}, {beta_one:.4g}) and ({alpha_other:.4g}, {beta_other:.4g}): you returned",
        advice={"ZeroDivisionError": "Two lines with the same beta are parallel: test for that before you divide."},
    )


### END HIDDEN TESTS


# ---- time-once


class Queue(Witness):
    """The work of a device.

    queued   seconds of earlier work still in it at the beginning
    kernel   seconds of work that the operation gives the device after its collective
    log      what was called, in order: o for the operation, w for the wait for its handle, s for synchronize
    """

    def __init__(self, queued: float, kernel: float) -> None:
        self.free_at, self.kernel, self.log = queued, kernel, ""

    def __call__(self, what: str, now: float) -> float:
        """Note a call. Returns how long the device will be busy."""
        self.log += what
        if what == "w":
            self.free_at = max(self.free_at, now) + self.kernel
        return max(0.0, self.free_at - now) if what == "s" else 0.0


class Device:
    """A rank's device with a queue, in virtual time, and the collective that the rank starts.

    queued, kernel  see Queue
    handle  the operation only starts the collective and returns a handle. As on a GPU, waiting for that handle only
            puts the kernel into the queue
    """

    def __init__(self, numel: int, queued: float = 0.0, kernel: float = 0.0, handle: bool = False) -> None:
        self.numel, self.handle, self.queue = numel, handle, Queue(queued, kernel)

    def operation(self) -> Handle | None:
        self.queue("o", time.perf_counter())
        work = dist.all_reduce(torch.ones(self.numel), async_op=True)
        if self.handle:
            return Handle(self, work)
        Handle(self, work).wait()
        return None

    def synchronize(self) -> None:
        time.sleep(self.queue("s", time.perf_counter()))


class Handle:
    """What `Device.operation` returns when the device has handles."""

    def __init__(self, device: Device, work: dist.Work) -> None:
        self.device, self.work = device, work

    def wait(self) -> None:
        self.work.wait()
        self.device.queue("w", time.perf_counter())


NEVER = "your function never called `synchronize`. Call the argument itself, under no condition"
BUSY = "the time including earlier work still in the queue: "
LATE = (
    "the time including the wait for rank 1, which was not ready yet: synchronize on each rank, then meet at the "
    "barrier, and only then start the clock"
)
HANDLE = {"numel": 1000, "handle": True}


@oracle(
    values=[
        ("an operation that returns a handle", [HANDLE] * 4),
        (
            "rank 1 has 500 ms of earlier work in its queue",
            [{"numel": 1000, "queued": 0.5 * (rank == 1)} for rank in range(4)],
        ),
        ("a handle, and a device that needs 20 ms more", [dict(HANDLE, kernel=0.02)] * 4),
    ],
    traffic=[("", [{"numel": 10, "handle": True}] * 2)],
    if_stuck="every rank must call the barrier and the operation, once and in this order.",
)
def time_once(_: Draws, story: str, of_ranks: list[dict[str, Any]]) -> Case:
    """of_ranks: what makes the Device of each rank."""
    devices, world_size = [Device(**one) for one in of_ranks], len(of_ranks)
    network = links(world_size, ALPHA, BANDWIDTH)
    layout = Layout.of(network, range(world_size))
    truth = cost("all_reduce", devices[0].numel * torch.float32.itemsize, network, layout).seconds
    barrier = cost("barrier", 0, network, layout).seconds
    late = max(one.queue.free_at for one in devices)
    right = [truth + one.queue.kernel for one in devices]

    logs: list[str] = []  # one per rank: the log of its device

    def read(answer: Answer) -> None:
        logs.extend(after[1].__self__.queue.log for after in answer.inputs_after)

    def waited(got: Any, rank: int) -> str:
        log, calls = logs[rank], logs[rank].count("o")
        if calls > 1:
            return f"the time of {calls} calls, or their mean: call the operation once; the next exercise repeats it"
        if equal_values(got, 0.0):
            how = (
                "wait before you stop the clock" if "w" in log else "you never called that. Only ask for `is not None`"
            )
            return f"the time to START it: if it returns a handle, the collective is over after handle.wait(); {how}"
        if equal_values(got, truth, RTOL):
            last = log.rpartition("o")[2]
            early = "yours came before the wait" if "s" in last else "yours came only before the operation"
            how = f"synchronize at the end, after the wait; {early}" if "s" in log else NEVER
            return f"the time without the work it gave the device: {how}"
        if not late or not is_number(got) or abs(got - late) >= truth + 2 * barrier:
            return ""
        if not of_ranks[rank].get("queued"):
            return LATE
        first = "; your first call came after the operation" * log.startswith("o")
        return BUSY + f"synchronize before you start the clock{first}"

    return Case(
        [[one.operation for one in devices], [one.synchronize for one in devices]],
        cluster=network,
        right=right,
        rtol=RTOL,
        before=read,
        explain=waited,
        mistakes={
            "the time including the barrier: start the clock when it is over (an asynchronous one has to be waited "
            "for), and use no barrier at the end": [one + barrier for one in right],
            "the longest time of any rank: return this rank's own": max(right),
        },
        unchanged=False,
        seen=f"{story}: rank {{rank}} measured",
        advice={
            "object has no attribute 'wait'": "Not every operation returns a handle: wait only if there is one.",
            "'Handle' object has no attribute": "Call handle.wait(): it returns when the collective is over.",
        },
        traffic=lambda answer: expect_calls(
            answer, ["barrier", "all_reduce"], advice="Meet once, at the barrier, and call the operation once."
        ),
    )


### BEGIN HIDDEN TESTS
hidden_time_once = vary(
    time_once,
    values=[
        (
            "earlier work on rank 1, different new work on each rank",
            [{"numel": 3000, "queued": 0.3 * (rank == 1), "kernel": 0.01 * rank} for rank in range(5)],
        ),
        ("one rank, with earlier work", [{"numel": 50, "queued": 0.2, "handle": True}]),
    ],
    traffic=[("", [{"numel": 10, "kernel": 0.1}] * 3)],
)
### END HIDDEN TESTS


# ---- times-of-the-slowest


class Stopwatch(Witness):
    """Stands in for time_one: returns a prepared time at each call. Warm-up calls are slow."""

    def __init__(self, rank: int, world_size: int, warmup: int, seed: int, salt: int) -> None:
        self.number, self.world_size, self.warmup, self.seed, self.salt = rank, world_size, warmup, seed, salt
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        return self.of_call(self.calls - 1)

    def of_call(self, call: int) -> float:
        """Seconds: different for each rank and call, not a float32, with a different slowest rank each time."""
        turn = (self.number + call + self.seed) % self.world_size
        chance = 1e-4 * Random(f"{self.salt} {self.number} {call}").random() if self.salt else 0.0
        return 100.0 * (call < self.warmup) + (1 + call % 5 + 10 * turn) * 1e-3 + 1e-12 * (call + self.number) + chance


@oracle(
    values=[(3, 2, 4, 2)],
    traffic=[(2, 1, 5)],
    if_stuck="every rank must call time_one the same number of times, then all_reduce once.",
)
def times_of_the_slowest(draws: Draws, world_size: int, warmup: int, repeats: int, seed: int = 0) -> Case:
    watches = [Stopwatch(rank, world_size, warmup, seed, draws.salted()) for rank in range(world_size)]
    calls = [[watch.of_call(call) for watch in watches] for call in range(warmup + repeats)]  # [call][rank]
    kept, together = calls[warmup:], list(zip(*calls[warmup:], strict=True))  # [repeat][rank], [rank][repeat]
    right = [max(one) for one in kept]

    def shorter_than_all(got: Any) -> bool:
        return isinstance(got, list | tuple) and all(is_number(one) and one < min(map(min, calls)) for one in got)

    def expect_counted_and_shared(answer: Answer) -> None:
        for called in {watch.calls for (watch,) in answer.inputs_after} - {warmup + repeats}:
            raise CheckFailed(
                f"time_one was called {called} times",
                f"{warmup + repeats}: {warmup} to warm up, {repeats} to keep",
                "Warm-up calls come on top of the repeats, and their times are thrown away.",
            )
        if equal_values(answer.results[0], right, 1e-15):
            words = "the wrong result, though rank 0 has the right one: every rank needs it, so use all_reduce"
            for rank, got in enumerate(answer.results):
                expect(got, right, rank, {words: always}, rtol=1e-15)

    return Case(
        [watches],
        for_all={"warmup": warmup, "repeats": repeats},
        right=every(right),
        rtol=1e-15,
        before=expect_counted_and_shared,
        explain=lambda got, _: (
            f"a list of {len(got)}: keep one time for each of the {repeats} repeats, and none of the {warmup} warm-ups"
            if isinstance(got, list | tuple) and len(got) != repeats
            else ""
        ),
        mistakes={
            "a list of this rank's own times: take the largest over the ranks": [list(mine) for mine in together],
            "a list of the times of the rank that was slowest overall: each repeat has its own slowest rank": every(
                list(max(together, key=sum))
            ),
            "the result of sorting before the ranks were compared: that compares different repeats": every(
                [max(one) for one in zip(*map(sorted, together), strict=True)]
            ),
            "a list of rank 0's times: rank 0 is not always the slowest": every(list(together[0])),
            "the mean over the ranks: all wait for the slowest": every([sum(one) / world_size for one in kept]),
            "the right list, but sorted: keep the order of the repeats": every(sorted(right)),
            "the sum over the ranks: op=dist.ReduceOp.MAX takes the largest": every([sum(one) for one in kept]),
            "a list of the fastest rank's times: take the largest": every([min(one) for one in kept]),
            "the largest time of all, each time: every repeat has a maximum of its own": every([max(right)] * repeats),
            "the first calls' times, warm-up included: keep the last": every([max(one) for one in calls[:repeats]]),
            "the right list rounded to float32: use dtype=torch.float64": every(torch.tensor(right).tolist()),
            "a list of times shorter than any that time_one returned: keep what it returns": shorter_than_all,
        },
        unchanged=False,
        traffic=lambda answer: expect_calls(
            answer,
            ["all_reduce"],
            [repeats * 8],
            "Combine the times of the repeats, and only these, in one call at the end.",
        ),
    )


### BEGIN HIDDEN TESTS
hidden_times_of_the_slowest = vary(
    times_of_the_slowest, values=[(5, 0, 6, 1), (2, 3, 1, 1), (1, 1, 2, 1)], traffic=[(3, 0, 7)]
)
### END HIDDEN TESTS


# ---- find-the-mistakes


def algbw_and_busbw(collective: str, nbytes: int, seconds: float, world_size: int) -> tuple[float, float]:
    """What the student's function gets as `bandwidths`, so that it does not depend on the previous exercise."""
    return nccl_conventions.algbw(nbytes, seconds), nccl_conventions.busbw(collective, nbytes, seconds, world_size)


Claim = tuple[str, list[str] | None, float]  # (collective, the mistakes in it or None for no known one, relative error)


@oracle(
    values=[
        (
            ("all_reduce", ["GiB"], 0.008),
            ("reduce_scatter", ["GiB", "one chunk"], -0.008),
            ("all_gather", ["both ways"], 0),
            ("broadcast", ["one chunk"], 0.007),
            ("all_to_all", ["algbw"], 0),
            ("reduce_scatter", None, 0.07),  # divided by the factor of "GiB"
            ("broadcast", [], 0.007),
        )
    ]
)
def find_the_mistakes(_: Draws, *claims: Claim) -> Case:
    """Each rank reviews one of the claims. The size and the time are made up."""
    world_size, nbytes, took = len(claims), 3 << 28, 0.0125
    reviews = []

    def reviewed(collective: str, mistakes: list[str] | None, off: float) -> Case:
        review = Review(*algbw_and_busbw(collective, nbytes, took, world_size), world_size)
        claim, busbw = review.busbw * review.factor(mistakes or []) * (1 + off), review.busbw
        reviews.append(replace(review, claim=claim))
        return Case(
            [[claim], [collective]],
            for_all={"nbytes": nbytes, "seconds": took, "bandwidths": algbw_and_busbw},
            right={"busbw": busbw, "mistakes": every(mistakes)},
            rtol=RTOL,
            explain=lambda got, rank: "" if is_number(got) else why_not(got, claims[rank][1], reviews[rank]),
            mistakes={
                "busbw": {
                    "algbw: the first number must be the right busbw": review.algbw,
                    "the claim, with the mistakes in it: the first number must be the right busbw": near_to(claim),
                    "only near the right busbw: return the one that `bandwidths` returned": near_to(busbw),
                }
            },
            seen=f"{collective} of {world_size} ranks, claimed {claim:.4g} GB/s: you returned",
            unpack=named_in_order,
        )

    return side_by_side([reviewed(*claim) for claim in claims])


### BEGIN HIDDEN TESTS
hidden_find_the_mistakes = vary(
    find_the_mistakes,
    values=[
        (
            ("all_reduce", ["GiB", "one chunk", "algbw"], 0.005),
            ("all_gather", ["GiB", "both ways"], -0.005),
            ("all_to_all", ["one chunk", "algbw"], 0),
            ("gather", None, 0.03),
            ("all_reduce", ["GiB", "one chunk", "both ways", "algbw"], 0),
        ),
        (("reduce_scatter", ["GiB"], 0.007), ("all_reduce", [], -0.007), ("broadcast", [], 0)),
    ],
)
### END HIDDEN TESTS


def near_to(claim: float) -> Callable[[Any], bool]:
    return lambda got: is_number(got) and abs(got - claim) <= 0.01 * claim


def named_in_order(got: Any, rank: int) -> dict[str, Any]:
    """What a review returned, with the mistakes in a list, in the order of the table."""
    busbw, found = as_tuple(got, ["busbw", "mistakes"], rank).values()
    if isinstance(found, list | tuple | set | frozenset):
        found = sorted(found, key=lambda one: MISTAKES.index(one) if one in MISTAKES else -1)
    return {"busbw": busbw, "mistakes": found}


MISTAKES = ["GiB", "one chunk", "both ways", "algbw"]


@dataclass(frozen=True)
class Review:
    """One claim, and what is needed to review it."""

    algbw: float
    busbw: float
    ranks: int
    claim: float = 0.0

    @property
    def factors(self) -> dict[str, float]:
        return dict(zip(MISTAKES, [1e9 / 2**30, 1 / self.ranks, 2.0, self.algbw / self.busbw], strict=True))

    def factor(self, mistakes: Sequence[str]) -> float:
        return math.prod(self.factors[one] for one in mistakes)

    def spelled(self, mistakes: Sequence[str]) -> str:
        """The factors of some mistakes, with the formula of each."""
        ways = zip(MISTAKES, ["1e9 / 2**30", "1 / P", "2", "algbw / busbw"], strict=True)
        of = {name: f"{way} = {self.factors[name]:.4g}".removesuffix(" = 2") for name, way in ways}
        every = "" if "algbw" in mistakes else ", for every collective"
        return " times ".join(f"{of[one]} ({one!r}{every})" for one in mistakes)


def why_not(got: object, right: list[str] | None, review: Review) -> str:
    """What is wrong with the mistakes found in one claim."""
    if got is None and right:
        product = f"{review.busbw:.4g} GB/s times {review.spelled(right)} is {review.busbw * review.factor(right):.4g}"
        return f"{product}, which is within 1 % of the claim. Print the factors that your loop multiplies."
    if got is None:
        return "The claim is right, so return []: None says that no subset explains it."
    if not isinstance(got, list):
        return "A list of names is asked for."
    if not set(map(str, got)) <= set(MISTAKES):
        return f"The names are {', '.join(map(repr, MISTAKES))}."
    would = review.busbw * review.factor(got)
    times = f" times {review.spelled(got)}" if got else ", as it is,"
    turn = f"{review.busbw:.4g} GB/s{times} is {would:.4g}"
    if near_to(review.claim)(would):
        return f"{right!r} alone explains it: try the small subsets first, and return as soon as one fits."
    if abs(would / review.claim - 1) < 0.2:
        again = "Does your product start again at busbw for each subset? " * bool(got)
        return f"{again}{turn}, which is not within 1 % of the claim."
    return f"{turn}, far from the claim: one of your factors is not right."


# ---- fit


def disturbed(draws: Draws, alpha: float, bandwidth: float, sizes: list[int], by: float) -> list[float]:
    """Times of a line, alternately too long and too short, by about the share `by`."""
    shares = by * (1 + torch.rand(len(sizes), generator=draws.generator()) / 4)
    return [
        (alpha + size / bandwidth) * (1 + share * (-1) ** place)
        for place, (size, share) in enumerate(zip(sizes, shares.tolist(), strict=True))
    ]


POWERS = [1024 * 4**power for power in range(9)]
BELOW = ([1000, 2000, 4000, 16_000], [3e-6, 9e-6, 2.2e-5, 9e-5])  # the best line begins below 0


@oracle(values=[{"lines": [(40e-6, 5e9, POWERS, 0.05), (2e-3, 1e8, POWERS[::2], -0.2)], "measured": [BELOW]}])
def fit(
    draws: Draws,
    lines: Sequence[tuple[float, float, list[int], float]] = (),
    measured: Sequence[tuple[list[int], list[float]]] = (),
) -> Case:
    """For each rank a line, (alpha, bandwidth, sizes, how far the times are off it), or (sizes, times)."""
    drawn = [(line[2], disturbed(draws, *line)) for line in lines]
    return side_by_side([fitted(sizes, times) for sizes, times in [*drawn, *measured]])


### BEGIN HIDDEN TESTS
SIZES = [8, 100, 3000, 50_000, 2_000_000]
hidden_fit = vary(
    fit,
    values=[
        {
            "lines": [(1e-6, 4.5e11, SIZES, 0.1), (5e-5, 1e9, SIZES[::-1], 0.3)],
            "measured": [
                ([1000, 9000], [0.001, 0.005]),
                ([1000, 8000, 64_000], [1e-6, 2e-5, 1.9e-4]),  # the best line begins below 0
            ],
        }
    ],
)
### END HIDDEN TESTS


def fitted(sizes: list[int], times: list[float]) -> Case:
    """The right line is that of Cramer's rule on exact fractions."""
    n, t = [Fraction(size) for size in sizes], [Fraction(time) for time in times]
    alpha, beta = right = solve(n, t)
    pairs: dict[str, Any] = {
        "(beta, alpha): the latency comes first": (beta, alpha),
        "(alpha, bandwidth): beta is in seconds per byte": (alpha, 1 / beta),
        "a line whose negative alpha was set to 0: return it as it comes out": (
            lambda got: alpha < 0 and isinstance(got, tuple | list) and equal_values(got[:1], [0])
        ),
        "the right line, but rounded: compute in float64": lambda got: equal_values(got, right, 1e-3),
        "near the best line, but not on it: minimise squared RELATIVE errors": lambda got: equal_values(
            got, right, 0.05
        ),
    }
    return Case(
        [[sizes], [times]],
        right=right,
        rtol=1e-8,
        mistakes=pairs,
        advice={"lstsq|size of tensor": "Stack the two columns with dim=1; `ones` has the shape (sizes, 1)."},
        seen=f"for {len(sizes)} sizes from {sizes[0]:,} to {sizes[-1]:,} bytes you returned (alpha, beta) =",
    )


def solve(n: Sequence[Fraction], t: Sequence[Fraction]) -> tuple[float, float]:
    """The (alpha, beta) with the least sum of squared relative errors of t = alpha + beta n."""
    weights = [1 / time**2 for time in t]
    w = sum(weights)
    mean_n = sum(weight * size for weight, size in zip(weights, n, strict=True)) / w
    mean_t = sum(weight * time for weight, time in zip(weights, t, strict=True)) / w
    above = sum(a * (b - mean_n) * (c - mean_t) for a, b, c in zip(weights, n, t, strict=True))
    slope = above / sum(a * (b - mean_n) ** 2 for a, b in zip(weights, n, strict=True))
    return float(mean_t - slope * mean_n), float(slope)


# ---- held-out-errors

Line = tuple[float, float]  # (alpha, beta)


@dataclass
class Average:
    """Stands in for fit: alpha is the mean time, beta that of size times time in µs. Counts its calls."""

    calls: int = field(default=0, compare=False)

    def __call__(self, sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
        if len(sizes) != len(seconds) or len(sizes) < 2:
            raise ValueError(
                f"fit got {len(sizes)} sizes and {len(seconds)} times: pass it all sizes but one, and their times"
            )
        self.calls += 1
        return sum(seconds) / len(seconds), sum(map(operator.mul, sizes, seconds)) / len(sizes) * 1e-6


@oracle(values=[(([1000, 2000, 4000], [0.01, 0.03, 0.02]), ([10, 500, 700, 500], [0.5, 0.1, 0.7, 0.2]))])
def held_out_errors(_: Draws, *measured: tuple[list[int], list[float]]) -> Case:
    """For each rank (sizes, times)."""
    return side_by_side([held_out(*one) for one in measured])


### BEGIN HIDDEN TESTS
hidden_held_out_errors = vary(
    held_out_errors,
    values=[
        (([5, 3, 9, 1, 700], [0.2, 0.2, 0.7, 0.1, 3.0]),),
        (([8, 16, 16], [1.0, 2.0, 4.0]), ([1, 10, 100], [1e-6, 1e-5, 1e-4])),  # a size twice
    ],
)
### END HIDDEN TESTS


def held_out(sizes: list[int], times: list[float]) -> Case:
    model, places = Average(), range(len(sizes))
    others = [[other for other in places if other != place] for place in places]
    right_lines = [model([sizes[other] for other in those], [times[other] for other in those]) for those in others]

    def errors(of: Any = lambda p, m: p / m - 1, lines: list[Line] = right_lines, at: Sequence[int] = sizes) -> Any:
        predicted = [alpha + n * beta for n, (alpha, beta) in zip(at, lines, strict=True)]
        return every([of(p, m) for p, m in zip(predicted, times, strict=True)])

    def expect_called(answer: Answer) -> None:
        if not all(after[2].calls for after in answer.inputs_after):
            raise CheckFailed("`fit` was called 0 times", "once for each size", "Use the `fit` that is passed in.")

    twice = "A size can occur twice: leave out one position, not every point of the same size."
    return Case(
        [[sizes], [times], [Average()]],
        right=errors(),
        rtol=RTOL,
        before=expect_called,
        advice={r"fit got \d sizes and": twice} if len(set(sizes)) < len(sizes) else {},
        mistakes={
            "the error in percent: return a share": errors(lambda p, m: 100 * (p / m - 1)),
            "the error of a prediction for the index in the list: predict for the size": errors(at=places),
            "the error in seconds: divide by the measured time": errors(lambda p, m: p - m),
            "the error without its sign: keep it": errors(lambda p, m: abs(p / m - 1)),
            "the error of alpha * n + beta: beta is the time per byte": errors(
                lines=[one[::-1] for one in right_lines]
            ),
            "the error with the wrong sign: return predicted / measured - 1": errors(lambda p, m: 1 - p / m),
            "measured / predicted - 1: the other way round": errors(lambda p, m: m / p - 1),
            "predicted / measured: subtract 1": errors(lambda p, m: p / m),
            "the error as a share of the prediction: divide by the measured time": errors(lambda p, m: 1 - m / p),
        },
        seen=f"for the sizes {sizes}, with the check's own fit, you returned",
    )


# ---- recover-the-link


class Stopped:
    """Stands in for a benchmark on one rank, so that the exercise depends on no other. Counts its calls; the record has
    their messages.
    """

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
            raise ValueError(
                "the function passed to seconds_of took no time: it must call all_reduce, and wait or return the handle"
            )
        return time.perf_counter() - began_at


def line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Stands in for fit, by that of benchmark/machine/probes.py."""
    if len(seconds) != len(sizes) or min(seconds) <= 0:
        raise ValueError(f"fit got {len(sizes)} sizes and the times {list(seconds)}: every rank must measure each size")
    link = probes.fit(dict(zip(sizes, seconds, strict=True)))
    return link.alpha, 1 / link.bandwidth


@oracle(
    values=[(4, ALPHA, BANDWIDTH, [8000, 16_000, 64_000])],
    if_stuck="every rank must call seconds_of for every size, with an operation that calls all_reduce.",
)
def recover_the_link(_: Draws, world_size: int, alpha: float, bandwidth: float, sizes: list[int]) -> Case:
    return Case(
        [[list(sizes)] * world_size, [Stopped() for _ in range(world_size)]],
        for_all={"fit": line},
        cluster=links(world_size, alpha, bandwidth),
        right={"alpha": alpha, "the bandwidth": bandwidth},
        rtol=RTOL,
        before=partial(expect_one_call_per_size, sizes=sizes),
        seen=f"rank {{rank}} of {world_size} returned {{part}}",
        unchanged=False,
    )


### BEGIN HIDDEN TESTS
hidden_recover_the_link = vary(
    recover_the_link,
    values=[
        (2, 3e-6, 2e9, [400, 40_000, 4_000_000]),
        (3, 1e-5, 1e8, [1200, 6000, 12_000, 48_000]),
        (8, 2e-4, 5e7, [80_000, 160_000, 320_000]),
    ],
)
### END HIDDEN TESTS


def expect_one_call_per_size(answer: Answer, sizes: Sequence[int]) -> None:
    for called in {watch.calls for _, watch in answer.inputs_after} - {len(sizes)}:
        raise CheckFailed(
            f"seconds_of was called {called} times for {len(sizes)} sizes",
            f"{len(sizes)}",
            "Let seconds_of do the timing: once for each size, with an operation that calls all_reduce.",
        )
    for rank in range(len(answer.results)):
        ops = Counter(event.op for event in answer.events if event.rank == rank and event.op != "barrier")
        if ops != {"all_reduce": len(sizes)}:
            called = ", ".join(f"{op} {count} times" for op, count in ops.items()) or "nothing"
            raise CheckFailed(
                f"rank {rank} called {called}",
                f"all_reduce {len(sizes)} times",
                "The operation that seconds_of times must be one all_reduce.",
            )


# ---- the challenge

OFF = 0.02  # how far each reading is from the truth
OK = 0.05  # and an answer at most
SHORT, LONG = "too short for large sizes", "too long for large sizes"
Reading = tuple[float, float, str, float]  # alpha, beta, SHORT or LONG, and the least share of 2 % in a large size


def links_of(alpha: float, octave: float, salt: int = 0) -> list[Reading]:
    """Their alpha / beta grows from 2 ** octave in small steps: on one of them a benchmark stops as early as it can.

    salt: for an order, and for scales, that nobody knows. No score depends on them.
    """
    betas = [alpha / 2 ** (octave + place * 7 / 12) for place in range(24)]
    links = [(alpha, beta, readings, least) for least in (0.5, 1.0) for readings in (SHORT, LONG) for beta in betas]
    if not salt:
        return links
    drawn = Random(salt)
    scales, mixed = [drawn.uniform(0.5, 2.0) for _ in links], drawn.sample(links, len(links))
    return [
        (by * alpha, by * beta, readings, least)
        for by, (alpha, beta, readings, least) in zip(scales, mixed, strict=True)
    ]


class Bench(Witness):
    """Links to measure, one after another, up to the first that is measured wrong.

    salt   how far off readings are follows from it
    spent  on each link, in units of its alpha
    calls  of the last link: the size, and the reading
    said   of the last link
    """

    def __init__(self, links: Sequence[Reading], salt: int = 0) -> None:
        self.links, self.salt, self.spent, self.said = links, salt, [0.0], None
        self.calls: list[tuple[int, float]] = []

    @property
    def link(self) -> Reading:
        return self.links[len(self.spent) - 1]

    def __call__(self, what: str, given: Any) -> Any:
        """The seconds of a call; or, told what was found, whether there is another link."""
        if what == "seconds":
            return self.seconds_of(given)
        self.said, link = given, self.link
        right = isinstance(given, tuple | list) and len(given) == 2 and all(map(good_enough, given, link))
        if not right or link is self.links[-1]:
            return False
        self.spent.append(0.0)
        self.calls = []
        return True

    def seconds_of(self, nbytes: int) -> float:
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 1:
            raise ValueError(f"nbytes is {nbytes!r}, but it must be a whole number from 1 on")
        alpha, beta, *_ = self.link
        self.spent[-1] += 1 + beta / alpha * nbytes
        self.calls.append((nbytes, (alpha + beta * nbytes) * (1 + self.off(nbytes))))
        return self.calls[-1][1]

    def drawn(self, nbytes: int) -> float:
        return Random(f"{self.salt} {len(self.spent)} {nbytes}" if self.salt else nbytes).random()

    def off(self, nbytes: int) -> float:
        """By how much a reading is off. That of one byte is off in the other direction. How far off is drawn for each
        size: if two were off alike, their difference would give beta however small it is.
        """
        alpha, beta, readings, least = self.link
        sign = 1 if readings == SHORT else -1
        drawn = self.drawn(nbytes)
        if nbytes == 1:
            return sign * OFF
        return OFF * (2 * drawn - 1) if beta * nbytes < alpha / 4 else -sign * OFF * (1 - drawn * (1 - least))


def measure_links(function: Callable[..., Any], bench: Bench) -> bool:
    """What a rank runs: the function on one link after another."""
    while bench("found", function(partial(bench, "seconds"))):
        pass
    return True


def good_enough(got: Any, right: Any) -> bool:
    return isinstance(got, Real) and abs(got - right) <= OK * right


@oracle(
    score=[(2e-5, 11.6), (1e-3, 18.6)],
    if_stuck="whether the size changes from call to call, since the same size always gives the same reading.",
    par=frozen_par(ROOM, "shortest-benchmark"),
)
def shortest_benchmark(draws: Draws, alpha: float, octave: float) -> Case:
    def expect_both(answer: Answer) -> None:
        [bench] = answer.inputs_after[0]
        said, calls, (alpha, beta, readings, _) = bench.said, bench.calls, bench.link
        link = f"alpha {alpha:g} s, beta {beta:.3g} s per byte, readings {readings}:\n"
        for (name, got), right in zip(as_tuple(said, ["alpha", "beta"], 0).items(), (alpha, beta), strict=True):
            if not is_number(got):
                raise CheckFailed(f"{name} is {got!r}", "a number")
            if not good_enough(got, right):
                share = got / right - 1
                by = f", {100 * abs(share):.3g} % too {'large' if share > 0 else 'small'}; 5 % is allowed."
                by = by if -1 < share < 9 else f" instead of {right:.3g}"
                raise CheckFailed(
                    f"{link}{name} is {got:.4g}{by}", "", why_it_is_off(name, got, right, calls, (alpha, beta))
                )
        largest = max((nbytes for nbytes, _ in calls), default=0)
        if beta * largest > 1000 * alpha:  # the start-up time alone is above par
            saw = f"{link}a call of {largest:,} bytes takes {1 + beta * largest / alpha:,.0f} times alpha"
            advice = "since the score counts all calls: choose each size by the readings so far, in small steps."
            raise CheckFailed(saw, mistake=f"Links differ, so no fixed size fits them all. Take shorter ones, {advice}")

    return Case(
        [[Bench(links_of(alpha, octave, draws.salted()), draws.salted())]],
        driver=measure_links,
        also=expect_both,
        score=Measure(lambda answer: mean(answer.inputs_after[0][0].spent), "", "times alpha"),
        limit=2.0,
    )


### BEGIN HIDDEN TESTS


class Slowest(Bench):
    """Of all that may be drawn, the readings that let a benchmark go on for longest."""

    def drawn(self, nbytes: int) -> float:
        return float(self.link[2] == LONG)


def alphas_of_doubling(alpha: float, octave: float) -> float:
    """From one byte on, until a reading is ten times the first one."""

    def double(seconds_of: Any) -> Line:
        nbytes, smallest = 1, seconds_of(1)
        took = smallest
        while took < 10 * smallest:
            nbytes *= 2
            took = seconds_of(nbytes)
        return smallest, (took - smallest) / nbytes

    bench = Slowest(links_of(alpha, octave))
    measure_links(double, bench)
    return mean(bench.spent)


hidden_shortest_benchmark = vary(shortest_benchmark, par=alphas_of_doubling, score=[(3e-6, 10.05), (8e-3, 21.3)])
### END HIDDEN TESTS


def why_it_is_off(
    name: str, got: float, right: float, calls: list[tuple[int, float]], link: tuple[float, float]
) -> str:
    """The cause in words, where the calls that were made tell it."""
    alpha, beta = link
    times = [seconds for _, seconds in calls]
    if not calls:
        return "You never called seconds_of, and no two links are the same."
    if name == "beta" and equal_values(got, 1 / right, 0.05):
        return "That is the bandwidth, 1 / beta: return seconds per byte."
    if equal_values(got, alpha + beta - right, 0.05):
        return "That is the other one: return alpha, then beta."
    if name == "beta" and any(equal_values(got, seconds / nbytes, 1e-6) for nbytes, seconds in calls):
        return "That is a whole reading divided by its bytes: subtract alpha first."
    if name == "beta" and max(times) < 2.5 * min(times):
        longest = f"The longest reading is only {max(times) / min(times):.2f} times the shortest."
        return f"{longest} With readings 2 % off, that is too small a difference: go on to larger sizes."
    if name == "alpha" and beta * min(calls)[0] > 0.03 * alpha:
        return f"The smallest size was {min(calls)[0]:,} bytes. At that size the bytes already take part of the time."
    return "Each reading may be 2 % off, so subtract only readings that differ by more than they have in common."


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(shortest_benchmark, par=alphas_of_doubling),
    vary(hidden_median_and_spread, values=[([1.0, 5.0, 2.0, 80.0, 3.0], [8.0, 2.0, 70.0, 3.0, 4.0, 6.0])]),
    vary(hidden_counted_bytes, values=[(four, [4000, 8000, 1200, 400]) for four in (OPS[:4], OPS[4:])]),
    vary(hidden_bandwidths, values=[(four, 600_000_000, 0.02) for four in (OPS[:4], OPS[4:])]),
    vary(
        hidden_sweep_sizes,
        values=[((5, 2000, 7, 4), (1024, 16384, 4, 4), (5, 300, 3, 8)), ((13, 2000, 3, 4), (50, 5000, 2, 8))],
    ),
    vary(hidden_size_for_share, values=[((0.8, 5e-6, 1e-9), (0.5, 1e-6, 1 / 450e9), (0.3, 2e-3, 1e-6))]),
    vary(
        hidden_crossover,
        values=[
            (
                ((10e-6, 3e-9), (50e-6, 1e-9), 20_000.0),
                ((50e-6, 1e-9), (10e-6, 3e-9), 20_000.0),
                ((10e-6, 1e-9), (50e-6, 3e-9), None),
                ((10e-6, 2e-9), (50e-6, 2e-9), None),
                ((2e-6, 1e-9), (2e-6, 3e-9), None),  # they meet at 0
                ((1e-6, 1 / 50e9), (9e-6, 1 / 450e9), 450_000.0),  # a network card, an NVLink
                ((1e-6, 1 / 450e9), (11e-6, 1 / 451e9), 2_029_500_000.0),  # two NVLinks
            )
        ],
    ),
)
### END HIDDEN TESTS
