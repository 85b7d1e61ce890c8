"""Sphinx extension: a ```mermaid block becomes an SVG when the site is built, so that a page needs no script for it."""

from __future__ import annotations

import re
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from merm import render_diagram
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


class Diagram(Directive):
    has_content: ClassVar[bool] = True

    def run(self) -> list[nodes.Node]:
        """The picture as a part of the page. All diagrams of a page share one style, so one may not colour another."""
        svg = render_diagram("\n".join(self.content))
        svg = re.sub(r' style="background-color: white"', "", svg, count=1)
        return [nodes.raw("", f'<div class="diagram">{svg}</div>', format="html")]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("mermaid", Diagram)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
