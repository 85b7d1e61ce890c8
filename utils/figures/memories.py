"""How many bytes each rank held over time: a lane per rank (in a large world, per group of equal ranks), one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..text import rank_sets
from .picture import BYTES, COLOURS, GREY, INK, KINDS, SECONDS, Look, Picture, fitting, margin

if TYPE_CHECKING:
    from ..events.memory_samples import Sample
    from ..report.memory import Memory

WIDTH = 9  # inches
LEFT, RIGHT, ABOVE, BELOW = 1.08, 1.08, 0.5, 0.95  # inches beside the panels
ROOMY = 4  # lanes; with more, they are lower
MAX_LANES = 16
# Bottom to top. "allocated", which an allocator reports without saying what for, never occurs with the others.
LAYERS = ("parameters", "gradients", "optimizer state", "activations", "communication", "other", "allocated")
COLOUR = dict(zip(LAYERS, [*KINDS[:4], KINDS[5], COLOURS[-1], KINDS[1]], strict=True))


def live_bytes(memory: Memory) -> Picture:
    """The bytes of each rank's tensors over time, by kind, with each rank's peak at the right."""
    tracked = [rank for rank, samples in enumerate(memory.samples) if samples]
    start = min(memory.samples[rank][0][0] for rank in tracked)
    end = max(memory.samples[rank][-1][0] for rank in tracked)
    peak = {rank: memory.peak[rank] or 0 for rank in tracked}
    most = max(peak.values()) or 1
    (unit, seconds), size = fitting(SECONDS, end - start), fitting(BYTES, most)
    lanes, note = chosen(memory, tracked)
    names = [rank_sets.lane_name(ranks) for ranks in lanes]
    left, above = max(LEFT, margin(names, 9) + 0.5), ABOVE + (0.24 if note else 0)
    height = (0.95 if len(lanes) <= ROOMY else 0.54) * len(lanes) + above + BELOW
    picture = Picture(WIDTH, height, "live bytes by kind")
    picture.text(0.5, 1 - (above - 0.08) / height, note, ha="center", color=INK, fontsize=9)
    picture.subplots_adjust(left / WIDTH, BELOW / height, 1 - RIGHT / WIDTH, 1 - above / height, hspace=0.15)
    panels = picture.subplots(len(lanes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    there: set[str] = set()
    for (rank, *_), name, panel in zip(lanes, names, panels, strict=True):
        panel.set(ylim=(0, 1.08 * most / size[1]), xlim=(0, max(end - start, 1e-9) / seconds))
        there |= draw_layers(panel, memory.samples[rank], start, seconds, size[1])
        draw_peak(panel, peak[rank], size, most, roomy=len(lanes) <= ROOMY)
        panel.set_ylabel(name, rotation=0, ha="right", va="center", color=INK, fontsize=9, labelpad=24)
    panels[-1].set_xlabel(f"{unit} since tracking began; heights in {size[0]}", color=INK, fontsize=9)
    legend = [Patch(facecolor=COLOUR[kind], label=kind) for kind in LAYERS if kind in there]
    look: Look = {"frameon": False, "fontsize": 9, "labelcolor": INK, "ncols": 6, "borderaxespad": 0}
    picture.legend(handles=legend, loc="lower center", bbox_to_anchor=(0.5, 0.12 / height), **look)
    return picture


def chosen(memory: Memory, tracked: list[int]) -> tuple[list[list[int]], str]:
    """(the ranks of each lane, a note about omitted lanes). Ranks that held the same at all times share a lane."""
    every = rank_sets.group_alike(tracked, ((memory.peak[rank], tuple(memory.samples[rank])) for rank in tracked))
    if len(every) <= MAX_LANES:
        return every, ""
    peaks = [memory.peak[ranks[0]] or 0 for ranks in every]
    highest, lowest = peaks.index(max(peaks)), peaks.index(min(peaks))
    places = rank_sets.spread(len(every), MAX_LANES, (highest, lowest))
    note = f"{len(places)} of {len(every):,} different lanes, evenly spread, with the highest peak (rank "
    note += f"{every[highest][0]}) and the lowest (rank {every[lowest][0]})"
    return [every[place] for place in places], note


def draw_layers(panel: Axes, samples: list[Sample], start: float, seconds: float, nbytes: float) -> set[str]:
    """Live bytes over time, a layer per kind, and the outline of their sum. Returns which kinds there are."""
    times, kinds = steps(samples)
    used = [kind for kind in LAYERS if any(kinds.get(kind, ()))]
    heights = [[value / nbytes for value in kinds[kind]] for kind in used]
    x = [(time - start) / seconds for time in times]
    panel.stackplot(x, heights, colors=[COLOUR[kind] for kind in used], step="post", linewidth=0)
    panel.step(x, [sum(parts) for parts in zip(*heights, strict=True)], where="post", color=INK, linewidth=0.5)
    return set(used)


def draw_peak(panel: Axes, peak: int, size: tuple[str, float], most: int, roomy: bool) -> None:
    """A dotted line, with its number at the right."""
    unit, nbytes = size
    panel.axhline(peak / nbytes, color=INK, linewidth=0.8, linestyle=":")
    text = ("peak\n" if roomy else "") + f"{peak / nbytes:,.4g} {unit}"
    panel.text(1.01, peak / (1.08 * most), text, transform=panel.transAxes, fontsize=9, color=INK, va="center")
    panel.tick_params(colors=INK, labelsize=9, length=2)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(GREY)
    panel.locator_params(axis="y", nbins=3 if roomy else 2)


def steps(samples: list[Sample]) -> tuple[list[float], dict[str, list[int]]]:
    """(times, {kind: live bytes from that time on}), with one entry per change.

    In a virtual world many changes share a time. Bytes that lived for no time at all, perhaps the peak, then show as a
    vertical line of the outline.
    """
    live = {kind: 0 for _, kind, _ in samples}
    times: list[float] = []
    kinds: dict[str, list[int]] = {kind: [] for kind in live}
    for time, kind, nbytes in samples:
        live[kind] = nbytes
        times.append(time)
        for each, alive in live.items():
            kinds[each].append(alive)
    return times, kinds
