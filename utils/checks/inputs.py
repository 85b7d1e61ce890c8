"""Inputs for checks: whole numbers, so that sums are exact, and different on every rank.

A check draws them from its `run`:

    xs = run.draws.different_integers(4, 3)  # one tensor of 3 numbers for each of 4 ranks
    answer = run(4, xs, root=1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..kit.generators import generator_of


@dataclass(frozen=True)
class Draws:
    """Where the random inputs of a run come from. The same arguments always give the same numbers.

    salt   0 in a notebook, where everyone is to see the same numbers. Grading draws a salt that nobody can
           know, and takes a new one for each run, so that what a rank remembers of one run does not help in the next.

    So ask for `run.draws` anew before each run, keep the tensors that you hand to it, and compare with those: after the
    run the same call gives different numbers. And keep Draws in the check. A rank that had them could work out what all
    the others were given, so grading refuses to send them to one.
    """

    salt: int = 0

    def again(self, attempt: int) -> Draws:
        """Where to draw other inputs for the same run, if the first don't suit; the first attempt is 0."""
        return Draws(self.salt + attempt * 7_919_000_017)  # grading's steps from run to run are not multiples of this

    def different_integers(
        self, world_size: int, shape: int | tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> list[torch.Tensor]:
        """One tensor of whole numbers per rank, all different: rank 0 has 10 to 19, rank 1 has 20 to 29, and so on.

        Sums are exact in every dtype that can hold them.
        """
        numel = math.prod(shape) if isinstance(shape, tuple) else shape

        def of(rank: int) -> torch.Tensor:
            digits = torch.randperm(max(10, numel), generator=self.generator(1000 * seed + rank))[:numel] % 10
            return (10 * (rank + 1) + digits).to(dtype).reshape(shape)

        return [of(rank) for rank in range(world_size)]

    def integers(self, shape: int | tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        """One tensor of whole numbers from -4 to 4, so small that sums of their products are exact too."""
        size = shape if isinstance(shape, tuple) else (shape,)
        return torch.randint(-4, 5, size, generator=self.generator(seed)).to(dtype)

    def secret(self, seed: int = 0) -> int:
        """0 in a notebook; in grading, a number below 1,000, for inputs that would otherwise follow a formula."""
        return int(torch.randint(1000, (), generator=self.generator(seed))) if self.salt else 0

    def generator(self, seed: int = 0) -> torch.Generator:
        """For other kinds of numbers: torch.randn(3, generator=run.draws.generator())."""
        return generator_of(self.salted(seed))

    def salted(self, seed: int = 0) -> int:
        """The seed for a function that takes one, as make_batch in kit/mlp.py does. Never an input of a run."""
        return self.salt + seed
