"""A sandbox, in which a command sees a read-only system, the course's Python and `utils`, the files it is given, and
nothing else.

    done = run([sys.executable, "-c", "print(6 * 7)"])            # done.stdout, done.status, done.stopped
    box = start(command, pass_fds=[fd], limits=Limits(wall=60))   # box.wait(), box.kill(), box.path("/tmp/answer")

Inside, it has its own namespaces for network (only loopback), processes, IPC, mounts and host name; no home, no course,
an environment of a few variables, and a private /tmp and /dev/shm of limited size. Nothing that it writes goes to a
disk, and nothing outlives it. bubblewrap (`bwrap`) makes it; resource_monitor.py watches it.

Grading as an ordinary user needs user namespaces. Grading as root does not: the command then runs under an otherwise
unused user id.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grader.sandbox import resource_monitor, seccomp

ROOT = Path(__file__).resolve().parents[2]
UTILS = ROOT / "utils"
CHECKS = UTILS / "checks"  # they hold what is right, so ranks must not see them
INSIDE = (ROOT / "grader" / "__init__.py", ROOT / "grader" / "inside")  # grading code that runs inside; no secrets
HOME = "/tmp/home"  # inside
MARK = "/.sandbox"  # a file that exists only inside
OLDEST = (0, 8)  # the first bubblewrap that can limit a tmpfs and forbid further user namespaces
SYSTEM = ["/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"]
LINKS_OR_FOLDERS = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"]
NAMESPACES = ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
FROM_OUTSIDE = [  # variables that reveal nothing about the person who grades
    *("LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "SPAWN_WITHOUT_FORK", "NBGRADER_EXECUTION", "CUDA_VISIBLE_DEVICES"),
]
SETPRIV_NEEDS = ["CAP_SETUID", "CAP_SETGID"]
NAMESPACES_NEED = [*SETPRIV_NEEDS, "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SETPCAP"]
GB, MB = 10**9, 10**6


@dataclass(frozen=True)
class Limits:
    """What all processes of a sandbox may use together.

    Beyond `processes`, `files` or `disk`, calls fail inside; beyond the others, the sandbox is ended. Memory is checked
    20 times a second, so it can exceed the limit for that long. Where systemd gives us a control group, the kernel
    itself limits memory and processes.
    """

    wall: float = 600  # seconds from start to end
    cpu: float = 1800  # seconds of computing
    memory: int = 4 * GB
    processes: int = 3000  # including their threads: simulate uses one per rank
    files: int = 4096  # open at a time, in each process
    disk: int = 500 * MB  # size of /tmp, and again of /dev/shm; both are memory
    output: int = 20 * MB  # stdout and stderr together


class NoSandbox(Exception):
    """This machine can't make a sandbox; the text says why, and what to install or enable."""


@dataclass(frozen=True)
class End:
    """How a sandbox ended."""

    status: int  # exit status of the command, as a shell reports it
    stopped: str | None  # why it was ended: "took longer than 600 s"
    memory: int = 0  # bytes, at the peak
    cpu: float = 0  # seconds
    wall: float = 0
    stdout: bytes = b""
    stderr: bytes = b""


# ---- is it possible here? --------------------------------------------------------------------------------------------


@functools.cache
def why_not() -> str | None:
    """Why this machine can't make a sandbox, and what to do about it; None if it can."""
    if not sys.platform.startswith("linux"):
        return "The sandbox needs Linux. On other systems, grade in the container of grader/Dockerfile."
    if not shutil.which("bwrap"):
        return "The sandbox needs bubblewrap, and `bwrap` was not found here: run `make system`, or install bubblewrap."
    printed = subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout
    version = tuple(map(int, re.findall(r"\d+", printed)))
    if version[:2] < OLDEST:
        return f"The sandbox needs bubblewrap 0.8 or newer; this one is {printed.strip() or 'of an unknown version'}."
    needed = [sys.executable, str(UTILS / "__init__.py")]
    end = _run(["sh", "-c", 'for path; do test -r "$path" || echo "$path"; done', "sh", *needed])
    if end.status != 0:
        lines = end.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with {end.status}"]
        return f"bubblewrap can't make a sandbox here ({lines[-1]}). {cure()}"
    if unreadable := end.stdout.decode().split("\n")[0]:
        return f"root's sandbox runs as another user, who can't read {unreadable}: chmod o+r it and its neighbours."
    return None


def cure() -> str:
    """What to do about the usual obstacle, looked up on this machine."""
    settings = {
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": ("1", "`make system` allows them"),
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "`sudo sysctl kernel.unprivileged_userns_clone=1` does"),
        "/proc/sys/user/max_user_namespaces": ("0", "`sudo sysctl user.max_user_namespaces=10000` does"),
    }
    for path, (forbids, enable) in settings.items():
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == forbids:
                return f"Ordinary users may not make user namespaces ({path} is {forbids}): {enable}."
    return "It needs user namespaces: if this is a container, start it as grader/Dockerfile says."


def require() -> None:
    """Raises NoSandbox if this machine can't make one."""
    if reason := why_not():
        raise NoSandbox(reason)


def as_root() -> bool:
    """Whether namespaces can be made without user namespaces: root, who can become another user, and not the root of a
    confined container.
    """
    found = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    capabilities = int(found[1], 16) if found else 0
    cap_sys_admin = 21
    users = sum(count for _, _, count in user_ranges())
    return os.geteuid() == 0 and bool(capabilities >> cap_sys_admin & 1) and users > 1


# ---- what it sees ----------------------------------------------------------------------------------------------------


def python_folders() -> list[Path]:
    """The folders of this Python and its packages."""
    found = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent]
    found += [path.resolve() for path in found]
    return [path for path in dict.fromkeys(found) if path.parts[:2] != ("/", "usr")]


def view(read_only: Sequence[str | Path]) -> list[str]:
    """bwrap's arguments for the read-only part. The course and home stay hidden, even below a folder that is shown."""
    words: list[str] = []
    for path in map(Path, LINKS_OR_FOLDERS):
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            words += bind(path)
    shown = [*map(Path, SYSTEM), *python_folders()]
    hidden = [ROOT, Path(os.path.expanduser("~"))]
    around = [path for path in shown if any(path in folder.parents for folder in hidden)]
    for path in around:
        words += bind(path)
    for folder in hidden:
        if any(path in folder.parents for path in around):
            words += ["--size", str(MB), "--tmpfs", str(folder)]
    for path in [*shown, *map(Path, read_only)]:
        words += [] if path in around else bind(path)
    return words


def bind(path: Path) -> list[str]:
    if str(path) in SYSTEM and not path.exists():
        return []
    return [*parents(path), "--ro-bind", str(path), str(path)]


def parents(path: Path) -> list[str]:
    """Make the folders above it, readable for all; bwrap would make them readable for its own user only."""
    above = [str(folder) for folder in reversed(path.parents)][1:]
    return [word for folder in above for word in ("--perms", "0755", "--dir", folder)]


def private(limits: Limits, folders: Sequence[str]) -> list[str]:
    words = ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/dev/shm", *folders):
        words += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", folder]
    return [*words, "--perms", "0777", "--dir", HOME]


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The command's whole environment."""
    programs = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    base = {"PATH": os.pathsep.join(programs), "HOME": HOME, "USER": "student", "LANG": "C.UTF-8"}
    base |= {"PYTHONPATH": str(ROOT), "TMPDIR": "/tmp"}
    passed = {name: os.environ[name] for name in FROM_OUTSIDE if name in os.environ}
    return {**base, **passed, **more}


# ---- what it may do --------------------------------------------------------------------------------------------------


def unused_user(monitor: int) -> int:
    """An otherwise unused user id, from the monitor's pid. One per sandbox: the kernel counts processes by user."""
    here = 2_000_000_000 + monitor  # pids stay below 2**22
    if any(first <= here < first + count for first, _, count in user_ranges()):
        return here
    return 60_000 + monitor % 5000  # a container with fewer users


def user_ranges() -> list[list[int]]:
    """The user ids that exist here, as (first, the same outside, how many)."""
    return [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]


def limited(command: Sequence[str], limits: Limits, user: int | None, oom_score: int) -> list[str]:
    """The command with its limits. If the machine runs out of memory, it is killed early (1000: before all others)."""
    most = {
        "core": 0,
        "cpu": int(limits.cpu) + 1,
        "fsize": limits.disk,
        "msgqueue": 0,
        "nofile": limits.files,
        "nproc": limits.processes,
    }
    words = ["choom", "-n", str(oom_score), "--", "prlimit", *(f"--{name}={value}" for name, value in most.items())]
    if user is not None:
        words += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
    return [*words, *command]


@functools.cache
def control_group() -> tuple[str, ...]:
    """The systemd-run command that makes a control group of our own; () if systemd is missing or refuses."""
    words = ("systemd-run", "--scope", "--quiet", *(() if os.geteuid() == 0 else ("--user",)))
    try:
        done = subprocess.run([*words, "-p", "TasksMax=50", "true"], capture_output=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return words if done.returncode == 0 else ()


def bounded(limits: Limits) -> list[str]:
    words = control_group()
    memory = f"MemoryMax={limits.memory + 2 * limits.disk}"
    return [*words, "-p", memory, "-p", "MemorySwapMax=0", "-p", f"TasksMax={limits.processes}"] if words else []


# ---- starting one ----------------------------------------------------------------------------------------------------


def start(command: Sequence[str], **options: Any) -> Sandbox:
    """Start a command in a sandbox of its own. `options`: the fields of Sandbox. Raises NoSandbox."""
    require()
    return Sandbox(list(command), **options)


def run(command: Sequence[str], **options: Any) -> End:
    """Run a command in a sandbox to its end, and return what it prints. Raises NoSandbox."""
    require()
    return _run(command, **options)


def _run(command: Sequence[str], **options: Any) -> End:
    box = Sandbox(list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    stdout, stderr = box.process.communicate()
    return End(**{**asdict(box.wait()), "stdout": stdout, "stderr": stderr})


@dataclass
class Sandbox:
    """A command in its sandbox. It ends when the command ends, when it exceeds a limit, or when this object is gone."""

    command: list[str]
    read_only: Sequence[str | Path] = (UTILS,)  # files and folders, visible at their own paths
    hidden: Sequence[str | Path] = ()  # folders in these that look empty
    files: Mapping[str, str] = field(default_factory=dict)  # path inside -> text
    folders: Sequence[str] = ()  # more folders like /tmp
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    pass_fds: Sequence[int] = ()  # under the same numbers. Sockets and pipes only: a file could be reopened for writing
    stdin: int = subprocess.DEVNULL
    stdout: int | None = None
    stderr: int | None = None
    makes_namespaces: bool = (
        False  # trusted: it keeps the privileges for that and gets no filter, so its children need one
    )

    def __post_init__(self) -> None:
        self.control, theirs = socket.socketpair()
        self.answers = self.control.makefile("rb")
        fds = [theirs.fileno(), *self.pass_fds]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", resource_monitor.__file__, str(theirs.fileno())],
                pass_fds=fds, stdin=self.stdin, stdout=self.stdout, stderr=self.stderr,
                env={"PATH": os.environ.get("PATH", os.defpath), **bus()}, start_new_session=True,
            )  # fmt: skip
        self.user = unused_user(self.process.pid) if as_root() else None  # None: it runs as our own user
        self.control.sendall(json.dumps(self.order()).encode() + b"\n")
        self.end: End | None = None
        answer = self.answer()
        self.pid: int | None = answer.get("pid")  # the sandbox's first process, as seen from here
        if self.pid is None:
            self.end = End(**answer)

    def order(self) -> dict[str, Any]:
        """The order to the monitor."""
        uid = self.uid()
        # One that makes namespaces has children that become another user, and are killed before it.
        user, oom_score = (None, 900) if self.makes_namespaces else (self.user, 1000)
        arguments = [*NAMESPACES, "--hostname", "sandbox", "--new-session", "--die-with-parent", "--clearenv"]
        arguments += self.privileges()
        arguments += [*private(self.limits, self.folders), *view(self.read_only)]
        arguments += [word for path in self.hidden for word in ("--size", str(MB), "--tmpfs", str(path))]
        arguments += [*(word for path in self.hidden for word in ("--remount-ro", str(path))), "--chdir", HOME]
        for name, value in environment(self.env).items():
            arguments += ["--setenv", name, value]
        files = {
            MARK: "",
            "/etc/passwd": f"student:x:{uid}:{uid}::{HOME}:/bin/sh\n",
            "/etc/group": f"student:x:{uid}:\n",
            "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
            "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        }
        files |= self.files
        arguments += [word for path in files for word in parents(Path(path))]
        data = [["--perms 0444 --ro-bind-data", as_text(text.encode()), path] for path, text in files.items()]
        if (filter_program := seccomp.filter_program()) and not self.makes_namespaces:
            data.append(["--seccomp", as_text(filter_program)])
        return {
            "bwrap": [*bounded(self.limits), "bwrap"],
            "arguments": arguments,
            "data": data,
            "last_arguments": ["--remount-ro", "/dev", "--remount-ro", "/"],
            "command": limited(self.command, self.limits, user, oom_score),
            "mark": MARK,
            "pass_fds": list(self.pass_fds),
            "limits": asdict(self.limits),
        }

    def uid(self) -> int:
        """The user id inside."""
        if self.user is not None:
            return self.user
        return 0 if self.makes_namespaces else os.getuid()

    def privileges(self) -> list[str]:
        needed = NAMESPACES_NEED if self.makes_namespaces else SETPRIV_NEEDS if self.user is not None else []
        words = ["--cap-drop", "ALL", *(word for name in needed for word in ("--cap-add", name))]
        if self.user is None and self.makes_namespaces:  # only root of a user namespace has all privileges in it
            words += ["--unshare-user", "--uid", "0", "--gid", "0"]
        elif self.user is None:
            words += ["--unshare-user", "--disable-userns"]
        return words

    def answer(self) -> dict[str, Any]:
        line = self.answers.readline()
        answer: dict[str, Any] = {"status": 137, "stopped": "its resource monitor was killed"}
        return json.loads(line) if line else answer

    def cpu(self) -> float:
        """Seconds of computing of all processes that it has ever held, as the monitor sees them 20 times a second."""
        if self.end is None:
            with contextlib.suppress(OSError):
                self.control.sendall(resource_monitor.ASK)
            answer = self.answer()
            if "status" not in answer:
                return float(answer["cpu"])
            self.end = End(**answer)
        return self.end.cpu

    def path(self, inside: str) -> Path:
        """A path inside as seen from here. Beware: links inside lead to our files, not to the sandbox's."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def poll(self) -> End | None:
        """How it ended; None while it runs."""
        return None if self.end is None and self.process.poll() is None else self.wait()

    def wait(self) -> End:
        """Wait until all of it is gone."""
        if self.end is None:
            self.end = End(**self.answer())
        self.process.wait()
        self.control.close()
        self.answers.close()
        return self.end

    def kill(self) -> End:
        """End it, whatever it does."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
        return self.wait()


def as_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def bus() -> dict[str, str]:
    """The variables with which systemd-run finds the user's systemd."""
    return {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS") if name in os.environ}
