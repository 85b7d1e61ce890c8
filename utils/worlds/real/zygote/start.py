"""How the zygote starts: a stand-in makes ranks as soon as torch is there, while the zygote imports the rest.

`import torch` is half of what there is to import, and all that most first programs need. So after it the zygote forks
itself. The fork, its stand-in, makes ranks at once; behind it the zygote goes on importing, and takes over when it is
done. The stand-in then looks after the worlds it still has, and exits. Both make ranks the same way; a rank of the
stand-in's just has to import what it uses.

The ranks of some programs would all import the same large modules, at the same time. The kernel asks for such a world
with WHEN_LOADED (needs.py), and the stand-in passes it on to the zygote.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys

from .forks import Forks
from .fresh_interpreters import FreshInterpreters
from .needs import WHEN_LOADED
from .server import ZygoteServer

WITHOUT_FORK = "SPAWN_WITHOUT_FORK"  # environment variable: make ranks of fresh interpreters, as on macOS


def main(control_descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Jupyter's interrupt is for the kernel, which passes it on
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # many ranks have many pipes
    control = socket.socket(fileno=control_descriptor)
    if WITHOUT_FORK in os.environ or sys.platform == "darwin":
        ZygoteServer(control, FreshInterpreters()).serve()
    gc.disable()  # the collector would take an eighth of the time of importing torch, and find next to nothing
    forks = Forks()
    stand_in = start_stand_in(control, forks)
    forks.load_the_rest()
    gc.enable()
    if stand_in is not None:
        stand_in.shutdown(socket.SHUT_WR)  # tells it that we are ready
    ZygoteServer(control, forks, stand_in).serve()


def start_stand_in(control: socket.socket, forks: Forks) -> socket.socket | None:
    """Returns the socket on which the stand-in passes worlds on; None if a fork is not possible, or not safe."""
    if forks.problem():
        return None
    ours, theirs = socket.socketpair()
    try:
        pid = os.fork()
    except OSError:  # there are no more processes to be had, which the first world will say
        return None
    if pid == 0:
        from ..rank_process import die_with_parent

        die_with_parent()
        ours.close()
        StandIn(control, forks, theirs).serve()

    def exit_with_stand_in(*_: object) -> None:
        """If it ends before we are ready, the kernel is gone."""
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            os._exit(0)

    signal.signal(signal.SIGCHLD, exit_with_stand_in)
    theirs.close()
    return ours


class StandIn(ZygoteServer):
    """Makes ranks until the zygote is ready, which shows as the end of what comes from it."""

    def __init__(self, control: socket.socket, forks: Forks, zygote: socket.socket):
        super().__init__(control, forks)
        self.zygote = zygote
        self.open(zygote)

    def take_world(self, when: bytes, descriptors: list[int]) -> None:
        if when == WHEN_LOADED:
            socket.send_fds(self.zygote, [when], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            super().take_world(when, descriptors)

    def inlet_closed(self, zygote: socket.socket) -> None:
        """The zygote is ready: take no more worlds."""
        self.close(zygote)
        self.close(self.control)
