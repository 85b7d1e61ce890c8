"""Rooms: where ranks live alone. Each has namespaces of its own for processes, mounts, network, IPC and host name.

A room is held by its first process, a few lines that wait; when it is killed, the kernel kills all others in it, before
it is gone. A small process beside the host makes rooms, started before torch is imported: it forks in a millisecond.
While nothing is asked, it makes as many as were asked for last.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import stat

from grader.inside import privileges
from grader.inside.privileges import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT

FOLDERS = ("/tmp", "/dev/shm")
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
MOST_FILES = 5_000  # in each of them
FIRST_PID, PIDS = 1000, 30_000
WORDS = 4096  # bytes in a message, at most
AHEAD = 4  # rooms made before any was asked for


class Rooms:
    """The process that makes rooms, seen from the host."""

    def __init__(self, settings: dict):
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            try:
                Maker(theirs, settings).serve()
            finally:
                os._exit(0)
        theirs.close()

    def ask_for(self, count: int) -> None:
        self.line.send(str(count).encode())

    def next(self) -> int:
        """A pidfd of the first process of the next room; raises OSError when it could not be made."""
        words, descriptors, _, _ = socket.recv_fds(self.line, WORDS, 1)
        if not descriptors:
            raise OSError(words.decode(errors="replace") or "the process that makes rooms is gone")
        return descriptors[0]


class Maker:
    def __init__(self, line: socket.socket, settings: dict):
        self.line, self.settings = line, settings
        self.own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.shown = mounted()
        self.made = 0
        self.spare: list[int] = []
        for device in DEVICES:  # one for all rooms: its times can't be changed
            privileges.make_read_only(f"/dev/{device}")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the first processes

    def serve(self) -> None:
        """Until the host is gone."""
        wanted = AHEAD
        while True:
            has_chores = len(self.spare) < wanted
            if select.select([self.line], [], [], 0 if has_chores else None)[0]:
                if not (order := self.line.recv(WORDS)):
                    return
                wanted = int(order)
                for _ in range(wanted):
                    self.hand_over()
            elif has_chores:
                try:
                    self.spare.append(self.make())
                except OSError:  # there is no room for more
                    wanted = 0

    def hand_over(self) -> None:
        try:
            first = self.spare.pop(0) if self.spare else self.make()
        except OSError as error:
            self.line.send(str(error).encode()[:WORDS])
        else:
            socket.send_fds(self.line, [b"."], [first])
            os.close(first)

    def make(self) -> int:
        """Make a room; returns a pidfd of its first process."""
        self.made += 1
        ready, says_ready = os.pipe()
        with os.fdopen(ready, "rb", 0) as answer:
            try:
                privileges.unshare(privileges.CLONE_NEWPID)
                try:
                    if (pid := os.fork()) == 0:
                        self.hold(says_ready)
                    first = os.pidfd_open(pid)
                finally:
                    privileges.enter(self.own_pids, privileges.CLONE_NEWPID)
            finally:
                os.close(says_ready)
            if (words := answer.read(WORDS)) == b".":
                return first
        os.close(first)
        raise OSError(words.decode(errors="replace") or "the first process of a room was killed")

    def hold(self, says_ready: int) -> None:
        """The first process of a room: furnish it, then wait for the end. Never returns."""
        try:
            os.setsid()
            privileges.unshare(privileges.ALL_BUT_PID)
            self.furnish()
            privileges.keep_only(says_ready)
            says_ready = 3
            privileges.drop_capabilities(None)
            privileges.call("prctl", privileges.PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody looks into it
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # from inside, a signal reaches it only where it has a handler
            os.write(says_ready, b".")
            os.close(says_ready)
            while True:
                signal.pause()  # orphans are buried by the kernel: SIGCHLD is ignored
        except OSError as error:
            os.write(says_ready, str(error).encode()[:WORDS])
        finally:
            os._exit(1)

    def furnish(self) -> None:
        """A /proc that shows this room alone, folders to write in, no terminal."""
        secure = MS_NOSUID | MS_NODEV
        privileges.mount("proc", "/proc", secure | MS_NOEXEC)
        next_pid(FIRST_PID + self.made % PIDS)  # one for each rank: they can be told apart
        if not self.settings[
            "gpus"
        ]:  # a driver reads more than the processes; others would learn from it of each other
            privileges.mount("proc", "/proc", MS_REMOUNT | secure | MS_NOEXEC, "subset=pid")
        for folder in FOLDERS:
            shown = [(path, os.open(path, os.O_RDONLY)) for path in self.shown if path.startswith(folder + "/")]
            privileges.mount("tmpfs", folder, secure, f"mode=1777,size={self.settings['disk']},nr_inodes={MOST_FILES}")
            for path, fd in shown:
                show(path, fd)
        privileges.mount("tmpfs", "/dev/pts", MS_RDONLY | secure | MS_NOEXEC, "size=4k,nr_inodes=1")
        os.mkdir(self.settings["home"])
        os.chmod(self.settings["home"], 0o777)


def mounted() -> list[str]:
    """Where something is mounted: what is given to all, such as a course that lies in /tmp."""
    with open("/proc/self/mountinfo") as file:
        paths = [line.split()[4] for line in file]
    return [path.encode().decode("unicode_escape") for path in paths]


def show(path: str, fd: int) -> None:
    """Let what was seen there before the folder above was covered be seen again: a file is copied, a folder mounted."""
    if os.path.exists(path):  # it came with a folder
        os.close(fd)
    elif stat.S_ISDIR(os.fstat(fd).st_mode):
        os.makedirs(path, exist_ok=True)
        privileges.call(
            "mount", f"/proc/self/fd/{fd}".encode(), path.encode(), None, privileges.MS_BIND | privileges.MS_REC, None
        )
        os.close(fd)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(fd, "rb") as file, open(path, "xb") as copy:
            shutil.copyfileobj(file, copy)
        os.chmod(path, 0o444)


def next_pid(number: int) -> None:
    """The next process here gets this pid."""
    try:
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(number - 1))
    except OSError:  # a kernel without it: use pids up
        for _ in range(number % 50):
            if os.fork() == 0:
                os._exit(0)
