"""A mixture of experts over a few nodes with one GPU each, for any placement of the experts: what lesson 11 scores.

routing = routing_statistic(nodes=4, experts=64, tokens=8192)
simulate(placed_layer, 4, routing, places, cluster=nodes)     # places[expert]: its node
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..recording.regions import region
from .generators import generator_of
from .mixture import expert_mlp

DIM, HIDDEN = 4096, 8192


def routing_statistic(nodes: int, experts: int, tokens: int, seed: int = 0) -> list[list[int]]:
    """How many tokens of each node want each expert, [node][expert]; about `tokens` in each row.

    Some experts are more popular than others, and each is more popular on one node than on the others.
    """
    generator = generator_of(seed)
    popular = torch.randn(experts, generator=generator).mul(0.5).exp()
    home = torch.randint(nodes, (experts,), generator=generator)
    likes = popular * (1 + 3 * (home == torch.arange(nodes)[:, None]))  # (nodes, experts)
    counts: list[list[int]] = (tokens * likes / likes.sum(1, keepdim=True)).round().int().tolist()
    return counts


def placed_layer(rank: int, world_size: int, routing: Sequence[Sequence[int]], places: Sequence[int]) -> None:
    """Dispatch this node's tokens, run its experts, combine. places[expert]: the node that has it."""

    def rows(source: int, target: int) -> int:
        return sum(count for count, place in zip(routing[source], places, strict=True) if place == target)

    leaving = [rows(rank, other) for other in range(world_size)]
    arriving = [rows(other, rank) for other in range(world_size)]
    with region("dispatch"):
        swap(rank, leaving, arriving)
    with region("experts"):
        for expert in (expert for expert, place in enumerate(places) if place == rank):
            x = empty(sum(of_node[expert] for of_node in routing), DIM)
            expert_mlp(x, empty(DIM, HIDDEN), empty(HIDDEN, DIM))
    with region("combine"):
        swap(rank, arriving, leaving)


def swap(rank: int, send: list[int], receive: list[int]) -> None:
    """Exchange so many rows with each other rank, in P - 1 rounds of one message each way."""
    size, works = len(send), []
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        works.append(dist.isend(empty(send[to], DIM), to))
        works.append(dist.irecv(empty(receive[source], DIM), source))
    for work in filter(None, works):
        work.wait()


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)
