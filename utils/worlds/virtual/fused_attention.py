"""Attention as GPUs carry it out: in one kernel, which keeps the sums of the rows and not the scores.

On a GPU torch has such a kernel for every form of `scaled_dot_product_attention` of four dimensions in 16 or 32 bits:
with grouped queries, masks, and values of another width than the keys (torch 2.13, sdp_utils.cpp: flash, cuDNN or
memory-efficient attention). For other devices it has them for some forms only, and composes the rest of matrix
products and a softmax. So the operator is replaced where autograd would compose it, under whatever name the program
calls it. `flex_attention`, compiled or not, is the kernel that compiling it makes.

What is computed:

    a mask        all pairs of a query and a key: the kernel reads the mask, and skips nothing
    is_causal     half of them at achieved rates (see Kernel.needed)
    a block mask  the blocks in it. If it was made of tensors without values, all pairs
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import flex_attention as flex

from ...recording.torch_private import (
    DispatchKey,
    call_kernel,
    dense_flex_attention,
    flash_attention,
    in_function_transform,
    sdpa,
)
from .kernels import Kernel, attention_flops, causal_part
from .rank import World

MOST_FLASH_DIMENSIONS = 256  # per head
DTYPES = {torch.float16, torch.bfloat16, torch.float32}
LIBRARY = torch.library.Library("aten", "IMPL")


class Form(NamedTuple):
    """What one call asks for.

    compute     the results with their graph, from query, key, value and the other inputs that need gradients
    pairs       the share of all pairs of a query and a key that is computed, and what part of these is of use
    generation  of the kernel, None for what the GPU's rates say
    statistics  how many results there are besides the output, one number per row each
    """

    compute: Callable[..., Sequence[Tensor]]
    pairs: float = 1.0
    of_use: float = 1.0
    generation: int | None = None
    statistics: int = 0

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, moved: int, backward: bool) -> Kernel:
        flops = int(attention_flops(query, key, value, backward) * self.pairs)
        kind = "attention_backward" if backward else "attention"
        dtype = str(query.dtype).removeprefix("torch.")
        return Kernel(flops, moved, dtype, kind, needed=int(flops * self.of_use), generation=self.generation)


class FusedAttention(torch.autograd.Function):
    """One kernel forward, one backward. With values they are computed as torch does on this device, at no charge."""

    @staticmethod
    def forward(ctx: Any, world: World, form: Form, *inputs: Tensor) -> Any:
        """inputs: query (batch, heads, sequence, width), key, value, then what else gets a gradient or is read."""
        query, key, value = inputs[:3]
        batch, heads, length, _ = query.shape
        out = like(query, value.shape[-1])
        rows = [query.new_empty(batch, heads, length, dtype=torch.float32) for _ in range(max(1, form.statistics))]
        if not world.only_sizes:
            with world.scheduler.bookkeeping(), torch.enable_grad(), saved_tensors_hooks(Tensor.detach, unchanged):
                ctx.inner = [x.detach().requires_grad_(x.requires_grad) for x in inputs[:3]]
                ctx.inner += inputs[3:]
                ctx.made = list(form.compute(*ctx.inner))
                for result, made in zip([out, *rows], ctx.made, strict=False):
                    result.detach().copy_(made.detach())
        moved = sum(map(nbytes, [*inputs, out, rows[0]]))
        world.running.run_kernel(form.kernel(query, key, value, moved, backward=False))
        ctx.world, ctx.form, ctx.reads = world, form, len(inputs)
        ctx.save_for_backward(*inputs, out, rows[0])
        return (out, *rows[: form.statistics]) if form.statistics else out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        world, form, saved = ctx.world, ctx.form, ctx.saved_tensors
        inputs, needed = saved[: ctx.reads], ctx.needs_input_grad[2:]
        made = [torch.empty_like(x) if need else None for x, need in zip(inputs, needed, strict=True)]
        moved = sum(map(nbytes, [grads[0], *saved, *(gradient for gradient in made if gradient is not None)]))
        world.running.run_kernel(form.kernel(*inputs[:3], moved, backward=True))
        if not world.only_sizes:
            with world.scheduler.bookkeeping():
                fill_gradients(made, ctx.made, ctx.inner, grads)
        return None, None, *made


def like(query: Tensor, width: int) -> Tensor:
    """An output (batch, heads, sequence, width), which the kernels lay out as the queries are."""
    order = sorted(range(4), key=lambda dim: query.stride(dim), reverse=True)
    sizes = (*query.shape[:3], width)
    return query.new_empty([sizes[dim] for dim in order]).permute([order.index(dim) for dim in range(4)])


def fill_gradients(
    gradients: list[Tensor | None], results: list[Tensor], inputs: list[Tensor], grads: Sequence[Tensor]
) -> None:
    wanted = [place for place, gradient in enumerate(gradients) if gradient is not None]
    found = torch.autograd.grad(
        results[: len(grads)], [inputs[place] for place in wanted], grads, retain_graph=True, allow_unused=True
    )
    for place, value in zip(wanted, found, strict=True):
        gradient = gradients[place]
        assert gradient is not None
        gradient.zero_() if value is None else gradient.copy_(value)


def unchanged(tensor: Tensor, *_: Tensor) -> Tensor:
    return tensor


def nbytes(tensor: Tensor) -> int:
    """Bytes in memory that a kernel reads or writes: a dimension that is merely repeated (stride 0) counts once."""
    count = tensor.element_size()
    if tensor.layout is not torch.strided:
        return tensor.numel() * count
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count


def is_fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, grouped: bool) -> bool:
    """Whether torch has a kernel for this form of scaled_dot_product_attention on a GPU."""
    tensors = [query, key, value, *([] if mask is None else [mask])]
    if any(type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__ for x in tensors) or in_function_transform():
        return False
    cuda = torch.backends.cuda
    if not (cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled()):
        return False  # the program asks for matrix products and a softmax
    if {query.dim(), key.dim(), value.dim()} != {4} or not query.dtype == key.dtype == value.dtype in DTYPES:
        return False
    heads = query.shape[1] % key.shape[1] == 0 if grouped else query.shape[1] == key.shape[1]
    fits = query.shape[0] == key.shape[0] and query.shape[3] == key.shape[3] and key.shape[:3] == value.shape[:3]
    return bool(heads and fits)


def asked_generation() -> int | None:
    """The generation that the program has asked for; None if it leaves the choice to torch."""
    if torch.nn.attention.current_flash_attention_impl() in ("FA3", "FA4"):
        return 3
    return None if torch.backends.cuda.cudnn_sdp_enabled() else 2


def attention(
    world: World,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention where a GPU would carry it out."""
    composed = functools.partial(call_kernel, sdpa, DispatchKey.CompositeImplicitAutograd)
    options = {"scale": scale, "enable_gqa": enable_gqa}
    if can_flash(query, key, value, attn_mask) and query.is_meta:
        flashed: Tensor = flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        return flashed
    if not is_fused(query, key, value, attn_mask, enable_gqa) or (is_causal and attn_mask is not None):
        return composed(query, key, value, attn_mask, dropout_p, is_causal, **options)  # type: ignore[no-any-return]
    masks = [] if attn_mask is None else [as_bias(query, attn_mask)]
    of_use = causal_part(query, key) if is_causal else 1.0

    def compute(query: Tensor, key: Tensor, value: Tensor, *masks: Tensor) -> list[Tensor]:
        mask = attn_mask if masks and not masks[0].requires_grad else masks[0] if masks else None
        return [composed(query, key, value, mask, dropout_p, is_causal, **options)]

    form = Form(compute, of_use=of_use, generation=asked_generation())
    made: Tensor = FusedAttention.apply(world, form, query, key, value, *masks)  # type: ignore[no-untyped-call]
    return made


def can_flash(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether torch's own operator for this kernel takes them. It has the name under which GPUs were measured."""
    return (
        mask is None
        and query.dim() == key.dim() == value.dim() == 4
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] == value.shape[-1] <= MOST_FLASH_DIMENSIONS
        and asked_generation() is None
    )


def as_bias(query: Tensor, mask: Tensor) -> Tensor:
    """What torch makes of a mask of booleans before the kernel: 0 and -inf, in the dtype of the queries."""
    if mask.dtype is not torch.bool:
        return mask
    return query.new_zeros(mask.shape).masked_fill_(mask.logical_not(), -math.inf)


# --- flex_attention


def flex_attention(
    world: World,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: flex.BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: flex.AuxRequest | None = None,
) -> Any:
    """torch's, as compiling it makes it: one kernel of the second generation.

    Raises ValueError, as torch's own does, if the sizes don't fit together.
    """
    check_sizes(query, key, value, block_mask, enable_gqa)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask = flex.noop_mask if block_mask is None else block_mask.mask_mod

    def compute(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> list[Tensor]:
        out, sums, most = dense_flex_attention(query, key, value, score_mod or unchanged, (mask,), factor, {})
        return [out, sums * math.log(2), most * math.log(2)][: 1 + statistics]

    wants_most = return_aux is not None and return_aux.max_scores
    wants_sums = return_lse or (return_aux is not None and return_aux.lse)
    statistics = 2 if wants_most else int(wants_sums)
    form = Form(compute, pairs=part_computed(world, query, key, block_mask), generation=2, statistics=statistics)
    learned = dict.fromkeys(captured(score_mod))
    made = FusedAttention.apply(world, form, query, key, value, *learned)  # type: ignore[no-untyped-call]
    out, sums, most = (*(made if statistics else [made]), None, None)[:3]
    if return_aux is not None:
        return out, flex.AuxOutput(lse=sums if wants_sums else None, max_scores=most)
    return (out, sums) if return_lse else out


def check_sizes(query: Tensor, key: Tensor, value: Tensor, block_mask: flex.BlockMask | None, grouped: bool) -> None:
    if {query.dim(), key.dim(), value.dim()} != {4}:
        raise ValueError(
            "flex_attention needs queries, keys and values of four dimensions: batch, heads, length, width"
        )
    heads, of_keys = query.shape[1], key.shape[1]
    if heads % of_keys or not (grouped or heads == of_keys):
        raise ValueError(
            f"flex_attention has {heads} heads of queries and {of_keys} of keys: they must be as many, or a multiple "
            "with enable_gqa=True"
        )
    if query.shape[-1] != key.shape[-1] or key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"flex_attention has queries {tuple(query.shape)}, keys {tuple(key.shape)} and values "
            f"{tuple(value.shape)}, which don't fit together"
        )
    lengths = query.shape[2], key.shape[2]
    if block_mask is not None and tuple(block_mask.shape[-2:]) != lengths:
        raise ValueError(f"block_mask is of lengths {tuple(block_mask.shape[-2:])}, queries and keys of {lengths}")


def part_computed(world: World, query: Tensor, key: Tensor, block_mask: flex.BlockMask | None) -> float:
    """The share of all pairs that lies in blocks which the mask does not leave out."""
    if block_mask is None:
        return 1.0
    counts = [x for x in (block_mask.kv_num_blocks, block_mask.full_kv_num_blocks) if x is not None]
    if any(x.is_meta for x in counts):
        return 1.0
    with world.scheduler.bookkeeping():
        blocks = sum(int(x.sum()) for x in counts) / math.prod(counts[0].shape[:-1])
    return min(1.0, blocks * math.prod(block_mask.BLOCK_SIZE) / (query.shape[2] * key.shape[2]))


def captured(value: Any) -> Iterator[Tensor]:
    """The tensors that a function reads from outside and that get gradients: a learned bias, say."""
    if isinstance(value, Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from captured(part)
    elif isinstance(value, FunctionType):
        found = inspect.getclosurevars(value)
        for part in [*found.nonlocals.values(), *found.globals.values()]:
            if part is not value:
                yield from captured(part)


def patch_attention(world: World) -> None:
    """Replace both functions, in this process only."""
    for key in ("AutogradCPU", "AutogradMeta"):
        LIBRARY.impl("scaled_dot_product_attention", functools.partial(attention, world), key)
    flex.flex_attention = functools.partial(flex_attention, world)
