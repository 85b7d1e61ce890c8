"""This machine, measured with `spawn`: its memory, cores and links, as numbers and as a `Cluster` to simulate."""

from .calibrate import measure_this_machine

__all__ = ["measure_this_machine"]
