"""What a cell pays for `import utils`, beyond torch's own import: fresh interpreters, taken in turns."""

from __future__ import annotations

import subprocess
import sys
import uuid

from tqdm import tqdm

from tests.bench.kernel import end_marked, marked_environment

CELLS = [["torch"], ["torch", "utils"], ["utils", "torch"]]  # what each imports, in this order
UTILS_PART = "import torch, utils: the part of utils"


def measure(repeats: int) -> dict[str, list[float]]:
    """{what: its seconds}. One run of each goes before, for the disk's cache.

    The part of utils is taken within one run: the difference of two runs drowns in what torch's import varies by.
    """
    times: dict[str, list[float]] = {}
    for turn in tqdm(range(repeats + 1), "import", leave=False):
        for modules in CELLS:
            parts = seconds_of(modules)
            if turn:
                times.setdefault(f"import {', '.join(modules)}", []).append(sum(parts))
            if turn and modules == ["torch", "utils"]:
                times.setdefault(UTILS_PART, []).append(parts[1])
    return times


def seconds_of(modules: list[str]) -> list[float]:
    """Seconds of each of these imports, one after the other in one fresh interpreter."""
    clock = "clock.append(time.perf_counter())"
    code = [f"import time; clock = []; {clock}", *(f"import {module}; {clock}" for module in modules), "print(*clock)"]
    mark = uuid.uuid4().hex
    try:
        said = subprocess.check_output([sys.executable, "-c", "\n".join(code)], env=marked_environment(mark), text=True)
    finally:
        end_marked(mark)  # else the process that utils has started takes from the next one's time
    clock = [float(word) for word in said.split()]
    return [after - before for before, after in zip(clock, clock[1:], strict=False)]
