"""Cheats that hang, crash or never end: when they are defined, in a call, at exit, in __del__."""

from __future__ import annotations

from tests.cheats.cheat import Cheat, indented

HANG = {  # ways to hang
    "loop": "while True: pass",
    "stubborn": """
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        while True:
            try:
                while True: time.sleep(60)
            except BaseException:
                pass
    """,
    "gil": "ctypes.PyDLL(None).sleep(1000)",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP)",
}
DIE = {  # ways to end the process
    "exit": "os._exit(0)",
    "segfault": "ctypes.string_at(8)",
    "exec": "os.execv('/bin/true', ['true'])",
    "system-exit": "raise SystemExit(0)",
    "interrupt": "raise KeyboardInterrupt",
    "close-all": "os.closerange(0, 10_000)",
    "recursion": "def deeper(): return deeper() + 1\ndeeper()",
    "c-stack": "sys.setrecursionlimit(10**8)\nclass Deep:\n    def __getattr__(self, name): return getattr(self, name + '')\n"
               "Deep().x",
    "kill-all": "os.kill(-1, signal.SIGKILL)",
    "kill-parent": "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(0.2)",
    "stop-parent": "os.kill(os.getppid(), signal.SIGSTOP)",
}  # fmt: skip


def at_exit(how: str) -> str:
    return f"def last():\n{indented(how)}\natexit.register(last)\nthreading._register_atexit(last)"


def in_del(how: str) -> str:
    return f"class Last:\n    def __del__(self):\n{indented(how, 8)}\nreturn Last()"


def in_thread(how: str) -> str:
    return f"def other():\n    time.sleep(0.02)\n{indented(how)}\nthreading.Thread(target=other).start()"


def in_handler(how: str) -> str:
    """Only where it is possible: a graded rank runs its program in a thread, where Python can't set handlers."""
    return (
        f"def handler(*args):\n{indented(how)}\n"
        "try:\n    signal.signal(signal.SIGALRM, handler)\n    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)\n"
        "except ValueError:\n    pass"
    )


def hang(name: str, where: str, **how) -> Cheat:
    return Cheat(f"hang/{name}", where, **{"beside": False, **how})


def after(name: str, tries: str, setup: str = "", act: str = "", **how) -> Cheat:
    """It happens when the answer is given: a right one is right."""
    return Cheat(f"after/{name}", tries, setup, act, **how)


HANGS = [
    *[hang(f"call-{name}", f"hangs in a call: {name}", act=how) for name, how in HANG.items()],
    *[hang(f"definition-{name}", f"hangs where it is defined: {name}", setup=HANG[name])
      for name in ("loop", "stubborn", "gil")],
    hang("one-rank", "one rank hangs, the others wait for it", act="if rank == 1:\n    while True: pass\n"
         "dist.all_reduce(x)", exercise="total"),
    hang("nobody-sends", "all ranks wait for a message that nobody sends", act="dist.recv(x, src=(rank + 1) % world_size)",
         exercise="total"),
    hang("slowly", "it prints without end", act="while True: dist.barrier()", exercise="total"),
    hang("in-repr", "hangs where its result is shown", gives="prepared",
         setup="class Loops:\n    def __repr__(self):\n        while True: pass\nreturn Loops()"),
    hang("in-str-of-an-error", "hangs where its error is shown", act="raise prepared",
         setup="class Loops(Exception):\n    def __str__(self):\n        while True: pass\n    __repr__ = __str__\nreturn Loops()"),
    hang("in-compare", "hangs where its result is compared", gives="prepared",
         setup="class Loops(int):\n    def __eq__(self, other):\n        while True: pass\n    __hash__ = None\nreturn Loops(3)"),
    hang("forks-and-waits", "a child keeps every descriptor open; the parent is gone", act="""
        if os.fork():
            os._exit(0)
        while True: time.sleep(60)
    """),
]  # fmt: skip

CHEATS = [
    *[
        Cheat(f"dies/call-{name}", f"ends the process in a call: {name}", act=how, beside=False)
        for name, how in DIE.items()
    ],
    *[
        Cheat(f"dies/definition-{name}", f"ends the process where it is defined: {name}", how, beside=False)
        for name, how in DIE.items() if name in ("exit", "segfault", "system-exit", "exec", "close-all", "kill-parent")
    ],
    *[
        after(f"{name}-{what}", f"{words}: {what}", make(how))
        for name, words, make in [("atexit", "when the process exits", at_exit), ("del", "in __del__", in_del)]
        for what, how in {**HANG, **DIE}.items()
        if what in ("loop", "stubborn", "gil", "exit", "segfault", "exec", "kill-parent")
    ],
    after("thread-loop", "a thread that never ends", in_thread("while True: pass")),
    after("thread-stubborn", "many threads that never end", "\n".join(f"threading.Thread(target=time.sleep, args=(1000 + {n},))"
                                                                      ".start()" for n in range(20))),
    after("child-lives-on", "children that stay, each in its own session, with every descriptor", """
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                time.sleep(1000)
                os._exit(0)
    """),
    after("forked-twice", "both sides of a fork continue the call", act="os.fork()"),
    after("handler-loop", "a signal handler that is called again and again", in_handler("1 + 1")),
    Cheat("dies/handler-exit", "a signal handler that ends the process", in_handler("os._exit(0)"),
          act="time.sleep(0.2)", beside=False),
    Cheat("dies/thread-exit", "a thread that ends the process", in_thread("os._exit(0)"), act="time.sleep(0.2)",
          beside=False),
    Cheat("dies/thread-raises", "a thread that raises while the call continues", in_thread("raise SystemExit(0)")),
    Cheat("dies/raises-when-hidden", "an error only in the hidden test", act="assert x in (2, 5), 'I know only these'",
          gives="2 * x", beside=False),
    Cheat("dies/raises-expected", "an error whose text looks like a passed check",
          act="raise AssertionError('double · values · passed')", beside=False),
    Cheat("dies/memory-error", "a MemoryError", act="raise MemoryError", beside=False),
    Cheat("dies/warnings", "warnings turned into errors from then on", "warnings.simplefilter('error')"),
    Cheat("dies/not-written", "the blank's own error", act="raise NotImplementedError", beside=False),
]  # fmt: skip
