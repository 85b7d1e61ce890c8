"""The virtual cluster: its predictions against measurements on this machine; its speed and its memory.

Cells: predictions.py, virtual_speed.py. Tables: virtual_tables.py.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tqdm import tqdm

from tests.bench.kernel import CellFailed, Kernel

PREDICTIONS = Path(__file__).with_name("predictions.py").read_text()
SPEED = Path(__file__).with_name("virtual_speed.py").read_text()
SWEPT, TRAINED = [2, 4], [1, 2, 4]  # ranks
MODELS = [(8, 256), (4, 1024)]  # layers, width
SUMS, ALL_REDUCES = "64 ranks x 1,000 small sums", "64 ranks x 200 all-reduces"
OPERATIONS = {SUMS: 64 * 1000, ALL_REDUCES: 64 * 200}  # of all ranks
DDP = {ranks: f"{ranks:,} ranks, DDP step" for ranks in (64, 256, 1024)}
FSDP2 = {ranks: f"{ranks:,} ranks, FSDP2 step" for ranks in (64, 128)}
GRID = {ranks: f"{ranks:,} ranks, tensor 8 x pipeline 8 x data {ranks // 64}" for ranks in (64, 128)}
PIPELINE = "64 ranks, 1F1B, 64 microbatches"
ALIKE = {  # only one rank of each kind runs
    "4,096 ranks, DDP step, 1 rank of all": "ddp, 4096, kinds=1",
    "16,384 ranks, DDP step, 1 rank of all": "ddp, 16384, kinds=1",
    "1,024 ranks, FSDP2 step, 1 rank of all": "fsdp2, 1024, kinds=1",
    "1,024 ranks, tensor 8 x pipeline 8 x data 16, 1 rank of each stage": "grid, 1024, 8, 8, 16, kinds=8",
    "16,384 ranks, tensor 8 x pipeline 16 x data 128, 1 rank of each stage": "grid, 16384, 8, 16, 32, kinds=16",
}
PROGRAMS = {
    SUMS: "sums, 64, 1000",
    ALL_REDUCES: "all_reduces, 64, 200",
    **{name: f"ddp, {ranks}" for ranks, name in DDP.items()},
    PIPELINE: "one_f_one_b, 64, 64",
    **{name: f"fsdp2, {ranks}" for ranks, name in FSDP2.items()},
    **{name: f"grid, {ranks}, 8, 8, 16" for ranks, name in GRID.items()},
    **ALIKE,
}
INTERVAL = 0.02  # seconds between two samples of the memory


def measure_predictions() -> dict[str, dict]:
    """{"machines": {ranks: what was found}, "collectives": {ranks: rows}, "steps": {ranks: rows}}.

    Rows as in predictions.py, or {"failed": why}.
    """
    measured: dict = {"machines": {}, "collectives": {}, "steps": {}}
    with Kernel(sys.executable) as kernel:
        kernel.run(PREDICTIONS)
        kernel.wait_until_idle()
        for ranks in tqdm(TRAINED, "predictions", leave=False):
            measured["machines"][ranks] = evaluate(kernel, f"calibrate({ranks})")
            measured["steps"][ranks] = evaluate(kernel, f"compare_steps({ranks}, {MODELS})")
            if ranks in SWEPT:
                measured["collectives"][ranks] = evaluate(kernel, f"compare_collectives({ranks})")
    return measured


def measure_speed(rounds: int) -> dict[str, dict]:
    """{"seconds": {program: [one per call of simulate]}, "loop": [seconds of a fixed loop, one per round],
    "peak": bytes of the DDP step on 1,024 ranks, None if it failed}.

    Programs take turns, so that a disturbance hits them all.
    """
    with Kernel(sys.executable) as kernel:
        kernel.run(SPEED)
        kernel.wait_until_idle()
        evaluate(kernel, "seconds(ddp, 2)")  # the first call pays for imports
        times, loop = {name: [] for name in PROGRAMS}, []
        for _ in tqdm(range(rounds), "virtual speed", leave=False):
            loop.append(evaluate(kernel, "fixed_loop()"))
            for name, call in PROGRAMS.items():
                times[name].append(evaluate(kernel, f"seconds({call})"))
        with PeakMemory(kernel) as memory:  # in a run of its own, which is not timed
            done = evaluate(kernel, f"seconds({PROGRAMS[DDP[1024]]})")
        return {"seconds": times, "loop": loop, "peak": None if isinstance(done, dict) else memory.peak}


def evaluate(kernel: Kernel, expression: str):
    """The value of an expression, or {"failed": why}."""
    try:
        return kernel.evaluate(expression)
    except CellFailed as error:
        return {"failed": str(error)}


class PeakMemory:
    """The peak memory of any single process started from a kernel, such as that of a virtual cluster, in bytes."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.peak, self.over = kernel, 0, threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def __enter__(self) -> PeakMemory:
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.over.set()
        self.thread.join()

    def sample(self) -> None:
        while not self.over.wait(INTERVAL):
            self.peak = max([self.peak, *map(most_held, self.kernel.helpers())])


def most_held(pid: int) -> int:
    """The peak memory of a process so far, in bytes; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
