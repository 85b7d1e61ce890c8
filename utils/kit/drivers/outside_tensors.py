"""What a rank keeps outside of tensors while its memory is judged: numbers in lists, bytes, arrays and the like.

A rank that turns a tensor into a list holds no less. So besides the tensors that the record has seen, these count: what
Python and NumPy allocate, by `tracemalloc`; what the process writes into files; and tensors that were hidden from the
record. These don't count:

- small objects that libraries allocate: what they look up once, what they import late, the record of this run
- ALLOWED bytes: functions, lists of tensors and of shapes, strings

Memory is therefore judged with tensors that are several times as large as that. What can't be counted is refused:
memory that the system maps or another process holds.

Virtual ranks are threads of one process, in which others begin and end meanwhile. There only what the student's own
lines allocate counts, and each rank that is judged answers for an equal share. Grading gives each rank a process.
"""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch

from ...events.memory_samples import OTHER
from ...recording import storages as record
from ...recording.storages import Storages, parts
from ...recording.torch_private import address_of
from ...text.source_lines import is_students
from ...worlds.common import rank_environment, this_rank

ALLOWED = STEP = 1 << 16  # bytes; STEP: more or less before it is worth while to look at each object
SMALL = 512  # bytes: Python has objects up to this size lie together, each larger one for itself
IMPORTS = "<frozen importlib"
NEVER = (IMPORTS, tracemalloc.__file__, record.__file__, __file__)  # their large objects don't count either
REFUSED = {
    "mmap.__new__": "memory mapped by the system",
    "ctypes.dlopen": "memory of a C library",
    "ctypes.dlsym": "memory of a C library",
    "sqlite3.connect": "a data base",
    "os.fork": "another process",
    "os.posix_spawn": "another process",
    "subprocess.Popen": "another process",
    "socket.__new__": "a socket",
}


class Outside:
    """Counts what is allocated from now on as one more storage of `storages`."""

    def __init__(self, storages: Storages) -> None:
        self.storages, self.number = storages, storages.add(OTHER)
        self.traced = 0  # bytes, when each object was last looked at
        self.written = bytes_written()
        self.canary = object()  # traced as long as nobody has cleared the traces

    def look(self, closely: bool = True) -> int:
        """Look at each object, or, if not `closely`, only after a larger change. Returns the bytes alive, with tensors.

        Raises RuntimeError if somebody has ended the counting.
        """
        if tracemalloc.get_object_traceback(self.canary) is None:
            raise RuntimeError("Memory can't be judged: tracemalloc, which counts it, was stopped or cleared.")
        traced = tracemalloc.get_traced_memory()[0]
        if closely or abs(traced - self.traced) > STEP:
            self.traced = traced
            size = bytes_of_program() if traced > ALLOWED else 0
            if has_own_process():
                size += bytes_written() - self.written + (sum(self.hidden().values()) if closely else 0)
            self.storages.change(self.number, max(0, size // len(judged) - ALLOWED))
        return self.storages.live

    def hidden(self) -> dict[int, int]:
        """{address: bytes} of storages that the record hasn't seen."""
        found: dict[int, int] = {}
        for thing in gc.get_objects():  # but for those that were frozen
            if issubclass(type(thing), torch.Tensor | torch.UntypedStorage):
                for storage in storages_of(thing):
                    place = address_of(storage)
                    if place not in self.storages.known and storage.device.type in self.storages.devices:
                        found[place] = storage.nbytes()
        return found


judged: set[Outside] = set()  # of the ranks in this process


def storages_of(thing: torch.Tensor | torch.UntypedStorage) -> list[torch.UntypedStorage]:
    if isinstance(thing, torch.UntypedStorage):
        return [thing]
    with suppress(RuntimeError):  # of a tensor without any
        return [part.untyped_storage() for part in parts(thing)]
    return []


def has_own_process() -> bool:
    return threading.current_thread() is threading.main_thread()


def bytes_of_program() -> int:
    """All bytes that are traced and count."""
    own = has_own_process()
    raw = cast(
        "Sequence[tuple[int, int, Any, int]]", vars(tracemalloc.take_snapshot().traces)["_traces"]
    )  # 10x as fast
    return sum(size for _, size, frames, _ in raw if counts(frames[0][0], own and size > SMALL))


@cache
def counts(file: str, is_large: bool) -> bool:
    """Whether an object counts that a line of `file` has allocated."""
    if file.startswith((*NEVER, *rank_environment.machinery)):
        return is_large and not file.startswith(NEVER)
    return is_large or is_students(file)


def bytes_written() -> int:
    """What this process has written into files and pipes; 0 where the system doesn't say."""
    with suppress(OSError):
        lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
        return int(lines["wchar"])
    return 0


def refuse(event: str, _: tuple[Any, ...]) -> None:
    """Python's audit hook: it is told what is about to happen, and prevents it by raising an exception."""
    if event not in REFUSED or not judged:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # whoever asks, behind the standard library
        file = frame.f_code.co_filename
        if file.startswith((IMPORTS, *rank_environment.machinery)) or "torch" in Path(file).parts:
            return
        if is_students(file):
            raise RuntimeError(
                f"This check judges memory, and you use {REFUSED[event]}: what is kept there can't be counted. Keep "
                "numbers in tensors."
            )
        frame = frame.f_back


@cache
def listen() -> None:
    """Once for a process: an audit hook can't be taken away."""
    sys.addaudithook(refuse)


@contextmanager
def outside_tensors(storages: Storages, counted: bool) -> Iterator[Callable[[], int]]:
    """While the block runs, `storages` also counts what is kept outside of tensors, if `counted`.

    Yields a function that says how many bytes are alive now.
    """
    if not counted:
        yield lambda: storages.live
        return
    listen()
    if not judged:
        gc.freeze()
        tracemalloc.start()
        tracemalloc.clear_traces()  # of what was judged before, if nothing could stop it
    outside = Outside(storages)
    judged.add(outside)
    storages.on_change = lambda: outside.look(closely=False)
    try:
        yield outside.look
    finally:
        storages.on_change = None
        storages.change(outside.number, 0)
        judged.remove(outside)
        if not judged:
            # Before Python 3.12.9 and 3.13.2, a native thread that is about to record an allocation crashes if this
            # stops meanwhile (python/cpython#128679). Gloo's threads allocate whenever they drop a tensor. A rank with
            # a process of its own soon ends, so there it goes on.
            if this_rank.number is None:
                tracemalloc.stop()
            gc.unfreeze()
