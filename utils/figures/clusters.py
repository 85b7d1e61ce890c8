"""The nodes of a cluster, their GPUs, and what connects them."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from ..text.units import plural, quantity
from .picture import COLOURS, GREY, INK, PAPER, Look, Picture

if TYPE_CHECKING:
    from ..cluster.hardware import Cluster, Link

GPU, INSIDE, BETWEEN = COLOURS[3], COLOURS[2], COLOURS[1]
MAX_NODES = 2  # drawn; a box with a number stands for the others
ROW, MAX_GPUS = 8, 72  # GPUs side by side, and in all; any others are shown as a number
MAX_NICS = 8  # drawn separately in a node; more become one bar
ROUND = "round,pad=0,rounding_size=0.1"
# In inches, as are the panel's axes; y points down from the top of the nodes.
STEP = 0.46  # distance between neighbouring GPUs
NARROW = 3.1  # the least width of a node, for the text in it
BAR, NIC, GAP, FOLDED = 0.34, 0.24, 0.2, 1.0  # heights of a switch and a NIC, between nodes, width of the last box


def cluster(machine: Cluster) -> Picture:
    """Nodes as boxes with their GPUs, and the links inside and between them with bandwidth and latency."""
    drawn, columns = min(machine.nodes, MAX_NODES), columns_of(machine.gpus_per_node)
    rows = rows_of(machine.gpus_per_node, columns)
    folded, network = machine.nodes - drawn, machine.nodes > 1
    wide = max(NARROW, columns * STEP + 0.2)
    tall = rows * STEP + BAR + 0.25 + (NIC + 0.25 if network else 0)
    width = drawn * (wide + GAP) - GAP + (GAP + FOLDED if folded else 0)
    below = tall + (0.25 + BAR if network else 0) + 0.12
    shape = f"{plural(machine.nodes, 'node')} x {plural(machine.gpus_per_node, 'GPU')}"
    picture = Picture(width + 0.3, below + 0.65, f"{machine.name}: {shape}")
    picture.suptitle(picture.title, color=INK, fontsize=12, fontweight="bold", y=1 - 0.06 / (below + 0.65), va="top")
    panel = picture.bare_panel((0, 0, 1, 1), (-0.15, width + 0.15), (below, -0.65))
    for node in range(drawn):
        draw_node(panel, machine, node, node * (wide + GAP), wide, tall, columns)
    if folded:
        draw_folded(panel, folded, width - FOLDED, tall)
    if network:
        words = f"between nodes, each NIC: {label(machine.inter)}"
        draw_bar(panel, 0, width, tall + 0.25, words, BETWEEN, machine.inter)
    return picture


def columns_of(gpus: int) -> int:
    """How many of a node's GPUs lie side by side: all of them, or rows of equal length if possible."""
    return gpus if gpus <= ROW else next((n for n in range(ROW, ROW // 2, -1) if gpus % n == 0), ROW)


def rows_of(gpus: int, columns: int) -> int:
    return ceil(min(gpus, MAX_GPUS) / columns) + (gpus > MAX_GPUS)


def label(link: Link) -> str:
    return f"{quantity(link.bandwidth, 'B/s')} one way, {quantity(link.alpha, 's')}"


def draw_node(panel: Axes, machine: Cluster, node: int, left: float, wide: float, tall: float, columns: int) -> None:
    """Its GPUs, numbered by rank, the switch between them and, if there are more nodes, its NICs."""
    panel.add_patch(FancyBboxPatch((left, 0), wide, tall, ROUND, facecolor="none", edgecolor=INK, gid="node"))
    panel.text(left + wide / 2, -0.13, f"node {node}", ha="center", va="center", color=INK, fontsize=9)
    start = left + (wide - columns * STEP) / 2
    for number in range(min(machine.gpus_per_node, MAX_GPUS)):
        row, column = divmod(number, columns)
        corner, side = (start + column * STEP + 0.03, 0.1 + row * STEP), STEP - 0.06
        rank = node * machine.gpus_per_node + number
        draw_box(panel, corner, side, side, str(rank), GPU, "GPU")
    y = 0.1 + rows_of(machine.gpus_per_node, columns) * STEP
    if machine.gpus_per_node > MAX_GPUS:
        words = f"x {machine.gpus_per_node - MAX_GPUS:,} more"
        panel.text(left + wide / 2, y - STEP / 2, words, ha="center", va="center", color=INK, fontsize=10)
    draw_bar(panel, left + 0.1, left + wide - 0.1, y, f"inside: {label(machine.intra)}", INSIDE, machine.intra)
    if machine.nodes > 1:
        draw_nics(panel, machine, start, columns * STEP, y + BAR, tall)


def draw_nics(panel: Axes, machine: Cluster, start: float, wide: float, switch: float, tall: float) -> None:
    """Each NIC lies below the GPUs that share it, wired to the `switch` above and the network below."""
    nics = machine.nics or machine.gpus_per_node
    boxes, words = (nics, "NIC") if nics <= MAX_NICS else (1, f"{nics} NICs")
    share, y = wide / boxes, switch + 0.15
    size = share - 0.06 if boxes < nics else min(share - 0.06, 0.5)
    for box in range(boxes):
        middle = start + (box + 0.5) * share
        panel.plot([middle, middle], [switch, tall + 0.25], color=GREY, linewidth=1, zorder=0)
        draw_box(panel, (middle - size / 2, y), size, NIC, words, BETWEEN, "NIC")


def draw_bar(panel: Axes, left: float, right: float, y: float, words: str, colour: str, link: Link) -> None:
    """A switch, as wide as what it connects."""
    draw_box(panel, (left, y), right - left, BAR, words + (", adds up" if link.reduces else ""), colour, "switch")


def draw_box(
    panel: Axes,
    corner: tuple[float, float],
    width: float,
    height: float,
    words: str,
    colour: str,
    gid: str,
) -> None:
    panel.add_patch(Rectangle(corner, width, height, facecolor=colour, edgecolor=GREY, gid=gid))
    x, y = corner[0] + width / 2, corner[1] + height / 2
    panel.text(x, y, words, ha="center", va="center_baseline", color="black", fontsize=9)


def draw_folded(panel: Axes, number: int, left: float, tall: float) -> None:
    """A box for all nodes that are not drawn."""
    look: Look = {"facecolor": PAPER, "edgecolor": GREY, "linestyle": ":", "linewidth": 1.2, "gid": "more nodes"}
    panel.add_patch(FancyBboxPatch((left, 0), FOLDED, tall, ROUND, **look))
    words = f"x {number:,}\nmore"
    panel.text(left + FOLDED / 2, tall / 2, words, ha="center", va="center", color=INK, fontsize=10)
    panel.plot([left + FOLDED / 2] * 2, [tall, tall + 0.25], color=GREY, linewidth=1, zorder=0)
