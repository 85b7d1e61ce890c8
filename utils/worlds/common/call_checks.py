"""What a call to `spawn` or `simulate` must look like. All of this is checked before any process starts."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

DEFAULT_TIMEOUT = 60.0
MAX_PROCESSES = 128  # ranks per world: the zygote gets all descriptors in one message, which can carry 253


def check_program(
    fn: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any], caller: str = "spawn"
) -> None:
    """Raises TypeError if `fn` is not a function, or can't be called with these arguments."""
    if not callable(fn):
        raise TypeError(f"{caller} needs a function; got {fn!r}. Pass it without calling it: {caller}(work, 4).")
    name = getattr(fn, "__name__", type(fn).__name__)
    if inspect.iscoroutinefunction(fn):
        raise TypeError(f"{name} is async. A rank program is an ordinary function: def {name}(rank, world_size, ...).")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(0, 1, *args, **kwargs)
    except TypeError as error:
        given = ", ".join(["rank", "world_size", *(type(a).__name__ for a in args), *(f"{k}=..." for k in kwargs)])
        raise TypeError(
            f"{name}{signature} can't be called as {name}({given}): {error}. "
            f"A rank program takes its rank and the world size first: def {name}(rank, world_size, ...)."
        ) from None


def check_world_size(world_size: Any, most: int | None = MAX_PROCESSES, caller: str = "spawn") -> int:
    """`world_size` as an int. Raises TypeError unless it is a whole number, ValueError if it is too small or large."""
    if isinstance(world_size, bool) or not hasattr(world_size, "__index__"):
        raise TypeError(f"world_size is the number of ranks to start, a whole number; got {world_size!r}.")
    size = operator.index(world_size)
    if size < 1:
        raise ValueError(f"world_size is the number of ranks to start: at least 1, and got {size}.")
    if most is not None and size > most:
        what = {"spawn": "real processes", "simulate": "threads"}[caller]
        raise ValueError(f"world_size={size} is too many: {caller} starts {what} on this machine, at most {most}.")
    return size


def check_timeout(timeout: float | None, default: float = DEFAULT_TIMEOUT) -> float:
    """`timeout` in seconds, or the default for None. Raises ValueError unless it is a number above 0."""
    if timeout is None:
        return default
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"timeout is in seconds and must be more than 0; got {timeout!r}.")
    return float(timeout)
