"""The virtual cluster: the same rank program, with threads for ranks, a clock for each, and a model of the hardware."""

from .launch import simulate

__all__ = ["simulate"]
