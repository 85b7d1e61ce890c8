"""The host: the process that forks ranks, inside the sandbox. It imports torch once and runs no student code.

grader/judging/rank_host.py starts it and asks, on a socket, in lines of JSON; one answer to each:

    settings                                       -> {"ready": true}, or {"failed": words}
    {"start": [number, ...]}, a socket for each    -> {"started": n}, or {"failed": words}
    {"used": [number, ...]}                        -> {"used": [seconds, ...]}, of computing
    {"end": [number, ...]}                         -> {"ended": [status, ...]}, as a shell has it

A rank is a fork that has moved into a room of its own (namespaces.py), where it has its socket and no other descriptor, no
capability, and none of the system calls that the filter forbids. Then it calls the entry function with its socket. When
it ends, or is ended, its room ends, and with it all that it left behind. How many processes ranks may start is bounded
far below what the sandbox bears: to fork one takes milliseconds. Without a sandbox there are no rooms: a rank is a
plain fork in a session of its own.

It forks cleanly because it computes nothing, opens no GPU and has one thread.
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
from contextlib import suppress
from dataclasses import dataclass

from grader.inside import privileges
from grader.inside.namespaces import Rooms

MOST_RANKS = 250  # descriptors in one message: at most 253
LINE = 65536  # bytes in an order, at most
PROCESSES_OF_A_RANK = 3  # itself, its room's first one, and that of a room to come
PROCESSES_BESIDE = 150  # and threads, that all ranks together may start


@dataclass
class Rank:
    """A rank that has been started, and its room."""

    pid: int
    pidfd: int | None = None  # while it runs in a room
    room: int | None = None  # a pidfd of the room's first process
    status: int | None = None

    def kill(self) -> None:
        """End it and all that is in its room, or in its session where it has none."""
        if self.room is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.room, signal.SIGKILL)
        else:
            for kill in (os.killpg, os.kill):  # it may not yet have a session, nor be any more
                with suppress(ProcessLookupError, PermissionError):
                    kill(self.pid, signal.SIGKILL)

    def bury(self) -> None:
        """Its process has ended, or has just been killed."""
        if self.status is None:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.status = code if code >= 0 else 128 - code
            if self.pidfd is not None:
                os.close(self.pidfd)
                self.pidfd = None

    def end(self) -> int:
        """Wait until nothing is left of what was killed."""
        self.bury()
        if self.room is not None:
            select.select([self.room], [], [])  # readable when it is gone
            os.close(self.room)
        return self.status


class Host:
    def __init__(self, control: socket.socket):
        self.control = control
        self.ranks: dict[int, Rank] = {}
        self.processes = 0  # that all ranks together may be
        self.settings = self.read()[0]
        self.rooms = None
        self.own_pids = None
        if not self.settings["sandboxed"]:
            with suppress(OSError, AttributeError):  # not on Linux
                privileges.call("prctl", privileges.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        else:
            self.rooms = Rooms(self.settings)
            self.own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.entry = self.prepare()

    def prepare(self):
        """Import all that ranks need, once; returns the function that a rank calls."""
        for name in self.settings["modules"]:
            importlib.import_module(name)
        module, _, function = self.settings["entry"].partition(":")
        entry = getattr(importlib.import_module(module), function)
        seed()
        share_memory()
        return entry

    # ---- orders ------------------------------------------------------------------------------------------------------

    def read(self) -> tuple[dict | None, list[int]]:
        """The next order and what came with it; None when nobody asks any more."""
        words, descriptors = b"", []
        while not words.endswith(b"\n"):
            more, sent, _, _ = socket.recv_fds(self.control, LINE, MOST_RANKS)
            if not more:
                return None, descriptors
            words += more
            descriptors += sent
        return json.loads(words), descriptors

    def answer(self, **words: object) -> None:
        self.control.sendall(json.dumps(words).encode() + b"\n")

    def serve(self) -> None:
        """Until nobody asks any more."""
        while True:
            self.wait_for_order()
            order, descriptors = self.read()
            if order is None:
                return self.end(list(self.ranks))
            if "start" in order:
                self.start(order["start"], descriptors)
            elif "used" in order:
                self.answer(used=[cpu_seconds(self.ranks[number].pid) for number in order["used"]])
            else:
                self.answer(ended=self.end(order["end"]))

    def wait_for_order(self) -> None:
        """Meanwhile close the room of each rank that has ended: what it left behind ends too."""
        while True:
            running = {rank.pidfd: rank for rank in self.ranks.values() if rank.pidfd is not None}
            poll = select.poll()
            for fd in (self.control.fileno(), *running):
                poll.register(fd, select.POLLIN)
            heard = {fd for fd, _ in poll.poll()}
            for fd in heard & running.keys():
                running[fd].kill()
                running[fd].bury()
            if self.control.fileno() in heard:
                return

    def start(self, numbers: list[int], sockets: list[int]) -> None:
        try:
            if self.rooms:
                self.rooms.ask_for(len(numbers))
            self.processes = PROCESSES_OF_A_RANK * (len(self.ranks) + len(numbers)) + PROCESSES_BESIDE
            for number, descriptor in zip(numbers, sockets, strict=True):
                self.ranks[number] = self.start_rank(number, descriptor)
        except (OSError, ValueError) as error:
            self.answer(failed=f"{len(numbers)} ranks could not be started: {error}")
        else:
            self.answer(started=len(numbers))
        finally:
            for descriptor in sockets:
                os.close(descriptor)

    def start_rank(self, number: int, descriptor: int) -> Rank:
        if not self.rooms:
            return Rank(self.fork(descriptor, None))
        room = self.rooms.next()
        privileges.enter(room, privileges.CLONE_NEWPID)
        try:
            pid = self.fork(descriptor, room)
        finally:
            privileges.enter(self.own_pids, privileges.CLONE_NEWPID)
        return Rank(pid, os.pidfd_open(pid), room)

    def end(self, numbers: list[int]) -> list[int]:
        """End what is left of these ranks; returns their statuses once all of it is gone."""
        ranks = [self.ranks.pop(number) for number in numbers]
        for rank in ranks:
            rank.kill()
        statuses = [rank.end() for rank in ranks]
        if not self.rooms:
            end_orphans([rank.pid for rank in self.ranks.values()])
        return statuses

    # ---- a rank ------------------------------------------------------------------------------------------------------

    def fork(self, descriptor: int, room: int | None) -> int:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self.become_rank(descriptor, room)
                status = 0
            finally:
                os._exit(status)
        return pid

    def become_rank(self, descriptor: int, room: int | None) -> None:
        os.setsid()
        self.control.detach()
        if room is not None:
            self.move_into(room, descriptor)
        else:
            privileges.keep_only(descriptor)
            with suppress(OSError, AttributeError):  # not on Linux
                privileges.call("prctl", privileges.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        random.seed(0)  # Python gives a fork another
        self.entry(socket.socket(fileno=3))

    def move_into(self, room: int, descriptor: int) -> None:
        privileges.enter(room, privileges.ALL_BUT_PID)
        os.chdir(self.settings["home"])
        score = os.open(
            "/proc/self/oom_score_adj", os.O_WRONLY
        )  # `open` would cost a tenth of all that a rank does here
        os.write(score, b"1000")  # it goes before the host, when the machine runs out of memory
        if self.settings["user"] is not None or kernel() >= (5, 14):  # older ones count what the user has outside too
            most = min(self.processes, resource.getrlimit(resource.RLIMIT_NPROC)[1])
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        privileges.keep_only(descriptor)
        privileges.drop_capabilities(self.settings["user"])
        privileges.call("prctl", privileges.PR_SET_DUMPABLE, 1, 0, 0, 0)  # its own /proc/self stays readable
        privileges.forbid(base64.b64decode(self.settings["filter"]))


def end_orphans(ranks: list[int]) -> None:
    """Without rooms: end what ranks have left behind, where the kernel gives orphans to us (see Host)."""
    children = f"/proc/self/task/{os.getpid()}/children"
    while os.path.exists(children) and (left := set(map(int, open(children).read().split())) - set(ranks)):
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def seed() -> None:
    """Once, here: every rank is a copy of this. A rank of several runs does it between them."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        torch.manual_seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)


def share_memory() -> None:
    """Lay out what is here now so that forks are quick, and share it."""
    gc.collect()
    gc.freeze()  # the collector would write to it
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


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far, with its threads and the children that it has waited for."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:  # it is gone, or there is no /proc
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
