"""`spawn` on unusual machines: no network names, no room, few descriptors or processes, no safe fork."""

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.long

SUM = """
    import os, sys, time
    import torch, torch.distributed as dist
    from utils import spawn
    def program(rank, world_size):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        return x.item()
"""


@pytest.fixture
def script(root, tmp_path):
    """Runs `source` as a script, through a line of shell. Returns what it printed; its stderr must stay empty."""

    def run(source: str, shell: str = "exec {python} script.py", **environment) -> str:
        (tmp_path / "script.py").write_text(textwrap.dedent(SUM) + textwrap.dedent(source))
        done = subprocess.run(
            ["bash", "-ec", shell.format(python=sys.executable)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(root), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stderr == ""
        return done.stdout

    return run


def can_unshare(*kinds: str) -> bool:
    return subprocess.run(["unshare", *kinds, "true"], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    sys.platform != "linux" or not can_unshare("--net", "--uts", "--mount"), reason="needs the right to make namespaces"
)


@needs_namespaces
@pytest.mark.thorough
def test_without_names_and_without_a_network(script):
    """No DNS, only loopback, a host name that can't be resolved: FileStore and loopback need none of these."""
    shell = (
        "exec unshare --net --uts bash -ec 'hostname no-such-host.invalid; ip link set lo up; exec {python} script.py'"
    )
    assert script("print(spawn(program, 3).results)", shell) == "[3.0, 3.0, 3.0]\n"


@needs_namespaces
@pytest.mark.parametrize("options", ["size=64k", "ro"])
@pytest.mark.thorough
def test_a_temporary_folder_that_is_full_or_read_only(script, options, tmp_path):
    """Then the world's folder is in memory; if that is full as well, one line says what is missing."""
    (tmp_path / "small").mkdir()
    inner = "mount -t tmpfs -o {options} none small; {more} export TMPDIR=$PWD/small; exec {{python}} script.py"
    shell = "exec unshare --mount bash -ec '" + inner + "'"
    works = script("print(spawn(program, 3).results)", shell.format(options=options, more=""))
    assert works == "[3.0, 3.0, 3.0]\n"
    source = """
        import tempfile
        tempfile.tempdir = os.environ["TMPDIR"]
        try:
            spawn(program, 3)
        except RuntimeError as error:
            print(error)
    """
    no_memory = f"mount -t tmpfs -o {options} none /dev/shm;"
    says = script(source, shell.format(options=options, more=no_memory))
    assert says.startswith("The ranks need a temporary folder with 8 MB free; neither ") and says.count("\n") == 1


def test_few_descriptors(script):
    source = """
        try:
            spawn(program, 40)
        except RuntimeError as error:
            print(error)
        print(spawn(program, 2).results)
    """
    said = script(source, "ulimit -n 60; exec {python} script.py")
    assert said == "40 ranks need more open files than this process may have. Use fewer ranks.\n[1.0, 1.0]\n"


FORKS_TWICE = """
import os
fork, left = os.fork, ["stand-in", "rank 0", "rank 1"]
def fork_twice():
    if not left:
        raise BlockingIOError(11, 'Resource temporarily unavailable')
    left.pop()
    return fork()
os.fork = fork_twice
"""


@pytest.mark.thorough
def test_few_processes(script):
    """The system refuses the third fork: the first two are ended, and one line says why."""
    source = """
        from utils.worlds.real.zygote import client
        client.zygote.stop()
        client.PROGRAM = os.environ["FORKS_TWICE"] + client.PROGRAM
        try:
            spawn(program, 4)
        except RuntimeError as error:
            print(error)
    """
    assert script(source, FORKS_TWICE=FORKS_TWICE) == (
        "This machine does not allow 4 ranks: only 2 of 4 could be started: "
        "[Errno 11] Resource temporarily unavailable. Use fewer.\n"
    )


@pytest.mark.thorough
def test_without_fork(script):
    """Fresh interpreters behind the same call: values, failures, a crash, a stuck world."""
    source = """
        from utils import RankCrashed, RankFailed, WorldStuck
        run = spawn(lambda rank, n: (program(rank, n), torch.rand(1)), 2)
        print(run.results == [(1.0, torch.rand(1, generator=torch.manual_seed(0)))] * 2, len(run.events))
        def fails(rank, world_size):
            if rank == 1:
                raise ValueError("no luck")
            dist.barrier()
        def dies(rank, world_size):
            if rank == 1:
                os._exit(7)
            dist.barrier()
        def waits(rank, world_size):
            if rank == 1:
                dist.barrier()
        for bad, kind in ((fails, RankFailed), (dies, RankCrashed), (waits, WorldStuck)):
            try:
                spawn(bad, 2)
            except kind as error:
                print(str(error).splitlines()[0])
    """
    assert script(source, SPAWN_WITHOUT_FORK="1").splitlines() == [
        "True 2",
        "rank 1 raised ValueError: no luck",
        "rank 1 exited with code 7: something called os._exit, or its interpreter could not continue.",
        "rank 1 can't move any more, and the other has finished.",
    ]


@pytest.mark.thorough
def test_a_fork_that_would_not_be_a_clean_start(script):
    """With a second thread in the zygote, ranks are fresh interpreters, and a line says so once."""
    source = """
        from utils.worlds.real.zygote import client
        client.zygote.stop()
        thread = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start();"
        client.PROGRAM = thread + client.PROGRAM
        print(spawn(program, 2).results, spawn(program, 1).results)
    """
    note = "Each rank is a fresh interpreter, which takes seconds instead of milliseconds: "
    assert script(source) == note + "importing torch has started 1 thread.\n[1.0, 1.0] [0.0]\n"
