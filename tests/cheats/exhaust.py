"""Cheats that take too much: memory of every kind, processes, threads, descriptors, disk, output, computing."""

from __future__ import annotations

from tests.cheats.cheat import Cheat


def takes(name: str, tries: str, act: str, **how) -> Cheat:
    return Cheat(f"exhaust/{name}", tries, act=act, **{"beside": False, **how})


QUIETLY = "\nexcept (OSError, MemoryError, RuntimeError, ValueError):\n    pass"

CHEATS = [
    takes("memory", "memory, as Python objects", "x = bytearray(b'x') * 60_000_000_000"),
    takes("memory-slowly", "memory, a little at a time", "keep = []\nwhile True: keep.append(bytearray(b'x') * 50_000_000)"),
    takes("memory-shared", "shared memory, which is charged to no process", """
        for folder in ("/dev/shm", "/tmp"):
            try:
                for number in range(10_000):
                    with open(f"{folder}/fill-{number}", "wb") as file:
                        file.write(bytes(10_000_000))
            except OSError:
                pass
    """, beside=True),
    takes("address-space", "address space that is never used", "keep = [mmap.mmap(-1, 1 << 40) for _ in range(3)]"),
    takes("processes", "processes without end", "while True: os.fork()"),
    takes("threads", "as many threads as are allowed, and then carrying on", """
        try:
            for _ in range(100_000):
                threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        except RuntimeError:
            pass
    """, beside=True),
    takes("pipes", "as much memory as pipes can hold", """
        keep = []
        try:
            while len(keep) < 5000:
                keep.append(os.pipe())
                fcntl.fcntl(keep[-1][1], 1031, 1 << 20)
                os.write(keep[-1][1], bytes(1 << 20))
        except OSError:
            pass
        for pair in keep[-10:]: [os.close(fd) for fd in pair]
    """, beside=True),
    takes("output", "output without end", "while True: print('x' * 100_000)"),
    takes("output-of-children", "output from children, to every descriptor", """
        subprocess.run([sys.executable, "-S", "-c", "print('y' * 3_000_000)"])
        os.write(1, b"z" * 1_000_000)
        os.write(2, b"z" * 1_000_000)
        print("w" * 1_000_000, file=sys.__stderr__)
    """, beside=True),
    takes("long-error", "an error of 3 MB", "raise ValueError('y' * 3_000_000)"),
    takes("chained-errors", "10,000 errors, each the cause of the next", """
        error = ValueError("first")
        for number in range(10_000):
            following = ValueError(str(number))
            following.__cause__ = error
            error = following
        raise error
    """),
    takes("traffic", "a gigabyte of messages", """
        for _ in range(200):
            dist.all_reduce(torch.zeros(10_000_000))
    """, exercise="total"),
    takes("calls", "messages without end", "while True: dist.all_reduce(x)", exercise="total"),
    takes("handles", "messages without end, never waited for", """
        while True: dist.isend(x, (rank + 1) % world_size)
    """, exercise="total"),
    takes("groups", "groups without end", "for _ in range(100_000): dist.new_group(list(range(world_size)))",
          exercise="total"),
]  # fmt: skip
