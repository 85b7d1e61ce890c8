"""Which part of the data each rank reads: what a DistributedSampler is asked for when an epoch begins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DistributedSampler

from ..events.rank_state import SamplerUse
from .callers import who_called


def watch_samplers(note: Callable[[SamplerUse], object]) -> None:
    """From now on, call `note` whenever the program begins to go through a DistributedSampler."""
    go_through = DistributedSampler.__iter__

    @functools.wraps(go_through)
    def noted(sampler: DistributedSampler[Any]) -> Iterator[Any]:
        order = sampler.seed + sampler.epoch if sampler.shuffle else -1
        note(SamplerUse(who_called().where, sampler.num_samples, sampler.num_replicas, sampler.rank, order))
        return go_through(sampler)

    DistributedSampler.__iter__ = noted  # type: ignore[method-assign]
