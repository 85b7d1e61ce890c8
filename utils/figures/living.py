"""Bars in lanes over one time axis, as an SVG that a few lines of script (living.js) bring to life.

A notebook shows the SVG as an image, which stands still and is sharp wherever scripts don't run. Where they do, the
script puts the same SVG in the place of the image: then bars tell what they are, the axis zooms, and a drag measures.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib.colors import to_hex, to_rgb

from ..text.svg import clean, image, number, sheet, tag, text
from ..text.units import quantity
from .picture import GREY, INK, PAPER, SECONDS, fitting

WIDE, RIGHT = 912, 16  # pixels across, and of the margin on the right
TYPE = 12  # pixels: 9 points
LETTER = 6.8  # pixels of a letter, on average, with a little room
MERGED, MOST = 0.5, 3000  # pixels in which bars that look alike become one: more of them if there are too many bars
TICKS = 110  # pixels between two ticks, at least
PALE = 0.75  # part of white behind stripes
STUCK = "#C62828"
HEADING = {"font_size": 15, "font_weight": "bold"}
# Around letters on bars.
HALO = {
    "fill": "#000000",
    "stroke": PAPER,
    "stroke_width": 3,
    "stroke_opacity": 0.4,
    "paint_order": "stroke",
}


Kind = Literal["solid", "waits", "blocked", "bubble", "open"]


class Look(NamedTuple):
    """How bars are filled. waits: striped in their colour; blocked: stripes over what is below; open: in outline."""

    kind: Kind
    colour: str = GREY
    order: float = 0  # the order of painting


@dataclass(slots=True)
class Bar:
    """Times in seconds of the axis, heights as parts of the lane.

    what    kind of bar, as in "compute: forward"
    name    its label; of "forward 3", "F3" is left where there is little room
    tells   what the pointer is told: its name, and a remark
    link    bars with the same number, if it is not 0, light up together
    room    height for the label, from `top`; 0: it has none
    """

    what: str
    lane: int
    start: float
    end: float
    top: float
    height: float
    look: Look
    name: str = ""
    tells: tuple[str, str] = ("", "")
    link: int = 0
    room: float = 0
    merged: int = 1


@dataclass(slots=True)
class Lane:
    """The ranks that share it. tall: pixels of its bars; below: of the line of text under them.

    heading, note   what is written above it, where a part of the figure begins
    """

    name: str
    ranks: list[int]
    tall: float
    heading: str = ""
    note: str = ""
    line: str = ""
    below: float = 0
    top: float = 0


@dataclass
class Timeline:
    """What `run.timeline()` returns: a figure with the same bytes for the same run, which a notebook shows.

    span    seconds on the time axis; about: what its zero is
    legend  {what: how it looks}
    arrows  (from, to): lanes whose ranks wait for each other
    """

    title: str
    about: str
    span: float
    lanes: list[Lane]
    bars: list[Bar]
    legend: dict[str, Look]
    arrows: list[tuple[int, int]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Timeline({self.title!r})"

    def _repr_html_(self) -> str:
        return f"{image(self.svg(), self.title, 'timeline')}\n<script>{script()}</script>"

    def save(self, path: Path) -> None:
        """Write a page that is alive, or an .svg that stands still."""
        page = (
            f'<!doctype html>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
            f"<title>{escape(clean(self.title))}</title>\n{self._repr_html_()}\n"
        )
        path.write_text(self.svg() if path.suffix.lower() == ".svg" else page, "utf-8")

    def svg(self) -> str:
        return Sheet(self).svg()


class Sheet:
    """Draws one Timeline. Coordinates in pixels."""

    def __init__(self, figure: Timeline) -> None:
        self.figure = figure
        self.unit, self.seconds = fitting(SECONDS, figure.span)
        lines = [line for lane in figure.lanes for line in lane.name.split("\n")]
        self.left = round(max(map(len, lines)) * LETTER + 16)
        self.right = RIGHT + (16 * len(figure.arrows) + 12 if figure.arrows else 0)
        self.titled = not any(lane.heading for lane in figure.lanes)
        self.bottom = 30.0 if self.titled else 0.0
        for lane in figure.lanes:
            lane.top = self.bottom + 28 * bool(lane.heading) + 18 * bool(lane.note)
            self.bottom = lane.top + lane.tall + lane.below
        self.room = WIDE - self.left - self.right
        bars, least = figure.bars, MERGED * figure.span / self.room
        while len(bars := merged(bars, least)) > MOST and least < figure.span:
            least *= 2
        self.looks: dict[tuple[str, Look], list[Bar]] = defaultdict(list)
        for bar in bars:
            self.looks[bar.what, bar.look].append(bar)
        self.groups = sorted(self.looks.items(), key=lambda group: group[0][1].order)

    def x(self, seconds: float) -> float:
        return self.left + min(max(seconds / self.figure.span, 0), 1) * self.room

    def box(self, bar: Bar) -> tuple[float, float, float, float]:
        """x, y, width, height."""
        lane = self.figure.lanes[bar.lane]
        left = self.x(bar.start)
        return left, lane.top + bar.top * lane.tall, self.x(bar.end) - left, bar.height * lane.tall

    def svg(self) -> str:
        keys, tall = self.legend()
        labels = [self.label(bar) for _, bars in self.groups for bar in bars]
        body = [
            tag("metadata", escape(json.dumps(self.data(), ensure_ascii=False, separators=(",", ":")), quote=False)),
            tag("defs", "".join(self.patterns())),
            tag("rect", width="100%", height="100%", fill=PAPER),
            text(self.figure.title, 4, 18, **HEADING) if self.titled else "",
            tag("g", "".join(map(self.lane, self.figure.lanes)), class_="lanes"),
            tag("g", "\n".join(self.group(look, bars) for (_, look), bars in self.groups), class_="bars"),
            tag("g", "".join(labels), class_="labels", text_anchor="middle", pointer_events="none", **HALO),
            tag("g", tag("g", self.axis(), class_="axis") + tag("g", keys, class_="keys"), class_="foot"),
            tag("g", self.arrows(), class_="arrows"),
        ]
        return sheet("\n".join(body) + "\n", WIDE, tall, self.figure.title)

    def data(self) -> dict[str, Any]:
        """What the script needs to know. Six numbers for each bar, four of them places in `words`."""
        words: dict[str, int] = {"": 0}
        bars: list[int] = []
        for _, group in self.groups:
            for bar in group:
                name, remark = bar.tells
                name = f"{bar.merged:,} bars, the first {name}" if bar.merged > 1 else name
                said = bar.name, name, in_words(bar.end - bar.start), remark
                bars += [words.setdefault(clean(word), len(words)) for word in said]
                bars += [bar.link, round(bar.room * self.figure.lanes[bar.lane].tall)]
        lanes = [[lane.top, lane.tall, clean(lane.name.replace("\n", " "))] for lane in self.figure.lanes]
        span = float(f"{self.figure.span / self.seconds:.6g}")
        return {"left": self.left, "right": self.right, "span": span, "unit": self.unit, "about": self.figure.about,
                "floor": self.bottom, "lanes": lanes, "words": list(words), "bars": bars}  # fmt: skip

    def patterns(self) -> Iterable[str]:
        looks = dict.fromkeys(look for _, look in self.looks)
        for look in {fill(one): one for one in [*looks, *self.figure.legend.values()]}.values():
            if look.kind == "bubble":
                dots = tag("rect", width=4, height=4, fill="#F4F4F4") + tag("circle", cx=2, cy=2, r=0.7, fill="#C0C0C0")
                yield tag("pattern", dots, id=name_of(look), width=4, height=4, patternUnits="userSpaceOnUse")
            elif look.kind in ("waits", "blocked"):
                over = look.kind == "blocked"
                behind, colour = (PAPER, GREY) if over else (mixed(look.colour, PALE), darker(look.colour))
                ground = tag("rect", width=6, height=6, fill=behind, opacity=0.75 if over else 1)
                stripe = tag("rect", width=2, height=6, fill=colour)
                turned = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
                yield tag("pattern", ground + stripe, id=name_of(look), width=6, height=6, **turned)

    def lane(self, lane: Lane) -> str:
        names, middle = lane.name.split("\n"), lane.top + lane.tall / 2
        shown = names if lane.tall > 28 else [" ".join(names)]
        rows = [
            text(row, self.left - 8, middle + 4 + 14 * (at - (len(shown) - 1) / 2), text_anchor="end")
            for at, row in enumerate(shown)
        ]
        parts = [tag("path", d=f"M0 {number(lane.top)}H{WIDE}", stroke="#D8D8D8")]
        above = lane.top - 8
        if lane.note:
            parts.append(text(lane.note, 4, above))
            above -= 18
        if lane.heading:
            parts.append(text(lane.heading, 4, above, **HEADING))
        if lane.line:
            parts.append(text(lane.line, self.left, lane.top + lane.tall + 10))
        return tag("g", "".join(parts) + tag("g", "".join(rows)))

    def group(self, look: Look, bars: list[Bar]) -> str:
        boxes = ([number(length) for length in self.box(bar)] for bar in bars)
        return tag("g", tag("path", d="".join(f"M{x} {y}h{w}v{h}h-{w}z" for x, y, w, h in boxes)), **style(look))

    def label(self, bar: Bar) -> str:
        x, y, wide, _ = self.box(bar)
        tall = bar.room * self.figure.lanes[bar.lane].tall
        fits = [word for word in (bar.name, short(bar.name)) if len(word) * LETTER + 4 <= wide]
        if tall < TYPE or not fits or not fits[0]:
            return ""
        return text(fits[0], x + wide / 2, y + tall / 2 + 4)

    def axis(self) -> str:
        span, marks = self.figure.span / self.seconds, []
        for value, written in ticks(span, self.room):
            x = self.left + value / span * self.room
            marks.append(tag("path", d=f"M{number(x)} {number(self.bottom)}v5", stroke=INK))
            marks.append(text(written, x, self.bottom + 18, text_anchor="middle"))
        line = tag("path", d=f"M0 {number(self.bottom)}H{WIDE}", stroke=INK)
        what = text(f"{self.unit} since {self.figure.about}", self.left + self.room / 2, self.bottom + 35)
        return line + "".join(marks) + what.replace("<text", "<text text-anchor='middle'", 1)

    def legend(self) -> tuple[str, float]:
        """(the keys, where the figure ends)"""
        x, y, keys = float(self.left), self.bottom + 48, []
        for word, look in self.figure.legend.items():
            wide = 26 + len(word) * LETTER + 12
            if x + wide > WIDE and x > self.left:
                x, y = float(self.left), y + 19
            box = tag("rect", width=20, height=12, **style(look))
            keys.append(tag("g", box + text(word, 26, 10.5), transform=f"translate({number(x)} {number(y)})"))
            x += wide
        return "".join(keys), y + 19

    def arrows(self) -> str:
        paths = []
        for at, (one, other) in enumerate(self.figure.arrows):
            x = WIDE - self.right + 6
            (a, b), far = (self.middle(lane) for lane in (one, other)), x + 14 + 16 * at
            a, b = (a + 5, b - 5) if a < b else (a - 5, b + 5)
            paths.append(tag("path", d=f"M{x} {number(a)}H{far}V{number(b)}H{x + 2}", stroke_width=1.8, fill="none"))
            paths.append(tag("path", d=f"M{x - 2} {number(b)}l7-4v8z", stroke="none", fill=STUCK))
        return tag("g", "".join(paths), stroke=STUCK) if paths else ""

    def middle(self, lane: int) -> float:
        one = self.figure.lanes[lane]
        return one.top + one.tall / 2


def merged(bars: list[Bar], least: float) -> list[Bar]:
    """Bars that nobody could tell apart become one. least: seconds that such a one may last."""
    kept: list[Bar] = []
    last: dict[tuple[Any, ...], int] = {}
    for bar in bars:
        place = bar.what, bar.look, bar.lane, bar.top, bar.height
        before = kept[last[place]] if place in last else None
        if before is not None and before.start <= bar.start and bar.end - before.start < least:
            end = max(before.end, bar.end)
            kept[last[place]] = replace(before, end=end, merged=before.merged + 1, link=0)
        else:
            last[place] = len(kept)
            kept.append(bar)
    return kept


@cache
def short(name: str) -> str:
    """ "F3" for "forward 3"; "" for a name without a number, of which one letter would say nothing."""
    found = re.fullmatch(r"([^\W\d_])\D*?[\s_#]*(\d+)", name)
    if found is None:
        return ""
    letter = found[1].upper() if name.lower().startswith(("forward", "backward")) else found[1]
    return letter + found[2]


@cache
def in_words(seconds: float) -> str:
    return quantity(float(f"{seconds:.3g}"), "s")


def ticks(span: float, room: float) -> list[tuple[float, str]]:
    """(value, as text) of round numbers from 0 to `span`, so far apart that their texts have room. As in living.js."""
    least = span * TICKS / room
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(step * n, f"{step * n:.{digits}f}") for n in range(math.floor(span / step + 1e-9) + 1)]


def style(look: Look) -> dict[str, Any]:
    edges: dict[str, Any] = {"stroke": darker(look.colour), "stroke_width": 0.6}
    if look.kind == "bubble":
        edges = {}
    if look.kind == "open":
        edges = {"stroke": INK, "stroke_width": 0.8, "stroke_dasharray": "2 2"}
    return {"fill": fill(look), **edges}


def fill(look: Look) -> str:
    if look.kind in ("solid", "open"):
        return look.colour if look.kind == "solid" else mixed(look.colour, PALE)
    return f"url(#{name_of(look)})"


def name_of(look: Look) -> str:
    """The id of a pattern. Those of the same look are the same in every figure, so figures don't disturb each other."""
    return f"mr-{look.kind}" + f"-{look.colour[1:]}" * (look.kind == "waits")


def mixed(colour: str, white: float) -> str:
    red, green, blue = (white + (1 - white) * part for part in to_rgb(colour))
    return to_hex((red, green, blue))


def darker(colour: str) -> str:
    """A shade whose stripes are visible on white, even for yellow, and whose edge parts equal neighbours."""
    red, green, blue = (0.75 * part for part in to_rgb(colour))
    return to_hex((red, green, blue))


@cache
def script() -> str:
    """The script, without what is there for readers."""
    lines = (line.strip() for line in (Path(__file__).parent / "living.js").read_text("utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
