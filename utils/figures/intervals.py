"""Ranges beside each other: how far predictions may be off, and where the measured value is."""

from __future__ import annotations

from collections.abc import Mapping

from .picture import GREY, INK, KINDS, Picture


def intervals(ranges: Mapping[str, tuple[float, float, float]], title: str, what: str) -> Picture:
    """A bar from low to high for each {name: (low, value, high)}, from the top down, and a dot at the value.

    A dot outside its bar is hollow. what: the name of the axis, with its unit if it has one.
    """
    picture = Picture(7.2, 1.1 + 0.28 * len(ranges), title)
    height = picture.get_figheight()
    longest = max(map(len, ranges), default=0)
    left = min(0.55, 0.03 + 0.0125 * longest)
    panel = picture.add_axes((left, 0.5 / height, 0.97 - left, 1 - 0.95 / height))
    for place, (low, value, high) in enumerate(ranges.values()):
        inside = low <= value <= high
        panel.barh(place, high - low, left=low, height=0.55, color=GREY, alpha=0.45)
        panel.plot(
            value, place, "o", color=INK if inside else KINDS[1], markersize=6, fillstyle="full" if inside else "none"
        )
    panel.set_yticks(range(len(ranges)), [*ranges], fontsize=9, color=INK)
    panel.set_ylim(len(ranges) - 0.4, -0.6)
    panel.set_xlabel(what, fontsize=9, color=INK)
    panel.tick_params(labelsize=9, colors=INK)
    panel.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    return picture
