"""How fast is a collective? Measured so that the numbers stand up to review, in nccl-tests' columns and conventions.

    python -m NAME.benchmark all_reduce --sizes 1K..64M          this machine, over Gloo or NCCL; also under torchrun
    python -m NAME.benchmark all --cluster dgx-h100 -n 64        a virtual cluster

    table = benchmark("all_reduce", "1K..64M", world_size=4)     the same in a notebook
    table                                                        a table; table.figure() draws it, table.save_csv(path)
    table.alpha, table.beta                                      time = alpha + size * beta, by relative errors

For each size: warm-up calls, not timed; then repeats, each of which starts with a barrier. A repeat takes as long as it
does on its slowest rank; the result is the median of the repeats. See rank_program.py and nccl_conventions.py.
"""

from __future__ import annotations

import os
from statistics import median
from typing import TYPE_CHECKING

from ..cluster.presets import find_cluster
from ..text.units import plural
from ..worlds.common.call_checks import check_world_size
from ..worlds.jobs import detect
from ..worlds.jobs.in_place import already_a_rank
from ..worlds.real.installed_gpus import find_gpus
from ..worlds.real.launch import spawn
from ..worlds.virtual import simulate
from .nccl_conventions import DTYPES, algbw, busbw, check_op, count_of, parse_sizes, size_of
from .table import BenchmarkTable, Row

if TYPE_CHECKING:
    from ..cluster.hardware import Cluster
    from .rank_program import Measurement


def benchmark(
    op: str,
    sizes: str | list[int] = "1K..64M",
    world_size: int | None = None,
    *,
    dtype: str = "float32",
    warmup: int = 5,
    repeats: int = 20,
    step: int = 2,
    backend: str | None = None,
    cluster: str | Cluster | None = None,
    progress: bool = False,
    limits: bool = False,
    timeout: float = 600,
) -> BenchmarkTable:
    """Time one collective on real ranks, or on those of a virtual cluster; see the top of this file.

    op           one of nccl_conventions.OPS
    sizes        "1K..64M", "1K,1M" or a list, in bytes of the WHOLE (nccl-tests' size); rounded down to whole elements
    world_size   ranks; by default one per free GPU if there are two or more, else 4; on a cluster, one node's;
                 under torchrun always the job's
    step         the factor from one size of "1K..64M" to the next
    cluster      a name or a Cluster: simulated. Its times never vary, so it runs one repeat without warm-up.
    progress     show a progress bar, drawn by rank 0
    limits       also measure what bounds the collective: memory copies, and the link between two ranks
    timeout      seconds for the whole sweep

    Raises ValueError for an unknown collective or dtype and for impossible sizes, and what spawn and simulate raise.
    """
    check_op(op)
    if dtype not in DTYPES:
        raise ValueError(f"there is no dtype {dtype!r} here: choose one of {', '.join(DTYPES)}")
    if warmup < 0 or repeats < 1:
        raise ValueError(f"warmup must be 0 or more and repeats 1 or more; got warmup {warmup} and repeats {repeats}")
    asked = parse_sizes(sizes, step) if isinstance(sizes, str) else sorted(sizes)
    world_size = check_world_size(default_ranks(backend, cluster) if world_size is None else world_size, most=None)
    itemsize = DTYPES[dtype][1]
    counts = sorted({count_of(op, nbytes, itemsize, world_size) for nbytes in asked})  # raises before ranks start
    rounded = [size_of(op, count, itemsize, world_size) for count in counts]
    from . import rank_program
    from .machine.limits import cluster_limits, machine_limits

    if cluster is None:
        program = (op, rounded, dtype, warmup, repeats, True, progress)
        run = spawn(rank_program.sweep, world_size, *program, backend=backend, timeout=timeout)
        where = f"{plural(run.world_size, 'rank')} over {run.backend}"
        bounds = machine_limits(run.world_size, backend) if limits else {}
    else:
        machine, warmup, repeats = find_cluster(cluster, world_size).at_rates(), 0, 1
        program = (op, rounded, dtype, warmup, repeats, False, False)
        run = simulate(rank_program.sweep, world_size, *program, cluster=machine)
        where = f"{plural(world_size, 'rank')} of {machine.name} (virtual, {machine.rates} rates)"
        bounds = cluster_limits(machine, world_size)
    rows = rows_of(op, rounded, itemsize, run.results)
    return BenchmarkTable(op, run.world_size, dtype, where, rows, warmup, repeats, bounds)


def default_ranks(backend: str | None, cluster: str | Cluster | None) -> int:
    if cluster is not None:
        return find_cluster(cluster, 1).gpus_per_node
    if already_a_rank():
        detect.set_variables()
        return int(os.environ["WORLD_SIZE"])
    free = 0 if backend == "gloo" else sum(not gpu.is_busy for gpu in find_gpus())
    return free if free > 1 or backend == "nccl" and free else 4


def rows_of(op: str, sizes: list[int], itemsize: int, results: list[list[Measurement]]) -> list[Row]:
    """One Row per size, from each rank's measurements of all sizes."""
    rows, world_size = [], len(results)  # torchrun's, which may differ from the world size that was asked for
    for asked, of_ranks in zip(sizes, zip(*results, strict=True), strict=True):
        count = count_of(op, asked, itemsize, world_size)
        size = size_of(op, count, itemsize, world_size)
        slowest = [max(times) for times in zip(*(measurement.seconds for measurement in of_ranks), strict=True)]
        middle = median(slowest)
        off = median(abs(seconds - middle) for seconds in slowest)
        spread = off / middle if middle else 0.0
        wrong = None if of_ranks[0].wrong is None else sum(measurement.wrong or 0 for measurement in of_ranks)
        bandwidths = (algbw(size, middle), busbw(op, size, middle, world_size)) if middle else (0.0, 0.0)
        rows.append(Row(size, count, middle, spread, *bandwidths, wrong))
    return rows
