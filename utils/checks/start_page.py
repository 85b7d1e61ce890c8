"""The page that `make lab` opens: the lessons, how far you are in each, and where to go on. JupyterLab shows it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from nbformat.notebooknode import NotebookNode

from .saved import Line, by_hand, lines_of, title

COLUMNS = 3
FRESH = "*Made by `make lab` from the notebooks as you saved them; start it again for a new one.*"


def start_page(lessons: Mapping[Path, NotebookNode], folder: Path) -> str:
    """Markdown. lessons: {path: notebook}, in their order. folder: where the page will lie, for its links."""
    tiles, onward, all_lines = [], "", list[Line]()
    for path, notebook in lessons.items():
        name, lines = f"{path.stem[:2]} · {title(notebook)}", list(lines_of(notebook))
        link = Path(os.path.relpath(path, folder)).as_posix()
        all_lines += lines
        tiles.append(tile(name, link, lines, by_hand(notebook)))
        if not onward and (left := [line for line in lines if line.most and not line.passed]):
            at = f"at `{left[0].exercise}` in" if any(line.passed for line in lines) else "with"
            onward = f"**[{'Continue' if any(line.passed for line in all_lines) else 'Begin'} {at} {name}]({link})**"
    done = f"{bar_of(all_lines, 30)} {score(all_lines)}"
    return "\n\n".join(["# Distributed training", onward or "**All of it is done.**", done, table_of(tiles), FRESH, ""])


def tile(name: str, link: str, lines: list[Line], hand: float) -> str:
    """hand: the points that a person gives, besides those of the lines."""
    exercises = {line.exercise for line in lines if line.most}
    done = len(exercises - {line.exercise for line in lines if not line.passed})
    return (
        f'<a href="{escape(link)}"><b>{escape(name)}</b></a><br>{bar_of(lines)}<br>'
        f"{score(lines)}, {done} of {len(exercises)} exercises" + (f", and {hand:g} points by hand" if hand else "")
    )


def table_of(tiles: list[str]) -> str:
    rows = (tiles[first : first + COLUMNS] for first in range(0, len(tiles), COLUMNS))
    cells = ("".join(f'<td align="left" width="{100 // COLUMNS}%">{tile}</td>' for tile in row) for row in rows)
    return "<table>\n" + "\n".join(f"<tr>{row}</tr>" for row in cells) + "\n</table>"


def score(lines: Iterable[Line]) -> str:
    lines = list(lines)
    return f"{sum(line.points for line in lines):g} of {sum(line.most for line in lines):g} points"


def bar_of(lines: list[Line], width: int = 20) -> str:
    most = sum(line.most for line in lines) or 1
    done = int(width * sum(line.points for line in lines) / most)
    return "█" * done + "░" * (width - done)
