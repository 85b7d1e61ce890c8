"""Rows of numbers as a table: in plain text for a terminal, in HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

Cell = str | int
Row = Sequence[Cell]


def show(cell: Cell) -> str:
    return f"{cell:,}" if isinstance(cell, int) else cell


def text(header: Sequence[str], rows: Iterable[Row]) -> str:
    """Right-aligned columns, as wide as their widest cell."""
    lines = [header, *([show(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("   ".join(map(str.rjust, line, widths)) for line in lines)


def html(caption: str, header: Sequence[str], rows: Iterable[Row]) -> str:
    """Sets no colours, so that it suits both light and dark themes."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(show(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<table><caption style="color: inherit; text-align: left">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
