"""Rank processes that share nothing, started from outside their sandbox.

    with RankHost(Limits(wall=60)) as host:          # returns at once, while torch is imported inside
        ranks = host.start(4)                        # each has a number, and a socket to its process
        ...
        statuses = host.end(ranks)                   # afterwards nothing of them is left

A single sandbox holds the host (grader/inside/host.py), which forks the ranks, each into namespaces of its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from grader.sandbox import bubblewrap, seccomp
from grader.sandbox.bubblewrap import CHECKS, HOME, INSIDE, MB, ROOT, UTILS, End, Limits, NoSandbox

__all__ = ["HostGone", "NoSandbox", "RankHandle", "RankHost"]

PROGRAM = "import sys; from grader.inside.host import main; main(int(sys.argv[1]))"
ENTRY = "grader.inside.rank:main"
PRELOADED = (
    "torch",
    "torch.distributed",
    "numpy",
    "utils",
    "utils.worlds.real.zygote.forks",
    "utils.worlds.virtual",
    "grader.inside.warm_up",
)
MAX_RANKS = 250  # descriptors in one message: at most 253
DISK = 20 * MB  # in each of a rank's two folders
MAX_ANSWER = 65536  # bytes
NONSENSE = "the process that forks ranks sent a malformed answer"
DEFAULT = Limits()
GRACE = 10  # seconds after the wall time, for the resource monitor to end the sandbox
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # a process with more than one thread can't be forked safely
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # look for GPUs without opening one
    "TORCH_CPP_LOG_LEVEL": "FATAL",
    "SPAWN_ZYGOTE": "1",  # importing utils starts nothing
}


class HostGone(Exception):
    """The host has ended, so there are no ranks and can be none; the text says why."""


@dataclass(frozen=True, eq=False)
class RankHandle:
    number: int  # unique among the ranks of a host
    socket: socket.socket  # the process has the other end, and no other descriptor


class RankHost:
    """Starts and ends ranks.

    modules    imported before ranks are forked
    entry      "module:function", which a rank calls with its socket
    options    further fields of Sandbox
    sandboxed  False: ranks are plain processes, which can do whatever we can
    """

    def __init__(
        self,
        limits: Limits = DEFAULT,
        *,
        sandboxed: bool = True,
        entry: str = ENTRY,
        modules: Sequence[str] = PRELOADED,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ):
        self.limits, self.sandboxed, self.owner = limits, sandboxed, os.getpid()
        self.lock = threading.Lock()
        self.ranks: dict[int, RankHandle] = {}
        self.number = 0
        self.reason: str | None = None
        self.is_ready = False
        self.unread = b""
        self.stderr: IO[bytes] = tempfile.TemporaryFile()
        self.deadline = time.monotonic() + limits.wall + GRACE
        self.socket, theirs = socket.socketpair()
        command = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
        with theirs:
            self.box: bubblewrap.Sandbox | Unconfined
            if sandboxed:
                self.box = bubblewrap.start(
                    command, makes_namespaces=True, limits=limits,
                    read_only=(UTILS, *INSIDE), hidden=[CHECKS],
                    env={**ENVIRONMENT, **(env or {})}, pass_fds=[theirs.fileno()],
                    stdout=self.stderr, stderr=self.stderr, **options,
                )  # fmt: skip
            else:
                self.box = Unconfined(command, limits, env or {}, theirs.fileno(), self.stderr)
        settings = {
            "sandboxed": sandboxed,
            "modules": list(modules),
            "entry": entry,
            "user": self.box.user,
            "disk": DISK,
            "home": HOME,
            "filter": base64.b64encode(seccomp.filter_program(alone=True)).decode(),
        }
        self.send(settings, [])

    # ---- ranks -------------------------------------------------------------------------------------------------------

    def start(self, count: int) -> list[RankHandle]:
        """Start ranks, all at once. The first call waits until the host is ready. Raises HostGone."""
        if not 1 <= count <= MAX_RANKS:
            raise ValueError(f"{count} ranks; 1 to {MAX_RANKS} can be started at once")
        with self.lock:
            if not self.is_ready:
                self.is_ready = self.answer().get("ready") is True or self.give_up(NONSENSE)
            pairs = [socket.socketpair() for _ in range(count)]
            ranks = [RankHandle(self.number + index, ours) for index, (ours, _) in enumerate(pairs)]
            self.number += count
            self.ranks |= {rank.number: rank for rank in ranks}
            try:
                self.send({"start": [rank.number for rank in ranks]}, [theirs.fileno() for _, theirs in pairs])
            finally:
                for _, theirs in pairs:
                    theirs.close()
            if self.answer().get("started") != count:
                self.give_up(NONSENSE)
            return ranks

    def end(self, ranks: Sequence[RankHandle]) -> list[int]:
        """Kill what is left of them, and wait until nothing is. Returns their statuses, as a shell reports them.

        Our ends of their sockets stay open, so their last messages can still be read. Raises HostGone.
        """
        with self.lock:
            numbers = [self.ranks.pop(rank.number).number for rank in ranks]
            self.send({"end": numbers}, [])
            statuses = self.answer().get("ended")
            if not isinstance(statuses, list) or [type(one) for one in statuses] != [int] * len(numbers):
                self.give_up(NONSENSE)
            return statuses

    def used(self, ranks: Sequence[RankHandle]) -> list[tuple[float, float]]:
        """Of each, the seconds of computing and of waiting for a core so far (inside/usage.py). Raises HostGone."""
        with self.lock:
            self.send({"used": [rank.number for rank in ranks]}, [])
            used = self.answer().get("used")
            try:
                pairs = [(float(computed), float(delayed)) for computed, delayed in used or []]
            except (TypeError, ValueError):
                self.give_up(NONSENSE)
            if len(pairs) != len(ranks):
                self.give_up(NONSENSE)
            return pairs

    def cpu(self) -> float:
        """The computing of all processes in the sandbox so far, also of those that nobody waits for. 0 without one."""
        return self.box.cpu()

    # ---- the host ----------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.box.poll() is None

    @property
    def stopped(self) -> str | None:
        """Why the host has ended; None while all is well.

        Asks the host, if it can still answer: its ranks' sockets close a moment before the sandbox is known to be gone.
        """
        with contextlib.suppress(HostGone):
            if self.reason is None and self.is_ready:
                self.end([])
            elif self.reason is None and not self.alive:
                self.give_up()
        return self.reason

    def close(self) -> End:
        """End the host and all ranks."""
        self.socket.close()
        if not self.sandboxed and self.is_ready:
            # Once it notices that we are gone, it kills what its ranks have left behind.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.box.process.wait(GRACE)
        end = self.box.kill()
        self.reason = self.reason or "it was closed"
        self.stderr.close()
        for rank in self.ranks.values():
            rank.socket.close()
        return end

    def __enter__(self) -> RankHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- messages ----------------------------------------------------------------------------------------------------

    def send(self, request: Mapping[str, object], descriptors: Sequence[int]) -> None:
        message = json.dumps(request).encode() + b"\n"
        try:
            self.socket.settimeout(self.seconds_left())
            sent = socket.send_fds(self.socket, [message], descriptors)
            self.socket.sendall(message[sent:])
        except OSError:
            self.give_up()

    def answer(self) -> dict[str, Any]:
        """The host's next line. Raises HostGone, also if it is too long or malformed."""
        while b"\n" not in self.unread:
            try:
                self.socket.settimeout(self.seconds_left())
                more = self.socket.recv(MAX_ANSWER)
            except OSError:
                more = b""
            if not more:
                self.give_up()
            self.unread += more
            if len(self.unread) > MAX_ANSWER:
                self.give_up(NONSENSE)
        line, _, self.unread = self.unread.partition(b"\n")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            self.give_up(NONSENSE)
        if not isinstance(answer, dict):
            self.give_up(NONSENSE)
        if "failed" in answer:
            self.give_up(str(answer["failed"])[:1000])
        return answer

    def seconds_left(self) -> float:
        return max(0.01, self.deadline - time.monotonic())

    def give_up(self, reason: str | None = None) -> NoReturn:
        """End all of it and raise HostGone. No reason: it has ended by itself, or has exceeded its time."""
        if reason is None and time.monotonic() > self.deadline:
            reason = f"took longer than {self.limits.wall:g} s"
        if reason is not None:
            self.box.kill()
        self.reason = self.reason or reason or self.why_ended()
        raise HostGone(self.reason)

    def why_ended(self) -> str:
        end = self.box.wait()
        if end.stopped:
            return end.stopped
        self.stderr.seek(0)
        last = self.stderr.read(MAX_ANSWER).decode(errors="replace").strip().split("\n")[-1]
        return f"the process that forks ranks ended with status {end.status}" + (f": {last}" if last else "")


class Unconfined:
    """The host as a plain process, with the interface of a Sandbox."""

    user = None

    def __init__(self, command: list[str], limits: Limits, env: Mapping[str, str], control: int, stderr: IO[bytes]):
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            command, pass_fds=[control], stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
            env={**os.environ, "PYTHONPATH": path, **ENVIRONMENT, **env}, start_new_session=True,
        )  # fmt: skip
        self.stopped: str | None = None
        self.wall = limits.wall
        self.timer = threading.Timer(limits.wall, self.too_long)
        self.timer.daemon = True
        self.timer.start()

    def too_long(self) -> None:
        self.stopped = f"took longer than {self.wall:g} s"
        self.process.send_signal(signal.SIGKILL)

    def poll(self) -> End | None:
        return None if self.process.poll() is None else self.wait()

    def wait(self) -> End:
        code = self.process.wait()
        self.timer.cancel()
        return End(status=code if code >= 0 else 128 - code, stopped=self.stopped)

    def cpu(self) -> float:
        return 0.0

    def kill(self) -> End:
        self.process.kill()
        return self.wait()
