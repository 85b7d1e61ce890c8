"""grid_transformer.py on pipelined.py: the language model on a grid, against the same model in one process."""

import pytest
import torch
import torch.distributed as dist

from utils import spawn
from utils.kit import grid_transformer, transformer
from utils.kit.attention_blocks import attention_block
from utils.kit.pipelined import pipelined
from utils.kit.sharded_regions import blocks_for

GRIDS = [{"dp": 1, "pp": 2, "cp": 1, "tp": 2}, {"dp": 1, "pp": 1, "cp": 2, "tp": 2}]
HEADS, LENGTH = 4, 8
POSITIONS = torch.tensor([0, 1, 6, 7, 2, 3, 4, 5])  # all cp ranks' in turn


def model() -> dict[str, torch.Tensor]:
    return transformer.make_language_model(8, LENGTH, 8, 16, 2, dtype=torch.float64)


def tokens() -> torch.Tensor:
    return torch.randint(8, (4, LENGTH + 1), generator=torch.Generator().manual_seed(0))


def groups_of(sizes: dict[str, int]) -> dict[str, dist.ProcessGroup]:
    """{axis: the group of this rank along it}, on a grid with dp 1."""
    grid, made = torch.arange(4).view(*sizes.values()), {}
    for dim, axis in enumerate(sizes):
        for ranks in grid.movedim(dim, -1).reshape(-1, sizes[axis]).tolist():
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                made[axis] = group
    return made


def loss_and_gradients(rank, world_size, sizes):
    place = dict(zip(sizes, (torch.arange(4).view(*sizes.values()) == rank).nonzero()[0].tolist(), strict=True))
    groups = groups_of(sizes)
    gather = blocks_for(groups["cp"])["gather"]
    order = POSITIONS if sizes["cp"] > 1 else torch.arange(LENGTH)
    own = order.chunk(sizes["cp"])[place["cp"]]

    def look(q, k, v):
        k, v = (gather(x.transpose(1, 2)).transpose(1, 2) for x in (k, v))
        return attention_block(q, k, v, own, order)[0]

    mine = {n: w.requires_grad_() for n, w in grid_transformer.cut_model(model(), place, sizes).items()}
    parts = tokens().chunk(2)
    stage = grid_transformer.make_stage(mine, parts, own, place, sizes, HEADS, groups["tp"], look)
    like = grid_transformer.between_stages(mine, parts[0], sizes, 8)
    loss = pipelined(stage, 2, like, groups["pp"])
    return loss, {name: weight.grad for name, weight in mine.items()}, place


@pytest.mark.parametrize("sizes", GRIDS, ids=["pipeline", "context"])
def test_loss_and_gradients_are_those_of_one_process(sizes):
    weights = {name: weight.requires_grad_() for name, weight in model().items()}
    loss = transformer.language_model_loss(weights, tokens(), HEADS)
    loss.backward()
    results = spawn(loss_and_gradients, 4, sizes, backend="gloo").results
    found = [part for part, _, _ in results if part is not None]
    assert len(found) == 4 // sizes["pp"]  # the last stage
    assert torch.allclose(sum(found) / sizes["cp"], loss.detach(), rtol=1e-9)
    for name, weight in weights.items():
        having = [(place, of_rank[name]) for _, of_rank, place in results if name in of_rank]
        for t in range(sizes["tp"]):
            each = [grad for place, grad in having if grid_transformer.needs_tp_sum(name) or place["tp"] == t]
            wanted = weight.grad
            if not grid_transformer.needs_tp_sum(name):
                wanted = grid_transformer.cut(name, wanted, t, 2)
            assert torch.allclose(sum(each) / sizes["cp"], wanted, rtol=1e-9), name
