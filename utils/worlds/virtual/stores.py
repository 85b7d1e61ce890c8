"""The stores at which virtual ranks meet, in place of files and servers.

A real one waits in C++, and meanwhile no other rank gets a turn.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...events.failure import NEVER_SET
from .rank import World

NAME_KEY = "name of the store"  # get() returns the store's name for it, also from behind prefixes
FIRST_PAUSE, LONGEST_PAUSE = 1e-6, 1e6  # virtual seconds between two looks for a key in a store


def poll(world: World, store: dist.Store, keys: list[str]) -> None:
    """Let the running rank look for `keys`, less and less often, until they are there.

    Raises RuntimeError if no rank sets them.
    """
    rank, pause = world.running, FIRST_PAUSE
    while not store.check(keys):
        if pause > LONGEST_PAUSE:
            raise RuntimeError(f"rank {rank.number} waits for {keys} {NEVER_SET}")
        rank.clock += pause
        pause *= 1.1
        world.scheduler.yield_turn(rank)


class VirtualStore(dist.Store):
    """The store that all ranks find behind one file name or address."""

    def __init__(self, name: str, world: World):
        super().__init__()
        self.name, self.world = name, world
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self.values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        if key.endswith(NAME_KEY):
            return self.name.encode()
        poll(self.world, self, [key])
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        there = self.values.get(key)
        if there == (expected.encode() if isinstance(expected, str) else bytes(expected)) or (
            there is None and not expected
        ):
            self.set(key, desired)
        return self.values.get(key, b"")

    def check(self, keys: list[str]) -> bool:
        return all(key.endswith(NAME_KEY) or key in self.values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        poll(self.world, self, keys)

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self.values)

    def set_timeout(self, timeout: timedelta) -> None:
        """Nothing to do: a rank that waits in vain is noticed at once."""


def share_stores(store_named: Callable[[str], Any]) -> None:
    """From now on, ranks that open the same file or address get the same store, the one with its name."""
    ports = itertools.count(29501)

    def file_store(path: object, world_size: int = -1) -> Any:
        return store_named(f"file {path}")

    def tcp_store(host_name: str, port: int, *args: Any, **kwargs: Any) -> Any:
        port = port or next(ports)
        store = store_named(f"tcp {host_name}:{port}")
        store.host, store.port = host_name, port
        return store

    for module in (dist, sys.modules["torch.distributed.rendezvous"]):  # dist.rendezvous is a function
        vars(module).update(FileStore=file_store, TCPStore=tcp_store)
