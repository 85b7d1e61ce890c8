"""What all pictures of the course share: paper, ink and colours."""

from __future__ import annotations

import io
from base64 import b64encode
from html import escape
from typing import Any, TypeAlias

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from ..text import svg
from .small_svg import small_svg

Look: TypeAlias = dict[str, Any]  # keyword arguments of matplotlib

SECONDS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))

# Okabe and Ito's colours, which everyone can tell apart, in shades light enough for black letters.
COLOURS = ["#E69F00", "#56B4E9", "#3DB891", "#F0E442", "#D98CB3", "#7FA6D6", "#E0875A", "#BBBBBB"]
# The same for kinds of work in thin bars: as dark as black letters allow, so that they differ more.
KINDS = ["#E69F00", "#56B4E9", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#2E7FBF"]
BOLD = 0.62  # the width of a bold letter, as a part of the type's size
INK, GREY, PAPER = svg.INK, "#8A8A8A", svg.PAPER
DPI = 96  # a browser's own, so that a point in a picture is a point on the page
NOTEBOOK = 914  # pixels across an output of JupyterLab on a screen of 1366 x 768, its file browser open
WIDEST = 9.5  # inches; a notebook shrinks what is wider
MANY = 60_000  # bytes of an SVG with so much in it that a PNG may be smaller
DEEP = 0.45  # opacity of the paper behind letters on a deep colour
TYPE = 9  # points, the smallest in any picture


class Picture(Figure):
    """A matplotlib figure that a notebook shows as a small SVG, with the same bytes every time.

    It suits light and dark themes alike. If very much is drawn, a PNG that is smaller takes its place.
    """

    def __init__(self, width: float, height: float, title: str) -> None:  # in inches
        super().__init__(figsize=(width, height), facecolor=PAPER)
        self.title = title
        size = min(12.0, 72 * width / (BOLD * len(title))) if title else 12.0  # points
        self.suptitle(title, color=INK, fontsize=size, fontweight="bold", x=0.5, y=max(0.97, 1 - 0.12 / height))

    def bare_panel(
        self, place: tuple[float, float, float, float], x: tuple[float, float], y: tuple[float, float], **look: Any
    ) -> Axes:
        """A panel without axes. place: its left, bottom, width and height, as parts of the picture's. x, y: limits."""
        panel = self.add_axes(place)
        panel.set(xlim=x, ylim=y, **look)
        panel.axis("off")
        return panel

    def png(self) -> bytes:
        drawn, content = io.BytesIO(), io.BytesIO()
        self.savefig(drawn, format="png", dpi=DPI)
        few = Image.open(drawn).convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(content, "png", optimize=True)  # a palette needs a third of the bytes
        return content.getvalue()

    def svg(self) -> str:
        drawn = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "manyranks"}):
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            self.savefig(drawn, format="svg", dpi=2 * DPI, metadata=nothing)  # a heat map's cells are pixels
        return small_svg(drawn.getvalue())

    def _repr_html_(self) -> str:
        kind, content = "svg+xml", self.svg().encode()
        if len(content) > MANY and len(png := self.png()) < len(content):
            kind, content = "png", png
        source = f"data:image/{kind};base64,{b64encode(content).decode()}"
        return f'{svg.IN_THE_DARK}\n<img class="manyranks" alt="{escape(self.get_suptitle())}" src="{source}">'

    def __repr__(self) -> str:
        return f"Picture({self.title!r})"


def ground(colour: str, on_stripes: bool = False) -> Look | None:
    """The `bbox` of black letters on a bar. In a dark theme they are white, and what was a deep colour is bright."""
    red, green, blue = to_rgb(colour)
    deep = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.3
    alpha = 0.7 if on_stripes else DEEP
    return {"facecolor": PAPER, "alpha": alpha, "linewidth": 0, "pad": 0.4} if deep or on_stripes else None


def fitting(units: tuple[tuple[str, float], ...], amount: float) -> tuple[str, float]:
    """The first of the units, ordered from large to small, that fits into `amount`; else the last."""
    return next((unit for unit in units if amount >= unit[1]), units[-1])


def margin(names: list[str], fontsize: float) -> float:
    """Inches for the longest of the names beside a panel, plus a little room."""
    return max(len(line) for name in names for line in name.split("\n")) * 0.6 * fontsize / 72 + 0.15
