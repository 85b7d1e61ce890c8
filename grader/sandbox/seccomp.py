"""A filter (seccomp) that makes the kernel refuse system calls which no submission needs: they fail with EPERM.

They would give access to another process's memory, to memory that no limit counts, to new namespaces and so to more of
the kernel, to sockets that no namespace holds, and to a terminal's input. All other calls are allowed; namespaces and
limits bound what those can do.
"""

from __future__ import annotations

import platform
import struct

# name: number on x86-64, on 64-bit ARM
FORBIDDEN = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "perf_event_open": (298, 241),
    # memory in no folder of limited size and in no process's own account
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    # its place among others: for how long a process waits for a core is not counted against it (inside/usage.py)
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    # much of the kernel behind one call
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "futex_wake": (454, 454),
    "futex_requeue": (456, 456),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}
# through these, ranks could signal to each other with the read-only files that all of them see: a rank can notice when
# another one reads a file, and which parts of it are in memory
COVERT_CHANNELS = {
    "inotify_init": (253, 26),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "preadv2": (327, 286),
    "cachestat": (451, 451),
}
FLOCK, FADVISE, FCNTL = (73, 32), (221, 223), (72, 25)
LOCK_COMMANDS = (6, 7, 37, 38)  # fcntl's F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
LOOK_COMMANDS = (5, 36, 1024, 1026)  # F_GETLK, F_OFD_GETLK, F_SETLEASE, F_NOTIFY
FUTEX, FUTEX_PRIVATE = (202, 98), 0x80
WAKE_COMMANDS = (1, 3, 4, 5, 10)  # futex's WAKE, REQUEUE, CMP_REQUEUE, WAKE_OP, WAKE_BITSET: they return how many wait
SOCKET = (41, 198)
FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK: a network namespace holds these, and not VSOCK, say
CLONE, CLONE3, IOCTL = (56, 220), (435, 435), (16, 29)
NEW_NAMESPACES = 0x7E020000  # clone's flags CLONE_NEW*
TERMINAL_INPUT = (0x5412, 0x541C)  # ioctl's TIOCSTI, TIOCLINUX
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# Instructions of the filter's virtual machine, and what it can return. DONE: report success without doing anything.
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, EPERM, ENOSYS, DONE = 0x7FFF0000, 0x00050001, 0x00050026, 0x00050000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24  # offsets in the data that it examines


def filter_program(alone: bool = False) -> bytes:
    """The filter for this machine's processor; b"" if it is neither of the two above.

    alone: for a rank, which shares files with other ranks but must not communicate with them. For it every file lock is
    free, and taking it has no effect. Waking waiters at an address in a shared file has no effect either, while the
    threads of one process still wake each other at private addresses.
    """
    if platform.machine() not in ARCHITECTURES:
        return b""
    column, architecture = ARCHITECTURES[platform.machine()]
    program = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, EPERM), (LOAD, 0, 0, NUMBER)]
    if column == 0:  # the 32-bit calls of x86-64 have numbers of their own
        program += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, EPERM)]
    for numbers in [*FORBIDDEN.values(), *(COVERT_CHANNELS.values() if alone else [])]:
        program += [(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, EPERM)]
    if alone:
        for numbers in (FLOCK, FADVISE):
            program += [(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, DONE)]
        commands = [(command, DONE) for command in LOCK_COMMANDS] + [(command, EPERM) for command in LOOK_COMMANDS]
        program += [(EQUAL, 0, 2 + 2 * len(commands), FCNTL[column]), (LOAD, 0, 0, SECOND_ARGUMENT)]
        for command, answer in commands:
            program += [(EQUAL, 0, 1, command), (RETURN, 0, 0, answer)]
        program += [(RETURN, 0, 0, ALLOW)]
        program += [(EQUAL, 0, 3 + 2 * len(WAKE_COMMANDS), FUTEX[column]), (LOAD, 0, 0, SECOND_ARGUMENT)]
        program += [(AND, 0, 0, FUTEX_PRIVATE | 0x7F)]
        for command in WAKE_COMMANDS:
            program += [(EQUAL, 0, 1, command), (RETURN, 0, 0, DONE)]
        program += [(RETURN, 0, 0, ALLOW)]
    program += [(EQUAL, 0, 3 + len(FAMILIES), SOCKET[column]), (LOAD, 0, 0, FIRST_ARGUMENT)]
    program += [(EQUAL, len(FAMILIES) - place, 0, family) for place, family in enumerate(FAMILIES)]
    program += [(RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]
    # clone3 keeps its flags where a filter can't look; if it is missing, the C library uses clone instead
    program += [(EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, ENOSYS)]
    program += [(EQUAL, 0, 4, CLONE[column]), (LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 0, 1, NEW_NAMESPACES)]
    program += [(RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]
    program += [(EQUAL, 0, 4, IOCTL[column]), (LOAD, 0, 0, SECOND_ARGUMENT)]
    program += [(EQUAL, 1, 0, TERMINAL_INPUT[0]), (EQUAL, 0, 1, TERMINAL_INPUT[1]), (RETURN, 0, 0, EPERM)]
    program += [(RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
