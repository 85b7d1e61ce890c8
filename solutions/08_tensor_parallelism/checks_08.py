"""The checks of lesson 08. Form: see oracles.py, and gradients.py for functions that autograd goes through.

What is right comes from one process on whole tensors, with autograd: no check holds an answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from utils import track_memory
from utils.checks.answer import Answer, CheckFailed
from utils.checks.compare import Mistakes
from utils.checks.equality import equal_values
from utils.checks.frozen_cases import frozen_par
from utils.checks.gradients import (
    CLOSE,
    Sharded,
    driven,
    expect_in_both,
    expect_passes,
    in_groups,
    output_first,
    serial,
    shards,
)
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, Drawing, oracle, vary
from utils.checks.registration import check
from utils.checks.runner import Runner, simulate
from utils.checks.scores import Measure
from utils.checks.show import show
from utils.checks.traffic import expect_time
from utils.cluster.collective_costs import Layout, cost
from utils.cluster.hardware import Cluster, links
from utils.kit.drivers.backward import drive, my_group
from utils.kit.drivers.sharded import most_between
from utils.kit.functional_collectives import all_gather, reduce_scatter
from utils.kit.transformer import attention, layer_norm, mlp
from utils.text.rank_sets import format_ranks

ROOM = Path(__file__).parent

Shape = tuple[int, ...]
Groups = Sequence[Sequence[int]]
Dtype = torch.dtype
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
NEIGHBOURS = [[0, 1], [2, 3]]  # two groups side by side: neither is the whole world
IN_NEIGHBOURS = {"size": 2, "shape": (2, 3), "groups": NEIGHBOURS}
View = Callable[[Tensor], Tensor]
Tensors = list[Tensor]

CURE = "pass tp_group to each collective, and take this rank's place from dist.get_rank(tp_group)"
COUNT_AND_SHAPE = {
    "incorrect number of gradients|different than None": (
        "Backward returns a gradient for each argument of forward, in that order, and None for tp_group."
    ),
    "invalid gradient at index": "Gradients come in the order of forward's arguments, each in its argument's shape.",
}


def in_teams(draw: Drawing) -> Drawing:
    """As in_groups; a collective that goes beyond its rank's group is named, whatever the values have become."""
    grouped = in_groups(draw)

    @wraps(draw)
    def draw_all(draws: Draws, *arguments: Any, groups: Groups = (), **named: Any) -> Case:
        case = grouped(draws, *arguments, groups=groups, **named)
        if not groups:
            return replace(case, advice={**case.advice, **COUNT_AND_SHAPE})
        own = partial(expect_own_group, groups=groups)
        raised = {"raised": f"It works where tp_group is all ranks, but not in a smaller group: {CURE}."}
        return replace(
            case, before=own, explain=lambda *_: f"wrong only where tp_group is not all ranks: {CURE}", advice=raised
        )

    return draw_all


def expect_own_group(answer: Answer, groups: Groups) -> None:
    """Raise CheckFailed if a rank called a collective in a group that is not its own."""
    for event in answer.events:
        mine = next(group for group in groups if event.rank in group)
        if event.peer is None and sorted(event.members) != sorted(mine):
            raise CheckFailed(
                f"rank {event.rank} called {event.op} in a group of ranks {format_ranks([*event.members])}",
                f"its own group, ranks {format_ranks([*mine])}",
                "Without tp_group, a collective goes to all ranks: pass tp_group to each, in both passes.",
            )


def one_of(values: Sequence[Tensor], rtol: float = CLOSE) -> Callable[[Any], bool]:
    return lambda got: any(equal_values(got, one, rtol) for one in values)


def whole_numbers(draws: Draws, dtype: Dtype, *shapes: Shape) -> list[Tensor]:
    """Tensors of whole numbers from -4 to 5, so that sums of products are exact; no 0, which would hide mistakes."""
    tensors = [draws.integers(shape, dtype, seed=seed) for seed, shape in enumerate(shapes)]
    return [x + (x >= 0) for x in tensors]


def normal_numbers(draws: Draws, *shapes: Shape) -> list[Tensor]:
    """Tensors of float64 numbers, small enough for gelu and softmax to have gradients."""
    return [torch.randn(shape, dtype=F64, generator=draws.generator(seed)) / 2 for seed, shape in enumerate(shapes)]


# ---- part 1


SPLIT = {r"(?s)tuple index out of range.*\.split\(": "split takes the size of a part; chunk takes their number."}


def draw_shard(function: Callable[..., Any], rank: int, world_size: int, **for_all: int) -> dict[str, Any]:
    """A rank's shard, the bytes of memory that it keeps alive, and whether a second call gives the same."""
    shard, again = (function(tp_rank=rank, tp_size=world_size, **for_all) for _ in range(2))
    if not isinstance(shard, Tensor):
        return {"shard": shard, "bytes": 0, "repeats": True}
    return {
        "shard": shard.clone(),
        "bytes": shard.untyped_storage().nbytes(),
        "repeats": isinstance(again, Tensor) and torch.equal(shard, again),
    }


@oracle(values=[(4, 8, 12, 1), (2, 6, 4, 0)], memory=[(4, 8, 12, 0)])
def shard_of_weight(draws: Draws, size: int, fan_in: int, fan_out: int, dim: int) -> Case:
    seed = int(torch.randint(1000, (), generator=draws.generator()))

    whole = torch.randn(fan_in, fan_out, generator=torch.Generator().manual_seed(seed)) / fan_in**0.5
    right = shards(whole, size, dim)  # (size, rows, columns)
    return Case(
        for_all={"fan_in": fan_in, "fan_out": fan_out, "dim": dim, "seed": seed},
        right={"": list(right)},
        rtol=1e-5,
        world_size=size,
        driver=draw_shard,
        unpack=lambda got, _: {"": got["shard"]},
        before=judge_repeats,
        advice=SPLIT,
        values_first=True,
        memory=lambda answer: judge_kept_alive(answer, right[0].nbytes, dim),
    )


### BEGIN HIDDEN TESTS
hidden_shard_of_weight = vary(
    shard_of_weight, values=[(3, 9, 4, 0), (5, 3, 10, 1), (1, 3, 4, 1)], memory=[(3, 5, 9, 1)]
)
### END HIDDEN TESTS


def judge_repeats(answer: Answer) -> None:
    for rank, result in enumerate(answer.results):
        if not result["repeats"]:
            raise CheckFailed(
                f"rank {rank}: two calls with the same seed return different numbers",
                "the same numbers",
                "They come from torch's own generator: pass generator=generator to torch.randn.",
            )


def judge_kept_alive(answer: Answer, wanted: int, dim: int) -> str:
    for rank, result in enumerate(answer.results):
        if result["bytes"] > wanted:
            raise CheckFailed(
                f"rank {rank}'s shard keeps {result['bytes']} bytes alive",
                f"{wanted} bytes",
                "A slice is a view, and a view keeps the whole weight in memory: copy the slice with clone()."
                + " contiguous() doesn't copy a slice of rows, which is contiguous already." * (dim == 0),
            )
    return f"each shard keeps {wanted} bytes, 1/{len(answer.results)} of the weight."


@oracle(
    values=[(2, 3, 2, 4), (4, 2, 3, 4), {"size": 2, "B": 2, "D": 3, "F": 2, "groups": NEIGHBOURS}],
    traffic=[(4, 2, 3, 8)],
)
@in_teams
def column_parallel(draws: Draws, size: int, B: int, D: int, F: int, dtype: Dtype = F32) -> Case:
    x, w, b, grad = whole_numbers(draws, dtype, (B, D), (D, F), (F,), (B, F))
    cut = {"w": 1, "b": 0, "y": 1}
    truth = Sharded(lambda x, w, b: x @ w + b, size, {"x": x, "w": w, "b": b}, grad, cut)
    _, alone = truth.alone()
    of_sum = [grad.view(B, size, -1).sum(1) @ part.T for part in w.chunk(size, 1)]
    mistakes = {
        "y_local": {"the product without the bias": truth.part("y", truth.y - b)},
        "grad_x": {
            "the contribution of this rank's columns: x is used by the columns of all ranks": alone["x"],
            "the mean over the ranks: the gradients add up": truth.gradients["x"] / size,
            "the ranks' contributions side by side: add them up": torch.cat(alone["x"], 1),
            "the product of a summed grad_local: multiply first, then sum, as ranks have different columns": of_sum,
        },
        "grad_b_local": {
            "this rank's `grad_local` itself: sum it over the batch": truth.part("y", grad),
            "the mean over the batch: the gradient of a bias is the sum": truth.part("b", truth.gradients["b"] / B),
        },
    }
    return by_hand(truth, mistakes, x.nbytes, "grad_x", "columns of w")


### BEGIN HIDDEN TESTS
PAIRS = [[0, 2], [1, 3]]  # two groups of two: ranks 0 and 1 come first in theirs
hidden_column_parallel = vary(
    column_parallel,
    values=[(3, 1, 5, 3), (1, 2, 3, 4), {"size": 2, "B": 3, "D": 2, "F": 4, "dtype": F64, "groups": PAIRS}],
    traffic=[(3, 5, 4, 6, F64)],
)
### END HIDDEN TESTS


def by_hand(truth: Sharded, mistakes: dict[str, Any], nbytes: int, of: str, own: str) -> Case:
    """The case of a layer that needs one all_reduce, of the result named `of`. own: what each rank has for itself"""
    remark = f"one all_reduce, of {nbytes} bytes, in the forward and backward pass together."
    why = f"One of the four results is a partial sum, {of}. All-reduce that; the others need no message."
    calls = partial(expect_in_both, calls=[("all_reduce", nbytes)], remark=remark, why=why)
    case = truth.case_by_hand(mistakes, rtol=1e-5, traffic=calls)  # a t-th of the bias may come before the sum
    every = {name: right if isinstance(right, list) else [right] for name, right in case.right.items()}
    for name, right in case.right.items():
        usual = mistakes.setdefault(name, {})
        others = [one for other, parts in every.items() if other != name for one in parts]
        usual["the value of a different result: return them in the order of the docstring"] = one_of(others, 0)
        if isinstance(right, list):
            only = f"each rank has its own {own}, so only {of} is summed"
            joined = [torch.cat(right, dim) for dim in range(right[0].dim())]
            usual[f"the sum over the ranks: {only}"] = sum(right)
            usual[f"the mean over the ranks: {only}"] = sum(right) / truth.size
            usual["the parts of all ranks, joined: return this rank's"] = one_of(joined)
    return replace(case, mistakes=mistakes)


@oracle(
    values=[(2, 3, 4, 2), (4, 2, 4, 3), {"size": 2, "B": 2, "F": 2, "D": 3, "groups": NEIGHBOURS}],
    traffic=[(4, 2, 8, 3)],
)
@in_teams
def row_parallel(draws: Draws, size: int, B: int, F: int, D: int, dtype: Dtype = F32) -> Case:
    x, w, bias, grad = whole_numbers(draws, dtype, (B, F), (F, D), (D,), (B, D))
    truth = Sharded(lambda x, w, bias: x @ w + bias, size, {"x": x, "w": w, "bias": bias}, grad, cut={"x": 1, "w": 0})
    y, (y_alone, _) = truth.y, truth.alone()
    of_bias, biases = truth.gradients["bias"], (size - 1) * bias
    why = "every rank has all of grad, so add nothing up"
    share = f"the gradient divided by {size}: every rank has all of grad, and needs no share of it"
    mistakes = {
        "y": {
            "the sum without the bias, on this rank: every rank adds it, after the sum": y - bias,
            f"the sum with the bias added {size} times, by every rank before the sum: add it once, after": y + biases,
            "the product of this rank's rows plus the bias: a partial sum, to be added up first": y_alone,
            "the mean of the products, plus the bias: partial sums add up": (y - bias) / size + bias,
        },
        "grad_x_local": {**truth.too_large("x", why), share: truth.part("x", truth.gradients["x"] / size)},
        "grad_w_local": {**truth.too_large("w", why), share: truth.part("w", truth.gradients["w"] / size)},
        "grad_bias": truth.too_large("bias", why)
        | {
            "grad itself: sum it over the batch": grad,
            "the mean over the batch: the gradient of a bias is the sum": of_bias / len(grad),
            "a fraction of it: every rank has the whole bias, so it needs the whole gradient": of_bias / size,
            "zero: every rank has the bias, and every copy needs its gradient": 0 * of_bias,
        },
    }
    return by_hand(truth, mistakes, y.nbytes, "y", "features of x and rows of w")


### BEGIN HIDDEN TESTS
hidden_row_parallel = vary(
    row_parallel,
    values=[(5, 2, 10, 3), (1, 2, 3, 4), {"size": 2, "B": 3, "F": 4, "D": 2, "dtype": F64, "groups": PAIRS}],
    traffic=[(3, 4, 9, 5, F64)],
)
### END HIDDEN TESTS


# ---- part 2


def in_a_sum(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """z = f(x) + (s + 2 x): the gradient f gets is also that of the other summand, and x is used outside f, too."""

    def added(x: Tensor, s: Tensor, **known: Any) -> Tensor:
        other = s + 2 * x
        result: Tensor = function(x, **known)
        return result + other

    return added


@oracle(values=[(4, (2, 3)), IN_NEIGHBOURS], traffic=[(4, (2, 3))])
@in_teams
def copy_to_shards(draws: Draws, size: int, shape: Shape, dtype: Dtype = F32, spread: View = torch.clone) -> Case:
    """spread: a view of a gradient, with other strides."""
    x, s = whole_numbers(draws, dtype, shape, shape)
    grads = [spread(grad) for grad in draws.different_integers(size, shape, dtype, seed=1)]
    total = torch.stack(grads).sum(0)
    right = {"output": 3 * x + s, "s": grads, "x": [total + 2 * grad for grad in grads]}
    mistakes: dict[str, Mistakes] = {
        "output": {f"f(x) + 2 x + s with {size} x as f(x): forward passes x on as it is": (size + 2) * x + s},
        "s": {
            "the sum over the ranks, though s did not go through f: you overwrote the tensor that backward was "
            "given. It is not yours": total
        },
        "x": {
            "this rank's own part: x is used on all ranks, so sum their gradients": [3 * grad for grad in grads],
            "the mean over the ranks: gradients add up": [total / size + 2 * grad for grad in grads],
            f"{size} times this rank's own part: add up all ranks' parts": [(size + 2) * grad for grad in grads],
            "the sum of x's gradient outside f, too: sum only the gradient that comes back through f": 3 * total,
        },
    }
    why = ("No message is needed there: every rank has all of x already, so pass it on.", "")
    calls = partial(expect_passes, forward=[], backward=[("all_reduce", x.nbytes)], why=why)
    given, same = {"x": x, "s": s}, {"around": in_a_sum}
    return output_first(driven(size, given, grads, right, mistakes, for_all=same, rtol=1e-5, traffic=calls))


def column_major(x: Tensor) -> Tensor:
    """The same values and shape, stored in column-major order."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


### BEGIN HIDDEN TESTS


def all_alike(x: torch.Tensor) -> torch.Tensor:
    """The first column everywhere: a view with stride 0."""
    return x[:, :1].expand(x.shape)


IN_PAIRS = {"size": 2, "shape": (3, 1, 2), "dtype": F64, "groups": PAIRS}
hidden_copy_to_shards = vary(
    copy_to_shards,
    values=[(3, (2, 4), F32, column_major), (2, (2, 4), F32, all_alike), (4, (5,), BF16), (1, (2, 2)), IN_PAIRS],
    traffic=[(3, (5, 1), F64)],
)
### END HIDDEN TESTS


@oracle(values=[(4, (2, 3)), (2, (2, 3), F32, column_major), IN_NEIGHBOURS], traffic=[(4, (2, 3))])
@in_teams
def reduce_from_shards(draws: Draws, size: int, shape: Shape, dtype: Dtype = F32, spread: View = torch.clone) -> Case:
    """spread: how ranks other than 0 store x_partial."""
    xs = [spread(x) if rank else x for rank, x in enumerate(draws.different_integers(size, shape, dtype, seed=1))]
    [grad], total = map(spread, whole_numbers(draws, dtype, shape)), torch.stack(xs).sum(0)
    mistakes: dict[str, Mistakes] = {
        "output": {
            "this rank's own summand: the sum is in a different tensor from the one you return": xs,
            "the mean over the ranks: partial sums add up": total / size,
        },
        "x_partial": {
            f"{size} times too large: all ranks compute one and the same loss, so it counts once": size * grad,
            "a fraction of it: each summand enters the sum once, with factor 1": grad / size,
            "zero on this rank: its summand enters the sum like those of other ranks": 0 * grad,
        },
    }
    right = {"output": total, "x_partial": grad}
    why = ("", "No message is needed there: every rank has the whole gradient already, so pass it on.")
    calls = partial(expect_passes, forward=[("all_reduce", total.nbytes)], backward=[], why=why)
    advice = {
        r"all_reduce goes by the order in memory\.( Hand in x\.contiguous\(\) on every rank\.)": "A copy by clone() or "
        "empty_like() keeps the layout of a transpose: call the verb all_reduce, or copy with clone(memory_format="
        "torch.contiguous_format). contiguous() alone doesn't copy what is contiguous already.",
    }
    given = {"x_partial": xs}
    return output_first(driven(size, given, grad, right, mistakes, rtol=1e-5, advice=advice, traffic=calls))


### BEGIN HIDDEN TESTS


def columns_apart(x: torch.Tensor) -> torch.Tensor:
    """The same values, with gaps between the columns."""
    return x.repeat_interleave(2, -1)[..., ::2]


hidden_reduce_from_shards = vary(
    reduce_from_shards,
    values=[(3, (2, 1, 4), F32, column_major), (5, (2, 3), BF16, columns_apart), (1, (2, 2)), IN_PAIRS],
    traffic=[(3, (5, 1), F64)],
)
### END HIDDEN TESTS


def along_dimension(dim: int) -> dict[str, str]:
    """Advice where a collective cuts or joins along another dimension than `dim`."""
    return {
        rf"split dimension (?!{dim} )": f"That is not the dimension to cut: pass dim={dim}.",
        r"(?s)allgather: invalid.*all_gather_into_tensor": "all_gather_into_tensor lines shards up along dimension 0. "
        f"Gather into a list of tensors instead, and join them with torch.cat(parts, dim={dim}).",
        r"outputShape\[0\]": "reduce_scatter_tensor cuts along dimension 0. Give reduce_scatter a list of chunks along "
        f"dim={dim} instead.",
    }


def wrong_shapes(given: Tensor, cure: str, did: str, made: dict[int, Tensor], dim: int, why: str) -> dict[str, str]:
    """Advice on the shape of what backward returns: what it is given, or `made[dim]` if it `did` this along `dim`."""
    words = {given.shape: f"That is the gradient as backward is given it: {cure}."} | {
        wrong.shape: f"The gradient has shape {[*wrong.shape]} instead of {[*made[dim].shape]}: it was {did} along "
        f"dimension {at}{', the default' * (did == 'cut' and at == 0)}. {why}: dim={dim}."
        for at, wrong in made.items()
        if at != dim
    }
    return {re.escape(f"got {[*shape]} but"): one for shape, one in words.items()}


@oracle(values=[(4, (3, 2)), (2, (2, 1, 3), F32, column_major), IN_NEIGHBOURS], traffic=[(4, (2, 3))])
@in_teams
def gather_from_shards(draws: Draws, size: int, shape: Shape, dtype: Dtype = F32, spread: View = torch.clone) -> Case:
    """spread: how ranks other than 0 store x_local."""
    xs = [spread(x) if rank else x for rank, x in enumerate(draws.different_integers(size, shape, dtype, seed=1))]
    whole, second = torch.cat(xs, -1), min(1, len(shape) - 1)
    [grad] = whole_numbers(draws, dtype, tuple(whole.shape))
    mine = list(grad.chunk(size, -1))
    mistakes: dict[str, Mistakes] = {
        "output": {
            "the concatenation of the shards along dimension 0: features are the last dimension": torch.cat(xs, 0),
            "the concatenation of the shards along dimension 1: features are the last": torch.cat(xs, second),
            "the sum of the shards: put them side by side": sum(xs),
            "the last rank's shard, t times: [tensor] * t holds one tensor, not t": torch.cat([xs[-1]] * size, -1),
            "the numbers in a different order: rank r's part of a row is the r-th": lambda got: in_order(got, whole),
        },
        "x_local": {
            f"{size} times too large: every rank has the whole gradient, so add nothing up": [size * x for x in mine],
            f"the right slice divided by {size}: it is this rank's in full": [x / size for x in mine],
            "rank 0's slice: this rank's is a different one": mine[0],
            "every t-th number: a shard is one block": [grad[..., rank::size] for rank in range(size)],
        },
    }
    right = {"output": whole, "x_local": mine}
    why = ("", "No message is needed there: every rank has the whole gradient already, so take its slice.")
    calls = partial(expect_passes, forward=[("all_gather", xs[0].nbytes)], backward=[], why=why)
    cuts = {dim: grad.chunk(size, dim)[0] for dim in (*range(grad.dim() - 1), -1)}
    shapes = wrong_shapes(grad, "return this rank's slice", "cut", cuts, -1, "Features are the last dimension")
    advice = {**SPLIT, **along_dimension(-1), **shapes}
    return output_first(driven(size, {"x_local": xs}, grad, right, mistakes, advice=advice, traffic=calls))


### BEGIN HIDDEN TESTS
hidden_gather_from_shards = vary(
    gather_from_shards,
    values=[(3, (2, 2, 2), F32, columns_apart), (5, (7,), BF16), (1, (2, 2)), IN_PAIRS | {"shape": (3, 2)}],
    traffic=[(3, (2, 1, 2), F64)],
)
### END HIDDEN TESTS


def in_order(got: Any, right: Tensor) -> bool:
    """Whether a tensor has the right numbers, though not in their places."""
    same = isinstance(got, Tensor) and (got.shape, got.dtype) == (right.shape, right.dtype)
    return same and torch.equal(got.detach().flatten().sort().values, right.flatten().sort().values)


# ---- part 3


def mlp_tensors(draws: Draws, shape: Shape, F: int) -> tuple[dict[str, Tensor], Tensor]:
    """({name: tensor} of an MLP whose x has this shape, (..., D), and F hidden features; the gradient of y)"""
    D = shape[-1]
    *tensors, grad = normal_numbers(draws, shape, (D, F), (F,), (F, D), (D,), shape)
    return dict(zip(["x", "w_up", "b_up", "w_down", "b_down"], tensors, strict=True)), grad


MLP_CUT = {"w_up": 1, "b_up": 0, "w_down": 0}


def expect_bias_everywhere(answer: Answer, door: str, add: str) -> None:
    """Raise CheckFailed if only some of the ranks use b_down."""
    all_of = [result["gradients"] for result in answer.results]
    ran = {rank: of["b_down"] for rank, of in enumerate(all_of) if any(grad is not None for grad in of.values())}
    users = [rank for rank, grad in ran.items() if grad is not None and grad.any()]
    if users and (others := [rank for rank in ran if rank not in users]):
        why = "Every rank has a copy of b_down, which needs its gradient"
        saw = f"rank {others[0]}: b_down has no gradient, or zeros; on rank {users[0]} it has one"
        cure = f"add {add} on every rank, once, after {door}."
        raise CheckFailed(saw, "the same gradient on every rank", f"{why}: {cure}")


@oracle(values=[(4, (3, 4), 8)], traffic=[(4, (3, 4), 8)], time=[(4, (8, 16), 32, 1e-6, 1e9)])
def megatron_mlp(
    draws: Draws, size: int, shape: Shape, F: int, alpha: float = 0.0, bandwidth: float = math.inf
) -> Case:
    """alpha, bandwidth: of the links between virtual ranks, for time."""
    whole, grad = mlp_tensors(draws, shape, F)
    truth, nbytes = Sharded(mlp, size, whole, grad, MLP_CUT), whole["x"].nbytes
    one, why = [("all_reduce", nbytes)], ("One g, for y, and nothing else.", "One f, for x, and no more.")
    cluster = links(size, alpha, bandwidth)
    return truth.case(
        rtol=CLOSE,
        before=partial(expect_bias_everywhere, door="g", add="b_down"),
        traffic=partial(expect_passes, forward=one, backward=one, why=why),
        clock=cluster,
        time=lambda answer: judge_mlp_time(answer, cluster, nbytes, nbytes // shape[-1] * F),
        values_first=alpha > 0,
    )


### BEGIN HIDDEN TESTS
hidden_megatron_mlp = vary(
    megatron_mlp,
    values=[(3, (2, 5), 9), (2, (2, 3, 4), 8), (1, (3, 4), 6)],
    traffic=[(3, (2, 2, 5), 9)],
    time=[(8, (64, 32), 32, 2e-6, 3e9)],
)
### END HIDDEN TESTS


def judge_mlp_time(answer: Answer, cluster: Cluster, *nbytes: int) -> str:
    """nbytes: of x, and of the hidden features."""
    layout = Layout.of(cluster, range(len(answer.results)))
    one, of_h = (cost("all_reduce", size, cluster, layout).seconds for size in nbytes)
    usual = {"the time with one more all_reduce": 3 * one, "the time with h summed, too": 2 * one + of_h}
    return expect_time(answer, 2 * one, recognise=usual)


# ---- part 4


def out_of_range(n: str) -> dict[str, str]:
    """Advice where a rank looks up what it doesn't have. n: rows or words"""
    return {
        "index .*out of (?:range|bounds)": (
            f"A rank counts its own {n} from 0 to {n} - 1: subtract tp_rank * {n}, test for >= 0 and < {n} (not <=), "
            "and put an index that exists in place of any other before you look it up."
        )
    }


EVERY_EDGE = torch.tensor([[0, 2, 3, 5, 5], [6, 8, 9, 11, 3]])  # first and last rows of 4 ranks with 3 rows each


@oracle(values=[(4, 3, 2, EVERY_EDGE), (2, 2, 3, torch.tensor([2, 0, 3, 1]), BF16)], traffic=[(4, 3, 2, EVERY_EDGE)])
def parallel_embedding(draws: Draws, size: int, rows: int, D: int, tokens: Tensor, dtype: Dtype = F32) -> Case:
    table = torch.stack(draws.different_integers(size * rows, D, dtype))
    [grad] = whole_numbers(draws, dtype, (*tokens.shape, D))
    truth = Sharded(lambda tokens, table: table[tokens], size, {"tokens": tokens, "table": table}, grad, {"table": 0})
    calls = partial(expect_passes, forward=[("all_reduce", grad.nbytes)], backward=[])
    own_dtype = partial(judge_dtype, dtype=dtype)
    return truth.case(before=own_dtype, advice=out_of_range("rows"), traffic=calls)


### BEGIN HIDDEN TESTS
hidden_parallel_embedding = vary(
    parallel_embedding,
    values=[
        (5, 2, 3, torch.tensor([9, 0, 1, 4, 5, 9, 6, 3, 2, 7, 8]), F64),
        (3, 4, 1, torch.tensor([[[3], [4], [11]]])),
        (2, 3, 2, torch.tensor([5, 5, 3])),  # one rank has none of them
        (1, 4, 2, torch.tensor([3, 0])),
    ],
    traffic=[(3, 2, 4, torch.tensor([[0, 5, 3]]))],
)
### END HIDDEN TESTS


def judge_dtype(answer: Answer, dtype: Dtype) -> None:
    """Raise CheckFailed if a rank looked up float32 in a 16-bit table."""
    for rank, result in enumerate(answer.results):
        if dtype == BF16 and isinstance(result["output"], Tensor) and result["output"].dtype == F32:
            why = "A mask made by .float() is float32, and so is its product with the table"
            cure = "use torch.where or masked_fill instead, or give the mask table_local.dtype."
            raise CheckFailed(f"rank {rank} returned {F32}", f"{dtype}, the table's dtype", f"{why}: {cure}")


@oracle(
    values=[
        (4, 6, 3),
        (2, 3, 2, 1000.0),
        {"size": 2, "N": 3, "words": 2, "apart": 1000.0},
        {"size": 2, "N": 4, "words": 2, "apart": 1000.0, "groups": NEIGHBOURS},
    ],
    traffic=[(4, 6, 50)],
)
@in_teams
def parallel_cross_entropy(
    draws: Draws, size: int, N: int, words: int, shift: float = 0.0, unlikely: int = -1, apart: float = 0.0
) -> Case:
    """Targets are first and last words of ranks.

    shift: added to all logits. It doesn't change the loss, but the exponential of 1000 is infinite, that of -1000 is 0
    unlikely: a rank whose words are far below all others, if there is one
    apart: how far the logits of the tokens are from each other. Which token has the largest differs between groups
    """
    rank_of_word = torch.arange(size).repeat_interleave(words)
    logits = normal_numbers(draws, (N, size * words))[0] + shift - 2000 * (rank_of_word == unlikely)
    logits -= apart * torch.randperm(N, generator=draws.generator(2)).unsqueeze(-1)
    edges = torch.tensor([rank * words + at for rank in range(size) if rank != unlikely for at in (0, words - 1)])
    targets = edges[torch.randperm(len(edges), generator=draws.generator(1))].repeat(N)[:N]
    whole = {"logits": logits, "targets": targets}
    one = torch.ones((), dtype=F64)
    truth = Sharded(lambda logits, targets: cross_entropy(logits, targets), size, whole, one, {"logits": -1})

    calls = partial(
        expect_passes,
        forward=[("all_reduce", 3 * N * logits.itemsize)],
        backward=[],
        remark=f"Those are 3 numbers per token; a rank's logits take {logits.nbytes // size:,} bytes.",
        why=(
            "A maximum, a sum and the target's logit for each token, and no other logits, all by all_reduce.",
            "Each rank already has all it needs for the gradient of its own logits.",
        ),
        in_all=True,
    )
    begins, ends = targets % words == 0, targets % words == words - 1
    seen = (begins & (targets >= words)).any() and (ends & (targets < (size - 1) * words)).any()  # a mask's edges
    case = truth.case(rtol=CLOSE, advice=out_of_range("words"), traffic=calls, looks_right=size > 1 and not bool(seen))
    return replace(case, mistakes={**case.mistakes, "": {**INFINITE, **case.mistakes[""]}})


### BEGIN HIDDEN TESTS
hidden_parallel_cross_entropy = vary(
    parallel_cross_entropy,
    values=[
        (3, 7, 4),
        (5, 4, 2, -1000.0),
        (1, 3, 4, 1000.0),
        (4, 8, 3, 0.0, 1),
        (3, 4, 3, 500.0, -1, -900.0),
        {"size": 2, "N": 9, "words": 3, "apart": 900.0, "groups": PAIRS},
    ],
    traffic=[(3, 5, 40)],
)
### END HIDDEN TESTS


INFINITE = {
    "infinite: an exponential overflows. Subtract the largest logit": one_of([torch.tensor(math.inf, dtype=F64)]),
    "the logarithm of 0: all exponentials of a token are 0. Subtract the token's own largest logit, over all ranks, "
    "by op=dist.ReduceOp.MAX": one_of([torch.tensor(-math.inf, dtype=F64)]),
}


@oracle(values=[(2, 2, 3, 8, 4)], traffic=[(2, 2, 3, 8, 4)])
def parallel_attention(draws: Draws, size: int, B: int, S: int, D: int, heads: int) -> Case:
    x, w_qkv, w_out, grad = normal_numbers(draws, (B, S, D), (D, 3 * D), (D, D), (B, S, D))
    whole = {"x": x, "w_qkv": w_qkv, "w_out": w_out}
    y, right = serial(partial(attention, num_heads=heads), grad, **whole)
    mine = [
        torch.arange(size).repeat_interleave(D // size) == rank for rank in range(size)
    ]  # one mask over D columns or rows per rank
    of_weights = {
        "w_qkv": [right["w_qkv"] * its.repeat(3) for its in mine],
        "w_out": [right["w_out"] * its[:, None] for its in mine],
    }
    one = [("all_reduce", x.nbytes)]
    once = "One g, of the product with w_out, and no more.", "One f: call f(x) once, and make q, k and v of its result."
    calls = partial(expect_passes, forward=one, backward=one, why=once)
    local = {"output": y, "x": right["x"], **of_weights}
    with FlopCounterMode(display=False) as counter:
        attention(x, w_qkv, w_out, heads)
    own_work = partial(judge_work, share=counter.get_total_flops() / size)
    known = {"num_heads": heads}
    case = driven(size, whole, grad, local, rtol=CLOSE, for_all=known, traffic=calls, also=own_work)
    return replace(case, driver=drive_and_count, drivers={})


### BEGIN HIDDEN TESTS
hidden_parallel_attention = vary(
    parallel_attention, values=[(3, 1, 4, 12, 6), (4, 2, 2, 8, 4), (1, 2, 3, 6, 3)], traffic=[(3, 1, 5, 6, 3)]
)
### END HIDDEN TESTS


def drive_and_count(
    function: Callable[..., Any], given: dict[str, Any], grad: Tensor, rank: int, world_size: int, **for_all: Any
) -> dict[str, Any]:
    """As `drive`; `flops` is what the forward pass computes in matrix products."""
    counter = FlopCounterMode(display=False)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**known: Any) -> Any:
            with counter:
                return function(**known)

        return call

    result = drive(function, given, grad, rank, world_size, around=counted, **for_all)
    return {**result, "flops": counter.get_total_flops()}


def judge_work(answer: Answer, share: float) -> None:
    """Raise CheckFailed if a rank computes more in its products than an equal share of all."""
    for rank, result in enumerate(answer.results):
        if result["flops"] > 1.01 * share:
            raise CheckFailed(
                f"rank {rank} computes {result['flops']:,} FLOP in matrix products in the forward pass",
                f"{share:,.0f} FLOP: those of its own heads",
                "Cut w_qkv and w_out before you multiply: heads of other ranks are computed, then thrown away.",
            )


# ---- part 5

WAYS = ("gather", "scatter")


@oracle(
    values=[
        *((way, size, shape) for size, shape in [(4, (2, 2, 3)), (2, (1, 2, 3))] for way in WAYS),
        *({"direction": way, "size": 2, "shape": (1, 2, 2), "groups": NEIGHBOURS} for way in WAYS),
    ],
    traffic=[(way, 4, (2, 1, 3)) for way in WAYS],
)
@in_teams
def across_sequence(
    draws: Draws, direction: str, size: int, shape: Shape, dtype: Dtype = F32, spread: View = torch.clone
) -> Case:
    """shape: of a rank's shard, (B, S/t, D)."""
    gathers = direction == "gather"
    long = (shape[0], size * shape[1], shape[2])
    xs = [spread(x) for x in draws.different_integers(size, shape if gathers else long, dtype, seed=1)]
    grads = draws.different_integers(size, long if gathers else shape, dtype, seed=2)
    to_join, to_sum = (xs, grads) if gathers else (grads, xs)
    summed = torch.stack(to_sum).sum(0)
    join, add = ("output", "x") if gathers else ("x", "output")
    all_gather, reduce_scatter = [("all_gather", to_join[0].nbytes)], [("reduce_scatter", summed.nbytes)]
    forward, backward = (all_gather, reduce_scatter) if gathers else (reduce_scatter, all_gather)
    remark = f"That is for {direction!r}; the other direction is the other way round."
    made = {dim: grads[0].chunk(size, dim)[0] if gathers else torch.cat(grads, dim) for dim in range(3)}
    cure = f"call {'reduce_scatter' if gathers else 'all_gather'} with dim=1"
    advice = {
        r"split dimension 1 ": "A shard can't be scattered: is it all_gather that this pass needs?",
        **along_dimension(1),
        **SPLIT,
        **wrong_shapes(grads[0], cure, "cut" if gathers else "joined", made, 1, "Tokens are dimension 1"),
    }
    return driven(
        size,
        {"x": xs},
        grads,
        right={"output": None, join: torch.cat(to_join, 1), add: list(summed.chunk(size, 1))},
        for_all={"direction": direction},
        rtol=1e-5,
        advice=advice,
        traffic=partial(expect_passes, forward=forward, backward=backward, remark=remark),
    )


### BEGIN HIDDEN TESTS
ACROSS: list[Any] = [(3, (1, 2, 4), F32, columns_apart), (5, (2, 1, 1)), (1, (2, 2, 2))]
hidden_across_sequence = vary(
    across_sequence,
    values=[
        *((way, *case) for case in ACROSS for way in WAYS),
        *(IN_PAIRS | {"direction": way, "shape": (3, 2, 1)} for way in WAYS),
    ],
    traffic=[(way, 3, (1, 2, 2), F64) for way in WAYS],
)
### END HIDDEN TESTS


def half_a_layer(x: Tensor, norm_weight: Tensor, norm_bias: Tensor, **of_mlp: Tensor) -> Tensor:
    """norm_weight, norm_bias and b_down: (D,), or (S, D) to have one for each token."""
    ones = torch.ones(x.shape[-1], dtype=x.dtype)
    return x + mlp(layer_norm(x, ones, 0 * ones) * norm_weight + norm_bias, **of_mlp)


SHARED = ("norm_weight", "norm_bias", "b_down")  # whole on every rank


@oracle(values=[(2, 2, 4, 4, 8)], traffic=[(2, 2, 4, 4, 8)], memory=[(4, 4, 512, 16, 64, True)])
def sequence_parallel_mlp(draws: Draws, size: int, B: int, S: int, D: int, F: int, measured: bool = False) -> Case:
    """measured: whether the ranks also report the bytes that autograd keeps."""
    whole, grad = mlp_tensors(draws, (B, S, D), F)
    whole |= dict(zip(SHARED, normal_numbers(draws.again(1), (D,), (D,), (D,)), strict=True))
    truth = Sharded(half_a_layer, size, whole, grad, {"x": 1, "y": 1, **MLP_CUT})
    moves = [("all_gather", grad.nbytes // size), ("reduce_scatter", grad.nbytes)]
    calls = partial(
        expect_passes,
        forward=moves,
        backward=[*moves, ("all_reduce", 3 * whole["b_down"].nbytes)],
        remark="The all_reduces are the sums for 3 shared vectors.",
        why=(
            "One gather where the MLP begins, one scatter where it ends, and nothing else.",
            f"The all_reduces are for norm_weight, norm_bias and b_down, {D} numbers each.",
        ),
        in_all=True,
    )
    everywhere = partial(expect_bias_everywhere, door="scatter", add="f(b_down)")
    case = truth.case(rtol=CLOSE, before=everywhere, traffic=calls)
    if not measured:
        return case
    return replace(
        case,
        driver=drive_and_measure,
        cluster=links(size, alpha=1e-6, bandwidth=1e9),
        values_first=True,  # a wrong function must not pass because it saves less
        memory=lambda answer: judge_kept(answer, B * S, D // size, D, F // size),
    )


### BEGIN HIDDEN TESTS
hidden_sequence_parallel_mlp = vary(
    sequence_parallel_mlp,
    values=[(3, 1, 6, 4, 6), (4, 2, 4, 5, 8), (1, 2, 3, 4, 4)],
    traffic=[(3, 1, 6, 5, 6)],
    memory=[(2, 1, 96, 32, 32, True)],
)
### END HIDDEN TESTS


def drive_and_measure(
    function: Callable[..., Any], given: dict[str, Any], grad: Tensor, rank: int, world_size: int
) -> dict[str, Any]:
    """As `drive`; `kept` is how many bytes are kept for backward, weights excluded."""
    kept = 0

    def measured(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**known: Any) -> Any:
            nonlocal kept
            weights = [x for name, x in known.items() if name in given and name != "x_local"]
            with track_memory(torch.nn.ParameterList(weights)) as storages:
                output = function(**known)
                kept = storages.live - storages.by_kind().get("parameters", 0)
                kept -= output.nbytes if isinstance(output, Tensor) else 0
            return output

        return call

    return {**drive(function, given, grad, rank, world_size, around=measured), "kept": kept}


def judge_kept(answer: Answer, tokens: int, *widths: int) -> str:
    """widths: features per token of a rank's shard of x, of the gathered x, and of the hidden features."""
    shard, whole, hidden = (8 * tokens * width for width in widths)
    # The inputs of LayerNorm, of the first product, of gelu and of the second product; LayerNorm's two statistics.
    allowed = shard + whole + 2 * hidden + 2 * 8 * tokens // len(answer.results)
    for rank, result in enumerate(answer.results):
        if result["kept"] > 1.02 * allowed:
            raise CheckFailed(
                f"rank {rank} keeps {result['kept']:,} bytes of activations for the backward pass",
                f"{allowed:,} bytes",
                "LayerNorm was applied to all tokens, so autograd keeps them all: LayerNorm first, then gather."
                if result["kept"] > 0.97 * (allowed + whole - shard)
                else f"{result['kept'] / allowed:.3g} times as many as are needed.",
            )
    kept = f"{answer.results[0]['kept']:,} bytes"
    return f"each rank keeps {kept}: its own tokens for LayerNorm, the gathered ones for the product."


# ---- dropout


def draw_masks(function: Callable[..., Any], rank: int, world_size: int, seed: int) -> dict[str, Any]:
    """The first numbers of both generators, of two that are made again alike, and of two with a different seed."""
    made = function(seed, rank)
    if not isinstance(made, tuple | list) or len(made) != 2 or not all(isinstance(g, torch.Generator) for g in made):
        return {"wrong": f"{type(made).__name__} {made!r}"[:80]}
    if made[0] is made[1]:
        return {"wrong": "one generator twice, so that what one draws changes what the other draws next"}
    whole, sharded = (torch.rand(8, generator=generator) for generator in made)
    again, changed = (
        [torch.rand(8, generator=generator) for generator in function(number, rank)]
        for number in (seed, seed - 1 if seed else 1)
    )
    return {"whole": whole, "sharded": sharded, "again": again, "changed": changed}


@check("dropout-generators")  # no oracle: any seeds will do whose numbers differ where they should
def dropout_generators_values(run: Runner) -> None:
    judge_generators(run, 4, seed=7)
    judge_generators(run, 2, seed=0)


### BEGIN HIDDEN TESTS


@check("dropout-generators")
def hidden_dropout_generators_values(run: Runner) -> None:
    judge_generators(run, 8, seed=3)
    judge_generators(run, 3, seed=2**31)
    judge_generators(run, 1, seed=1)


### END HIDDEN TESTS


def judge_generators(run: Runner, size: int, seed: int) -> None:
    results = run(size, driver=draw_masks, seed=seed).results
    for rank, result in enumerate(results):
        if "wrong" in result:
            raise CheckFailed(f"rank {rank} returned {result['wrong']}", "two torch.Generators")
        whole, sharded = result["whole"], result["sharded"]
        if not equal_values([whole, sharded], result["again"]):
            raise CheckFailed(
                f"rank {rank}: generators made again with the same arguments draw different numbers",
                "the same numbers",
                "A seed that depends on time or chance can't be repeated.",
            )
        exchanged = equal_values(sharded, results[0]["sharded"])
        if not equal_values(whole, results[0]["whole"]):
            raise CheckFailed(
                f"for whole tensors rank {rank} draws {show(whole)}, rank 0 {show(results[0]['whole'])}",
                "the same on every rank",
                "The second generator does: they are exchanged, so return the one for whole tensors first."
                if exchanged
                else "x is whole on every rank: if they drop different numbers, their copies differ from then on.",
            )
        if equal_values(whole, sharded):
            raise CheckFailed(
                f"rank {rank}: both generators draw {show(whole)}",
                "different numbers",
                "Both seeds come to the same number on this rank: add a constant that keeps them apart on every rank.",
            )
        for name, numbers, other in (("whole tensors", whole, 0), ("shards", sharded, 1)):
            if equal_values(numbers, result["changed"][other]):
                raise CheckFailed(
                    f"rank {rank}: for {name} the generator draws the same numbers with a different seed",
                    "different numbers",
                    "Then all runs drop the same numbers: seed it from `seed`.",
                )
        for other in range(rank):
            if equal_values(sharded, results[other]["sharded"]):
                raise CheckFailed(
                    f"for shards ranks {other} and {rank} both draw {show(sharded)}",
                    "different numbers on each rank",
                    "That gives all shards the same mask: the ranks' seeds must differ."
                    + " A multiple of seed 0 is 0 on every rank." * (seed == 0),
                )


# ---- the challenge

PRODUCTS = 4  # in the stack
CHALLENGE = links(4, alpha=1e-6, bandwidth=1e9)


def drive_stack(
    function: Callable[..., Any],
    xs: Tensors,
    ws: Tensors,
    grads: Tensors,
    rank: int,
    world_size: int,
    groups: Any = None,
) -> dict[str, Any]:
    """All products forward, then all of them backward; `peak` is the most bytes alive on top of what was given."""
    group = my_group(rank, groups)
    with track_memory(*xs, *ws, *grads) as storages:
        before, first = storages.live, len(storages.changes)
        xs, ws = ([x.detach().requires_grad_() for x in tensors] for tensors in (xs, ws))
        ys = [function(x, w, group) for x, w in zip(xs, ws, strict=True)]
        outputs = [y.detach() if isinstance(y, Tensor) else y for y in ys]
        while ys:
            y, grad = ys.pop(), grads[len(ys)]
            if isinstance(y, Tensor) and y.requires_grad and y.shape == grad.shape:
                y.backward(grad)
            del y
        peak = most_between(storages, first) - before
    found = zip(PARTS, (outputs, [x.grad for x in xs], [w.grad for w in ws]), strict=True)
    return {part.format(n): one for part, ones in found for n, one in enumerate(ones, 1)} | {"peak": peak}


PARTS = ("product {}", "the gradient of x_local in product {}", "the gradient of w_local in product {}")


def of_product(place: int, t: int, x: Tensor, w: Tensor, grad: Tensor) -> tuple[list[Tensor], list[Any]]:
    """What a rank is given for one product; and of each of PARTS what is right, and usual mistakes."""
    of_weight = partial(torch.einsum, "bsd,bsf->df")
    xs, ws, parts = x.chunk(t, 1), w.chunk(t, 1), grad.chunk(t, 2)  # one part per rank
    own = [of_weight(mine, part.chunk(t, 1)[rank]) for rank, (mine, part) in enumerate(zip(xs, parts, strict=True))]
    sums = torch.stack([torch.stack(own).sum(0), of_weight(x, sum(parts))])
    joined, rows, whole = torch.cat(xs), x.shape[1] // t, grad @ w.T
    place_of = f"rank r's token i is token r * {rows} + i of the result"
    mixed = [x.unflatten(1, (t, n, -1)).transpose(1, 2).flatten(1, 3) for n in range(2, rows + 1) if rows % n == 0]
    of_batch = one_of([joined @ ws[place], joined.view(x.shape) @ ws[place]])
    of_y = {
        "a product with the tokens joined along the batch: tokens are dimension 1": of_batch,
        f"the product with its tokens in a different order: {place_of}": lambda got: in_order(got, x @ ws[place]),
    }
    of_x = {
        "nothing: gather inside the autograd function, which sees that the result depends on x_local": None,
        "a partial sum, of its own columns only: sum over the ranks": (parts[place] @ ws[place].T).chunk(t, 1)[place],
        "the mean over the ranks: partial sums add up": whole.chunk(t, 1)[place] / t,
        f"the gradient of tokens that are not all this rank's: {place_of}": lambda got: bool(
            (got.unsqueeze(2) == whole.unsqueeze(1)).all(-1).any(-1).all()
        ),
    }
    of_w = {
        "nothing: backward returns a gradient for each argument": None,
        "the contribution of this rank's own tokens: w_local meets the tokens of all ranks": own[place],
        "a sum over the ranks, as in data parallelism: each rank has different columns, so w_local's gradient takes "
        "all gathered tokens and is not summed": one_of([*sums, *sums / t]),
        f"the sum of products of tokens and gradients that don't belong together: {place_of}": one_of(
            [of_weight(tokens, parts[place]) for tokens in mixed]
        ),
    }
    right = x @ ws[place], whole.chunk(t, 1)[place], of_weight(x, parts[place])
    return [each[place].clone() for each in (xs, ws, parts)], [*zip(right, (of_y, of_x, of_w), strict=True)]


@oracle(
    score=[(4, 2, 32, 16, 16, None), (4, 2, 32, 16, 16, [[0, 2], [1, 3]])],
    par=frozen_par(ROOM, "gathered-product"),
    if_stuck="in each pass, every rank must call the same collectives in the same order.",
)
def gathered_product(draws: Draws, size: int, B: int, S: int, D: int, F: int, groups: list[list[int]] | None) -> Case:
    """S tokens and F features are those of a whole group."""
    teams = groups or [list(range(size))]
    t = len(teams[0])
    of_rank: dict[int, list[Any]] = {}
    for number, team in enumerate(teams):
        seeds = range(PRODUCTS * number, PRODUCTS * (number + 1))
        stack = [whole_numbers(draws.again(seed), F64, (B, S, D), (D, F), (B, S, F)) for seed in seeds]
        of_rank |= {rank: [of_product(place, t, *one) for one in stack] for place, rank in enumerate(team)}
    ranks = [of_rank[rank] for rank in range(size)]
    right: dict[str, Any] = {}
    mistakes: dict[str, Mistakes] = {}
    for (kind, part), number in product(enumerate(PARTS), range(PRODUCTS)):
        values, wrong = zip(*(of_products[number][1][kind] for of_products in ranks), strict=True)
        right[part.format(number + 1)] = [*values]
        mistakes[part.format(number + 1)] = {words: [one[words] for one in wrong] for words in wrong[0]}
    return Case(
        [[[given[kind] for given, _ in of_products] for of_products in ranks] for kind in range(3)],
        for_all={"groups": groups},
        right=right,
        mistakes=mistakes,
        rtol=CLOSE,
        advice={**COUNT_AND_SHAPE, **along_dimension(1)},
        before=partial(expect_own_group, groups=teams),
        driver=drive_stack,
        unchanged=False,
        clock=CHALLENGE,
        score=Measure(
            lambda answer: max(result["peak"] for result in answer.results),
            "B",
            "alive at the peak, besides what is given",
        ),
        limit=PRODUCTS * 8 * (B * S * F // t + B * S // t * D + D * F // t),
    )


### BEGIN HIDDEN TESTS


class GatheredTwice(torch.autograd.Function):
    """Keeps the shards, and gathers once more in the backward pass. tokens_first: which gradient comes first there."""

    @staticmethod
    def forward(ctx: Any, tokens_first: bool, x: torch.Tensor, w: torch.Tensor, tp_group: Any) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.tp_group, ctx.tokens_first = tp_group, tokens_first
        return all_gather(x, tp_group, dim=1) @ w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor, torch.Tensor, None]:
        x, w = ctx.saved_tensors
        grad_x = reduce_scatter(grad @ w.T, ctx.tp_group, dim=1) if ctx.tokens_first else None
        grad_w = all_gather(x, ctx.tp_group, dim=1).flatten(0, 1).T @ grad.flatten(0, 1)
        return None, reduce_scatter(grad @ w.T, ctx.tp_group, dim=1) if grad_x is None else grad_x, grad_w, None


def stack_of(rank: int, world_size: int, B: int, S: int, D: int, F: int, groups: list[list[int]] | None) -> int:
    t = len(groups[0]) if groups else world_size
    shapes = [(B, S // t, D), (D, F // t), (B, S, F // t)]
    xs, ws, grads = ([torch.zeros(shape, dtype=F64) for _ in range(PRODUCTS)] for shape in shapes)
    either = [partial(GatheredTwice.apply, first) for first in (True, False)]  # the shapes decide which keeps more
    return max(int(drive_stack(one, xs, ws, grads, rank, world_size, groups)["peak"]) for one in either)


def peak_of_gathered_twice(size: int, *shape_and_groups: Any) -> float:
    return float(max(simulate(stack_of, size, *shape_and_groups, cluster=CHALLENGE, device="cpu").results))


hidden_gathered_product = vary(
    gathered_product,
    par=peak_of_gathered_twice,
    score=[(3, 1, 48, 20, 12, None), (4, 3, 16, 8, 24, PAIRS), (1, 2, 8, 4, 4, None)],
)
FROZEN = (vary(gathered_product, par=peak_of_gathered_twice),)
### END HIDDEN TESTS
