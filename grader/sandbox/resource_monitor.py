"""The process beside a sandbox: starts it, watches what it takes, ends it. grader/sandbox.py starts one for each.

    order (a line of JSON) -> {"pid"} when the sandbox is there -> {"status", "stopped", ...} when all of it is gone

All three travel over one socket. When nobody is at the other end any more, the sandbox ends: so it does when the grader
is killed, from whatever thread it was started. And when this process is killed, bwrap's --die-with-parent ends it.

Only the standard library, and nothing of ours: it runs with `python -I -S`, to start in a few milliseconds.
"""

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

LOOK_EVERY = 0.05  # seconds
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
MOST_FILES = 100_000  # in /tmp and in /dev/shm: a file without content takes memory too


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    order = json.loads(line.makefile("rb").readline())
    began = time.monotonic()
    bwrap, outputs, info = start(order)
    flood = threading.Event()
    room = Room(order["limits"]["output"], flood)
    pumps = [threading.Thread(target=room.pump, args=pair, daemon=True) for pair in outputs]
    for pump in pumps:
        pump.start()
    number, process = first_process(info)
    stopped, use = None, Use(number)
    if process:
        ended = os.pidfd_open(bwrap.pid)
        wait_for(f"/proc/{number}/root{order['mark']}", ended)
        tell(line, pid=number)
        stopped = watch(line, order["limits"], ended, use, flood, began)
        end(process)
    status = bwrap.wait()
    for pump in pumps:
        pump.join(5)  # whoever reads the output may be slow, or gone
    tell(line, status=status, stopped=stopped, memory=use.most_memory, cpu=use.cpu, wall=time.monotonic() - began)


def tell(line: socket.socket, **words: object) -> None:
    try:
        line.sendall(json.dumps(words).encode() + b"\n")
    except OSError:  # nobody listens any more
        pass


def start(order: dict) -> tuple:
    """Start bwrap. Its arguments travel in a file: processes inside can read its command line."""
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
    return bwrap, [(bwrap.stdout.fileno(), 1), (bwrap.stderr.fileno(), 2)], info


def memory_file(content: bytes) -> int:
    fd = os.memfd_create("order")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def first_process(info: int) -> tuple[int | None, int | None]:
    """The sandbox's first process: its number out here, and a descriptor, since a number may soon be another's.

    (None, None) when bwrap could not make it; why stands in its stderr.
    """
    with os.fdopen(info) as file:
        words = file.read()
    try:
        number = json.loads(words)["child-pid"]
        return number, os.pidfd_open(number)
    except (ValueError, ProcessLookupError):
        return None, None


def wait_for(mark: str, ended: int) -> None:
    """Until all that the sandbox sees is in its place, or bwrap has failed to put it there."""
    while not os.path.exists(mark) and not select.select([ended], [], [], 0.001)[0]:
        pass


def watch(
    line: socket.socket, limits: dict, ended: int, use: "Use", flood: threading.Event, began: float
) -> str | None:
    """Look until the command has ended or has to; says why it has to."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while True:
        for fd, _ in poll.poll(LOOK_EVERY * 1000):
            return None if fd == ended else "nobody waits for it any more"
        use.look()
        if flood.is_set():
            return f"wrote more than {in_words(limits['output'])} to stdout and stderr"
        if time.monotonic() - began > limits["wall"]:
            return f"took longer than {limits['wall']:g} s"
        if use.cpu > limits["cpu"]:
            return f"computed for more than {limits['cpu']:g} s"
        if use.files > MOST_FILES:
            return f"made more than {MOST_FILES} files"
        if use.memory(limits["memory"]) > limits["memory"]:
            return f"held {in_words(use.most_memory)} of memory; {in_words(limits['memory'])} are allowed"


def end(process: int) -> None:
    """Kill the first process; the kernel ends all others of its namespace before it is gone."""
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        pass
    select.select([process], [], [])


class Room:
    """Passes output on until there was too much of it; then nobody reads any more, and the writer waits."""

    def __init__(self, left: int, flood: threading.Event):
        self.left, self.flood = left, flood

    def pump(self, source: int, target: int) -> None:
        while block := os.read(source, 65536):
            self.left -= len(block)
            if self.left < 0:
                self.flood.set()
                return
            try:
                while block:
                    block = block[os.write(target, block) :]
            except OSError:  # nobody reads; the command need not know
                continue


class Use:
    """What all processes of a sandbox take together, as the sandbox's own /proc shows it from out here."""

    def __init__(self, first: int | None):
        self.root = f"/proc/{first}/root"
        self.seconds: dict[tuple, float] = {}  # of every process that was ever seen
        self.pages, self.files, self.most_memory = 0, 0, 0
        self.held_then, self.resident_then, self.look_again = 0, 0, 0.0  # by shares, when that was last asked for
        self.processes: list[str] = []

    @property
    def cpu(self) -> float:
        return sum(self.seconds.values())

    def look(self) -> None:
        try:
            self.processes = [name for name in os.listdir(f"{self.root}/proc") if name.isdigit()]
        except OSError:  # it ends just now
            self.processes = []
        self.pages = 0
        for name in self.processes:
            try:
                fields = read(f"{self.root}/proc/{name}/stat").rpartition(")")[2].split()
            except OSError:
                continue
            self.seconds[name, fields[19]] = (int(fields[11]) + int(fields[12])) / TICKS
            self.pages += int(fields[21])
        self.files = sum(map(self.files_in, ("/tmp", "/dev/shm")))

    def files_in(self, folder: str) -> int:
        try:
            found = os.statvfs(self.root + folder)
        except OSError:
            return 0
        return found.f_files - found.f_ffree

    def memory(self, limit: int) -> int:
        """Bytes held. Pages that forks share count once for each of them, until that is too much: then by shares.

        To ask for shares takes milliseconds for each process. So they are asked for when there is more since then, and
        beyond that for a tenth of the time.
        """
        resident = self.pages * PAGE
        held = resident
        if held > limit:
            self.resident_then = min(self.resident_then, resident)
            held = self.held_then + resident - self.resident_then
            began = time.monotonic()
            if held > limit or began > self.look_again:
                held = self.held_then = sum(map(self.share, self.processes))
                self.resident_then = resident
                self.look_again = time.monotonic() + 10 * (time.monotonic() - began)
        self.most_memory = max(self.most_memory, held)
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


def in_words(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
