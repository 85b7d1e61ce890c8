"""The picture at the end of a lesson, for you to show: points, predictions, the challenge, and a run of your own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..kit.predictions import how_predictions_went
from ..report.run import Run
from ..text.svg import PAPER, image, sheet, tag, text
from ..text.units import quantity
from .progress import Progress
from .scores import Score

WIDE, EDGE = 912, 24  # pixels: of the picture, and of its margins
ROOM = WIDE - 2 * EDGE
GREEN, GREY, PALE = "#2E7D32", "#666666", "#E3E3E3"
EDGED: dict[str, Any] = {"stroke": GREEN, "stroke_width": 2}
BAR = 480, 408  # where the bar of the challenge begins, and its length


def finished(lesson: str, progress: Progress, scores: Mapping[str, Score], runs: Mapping[str, Run]) -> str:
    """HTML of the picture. lesson: "02_all_reduce"; scores, runs: {exercise: what has passed}, in this session."""
    title = f"Lesson {lesson.replace('_', ' · ', 1).replace('_', ' ')}"
    earned, most = progress.of_lesson()
    extra = sum(map(progress.earned, progress.points)) - earned
    facts = {"points": f"{earned:g} of {most:g}"} | ({"extra credit": f"+{extra:g}"} if extra else {})
    guesses = how_predictions_went()
    if guesses.guessed:
        facts["predictions right"] = f"{guesses.right} of {guesses.guessed}"
    parts = [text(f"✓ {title}", EDGE, 44, font_size=18, font_weight="bold", fill=GREEN)]
    for place, (what, value) in enumerate(facts.items()):
        x = EDGE + 125 * place
        parts += [text(value, x, 92, font_size=20, font_weight="bold"), text(what, x, 110, fill=GREY)]
    parts += [challenge(exercise, score) for exercise, score in scores.items()]
    drawn = [(exercise, run) for exercise, run in runs.items() if run.events]
    below, tall = own_run(*drawn[-1]) if drawn else ("", 0.0)
    tall += 140
    frame = tag("rect", x=1, y=1, width=WIDE - 2, height=f"{tall - 2:.0f}", rx=12, fill=PAPER, **EDGED)
    return image(sheet("".join([frame, *parts, below]), WIDE, tall, title), f"{title}: {facts['points']} points")


def challenge(exercise: str, score: Score) -> str:
    """From par to the limit: a bar as far as the score goes, and a mark for the best one known."""
    left, long = BAR
    par, limit, best = (quantity(end or 0, score.measure.unit) for end in (score.par, score.limit, score.best))
    filled, mark = (
        long * min(max(score.part_of_way(end or 0, score.limit), 0), 1) for end in (score.value, score.best)
    )
    parts = [
        text(f"{exercise}: {score.shown}", left, 44, font_weight="bold"),
        tag("rect", x=left, y=80, width=long, height=12, rx=6, fill=PALE),
        tag("rect", x=left, y=80, width=f"{filled:.1f}", height=12, rx=6, fill=GREEN),
        text(f"par {par}", left, 110, fill=GREY),
        text(f"limit {limit}", left + long, 110, text_anchor="end", fill=GREY),
    ]
    if score.best is not None:
        parts.append(tag("path", d=f"M{left + mark:.1f} 76l10 10-10 10-10-10z", fill=PAPER, **EDGED))
        parts.append(text(f"best known ◆ {best}: {score.reached}", left, 66, fill=GREY))
    return "".join(parts)


def own_run(exercise: str, run: Run) -> tuple[str, float]:
    """(the timeline, still, and pixels of its height)"""
    svg = run.timeline(title=f"{exercise}, my run").svg()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)  # is for the script
    tall = float(svg.split(" height='", 1)[1].split("'")[0])
    return tag("g", svg, transform=f"translate({EDGE} 136) scale({ROOM / WIDE:.4f})"), tall * ROOM / WIDE + 8
