"""`track_memory`: a rank program asks for the live bytes of its tensors to be recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..events.memory_samples import MemoryNote, peak_of
from . import regions

if TYPE_CHECKING:  # they need torch
    import torch

    from .storages import Storages


@contextmanager
def track_memory(*held: torch.nn.Module | torch.optim.Optimizer | torch.Tensor) -> Iterator[Storages]:
    """Follow the storages of CPU tensors while the block runs: `with track_memory(model, optimizer) as storages: ...`.

    It counts the tensors made inside the block and those handed over in `held`: of modules, of optimizers, or as they
    are (TypeError for anything else). `storages.live` is the number of bytes alive at that moment, and
    `storages.by_kind()` says what they are for; afterwards `run.memory()` has it all.

    A kind is named only where it is certain: parameters, of modules, of optimizers after a step, or, in a program that
    has no nn.Parameter and no optimizer, all tensors that require a gradient without being a result; gradients, once
    they are in `.grad`; optimizer state, after a step; activations that autograd has saved for backward. Everything
    else is "other". What an operation
    needs only while it runs is not seen, nor what other threads make. On a GPU there is no need to ask: the Run always
    has what its allocator reports. On a virtual one neither: everything the rank holds is counted from the start.
    """
    from .recorder import Recorder
    from .storages import StorageTracker, hold

    recorder = regions.recorder
    if (counted_anyway := getattr(recorder, "storages", None)) is not None:  # a virtual rank's
        for thing in held:
            hold(thing, counted_anyway)
        yield counted_anyway
        return
    tracker = StorageTracker(held, recorder.now if isinstance(recorder, Recorder) else time.monotonic)
    try:
        with tracker:
            yield tracker.storages
    finally:
        if isinstance(recorder, Recorder):
            samples = tracker.storages.samples()
            recorder.write(MemoryNote("cpu", samples, peak_of(samples)[0]))
