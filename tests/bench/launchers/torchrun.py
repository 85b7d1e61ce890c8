"""torchrun: a separate command that starts fresh interpreters"""

import os
import subprocess
import sys
import tempfile

from tests.bench import programs


def call(world_size):
    with tempfile.TemporaryDirectory() as folder:
        options = ["--standalone", f"--nproc-per-node={world_size}", "--monitor-interval=0.005"]
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *options, programs.__file__],
            env={**os.environ, "OMP_NUM_THREADS": "1", "RENDEZVOUS": f"{folder}/store"},
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return [float(line) for line in done.stdout.split()]
