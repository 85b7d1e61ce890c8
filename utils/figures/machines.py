"""One machine from the inside: how its ranks meet, how fast its levels move bytes, and how its GPUs are wired."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

from ..kit.gpu_topology import speed
from ..text.units import quantity
from .picture import COLOURS, GREY, INK, KINDS, PAPER, Look, Picture

WIRES = {"NVLink": KINDS[2], "PIX": KINDS[6], "PXB": KINDS[6], "PHB": KINDS[0], "NODE": KINDS[0], "SYS": KINDS[5]}


def bandwidths(nbytes: list[int], seconds: list[float], levels: dict[str, float], fixed: float = 0.0) -> Picture:
    """Bytes/s of copies of n bytes, for each n in `nbytes`, over the 2 n bytes that they read and write.

    levels   {name: how many bytes fit in it}, smallest first
    fixed    seconds that starting a copy takes; above 0, a second line shows the rates without it
    """
    picture = Picture(7.2, 3.2, "How fast one core copies")
    panel = picture.subplots()
    touched = [2 * n for n in nbytes]
    rates = [n / s / 1e9 for n, s in zip(touched, seconds, strict=True)]
    net = [(n, n / (s - fixed) / 1e9) for n, s in zip(touched, seconds, strict=True) if s > fixed]
    if fixed:
        panel.loglog(touched, rates, color=GREY, marker="o", markersize=4, label="as measured")
    panel.loglog(*zip(*net, strict=True), color=KINDS[6], marker="o", markersize=4, label="without the fixed cost")
    lowest, highest = min(rates), max(rate for _, rate in net)
    panel.set(xlim=(min(touched) / 1.5, max(touched) * 1.5), ylim=(lowest / 1.6, highest * 2.2))
    edges = [min(touched) / 1.5, *(size for size in levels.values() if size < max(touched)), max(touched) * 1.5]
    for name, left, right in zip(levels, edges, edges[1:], strict=False):
        if right > min(touched):
            panel.axvline(right, color=GREY, linewidth=0.8, linestyle=":")
            middle = math.sqrt(max(left, min(touched) / 1.5) * right)
            panel.text(middle, highest * 1.5, name, ha="center", va="center", color=INK, fontsize=9)
    if fixed:
        panel.legend(loc="lower center", fontsize=9, frameon=False, labelcolor=INK)
    panel.set_xlabel("bytes read and written", color=INK)
    panel.set_ylabel("GB/s", color=INK)
    panel.xaxis.set_major_formatter(lambda n, _: quantity(n, "B"))
    panel.yaxis.set_major_formatter(lambda rate, _: f"{rate:g}")
    picture.subplots_adjust(left=0.1, right=0.97, bottom=0.17, top=0.88)
    return picture


def roofline(peak: float, bandwidth: float | dict[str, float], points: dict[str, float], title: str) -> Picture:
    """The FLOP/s attainable at each arithmetic intensity.

    peak        in FLOP/s
    bandwidth   in bytes/s, of the memory; or {name: bytes/s} of several links, which have a roof each
    points      {name: FLOP per byte}; with several links, each stands on all of the roofs
    """
    links = bandwidth if isinstance(bandwidth, dict) else {"": bandwidth}
    ridges = {name: peak / rate for name, rate in links.items()}
    picture = Picture(7.2, 3.4, title)
    panel = picture.subplots()
    low, high = min([*points.values(), *ridges.values()]) / 4, max([*points.values(), *ridges.values()]) * 8
    floor = low * min(links.values()) / 1e12
    for place, (name, rate) in enumerate(links.items()):
        ridge, colour = ridges[name], KINDS[(2, 6, 5, 4)[place % 4]] if name else INK
        roof = [low * rate / 1e12, peak / 1e12, peak / 1e12]
        panel.loglog([low, ridge, high], roof, color=colour, linewidth=1.8, zorder=2 - place / 10)
        panel.axvline(ridge, color=GREY, linewidth=0.8, linestyle=":")
        words, height = f"{name}: {ridge:,.0f}" if name else f"ridge point: {ridge:,.0f}", 2.0 * 2.2**place
        panel.text(ridge * 1.1, floor * height, words, color=INK, fontsize=9)
    panel.set(xlim=(low, high), ylim=(floor, peak / 1e12 * 4))
    beside: Look = {"xytext": (0, 8), "ha": "center"} if len(links) > 1 else {"xytext": (8, -12)}
    for colour, (name, intensity) in zip(KINDS, points.items(), strict=False):
        attainable = sorted(min(peak, intensity * rate) / 1e12 for rate in links.values())
        panel.plot([intensity] * len(links), attainable, "o", color=colour, markersize=8, zorder=3)
        panel.annotate(name, (intensity, attainable[-1]), textcoords="offset points", color=INK, fontsize=9, **beside)
    panel.set_xlabel(f"FLOP per byte {'sent' if isinstance(bandwidth, dict) else 'moved'}", color=INK)
    panel.set_ylabel("TFLOP/s", color=INK)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(lambda amount, _: f"{amount:,g}")
    picture.subplots_adjust(left=0.11, right=0.97, bottom=0.16, top=0.88)
    return picture


def tiles(tiles_a_side: int, row: int, column: int, step: int) -> Picture:
    """C = A B in tiles: the tile of C being computed, and the tiles of A and B that one step of its sum needs."""
    picture = Picture(6.4, 2.5, f"one tile of C, step {step + 1} of {tiles_a_side}")
    limits = (-0.6, 3 * tiles_a_side + 3.2), (tiles_a_side + 0.9, -0.3)
    panel = picture.bare_panel((0, 0, 1, 0.86), *limits, aspect="equal")
    strips = {"A": ((row, None), (row, step)), "B": ((None, column), (step, column)), "C": ((), (row, column))}
    for place, (name, (strip, tile)) in enumerate(strips.items()):
        left = place * (tiles_a_side + 1.3)
        for i in range(tiles_a_side):
            for j in range(tiles_a_side):
                in_strip = strip and (strip[0] == i or strip[1] == j)
                colour = COLOURS[place] if (i, j) == tile else COLOURS[3] if in_strip else PAPER
                panel.add_patch(Rectangle((left + j, i), 1, 1, facecolor=colour, edgecolor=GREY))
        panel.text(left + tiles_a_side / 2, tiles_a_side + 0.5, name, ha="center", va="center", color=INK, fontsize=11)
    for place, sign in enumerate(("x", "=")):
        middle = (place + 1) * (tiles_a_side + 1.3) - 0.65
        panel.text(middle, tiles_a_side / 2, sign, ha="center", va="center", color=INK, fontsize=13)
    return picture


def topology(matrix: list[list[str]], title: str, ring: list[int] | None = None) -> Picture:
    """GPUs in a circle, and the link of each pair, matrix[i][j], such as "NV4". With a ring, all other links are pale.

    The more NVLinks, the wider the line; fast links are drawn over slow ones.
    """
    picture = Picture(5.6, 3.9, title)
    panel = picture.bare_panel((0, 0, 1, 0.9), (-1.5, 2.7), (-1.3, 1.3), aspect="equal")
    size = len(matrix)
    spots = around(size)
    in_ring = {frozenset(pair) for pair in zip(ring or [], [*(ring or [])[1:], *(ring or [])[:1]], strict=True)}
    pairs = sorted(((i, j) for i in range(size) for j in range(i)), key=lambda pair: speed(matrix[pair[0]][pair[1]]))
    for i, j in pairs:
        strong = ring is None or frozenset((i, j)) in in_ring
        look: Look = {
            "alpha": 1.0 if strong else 0.13,
            "linewidth": width(matrix[i][j]) * (1.4 if in_ring and strong else 1),
        }
        panel.plot(*zip(spots[i], spots[j], strict=True), color=WIRES[kind(matrix[i][j])], zorder=1, **look)
    draw_circles(panel, spots)
    labels = sorted({matrix[i][j] for i, j in pairs}, key=speed, reverse=True)
    for line, label in enumerate(labels):
        y = 0.12 * (len(labels) - 1) * 1.5 - 0.36 * line
        panel.plot([1.5, 1.85], [y, y], color=WIRES[kind(label)], linewidth=width(label))
        count = sum(matrix[i][j] == label for i, j in pairs)
        panel.text(1.95, y, f"{label}  x {count}", ha="left", va="center", color=INK, fontsize=9.5)
    return picture


def rendezvous(world_size: int) -> Picture:
    """Ranks that know only the store, and the same ranks once all are connected."""
    picture = Picture(6.4, 3.4, "a rendezvous")
    apart, joined = picture.subplots(1, 2)
    spots = around(world_size)
    titles = {apart: "each writes its address,\nand reads the others'", joined: "then all are connected"}
    for panel, words in titles.items():
        panel.set(xlim=(-1.5, 1.5), ylim=(-1.25, 1.25))
        panel.set_aspect("equal")
        panel.axis("off")
        panel.set_title(words, color=INK, fontsize=11)
        draw_circles(panel, spots)
    for number, (x, y) in enumerate(spots):
        apart.plot([0, x], [0, y], color=GREY, linestyle=":", linewidth=1.5, zorder=0)
        for other in spots[:number]:
            joined.plot(*zip((x, y), other, strict=True), color=KINDS[2], linewidth=1.5, zorder=0)
    apart.add_patch(Rectangle((-0.32, -0.17), 0.64, 0.34, facecolor=COLOURS[1], edgecolor=INK))
    apart.text(0, 0, "store", ha="center", va="center_baseline", color="black", fontsize=11)
    picture.subplots_adjust(left=0.02, right=0.98, bottom=0.02, top=0.77, wspace=0.05)
    return picture


def around(count: int) -> list[tuple[float, float]]:
    """`count` places on a circle, clockwise from the top."""
    angles = [math.pi / 2 - 2 * math.pi * place / count for place in range(count)]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def draw_circles(panel: Axes, spots: list[tuple[float, float]]) -> None:
    """A numbered circle at each place."""
    for number, (x, y) in enumerate(spots):
        panel.add_patch(Circle((x, y), 0.14, facecolor=COLOURS[3], edgecolor=INK, zorder=2))
        panel.text(x, y, str(number), ha="center", va="center_baseline", fontsize=10, color="black", zorder=3)


def kind(label: str) -> str:
    return "NVLink" if label.startswith("NV") else label


def width(label: str) -> float:
    """Line width in points: more NVLinks are drawn wider."""
    return min(4.5, 1.2 + 1.2 * math.log2(int(label[2:]))) if label.startswith("NV") else 0.9
