"""Reading dumps of torch's flight recorder: pickles or JSON, of any torch version, from people one need not trust.

A pickle can name any function and have it called. Dumps hold plain data only, so the reader knows no names at all. It
is Python's own slow one, because a few bytes can make the quick one reserve gigabytes.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 64 << 20  # per file: 2,000 entries, the recorder's default, take about 2 MB
MOST_FILES = 4096
RANK = re.compile(r"(\d+)(\.\w+)?$")  # at the end of a file's name


class BadDump(ValueError):
    """A file that is no dump, or a folder without dumps."""


class PlainData(pickle._Unpickler):
    """Reads numbers, text, lists, tuples, sets and dicts, and nothing else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise BadDump(f"it asks for {module}.{name}, which a dump has no use for. It was not carried out")

    def persistent_load(self, _: object) -> NoReturn:
        raise BadDump("it refers to something outside itself")


def read_dump(path: Path) -> dict[str, Any]:
    """The dump in this file, as torch wrote it. Raises BadDump."""
    if path.stat().st_size > MOST_BYTES:
        raise BadDump(f"{path.name}: larger than {MOST_BYTES >> 20} MB")
    data = path.read_bytes()
    try:
        dump = json.loads(data) if data[:1] in b"{[ \n" and data else PlainData(io.BytesIO(data)).load()
    except BadDump as error:
        raise BadDump(f"{path.name}: {error}") from None
    except Exception as error:  # whatever broken bytes lead to
        raise BadDump(f"{path.name}: neither a pickle nor JSON ({type(error).__name__})") from None
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list | type(None)):
        raise BadDump(f"{path.name}: not a dump of the flight recorder")
    return dump


def read_folder(folder: Path) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """({rank: its dump}, what is wrong with other files). The rank is the number at the end of a file's name.

    Raises BadDump if there is no dump, or if two files are of the same rank: then the folder holds several jobs'.
    """
    if not folder.is_dir():
        raise BadDump(f"{folder} is not a folder. Name the one with the dumps, one file per rank.")
    dumps: dict[int, dict[str, Any]] = {}
    names: dict[int, str] = {}
    problems = []
    for path in sorted(path for path in folder.iterdir() if path.is_file())[:MOST_FILES]:
        number = RANK.search(path.name)
        if number is None:
            continue
        try:
            dump, rank = read_dump(path), int(number[1])
        except BadDump as error:
            problems.append(str(error))
            continue
        if rank in dumps:
            raise BadDump(f"{names[rank]} and {path.name} are both of rank {rank}: put each job's into its own folder.")
        dumps[rank], names[rank] = dump, path.name
    if not dumps:
        raise BadDump("\n".join([f"{folder} holds no dump: files whose names end in the rank's number.", *problems]))
    return dumps, problems
