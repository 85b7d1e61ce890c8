"""The hidden tests of lesson 07, and the oracles of the exercises whose answer is a formula or a plan.

World sizes 1, 2, 3 and 5; other models, shapes and dtypes; other groups; one layer, one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from utils.checks.inputs import Draws
from utils.checks.oracles import Case, oracle, vary

visible: Any = import_module("utils.checks.07_zero_fsdp")
mlp, uneven, awkward, DOUBLE, SINGLE = visible.mlp, visible.uneven, visible.awkward, visible.DOUBLE, visible.SINGLE


# ---- formulas and plans


@oracle(values=[(0, 999, 7), (1, 1001, 10), (2, 13, 5), (3, 7, 64), (3, 4096, 1)])
def state_bytes(_: Draws, stage: int, numbers: int, ranks: int) -> Case:
    piece = -(-numbers // ranks)
    return Case(
        [[stage], [numbers], [ranks]],
        right=sum(nbytes * (piece if place < stage else numbers) for place, nbytes in enumerate((12, 2, 2))),
        seen=f"for stage {stage}, {numbers} numbers and {ranks} ranks it returned",
    )


@oracle(
    values=[
        ([1.0], [2.0], [3.0], [4.0]),
        ([0.0, 0.5, 4.0], [1.0, 3.0, 1.0], [2.0, 0.5, 4.0], [0.25, 2.0, 1.0]),
        ([2.0, 3.0, 4.0], [0.5, 0.5, 0.5], [2.5, 2.5, 2.5], [0.5, 0.5, 0.5]),
        ([], [], [], []),
        ([], [], [], [], 6),
    ]
)
def offload_end(
    draws: Draws, ready: list[float], down: list[float], update: list[float], up: list[float], count: int = 0
) -> Case:
    """count: of layers to draw, behind the others."""
    drawn = torch.randint(1, 9, (4, count), generator=draws.generator()) / 4  # sums of these are exact
    ready = ready + drawn[0].cumsum(0).tolist()
    stations = [each + more.tolist() for each, more in zip((down, update, up), drawn[1:], strict=True)]
    layers = list(zip(ready, *stations, strict=True))

    def latest(busy: Sequence[int], waits: bool = True) -> float:
        """The longest chain of steps; each is at a layer and a station, and goes on to the next of one of the two.

        busy: the stations that do one layer at a time. waits: whether the last of them waits for its layer
        """
        arrived: dict[tuple[int, int], float] = {}
        for number, (at, *times) in enumerate(layers):
            for station, takes in enumerate(times):
                before = arrived.get((number - 1, station), 0.0) if station in busy else 0.0
                at = at if waits or station < 2 else 0.0
                arrived[number, station] = at = max(at, before) + takes
        return max([arrived[key] for key in arrived if key[1] == 2], default=0.0)

    one_line, in_turn = 0.0, 0.0
    for at, *times in layers:
        one_line = max(one_line, at) + sum(times)
        in_turn += sum(times)
    mistakes = {
        "the end if a layer leaves for the host only when the one before is back: the stations work at the same time, "
        "and PCIe carries both directions at once": one_line,
        "the sum of all times: the stations work at the same time": in_turn,
        "the end if each station could take several layers at once: it does one at a time": latest(()),
        "the end if the host updated several layers at once: it does one at a time": latest((0, 2)),
        "the end if the way up didn't wait for the updates": latest((0, 1, 2), waits=False),
        "the end if a layer's way down waits for the update of the one before: the two work at the same time": (
            down_and_update_in_turn(layers)
        ),
        "the end if a station waits for all layers to leave the one before": station_by_station(layers),
        "the end if nothing starts before the last gradient is ready": end_of(
            [(max(ready, default=0.0), *times) for _, *times in layers]
        ),
        "the end if all gradients were ready at 0": end_of([(0.0, *times) for _, *times in layers]),
        "the end of the updates: the weights must go up, too": end_of([(a, b, c) for a, b, c, _ in layers]),
        "the end of the way down: update and way up are missing": end_of([(a, b) for a, b, *_ in layers]),
    }
    return Case(
        [[ready], *[[each] for each in stations]],
        right=latest((0, 1, 2)),
        mistakes=mistakes,
        seen=f"ready {ready}, down {stations[0]}, update {stations[1]}, up {stations[2]}: you returned",
    )


def station_by_station(layers: list[tuple[float, ...]]) -> float:
    on_host = end_of([(at, down) for at, down, *_ in layers])
    return on_host + sum(update + up for *_, update, up in layers)


def down_and_update_in_turn(layers: list[tuple[float, ...]]) -> float:
    return end_of([(at, down + update, up) for at, down, update, up in layers])


def end_of(layers: list[tuple[float, ...]]) -> float:
    """When the last layer has left the last station, for any number of stations."""
    free = [0.0] * 3
    for at, *times in layers:
        for station, takes in enumerate(times):
            free[station] = at = max(at, free[station]) + takes
    return free[len(layers[0]) - 2] if layers else 0.0


@oracle(
    values=[(10, 4, 3), (100, 7, 5), (5, 2, 4), (12, 3, 3), (9, 1, 4), (9, 4, 1), (3, 5, 2), (6, 4, 5)],
)
def slices_to_read(_: Draws, numbers: int, saved_size: int, ranks: int) -> Case:
    saved, mine = -(-numbers // saved_size), -(-numbers // ranks)

    def read(wanted: range) -> list[tuple[int, int, int]]:
        """Number by number: where each is, then neighbours joined."""
        slices: list[tuple[int, int, int]] = []
        for number in wanted:
            file, place = number // saved, number % saved
            if slices and slices[-1][0] == file:
                slices[-1] = (file, slices[-1][1], place + 1)
            else:
                slices.append((file, place, place + 1))
        return slices

    return Case(
        [[numbers] * ranks, [saved_size] * ranks],
        right=[read(range(min(rank * mine, numbers), min((rank + 1) * mine, numbers))) for rank in range(ranks)],
        in_order=True,
        seen=f"{numbers} numbers, saved by {saved_size} ranks, now {ranks}: rank {{rank}} got",
        world_size=ranks,
    )


# ---- the challenge


def seconds_of_training_plan(layers: int, dim: int, ranks: int, memory: float) -> float:
    """Nothing is recomputed or kept, and as many rows as a cautious estimate allows."""
    state, whole, of_a_row = 16 * layers * dim**2 / ranks, 10 * dim**2, 4 * dim * layers
    plan = {"rows": int((0.9 * memory - state - whole) / of_a_row), "keep": [], "recompute": [], "microbatches": 1}
    seconds: float = visible.seconds_per_million(plan, layers, dim, ranks, memory)
    return seconds


training_plan = vary(visible.training_plan, par=seconds_of_training_plan, score=[(24, 16_384, 8, 24e9)])

RECORDED = (
    vary(visible.training_plan, par=seconds_of_training_plan),
    vary(state_bytes, values=[(0, 100, 4), (1, 100, 4), (2, 100, 4), (3, 103, 4)]),
    vary(
        offload_end,
        values=[
            ([1.0, 5.0, 6.0], [4.0, 0.5, 5.0], [2.0, 2.0, 2.0], [4.0, 5.0, 3.0]),
            ([1.0, 2.0, 3.0], [0.5, 0.25, 0.5], [3.0, 1.0, 2.0], [1.0, 4.0, 0.5]),
            ([], [], [], []),
        ],
    ),
    vary(slices_to_read, values=[(14, 5, 3), (20, 2, 6), (13, 5, 2)]),
)


# ---- shards and the three stages

flat_shard = vary(
    visible.flat_shard,
    values=[(5, awkward), (7, uneven), (1, uneven), (2, mlp(3, 3, SINGLE))],
    memory=[(3, mlp(1, 20))],
)
zero_1 = vary(
    visible.zero_1,
    values=[(uneven, 5, None), (mlp(1, 2), 3, None), (mlp(3), 1, None), (awkward, 2, None)],
    memory=[(mlp(3, 16, SINGLE), 5, DOUBLE)],
    traffic=[(uneven, 3, None)],
)
zero_2 = vary(
    visible.zero_2,
    values=[(uneven, 5, 3, None), (mlp(2), 1, 2, None), (mlp(2, 3, SINGLE), 2, 2, DOUBLE), (awkward, 3, 2, None)],
    memory=[(mlp(14, 32), 5, 3, None)],
    traffic=[(uneven, 3, 1, None), (mlp(2, 3, SINGLE), 2, 4, DOUBLE)],
)
gather_weight = vary(
    visible.gather_weight,
    values=[(5, 2, False, None), (1, 3, False, None), (3, 4, True, DOUBLE), (3, 5, False, DOUBLE)],
    traffic=[(5, 3, False, None), (3, 4, True, DOUBLE)],
)
zero_3 = vary(
    visible.zero_3,
    values=[(2, 5, 3, True), (1, 2, 2, False), (3, 1, 3, True), (2, 3, 4, True, DOUBLE)],
    memory=[(14, 5, 32, True), (4, 4, 16, False)],
    traffic=[(2, 3, 3, False), (4, 5, 3, True), (2, 2, 4, True, DOUBLE)],
)
prefetched_forward = vary(
    visible.prefetched_forward,
    values=[(4, 5, 3, 1), (2, 1, 4, 3), (3, 2, 4, 2, 1.0, SINGLE)],
    time=[(5, 3, 3, 2, 3.0), (1, 2, 4, 4, 2.0), (7, 4, 4, 1, 0.75)],
    memory=[(9, 2, 16, 1), (3, 3, 16, 2)],
)


# ---- mixed precision, norms, hybrid sharding

mixed_precision_weight = vary(
    visible.mixed_precision_weight, values=[(5, (2, 4)), (1, (3,)), (4, (3, 2, 2))], traffic=[(3, (7,)), (2, (1,))]
)
clip_shards = vary(
    visible.clip_shards,
    values=[
        ([[0, 2], [1, 3]], 1, 0.1),
        ([[0], [1, 2]], 3, 2.0, SINGLE),
        ([[0, 1, 2]], 2, 1.0, DOUBLE, True),
        ([[0]], 2, 0.25),
    ],
    traffic=[([[1, 2], [0, 3]], 1, 0.5)],
)
hybrid_reduce = vary(
    visible.hybrid_reduce,
    values=[(3, 2, (5,)), (1, 3, (4, 2)), (2, 2, (7,), SINGLE), (1, 1, (3,))],
    traffic=[(3, 2, (3,)), (1, 2, (6,))],
)
