"""The network interface over which this machine reaches the first one of its job."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

ANYWHERE = "192.0.2.1"  # an address that no machine has: the route to it is the route to other networks


def interface_towards(host: str) -> str | None:
    """The network interface through which this machine reaches `host`; on `host` itself, the one that has its address.

    Gloo by itself takes the address that this machine's name resolves to. Often that is 127.0.1.1, which no other
    machine can reach, and without a name server there is none. So if `host` means loopback here, but not on every
    machine (as "localhost" does), the interface towards other networks is taken.
    """
    own = address_towards(host)
    return next((name for name, addresses in addresses_of_interfaces().items() if own in addresses), None)


def address_towards(host: str) -> str:
    """The address of that interface, at which the other machines of the job reach this one."""
    own = own_address_towards(host)
    if is_loopback(own) and not says_loopback(host):
        own = outside_address() or own
    return own


def own_address_towards(host: str) -> str:
    """This machine's own address on the route to `host`, preferably one that others can reach. Nothing is sent.

    Raises RuntimeError if `host` is unknown, or there is no route to it.
    """
    try:
        found = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise RuntimeError(
            f"This machine ({socket.gethostname()}) can't find the first one of the job: MASTER_ADDR={host} "
            f"({error.strerror}). Give its address instead: torchrun --master-addr 10.0.0.1 ..., "
            "or MASTER_ADDR=10.0.0.1 in front of srun."
        ) from None
    own = {own for family, *_, address in found if (own := source_address(family, address))}
    if not own:
        raise RuntimeError(
            f"This machine ({socket.gethostname()}) has no route to the first one of the job: MASTER_ADDR={host}."
        )
    return min(own, key=lambda address: (is_loopback(address), address))


def source_address(family: int, address: tuple[Any, ...]) -> str | None:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)  # a datagram socket: this only looks up the route
        except OSError:
            return None
        own: str = probe.getsockname()[0]
        return own.partition("%")[0]


def outside_address() -> str | None:
    """This machine's address towards other networks; if there is no route there, any address that is not loopback."""
    others = [own for addresses in addresses_of_interfaces().values() for own in addresses if not is_loopback(own)]
    return source_address(socket.AF_INET, (ANYWHERE, 1)) or min(others, key=lambda own: ":" in own, default=None)


def addresses_of_interfaces() -> dict[str, list[str]]:
    """{interface: its IP addresses}, of the interfaces that are up."""
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
    """Whether `host` means loopback on every machine, not just on this one."""
    try:
        return is_loopback(host)
    except ValueError:  # a name
        return host == "localhost"
