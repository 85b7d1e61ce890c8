"""The process that starts a sandbox, watches what it uses, and ends it. bubblewrap.py starts one per sandbox.

    order (a line of JSON) -> {"pid"} when the sandbox is there -> {"status", "stopped", ...} when all of it is gone
    ASK, meanwhile         -> {"cpu"}

All travel over one socket. When the other end of it closes, the sandbox ends. So it also ends when the grader is
killed, whichever thread has started it. And if this process is killed, bwrap's --die-with-parent ends the sandbox.

Standard library only, and nothing of ours: it runs with `python -I -S`, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False  # importing typing takes as long as all the rest
if TYPE_CHECKING:
    from typing import Any

ASK = b"?"
LOOK_EVERY = 0.05  # seconds
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
FEW_OPEN = 64  # descriptors that count nothing
SOCKET_BUFFER = 208 << 10  # bytes that the kernel keeps for a socket whose owner does not read
MAX_FILES = 100_000  # /tmp and /dev/shm together: an empty file takes memory too


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    order = json.loads(control.makefile("rb").readline())
    began = time.monotonic()
    bwrap, outputs, info = start(order)
    output = OutputLimit(order["limits"]["output"])
    pumps = [threading.Thread(target=output.pump, args=pair, daemon=True) for pair in outputs]
    for pump in pumps:
        pump.start()
    pid, pidfd = first_process(info)
    stopped, usage = None, Usage(pid)
    if pidfd:
        ended = os.pidfd_open(bwrap.pid)
        wait_for(f"/proc/{pid}/root{order['mark']}", ended)
        report(control, pid=pid)
        stopped = watch(control, order["limits"], ended, usage, output, began)
        kill(pidfd)
    status = bwrap.wait()
    for pump in pumps:
        pump.join(5)  # the reader of the output may be slow, or gone
    wall = time.monotonic() - began
    report(control, status=status, stopped=stopped, memory=usage.peak_memory, cpu=usage.cpu, wall=wall)


def report(control: socket.socket, **fields: object) -> None:
    try:
        control.sendall(json.dumps(fields).encode() + b"\n")
    except OSError:  # the other end is closed
        pass


def start(order: dict[str, Any]) -> tuple[subprocess.Popen[bytes], list[tuple[int, int]], int]:
    """Start bwrap. Its arguments travel in a file, because processes inside can read its command line.

    Returns it; for stdout and stderr, which descriptor to copy to which; and a pipe on which it reports its child.
    """
    info, info_end = os.pipe()
    fds = [info_end, *order["pass_fds"]]
    words = [*order["arguments"], "--info-fd", str(info_end)]
    for option, content, *path in order["data"]:
        fds.append(memory_file(base64.b64decode(content)))
        words += [*option.split(), str(fds[-1]), *path]
    words += order["last_arguments"]
    fds.append(memory_file(b"".join(word.encode() + b"\0" for word in words)))
    command = [*order["bwrap"], "--args", str(fds[-1]), "--", *order["command"]]
    bwrap = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=fds)
    for fd in fds:
        os.close(fd)
    assert bwrap.stdout is not None and bwrap.stderr is not None
    return bwrap, [(bwrap.stdout.fileno(), 1), (bwrap.stderr.fileno(), 2)], info


def memory_file(content: bytes) -> int:
    fd = os.memfd_create("order")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def first_process(info: int) -> tuple[int | None, int | None]:
    """The sandbox's first process: its pid out here, and a pidfd, because the kernel may soon use the pid again.

    (None, None) if bwrap could not make it; the reason is in its stderr.
    """
    with os.fdopen(info) as file:
        words = file.read()
    try:
        pid = json.loads(words)["child-pid"]
        return pid, os.pidfd_open(pid)
    except (ValueError, ProcessLookupError):
        return None, None


def wait_for(mark: str, ended: int) -> None:
    """Wait until everything that the sandbox sees is in its place, or bwrap has failed to put it there."""
    while not os.path.exists(mark) and not select.select([ended], [], [], 0.001)[0]:
        pass


def watch(
    control: socket.socket, limits: dict[str, Any], ended: int, usage: Usage, output: OutputLimit, began: float
) -> str | None:
    """Look at the usage until the command has ended, or has exceeded a limit: then the reason is returned."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while True:
        for fd, _ in poll.poll(LOOK_EVERY * 1000):
            if fd == ended:
                return None
            if not asked(control):
                return "the grader no longer waits for it"
            report(control, cpu=usage.cpu)
        usage.update()
        if output.exceeded.is_set():
            return f"wrote more than {size_text(limits['output'])} to stdout and stderr"
        if time.monotonic() - began > limits["wall"]:
            return f"took longer than {limits['wall']:g} s"
        if usage.cpu > limits["cpu"]:
            return f"computed for more than {limits['cpu']:g} s"
        if usage.files > MAX_FILES:
            return f"made more than {MAX_FILES} files"
        if usage.memory(limits["memory"]) > limits["memory"]:
            return f"held {size_text(usage.peak_memory)} of memory; {size_text(limits['memory'])} are allowed"


def asked(control: socket.socket) -> bool:
    """Whether the grader has asked something; if not, it has closed its end."""
    try:
        return bool(control.recv(1))
    except OSError:
        return False


def kill(pidfd: int) -> None:
    """Kill the first process. The kernel kills all others of its namespace before it is gone."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    select.select([pidfd], [], [])


class OutputLimit:
    """Passes on so many bytes of output. After that it stops reading, so the writer has to wait."""

    def __init__(self, left: int):
        self.left, self.exceeded = left, threading.Event()

    def pump(self, source: int, target: int) -> None:
        while block := os.read(source, 65536):
            self.left -= len(block)
            if self.left < 0:
                self.exceeded.set()
                return
            try:
                while block:
                    block = block[os.write(target, block) :]
            except OSError:  # it is not read any more; the command need not know
                continue


class Usage:
    """What all processes of a sandbox use together, as its own /proc shows it from out here.

    shared_out, resident_then   memory by shares, and by pages, when shares were last asked for
    """

    def __init__(self, first: int | None):
        self.root = f"/proc/{first}/root"
        self.seconds: dict[tuple[str, str], float] = {}  # (pid, start time), of every process ever seen
        self.pages, self.buffers, self.files, self.peak_memory = 0, 0, 0, 0
        self.shared_out, self.resident_then, self.ask_again = 0, 0, 0.0
        self.processes: list[str] = []

    @property
    def cpu(self) -> float:
        return sum(self.seconds.values())

    def update(self) -> None:
        try:
            self.processes = [name for name in os.listdir(f"{self.root}/proc") if name.isdigit()]
        except OSError:  # it is just ending
            self.processes = []
        self.pages = self.buffers = 0
        for name in self.processes:
            try:
                fields = read(f"{self.root}/proc/{name}/stat").rpartition(")")[2].split()
            except OSError:
                continue
            self.seconds[name, fields[19]] = (int(fields[11]) + int(fields[12])) / TICKS
            self.pages += int(fields[21])
            self.buffers += SOCKET_BUFFER * max(0, self.open_in(name) - FEW_OPEN)
        self.files = sum(map(self.files_in, ("/tmp", "/dev/shm")))

    def open_in(self, name: str) -> int:
        """How many descriptors a process has open."""
        folder = f"{self.root}/proc/{name}/fd"
        try:
            return os.stat(folder).st_size or len(os.listdir(folder))  # st_size counts entries since Linux 6.2
        except OSError:
            return 0

    def files_in(self, folder: str) -> int:
        try:
            found = os.statvfs(self.root + folder)
        except OSError:
            return 0
        return found.f_files - found.f_ffree

    def memory(self, limit: int) -> int:
        """Bytes in use. Pages that forks share count once per process; if that exceeds the limit, each by its share.
        What sockets hold lies in the kernel and in no process's account: many open descriptors count as full ones.

        Asking for shares takes milliseconds per process. So they are asked for only if memory has grown since the last
        time, or at most a tenth of the time.
        """
        resident = self.pages * PAGE
        held = resident
        limit -= self.buffers
        if held > limit:
            self.resident_then = min(self.resident_then, resident)
            held = self.shared_out + resident - self.resident_then
            began = time.monotonic()
            if held > limit or began > self.ask_again:
                held = self.shared_out = sum(map(self.share, self.processes))
                self.resident_then = resident
                self.ask_again = time.monotonic() + 10 * (time.monotonic() - began)
        held += self.buffers
        self.peak_memory = max(self.peak_memory, held)
        return held

    def share(self, name: str) -> int:
        try:
            lines = read(f"{self.root}/proc/{name}/smaps_rollup").splitlines()
        except OSError:  # it has ended
            return 0
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss:", "SwapPss:")))


def read(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()


def size_text(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
