"""The watchdog of a job that torchrun, SLURM or anything else has started, across processes and machines."""

from .start import watch

__all__ = ["watch"]
