"""How many bytes a rank's tensors take: `track_memory` asks for it in a rank program, `run.memory()` tells it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from utils import regions, tables
from utils.alike import short, together

if TYPE_CHECKING:
    from utils.storages import Storages  # it needs torch

OTHER = "other"
KINDS = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "communication",
    OTHER,
)  # what is more than one, is the first


@contextmanager
def track_memory(*held) -> Iterator[Storages]:
    """Follow the storages of CPU tensors while the block runs: `with track_memory(model, optimizer) as storages: ...`.

    Counted are the tensors made inside, and what is handed over here: modules, optimizers, tensors. `storages.live` is
    the bytes that are alive at that moment, `storages.by_kind()` what they are for; `run.memory()` has all of it
    afterwards.

    Of a kind is only what is sure to be: parameters of the modules; gradients, once in their `.grad`; state of the
    optimizers, after a step; activations, which autograd has saved for backward. All else is "other". Not seen is what
    an operation needs only while it runs, and what other threads make. On a GPU nobody has to ask: what its allocator
    says is in the Run by itself. Nor on a virtual one: all that the rank holds is counted from its beginning.
    """
    from utils.storages import StorageTracker, hold

    recorder = regions.recorder
    if (counted_anyway := getattr(recorder, "storages", None)) is not None:
        for thing in held:
            hold(thing, counted_anyway)
        yield counted_anyway
        return
    tracker = StorageTracker(held, recorder.now if recorder else time.monotonic)
    try:
        with tracker:
            yield tracker.storages
    finally:
        if recorder:
            samples = tracker.storages.samples()
            recorder.write(("memory", "cpu", (samples, peak_of(samples)[0])))


Sample = tuple[float, str, int]  # (seconds, kind, live bytes of that kind from then on)


def totals(samples: list[Sample]) -> list[tuple[float, int]]:
    """(seconds, live bytes of all kinds from then on)."""
    live: dict[str, int] = {}
    total, over_time = 0, []
    for seconds, kind, nbytes in samples:
        total += nbytes - live.get(kind, 0)
        live[kind] = nbytes
        over_time.append((seconds, total))
    return over_time


def peak_of(samples: list[Sample]) -> tuple[int, dict[str, int]]:
    """(bytes, {kind: bytes}) when there were most of them, the first time."""
    if not samples:
        return 0, {}
    over_time = [nbytes for _, nbytes in totals(samples)]
    most = max(over_time)
    live = {kind: nbytes for _, kind, nbytes in samples[: over_time.index(most) + 1]}
    return most, {kind: nbytes for kind, nbytes in live.items() if nbytes}


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
        from utils import figures

        return figures.live_bytes(self)

    def rows(self) -> tuple[list[str], list[tuple]]:
        """(header, rows): of each rank its peak and what that consisted of; in a large world, of all ranks alike."""
        kinds = [kind for kind in KINDS if any(kind in of_rank for of_rank in self.kinds)]
        peaks = ["not tracked" if peak is None else peak for peak in self.peak]
        cells = [
            (peak, *(of_rank.get(kind, "") for kind in kinds)) for peak, of_rank in zip(peaks, self.kinds, strict=True)
        ]
        rows = [(short(same), *cells[same[0]]) for same in together(range(len(cells)), cells)]
        return ["rank", "peak bytes", *kinds], rows

    def __repr__(self) -> str:
        return tables.text(*self.rows())

    def _repr_html_(self) -> str:
        return tables.html("The most bytes alive at once, and what they were for", *self.rows())
