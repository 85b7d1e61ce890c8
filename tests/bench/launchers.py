"""How long a student waits for four ranks and an all-reduce: `spawn` beside torch's own launcher."""

from __future__ import annotations

import socket
import statistics
import time

import torch
import torch.multiprocessing
from tqdm import tqdm

from tests.bench.programs import all_reduce, all_reduce_by_hand
from utils import spawn

WORLD_SIZE = 4


def with_spawn() -> None:
    assert spawn(all_reduce, WORLD_SIZE).results == [6.0] * WORLD_SIZE


def with_torch_multiprocessing() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(all_reduce_by_hand, args=(WORLD_SIZE, port, results), nprocs=WORLD_SIZE)
    assert [results.get() for _ in range(WORLD_SIZE)] == [6.0] * WORLD_SIZE


def seconds(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main(repeats: int = 20, slow_repeats: int = 5) -> None:
    """Print a table: the first call, then the median of later calls, and the ratio to torch.multiprocessing.spawn."""
    first = seconds(with_spawn)
    ours = [seconds(with_spawn) for _ in tqdm(range(repeats), "spawn", leave=False)]
    theirs = [
        seconds(with_torch_multiprocessing) for _ in tqdm(range(slow_repeats), "torch.multiprocessing", leave=False)
    ]
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(
        f"{WORLD_SIZE} ranks, init + all-reduce + results, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    print(f"{'launcher':<28}{'median':>10}{'min':>10}{'max':>10}")
    for name, times in (("utils.spawn", ours), ("torch.multiprocessing.spawn", theirs)):
        print(f"{name:<28}{statistics.median(times):>8.3f} s{min(times):>8.3f} s{max(times):>8.3f} s")
    print(f"utils.spawn, first call     {first:>8.3f} s")
    print(f"torch.multiprocessing.spawn takes {ratio:.0f} times as long as utils.spawn")


if __name__ == "__main__":
    main()
