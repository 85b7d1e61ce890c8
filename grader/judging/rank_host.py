"""Rank processes that share nothing, asked for from outside.

    with RankHost(Limits(wall=60)) as host:          # returns at once; inside, torch is being imported meanwhile
        ranks = host.start(4)                        # each has a number, and a socket whose other end the process has
        ...
        statuses = host.end(ranks)                   # nothing of them is left

One sandbox holds the host (grader/inside/host.py), which forks the ranks; each lives in namespaces of its own.
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
from typing import NoReturn

from grader.sandbox import bubblewrap, seccomp
from grader.sandbox.bubblewrap import HOME, INSIDE, MB, ROOT, UTILS, End, Limits, NoSandbox

__all__ = ["HostGone", "NoSandbox", "Rank", "RankHost"]

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
MOST_RANKS = 250  # descriptors in one message: at most 253
DISK = 20 * MB  # in each of a rank's two folders
ANSWER = 65536  # bytes, at most
NONSENSE = "the process that makes ranks spoke nonsense"
DEFAULT = Limits()
GRACE = 10  # seconds after the wall time in which the warden has to end the sandbox
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # a process with more than one thread can't be forked safely
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # look for GPUs without opening one
    "TORCH_CPP_LOG_LEVEL": "FATAL",
    "SPAWN_ZYGOTE": "1",  # importing utils starts nothing
}


class HostGone(Exception):
    """There are no ranks any more, and can be none; the text says why."""


@dataclass(frozen=True, eq=False)
class Rank:
    number: int  # no two ranks of a host have the same
    socket: socket.socket  # its other end is all that the process has


class RankHost:
    """Starts and ends ranks. `modules` are imported before the ranks are forked; `entry` is what a rank calls.

    `how`: further fields of Sandbox. With sandboxed=False the ranks are plain processes, which can do what we can.
    """

    def __init__(
        self,
        limits: Limits = DEFAULT,
        *,
        gpus: bool = False,
        sandboxed: bool = True,
        entry: str = ENTRY,
        modules: Sequence[str] = PRELOADED,
        env: Mapping[str, str] | None = None,
        **how: object,
    ):
        self.limits, self.sandboxed = limits, sandboxed
        self.lock = threading.Lock()
        self.ranks: dict[int, Rank] = {}
        self.number = 0
        self.reason: str | None = None
        self.is_ready = False
        self.unread = b""
        self.complaints = tempfile.TemporaryFile()
        self.deadline = time.monotonic() + limits.wall + GRACE
        self.line, theirs = socket.socketpair()
        command = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
        with theirs:
            if sandboxed:
                self.box = bubblewrap.start(
                    command, makes_namespaces=True, limits=limits, gpus=gpus, read_only=(UTILS, *INSIDE),
                    env={**ENVIRONMENT, **(env or {})}, pass_fds=[theirs.fileno()],
                    stdout=self.complaints, stderr=self.complaints, **how,
                )  # fmt: skip
            else:
                self.box = Unconfined(command, limits, env or {}, theirs.fileno(), self.complaints)
        settings = {
            "sandboxed": sandboxed,
            "modules": list(modules),
            "entry": entry,
            "user": self.box.user,
            "disk": DISK,
            "home": HOME,
            "gpus": gpus,
            "filter": base64.b64encode(seccomp.filter_program(alone=True)).decode(),
        }
        self.tell(settings, [])

    # ---- ranks -------------------------------------------------------------------------------------------------------

    def start(self, count: int) -> list[Rank]:
        """Start ranks, all at once. The first call waits until the host is ready."""
        if not 1 <= count <= MOST_RANKS:
            raise ValueError(f"{count} ranks; 1 to {MOST_RANKS} can be started at once")
        with self.lock:
            if not self.is_ready:
                self.is_ready = self.answer().get("ready") is True or self.give_up(NONSENSE)
            pairs = [socket.socketpair() for _ in range(count)]
            ranks = [Rank(self.number + index, ours) for index, (ours, _) in enumerate(pairs)]
            self.number += count
            self.ranks |= {rank.number: rank for rank in ranks}
            try:
                self.tell({"start": [rank.number for rank in ranks]}, [theirs.fileno() for _, theirs in pairs])
            finally:
                for _, theirs in pairs:
                    theirs.close()
            if self.answer().get("started") != count:
                self.give_up(NONSENSE)
            return ranks

    def end(self, ranks: Sequence[Rank]) -> list[int]:
        """End what is left of them. Returns once nothing is: how each ended, as a shell has it (137: we killed it).

        Our ends of their sockets stay open: what they said can still be read.
        """
        with self.lock:
            numbers = [rank.number for rank in ranks if self.ranks.pop(rank.number)]
            self.tell({"end": numbers}, [])
            statuses = self.answer().get("ended")
            if not isinstance(statuses, list) or [type(one) for one in statuses] != [int] * len(numbers):
                self.give_up(NONSENSE)
            return statuses

    def used(self, ranks: Sequence[Rank]) -> list[float]:
        """Seconds that each has computed so far."""
        with self.lock:
            self.tell({"used": [rank.number for rank in ranks]}, [])
            used = self.answer().get("used")
            if not isinstance(used, list) or [type(one) for one in used] != [float] * len(ranks):
                self.give_up(NONSENSE)
            return used

    # ---- the host ----------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.box.poll() is None

    @property
    def stopped(self) -> str | None:
        """Why there are no ranks any more; None while all is well.

        The host is asked, if it can answer: its ranks' sockets close a moment before the sandbox is known to be gone.
        """
        with contextlib.suppress(HostGone):
            if self.reason is None and self.is_ready:
                self.end([])
            elif self.reason is None and not self.alive:
                self.give_up()
        return self.reason

    def close(self) -> End:
        """End all of it."""
        self.line.close()
        if not self.sandboxed and self.is_ready:  # it ends what its ranks have left, when it sees that we are gone
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.box.process.wait(GRACE)
        end = self.box.kill()
        self.reason = self.reason or "it was closed"
        self.complaints.close()
        for rank in self.ranks.values():
            rank.socket.close()
        return end

    def __enter__(self) -> RankHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- talking to it -----------------------------------------------------------------------------------------------

    def tell(self, words: dict, descriptors: Sequence[int]) -> None:
        message = json.dumps(words).encode() + b"\n"
        try:
            self.line.settimeout(self.patience())
            sent = socket.send_fds(self.line, [message], descriptors)
            self.line.sendall(message[sent:])
        except OSError:
            self.give_up()

    def answer(self) -> dict:
        """The next line of the host, as long as it may be, or HostGone."""
        while b"\n" not in self.unread:
            try:
                self.line.settimeout(self.patience())
                more = self.line.recv(ANSWER)
            except OSError:
                more = b""
            if not more:
                self.give_up()
            self.unread += more
            if len(self.unread) > ANSWER:
                self.give_up(NONSENSE)
        line, _, self.unread = self.unread.partition(b"\n")
        try:
            words = json.loads(line)
        except (ValueError, RecursionError):
            self.give_up(NONSENSE)
        if not isinstance(words, dict):
            self.give_up(NONSENSE)
        if "failed" in words:
            self.give_up(str(words["failed"])[:1000])
        return words

    def patience(self) -> float:
        return max(0.01, self.deadline - time.monotonic())

    def give_up(self, reason: str | None = None) -> NoReturn:
        """End what there still is, and say why. No reason: it has ended by itself, or is past its time."""
        if reason is None and time.monotonic() > self.deadline:
            reason = f"took longer than {self.limits.wall:g} s"
        if reason is not None:
            self.box.kill()
        self.reason = self.reason or reason or self.why()
        raise HostGone(self.reason)

    def why(self) -> str:
        end = self.box.wait()
        if end.stopped:
            return end.stopped
        self.complaints.seek(0)
        last = self.complaints.read(ANSWER).decode(errors="replace").strip().split("\n")[-1]
        return f"the process that makes ranks ended with status {end.status}" + (f": {last}" if last else "")


class Unconfined:
    """The host as a plain process. Looks like a Sandbox."""

    user = None

    def __init__(self, command: list[str], limits: Limits, env: Mapping[str, str], control: int, complaints: object):
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            command, pass_fds=[control], stdin=subprocess.DEVNULL, stdout=complaints, stderr=complaints,
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

    def kill(self) -> End:
        self.process.kill()
        return self.wait()
