"""A rank program on its way to the ranks: checked, and pickled by value, before any process starts."""

from __future__ import annotations

import inspect
import io
import pickle
import sys

import cloudpickle

from utils import source_lines


def check_program(fn, args: tuple, kwargs: dict) -> None:
    if not callable(fn):
        raise TypeError(f"spawn needs a function, and got {fn!r}. Pass it without calling it: spawn(work, 4).")
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


def pickle_program(fn, args: tuple, kwargs: dict, pickler: type[cloudpickle.Pickler] = cloudpickle.Pickler) -> bytes:
    """The program by value, as bytes. Raises TypeError that names what can't travel."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    if module is not None and source_lines.is_students(getattr(module, "__file__", None) or "<frozen "):
        cloudpickle.register_pickle_by_value(module)  # as a cell's functions: the rank need not find or import its file
    try:
        buffer = io.BytesIO()
        pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump((fn, args, kwargs))
        return buffer.getvalue()
    except Exception as error:
        culprit = find_unpicklable(fn, args, kwargs)
        raise TypeError(
            f"{culprit} can't be sent to the ranks: {error}. Each rank is a process of its own: "
            "make such things inside the function."
        ) from None


def find_unpicklable(fn, args: tuple, kwargs: dict) -> str:
    """Which variable of the program is the one that can't be pickled."""
    function = inspect.unwrap(fn) if inspect.isfunction(fn) else fn
    captured = inspect.getclosurevars(function) if inspect.isfunction(function) else None
    candidates = {f"argument {number}": value for number, value in enumerate(args)}
    candidates |= {f"argument {name}=": value for name, value in kwargs.items()}
    if captured:
        candidates |= {
            f"`{name}`, which {fn.__name__} uses,": v for name, v in {**captured.nonlocals, **captured.globals}.items()
        }
    for name, value in candidates.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"{name} (a {type(value).__name__})"
    return f"{getattr(fn, '__name__', fn)}"
