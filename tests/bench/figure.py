"""The picture of the launchers, on a logarithmic axis."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.bench.show import by_speed, head, seconds
from tests.bench.side_by_side import AFTER_THE_IMPORT, OURS, WORLD_SIZE

THICK = 0.27  # thickness of a bar; launchers are 1 apart
KINDS = {  # bars of a launcher, from top to bottom: (colour, label)
    "start": ("#BBBBBB", "start, once"),
    "first": ("#E69F00", f"first call, {AFTER_THE_IMPORT:g} s after the import"),
    "later": ("#56B4E9", "later calls, in a row (median; line: fastest to slowest)"),
}


def draw(measured: dict, path: Path) -> None:
    """Save each launcher's start, first call and later calls as `path`, without those that failed."""
    rows = [(name, row) for name, row in by_speed(measured["launchers"]) if not row["failed"]]
    figure = Figure(figsize=(9.5, 1.7 + 0.8 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (_, row) in enumerate(rows):
        draw_launcher(axes, place, row)
    times = [time for _, row in rows for time in (*row["later"], row["first"], row.get("start", row["first"]))]
    axes.set(xscale="log", xlim=(min(times) / 1.5, max(times) * 2), ylim=(len(rows) - 0.4, -0.6))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("seconds, logarithmic: each step to the right is ten times as long")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == OURS else "normal")
    axes.grid(axis="x", color="#DDDDDD")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(head(measured["machine"]), fontsize=9, color="#555555")
    figure.suptitle(f"Time for {WORLD_SIZE} ranks from a notebook: init + all-reduce + results", fontweight="bold")
    handles = [axes.barh(0, 0, color=colour, label=words) for colour, words in KINDS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)


def draw_launcher(axes: Axes, place: int, row: dict) -> None:
    bars = {"start": row.get("start"), "first": row["first"], "later": median(row["later"])}
    bars = {kind: value for kind, value in bars.items() if value is not None}
    for number, (kind, value) in enumerate(bars.items()):
        y = place + THICK * (number - (len(bars) - 1) / 2)
        axes.barh(y, value, height=THICK, color=KINDS[kind][0])
        end = value
        if kind == "later":
            axes.plot([min(row["later"]), max(row["later"])], [y, y], color="#222222", linewidth=1)
            end = max(row["later"])
        axes.annotate(f"{seconds(value)} s", (end, y), (4, 0), textcoords="offset points", va="center", fontsize=8)
