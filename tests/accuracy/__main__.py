"""`python -m tests.accuracy`: prints the table of published and simulated times, for both halves of the rows.

Below it are median and worst errors. Rows that contradict their own source don't count there (rows.py). At the end, the
steps of Llama 3 are carried out as one program each (whole_step.py), which takes a minute or two.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from tests.accuracy.rows import ROWS, Row, split
from tests.accuracy.step import carried_out, simulated
from utils.text import tables
from utils.text.units import quantity

HALVES = ("fit", "held out")
WHOLE = "Llama 3 2024"  # the family whose schedule, sharding and overlap are known well enough to write its whole step
HEADER = ["row", "half", "published", "fits its source", "datasheet", "error", "achieved", "error"]


def main() -> None:
    """Print a line for each row, and the errors of each family in each half."""
    halves = dict(zip(HALVES, split(ROWS), strict=True))
    half_of = {row: half for half, rows in halves.items() for row in rows}
    errors: dict[tuple[str, str, str], list[float]] = {}
    lines: list[tables.Row] = []
    for row in ROWS:
        cells = [row.name, half_of[row], quantity(row.seconds, "s"), fits(row)]
        for rates in ("datasheet", "achieved"):
            seconds = simulated(row, rates)
            error = seconds / row.seconds - 1
            if not row.contradictions:
                errors.setdefault((row.family, half_of[row], rates), []).append(error)
            cells += [quantity(seconds, "s"), f"{100 * error:+.1f} %"]
        lines.append(tuple(cells))
    print(tables.text(HEADER, lines), end="\n\n")
    print(checked(ROWS), end="\n\n")
    print(summary(errors), end="\n\n")
    for row in ROWS:
        if row.family == WHOLE:
            print(whole(row))


def whole(row: Row) -> str:
    """A step as one program, on all GPUs: how long it takes there and here."""
    began = perf_counter()
    run = carried_out(row, "achieved")
    took = perf_counter() - began
    error = 100 * (run.elapsed / row.seconds - 1)
    return f"{row.name}, carried out as one program: {run.elapsed:.2f} s, {error:+.1f} %; simulated in {took:.0f} s"


def fits(row: Row) -> str:
    """How many other numbers of its source a row was checked against, or which it contradicts."""
    return "; ".join(check.what for check in row.contradictions) or f"{len(row.checks)} of {len(row.checks)}"


def checked(rows: list[Row]) -> str:
    """What the rows of each family were checked against, and which contradict it."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(row.family, []).extend(check.what for check in row.checks)
    lines = [f"{family}: checked by {', '.join(dict.fromkeys(whats))}" for family, whats in kinds.items()]
    doubts = [f"{row.name}: {check}; not in the summary" for row in rows for check in row.contradictions]
    return "\n".join([*lines, *doubts])


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
