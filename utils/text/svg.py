"""What our vector pictures are made of. A notebook shows them as images, so they are sharp and still everywhere."""

from __future__ import annotations

import re
from base64 import b64encode
from html import escape
from typing import Any

INK, PAPER = "#222222", "#FFFFFF"
GREEN = "var(--jp-success-color1, #2e7d32)"  # JupyterLab's green for words; it differs between light and dark themes
# In a dark theme, the paper becomes the theme's ground and the ink white, while hues stay; docs/book/_static/book.css
# does the same. The first selector is JupyterLab's, the second VS Code's. Where a viewer ignores styles, as JupyterLab
# does in a notebook that it doesn't trust, the paper is white.
IN_THE_DARK = (
    "<style>[data-jp-theme-light=false] .manyranks, .vscode-dark .manyranks "
    "{ filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen }</style>"
)
NEVER_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def image(picture: str, title: str, kind: str = "") -> str:
    """A sheet as HTML. kind: another class of the image."""
    source = f"data:image/svg+xml;base64,{b64encode(picture.encode()).decode()}"
    look = f'class="{f"manyranks {kind}".strip()}" style="max-width:100%;height:auto" alt="{escape(clean(title))}"'
    return f'{IN_THE_DARK}\n<img {look} src="{source}">'


def sheet(content: str, wide: float, tall: float, title: str) -> str:
    return tag(
        "svg", content, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {number(wide)} {number(tall)}",
        width=number(wide), height=number(tall), role="img", aria_label=clean(title), fill=INK, font_size=12,
        font_family="Helvetica, Arial, sans-serif",
    )  # fmt: skip


def clean(words: str) -> str:
    """Without what no XML may contain, even escaped."""
    return NEVER_IN_XML.sub("\ufffd", words)


def number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(words: str, x: float, y: float, **attributes: Any) -> str:
    return tag("text", escape(clean(words)), x=number(x), y=number(y), **attributes)


def tag(name: str, content: str = "", **attributes: Any) -> str:
    said = "".join(f" {key.rstrip('_').replace('_', '-')}='{escape(str(one))}'" for key, one in attributes.items())
    return f"<{name}{said}>{content}</{name}>" if content else f"<{name}{said}/>"
