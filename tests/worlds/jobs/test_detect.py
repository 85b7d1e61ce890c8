"""What torchrun and SLURM tell about a job: what is a rank, which one is first, over which network it is reached."""

import collections
import os
import socket

import IPython
import psutil
import pytest

from utils.worlds.jobs import detect, network_interface

TASK = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_JOB_ID": "1234567",
}


@pytest.fixture
def environment(monkeypatch):
    """An empty environment."""
    monkeypatch.setattr(os, "environ", {})
    return os.environ


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu7,gpu9", "gpu7"),
        ("gpu[03-05,9],login1", "gpu03"),
        ("gpu[9,11-12]", "gpu9"),
        ("login1,gpu[03-05]", "login1"),
        ("rack[2-3]node[007,009],x", "rack2node007"),
        ("gpu-[001-128]-ib.cluster.example", "gpu-001-ib.cluster.example"),
        ("node-a,node-[b,c]", "node-a"),
        ("[1-3]", "1"),
    ],
)
def test_first_host_of_a_list(nodes, first):
    assert detect.first_host(nodes) == first


def test_a_task_of_srun_gets_what_torch_needs(environment):
    environment |= TASK
    assert detect.launcher() == "slurm" and not detect.is_first_process()
    environment |= {
        "MASTER_ADDR": "10.1.1.1",
        "LOCAL_RANK": "0",
        "GLOO_SOCKET_IFNAME": "ib0",
    }  # set by hand, so they stay
    detect.set_variables()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
    assert [environment[name] for name in names] == ["5", "8", "0", "10.1.1.1", "24567", "ib0"]
    assert detect.slurm_variables()["MASTER_ADDR"] == "gpu03"


def test_not_every_process_in_a_job_is_a_rank(environment, monkeypatch):
    assert detect.launcher() is None and detect.is_first_process()
    environment |= TASK | {"SLURM_STEP_NUM_TASKS": "1"}
    assert detect.launcher() is None  # a task of one
    environment.pop("SLURM_STEP_NUM_TASKS")
    environment |= {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}
    assert detect.launcher() is None  # a batch script, which should call srun
    environment |= {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    assert detect.launcher() == "torchrun"
    monkeypatch.setattr(IPython, "get_ipython", object)
    assert detect.launcher() is None  # a notebook's kernel


@pytest.fixture
def machine(monkeypatch):
    """A machine with a loopback, a management network that leads out, a fast one, and one that is down.

    It is called "here", which its hosts file gives as 127.0.1.1. Nothing about its network is asked of the real one.
    """
    Address = collections.namedtuple("Address", "family address")
    interfaces = {"lo": "127.0.0.1", "eno1": "192.168.7.5", "ib0": "10.0.0.5", "docker0": "172.17.0.1"}
    routes = {"127.": "127.0.0.1", "10.0.0.": "10.0.0.5", "192.": "192.168.7.5"}
    hosts = {"here": "127.0.1.1", "gpu03": "10.0.0.3", "localhost": "127.0.0.1", "far": "203.0.113.9"}

    def getaddrinfo(host, port, **_):
        if host not in hosts and not host[0].isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (hosts.get(host, host), port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(
        network_interface,
        "source_address",
        lambda _, address: next((routes[r] for r in routes if address[0].startswith(r)), None),
    )
    up = collections.namedtuple("State", "isup")
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: up(name != "docker0") for name in interfaces})
    addresses = {name: [Address(socket.AF_INET, address)] for name, address in interfaces.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    return routes


@pytest.mark.parametrize(
    ("first", "interface"),
    [
        ("gpu03", "ib0"),  # another machine: the interface on the route to it
        ("10.0.0.5", "ib0"),  # this machine: the interface that has the address
        ("localhost", "lo"),
        ("127.0.0.1", "lo"),
        ("here", "eno1"),  # this machine, by a name that means loopback only here: the interface towards other networks
    ],
)
def test_interface_towards_the_first_machine(machine, first, interface):
    assert network_interface.interface_towards(first) == interface


def test_a_name_that_means_loopback_without_other_networks(machine):
    del machine["192."]
    assert network_interface.interface_towards("here") in ("eno1", "ib0")  # one that is up and not loopback


def test_a_first_machine_that_is_not_found_says_what_to_do(machine):
    with pytest.raises(RuntimeError, match=r"MASTER_ADDR=gpu99 .*torchrun --master-addr 10"):
        network_interface.interface_towards("gpu99")
    with pytest.raises(RuntimeError, match="no route to the first one of the job: MASTER_ADDR=far"):
        network_interface.interface_towards("far")


def test_the_interface_of_this_machine_is_found():
    """The same on the real network, of which every machine has at least loopback."""
    assert network_interface.interface_towards("127.0.0.1") in psutil.net_if_addrs()
    assert network_interface.source_address(socket.AF_INET, ("127.0.0.1", 1)) == "127.0.0.1"
