"""How a rank may try to reach another one: source that real ranks run. test_rank_host.py says what must come of it.

Each attack is a pair: what one rank leaves, and how another one looks for it. `say` tells the test something, `hear`
waits for its answer. No pytest here: an ordinary user runs this too, with the system's Python (python rank_attacks.py).
"""

from __future__ import annotations

import contextlib
import json
import textwrap

from grader.judging.rank_host import RankHandle, RankHost
from grader.sandbox.bubblewrap import ROOT, Limits

PROBE = """
import json

def main(line):
    file = line.makefile("rwb")
    def hear():
        return json.loads(file.readline())
    def say(what):
        file.write(json.dumps(what).encode() + b"\\n")
        file.flush()
    source = hear()
    exec(compile(source, "attack", "exec"), {"say": say, "hear": hear, "line": line, "__name__": "attack"})
"""
TOOLS = """
import ctypes, errno, fcntl, os, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def tried(function, *args):
    try:
        function(*args)
        return "done"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
def call(name, *args):
    ctypes.set_errno(0)
    return "done" if getattr(libc, name)(*args) >= 0 else errno.errorcode[ctypes.get_errno()]
def answers(server):
    def serve():
        while True:
            try:
                if server.type == socket.SOCK_DGRAM:
                    server.sendto(b"reached", server.recvfrom(10)[1])
                else:
                    connection, _ = server.accept()
                    connection.recv(10)  # closed with something unread, it would be reset
                    connection.sendall(b"reached")
            except OSError:
                return
    threading.Thread(target=serve, daemon=True).start()
def reaches(family, kind, address):
    with socket.socket(family, kind) as client:
        client.settimeout(2)
        try:
            client.connect(address)
            client.send(b"?")
            return client.recv(10) == b"reached"
        except OSError:
            return False
AROUND = ("/proc", "/sys", "/usr", sys.prefix, sys.base_prefix)
def writable():
    found = {os.environ["HOME"]}
    for top, folders, _ in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(top, name) not in AROUND]
        if os.access(top, os.W_OK):
            found.add(top)
    return found
"""
# name: (what one rank leaves, how another looks for it); both end by sending something
PAIRS = {
    "TCP": (
        'server = socket.create_server(("", 0)); answers(server); say(server.getsockname()[1])',
        'say(reaches(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", hear())))',
    ),
    "UDP": (
        """
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("", 0)); answers(server); say(server.getsockname()[1])
        """,
        'say(reaches(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", hear())))',
    ),
    "abstract socket": (
        """
        name = f"rank-{os.getpid()}-{time.time()}"
        server = socket.socket(socket.AF_UNIX); server.bind("\\0" + name); server.listen(); answers(server); say(name)
        """,
        'say(reaches(socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + hear()))',
    ),
    "socket in a folder": (
        """
        path = f"/tmp/rank-{os.getpid()}-{time.time()}"
        server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen(); answers(server); say(path)
        """,
        "path = hear(); found = reaches(socket.AF_UNIX, socket.SOCK_STREAM, path); tried(os.unlink, path); say(found)",
    ),
    "files": (
        """
        name = f"note-{os.getpid()}-{time.time()}"
        for folder in writable():
            open(os.path.join(folder, name), "w").write("x")
        say(name)
        """,
        """
        name = hear()
        say(any(os.path.exists(os.path.join(folder, name)) for folder in writable()))
        """,
    ),
    "System V semaphores": (
        "key = os.getpid() + 7_000_000; libc.semget(key, 1, 0o1600); say(key)",
        "found = libc.semget(hear(), 1, 0o600); libc.semctl(found, 0, 0); say(found >= 0)",
    ),
    "System V messages": (
        "key = os.getpid() + 7_000_000; libc.msgget(key, 0o1600); say(key)",
        "found = libc.msgget(hear(), 0o600); libc.msgctl(found, 0, 0); say(found >= 0)",
    ),
    "System V memory": (
        "key = os.getpid() + 7_000_000; libc.shmget(key, 4096, 0o1600); say(key)",
        "found = libc.shmget(hear(), 4096, 0o600); libc.shmctl(found, 0, 0); say(found >= 0)",
    ),
    "POSIX memory": (
        """
        name = f"/rank-{os.getpid()}-{time.time()}"
        libc.shm_open(name.encode(), os.O_CREAT | os.O_RDWR, 0o600); say(name)
        """,
        "name = hear().encode(); found = libc.shm_open(name, os.O_RDWR, 0o600); libc.shm_unlink(name); say(found >= 0)",
    ),
    "POSIX semaphores": (
        """
        name = f"/rank-{os.getpid()}-{time.time()}"
        libc.sem_open.restype = ctypes.c_void_p; libc.sem_open(name.encode(), os.O_CREAT, 0o600, 1); say(name)
        """,
        """
        libc.sem_open.restype = ctypes.c_void_p
        name = hear().encode(); found = libc.sem_open(name, 0); libc.sem_unlink(name); say(bool(found))
        """,
    ),
    "POSIX messages": (
        """
        name = f"/rank-{os.getpid()}"
        libc.mq_open(name.encode(), os.O_CREAT | os.O_RDWR, 0o600, None); say(name)
        """,
        "name = hear().encode(); found = libc.mq_open(name, os.O_RDWR); libc.mq_unlink(name); say(found >= 0)",
    ),
    "a lock on a file that all see": (
        "file = open(os.__file__); fcntl.flock(file, fcntl.LOCK_EX); say(0)",
        "hear(); say(tried(fcntl.flock, open(os.__file__), fcntl.LOCK_EX | fcntl.LOCK_NB) != 'done')",
    ),
    "a record lock on a file that all see": (
        "file = open(os.__file__); fcntl.lockf(file, fcntl.LOCK_SH); say(0)",
        """
        hear()
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
        try:
            answer = fcntl.fcntl(open(os.__file__), fcntl.F_GETLK, asked)
            say(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)
        except OSError:
            say(False)
        """,
    ),
    "the times of a device": (
        "tried(os.utime, '/dev/null', (12345, 12345)); tried(os.utime, '/dev/null'); say(int(time.time()))",
        "say(abs(hear() - os.stat('/dev/null').st_mtime) < 5)",
    ),
    "a terminal": (
        """
        try:
            terminal, other = os.openpty(); os.write(other, b"x"); say(os.ttyname(other))
        except OSError:
            say("/dev/pts/0")
        """,
        "say(tried(os.open, hear(), os.O_RDWR | os.O_NOCTTY) == 'done')",
    ),
    "the environment": (
        "os.environ['NOTE'] = 'x'; libc.setenv(b'NOTE', b'x', 1); say(0)",
        "hear(); libc.getenv.restype = ctypes.c_char_p; say('NOTE' in os.environ or bool(libc.getenv(b'NOTE')))",
    ),
    "a module": ("import json; json.note = 1; say(0)", "hear(); import json; say(hasattr(json, 'note'))"),
}
# name: what a rank tries, alone
ALONE = {
    "processes": """
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        killed = [pid for pid in range(2, 5000) if pid != os.getpid() and tried(os.kill, pid, signal.SIGKILL) == "done"]
        say([pids == [1, os.getpid()], killed, tried(os.kill, -1, signal.SIGKILL), os.getppid()])
    """,
    "the first process": """
        say([tried(open, f"/proc/1/{name}", "rb") for name in ("mem", "environ", "maps")]
            + [tried(os.readlink, f"/proc/1/{name}") for name in ("exe", "cwd")] + [tried(os.listdir, "/proc/1/root/")])
    """,
    "other processes' memory": """
        say([call("ptrace", 16, 1, 0, 0), call("process_vm_readv", 1, None, 0, None, 0, 0),
             call("syscall", 438, os.pidfd_open(1), 0, 0)])
    """,
    "privileges": """
        lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
        held = {int(lines[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
        say([list(held), int(lines["NoNewPrivs"]), int(lines["Seccomp"]), len(set(lines["Uid"].split()))])
    """,
    "namespaces": """
        flags = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
        own = os.open("/proc/self/ns/net", os.O_RDONLY)
        clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
        say(sorted({call("unshare", flag) for flag in flags}
            | {call("syscall", clone, flag | signal.SIGCHLD, 0, 0, 0, 0) for flag in flags}
            | {call("setns", own, 0), call("setns", os.pidfd_open(os.getpid()), 0x20000)}
            | {call("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None), call("umount2", b"/tmp", 2),
               call("mount", None, b"/", None, 32 | 4096, None), call("pivot_root", b"/", b"/tmp")}))
    """,
    "clone3": 'say(call("syscall", 435, bytes(88), 88))',
    "being root": """
        say([os.getresuid()[0] == os.geteuid(), tried(socket.sethostname, "x"), tried(os.chroot, "/tmp"),
             tried(os.mknod, "/tmp/device", 0o20666, os.makedev(1, 1)),
             tried(os.chown, "/tmp/home", 12345, 12345).replace("EINVAL", "EPERM"),
             tried(socket.socket, socket.AF_PACKET, socket.SOCK_RAW), tried(os.nice, -5),
             open("/proc/self/oom_score_adj").read().strip()])
    """,
    "system calls": """
        say([call("memfd_create", b"x", 0), call("syscall", {"x86_64": 323, "aarch64": 282}[os.uname().machine], 0),
             call("inotify_init1", 0), call("fanotify_init", 0, 0), call("syscall", 425, 8, bytes(120)),
             tried(fcntl.fcntl, open(os.__file__), 1026, 1), tried(fcntl.fcntl, open(os.__file__), 1024, 0)])
    """,
    "descriptors": """
        say([[os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in range(4)], len(os.listdir("/proc/self/fd")),
             os.getsid(0) == os.getpid(), socket.gethostname(), [name for _, name in socket.if_nameindex()],
             len(open("/proc/self/net/if_inet6").read())])
    """,
    "statistics": 'say(sorted(name for name in os.listdir("/proc") if not name.isdigit()))',
    "folders": """
        say(sorted({"/tmp" if path.startswith("/tmp/") else path for path in writable()}) + [os.getcwd()])
    """,
    "full folders": """
        told = []
        for folder in ("/tmp", "/dev/shm"):
            for size, name in ((1_000_000, "big"), (0, "small")):
                try:
                    for number in range(100_000):
                        open(f"{folder}/{name}{number}", "wb").write(bytes(size))
                except OSError as error:
                    told.append([errno.errorcode[error.errno], number * size <= 20_000_000, number <= 5000])
                for number in range(number + 1):
                    os.path.exists(f"{folder}/{name}{number}") and os.remove(f"{folder}/{name}{number}")
        say(told)
    """,
    "limits": """
        import resource
        say([name for name in ("NPROC", "NOFILE", "FSIZE", "CPU", "CORE", "MSGQUEUE")
             if resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] == resource.RLIM_INFINITY])
    """,
}
PATH = {"PYTHONPATH": f"{ROOT}:/probe"}
FAIL_ANYWHERE = ["the environment", "a module"]  # processes do not share these
NOT_OUTSIDE = ["the times of a device", "files"]  # they would change this machine


def host(limits: Limits | None = None, sandboxed: bool = True, **how) -> RankHost:
    """A host whose ranks run the source that they are sent."""
    if sandboxed:
        how = {"files": {"/probe/probe.py": PROBE}, **how}
    return RankHost(
        limits or Limits(wall=60), sandboxed=sandboxed, **{"entry": "probe:main", "modules": (), "env": PATH, **how}
    )


def tell(rank: RankHandle, what: object) -> None:
    rank.socket.sendall(json.dumps(what).encode() + b"\n")


def run(rank: RankHandle, source: str) -> None:
    tell(rank, TOOLS + textwrap.dedent(source))


def heard(rank: RankHandle) -> object:
    """Its next message; None if it has ended."""
    rank.socket.settimeout(30)
    words = b""
    with contextlib.suppress(ConnectionResetError):
        while not words.endswith(b"\n") and (more := rank.socket.recv(65536)):
            words += more
    return json.loads(words) if words else None


def ended(box: RankHost, ranks: list[RankHandle]) -> list[int]:
    statuses = box.end(ranks)
    for rank in ranks:
        rank.socket.close()
    return statuses


def both(box: RankHost, name: str) -> list[bool]:
    """Whether a rank finds what another has left: while the other is alive, and after its world has ended."""
    leave, look = PAIRS[name]
    ranks = box.start(2)
    run(ranks[0], textwrap.dedent(leave) + "\nhear()")  # it stays
    run(ranks[1], look)
    left = heard(ranks[0])
    tell(ranks[1], left)
    found = [heard(ranks[1])]
    ended(box, ranks)
    later = box.start(1)
    run(later[0], look)
    tell(later[0], left)
    found.append(heard(later[0]))
    ended(box, later)
    return found


def alone(box: RankHost, name: str) -> object:
    ranks = box.start(1)
    run(ranks[0], ALONE[name])
    said = heard(ranks[0])
    ended(box, ranks)
    return said


if __name__ == "__main__":
    with host() as box:
        print(json.dumps({"pairs": {name: both(box, name) for name in PAIRS}}))
        print(json.dumps({"alone": {name: alone(box, name) for name in ALONE}}))
