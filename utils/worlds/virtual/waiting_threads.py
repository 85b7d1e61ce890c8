"""Whether the threads of this process can ever move again: on Linux, from what the kernel says that each waits for.

In `simulate` one rank runs at a time, and the others wait for their turn. If the running one waits for a lock, only a
thread of this process could release it; if all of them wait for locks, nobody will.
"""

from __future__ import annotations

import os
import platform
import threading
import time

FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())  # the system call behind locks of all kinds
WAIT, WAIT_BITSET, OPERATION = 0, 9, 0x7F
TASKS = "/proc/self/task"


def all_wait_for_locks() -> bool:
    """Whether every thread but the calling one waits for a lock, for any length of time, and no child process could
    release it. False where the kernel doesn't say."""
    me = str(threading.get_native_id())
    try:
        tasks = os.listdir(TASKS)
        return not any(map(has_children, tasks)) and all(waits_for_a_lock(task) for task in tasks if task != me)
    except OSError:  # not Linux, or not allowed; or a thread has just ended
        return False


def waits_for_a_lock(task: str) -> bool:
    """In a futex, and not until a certain time."""
    number, *arguments = read(task, "syscall").split()
    if number != FUTEX:
        return False
    _, operation, _, until, *_ = (int(argument, 16) for argument in arguments)
    return operation & OPERATION in (WAIT, WAIT_BITSET) and until == 0


def has_children(task: str) -> bool:
    return read(task, "children") != ""


def read(task: str, name: str) -> str:
    with open(f"{TASKS}/{task}/{name}") as file:
        return file.read()


def computed_by_other_threads() -> float:
    """Processor time of all threads of this process but the calling one, in seconds."""
    return time.process_time() - time.thread_time()
