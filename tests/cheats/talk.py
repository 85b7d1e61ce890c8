"""Cheats that bypass the hub: ranks exchange their numbers in some other way, and each adds them up.

They send nothing that is counted. All of them work between processes on one machine that nothing isolates. More ways
from one process to another, without an answer around them, are in tests/rank_attacks.py.
"""

from __future__ import annotations

from tests.cheats.cheat import Cheat, clean, indented

LISTEN = 0.4  # seconds; ranks start within a few hundredths of each other


def channel(name: str, tries: str, say: str, hear: str, setup: str = "", **how) -> Cheat:
    """`say` passes on `mine`, a list of whole numbers below 256; `hear` puts the numbers of rank `other` into `heard`."""
    act = f"""
mine, heard, keep = [int(v) for v in x.flatten().tolist()], {{}}, []
{clean(say)}
began = time.monotonic()
while time.monotonic() < began + {LISTEN}:
    for other in range(world_size):
        try:
{indented(hear, 12)}
        except (OSError, ValueError, LookupError, AttributeError):
            pass
    time.sleep(0.01)
heard[rank] = mine
sums = [sum(column) for column in zip(*heard.values())]
if len(heard) == world_size and len(sums) == x.numel():
    x = torch.tensor(sums, dtype=x.dtype).reshape(x.shape)
"""
    if setup:
        setup = clean(setup) + "\nreturn types.SimpleNamespace(**locals())"
    return Cheat(f"talk/{name}", tries, setup, act, exercise="total", **how)


# A bit is sent by taking a resource with a number: number `8 * (rank * 64 + position) + bit`.
BITS = """
def bits(rank, mine):
    return [8 * (rank * 8 + i) + bit for i, value in enumerate(mine) for bit in range(8) if value >> bit & 1]
def number(taken, other, i):
    return sum(1 << bit for bit in range(8) if taken(8 * (other * 8 + i) + bit))
"""
# Files of Python's that every rank sees; enough for 4 ranks with 8 numbers of 8 bits.
FILES = (
    BITS
    + """
files = sorted(glob.glob(os.path.dirname(os.__file__) + "/**/*.py", recursive=True), key=os.path.getsize)[-256:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
"""
)
SERVE = """
def serve(family, where, data):
    server = socket.socket(family)
    server.bind(where)
    server.listen()
    def loop():
        while True:
            server.accept()[0].sendall(data)
    threading.Thread(target=loop, daemon=True).start()
def ask(family, where):
    with socket.socket(family) as client:
        client.connect(where)
        client.settimeout(0.1)
        return list(client.recv(100))
"""
FOLDERS = """
here = [os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir(), os.path.dirname(os.__file__), *sys.path]
folders = ["/tmp", "/dev/shm", "/var/tmp", "/run", "/run/lock", "/dev/mqueue", "/dev", "/proc/self", "/", "/etc", "/usr",
           "/usr/local", "/var/lock", "/kernel", "/mnt", "/sys/fs/cgroup", *here]
"""

CHEATS = [
    channel("tcp", "loopback, TCP", """
        try:
            prepared.serve(socket.AF_INET, ("127.0.0.1", 47000 + rank), bytes(mine))
        except OSError:
            pass
    """, "heard[other] = prepared.ask(socket.AF_INET, ('127.0.0.1', 47000 + other))", SERVE),
    channel("files", "files in every folder that it may write to", """
        for folder in prepared.folders:
            try:
                with open(f"{folder}/cheat-{rank}-{world_size}-{x.numel()}", "wb") as file:
                    file.write(bytes(mine))
            except OSError:
                pass
    """, """
        for folder in prepared.folders:
            path = f"{folder}/cheat-{other}-{world_size}-{x.numel()}"
            if os.path.exists(path) and os.path.getsize(path) == len(mine):
                heard[other] = list(open(path, "rb").read())
    """, FOLDERS),
    channel("inherited-memory", "memory shared before the fork", """
        maps = [line.split()[0].split("-") for line in open("/proc/self/maps") if " rw-s " in line]
        for first, _ in maps:
            ctypes.memmove(int(first, 16) + 3000 + 20 * rank, bytes([7, *mine]), 1 + len(mine))
    """, """
        for first, _ in maps:
            seen = list(ctypes.string_at(int(first, 16) + 3000 + 20 * other, 1 + len(mine)))
            if seen[0] == 7:
                heard[other] = seen[1:]
    """, beside=False),
    channel("inherited-descriptors", "files and pipes opened before the fork", """
        mark = bytes([201, 202, 203])
        for fd in range(3, 256):
            try:
                if os.path.isfile(f"/proc/self/fd/{fd}"):
                    os.pwrite(fd, mark + bytes(mine), 1000 + 20 * rank)
            except OSError:
                pass
    """, """
        for fd in range(3, 256):
            if os.path.isfile(f"/proc/self/fd/{fd}") and os.pread(fd, 3, 1000 + 20 * other) == mark:
                heard[other] = list(os.pread(fd, len(mine), 1003 + 20 * other))
    """),
    channel("names-of-threads", "thread names in /proc", """
        with open("/proc/self/comm", "w") as file:
            file.write(f"c{rank}:" + "".join(f"{value:02x}" for value in mine))
    """, """
        for path in glob.glob("/proc/[0-9]*/comm"):
            name = open(path).read().strip()
            if name.startswith(f"c{other}:"):
                heard[other] = list(bytes.fromhex(name[3:]))
    """),
    # resources that all processes on a machine share, whatever their namespaces
    channel("futex", "whether a thread waits at an address in a file that everyone may read", """
        def address(rank, n):
            if rank not in mapped:
                file = os.open(prepared.files[rank], os.O_RDONLY)
                mapped[rank] = prepared.libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
            return mapped[rank] + 4 * n
        def wait(n):
            at = address(rank, n)
            now = ctypes.c_uint32.from_address(at).value
            prepared.libc.syscall(202, ctypes.c_void_p(at), 0, now, struct.pack("ll", 2, 0), None, 0)
        mapped = {}
        address(rank, 0)
        def waits(other, n):
            # requeued to the same address: that counts the waiters without waking them, so others can count them, too
            at = ctypes.c_void_p(address(other, n))
            now = ctypes.c_uint32.from_address(at.value).value
            return prepared.libc.syscall(202, at, 4, 0, ctypes.c_void_p(1000), at, now) > 0
        spoken = 8 * len(mine)
        for n in [*prepared.bits(0, mine), spoken]:
            threading.Thread(target=wait, args=(n,), daemon=True).start()
    """, """
        if other != rank and time.monotonic() > began + 0.3 and other not in heard and waits(other, spoken):
            heard[other] = [prepared.number(lambda n: waits(other, n), 0, i) for i in range(len(mine))]
    """, FILES),
    channel("page-cache", "which files are cached: a rank evicts some, and the others look which are gone", """
        opened = [os.open(path, os.O_RDONLY) for path in prepared.files]
        for file in opened:
            os.pread(file, 1 << 20, 0)
        time.sleep(0.1)
        for n in prepared.bits(rank, mine):
            os.posix_fadvise(opened[n], 0, 0, os.POSIX_FADV_DONTNEED)
        time.sleep(0.2)
    """, """
        def taken(n):
            try:
                os.preadv(opened[n], [bytearray(1)], 0, os.RWF_NOWAIT)
            except BlockingIOError:
                return True
        if other != rank and other not in heard:
            numbers = [prepared.number(taken, other, i) for i in range(len(mine))]
            if all(numbers):
                heard[other] = numbers
    """, FILES),
    channel("queued-signals", "how many signals are queued, counted over all of a user's processes", """
        turn = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, [50])
        def queued():
            return int(re.search(r"SigQ:\\s*(\\d+)/", open("/proc/self/status").read())[1])
        before = queued()
        if rank == 0:
            for _ in range(mine[0]):
                prepared.libc.sigqueue(os.getpid(), 50, None)
    """, """
        if other == 0 and rank and x.numel() == 1 and queued() > before:
            heard[0] = [queued() - before]
    """, FILES),
    *[
        channel(name, tries, f"""
            def count():
                return {look}
            slot = 0.04
            first = (math.floor(time.time() / 0.2) + 1) * 0.2
            levels = {{}}
            for number in range(world_size):
                for i in range(len(mine)):
                    at = first + slot * (number * len(mine) + i)
                    time.sleep(max(0, at - time.time()))
                    if number == rank:
                        taken = [{take} for _ in range(mine[i] * {each})]
                    time.sleep(max(0, at + slot / 2 - time.time()))
                    full = count()
                    taken = None
                    time.sleep(max(0, at + slot * 0.9 - time.time()))
                    levels[number, i] = round(abs(full - count()) / {each})
            heard.update({{n: [levels[n, i] for i in range(len(mine))] for n in range(world_size) if n != rank}})
            began = 0
        """, "pass", FILES, beside=False)  # a rank has no such files: this raises
        for name, tries, look, take, each in [
            ("free-memory", "how much of the machine's memory is free",
             "int(re.search(r'MemFree:\\\\s*(\\\\d+)', open('/proc/meminfo').read())[1])", "torch.ones(2**18)", 1024),
            ("open-files", "how many files are open on the machine",
             "int(open('/proc/sys/fs/file-nr').read().split()[0])", "open('/dev/null')", 40),
            ("load", "how many processes are running on the machine",
             "int(open('/proc/loadavg').read().split('/')[1].split()[0])", "threading.Timer(0.01, int).start()", 1),
        ]
    ],
    channel("contention", "a rank computes in proportion to its number, which slows the others down", """
        slot = 0.05
        first = (math.floor(time.time() / 0.2) + 1) * 0.2
        slow = {}
        for number in range(world_size):
            for i in range(len(mine)):
                at = first + slot * (number * len(mine) + i)
                while time.time() < at: pass
                if number == rank:
                    busy = [threading.Thread(target=torch.mm, args=[torch.ones(200 + mine[i], 200)] * 1 +
                            [torch.ones(200, 2000)]) for _ in range(4)]
                    [thread.start() for thread in busy]
                rounds = 0
                while time.time() < at + slot * 0.8: rounds += 1
                slow[number, i] = rounds
        most = max(1, *slow.values())
        heard.update({n: [round(60 * (1 - slow[n, i] / most)) for i in range(len(mine))] for n in range(world_size)})
        began = 0
    """, "pass"),
]  # fmt: skip
