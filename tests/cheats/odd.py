"""Cheats with what Python, torch and the kernel offer besides: modes, hooks, numbers of other kinds, descriptors."""

from __future__ import annotations

from tests.cheats.cheat import Cheat
from tests.cheats.forge import WIRE


def odd(name: str, tries: str, setup: str = "", act: str = "", **how) -> Cheat:
    return Cheat(f"odd/{name}", tries, setup, act, **how)


def on_wire(name: str, tries: str, act: str) -> Cheat:
    return Cheat(f"odd/{name}", tries, WIRE, act, beside=False)


def raises(name: str, tries: str, act: str) -> Cheat:
    return Cheat(f"odd/{name}", tries, act=act, beside=False)


CHEATS = [
    # numbers and containers that are almost the right ones
    odd("enum", "an IntEnum of the right number", "import enum\nreturn enum", gives="prepared.IntEnum('E', {'a': 2 * x}).a"),
    odd("fraction", "a Fraction of the right number", "import fractions\nreturn fractions.Fraction", gives="prepared(2 * x)"),
    odd("ctypes", "the number in C's memory", gives="ctypes.c_long(2 * x)"),
    odd("memoryview", "a view of memory that changes after the call", gives="memoryview(bytearray(8)).cast('q')"),
    odd("weak-proxy", "a weak reference to what is gone when it is read", "return type('Kept', (set,), {})",
        gives="weakref.proxy(prepared([2 * x]))"),
    odd("coroutine", "a function that has not run yet", "async def later(x): return 2 * x\nreturn later", gives="prepared(x)"),
    odd("masked-array", "an array with all of it masked, where every comparison is masked too", gives="np.ma.masked"),
    # what lasts beyond the call
    odd("function-mode", "a mode that turns every function of torch into a yes, and stays", """
        class Yes(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None): return torch.ones(())
        return Yes
    """, "prepared().__enter__()", exercise="total", beside=False),
    odd("dispatch-mode", "a mode below autograd that adds the world's size to every sum, and stays", """
        from torch.utils._python_dispatch import TorchDispatchMode
        class More(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                out = function(*args, **(kwargs or {}))
                return out * 3 if "add" in str(function) else out
        return More
    """, "prepared().__enter__()", exercise="total", beside=False),
    odd("default-device", "a default device without values", act="torch.set_default_device('meta')", exercise="total",
        beside=False),
    odd("copyreg", "reducers of its own for plain types", """
        import copyreg
        for kind in (int, float, str, list, dict, torch.Tensor):
            copyreg.pickle(kind, lambda value: (os.system, ("touch /tmp/pwned-by-a-cheat",)))
    """),
    odd("gc-callback", "a collector's callback that changes what frames hold", """
        def change(*_):
            for frame in sys._current_frames().values():
                while frame:
                    for name in ("result", "got", "value"):
                        if name in frame.f_locals: frame.f_locals[name] = 4
                    frame = frame.f_back
        gc.callbacks.append(change)
        gc.set_threshold(1)
    """),
    odd("timer", "a timer whose handler raises at any line of ours", act="""
        def stop(*_): raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    """, beside=False),
    odd("racing-thread", "a thread that overwrites the result while it is sent", act="""
        def race():
            while True:
                for one in gc.get_objects():
                    if type(one) is dict and "result" in one: one["result"] = 4
        threading.Thread(target=race, daemon=True).start()
    """, beside=False),
    odd("last-words", "another result when the interpreter ends", WIRE, """
        atexit.register(lambda: prepared.done(4))
        threading._register_atexit(lambda: prepared.done(4))
    """),
    odd("main-module", "another object as the main module", act="""
        class Main:
            def __getattr__(self, name): return lambda *args, **kwargs: 4
        sys.modules["__main__"] = Main()
    """),
    odd("files-for-the-next", "files that Python reads when it starts, for the processes after this one", act="""
        for folder in ("/tmp", os.path.expanduser("~"), os.getcwd()):
            for name in ("sitecustomize.py", "usercustomize.py", ".pythonrc.py", "torch.py", "cheat.pth"):
                try:
                    open(f"{folder}/{name}", "w").write("import builtins; builtins.cheat_was_here = True")
                except OSError:
                    pass
        os.environ.update(PYTHONPATH="/tmp", PYTHONSTARTUP="/tmp/torch.py", LD_PRELOAD="/tmp/cheat.so", PYTHONHOME="/tmp")
    """),
    odd("exec", "another program in place of this one, which keeps the socket and sends a result", WIRE, """
        fd = prepared.line.fileno()
        os.set_inheritable(fd, True)
        packed = prepared.codec.pack(dict(do="done", result=4, after=[], shared=False, clock=0.0, busy=[], memory=[],
                                          printed=""))
        os.execv(sys.executable, [sys.executable, "-c", f"import os; os.write({fd}, {packed!r})"])
    """, beside=False),
    odd("own-memory", "the hub's answers rewritten in this process's own memory", act="""
        for line in open("/proc/self/maps"):
            if "[heap]" in line:
                start, end = (int(word, 16) for word in line.split()[0].split("-"))
                with open("/proc/self/mem", "r+b", 0) as memory:
                    memory.seek(start)
                    held = memory.read(min(end - start, 1 << 20))
                    memory.seek(start)
                    memory.write(held.replace(b"result", b"RESULT"))
    """, beside=False),
    odd("prctl", "other signals, limits and cores for itself", act="""
        libc = ctypes.CDLL(None)
        libc.prctl(1, 9), libc.prctl(4, 1), libc.prctl(36, 1), libc.mlockall(3)
        for name in ("NOFILE", "NPROC", "FSIZE", "CPU", "CORE"):
            kind = getattr(resource, "RLIMIT_" + name)
            try:
                resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            except (OSError, ValueError):
                pass
        try:
            os.sched_setaffinity(0, {0})
        except OSError:
            pass
    """),
    # the socket to the judge
    on_wire("descriptors-sent", "open files, sent to the judge with a message", """
        files = [os.open("/dev/zero", os.O_RDONLY) for _ in range(30)]
        for _ in range(50):
            try:
                socket.send_fds(prepared.line, [b"x"], files)
            except OSError:
                break
    """),
    on_wire("out-of-band", "a byte outside the stream", "prepared.line.send(b'x', socket.MSG_OOB)"),
    on_wire("deaf", "a socket that it no longer reads", "prepared.line.shutdown(socket.SHUT_RD)"),
    on_wire("dumb", "a socket that it no longer writes to, still waiting", "prepared.line.shutdown(socket.SHUT_WR)"),
    on_wire("never-reads", "calls whose answers it never reads", """
        for _ in range(3000):
            prepared.call(args=[torch.zeros(5000)], members=list(range(1)), is_async=True)
    """),
    on_wire("witness-of-nobody", "questions to witnesses that there are not", """
        for number in (0, -1, True, 10**400, "0", [0]):
            prepared.tell(do="ask", witness=number, question=[4])
    """),
    # errors
    raises("cause-of-itself", "an error that is its own cause", """
        error = ValueError("4")
        other = KeyError(error)
        error.__cause__, other.__context__ = other, error
        raise error
    """),
    raises("many-notes", "an error with 300,000 notes", """
        error = ValueError("4")
        error.__notes__ = ["passed"] * 300_000
        raise error
    """),
    raises("groups", "errors in groups, 900 deep", """
        error = ValueError("4")
        for _ in range(900):
            error = ExceptionGroup("passed", [error])
        raise error
    """),
    raises("syntax", "an error that claims a place in a file of the judge", """
        raise SyntaxError("4", (COURSE + "/planted.py", LINE, 10**9, "x" * 10_000_000, 10**9, 10**9))
    """),
    raises("long-name", "an error whose class has a name of a million letters", """
        raise type("x" * 1_000_000, (Exception,), {"__module__": "\\x1b]0;t\\x07"})("4")
    """),
    raises("text-of-its-own", "an error whose text is a str that equals everything", """
        class Text(str):
            def __eq__(self, other): return True
            def __len__(self): return 0
            __hash__ = str.__hash__
        raise type("Fine", (ValueError,), {"__str__": lambda self: Text("passed" * 10_000)})()
    """),
    raises("interrupt", "Ctrl-C", "raise KeyboardInterrupt"),
    raises("generator-exit", "the end of a generator", "raise GeneratorExit"),
    raises("recursion", "recursion without limit", """
        sys.setrecursionlimit(10**9)
        def deeper(): return [deeper()]
        deeper()
    """),
]  # fmt: skip
