"""Long lines, broken between words. A notebook would break them anywhere, in the middle of a word too."""

from __future__ import annotations

import re
import textwrap

WIDTH = 110  # characters that fit beside JupyterLab's file browser on a screen 1366 pixels wide
QUOTES_CODE = re.compile(r", line \d+:  ")  # such a line ends in code, which stays as it was written


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """The lines of a text, with longer ones continued on the next line, indented like their beginning."""
    return [part for line in text.splitlines() for part in wrapped_line(line, width)]


def wrapped_line(line: str, width: int) -> list[str]:
    if len(line) <= width or QUOTES_CODE.search(line):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, expand_tabs=False
    )
