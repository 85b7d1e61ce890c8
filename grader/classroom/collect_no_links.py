"""`nbgrader collect` that refuses links: a link in the exchange could point at any file the instructor can read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nbgrader.exchange.default import ExchangeCollect

NOTE = "links.txt"


class Collect(ExchangeCollect):
    """Skips a submission that is a link or contains one, and leaves a note in its place."""

    def do_copy(self, src: str, dest: str, log: object = None) -> None:
        links = list(links_in(Path(src)))
        if not links:
            super().do_copy(src, dest, log)
            return
        self.log.error("%s was not collected: it contains links to other places: %s", src, links)
        os.makedirs(dest)
        Path(dest, NOTE).write_text(f"Not collected, because these are links to other places: {links}\n")


def links_in(folder: Path) -> Iterator[str]:
    if folder.is_symlink():
        yield "."
        return
    for path in folder.rglob("*"):
        if path.is_symlink():
            yield str(path.relative_to(folder))
