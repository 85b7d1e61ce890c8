"""Four ranks that initialize, all-reduce and return a result: `spawn` beside other ways that a notebook has.

The rivals' program sets up its process group itself, with a FileStore: the fastest, as a TCPStore looks up host names.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing

from tests.bench import Row

WORLD_SIZE = 4
LATER = 4  # calls after the first, as far as they start within two seconds
AFTER_THE_IMPORT = 2.0  # seconds before the first call, which a student has to type
OURS = "utils.spawn"
Call = Callable[[int], list[float]]


def all_reduce(rank: int, world_size: int, rendezvous: str = "") -> float:
    """rendezvous: path of a file that doesn't exist yet; none if the process group is there"""
    if rendezvous:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.FileStore(rendezvous, world_size), rank=rank, world_size=world_size)
    x = torch.full((4,), float(rank))
    dist.all_reduce(x)
    if rendezvous:
        dist.destroy_process_group()
    return x[0].item()


def put_all_reduce(rank, world_size, rendezvous, results) -> None:
    results.put(all_reduce(rank, world_size, rendezvous))


@contextmanager
def by_utils() -> Iterator[Call]:
    """Ranks are forked from a process that has imported torch."""
    from utils import spawn

    yield lambda world_size: spawn(all_reduce, world_size).results


@contextmanager
def by_torch(method: str) -> Iterator[Call]:
    """Fresh interpreters, each imports torch; or forks of this process, which hang once it has run a backward pass."""

    def call(world_size: int) -> list[float]:
        results = torch.multiprocessing.get_context(method).SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            args = (world_size, f"{folder}/store", results)
            torch.multiprocessing.start_processes(put_all_reduce, args, world_size, start_method=method)
        return [results.get() for _ in range(world_size)]

    yield call


@contextmanager
def by_ipyparallel() -> Iterator[Call]:
    """Persistent engines that have imported torch."""
    import ipyparallel

    cluster = ipyparallel.Cluster(n=WORLD_SIZE, log_level=logging.ERROR)
    engines = cluster.start_and_connect_sync()[:]
    engines.execute("from tests.bench import launchers", block=True)

    def call(world_size: int) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            return engines.map_sync(all_reduce, range(world_size), [world_size] * world_size, [f"{folder}/store"] * 4)

    yield call
    cluster.stop_cluster_sync()


LAUNCHERS = {
    OURS: by_utils,
    "torch.multiprocessing.spawn": partial(by_torch, "spawn"),
    "torch.multiprocessing, fork": partial(by_torch, "fork"),
    "ipyparallel": by_ipyparallel,
}
CASES = list(LAUNCHERS)


def measure(name: str, quick: bool = False) -> list[Row]:
    with LAUNCHERS[name]() as call:
        time.sleep(AFTER_THE_IMPORT)
        rows: list[Row] = [{"name": f"{name}: first call", "values": [seconds_of(call, WORLD_SIZE)]}]
        rows.append({"name": f"{name}: later calls", "values": later(call, WORLD_SIZE)})
        if name == OURS:
            eight = {"name": f"{name}: 8 ranks", "values": later(call, 8), "beside": f"{OURS}: later calls"}
            return [*rows, eight]
        return [{**row, "beside": row["name"].replace(name, OURS)} for row in rows]


def later(call: Call, world_size: int) -> list[float]:
    taken: list[float] = []
    while len(taken) < LATER and sum(taken) < 2:
        taken.append(seconds_of(call, world_size))
    return taken


def seconds_of(call: Call, world_size: int) -> float:
    began = time.perf_counter()
    results = call(world_size)
    taken = time.perf_counter() - began
    if results != [world_size * (world_size - 1) / 2] * world_size:
        raise RuntimeError(f"wrong results: {results}")
    return taken
