"""The page about a run, in Markdown and in HTML, from one list of blocks."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.lines import FAILED, NOT_TRIED, PASSED, Check
from tests.gpu.running import Result

MOST = 16_000_000  # bytes of the whole folder
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left;"
    "vertical-align:top}pre{background:#f4f4f4;padding:.6rem;overflow-x:auto;font-size:13px}img{max-width:100%}"
)


@dataclass
class Page:
    """Blocks: ("heading", level, text), ("text", text), ("table", header, rows), ("code", text), ("image", path)."""

    blocks: list[tuple[Any, ...]] = field(default_factory=list)

    def heading(self, level: int, text: str) -> None:
        self.blocks.append(("heading", level, text))

    def text(self, text: str) -> None:
        self.blocks.append(("text", text))

    def table(self, header: list[str], rows: list[list[str]]) -> None:
        self.blocks.append(("table", header, rows))

    def code(self, text: str) -> None:
        self.blocks.append(("code", text))

    def image(self, path: str) -> None:
        self.blocks.append(("image", path))

    def markdown(self) -> str:
        return "\n\n".join(MARKDOWN[kind](*rest) for kind, *rest in self.blocks) + "\n"

    def html(self) -> str:
        body = "\n".join(HTML[kind](*rest) for kind, *rest in self.blocks)
        title = next(rest[1] for kind, *rest in self.blocks if kind == "heading")
        head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        return f"{head}<style>{STYLE}</style>\n{body}\n</html>\n"


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


def html_table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


MARKDOWN = {
    "heading": lambda level, text: f"{'#' * level} {text}",
    "text": lambda text: text,
    "table": markdown_table,
    "code": lambda text: "\n".join(f"    {line}" for line in text.splitlines()),  # a fence could stand in the text
    "image": lambda path: f"![{Path(path).stem}]({path})",
}
HTML = {
    "heading": lambda level, text: f"<h{level}>{html.escape(text)}</h{level}>",
    "text": lambda text: f"<p>{html.escape(text)}</p>",
    "table": html_table,
    "code": lambda text: f"<pre>{html.escape(text)}</pre>",
    "image": lambda path: f'<img src="{html.escape(path)}" alt="{html.escape(Path(path).stem)}">',
}


def make_page(results: list[Result], head: list[str], files: list[str], left_out: list[str]) -> Page:
    """head: sentences about the run; files: what lies beside the page; left_out: files that were too large."""
    page = Page()
    page.heading(1, "What a GPU does with this project")
    for sentence in head:
        page.text(sentence)
    rows = [summary_row(result) for result in results]
    page.table(["part", "what", "outcome", "passed", "failed", "not tried", "seconds", "limit"], rows)
    for result in results:
        add_part(page, result)
    for path in files:
        if path.startswith("figures/"):
            page.image(path)
    page.heading(2, "Files")
    page.text(", ".join(files) or "none")
    if left_out:
        page.text(f"Left out, so that the folder stays under {MOST // 1_000_000} MB: {', '.join(left_out)}.")
    return page


def summary_row(result: Result) -> list[str]:
    counts = [str(result.count(outcome)) for outcome in (PASSED, FAILED, NOT_TRIED)]
    part = result.part
    return [part.number, part.title, result.outcome, *counts, f"{result.seconds:.1f}", f"{part.seconds:g}"]


def add_part(page: Page, result: Result) -> None:
    page.heading(2, f"({result.part.number}) {result.part.title}")
    if result.problem:
        page.text(f"This part ended early: {result.problem}.")
    if not result.checks:
        page.text("It found nothing.")
    for outcome in (FAILED, PASSED, NOT_TRIED):
        add_checks(page, outcome, [check for check in result.checks if check.outcome == outcome])
    if result.output and result.outcome == FAILED:
        page.text("The last lines it printed:")
        page.code(result.output)


def add_checks(page: Page, outcome: str, checks: list[Check]) -> None:
    """Failures and measurements one by one; what has nothing to say but its outcome, as a table."""
    long = [check for check in checks if check.numbers or "\n" in check.text or outcome == FAILED]
    short = [check for check in checks if check not in long]
    for check in long:
        page.heading(3, f"{outcome}: {check.name} ({check.seconds:.1f} s)")
        if check.text:
            page.code(check.text)
        if check.numbers:
            add_numbers(page, check.numbers)
    if short:
        rows = [[check.name, f"{check.seconds:.1f}", check.text] for check in short]
        page.table([outcome, "seconds", ""], rows)


def add_numbers(page: Page, numbers: dict[str, Any]) -> None:
    """A table: of rows, if every value has the same names in it, else of names and values."""
    rows = [value for value in numbers.values() if isinstance(value, dict)]
    if rows and len(rows) == len(numbers) and len({tuple(row) for row in rows}) == 1:
        cells = [[name, *map(number_text, value.values())] for name, value in numbers.items()]
        page.table(["", *rows[0]], cells)
    else:
        page.table(["", ""], [[name, number_text(value)] for name, value in numbers.items()])


def number_text(value: Any) -> str:
    """A number to four digits; anything else as JSON, shortened."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:300]} ... (all of it is in numbers.json)"
