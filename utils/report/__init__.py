"""The `Run` that every world returns, and what it can be turned into: tables of traffic and memory, a timeline, a trace
for Perfetto. Its methods import those on first use.
"""

from .run import Run

__all__ = ["Run"]
