"""The visible checks of lesson 01. Each is quick: one to three runs of two or four ranks. Form: see registry.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from .answer import Answer, CheckFailed
from .compare import Mistakes, expect, expect_unchanged, plural
from .equality import alike
from .inputs import Draws
from .marking import check
from .runner import Runner
from .traffic import expect_calls, expect_traffic

ROOTED = ("broadcast", "scatter", "gather", "reduce")
UNROOTED = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
BYTES = 4  # of a float32


# ---- the eight collectives on plain data, for all ranks at once: what `expect` compares with


def rooted(collective: str, xs: list[torch.Tensor], root: int) -> list[torch.Tensor | None]:
    """What each rank gets, None if nothing; xs: one 1-D tensor per rank."""
    world_size = len(xs)
    if collective == "broadcast":
        return [xs[root]] * world_size
    if collective == "scatter":
        return list(xs[root].chunk(world_size))
    result = torch.cat(xs) if collective == "gather" else torch.stack(xs).sum(0).to(xs[0].dtype)
    return [result if rank == root else None for rank in range(world_size)]


def unrooted(collective: str, xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each rank gets; xs: one 1-D tensor per rank."""
    world_size = len(xs)
    total = torch.stack(xs).sum(0).to(xs[0].dtype)
    if collective == "all_gather":
        return [torch.cat(xs)] * world_size
    if collective == "reduce_scatter":
        return list(total.chunk(world_size))
    if collective == "all_reduce":
        return [total] * world_size
    return [torch.cat([x.chunk(world_size)[rank] for x in xs]) for rank in range(world_size)]


def inputs_of(
    draws: Draws, collective: str, world_size: int, chunk: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """One tensor per rank: `chunk` elements, or P * chunk if the collective cuts its input into P."""
    cuts = collective in ("scatter", "reduce_scatter", "all_to_all")
    return draws.different_integers(world_size, chunk * world_size if cuts else chunk, dtype)


def lists(tensors: Sequence[torch.Tensor | None]) -> list[Any]:
    return [None if tensor is None else tensor.tolist() for tensor in tensors]


def from_the_last(results: list[Any]) -> list[tuple[int, Any]]:
    """(rank, result), the last rank first: on rank 0, its own tensor is also rank 0's, which explains less."""
    return list(enumerate(results))[::-1]


# ---- part 1


@check("predict-rooted")
def predict_rooted_values(run: Runner) -> None:
    root = 2
    for collective in ROOTED:
        xs = inputs_of(run.draws, collective, 4, 2, torch.int64)
        [got] = run(1, [collective], [lists(xs)], root=root).results
        judge_prediction(collective, got, lists(rooted(collective, xs, root)), rooted_mistakes(collective, xs, root))


def rooted_mistakes(collective: str, xs: list[torch.Tensor], root: int) -> dict[str, Any]:
    """{a common mistake, in words: the wrong prediction that it leads to}"""
    right = lists(rooted(collective, xs, root))
    everywhere = [right[root]] * len(xs)
    return {
        "the right list for root 0: use `root`": lists(rooted(collective, xs, 0)),
        "the root's result, on every rank: only the root gets it, the others get None": everywhere,
        "one list per rank inside a list: put their numbers into one list": [
            right[rank] and [x.tolist() for x in xs] for rank in range(len(xs))
        ],
        "the gathered numbers: reduce adds them, position by position": lists(rooted("gather", xs, root)),
        "one number: add position by position, the result is as long as each list": [
            right[rank] and [int(torch.stack(xs).sum())] for rank in range(len(xs))
        ],
        "the mean: reduce sums unless told otherwise": [
            right[rank] and (torch.stack(xs).double().mean(0)).tolist() for rank in range(len(xs))
        ],
        "the whole list on every rank: scatter gives each rank one chunk": [xs[root].tolist()] * len(xs),
        "every P-th number: a chunk is a run of neighbours": [
            xs[root][rank :: len(xs)].tolist() for rank in range(len(xs))
        ],
        "what they held before: nothing was moved": lists(xs),
    }


def judge_prediction(collective: str, got: Any, right: list[Any], mistakes: Mistakes) -> None:
    """Judge all ranks at once: first how many entries, then entry by entry."""
    words = next((words for words, wrong in mistakes.items() if alike(got, wrong) and wrong != right), "")
    if not isinstance(got, list) or len(got) != len(right):
        raise CheckFailed(
            f"{collective}: you returned {got!r}", f"a list with one entry for each of {len(right)} ranks"
        )
    for rank, (mine, wanted) in enumerate(zip(got, right, strict=True)):
        expect(
            mine,
            wanted,
            f"{collective} among {plural(len(right), 'rank')}: for rank {rank} you returned",
            {words: mine} if words else {},
        )


@check("call-rooted", if_stuck="every rank must make the call, and name the same root.")
def call_rooted_values(run: Runner) -> None:
    for collective in ROOTED:
        xs = inputs_of(run.draws, collective, 4, 2)
        judge_rooted_call(run, collective, xs, root=2)


def judge_rooted_call(run: Runner, collective: str, xs: list[torch.Tensor], root: int) -> None:
    answer = run(len(xs), xs, collective=collective, root=root)
    right = rooted(collective, xs, root)
    for rank, got in from_the_last(answer.results):
        if rank != root and right[rank] is None and got is not None:
            raise CheckFailed(
                f"{collective}: rank {rank} returned {got!r}",
                "None",
                "That rank is not the root: its tensor may hold anything after the call.",
            )
        expect(
            got,
            right[rank],
            rank,
            {
                "your own tensor: nothing was received": xs[rank],
                "right for root 0: pass `root` on": rooted(collective, xs, 0)[rank],
                "the root's whole tensor: hand in a list of chunks": xs[root],
                "the mean: reduce sums unless told otherwise": torch.stack(xs).sum(0) / len(xs),
            },
        )
    expect_unchanged(answer, xs)


@check("call-rooted", judges="traffic")
def call_rooted_traffic(run: Runner) -> str:
    for collective in ROOTED:
        xs = inputs_of(run.draws, collective, 4, 2)
        expect_calls(run(4, xs, collective=collective, root=1), [collective])
    return "one call of each, by every rank."


# ---- part 2

EACH_SIDE = (
    "one side of a message is missing, or has a different size. For each rank, write down what it sends to whom and "
    "what it receives from whom; leave the root out of its own loop."
)


@check("broadcast-by-hand", if_stuck=EACH_SIDE)
def broadcast_by_hand_values(run: Runner) -> None:
    for world_size, root in ((4, 2), (2, 0)):
        judge_broadcast(run, run.draws.different_integers(world_size, 3), root)


def judge_broadcast(run: Runner, xs: list[torch.Tensor], root: int) -> None:
    answer = run(len(xs), xs, root=root)
    for rank, got in from_the_last(answer.results):
        expect(
            got,
            xs[root],
            rank,
            {
                "your own tensor: nothing was received": xs[rank],
                "rank 0's tensor: the root is a different rank here": xs[0],
                "a neighbour's tensor: every rank receives from the root": xs[rank - 1],
                "the sum of all ranks: broadcast copies, it does not add": torch.stack(xs).sum(0),
            },
        )
    expect_unchanged(answer, xs)


@check("broadcast-by-hand", judges="traffic", if_stuck=EACH_SIDE)
def broadcast_by_hand_traffic(run: Runner) -> str:
    return expect_traffic(run(4, run.draws.different_integers(4, 3), root=1), messages=3, nbytes=3 * 3 * BYTES)


@check("scatter-by-hand", if_stuck=EACH_SIDE)
def scatter_by_hand_values(run: Runner) -> None:
    for sizes, root in (((2, 2, 2, 2), 2), ((1, 3), 0)):
        judge_scatter(run, sizes, root)


def judge_scatter(run: Runner, sizes: tuple[int, ...], root: int, dtype: torch.dtype = torch.float32) -> None:
    """Chunks of these sizes, one per rank."""
    chunks, empty, held = scatter_inputs(run.draws, sizes, root, dtype)
    answer = run(len(sizes), empty, held, root=root)
    for rank, got in enumerate(answer.results):
        expect(
            got,
            chunks[rank],
            rank,
            {
                "what your empty tensor held before: nothing was written into it": empty[rank],
                "the first chunk: each rank gets a different one": chunks[0],
                "the next rank's chunk": chunks[(rank + 1) % len(sizes)],
                "the previous rank's chunk": chunks[rank - 1],
                "all chunks: rank r gets chunks[r] alone": torch.cat(chunks),
            },
        )
    for rank, (filled, _) in enumerate(answer.inputs_after):
        back = {"what it held before: write the chunk into `mine`": empty[rank]}
        expect(
            filled, chunks[rank], f"rank {rank} returned its chunk but did not write it into `mine`, which holds", back
        )
    expect_unchanged(Answer([], [[after[1]] for after in answer.inputs_after], answer.run), held)


def scatter_inputs(
    draws: Draws, sizes: tuple[int, ...], root: int, dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[list[torch.Tensor] | None]]:
    """(chunks, an empty tensor per rank, the list of chunks on the root and None elsewhere)"""
    [whole] = draws.different_integers(1, sum(sizes), dtype)
    chunks = [chunk.clone() for chunk in whole.split(sizes)]
    empty = [torch.full((size,), -1, dtype=dtype) for size in sizes]
    return chunks, empty, [chunks if rank == root else None for rank in range(len(sizes))]


@check("scatter-by-hand", judges="traffic", if_stuck=EACH_SIDE)
def scatter_by_hand_traffic(run: Runner) -> str:
    _, empty, held = scatter_inputs(run.draws, (2, 2, 2, 2), root=1)
    return expect_traffic(run(4, empty, held, root=1), messages=3, nbytes=3 * 2 * BYTES)


@check("gather-by-hand", if_stuck=EACH_SIDE)
def gather_by_hand_values(run: Runner) -> None:
    for world_size, root in ((4, 2), (2, 0)):
        judge_gather(run, run.draws.different_integers(world_size, 2), root)


def judge_gather(run: Runner, xs: list[torch.Tensor], root: int) -> None:
    answer = run(len(xs), xs, root=root)
    stacked, own = torch.stack(xs), torch.stack([xs[root]] * len(xs))
    without_own = torch.stack([torch.zeros_like(x) if rank == root else x for rank, x in enumerate(xs)])
    only_root(answer, root)
    got = answer.results[root]
    expect(
        got,
        stacked,
        root,
        {
            "one long tensor: stack them, one row per rank": torch.cat(xs),
            "a list: return one tensor, one row per rank": list(xs),
            "all but the root's own row, which is never sent: copy it": without_own,
            "in the wrong order, the root's own row first": torch.stack([xs[root], *xs[:root], *xs[root + 1 :]]),
            "the root's own tensor in every row": own,
            "in the wrong order: what comes from rank r belongs in row r": same_rows(got, stacked),
            "the sum: gather keeps every tensor": stacked.sum(0),
        },
    )
    expect_unchanged(answer, xs)


def same_rows(got: Any, stacked: torch.Tensor) -> Any:
    """`got` if it holds the rows of `stacked` in any order, else None."""
    if isinstance(got, torch.Tensor) and got.shape == stacked.shape:
        return got if sorted(got.tolist()) == sorted(stacked.tolist()) else None
    return None


def only_root(answer: Answer, root: int) -> None:
    for rank, got in enumerate(answer.results):
        if rank != root and got is not None:
            raise CheckFailed(
                f"rank {rank} returned {got!r}", "None", f"Only the root, rank {root} here, has the result."
            )


@check("gather-by-hand", judges="traffic", if_stuck=EACH_SIDE)
def gather_by_hand_traffic(run: Runner) -> str:
    return expect_traffic(run(4, run.draws.different_integers(4, 2), root=1), messages=3, nbytes=3 * 2 * BYTES)


@check("reduce-by-hand", if_stuck=EACH_SIDE)
def reduce_by_hand_values(run: Runner) -> None:
    for world_size, root in ((4, 2), (2, 0)):
        judge_reduce(run, run.draws.different_integers(world_size, 3), root)


def judge_reduce(run: Runner, xs: list[torch.Tensor], root: int) -> None:
    answer = run(len(xs), xs, root=root)
    total = torch.stack(xs).sum(0).to(xs[0].dtype)
    only_root(answer, root)
    expect(
        answer.results[root],
        total,
        root,
        {
            "the root's own tensor: nothing was added to it": xs[root],
            "the last tensor that arrived, as if each one replaced the one before: add them instead": xs[-1]
            if root != len(xs) - 1
            else xs[max(0, root - 1)],
            "the sum of the others: the root's own tensor belongs in it too": total - xs[root],
            "the sum with the root's own tensor twice": total + xs[root],
            "the mean: reduce sums unless told otherwise": total / len(xs),
            "all tensors: reduce adds them": torch.stack(xs),
        },
    )
    expect_unchanged(answer, xs)


@check("reduce-by-hand", judges="traffic", if_stuck=EACH_SIDE)
def reduce_by_hand_traffic(run: Runner) -> str:
    return expect_traffic(run(4, run.draws.different_integers(4, 3), root=1), messages=3, nbytes=3 * 3 * BYTES)


# ---- part 3


@check("predict-unrooted")
def predict_unrooted_values(run: Runner) -> None:
    for collective in UNROOTED:
        xs = inputs_of(run.draws, collective, 4, 2, torch.int64)
        [got] = run(1, [collective], [lists(xs)]).results
        judge_prediction(collective, got, lists(unrooted(collective, xs)), unrooted_mistakes(collective, xs))


def unrooted_mistakes(collective: str, xs: list[torch.Tensor]) -> dict[str, Any]:
    world_size = len(xs)
    right = unrooted(collective, xs)
    mistakes = {
        "what they held before: nothing was moved": lists(xs),
        "one list per rank inside a list: put their numbers into one list": [[x.tolist() for x in xs]] * world_size,
        "the result on rank 0 alone: every rank gets it": [right[0].tolist()] + [None] * (world_size - 1),
        "the mean: all-reduce sums unless told otherwise": [(torch.stack(xs).double().mean(0)).tolist()] * world_size,
    }
    if collective == "all_to_all":
        mistakes["the chunks in a list: put their numbers into one list"] = [
            [x.chunk(world_size)[rank].tolist() for x in xs] for rank in range(world_size)
        ]
    if collective in ("reduce_scatter", "all_to_all"):
        mistakes |= {
            "the whole sum: reduce-scatter gives each rank one chunk of it": lists(unrooted("all_reduce", xs)),
            "your own chunks: rank r gets chunk r from every rank": lists(
                [x.chunk(world_size)[r] for r, x in enumerate(xs)]
            ),
            "everything: each rank gets one chunk from every rank": lists(unrooted("all_gather", xs)),
            "the sum of the chunks: all-to-all adds nothing": lists(unrooted("reduce_scatter", xs)),
        }
    return mistakes


@check("call-unrooted", if_stuck="every rank must make the call, with the same shapes.")
def call_unrooted_values(run: Runner) -> None:
    for collective in UNROOTED:
        judge_unrooted_call(run, collective, inputs_of(run.draws, collective, 4, 2))


def judge_unrooted_call(run: Runner, collective: str, xs: list[torch.Tensor]) -> None:
    answer = run(len(xs), xs, collective=collective)
    right = unrooted(collective, xs)
    total = torch.stack(xs).sum(0)
    for rank, got in enumerate(answer.results):
        expect(
            got,
            right[rank],
            rank,
            {
                "your own tensor: nothing was received": xs[rank],
                "the mean: the default operation is the sum": right[rank] / len(xs),
                "the whole sum: each rank gets one chunk": total.to(xs[0].dtype),
                "all tensors: each rank gets one chunk of each": torch.cat(xs),
            },
        )
    expect_unchanged(answer, xs)


@check("call-unrooted", judges="traffic")
def call_unrooted_traffic(run: Runner) -> str:
    for collective in UNROOTED:
        expect_calls(run(4, inputs_of(run.draws, collective, 4, 2), collective=collective), [collective])
    return "one call of each, by every rank."


# ---- part 4


@check(
    "all-gather-from-rooted", if_stuck="gather and broadcast are collectives: every rank must call both, in this order."
)
def all_gather_from_rooted_values(run: Runner) -> None:
    for world_size in (2, 4):
        judge_all_gather(run, run.draws.different_integers(world_size, 3))


def judge_all_gather(run: Runner, xs: list[torch.Tensor]) -> None:
    answer = run(len(xs), xs)
    stacked = torch.stack(xs)
    for rank, got in enumerate(answer.results):
        expect(
            got,
            stacked,
            rank,
            {
                "one long tensor: one row per rank is wanted": torch.cat(xs),
                "a list: return one tensor, one row per rank": list(xs),
                "rank 0's tensor: gather before you broadcast": torch.stack([xs[0]] * len(xs)),
                "all zeros: what was gathered is not in the tensor you broadcast": torch.zeros_like(stacked),
            },
        )
        if rank > 0 and isinstance(got, torch.Tensor) and torch.equal(got, answer.results[0]) is False:
            raise CheckFailed(f"rank {rank} and rank 0 returned different tensors", "the same on every rank")
    expect_unchanged(answer, xs)


@check("all-gather-from-rooted", judges="traffic")
def all_gather_from_rooted_traffic(run: Runner) -> str:
    return expect_calls(run(4, run.draws.different_integers(4, 3)), ["gather", "broadcast"], [3 * BYTES, 4 * 3 * BYTES])


@check("all-reduce-from-halves", if_stuck="every rank must make both calls, with chunks of the same size.")
def all_reduce_from_halves_values(run: Runner) -> None:
    for world_size, shape in ((4, 10), (4, (2, 3)), (2, 4)):
        judge_all_reduce(run, run.draws.different_integers(world_size, shape))


def judge_all_reduce(run: Runner, xs: list[torch.Tensor]) -> None:
    answer = run(len(xs), xs)
    total = torch.stack(xs).sum(0).to(xs[0].dtype)
    flat = total.reshape(-1)
    size = -(-flat.numel() // len(xs))
    padded = torch.cat([flat, flat.new_zeros(len(xs) * size - flat.numel())])
    for rank, got in enumerate(answer.results):
        expect(
            got,
            total,
            rank,
            {
                "your own tensor: nothing was added to it": xs[rank],
                "the mean: all-reduce sums unless told otherwise": total / len(xs),
                "one chunk of the sum: the second half, the all-gather, is missing": padded.chunk(len(xs))[rank],
                "the sum with its padding: cut it off": padded,
                "the sum without its shape": flat,
                "P times the sum: it was added once more in the second half": len(xs) * total,
                "all zeros: x was never copied into `padded`": torch.zeros_like(total),
                "your chunk of the sum, P times: all-gather fills the whole list": padded.chunk(len(xs))[rank]
                .repeat(len(xs))[: flat.numel()]
                .reshape(total.shape),
            },
        )
    expect_unchanged(answer, xs)


@check("all-reduce-from-halves", judges="traffic")
def all_reduce_from_halves_traffic(run: Runner) -> str:
    answer = run(4, run.draws.different_integers(4, 10))
    return expect_calls(answer, ["reduce_scatter", "all_gather"], [12 * BYTES, 3 * BYTES])


@check("distributed-transpose", if_stuck="every rank must call all_to_all_single once.")
def distributed_transpose_values(run: Runner) -> None:
    for world_size, m, c in ((2, 2, 3), (4, 1, 2)):
        judge_transpose(run, run.draws.different_integers(world_size, (m, world_size * c)))


def judge_transpose(run: Runner, bands: list[torch.Tensor]) -> None:
    answer = run(len(bands), bands)
    matrix = torch.cat(bands)
    m, c = bands[0].shape[0], bands[0].shape[1] // len(bands)
    for rank, got in enumerate(answer.results):
        columns = matrix[:, rank * c : (rank + 1) * c]
        expect(
            got,
            columns.T,
            rank,
            {
                "your own band, transposed: nothing was exchanged": bands[rank].T,
                "your own band: nothing was exchanged": bands[rank],
                "the right columns of A, but not transposed": columns,
                "the right blocks one under the other: put them side by side": torch.cat(
                    [b.T for b in columns.split(m)]
                ),
                "the right blocks side by side, each not transposed inside": torch.cat(columns.split(m), dim=1),
                "the right numbers in the wrong order: `reshape` does not transpose": columns.reshape(c, -1),
                "the right numbers in the wrong order: blocks side by side means dim=1": torch.cat(
                    [b.T for b in columns.split(m)]
                ).reshape(c, -1),
                "the whole matrix transposed: each rank gets one band of it": matrix.T,
            },
        )
    expect_unchanged(answer, bands)


@check("distributed-transpose", judges="traffic")
def distributed_transpose_traffic(run: Runner) -> str:
    return expect_calls(run(4, run.draws.different_integers(4, (2, 8))), ["all_to_all"], [16 * BYTES])


@check("dual-of")
def dual_of_values(run: Runner) -> None:
    world_size, root, chunk = 4, 1, 2
    names = [*ROOTED, *UNROOTED]
    for collective, dual in zip(names, run(len(names), names).results, strict=True):
        if not isinstance(dual, str) or dual not in names:
            raise CheckFailed(
                f"dual_of({collective!r}) returned {dual!r}", 'one of the eight names, such as "all_reduce"'
            )
        left, right = inner_products(run.draws, collective, dual, world_size, root, chunk)
        if left != right:
            products = (
                f"<C(x), y> = {left} and <x, C*(y)> = {right}" if right is not None else "the sizes do not even fit"
            )
            raise CheckFailed(
                f"the dual of {collective} is not {dual}: for C = {collective} and C* = {dual}, {products}",
                mistake=f"Reverse the arrows of {collective}: which rank gives now, and what does a copy turn into?",
            )


def inner_products(
    draws: Draws, collective: str, dual: str, world_size: int, root: int, chunk: int
) -> tuple[int | None, int | None]:
    """<C(x), y> and <x, C*(y)> for whole numbers x and y; (_, None) when C* does not take what C gives."""

    def apply(name: str, xs: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        return rooted(name, xs, root) if name in ROOTED else unrooted(name, xs)

    def inner(xs: Sequence[torch.Tensor | None], ys: Sequence[torch.Tensor | None]) -> int | None:
        pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
        return int(sum((x * y).sum() for x, y in pairs)) if all(x.shape == y.shape for x, y in pairs) else None

    x = inputs_of(draws, collective, world_size, chunk, torch.int64)
    long_output = collective in ("gather", "all_gather", "all_to_all")
    y = draws.different_integers(world_size, chunk * (world_size if long_output else 1), torch.int64, seed=1)
    try:
        return inner(apply(collective, x), y), inner(x, apply(dual, y))
    except (RuntimeError, IndexError, ValueError):
        return inner(apply(collective, x), y), None


# ---- part 5


@check("global-statistics", if_stuck="every rank must make the same calls in the same order.")
def global_statistics_values(run: Runner) -> None:
    for lengths in ((3, 1), (1, 2, 4, 2)):
        judge_statistics(run, shards_of(run.draws, lengths))


def shards_of(draws: Draws, lengths: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Shards of small numbers, 0.5 to 5, so that their product stays small."""
    columns = draws.different_integers(len(lengths), max(lengths), dtype)
    return [(x[:n] % 10 + 1) / 2 for x, n in zip(columns, lengths, strict=True)]


def judge_statistics(run: Runner, shards: list[torch.Tensor]) -> None:
    answer = run(len(shards), shards)
    for rank, got in enumerate(answer.results):
        expect(got, statistics(torch.cat(shards)), rank, statistics_mistakes(shards, rank), rtol=1e-5)
    expect_unchanged(answer, shards)


def statistics(numbers: torch.Tensor) -> torch.Tensor:
    return torch.stack([numbers.sum() / len(numbers), numbers.min(), numbers.max(), numbers.prod()])


def statistics_mistakes(shards: list[torch.Tensor], rank: int) -> dict[str, Any]:
    right, mine = statistics(torch.cat(shards)), statistics(shards[rank])

    means = torch.stack([shard.mean() for shard in shards])
    products = torch.stack([shard.prod() for shard in shards])

    def with_mean(mean: torch.Tensor) -> torch.Tensor:
        return torch.stack([mean, *right[1:]])

    return {
        "your own shard's result: nothing was exchanged": mine,
        "the mean of means: a short shard counts as much as a long one": with_mean(means.mean()),
        "the sum of the means: divide the sum by the count": with_mean(means.sum()),
        "the sum divided by the number of ranks: divide by how many numbers there are": with_mean(
            torch.cat(shards).sum() / len(shards)
        ),
        "the sum divided by your own shard's length: the lengths must be summed too": with_mean(
            torch.cat(shards).sum() / len(shards[rank])
        ),
        "right except for the product, which is your own shard's": torch.stack([*right[:3], mine[3]]),
        "right except for min and max, which are your own shard's": torch.stack([right[0], *mine[1:3], right[3]]),
        "right except for the product: the products were summed": torch.stack([*right[:3], products.sum()]),
    }


@check("launch-then-wait", if_stuck="every rank must start the same all-reduces in the same order.")
def launch_then_wait_values(run: Runner) -> None:
    judge_launches(run, lists_of_tensors(run.draws, 2, (1, 4, 2)))


def lists_of_tensors(
    draws: Draws, world_size: int, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> list[list[torch.Tensor]]:
    """For each rank a list of tensors of these sizes."""
    columns = [draws.different_integers(world_size, size, dtype, seed=number) for number, size in enumerate(sizes)]
    return [list(tensors) for tensors in zip(*columns, strict=True)]


def judge_launches(run: Runner, tensors: list[list[torch.Tensor]]) -> None:
    """tensors[rank]: the list of tensors of that rank."""
    answer = run(len(tensors), tensors)
    totals = [torch.stack(column).sum(0).to(column[0].dtype) for column in zip(*tensors, strict=True)]
    for rank, got in enumerate(answer.results):
        if not (
            isinstance(got, tuple | list) and len(got) == 2 and isinstance(got[0], list) and len(got[0]) == len(totals)
        ):
            raise CheckFailed(f"rank {rank} returned {got!r}", f"(a list of {len(totals)} sums, the largest number)")
        sums, largest = got
        expect(
            largest,
            max(x.max() for x in tensors[rank]),
            f"rank {rank}, as its largest number, returned",
            {
                "the largest of the sums: take it from `tensors`": max(total.max() for total in totals),
                "the largest of all ranks: only this rank's own is wanted": max(
                    x.max() for mine in tensors for x in mine
                ),
            },
        )
        for number, total in enumerate(totals):
            expect(
                sums[number],
                total,
                f"rank {rank}, as sum {number}, returned",
                {
                    "your own tensor: its all-reduce was not started, or not waited for": tensors[rank][number],
                    "the mean: all-reduce sums unless told otherwise": total / len(tensors),
                },
            )
    expect_unchanged(answer, tensors)


@check("launch-then-wait", judges="traffic")
def launch_then_wait_traffic(run: Runner) -> str:
    return expect_launches(run(2, lists_of_tensors(run.draws, 2, (1, 4, 2))), 3)


def expect_launches(answer: Answer, count: int) -> str:
    """Raise CheckFailed unless each rank launched `count` asynchronous all-reduces, then waited for each of them."""
    expect_calls(answer, ["all_reduce"] * count)
    for rank in range(len(answer.results)):
        events = [event for event in answer.events if event.rank == rank]
        blocking = sum(not event.is_async for event in events)
        if blocking:
            raise CheckFailed(
                f"rank {rank}: {blocking} of {count} all-reduces blocked",
                "none",
                "Pass async_op=True and keep the handle.",
            )
        waits = [event.waited for event in events if event.waited is not None]
        if waits and max(event.start for event in events) > min(waits):
            raise CheckFailed(
                f"rank {rank} waited for an all-reduce before it had started the last one",
                "all started, then the first wait",
                "Two loops: one that launches, one that waits.",
            )
    return f"each rank started {count} all-reduces, then waited for them."


# ---- part 6


@check("all-reduce-any-view", if_stuck="every rank must call all_reduce once.")
def all_reduce_any_view_values(run: Runner) -> None:
    judge_views(run, [x[::2] for x in run.draws.different_integers(2, 8)])
    judge_views(run, [x[:, 0] for x in run.draws.different_integers(2, (3, 4))])
    judge_views(run, run.draws.different_integers(2, 4))


def judge_views(run: Runner, views: list[torch.Tensor]) -> None:
    answer = run(len(views), views)
    total = torch.stack(views).sum(0).to(views[0].dtype)
    for rank, got in enumerate(answer.results):
        [in_place] = answer.inputs_after[rank]
        mistakes = {
            "your own view: nothing was added to it, or the sum went into a copy and stayed there": views[rank],
            "the mean: all-reduce sums unless told otherwise": total / len(views),
            "P times the sum: it was added twice": len(views) * total,
        }
        if isinstance(got, torch.Tensor) and got.shape == total.shape and (got == total).any():
            mistakes["the sum in some places only: all_reduce was given a view with gaps"] = got
        expect(got, total, rank, mistakes)
        back = {"what it held before: copy the sum back into `view`": views[rank]}
        expect(in_place, total, f"rank {rank} returned the sum but did not write it into `view`, which holds", back)
    expect_calls(answer, ["all_reduce"], [total.nbytes])


@check(
    "agree-or-explain",
    if_stuck="a rank went on to all_reduce although shapes or dtypes differ. Every "
    "rank must raise, not only the odd ones, or the others wait forever.",
)
def agree_or_explain_values(run: Runner) -> None:
    judge_agreement(run, run.draws.different_integers(2, 3))
    xs = run.draws.different_integers(4, 3)
    judge_disagreement(run, [*xs[:2], xs[2][:2], xs[3].double()], odd=[2, 3])


def judge_agreement(run: Runner, xs: list[torch.Tensor]) -> None:
    answer = run(len(xs), xs, catch=ValueError)
    for rank, got in enumerate(answer.results):
        if isinstance(got, ValueError):
            raise CheckFailed(f"rank {rank} raised ValueError({str(got)!r})", "no error: all ranks agree")
        expect(got, torch.stack(xs).sum(0).to(xs[0].dtype), rank, {"your own tensor: nothing was added": xs[rank]})
    expect_unchanged(answer, xs)


def judge_disagreement(run: Runner, xs: list[torch.Tensor], odd: list[int]) -> None:
    """`odd`: the ranks that differ from rank 0. All must raise the same ValueError, naming exactly these and rank 0."""
    answer = run(len(xs), xs, catch=ValueError)
    text = str(answer.results[0])
    for rank, got in enumerate(answer.results):
        if not isinstance(got, ValueError):
            raise CheckFailed(f"rank {rank} raised no ValueError", "the same error on every rank")
        if str(got) != text:
            raise CheckFailed(f"rank {rank} says {str(got)!r}, rank 0 says {text!r}", "the same sentence on every rank")
    for rank, x in enumerate(xs):
        named = f"rank {rank}" in text
        brought = [piece for piece in re.split(r"(?=rank \d)", text) if piece.startswith(f"rank {rank}")]
        if rank in [0, *odd] and not any(str(tuple(x.shape)) in piece and str(x.dtype) in piece for piece in brought):
            raise CheckFailed(
                f"the error says {text!r}", f"rank {rank} to be named, with its {tuple(x.shape)} {x.dtype}"
            )
        if rank not in [0, *odd] and named:
            raise CheckFailed(f"the error says {text!r}", f"no mention of rank {rank}, which agrees with rank 0")
