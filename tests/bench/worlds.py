"""The cost of spawn's ranks: time of a training step of each parallelism, start to end; memory; recording."""

from __future__ import annotations

import sys
from pathlib import Path

from tqdm import tqdm

from tests.bench.kernel import CellFailed, Kernel
from tests.bench.side_by_side import WORLD_SIZE

CELL = Path(__file__).with_name("parallelisms.py").read_text()
RECORDER = Path(__file__).with_name("recorder.py").read_text()
PARALLELISMS = ["ddp", "fsdp2", "tensor_parallel", "pipelining"]
PROGRAMS = ["all_reduce", *PARALLELISMS]
SMALL, LARGE = "4 bytes", "4 MB"
AT_ONCE = "ddp, immediately after the import"


def measure_time(rounds: int) -> dict[str, dict]:
    """{program: {"first": seconds, "later": [seconds], "failed": why or None}}.

    A student reads before running the next cell, so what `import utils` has started is idle by then. One call does not
    wait for that.
    """
    with Kernel(sys.executable) as kernel:
        kernel.run(CELL)
        in_a_hurry = attempt(time_of, kernel, "ddp", 1)
    with Kernel(sys.executable) as kernel:
        kernel.run(CELL)
        kernel.wait_until_idle()
        times = {name: attempt(time_of, kernel, name, rounds) for name in tqdm(PROGRAMS, "programs", leave=False)}
    return {**times, AT_ONCE: in_a_hurry}


def time_of(kernel: Kernel, program: str, rounds: int) -> dict:
    """The first call, then `rounds` cells of calls in a row."""
    first, _ = kernel.evaluate(f"timed(call, {program}, {WORLD_SIZE})")
    later = []
    for _ in range(rounds):
        later += [seconds for seconds, _ in kernel.evaluate(f"timed_in_a_row(4, call, {program}, {WORLD_SIZE})")]
    return {"first": first, "later": later}


def measure_memory() -> dict[str, dict]:
    """{"programs": {program: {"ranks": [{"private": bytes, "pss": bytes}], "failed": ...}},
    "kept": [bytes of each process that waits between two calls]}.
    """
    with Kernel(sys.executable) as kernel:
        kernel.run(CELL)
        kernel.wait_until_idle()
        measured = {name: attempt(memory_of, kernel, name) for name in tqdm(PROGRAMS, "memory", leave=False)}
        kernel.wait_until_idle()
        return {"programs": measured, "kept": [proportional_memory(pid) for pid in kernel.helpers()]}


def memory_of(kernel: Kernel, program: str) -> dict:
    return {"ranks": kernel.evaluate(f"memory({program}, {WORLD_SIZE})")}


def measure_recording() -> dict[str, dict[str, float]]:
    """{"4 bytes": {"off": seconds per call, "on": ...}, "4 MB": ...}."""
    sizes = {SMALL: (1, 200), LARGE: (1 << 20, 8)}  # elements, calls
    with Kernel(sys.executable) as kernel:
        kernel.run(RECORDER)
        kernel.wait_until_idle()
        return {size: kernel.evaluate(f"call{how}") for size, how in tqdm(sizes.items(), "recorder", leave=False)}


def attempt(measure, kernel: Kernel, *args) -> dict:
    try:
        return {**measure(kernel, *args), "failed": None}
    except CellFailed as error:
        return {"failed": str(error)}


def proportional_memory(pid: int) -> int:
    """Bytes of a process; memory that it shares is divided among those that share it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
