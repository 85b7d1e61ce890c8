"""Cheats with what Python, torch and the kernel offer besides: modes, hooks, programs, descriptors, errors."""

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
    # values
    odd("weak-proxy", "a weak reference to what is gone when it is read", "return type('Kept', (set,), {})",
        gives="weakref.proxy(prepared([2 * x]))"),
    odd("masked-array", "an array with all of it masked, where every comparison is masked too", gives="np.ma.masked"),
    # what lasts beyond the call
    odd("function-mode", "a mode in which all comparisons of torch say yes, and which stays", """
        class Yes(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                if getattr(function, "__name__", "") in ("equal", "allclose", "isclose", "eq", "__eq__", "all"): return True
                return function(*args, **(kwargs or {}))
        return Yes
    """, "prepared().__enter__()", exercise="total", beside=False),
    odd("copyreg", "reducers of its own for plain types", """
        import copyreg
        for kind in (int, float, str, list, dict, torch.Tensor):
            copyreg.pickle(kind, lambda value: (os.system, ("touch /tmp/pwned-by-a-cheat",)))
    """),
    odd("exec", "another program in place of this one, which keeps the socket and sends a result", WIRE, """
        fd = prepared.line.fileno()
        os.set_inheritable(fd, True)
        packed = prepared.codec.pack(dict(do="done", result=4, after=[], shared=False, clock=0.0, busy=[], memory=[],
                                          printed=""))
        os.execv(sys.executable, [sys.executable, "-c", f"import os; os.write({fd}, {packed!r})"])
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
    on_wire("never-reads", "calls whose answers it never reads", """
        for _ in range(3000):
            prepared.call(args=[[torch.zeros(5000)]], members=list(range(1)), is_async=True)
    """),
    # errors
    raises("cause-of-itself", "an error that is its own cause", """
        error = ValueError("4")
        other = KeyError(error)
        error.__cause__, other.__context__ = other, error
        raise error
    """),
    raises("text-of-its-own", "an error whose text is a str that equals everything", """
        class Text(str):
            def __eq__(self, other): return True
            def __len__(self): return 0
            __hash__ = str.__hash__
        raise type("Fine", (ValueError,), {"__str__": lambda self: Text("passed" * 10_000)})()
    """),
]  # fmt: skip
