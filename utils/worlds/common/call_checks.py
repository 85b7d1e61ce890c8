"""What a call of `spawn` or `simulate` must look like: checked before any process starts."""

from __future__ import annotations

import inspect
import operator

DEFAULT_TIMEOUT = 60.0
MAX_PROCESSES = 128  # of one world; the zygote gets a descriptor for each in one message, which can carry 253


def check_program(fn, args: tuple, kwargs: dict, who: str = "spawn") -> None:
    if not callable(fn):
        raise TypeError(f"{who} needs a function, and got {fn!r}. Pass it without calling it: {who}(work, 4).")
    name = getattr(fn, "__name__", type(fn).__name__)
    if inspect.iscoroutinefunction(fn):
        raise TypeError(f"{name} is async; a rank program is an ordinary function: def {name}(rank, world_size, ...).")
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


def check_world_size(world_size, most: int | None = MAX_PROCESSES, who: str = "spawn") -> int:
    if isinstance(world_size, bool) or not hasattr(world_size, "__index__"):
        raise TypeError(f"world_size is how many ranks to start, a whole number; got {world_size!r}.")
    world_size = operator.index(world_size)
    if world_size < 1:
        raise ValueError(f"world_size is how many ranks to start: at least 1, and got {world_size}.")
    if most is not None and world_size > most:
        what = {"spawn": "real processes", "simulate": "threads"}[who]
        raise ValueError(f"world_size={world_size}: {who} starts {what} on this machine, at most {most}. Choose fewer.")
    return world_size


def check_timeout(timeout) -> float:
    if timeout is None:
        return DEFAULT_TIMEOUT
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"timeout is in seconds, more than 0; got {timeout!r}.")
    return float(timeout)
