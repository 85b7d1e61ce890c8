"""How soon a report comes: in a notebook, from the start of the cell; in a watched job, from the moment it hangs."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from tests.bench import Row
from tests.bench.watch import said_in_a_job
from tests.kernel import Notebook
from tests.worlds.real.test_failure_table import START, TABLE, cell

JOB = "a job that hangs, watched"
CASES = [JOB, *TABLE]


def measure(name: str, quick: bool = False) -> list[Row]:
    if name == JOB:
        hung = float(said_in_a_job("-m", "tests.bench.reports")[0])
        return [{"name": name, "values": [time.time() - hung]}]
    notebook = Notebook()
    try:
        notebook.run(START)
        notebook.run("spawn(lambda rank, world_size: None, 3)")
        program = cell(TABLE[name].body, TABLE[name].options)
        began = time.perf_counter()
        error = notebook.run(program)["error"]
        taken = time.perf_counter() - began
    finally:
        notebook.close()
    assert error and TABLE[name].reads[0] in error
    return [{"name": name, "values": [taken]}]


def hang() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 0:
        print(time.time(), flush=True)
        dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    hang()
