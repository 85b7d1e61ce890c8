"""What makes equal GPUs unequal: slow nodes, and launches that come late. `simulate` adds it if you ask for it.

    simulate(step, 4096, jitter=Jitter(seed=1, slow_nodes=0.005, slowdown=0.1, launch=2e-6))

Its cost grows with the number of ranks by itself: the more there are, the more likely is it that one of them is slow,
and at each synchronization all wait for the slowest. It comes from generators with a seed, one for each node and each
rank, so the times are the same in every run. No rate grows with the number of ranks. But those in presets.py were
fitted to real runs, which had their share of it, so this is for what comes on top.

As to sizes: MegaScale (arXiv 2402.15627) found a few of its machines to take about 10 % longer for the same work. How
many are slow, and how late launches are, differs from cluster to cluster: measure yours.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Jitter:
    """Differences between GPUs of the same kind. Raises ValueError for numbers that can't be.

    seed         any integer; another seed draws other nodes and other delays
    slow_nodes   the probability, from 0 to 1, that a node is slow
    slowdown     how much longer kernels take on a slow node: 0.1 is 10 %
    launch       seconds by which a launch is late, on average; exponentially distributed, drawn for each operation
    """

    seed: int
    slow_nodes: float = 0.0
    slowdown: float = 0.0
    launch: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"Jitter.seed is {self.seed!r}; it must be a whole number")
        if not 0 <= self.slow_nodes <= 1 or self.slowdown < 0 or self.launch < 0:
            raise ValueError(
                f"Jitter has slow_nodes {self.slow_nodes}, slowdown {self.slowdown} and launch {self.launch}; "
                "slow_nodes is a probability, and slowdown and launch must be 0 or more"
            )

    def slowness(self, node: int) -> float:
        """How many times as long kernels take on this node."""
        return 1 + self.slowdown if Random(f"node {node}, {self.seed}").random() < self.slow_nodes else 1.0


class Unevenness:
    """What Jitter does to one rank. late: seconds by which its launches have been late so far."""

    def __init__(self, jitter: Jitter, rank: int, node: int) -> None:
        self.launch, self.slowness, self.late = jitter.launch, jitter.slowness(node), 0.0
        self.draws = Random(f"rank {rank}, {jitter.seed}")

    def delay(self) -> float:
        """Seconds by which the next launch is late."""
        seconds = self.draws.expovariate(1 / self.launch) if self.launch else 0.0
        self.late += seconds
        return seconds
