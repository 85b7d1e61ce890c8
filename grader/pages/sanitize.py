"""Sanitize what a page shows of a submission: nothing may run, load a resource, or pass itself off as the page's own.

The students' pages (feedback.py) drop everything else. Formgrader, where an instructor is logged in, uses nbgrader's
own templates, which show the autograded notebook as it is; so `PassiveCells` makes it harmless before it is written.
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

from grader.sandbox.bounded import TooMuch, bounded

# fmt: off
TAGS = {
    "a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "details", "div", "dl", "dt", "em", "h1", "h2", "h3",
    "h4", "h5", "h6", "hr", "i", "img", "input", "li", "ol", "p", "pre", "s", "small", "span", "strong", "sub",
    "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "tt", "u", "ul",
}
# fmt: on
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
PICTURES = tuple(f"data:image/{kind};base64," for kind in ("png", "jpeg", "gif"))  # an SVG can contain a script
LINKS = re.compile(r"(#|https?://|mailto:)[^\x00-\x20]*", re.IGNORECASE)
CLASSES = re.compile(r"highlight|anchor-link|[a-z]{1,2}[a-z0-9]?|language-\w+|task-list-item(-checkbox)?")  # Markdown's
ALIGNED = re.compile(r"text-align: ?(left|right|center);?")
# MathJax commands that do more than typeset.
ACTIVE_TEX = re.compile(r"\\(href|url|require|class|cssId|style|html\w*|data|toggle|mmlToken|unicode|action)\b", re.I)
LONGEST = 20_000  # characters of Markdown to render
PAGE_SECONDS = 20  # processor time to lay out one notebook
CACHE_SIZE = 500  # rendered texts: most are the lesson's own, the same in every notebook


def allowed(tag: str, name: str, value: str) -> bool:
    """Whether an attribute may stay: those that Markdown itself produces, links to pages, embedded pictures."""
    match tag, name:
        case "img", "src":
            return value.startswith(PICTURES)
        case "a", "href":
            return bool(LINKS.fullmatch(value))
        case "input", "type":
            return value == "checkbox"
        case _, "class":
            return all(CLASSES.fullmatch(name) for name in value.split())
        case (("td" | "th"), "style"):
            return bool(ALIGNED.fullmatch(value))
    return name in ("title", "alt", "colspan", "rowspan", "open", "checked", "disabled", "start")


def cleaned(html: str) -> str:
    """The same HTML with only the tags in TAGS and the `allowed` attributes; all text stays."""
    return bleach.clean(html, tags=TAGS, attributes=allowed, protocols=["http", "https", "mailto", "data"], strip=True)


@lru_cache(CACHE_SIZE)
def from_markdown(text: str) -> str:
    """Markdown as HTML with nothing active in it. Text that is too long or can't be rendered is shown as typed."""
    try:
        return cleaned(render(text)) if len(text) <= LONGEST else literal(text)
    except (InvalidNotebook, RecursionError):  # a missing picture; nested too deeply
        return literal(text)


def render(text: str, **options: Any) -> str:
    """Markdown as HTML, the way nbconvert renders it, including any HTML that was typed into it."""
    return MarkdownWithMath(renderer=IPythonRenderer(escape=False, **options)).render(text)


def literal(text: str) -> str:
    return f"<pre>{bleach.clean(text, tags=set())}</pre>"


# ---- for nbgrader's own pages ----------------------------------------------------------------------------------------


class PassiveCells(NbGraderPreprocessor):
    """Turns text cells with active or forbidden content into a code block that shows the source as typed.

    Code cells need nothing: their source is shown as text, and their outputs are the grader's own.
    """

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        taken = frozenset(name for cell in nb.cells for name in names_in_formgrader(cell))
        texts = [cell for cell in nb.cells if cell.cell_type != "code" and not utils.is_locked(cell)]
        try:
            may_stay = all_harmless([cell.source for cell in texts], taken)
        except TooMuch as reason:
            may_stay = [False] * len(texts)
            nb.metadata.setdefault("problems", []).append(f"its texts are shown as typed: laying them out {reason}")
        for cell, harmless_text in zip(texts, may_stay, strict=True):
            if not harmless_text:
                cell.source = fenced(cell.source)
                cell.cell_type = "markdown"
        for cell in nb.cells:
            cell.pop("attachments", None)
        nb.metadata.pop("widgets", None)
        return nb, resources


@bounded(PAGE_SECONDS)
def all_harmless(texts: list[str], taken: frozenset[str]) -> list[bool]:
    return [harmless(text, taken) for text in texts]


def names_in_formgrader(cell: NotebookNode) -> Iterator[str]:
    """The ids by which formgrader's script finds the fields for points and comments; a heading could claim one."""
    if utils.is_grade(cell) or utils.is_solution(cell) or utils.is_task(cell):
        name = cell.metadata.nbgrader["grade_id"]
        yield from (name, f"{name}_extra_credit", f"{name}-comment")


@lru_cache(CACHE_SIZE)
def harmless(text: str, taken: frozenset[str] = frozenset()) -> bool:
    """Whether nbconvert renders this Markdown to HTML that `cleaned` would leave unchanged.

    The HTML must also be well formed: a stray end tag would close part of the page, a missing one would swallow more.
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
    """The text in an element outside code, where MathJax looks for formulas."""
    yield element.text or ""
    for child in element:
        yield from prose(child) if child.tag not in ("pre", "code") else ()
        yield child.tail or ""


def may_stay(element: Element, taken: frozenset[str]) -> bool:
    tag = element.tag
    if tag not in TAGS:  # the "tag" of a comment is a function
        return False
    return all(
        tag in HEADINGS and value not in taken if name == "id" else allowed(tag, name, value)
        for name, value in element.attrib.items()
    )


def fenced(text: str) -> str:
    """The text as a code block, with a fence longer than any inside it."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
