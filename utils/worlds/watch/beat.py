"""What a rank says about itself once a second: a few bytes, however long it has been running."""

from __future__ import annotations

import zlib
from typing import NamedTuple

# running    it computes, or has called something since its last beat
# waiting    its main thread is in a call that has not returned
# expiring   the same, and the time-out of the call's group is near
# finished   the program is over, and the process stays for the others
# failed     the same, after an exception
# ended      its process is ending because of a report
ENDED = ("finished", "failed", "ended")


class Beat(NamedTuple):
    """state as above; number counts beats; answered is that of the last question; digest stands for the last call."""

    state: str
    number: int = 0
    answered: str = "-"
    digest: int = 0

    def next(self, state: str, progress: str) -> Beat:
        return Beat(state, self.number + 1, self.answered, zlib.crc32(progress.encode()))

    def text(self) -> str:
        return f"{self.state} {self.number} {self.answered} {self.digest}"

    @classmethod
    def read(cls, text: str) -> Beat | None:
        """None before the first."""
        if not text:
            return None
        state, number, answered, digest = text.split()
        return cls(state, int(number), answered, int(digest))
