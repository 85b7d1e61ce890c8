"""A text file that all ranks read and write.

    file = SharedFile(path)
    file.append("rank 2 was here")       # adds one line
    file.lines()                         # the lines it holds now

Each access is a region of the run ("append" or "read"), so `run.regions` and `run.timeline()` show when it happened.
"""

from __future__ import annotations

from pathlib import Path

from ..recording.regions import region


class SharedFile:
    """path: the same on every rank. The file need not exist yet."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def append(self, line: str) -> None:
        """Add one line; `line` comes without its line break."""
        with region("append"), self.path.open("a") as file:
            file.write(line + "\n")

    def lines(self) -> list[str]:
        """The lines without their line breaks; none if the file does not exist yet."""
        with region("read"):
            return self.path.read_text().splitlines() if self.path.exists() else []
