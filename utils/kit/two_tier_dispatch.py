"""Tokens on their way to experts on several nodes: each crosses to a node once, however many of its experts are there.

    everyone = [draw_routing(64, 16, 4, nodes=2, seed=rank) for rank in range(16)]
    simulate(exchange, 16, everyone, 1, 8, 4096, cluster="dgx-h100")

It crosses to the rank with the same place on the other node, which passes it on inside that node. Results are added up
there and come back the same way (DeepSeek-V3, arXiv 2412.19437, section 3.2.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..recording.regions import region
from .generators import generator_of

Routing = Sequence[Sequence[int]]  # for each of a rank's tokens, the numbers of its experts


def draw_routing(
    tokens: int, experts: int, top: int, nodes: int = 1, most_nodes: int = 0, seed: int = 0
) -> list[list[int]]:
    """The `top` experts of each token, at random, all experts alike. Shape (tokens, top).

    most_nodes: a token's experts are on so many of the `nodes` at most; 0 for no limit. Experts are spread evenly.
    Raises ValueError if so few nodes have fewer than `top` experts.
    """
    generator = generator_of(seed)
    each = experts // nodes
    if most_nodes and most_nodes * each < top:
        raise ValueError(f"{most_nodes} nodes have {most_nodes * each} experts, but a token needs {top}")
    scores = torch.rand(tokens, experts, generator=generator)
    if most_nodes:
        allowed = torch.rand(tokens, nodes, generator=generator).argsort(1)[:, :most_nodes]
        on_node = torch.arange(experts) // each
        scores[(allowed[:, :, None] != on_node).all(1)] = -1
    chosen: list[list[int]] = scores.topk(top, 1).indices.tolist()
    return chosen


def hops(
    everyone: Sequence[Routing], experts_per_rank: int, gpus_per_node: int
) -> tuple[Counter[tuple[int, int]], ...]:
    """How many rows go from one rank to another, {(from, to): rows}: between nodes, then inside them.

    everyone: the routing of each rank's tokens
    """
    crossing: Counter[tuple[int, int]] = Counter()
    passed_on: Counter[tuple[int, int]] = Counter()
    for source, routing in enumerate(everyone):
        for token in routing:
            owners = sorted({expert // experts_per_rank for expert in token})
            doors = {owner: owner - owner % gpus_per_node + source % gpus_per_node for owner in owners}
            crossing.update({(source, door): 1 for door in doors.values() if door != source})
            passed_on.update((door, owner) for owner, door in doors.items() if door != owner)
    return crossing, passed_on


def exchange(
    rank: int, world_size: int, everyone: Sequence[Routing], experts_per_rank: int, gpus_per_node: int, row_bytes: int
) -> None:
    """Dispatch and combine the tokens of a layer, in its forward and in its backward pass, by messages alone."""
    there = hops(everyone, experts_per_rank, gpus_per_node)
    back = [Counter({(to, source): rows for (source, to), rows in hop.items()}) for hop in reversed(there)]
    for name in ("forward", "backward"):
        with region(name):
            for hop in (*there, *back):
                send_all(rank, hop, row_bytes)


def send_all(rank: int, hop: Counter[tuple[int, int]], row_bytes: int) -> None:
    works = []
    for (source, to), rows in sorted(hop.items()):
        buffer = torch.empty(rows * row_bytes, dtype=torch.uint8)
        if rank == source:
            works.append(dist.isend(buffer, to))
        elif rank == to:
            works.append(dist.irecv(buffer, source))
    for work in filter(None, works):
        work.wait()
