"""Where a rank is and what its decisions read there, while it waits inside a call: another thread looks at its stack.

Only plain values are taken, and nothing of the program's runs for it: a property may do anything.
"""

from __future__ import annotations

import ast
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

import torch

from ..events.rank_state import StackFrame
from ..text.decisions import names_read_in
from ..text.source_lines import is_students

PLAIN = (bool, int, float, str, type(None))
LONGEST = 40  # characters of a value that are kept


def look_at_main_thread() -> list[StackFrame]:
    """The student's part of this process's main thread."""
    return look_at(threading.main_thread().ident or 0)


def look_at(thread: int) -> list[StackFrame]:
    """The student's frames on the stack of the thread with this identity, innermost first."""
    frame = sys._current_frames().get(thread)
    caught = caught_in(sys._current_exceptions().get(thread))
    handlers = handlers_of_signals()
    found = []
    while frame is not None:
        code = frame.f_code
        if is_students(code.co_filename):
            names = names_read_in(code.co_filename, code.co_name)
            values = values_of(names, {**frame.f_globals, **frame.f_locals})
            handles, error = handlers.get(code, ""), caught.get(frame, ("", ""))
            found.append(StackFrame(code.co_filename, frame.f_lineno, code.co_name, values, handles, error))
        frame = frame.f_back
    return found


def caught_in(error: Any) -> dict[FrameType, tuple[str, str]]:
    """{the frame whose `except` or `finally` this has led to: (the exception, the student's line that raised it)}."""
    error = error[1] if isinstance(error, tuple) else error  # before Python 3.12: what sys.exc_info() gives
    trace = getattr(error, "__traceback__", None)
    if trace is None:
        return {}
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    file, line = next((line for line in reversed(lines) if is_students(line[0])), lines[-1])
    said = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    message = text_of(said[0]) if len(said) == 1 else ""
    return {trace.tb_frame: (f"{type(error).__name__}({message})", f"{file}:{line}")}


def handlers_of_signals() -> dict[CodeType, str]:
    """{code of a function of the program's: the signal that it handles}."""
    handlers = ((number, signal.getsignal(number)) for number in signal.valid_signals())
    return {code: signal.Signals(n).name for n, h in handlers if (code := getattr(h, "__code__", None)) is not None}


def values_of(names: tuple[str, ...], known: Mapping[str, Any]) -> dict[str, str]:
    """{name: its value as text}, for names with a value that is plain."""
    texts = {}
    for name in names:
        try:
            text = text_of(value_of(ast.parse(name, mode="eval").body, known))
        except Exception:  # there is no such name yet, or no such item
            continue
        if text:
            texts[name] = text
    return texts


def value_of(path: ast.expr, known: Mapping[str, Any]) -> Any:
    """What a name, an attribute or an item is, by plain look-ups. Raises LookupError, TypeError or ValueError."""
    if isinstance(path, ast.Name):
        return known[path.id]
    if isinstance(path, ast.Attribute):
        return vars(value_of(path.value, known))[path.attr]
    if isinstance(path, ast.Subscript):
        whole = value_of(path.value, known)
        if type(whole) in (dict, list, tuple):
            return whole[path.slice.value if isinstance(path.slice, ast.Constant) else value_of(path.slice, known)]
    raise ValueError(f"{ast.dump(path)} is not looked up")


def text_of(value: Any) -> str:
    """ "3", "'abc'", "2 items", "a tensor that holds 3.0"; "" of what has no plain value."""
    if type(value) in PLAIN:
        text = repr(value)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    if isinstance(value, dict | list | tuple | set | frozenset):
        items = [*value, *value.values()] if isinstance(value, dict) else value
        if all(type(item) in PLAIN for item in items) and len(text := repr(value)) <= LONGEST:
            return text
        if value and isinstance(value, dict) and {*map(type, value)} == {str} and len(repr([*value])) <= LONGEST:
            return f"a dict of {', '.join(map(repr, value))}"
        return "empty" if not value else f"{len(value)} item{'s' * (len(value) > 1)}"
    if type(value) is torch.Tensor and value.device.type == "cpu":
        return f"tensor({value.item()})" if value.numel() == 1 else f"a tensor of shape {list(value.shape)}"
    return ""
