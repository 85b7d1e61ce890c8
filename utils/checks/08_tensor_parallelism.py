"""The visible checks of lesson 08. Form: see registry.py.

The oracle is always one process on whole tensors, with autograd. See gradients.py for how the ranks run backward.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, gelu

from .. import track_memory
from ..cluster.collective_costs import Layout, cost
from ..kit.mlp import normal
from ..kit.transformer import attention, layer_norm, make_layer, mlp
from .answer import Answer, CheckFailed
from .equality import alike
from .gradients import (
    CLOSE,
    EXACT,
    blocks_for,
    calls_of,
    close,
    drive,
    expect_passes,
    expect_these,
    in_words,
    judge_rank,
    leaf,
    name_the_untouched,
    parts,
    per_rank,
    serial,
)
from .inputs import Draws
from .marking import check
from .runner import Runner, links
from .show import show
from .traffic import expect_all_waited, expect_time

Groups = list[list[int]] | None  # the ranks of each process group; None: one group of all ranks
View = Callable[[torch.Tensor], torch.Tensor]
Mistakes = dict[str, Any]  # {the mistake in words: the wrong value it leads to}


def added(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.add, tensors)


def peers_of(rank: int, groups: Groups, world_size: int) -> Sequence[int]:
    return next((members for members in groups or [] if rank in members), range(world_size))


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x @ w + b


# ---- part 1


def draw_shard(function: Callable[..., Any], rank: int, world_size: int, **same: int) -> dict[str, Any]:
    """A rank's shard, and the bytes of memory that it keeps alive."""
    shard = function(tp_rank=rank, tp_size=world_size, **same)
    nbytes = shard.untyped_storage().nbytes() if isinstance(shard, torch.Tensor) else 0
    return {"shard": shard.clone() if isinstance(shard, torch.Tensor) else shard, "bytes": nbytes}


def judge_shards(run: Runner, size: int, fan_in: int, fan_out: int, dim: int, seed: int) -> Answer:
    answer = run(size, through=draw_shard, fan_in=fan_in, fan_out=fan_out, dim=dim, seed=seed)

    def drawn(of_seed: int, rows: int, columns: int, fan: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=torch.Generator().manual_seed(of_seed)) / math.sqrt(fan)

    whole = drawn(seed, fan_in, fan_out, fan_in)
    shapes = [tuple(part.shape) for part in whole.chunk(size, dim)]
    for rank, result in list(enumerate(answer.results))[::-1]:
        mine = whole.chunk(size, dim)[rank]
        rows, columns = shapes[rank]
        mistakes = {
            "this rank's part before scaling: divide by the square root of fan_in": mine * fan_in**0.5,
            "this rank's part divided by fan_in: its square root keeps activations at their size": mine / fan_in**0.5,
            "this rank's part scaled by fan_out: a sum over fan_in products needs 1 / sqrt(fan_in)": mine
            * (fan_in / fan_out) ** 0.5,
            "this rank's part scaled by the inputs of the shard: all ranks' inputs enter the sum": mine
            * (fan_in / rows) ** 0.5,
            "rank 0's shard: this rank's is a different part": whole.chunk(size, dim)[0],
            "the whole weight: keep this rank's part": whole,
            "a shard drawn by itself with the same seed: that makes the shards of all ranks equal": drawn(
                seed, rows, columns, fan_in
            ),
            "a shard drawn by itself with the same seed, at its own scale: that makes the shards of all ranks equal": (
                drawn(seed, rows, columns, rows)
            ),
            "a shard drawn with its own seed: put together, the shards are not the weight of one process": drawn(
                seed + rank, rows, columns, fan_in
            ),
            "a part of a weight drawn with this rank's own seed: it doesn't fit the other ranks' parts": drawn(
                seed + rank, fan_in, fan_out, fan_in
            ).chunk(size, dim)[rank],
            "every t-th row or column: a part is a block of consecutive ones": whole[rank::size]
            if dim == 0
            else whole[:, rank::size],
        }
        other = whole.chunk(size, 1 - dim)
        if len(other) == size:
            mistakes["a part cut along the other dimension"] = other[rank]
        close(result["shard"], mine, rank, mistakes, rtol=1e-5)
    return answer


@check("shard-of-weight")
def shard_of_weight_values(run: Runner) -> None:
    judge_shards(run, 4, fan_in=8, fan_out=12, dim=1, seed=3)
    judge_shards(run, 2, fan_in=6, fan_out=4, dim=0, seed=1)


@check("shard-of-weight", judges="memory")
def shard_of_weight_memory(run: Runner) -> str:
    return judge_shard_memory(run, 4, fan_in=8, fan_out=12, dim=0)


def judge_shard_memory(run: Runner, size: int, fan_in: int, fan_out: int, dim: int) -> str:
    answer = judge_shards(run, size, fan_in, fan_out, dim, seed=2)
    wanted = fan_in * fan_out // size * 4
    for rank, result in enumerate(answer.results):
        if result["bytes"] > wanted:
            raise CheckFailed(
                f"rank {rank}'s shard keeps {result['bytes']} bytes alive",
                f"{wanted} bytes",
                "A slice is a view, and a view keeps the whole weight in memory: return a copy of it.",
            )
    return f"each shard keeps {wanted} bytes, 1/{size} of the weight."


@check("column-parallel")
def column_parallel_values(run: Runner) -> None:
    judge_column_parallel(run, 2, B=3, D=2, F=4)
    judge_column_parallel(run, 4, B=2, D=3, F=4)


def column_inputs(
    draws: Draws, size: int, B: int, D: int, F: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> dict[str, torch.Tensor]:
    x, w, b, grad = (
        draws.integers(shape, dtype, seed=10 * seed + n) for n, shape in enumerate([(B, D), (D, F), (F,), (B, F)])
    )
    return {"x": x, "w": w, "b": b, "grad": grad}


def judge_column_parallel(
    run: Runner,
    size: int,
    B: int,
    D: int,
    F: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    groups: Groups = None,
    order: list[int] | None = None,
) -> None:
    """order: each rank's position in its group, if there are groups."""
    whole = column_inputs(run.draws, size, B, D, F, dtype, seed)
    x, w, b, grad = whole.values()
    order = order or list(range(size))
    cut = {"w_local": parts(w, size, 1), "b_local": parts(b, size, 0), "grad_local": parts(grad, size, 1)}
    cut = {name: [shards[position] for position in order] for name, shards in cut.items()}
    given = per_rank(len(order), x=x, **cut)
    answer = run(len(order), given, [None] * len(order), through=drive, groups=groups)
    y, g = serial(linear, grad, x=x, w=w, b=b)
    for rank, result in enumerate(answer.results):
        name_the_untouched(result, rank)
        place, mine = order[rank], given[rank]
        partial_x = mine["grad_local"] @ mine["w_local"].T
        right = {
            "y_local": (
                y.chunk(size, 1)[place],
                {
                    "the product without the bias": x @ mine["w_local"],
                    "the whole y: return this rank's columns of it": y,
                },
            ),
            "grad_x": (
                g["x"],
                {
                    "the contribution of this rank's columns: x is used by the columns of all ranks": partial_x,
                    "the mean over the ranks: the gradients add up": g["x"] / size,
                },
            ),
            "grad_w_local": (
                g["w"].chunk(size, 1)[place],
                {
                    "the sum over the ranks: each rank has its own columns": sum(
                        x.T @ part for part in grad.chunk(size, 1)
                    ),
                    "its transpose": g["w"].chunk(size, 1)[place].T,
                },
            ),
            "grad_b_local": (
                g["b"].chunk(size, 0)[place],
                {
                    "this rank's `grad_local` itself: sum it over the batch": mine["grad_local"],
                    "the sum over the ranks: each rank has its own entries": sum(
                        part.sum(0) for part in grad.chunk(size, 1)
                    ),
                },
            ),
        }
        judge_four(result["output"], rank, right)


def judge_four(got: object, rank: int, right: Mapping[str, tuple[torch.Tensor, Mistakes]]) -> None:
    if not isinstance(got, tuple | list) or len(got) != len(right):
        raise CheckFailed(f"rank {rank} returned {show(got)}", f"{len(right)} tensors: {', '.join(right)}")
    for value, (name, (wanted, mistakes)) in zip(got, right.items(), strict=True):
        close(value, wanted, f"rank {rank}: {name} is", mistakes, rtol=1e-6)


@check("column-parallel", judges="traffic")
def column_parallel_traffic(run: Runner) -> str:
    whole = column_inputs(run.draws, 4, 2, 3, 8)
    return judge_by_hand_traffic(
        run,
        per_rank(
            4,
            x=whole["x"],
            w_local=parts(whole["w"], 4, 1),
            b_local=parts(whole["b"], 4, 0),
            grad_local=parts(whole["grad"], 4, 1),
        ),
        nbytes=2 * 3 * 4,
        of="x",
    )


def judge_by_hand_traffic(run: Runner, given: list[dict[str, Any]], nbytes: int, of: str) -> str:
    answer = run(len(given), given, [None] * len(given), through=drive)
    for rank in range(len(given)):
        expect_these(rank, [event for event in answer.events if event.rank == rank], [("all_reduce", nbytes)])
    expect_all_waited(answer)
    return f"one all_reduce, of {of}'s {nbytes} bytes, in the forward and backward pass together."


@check("row-parallel")
def row_parallel_values(run: Runner) -> None:
    judge_row_parallel(run, 2, B=3, F=4, D=2)
    judge_row_parallel(run, 4, B=2, F=4, D=3)


def row_inputs(
    draws: Draws, B: int, F: int, D: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> dict[str, torch.Tensor]:
    x, w, bias, grad = (
        draws.integers(shape, dtype, seed=10 * seed + 5 + n) for n, shape in enumerate([(B, F), (F, D), (D,), (B, D)])
    )
    return {"x": x, "w": w, "bias": bias + 1, "grad": grad}


def judge_row_parallel(
    run: Runner,
    size: int,
    B: int,
    F: int,
    D: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    groups: Groups = None,
    order: list[int] | None = None,
) -> None:
    x, w, bias, grad = row_inputs(run.draws, B, F, D, dtype, seed).values()
    order = order or list(range(size))
    cut = {"x_local": parts(x, size, 1), "w_local": parts(w, size, 0)}
    cut = {name: [shards[position] for position in order] for name, shards in cut.items()}
    given = per_rank(len(order), **cut, bias=bias, grad=grad)
    answer = run(len(order), given, [None] * len(order), through=drive, groups=groups)
    y, g = serial(lambda x, w, bias: x @ w + bias, grad, x=x, w=w, bias=bias)
    for rank, result in list(enumerate(answer.results))[::-1]:
        name_the_untouched(result, rank)
        place, mine = order[rank], given[rank]
        right = {
            "y": (
                y,
                {
                    "the sum without the bias, on this rank": x @ w,
                    f"the sum with the bias added {size} times, by every rank before the sum: add it once, after": y
                    + (size - 1) * bias,
                    "the product of this rank's rows: a partial sum, to be added up over the ranks": mine["x_local"]
                    @ mine["w_local"],
                    "the product of this rank's rows plus the bias: a partial sum, to be added up first": mine[
                        "x_local"
                    ]
                    @ mine["w_local"]
                    + bias,
                },
            ),
            "grad_x_local": (
                g["x"].chunk(size, 1)[place],
                {
                    "the sum over the ranks: each rank has its own features": sum(
                        grad @ part.T for part in w.chunk(size, 0)
                    ),
                    f"{size} times too large: every rank has all of grad, so add nothing up": size
                    * g["x"].chunk(size, 1)[place],
                },
            ),
            "grad_w_local": (
                g["w"].chunk(size, 0)[place],
                {
                    "its transpose": g["w"].chunk(size, 0)[place].T,
                    f"{size} times too large: every rank has all of grad, so add nothing up": size
                    * g["w"].chunk(size, 0)[place],
                },
            ),
            "grad_bias": (
                g["bias"],
                {
                    f"{size} times too large: every rank has all of grad, so add nothing up": size * g["bias"],
                    "grad itself: sum it over the batch": grad,
                    "a fraction of it: every rank has the whole bias, so it needs the whole gradient": g["bias"] / size,
                    "zero: every rank has the bias, and every copy needs its gradient": torch.zeros_like(bias),
                },
            ),
        }
        judge_four(result["output"], rank, right)


@check("row-parallel", judges="traffic")
def row_parallel_traffic(run: Runner) -> str:
    x, w, bias, grad = row_inputs(run.draws, 2, 8, 3).values()
    given = per_rank(4, x_local=parts(x, 4, 1), w_local=parts(w, 4, 0), bias=bias, grad=grad)
    return judge_by_hand_traffic(run, given, nbytes=2 * 3 * 4, of="y")


# ---- part 2


def in_a_sum(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """z = f(x) + (s + 2 x): the gradient f gets is also that of the other summand, and x is used outside f, too."""

    def added(x: torch.Tensor, s: torch.Tensor, **known: Any) -> torch.Tensor:
        other = s + 2 * x
        result: torch.Tensor = function(x, **known)
        return result + other

    return added


@check("copy-to-shards")
def copy_to_shards_values(run: Runner) -> None:
    judge_copy(run, 4, (2, 3))


def judge_copy(
    run: Runner,
    size: int,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    groups: Groups = None,
    order: list[int] | None = None,
    spread: View = lambda x: x,
) -> None:
    """spread: a view of a gradient, with other strides."""
    order = order or list(range(size))
    x, s = run.draws.integers(shape, dtype, seed=1), run.draws.integers(shape, dtype, seed=2)
    grads = [spread(run.draws.integers(shape, dtype, seed=20 + place) + 10 * (place + 1)) for place in order]
    given = per_rank(len(order), x=x, s=s)
    answer = run(len(order), given, grads, through=drive, groups=groups, around=in_a_sum)
    for rank, result in enumerate(answer.results):
        total = added(grads[peer] for peer in peers_of(rank, groups, size))
        mistakes = {
            "x": {
                "this rank's own part: x is used on all ranks, so sum their gradients": 3 * grads[rank],
                "the mean over the ranks: gradients add up": total / size + 2 * grads[rank],
                f"summed twice, {size} times too large": size * total + 2 * grads[rank],
                "the sum of x's gradient outside f, too: sum only the gradient that comes back through f": 3 * total,
            },
            "s": {
                "the sum over the ranks, though s did not go through f: you overwrote the tensor that backward was "
                "given. It is not yours": total
            },
            "output": {f"{size} times x: forward hands on x as it is": (size + 2) * x + s},
        }
        judge_rank(result, rank, 3 * x + s, {"s": grads[rank], "x": total + 2 * grads[rank]}, mistakes, EXACT)


@check("copy-to-shards", judges="traffic")
def copy_to_shards_traffic(run: Runner) -> str:
    return judge_copy_traffic(run, 4, (2, 3))


def judge_copy_traffic(run: Runner, size: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> str:
    x, grad = run.draws.integers(shape, dtype, seed=1), run.draws.integers(shape, dtype, seed=2)
    answer = run(size, per_rank(size, x=x), [grad] * size, through=drive)
    for rank, result in enumerate(answer.results):
        judge_rank(result, rank, x, {}, {"output": {f"{size} times x: forward hands on x as it is": size * x}}, EXACT)
    return expect_passes(answer, [], [("all_reduce", x.nbytes)])


@check("reduce-from-shards")
def reduce_from_shards_values(run: Runner) -> None:
    judge_reduce(run, 4, (2, 3))
    judge_reduce(run, 2, (2, 3), spread=lambda x: x[:, ::2])


def judge_reduce(
    run: Runner,
    size: int,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    groups: Groups = None,
    spread: View = lambda x: x,
) -> None:
    ranks = range(size if groups is None else sum(map(len, groups)))
    xs = [spread(run.draws.integers(shape, dtype, seed=20 + rank) + 10 * (rank + 1)) for rank in ranks]
    grad = spread(run.draws.integers(shape, dtype, seed=3))
    answer = run(len(ranks), per_rank(len(ranks), x_partial=xs), [grad] * len(ranks), through=drive, groups=groups)
    for rank, result in enumerate(answer.results):
        total = added(xs[peer] for peer in peers_of(rank, groups, size))
        mistakes = {
            "output": {
                "this rank's own summand: the sum is in a different tensor from the one you return": xs[rank],
                "the mean over the ranks: partial sums add up": total / size,
            },
            "x_partial": {
                f"{size} times too large: all ranks compute one and the same loss, so it counts once": size * grad,
                "a fraction of it: each summand enters the sum once, with factor 1": grad / size,
            },
        }
        judge_rank(result, rank, total, {"x_partial": grad}, mistakes, EXACT)


@check("reduce-from-shards", judges="traffic")
def reduce_from_shards_traffic(run: Runner) -> str:
    return judge_reduce_traffic(run, 4, (2, 3))


def judge_reduce_traffic(run: Runner, size: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> str:
    x, grad = run.draws.integers(shape, dtype, seed=1), run.draws.integers(shape, dtype, seed=2)
    answer = run(size, per_rank(size, x_partial=x), [grad] * size, through=drive)
    for rank, result in enumerate(answer.results):
        judge_rank(result, rank, size * x, {}, rtol=EXACT)
    return expect_passes(answer, [("all_reduce", x.nbytes)], [])


@check("gather-from-shards")
def gather_from_shards_values(run: Runner) -> None:
    judge_gather(run, 4, (3, 2))
    judge_gather(run, 2, (2, 1, 3))


def judge_gather(
    run: Runner,
    size: int,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    groups: Groups = None,
    spread: View = lambda x: x,
) -> None:
    ranks = range(size if groups is None else sum(map(len, groups)))
    xs = [spread(run.draws.integers(shape, dtype, seed=20 + rank) + 10 * (rank + 1)) for rank in ranks]
    grad = run.draws.integers((*xs[0].shape[:-1], size * xs[0].shape[-1]), dtype, seed=3)
    answer = run(len(ranks), per_rank(len(ranks), x_local=xs), [grad] * len(ranks), through=drive, groups=groups)
    for rank, result in list(enumerate(answer.results))[::-1]:
        peers = peers_of(rank, groups, size)
        mine = grad.chunk(size, -1)[peers.index(rank)]
        whole = torch.cat([xs[peer] for peer in peers], dim=-1)
        mistakes: dict[str, Mistakes] = {
            "output": {
                "the shards joined along dimension 0: features are the last dimension": torch.cat(
                    [xs[p] for p in peers], 0
                ),
                "this rank's own shard in every place": torch.cat([xs[rank]] * size, -1),
                "the shards stacked: put them side by side": torch.stack([xs[p] for p in peers]),
                "the sum of the shards: put them side by side": sum(xs[p] for p in peers),
            },
            "x_local": {
                f"{size} times too large: every rank already has the same gradient, so add nothing up": size * mine,
                "rank 0's slice: this rank's is a different one": grad.chunk(size, -1)[0],
                "a fraction of it: this rank's numbers are in the result once": mine / size,
                "a slice cut along dimension 0: features are the last dimension": grad.chunk(size, 0)[
                    min(peers.index(rank), len(grad.chunk(size, 0)) - 1)
                ],
            },
        }
        judge_rank(result, rank, whole, {"x_local": mine}, mistakes, EXACT)


@check("gather-from-shards", judges="traffic")
def gather_from_shards_traffic(run: Runner) -> str:
    return judge_gather_traffic(run, 4, (2, 3))


def judge_gather_traffic(run: Runner, size: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> str:
    x = run.draws.integers(shape, dtype, seed=1)
    grad = run.draws.integers((*shape[:-1], size * shape[-1]), dtype, seed=2)
    answer = run(size, per_rank(size, x_local=x), [grad] * size, through=drive)
    for rank, result in enumerate(answer.results):
        judge_rank(result, rank, torch.cat([x] * size, -1), {}, rtol=EXACT)
    return expect_passes(answer, [("all_gather", x.nbytes)], [], "Every rank already had the whole gradient.")


# ---- part 3


def mlp_inputs(
    size: int, shape: tuple[int, ...], F: int, seed: int = 0
) -> tuple[dict[str, torch.Tensor], dict[str, Any], torch.Tensor]:
    """(whole tensors, each rank's inputs as for per_rank, the gradient of y) in float64. shape: of x, (..., D)."""
    weights = make_layer(shape[-1], F, seed=seed, dtype=torch.float64)
    whole = {"x": normal(seed + 1, *shape)} | {name: weights[name] for name in ("w_up", "b_up", "w_down", "b_down")}
    whole["b_down"] = whole["b_down"] + 1
    given = {
        "x": whole["x"],
        "w_up_local": parts(whole["w_up"], size, 1),
        "b_up_local": parts(whole["b_up"], size, 0),
        "w_down_local": parts(whole["w_down"], size, 0),
        "b_down": whole["b_down"],
    }
    return whole, given, normal(seed + 2, *shape)


@check("megatron-mlp")
def megatron_mlp_values(run: Runner) -> None:
    judge_mlp(run, 4, (3, 4), F=8)


def judge_mlp(run: Runner, size: int, shape: tuple[int, ...], F: int, seed: int = 0) -> None:
    whole, given, grad = mlp_inputs(size, shape, F, seed)
    answer = run(size, per_rank(size, **given), [grad] * size, through=drive)
    y, right = serial(mlp, grad, **whole)
    without_gelu, _ = serial(lambda x, w_up, b_up, w_down, b_down: (x @ w_up + b_up) @ w_down + b_down, grad, **whole)
    no_bias_up, _ = serial(lambda x, w_up, b_up, w_down, b_down: gelu(x @ w_up) @ w_down + b_down, grad, **whole)
    all_down = sum(given["w_down_local"])
    for rank, result in enumerate(answer.results):
        w_up, w_down = given["w_up_local"][rank], given["w_down_local"][rank]
        b_up = given["b_up_local"][rank]
        one_x = serial(lambda x, w, b, v: gelu(x @ w + b) @ v, grad, x=whole["x"], w=w_up, b=b_up, v=w_down)
        late = serial(lambda x, w, b, v: gelu(x @ w + b) @ v, grad, x=whole["x"], w=w_up, b=b_up, v=all_down)
        gradients = {
            "b_down": right["b_down"],
            "x": right["x"],
            "w_up_local": right["w_up"].chunk(size, 1)[rank],
            "b_up_local": right["b_up"].chunk(size, 0)[rank],
            "w_down_local": right["w_down"].chunk(size, 0)[rank],
        }
        mistakes = {
            "output": {
                f"y with b_down added {size} times: it belongs after g, once": y + (size - 1) * whole["b_down"],
                "y without b_down": y - whole["b_down"],
                "the output of this rank's rows: a partial sum. Where is g?": one_x[0],
                "the output of this rank's rows plus b_down: a partial sum. Where is g?": one_x[0] + whole["b_down"],
                "y without gelu": without_gelu,
                "y without b_up": no_bias_up,
            },
            "x": {
                "the contribution of this rank's columns: f is missing": one_x[1]["x"],
                "the gradient with f after the product: f belongs where x enters": late[1]["x"],
                f"{size} times too large: f sums it over the ranks once": size * right["x"],
            },
            "b_down": {
                f"{size} times too large: b_down's gradient was summed over the ranks, but every rank has all of it": (
                    size * right["b_down"]
                ),
                "zero: only one rank uses b_down, so the other ranks' copies never learn": torch.zeros_like(
                    right["b_down"]
                ),
            },
        }
        for name in ("w_up_local", "b_up_local", "w_down_local"):
            mistakes[name] = {f"{size} times too large: g passes its gradient on, once": size * gradients[name]}
        judge_rank(result, rank, y, gradients, mistakes)


@check("megatron-mlp", judges="traffic")
def megatron_mlp_traffic(run: Runner) -> str:
    return judge_mlp_traffic(run, 4, (3, 4), F=8)


def judge_mlp_traffic(run: Runner, size: int, shape: tuple[int, ...], F: int) -> str:
    _, given, grad = mlp_inputs(size, shape, F)
    answer = run(size, per_rank(size, **given), [grad] * size, through=drive)
    one = [("all_reduce", given["x"].nbytes)]
    return expect_passes(answer, one, one)


@check("megatron-mlp", judges="time")
def megatron_mlp_time(run: Runner) -> str:
    return judge_mlp_time(run, 4, (8, 16), F=32, alpha=1e-6, bandwidth=1e9)


def judge_mlp_time(run: Runner, size: int, shape: tuple[int, ...], F: int, alpha: float, bandwidth: float) -> str:
    whole, given, grad = mlp_inputs(size, shape, F)
    cluster = links(size, alpha=alpha, bandwidth=bandwidth)
    answer = run.virtual(size, per_rank(size, **given), [grad] * size, through=drive, cluster=cluster, device="cpu")
    y, right = serial(mlp, grad, **whole)
    for rank, result in enumerate(answer.results):
        judge_rank(result, rank, y, {"x": right["x"]})
    layout = Layout.of(cluster, range(size))
    one = cost("all_reduce", given["x"].nbytes, cluster, layout).seconds
    wide = cost("all_reduce", size * given["w_up_local"][0].shape[1] * 8 * shape[0], cluster, layout).seconds
    return expect_time(
        answer,
        2 * one,
        recognise={"the time with one more all_reduce": 3 * one, "the time with h summed, too": 2 * one + wide},
    )


# ---- part 4


def embedding_inputs(
    draws: Draws, size: int, rows: int, D: int, tokens: torch.Tensor, dtype: torch.dtype = torch.float32
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    table = draws.integers((size * rows, D), dtype, seed=7) + 10 * torch.arange(1, size * rows + 1)[:, None].to(dtype)
    return {"tokens": tokens, "table": table}, draws.integers((*tokens.shape, D), dtype, seed=8)


EVERY_EDGE = torch.tensor([[0, 2, 3, 5, 5], [6, 8, 9, 11, 3]])  # first and last rows of 4 ranks with 3 rows each


@check("parallel-embedding")
def parallel_embedding_values(run: Runner) -> None:
    judge_embedding(run, 4, 3, D=2, tokens=EVERY_EDGE)


def judge_embedding(
    run: Runner, size: int, rows: int, D: int, tokens: torch.Tensor, dtype: torch.dtype = torch.float32
) -> None:
    whole, grad = embedding_inputs(run.draws, size, rows, D, tokens, dtype)
    table = whole["table"]
    given = per_rank(size, tokens=tokens, table_local=parts(table, size, 0))
    answer = run(size, given, [grad] * size, through=drive)
    y, right = serial(lambda tokens, table: table[tokens], grad, **whole)
    index = tokens[None] - rows * torch.arange(size).view(-1, *[1] * tokens.dim())  # of each rank
    looked_up = [shard[at.clamp(0, rows - 1)] for shard, at in zip(table.chunk(size), index, strict=True)]

    def found(rank: int, low: int = 0, high: int = 0) -> torch.Tensor:
        """A rank's lookups if it thinks its rows start `low` and end `high` later than they do."""
        mine = (index[rank] >= low) & (index[rank] < rows + high)
        return torch.where(mine.unsqueeze(-1), looked_up[rank], 0).to(dtype)

    def summed(low: int, high: int) -> torch.Tensor:
        return added(found(rank, low, high) for rank in range(size))

    for rank, result in enumerate(answer.results):
        local = right["table"].chunk(size)[rank]
        mistakes: dict[str, Mistakes] = {
            "output": {
                "this rank's lookups: add them up over the ranks": found(rank),
                "the sum of all lookups, those of other ranks' tokens included: put zeros there": sum(looked_up),
                "off by one at the end of a rank's rows: the row after its last counts as its own": summed(0, 1),
                "off by one at the start of a rank's rows: the row before its first counts as its own": summed(-1, 0),
                "off by one at the end of a rank's rows: its last row belongs to no rank": summed(0, -1),
                "off by one at the start of a rank's rows: its first row belongs to no rank": summed(1, 0),
            },
            "table_local": {
                f"{size} times too large: g passes the gradient on, once": size * local,
                "the gradient of all tokens, other ranks' included": torch.zeros_like(local).index_add_(
                    0, index[rank].clamp(0, rows - 1).flatten(), grad.flatten(0, -2)
                ),
            },
        }
        judge_rank(result, rank, y, {"table_local": local}, mistakes, EXACT)


@check("parallel-embedding", judges="traffic")
def parallel_embedding_traffic(run: Runner) -> str:
    return judge_embedding_traffic(run, 4, 3, D=2, tokens=EVERY_EDGE)


def judge_embedding_traffic(run: Runner, size: int, rows: int, D: int, tokens: torch.Tensor) -> str:
    whole, grad = embedding_inputs(run.draws, size, rows, D, tokens)
    given = per_rank(size, tokens=tokens, table_local=parts(whole["table"], size, 0))
    answer = run(size, given, [grad] * size, through=drive)
    return expect_passes(answer, [("all_reduce", grad.nbytes)], [])


def entropy_inputs(
    size: int, N: int, words: int, scale: float = 1.0, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits, targets); the targets are the first and last words of ranks, the largest logits all on one rank."""
    V = size * words
    logits = scale * normal(seed + 3, N, V)
    edges = [edge for rank in range(size) for edge in (rank * words, (rank + 1) * words - 1)]
    targets = torch.tensor([edges[(5 * n + 1) % len(edges)] for n in range(N)])
    return logits, targets


@check("parallel-cross-entropy")
def parallel_cross_entropy_values(run: Runner) -> None:
    judge_entropy(run, 4, *entropy_inputs(4, 6, 3))
    judge_entropy(run, 2, *entropy_inputs(2, 3, 2, scale=1000.0))


def judge_entropy(run: Runner, size: int, logits: torch.Tensor, targets: torch.Tensor) -> None:
    words = logits.shape[-1] // size
    shards = parts(logits, size, -1)
    one = torch.tensor(1.0, dtype=logits.dtype)
    given = per_rank(size, logits_local=shards, targets=targets)
    answer = run(size, given, [one] * size, through=drive)
    loss, right = serial(lambda logits, targets: cross_entropy(logits, targets), one, logits=logits, targets=targets)
    largest = logits.max(-1).values

    def of_target(masked_by: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The target's shifted logit, if each rank took as its own the targets that `masked_by` selects."""
        found = torch.zeros_like(largest)
        for rank, shard in enumerate(shards):
            index = targets - rank * words
            value = (shard - largest[:, None]).gather(-1, index.clamp(0, words - 1)[:, None])[:, 0]
            found += torch.where(masked_by(index), value, 0)
        return found

    total = (logits - largest[:, None]).exp().sum(-1)
    wrong = {
        "the loss without a mask: a rank that doesn't have the target adds 0": of_target(lambda i: i == i),
        "the loss with a target counted twice: off by one at the end of a rank's words": of_target(
            lambda i: (i >= 0) & (i <= words)
        ),
        "the loss with a target left out: off by one at the start of a rank's words": of_target(
            lambda i: (i > 0) & (i < words)
        ),
        "the loss with a target left out: off by one at the end of a rank's words": of_target(
            lambda i: (i >= 0) & (i < words - 1)
        ),
    }
    shared = {words_: (total.log() - found).mean() for words_, found in wrong.items()}
    shared["the sum of the losses: return their mean"] = loss * len(targets)
    shared["the loss with the target's original logit: subtract the maximum there too"] = loss - largest.mean()
    one_hot = torch.nn.functional.one_hot(targets, logits.shape[-1]).to(logits.dtype)
    local = [shard.max(-1).values for shard in shards]
    own_total = added((shard - m[:, None]).exp().sum(-1) for shard, m in zip(shards, local, strict=True))
    for rank, result in enumerate(answer.results):
        index = targets - rank * words
        mine = index == index.clamp(0, words - 1)
        shifted = shards[rank] - largest[:, None]
        own = shifted.gather(-1, index.clamp(0, words - 1)[:, None])[:, 0]
        unshared = sum(
            torch.where(
                (targets - r * words >= 0) & (targets - r * words < words),
                (shards[r] - local[r][:, None]).gather(-1, (targets - r * words).clamp(0, words - 1)[:, None])[:, 0],
                0,
            )
            for r in range(size)
        )
        mistakes = {
            "output": {
                **shared,
                "the loss if each rank subtracts its own maximum: all must subtract the same": (
                    own_total.log() - unshared
                ).mean(),
                "the loss without the sum over the other ranks' words": (
                    shifted.exp().sum(-1).log() - of_target(lambda i: (i >= 0) & (i < words))
                ).mean(),
                "the loss with the target's logit of this rank alone: the ranks without the target need it, too": (
                    total.log() - torch.where(mine, own, 0)
                ).mean(),
            },
            "logits_local": {
                "the gradient of the target's logit alone: autograd does not see the sum over the words. Where is g?": (
                    -one_hot.chunk(size, -1)[rank] / len(targets)
                ),
                "the gradient of the sum alone: autograd does not see the target's logit. Where is g?": (
                    logits.softmax(-1).chunk(size, -1)[rank] / len(targets)
                ),
                f"{size} times too large: g passes its gradient on, once": size * right["logits"].chunk(size, -1)[rank],
            },
        }
        judge_rank(result, rank, loss, {"logits_local": right["logits"].chunk(size, -1)[rank]}, mistakes)


@check("parallel-cross-entropy", judges="traffic")
def parallel_cross_entropy_traffic(run: Runner) -> str:
    return judge_entropy_traffic(run, 4, *entropy_inputs(4, 6, 50))


def judge_entropy_traffic(run: Runner, size: int, logits: torch.Tensor, targets: torch.Tensor) -> str:
    """3 N numbers through all-reduces, in any number of calls."""
    given = per_rank(size, logits_local=parts(logits, size, -1), targets=targets)
    one = torch.tensor(1.0, dtype=logits.dtype)
    answer = run(size, given, [one] * size, through=drive)
    N, word = len(targets), logits.element_size()
    for rank in range(size):
        forward, backward = calls_of(answer, rank)
        if backward:
            raise CheckFailed(
                f"rank {rank} called {in_words([(event.op, event.bytes) for event in backward])} in the backward pass",
                "nothing",
                "Each rank already has all it needs for the gradient of its own logits.",
            )
        got = sum(event.bytes for event in forward)
        if {event.op for event in forward} != {"all_reduce"} or got != 3 * N * word:
            calls = [(event.op, event.bytes) for event in forward]
            raise CheckFailed(
                f"rank {rank} called {in_words(calls)}",
                f"all_reduces of {3 * N * word:,} bytes in all",
                f"{got / (3 * N * word):.3g} times the bytes needed: a maximum, a sum and the target's logit "
                "for each token, and no other logits."
                if got > 3 * N * word
                else "Less than needed: a maximum, a sum and the target's logit for each token."
                if got < 3 * N * word
                else "Three reductions will do: no rank needs the other ranks' individual numbers.",
            )
    expect_all_waited(answer)
    return (
        f"all_reduces of 3 numbers per token, {3 * N * word:,} bytes; a rank's logits take {logits.nbytes // size:,}."
    )


def attention_inputs(size: int, B: int, S: int, D: int, seed: int = 0) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    weights = make_layer(D, D, seed=seed, dtype=torch.float64)
    return {"x": normal(seed + 4, B, S, D), "w_qkv": weights["w_qkv"], "w_out": weights["w_out"]}, normal(
        seed + 5, B, S, D
    )


@check("parallel-attention")
def parallel_attention_values(run: Runner) -> None:
    judge_attention(run, 2, B=2, S=3, D=8, heads=4)


def judge_attention(run: Runner, size: int, B: int, S: int, D: int, heads: int, seed: int = 0) -> None:
    whole, grad = attention_inputs(size, B, S, D, seed)
    answer = run(size, per_rank(size, **whole), [grad] * size, through=drive, num_heads=heads)
    y, right = serial(partial(attention, num_heads=heads), grad, **whole)

    w_local = [torch.cat([part.chunk(size, 1)[r] for part in whole["w_qkv"].chunk(3, 1)], 1) for r in range(size)]
    rows = whole["w_out"].chunk(size, 0)
    some = partial(attention, num_heads=heads // size)
    local = [serial(some, grad, x=whole["x"], w_qkv=w, w_out=v) for w, v in zip(w_local, rows, strict=True)]
    blocks = sum(some(whole["x"], w, v) for w, v in zip(whole["w_qkv"].chunk(size, 1), rows, strict=True))
    same_rows = sum(some(whole["x"], w, rows[0]) for w in w_local)
    for rank, result in enumerate(answer.results):
        mistakes: dict[str, Mistakes] = {
            "output": {
                "the output of this rank's heads: a partial sum. Where is g?": local[rank][0],
                f"{size} times too large: each rank computes all heads": size * y,
                "the output if w_qkv is cut into blocks of neighbouring columns: then rank 0 has mostly q": blocks,
                "the output if every rank takes rank 0's rows of w_out": same_rows,
            },
            "x": {
                "the contribution of this rank's heads: where is f?": local[rank][1]["x"],
                f"{size} times too large: f sums it over the ranks once": size * right["x"],
            },
        }
        judge_rank(result, rank, y, {"x": right["x"]}, mistakes)
    for name in ("w_qkv", "w_out"):
        expect_parts(answer, name, right[name])


def expect_parts(answer: Answer, name: str, wanted: torch.Tensor) -> None:
    """The ranks' gradients of a whole weight: each has a part, and together they are the gradient."""
    got = [result["gradients"].get(name) for result in answer.results]
    for rank, gradient in enumerate(got):
        if gradient is None or gradient.shape != wanted.shape:
            raise CheckFailed(
                f"rank {rank}: the gradient of {name} is {show(gradient, wanted)}", f"shape {tuple(wanted.shape)}"
            )
    close(sum(got), wanted, f"the gradients of {name}, of all ranks together, are", {}, CLOSE)
    used = torch.stack([gradient != 0 for gradient in got]).sum(0)
    if bool((used > 1).any()):
        raise CheckFailed(
            f"{int((used > 1).sum())} numbers of {name} have a gradient on more than one rank",
            "each on one rank",
            "A rank uses only its own heads' part of the weights.",
        )


@check("parallel-attention", judges="traffic")
def parallel_attention_traffic(run: Runner) -> str:
    return judge_attention_traffic(run, 2, B=2, S=3, D=8, heads=4)


def judge_attention_traffic(run: Runner, size: int, B: int, S: int, D: int, heads: int) -> str:
    whole, grad = attention_inputs(size, B, S, D)
    answer = run(size, per_rank(size, **whole), [grad] * size, through=drive, num_heads=heads)
    one = [("all_reduce", whole["x"].nbytes)]
    return expect_passes(answer, one, one)


# ---- part 5


@check("across-sequence")
def across_sequence_values(run: Runner) -> None:
    judge_across(run, 4, (2, 1, 3))
    judge_across(run, 2, (1, 2, 3))


def judge_across(
    run: Runner,
    size: int,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    groups: Groups = None,
    spread: View = lambda x: x,
) -> None:
    """shape: of a rank's shard, (B, S/t, D)."""
    for direction in ("gather", "scatter"):
        judge_direction(run, direction, size, shape, dtype, groups, spread)


def judge_direction(
    run: Runner, direction: str, size: int, shape: tuple[int, ...], dtype: torch.dtype, groups: Groups, spread: View
) -> None:
    ranks = range(size if groups is None else sum(map(len, groups)))
    long = (shape[0], size * shape[1], shape[2])
    entering, leaving = (shape, long) if direction == "gather" else (long, shape)
    xs = [spread(run.draws.integers(entering, dtype, seed=20 + rank) + 10 * (rank + 1)) for rank in ranks]
    grads = [run.draws.integers(leaving, dtype, seed=40 + rank) + 10 * (rank + 1) for rank in ranks]
    answer = run(len(ranks), per_rank(len(ranks), x=xs), grads, through=drive, direction=direction, groups=groups)
    for rank, result in list(enumerate(answer.results))[::-1]:
        peers = peers_of(rank, groups, size)
        place = peers.index(rank)

        def gathered(values: list[torch.Tensor], dim: int = 1, peers: Sequence[int] = peers) -> torch.Tensor:
            return torch.cat([values[peer] for peer in peers], dim)

        def scattered(
            values: list[torch.Tensor], dim: int = 1, peers: Sequence[int] = peers, place: int = place
        ) -> torch.Tensor:
            chunks = added(values[peer] for peer in peers).chunk(size, dim)
            return chunks[min(place, len(chunks) - 1)]

        joined, summed = (xs, grads) if direction == "gather" else (grads, xs)  # to be joined, to be summed
        joins = {
            "the tokens joined along another dimension: tokens are dimension 1": gathered(joined, 0),
            "the tokens joined along the last dimension: tokens are dimension 1": gathered(joined, -1),
            "this rank's own tokens, with zeros for the others: every rank's tokens belong there": padded(
                joined[rank], size, place
            ),
        }
        sums = {
            "a slice of this rank's own tensor: add the partial sums first": summed[rank].chunk(size, 1)[place],
            "the mean: partial sums add up": scattered(summed) / size,
            "a slice along another dimension: tokens are dimension 1": scattered(summed, 0),
            "rank 0's tokens: this rank's are different ones": added(summed[peer] for peer in peers).chunk(size, 1)[0],
        }
        names = ("output", "x") if direction == "gather" else ("x", "output")
        right = dict(zip(names, (gathered(joined), scattered(summed)), strict=True))
        mistakes = dict(zip(names, (joins, sums), strict=True))
        judge_rank(result, rank, right["output"], {"x": right["x"]}, mistakes, EXACT)


def padded(x: torch.Tensor, size: int, place: int) -> torch.Tensor:
    return torch.cat([x if rank == place else torch.zeros_like(x) for rank in range(size)], 1)


@check("across-sequence", judges="traffic")
def across_sequence_traffic(run: Runner) -> str:
    return judge_across_traffic(run, 4, (2, 1, 3))


def judge_across_traffic(run: Runner, size: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> str:
    local = run.draws.integers(shape, dtype, seed=1)
    long = run.draws.integers((shape[0], size * shape[1], shape[2]), dtype, seed=2)
    gather, scatter = [("all_gather", local.nbytes)], [("reduce_scatter", long.nbytes)]
    answer = run(size, per_rank(size, x=local), [long] * size, through=drive, direction="gather")
    expect_passes(answer, gather, scatter)
    answer = run(size, per_rank(size, x=long), [local] * size, through=drive, direction="scatter")
    expect_passes(answer, scatter, gather)
    return "gather: all_gather forward, reduce_scatter backward; scatter: the other way round."


def sequence_inputs(
    size: int, B: int, S: int, D: int, F: int, seed: int = 0
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]], torch.Tensor]:
    """(whole tensors, each rank's inputs, the gradient of y)."""
    whole, given, grad = mlp_inputs(size, (B, S, D), F, seed)
    weights = make_layer(D, F, seed=seed + 1, dtype=torch.float64)
    norms = {"norm_weight": weights["norm1_weight"], "norm_bias": weights["norm1_bias"]}
    given = {"x_local": parts(given.pop("x"), size, 1), **norms, **given}
    return whole | norms, per_rank(size, **given), grad


def half_a_layer(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    w_up: torch.Tensor,
    b_up: torch.Tensor,
    w_down: torch.Tensor,
    b_down: torch.Tensor,
) -> torch.Tensor:
    return x + mlp(layer_norm(x, norm_weight, norm_bias), w_up, b_up, w_down, b_down)


SHARED = ("norm_weight", "norm_bias", "b_down")  # whole on every rank


@check("sequence-parallel-mlp")
def sequence_parallel_mlp_values(run: Runner) -> None:
    judge_sequence_mlp(run, 2, B=2, S=4, D=4, F=8)


def judge_sequence_mlp(run: Runner, size: int, B: int, S: int, D: int, F: int, seed: int = 0) -> None:
    whole, given, grad = sequence_inputs(size, B, S, D, F, seed)
    grads = parts(grad, size, 1)
    answer = run(size, given, grads, through=drive)
    y, right = serial(half_a_layer, grad, **whole)
    no_residual = y - whole["x"]
    for rank, result in enumerate(answer.results):
        mine, tokens = y.chunk(size, 1)[rank], slice(rank * S // size, (rank + 1) * S // size)
        gradients = {
            **{name: right[name] for name in SHARED},
            "x_local": right["x"].chunk(size, 1)[rank],
            "w_up_local": right["w_up"].chunk(size, 1)[rank],
            "b_up_local": right["b_up"].chunk(size, 0)[rank],
            "w_down_local": right["w_down"].chunk(size, 0)[rank],
        }
        mistakes = {
            "output": {
                f"y with b_down added {size} times: it belongs after scatter, once": mine
                + (size - 1) * whole["b_down"],
                "y without b_down": mine - whole["b_down"],
                "y without the residual x": no_residual[:, tokens],
                f"y with x added {size} times: x bypasses gather and scatter and goes straight to y": mine
                + (size - 1) * whole["x"][:, tokens],
                "the whole y: return this rank's tokens": y,
            },
            "x_local": {
                "the gradient without the part that bypasses the MLP": gradients["x_local"] - grads[rank],
                f"{size} times too large": size * gradients["x_local"],
                "the gradient mixed with those of other ranks' tokens: f is for weights only": grads[rank]
                + sum((right["x"] - grad).chunk(size, 1)),
            },
        }
        for name in SHARED:
            mistakes[name] = {
                "the contribution of this rank's tokens: every rank has used its copy for its own tokens, so the "
                "gradients must be summed over the ranks": own_share(whole, grad, name, tokens),
                f"{size} times too large: it has already been summed over the ranks": size * right[name],
            }
        judge_rank(result, rank, mine, gradients, mistakes)


def own_share(whole: dict[str, torch.Tensor], grad: torch.Tensor, name: str, tokens: slice) -> torch.Tensor:
    """The gradient of a shared weight if only one rank's tokens count, after the sharded region's own sum."""
    mine = torch.zeros_like(grad)
    mine[:, tokens] = 1
    leaf_ = whole[name].detach().clone().requires_grad_()
    w = whole | {name: leaf_}
    if name == "b_down":
        return (grad * mine).sum((0, 1))
    h = layer_norm(w["x"], w["norm_weight"], w["norm_bias"])
    of_h = serial(mlp, grad, x=h.detach(), **{n: whole[n] for n in ("w_up", "b_up", "w_down", "b_down")})[1]["x"]
    return torch.autograd.grad(h, leaf_, of_h * mine)[0]


@check("sequence-parallel-mlp", judges="traffic")
def sequence_parallel_mlp_traffic(run: Runner) -> str:
    return judge_sequence_traffic(run, 2, B=2, S=4, D=4, F=8)


def judge_sequence_traffic(run: Runner, size: int, B: int, S: int, D: int, F: int) -> str:
    """The shared weights may take any number of all_reduces; the other calls are fixed."""
    _, given, grad = sequence_inputs(size, B, S, D, F)
    answer = run(size, given, parts(grad, size, 1), through=drive)
    long, short, small = grad.nbytes, grad.nbytes // size, 3 * D * 8
    for rank in range(size):
        forward, backward = calls_of(answer, rank)
        sums = sum(event.bytes for event in backward if event.op == "all_reduce")
        moves = sorted((event.op, event.bytes) for event in backward if event.op != "all_reduce")
        seen = sorted((event.op, event.bytes) for event in forward)
        if seen != [("all_gather", short), ("reduce_scatter", long)]:
            raise CheckFailed(
                f"rank {rank} called {in_words(seen)} in the forward pass",
                f"{in_words([('all_gather', short), ('reduce_scatter', long)])} in the forward pass",
                "One gather where the MLP begins, one scatter where it ends, and nothing else.",
            )
        if moves != [("all_gather", short), ("reduce_scatter", long)] or sums != small:
            raise CheckFailed(
                f"rank {rank} called {in_words([(e.op, e.bytes) for e in backward])} in the backward pass",
                f"all_gather of {short:,} bytes, reduce_scatter of {long:,} bytes, all_reduces of {small:,} in all",
                f"The all_reduces are for norm_weight, norm_bias and b_down, {D} numbers each.",
            )
    return "one gather and one scatter in each direction, and the sums for 3 shared vectors."


def saved_bytes(function: Callable[..., Any], given: dict[str, Any], rank: int, world_size: int) -> int:
    """Bytes that autograd saves for backward, weights excluded. The function gets its tensors as in `drive`."""
    leaves = {name: leaf(x, True) for name, x in given.items()}
    known = blocks_for(dist.group.WORLD)
    known = {name: value for name, value in known.items() if name in inspect.signature(function).parameters}
    weights = torch.nn.ParameterList([x for name, x in leaves.items() if name != "x_local"])
    with track_memory(weights) as storages:
        output = function(**leaves, **known)
        return storages.by_kind().get("activations", 0) if output is not None else 0


@check("sequence-parallel-mlp", judges="memory")
def sequence_parallel_mlp_memory(run: Runner) -> str:
    return judge_kept(run, 4, B=2, S=64, D=16, F=64)


def judge_kept(run: Runner, size: int, B: int, S: int, D: int, F: int) -> str:
    judge_sequence_mlp(run, size, B, 2 * size, D, F)  # a wrong function must not pass because it saves less
    _, given, _ = sequence_inputs(size, B, S, D, F)
    cluster = links(size, alpha=1e-6, bandwidth=1e9)
    saved = run.virtual(size, given, through=saved_bytes, cluster=cluster, device="cpu").results
    tokens, word = B * S, 8
    shard, whole, hidden = (word * tokens * width for width in (D // size, D, F // size))
    # The inputs of LayerNorm, of the first product, of gelu and of the second product; LayerNorm's two statistics.
    allowed = shard + whole + 2 * hidden + 2 * word * tokens // size
    for rank, nbytes in enumerate(saved):
        if nbytes > 1.02 * allowed:
            raise CheckFailed(
                f"rank {rank} keeps {nbytes:,} bytes of activations for the backward pass",
                f"{allowed:,} bytes",
                "LayerNorm was applied to all tokens, so autograd keeps them all: LayerNorm first, then gather."
                if nbytes > 0.97 * (allowed + whole - shard)
                else f"{nbytes / allowed:.3g} times as many as are needed.",
            )
    return f"each rank keeps {saved[0]:,} bytes: its own tokens for LayerNorm, the gathered ones for the product."


# ---- dropout


def draw_masks(function: Callable[..., Any], rank: int, world_size: int, seed: int) -> dict[str, Any]:
    """The first numbers of both generators, drawn twice in a row and again from new generators."""
    made = function(seed, rank)
    if not isinstance(made, tuple | list) or len(made) != 2 or not all(isinstance(g, torch.Generator) for g in made):
        return {"wrong": f"{type(made).__name__} {made!r}"[:80]}
    first = [torch.rand(4, generator=generator) for generator in made]
    more = [torch.rand(4, generator=generator) for generator in made]
    again = [torch.rand(4, generator=generator) for generator in function(seed, rank)]
    return {
        "whole": torch.cat([first[0], more[0]]),
        "sharded": torch.cat([first[1], more[1]]),
        "again": again,
        "first": first,
    }


@check("dropout-generators")
def dropout_generators_values(run: Runner) -> None:
    judge_generators(run, 4, seed=7)


def judge_generators(run: Runner, size: int, seed: int) -> None:
    results = run(size, through=draw_masks, seed=seed).results
    for rank, result in enumerate(results):
        if "wrong" in result:
            raise CheckFailed(f"rank {rank} returned {result['wrong']}", "two torch.Generators")
        if not alike(result["first"], result["again"]):
            raise CheckFailed(
                f"rank {rank}: generators made again with the same arguments draw different numbers",
                "the same numbers",
                "A seed that depends on time or chance can't be repeated.",
            )
        if not alike(result["whole"], results[0]["whole"]):
            raise CheckFailed(
                f"for whole tensors rank {rank} draws {show(result['whole'])}, rank 0 {show(results[0]['whole'])}",
                "the same on every rank",
                "x is whole on every rank: if they drop different numbers, their copies differ from then on.",
            )
        if alike(result["whole"], result["sharded"]):
            raise CheckFailed(
                f"rank {rank}: both generators draw {show(result['whole'])}",
                "different numbers",
                "On tensor-parallel rank 0, tp_rank adds nothing to the seed: add a constant as well.",
            )
        for other in range(rank):
            if alike(result["sharded"], results[other]["sharded"]):
                raise CheckFailed(
                    f"for shards ranks {other} and {rank} both draw {show(result['sharded'])}",
                    "different numbers on each rank",
                    "That gives all shards the same mask: the ranks' seeds must differ.",
                )
            if alike(result["sharded"], results[other]["whole"]):
                raise CheckFailed(
                    f"rank {rank} draws the same numbers for shards as all do for whole tensors", "different numbers"
                )
