"""Draws bars and their names on a panel. Bars with the same look become one shape, so thousands are quick to draw."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from .picture import TYPE, Look

Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom
CORNERS = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]


@dataclass
class Pen:
    """Takes times in seconds of the run and heights in lanes. `bar` collects bars, `finish` draws them."""

    panel: Axes
    start: float
    end: float
    seconds: float  # per unit of the panel's axis
    wide: float  # inches of the panel
    tall: float  # inches of a lane
    boxes: dict[tuple[Any, ...], list[Box]] = field(default_factory=lambda: defaultdict(list))  # {look: its boxes}

    def bar(self, start: float, end: float, y: float, height: float, what: str, **look: Any) -> None:
        """`what` describes the bar, such as "compute: forward". What lies outside the picture is cut off."""
        start, end = max(start, self.start), min(end, self.end)
        if start <= end:
            left, right = (start - self.start) / self.seconds, (end - self.start) / self.seconds
            self.boxes[what, *look.items()].append((left, y, right, y + height))

    def label(self, start: float, end: float, y: float, height: float, name: str, bbox: Look | None) -> None:
        """Writes the name in the middle of a bar, or only its number, or nothing, depending on the room.

        bbox: what lies behind the letters, see `ground`.
        """
        start, end = max(start, self.start), min(end, self.end)
        room = (end - start) / (self.end - self.start) * self.wide * 72  # points
        if height * self.tall * 72 < 1.1 * TYPE:
            return
        texts = [name, "".join(re.findall(r"\d+$", name))]
        fits = [text for text in texts if text and length(text) <= room]
        if fits:
            x = ((start + end) / 2 - self.start) / self.seconds
            look: Look = {"ha": "center", "va": "center_baseline", "color": "black", "fontsize": TYPE, "zorder": 5}
            self.panel.text(x, y + height / 2, fits[0], bbox=bbox, **look)

    def finish(self) -> None:
        for (what, *look), boxes in self.boxes.items():
            left, top, right, bottom = numpy.array(boxes).T
            corners = numpy.array([[left, top], [right, top], [right, bottom], [left, bottom], [left, top]])  # 5, 2, n
            path = Path(corners.transpose(2, 0, 1).reshape(-1, 2), CORNERS * len(boxes))
            self.panel.add_artist(PathPatch(path, gid=what, **dict(look)))  # add_patch would inspect every corner


def length(text: str) -> float:
    """Points that a text takes, plus a little room."""
    return len(text) * 0.6 * TYPE + 2
