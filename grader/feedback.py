"""Feedback that students may read: it tells what was asked, seen and expected, and shows no hidden test.

Plugged into `nbgrader generate_feedback` by `nbgrader_config.py`. Nothing in a page is active, whoever wrote it: a
submission's scripts, handlers and remote pictures don't reach the person who opens it.
"""

from __future__ import annotations

from html import escape
from typing import Any

import bleach
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output
from nbgrader.preprocessors import ClearHiddenTests

from grader.autograde import is_check
from grader.submission import troubles

PAGE = """<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
{styles}
</head>
<body>
{body}
</body>
</html>
"""
# fmt: off
TAGS = [
    "a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "details", "div", "dl", "dt", "em", "h1", "h2", "h3",
    "h4", "h5", "h6", "hr", "i", "img", "li", "ol", "p", "pre", "s", "small", "span", "strong", "sub", "summary", "sup",
    "table", "tbody", "td", "tfoot", "th", "thead", "tr", "tt", "u", "ul",
]
# fmt: on
PICTURES = tuple(f"data:image/{kind};base64," for kind in ("png", "jpeg", "gif"))  # an SVG can hold a script
DROPPED = ["script", "style", "iframe", "object", "embed", "form", "link", "meta", "base", "svg", "math", "template"]


class FeedbackCells(ClearHiddenTests):
    """Takes hidden tests out of what students read, source and traceback, and tells the troubles at the top."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        nb, resources = super().preprocess(nb, resources)
        if troubles(nb):
            lines = "".join(f"<li>{escape(line)}</li>" for line in troubles(nb))
            nb.cells.insert(0, new_markdown_cell(f"**While this was graded:**\n\n<ul>{lines}</ul>"))
        return nb, resources

    def preprocess_cell(self, cell: NotebookNode, resources: dict, cell_index: int) -> tuple[NotebookNode, dict]:
        if is_check(cell):  # in other cells these words are the student's own
            self._remove_hidden_test_region(cell)
            cell.outputs = [without_traceback(output) for output in cell.outputs]
        return cell, resources


def without_traceback(output: NotebookNode) -> NotebookNode:
    """An error as its message alone: a check's message is the whole report, a traceback quotes hidden tests."""
    if output.output_type != "error":
        return output
    ours = "\n" in output.evalue or output.ename in ("CheckFailed", "Stopped", "CellTimeout")
    text = output.evalue if ours else f"{output.ename}: {output.evalue}"
    return new_output("error", ename=output.ename, evalue=output.evalue, traceback=[text])


class FeedbackPage(HTMLExporter):
    """A page in which nothing is active: no script, no handler, nothing loaded from elsewhere, whoever wrote it."""

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **kw: Any) -> tuple[str, dict]:
        html, resources = super().from_notebook_node(nb, resources, **kw)
        return passive(html), resources


def allowed(tag: str, name: str, value: str) -> bool:
    """Whether an attribute stays: looks and anchors, links to pages, pictures that are in the page itself."""
    if tag == "img" and name == "src":
        return value.startswith(PICTURES)
    if tag == "a" and name == "href":
        return value.startswith(("#", "http://", "https://"))
    return name in ("class", "id", "title", "alt", "name", "colspan", "rowspan", "align")


def passive(html: str) -> str:
    """The page with its own styles, and of its body only what is in TAGS and `allowed`."""
    soup = BeautifulSoup(html, "html.parser")
    for element in soup.body.find_all(DROPPED):
        element.decompose()
    for link in soup.select("#toc a[href]"):
        if link.string == "Test cell":  # nbgrader says no more of any check
            link.string = link["href"].removeprefix("#")
    body = bleach.clean(
        soup.body.decode_contents(), tags=TAGS, attributes=allowed, protocols=["http", "https", "data"], strip=True
    )
    styles = "\n".join(f"<style>{style.string}</style>" for style in soup.head.find_all("style"))
    return PAGE.format(title=escape(soup.title.get_text()), styles=styles, body=body)
