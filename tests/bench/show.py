"""The measurements as tables."""

from __future__ import annotations

from itertools import zip_longest
from statistics import median

from tests.bench import grading, one_class, virtual_tables
from tests.bench.goals import GOALS
from tests.bench.side_by_side import A_QUICK_STUDENT, AFTER_THE_IMPORT, OURS, WORLD_SIZE


def report(measured: dict) -> str:
    """The tables of everything measured, and the goals."""
    parts = {"launchers": launchers, "programs": programs, "memory": memory, "import": imports, "recorder": recorder}
    tables = [show(measured[name]) for name, show in parts.items() if name in measured]
    if "virtual" in measured:
        tables += [f"{title}\n{aligned(lines)}" for title, lines in virtual_tables.tables(measured["virtual"])]
    if "grading" in measured:
        tables.append(grading.table(measured["grading"]))
    if "class" in measured:
        tables.append(one_class.table(measured["class"]))
    return "\n\n".join([head(measured["machine"]), *tables, goals(measured)])


def head(machine: dict) -> str:
    text = "torch {torch}, Python {python}, {cores} cores, load {load} at the start".format(**machine)
    busy = machine["load"] > machine["cores"] / 2
    return text + (" (busy: times are too long)" if busy else "")


def launchers(rows: dict) -> str:
    title = (
        f"{WORLD_SIZE} ranks: init + all-reduce + results, in seconds\n"
        f"(first: {AFTER_THE_IMPORT:g} s after the import; later: in a row, and in cells {A_QUICK_STUDENT:g} s apart)"
    )
    lines = [["", "start", "first", "later: median", "least", "most", "calls", "apart"]]
    for name, row in by_speed(rows):
        if row["failed"]:
            lines.append([name, f"failed: {row['failed']}"])
            continue
        apart = seconds(median(row["with_pauses"])) if row["with_pauses"] else ""
        started = seconds(row["start"]) if "start" in row else ""
        lines.append([name, started, seconds(row["first"]), *spread(row["later"]), str(len(row["later"])), apart])
        if name == OURS:
            eight = row["later_twice_the_ranks"]
            lines.append([f"  in the cell that imports {name}", "", seconds(row["first_at_once"])])
            lines.append([f"  {2 * WORLD_SIZE} ranks", "", "", *spread(eight), str(len(eight))])
    return f"{title}\n{aligned(lines)}"


def by_speed(rows: dict) -> list[tuple[str, dict]]:
    """Fastest first; launchers that failed come last."""
    return sorted(rows.items(), key=lambda item: median(item[1].get("later") or [float("inf")]))


def programs(rows: dict) -> str:
    lines = [["", "first", "later: median", "least", "most"]]
    for name, row in rows.items():
        failed = [f"failed: {row['failed']}"]
        lines.append([name, *(failed if row["failed"] else [seconds(row["first"]), *spread(row["later"])])])
    return f"{OURS}: a training step on {WORLD_SIZE} ranks, start and end included, in seconds\n{aligned(lines)}"


def memory(measured: dict) -> str:
    lines = [["", "private", "PSS"]]
    for name, row in measured["programs"].items():
        if row["failed"]:
            lines.append([name, f"failed: {row['failed']}"])
            continue
        lines.append([name, *(f"{max(rank[kind] for rank in row['ranks']) / 1e6:.1f}" for kind in ("private", "pss"))])
    kept = measured["kept"]
    lines.append([f"kept between calls, processes: {len(kept)}", "", f"{sum(kept) / 1e6:.1f}"])
    title = f"{OURS}: memory of the largest of {WORLD_SIZE} ranks, in MB (PSS: shared memory counts in parts)"
    return f"{title}\n{aligned(lines)}"


def imports(times: dict) -> str:
    lines = [["", "median", "least", "most"], *([name, *spread(taken)] for name, taken in times.items())]
    return f"a cell in a fresh interpreter, in seconds\n{aligned(lines)}"


def recorder(sizes: dict) -> str:
    lines = [["", "off, µs", "on, µs", "more"]]
    for size, row in sizes.items():
        off, on = row["off"], row["on"]
        lines.append([size, f"{off * 1e6:.1f}", f"{on * 1e6:.1f}", f"{on / off - 1:.1%}"])
    return f"an all-reduce on 2 ranks, per call, without and with recording\n{aligned(lines)}"


def goals(measured: dict) -> str:
    return aligned([["goal", "", "measured", ""], *(list(goal.judge(measured)) for goal in GOALS)])


def spread(taken: list[float]) -> list[str]:
    return [seconds(value) for value in (median(taken), min(taken), max(taken))]


def seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"


def aligned(lines: list[list[str]]) -> str:
    """Columns, the first aligned left, the others right. A line of two cells is a name and free text."""
    rows = [line for line in lines if len(line) != 2]
    left = max(len(line[0]) for line in lines)
    widths = [max(map(len, column)) for column in zip_longest(*(row[1:] for row in rows), fillvalue="")]
    texts = []
    for name, *cells in lines:
        padded = cells if len(cells) == 1 else [cell.rjust(width) for cell, width in zip(cells, widths, strict=False)]
        texts.append("  ".join([name.ljust(left), *padded]).rstrip())
    return "\n".join(texts)
