"""`python -m tests.accuracy`: prints the table of published and simulated times, for both halves of the rows."""

from __future__ import annotations

from statistics import median

from tests.accuracy.rows import ROWS, split
from tests.accuracy.step import simulated
from utils.text import tables
from utils.text.units import quantity

HALVES = ("fit", "held out")
HEADER = ["row", "half", "published", "datasheet", "error", "achieved", "error"]


def main() -> None:
    """Print a line for each row, and the errors of each family in each half."""
    halves = dict(zip(HALVES, split(ROWS), strict=True))
    half_of = {row: half for half, rows in halves.items() for row in rows}
    errors: dict[tuple[str, str, str], list[float]] = {}
    lines: list[tables.Row] = []
    for row in ROWS:
        cells = [row.name, half_of[row], quantity(row.seconds, "s")]
        for rates in ("datasheet", "achieved"):
            seconds = simulated(row, rates)
            error = seconds / row.seconds - 1
            errors.setdefault((row.family, half_of[row], rates), []).append(error)
            cells += [quantity(seconds, "s"), f"{100 * error:+.1f} %"]
        lines.append(tuple(cells))
    print(tables.text(HEADER, lines), end="\n\n")
    print(summary(errors))


def summary(errors: dict[tuple[str, str, str], list[float]]) -> str:
    """Median and worst error, without signs, for each family and for all training rows."""
    families = list(dict.fromkeys(family for family, _, _ in errors))
    training = [family for family in families if family != "all-reduce"]
    lines = []
    for title, members in [*((family, [family]) for family in families), ("all training rows", training)]:
        for half in HALVES:
            cells = [title, half]
            for rates in ("datasheet", "achieved"):
                sizes = [abs(e) for family in members for e in errors.get((family, half, rates), [])]
                cells += [f"{100 * median(sizes):.1f} %", f"{100 * max(sizes):.1f} %"] if sizes else ["", ""]
            lines.append((title, half, str(len(sizes)), *cells[2:]))
    header = ["family", "half", "rows", "datasheet: median", "worst", "achieved: median", "worst"]
    return tables.text(header, lines)


if __name__ == "__main__":
    main()
