"""One training step of a wide MLP that is split in two ways at once: what it costs, without its values.

    run = simulate(step, 16, 4, 4, 16384, dim=16384, layers=16)        # dp, tp, rows

There are dp groups of tp ranks. The ranks of a group compute the same rows, each with a slice of every weight (tensor
parallelism); ranks at the same place in different groups have the same slices and different rows (data parallelism).
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist


def step(rank: int, world_size: int, dp: int, tp: int, rows: int, dim: int, layers: int) -> float:
    """Forward and backward of x = relu(x @ weight), without the optimizer; returns the seconds of this rank.

    rows     of the whole batch, divisible by dp; tp divides dim; layers is even
    memory   in bfloat16 but for 12 bytes of Adam's state per parameter, none of it sharded over dp

    Of each pair of layers, the first weight is cut into columns and the second into rows, so that one all-reduce of
    activations is enough. Gradients are all-reduced while the rest of the backward pass runs.
    """
    tp_groups = [dist.new_group([group * tp + place for place in range(tp)]) for group in range(dp)]
    dp_groups = [dist.new_group([group * tp + place for group in range(dp)]) for place in range(tp)]
    tp_group, dp_group = tp_groups[rank // tp], dp_groups[rank % tp]
    weights, gradients = ([torch.empty(dim, dim // tp, dtype=torch.bfloat16) for _ in range(layers)] for _ in range(2))
    adam = torch.empty(3, layers, dim, dim // tp)
    x, kept, handles = torch.empty(rows // dp, dim, dtype=torch.bfloat16), [], []
    start = time.perf_counter()
    for first, second in zip(weights[::2], weights[1::2], strict=True):
        hidden = (x @ first).relu()
        y = hidden @ second.T
        dist.all_reduce(y, group=tp_group)
        kept.append((x, hidden))
        x = y.relu()
    grad = x
    for pair in reversed(range(layers // 2)):
        after, (x, hidden) = x, kept.pop()
        grad = grad * (after > 0)
        torch.mm(grad.T, hidden, out=gradients[2 * pair + 1])
        grad_hidden = (grad @ weights[2 * pair + 1]) * (hidden > 0)
        torch.mm(x.T, grad_hidden, out=gradients[2 * pair])
        for gradient in gradients[2 * pair : 2 * pair + 2]:
            handles.append(dist.all_reduce(gradient, group=dp_group, async_op=True))
        grad = grad_hidden @ weights[2 * pair].T
        dist.all_reduce(grad, group=tp_group)
    for handle in handles:
        handle.wait()
    del adam
    return time.perf_counter() - start
