"""The hidden tests of lesson 08: the visible checks, with other values.

Groups of 1, 2, 3, 4, 5 and 8 ranks, and two groups side by side; other shapes, dtypes and seeds; strided views.
"""

from __future__ import annotations

from importlib import import_module

import torch

from utils.checks.marking import check
from utils.checks.runner import Runner

visible = import_module("utils.checks.08_tensor_parallelism")

PAIRS = [[0, 2], [1, 3]]  # two groups of two: ranks 0 and 1 come first in theirs
PLACES = [0, 0, 1, 1]  # of ranks 0 to 3 in those groups


def columns(x: torch.Tensor) -> torch.Tensor:
    """Every second column: a view with a stride."""
    return x[..., ::2]


def column_major(x: torch.Tensor) -> torch.Tensor:
    """The same values and shape, stored in column-major order."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


# ---- part 1


@check("shard-of-weight")
def shard_of_weight_values(run: Runner) -> None:
    visible.judge_shards(run, 3, fan_in=9, fan_out=4, dim=0, seed=11)
    visible.judge_shards(run, 5, fan_in=3, fan_out=10, dim=1, seed=0)
    visible.judge_shards(run, 1, fan_in=3, fan_out=4, dim=1, seed=5)


@check("shard-of-weight", judges="memory")
def shard_of_weight_memory(run: Runner) -> None:
    visible.judge_shard_memory(run, 3, fan_in=5, fan_out=9, dim=1)


@check("column-parallel")
def column_parallel_values(run: Runner) -> None:
    visible.judge_column_parallel(run, 2, B=3, D=2, F=4, dtype=torch.float64, seed=2, groups=PAIRS, order=PLACES)
    visible.judge_column_parallel(run, 3, B=1, D=5, F=3, seed=1)
    visible.judge_column_parallel(run, 1, B=2, D=3, F=4)


@check("column-parallel", judges="traffic")
def column_parallel_traffic(run: Runner) -> None:
    x, w, b, grad = visible.column_inputs(run.draws, 3, 5, 4, 6, torch.float64).values()
    cut = {"w_local": visible.parts(w, 3, 1), "b_local": visible.parts(b, 3, 0)}
    given = visible.per_rank(3, x=x, **cut, grad_local=visible.parts(grad, 3, 1))
    visible.judge_by_hand_traffic(run, given, nbytes=5 * 4 * 8, of="x")


@check("row-parallel")
def row_parallel_values(run: Runner) -> None:
    visible.judge_row_parallel(run, 2, B=3, F=4, D=2, dtype=torch.float64, seed=2, groups=PAIRS, order=PLACES)
    visible.judge_row_parallel(run, 5, B=2, F=10, D=3, seed=1)
    visible.judge_row_parallel(run, 1, B=2, F=3, D=4)


@check("row-parallel", judges="traffic")
def row_parallel_traffic(run: Runner) -> None:
    x, w, bias, grad = visible.row_inputs(run.draws, 4, 9, 5, torch.float64).values()
    cut = {"x_local": visible.parts(x, 3, 1), "w_local": visible.parts(w, 3, 0)}
    visible.judge_by_hand_traffic(run, visible.per_rank(3, **cut, bias=bias, grad=grad), nbytes=4 * 5 * 8, of="y")


# ---- part 2


@check("copy-to-shards")
def copy_to_shards_values(run: Runner) -> None:
    visible.judge_copy(run, 2, (3, 1, 2), torch.float64, groups=PAIRS, order=[0, 1, 2, 3])
    visible.judge_copy(run, 3, (2, 4), spread=column_major)
    visible.judge_copy(run, 2, (2, 4), spread=lambda x: x[:, :1].expand(2, 4))
    visible.judge_copy(run, 4, (5,), torch.bfloat16)
    visible.judge_copy(run, 1, (2, 2))


@check("copy-to-shards", judges="traffic")
def copy_to_shards_traffic(run: Runner) -> None:
    visible.judge_copy_traffic(run, 3, (5, 1), torch.float64)


@check("reduce-from-shards")
def reduce_from_shards_values(run: Runner) -> None:
    visible.judge_reduce(run, 2, (3, 1, 2), torch.float64, groups=PAIRS)
    visible.judge_reduce(run, 3, (2, 4), spread=column_major)
    visible.judge_reduce(run, 5, (2, 6), torch.bfloat16, spread=columns)
    visible.judge_reduce(run, 1, (2, 2))


@check("reduce-from-shards", judges="traffic")
def reduce_from_shards_traffic(run: Runner) -> None:
    visible.judge_reduce_traffic(run, 3, (5, 1), torch.float64)


@check("gather-from-shards")
def gather_from_shards_values(run: Runner) -> None:
    visible.judge_gather(run, 2, (3, 2), torch.float64, groups=PAIRS)
    visible.judge_gather(run, 3, (2, 2, 4), spread=columns)
    visible.judge_gather(run, 5, (7,), torch.bfloat16)
    visible.judge_gather(run, 1, (2, 2))


@check("gather-from-shards", judges="traffic")
def gather_from_shards_traffic(run: Runner) -> None:
    visible.judge_gather_traffic(run, 3, (2, 1, 2), torch.float64)


# ---- part 3


@check("megatron-mlp")
def megatron_mlp_values(run: Runner) -> None:
    visible.judge_mlp(run, 3, (2, 5), F=9, seed=4)
    visible.judge_mlp(run, 2, (2, 3, 4), F=8, seed=5)
    visible.judge_mlp(run, 1, (3, 4), F=6)


@check("megatron-mlp", judges="traffic")
def megatron_mlp_traffic(run: Runner) -> None:
    visible.judge_mlp_traffic(run, 3, (2, 2, 5), F=9)


@check("megatron-mlp", judges="time")
def megatron_mlp_time(run: Runner) -> None:
    visible.judge_mlp_time(run, 8, (64, 32), F=32, alpha=2e-6, bandwidth=3e9)


# ---- part 4


@check("parallel-embedding")
def parallel_embedding_values(run: Runner) -> None:
    tokens = torch.tensor([9, 0, 1, 4, 5, 9, 6, 3, 2, 7, 8])
    visible.judge_embedding(run, 5, 2, D=3, tokens=tokens, dtype=torch.float64)
    visible.judge_embedding(run, 3, 4, D=1, tokens=torch.tensor([[[3], [4], [11]]]))
    visible.judge_embedding(run, 2, 3, D=2, tokens=torch.tensor([5, 5, 3]))  # one rank has none of them
    visible.judge_embedding(run, 1, 4, D=2, tokens=torch.tensor([3, 0]))


@check("parallel-embedding", judges="traffic")
def parallel_embedding_traffic(run: Runner) -> None:
    visible.judge_embedding_traffic(run, 3, 2, D=4, tokens=torch.tensor([[0, 5, 3]]))


@check("parallel-cross-entropy")
def parallel_cross_entropy_values(run: Runner) -> None:
    visible.judge_entropy(run, 3, *visible.entropy_inputs(3, 7, 4, seed=6))
    visible.judge_entropy(run, 5, *visible.entropy_inputs(5, 4, 2, scale=500.0, seed=7))
    visible.judge_entropy(run, 1, *visible.entropy_inputs(1, 3, 4))
    logits, targets = visible.entropy_inputs(4, 8, 3, seed=8)
    logits[:, 3:6] -= 2000.0  # all words of one rank are far below the others'
    visible.judge_entropy(run, 4, logits, targets.clamp(6, 11))


@check("parallel-cross-entropy", judges="traffic")
def parallel_cross_entropy_traffic(run: Runner) -> None:
    visible.judge_entropy_traffic(run, 3, *visible.entropy_inputs(3, 5, 40))


@check("parallel-attention")
def parallel_attention_values(run: Runner) -> None:
    visible.judge_attention(run, 3, B=1, S=4, D=12, heads=6, seed=3)
    visible.judge_attention(run, 4, B=2, S=2, D=8, heads=4, seed=4)
    visible.judge_attention(run, 1, B=2, S=3, D=6, heads=3)


@check("parallel-attention", judges="traffic")
def parallel_attention_traffic(run: Runner) -> None:
    visible.judge_attention_traffic(run, 3, B=1, S=5, D=6, heads=3)


# ---- part 5


@check("across-sequence")
def across_sequence_values(run: Runner) -> None:
    visible.judge_across(run, 2, (3, 2, 1), torch.float64, groups=PAIRS)
    visible.judge_across(run, 3, (1, 2, 4), spread=columns_of_pairs)
    visible.judge_across(run, 5, (2, 1, 1))
    visible.judge_across(run, 1, (2, 2, 2))


def columns_of_pairs(x: torch.Tensor) -> torch.Tensor:
    """The same values, as every second column of a tensor twice as wide."""
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


@check("across-sequence", judges="traffic")
def across_sequence_traffic(run: Runner) -> None:
    visible.judge_across_traffic(run, 3, (1, 2, 2), torch.float64)


@check("sequence-parallel-mlp")
def sequence_parallel_mlp_values(run: Runner) -> None:
    visible.judge_sequence_mlp(run, 3, B=1, S=6, D=4, F=6, seed=3)
    visible.judge_sequence_mlp(run, 4, B=2, S=4, D=5, F=8, seed=4)
    visible.judge_sequence_mlp(run, 1, B=2, S=3, D=4, F=4)


@check("sequence-parallel-mlp", judges="traffic")
def sequence_parallel_mlp_traffic(run: Runner) -> None:
    visible.judge_sequence_traffic(run, 3, B=1, S=6, D=5, F=6)


@check("sequence-parallel-mlp", judges="memory")
def sequence_parallel_mlp_memory(run: Runner) -> None:
    visible.judge_kept(run, 2, B=1, S=96, D=32, F=32)


@check("dropout-generators")
def dropout_generators_values(run: Runner) -> None:
    visible.judge_generators(run, 8, seed=0)
    visible.judge_generators(run, 3, seed=2**31)
    visible.judge_generators(run, 1, seed=1)
