"""What surrounds a rank program in its process: where its prints go, where it runs, what is told when it raises.

The same for a rank of its own process and for the threads of a virtual cluster.
"""

from __future__ import annotations

import builtins
import fcntl
import itertools
import linecache
import os
import random
import resource
import sys
import time
import traceback

import cloudpickle
import numpy.random
import torch

from ...events.failure import Failure, Frame
from ...recording.torch_private import set_pickler_of_objects
from ...text.package import FOLDER
from .protocol import Request

machinery = {os.path.join(FOLDER, "")}  # folders: a traceback begins with lines of theirs, which are left out
marks = 1  # the descriptor that the marks of protocol.py are written to: the rank's output


def redirect(output: int) -> None:
    """Prints, warnings, logging and what C libraries write all go to `output`; stdin is empty."""
    global marks
    high = min(200, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4)  # out of the program's way
    marks = fcntl.fcntl(output, fcntl.F_DUPFD_CLOEXEC, high)  # ours, whatever the program does to 1 and 2
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)
    builtins.input = no_keyboard
    # One stream under both names, so that what is printed and what is warned stays in order.
    sys.stdout = sys.stderr = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.__stdout__ = sys.__stderr__ = sys.stdout
    draw_bars_as_text()


def no_keyboard(prompt="", /):
    """Takes the place of `input`."""
    raise EOFError("a rank has no keyboard: ask in the notebook and pass the answer: spawn(work, 4, answer)")


def draw_bars_as_text() -> None:
    """tqdm's bar for notebooks draws in a page, which a rank doesn't have: the plain one takes its place."""
    bars = sys.modules.get("tqdm.std")  # torch imports it where it is installed
    if bars is not None:
        bars.tqdm_notebook, bars.tnrange = bars.tqdm, bars.trange
        sys.modules["tqdm.notebook"] = sys.modules["tqdm"].notebook = bars


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the program closed it, or put something else in its place
            pass


def adopt_environment(request: Request) -> None:
    """Put this process where the kernel is, and let all random numbers begin alike."""
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.working_directory)
    sys.path[:] = request.sys_path
    sys.argv = [""]
    linecache.cache.update(request.sources)

    torch.set_num_threads(threads_asked_for(request.environment))
    random.seed(0)  # every rank draws the same numbers unless the program seeds by rank; torch's were seeded before
    numpy.random.seed(0)

    set_pickler_of_objects(cloudpickle.Pickler)  # so that a cell's classes travel in object collectives too


def threads_asked_for(environment: dict[str, str]) -> int:
    """One, unless OMP_NUM_THREADS says another number; OpenMP takes no notice of what is none either."""
    first = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else 1


def is_machinery(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(tuple(machinery))


def failure(error: BaseException, zero: float) -> Failure:
    frames = tuple(
        Frame(frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip())
        for frame in itertools.dropwhile(is_machinery, traceback.extract_tb(error.__traceback__))
    )
    if isinstance(error, SyntaxError) and error.filename:
        frames += (Frame(error.filename, error.lineno or 0, "", (error.text or "").strip()),)
    return Failure(type(error).__name__, _text(error), frames, time.monotonic() - zero)


def _text(error: BaseException) -> str:
    """Its message, notes and causes, as plain text of a length that can be read."""
    try:
        text = "".join(str(error))
    except Exception as nested:  # a student's __str__ may raise
        text = f"(its message can't be shown: {type(nested).__name__})"
    text = "\n".join([text, *map(str, getattr(error, "__notes__", ()))])
    if len(text) > 4000:
        text = f"{text[:2000]}\n... {len(text) - 4000} characters ...\n{text[-2000:]}"
    members = getattr(error, "exceptions", ()) if isinstance(error, BaseExceptionGroup) else ()
    for what, other in [("caused by", error.__cause__), *(("one of them:", member) for member in members[:5])]:
        if other is not None:
            text += f"\n  {what} {type(other).__name__}: {_text(other)}"
    return text.encode("utf-8", "backslashreplace").decode()
