"""Part 6: `python -m utils.benchmark` over NCCL, beside nccl-tests where they are installed; memory, links, cluster."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.gpu.probe import NotHere, Numbers, Setting, measured_cluster
from utils.benchmark.machine import memory_hierarchy

SIZES = "1K..1G"
AGREES = 0.3  # how far the bus bandwidth of the largest size may be from that of nccl-tests, relative


def sweep(setting: Setting, world_size: int) -> list[dict[str, str]]:
    """The rows of `python -m utils.benchmark all_reduce`, which are also left in the folder."""
    path = setting.folder / f"all_reduce-{world_size}.csv"
    figure = ["--figure", str(setting.file("figures", f"all_reduce-{world_size}.png"))]
    more = figure if importlib.util.find_spec("matplotlib") else []
    sizes = ["--sizes", "1K..64K" if setting.dry else SIZES, "--step", "8", "--repeats", "3" if setting.dry else "20"]
    words = [sys.executable, "-m", "utils.benchmark", "all_reduce", *sizes, "-n", str(world_size)]
    done = subprocess.run(
        [*words, "--backend", setting.backend, "--csv", str(path), *more], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def benchmark(setting: Setting) -> Numbers:
    """All-reduce by size, in nccl-tests' conventions"""
    table: Numbers = {}
    for size in setting.world_sizes[1:] or [1]:
        for row in sweep(setting, size):
            table[f"{size} ranks, {int(row['size']):,} bytes"] = {
                "µs": 1e6 * float(row["seconds"]),
                "algbw, GB/s": float(row["algbw"]),
                "busbw, GB/s": float(row["busbw"]),
                "wrong": int(row["wrong"]),
            }
    return table


def against_nccl_tests(setting: Setting) -> Numbers:
    """The same by nccl-tests' all_reduce_perf"""
    size = setting.world_sizes[-1]
    if not shutil.which("all_reduce_perf"):
        raise NotHere("there is no all_reduce_perf on the PATH")
    if size == 1:
        raise NotHere("one GPU has no one to talk to")
    words = ["all_reduce_perf", "-b", "1K", "-e", "1G", "-f", "8", "-g", str(size)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    theirs = busbw_in_place(done.stdout)
    ours = {int(row["size"]): float(row["busbw"]) for row in sweep(setting, size)}
    both = {nbytes: (ours[nbytes], theirs[nbytes]) for nbytes in ours if nbytes in theirs}
    assert both, f"no size in common: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    largest = both[max(both)]
    assert abs(largest[0] / largest[1] - 1) < AGREES, f"busbw of the largest size: {largest}, ours and theirs"
    return {f"{nbytes:,} bytes": {"ours, GB/s": one, "theirs, GB/s": other} for nbytes, (one, other) in both.items()}


def busbw_in_place(table: str) -> dict[int, float]:
    """{size: bus bandwidth in place} of what nccl-tests print: the last but one number of a row of thirteen."""
    rows = [line.split() for line in table.splitlines() if re.match(r"\s*\d", line)]
    return {int(row[0]): float(row[-2]) for row in rows if len(row) >= 13}


def links(setting: Setting) -> Numbers:
    """Memory and links, bytes/s one way"""
    return dict(memory_hierarchy.links(rounds=2 if setting.dry else 5, window=0.05 if setting.dry else 0.5))


def cluster(setting: Setting) -> Numbers:
    """This machine as a cluster for `simulate`"""
    table: Numbers = {}
    for size in setting.world_sizes[-1:] if setting.dry else setting.world_sizes:
        found = measured_cluster(setting, size)
        link = found.intra
        rates = {f"{dtype}, FLOP/s": rate for dtype, rate in found.gpu.flops.items()}
        memory = {"memory, bytes/s": found.gpu.bandwidth, "launch, s": found.gpu.launch}
        link_numbers = {"alpha, s": link.alpha, "bandwidth, bytes/s": str(link.bandwidth)}
        table[f"{size} ranks"] = {**rates, **memory, **link_numbers}
        assert all(math.isfinite(number) and number > 0 for number in [*rates.values(), *memory.values()])
        name = Path(setting.folder, f"cluster-{size}.txt")
        name.write_text(f"{dataclasses.asdict(found)}\n")
    return table


CHECKS = [benchmark, against_nccl_tests, links, cluster]
