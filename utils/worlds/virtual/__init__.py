"""The virtual cluster: the same rank programs, run by threads with virtual clocks on a model of the hardware."""

from .launch import simulate

__all__ = ["simulate"]
