"""Read the file that a student handed in, whatever it is, and report what had to be repaired.

    read_file(path) -> NotebookNode, repairs       raises NotANotebook
    Folder(path).read(file)                         the same, each once, all files of a folder together in READ_SECONDS
    time_stamp(folder) -> datetime | None

Only what grading needs is read: the cells' text, the names they claim, the kernel. Outputs, attachments and widgets
are skipped before the JSON is parsed, so 90 MB of output cost no memory.
"""

from __future__ import annotations

import json
import os
import re
import stat
from datetime import datetime, timedelta
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader.utils import parse_utc

from grader.sandbox.bounded import TooMuch, call_in_child, work_in_child

MAX_FILE = 100 << 20  # bytes, outputs included; a lesson has half a megabyte
MAX_CELL, MAX_CELLS = 100_000, 1_000  # characters; a lesson has 140 cells of up to 3,000
MAX_TEXT = 2_000_000  # characters of all cells together
MAX_METADATA = 10_000  # bytes in one place; nbgrader writes 200
READ_SECONDS = 20  # processor time for a folder, which may hold several copies
MAX_STAMP = 200  # bytes of a time stamp or a secret: nbgrader writes 30 and 20
MAX_LISTED = 1_000  # files of a folder that are looked at
LINKED = "the folder is a link, and links are not followed"
METADATA = ("kernelspec", "language_info", "problems", "not_run")  # the rest of the notebook's metadata is dropped
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
SKIPPED = {b'"outputs"', b'"attachments"', b'"widgets"'}
VALUE = re.compile(rb"\s*:\s*(?=[\[{])")
OTHER_FORMATS = {  # first characters -> what the file is
    "%PDF": "a PDF: hand in the .ipynb file itself",
    "<": "a web page: in JupyterLab use File > Download to get the .ipynb file",
    "PK\3\4": "a zip archive: hand in the .ipynb file itself",
}


class NotANotebook(Exception):
    """The file can't be graded at all; the message is one line with the reason."""


Read = tuple[NotebookNode, list[str]]  # and what had to be repaired


class Folder:
    """The notebooks in a student's folder. Each is read once, and all together may take READ_SECONDS of computing."""

    def __init__(self) -> None:
        self.left: float = READ_SECONDS
        self.outcomes: dict[Path, Read | NotANotebook] = {}

    def read(self, path: Path) -> Read:
        """The notebook, and what had to be repaired. Raises NotANotebook, also for a file that was not read again."""
        if path not in self.outcomes:
            self.outcomes[path] = self.outcome(path)
        outcome = self.outcomes[path]
        if isinstance(outcome, NotANotebook):
            raise outcome
        return outcome

    def outcome(self, path: Path) -> Read | NotANotebook:
        if self.left <= 0:
            return NotANotebook("it was not read, because the files beside it took too long")
        before = work_in_child()
        try:
            return call_in_child(self.left, read_in_child, path)
        except NotANotebook as reason:
            return reason
        except TooMuch as reason:
            self.left = 0
            return NotANotebook(f"the file can't be read: that {reason}")
        finally:
            self.left -= max(0.0, work_in_child() - before)


def read_file(path: str | Path) -> Read:
    """Read a notebook and convert it to the current format. Raises NotANotebook."""
    return Folder().read(Path(path))


def read_in_child(path: Path) -> Read:
    return read_bytes(bytes_of(path, MAX_FILE))


def bytes_of(path: Path, most: int) -> bytes:
    """The content of a regular file. Anything else is refused: a link may point anywhere, and a pipe may never end."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise NotANotebook("the file is a link, and links are not followed") from None
        raise NotANotebook(f"the file can't be read: {os.strerror(error.errno or 0)}") from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise NotANotebook(f"what has the notebook's name is {what}")
        if status.st_size > most:
            raise NotANotebook(f"the file is too large to be read ({status.st_size:,} bytes)")
        with open(file, "rb", closefd=False) as stream:
            return stream.read(most)
    finally:
        os.close(file)


def small_file(path: Path) -> bytes:
    """What one of nbgrader's two files holds; b"" if there is none, or a link, or more than nbgrader writes."""
    try:
        return bytes_of(path, MAX_STAMP)
    except NotANotebook:
        return b""


def time_stamp(folder: Path) -> datetime | None:
    """When it was handed in; None if it has no time stamp that can be read, or one from the future."""
    try:
        stamp: datetime = parse_utc(small_file(folder / "timestamp.txt").decode().strip())
    except (ValueError, OverflowError):  # dateutil's, too, and what isn't UTF-8
        return None
    return stamp if stamp < datetime.now() + timedelta(days=1) else None


def is_link(folder: Path) -> bool:
    """Whether a lesson's folder, or the student's that it is in, is a link, which may lead to another student's."""
    return folder.is_symlink() or folder.parent.is_symlink()


def names_in(folder: Path) -> list[str]:
    """The names of its files, sorted; of a folder that holds more than MAX_LISTED, some of them."""
    try:
        with os.scandir(folder) as found:
            return sorted(one.name for one in islice(found, MAX_LISTED))
    except OSError:
        return []


def read_bytes(data: bytes) -> Read:
    repairs: list[str] = []
    encoding = json.detect_encoding(data[:1000])
    if not encoding.startswith("utf-8"):
        data = data.decode(encoding, "replace").encode()
        repairs.append(f"the file was saved as {encoding.upper()}, not as UTF-8")
    data = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not data:
        raise NotANotebook("the file is empty")
    if not data.startswith(b"{"):
        start = data[:8].decode("utf-8", "replace")
        what = next(
            (words for mark, words in OTHER_FORMATS.items() if start.startswith(mark)), f"it starts with {start!r}"
        )
        raise NotANotebook(f"the file is not a notebook: {what}")
    try:
        text = without_outputs(data).decode()
    except UnicodeDecodeError:
        text = without_outputs(data).decode("utf-8", "replace")
        repairs.append("bytes that are not valid UTF-8 were replaced")
    try:
        return notebook_of(parsed(text, repairs), repairs), repairs
    except RecursionError:
        raise NotANotebook("the notebook is damaged and can't be read (it is nested too deeply)") from None


def without_outputs(data: bytes) -> bytes:
    """The same JSON with nothing in its outputs, attachments and widgets."""
    parts, at, depth, opens = [], 0, 0, False
    for token in TOKEN.finditer(data):
        first = data[token.start()]
        if opens:
            depth, opens = 1, False
        elif depth:
            depth += (first in b"[{") - (first in b"]}")
            if not depth:
                parts.append(b"[]" if first == ord("]") else b"{}")
                at = token.end()
        elif token[0] in SKIPPED and (value := VALUE.match(data, token.end())):
            parts.append(data[at : value.end()])
            opens = True
    return b"".join(parts if depth else [*parts, data[at:]])


def parsed(text: str, repairs: list[str]) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        cells = readable_cells(text)
    if not cells:
        raise NotANotebook("the notebook is damaged and can't be read (it is cut off, or not JSON)")
    repairs.append(f"the file is damaged: only its first {count(len(cells), 'cell')} could be read")
    return {"nbformat": 4, "cells": cells}


def readable_cells(text: str) -> list[Any]:
    """The cells of a damaged file, up to the damage."""
    separator = re.compile(r"[\s,]*")
    start = re.search(r'"cells"\s*:\s*\[', text)
    cells, at, decoder = [], start.end() if start else len(text), json.JSONDecoder()
    while at < len(text):
        try:
            between = separator.match(text, at)
            cell, at = decoder.raw_decode(text, between.end() if between else at)
        except (ValueError, RecursionError):
            break
        cells.append(cell)
    return cells


# ---- from JSON to cells ----------------------------------------------------------------------------------------------


def notebook_of(content: Any, repairs: list[str]) -> NotebookNode:
    """The cells with their text and nbgrader's metadata, whatever else the file holds."""
    cells, old = cells_in(content), content.get("nbformat") if isinstance(content, dict) else None
    if cells is None:
        raise NotANotebook("the notebook is damaged and can't be read (it has no cells)")
    if old != 4:
        repairs.append(f"the notebook is in format {str(old)[:20]}: it was read as well as possible")
    read = [cell_of(cell) for cell in cells]
    found = [cell for cell in read if cell is not None]
    if len(found) < len(cells):
        repairs.append(f"{count(len(cells) - len(found), 'damaged cell')} left out")
    for what, number in [
        ("with metadata that no tool writes, which was left out", sum(clean_metadata(cell) for cell in found)),
        (f"of more than {MAX_CELL:,} characters left out", sum(shorten(cell) for cell in found)),
        ("with half a UTF-16 pair, which was replaced", sum(replace_surrogates(cell) for cell in found)),
    ]:
        if number:
            repairs.append(f"{count(number, 'cell')} {what}")
    if len(found) > MAX_CELLS:
        repairs.append(f"it holds {len(found):,} cells: only the first {MAX_CELLS:,} that are not empty were read")
        found = [cell for cell in found if cell.source.strip()][:MAX_CELLS]
    found = leave_out_the_end(found, repairs)
    give_ids(found)
    metadata = content.get("metadata") if isinstance(content.get("metadata"), dict) else {}
    metadata = {name: metadata[name] for name in METADATA if name in metadata}
    if not is_sound(metadata):
        metadata = {}
        repairs.append("metadata that no tool writes were left out")
    return nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": found})


def cells_in(content: Any) -> list[Any] | None:
    """The list of cells; in format 3, those of all worksheets. None if there is no such list."""
    if not isinstance(content, dict):
        return None
    if isinstance(content.get("cells"), list):
        return content["cells"]
    sheets = content.get("worksheets")
    if not isinstance(sheets, list):
        return None
    lists = [sheet.get("cells") for sheet in sheets if isinstance(sheet, dict)]
    return [cell for cells in lists if isinstance(cells, list) for cell in cells]


def cell_of(raw: Any) -> NotebookNode | None:
    """One cell in the current format, or None if `raw` isn't a cell."""
    if not isinstance(raw, dict) or not isinstance(raw.get("cell_type"), str):
        return None
    kind, source = raw["cell_type"], raw.get("source", raw.get("input", ""))
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    if not isinstance(source, str):
        return None
    if kind == "heading":  # format 3
        level = raw.get("level")
        level = level if isinstance(level, int) and level in range(1, 7) else 1
        kind, source = "markdown", f"{'#' * level} {source}"
    kind = kind if kind in ("code", "markdown") else "raw"
    metadata = raw.get("metadata")
    cell = NotebookNode(cell_type=kind, metadata=NotebookNode(), source=source)
    if isinstance(metadata, dict) and isinstance(metadata.get("nbgrader"), dict):
        cell.metadata["nbgrader"] = metadata["nbgrader"]
    if isinstance(raw.get("id"), str) and re.fullmatch(r"[\w-]{1,64}", raw["id"], re.ASCII):
        cell["id"] = raw["id"]
    if kind == "code":
        cell.update(execution_count=None, outputs=[])
    return cell


def clean_metadata(cell: NotebookNode) -> bool:
    """Leave out nbgrader's metadata if they are not sound. Returns whether they were not."""
    metadata = cell.metadata.pop("nbgrader", {})
    if not is_sound(metadata):
        return True
    if metadata:
        cell.metadata["nbgrader"] = NotebookNode(metadata)
    return False


def is_sound(metadata: dict[str, Any]) -> bool:
    """Whether metadata are few, and text that a file can hold."""
    try:
        return len(json.dumps(metadata, ensure_ascii=False).encode()) <= MAX_METADATA
    except UnicodeEncodeError:  # half a UTF-16 pair
        return False


def give_ids(cells: list[NotebookNode]) -> None:
    """Give every cell an id of its own. A copy of an earlier id still counts as the name that the cell claims."""
    seen: set[str] = set()
    for number, cell in enumerate(cells):
        if cell.get("id") in seen:
            cell.metadata.setdefault("nbgrader", NotebookNode(grade_id=cell.id))
        if "id" not in cell or cell.id in seen:
            cell["id"] = f"given-{number}"
        seen.add(cell.id)


def shorten(cell: NotebookNode) -> bool:
    if len(cell.source) <= MAX_CELL:
        return False
    cell.source = f"# This cell was too long to be read ({len(cell.source):,} characters)."
    return True


def leave_out_the_end(cells: list[NotebookNode], repairs: list[str]) -> list[NotebookNode]:
    """The cells up to the one with which they hold more than MAX_TEXT."""
    ends = accumulate(len(cell.source) for cell in cells)
    kept = [cell for cell, end in zip(cells, ends, strict=True) if end <= MAX_TEXT]
    if len(kept) < len(cells):
        repairs.append(
            f"it holds more than {MAX_TEXT:,} characters: only the first {count(len(kept), 'cell')} were read"
        )
    return kept


def replace_surrogates(cell: NotebookNode) -> bool:
    """Replace lone surrogates (half a UTF-16 pair), which no file can hold. Returns whether there were any."""
    try:
        cell.source.encode()
        return False
    except UnicodeEncodeError:
        cell.source = re.sub("[\ud800-\udfff]", "\ufffd", cell.source)
        return True


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """The text without control characters: a file name chosen by a student could hold some."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
