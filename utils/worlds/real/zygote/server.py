"""The zygote: the process that makes ranks, and ends them.

Importing the package starts it in the background, so that torch is imported here while the notebook does the same. It
runs no student code. When the kernel's end of its socket closes, however the kernel died, it ends with all its ranks.

For each world, the kernel sends a socket for that world and one output pipe per process over the control socket. On the
world's socket (messages.py), the kernel sends MakeWorld, and later Signal. The zygote answers with Started or Refused,
sometimes with a Note first, and with Exited for each process that ends. A world whose socket closes is killed.
"""

from __future__ import annotations

import os
import resource
import selectors
import shutil
import signal
import socket
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from ...common.call_checks import MAX_PROCESSES
from ...common.outcome import Refused
from .forks import Forks
from .fresh_interpreters import FreshInterpreters
from .messages import Exited, FromZygote, MakeWorld, Note, Signal, Started

WITHOUT_FORK = "SPAWN_WITHOUT_FORK"  # environment variable: make ranks of fresh interpreters, as on macOS


@dataclass
class WorldProcesses:
    """The ranks of one call of spawn that are still alive."""

    connection: Connection
    folder: str
    ranks: dict[int, int] = field(default_factory=dict)  # pid -> rank
    groups: list[int] = field(default_factory=list)  # process groups: each has a rank and whatever that started

    def tell(self, message: FromZygote) -> None:
        try:
            self.connection.send(message)
        except OSError:  # the kernel is gone; its closed socket ends this world
            pass

    def signal(self, number: int) -> None:
        for pid in self.ranks:
            os.kill(pid, number)
        for group in self.groups if number == signal.SIGKILL else ():
            try:
                os.killpg(group, number)
            except ProcessLookupError:  # it is empty by now
                pass

    def end(self) -> None:
        """Kill the ranks, wait until they are gone, and remove their folder: a kernel that was killed can't."""
        self.signal(signal.SIGKILL)
        for pid in self.ranks:
            os.waitpid(pid, 0)
        self.ranks.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


class ZygoteServer:
    """Serves one kernel: listens on its control socket, on the worlds' sockets, and for ranks that end."""

    def __init__(self, control: socket.socket):
        self.control = control
        self.worlds: list[WorldProcesses] = []
        self.last_size = 0
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only so that something is written to the pipe
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.selector.register(self.wake_read, selectors.EVENT_READ)
        self.note = ""
        without_fork = WITHOUT_FORK in os.environ or sys.platform == "darwin"
        self.nursery: Forks | FreshInterpreters = FreshInterpreters() if without_fork else Forks()

    def serve(self) -> None:
        """Work until the kernel is gone. In quiet moments, the nursery prepares for the next world."""
        has_chores = True
        while True:
            heard = self.selector.select(0 if has_chores and not self.worlds else None)
            for key, _ in heard:
                if key.fileobj is self.control:
                    self.take_world()
                elif key.fd == self.wake_read:
                    os.read(self.wake_read, 4096)
                    self.reap()
                elif key.data in self.worlds:
                    self.obey(key.data)
            has_chores = bool(heard) or (not self.worlds and self.nursery.do_chore(self.last_size))

    def take_world(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self.control, 1, MAX_PROCESSES + 1)
        if not message:  # the kernel is gone
            for world in self.worlds:
                world.end()
            os._exit(0)
        connection, outputs = Connection(descriptors[0]), descriptors[1:]
        try:
            asked: MakeWorld = connection.recv()
        except (EOFError, OSError):
            connection.close()
        else:
            world = WorldProcesses(connection, asked.folder)
            self.worlds.append(world)
            self.selector.register(connection, selectors.EVENT_READ, world)
            self.make_ranks(world, asked.size, outputs)
        finally:
            for output in outputs:
                os.close(output)

    def make_ranks(self, world: WorldProcesses, size: int, outputs: list[int]) -> None:
        if wrong := self.nursery.problem():
            self.nursery = FreshInterpreters()
            self.note = f"Each rank is a fresh interpreter, which takes seconds instead of milliseconds: {wrong}."
        if self.note:
            world.tell(Note(self.note))
            self.note = ""
        self.last_size = size
        try:
            for rank in range(size):
                pid = self.nursery.make(rank, world.folder, outputs[rank], self.descriptors(outputs, but=outputs[rank]))
                world.ranks[pid] = rank
                world.groups.append(pid)
        except OSError as error:  # no more processes, memory or descriptors to be had
            world.tell(Refused(f"only {len(world.ranks)} of {size} could be started: {error}"))
            world.end()
        else:
            world.tell(Started())

    def descriptors(self, outputs: list[int], but: int) -> list[int]:
        """Those that the rank with output `but` must close after the fork."""
        own = [self.control.fileno(), self.wake_read, self.wake_write, self.selector.fileno()]
        return own + [world.connection.fileno() for world in self.worlds] + [o for o in outputs if o != but]

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.nursery.forget(pid)
            for world in self.worlds:
                if pid in world.ranks:
                    world.tell(Exited(world.ranks.pop(pid), os.waitstatus_to_exitcode(status)))

    def obey(self, world: WorldProcesses) -> None:
        try:
            asked: Signal = world.connection.recv()
        except (EOFError, OSError):
            world.end()
            self.selector.unregister(world.connection)
            world.connection.close()
            self.worlds.remove(world)
        else:
            world.signal(asked.number)


def main(control_descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Jupyter's interrupt is for the kernel, which passes it on
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # many ranks have many pipes
    ZygoteServer(socket.socket(fileno=control_descriptor)).serve()
