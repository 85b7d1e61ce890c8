"""A guess and the truth on one line."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..text.svg import INK, PAPER, sheet, tag, text

WIDE, TALL, EDGE, LINE = 380, 72, 34, 46  # pixels: of the picture, from its sides to the line, from its top to the line
LETTER = 7.5  # pixels of a bold letter, on average
FAR = 4  # times that one is the other; from there on, the line is logarithmic
TICKS = 6  # at most, or one more
TRUTH, GUESS = "#2E7D32", "#C25400"
POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def ruler(guess: float, truth: float, shown: Callable[[float], str]) -> str:
    """An SVG. If one is several times the other, the line is logarithmic. shown: a number in words.

    Raises ValueError or OverflowError if one of them is not finite.
    """
    low, high = sorted((guess, truth))
    is_log = low > 0 and high / low >= FAR
    marks = powers(low, high) if is_log else steps(min(low, 0), max(high, 0) or 1 - bool(low))
    scale = math.log10 if is_log else float
    start, end = scale(marks[0]), scale(marks[-1])

    def x(value: float) -> float:
        return EDGE + (scale(value) - start) / (end - start) * (WIDE - 2 * EDGE)

    flags = [
        flag(x(truth), 13, f"it is {shown(truth)}", TRUTH, TRUTH, to_the_left=truth < guess),
        flag(x(guess), 29, f"you said {shown(guess)}", GUESS, PAPER, to_the_left=guess < truth),
    ]
    if shown(guess) == shown(truth):
        flags = [flag(x(truth), 29, f"{shown(truth)}, as you said", TRUTH, TRUTH, to_the_left=True)]
    body = [
        tag("rect", width="100%", height="100%", fill=PAPER),
        tag("path", d=f"M{EDGE} {LINE}H{WIDE - EDGE}" + "".join(f"M{x(m):.1f} {LINE}v5" for m in marks), stroke=INK),
        *(text(short(mark, shown), x(mark), LINE + 20, text_anchor="middle") for mark in marks),
        tag("path", d=f"M{x(guess):.1f} {LINE}H{x(truth):.1f}", stroke=GUESS, stroke_width=4),
        *flags,
    ]
    return sheet("".join(body), WIDE, TALL, "your guess and the truth on a line")


def flag(x: float, y: float, words: str, colour: str, fill: str, to_the_left: bool) -> str:
    """A dot on the line, a mast, and words at its top."""
    wide = len(words) * LETTER
    start = min(max(x - wide + 5 if to_the_left else x - 5, 2), max(2, WIDE - wide - 2))
    mast = tag("path", d=f"M{x:.1f} {y + 4}V{LINE}", stroke=colour)
    dot = tag("circle", cx=f"{x:.1f}", cy=LINE, r=5, fill=fill, stroke=colour, stroke_width=2)
    halo = tag(
        "g", text(words, start, y, font_weight="bold"), fill=colour, stroke=PAPER, stroke_width=4, paint_order="stroke"
    )
    return mast + dot + halo


def powers(low: float, high: float) -> list[float]:
    """Round numbers from one below to one above: powers of ten, and between them if there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors, step = ((1, 2, 5), 1) if last - first <= 2 else ((1,), math.ceil((last - first) / TICKS))
    marks = [factor * 10.0**power for power in range(first, last + step, step) for factor in factors]
    begin = max((number for number, mark in enumerate(marks) if mark <= low), default=0)
    end = next((number for number, mark in enumerate(marks) if mark >= high), len(marks))
    return marks[begin : end + 1]


def steps(low: float, high: float) -> list[float]:
    least = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    return [step * number for number in range(math.floor(low / step), math.ceil(high / step) + 1)]


def short(mark: float, shown: Callable[[float], str]) -> str:
    """ "2·10⁶" for "2,000,000"; a number with a unit is short."""
    words, (lead, _, power) = shown(mark), f"{mark:.3g}".partition("e")
    if len(words) <= 7 or not words[-1].isdigit() or not power:
        return words
    return f"{lead}·".removeprefix("1·") + f"10{str(int(power)).translate(POWERS)}"
