"""Training in several grids of ranks."""

import torch
import torch.distributed as dist

from . import context_parallel, pipeline_parallel
from . import manager as pgm
from .data_parallel import DataParallel
from .tensor_parallel import MLP

WORLD_SIZE = 4
WIDTH, LAYERS, SEQUENCE, MICROBATCHES = 8, 2, 8, 3
GRIDS = [  # dp, pp, cp, tp
    (1, 2, 1, 2),
    (2, 2, 1, 1),
    (1, 1, 2, 2),
    (2, 1, 2, 1),
]
ORDERS = (pipeline_parallel.all_forward_all_backward, pipeline_parallel.one_forward_one_backward)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.mlp = torch.nn.Linear(WIDTH, 3 * WIDTH), MLP(WIDTH)

    def forward(self, x):
        x = x + context_parallel.ring_attention(*self.qkv(x).chunk(3, -1))
        return x + self.mlp(x)


def stage_of_model():
    torch.manual_seed(0)
    layers = [Block() for _ in range(LAYERS)]
    share = LAYERS // pgm.process_group_manager.pp_size
    first = pgm.process_group_manager.pp_rank * share
    return DataParallel(torch.nn.Sequential(*layers[first : first + share]))


def microbatches():
    torch.manual_seed(pgm.process_group_manager.dp_rank)
    x = torch.rand(MICROBATCHES, 2, SEQUENCE, WIDTH)
    own = x.chunk(pgm.process_group_manager.cp_size, 2)[pgm.process_group_manager.cp_rank]
    return [(batch, batch.flip(-1)) for batch in own]


def train(grid, order, steps):
    """(the loss of each microbatch of each step, on the last stage; the weights) on a grid (dp, pp, cp, tp)."""
    pgm.setup_process_group_manager(*grid)
    pipeline_parallel.SHAPE = (2, SEQUENCE // pgm.process_group_manager.cp_size, WIDTH)
    model = stage_of_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        losses += order(model, microbatches())
        optimizer.step()
        optimizer.zero_grad()
    return losses, [parameter.detach() for parameter in model.parameters()]


def main(rank, world_size, folder):
    dist.init_process_group("gloo", rank=rank, world_size=world_size, init_method="env://")
    results = []
    for grid in GRIDS:
        for order in ORDERS[: grid[1]]:
            results.append(train(grid, order, steps=2))
            assert pgm.process_group_manager.rank == rank
    dist.destroy_process_group()
    return results, context_parallel.shifts
