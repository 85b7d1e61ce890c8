"""A real kernel for tests: runs cells, shows what students would see, can be interrupted, restarted and killed."""

import os
import queue
import time
from pathlib import Path


class Notebook:
    """A kernel that runs one cell after another and collects the output of each."""

    def __init__(self):
        from jupyter_client.manager import KernelManager  # not there on a bare GPU machine

        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(extra_arguments=["--HistoryManager.enabled=False"])  # a file that it would open
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def send(self, source: str) -> str:
        return self.client.execute(source)

    def outputs_of(self, message_id: str, timeout: float = 60) -> dict:
        """{"stdout": ..., "stderr": ..., "error": ...} of a cell, once it is done."""
        shown = {"stdout": "", "stderr": "", "error": None}
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=0.5)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown[content["name"]] += content["text"]
            elif kind == "error":
                shown["error"] = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return shown
        raise TimeoutError("the cell did not end")

    def run(self, source: str) -> dict:
        return self.outputs_of(self.send(source))

    def wait_for_output(self, text: str) -> None:
        while True:
            message = self.client.get_iopub_msg(timeout=30)
            if message["msg_type"] == "stream" and text in message["content"]["text"]:
                return

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def processes_of_session(zygote: int) -> list[int]:
    """Pids of the zygote and its ranks: they have a session of their own. Zombies do not count."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                state, _, _, session = stat.read().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == zygote and state != "Z":
            found.append(int(pid))
    return found


def processes_with(mark: str) -> list[int]:
    """Living processes on the whole machine that have this word in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if mark in words:
            found.append(int(pid))
    return found


def wait_until_gone(zygote: int) -> None:
    deadline = time.monotonic() + 60
    while processes_of_session(zygote):
        assert time.monotonic() < deadline, f"still there: {processes_of_session(zygote)}"
        time.sleep(0.02)


def wait_until_alone(zygote: int) -> None:
    """Wait until its stand-in, which makes ranks until it has imported everything, is gone."""
    deadline = time.monotonic() + 60
    while processes_of_session(zygote) != [zygote]:
        assert time.monotonic() < deadline, f"still there: {processes_of_session(zygote)}"
        time.sleep(0.02)


def zygote_here() -> int:
    """The pid of this process's zygote, once that has imported everything and has no other process."""
    from utils import spawn
    from utils.worlds.real.zygote import client

    def names_an_optimizer(rank: int, world_size: int) -> None:
        """Its world is made only when everything is imported."""
        import torch.optim  # noqa: F401

    spawn(names_an_optimizer, 1, backend="gloo")
    pid = client.zygote.process.pid
    wait_until_alone(pid)
    return pid


def zygote_of(notebook: Notebook) -> int:
    return int(notebook.run("from tests.kernel import zygote_here; print(zygote_here())")["stdout"])
