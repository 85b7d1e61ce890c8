"""A real kernel, run cell by cell as a notebook does, that leaves no process behind."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[2]
STOPWATCH = Path(__file__).with_name("stopwatch.py").read_text()
MARK = "COURSE_BENCH"  # environment variable by which every process of a kernel can be found
PATIENCE = 120  # seconds that a cell may take


class CellFailed(Exception):
    """A cell failed; the message says why, in one line."""


class Kernel:
    """A fresh kernel of `python`, with the course on its path, its own settings and /tmp, and the stopwatch defined."""

    def __init__(self, python: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = tempfile.TemporaryDirectory(prefix="bench-")
        self.manager = KernelManager(kernel_name="python3")
        self.manager.kernel_spec.argv[0] = python
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = marked_environment(self.mark, IPYTHONDIR=self.folder.name, TMPDIR=self.folder.name)
        self.manager.start_kernel(env=environment, cwd=self.folder.name, **quiet)
        self.client = self.manager.client()
        try:
            self.client.start_channels()
            self.client.wait_for_ready(timeout=PATIENCE)
            self.run(STOPWATCH)
        except BaseException:
            self.close()
            raise

    def run(self, cell: str, value: str = "None"):
        """Run a cell and return the value of an expression, a literal. Raises CellFailed."""
        wanted = {"value": value}
        options = {"user_expressions": wanted, "allow_stdin": False, "output_hook": lambda message: None}
        try:
            reply = self.client.execute_interactive(cell, timeout=PATIENCE, **options)["content"]
        except TimeoutError:
            state = "does not answer" if self.manager.is_alive() else "is dead"
            raise CellFailed(f"the cell did not finish within {PATIENCE} s; the kernel {state}") from None
        if reply["status"] != "ok":
            raise CellFailed(in_one_line(reply.get("ename", "aborted"), reply.get("evalue", "")))
        return ast.literal_eval(reply["user_expressions"]["value"]["data"]["text/plain"])

    def evaluate(self, expression: str):
        """Run a cell that computes `expression`, and return its value. Raises CellFailed."""
        return self.run(f"answer = {expression}", value="answer")

    def helpers(self) -> list[int]:
        """The live processes that were started from this kernel."""
        return [pid for pid in marked(self.mark) if pid != self.manager.provisioner.pid]

    def wait_until_idle(self) -> None:
        """Wait until the processes of this kernel use no processor time, so that they do not disturb the next timing.

        Some launchers return while their processes are still ending; spawn may be preparing its next world.
        """
        give_up = time.monotonic() + 30
        before, idle = processor_time(self.mark), False
        while not idle and time.monotonic() < give_up:
            time.sleep(0.2)
            now = processor_time(self.mark)
            idle = now.keys() == before.keys() and sum(now.values()) - sum(before.values()) < 0.02
            before = now

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the kernel and everything it has started, even processes that have left its process group."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        end_marked(self.mark)
        self.folder.cleanup()


def in_one_line(name: str, message: str) -> str:
    """An error's name and its most telling line: the last if the message holds a traceback, else the first."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    return f"{name}: {lines[-1] if 'Traceback' in message else lines[0]}"


def marked_environment(mark: str, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), MARK: mark, **more}


def marked(mark: str) -> list[int]:
    """All live processes with this mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if f"{MARK}={mark}".encode() in environment.split(b"\0"):
            found.append(int(pid))
    return found


def processor_time(mark: str) -> dict[int, float]:
    """{pid: seconds of processor time so far} for the marked processes."""
    used = {}
    for pid in marked(mark):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time
    return used


def end_marked(mark: str) -> None:
    """Kill the marked processes and wait until they are gone, so that they do not disturb what is measured next.

    Twice in a row none must be found, because a process in the middle of an exec shows no environment.
    """
    found, found_before = marked(mark), True
    while found or found_before:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
        found, found_before = marked(mark), bool(found)
