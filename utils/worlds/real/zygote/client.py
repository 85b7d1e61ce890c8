"""The kernel's end of the zygote: starts it, starts it again if it was killed, and hands it worlds to make."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection

from ....text.package import IMPORT_ROOT
from ...jobs import detect
from .messages import MakeWorld

CAN_FORK = hasattr(os, "fork")  # not on Windows
PROGRAM = f"from sys import argv; from {__package__}.server import main; main(int(argv[1]))"
PATIENCE = 1  # seconds that it has to end itself
IN_ZYGOTE = "SPAWN_ZYGOTE"  # environment variable: importing this package here starts nothing
ZYGOTES_ENVIRONMENT = {
    IN_ZYGOTE: "1",
    "PYTHONPATH": str(IMPORT_ROOT),
    "OMP_NUM_THREADS": "1",  # a process with more than one thread can't be forked safely
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # look for GPUs without opening one
    "TORCH_CPP_LOG_LEVEL": "FATAL",  # Gloo's own words on a lost connection; the report says it better
}


class ZygoteClient:
    """The process that forks our ranks: started once, started again if it is gone."""

    def __init__(self):
        self.lock = threading.Lock()
        self.preload: list[str] = []  # modules of ours that ranks of other worlds will need
        self.process: subprocess.Popen | None = None
        self.control: socket.socket | None = None
        self.complaints = None  # a file: what it said on stderr
        self.owner = None

    def start(self) -> None:
        """Make sure that it runs; returns at once, while torch is still being imported over there."""
        if not CAN_FORK:
            raise RuntimeError("spawn needs a system that can fork: Linux, macOS, or WSL on Windows.")
        with self.lock:
            if self.owner != os.getpid() or self.process.poll() is not None:
                self._start()

    def _start(self) -> None:
        self.stop()
        self.control, theirs = socket.socketpair()
        self.complaints = tempfile.TemporaryFile()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.complaints,
                stderr=self.complaints,
                cwd=IMPORT_ROOT,
                env={**os.environ, **ZYGOTES_ENVIRONMENT, "SPAWN_PRELOAD": " ".join(self.preload)},
                start_new_session=True,  # Jupyter's interrupt is for the kernel, not for the ranks
            )
        self.owner = os.getpid()

    def stop(self) -> None:
        """Let it end its ranks and itself, which it does when nobody is at our end of its socket."""
        if self.control is not None:
            self.control.close()
            self.complaints.close()
        if self.owner == os.getpid():
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:  # it hangs: while it imports torch, say
                self.process.kill()
                self.process.wait()

    def make_world(self, world_size: int, folder: str, outputs: list[int]) -> Connection:
        """Start the ranks of the world in `folder`, their prints going to `outputs`; returns the connection that tells
        of them."""
        self.start()
        with self.lock:
            try:
                return self._hand_over(world_size, folder, outputs)
            except OSError:  # it was killed a moment ago
                self._start()
                return self._hand_over(world_size, folder, outputs)

    def _hand_over(self, world_size: int, folder: str, outputs: list[int]) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            connection = Connection(ours.detach())
            try:
                socket.send_fds(self.control, [b"+"], [theirs.fileno(), *outputs])
                connection.send(MakeWorld(world_size, folder))
            except OSError:
                connection.close()
                raise
        return connection

    def last_words(self) -> str:
        """The last line it wrote before it died."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


zygote = ZygoteClient()
atexit.register(zygote.stop)


def start_zygote() -> None:
    """Called when the package is imported: have the zygote import torch while the notebook does the same.

    Not in a zygote, a rank, or a worker of somebody's pool; a worker that calls spawn gets its zygote then.
    """
    is_worker = multiprocessing.parent_process() is not None
    if CAN_FORK and not (IN_ZYGOTE in os.environ or "RANK" in os.environ or detect.launcher() or is_worker):
        zygote.start()
