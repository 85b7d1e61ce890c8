"""The network interface by which this machine reaches the first one of its job."""

from __future__ import annotations

import ipaddress
import socket

ANYWHERE = "192.0.2.1"  # an address that nobody has; the way to it is the way out


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
