"""`nbgrader collect` without links: one in the exchange could lead to any file that the collecting person may read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nbgrader.exchange.default import ExchangeCollect

INSTEAD = "links.txt"


class Collect(ExchangeCollect):
    """Takes no submission that is, or holds, a link; a file in its place says so."""

    def do_copy(self, src: str, dest: str, log: object = None) -> None:
        links = list(links_in(Path(src)))
        if not links:
            super().do_copy(src, dest, log)
            return
        self.log.error("%s is not collected: it holds links, which lead elsewhere: %s", src, links)
        os.makedirs(dest)
        Path(dest, INSTEAD).write_text(f"Not collected, because these are links to elsewhere: {links}\n")


def links_in(folder: Path) -> Iterator[str]:
    if folder.is_symlink():
        yield "."
        return
    for path in folder.rglob("*"):
        if path.is_symlink():
            yield str(path.relative_to(folder))
