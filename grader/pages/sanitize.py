"""What may stand in a page that shows a submission: nothing that runs, loads, or poses as a part of the page.

The students' pages (feedback.py) drop the rest. In formgrader, where a person is logged in, nbgrader's own templates
show the autograded notebook as it is; so `PassiveCells` makes it harmless before it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from xml.etree.ElementTree import Element

import bleach
from bleach.html5lib_shim import HTMLParser
from nbconvert.filters.markdown_mistune import InvalidNotebook, IPythonRenderer, MarkdownWithMath
from nbformat.notebooknode import NotebookNode
from nbgrader import utils
from nbgrader.preprocessors import NbGraderPreprocessor

# fmt: off
TAGS = {
    "a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "details", "div", "dl", "dt", "em", "h1", "h2", "h3",
    "h4", "h5", "h6", "hr", "i", "img", "input", "li", "ol", "p", "pre", "s", "small", "span", "strong", "sub",
    "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "tt", "u", "ul",
}
# fmt: on
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
PICTURES = tuple(f"data:image/{kind};base64," for kind in ("png", "jpeg", "gif"))  # an SVG can hold a script
LINKS = re.compile(r"(#|https?://|mailto:)[^\x00-\x20]*", re.IGNORECASE)
CLASSES = re.compile(r"highlight|anchor-link|[a-z]{1,2}[a-z0-9]?|language-\w+|task-list-item(-checkbox)?")  # Markdown's
ALIGNED = re.compile(r"text-align: ?(left|right|center);?")
# What MathJax obeys beyond formulas.
ACTIVE_TEX = re.compile(r"\\(href|url|require|class|cssId|style|html\w*|data|toggle|mmlToken|unicode|action)\b", re.I)
LONGEST = 20_000  # characters of Markdown that are worth laying out
KEPT = 500  # texts of which it is known how they are laid out: most are the lesson's own, the same in every notebook


def allowed(tag: str, name: str, value: str) -> bool:
    """Whether an attribute may stay: what Markdown itself makes, links to pages, pictures that are in the page."""
    match tag, name:
        case "img", "src":
            return value.startswith(PICTURES)
        case "a", "href":
            return bool(LINKS.fullmatch(value))
        case "input", "type":
            return value == "checkbox"
        case _, "class":
            return all(CLASSES.fullmatch(one) for one in value.split())
        case (("td" | "th"), "style"):
            return bool(ALIGNED.fullmatch(value))
    return name in ("title", "alt", "colspan", "rowspan", "open", "checked", "disabled", "start")


def cleaned(html: str) -> str:
    """The same HTML without anything that is not in TAGS and `allowed`; the text in it stays."""
    return bleach.clean(html, tags=TAGS, attributes=allowed, protocols=["http", "https", "mailto", "data"], strip=True)


@lru_cache(KEPT)
def from_markdown(text: str) -> str:
    """Markdown as HTML in which nothing is active. Too long to be prose, or not to be laid out: as it was written."""
    try:
        return cleaned(render(text)) if len(text) <= LONGEST else literal(text)
    except (InvalidNotebook, RecursionError):  # a picture that is not there; nested without end
        return literal(text)


def render(text: str, **options: Any) -> str:
    """As nbconvert does, with all the HTML that was typed into it."""
    return MarkdownWithMath(renderer=IPythonRenderer(escape=False, **options)).render(text)


def literal(text: str) -> str:
    return f"<pre>{bleach.clean(text, tags=set())}</pre>"


# ---- for pages of nbgrader's own -------------------------------------------------------------------------------------


class PassiveCells(NbGraderPreprocessor):
    """Text in which something is active, or which may not be shown at all, becomes a block that shows it as typed.

    Of code cells everything is text; outputs are the grader's own.
    """

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        taken = frozenset(name for cell in nb.cells for name in names_in_formgrader(cell))
        for cell in nb.cells:
            cell.pop("attachments", None)
            if cell.cell_type != "code" and not utils.is_locked(cell) and not harmless(cell.source, taken):
                cell.source = fenced(cell.source)
                cell.cell_type = "markdown"
        nb.metadata.pop("widgets", None)
        return nb, resources


def names_in_formgrader(cell: NotebookNode) -> Iterator[str]:
    """The ids by which formgrader's script finds where points and comments go; a heading could take one."""
    if utils.is_grade(cell) or utils.is_solution(cell) or utils.is_task(cell):
        name = cell.metadata.nbgrader["grade_id"]
        yield from (name, f"{name}_extra_credit", f"{name}-comment")


@lru_cache(KEPT)
def harmless(text: str, taken: frozenset[str] = frozenset()) -> bool:
    """Whether Markdown, laid out by nbconvert, is HTML that `cleaned` would leave as it is.

    And whole HTML: a stray end tag would end a part of the page, one that is missing would swallow the next.
    """
    if len(text) > LONGEST:
        return False
    try:
        parser = HTMLParser(namespaceHTMLElements=False)  # parses as browsers do
        root = parser.parseFragment(render(text))
    except (InvalidNotebook, RecursionError):
        return False
    if parser.errors or ACTIVE_TEX.search("".join(prose(root))):
        return False
    return all(may_stay(element, taken) for element in root.iter() if element is not root)


def prose(element: Element) -> Iterator[str]:
    """The text in an element that is not code: where MathJax looks for formulas."""
    yield element.text or ""
    for child in element:
        yield from prose(child) if child.tag not in ("pre", "code") else ()
        yield child.tail or ""


def may_stay(element: Element, taken: frozenset[str]) -> bool:
    tag = element.tag
    if tag not in TAGS:  # comments have a function for a tag
        return False
    return all(
        tag in HEADINGS and value not in taken if name == "id" else allowed(tag, name, value)
        for name, value in element.attrib.items()
    )


def fenced(text: str) -> str:
    """As a block of code, whose fence is longer than any in it."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
