"""`run.memory()`: how many bytes each rank's tensors took, and what they were for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..events.memory_samples import KINDS, MemoryNote, Sample, peak_of, totals
from ..text import tables
from ..text.rank_sets import format_ranks, group_alike

if TYPE_CHECKING:
    from ..figures import Picture


class Memory:
    """Live bytes of each rank. Printed, it shows no times, so it looks the same in every run.

    peak[r]      the most bytes alive at once; kinds[r]: {kind: bytes} at that moment
    at[r]        [(seconds, live bytes from then on)]; samples[r]: [(seconds, kind, live bytes of that kind)]
    device[r]    "cpu": storages that track_memory followed; "virtual": everything on a virtual rank; "cuda": what the
                 GPU's allocator reported at the ends of regions

    For a rank that did not track its memory these are None, {} and [].
    """

    def __init__(self, ranks: list[list[MemoryNote]]) -> None:
        """ranks: the notes of each rank. If it used a GPU, its memory on the CPU is left out."""
        self.peak: list[int | None] = []
        self.kinds: list[dict[str, int]] = []
        self.at: list[list[tuple[float, int]]] = []
        self.samples: list[list[Sample]] = []
        self.device: list[str | None] = []
        same: dict[int, int] = {}  # id of the notes: the first rank that has them, where one ran for several
        for rank, notes in enumerate(ranks):
            first = same.setdefault(id(notes), rank)
            if first != rank:
                for of_rank in (self.peak, self.kinds, self.at, self.samples, self.device):
                    of_rank.append(of_rank[first])  # type: ignore[attr-defined]
                continue
            device = max((note.device for note in notes), default=None)
            shown = [note for note in notes if note.device == device]
            samples = [sample for note in shown for sample in note.samples]
            self.peak.append(max((note.peak for note in shown), default=None))
            self.kinds.append({} if device == "cuda" else peak_of(samples)[1])
            self.at.append(totals(samples))
            self.samples.append(samples)
            self.device.append(device)

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
