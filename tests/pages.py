"""The project's Markdown pages: their blocks of code, and the commands in them. tests/test_docs.py holds them to it."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
SKIPPED = {"build", "dist", "release", "submitted", "autograded", "feedback", "judgements", "node_modules"}
OPERATORS = {"&&", "||", ";", "|", "&"}


def pages() -> list[str]:
    """Every Markdown file of the project, whoever wrote it, but none that a command has made or installed."""
    found = []
    for path in ROOT.glob("**/*.md"):
        *folders, _ = path.relative_to(ROOT).parts
        if not any(one in SKIPPED or (one.startswith(".") and one != ".github") for one in folders):
            found.append(path.relative_to(ROOT).as_posix())
    return sorted(found)


@dataclass(frozen=True)
class Block:
    """A block of code. `words` is what its first line says after the backquotes: "python", "sh elsewhere", ""."""

    words: str
    text: str
    line: int
    below: Block | None = None  # the block right above this one, with no text between them

    @property
    def output_of(self) -> Block | None:
        """The block that prints this one."""
        above = self.below
        return above if above and not self.words and above.words == "python" else None


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        adjacent = bool(found) and not text[end : match.start()].strip()
        line = text.count("\n", 0, match.start()) + 1
        code = textwrap.dedent(match[3]).strip("\n")
        found.append(Block(match[2].strip(), code, line, found[-1] if adjacent else None))
        end = match.end()
    return found


def prose(page: str) -> str:
    """The page without its blocks of code."""
    return FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))


def headings(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)", text, re.MULTILINE)
    }


def commands(block: str) -> list[list[str]]:
    """The commands of a shell block, each as its words, without comments, prompts and variables set in front.

    Raises ValueError if a line can't be parsed.
    """
    found = []
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="&|;")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if word not in OPERATORS:
                command.append(word)
                continue
            while command and re.match(r"\w+=", command[0]):
                command.pop(0)
            if command:
                found.append(command)
            command = []
    return found


# ---- lessons ---------------------------------------------------------------------------------------------------------


def text_of(cell: dict) -> str:
    """Everything a cell shows, as text."""
    parts = []
    for output in cell["outputs"]:
        text = (
            output.get("text") or output.get("data", {}).get("text/plain") or ["\n".join(output.get("traceback", []))]
        )
        parts.append("".join(text).strip("\n"))
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(parts))


@cache
def lesson_cells() -> dict[str, str]:
    """{code: what it shows} of every code cell of every lesson."""
    notebooks = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "solutions").glob("*/*.ipynb")]
    cells = [cell for notebook in notebooks for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return {"".join(cell["source"]).strip(): text_of(cell) for cell in cells}


@cache
def stored_messages() -> str:
    """Everything that is checked in of what students read: outputs of the lessons, and messages to wrong answers."""
    messages = [path.read_text(encoding="utf-8") for path in (ROOT / "solutions").glob("*/messages.txt")]
    return "\n".join([*lesson_cells().values(), *messages])
