"""Functions and modules that `torch.compile` has wrapped.

What it wraps around them belongs to its process. So they travel as what was wrapped and what was asked for, and are
compiled anew where they arrive: on a virtual rank by that rank's `torch.compile`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

# torch's: what it marks a function with; where a module has its settings; one of these.
MARK, CONTEXT, DYNAMIC = "_is_torch_compile", "dynamo_ctx", "_dynamic"


def is_compiled(value: object) -> bool:
    held = getattr(value, "__dict__", ())
    return CONTEXT in held or (MARK in held and isinstance(value, FunctionType))


def reduce_compiled(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A compiled function or module in the form that `__reduce__` returns."""
    import torch

    if CONTEXT in vars(value):
        wrapped, context = next(value.children()), value.dynamo_ctx
    else:
        context = dict(zip(value.__code__.co_freevars, value.__closure__, strict=True))["self"].cell_contents
        wrapped = home_of(context).innermost_fn(value)
    backend = home_of(context).innermost_backend(context.callback)
    wanted = {"fullgraph": context.fullgraph, "dynamic": vars(context)[DYNAMIC]}
    if backend.compiler_name == "inductor":
        return compile_again, (wrapped, {**wanted, "options": backend.config or None})
    has_name = backend.compiler_name in torch.compiler.list_backends(exclude_tags=())
    named = backend.compiler_name if has_name else backend.compiler_fn
    return compile_again, (wrapped, {**wanted, "backend": named, **backend.kwargs})


def home_of(context: Any) -> Any:
    """The module of torch's compiler that made it. A program that compiles nothing never imports it."""
    return sys.modules[type(context).__module__]


def compile_again(wrapped: Any, wanted: dict[str, Any]) -> Any:
    import torch

    return torch.compile(wrapped, **wanted)
