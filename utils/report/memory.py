"""`run.memory()`: how many bytes each rank's tensors took, and what they were for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..events.memory_samples import KINDS, MemoryNote, Sample, peak_of, totals
from ..text import tables
from ..text.rank_sets import format_ranks, group_alike

if TYPE_CHECKING:
    from ..figures import Picture


class OfRank(NamedTuple):
    """One rank's memory: see Memory."""

    peak: int | None
    kinds: dict[str, int]
    at: list[tuple[float, int]]
    samples: list[Sample]
    device: str | None


def of_rank(notes: list[MemoryNote]) -> OfRank:
    """What a rank noted. If it used a GPU, its memory on the CPU is left out."""
    device = max((note.device for note in notes), default=None)
    shown = [note for note in notes if note.device == device]
    samples = [sample for note in shown for sample in note.samples]
    peak = max((note.peak for note in shown), default=None)
    return OfRank(peak, {} if device == "cuda" else peak_of(samples)[1], totals(samples), samples, device)


class Memory:
    """Live bytes of each rank. Printed, it shows no times, so it looks the same in every run.

    peak[r]      the most bytes alive at once; kinds[r]: {kind: bytes} at that moment
    at[r]        [(seconds, live bytes from then on)]; samples[r]: [(seconds, kind, live bytes of that kind)]
    device[r]    "cpu": storages that track_memory followed; "virtual": everything on a virtual rank; "cuda": what the
                 GPU's allocator reported at the ends of regions

    For a rank that did not track its memory these are None, {} and [].
    """

    def __init__(self, ranks: list[list[MemoryNote]]) -> None:
        """ranks: the notes of each rank."""
        known: dict[int, OfRank] = {}  # {id of the notes: ...}: ranks share notes if one ran for several
        every = [known.get(id(notes)) or known.setdefault(id(notes), of_rank(notes)) for notes in ranks]
        self.peak = [rank.peak for rank in every]
        self.kinds = [rank.kinds for rank in every]
        self.at = [rank.at for rank in every]
        self.samples = [rank.samples for rank in every]
        self.device = [rank.device for rank in every]

    def figure(self) -> Picture:
        """A picture of the live bytes over time, by kind: one lane per rank, or per group of ranks that are alike."""
        from .. import figures

        return figures.live_bytes(self)

    def rows(self) -> tuple[list[str], list[tables.Row]]:
        """(header, rows): each rank's peak, by kind; in a large world, one row for all ranks that are alike."""
        kinds = [kind for kind in KINDS if any(kind in of_rank for of_rank in self.kinds)]
        peaks: list[tables.Cell] = ["not tracked" if peak is None else peak for peak in self.peak]
        cells = [
            (peak, *(of_rank.get(kind, "") for kind in kinds)) for peak, of_rank in zip(peaks, self.kinds, strict=True)
        ]
        groups = group_alike(range(len(cells)), cells)
        rows: list[tables.Row] = [(format_ranks(same), *cells[same[0]]) for same in groups]
        return ["rank", "peak bytes", *kinds], rows

    def __repr__(self) -> str:
        return tables.text(*self.rows())

    def _repr_html_(self) -> str:
        return tables.html("The most bytes alive at once, and what they were for", *self.rows())
