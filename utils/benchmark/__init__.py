"""Timing collectives: `benchmark(...)` in a notebook, `python -m` this package in a terminal.

`machine` measures the rest of a computer: its memory, its cores and its links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sweep import benchmark
    from .table import BenchmarkTable

__all__ = ["BenchmarkTable", "benchmark"]


def __getattr__(name: str) -> object:
    """Imports both names on first use: the facade needs `machine` only, and should import quickly."""
    if name == "benchmark":
        from .sweep import benchmark

        return benchmark
    if name == "BenchmarkTable":
        from .table import BenchmarkTable

        return BenchmarkTable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
