"""The result of a sweep: one `Row` per size, in a table that can be shown, drawn and saved."""

from __future__ import annotations

import csv
from dataclasses import astuple, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..events.collectives import COLLECTIVES
from ..text import tables
from .nccl_conventions import DTYPES

if TYPE_CHECKING:
    from ..cluster.hardware import Link
    from ..figures import Picture


@dataclass(frozen=True)
class Row:
    """One size.

    seconds         the median over the repeats of the slowest rank's time
    spread          the median distance of those times from it, relative to it
    algbw, busbw    GB/s
    wrong           elements that came out wrong, on all ranks; None if unknown: a virtual cluster has no values
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
    """What was measured: a Row per size, and the limits, {what bounds it: bytes/s}."""

    op: str
    world_size: int
    dtype: str
    where: str
    rows: list[Row]
    warmup: int
    repeats: int
    limits: dict[str, float] = field(default_factory=dict)

    @cached_property
    def link(self) -> Link:
        """The Link that fits all rows best, by relative errors. Raises ValueError if no rising line does."""
        from .machine.probes import fit

        if not all(row.seconds for row in self.rows):
            raise ValueError("some calls took no time at all: a single rank has no one to send to")
        return fit({row.size: row.seconds for row in self.rows})

    @property
    def alpha(self) -> float:
        """Seconds that an empty collective would take, by the fitted line. Raises ValueError if there is none."""
        return self.link.alpha

    @property
    def beta(self) -> float:
        """Seconds per byte of size, by the fitted line. Raises ValueError if there is none."""
        return 1 / self.link.bandwidth

    @property
    def model(self) -> tuple[float, float] | None:
        """(alpha, beta), or None if there is no such line."""
        try:
            return self.alpha, self.beta
        except ValueError:
            return None

    @property
    def wrong(self) -> int:
        """Elements that came out wrong, over all rows."""
        return sum(row.wrong or 0 for row in self.rows)

    def figure(self) -> Picture:
        """Times with the fitted line, and bus bandwidths with the limits; all axes logarithmic.

        Raises ValueError if calls took no time: a single rank of a virtual cluster.
        """
        from .. import figures

        if not all(row.seconds for row in self.rows):
            raise ValueError("there is nothing to draw: a single rank has no one to send to and takes no time")

        sizes, seconds = [row.size for row in self.rows], [row.seconds for row in self.rows]
        bandwidths = [row.busbw * 1e9 for row in self.rows]
        return figures.sweep(sizes, seconds, bandwidths, f"{self.op}, {self.where}", self.model, self.limits)

    def save_csv(self, path: str | Path) -> None:
        """Write one line per size: time in seconds, bandwidths in GB/s, spread relative to the time."""
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["op", "ranks", "dtype", *(each.name for each in fields(Row))])
            writer.writerows((self.op, self.world_size, self.dtype, *astuple(row)) for row in self.rows)

    HEADER = ["size", "count", "type", "redop", "root"]
    TIMES = ["time", "algbw", "busbw", "#wrong"]
    UNITS = ["(B)", "(elements)", "", "", "", *2 * ["(us)", "(GB/s)", "(GB/s)", ""], "(±%)"]

    def cells(self) -> list[tuple[str, ...]]:
        """Rows as nccl-tests print them, and the spread. torch has one form of each collective; the other shows N/A."""
        kind = COLLECTIVES[self.op]
        what = DTYPES[self.dtype][0], "sum" if kind.reduces else "none", 0 if kind.rooted else -1
        found = []
        for row in self.rows:
            wrong = "N/A" if row.wrong is None else row.wrong
            times = (f"{row.seconds * 1e6:.2f}", f"{row.algbw:.2f}", f"{row.busbw:.2f}", wrong)
            both = (["N/A"] * 4, times) if kind.in_place else (times, ["N/A"] * 4)
            cells = (row.size, row.count, *what, *both[0], *both[1], f"{100 * row.spread:.1f}")
            found.append(tuple(map(str, cells)))
        return found

    def header(self) -> str:
        return (
            f"{self.op}, {self.where}: {self.warmup} warm-up calls, {self.repeats} repeats; time is the median over "
            "the repeats, each timed on its slowest rank"
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
            lines = ["Out of bounds values : N/A, a virtual cluster has no values"]
        lines.append(f"Avg bus bandwidth    : {mean:.4g}")
        try:
            rate, latency = 1 / self.beta / 1e9, self.alpha * 1e6
            lines.append(f"alpha + size * beta  : alpha {latency:.4g} us, 1 / beta {rate:.4g} GB/s, by relative errors")
        except ValueError as error:  # one size, or times that don't rise
            lines.append(f"alpha + size * beta  : no fit: {error}")
        return lines + [f"{name:21}: {rate / 1e9:.4g} GB/s" for name, rate in self.limits.items()]

    def _repr_html_(self) -> str:
        columns = [*self.HEADER, *(f"{form} {name}" for form in ("out-of-place", "in-place") for name in self.TIMES)]
        html = tables.html(self.header(), [*columns, "spread"], [tuple(self.UNITS), *self.cells()])
        return html + "".join(f"<div>{line}</div>" for line in self.summary())
