"""Cheats that look for what they must not know: expected values, hidden tests, others' work, secrets, earlier runs.

One that finds something raises `ESCAPED: ...`. That ends up in the verdict, where the test looks for it.
"""

from __future__ import annotations

from tests.cheats.cheat import Cheat

TELL = "\nif found:\n    raise RuntimeError('ESCAPED: ' + ' '.join(map(str, found))[:2000])\n"


def spies(name: str, tries: str, act: str, setup: str = "", **how) -> Cheat:
    act = "found = []\n" + "\n".join(
        line[8:] if line.startswith(" " * 8) else line for line in act.strip("\n").split("\n")
    )
    return Cheat(f"spy/{name}", tries, setup, act + TELL, **how)


# COURSE, ENVIRONMENT and PLANTED are words that the tests plant where no submission may look; see tests/grader/judging/test_cheats.py.
CHEATS = [
    spies("environment", "secrets in the environment", """
        found += [name for name, value in os.environ.items() if "PLANTED" in value]
    """),
    spies("files", "solutions, hidden tests, other submissions and the gradebook on disk", """
        doors = ["", *glob.glob("/proc/[0-9]*/root"), *(f"/proc/self/fd/{fd}/.." for fd in range(3, 30))]
        for door in doors:
            for path in glob.glob(door + COURSE + "/**", recursive=True):
                try:
                    found += [path] * (b"PLANTED" in open(path, "rb").read())
                except OSError:
                    pass
    """),
    spies("course", "anything in the course folder except utils and grader/inside", """
        import grader, utils
        root = os.path.dirname(os.path.dirname(utils.__file__))
        for folder, _, names in os.walk(root):
            inside = os.path.relpath(folder, root)
            if "/bin/" in folder or "site-packages" in folder or inside.startswith((".venv", "utils", "grader/inside")):
                continue
            found += [os.path.join(inside, n) for n in names if n not in ("__init__.py", "pyvenv.cfg") and ".so" not in n
                      and not inside.startswith(("lib", "share", "etc", "bin", "include"))][:5]
    """),
    spies("caller-frames", "the expected value in a frame of the caller", """
        frame = sys._getframe()
        while frame:
            for name in ("expected", "right", "wanted", "In", "SECRET", "double_values"):
                if name in frame.f_locals or name in frame.f_globals:
                    found += [f"{name} in {frame.f_code.co_name}"]
            frame = frame.f_back
    """),
    spies("kernel", "what the kernel reveals: command lines, and people's names in mount points", """
        for path in ("/proc/self/mountinfo", "/proc/self/cgroup", "/proc/keys", "/proc/net/unix", "/proc/1/cmdline"):
            try:
                found += [path] * ("PLANTED" in open(path).read() or "checks_90" in open(path).read())
            except OSError:
                pass
    """),
    spies("order", "the judge's order to this rank: other ranks' inputs, expected values", """
        for one in gc.get_objects():
            if type(one).__name__ == "RunOrder":
                order = {name: getattr(one, name) for name in one.__dataclass_fields__}
                found += [name for name in ("expected", "check", "hidden", "points", "right") if name in order]
                data = order["program"] if isinstance(order["program"], bytes) else b""
                held = [kept.tobytes() if hasattr(kept, "tobytes") else kept.numpy().tobytes() for kept in [x]]
                others = [v.numpy().tobytes() for n, v in enumerate(prepared(world_size, tuple(x.shape))) if n != rank]
                found += ["another rank's input"] * any(other in data for other in others)
    """, "from utils.checks.inputs import Draws\nreturn Draws().different_integers", exercise="total", beside=False),
    # the inputs of the other ranks, computed instead of received
    Cheat("spy/oracle", "the other ranks' inputs from the checks' own seeds", """
        from utils.checks.inputs import Draws
        return Draws().different_integers
    """, gives="torch.stack(prepared(world_size, tuple(x.shape), x.dtype)).sum(0).to(x.dtype)", exercise="total",
          beside=False),
    Cheat("spy/seeds", "the seed, by trying seeds until this rank's own input comes out", """
        from utils.checks.inputs import Draws
        return Draws().different_integers
    """, act="""
        for seed in range(200):
            xs = prepared(world_size, tuple(x.shape), x.dtype, seed)
            if torch.equal(xs[rank], x):
                x = torch.stack(xs).sum(0).to(x.dtype)
                break
    """, exercise="total", beside=False),
    spies("draws", "the generator that inputs are drawn from, or its seed, among all objects", """
        for one in gc.get_objects():
            if type(one).__name__ in ("Draws", "Runner", "RemoteRunner", "Ranks", "Judging"):
                found += [f"{type(one).__name__} {getattr(one, 'salt', '')}"] * (one is not prepared)
    """, "from utils.checks.inputs import Draws\nreturn Draws()", exercise="total", beside=False),
    # memory of earlier runs
    spies("note-of-the-last-run", "what an earlier run left behind: files, environment, memory, the parent", """
        mark = "cheat-was-here"
        for folder in ("/tmp", "/dev/shm", os.getcwd(), os.path.expanduser("~"), "/var/tmp", "/run", "/dev/mqueue"):
            found += [path for path in glob.glob(f"{folder}/{mark}*")]
        for folder in ("/tmp", "/dev/shm", os.getcwd(), os.path.expanduser("~"), "/var/tmp", "/run", "/dev/mqueue"):
            try:
                open(f"{folder}/{mark}", "w").close()
            except OSError:
                pass
        found += ["environment"] * (mark in os.environ)
        os.environ[mark] = "1"
        found += ["builtins"] * hasattr(builtins, "cheat_was_here")
        builtins.cheat_was_here = True
        found += ["torch"] * hasattr(torch, "cheat_was_here")
        torch.cheat_was_here = True
    """),
    spies("process-of-the-last-run", "a process left behind by an earlier run", """
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                found += [path] * (b"cheat-stays-here" in open(path, "rb").read() and str(os.getpid()) not in path)
            except OSError:
                pass
        if os.fork() == 0:
            os.setsid()
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(20)", "cheat-stays-here"])
    """),
    Cheat("spy/only-what-is-seen", "right for the visible check's inputs, wrong for all others", gives="2 * x if x in (2, 5) else x"),
    Cheat("spy/graded-or-not", "a fixed right answer, given only where it is graded", """
        return any(name.startswith("grader") for name in sys.modules) or not os.path.exists(os.path.expanduser("~/.bashrc"))
    """, gives="x + 2 if prepared else x"),
    # a line of the judge's own files, by a call that claims to be there
    Cheat("spy/place-of-a-call", "a line of one of the judge's files, as the line where a call waits", act="""
        source = "dist.recv(x, src=(rank + 1) % world_size)"
        exec(compile("\\n" * (LINE - 1) + source, COURSE + "/planted.py", "exec"), dict(dist=dist, x=x, rank=rank,
                                                                                   world_size=world_size))
    """, exercise="total", beside=False),
    Cheat("spy/endless-place", "an endless file, as the place where a call waits", act="""
        source = "dist.recv(x, src=(rank + 1) % world_size)"
        exec(compile(source, "/dev/zero", "exec"), dict(dist=dist, x=x, rank=rank, world_size=world_size))
    """, exercise="total", beside=False),
    Cheat("spy/place-of-a-failure", "a line of one of the judge's files, as the line that raised", act="""
        exec(compile("\\n" * (LINE - 1) + "1 / 0", COURSE + "/planted.py", "exec"))
    """, beside=False),
    Cheat("spy/place-without-a-number", "a location that is none", """
        for module in list(sys.modules.values()):
            if hasattr(module, "who_called"):
                module.who_called = lambda *args: ("/etc/passwd:one", True)
    """, act="dist.recv(x, src=(rank + 1) % world_size)", exercise="total", beside=False),
]  # fmt: skip
