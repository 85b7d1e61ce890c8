"""Functions and modules that `torch.compile` has wrapped.

What it wraps around them belongs to its process. So they travel as what was wrapped and what was asked for, and are
compiled anew where they arrive: on a virtual rank by that rank's `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

# Private names of torch, which can't be looked up before a program has called torch.compile: importing the compiler
# takes a second. recording/torch_private.py has the others.
MARK, CONTEXT = "_is_torch_compile", "dynamo_ctx"  # of a function; of a module


def is_compiled(value: object) -> bool:
    held = getattr(value, "__dict__", ())
    return CONTEXT in held or (MARK in held and isinstance(value, FunctionType))


def reduce_compiled(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A compiled function or module in the form that `__reduce__` returns."""
    from torch._dynamo.backends.registry import lookup_backend
    from torch._dynamo.eval_frame import innermost_backend, innermost_fn

    if hasattr(value, CONTEXT):
        wrapped, context = value._orig_mod, value.dynamo_ctx
    else:
        wrapped = innermost_fn(value)
        context = dict(zip(value.__code__.co_freevars, value.__closure__, strict=True))["self"].cell_contents
    backend: Any = innermost_backend(context.callback)
    wanted: dict[str, Any] = {"fullgraph": context.fullgraph, "dynamic": context._dynamic}
    if backend.compiler_name == "inductor":
        wanted["options"] = backend.config or None
    else:
        try:
            has_name = lookup_backend(backend.compiler_name) is backend.compiler_fn
        except RuntimeError:  # torch's InvalidBackend
            has_name = False
        wanted |= {"backend": backend.compiler_name if has_name else backend.compiler_fn, **backend.kwargs}
    return compile_again, (wrapped, wanted)


def compile_again(wrapped: Any, wanted: dict[str, Any]) -> Any:
    import torch

    return torch.compile(wrapped, **wanted)
