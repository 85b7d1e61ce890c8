"""Inputs for checks: whole numbers, so that sums are exact, and different on every rank."""

import math

import torch

# ---- data


salt = 0  # grading draws other numbers than anybody can know beforehand, and others again after each run


def different_integers(world_size: int, shape: int | tuple, dtype=torch.float32, seed: int = 0) -> list[torch.Tensor]:
    """One tensor a rank, whole numbers, unlike on every rank: rank 0 has 10 to 19, rank 1 has 20 to 29, and so on.

    The same for the same arguments, except in grading: there, keep what you hand to a run, and compare with that. Sums
    are exact in every dtype that holds them.
    """
    numel = math.prod(shape) if isinstance(shape, tuple) else shape

    def of(rank):
        generator = torch.Generator().manual_seed(salt + 1000 * seed + rank)
        digits = torch.randperm(max(10, numel), generator=generator)[:numel] % 10
        return (10 * (rank + 1) + digits).to(dtype).reshape(shape)

    return [of(rank) for rank in range(world_size)]
