"""`torch.autocast` for tensors without values: torch's own only looks at tensors on a device it knows.

Above autograd, as there, so that the casts are operations with a backward, and what autograd keeps has the dtype it
would have. The functions are those that torch's documentation lists for CUDA ("Autocast Op Reference"), and those that
are made of them. A parameter is cast once, and the copy kept until the outermost context ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...recording.torch_private import is_leaf, is_on


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOWER = words(
    """
    __matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul multi_dot einsum conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d gru_cell linear lstm_cell matmul mm mv prelu rnn_tanh_cell
    rnn_relu_cell scaled_dot_product_attention attention multi_head_attention_forward
    """
)
FULL = words(
    """
    __pow__ __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits cosh cosine_embedding_loss cdist
    cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div
    l1_loss layer_norm log log10 log_softmax log1p log2 margin_ranking_loss mse_loss multilabel_margin_loss
    multi_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal rms_norm rsqrt sinh
    smooth_l1_loss soft_margin_loss softmax softmin softplus square sum renorm tan triplet_margin_loss
    """
)
WIDEST = words(
    """
    addcdiv addcmul atan2 bilinear cat cross dot grid_sample index_put scatter_add stack tensordot
    """
)


class Autocast(TorchFunctionMode):
    """The functions of one thread's program, while it is inside `torch.autocast`.

    dtypes   of the contexts it is in, inner ones last; None for one that is switched off
    """

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype | None] = []
        self.casts: dict[int, tuple[Tensor, Tensor]] = {}  # id of a parameter: it, and its copy

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        dtype = self.target(getattr(function, "__name__", ""), args)
        if dtype is not None:
            args = self.cast(args, dtype)
            kwargs = {name: self.cast(value, dtype) for name, value in kwargs.items()}
        return function(*args, **kwargs)

    def target(self, name: str, args: tuple[Any, ...]) -> torch.dtype | None:
        """The dtype that the function's arguments are cast to; None to leave them."""
        if not self.dtypes or self.dtypes[-1] is None:
            return None
        if name in LOWER:
            return self.dtypes[-1]
        if name in FULL:
            return torch.float32
        if name in WIDEST:
            found = {tensor.dtype for tensor in castable(args)}
            return torch.float32 if torch.float32 in found and len(found) > 1 else None
        return None

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        if type(value) in (list, tuple):
            return type(value)(self.cast(part, dtype) for part in value)
        if not is_castable(value) or value.dtype is dtype:
            return value
        if not (value.requires_grad and is_leaf(value) and dtype is self.dtypes[-1]):
            return value.to(dtype)
        if id(value) not in self.casts:
            self.casts[id(value)] = value, value.to(dtype)
        return self.casts[id(value)][1]


def is_castable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def castable(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if is_castable(value):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += castable(value)
    return found


def patch_autocast() -> None:
    """Make `with torch.autocast(...)` count for tensors without values, in this process only."""
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__
    of_thread = threading.local()

    def enter_both(context: torch.autocast) -> Any:
        mode: Autocast = of_thread.__dict__.setdefault("mode", Autocast())
        if not mode.dtypes:
            mode.__enter__()  # type: ignore[no-untyped-call]
        mode.dtypes.append(context.fast_dtype if is_on(context) else None)
        return enter(context)  # type: ignore[no-untyped-call]

    def leave_both(context: torch.autocast, *error: Any) -> Any:
        mode: Autocast = of_thread.mode
        mode.dtypes.pop()
        if not mode.dtypes:
            mode.casts.clear()
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return leave(context, *error)

    torch.autocast.__enter__, torch.autocast.__exit__ = enter_both, leave_both  # type: ignore[method-assign]
