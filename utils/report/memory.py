"""`run.memory()`: how many bytes each rank's tensors took, and what they were for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..text import tables
from ..text.rank_sets import format_ranks, group_alike

if TYPE_CHECKING:
    pass  # it needs torch
from ..events.memory_samples import KINDS, Sample, peak_of, totals


class Memory:
    """Live bytes of each rank. Printed it holds no times, so that it is the same in every run.

    peak[r]      the most bytes that were alive at once; kinds[r]: {kind: bytes} of them
    at[r]        [(seconds, live bytes from then on)]; samples[r]: [(seconds, kind, live bytes of that kind)]
    device[r]    "cpu": storages that track_memory followed; "virtual": all of a virtual rank; "cuda": told by the
                 allocator, at the ends of regions

    Of a rank that did not track its memory: None, {} and [].
    """

    def __init__(self, ranks: list[list[tuple[str, list[Sample], int]]]):
        """For each rank what it noted: (device, samples, peak). If it used a GPU, what is on the CPU is left out."""
        self.peak, self.kinds, self.at, self.samples, self.device = [], [], [], [], []
        for notes in ranks:
            device = max((device for device, _, _ in notes), default=None)
            notes = [(samples, peak) for where, samples, peak in notes if where == device]
            samples = [sample for samples, _ in notes for sample in samples]
            self.peak.append(max((peak for _, peak in notes), default=None))
            self.kinds.append({} if device == "cuda" else peak_of(samples)[1])
            self.at.append(totals(samples))
            self.samples.append(samples)
            self.device.append(device)

    def figure(self):
        """A picture of the live bytes over time, by kind: a lane for each rank, or for many alike."""
        from .. import figures

        return figures.live_bytes(self)

    def rows(self) -> tuple[list[str], list[tuple]]:
        """(header, rows): of each rank its peak and what that consisted of; in a large world, of all ranks alike."""
        kinds = [kind for kind in KINDS if any(kind in of_rank for of_rank in self.kinds)]
        peaks = ["not tracked" if peak is None else peak for peak in self.peak]
        cells = [
            (peak, *(of_rank.get(kind, "") for kind in kinds)) for peak, of_rank in zip(peaks, self.kinds, strict=True)
        ]
        rows = [(format_ranks(same), *cells[same[0]]) for same in group_alike(range(len(cells)), cells)]
        return ["rank", "peak bytes", *kinds], rows

    def __repr__(self) -> str:
        return tables.text(*self.rows())

    def _repr_html_(self) -> str:
        return tables.html("The most bytes alive at once, and what they were for", *self.rows())
