"""The CPU time of a command with all its processes, those of sandboxes too.

    with Counter() as counter:
        subprocess.run(command, preexec_fn=counter.join)
    counter.seconds

A control group counts it. What a process says about its children is not enough: those that end with the PID namespace
of a sandbox are in nobody's sum.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import count
from pathlib import Path

from grader.sandbox import bubblewrap

ROOT = Path("/sys/fs/cgroup")
NUMBERS = count()


class Counter:
    """counts_all: False where we may not make a control group, or where systemd puts each sandbox into one of its own;
    then `seconds` lacks what ran in sandboxes.
    """

    def __init__(self) -> None:
        self.folder = None if bubblewrap.control_group() else new_group()
        self.counts_all = self.folder is not None
        self.seconds = 0.0

    def join(self) -> None:
        """In the process that is to be counted."""
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text("0")

    def __enter__(self) -> Counter:
        self.before = os.times()
        return self

    def __exit__(self, *_: object) -> None:
        now = os.times()
        self.seconds = sum(now[2:4]) - sum(self.before[2:4])
        if self.folder is not None:
            self.seconds = used_in(self.folder)
            with suppress(OSError):  # a process may be just ending
                self.folder.rmdir()


def new_group() -> Path | None:
    """A control group below our own, by version 1 or 2 of the kernel's interface; None if we may not make one."""
    own = dict(re.findall(r"^\d+:(.*):(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE))
    for controller, mount, counter in (("cpuacct", ROOT / "cpuacct", "cpuacct.usage"), ("", ROOT, "cpu.stat")):
        folder = mount / own.get(controller, "").strip("/") / f"bench-{os.getpid()}-{next(NUMBERS)}"
        with suppress(OSError):
            folder.mkdir()
            if (folder / counter).exists() and os.access(folder / "cgroup.procs", os.W_OK):
                return folder
            folder.rmdir()
    return None


def used_in(folder: Path) -> float:
    if (usage := folder / "cpuacct.usage").exists():
        return int(usage.read_text()) / 1e9
    found = re.search(r"usage_usec (\d+)", (folder / "cpu.stat").read_text())
    return int(found[1]) / 1e6 if found else 0.0
