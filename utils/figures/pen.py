"""Draws bars and their names on a panel. Bars of one look become one shape, so that thousands are drawn at once."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from .picture import PAPER

CORNERS = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
SMALLEST, LARGEST = 6, 8.5  # points; names that would have to be smaller are left out


@dataclass
class Pen:
    """From seconds of the run and heights in lanes. What `bar` is told is drawn by `finish`."""

    panel: Axes
    start: float
    end: float
    seconds: float  # that one unit of the panel is
    wide: float  # inches of the panel
    tall: float  # inches of a lane
    boxes: dict[tuple, list] = field(default_factory=lambda: defaultdict(list))  # look -> (left, top, right, bottom)

    def bar(self, start: float, end: float, y: float, height: float, what: str, **look) -> None:
        """`what` says what it is, "compute: forward" say; nothing is drawn of what lies outside of the picture."""
        start, end = max(start, self.start), min(end, self.end)
        if start <= end:
            left, right = (start - self.start) / self.seconds, (end - self.start) / self.seconds
            self.boxes[what, *look.items()].append((left, y, right, y + height))

    def label(self, start: float, end: float, y: float, height: float, name: str, on_stripes=False) -> None:
        """The name in the middle of a bar, or its number alone, or nothing: what there is room for."""
        start, end = max(start, self.start), min(end, self.end)
        room = (end - start) / (self.end - self.start) * self.wide * 72  # points
        size = min(LARGEST, height * self.tall * 72 * 0.8)
        if size < SMALLEST or room < length("0", size):
            return
        texts = [name, "".join(re.findall(r"\d+$", name))]
        fits = [text for text in texts if text and length(text, size) <= room]
        if fits:
            x = ((start + end) / 2 - self.start) / self.seconds
            ground = {"facecolor": PAPER, "alpha": 0.7, "linewidth": 0, "pad": 0.4} if on_stripes else None
            look = {"ha": "center", "va": "center_baseline", "color": "black", "fontsize": size, "zorder": 5}
            self.panel.text(x, y + height / 2, fits[0], bbox=ground, **look)

    def finish(self) -> None:
        for (what, *look), boxes in self.boxes.items():
            left, top, right, bottom = numpy.array(boxes).T
            corners = numpy.array([[left, top], [right, top], [right, bottom], [left, bottom], [left, top]])  # 5, 2, n
            path = Path(corners.transpose(2, 0, 1).reshape(-1, 2), CORNERS * len(boxes))
            self.panel.add_artist(PathPatch(path, gid=what, **dict(look)))  # add_patch would look at every corner


def length(text: str, size: float) -> float:
    """Points that a text of this size takes, and a little room."""
    return len(text) * 0.62 * size + 2
