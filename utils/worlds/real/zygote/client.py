"""The kernel's end of the zygote: starts it, starts it again if it was killed, and asks it to make worlds."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO

from ....text.package import IMPORT_ROOT
from ...jobs import detect

CAN_FORK = hasattr(os, "fork")  # not on Windows
PROGRAM = f"from sys import argv; from {__package__}.start import main; main(int(argv[1]))"
PATIENCE = 1  # seconds that it has for ending by itself
IN_ZYGOTE = "SPAWN_ZYGOTE"  # environment variable: importing this package here starts nothing
ZYGOTES_ENVIRONMENT = {
    IN_ZYGOTE: "1",
    "PYTHONPATH": IMPORT_ROOT,
    "OMP_NUM_THREADS": "1",  # a process with more than one thread can't be forked safely
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # look for GPUs without opening one
    "TORCH_CPP_LOG_LEVEL": "FATAL",  # Gloo's messages about lost connections; our report says it better
}


@dataclass
class RunningZygote:
    """The process, while it lives."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    stderr: IO[bytes]  # a file: everything it has printed
    owner: int  # the pid of the process that started it: a fork of that has none of its own


class ZygoteClient:
    """Starts the zygote, starts it again if it is gone, and asks it for ranks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.preload: list[str] = []  # modules of ours that ranks of other worlds will need
        self.running: RunningZygote | None = None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        return self.running.process if self.running else None

    def start(self) -> None:
        """Make sure that it runs. Returns at once, while torch is still being imported over there."""
        if not CAN_FORK:
            raise RuntimeError("spawn needs a system that can fork: Linux, macOS, or WSL on Windows.")
        with self.lock:
            self._start_if_gone()

    def _start_if_gone(self) -> RunningZygote:
        running = self.running
        if running is None or running.owner != os.getpid() or running.process.poll() is not None:
            running = self._start()
        return running

    def _start(self) -> RunningZygote:
        self.stop()
        control, theirs = socket.socketpair()
        stderr = tempfile.TemporaryFile()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                cwd=IMPORT_ROOT,
                env={**os.environ, **ZYGOTES_ENVIRONMENT, "SPAWN_PRELOAD": " ".join(self.preload)},
                start_new_session=True,  # Jupyter's interrupt is for the kernel, not for the ranks
            )
        self.running = RunningZygote(process, control, stderr, os.getpid())
        return self.running

    def stop(self) -> None:
        """Let it end its ranks and itself, which it does when our end of its socket closes."""
        if self.running is None:
            return
        self.running.control.close()
        self.running.stderr.close()
        if self.running.owner == os.getpid():
            process = self.running.process
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:  # it hangs, in the import of torch, say
                process.kill()
                process.wait()

    def make_world(self, processes: int, folder: str, outputs: list[int], program: bytes) -> Connection:
        """Start the processes of the world in `folder`, which run `program`; they print to the descriptors `outputs`.

        Returns the connection on which the zygote reports (messages.py).
        """
        self.start()
        with self.lock:
            try:
                return hand_over(self._start_if_gone(), processes, folder, outputs, program)
            except OSError:  # it was killed a moment ago
                return hand_over(self._start(), processes, folder, outputs, program)

    def last_words(self) -> str:
        """The last line it printed before it died."""
        if self.running is None:
            return ""
        self.running.stderr.seek(0)
        lines = self.running.stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def hand_over(running: RunningZygote, processes: int, folder: str, outputs: list[int], program: bytes) -> Connection:
    from .messages import MakeWorld  # only now, so that importing the package is quick
    from .needs import modules_of_ours, when_to_make

    ours, theirs = socket.socketpair()
    with theirs:
        connection = Connection(ours.detach())
        try:
            socket.send_fds(running.control, [when_to_make(program)], [theirs.fileno(), *outputs])
            connection.send(MakeWorld(processes, folder, modules_of_ours(program)))
        except OSError:
            connection.close()
            raise
    return connection


zygote = ZygoteClient()
atexit.register(zygote.stop)


def start_zygote() -> None:
    """Called when the package is imported: the zygote imports torch while the notebook does the same.

    Does nothing in a zygote, a rank, or a worker of a process pool; a worker that calls spawn gets its zygote then.
    """
    is_worker = multiprocessing.parent_process() is not None
    if CAN_FORK and not (IN_ZYGOTE in os.environ or "RANK" in os.environ or detect.launcher() or is_worker):
        zygote.start()
