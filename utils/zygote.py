"""The zygote: a process that has imported torch once and forks a rank in a few milliseconds.

`import utils` starts it in the background. It runs nothing of the student's, touches no GPU and keeps one thread, so
that a fork of it is a clean start. It ends when the kernel's end of its socket closes, however the kernel died, and its
ranks end with it.

For each world the launcher hands over, on the control socket, a socket for that world and one output pipe per rank;
then, on the world's socket, a Request. Back come `("started", rank, pid)` and `("exit", rank, code)`; the launcher may
send `("signal", number)`. A world whose socket closes is killed.
"""

from __future__ import annotations

import gc
import os
import selectors
import shutil
import signal
import socket
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

MAX_RANKS = 128  # descriptors in one message: at most 253


@dataclass
class World:
    """The ranks of one call of spawn that are still alive."""

    connection: Connection
    folder: str
    ranks: dict[int, int] = field(default_factory=dict)  # pid -> rank
    groups: list[int] = field(default_factory=list)  # process groups: a rank and what it started

    def tell(self, *message) -> None:
        try:
            self.connection.send(message)
        except OSError:  # the launcher is gone; its closed socket ends this world
            pass

    def signal(self, number: int) -> None:
        for pid in self.ranks:
            os.kill(pid, number)
        for group in self.groups if number == signal.SIGKILL else ():
            try:
                os.killpg(group, number)
            except ProcessLookupError:  # nobody is left in it
                pass

    def end(self) -> None:
        """Kill the ranks, wait until they are gone, and remove their folder: a kernel that was killed can't."""
        self.signal(signal.SIGKILL)
        for pid in self.ranks:
            os.waitpid(pid, 0)
        self.ranks.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def preload() -> None:
    """Import what lessons use; each of these would otherwise cost every rank of every call a second."""
    import torch._dynamo
    import torch.distributed._functional_collectives
    import torch.distributed.fsdp
    import torch.distributed.nn.functional
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401


def main(control_descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Jupyter's interrupt is for the kernel; the launcher passes it on
    from utils import rank_process

    preload()
    gc.collect()
    gc.freeze()  # what is here now is shared by all ranks: keep the collector from touching it

    control = socket.socket(fileno=control_descriptor)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only so that the pipe below is written to
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    worlds: list[World] = []

    def fork(world: World, rank: int, request, outputs: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            selector.close()
            for descriptor in (control.fileno(), wake_read, wake_write, *(w.connection.fileno() for w in worlds)):
                os.close(descriptor)
            for other in range(rank + 1, len(outputs)):
                os.close(outputs[other])
            rank_process.run_rank(rank, request, outputs[rank])
        os.close(outputs[rank])
        try:
            os.setpgid(pid, pid)  # the rank does it too; whoever comes first
        except OSError:  # it is already gone
            pass
        world.ranks[pid] = rank
        world.groups.append(pid)
        world.tell("started", rank, pid)

    def reap() -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for world in worlds:
                if pid in world.ranks:
                    world.tell("exit", world.ranks.pop(pid), os.waitstatus_to_exitcode(status))

    def close(world: World) -> None:
        world.end()
        selector.unregister(world.connection)
        world.connection.close()
        worlds.remove(world)

    while True:
        for key, _ in selector.select():
            if key.fileobj is control:
                message, descriptors, _, _ = socket.recv_fds(control, 1, MAX_RANKS + 1)
                if not message:  # the kernel is gone
                    for world in worlds:
                        world.end()
                    os._exit(0)
                connection = Connection(descriptors[0])
                try:
                    request = connection.recv()
                except (EOFError, OSError):
                    connection.close()
                    for descriptor in descriptors[1:]:
                        os.close(descriptor)
                    continue
                world = World(connection, request.folder)
                worlds.append(world)
                selector.register(world.connection, selectors.EVENT_READ, world)
                for rank in range(request.world_size):
                    fork(world, rank, request, descriptors[1:])
            elif key.fd == wake_read:
                os.read(wake_read, 4096)
                reap()
            elif key.data in worlds:
                try:
                    _, number = key.data.connection.recv()
                except (EOFError, OSError):
                    close(key.data)
                else:
                    key.data.signal(number)


if __name__ == "__main__":
    main(int(sys.argv[1]))
