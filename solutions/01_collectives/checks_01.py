"""The checks of lesson 01. Each is quick: one to three runs of two or four ranks. Form: see registry.py."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from utils.checks.answer import Answer, CheckFailed
from utils.checks.compare import Mistakes, expect, expect_unchanged
from utils.checks.equality import equal_values
from utils.checks.frozen_cases import frozen_par
from utils.checks.gradients import in_groups
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, OnlyAt, always, every, only_at, oracle, vary
from utils.checks.registration import check
from utils.checks.runner import Runner
from utils.checks.scores import VIRTUAL_TIME
from utils.checks.show import show
from utils.checks.traffic import expect_calls, expect_launched_first, expect_traffic
from utils.cluster.hardware import Cluster, Gpu, Link, links
from utils.diagnosis.words import ranks_text
from utils.kit.drivers.call import call_with
from utils.kit.drivers.grouped import call_in_group
from utils.text.units import quantity

ROOM = Path(__file__).parent

MEAN = "the mean: reduce sums unless told otherwise"
ALL_MEAN = "the mean: all-reduce sums unless told otherwise"
Shape = int | tuple[int, ...]
Dtype = torch.dtype
FLOAT, DOUBLE = torch.float32, torch.float64
View = Callable[[torch.Tensor], torch.Tensor]


def drawn(draws: Draws, ranks: int, shape: Shape, dtype: Dtype = FLOAT, seed: int = 0) -> list[torch.Tensor]:
    """A tensor of different whole numbers for each rank; in float64, a bit more, which float32 can't hold."""
    xs = draws.different_integers(ranks, shape, dtype, seed)
    return [x + 2**-22 for x in xs] if dtype == DOUBLE else xs  # sums are exact


def rounded(right: Any) -> dict[str, Any]:
    """The mistake of computing in float32 on the way. right: of all ranks, or a list."""
    words = "right, but rounded to float32 on the way: create each tensor with the dtype of the input"
    each = right if isinstance(right, list) else [right]
    return {words: lambda got: any(equal_values(got, one, 1e-6) and not equal_values(got, one) for one in each)}


def sum_of(xs: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(xs)).sum(0).to(xs[0].dtype)


# ---- part 2

EACH_SIDE = (
    "one side of a message is missing, or has a different size. For each rank, write down what it sends to whom and "
    "what it receives from whom; leave the root out of its own loop."
)
SENDER = "the sender's rank, which recv returns: what has arrived is in the tensor that recv was given"
VALUES, TRAFFIC = [(4, 2), (2, 0), (3, 1, 3, DOUBLE)], [(4, 1)]  # (ranks, root, ...)


def by_hand(xs: list[torch.Tensor], root: int, right: Any, mistakes: Mistakes) -> Case:
    """Every other rank sends the root one message, or the other way round."""
    others = len(xs) - 1
    nbytes = others * xs[0].nbytes
    return Case(
        [xs],
        for_all={"root": root},
        right=right,
        mistakes={**mistakes, **rounded(right.value if isinstance(right, OnlyAt) else right)},
        advice={r"sent float64 .*only has room for float32": "Give the tensor that receives the dtype of `x` too."},
        traffic=lambda answer: expect_traffic(answer, others, nbytes),
    )


@oracle(values=VALUES, traffic=TRAFFIC, if_stuck=EACH_SIDE)
def broadcast_by_hand(draws: Draws, world_size: int, root: int, shape: Shape = 3, dtype: Dtype = FLOAT) -> Case:
    xs = drawn(draws, world_size, shape, dtype)
    mistakes = {
        "your own tensor: no message was received into it": xs,
        "rank 0's tensor: the root is a different rank here": lambda got: equal_values(got, xs[0]),
        "nothing but zeros: the root returns its own numbers too": torch.zeros_like(xs[0]),
        SENDER: root,
    }
    return by_hand(xs, root, xs[root], mistakes)


### BEGIN HIDDEN TESTS
F32, F64, BF16, I32, I64 = torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64
BY_HAND = [
    (3, 1, (2, 3), F64),
    (3, 0, 7, BF16),
    (8, 3, 2, I32),
    (5, 4, 1, I64),
    (1, 0, 3),  # last: with one rank, or one number, different mistakes look the same
]
BYTES_BY_HAND = [(5, 3, 5, F64), (1, 0, 5, F64)]
hidden_broadcast_by_hand = vary(broadcast_by_hand, values=BY_HAND, traffic=BYTES_BY_HAND)
### END HIDDEN TESTS


def expect_filled(answer: Answer, what: str, right: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> None:
    """Raise CheckFailed unless each rank's first input, which held `before`, has become what it also returned."""
    for rank, (filled, *_) in enumerate(answer.inputs_after):
        name, still = answer.names[0], "still " * equal_values(filled, before[rank])
        back = {f"what `{name}` held before the call: write the {what} into it, with {name}.copy_(...)": before[rank]}
        expect(filled, right[rank], f"rank {rank} returned the {what}, but its `{name}` {still}holds", back)


@oracle(values=[((2, 2, 2, 2), 2), ((1, 3), 0, DOUBLE)], traffic=[((2, 2, 2, 2), 1)], if_stuck=EACH_SIDE)
def scatter_by_hand(draws: Draws, sizes: tuple[int, ...], root: int, dtype: Dtype = FLOAT) -> Case:
    """Chunks of these sizes, one per rank."""
    [whole] = drawn(draws, 1, sum(sizes), dtype)
    chunks = [chunk.clone() for chunk in whole.split(sizes)]
    empty = [torch.full((size,), -1, dtype=dtype) for size in sizes]
    held = [chunks if rank == root else None for rank in range(len(sizes))]
    first = iter(chunks)
    in_turn = [chunks[root] if rank == root else next(first) for rank in range(len(sizes))]

    def which_chunk(got: Any, rank: int) -> str:
        which = [number for number, chunk in enumerate(chunks) if equal_values(got, chunk)]
        return f"chunk {which[0]}: rank {rank} gets chunk {rank}" if which else ""

    def expect_in_place(answer: Answer) -> None:
        expect_filled(answer, "chunk", chunks, empty)
        changed = {"not what your function was given: look chunks up by index, and leave the list alone": always}
        expect(answer.inputs_after[root][1], chunks, f"rank {root}: after the call, `chunks` is", changed)

    return Case(
        [empty, held],
        for_all={"root": root},
        right=chunks,
        mistakes={
            "what your empty tensor held before: nothing was written into it": empty,
            "one chunk too early in the list: the root's own chunk has a place in it too": in_turn,
            "the last chunk, as if each one replaced the one before: send each rank its own chunk only": chunks[-1],
            "chunk r - root: rank r gets chunk r, whoever is the root": [*chunks[-root:], *chunks[:-root]],
            SENDER: root,
            **rounded(chunks),
        },
        explain=which_chunk,
        advice={"tensor size|tensors of shape": "PyTorch's scatter only takes chunks of one size. Use send and recv."},
        unchanged=False,
        also=expect_in_place,
        traffic=lambda answer: expect_traffic(answer, len(sizes) - 1, whole.nbytes - chunks[root].nbytes),
    )


### BEGIN HIDDEN TESTS
hidden_scatter_by_hand = vary(
    scatter_by_hand,
    values=[((3,), 0), ((1, 4, 2), 1, F64), ((3, 1, 2, 5, 2), 4, I64), ((1,) * 8, 0, BF16)],
    traffic=[((1, 3, 2, 4, 2), 3, F64), ((2,), 0, F64)],
)
### END HIDDEN TESTS


def start_in_order(
    function: Callable[..., Any], x: torch.Tensor, root: int, rank: int, world_size: int, order: Sequence[int]
) -> Any:
    """What the function returns on virtual ranks that start one after the other."""
    time.sleep([root, *order].index(rank))
    return call_with(rank, world_size, function, [x], {"root": root}, ()).result


@oracle(values=[(4, 2, 2, FLOAT, (0, 3, 1)), *VALUES[1:]], traffic=TRAFFIC, if_stuck=EACH_SIDE)
def gather_by_hand(
    draws: Draws, world_size: int, root: int, shape: Shape = 2, dtype: Dtype = FLOAT, order: Sequence[int] = ()
) -> Case:
    """order: in which the others send; one in which nobody would receive"""
    xs = drawn(draws, world_size, shape, dtype)
    stacked = torch.stack(xs)

    def known_rows(got: Any) -> list[list[Any]]:
        """The rows of a tensor of the right shape, if each is some rank's; as lists, which can be sorted."""
        rows = got.flatten(1).tolist() if isinstance(got, torch.Tensor) and got.shape == stacked.shape else []
        return rows if all(row in stacked.flatten(1).tolist() for row in rows) else []

    def lacks_only(got: Any, ranks: Sequence[int]) -> bool:
        fits = isinstance(got, torch.Tensor) and got.shape == stacked.shape
        lacking = [rank for rank, x in enumerate(xs) if fits and not equal_values(got[rank], x)]
        return len(lacking) == 1 and lacking[0] in ranks

    def in_any_order(got: Any) -> bool:
        return sorted(known_rows(got)) == sorted(stacked.flatten(1).tolist())

    def in_order_of_arrival(got: Any) -> bool:
        rows = [row for row in known_rows(got) if row != xs[root].flatten().tolist()]
        return bool(order) and rows == [xs[rank].flatten().tolist() for rank in order]

    mistakes = {
        "one long tensor: stack them, one row per rank": torch.cat(xs),
        "a list: return one tensor, one row per rank": every(xs),
        "stacked along the last dimension: the ranks come first": torch.stack(xs, dim=-1),
        "every row but the root's own, which is never sent: copy it": lambda got: lacks_only(got, [root]),
        "every row, but in the order in which they were sent: recv without src takes a message from any rank, so say "
        "src=r": in_order_of_arrival,
        "every row, but in the wrong order: what comes from rank r belongs in row r": in_any_order,
        "one rank's row in several places: receive each row into memory of its own": lambda got: bool(known_rows(got)),
    }
    case = by_hand(xs, root, only_at(root, stacked), mistakes)
    if not order:
        return case
    cluster = replace(links(world_size, 0, 1e9), name=f"ranks {order[0]}, {order[1]}, {order[2]} send in turn")
    return replace(case, cluster=cluster, driver=partial(start_in_order, order=order))


### BEGIN HIDDEN TESTS
hidden_gather_by_hand = vary(gather_by_hand, values=BY_HAND, traffic=BYTES_BY_HAND)
### END HIDDEN TESTS


@oracle(values=VALUES, traffic=TRAFFIC, if_stuck=EACH_SIDE)
def reduce_by_hand(draws: Draws, world_size: int, root: int, shape: Shape = 3, dtype: Dtype = FLOAT) -> Case:
    xs = drawn(draws, world_size, shape, dtype)
    if world_size > 1:  # the tensor that arrives last must not be the largest
        xs[:2] = xs[0] + 100, xs[1] - 100
    total, others = sum_of(xs), [x for rank, x in enumerate(xs) if rank != root]
    last = (others or xs)[-1]

    def only_one_was_added(got: Any) -> bool:
        return any(equal_values(got, xs[root] + x) for x in others)

    def one_was_added_twice(got: Any) -> bool:
        return any(equal_values(got, total + x) for x in others)

    mistakes = {
        "the root's own tensor: nothing was added to it": xs[root],
        "the last tensor that arrived, as if each one replaced the one before: add them instead": last,
        "the sum of the others: the root's own tensor belongs in it too": total - xs[root],
        "the sum with the root's own tensor twice": total + xs[root],
        "the sum without what arrived last: add after each receive": total - last,
        "the root's own tensor and only one of the others: add after each receive, or, if ranks pass tensors on, pass "
        "on the sum": only_one_was_added,
        "the sum with another rank's tensor twice: add each only once, right after it has arrived": one_was_added_twice,
        MEAN: total / world_size,
    }
    return by_hand(xs, root, only_at(root, total), mistakes)


### BEGIN HIDDEN TESTS
hidden_reduce_by_hand = vary(reduce_by_hand, values=BY_HAND, traffic=BYTES_BY_HAND)
### END HIDDEN TESTS


# ---- part 3


GRID = "Each rank is in one row, of `columns` neighbours, and in one column, whose ranks are `columns` apart."
OWN_GROUP = (
    "Those ranks are a whole row or column, so that list is right. Does each rank call it in its own, number rank // "
    "columns of the rows and rank % columns of the columns, without an `if` or an early return before it?"
)
NOT_ITS_OWN = (
    "A call with a group that the rank isn't in returns at once, and isn't counted: give each call this rank's own."
)


@oracle(
    values=[(6, 3), (6, 2, 2, DOUBLE)],
    traffic=[(6, 3)],
    if_stuck="a rank did not create all groups in the same order as the others, or called a collective of a group that "
    "it isn't in. Every rank creates the group of every row and every column.",
)
def grid_sums(draws: Draws, world_size: int, columns: int, shape: Shape = 2, dtype: Dtype = FLOAT) -> Case:
    xs, ranks = drawn(draws, world_size, shape, dtype), range(world_size)
    everyone = sum_of(xs)
    row_of = [[other for other in ranks if other // columns == rank // columns] for rank in ranks]
    column_of = [[other for other in ranks if other % columns == rank % columns] for rank in ranks]
    by_row, by_column = ([sum_of([xs[other] for other in of[rank]]) for rank in ranks] for of in (row_of, column_of))
    on_all: list[Any] = []  # the calls that all ranks took part in
    usual = {
        "your own tensor: nothing was added to it, as in a call with a group that the rank isn't in": xs,
        "the sum over all ranks: give each call its group": lambda got: bool(on_all) and equal_values(got, everyone),
        "the sum over all ranks, as when one tensor is summed over the row and then over the column: give each call a "
        "copy of `x` of its own": lambda got: equal_values(got, everyone),
    }
    by_rows_of = world_size // columns  # the result of taking `columns` for the number of rows
    transposed = [sum_of([xs[other] for other in ranks if other // by_rows_of == rank // by_rows_of]) for rank in ranks]
    by_columns = [sum_of([xs[other] for other in ranks if other % by_rows_of == rank % by_rows_of]) for rank in ranks]
    right = {"the sum over the row": by_row, "the sum over the column": by_column}

    def no_team_of(rank: int) -> tuple[str, str]:
        """What a report says of a group with this rank that is neither its row nor its column, and what to do."""
        row, column = row_of[rank], column_of[rank]
        other = f"(?!{ranks_text(row)} |{ranks_text(column)} )".lower()
        return (
            rf"Ranks? {rank}\b[^.]* in the group of {other}[^.]*\.([\s\S]*)",
            f"Rank {rank}'s row is ranks {row}, and its column is ranks {column}: check the lists that you give to "
            "new_group.",
        )

    return Case(
        [xs],
        for_all={"columns": columns},
        advice={
            r"out of range|UnboundLocalError|StopIteration": f"There are world_size // columns rows. {GRID}",
            r"(: __init__\(\): incompatible [\s\S]*?)\n.*, line \d": f"A list for new_group is empty. {GRID}",
            **dict(map(no_team_of, ranks)),
            r"(?:made this call|never called this \w+) in the group[^.]*\.((?![\s\S]*look for the )[\s\S]*)": OWN_GROUP,
            r"finished after[^.]*\.([\s\S]*)": f"{NOT_ITS_OWN} {GRID}",
        },
        right=right,
        mistakes={
            "the sum over the row": usual
            | rounded(by_row)
            | {
                "the sum over the column: the row comes first": by_column,
                ALL_MEAN: [mine / columns for mine in by_row],
                f"the sum over {by_rows_of} neighbours: `columns` is how many ranks are in one row": transposed,
                "the sum over a row of a grid that was filled column by column: fill it row by row": by_columns,
            },
            "the sum over the column": usual
            | rounded(by_column)
            | {
                "the sum over the row": by_row,
                ALL_MEAN: [mine / by_rows_of for mine in by_column],
                f"the sum over {by_rows_of} neighbours: the ranks of a column are `columns` apart": transposed,
                f"the sum over ranks that are {by_rows_of} apart: those of a column are `columns` apart": by_columns,
            },
        },
        before=lambda answer: on_all.extend(e for e in answer.events if len(e.members) == world_size),
        traffic=lambda answer: expect_in_teams(answer, [row_of, column_of], xs[0].nbytes),
    )


### BEGIN HIDDEN TESTS
hidden_grid_sums = vary(
    grid_sums, values=[(6, 2, (2, 2), I64), (5, 1), (3, 3, 4, BF16), (1, 1)], traffic=[(6, 2, 3, F64), (3, 1)]
)
### END HIDDEN TESTS


def expect_in_teams(answer: Answer, teams: Sequence[Sequence[Sequence[int]]], nbytes: int) -> str:
    """Raise CheckFailed unless each rank made one all-reduce in each of its teams. teams: of each call, each rank's."""
    for rank in range(len(answer.results)):
        made = [f"{event.op} among ranks {sorted(event.members)}" for event in answer.events if event.rank == rank]
        wanted = [f"all_reduce among ranks {list(team[rank])}" for team in teams]
        if made != wanted:
            why = "Only those whose tensors belong in a sum take part in it, the row's first and then the column's."
            why = "The right calls in the wrong order: the row comes first." if made == wanted[::-1] else why
            raise CheckFailed(f"rank {rank} called {' and '.join(made) or 'nothing'}", " and ".join(wanted), why)
    return expect_calls(answer, ["all_reduce"] * len(teams), [nbytes] * len(teams))


# ---- part 4


PAIRS = [[0, 2], [1, 3]]  # groups that are not the whole world
ONE_GROUP = (
    "The group has fewer ranks than the world, and a list needs one place for each rank of the group: pass `group` to "
    "get_world_size and to every collective."
)
ONE_SIZE = "All chunks have the same size, and there are P of them: pad `x` with zeros until it can be cut that way."
IN_THE_GROUP = (
    "Chunks are numbered within the group: chunk dist.get_rank(group) is this rank's, not chunk dist.get_rank()."
)


@oracle(
    values=[(4, 8), (4, (2, 3), DOUBLE, lambda x: x.T), {"world_size": 2, "shape": 3, "groups": PAIRS}],
    traffic=[(4, 10), (2, (3, 2))],
    if_stuck="every rank of the group must make both calls, with chunks of the same size, and with group=group.",
)
def all_reduce_from_halves(
    draws: Draws,
    world_size: int,
    shape: Shape,
    dtype: Dtype = FLOAT,
    view: View = torch.clone,
    groups: Sequence[Sequence[int]] = (),
) -> Case:
    case = halves(draws, world_size, shape, dtype, view, groups=groups)
    if not groups:
        return case
    size = len(case.inputs[0])
    on_all = (
        f"ran on all {size} ranks, not in the group of {world_size}, so it expected {size} chunks: pass it `group`."
    )
    advice = {
        rf"allgather: .*expected length {size}, got": f"This all_gather {on_all}",
        r"(?m)tensor list size[\s\S]* dist\.reduce_scatter\((?!.*group).*\)$": f"This reduce_scatter {on_all}",
        r"list size|tensor list|needs a list of \d+ tensors": ONE_GROUP,
    }
    of_all = {"the sum over all ranks: give each call its group": sum_of(case.inputs[0])}
    return replace(case, mistakes={**case.mistakes, **of_all}, advice={**advice, **case.advice})


### BEGIN HIDDEN TESTS
hidden_all_reduce_from_halves = vary(
    all_reduce_from_halves,
    values=[
        (5, (3, 4), I64),
        (3, 4, BF16),
        (8, 5),
        (3, 1, F64),
        (1, 3),
        (3, (2, 5), F32, lambda x: x.T),
        {"world_size": 3, "shape": 4, "groups": [[0, 1, 4], [2, 3, 5]]},
    ],
    traffic=[(3, 7, F64), (5, 5, F64), (3, (4, 3))],
)
### END HIDDEN TESTS


@in_groups
def halves(draws: Draws, world_size: int, shape: Shape, dtype: Dtype, view: View) -> Case:
    xs = [view(x) for x in drawn(draws, world_size, shape, dtype)]
    total = sum_of(xs)
    flat = total.reshape(-1)
    padded = torch.cat([flat, flat.new_zeros(-len(flat) % world_size)])
    chunks = list(padded.chunk(world_size))
    whole = len(flat) // world_size * world_size  # elements, if chunks were rounded down
    own = [torch.cat([x.reshape(-1), padded[len(flat) :]]).chunk(world_size)[r] for r, x in enumerate(xs)]

    def shaped(x: torch.Tensor) -> torch.Tensor:
        return x[: len(flat)].reshape(total.shape)

    def without_end(got: Any) -> bool:
        starts = isinstance(got, torch.Tensor) and whole and equal_values(got.reshape(-1)[:whole], flat[:whole])
        return bool(starts) and not torch.isin(flat[whole:], got).any()

    def spread(got: Any) -> bool:
        fits = isinstance(got, torch.Tensor) and got.shape == total.shape
        return fits and equal_values(numbers := got[got != 0], flat[: len(numbers)])

    def misplaced(got: Any) -> bool:
        return isinstance(got, torch.Tensor) and got.shape == total.shape and bool(got.sum() == total.sum())

    return Case(
        [xs],
        driver=call_in_group,
        advice={
            r"list size|tensor list|a list of \d+ tensors|sizes\(\)|tensors of shape|invalid tensor size": ONE_SIZE,
            r"index out of range[\s\S]*get_rank\(\)": IN_THE_GROUP,
        },
        right=total,
        mistakes={
            "your own tensor: nothing was added to it": xs,
            ALL_MEAN: total / world_size,
            "one chunk of the sum: the second half, the all-gather, is missing": chunks,
            "the sum with its padding: cut it off": padded,
            "the sum with its padding in front, so that its end is missing: the padding comes last": shaped(
                torch.cat([padded[len(flat) :], flat])
            ),
            "each rank's own chunk: all-gather what the reduce-scatter gave you": shaped(torch.cat(own)),
            "the sum without its shape": flat,
            "P times the sum: it was added once more in the second half": world_size * total,
            "all zeros: x was never copied into `padded`": torch.zeros_like(total),
            "your chunk of the sum, P times: all-gather fills the whole list": [
                shaped(chunk.repeat(world_size)) for chunk in chunks
            ],
            "the sum without its end: round the size of a chunk up": without_end,
            "the sum with zeros in between, which push its end out, as when each chunk is padded on its own: pad the "
            "flat tensor once, at its end, then cut it": spread,
            "a sum of numbers in the wrong places: chunk r is the same part of `x` on every rank": misplaced,
        }
        | rounded(total),
        traffic=lambda answer: expect_halves(answer, xs[0], chunks),
    )


def expect_halves(answer: Answer, x: torch.Tensor, chunks: Sequence[torch.Tensor]) -> str:
    calls, numel, P = ["reduce_scatter", "all_gather"], x.numel(), len(chunks)
    expect_calls(answer, calls, advice="Build the all-reduce from these two.")
    advice = f"P is {P} and x.numel() is {numel} here" + ", so nothing is to be padded" * (numel % P == 0)
    advice += f": chunks of the flat tensor have {len(chunks[0])} elements."
    dtypes = {event.dtype for event in answer.events} - {str(x.dtype).removeprefix("torch.")}
    advice = f"It is handed {dtypes.pop()}: keep the dtype of `x`." if dtypes else advice
    return expect_calls(answer, calls, [chunks[0].nbytes * P, chunks[0].nbytes], advice)


@oracle(
    values=[(2, (2, 6)), (4, (4, 2), DOUBLE, lambda x: x.T)],
    traffic=[(4, (2, 8))],
    if_stuck="every rank must call all_to_all_single once.",
)
def distributed_transpose(
    draws: Draws, world_size: int, shape: tuple[int, int], dtype: Dtype = FLOAT, view: View = torch.clone
) -> Case:
    bands = [view(x) for x in drawn(draws, world_size, shape, dtype)]
    matrix = torch.cat(bands)
    m, c = len(bands[0]), matrix.shape[1] // world_size
    columns = list(matrix.split(c, dim=1))
    one_under_the_other = [torch.cat([block.T for block in mine.split(m)]) for mine in columns]
    numbers = [sorted(mine.flatten().tolist()) for mine in columns]

    def in_another_order(got: Any) -> bool:
        return isinstance(got, torch.Tensor) and sorted(got.flatten().tolist()) in numbers

    def from_blocks_like_the_bands(got: Any) -> bool:
        read = [(one.reshape(m, -1), one.reshape(-1, c)) for one in one_under_the_other]
        return any(equal_values(got, x) for band, one in read for x in (band, one, one.T, torch.cat(one.split(m), 1)))

    def of_other_columns(got: Any) -> bool:
        if not isinstance(got, torch.Tensor) or not bool(torch.isin(got.to(dtype), matrix).all()):
            return False
        return all(set(got.flatten().tolist()) - set(mine) for mine in numbers)

    return Case(
        [bands],
        right=[mine.T for mine in columns],
        mistakes={
            "your own band, transposed: nothing was exchanged": [band.T for band in bands],
            "a stack of the right blocks, one under the other: put them side by side": one_under_the_other,
            "a row of the right blocks, but they aren't transposed inside": [
                torch.cat(mine.split(m), dim=1) for mine in columns
            ],
            "what a reshape makes of the right blocks, and it mixes them: concatenate them along dim=1": [
                mine.reshape(c, -1) for mine in one_under_the_other
            ],
            "a band of columns of the matrix, not transposed: each block must be transposed inside": columns,
            "a row of the right blocks, but each was reshaped, which doesn't transpose it: use .T": [
                torch.cat([block.reshape(c, m) for block in mine.split(m)], dim=1) for mine in columns
            ],
            "the right numbers in the wrong shape: what arrives are the transposed blocks, so both tensors of the call "
            "have the shape (P, c, m)": from_blocks_like_the_bands,
            f"every number, but not in the shape {(c, world_size * m)}: put the blocks, {(c, m)} each, side by side": (
                lambda got: in_another_order(got) and got.shape != (c, world_size * m)
            ),
            "every number, but in the wrong order: rank s's block, transposed inside, is the s-th from the left": (
                in_another_order
            ),
            "a mixture with numbers of other columns: all_to_all_single cuts its input into P runs of consecutive "
            "numbers, so first bring together the columns for each rank": of_other_columns,
        }
        | rounded([mine.T for mine in columns]),
        advice={
            "must be contiguous": "Gather the numbers of each block in memory first: .contiguous() or torch.stack."
        },
        traffic=lambda answer: expect_calls(
            answer,
            ["all_to_all"],
            [bands[0].nbytes],
            advice="One all-to-all moves each number once, to the rank that needs it.",
        ),
    )


### BEGIN HIDDEN TESTS
hidden_distributed_transpose = vary(
    distributed_transpose,
    values=[(3, (4, 6), F64), (5, (2, 5), I64), (3, (1, 9), BF16), (1, (2, 3)), (3, (6, 2), F32, lambda x: x.T)],
    traffic=[(3, (2, 3), F64)],
)
### END HIDDEN TESTS


# what each rank has afterwards, None if nothing, of one tensor for each rank and the root
COLLECTIVES: dict[str, Callable[[list[torch.Tensor], int], list[torch.Tensor | None]]] = {
    "broadcast": lambda xs, root: [xs[root] for _ in xs],
    "scatter": lambda xs, root: [xs[root].chunk(len(xs))[rank] for rank in range(len(xs))],
    "gather": lambda xs, root: [torch.cat(xs) if rank == root else None for rank in range(len(xs))],
    "reduce": lambda xs, root: [sum_of(xs) if rank == root else None for rank in range(len(xs))],
    "all_gather": lambda xs, _: [torch.cat(xs) for _ in xs],
    "reduce_scatter": lambda xs, _: [sum_of(xs).chunk(len(xs))[rank] for rank in range(len(xs))],
    "all_reduce": lambda xs, _: [sum_of(xs) for _ in xs],
    "all_to_all": lambda xs, _: [torch.cat([x.chunk(len(xs))[rank] for x in xs]) for rank in range(len(xs))],
}
COPYING, ADDING = ("broadcast", "all_gather", "all_reduce"), ("reduce", "reduce_scatter", "all_reduce")


@check("dual-of")
def dual_of_values(run: Runner) -> None:
    names = list(COLLECTIVES)
    duals = dict(zip(names, run(len(names), names).results, strict=True))
    for collective, dual in duals.items():
        if not isinstance(dual, str) or dual not in names:
            raise CheckFailed(
                f"dual_of({collective!r}) returned {dual!r}", 'one of the eight names, such as "all_reduce"'
            )
        left, right = inner_products(run.draws, collective, dual)
        if left != right:
            products = "the sizes do not even fit" if right is None else f"<C(x), y> = {left} and <x, C*(y)> = {right}"
            before = [one for one in names[: names.index(collective)] if duals[one] == collective]
            why = f"Run {collective} backwards: which ranks give then, and which get?"
            if before:
                why = f'Duals come in pairs: dual_of("{before[0]}") is {collective}, as it must be, so turn that round.'
            elif collective in COPYING and dual not in ADDING:
                not_adding = "puts tensors side by side" if "gather" in dual else "adds nothing"
                why = f"Backwards, what {collective} copied must be added, but {dual} {not_adding}: find one that adds."
            elif collective not in COPYING and dual in ADDING:
                why = f"{dual} adds, but {collective} copies nothing, so backwards there is nothing to add."
            elif collective not in COPYING:
                why = f"{collective} only moves numbers, without copying or adding, and so does its dual. {why}"
            raise CheckFailed(
                f"the dual of {collective} is not {dual}: for C = {collective} and C* = {dual}, {products}", mistake=why
            )


def inner_products(
    draws: Draws, collective: str, dual: str, ranks: int = 4, root: int = 1, chunk: int = 2
) -> tuple[int | None, int | None]:
    """<C(x), y> and <x, C*(y)> for whole numbers x and y; (_, None) when C* does not take what C gives."""

    def inner(xs: Sequence[torch.Tensor | None], ys: Sequence[torch.Tensor | None]) -> int | None:
        pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
        return int(sum((x * y).sum() for x, y in pairs)) if all(x.shape == y.shape for x, y in pairs) else None

    cuts, glues = collective.endswith(("scatter", "to_all")), collective.endswith(("gather", "to_all"))
    x = draws.different_integers(ranks, chunk * (ranks if cuts else 1), torch.int64)
    y = draws.different_integers(ranks, chunk * (ranks if glues else 1), torch.int64, seed=1)
    left = inner(COLLECTIVES[collective](x, root), y)
    try:
        return left, inner(x, COLLECTIVES[dual](y, root))
    except (RuntimeError, IndexError):
        return left, None


# ---- part 5


@oracle(
    values=[((3, 1), DOUBLE, -1), ((1, 2, 4, 2), FLOAT, 1, PAIRS)],
    if_stuck="every rank of the group must make the same calls in the same order, each with group=group.",
)
def global_statistics(
    draws: Draws, lengths: tuple[int, ...], dtype: Dtype = FLOAT, sign: int = 1, groups: Sequence[list[int]] = ()
) -> Case:
    """Shards of these lengths, small, so that the product stays small; in float64, of more digits than float32 has."""
    columns, ranks = draws.different_integers(len(lengths), max(lengths), dtype), list(range(len(lengths)))
    # With a number for each group, no two groups have the same smallest or largest one by chance.
    number = [next((number for number, team in enumerate(groups) if rank in team), 0) for rank in ranks]
    places = zip(columns, lengths, number, strict=True)
    shards = [sign * (x[:n] % 10 + 1 + 11 * place) / 2 + 1e-8 * (dtype == DOUBLE) for x, n, place in places]
    teams = [next((team for team in groups if rank in team), ranks) for rank in ranks]
    right = [statistics(torch.cat([shards[other] for other in team])) for team in teams]
    rtol = 1e-5 if dtype == FLOAT else 1e-12
    return Case(
        [shards],
        for_all={"groups": groups},
        driver=call_in_group,
        right=right,
        rtol=rtol,
        advice={"NoneType|expected length|index out of range|list size": ONE_GROUP} if groups else {},
        explain=partial(wrong_columns, shards=shards, teams=teams, right=right, rtol=rtol),
    )


### BEGIN HIDDEN TESTS
hidden_global_statistics = vary(
    global_statistics,
    values=[
        ((3,),),
        ((5, 1, 2), F64),
        ((1, 1, 7, 2, 3),),
        ((2, 3, 1), F32, -1),
        ((2, 5, 1, 3, 4), F64, 1, [[0, 3, 4], [1, 2]]),
    ],
)
### END HIDDEN TESTS


STATISTICS = ("mean", "min", "max", "product")


def statistics(numbers: torch.Tensor) -> torch.Tensor:
    return torch.stack([numbers.sum() / len(numbers), numbers.min(), numbers.max(), numbers.prod()])


def wrong_columns(
    got: Any,
    rank: int,
    shards: list[torch.Tensor],
    teams: Sequence[Sequence[int]],
    right: list[torch.Tensor],
    rtol: float,
) -> str:
    """Which of the four are wrong, and what they are instead."""
    if not isinstance(got, torch.Tensor) or got.shape != right[rank].shape:
        return ""
    if equal_values(got.sort().values, right[rank].sort().values, rtol):
        return "in the wrong order: it is mean, min, max, product"
    wrong = [column for column in range(4) if not equal_values(got[column], right[rank][column], rtol)]
    if all(equal_values(got[column], right[rank][column], 1e-6) for column in wrong):
        names = " and ".join(f"the {STATISTICS[column]}" for column in wrong)
        return f"right, but with {names} rounded to float32: create each tensor with the dtype of the shard"
    instead = [what_it_is(got[column], column, shards, rank, teams[rank]) for column in wrong]
    if len(wrong) < 4:
        named = [
            f"the {STATISTICS[column]}" + f", which is {' or '.join(is_[:2])}" * bool(is_)
            for column, is_ in zip(wrong, instead, strict=True)
        ]
        return f"right except for {', and '.join(named)}"
    common = [words for words in instead[0] if all(words in is_ for is_ in instead)]
    return f"{common[0]} in all four: each needs an operation of its own" if common else ""


def what_it_is(got: torch.Tensor, column: int, shards: list[torch.Tensor], rank: int, team: Sequence[int]) -> list[str]:
    """What a rank has in place of one of the four."""
    theirs = torch.stack([statistics(shards[other])[column] for other in team])
    values = {
        "your own shard's": statistics(shards[rank])[column],
        "the sum of the ranks'": theirs.sum(),
        "the average of the ranks'": theirs.mean(),
        "the largest of the ranks'": theirs.max(),
        "the smallest of the ranks'": theirs.min(),
        "not a number, as the logarithm of a negative one": torch.tensor(math.nan),
        "0 (no shard has one: is it padding, or the start of a search?)": torch.zeros(()),
        "that of ALL ranks (give each call its group)": statistics(torch.cat(shards))[column],
    }
    return [words for words, value in values.items() if equal_values(got, value.to(shards[rank].dtype), 1e-5)]


SLOW_MEMORY = Cluster(
    "slow memory",
    nodes=1,
    gpus_per_node=8,
    gpu=Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=1e3, launch=0),
    intra=Link(0, 100.0),
    inter=Link(0, 100.0),
)


@oracle(
    values=[(2, (1, 4, 2), DOUBLE)],
    traffic=[(2, (1, 4, 2))],
    time=[(2, (1000, 2000))],
    if_stuck="every rank must start the same all-reduces in the same order.",
)
def launch_then_wait(
    draws: Draws, world_size: int, sizes: tuple[int, ...], dtype: Dtype = FLOAT, sign: int = 1
) -> Case:
    """For each rank a list of tensors of these sizes; every other rank has negative numbers only."""
    columns = [drawn(draws, world_size, size, dtype, seed=number) for number, size in enumerate(sizes)]
    tensors = [[sign * (-1) ** r * x for x in mine] for r, mine in enumerate(zip(*columns, strict=True))]
    totals = [sum_of(column) for column in zip(*tensors, strict=True)]
    largest = [torch.stack([x.max() for x in mine]).max() for mine in tensors]

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        pair = isinstance(got, tuple | list) and len(got) == 2
        if not pair or not isinstance(got[0], list) or len(got[0]) != len(totals):
            raise CheckFailed(f"rank {rank} returned {got!r}", f"(a list of {len(totals)} sums, the largest number)")
        return {"its largest number": got[1]} | {f"sum {number}": one for number, one in enumerate(got[0])}

    def expect_not_in_flight(answer: Answer) -> None:
        """Raise CheckFailed if the largest number was sought in tensors that calls in flight were writing to."""
        for rank in reversed(range(world_size)):
            got = unpack(answer.results[rank], rank)["its largest number"]
            in_place = not equal_values(answer.inputs_after[rank][0], tensors[rank])
            if show(got) == "nan" or in_place and show(got) == "-inf":  # no number is larger than NaN
                advice = "let the calls sum copies of `tensors`" if in_place else "look in `tensors`, not in the copies"
                why = "The local work read tensors that calls in flight were writing to (they hold NaN until the wait)"
                seen = f"rank {rank}, as its largest number, returned {show(got)}"
                raise CheckFailed(seen, show(largest[rank]), f"{why}: {advice}.")

    return Case(
        [tensors],
        right={"its largest number": largest} | {f"sum {number}": total for number, total in enumerate(totals)},
        mistakes={
            "its largest number": {
                "the largest of the sums: take it from `tensors`, and let the calls sum copies of these": torch.stack(
                    [x.max() for x in totals]
                ).max(),
                "the largest number of the first tensor: look at all of them": [mine[0].max() for mine in tensors],
                "the largest number of all ranks: each rank wants its own": torch.stack(largest).max(),
                "0: don't start the search at 0, since all numbers may be negative": lambda got: (
                    show(got) in ("0", "0.0")
                ),
                "the largest distance from zero: a negative number is small": [
                    torch.stack([x.abs().max() for x in mine]).max() for mine in tensors
                ],
            }
        }
        | {
            f"sum {number}": {
                "your own tensor: its all-reduce was not started, or not waited for": [
                    mine[number] for mine in tensors
                ],
                ALL_MEAN: total / world_size,
                **rounded(total),
            }
            for number, total in enumerate(totals)
        },
        seen="rank {rank}, as {part}, returned",
        unpack=unpack,
        before=expect_not_in_flight,
        traffic=lambda answer: expect_launches(answer, len(sizes)),
        clock=SLOW_MEMORY,
        time=lambda answer: expect_overlap(answer, [x.nbytes for x in tensors[0]]),
    )


### BEGIN HIDDEN TESTS
hidden_launch_then_wait = vary(
    launch_then_wait,
    values=[(1, (2, 3)), (3, (1, 5, 2, 2), F64), (5, (3,), I64), (3, (2, 4), F32, -1)],
    traffic=[(3, (2, 1, 4, 3, 1))],
    time=[(3, (3000, 600, 900))],
)
### END HIDDEN TESTS


def expect_overlap(answer: Answer, sizes: Sequence[int]) -> str:
    """Raise CheckFailed unless the local work went on while the sums of tensors of these bytes were on their way."""
    expect_launches(answer, len(sizes))
    elapsed, local = answer.run.elapsed, sum(sizes) / SLOW_MEMORY.gpu.bandwidth  # copying all takes twice as long
    for rank in range(len(answer.results)):
        sums = [event for event in answer.events if event.rank == rank]
        end = max(event.end or 0.0 for event in sums)
        idle = sum(max(0.0, (event.end or 0.0) - (event.waited or 0.0)) for event in sums)
        meanwhile = end - max(event.start for event in sums) - idle
        if meanwhile < local / 10 and elapsed - idle > 2.5 * local:
            when = "after the last wait" if elapsed - end > local / 2 else "before all sums were started"
            seen = f"while its sums were on their way, rank {rank} computed for {quantity(meanwhile, 's')}"
            why = f"The local work was done {when}: do it between the last start and the first wait."
            raise CheckFailed(seen, quantity(local, "s"), why)
    return f"{quantity(elapsed, 's')} of virtual time."


def expect_launches(answer: Answer, count: int) -> str:
    """Raise CheckFailed unless each rank launched `count` asynchronous all-reduces, then waited for each of them."""
    expect_calls(answer, ["all_reduce"] * count, advice="Each rank calls all_reduce once for each tensor.")
    expect_launched_first(answer)
    return f"each rank started {count} all-reduces, then waited for them."


# ---- part 6


@oracle(
    values=[
        (2, 8, lambda x: x[::2]),
        (2, (3, 4), lambda x: x[:, 0], DOUBLE),
        {"world_size": 2, "shape": (2, 3), "mixed": True},
    ],
    if_stuck="every rank must call all_reduce once.",
)
def all_reduce_any_view(
    draws: Draws, world_size: int, shape: Shape, view: View = torch.clone, dtype: Dtype = FLOAT, mixed: bool = False
) -> Case:
    """mixed: whether rank 0 has its numbers in another order in memory, column by column."""
    views = [view(x) for x in drawn(draws, world_size, shape, dtype)]
    if mixed:
        views[0] = views[0].T.contiguous().T
    total = sum_of(views)

    def right_in_places(got: Any) -> bool:
        return isinstance(got, torch.Tensor) and got.shape == total.shape and bool((got == total).any())

    def expect_in_place(answer: Answer) -> None:
        expect_filled(answer, "sum", [total] * world_size, views)
        expect_calls(answer, ["all_reduce"], [total.nbytes], advice="One call is enough for all numbers of the view.")

    return Case(
        [views],
        right=total,
        mistakes={
            "your own view: nothing was added to it, or the sum went into a copy and stayed there": views,
            ALL_MEAN: total / world_size,
            "the sum and your own numbers once more: the sum replaces what was in `view`": [
                total + mine for mine in views
            ],
            "the sum in some places only: each number must come back to its own place": right_in_places,
        }
        | rounded(total),
        unchanged=False,
        also=expect_in_place,
    )


### BEGIN HIDDEN TESTS
hidden_all_reduce_any_view = vary(
    all_reduce_any_view,
    values=[
        (1, 10, lambda x: x[1::3], F32),
        (3, 10, lambda x: x[1::3], BF16),
        (5, 10, lambda x: x[1::3], I64),
        (3, (2, 3), lambda x: x.T, F64),
        (3, (2, 3, 4), lambda x: x[:, 1, ::2]),
        {"world_size": 3, "shape": (2, 3), "mixed": True},
    ],
)
### END HIDDEN TESTS


@check(
    "agree-or-explain",
    if_stuck="a rank went on to all_reduce although shapes or dtypes differ. Every "
    "rank must raise, not only the odd ones, or the others wait forever.",
)
def agree_or_explain_values(run: Runner) -> None:
    judge_agreement(run, run.draws.different_integers(2, 3))
    xs = run.draws.different_integers(4, 3)
    judge_disagreement(run, [xs[0], xs[1][:2], xs[2], xs[3].double()], odd=[1, 3])


### BEGIN HIDDEN TESTS


@check("agree-or-explain")
def hidden_agree_or_explain_values(run: Runner) -> None:
    for world_size, dtype in ((1, I64), (3, F64)):
        judge_agreement(run, drawn(run.draws, world_size, (2, 2), dtype))
    xs = run.draws.different_integers(3, (2, 3))
    judge_disagreement(run, [xs[0], xs[1], xs[2].T], odd=[2])  # as many numbers, another shape
    judge_disagreement(run, [xs[0].int(), xs[1], xs[2]], odd=[1, 2])  # rank 0 is the one that differs
    xs = run.draws.different_integers(5, 4)
    judge_disagreement(run, [xs[0], xs[1].int(), xs[2], xs[3][:1], xs[4]], odd=[1, 3])


### END HIDDEN TESTS


def judge_agreement(run: Runner, xs: list[torch.Tensor]) -> None:
    answer = run(len(xs), xs, catch=ValueError)
    for rank, got in enumerate(answer.results):
        if isinstance(got, ValueError):
            raise CheckFailed(f"rank {rank} raised ValueError({str(got)!r})", "no error: all ranks agree")
        expect(got, sum_of(xs), rank, {"your own tensor: nothing was added": xs[rank]})
    expect_unchanged(answer, xs)


def judge_disagreement(run: Runner, xs: list[torch.Tensor], odd: list[int]) -> None:
    """`odd`: the ranks that differ from rank 0. All must raise the same ValueError, naming exactly these and rank 0."""
    try:
        answer = run(len(xs), xs, catch=ValueError)
    except CheckFailed as failed:
        if re.search(r"raised (?!ValueError)\w+: .*torch\.", failed.saw):
            failed.mistake = "Make it a ValueError."
        elif found := re.search(r"\n\n.* never called this all_reduce", failed.saw):
            failed.saw = failed.saw[: found.start()]  # without advice for an early return
            failed.mistake = (
                "Some ranks raised and the others went on to all_reduce. Decide from what was gathered, which is the "
                "same on every rank: then all raise, or none."
            )
        raise
    text = str(answer.results[0])
    for rank, got in enumerate(answer.results):
        if not isinstance(got, ValueError):
            [first, *_] = odd
            raise CheckFailed(
                f"rank {rank} raised no ValueError",
                "the same error on every rank",
                f"Rank {first} brought {brought_by(xs[first])}, but rank 0 {brought_by(xs[0])}: compare all of that.",
            )
        if str(got) != text:
            raise CheckFailed(
                f"rank 0 says {text!r}\nrank {rank} says {str(got)!r}",
                "the same sentence on every rank",
                "Each rank named those that differ from itself: compare with what rank 0 brought, not with `mine`."
                if all(names_its_odd(rank, str(said), xs) for rank, said in enumerate(answer.results))
                else "Build it only from what was gathered, which is the same on every rank.",
            )
    for rank, x in enumerate(xs):
        said, pieces = f"the error says {text!r}", re.split(r"(?=rank \d)", text)
        brought = [piece for piece in pieces if piece.startswith(f"rank {rank}")]
        if rank in [0, *odd] and not any(str(tuple(x.shape)) in piece and str(x.dtype) in piece for piece in brought):
            why = "Compare each rank with rank 0; name each one that differs, and rank 0."
            raise CheckFailed(said, f"rank {rank} to be named, with its {brought_by(x)}", why)
        if rank not in [0, *odd] and brought:
            why = "Name only rank 0 and the ranks that differ from it."
            raise CheckFailed(said, f"no mention of rank {rank}, which agrees with rank 0", why)


def names_its_odd(rank: int, text: str, xs: list[torch.Tensor]) -> bool:
    """Whether a rank's error names the ranks that differ from this one; it and rank 0 may be named anyway."""
    odd = {number for number, x in enumerate(xs) if brought_by(x) != brought_by(xs[rank])}
    return {int(number) for number in re.findall(r"rank (\d+)", text)} | {0, rank} == odd | {0, rank}


def brought_by(x: torch.Tensor) -> str:
    return f"{tuple(x.shape)} {x.dtype}"


# ---- the challenge

WIRE = Link(alpha=1e-5, bandwidth=1e10)
LENGTHS = (60_000, 500, 2_000, 8_000, 1, 30_000, 4_000, 1_500)


@oracle(
    score=[(LENGTHS, DOUBLE)],  # as in the lesson
    par=frozen_par(ROOM, "uneven-all-gather"),
    if_stuck="the ranks don't call the same collectives with sizes that fit, or one side of a message is missing.",
)
def uneven_all_gather(draws: Draws, lengths: tuple[int, ...], dtype: Dtype = FLOAT) -> Case:
    xs = [x[:n] for x, n in zip(drawn(draws, len(lengths), max(lengths), dtype), lengths, strict=True)]
    xs = [x * (x.int() % 10 != 3) for x in xs]  # some are zero, as padding is
    everything, longest = torch.cat(xs), max(lengths)
    rows = [torch.cat([x, x.new_zeros(longest - len(x))]) for x in xs]

    def lacks_the_end(got: Any) -> bool:
        n = len(everything) // len(xs) * len(xs)
        flat = isinstance(got, torch.Tensor) and got.dim() == 1
        return flat and n < len(everything) and equal_values(got[:n], everything[:n]) and not got[n:].any()

    def in_another_order(got: Any) -> bool:
        fits = isinstance(got, torch.Tensor) and got.shape == everything.shape
        return fits and equal_values(got.sort().values, everything.sort().values)

    return Case(
        [xs],
        for_all={"lengths": list(lengths)},
        advice={"'LENGTHS' is not defined": "Other lengths are judged too: use the argument `lengths`."},
        right=everything,
        mistakes={
            "your own tensor: nothing was exchanged": xs,
            "every tensor with its padding: cut each to its own length": torch.cat(rows),
            "every row cut to your own length: cut row r to lengths[r]": [
                torch.cat([row[:n] for row in rows]) for n in lengths
            ],
            "without zeros: a zero may be one of the numbers, so cut by `lengths`": everything[everything != 0],
            "every number, but in the wrong order: rank 0's come first, then rank 1's, and so on": in_another_order,
            "a list: concatenate the tensors": every(xs),
            "everything but the end: equal shares of sum(lengths) // P leave a remainder: round them up": lacks_the_end,
            "every tensor cut to the shortest: pad to the longest instead": torch.cat([x[: min(lengths)] for x in xs]),
        }
        | rounded(everything),
        clock=links(len(lengths), WIRE.alpha, WIRE.bandwidth),
        score=VIRTUAL_TIME,
        limit=WIRE.seconds((sum(lengths) - min(lengths)) * everything.itemsize) if len(lengths) > 1 else 0.0,
    )


### BEGIN HIDDEN TESTS


def seconds_of_uneven_all_gather(lengths: tuple[int, ...], dtype: torch.dtype = F32) -> float:
    """All tensors padded to the longest: in each of P - 1 steps, each rank passes on one of them."""
    seconds: float = WIRE.seconds(max(lengths) * dtype.itemsize)
    return (len(lengths) - 1) * seconds


hidden_uneven_all_gather = vary(
    uneven_all_gather,
    par=seconds_of_uneven_all_gather,
    score=[((7_000, 0, 300, 100_000, 12),), ((1_000, 100_000, 50), F64)],  # uneven enough for sharing out to pay
)
FROZEN = (vary(uneven_all_gather, par=seconds_of_uneven_all_gather),)
### END HIDDEN TESTS
