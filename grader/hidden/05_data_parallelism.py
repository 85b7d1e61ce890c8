"""The hidden tests of lesson 05, and the oracles of the exercises whose answer is a plan or a formula.

World sizes 1, 3, 4 and 5; other models and shards; buckets of other sizes; other orders; slower networks."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from utils.checks.inputs import Draws
from utils.checks.marking import check
from utils.checks.oracles import Case, every, oracle, vary
from utils.checks.runner import Runner

visible: Any = import_module("utils.checks.05_data_parallelism")
mlp, mixed, branched, IN_BUCKETS = visible.mlp, visible.mixed, visible.branched, visible.IN_BUCKETS

shard_the_batch = vary(
    visible.shard_the_batch, values=[(rows, size, 3, torch.int64) for rows, size in ((3, 11), (5, 3), (1, 4), (4, 0))]
)
average_gradients = vary(
    visible.average_gradients, values=[(mixed, [1] * 5), (mlp(), [3])], traffic=[(mlp(5), [2, 2, 2])]
)
broadcast_weights = vary(visible.broadcast_weights, values=[(4, 5), (2, 2, True), (1,)], traffic=[(3, 4)])

weigh_uneven_shards = vary(
    visible.weigh_uneven_shards, values=[(mixed, [5, 1, 1, 2]), (mlp(), [2, 2, 2]), (mlp(), [3])]
)


@check("epoch-indices")
def epoch_indices_values(run: Runner) -> None:
    visible.judge_epochs(run, 3, 40)
    for world_size, num_samples in ((5, 2), (1, 7), (4, 9)):
        visible.judge_epoch(run, world_size, num_samples, epoch=2, seed=run.draws.salted() % 1000)


@oracle(
    values=[
        ([5], 10),
        ([100, 1, 100], 10),
        ([4] * 7, 12),
        ([7, 3, 5, 5, 1, 9, 10, 11, 2], 10),
        ([1, 2, 3], 100),
        ([], 8),
        ([], 14, 12),
    ]
)
def make_buckets(draws: Draws, sizes: list[int], cap: int, count: int = 0) -> Case:
    """count: of sizes to draw, behind the others."""
    sizes = sizes + torch.randint(1, 10, (count,), generator=draws.generator()).tolist()
    forwards = list(range(len(sizes)))
    backwards = forwards[::-1]

    def cut(order: list[int], cap: int, early: bool = False, first: bool = True) -> list[list[int]]:
        """early: close a bucket before it would grow larger than the cap. first: whether its first parameter counts."""
        buckets: list[list[int]] = []
        for index in order:
            held = sum(sizes[other] for other in buckets[-1][not first :]) if buckets else 0
            is_full = held + sizes[index] > cap if early else held >= cap
            if is_full or not buckets:
                buckets.append([])
            buckets[-1].append(index)
        return buckets

    right = cut(backwards, cap)
    mistakes = {
        "right except for the order of the buckets: the last parameter's is the first to be sent": right[::-1],
        "right except for the order inside the buckets: go from the last parameter to the first": [
            bucket[::-1] for bucket in right
        ],
        "from the first parameter to the last: backward starts at the other end": cut(forwards, cap),
        "right except for an empty bucket at the start": [[], *right],
        "right except for an empty bucket at the end": [*right, []],
        "cut from the first parameter on: begin with the last one": [b[::-1] for b in cut(forwards, cap)[::-1]],
        "one bucket per parameter after the first bucket: count each bucket's bytes from zero again": (
            right[:1] + [[index] for bucket in right[1:] for index in bucket]
        ),
        "right if a bucket's first parameter had no bytes: count it, too": cut(backwards, cap, first=False),
        "a bucket that is closed before it would grow above the cap: close it once it has reached the cap": (
            cut(backwards, cap, early=True)
        ),
        "a bucket for each parameter": [[index] for index in backwards],
        "one bucket for all: start a new one when the last one has reached the cap, which is in bytes": [backwards],
        "the sizes: a bucket holds the parameters' indices": [[sizes[index] for index in bucket] for bucket in right],
        "a bucket that is closed too late: one that holds exactly the cap is full": cut(backwards, cap + 1),
        "without the last bucket: it isn't full, but it counts": right[:-1],
        "without parameter 0: go on until index 0": [bucket for b in right if (bucket := [i for i in b if i])],
    }
    return Case(
        [[sizes]],
        same={"cap": cap},
        right=every(right),
        mistakes={words: every(wrong) for words, wrong in mistakes.items()},
        seen=f"sizes {sizes}, cap {cap}: you returned",
    )


bucketed_gradients = vary(
    visible.bucketed_gradients,
    values=[
        (mlp(5), [1, 1, 1, 1], [[4], [3, 2, 1], [0]]),
        (mixed, [2, 2], [[3, 2, 1, 0]]),
        (mixed, [2], IN_BUCKETS),
    ],
    traffic=[(mixed, [2, 2, 2], [[3, 2], [1], [0]])],
)


EMPTY = {"IndexError|is empty|is an empty|empty iterable": "Both lists may be empty: then return 0.0."}


@oracle(
    values=[
        ([2.0], [0.5]),
        ([1.0, 1.5, 6.0, 6.5], [3.0, 3.0, 0.5, 2.0]),
        ([3.0, 2.0, 4.0], [2.0, 0.5, 0.25]),  # not ready in the order in which they are sent
        ([1.0, 2.0, 2.5], [0.5, 4.0, 0.0]),
        ([], [], 8),
    ]
)
def communication_end(draws: Draws, ready: list[float], took: list[float], count: int = 0) -> Case:
    """count: of buckets to draw, behind the others."""
    steps, all_reduces = torch.randint(1, 9, (2, count), generator=draws.generator()) / 4  # sums of these are exact
    ready, took = ready + steps.cumsum(0).tolist(), took + all_reduces.tolist()
    last = ready[-1] if ready else 0.0
    mistakes = {
        "when the last bucket would end on a free network: the one before may still occupy it": last + sum(took[-1:]),
        "the sum of all: no all-reduce starts before its bucket is ready": sum(took, 0.0),
        "the end if all start after backward, one after another: each starts as soon as it is ready": last + sum(took),
        "the end if all ran at the same time: the network does one at a time": (
            max((at + long for at, long in zip(ready, took, strict=True)), default=0.0)
        ),
    }
    later = summed = in_order = 0.0
    for at, long in zip(ready, took, strict=True):
        later, summed = max(at, later + long), summed + at + long
    for at, long in sorted(zip(ready, took, strict=True)):
        in_order = max(at, in_order) + long
    mistakes |= {
        "the later of `ready` and `end + took`: take the later of `ready` and `end`, then add": later,
        "the sum of all moments and times: `ready` is a moment, so wait until then": summed,
        "the end if the first bucket to be ready is sent first: all ranks keep the order that is given": in_order,
        "the first moment plus the sum of all: the network may have to wait for any of the later buckets too": (
            sum(took, *ready[:1] or [0.0])
        ),
        "the exposed time: return the moment when the last one ends": end_of(ready, took) - last,
    }
    seen = f"ready {ready}, took {took}: you returned"
    return Case([[ready], [took]], right=end_of(ready, took), mistakes=mistakes, seen=seen, advice=EMPTY)


def end_of(ready: list[float], took: list[float]) -> float:
    """The longest chain: a bucket and all those after it, from the moment it is ready."""
    return max((at + sum(took[number:]) for number, at in enumerate(ready)), default=0.0)


overlap_by_hooks = vary(
    visible.overlap_by_hooks,
    values=[
        (branched([[0, 1, 2], [2, 0, 1], [1, 2, 0]], 3), [2, 2, 2], [[4], [3], [2], [1], [0]]),
        (branched([[0, 1, 2], [2, 1, 0]], 3), [2, 2], [[4, 2], [3], [1, 0]]),
        (mixed, [2], IN_BUCKETS),
        (mlp(3), [1] * 5, [[2, 1, 0]]),
    ],
    traffic=[(mlp(5), [2] * 3, [[4, 3], [2], [1], [0]], visible.SLOW)],
    time=[
        (mlp(6), [2] * 4, [[5, 4], [3, 2], [1], [0]], (0.05, 2.5), end_of),
        (mlp(3), [2] * 2, [[2, 1, 0]], (0.1, 1.3), end_of),
        (mlp(6), [2] * 2, [[5, 4, 3], [2], [1], [0]], (0.1, 1.3), end_of),
        (mlp(5), [2] * 2, [[4], [3], [2], [1], [0]], (0.1, 4.0), end_of),
    ],
)

average_what_is_used = vary(
    visible.average_what_is_used,
    values=[([[3], [0, 1], [1], [3, 1]], 5), ([[], [0], []], 2, False), ([[1]], 2)],
)

replica = vary(
    visible.replica,
    values=[
        ([[3], [0, 1], [1], [3, 1]], 5, 2, False, [[6, 5], [4, 3, 2], [1], [0]]),
        ([[], [0]], 2, 1, True, [[2, 1, 0]]),
        ([[1]], 2, 3, True, [[2], [1, 0]]),
    ],
    traffic=[([[2, 0, 1], [1, 2, 0], [0, 1, 2]], 3, count, True, [[3, 2], [1], [0]]) for count in (1, 2)],
)

SHARDS = [([1, 5, 2], 2, 1e-5), ([2, 2, 2, 1, 1], 4), ([4], 3)]
normalise_globally = vary(visible.normalise_globally, values=SHARDS, traffic=[([12, 9, 30], 2, 0.1)])
normalise_backward = vary(visible.normalise_backward, values=SHARDS, traffic=[([12, 9, 30], 2, 0.1)])


# ---- the challenge


def exposed_with_one_cap(parts: list[int], unit: int, latency: float, bandwidth: float) -> float:
    """The best of all caps of whole MiB, up to 100."""
    sizes, ready = visible.gradients_of(parts, unit)
    ends: list[float] = []
    for cap in range(2**20, 101 * 2**20, 2**20):
        plan: list[list[int]] = []
        room = 0
        for index in reversed(range(len(sizes))):
            if room <= 0:
                plan.append([])
                room = cap
            plan[-1].append(index)
            room -= sizes[index]
        ends.append(visible.end_of_buckets(plan, sizes, ready, latency, bandwidth))
    exposed: float = min(ends) - max(ready)
    return exposed


best_buckets = vary(
    visible.best_buckets,
    par=exposed_with_one_cap,
    score=[
        ([3, 1, 4, 4] * 6, 2**23, 1e-3, 39e9),
        ([5, 1, 1, 2, 9, 3] * 8, 2**20, 1e-4, 45e9),
        ([3], 2**20, 1e-4, 40e9),
    ],
)

# ---- what the visible checks know of par, the plan and the formula

RECORDED = (
    vary(visible.best_buckets, par=exposed_with_one_cap),
    vary(make_buckets, values=[([40, 40, 450, 120, 120, 120, 200, 200], 400), ([8, 8, 8], 16), ([30, 10, 10], 20)]),
    vary(
        communication_end,
        values=[
            ([4.25, 5.0, 6.25], [4.0, 0.5, 1.0]),
            ([1.0, 2.0, 4.0], [0.5, 0.75, 3.0]),
            ([1.0, 4.0, 5.25], [2.0, 3.0, 1.5]),
            ([], []),
        ],
    ),
)
