"""Kernel times measured on a GPU: the CSV file that holds them, and a Gpu that has them.

    gpu = MeasuredGpu.of(cluster.gpu, "kernels.csv")
    run = simulate(step, 8, cluster=dataclasses.replace(cluster, gpu=gpu))

`simulate` then charges an operation that is in the file what was measured, and any other by its model. A file has a
header and a line for each kernel:

    kernel,seconds
    "aten.mm.default bfloat16[4096,4096] bfloat16[4096,1024]",6.1e-05

kernel    torch's name of the operation, and its arguments: a tensor as dtype[shape], integers as they are. Floats,
          strides and values make no difference, nor does what comes by name, such as an optimizer's learning rate.
seconds   from one call to the next when it is called many times in a row; so never less than it takes to launch

Columns with other names may follow, for readers; they are ignored here. `make gpu` writes such a file.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .hardware import Gpu

KERNEL, SECONDS = "kernel", "seconds"


@dataclass(frozen=True)
class MeasuredGpu(Gpu):
    """A Gpu with measured times of some operations, {kernel: seconds}. The model answers for all others."""

    kernels: Mapping[str, float] = field(default_factory=dict, repr=False)

    __hash__ = Gpu.__hash__

    @classmethod
    def of(cls, gpu: Gpu, path: str | Path) -> MeasuredGpu:
        """`gpu` with the times in the file. Raises OSError, and ValueError as read_kernel_times does."""
        return cls(gpu.flops, gpu.memory, gpu.bandwidth, gpu.launch, gpu.achieved, read_kernel_times(path))


def read_kernel_times(path: str | Path) -> dict[str, float]:
    """{kernel: seconds}. Raises ValueError that names the line, if it isn't such a file."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        missing = [name for name in (KERNEL, SECONDS) if name not in (rows.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} has no column {' and no column '.join(map(repr, missing))}")
        times: dict[str, float] = {}
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            name, seconds = row[KERNEL], seconds_in(row[SECONDS], where)
            if times.setdefault(name, seconds) != seconds:
                raise ValueError(f"{where}: a second time for {name}")
    return times


def seconds_in(text: str | None, where: str) -> float:
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{where}: the seconds are {text!r}; they must be a number that is not negative")
    return seconds


def write_kernel_times(path: str | Path, times: Mapping[str, float]) -> None:
    """Write a file that read_kernel_times reads."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([KERNEL, SECONDS])
        writer.writerows((name, repr(float(seconds))) for name, seconds in times.items())
