"""What a sweep has measured: one `Row` per size, in a table that can be shown, drawn and saved."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from functools import cached_property

from ..text import tables
from .nccl_conventions import DTYPES

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
class BenchmarkTable:
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
        from .machine.probes import fit

        if not all(row.seconds for row in self.rows):
            raise ValueError("some took no time at all: one rank has nobody to send to")
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
    def model(self) -> tuple[float, float] | None:
        """(alpha, beta), or None where there is no such line."""
        try:
            return self.alpha, self.beta
        except ValueError:
            return None

    @property
    def wrong(self) -> int:
        return sum(row.wrong or 0 for row in self.rows)

    def figure(self):
        """Times with the fitted line, and bus bandwidths with the limits; both axes logarithmic.

        Raises ValueError if nothing took any time: one rank of a virtual cluster."""
        from .. import figures

        if not all(row.seconds for row in self.rows):
            raise ValueError("there is nothing to draw: one rank has nobody to send to, and needs no time")

        sizes, seconds = [row.size for row in self.rows], [row.seconds for row in self.rows]
        bandwidths = [row.busbw * 1e9 for row in self.rows]
        return figures.sweep(sizes, seconds, bandwidths, f"{self.op}, {self.where}", self.model, self.limits)

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
        from .rank_program import IN_PLACE

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
