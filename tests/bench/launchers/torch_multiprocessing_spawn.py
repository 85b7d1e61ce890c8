"""torch.multiprocessing.spawn: fresh interpreters, each imports torch"""

import tempfile

import torch.multiprocessing

from tests.bench.programs import put_all_reduce  # a fresh interpreter does not find a cell's function


def call(world_size):
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        args = (world_size, f"{folder}/store", results)
        torch.multiprocessing.spawn(put_all_reduce, args=args, nprocs=world_size)
    return [results.get() for _ in range(world_size)]
