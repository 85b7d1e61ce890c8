"""How a process gives up what it must not have: descriptors, its user, capabilities, system calls.

Linux only. It calls the C library directly, because Python 3.11 does not offer these calls.
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
ALL_BUT_PID = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 36, 38, 47, 4
SECCOMP_MODE_FILTER = 2
CAPABILITIES_VERSION = 0x20080522
HIGHEST_DESCRIPTOR = 2**31 - 1

libc = ctypes.CDLL(None, use_errno=True)


class FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def call(name: str, *arguments: object) -> None:
    """Call the C library; raises OSError."""
    numbers = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments]
    if getattr(libc, name)(*numbers) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def unshare(namespaces: int) -> None:
    call("unshare", namespaces)


def enter_namespaces(descriptor: int, namespaces: int) -> None:
    """Join namespaces of a process, given its pidfd, or the one namespace that the descriptor stands for."""
    call("setns", descriptor, namespaces)


def mount(kind: str, folder: str, flags: int, options: str = "") -> None:
    call("mount", kind.encode(), folder.encode(), kind.encode(), flags, options.encode())


def make_read_only(path: str) -> None:
    """Remount what is mounted there. It can still be opened, and a device can still be written to."""
    flags = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)  # these stay
    call("mount", None, path.encode(), None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, None)


def close_all_but(descriptor: int) -> None:
    """It becomes number 3; 0, 1 and 2 lead to /dev/null; all others are closed."""
    if descriptor != 3:
        os.dup2(descriptor, 3)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nowhere, fd)
    os.closerange(4, HIGHEST_DESCRIPTOR)


def drop_capabilities(user: int | None) -> None:
    """Give up all capabilities for good, and become `user` unless it is None."""
    for capability in range(64):
        try:
            call("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:  # the kernel has no more of them
            break
    call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def install_filter(instructions: bytes) -> None:
    """Make the kernel refuse the system calls that a seccomp filter names, from now on and in all children."""
    if instructions:
        program = FilterProgram(len(instructions) // 8, instructions)
        call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
