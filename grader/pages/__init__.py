"""Pages for students and instructors: static, a single file each, without scripts and without external resources.

Templates escape everything that doesn't come from grader/pages/sanitize.py. As a second defence, each page's content
security policy allows nothing but the page's own style.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pygments.formatters import HtmlFormatter

FOLDER = Path(__file__).resolve().parent
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'sha256-{}'"
INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def page(template: str, **values: object) -> str:
    """A page rendered from one of this folder's templates."""
    style = (FOLDER / "page.css").read_text() + HtmlFormatter(style="friendly").get_style_defs(".code")
    policy = POLICY.format(b64encode(sha256(style.encode()).digest()).decode())
    return templates().get_template(template).render(style=style, policy=policy, **values)


@cache
def templates() -> Environment:
    """Made once, since it compiles each template when it is first used."""
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["number"] = number
    return found


def number(points: float) -> str:
    """Points as short as possible: 2, 1.5, 0.33."""
    return f"{round(float(points), 2):g}"


def visible(text: object, longest: int = 6000) -> str:
    """Text from others, cut to `longest`, without characters that hide, reorder or control the text around them."""
    text = INVISIBLE.sub("\N{REPLACEMENT CHARACTER}", str(text).replace("\r\n", "\n"))
    return text if len(text) <= longest else f"{text[:longest]}\n... {len(text) - longest:,} more characters"
