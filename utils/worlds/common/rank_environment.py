"""What a rank program finds in its process: where its prints go, its environment, and what is recorded when it raises.

The same for a rank with a process of its own and for the threads of a virtual cluster.
"""

from __future__ import annotations

import builtins
import fcntl
import itertools
import linecache
import os
import random
import re
import resource
import sys
import time
import traceback
from typing import Any, NoReturn

import numpy.random
import torch

from ...events.failure import Failure, Frame
from ...recording.torch_private import set_pickler_of_objects
from ...text.package import FOLDER, LESSONS
from ...text.source_lines import library_prefixes
from .by_value import Pickler
from .protocol import Request

OWN = os.path.join(FOLDER, "")
# Folders: tracebacks don't begin with lines of theirs, and hold none of those that aren't our OWN.
machinery = {OWN, os.path.join(LESSONS, "")}
marks = 1  # the descriptor of the rank's output, for the marks of protocol.py


# torch's errors where there is no GPU, in builds with CUDA and without.
NO_CUDA = re.compile(
    r"not compiled with CUDA|requires CUDA support|no attribute '_cuda_|dummy base class (Event|Stream)"
    r"|Found no NVIDIA driver|No CUDA GPUs are available"
)
NOT_IN_GROUP = re.compile(r"(Global|Group) rank \d+ is not part of group")
BY_GROUP_RANK = (
    "src and dst are ranks of the whole world, also in a smaller group. group_src and group_dst number the ranks of "
    "the group from 0: group_src=0 is its first."
)
WITHOUT_GPU = (
    "This rank has no GPU. Take the device from get_device(), which is the rank's GPU where it has one, and leave "
    "torch.cuda alone where it has none."
)


def redirect(output: int) -> None:
    """Send prints, warnings, logging and whatever C libraries write to `output`, and make stdin empty."""
    global marks
    high = min(200, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4)  # out of the program's way
    marks = fcntl.fcntl(output, fcntl.F_DUPFD_CLOEXEC, high)  # our own, whatever the program does to 1 and 2
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)
    builtins.input = no_keyboard
    # One stream under both names, so that prints and warnings stay in order.
    sys.stdout = sys.stderr = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    for name in ("__stdout__", "__stderr__"):
        setattr(sys, name, sys.stdout)
    draw_bars_as_text()


def no_keyboard(prompt: object = "", /) -> NoReturn:
    """Takes the place of `input`."""
    raise EOFError("a rank has no keyboard. Ask in the notebook and pass the answer on: spawn(work, 4, answer)")


def draw_bars_as_text() -> None:
    """Replace tqdm's bar for notebooks, which draws on a page that a rank does not have, by the plain one."""
    bars: Any = sys.modules.get("tqdm.std")  # torch imports it if it is installed
    if bars is not None:
        bars.tqdm_notebook, bars.tnrange = bars.tqdm, bars.trange
        package: Any = sys.modules["tqdm"]
        package.notebook = sys.modules["tqdm.notebook"] = bars


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the program closed it, or replaced it by something else
            pass


def adopt_environment(request: Request) -> None:
    """Give this process the kernel's environment, folder and path, and the same random numbers as every other rank."""
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.working_directory)
    sys.path[:] = request.sys_path
    library_prefixes.cache_clear()
    sys.argv = [""]
    linecache.cache.update(request.sources)

    torch.set_num_threads(threads_asked_for(request.environment))
    random.seed(0)  # every rank draws the same numbers unless the program seeds by rank; torch is seeded already
    numpy.random.seed(0)

    set_pickler_of_objects(Pickler)  # so that a cell's classes travel in object collectives too


def threads_asked_for(environment: dict[str, str]) -> int:
    """One, unless OMP_NUM_THREADS says otherwise. Like OpenMP, this ignores a value that is not a number."""
    first = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else 1


def is_machinery(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(tuple(machinery))


def failure(error: BaseException, zero: float) -> Failure:
    """`error` as plain data. zero: time.monotonic() at which the world began."""
    frames = tuple(
        Frame(frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip())
        for frame in itertools.dropwhile(is_machinery, traceback.extract_tb(error.__traceback__))
        if frame.filename.startswith(OWN) or not is_machinery(frame)
    )
    if isinstance(error, SyntaxError) and error.filename:
        frames += (Frame(error.filename, error.lineno or 0, "", (error.text or "").strip()),)
    return Failure(type(error).__name__, error_text(error), frames, time.monotonic() - zero)


def error_text(error: BaseException) -> str:
    """Its message, notes and causes, as plain text that is not too long to read."""
    try:
        text = "".join(str(error))
    except Exception as nested:  # a student's __str__ may raise
        text = f"(its message can't be shown: {type(nested).__name__})"
    text = "\n".join([text, *map(str, getattr(error, "__notes__", ()))])
    if NO_CUDA.search(text):
        text += "\n" + WITHOUT_GPU
    if NOT_IN_GROUP.search(text):
        text += "\n" + BY_GROUP_RANK
    if len(text) > 4000:
        text = f"{text[:2000]}\n... {len(text) - 4000} characters ...\n{text[-2000:]}"
    members = getattr(error, "exceptions", ()) if isinstance(error, BaseExceptionGroup) else ()
    for what, other in [("caused by", error.__cause__), *(("one of them:", member) for member in members[:5])]:
        if other is not None:
            text += f"\n  {what} {type(other).__name__}: {error_text(other)}"
    return text.encode("utf-8", "backslashreplace").decode()
