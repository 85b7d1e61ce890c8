"""A cell: rank programs for the virtual cluster, sizes only, and how long `simulate` takes for them."""

import time

import torch
import torch.distributed as dist

from utils import simulate

LAYERS, WIDTH, BATCH = 8, 8192, 128


def sums(rank, world_size, times):
    x = torch.empty(1000)
    for _ in range(times):
        x + x


def all_reduces(rank, world_size, times):
    x = torch.empty(1000)
    for _ in range(times):
        dist.all_reduce(x)


def ddp(rank, world_size):
    """A step of an MLP without an optimizer: forward, backward, and an all-reduce of each gradient."""
    weights = [torch.empty(WIDTH, WIDTH, requires_grad=True) for _ in range(LAYERS)]
    x = torch.empty(BATCH, WIDTH)
    for w in weights:
        x = torch.nn.functional.gelu(x @ w)
    x.square().mean().backward()
    for w in weights:
        dist.all_reduce(w.grad)


def one_f_one_b(rank, world_size, microbatches):
    """A layer on each rank; as many forwards ahead as ranks follow, then one forward and one backward by turns."""
    w = torch.empty(WIDTH, WIDTH, requires_grad=True)
    under_way, sent = [], []

    def forward():
        x = torch.empty(BATCH, WIDTH)
        if rank > 0:
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = torch.nn.functional.gelu(x @ w)
        if rank < world_size - 1:
            sent.append(dist.isend(y.detach(), rank + 1))
        under_way.append((x, y))

    def backward():
        x, y = under_way.pop(0)
        if rank < world_size - 1:
            gradient = torch.empty_like(y)
            dist.recv(gradient, rank + 1)
            y.backward(gradient)
        else:
            y.square().mean().backward()
        if rank > 0:
            sent.append(dist.isend(x.grad, rank - 1))

    ahead = min(microbatches, world_size - 1 - rank)
    for _ in range(ahead):
        forward()
    for _ in range(microbatches - ahead):
        forward()
        backward()
    for _ in range(ahead):
        backward()
    for handle in sent:
        handle.wait()


def seconds(program, world_size, *args):
    """Real time of one call of `simulate`, from its start to the Run."""
    began = time.perf_counter()
    simulate(program, world_size, *args)
    return time.perf_counter() - began
