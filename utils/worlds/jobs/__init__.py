"""Ranks that torchrun or SLURM has started: `spawn` then runs the program in place."""
