"""A text file that all ranks write to, which remembers when each of them did.

    file = SharedFile(path)
    file.append("rank 2 was here")       # one line, at once
    file.lines()                         # what stands in it now

Each access is a region of the run ("append", "read"), so `run.regions` and `run.timeline()` show it.
"""

from pathlib import Path

from ..recording.regions import region


class SharedFile:
    """path: the same on every rank; the file need not exist yet."""

    def __init__(self, path: str):
        self.path = Path(path)

    def append(self, line: str) -> None:
        with region("append"), self.path.open("a") as file:
            file.write(line + "\n")

    def lines(self) -> list[str]:
        with region("read"):
            return self.path.read_text().splitlines() if self.path.exists() else []
