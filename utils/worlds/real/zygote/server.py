"""The zygote: the process that makes ranks, and ends them.

Importing the package starts it in the background (start.py), so that torch is imported here while the notebook does the
same. It runs no student code. When the kernel's end of its socket closes, however the kernel died, it ends with all its
ranks.

For each world, the kernel sends a socket for that world and one output pipe per process over the control socket. On the
world's socket (messages.py), the kernel sends MakeWorld, and later Signal. The zygote answers with Started or Refused,
sometimes with a Note first, and with Exited for each process that ends. A world whose socket closes is killed.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import NoReturn

from ...common.call_checks import MAX_PROCESSES
from ...common.outcome import Refused
from .forks import Forks
from .fresh_interpreters import FreshInterpreters
from .messages import Exited, FromZygote, MakeWorld, Note, Signal, Started

RankMaker = Forks | FreshInterpreters


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
    """Serves one kernel: listens on its control socket, on the worlds' sockets, and for ranks that end.

    stand_in   the socket on which a stand-in, if there is one, passes worlds on (start.py)
    """

    def __init__(self, control: socket.socket, rank_maker: RankMaker, stand_in: socket.socket | None = None):
        self.control, self.rank_maker, self.stand_in = control, rank_maker, stand_in
        self.worlds: list[WorldProcesses] = []
        self.last_size = 0
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only so that something is written to the pipe
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.wake_read, selectors.EVENT_READ)
        self.inlets: set[socket.socket] = set()  # sockets on which worlds arrive
        for inlet in filter(None, (control, stand_in)):
            self.open(inlet)
        self.note = ""

    def open(self, inlet: socket.socket) -> None:
        self.selector.register(inlet, selectors.EVENT_READ)
        self.inlets.add(inlet)

    def close(self, inlet: socket.socket) -> None:
        self.selector.unregister(inlet)
        self.inlets.remove(inlet)
        inlet.close()

    def serve(self) -> NoReturn:
        """Work until the kernel is gone. In quiet moments, prepare for the next world."""
        may_prepare = True
        while self.inlets or self.worlds:
            heard = self.selector.select(0 if may_prepare and not self.worlds else None)
            for key, _ in heard:
                if key.fileobj in self.inlets:
                    self.hear(key.fileobj)
                elif key.fd == self.wake_read:
                    os.read(self.wake_read, 4096)
                    self.reap()
                elif key.data in self.worlds:
                    self.handle_request(key.data)
            may_prepare = bool(heard) or (not self.worlds and self.rank_maker.prepare(self.last_size))
        os._exit(0)

    def hear(self, inlet: socket.socket) -> None:
        """Take the next world that comes here."""
        try:
            when, descriptors, _, _ = socket.recv_fds(inlet, 1, MAX_PROCESSES + 1, socket.MSG_DONTWAIT)
        except BlockingIOError:  # the other of zygote and stand-in has taken it
            return
        if when:
            self.take_world(when, descriptors)
        elif inlet is self.control:
            self.end()
        else:
            self.inlet_closed(inlet)

    def end(self) -> NoReturn:
        """The kernel is gone."""
        for world in self.worlds:
            world.end()
        if self.stand_in in self.inlets:
            while self.stand_in.recv(1):  # it ends its own worlds, unless we are gone first: then it is killed
                pass
        os._exit(0)

    def inlet_closed(self, stand_in: socket.socket) -> None:
        """The stand-in has exited."""
        self.close(stand_in)

    def take_world(self, when: bytes, descriptors: list[int]) -> None:
        connection, outputs = Connection(descriptors[0]), descriptors[1:]
        try:
            asked: MakeWorld = connection.recv()
        except (EOFError, OSError):
            connection.close()
        else:
            world = WorldProcesses(connection, asked.folder)
            self.worlds.append(world)
            self.selector.register(connection, selectors.EVENT_READ, world)
            self.rank_maker.learn(asked.modules)
            self.make_ranks(world, asked.size, outputs)
        finally:
            for output in outputs:
                os.close(output)

    def make_ranks(self, world: WorldProcesses, size: int, outputs: list[int]) -> None:
        if wrong := self.rank_maker.problem():
            self.rank_maker = FreshInterpreters()
            self.note = f"Each rank is a fresh interpreter, which takes seconds instead of milliseconds: {wrong}."
        if self.note:
            world.tell(Note(self.note))
            self.note = ""
        self.last_size = size
        try:
            for rank in range(size):
                to_close = self.descriptors(others=[output for output in outputs if output != outputs[rank]])
                pid = self.rank_maker.make(rank, world.folder, outputs[rank], to_close)
                world.ranks[pid] = rank
                world.groups.append(pid)
        except OSError as error:  # no more processes, memory or descriptors to be had
            world.tell(Refused(f"only {len(world.ranks)} of {size} could be started: {error}"))
            world.end()
        else:
            world.tell(Started(tuple(world.ranks)))

    def descriptors(self, others: list[int]) -> list[int]:
        """Those that a rank must close after the fork; `others`: the outputs of the other ranks."""
        own = [self.wake_read, self.wake_write, self.selector.fileno(), *(inlet.fileno() for inlet in self.inlets)]
        return own + [world.connection.fileno() for world in self.worlds] + others

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.rank_maker.forget(pid)
            for world in self.worlds:
                if pid in world.ranks:
                    world.tell(Exited(world.ranks.pop(pid), os.waitstatus_to_exitcode(status)))

    def handle_request(self, world: WorldProcesses) -> None:
        try:
            asked: Signal = world.connection.recv()
        except (EOFError, OSError):
            world.end()
            self.selector.unregister(world.connection)
            world.connection.close()
            self.worlds.remove(world)
        else:
            world.signal(asked.number)
