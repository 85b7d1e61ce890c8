"""Under torchrun a process already is a rank: spawn runs the program in place."""

import os
import subprocess
import sys

PROGRAM = """
import torch, torch.distributed as dist
from utils import get_device, spawn

def work(rank, world_size, factor):
    x = torch.full((2,), float(rank), device=get_device()) * factor
    dist.all_reduce(x)
    return x.sum().item()

run = spawn(work, 2, 10, backend="gloo")
with open(f"seen-{dist.get_rank()}", "w") as seen:  # torchrun mixes what its ranks print
    print(run.results, run, file=seen, end="")
dist.destroy_process_group()
"""


def test_torchrun_runs_the_program_in_place(tmp_path, root):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [*command, "--rdzv-endpoint=localhost:0", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        seen = (tmp_path / f"seen-{rank}").read_text()
        assert seen == "[20.0, 20.0] Run(2 ranks, torchrun, gloo)"
