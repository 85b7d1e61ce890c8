"""Something that a function asks as it goes, where the answers must not lie beside the function.

    class Dice(Witness):
        def __call__(self) -> int: ...        # one question, with plain data or tensors as arguments and answer

In a notebook it is an ordinary object in the rank's process. In grading it stays with the judge, and a rank gets a
stand-in that passes each question on (grader/judging/hub_storage.py). So what it knows is in no rank's memory, and what
it has noted is no claim of a rank. A check finds it in `answer.inputs_after`, as it is after the run.
"""

from __future__ import annotations

from typing import Any


class Witness:
    """Base class. Each rank gets one of its own, as an input: through one for all, ranks could talk to each other.

    Asked what it can't answer, it raises ValueError or TypeError, which the asking function gets.
    """

    rank: int | None = None  # in grading: who may ask it

    def __call__(self, *question: Any) -> Any:
        raise NotImplementedError
