"""accelerate.notebook_launcher: forks of the kernel, under torch's elastic agent"""

import os
import tempfile

import torch.multiprocessing
from accelerate import notebook_launcher

from tests.bench.programs import free_port, put_all_reduce


def rank_program(*args):
    put_all_reduce(int(os.environ["RANK"]), *args)


def call(world_size):
    results = torch.multiprocessing.get_context("fork").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        args = (world_size, f"{folder}/store", results)
        notebook_launcher(
            rank_program, args, num_processes=world_size, use_port=str(free_port()), monitor_interval=0.005
        )
    return [results.get() for _ in range(world_size)]
