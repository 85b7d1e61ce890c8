"""What a virtual cluster has charged for the collectives of a run: by which algorithm, how much, and why."""

from __future__ import annotations

from ..text import tables


class CollectiveCharges:
    """A row for each kind of collective: the same operation, bytes and layout of the group.

    kinds   (op, bytes, Layout of the group, how often, Cost), those that took most time in all first
    """

    HEADER = ["collective", "bytes", "ranks", "nodes", "times", "algorithm", "seconds each", "why"]

    def __init__(self, kinds: list[tuple]):
        self.kinds = sorted(kinds, key=lambda kind: -kind[3] * kind[4].seconds)

    def rows(self) -> list[tuple]:
        return [
            (op, nbytes, layout.size, layout.nodes, times, cost.algorithm, f"{cost.seconds:.3g}", cost.why)
            for op, nbytes, layout, times, cost in self.kinds
        ]

    def __repr__(self) -> str:
        return tables.text(self.HEADER, self.rows()) if self.kinds else "The program called no collective."

    def _repr_html_(self) -> str:
        return tables.html("What the collectives were charged", self.HEADER, self.rows())
