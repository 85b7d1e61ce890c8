"""The sandbox against what a submission may try. Each attack is real code in a real process.

Harmless attacks also run outside, where they must succeed: so it is the sandbox that makes them fail inside. If root
runs the tests, an ordinary user runs some of them, too.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.classroom.collect_no_links import Collect
from grader.classroom.course import ClassroomError, Course
from grader.classroom.grades import printable
from grader.sandbox import bubblewrap
from grader.sandbox.bubblewrap import MB, End, Limits, NoSandbox
from tests.kernel import processes_with
from tests.ordinary_user import if_root, said_to_an_ordinary_user

pytestmark = [pytest.mark.long, pytest.mark.sandbox]
PROJECT = Path(__file__).resolve().parents[3]
QUICK = Limits(wall=30)


def inside(source: str, *args: object, **how) -> End:
    """Run Python source in a sandbox."""
    how = {"limits": QUICK, **how}
    return bubblewrap.run([sys.executable, "-c", textwrap.dedent(source), *map(str, args)], **how)


def said(end: End) -> str:
    assert end.status == 0 and end.stopped is None, (end.stopped, end.stderr.decode()[-2000:])
    return end.stdout.decode().strip()


def outside(source: str, *args: object, **how) -> str:
    """Run it without a sandbox, as a plain kernel would."""
    command = [sys.executable, "-c", textwrap.dedent(source), *map(str, args)]
    return subprocess.run(command, text=True, capture_output=True, timeout=30, check=True, **how).stdout.strip()


# ---- what a program sees ---------------------------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course, a home directory and an environment that hold secrets."""
    for name in (
        "solutions/01.ipynb",
        "submitted/eve/01/01.ipynb",
        "grader/hidden/01.py",
        "gradebook.db",
        "home/.ssh/id",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("SECRET")
        path.chmod(0o666)
    for folder in [tmp_path, *tmp_path.rglob("*/")]:
        folder.chmod(0o777)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GRADER_TOKEN", "SECRET")
    return tmp_path


FIND = """
    import glob, os, sys
    course = sys.argv[1]
    doors = ["", *glob.glob("/proc/[0-9]*/root"), *glob.glob("/proc/[0-9]*/cwd/../../../../.."), "/proc/self/fd/3/.."]
    for path in sys.argv[2:]:
        for door in doors:
            try:
                print("read", path, open(door + os.path.join(course, path)).read())
                break
            except OSError:
                pass
    print("environment", [name for name, value in os.environ.items() if "SECRET" in value])
    for pid in glob.glob("/proc/[0-9]*"):
        try:
            if "SECRET" in open(pid + "/environ").read():
                print("environment of", pid)
        except OSError:
            pass
"""


def test_no_solution_gradebook_submission_home_or_environment_is_visible(course):
    secrets = [path.relative_to(course) for path in course.rglob("*") if path.is_file()]
    seen = outside(FIND, course, *secrets)
    assert seen.count("SECRET") == len(secrets) == 5 and "GRADER_TOKEN" in seen
    assert said(inside(FIND, course, *secrets)) == "environment []"


def test_of_the_course_only_utils_is_visible():
    look = """
        import os, sys, utils, numpy
        root, python = sys.argv[1:]
        print(sorted(os.listdir(root)), os.path.dirname(utils.__file__) == root + "/utils")
        links = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
        print(sorted(name for name in os.listdir("/") if name not in links))
        print(os.listdir(os.path.expanduser("~")), os.listdir("/dev/shm"), "shadow" in os.listdir("/etc"))
    """
    course, top, private = said(inside(look, PROJECT, sys.prefix)).splitlines()
    seen = {"utils"} | {path.name for path in bubblewrap.python_folders() if path.parent == PROJECT}
    assert course == f"{sorted(seen)} True"
    above = {path.parts[1] for path in [PROJECT, *bubblewrap.python_folders()]}
    assert set(eval(top)) == {".sandbox", "dev", "etc", "proc", "tmp", "usr"} | above
    assert private == "[] [] False"


def test_a_course_inside_a_visible_folder_stays_hidden(tmp_path, monkeypatch):
    """In /usr/local/course, say, or beside a Python."""
    course = tmp_path / "python" / "course"
    (course / "utils").mkdir(parents=True)
    (course / "gradebook.db").write_text("SECRET")
    monkeypatch.setattr(bubblewrap, "ROOT", course)
    folders = [*bubblewrap.python_folders(), tmp_path / "python"]
    monkeypatch.setattr(bubblewrap, "python_folders", lambda: folders)
    look = "import os, sys; print(os.listdir(sys.argv[1]), os.listdir(sys.argv[1] + '/..'))"
    assert said(inside(look, course, read_only=[course / "utils"])) == "['utils'] ['course']"


def test_links_in_visible_folders_lead_nowhere(course):
    """A submission's folder may hold links. They are followed inside the sandbox, where their targets do not exist."""
    given = course / "given"
    given.mkdir()
    for name, target in {"absolute": course / "gradebook.db", "up": "../gradebook.db"}.items():
        (given / name).symlink_to(target)
    (given / "own.txt").write_text("mine")
    reading = """
        import sys
        for name in ("own.txt", "absolute", "up", "../gradebook.db"):
            try:
                print(open(sys.argv[1] + "/" + name).read())
            except OSError as error:
                print(type(error).__name__)
    """
    assert outside(reading, given).split() == ["mine", "SECRET", "SECRET", "SECRET"]
    assert said(inside(reading, given, read_only=[given])).split() == ["mine", *["FileNotFoundError"] * 3]


WRITE = """
    import os, sys
    written = []
    for folder in [*sys.argv[1:], "/", "/usr", "/usr/bin", "/etc", "/dev", "/proc/sys/kernel", "/proc/self"]:
        try:
            with open(folder + "/written", "w") as file:
                file.write("x")
            written.append(folder)
        except OSError:
            pass
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/etc/passwd", "/proc/1/oom_score_adj"):
        try:
            open(path, "r+b")
            written.append(path)
        except OSError:
            pass
    print(written)
"""


def test_only_its_own_folders_are_writable(course):
    libraries = [str(folder) for folder in [PROJECT / "utils", PROJECT, *bubblewrap.python_folders()]]
    assert str(course) in outside(WRITE, course)
    (course / "written").unlink()
    assert said(inside(WRITE, course, *libraries, read_only=[course, PROJECT / "utils"])) == "[]"
    assert said(inside(WRITE, "/tmp", "/dev/shm", ".", "/kernel", folders=["/kernel"])) == str(
        ["/tmp", "/dev/shm", ".", "/kernel"]
    )
    assert not any((Path(folder) / "written").exists() for folder in libraries)


def test_two_sandboxes_share_nothing(tmp_path):
    write = """if True:
        import time
        for folder in ("/tmp", "/dev/shm"):
            open(folder + "/note", "w").write("x")
        print(1, flush=True)
        time.sleep(20)"""
    first = bubblewrap.start([sys.executable, "-c", write], stdout=subprocess.PIPE, limits=QUICK)
    assert first.process.stdout.readline() == b"1\n"
    if bubblewrap.as_root():
        users = {said(inside("import os; print(os.getuid())")) for _ in range(2)}
        assert len(users) == 2 and "0" not in users, "each has a user of its own"
    look = (
        "import glob, os; print('note' in os.listdir('/tmp'), os.listdir('/dev/shm'), len(glob.glob('/proc/[0-9]*')))"
    )
    assert said(inside(look)) == "False [] 2"
    assert first.path("/tmp/note").read_text() == "x", "we can look in"
    assert first.kill().stopped == "the grader no longer waits for it"


# ---- the network -----------------------------------------------------------------------------------------------------

CONNECT = """
    import socket, sys
    port, name, path = sys.argv[1:]
    reached = []
    for where in [("127.0.0.1", int(port)), ("::1", int(port)), "\\0" + name, path]:
        family = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        try:
            socket.socket(family).connect(where)
            reached.append(where)
        except OSError:
            pass
    print(len(reached), [name for _, name in socket.if_nameindex()])
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("203.0.113.1", 9))
        print("there is a way out")
    except OSError:
        print("there is no way out")
"""


def test_neither_the_network_nor_the_machines_sockets_can_be_reached(tmp_path):
    name, path = f"sandbox-test-{os.getpid()}", tmp_path / "socket"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as file,
    ):
        for server, where in ((abstract, f"\0{name}"), (file, str(path))):
            server.bind(where)
            server.listen()
        port = tcp.getsockname()[1]
        assert outside(CONNECT, port, name, path).startswith("3 ")
        assert said(inside(CONNECT, port, name, path)).splitlines() == ["0 ['lo']", "there is no way out"]


def test_loopback_is_up():
    talk = """
        import socket
        server = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(server.getsockname()).sendall(b"hello")
        print(server.accept()[0].recv(5), socket.gethostname(), socket.gethostbyname(socket.gethostname()))
    """
    assert said(inside(talk)) == "b'hello' sandbox 127.0.0.1"


# ---- other processes -------------------------------------------------------------------------------------------------


def test_the_machines_processes_can_not_be_reached():
    with subprocess.Popen(["sleep", "60"]) as victim:
        kill = """
            import os, signal, sys
            hits = 0
            for pid in [int(sys.argv[1]), int(sys.argv[2]), os.getppid(), 1, -1]:
                try:
                    os.kill(pid, signal.SIGKILL)
                    hits += pid not in (os.getppid(), 1)  # its own first process ignores signals from inside
                except OSError:
                    pass
            print(hits, sorted(map(int, filter(str.isdigit, os.listdir("/proc")))))
        """
        hits, pids = said(inside(kill, victim.pid, os.getpid())).split(" ", 1)
        assert victim.poll() is None
        victim.kill()
    assert len(eval(pids)) == 2 and max(eval(pids)) < 100


@pytest.mark.parametrize("call", ["ptrace", "memfd", "namespace", "terminal", "shared memory", "keyring", "vsock"])
def test_system_calls_that_no_submission_needs_fail(call):
    attempts = {
        "ptrace": "libc.ptrace(0, 0, 0, 0)",
        "memfd": "libc.memfd_create(b'x', 0)",
        "namespace": "libc.unshare(0x10000000)",
        "terminal": "libc.ioctl(0, 0x5412, b'x')",
        "shared memory": "libc.shmget(0, 4096, 0o1600)",
        "vsock": "libc.socket(40, 1, 0)",  # a network namespace does not hold it: it reaches the machine's host
        "keyring": f"libc.syscall({250 if os.uname().machine == 'x86_64' else 219}, 0, -3, 1)",
    }
    source = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        print({attempts[call]}, ctypes.get_errno())
    """
    assert said(inside(source)) == "-1 1", "EPERM"
    assert outside(source, stdin=subprocess.DEVNULL) != "-1 1" or call == "namespace", "the filter forbids it"


def test_it_has_no_terminal_and_only_the_descriptors_it_was_given():
    mine, theirs = socket.socketpair()
    with mine, theirs:
        source = """
            import os, socket, sys
            given = socket.socket(fileno=int(sys.argv[1]))
            given.sendall(b"through the descriptor")
            print(len(os.listdir("/proc/self/fd")), os.getsid(0) == os.getpgid(0))
            try:
                open("/dev/tty")
            except OSError:
                print("no terminal")
        """
        end = inside(source, theirs.fileno(), pass_fds=[theirs.fileno()])
        assert said(end).split("\n") == ["5 True", "no terminal"], "and 0, 1, 2, the folder itself"
        assert mine.recv(100) == b"through the descriptor"


SURVIVE = """
    import os, signal, sys, time
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                for fd in range(3):
                    os.close(fd)
                os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", sys.argv[1]])
            os._exit(0)
    time.sleep(0.5)
"""


def test_no_process_outlives_the_command():
    mark = f"survivor-{os.getpid()}"
    outside(SURVIVE, mark)
    escaped = processes_with(mark)
    assert len(escaped) == 2
    for pid in escaped:
        os.kill(pid, signal.SIGKILL)
    said(inside(SURVIVE, mark + "-inside"))
    assert processes_with(mark + "-inside") == []


@pytest.mark.parametrize("killed", ["grader", "monitor"])
def test_it_ends_with_the_grader_and_with_its_monitor(killed):
    """It is started by a thread that ends: the end of a thread is not the end of the grader."""
    mark = f"orphan-{killed}-{os.getpid()}"
    source = f"""
        import sys, threading, time
        from grader.sandbox import bubblewrap
        boxes = []
        start = lambda: boxes.append(bubblewrap.start([sys.executable, "-c", "import time; time.sleep(60)", {mark!r}]))
        thread = threading.Thread(target=start)
        thread.start(); thread.join()
        time.sleep(0.3)
        print(boxes[0].process.pid, boxes[0].poll(), flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as grader:
        monitor, end = grader.stdout.readline().split()
        assert end == "None" and processes_with(mark)
        os.kill(grader.pid if killed == "grader" else int(monitor), signal.SIGKILL)
        deadline = time.monotonic() + 10
        while processes_with(mark):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        grader.kill()


# ---- limits ----------------------------------------------------------------------------------------------------------


FULL_SOCKETS = """
import socket, time
pairs = []
while len(pairs) < 1000:
    pairs.append(socket.socketpair())
    pairs[-1][0].setblocking(False)
    try:
        while True:
            pairs[-1][0].send(b"x" * 65536)
    except BlockingIOError:
        pass
time.sleep(30)
"""


@pytest.mark.parametrize(
    "source, limits, reason",
    [
        ("import time; time.sleep(60)", Limits(wall=0.5), "took longer than 0.5 s"),
        ("import os; os.fork(); os.fork()\nwhile True: pass", Limits(cpu=1, wall=30), "computed for more than 1 s"),
        ("while True: print('x' * 10_000)", Limits(output=MB, wall=30), "wrote more than 1 MB to stdout and stderr"),
        ("x = bytearray(b'x') * 10**9", Limits(memory=200 * MB, wall=30), "200 MB are allowed"),
        (
            "import os, time\nfor _ in range(4): os.fork()\nx = bytearray(b'x') * 60_000_000\ntime.sleep(30)",
            Limits(memory=300 * MB, wall=30),
            "300 MB are allowed",
        ),
        (FULL_SOCKETS, Limits(memory=200 * MB, wall=30), "200 MB are allowed"),
        (
            "import os\nfor n in range(10**7): os.mkdir(f'/tmp/{n}')",
            Limits(wall=30),
            "made more than 100000 files",
        ),
    ],
    ids=["wall time", "CPU time of all", "output", "memory", "memory of all", "memory of sockets", "many files"],
)
def test_exceeding_a_limit_ends_it_with_the_reason(source, limits, reason):
    end = inside(source, limits=limits)
    assert reason in end.stopped
    assert end.status == 128 + signal.SIGKILL
    assert len(end.stdout) <= limits.output


def test_a_fork_bomb_and_full_folders_fail_inside():
    bomb = """
        import os, time
        made = 0
        try:
            while made < 200:
                if os.fork() == 0:
                    time.sleep(30)
                    os._exit(0)
                made += 1
        except BlockingIOError:
            print(made)
    """
    assert 20 < int(said(inside(bomb, limits=replace(QUICK, processes=40)))) < 40
    fill = """
        import errno, os, resource
        for folder in ("/tmp", "/dev/shm"):
            try:
                for number in range(20):
                    open(f"{folder}/{number}", "wb").write(bytes(1_000_000))
            except OSError as error:
                print(folder, errno.errorcode[error.errno], number < 6)
        files = []
        try:
            while True:
                files.append(open("/dev/null"))
        except OSError as error:
            print(errno.errorcode[error.errno], len(files))
    """
    limits = replace(QUICK, disk=5 * MB, files=100)
    assert said(inside(fill, limits=limits)).split("\n") == ["/tmp ENOSPC True", "/dev/shm ENOSPC True", "EMFILE 97"]


def test_memory_shared_by_forks_counts_once():
    share = "import os, time\nx = bytearray(b'x') * 200_000_000\nfor _ in range(3): os.fork()\ntime.sleep(0.5)"
    assert inside(share, limits=replace(QUICK, memory=450 * MB)).stopped is None


def test_systemd_limits_memory_and_processes_if_it_is_there(tmp_path, monkeypatch):
    """With a fake systemd-run, which notes its arguments and runs the command."""
    program = tmp_path / "systemd-run"
    skip = 'while [ "${1#-}" != "$1" ]; do [ "$1" = -p ] && shift; shift; done'
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n{skip}\nexec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    bubblewrap.control_group.cache_clear()
    try:
        assert said(inside("print(1)", limits=replace(QUICK, memory=500 * MB, disk=50 * MB, processes=30))) == "1"
    finally:
        bubblewrap.control_group.cache_clear()
    [_, asked] = (tmp_path / "asked").read_text().splitlines()
    assert "-p MemoryMax=600000000 -p MemorySwapMax=0 -p TasksMax=30 bwrap --args" in asked
    assert ("--user" in asked) == (os.geteuid() != 0)


def test_limits_can_not_be_raised_from_inside():
    raise_ = """
        import resource
        for name in ("RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_CPU"):
            try:
                resource.setrlimit(getattr(resource, name), (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                print(name)
            except ValueError:
                pass
    """
    assert said(inside(raise_)) == ""


# ---- the rest of grading ---------------------------------------------------------------------------------------------


def test_grading_refuses_without_a_sandbox_until_told_otherwise(monkeypatch):
    monkeypatch.setattr(bubblewrap, "why_not", lambda: "There is no bwrap.")
    course = Course.at(PROJECT)
    with pytest.raises(ClassroomError, match="There is no bwrap. .* add --without-sandbox"):
        course.require_sandbox()
    course.config.Judge.sandbox = False
    course.require_sandbox()
    assert not course.judge_settings.sandboxed


def test_links_are_not_collected(course):
    for name in ("a-link", "holds-a-link"):
        (course / "inbound").mkdir(exist_ok=True)
        source, collected = course / "inbound" / name, course / "collected" / name
        if name == "a-link":
            source.symlink_to(course / "solutions")
        else:
            source.mkdir()
            (source / "01.ipynb").symlink_to(course / "solutions" / "01.ipynb")
        Collect.do_copy(SimpleNamespace(log=logging.getLogger()), str(source), str(collected))
        assert [path.name for path in collected.iterdir()] == ["links.txt"]


def test_file_names_can_not_control_the_terminal():
    line = printable("there is: \x1b]0;title\x07\nada: 100 points")
    assert line.isprintable() and "title" in line


# ---- machines without a sandbox --------------------------------------------------------------------------------------


def why_not(**variables: str) -> str:
    source = "from grader.sandbox import bubblewrap; print(bubblewrap.why_not())"
    return outside(source, cwd=PROJECT, env={**os.environ, **variables})


def test_without_bubblewrap_the_message_says_what_to_install(tmp_path):
    assert "`bwrap` was not found here: run `make system`" in why_not(PATH=str(tmp_path))
    for name, script, words in (
        ("old", "echo bubblewrap 0.6.1", "0.8 or newer; this one is bubblewrap 0.6.1"),
        (
            "forbidden",
            'test "$1" = --version && echo bubblewrap 0.8.0 && exit; echo "bwrap: No permissions" >&2; exit 1',
            "can't make a sandbox here (bwrap: No permissions)",
        ),
    ):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "bwrap"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        assert words in why_not(PATH=f"{program.parent}:{os.environ['PATH']}")


def test_the_reason_why_a_command_can_not_start_is_on_stderr():
    end = bubblewrap.run(["true"], read_only=["/there/is/nothing"])
    assert end.status == 1 and b"/there/is/nothing" in end.stderr
    end = bubblewrap.run(["no-such-program"])
    assert end.status == 127 and b"no-such-program" in end.stderr


def test_starting_a_sandbox_raises_where_it_is_not_possible(monkeypatch):
    monkeypatch.setattr(bubblewrap, "why_not", lambda: "there is no bwrap")
    with pytest.raises(NoSandbox, match="there is no bwrap"):
        bubblewrap.run(["true"])


def test_root_of_a_user_namespace_without_other_users_gets_a_sandbox_as_ordinary_users_do():
    """Its root has all capabilities, but there is nobody else whom a submission could run as."""
    source = "from grader.sandbox import bubblewrap; print(bubblewrap.as_root(), bubblewrap.why_not())"
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", source]
    done = subprocess.run(command, cwd=PROJECT, text=True, capture_output=True)
    assert done.stdout == "False None\n", done.stderr


# ---- as an ordinary user ---------------------------------------------------------------------------------------------


@if_root
def test_an_ordinary_user_gets_the_same_sandbox():
    source = """
        import sys
        import grader
        from grader.sandbox import bubblewrap
        from grader.sandbox.bubblewrap import Limits
        print(bubblewrap.why_not())
        def run(source, **limits):
            end = bubblewrap.run([sys.executable, "-c", source], limits=Limits(**{"wall": 30, **limits}))
            print(end.stdout.decode().strip() or end.stderr.decode().strip().split("\\n")[-1], end.stopped)
        run("import os; print(os.getuid(), len(os.listdir('/proc/self/fd')), os.path.exists(%r))" % grader.__path__[0])
        bomb = "for _ in range(99): os.fork() or time.sleep(20)"
        bomb = f"import os, time\\ntry:\\n {bomb}\\nexcept OSError: print('full')"
        run(bomb, processes=30)
        run("while True: pass", cpu=1)
        run("open('/dev/x', 'w')")
        run("open('/x', 'w')")
        hold = "import os, time; os.fork(); os.fork(); x = bytearray(b'x') * 150_000_000; time.sleep(20)"
        run(hold, memory=400_000_000)
        box = bubblewrap.start(["sleep", "20"])
        print(box.path("/tmp/home").is_dir(), box.kill().stopped)
    """
    said = said_to_an_ordinary_user("-c", textwrap.dedent(source))
    *lines, memory, started = said.splitlines()
    assert lines == [
        "None",
        "65534 4 False None",
        "full None",
        " computed for more than 1 s",
        "OSError: [Errno 30] Read-only file system: '/dev/x' None",
        "OSError: [Errno 30] Read-only file system: '/x' None",
    ]
    assert "400 MB are allowed" in memory
    assert started == "True the grader no longer waits for it"
