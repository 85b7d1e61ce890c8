"""fork of the kernel: torch.multiprocessing.start_processes; hangs once the kernel has run a backward pass"""

import tempfile

import torch.multiprocessing

from tests.bench.programs import put_all_reduce


def call(world_size):
    results = torch.multiprocessing.get_context("fork").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        args = (world_size, f"{folder}/store", results)
        torch.multiprocessing.start_processes(put_all_reduce, args=args, nprocs=world_size, start_method="fork")
    return [results.get() for _ in range(world_size)]
