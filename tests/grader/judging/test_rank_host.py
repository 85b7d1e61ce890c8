"""Ranks share nothing, whatever they try, and ending them leaves nothing. Each attack is real code in real ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from grader.inside.host import EXTRA_PROCESSES, PROCESSES_PER_RANK
from grader.judging import rank_host as ranks_module
from grader.judging.rank_host import HostGone, NoSandbox, RankHost
from grader.sandbox import bubblewrap
from grader.sandbox.bubblewrap import MB, Limits
from tests import rank_attacks
from tests.kernel import processes_with
from tests.ordinary_user import if_root, said_to_an_ordinary_user
from tests.rank_attacks import ALONE, FAIL_ANYWHERE, NOT_OUTSIDE, PAIRS, PROBE, alone, both, ended, heard, run, tell

pytestmark = [pytest.mark.long, pytest.mark.sandbox]
PROJECT = Path(__file__).resolve().parents[3]
QUICK = Limits(wall=60)


@pytest.fixture(scope="module")
def host():
    with rank_attacks.host() as host:
        yield host


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """The module that ranks run, for hosts without a sandbox."""
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.py").write_text(PROBE)
    return {"env": {"PYTHONPATH": f"{PROJECT}:{folder}"}}


@pytest.fixture(scope="module")
def plain(probe):
    """A host without a sandbox, to see what plain processes can do."""
    with rank_attacks.host(sandboxed=False, **probe) as host:
        yield host


@pytest.fixture(params=[True, False], ids=["sandboxed", "plain"])
def how(request, probe):
    """With and without a sandbox, for tests that start hosts of their own."""
    return {"sandboxed": request.param, **({} if request.param else probe)}


def said_by(host, source: str, count: int = 1) -> list:
    """One message of each of these ranks."""
    ranks = host.start(count)
    for rank in ranks:
        run(rank, source)
    said = [heard(rank) for rank in ranks]
    ended(host, ranks)
    return said


# ---- nothing is shared -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
def test_a_rank_reaches_no_other_of_its_world_or_of_an_earlier_one(host, name):
    assert both(host, name) == [False, False]


@pytest.mark.parametrize("name", sorted(PAIRS.keys() - {*FAIL_ANYWHERE, *NOT_OUTSIDE}))
def test_without_a_sandbox_they_reach_each_other(plain, name):
    """So in the test above it is the sandbox that keeps them apart."""
    assert both(plain, name)[0] is True


EXPECTED = {
    # -1 means all others but the first; the parent lives outside
    "processes": [True, [], "ESRCH", 0],
    "the first process": ["EACCES"] * 6,
    "other processes' memory": ["EPERM"] * 3,
    "privileges": [[0], 1, 2, 1],
    "namespaces": ["EPERM"],
    "clone3": "ENOSYS",
    "being root": [True, *["EPERM"] * 6, "1000"],
    "system calls": ["EPERM"] * 7,
    "descriptors": [["/dev/null"] * 3 + ["socket"], 5, True, "sandbox", ["lo"], 0],
    "statistics": ["self", "thread-self"],
    "folders": ["/dev/shm", "/tmp", "/tmp/home"],
    "full folders": [["ENOSPC", True, True]] * 4,
    "limits": [],
}


@pytest.mark.parametrize("name", ALONE)
def test_a_rank_may_do_nothing_but_compute(host, name):
    assert alone(host, name) == EXPECTED[name]


def test_signals_to_all_numbers_hit_no_other_rank(host):
    ranks = host.start(2)
    run(ranks[0], "say(os.getpid()); say(hear())")
    run(ranks[1], "hear(); say([tried(os.kill, pid, 9) for pid in range(2, 5000) if pid != os.getpid()].count('done'))")
    pid = heard(ranks[0])
    tell(ranks[1], pid)
    assert heard(ranks[1]) == 0
    tell(ranks[0], "still here")
    assert heard(ranks[0]) == "still here"
    ended(host, ranks)


def test_each_rank_has_its_own_pid_and_a_different_user_from_the_host(host):
    said = said_by(host, "say([os.getpid(), os.getuid()])", 4)
    assert len({pid for pid, _ in said}) == 4
    if bubblewrap.as_root():
        assert {user for _, user in said} == {host.box.user}


def test_it_sees_no_course_no_home_and_no_environment_of_the_judge(monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", "SECRET")
    look = """
        import grader
        root = os.path.dirname(os.path.dirname(grader.__file__))
        environment = open("/proc/self/environ").read() + str(dict(os.environ))
        say([sorted(os.listdir(root + "/grader")), "SECRET" in environment, os.listdir(os.environ["HOME"])])
    """
    with rank_attacks.host() as host:
        assert said_by(host, look) == [[["__init__.py", "inside"], False, []]]


def test_shared_folders_are_visible_wherever_they_lie():
    """A course may lie in /tmp."""
    files = {"/probe/probe.py": PROBE, "/tmp/a b/given": "x", "/tmp/a b/c/given": "y", "/dev/shm/given": "z"}
    look = """
        for path in ("/tmp/a b/given", "/tmp/a b/c/given", "/dev/shm/given"):
            say([open(path).read(), tried(open, path, "a")])
            hear()
    """
    with rank_attacks.host(files=files) as host:
        [rank] = ranks = host.start(1)
        run(rank, look)
        for content in "xyz":
            assert heard(rank) == [content, "EACCES"]
            tell(rank, "go on")
        ended(host, ranks)


# ---- the end of ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["host", "plain"])
def test_the_status_of_each_rank_is_reported(kind, request):
    host = request.getfixturevalue(kind)
    ranks = host.start(4)
    for rank, source in zip(
        ranks, ["pass", "os._exit(7)", "os.kill(os.getpid(), 15)", "raise SystemExit"], strict=True
    ):
        run(rank, source)
        assert heard(rank) is None
    statuses = host.end(ranks)
    assert statuses[1:] == [7, 143, 1] and statuses[0] == 0


@pytest.mark.parametrize("kind", ["host", "plain"])
@pytest.mark.parametrize(
    "stubborn",
    [
        "for number in {*range(1, 32)} - {9, 19}: signal.signal(number, signal.SIG_IGN)\nsay(1); time.sleep(60)",
        "say(1); os.kill(os.getpid(), signal.SIGSTOP)",
        "say(1); line.close(); os.closerange(0, 100)\nwhile True: pass",
        "threading.Thread(target=time.sleep, args=(60,)).start()\nsay(1)",
        "say(1)\nclass Left:\n  def __del__(self):\n    while True: pass\nleft = Left(); del left",
    ],
    ids=["ignores signals", "stops itself", "closes its socket and loops", "leaves a thread", "loops when collected"],
)
def test_a_stubborn_rank_is_ended(kind, request, stubborn):
    host = request.getfixturevalue(kind)
    ranks = host.start(2)
    for rank in ranks:
        run(rank, stubborn)
        assert heard(rank) == 1
    assert set(ended(host, ranks)) <= {137, 0}
    assert host.alive and host.stopped is None


LEAVE = """
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                os.set_inheritable(line.fileno(), True)
                code = "import sys, time; sys.argv[2:] and time.sleep(60)"
                os.execv(sys.executable, [sys.executable, "-S", "-c", code, MARK, "x"])
            os._exit(0)
    say(1)
"""


@pytest.mark.parametrize("kind", ["host", "plain"])
def test_no_process_outlives_its_rank(kind, request):
    host, mark = request.getfixturevalue(kind), f"left-by-a-rank-{os.getpid()}-{time.time()}"
    ranks = host.start(1)
    run(ranks[0], f"MARK = {mark!r}\n" + textwrap.dedent(LEAVE) + "hear()")
    assert heard(ranks[0]) == 1
    wait_until(lambda: len(processes_with(mark)) == 2)
    ended(host, ranks)
    assert processes_with(mark) == []


def test_no_process_outlives_the_host(how):
    mark = f"left-in-the-end-{os.getpid()}-{time.time()}"
    with rank_attacks.host(**how) as host:
        [rank] = host.start(1)
        run(rank, f"MARK = {mark!r}\n" + textwrap.dedent(LEAVE) + "hear()")
        assert heard(rank) == 1
        wait_until(lambda: len(processes_with(mark)) == 2)
    assert processes_with(mark) == [] and host.stopped == "it was closed"


def test_what_a_rank_leaves_behind_ends_when_its_process_ends(host):
    """Without a request: its socket, which those processes hold open, closes then."""
    [rank] = ranks = host.start(1)
    mark = f"left-behind-{os.getpid()}-{time.time()}"
    run(rank, f"MARK = {mark!r}\n" + textwrap.dedent(LEAVE))
    assert heard(rank) == 1
    assert heard(rank) is None
    assert ended(host, ranks) == [0]
    assert processes_with(mark) == []


@pytest.mark.parametrize("processes", [60, Limits.processes])
def test_a_fork_bomb_is_bounded_and_the_next_ranks_start(processes):
    """By the sandbox's limit on processes, or by that of the ranks."""
    bomb = """
        made = 0
        try:
            while made < 500:
                if os.fork() == 0:
                    time.sleep(60)
                made += 1
        except BlockingIOError:
            say(made)
        time.sleep(60)
    """
    most = min(processes, PROCESSES_PER_RANK + EXTRA_PROCESSES)
    with rank_attacks.host(replace(QUICK, processes=processes)) as host:
        assert most / 3 < said_by(host, bomb)[0] < most
        assert said_by(host, "say(1)", 2) == [1, 1]


@pytest.mark.parametrize("killed", ["judge", "host"])
def test_no_process_is_left_when_the_judge_or_the_host_is_killed(killed, how):
    mark = f"rank-{killed}-{os.getpid()}-{time.time()}"
    sleep = f"say(1); os.execv(sys.executable, ['python', '-c', 'import time; time.sleep(60)', {mark!r}])"
    source = f"""
        from grader.judging.rank_host import HostGone
        from tests.rank_attacks import *
        with host(**{how}) as box:
            ranks = box.start(2)
            for rank in ranks:
                run(rank, {sleep!r})
                heard(rank)
            print(box.box.pid if {how["sandboxed"]} else box.box.process.pid, flush=True)
            print(heard(ranks[0]), heard(ranks[1]), flush=True)
            try:
                box.start(1)
            except HostGone as error:
                print("gone:", error)
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as judge:
        pid = int(judge.stdout.readline())
        wait_until(lambda: len(processes_with(mark)) == 2)
        os.kill(judge.pid if killed == "judge" else pid, signal.SIGKILL)
        wait_until(lambda: not processes_with(mark))
        if killed == "host":
            assert judge.stdout.readline() == "None None\n"
            assert judge.stdout.readline().startswith("gone: the process that forks ranks ended with status 137")


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---- the end of all --------------------------------------------------------------------------------------------------

HOLD = "x = bytearray(b'x') * 200_000_000; say(1); hear()"


def test_memory_of_all_ranks_counts_together():
    with rank_attacks.host(replace(QUICK, memory=500 * MB)) as host:
        assert said_by(host, HOLD) == [1]
        ranks = host.start(4)
        for rank in ranks:
            run(rank, HOLD)
        while host.stopped is None:
            time.sleep(0.01)
        assert "of memory; 500 MB are allowed" in host.stopped and not host.alive
        for ask in (lambda: host.start(1), lambda: host.end(ranks)):
            with pytest.raises(HostGone, match="500 MB are allowed"):
                ask()


def test_memory_that_ranks_share_with_the_host_counts_once():
    large = "x = bytearray(b'x') * 200_000_000\n" + PROBE
    with rank_attacks.host(replace(QUICK, memory=450 * MB), files={"/probe/probe.py": large}) as host:
        assert said_by(host, "time.sleep(0.5); say(1)", 4) == [1] * 4
        assert host.stopped is None


def test_the_wall_time_ends_all(how):
    with rank_attacks.host(Limits(wall=1.5), **how) as host:
        ranks = host.start(2)
        for rank in ranks:
            run(rank, "while True: pass")
        assert [heard(rank) for rank in ranks] == [None, None]
        assert host.stopped == "took longer than 1.5 s", "as soon as a rank is seen to be gone"
        with pytest.raises(HostGone, match="took longer than 1.5 s"):
            host.start(1)


@pytest.mark.parametrize("sandboxed", [True, False])
def test_a_host_that_can_not_start_says_why(sandboxed):
    with (
        RankHost(QUICK, entry="no_such_module:main", modules=(), sandboxed=sandboxed) as host,
        pytest.raises(HostGone, match="No module named 'no_such_module'"),
    ):
        host.start(1)


def test_without_a_sandbox_it_refuses(monkeypatch):
    monkeypatch.setattr(bubblewrap, "why_not", lambda: "there is no bwrap")
    with pytest.raises(NoSandbox, match="there is no bwrap"):
        RankHost(QUICK)


@pytest.mark.parametrize(
    "words", [b"x" * 10**6, b"[1]\n", b"\xff\n", b'{"started": "2"}\n', b'{"ready": 1}\n', b"[" * 60_000 + b"\n"]
)
def test_a_malformed_answer_ends_the_host(words):
    """The host is trusted, but it shares the sandbox with processes that are not."""
    with rank_attacks.host() as host:
        host.start(1)
        ours, theirs = socket.socketpair()
        host.socket.close()
        host.socket = ours
        with theirs:
            theirs.settimeout(0.5)
            try:
                theirs.sendall(words)
            except TimeoutError:
                pass
            with pytest.raises(HostGone):
                host.start(2)
        assert not host.alive


# ---- right work ------------------------------------------------------------------------------------------------------

COMPUTE = """
    import random, numpy, torch
    x = torch.ones(300, 300, requires_grad=True)
    (x @ x).sum().backward()
    random_numbers = [random.random(), numpy.random.rand(), torch.rand(1).item()]
    say([random_numbers, torch.get_num_threads(), float(x.grad.sum())])
"""


@pytest.mark.parametrize("sandboxed", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_ranks_compute_alike_on_one_thread_each(sandboxed, probe):
    how = {} if sandboxed else probe
    with rank_attacks.host(sandboxed=sandboxed, modules=ranks_module.PRELOADED, **how) as host:
        [first, *others] = said_by(host, COMPUTE, 3)
        assert first[1:] == [1, 300 * 300 * 600.0]
        assert others == [first, first]
        assert said_by(host, COMPUTE) == [first]


# ---- as an ordinary user ---------------------------------------------------------------------------------------------


@if_root
def test_an_ordinary_users_ranks_share_nothing_either():
    pairs, singles = map(json.loads, said_to_an_ordinary_user("-m", "tests.rank_attacks").splitlines())
    assert pairs == {"pairs": {name: [False, False] for name in PAIRS}}
    assert singles == {"alone": EXPECTED}
