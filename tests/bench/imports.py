"""What a cell pays for `import utils`, beyond torch's own import: fresh interpreters, taken in turns."""

from __future__ import annotations

import subprocess
import sys
import uuid

from tqdm import tqdm

from tests.bench.kernel import end_marked, marked_environment

STATEMENTS = ["import torch", "import torch, utils", "import utils, torch"]


def measure(repeats: int) -> dict[str, list[float]]:
    """{statement: its seconds}. One run of each goes before, for the disk's cache."""
    times = {statement: [] for statement in STATEMENTS}
    for turn in tqdm(range(repeats + 1), "import", leave=False):
        for statement, taken in times.items():
            seconds = seconds_of(statement)
            if turn:
                taken.append(seconds)
    return times


def seconds_of(statement: str) -> float:
    mark = uuid.uuid4().hex
    code = f"import time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
    command = [sys.executable, "-c", code]
    try:
        return float(subprocess.check_output(command, env=marked_environment(mark), text=True))
    finally:
        end_marked(mark)  # else the process that utils has started takes from the next one's time
