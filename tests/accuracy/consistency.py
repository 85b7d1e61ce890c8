"""Whether a published number fits what else its source says: numbers that were copied wrongly rarely do.

    Check("TFLOP/s of the peak, %", published=44, digit=0.5, computed=100 * 137 / 312, uncertain=0.5 / 137)

`published` stands in the same source as the row, and `computed` follows from the row.
"""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """digit: by how much `published` is rounded; uncertain: the same for what was computed, as a part of it."""

    what: str
    published: float
    digit: float
    computed: float
    uncertain: float = 0.0

    @property
    def agrees(self) -> bool:
        return abs(self.published - self.computed) <= self.digit + self.uncertain * abs(self.computed)

    def __str__(self) -> str:
        return f"{self.what}: {self.published:,g} published, {self.computed:,.4g} computed"
