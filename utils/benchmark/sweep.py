"""How fast is a collective? Measured so that it survives review, with nccl-tests' columns and conventions.

    python -m NAME.benchmark all_reduce --sizes 1K..64M          this machine, over Gloo or NCCL
    python -m NAME.benchmark all --cluster dgx-h100 -n 64        a virtual cluster; also under torchrun, as it is

    table = benchmark("all_reduce", "1K..64M", world_size=4)     the same in a notebook
    table                                                        a table; table.figure() draws it, table.save_csv(path)
    table.alpha, table.beta                                      time = alpha + size * beta, by relative errors

Of each size: warm-up calls that don't count; then repeats, before each of which all ranks meet. A repeat takes as long
as on its slowest rank, and the median of the repeats counts. What ranks do: rank_program.py; conventions: nccl_conventions.py.
"""

from __future__ import annotations

import os
from statistics import median

from ..worlds.common.call_checks import check_world_size
from ..worlds.jobs import detect
from ..worlds.jobs.in_place import already_a_rank
from ..worlds.real.launch import spawn
from .nccl_conventions import DTYPES, algbw, busbw, check_op, count_of, parse_sizes, size_of
from .table import BenchmarkTable, Row


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
    cluster=None,
    progress: bool = False,
    limits: bool = False,
    timeout: float = 600,
) -> BenchmarkTable:
    """Time one collective on real ranks, or on those of a virtual cluster; see the top of this file.

    op           of bandwidths.OPS
    sizes        "1K..64M", "1K,1M" or a list, in bytes of the WHOLE (nccl-tests' size); rounded down to whole elements
    world_size   ranks; unless given, the free GPUs if there are two or more, else 4; on a cluster, one node's;
                 under torchrun always the job's
    cluster      a name or a Cluster: simulated, always the same times, so that one repeat without warm-up is enough
    progress     a bar, drawn by rank 0
    limits       also measure what bounds it: memory copies, and the link of two ranks
    timeout      seconds for the whole sweep

    Raises ValueError for an unknown collective or dtype and for sizes that can't be; and what spawn and simulate raise.
    """
    check_op(op)
    if dtype not in DTYPES:
        raise ValueError(f"there is no dtype {dtype!r} here: choose one of {', '.join(DTYPES)}")
    if warmup < 0 or repeats < 1:
        raise ValueError(f"warmup is {warmup} and repeats {repeats}: 0 or more, and 1 or more")
    sizes = parse_sizes(sizes, step) if isinstance(sizes, str) else sorted(sizes)
    world_size = check_world_size(default_ranks(backend, cluster) if world_size is None else world_size, most=None)
    itemsize = DTYPES[dtype][1]
    counts = sorted({count_of(op, nbytes, itemsize, world_size) for nbytes in sizes})  # raises before ranks start
    sizes = [size_of(op, count, itemsize, world_size) for count in counts]
    if cluster is not None:
        warmup, repeats = 0, 1
    run, where, bounds = run_sweep(op, sizes, world_size, dtype, warmup, repeats, backend, cluster, progress, timeout)
    if limits and not bounds:
        from .machine.limits import machine_limits

        bounds = machine_limits(run.world_size, backend)
    rows = rows_of(op, sizes, itemsize, run)
    return BenchmarkTable(op, run.world_size, dtype, where, rows, warmup, repeats, bounds)


def run_sweep(op, sizes, world_size, dtype, warmup, repeats, backend, cluster, progress, timeout) -> tuple:
    """(Run, where in words, limits that are known without measuring)."""
    from ..cluster.presets import find_cluster
    from ..text.units import plural
    from ..worlds.virtual import simulate
    from . import rank_program
    from .machine.limits import cluster_limits

    program = (op, sizes, dtype, warmup, repeats)
    if cluster is None:
        run = spawn(rank_program.sweep, world_size, *program, True, progress, backend=backend, timeout=timeout)
        return run, f"{plural(run.world_size, 'rank')} over {run.backend}", {}
    cluster = find_cluster(cluster, world_size)
    run = simulate(rank_program.sweep, world_size, *program, False, False, cluster=cluster)
    return run, f"{plural(world_size, 'rank')} of {cluster.name} (virtual)", cluster_limits(cluster, world_size)


def default_ranks(backend: str | None, cluster) -> int:
    if cluster is not None:
        from ..cluster.presets import find_cluster

        return find_cluster(cluster, 1).gpus_per_node
    if already_a_rank():
        detect.set_variables()
        return int(os.environ["WORLD_SIZE"])
    from ..worlds.real.installed_gpus import find_gpus

    free = 0 if backend == "gloo" else sum(not gpu.is_busy for gpu in find_gpus())
    return free if free > 1 or backend == "nccl" and free else 4


def rows_of(op: str, sizes: list[int], itemsize: int, run) -> list[Row]:
    """Rank by rank what was measured (timing.Measured) -> size by size what counts."""
    rows = []
    for asked, of_ranks in zip(sizes, zip(*run.results, strict=True), strict=True):
        count = count_of(op, asked, itemsize, run.world_size)  # torchrun's ranks may be others than we asked for
        size = size_of(op, count, itemsize, run.world_size)
        slowest = [max(times) for times in zip(*(one.seconds for one in of_ranks), strict=True)]
        middle = median(slowest)
        spread = median(abs(seconds - middle) for seconds in slowest) / middle if middle else 0.0
        wrong = None if of_ranks[0].wrong is None else sum(one.wrong for one in of_ranks)
        bandwidths = (algbw(size, middle), busbw(op, size, middle, run.world_size)) if middle else (0.0, 0.0)
        rows.append(Row(size, count, middle, spread, *bandwidths, wrong))
    return rows
