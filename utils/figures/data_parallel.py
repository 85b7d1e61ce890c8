"""Data parallelism: one step, gradients in buckets, overlap, and what a norm averages over."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from .collectives import enough_colours
from .picture import COLOURS, GREY, INK, PAPER, Look, Picture, ground
from .work import WORK

STEPS = ("rows of the batch", "weights", "gradient", "after the all-reduce")


def data_parallel_step(shards: list[int]) -> Picture:
    """One step, a column per rank: rows, weights, gradient, mean of gradients. shards[r]: how many rows rank r has."""
    world_size = len(shards)
    enough_colours(world_size)
    picture = Picture(1.35 * world_size + 2.1, 2.6, "one step of data parallelism")
    panel = picture.bare_panel((0.01, 0.01, 0.98, 0.85), (-1.9, world_size - 0.45), (len(STEPS) - 0.4, -0.95))
    first = 0
    for rank, rows in enumerate(shards):
        panel.text(rank, -0.7, f"rank {rank}", ha="center", va="center", color=INK, fontsize=9)
        texts = [rows_of(first, rows), "the same", f"$g_{rank}$", "mean of all"]
        for depth, text in enumerate(texts):
            is_own = depth in (0, 2)
            colours = [COLOURS[rank]] if is_own else COLOURS[:world_size] if depth == 3 else [PAPER]
            box(panel, rank, depth, text, colours)
        first += rows
    for depth, name in enumerate(STEPS):
        panel.text(-0.6, depth, name, ha="right", va="center", color=INK, fontsize=9)
    return picture


def rows_of(first: int, rows: int) -> str:
    if not rows:
        return "none"
    return f"{first} to {first + rows - 1}" if rows > 1 else str(first)


def box(panel: Axes, x: float, y: float, text: str, colours: list[str], width: float = 0.9) -> None:
    """A box around (x, y), striped in `colours`, with text in it."""
    part = width / len(colours)
    for stripe, colour in enumerate(colours):
        left = x - width / 2 + stripe * part
        panel.add_patch(Rectangle((left, y - 0.36), part, 0.72, color=colour, linewidth=0))
    panel.add_patch(Rectangle((x - width / 2, y - 0.36), width, 0.72, fill=False, edgecolor=INK, linewidth=1))
    panel.text(x, y, text, ha="center", va="center", color="black", fontsize=9)


def buckets(members: list[list[int]], sizes: list[int]) -> Picture:
    """The parameters in forward order, in the colours of their buckets; widths are proportional to their sizes.

    members: each bucket's parameters, as `make_buckets` returns them; sizes: bytes of each parameter.
    """
    bucket_of = {number: bucket for bucket, numbers in enumerate(members) for number in numbers}
    picture = Picture(8, 1.85, "the last layers' gradients are ready first, and fill the first bucket")
    panel = picture.bare_panel((0.01, 0.02, 0.98, 0.76), (-0.005, 1.005), (1.5, -1.15))
    whole, left = sum(sizes), 0.0
    for number, size in enumerate(sizes):
        width, bucket = size / whole, bucket_of.get(number)
        colour = PAPER if bucket is None else COLOURS[bucket % len(COLOURS)]
        panel.add_patch(Rectangle((left, -0.4), width, 0.8, facecolor=colour, edgecolor=INK, linewidth=1))
        if width > 0.03:
            panel.text(left + width / 2, 0, str(number), ha="center", va="center", color="black", fontsize=9)
        left += width
    panel.annotate("", (0.0, -0.6), (1.0, -0.6), arrowprops={"arrowstyle": "->", "color": GREY})
    panel.text(0.5, -0.62, "backward", ha="center", va="bottom", color=INK, fontsize=9)
    for bucket, numbers in enumerate(members):
        starts = [sum(sizes[:number]) / whole for number in numbers]
        centre = (min(starts) + max(s + sizes[n] / whole for s, n in zip(starts, numbers, strict=True))) / 2
        panel.text(centre, 0.75, f"bucket {bucket}", ha="center", va="center", color=INK, fontsize=9)
        amount = f"{sum(sizes[number] for number in numbers):,} bytes"
        panel.text(centre, 1.2, amount, ha="center", va="center", color=INK, fontsize=9)
    return picture


def overlap(plans: dict[str, tuple[list[float], list[float]]], backward: float, unit: str = "ms") -> Picture:
    """For each plan the backward pass, and below it the all-reduces of its buckets on the network.

    plans   {name: (when each bucket is ready, how long its all-reduce takes)}, in `unit`, as is `backward`
    """
    ends: dict[str, list[float]] = {}
    for name, (ready, took) in plans.items():
        ends[name] = [0.0]
        for at, long in zip(ready, took, strict=True):
            ends[name].append(max(ends[name][-1], at) + long)
    latest = max(of_plan[-1] for of_plan in ends.values())
    picture = Picture(8, 0.7 + 0.8 * len(plans), "communication still exposed after the backward pass")
    place = (0.16, 0.03, 0.66, 0.9 - 0.34 / picture.get_figheight())
    panel = picture.bare_panel(place, (-0.003 * latest, 1.003 * latest), (len(plans) - 0.5 + 0.06, -0.5))
    for row, (name, (_, took)) in enumerate(plans.items()):
        panel.text(-0.01 * latest, row, name, ha="right", va="center", color=INK, fontsize=9)
        bar(panel, 0, backward, row - 0.38, WORK["backward"], f"backward: {backward:.3g} {unit}")
        all_fit = min(took, default=0.0) > 0.018 * latest * len(str(len(took) - 1))
        for bucket, (end, long) in enumerate(zip(ends[name][1:], took, strict=True)):
            bar(panel, end - long, long, row, WORK["all_reduce"], str(bucket) if all_fit else "")
        left = ends[name][-1] - backward
        words = f"{left:.3g} {unit} exposed"
        panel.text(1.01 * latest, row + 0.17, words, ha="left", va="center", color=INK, fontsize=9)
    panel.axvline(backward, color=INK, linestyle=":", linewidth=1)
    return picture


def bar(panel: Axes, start: float, length: float, top: float, colour: str, text: str) -> None:
    panel.add_patch(Rectangle((start, top), length, 0.34, facecolor=colour, edgecolor=INK, linewidth=0.8))
    if length > 0.018 * panel.get_xlim()[1] * len(text):
        look: Look = {"ha": "center", "va": "center", "color": "black", "fontsize": 9, "bbox": ground(colour)}
        panel.text(start + length / 2, top + 0.17, text, **look)


def norms(world_size: int = 2, rows: int = 3, columns: int = 4) -> Picture:
    """Which numbers of the batch share a mean in a batch norm and in a layer norm; a colour is a rank."""
    enough_colours(world_size)
    picture = Picture(7.2, 0.3 * world_size * rows + 1.35, "which numbers share a mean")
    panels = picture.subplots(1, 2)
    for panel, name in zip(panels, ("batch norm: a column, across all ranks", "layer norm: a row"), strict=True):
        panel.set(xlim=(-1.5, columns - 0.4), ylim=(world_size * rows - 0.3, -0.7))
        panel.set_title(name, color=INK, fontsize=10)
        panel.axis("off")
        for row in range(world_size * rows):
            for column in range(columns):
                colour = COLOURS[row // rows]
                panel.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor=PAPER))
        for rank in range(world_size):
            middle = rank * rows + (rows - 1) / 2
            panel.text(-0.75, middle, f"rank {rank}", ha="right", va="center", color=INK, fontsize=9)
    panels[0].add_patch(
        Rectangle((0.54, -0.46), 0.92, world_size * rows - 0.08, fill=False, edgecolor=INK, linewidth=2)
    )
    panels[1].add_patch(Rectangle((-0.46, 0.54), columns - 0.08, 0.92, fill=False, edgecolor=INK, linewidth=2))
    picture.subplots_adjust(left=0.04, right=0.98, bottom=0.04, top=1 - 0.75 / picture.get_figheight(), wspace=0.1)
    return picture
