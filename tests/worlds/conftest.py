"""Jobs as torchrun starts them, on one machine and on two, for the tests of whatever runs inside one.

Two machines are two network namespaces joined by a cable. Where none can be made, two agents still meet on loopback.
"""

import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest
import torch.distributed as dist

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
DEADLINE = 120  # seconds; none of these runs needs a quarter of it


@pytest.fixture
def run(root, tmp_path):
    """Runs a command in a folder of its own, with these variables. Returns what subprocess.run returns."""

    def run(*command, **variables):
        inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        env = {**inherited, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **variables}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=tmp_path, env=env, **pipes) as process:
            try:
                out, err = process.communicate(timeout=DEADLINE)
            except BaseException:
                for child in psutil.Process(process.pid).children(recursive=True):  # torchrun's would outlive it
                    child.kill()
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


@pytest.fixture
def on_loopback(run):
    """Runs torchrun twice, as on two machines. They meet at a store of ours, so no free port has to be found."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meet = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{store.port}", "--rdzv-conf=is_host=0"]

    def torchrun(*arguments):
        with ThreadPoolExecutor(2) as pool:
            command = [*TORCHRUN, *meet, "--local-addr=127.0.0.1", *map(str, arguments)]
            return list(pool.map(lambda _: run(*command), range(2)))

    return SimpleNamespace(torchrun=torchrun, interface="lo", store=store)


# What makes two machines, and takes them away with the process that it runs in, however that ends. As on many real ones
# there is no name server, and each machine's own name is 127.0.1.1.
TWO_MACHINES = """
set -e
mount -t tmpfs none /run
ip netns add second
ip link add cable type veth peer name cable netns second
for on in "ip" "ip -n second"; do $on link set lo up; $on link set cable up; done
ip address add 10.77.0.1/24 dev cable
ip -n second address add 10.77.0.2/24 dev cable
printf '127.0.0.1 localhost\\n127.0.1.1 gpu03\\n10.77.0.2 gpu04\\n' >/run/hosts-1
printf '127.0.0.1 localhost\\n10.77.0.1 gpu03\\n127.0.1.1 gpu04\\n' >/run/hosts-2
mount --bind /run/hosts-1 /etc/hosts
set +e
(sh -c "$FIRST" >1.out 2>1.err; echo $? >1.code) &
ip netns exec second sh -c 'mount --bind /run/hosts-2 /etc/hosts; exec sh -c "$SECOND"' >2.out 2>2.err
echo $? >2.code
wait
"""
ISOLATED = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]


@pytest.fixture
def two_machines(run, tmp_path):
    """Runs commands on two machines, 10.77.0.1 and 10.77.0.2."""

    def both(first, second):
        made = run(*ISOLATED, "--mount-proc", "sh", "-c", TWO_MACHINES, FIRST=first, SECOND=second)
        assert made.returncode == 0, made.stderr
        texts = [[(tmp_path / f"{number}.{what}").read_text() for what in ("code", "out", "err")] for number in (1, 2)]
        return [subprocess.CompletedProcess("", int(code), out, err) for code, out, err in texts]

    def torchrun(*arguments):
        meet = ["--nnodes=2", "--master-addr=10.77.0.1", "--master-port=29500"]
        return both(*(shlex.join([*TORCHRUN, *meet, f"--node-rank={n}", *map(str, arguments)]) for n in range(2)))

    try:
        both("true", "true")
    except (OSError, AssertionError) as error:
        pytest.skip(f"no network namespaces can be made here: {error}")
    return SimpleNamespace(torchrun=torchrun, both=both, interface="cable")


@pytest.fixture
def two_nodes(request):
    """Two machines, or the closest thing to them that this one allows."""
    try:
        return request.getfixturevalue("two_machines")
    except pytest.skip.Exception:
        return request.getfixturevalue("on_loopback")
