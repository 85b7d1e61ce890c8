"""whole/four_dimensions on all four axes at once, beside one process that knows nothing of ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.programs.whole.four_dimensions import pipeline_parallel
from tests.programs.whole.four_dimensions import train as program
from utils import simulate

STEPS = 4
ORDERS = {"AFAB": pipeline_parallel.all_forward_all_backward, "1F1B": pipeline_parallel.one_forward_one_backward}


class Block(nn.Module):
    """The program's block, whole. It draws its weights in the same order."""

    def __init__(self):
        super().__init__()
        width = program.WIDTH
        self.qkv = nn.Linear(width, 3 * width)
        self.up = nn.Parameter(torch.randn(2 * width, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(width, 2 * width) / width**0.5)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return x + nn.functional.gelu(x @ self.up.T) @ self.down.T


def microbatches_of(replica):
    """(microbatches, rows, tokens, width): the numbers that the program draws for a replica."""
    torch.manual_seed(replica)
    return torch.rand(program.MICROBATCHES, 2, program.SEQUENCE, program.WIDTH)


def losses_of_one_process(replicas):
    """(steps, replicas, microbatches)"""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(program.LAYERS)))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for _ in range(STEPS):
        batches = [batch for replica in range(replicas) for batch in microbatches_of(replica)]
        each = [nn.functional.mse_loss(model(batch), batch.flip(-1)) for batch in batches]
        (sum(each) / replicas).backward()  # the program adds up microbatches and averages replicas
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item() for loss in each])
    return torch.tensor(losses).view(STEPS, replicas, program.MICROBATCHES)


def on_the_grid(rank, world_size, grid, order):
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    return program.train(grid, ORDERS[order], STEPS)[0]


@pytest.mark.parametrize("order", ORDERS)
def test_it_trains_to_the_losses_of_one_process(order):
    grid = (2, 2, 2, 2)
    results = simulate(on_the_grid, 16, grid, order, device="cpu").results
    of_last = torch.tensor([losses for losses in results if losses], dtype=torch.float64)
    mine = of_last.view(2, 2, 2, STEPS, program.MICROBATCHES)  # dp, cp, tp
    assert torch.equal(mine[:, :, 0], mine[:, :, 1])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        serial = losses_of_one_process(replicas=2)
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(mine[:, :, 0].mean(1).transpose(0, 1), serial, rtol=1e-9, atol=0)
    assert serial[-1].mean() < serial[0].mean()
