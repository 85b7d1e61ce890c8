"""`track_memory`: how a rank program asks for the live bytes of its tensors to be recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import regions

if TYPE_CHECKING:
    from .storages import Storages  # it needs torch
from ..events.memory_samples import peak_of


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
    from .storages import StorageTracker, hold

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
