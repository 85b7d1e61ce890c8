"""Names for stretches of a rank's compute: they become labelled bars in `run.timeline()`."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any, Literal, Protocol


class RegionRecorder(Protocol):
    """What a recorder, real or virtual, offers to regions. A mark is a moment, in the recorder's own terms."""

    def mark(self) -> Any: ...

    def span(self, kind: Literal["region"], name: str, start: Any, end: Any, /) -> None: ...


recorder: RegionRecorder | None = None  # this process's recorder; None in the notebook itself


class region(ContextDecorator):
    """Name what happens inside, on this rank: `with region("forward 3"): ...`. Also a decorator: `@region("step")`."""

    def __init__(self, name: str) -> None:
        self.name = str(name)
        self.starts: list[Any] = []  # more than one while a decorated function calls itself

    def __enter__(self) -> region:
        self.starts.append(recorder and recorder.mark())
        return self

    def __exit__(self, *error: object) -> None:
        start = self.starts.pop()
        if recorder and start is not None:
            recorder.span("region", self.name, start, recorder.mark())
