"""How all-reduce algorithms move data: who sends to whom in each round. A place is a position in the team."""

from __future__ import annotations

import math
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from .collectives import LETTERS, draw_cell, enough_colours
from .machines import around
from .picture import COLOURS, GREY, INK, PAPER, Look, Picture

Point: TypeAlias = tuple[float, float]
TEAM: Look = {"boxstyle": "round,pad=0,rounding_size=0.15", "edgecolor": INK, "linewidth": 0.8}  # a frame around it


def arrow(panel: Axes, start: Point, end: Point, bend: float = 0, colour: str = INK, shrink: float = 10) -> None:
    """From one point to another, with a gap of `shrink` points at both ends."""
    style = f"arc3,rad={bend}"
    size: Look = {"mutation_scale": 11, "linewidth": 1.4, "shrinkA": shrink, "shrinkB": shrink, "zorder": 2}
    panel.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", connectionstyle=style, color=colour, **size))


def disc(panel: Axes, x: float, y: float, text: object, colour: str = COLOURS[1], radius: float = 0.26) -> None:
    panel.add_patch(Circle((x, y), radius, facecolor=colour, edgecolor=INK, linewidth=0.8, zorder=3))
    panel.text(x, y, str(text), ha="center", va="center", color="black", fontsize=9, zorder=4)


def panels_of(picture: Picture, count: int, top: float = 0.62) -> list[Axes]:
    """Panels side by side, without axes. top: inches for the title."""
    panels: list[Axes] = picture.subplots(1, count, squeeze=False)[0].tolist()
    for panel in panels:
        panel.axis("off")
    picture.subplots_adjust(left=0.01, right=0.99, bottom=0.03, top=1 - top / picture.get_figheight(), wspace=0.06)
    return panels


# ---- the ring


def ring(size: int = 4, step: int = 0) -> Picture:
    """One step of a ring reduce-scatter: what each place holds of each chunk before and after it, and what it sends.

    Raises ValueError if there is no such step, or if there are too many places to draw.
    """
    enough_colours(size)
    if not 0 <= step < size - 1:
        raise ValueError(f"a ring of {size} has steps 0 to {size - 2}, not {step}")
    before, after = held_in_ring(size, step), held_in_ring(size, step + 1)
    wide = 0.45 + 0.1 * size
    title = f"ring reduce-scatter of {size}, step {step}"
    picture = Picture(2 * (size + 1) * wide + 0.4, 1.35 + 0.44 * size, title)
    left, right = panels_of(picture, 2)
    draw_ring_state(left, before, f"before step {step}, and what is sent")
    draw_ring_state(right, after, f"after step {step}")
    for place in range(size):
        draw_passing(left, place, (place - 1 - step) % size, size)
    return picture


def held_in_ring(size: int, steps: int) -> list[list[str]]:
    """held[place][chunk]: whose numbers that chunk sums after `steps` steps, such as "a+d"."""
    held = [[LETTERS[place]] * size for place in range(size)]
    for step in range(steps):
        sent = [held[place][(place - 1 - step) % size] for place in range(size)]
        for place in range(size):
            chunk = (place - 2 - step) % size
            held[place][chunk] = "+".join(sorted({*held[place][chunk].split("+"), *sent[place - 1].split("+")}))
    return held


def draw_ring_state(panel: Axes, held: list[list[str]], name: str) -> None:
    size = len(held)
    panel.set(xlim=(-1.3, size + 0.12), ylim=(size - 0.4, -1.1))
    panel.set_title(name, color=INK, fontsize=10)
    for chunk in range(size):
        panel.text(-0.62, chunk, f"chunk {chunk}", ha="right", va="center", color=INK, fontsize=9)
    for place, chunks in enumerate(held):
        panel.text(place, -0.72, f"place {place}", ha="center", va="center", color=INK, fontsize=9)
        for chunk, text in enumerate(chunks):
            draw_cell(panel, place, chunk, text)
            if len(set(text) & set(LETTERS)) == size:  # complete
                frame: Look = {"fill": False, "edgecolor": INK, "linewidth": 2.6}
                panel.add_patch(Rectangle((place - 0.46, chunk - 0.42), 0.92, 0.84, **frame))


def draw_passing(panel: Axes, place: int, chunk: int, size: int) -> None:
    """An arrow from a cell to its right neighbour. The last place's leaves the picture and re-enters at place 0."""
    arrow(panel, (place + 0.18, chunk + 0.3), (place + 0.98, chunk + 0.3), shrink=0)
    if place == size - 1:
        arrow(panel, (-0.6, chunk + 0.3), (-0.12, chunk + 0.3), shrink=0)


# ---- the tree


def tree(size: int = 8) -> Picture:
    """Reducing up a binomial tree: in each round some places send their sums and are done."""
    rounds = (size - 1).bit_length()
    picture = Picture(0.6 * (size + 1.4), 0.55 + 0.6 * (rounds + 0.9), f"binomial tree of {size}: up")
    [panel] = panels_of(picture, 1, top=0.4)
    panel.set(xlim=(-1.9, size - 0.5), ylim=(rounds + 0.4, -0.5), aspect="equal")
    for place in range(size):
        last = next((level for level in range(rounds) if place >> level & 1), rounds)
        panel.plot([place, place], [0, last], color=GREY, linewidth=1, zorder=1)
        for row in range(last + 1):
            disc(panel, place, row, place, COLOURS[0] if row == rounds else COLOURS[1])
    panel.text(-0.6, 0, "start", ha="right", va="center", color=INK, fontsize=9)
    for level in range(rounds):
        distance = 2**level
        panel.text(-0.6, level + 1, f"distance {distance}", ha="right", va="center", color=INK, fontsize=9)
        for place in range(distance, size, 2 * distance):
            arrow(panel, (place, level), (place - distance, level + 1))
    return picture


# ---- halving, and the fold


def halving(size: int = 8) -> Picture:
    """The first half of halving-doubling: who exchanges with whom, and which part of the tensor each place keeps."""
    rounds = (size - 1).bit_length()
    picture = Picture(size + 1.4, 1.0 + 0.98 * (rounds + 1), f"halving among {size}")
    [panel] = panels_of(picture, 1, top=0.4)
    panel.set(xlim=(-1.15, size - 0.45), ylim=(rounds + 0.45, -0.85))
    for row in range(rounds + 1):
        distance = size >> (row + 1)
        words = f"distance {distance}" if distance else "at the end"
        panel.text(-0.6, row + 0.1, words, ha="right", va="center", color=INK, fontsize=9)
        for place in range(size):
            draw_parts(panel, place, row, size, distance)
            if distance and not place & distance:
                draw_partners(panel, place, place + distance, row)
    panel.text(-0.6, -0.72, "place", ha="right", va="center", color=INK, fontsize=9)
    for place in range(size):
        panel.text(place, -0.72, str(place), ha="center", va="center", color=INK, fontsize=9)
    return picture


def draw_parts(panel: Axes, place: int, row: int, size: int, distance: int) -> None:
    """A place's tensor as `size` boxes: what it keeps in this round, what it sends, what it no longer has."""
    keep = (distance or 1) * (place // (distance or 1))  # the first chunk that it keeps
    send = keep ^ distance
    for chunk in range(size):
        colour = PAPER
        if keep <= chunk < keep + (distance or 1):
            colour = COLOURS[2]
        elif distance and send <= chunk < send + distance:
            colour = COLOURS[0]
        left = place - 0.42 + chunk * 0.84 / size
        box: Look = {"facecolor": colour, "edgecolor": GREY, "linewidth": 0.6}
        panel.add_patch(Rectangle((left, row), 0.84 / size, 0.24, **box))


def draw_partners(panel: Axes, place: int, partner: int, row: int) -> None:
    panel.add_patch(
        FancyArrowPatch(
            *((place, row), (partner, row)),
            arrowstyle="<|-|>",
            connectionstyle=f"arc3,rad={-0.35 / math.sqrt(partner - place)}",
            mutation_scale=8,
            color=INK,
            linewidth=1.1,
            shrinkA=2,
            shrinkB=2,
        )
    )


def folding(size: int = 6) -> Picture:
    """How the places beyond a power of two send their data, wait, and get the result."""
    power = 2 ** (size.bit_length() - 1)
    picture = Picture(0.62 * (size + 2.6), 0.5 + 0.62 * 4.3, f"{size} places: {power} and {size - power} extra")
    [panel] = panels_of(picture, 1, top=0.4)
    panel.set(xlim=(-3.0, size - 0.4), ylim=(3.2, -1.1), aspect="equal")
    for row, words in enumerate(("extra places send", f"all-reduce among {power}", "extra places receive")):
        panel.text(-0.7, row, words, ha="right", va="center", color=INK, fontsize=9)
        for place in range(size):
            asleep = row == 1 and place >= power
            disc(panel, place, row, place, PAPER if asleep else COLOURS[1] if place < power else COLOURS[0])
    panel.add_patch(FancyBboxPatch((-0.4, 0.6), power - 0.2, 0.8, facecolor=COLOURS[2], alpha=0.5, **TEAM))
    for place in range(power, size):
        arrow(panel, (place, 0), (place - power, 0), bend=0.3)
        arrow(panel, (place - power, 2), (place, 2), bend=0.3)
    return picture


# ---- nodes, and pairs


def two_levels(nodes: int = 2, local: int = 4) -> Picture:
    """The three steps of a hierarchical all-reduce, with a frame around each team. Rows are nodes, columns seats."""
    names = ["1. reduce-scatter inside", "2. all-reduce across", "3. all-gather inside"]
    picture = Picture(3 * 0.58 * (local + 1.4), 0.85 + 0.58 * nodes, f"{nodes} nodes of {local} ranks")
    for number, (panel, name) in enumerate(zip(panels_of(picture, 3), names, strict=True)):
        panel.set(xlim=(-1.6, local - 0.4), ylim=(nodes - 0.5, -0.6), aspect="equal")
        panel.set_title(name, color=INK, fontsize=10)
        across, inside = [(seat, 0, 1, nodes) for seat in range(local)], [(0, node, local, 1) for node in range(nodes)]
        for frame, (x, y, wide, tall) in enumerate(across if number == 1 else inside):
            colour = COLOURS[frame % len(COLOURS)]
            panel.add_patch(FancyBboxPatch((x - 0.4, y - 0.4), wide - 0.2, tall - 0.2, facecolor=colour, **TEAM))
        for node in range(nodes):
            panel.text(-0.6, node, f"node {node}", ha="right", va="center", color=INK, fontsize=9)
            for seat in range(local):
                disc(panel, seat, node, node * local + seat, PAPER)
    return picture


def pairwise(size: int = 4) -> Picture:
    """The steps of a pairwise all-to-all: in step s every place sends to the one s places further on."""
    picture = Picture(1.75 * (size - 1) + 0.3, 2.45, f"pairwise all-to-all among {size}")
    points = around(size)
    for step, panel in enumerate(panels_of(picture, size - 1), 1):
        panel.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
        panel.set_title(f"step {step}", color=INK, fontsize=10)
        for place in range(size):
            arrow(panel, points[place], points[(place + step) % size], bend=-0.18, shrink=12)
            disc(panel, *points[place], place)
    return picture
