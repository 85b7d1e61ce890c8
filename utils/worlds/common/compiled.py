"""Functions and modules that `torch.compile` has wrapped.

What it wraps around them belongs to its process. So they travel as what was wrapped and what was asked for, and are
compiled anew where they arrive: on a virtual rank by that rank's `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

MARK, CONTEXT = "_is_torch_compile", "dynamo_ctx"  # torch's, of a function; of a module


def is_compiled(value: object) -> bool:
    held = getattr(value, "__dict__", ())
    return CONTEXT in held or (MARK in held and isinstance(value, FunctionType))


def reduce_compiled(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A compiled function or module in the form that `__reduce__` returns."""
    from ...recording.torch_private import compiled_from  # imports torch

    return compile_again, compiled_from(value)


def compile_again(wrapped: Any, wanted: dict[str, Any]) -> Any:
    import torch

    return torch.compile(wrapped, **wanted)
