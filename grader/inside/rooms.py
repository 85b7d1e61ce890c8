"""Rooms: where ranks live alone. Each has namespaces of its own for processes, mounts, network, IPC and host name.

A room is held by its first process, a few lines that wait; when it is killed, the kernel kills all others in it, before
it is gone. A small process beside the host makes rooms, started before torch is imported: it forks in a millisecond.
"""

from __future__ import annotations

import json
import os
import signal
import socket

from grader.inside import alone
from grader.inside.alone import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY

FOLDERS = ("/tmp", "/dev/shm")
MOST_FILES = 20_000  # in each of them
FIRST_PID = 1000
WORDS = 4096  # bytes in an answer, at most


class Rooms:
    """The process that makes rooms, seen from the host."""

    def __init__(self, disk: int, home: str):
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self.line.close()
            try:
                serve(theirs, disk, home)
            finally:
                os._exit(0)
        theirs.close()

    def ask_for(self, numbers: list[int]) -> None:
        """Have a room made for each of these ranks; `next` returns them as they are ready."""
        self.line.send(json.dumps(numbers).encode())

    def next(self) -> int:
        """A pidfd of the first process of the next room; raises OSError when it could not be made."""
        words, descriptors, _, _ = socket.recv_fds(self.line, WORDS, 1)
        if not descriptors:
            raise OSError(words.decode(errors="replace") or "the process that makes rooms is gone")
        return descriptors[0]


def serve(line: socket.socket, disk: int, home: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the first processes
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    while order := line.recv(65536):
        for number in json.loads(order):
            try:
                first = make(number, own_pids, disk, home)
            except OSError as error:
                line.send(str(error).encode()[:WORDS])
            else:
                socket.send_fds(line, [b"."], [first])
                os.close(first)


def make(number: int, own_pids: int, disk: int, home: str) -> int:
    """Make a room; returns a pidfd of its first process."""
    ready, says_ready = os.pipe()
    try:
        alone.unshare(alone.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                hold(number, says_ready, disk, home)
            first = os.pidfd_open(pid)
        finally:
            alone.enter(own_pids, alone.CLONE_NEWPID)
        os.close(says_ready)
        says_ready = None
        if (words := os.read(ready, WORDS)) != b".":
            os.close(first)
            raise OSError(f"no room: {words.decode(errors='replace')}")
        return first
    finally:
        os.close(ready)
        if says_ready is not None:
            os.close(says_ready)


def hold(number: int, says_ready: int, disk: int, home: str) -> None:
    """The first process of a room: furnish it, then wait for the end. Never returns."""
    try:
        os.setsid()
        alone.unshare(alone.ALL_BUT_PID)
        furnish(disk, home)
        next_pid(FIRST_PID + number % 30_000)
        alone.keep_only(says_ready)
        says_ready = 3
        alone.drop_capabilities(None)
        alone.call("prctl", alone.PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody looks into it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # from inside, signals reach it only where it handles them
        os.write(says_ready, b".")
        os.close(says_ready)
        while True:
            signal.pause()  # children are buried by the kernel, since SIGCHLD is ignored
    except OSError as error:
        os.write(says_ready, str(error).encode()[:WORDS])
    finally:
        os._exit(1)


def furnish(disk: int, home: str) -> None:
    """A /proc that shows this room alone, folders to write in, no terminal."""
    alone.mount("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for folder in FOLDERS:
        alone.mount("tmpfs", folder, MS_NOSUID | MS_NODEV, f"mode=1777,size={disk},nr_inodes={MOST_FILES}")
    alone.mount("tmpfs", "/dev/pts", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,nr_inodes=1")
    os.mkdir(home)
    os.chmod(home, 0o777)


def next_pid(number: int) -> None:
    """The next process here gets this pid, so that ranks can be told apart by theirs."""
    try:
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(number - 1))
    except OSError:  # a kernel without it: use pids up
        for _ in range(number % 50):
            if os.fork() == 0:
                os._exit(0)
