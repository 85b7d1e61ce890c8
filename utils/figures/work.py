"""One colour for each kind of work, the same in every picture of the course.

All of them can be told apart by the colour-blind, and black letters are readable on them (tests/figures). Shades of
blue are for the forward pass only, shades of orange for backward: chunks of a pipeline's stage get a shade each.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..events.collectives import COLLECTIVES

# The first shade is the colour of the kind.
SHADES = {
    "forward": ("#56B4E9", "#A6D8F3", "#2E7FBF", "#CFE8F7"),
    "backward": ("#E69F00", "#F5CE7A", "#CC9433", "#FAE5B8"),
    "weight gradient": ("#009E73", "#A3DBC8", "#3DB891", "#CFEDE3"),
}
WORK = {
    **{kind: shades[0] for kind, shades in SHADES.items()},
    "send": "#CC79A7",
    "recv": "#F0E442",
    **{name: one.colour for name, one in COLLECTIVES.items()},
}
OTHER_WORK = ["#85C285", "#A394FF", "#D1F066"]  # for regions that the program names itself, in alphabetical order
SHORT = {"f": "forward", "fwd": "forward", "b": "backward", "bwd": "backward", "w": "weight gradient"}


def kind_of_work(name: str) -> str:
    """The kind in WORK that a region of this name (without its numbers) is, if it is one; else the name."""
    words = name.lower()
    kinds = [kind for kind in SHADES if words.startswith(kind)]
    return SHORT.get(words) or (kinds[0] if kinds else name)


def colours_of_work(names: Iterable[str]) -> dict[str, str]:
    """{name: colour} for operations, and for regions without their numbers."""
    kinds = {name: kind_of_work(name) for name in names}
    others = sorted({kind for kind in kinds.values() if kind not in WORK})
    own = {kind: OTHER_WORK[number % len(OTHER_WORK)] for number, kind in enumerate(others)}
    return {name: WORK.get(kind) or own[kind] for name, kind in kinds.items()}
