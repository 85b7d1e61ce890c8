"""Our own code on the bytes of a submission, in a child process with limits: no file can stall or fill this machine.

    @bounded(seconds=20)
    def all_harmless(texts): ...         # runs in the child; raises TooMuch when it exceeds a limit
    for step in in_steps(verdicts, 60, 20, nb):     # the same for each step of a generator

The child is a fork that stays, so that what it has imported and cached serves the next submission. After TooMuch it is
replaced. It is not a sandbox: what runs there is ours, and only the size of its work is the submission's.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from grader.inside.usage import delay, work_of

P = ParamSpec("P")
T = TypeVar("T")

MEMORY, OUTPUT = 1 << 30, 64 << 20  # bytes: beyond what the process holds already; of a result
LOOK_EVERY = 0.2  # seconds
SLEEPS = 3  # times as long as it may compute, a call may take, less what a busy machine has delayed it
LENGTH = struct.Struct("!Q")
SANDBOX = b"resource_monitor"  # in the command of what starts one


class TooMuch(Exception):
    """A submission needs too much time or memory to be read or shown. The text completes "it"."""


def bounded(seconds: float) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function run in the child, for so many seconds of computing. Arguments and results are pickled."""

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        functions[name_of(function)] = function

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return call_in_child(seconds, function, *args, **kwargs)

        return call

    return wrap


def call_in_child(seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in the child, for so many seconds of computing. Raises TooMuch."""
    functions[name_of(function)] = function
    steps = child_of_this_process().steps(name_of(function), args, kwargs, seconds)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def work_in_child() -> float:
    """The computing of the child so far."""
    return work_of(child_of_this_process().pid, SANDBOX)


def name_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def in_steps(function: Callable[..., Iterator[T]], seconds: float, sleeps: float, *args: Any) -> Iterator[T]:
    """What a generator yields that runs in the child, each for so many seconds of computing. Raises TooMuch.

    sleeps  times as long as that, one may take
    """
    functions[name_of(function)] = function
    yield from child_of_this_process().steps(name_of(function), args, {}, seconds, sleeps)


def child_of_this_process() -> Child:
    """The one that there is, or a new one: a child of another process is not ours."""
    if not (children and children[0].parent == os.getpid() and children[0].alive):
        children[:] = [Child()]
    return children[0]


class Child:
    def __init__(self) -> None:
        self.parent, self.alive = os.getpid(), True
        self.socket, theirs = socket.socketpair()
        with warnings.catch_warnings(action="ignore"):  # Python warns of forks with threads: ours takes no lock
            self.pid = os.fork()
        if self.pid == 0:
            try:
                self.socket.close()
                serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def steps(
        self, name: str, args: Any, kwargs: Any, seconds: float, sleeps: float = SLEEPS
    ) -> Generator[Any, None, Any]:
        """What a function yields, if it does, and returns."""
        try:
            self.socket.sendall(framed((name, args, kwargs)))
            kind, value = pickle.loads(self.receive(seconds, sleeps))
            while kind == "step":
                yield value
                kind, value = pickle.loads(self.receive(seconds, sleeps))
        except (OSError, EOFError, TooMuch) as error:
            self.end()
            raise error if isinstance(error, TooMuch) else TooMuch("needs too much memory") from None
        except BaseException:  # Ctrl-C, or nobody wants the rest: an answer would be taken for that to the next call
            self.end()
            raise
        if kind == "unknown":  # it was forked before the function was there
            self.end()
            return (yield from child_of_this_process().steps(name, args, kwargs, seconds, sleeps))
        if kind == "error":
            raise value
        return value

    def receive(self, seconds: float, sleeps: float) -> bytes:
        """An answer; it may take so many seconds of computing, also of what it has started, but for sandboxes."""
        computed, began = work_of(self.pid, SANDBOX), time.monotonic() - delay(self.pid)
        while not select.select([self.socket], [], [], LOOK_EVERY)[0]:
            used = work_of(self.pid, SANDBOX) - computed
            if used > seconds or time.monotonic() - delay(self.pid) - began > sleeps * seconds:
                raise TooMuch(f"takes more than {seconds:g} s of computing")
        [length] = LENGTH.unpack(exactly(self.socket, LENGTH.size))
        if length > OUTPUT:
            raise TooMuch("becomes too large")
        return exactly(self.socket, length)

    def end(self) -> None:
        if self.alive and self.parent == os.getpid():
            self.alive = False
            self.socket.close()
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)


functions: dict[str, Callable[..., Any]] = {}  # all that are bounded: the child finds them here
children: list[Child] = []  # none or one


def serve(connection: socket.socket) -> None:
    """What the child does: answer calls until the parent is gone."""
    settle_in(connection)
    while True:
        try:
            [length] = LENGTH.unpack(exactly(connection, LENGTH.size))
            name, args, kwargs = pickle.loads(exactly(connection, length))
        except (EOFError, OSError):
            return
        answer: tuple[str, Any] = ("unknown", None)
        if name in functions:
            try:
                answer = ("value", functions[name](*args, **kwargs))
                if isinstance(answer[1], Generator):
                    for step in answer[1]:
                        connection.sendall(framed(("step", step)))
                    answer = ("value", None)
            except MemoryError:
                return
            except Exception as error:
                answer = ("error", error)
        connection.sendall(framed(answer))


def settle_in(connection: socket.socket) -> None:
    """Keep nothing of the parent's but its memory, and end when it ends."""
    gc.freeze()  # nothing of it is collected here: it may wait for threads that aren't there, or close our descriptors
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends us
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/dev/fd"):
        if int(name) not in (0, 1, 2, connection.fileno()):
            with suppress(OSError):  # the listing's own
                os.fstat(int(name))
                os.dup2(nothing, int(name), inheritable=False)
    sys.stdout, sys.stderr = open(os.devnull, "w"), open(2, "w", buffering=1, closefd=False)
    limit_memory(MEMORY)
    threading.Thread(target=end_with_parent, args=[connection.fileno()], daemon=True).start()


def end_with_parent(connection: int) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    os._exit(1)


@contextmanager
def memory_limited(more: int) -> Iterator[None]:
    """Let this process take so many bytes more than it has, until the end of the `with` block or the function."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory(more)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def limit_memory(more: int) -> None:
    """Let this process take so many bytes more than it has."""
    with suppress(OSError, ValueError):
        with open("/proc/self/status") as file:
            held = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = held + more
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))


def framed(value: Any) -> bytes:
    data = pickle.dumps(value)
    return LENGTH.pack(len(data)) + data


def exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
