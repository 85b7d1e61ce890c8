"""The hidden tests of lesson 12: the visible checks with other values, and the oracles of what is recorded."""

from __future__ import annotations

import math
from importlib import import_module
from itertools import product
from typing import Any

import torch

from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, vary
from utils.cluster.grid_costs import Model, problem_of, step_costs
from utils.cluster.presets import find_cluster

visible: Any = import_module("utils.checks.12_3d_parallelism")
F32 = torch.float32


# ---- the grid


def ranks_that_agree(sizes: dict[str, int], axes: tuple[str, ...], inner_first: bool = False) -> list[list[int]]:
    """The groups along `axes`; inner_first: as if the first axis were innermost."""
    names = list(sizes)[:: -1 if inner_first else 1]
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(product(*(range(sizes[name]) for name in names))):
        key = tuple(at for name, at in zip(names, place, strict=True) if name not in axes)
        found.setdefault(key, []).append(rank)
    return sorted(found.values())


@oracle(
    values=[
        ({"dp": 3, "cp": 2, "tp": 2}, ("cp",)),
        ({"pp": 2, "dp": 3, "cp": 2, "tp": 4}, ("tp", "dp")),
        ({"dp": 5, "tp": 1}, ("dp",)),
        ({"a": 2, "b": 3, "c": 2}, ("a", "c", "b")),
    ]
)
def axis_groups(_: Draws, sizes: dict[str, int], axes: tuple[str, ...]) -> Case:
    right = ranks_that_agree(sizes, axes)
    others = tuple(name for name in sizes if name not in axes)
    wrong = {
        "the groups if the FIRST axis is innermost: here the last one is": ranks_that_agree(sizes, axes, True),
        "the groups along the other axes: ranks of a group differ on `axes` and agree on the others": (
            ranks_that_agree(sizes, others)
        ),
        "only the group of rank 0: all groups are wanted": right[:1],
        "cut into neighbouring ranks: only groups along the innermost axes lie like that": [
            list(range(start, start + len(right[0]))) for start in range(0, math.prod(sizes.values()), len(right[0]))
        ],
    }
    if len(axes) > 1:
        for axis in axes:
            wrong[f"the groups along {axis} alone: ranks that differ on any of `axes` are in one group"] = (
                ranks_that_agree(sizes, (axis,))
            )
        single = [group for axis in axes for group in ranks_that_agree(sizes, (axis,))]
        wrong["the groups of each axis alone: ranks that differ on any of `axes` are in one group"] = sorted(single)
        names = [*others, *axes]
        of_place = {tuple(place): rank for rank, place in enumerate(product(*map(range, sizes.values())))}
        as_given = [
            of_place[tuple(at[names.index(name)] for name in sizes)]
            for at in product(*(range(sizes[name]) for name in names))
        ]
        each = len(right[0])
        wrong["with ranks in the order that `axes` gives: within a group they ascend"] = sorted(
            as_given[start : start + each] for start in range(0, len(as_given), each)
        )
    text = " x ".join(f"{name} {size}" for name, size in sizes.items())
    return Case(
        [[sizes], [axes]],
        right=every(right),
        mistakes={words: every(groups) for words, groups in wrong.items()},
        seen=f"{text}, along {axes}: you returned",
    )


process_groups = vary(
    visible.process_groups,
    values=[
        ({"dp": [[0, 3], [1, 4], [2, 5]], "tp": [[0, 1, 2], [3, 4, 5]], "world": [[0, 1, 2, 3, 4, 5]]}, 6),
        ({"tp": [[0], [1], [2]], "dp": [[0, 1, 2]]}, 3),
    ],
)

grid_step = vary(
    visible.grid_step,
    values=[((1, 3, 1), 6, 6, 3), ((2, 1, 3), 4, 4, 1, 6), ((1, 1, 1), 2, 4, 2)],
    traffic=[((1, 2, 4), 4, 8, 4)],
)

# ---- context parallelism


merge_attention = vary(visible.merge_attention, values=[(False, 3000.0), (True, 300.0)])
zigzag_block = vary(visible.zigzag_block, values=[([(3, 1), (1, 3), (3, 3)], 3), ([(0, 4), (4, 0)], 1), ([(0, 0)], 2)])
ring_attention = vary(
    visible.ring_attention,
    values=[([[0, 1, 2, 3, 4]], 1, "dealt"), ([[0]], 3, "chunks"), ([[0, 3], [1, 4], [2, 5]], 2, "chunks")],
    traffic=[([[0, 1, 2], [3, 4, 5]], 3, "dealt"), ([[0]], 2, "chunks")],
)
ring_attention_backward = vary(
    visible.ring_attention_backward,
    values=[([[0, 1, 2, 3, 4]], 1, "dealt"), ([[0]], 3, "chunks"), ([[0, 3], [1, 4], [2, 5]], 2, "chunks")],
    traffic=[([[0, 1, 2], [3, 4, 5]], 3, "dealt")],
)
ulysses_attention = vary(
    visible.ulysses_attention,
    values=[([[0, 1, 2]], 2, 6), ([[0, 3], [1, 4], [2, 5]], 1, 2), ([[0]], 3, 2)],
    traffic=[([[0, 1, 2]], 1, 3)],
)

# ---- across all axes

finish_gradients = vary(visible.finish_gradients, values=[((1, 3, 2),), ((3, 1, 1),)], traffic=[((1, 3, 2),)])
grid_norm = vary(visible.grid_norm, values=[((1, 4),), ((4, 2),), ((1, 1),)], traffic=[((3, 2),)])
token_mean = vary(
    visible.token_mean,
    values=[([2, 7, 1, 4], [[0, 2], [1, 3]]), ([3],), ([0, 1, 1, 2, 9],)],
    traffic=[([2, 7, 1, 4], [[0, 2], [1, 3]])],
)


# ---- data and checkpoints


@oracle(values=[(40, 8, 7, 1, 4), (12, 6, 2, 5, 2), (9, 3, 11, 0, 1), (10, 4, 7, 3, 2)])
def batch_rows(_: Draws, samples: int, batch: int, step: int, seed: int, size: int) -> Case:
    epoch, place = divmod(step, samples // batch)

    def order(number: int) -> list[int]:
        found: list[int] = torch.randperm(samples, generator=torch.Generator().manual_seed(number)).tolist()
        return found

    def at(mixed: list[int], start: int) -> list[list[int]]:
        """The rows of each rank, of the batch that begins there."""
        return [x.tolist() for x in torch.tensor(mixed[start : start + batch]).chunk(size)]

    right = at(order(seed + epoch), place * batch)
    each = batch // size
    dealt = [order(seed + epoch)[place * batch : (place + 1) * batch][rank::size] for rank in range(size)]
    sampler = [order(seed + epoch)[rank::size][place * each : (place + 1) * each] for rank in range(size)]
    mistakes: dict[str, Any] = {
        "every P-th row of the batch: chunk dp_rank is wanted": dealt,
        "each rank's place in its own part of the data set: the batch then depends on the number of ranks": sampler,
    }
    if epoch:
        mistakes["the order of the first epoch: shuffle with seed + epoch"] = at(order(seed), place * batch)
    mistakes["a new order at each step: shuffle once for each epoch"] = at(order(seed + step), place * batch)
    mistakes |= {
        "the right samples in a different order: a batch is in the order of the permutation": [
            sorted(x) for x in right
        ],
        "a different order on each rank: all data ranks cut the same batch": [
            at(order(seed + epoch + rank), place * batch)[rank] for rank in range(size)
        ],
        "what epochs counted from 1 give: the first one is epoch 0": at(order(seed + epoch + 1), place * batch),
        "a batch for each rank: batch_size counts the samples of all data ranks together": [
            order(seed + epoch)[(place * size + rank) * batch :][:batch] for rank in range(size)
        ],
    }
    if epoch:
        beyond = order(seed + epoch)[step * batch :][:batch]
        mistakes["what is at step * batch_size: in each epoch, places begin at 0 again"] = [
            beyond[rank * each : (rank + 1) * each] for rank in range(size)
        ]
    if samples % batch:
        by_samples = at(order(seed + step * batch // samples), place * batch)
        mistakes["what epochs of all samples would give: those left over are not used, and belong to no epoch"] = (
            by_samples
        )
        shorter = torch.randperm(
            samples // batch * batch, generator=torch.Generator().manual_seed(seed + epoch)
        ).tolist()
        mistakes["an order of whole batches alone: permute all num_samples, and leave the last ones out"] = at(
            shorter, place * batch
        )
        late, where = divmod(step, -(-samples // batch))
        rows = order(seed + late)[where * batch :][:batch]
        mistakes["counted with an incomplete batch at the end of each epoch: samples left over are not used"] = [
            rows[rank * each : (rank + 1) * each] for rank in range(size)
        ]
    if place:
        mistakes["the first batch of the epoch, whatever the step"] = at(order(seed + epoch), 0)
    if size > 1:
        mistakes["the whole batch: chunk dp_rank of it is wanted"] = [sum(right, [])] * size
    return Case(
        [[step] * size, [batch] * size, [samples] * size, [seed] * size, list(range(size)), [size] * size],
        right=right,
        mistakes=mistakes,
        seen=f"step {step}, batches of {batch} of {samples} samples, {size} data ranks: rank {{rank}} gets",
    )


Box = tuple[tuple[int, int], ...]  # (first, end) along each dimension


@oracle(
    values=[
        (((0, 4), (0, 6)), {"a": ((0, 2), (0, 6)), "b": ((2, 4), (0, 6))}),
        (((3, 5), (1, 2)), {"a": ((0, 4), (0, 2)), "b": ((4, 8), (0, 2)), "c": ((0, 8), (2, 4))}),
        (((2, 9),), {"w0": ((0, 4),), "w1": ((4, 8),), "w2": ((8, 12),)}),
        (((0, 2), (1, 3), (0, 1)), {"x": ((0, 2), (0, 2), (0, 1)), "y": ((0, 2), (2, 4), (0, 1))}),
    ]
)
def pieces_to_read(_: Draws, wanted: Box, saved: dict[str, Box]) -> Case:
    right, offsets, swapped, from_whole, touching, some = {}, {}, {}, {}, {}, {}
    for name, box in saved.items():
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, box, strict=True)]
        there, here = (
            tuple((first - a, end - a) for (first, end), (a, _) in zip(common, origin, strict=True))
            for origin in (box, wanted)
        )
        if all(first < end for first, end in common):
            right[name], offsets[name], swapped[name] = (there, here), (tuple(common), tuple(common)), (here, there)
            from_whole[name] = (tuple(common), here)
        if all(first <= end for first, end in common):
            touching[name] = (there, here)
        if any(first < end for first, end in common):
            some[name] = (there, here)
    in_files, in_wanted = ({name: (both[n], both[n]) for name, both in right.items()} for n in (0, 1))
    in_whole_there = {name: (read, offsets[name][1]) for name, (read, _) in right.items()}
    inclusive = {name: (tuple((a, b - 1) for a, b in read), goes) for name, (read, goes) in right.items()}
    half_moved = {
        name: (read, tuple((a, end) for (a, _), (_, end) in zip(goes, offsets[name][1], strict=True)))
        for name, (read, goes) in right.items()
    }
    inside = {
        name: both
        for name, both in right.items()
        if all(c >= a and d <= b for (a, b), (c, d) in zip(wanted, saved[name], strict=True))
    }
    lengths = {name: tuple(tuple((a, b - a) for a, b in part) for part in both) for name, both in right.items()}
    whole = {name: (tuple((0, b - a) for a, b in saved[name]), here) for name, (_, here) in right.items()}
    mistakes = {
        "places in the whole tensor: count from the start of the file, and from the start of the wanted part": offsets,
        "right, but the two the wrong way round: the place in the file comes first": swapped,
        "what to read in places of the whole tensor: count from the start of the file": from_whole,
        "files that only touch the wanted part, too: `end` is the first place behind": touching,
        "files that overlap along one dimension only, too: they must overlap along all": some,
        "(first, length) of each part: (first, end) is wanted": lengths,
        "places in the wanted part, both times: what to read is in places of the file": in_wanted,
        "places in the file, both times: where it goes is in places of the wanted part": in_files,
        "where it goes in places of the whole tensor: count from the start of the wanted part": in_whole_there,
        "what to read with its last place as `end`: `end` is the first place behind": inclusive,
        "where it goes with only its start moved: move its end, too": half_moved,
        "only the files that lie in the wanted part entirely: a part of a file may be wanted": inside,
        "only one of the files: each that holds something of the wanted part has to be read": dict(
            [*right.items()][:1]
        ),
        "all that is in the file: only what is wanted should be read": whole,
    }
    return Case(
        [[wanted], [saved]],
        right=every(right),
        mistakes={words: every(x) for words, x in mistakes.items() if x != right},
        seen=f"wanted {wanted}: you returned",
    )


# ---- the challenge


def par_of_grid(layers: int, width: int, heads: int, length: int, batch: int) -> float:
    """tp of a node, the fewest stages that fit, and microbatches of one sequence; recomputing only if it must."""
    cluster, model = find_cluster("dgx-h100", visible.GPUS), Model(layers, width, heads, length)
    for recompute, pp in product((False, True), (n for n in range(1, layers + 1) if layers % n == 0)):
        dp = visible.GPUS // (8 * pp)
        plan = {"dp": dp, "pp": pp, "tp": 8, "microbatches": batch // max(1, dp), "recompute": recompute}
        if not problem_of(plan, model, batch, cluster):
            return step_costs(plan, model, batch, cluster)["seconds"]
    raise ValueError("no plan fits")


best_grid = vary(
    visible.best_grid,
    par=par_of_grid,
    score=[(96, 12_288, 96, 2048, 1536), (32, 4096, 32, 8192, 512)],
)

RECORDED = (
    vary(visible.best_grid, par=par_of_grid),
    vary(batch_rows, values=[(20, 4, 2, 0, 2), (20, 4, 13, 0, 2)]),
    vary(
        pieces_to_read,
        values=[
            (((0, 4), (3, 6)), {"first": ((0, 2), (0, 6)), "second": ((2, 4), (0, 6)), "third": ((4, 6), (0, 6))}),
            (((2, 6), (0, 4)), {"left": ((0, 8), (0, 2)), "right": ((0, 8), (2, 4))}),
        ],
    ),
    vary(axis_groups, values=[({"dp": 2, "pp": 2, "tp": 3}, ("pp",)), ({"dp": 2, "pp": 3, "tp": 2}, ("dp", "tp"))]),
)
