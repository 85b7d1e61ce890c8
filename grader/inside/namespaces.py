"""Namespaces for ranks: every rank has its own for processes, mounts, network, IPC and host name.

A set of namespaces is held by the first process of its PID namespace, which does nothing but wait. When that process is
killed, the kernel kills all others in the namespace before it is gone. A small process makes the sets.
The host starts it before torch is imported, so it forks in a millisecond. While it is idle, it prepares as many as were
requested last.
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
MAX_MESSAGE = 4096  # bytes
PREPARED = 4  # sets that are made before any was requested


class NamespacePool:
    """The host's side: asks the process that makes namespaces for some."""

    def __init__(self, home: str, disk: int):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            try:
                NamespaceMaker(theirs, home, disk).serve()
            finally:
                os._exit(0)
        theirs.close()

    def request(self, count: int) -> None:
        self.socket.send(str(count).encode())

    def next(self) -> int:
        """A pidfd of the first process of the next set. Raises OSError if it could not be made."""
        reason, descriptors, _, _ = socket.recv_fds(self.socket, MAX_MESSAGE, 1)
        if not descriptors:
            raise OSError(reason.decode(errors="replace") or "the process that makes namespaces is gone")
        return descriptors[0]


class NamespaceMaker:
    """The process that makes namespaces.

    home   a folder in each; disk: bytes in each of FOLDERS
    """

    def __init__(self, socket: socket.socket, home: str, disk: int):
        self.socket, self.home, self.disk = socket, home, disk
        self.own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.shown = mounted()
        self.made = 0
        self.spare: list[int] = []
        for device in DEVICES:  # all ranks share them, so nobody may change their times
            privileges.make_read_only(f"/dev/{device}")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the first processes

    def serve(self) -> None:
        """Answer requests until the host is gone."""
        wanted = PREPARED
        while True:
            has_chores = len(self.spare) < wanted
            if select.select([self.socket], [], [], 0 if has_chores else None)[0]:
                if not (request := self.socket.recv(MAX_MESSAGE)):
                    return
                wanted = int(request)
                for _ in range(wanted):
                    self.hand_over()
            elif has_chores:
                try:
                    self.spare.append(self.make())
                except OSError:  # the limits allow no more
                    wanted = 0

    def hand_over(self) -> None:
        try:
            first = self.spare.pop(0) if self.spare else self.make()
        except OSError as error:
            self.socket.send(str(error).encode()[:MAX_MESSAGE])
        else:
            socket.send_fds(self.socket, [b"."], [first])
            os.close(first)

    def make(self) -> int:
        """Make a set of namespaces. Returns a pidfd of its first process."""
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
                    privileges.enter_namespaces(self.own_pids, privileges.CLONE_NEWPID)
            finally:
                os.close(says_ready)
            if (said := answer.read(MAX_MESSAGE)) == b".":
                return first
        os.close(first)
        raise OSError(said.decode(errors="replace") or "the first process of a PID namespace was killed")

    def hold(self, says_ready: int) -> None:
        """The first process: furnish its namespaces, then wait to be killed. Never returns."""
        try:
            os.setsid()
            privileges.unshare(privileges.ALL_BUT_PID)
            self.furnish()
            privileges.close_all_but(says_ready)
            says_ready = 3
            privileges.drop_capabilities(None)
            privileges.call("prctl", privileges.PR_SET_DUMPABLE, 0, 0, 0, 0)  # no other process may look into it
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # signals from inside reach it only if it handles them
            os.write(says_ready, b".")
            os.close(says_ready)
            while True:
                signal.pause()  # the kernel reaps orphans: SIGCHLD is ignored
        except OSError as error:
            os.write(says_ready, str(error).encode()[:MAX_MESSAGE])
        finally:
            os._exit(1)

    def furnish(self) -> None:
        """Mount a /proc that shows only these processes, and folders to write in; hide terminals."""
        secure = MS_NOSUID | MS_NODEV
        privileges.mount("proc", "/proc", secure | MS_NOEXEC)
        set_next_pid(FIRST_PID + self.made % PIDS)  # ranks get different pids
        privileges.mount("proc", "/proc", MS_REMOUNT | secure | MS_NOEXEC, "subset=pid")
        for folder in FOLDERS:
            shown = [(path, os.open(path, os.O_RDONLY)) for path in self.shown if path.startswith(folder + "/")]
            privileges.mount("tmpfs", folder, secure, f"mode=1777,size={self.disk},nr_inodes={MOST_FILES}")
            for path, fd in shown:
                show(path, fd)
        privileges.mount("tmpfs", "/dev/pts", MS_RDONLY | secure | MS_NOEXEC, "size=4k,nr_inodes=1")
        os.mkdir(self.home)
        os.chmod(self.home, 0o777)


def mounted() -> list[str]:
    """All mount points, among them what every rank may see, such as a course that lies in /tmp."""
    with open("/proc/self/mountinfo") as file:
        paths = [line.split()[4] for line in file]
    return [path.encode().decode("unicode_escape") for path in paths]


def show(path: str, fd: int) -> None:
    """Show again what lay at a path before the folder above it was covered: copy a file, mount a folder."""
    if os.path.exists(path):  # it came with a folder above it
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


def set_next_pid(number: int) -> None:
    """Let the next process here get this pid."""
    try:
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(number - 1))
    except OSError:  # this kernel does not allow it: use up a few pids instead
        for _ in range(number % 50):
            if os.fork() == 0:
                os._exit(0)
