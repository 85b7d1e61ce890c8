"""How fast is a collective? Measured so that it survives review, with nccl-tests' columns and conventions.

    python -m utils.benchmark all_reduce --sizes 1K..64M         this machine, over Gloo or NCCL
    python -m utils.benchmark all --cluster dgx-h100 -n 64       a virtual cluster; also under torchrun, as it is

    table = benchmark("all_reduce", "1K..64M", world_size=4)     the same in a notebook
    table                                                        a table; table.figure() draws it, table.save_csv(path)
    table.alpha, table.beta                                      time = alpha + size * beta, by relative errors

Of each size: warm-up calls that don't count; then repeats, before each of which all ranks meet. A repeat takes as long
as on its slowest rank, and the median of the repeats counts. What ranks do: timing.py; conventions: bandwidths.py.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from utils import job, tables
from utils.bandwidths import algbw, busbw, check_op, count_of, parse_sizes, size_of
from utils.in_place import already_a_rank
from utils.launcher import check_world_size, spawn

DTYPES = {  # torch's name: nccl-tests' name, bytes
    **{"float32": ("float", 4), "float64": ("double", 8), "float16": ("half", 2), "bfloat16": ("bfloat16", 2)},
    **{"int32": ("int32", 4), "int64": ("int64", 8), "int8": ("int8", 1), "uint8": ("uint8", 1)},
}
REDUCES = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True)
class Row:
    """One size. seconds: median over the repeats of the slowest rank; spread: median distance from it, as its share.

    wrong: elements that came out wrong, on all ranks; None if nobody looked (a virtual cluster has sizes only)
    """

    size: int
    count: int
    seconds: float
    spread: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class Table:
    """What was measured, a Row for each size; limits: {what bounds it: bytes/s}."""

    op: str
    world_size: int
    dtype: str
    where: str
    rows: list[Row]
    warmup: int
    repeats: int
    limits: dict[str, float] = field(default_factory=dict)

    @cached_property
    def link(self):
        """The Link that comes closest to all rows, by relative errors. ValueError if no line that rises does."""
        from utils.probes import fit

        return fit({row.size: row.seconds for row in self.rows})

    @property
    def alpha(self) -> float:
        """Seconds that even an empty collective would take, by the fitted line."""
        return self.link.alpha

    @property
    def beta(self) -> float:
        """Seconds for each further byte of size."""
        return 1 / self.link.bandwidth

    @property
    def wrong(self) -> int:
        return sum(row.wrong or 0 for row in self.rows)

    def figure(self):
        """Times with the fitted line, and bus bandwidths with the limits; both axes logarithmic."""
        from utils import figures

        sizes, seconds = [row.size for row in self.rows], [row.seconds for row in self.rows]
        model = (self.alpha, self.beta) if len(sizes) > 1 else None
        bandwidths = [row.busbw * 1e9 for row in self.rows]
        return figures.sweep(sizes, seconds, bandwidths, f"{self.op}, {self.where}", model, self.limits)

    def save_csv(self, path) -> None:
        """A line for each size: seconds, GB/s, spread as a share of the time."""
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["op", "ranks", "dtype", "size", "count", "seconds", "spread", "algbw", "busbw", "wrong"])
            for row in self.rows:
                numbers = [row.size, row.count, row.seconds, row.spread, row.algbw, row.busbw, row.wrong]
                writer.writerow([self.op, self.world_size, self.dtype, *numbers])

    HEADER = ["size", "count", "type", "redop", "root"]
    TIMES = ["time", "algbw", "busbw", "#wrong"]
    UNITS = ["(B)", "(elements)", "", "", "", *2 * ["(us)", "(GB/s)", "(GB/s)", ""], "(±%)"]

    def cells(self) -> list[tuple]:
        """Rows as nccl-tests print them, and the spread. torch has one form of each collective; N/A stands for the
        other."""
        from utils.timing import IN_PLACE

        what = DTYPES[self.dtype][0], "sum" if self.op in REDUCES else "none", 0 if self.op in ROOTED else -1
        found = []
        for row in self.rows:
            wrong = "N/A" if row.wrong is None else row.wrong
            times = (f"{row.seconds * 1e6:.2f}", f"{row.algbw:.2f}", f"{row.busbw:.2f}", wrong)
            both = (["N/A"] * 4, times) if self.op in IN_PLACE else (times, ["N/A"] * 4)
            cells = (row.size, row.count, *what, *both[0], *both[1], f"{100 * row.spread:.1f}")
            found.append(tuple(map(str, cells)))
        return found

    def header(self) -> str:
        return (
            f"{self.op}, {self.where}: warm-up calls {self.warmup}, repeats {self.repeats}; time is the median of the "
            "repeats, each as long as on its slowest rank"
        )

    def __repr__(self) -> str:
        columns = [*self.HEADER, *self.TIMES, *self.TIMES, "spread"]
        lines = tables.text(columns, [tuple(self.UNITS), *self.cells()]).splitlines()
        middle = tuple(map(len, (lines[0].split("time")[0], lines[0].rsplit("time", 1)[0])))
        forms = f"{'':{middle[0]}}out-of-place".ljust(middle[1]) + "in-place"
        commented = [f"# {line}" for line in (self.header(), forms, *lines[:2])]
        return "\n".join([*commented, *("  " + line for line in lines[2:]), *(f"# {line}" for line in self.summary())])

    def summary(self) -> list[str]:
        mean = sum(row.busbw for row in self.rows) / len(self.rows)
        lines = [f"Out of bounds values : {self.wrong} {'FAILED' if self.wrong else 'OK'}"]
        if all(row.wrong is None for row in self.rows):
            lines = ["Out of bounds values : N/A, a virtual cluster has sizes and no values"]
        lines.append(f"Avg bus bandwidth    : {mean:.4g}")
        try:
            rate, latency = 1 / self.beta / 1e9, self.alpha * 1e6
            lines.append(f"alpha + size * beta  : alpha {latency:.4g} us, 1 / beta {rate:.4g} GB/s, by relative errors")
        except ValueError as error:  # one size, or times that don't rise
            lines.append(f"alpha + size * beta  : no fit, {error}")
        return lines + [f"{name:21}: {rate / 1e9:.4g} GB/s" for name, rate in self.limits.items()]

    def _repr_html_(self) -> str:
        columns = [*self.HEADER, *(f"{form} {name}" for form in ("out-of-place", "in-place") for name in self.TIMES)]
        html = tables.html(self.header(), [*columns, "spread"], [tuple(self.UNITS), *self.cells()])
        return html + "".join(f"<div>{line}</div>" for line in self.summary())


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
) -> Table:
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
        from utils.limits import machine_limits

        bounds = machine_limits(run.world_size, backend)
    rows = rows_of(op, sizes, itemsize, run)
    return Table(op, run.world_size, dtype, where, rows, warmup, repeats, bounds)


def run_sweep(op, sizes, world_size, dtype, warmup, repeats, backend, cluster, progress, timeout) -> tuple:
    """(Run, where in words, limits that are known without measuring)."""
    from utils import timing
    from utils.cluster import find_cluster, plural
    from utils.limits import cluster_limits
    from utils.virtual import simulate

    program = (op, sizes, dtype, warmup, repeats)
    if cluster is None:
        run = spawn(timing.sweep, world_size, *program, True, progress, backend=backend, timeout=timeout)
        return run, f"{plural(run.world_size, 'rank')} over {run.backend}", {}
    cluster = find_cluster(cluster, world_size)
    run = simulate(timing.sweep, world_size, *program, False, False, cluster=cluster)
    return run, f"{plural(world_size, 'rank')} of {cluster.name} (virtual)", cluster_limits(cluster, world_size)


def default_ranks(backend: str | None, cluster) -> int:
    if cluster is not None:
        from utils.cluster import find_cluster

        return find_cluster(cluster, 1).gpus_per_node
    if already_a_rank():
        job.set_variables()
        return int(os.environ["WORLD_SIZE"])
    from utils.gpus import find_gpus

    free = 0 if backend == "gloo" else sum(not gpu.is_busy for gpu in find_gpus())
    return free if free > 1 or backend == "nccl" and free else 4


def rows_of(op: str, sizes: list[int], itemsize: int, run) -> list[Row]:
    """Rank by rank what was measured (timing.Measured) -> size by size what counts."""
    rows = []
    for asked, of_ranks in zip(sizes, zip(*run.results, strict=True), strict=True):
        count = count_of(
            op, asked, itemsize, run.world_size
        )  # a job of torchrun may have other ranks than we asked for
        size = size_of(op, count, itemsize, run.world_size)
        slowest = [max(times) for times in zip(*(one.seconds for one in of_ranks), strict=True)]
        middle = median(slowest)
        spread = median(abs(seconds - middle) for seconds in slowest) / middle if middle else 0.0
        wrong = None if of_ranks[0].wrong is None else sum(one.wrong for one in of_ranks)
        bandwidths = (algbw(size, middle), busbw(op, size, middle, run.world_size)) if middle else (0.0, 0.0)
        rows.append(Row(size, count, middle, spread, *bandwidths, wrong))
    return rows


if __name__ == "__main__":
    from utils.benchmark_command import main

    raise SystemExit(main())
