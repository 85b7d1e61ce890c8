"""What a virtual cluster charged for the collectives of a run: by which algorithm, how much time, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..text import tables

if TYPE_CHECKING:
    from ..cluster.collective_costs import Cost, Layout


class Charge(NamedTuple):
    """Collectives with the same operation, bytes and layout of their group: how many, and what each of them cost."""

    op: str
    bytes: int
    layout: Layout
    times: int
    cost: Cost


class CollectiveCharges:
    """One row for each Charge, in the order of the time they took in all, longest first."""

    HEADER = ["collective", "bytes", "ranks", "nodes", "times", "algorithm", "seconds each", "why"]

    def __init__(self, charges: Iterable[Charge]) -> None:
        self.charges = sorted(charges, key=lambda charge: -charge.times * charge.cost.seconds)

    def rows(self) -> list[tables.Row]:
        return [
            (op, nbytes, layout.size, layout.nodes, times, cost.algorithm, f"{cost.seconds:.3g}", cost.why)
            for op, nbytes, layout, times, cost in self.charges
        ]

    def __repr__(self) -> str:
        return tables.text(self.HEADER, self.rows()) if self.charges else "The program called no collective."

    def _repr_html_(self) -> str:
        return tables.html("What the collectives were charged", self.HEADER, self.rows())
