"""Ranks that torchrun or SLURM has started: `spawn` then runs the program in place, and calls this package to do so."""

from .in_place import already_a_rank, run_in_place

__all__ = ["already_a_rank", "run_in_place"]
