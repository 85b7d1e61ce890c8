"""The command line of explain.py."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...text.package import NAME
from ...text.wrapping import wrapped
from .explain import LIVE, explain
from .read import BadDump


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {NAME} explain",
        description="Say in words what dumps of torch's flight recorder show: who waits where, and why.",
        epilog="Dumps are pickles or JSON, one file per rank, with the rank's number at the end of its name. They are "
        "read without running anything that they hold.",
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="the folder with the dumps of one job")
    parser.add_argument("--live", action="store_true", help="print how to have a job leave dumps")
    options = parser.parse_args(arguments)
    if options.live:
        print(LIVE)
        return 0
    if options.folder is None:
        parser.error("name the folder with the dumps; or --live, for how to have a job leave some.")
    try:
        print(printable("\n".join(wrapped(explain(options.folder)))))
    except (BadDump, OSError) as error:
        print(printable(f"{NAME}: {error}"), file=sys.stderr)
        return 2
    return 0


def printable(text: str) -> str:
    """The text without what could steer a terminal: names in it come from the dumps."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
