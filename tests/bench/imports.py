"""What `import utils` and the first spawn add to the import of torch, in fresh interpreters that take turns."""

from __future__ import annotations

import subprocess
import sys
import uuid

from tqdm import tqdm

from tests.bench.kernel import end_marked, marked_environment

TORCH, BOTH, FIRST_SPAWN = "import torch", "import torch, utils", "import utils, spawn on 2 ranks"
CELLS = {
    TORCH: ["import torch"],
    BOTH: ["import torch", "import utils"],
    "import utils, torch": ["import utils", "import torch"],
    FIRST_SPAWN: ["import utils", "utils.spawn(lambda rank, world_size: None, 2)"],
}
UTILS_PART = f"{BOTH}: the part of utils"


def measure(repeats: int) -> dict[str, list[float]]:
    """{what: its seconds}. A first run of each, for the disk's cache, doesn't count.

    The part of utils is timed within one run, because the time of torch's import varies by more than that between runs.
    """
    times: dict[str, list[float]] = {}
    for turn in tqdm(range(repeats + 1), "import", leave=False):
        for name, statements in CELLS.items():
            parts = seconds_of(statements)
            if turn:
                times.setdefault(name, []).append(sum(parts))
            if turn and name == BOTH:
                times.setdefault(UTILS_PART, []).append(parts[1])
    return times


def seconds_of(statements: list[str]) -> list[float]:
    """Seconds of each of these statements, in this order in one fresh interpreter."""
    clock = "clock.append(time.perf_counter())"
    code = [
        f"import time; clock = []; {clock}",
        *(f"{statement}; {clock}" for statement in statements),
        "print(*clock)",
    ]
    mark = uuid.uuid4().hex
    try:
        said = subprocess.check_output([sys.executable, "-c", "\n".join(code)], env=marked_environment(mark), text=True)
    finally:
        end_marked(mark)  # else the process that utils has started slows down the next run
    clock = [float(word) for word in said.split()]
    return [after - before for before, after in zip(clock, clock[1:], strict=False)]
