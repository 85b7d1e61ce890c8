"""The kernel's end of the zygote: starts it, starts it again if it was killed, and hands it worlds to make."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection

from utils import job
from utils.protocol import Request

COURSE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CAN_FORK = hasattr(os, "fork")  # not on Windows
IN_ZYGOTE = "UTILS_ZYGOTE"  # environment variable: importing utils here starts nothing
ZYGOTES_ENVIRONMENT = {
    IN_ZYGOTE: "1",
    "PYTHONPATH": COURSE,
    "OMP_NUM_THREADS": "1",  # a process with more than one thread can't be forked safely
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # look for GPUs without opening one
    "TORCH_CPP_LOG_LEVEL": "FATAL",  # Gloo's own words on a lost connection; the report says it better
}


class Zygote:
    """The process that forks our ranks: started once, started again if it is gone."""

    def __init__(self):
        self.lock = threading.Lock()
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
        if self.control is not None:
            self.control.close()
        self.control, theirs = socket.socketpair()
        self.complaints = tempfile.TemporaryFile()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from utils.zygote import main; main({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.complaints,
                stderr=self.complaints,
                cwd=COURSE,
                env={**os.environ, **ZYGOTES_ENVIRONMENT},
                start_new_session=True,  # Jupyter's interrupt is for the kernel, not for the ranks
            )
        self.owner = os.getpid()

    def make_world(self, request: Request, outputs: list[int]) -> Connection:
        """Fork the ranks of `request`, their prints going to `outputs`; returns the connection that tells of them."""
        self.start()
        with self.lock:
            try:
                return self._hand_over(request, outputs)
            except OSError:  # it was killed a moment ago
                self.process.kill()
                self.process.wait()
                self._start()
                return self._hand_over(request, outputs)

    def _hand_over(self, request: Request, outputs: list[int]) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            connection = Connection(ours.detach())
            socket.send_fds(self.control, [b"+"], [theirs.fileno(), *outputs])
        connection.send(request)
        return connection

    def last_words(self) -> str:
        """The last line it wrote before it died."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


zygote = Zygote()


def start_zygote() -> None:
    """Called by `import utils`: have the zygote import torch while the notebook does the same.

    Not in a zygote, a rank, or a worker of somebody's pool; a worker that calls spawn gets its zygote then.
    """
    is_worker = multiprocessing.parent_process() is not None
    if CAN_FORK and not (IN_ZYGOTE in os.environ or "RANK" in os.environ or job.launcher() or is_worker):
        zygote.start()
