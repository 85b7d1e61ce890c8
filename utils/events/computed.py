"""What a virtual GPU computed in all: what `run.breakdown()` splits a rank's time by."""

from __future__ import annotations

from typing import NamedTuple


class Computed(NamedTuple):
    """Totals over the operations of one virtual rank. Times are in virtual seconds.

    matmul        time of operations that the FLOPs limited, launches left out
    memory_bound  time of operations that reading and writing memory limited, launches left out
    launch        time to launch them all
    flops         FLOPs of the matrix products, convolutions and attention
    at_peak       seconds that these FLOPs would have taken at the GPU's peak for their dtypes
    finished      when the rank came to its end
    """

    matmul: float
    memory_bound: float
    launch: float
    flops: int
    at_peak: float
    finished: float
