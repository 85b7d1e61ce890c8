"""The host: the process that forks ranks, inside the sandbox. It imports torch once and runs no student code.

grader/judging/rank_host.py starts it and sends it requests over a socket: lines of JSON, one answer to each.

    settings                                       -> {"ready": true}, or {"failed": reason}
    {"start": [number, ...]}, a socket for each    -> {"started": n}, or {"failed": reason}
    {"used": [number, ...]}                        -> {"used": [[seconds, delay], ...]}: see usage.py
    {"end": [number, ...]}                         -> {"ended": [status, ...]}, as a shell reports it

A rank is a fork that has moved into namespaces of its own (namespaces.py). It has its socket and no other descriptor,
no capability, and none of the system calls that the filter forbids. Then it calls the entry function with its socket.
When it ends or is killed, its namespaces end, and with them everything it left behind. Ranks may start far fewer
processes than the sandbox could bear, because each fork takes milliseconds. Without a sandbox there are no namespaces:
a rank is a plain fork in a session of its own.

The host forks cleanly because it computes nothing, opens no GPU and has a single thread.
"""

from __future__ import annotations

import base64
import gc
import importlib
import json
import os
import random
import re
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict

from grader.inside import privileges
from grader.inside.namespaces import NamespacePool
from grader.inside.usage import cpu_seconds, delay

MAX_RANKS = 250  # descriptors in one message: at most 253
MAX_LINE = 65536  # bytes of a request
PROCESSES_PER_RANK = 3  # itself, the first of its PID namespace, and the first of a spare one
EXTRA_PROCESSES = 150  # and threads, that all ranks together may start


class Settings(TypedDict):
    """The first line that the host gets.

    entry    "module:function", called with the rank's socket
    user     the user id of ranks; None: the host's own
    disk     bytes in each of a rank's folders
    filter   the seccomp program, in base64
    """

    sandboxed: bool
    modules: list[str]
    entry: str
    user: int | None
    disk: int
    home: str
    filter: str


@dataclass
class RankProcess:
    """A rank that has been started.

    pidfd   while it runs, if it has namespaces of its own
    first   a pidfd of the first process of its PID namespace, if it has one
    """

    pid: int
    pidfd: int | None = None
    first: int | None = None
    status: int | None = None

    def kill(self) -> None:
        """Kill it and everything in its PID namespace, or in its session if it has none."""
        if self.first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first, signal.SIGKILL)
        else:
            for kill in (os.killpg, os.kill):  # it may have no session yet, or be gone already
                with suppress(ProcessLookupError, PermissionError):
                    kill(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Collect the status of its process, which has ended or has just been killed."""
        if self.status is None:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.status = code if code >= 0 else 128 - code
            if self.pidfd is not None:
                os.close(self.pidfd)
                self.pidfd = None
        return self.status

    def wait(self) -> int:
        """Wait until nothing is left of what was killed. Returns the status."""
        status = self.reap()
        if self.first is not None:
            select.select([self.first], [], [])  # readable once it is gone
            os.close(self.first)
        return status


class Host:
    def __init__(self, control: socket.socket):
        self.control = control
        self.ranks: dict[int, RankProcess] = {}
        self.max_processes = 0  # the limit for all ranks together
        settings, _ = self.read()
        if settings is None:
            raise EOFError("no settings came")
        self.settings: Settings = settings
        self.namespaces: NamespacePool | None = None
        if not self.settings["sandboxed"]:
            with suppress(OSError, AttributeError):  # not on Linux
                privileges.call("prctl", privileges.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        else:
            self.namespaces = NamespacePool(self.settings["home"], self.settings["disk"])
            self.own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.entry = self.prepare()

    def prepare(self) -> Callable[[socket.socket], object]:
        """Import all that ranks need, once. Returns the function that a rank calls."""
        for name in self.settings["modules"]:
            importlib.import_module(name)
        module, _, function = self.settings["entry"].partition(":")
        entry: Callable[[socket.socket], object] = getattr(importlib.import_module(module), function)
        seed()
        share_memory()
        return entry

    # ---- requests ----------------------------------------------------------------------------------------------------

    def read(self) -> tuple[Any, list[int]]:
        """The next request and the descriptors that came with it; (None, ...) when the other end is closed."""
        line = b""
        descriptors: list[int] = []
        while not line.endswith(b"\n"):
            more, sent, _, _ = socket.recv_fds(self.control, MAX_LINE, MAX_RANKS)
            if not more:
                return None, descriptors
            line += more
            descriptors += sent
        return json.loads(line), descriptors

    def answer(self, **fields: object) -> None:
        self.control.sendall(json.dumps(fields).encode() + b"\n")

    def serve(self) -> None:
        """Answer requests until the other end is closed."""
        while True:
            self.wait_for_request()
            request, descriptors = self.read()
            if request is None:
                self.end(list(self.ranks))
                return
            if "start" in request:
                self.start(request["start"], descriptors)
            elif "used" in request:
                pids = [self.ranks[number].pid for number in request["used"]]
                self.answer(used=[[cpu_seconds(pid), delay(pid)] for pid in pids])
            else:
                self.answer(ended=self.end(request["end"]))

    def wait_for_request(self) -> None:
        """Meanwhile, as soon as a rank has ended, end whatever it left in its PID namespace."""
        while True:
            running = {rank.pidfd: rank for rank in self.ranks.values() if rank.pidfd is not None}
            poll = select.poll()
            for fd in (self.control.fileno(), *running):
                poll.register(fd, select.POLLIN)
            readable = {fd for fd, _ in poll.poll()}
            for fd in readable & running.keys():
                running[fd].kill()
                running[fd].reap()
            if self.control.fileno() in readable:
                return

    def start(self, numbers: list[int], sockets: list[int]) -> None:
        try:
            if self.namespaces is not None:
                self.namespaces.request(len(numbers))
            self.max_processes = PROCESSES_PER_RANK * (len(self.ranks) + len(numbers)) + EXTRA_PROCESSES
            for number, descriptor in zip(numbers, sockets, strict=True):
                self.ranks[number] = self.start_rank(number, descriptor)
        except (OSError, ValueError) as error:
            self.answer(failed=f"{len(numbers)} ranks could not be started: {error}")
        else:
            self.answer(started=len(numbers))
        finally:
            for descriptor in sockets:
                os.close(descriptor)

    def start_rank(self, number: int, descriptor: int) -> RankProcess:
        if self.namespaces is None:
            return RankProcess(self.fork(descriptor, None))
        first = self.namespaces.next()
        privileges.enter_namespaces(first, privileges.CLONE_NEWPID)
        try:
            pid = self.fork(descriptor, first)
        finally:
            privileges.enter_namespaces(self.own_pids, privileges.CLONE_NEWPID)
        return RankProcess(pid, os.pidfd_open(pid), first)

    def end(self, numbers: list[int]) -> list[int]:
        """Kill what is left of these ranks. Returns their statuses once all of it is gone."""
        ranks = [self.ranks.pop(number) for number in numbers]
        for rank in ranks:
            rank.kill()
        statuses = [rank.wait() for rank in ranks]
        if self.namespaces is None:
            end_orphans([rank.pid for rank in self.ranks.values()])
        return statuses

    # ---- a rank ------------------------------------------------------------------------------------------------------

    def fork(self, descriptor: int, first: int | None) -> int:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self.become_rank(descriptor, first)
                status = 0
            finally:
                os._exit(status)
        return pid

    def become_rank(self, descriptor: int, first: int | None) -> None:
        os.setsid()
        self.control.detach()
        if first is not None:
            self.confine(first, descriptor)
        else:
            privileges.close_all_but(descriptor)
            with suppress(OSError, AttributeError):  # not on Linux
                privileges.call("prctl", privileges.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        random.seed(0)  # Python reseeds a fork
        self.entry(socket.socket(fileno=3))

    def confine(self, first: int, descriptor: int) -> None:
        """Move into the namespaces of the process `first`, and give up all privileges."""
        privileges.enter_namespaces(first, privileges.ALL_BUT_PID)
        os.chdir(self.settings["home"])
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)  # `open` would add a tenth to the whole fork
        os.write(score, b"1000")  # when the machine runs out of memory, ranks are killed before the host
        # A Linux older than 5.14 also counts the user's processes outside.
        if self.settings["user"] is not None or kernel() >= (5, 14):
            most = min(self.max_processes, resource.getrlimit(resource.RLIMIT_NPROC)[1])
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        privileges.close_all_but(descriptor)
        privileges.drop_capabilities(self.settings["user"])
        privileges.call("prctl", privileges.PR_SET_DUMPABLE, 1, 0, 0, 0)  # its own /proc/self stays readable
        privileges.install_filter(base64.b64decode(self.settings["filter"]))


def end_orphans(ranks: list[int]) -> None:
    """Without namespaces: kill what ranks have left behind, where the kernel hands orphans to us (see Host)."""
    children = f"/proc/self/task/{os.getpid()}/children"
    while os.path.exists(children) and (left := set(map(int, open(children).read().split())) - set(ranks)):
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def seed() -> None:
    """Seed all generators: here once, since every rank is a fork of this process, and in a rank between two runs."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        torch.manual_seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)


def share_memory() -> None:
    """Arrange memory so that forks are quick and share it."""
    gc.collect()
    gc.freeze()  # or the collector would write to it
    if forks := sys.modules.get("utils.worlds.real.zygote.forks"):
        for piece in forks.anonymous_memory():
            forks.collapse(*piece)


def main(descriptor: int) -> None:
    control = socket.socket(fileno=descriptor)
    try:
        host = Host(control)
    except Exception as error:
        control.sendall(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        raise
    host.answer(ready=True)
    host.serve()


def kernel() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
