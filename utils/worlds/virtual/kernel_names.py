"""The name of an operation in a file of kernel times (cluster/kernel_times.py)."""

from __future__ import annotations

from typing import Any

import torch

from ...recording.torch_private import OpOverload


def kernel_name(function: OpOverload[..., Any], args: tuple[Any, ...]) -> str:
    """What the time of an operation depends on: "aten.mm.default bfloat16[64,32] bfloat16[32,8]"."""
    return " ".join([str(function), *filter(None, map(argument_text, args))])


def argument_text(value: Any) -> str:
    """ "" for a value that makes no difference: a float, None, a generator."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
    if isinstance(value, int):  # and bool
        return str(int(value))
    if isinstance(value, (list, tuple)):
        return f"({' '.join(filter(None, map(argument_text, value)))})"
    return ""
