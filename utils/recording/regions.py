"""Names for stretches of a rank's compute: they become labelled bars in `run.timeline()`."""

from __future__ import annotations

from contextlib import ContextDecorator

recorder = None  # whoever records this process; nobody does in the notebook itself


class region(ContextDecorator):
    """Name what happens inside, on this rank: `with region("forward 3"): ...`. Also a decorator: `@region("step")`."""

    def __init__(self, name: str):
        self.name = str(name)
        self.starts = []  # more than one while a decorated function calls itself

    def __enter__(self) -> region:
        self.starts.append(recorder and recorder.mark())
        return self

    def __exit__(self, *error) -> None:
        start = self.starts.pop()
        if recorder and start is not None:
            recorder.span("region", self.name, start, recorder.mark())
