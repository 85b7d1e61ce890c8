"""A real kernel, run cell by cell as a notebook does, of which no process stays."""

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
MARK = "COURSE_BENCH"  # environment variable: whatever has started a process, it can be found again
PATIENCE = 120  # seconds that a cell may take


class CellFailed(Exception):
    """Why a cell did not do what it should, in one line."""


class Kernel:
    """A fresh kernel of `python`. It finds the course, has settings and a /tmp of its own, and knows the stopwatch."""

    def __init__(self, python: str):
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
        """Run a cell, then return the value of an expression. Raises CellFailed."""
        wanted = {"value": value}
        options = {"user_expressions": wanted, "allow_stdin": False, "output_hook": lambda message: None}
        try:
            reply = self.client.execute_interactive(cell, timeout=PATIENCE, **options)["content"]
        except TimeoutError:
            state = "does not answer" if self.manager.is_alive() else "is dead"
            raise CellFailed(f"after {PATIENCE} s the cell has not ended; the kernel {state}") from None
        if reply["status"] != "ok":
            raise CellFailed(in_one_line(reply.get("ename", "aborted"), reply.get("evalue", "")))
        return ast.literal_eval(reply["user_expressions"]["value"]["data"]["text/plain"])

    def evaluate(self, expression: str):
        """Run a cell that computes `expression`, and return its value."""
        return self.run(f"answer = {expression}", value="answer")

    def helpers(self) -> list[int]:
        """The processes that were started from this kernel and are there now."""
        return [pid for pid in marked(self.mark) if pid != self.manager.provisioner.pid]

    def settle(self) -> None:
        """Wait until all that was started from this kernel is at rest: the next one to be timed needs the machine.

        Some launchers return while their processes still end; spawn may be making its next world ready.
        """
        give_up = time.monotonic() + 30
        before, at_rest = processor_time(self.mark), False
        while not at_rest and time.monotonic() < give_up:
            time.sleep(0.2)
            now = processor_time(self.mark)
            at_rest = now.keys() == before.keys() and sum(now.values()) - sum(before.values()) < 0.02
            before = now

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the kernel and all that it has started, engines that have left its process group too."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        end_marked(self.mark)
        self.folder.cleanup()


def in_one_line(name: str, message: str) -> str:
    """An error by its name and the line that tells most: of a traceback within it the last, else the first."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    return f"{name}: {lines[-1] if 'Traceback' in message else lines[0]}"


def marked_environment(mark: str, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), MARK: mark, **more}


def marked(mark: str) -> list[int]:
    """All live processes that were started, by whomever, with this mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # gone, or somebody else's
            continue
        if f"{MARK}={mark}".encode() in environment.split(b"\0"):
            found.append(int(pid))
    return found


def processor_time(mark: str) -> dict[int, float]:
    """{pid: seconds of processor time so far} of the marked processes."""
    used = {}
    for pid in marked(mark):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # in user mode, in the system
    return used


def end_marked(mark: str) -> None:
    """Kill the marked processes, and wait until they are gone: what is measured next has the machine to itself.

    They are gone when two looks find none: while it starts another program a process shows no environment.
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
