"""Collectives, timed: `benchmark(...)` in a notebook, `python -m` this package in a terminal.

`machine` measures what else a computer does: its memory, its cores and its links.
"""

from .sweep import benchmark
from .table import BenchmarkTable

__all__ = ["BenchmarkTable", "benchmark"]
