"""The job that this process may be a rank of: who it is in it, and by which network it reaches the others.

torchrun   has set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
srun       has set SLURM's own; the five are made from them, each only where it is not set by hand
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys

PORTS = range(20000, 30000)  # MASTER_PORT under SLURM: below the ports that Linux gives to outgoing connections
ANYWHERE = "192.0.2.1"  # an address that nobody has; the way to it is the way out


def launcher() -> str | None:
    """Who started this process as one rank of many: "torchrun", "slurm", or None if nobody did.

    A notebook's kernel is no rank: a tutorial's cell may have set these by hand, or the kernel runs inside a job. A
    batch script is none either: only for what srun starts does SLURM count the tasks of the step.
    """
    if in_notebook():
        return None
    if all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
        return "torchrun"
    is_task = "SLURM_PROCID" in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1
    return "slurm" if is_task else None


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def is_first_process() -> bool:
    """Whether this process is rank 0 of its job, or in none."""
    return launcher() is None or int(os.environ.get("RANK") or os.environ["SLURM_PROCID"]) == 0


def set_variables() -> None:
    """Make the environment what `torch.distributed` needs to join the world of this job."""
    if launcher() == "slurm":
        for name, value in slurm_variables().items():
            os.environ.setdefault(name, value)
    if "GLOO_SOCKET_IFNAME" not in os.environ and (interface := interface_towards(os.environ["MASTER_ADDR"])):
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def slurm_variables() -> dict[str, str]:
    """torchrun's variables, from those of the step that this task belongs to."""
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ["SLURM_NODELIST"]
    return {
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": os.environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "MASTER_ADDR": first_host(nodes),
        "MASTER_PORT": str(PORTS[int(os.environ["SLURM_JOB_ID"]) % len(PORTS)]),
    }


def first_host(nodes: str) -> str:
    """The first host of a list as SLURM writes it: gpu03 of "gpu[03-05,9],login1"."""
    first = re.match(r"(\[[^\]]*\]|[^,\[])*", nodes.strip())[0]
    return re.sub(r"\[(\w*)[^\]]*\]", r"\1", first)


# --- which network


def interface_towards(host: str) -> str | None:
    """The network interface through which this machine reaches `host`; on `host` itself, the one that has its address.

    Gloo's own choice is the address of this machine's name. That is often 127.0.1.1, where no other machine reaches it,
    and without a name server it is nothing at all. So a name that means loopback here only counts when it says so.
    """
    own = own_address_towards(host)
    if is_loopback(own) and not says_loopback(host):
        own = way_out() or own
    return next((name for name, addresses in addresses_of_interfaces().items() if own in addresses), None)


def own_address_towards(host: str) -> str:
    """This machine's own address on the way to `host`, preferably one that others can reach. Nothing is sent."""
    try:
        found = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise RuntimeError(
            f"This machine ({socket.gethostname()}) does not know the first one of the job: MASTER_ADDR={host} "
            f"({error.strerror}). Give its address instead: torchrun --master-addr 10.0.0.1 ..., "
            "or MASTER_ADDR=10.0.0.1 in front of srun."
        ) from None
    own = {own for family, *_, address in found if (own := source_address(family, address))}
    if not own:
        raise RuntimeError(
            f"This machine ({socket.gethostname()}) has no way to the first one of the job: MASTER_ADDR={host}."
        )
    return min(own, key=lambda address: (is_loopback(address), address))


def source_address(family: int, address: tuple) -> str | None:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)  # of a datagram socket: only looks up the route
        except OSError:
            return None
        return probe.getsockname()[0].partition("%")[0]


def way_out() -> str | None:
    """This machine's address towards other networks; without a way there, one that is no loopback's."""
    others = [own for addresses in addresses_of_interfaces().values() for own in addresses if not is_loopback(own)]
    return source_address(socket.AF_INET, (ANYWHERE, 1)) or min(others, key=lambda own: ":" in own, default=None)


def addresses_of_interfaces() -> dict[str, list[str]]:
    """{interface: its IP addresses} of those that are up."""
    import psutil  # only here, so that `import utils` is quick

    is_up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return {
        name: [a.address.partition("%")[0] for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)]
        for name, addresses in psutil.net_if_addrs().items()
        if name in is_up
    }


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def says_loopback(host: str) -> bool:
    """Whether `host` means loopback on every machine, not only on this one."""
    try:
        return is_loopback(host)
    except ValueError:  # a name
        return host == "localhost"
