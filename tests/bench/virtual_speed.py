"""A cell: rank programs for the virtual cluster, without values, and how long `simulate` takes to run them."""

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
    """One step of an MLP without an optimizer: forward, backward, and an all-reduce per gradient."""
    weights = [torch.empty(WIDTH, WIDTH, requires_grad=True) for _ in range(LAYERS)]
    x = torch.empty(BATCH, WIDTH)
    for w in weights:
        x = torch.nn.functional.gelu(x @ w)
    x.square().mean().backward()
    for w in weights:
        dist.all_reduce(w.grad)


class Stage:
    """This rank's layer of a pipeline, its microbatches in flight and the messages that it has sent."""

    def __init__(self, rank, world_size):
        self.previous = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank < world_size - 1 else None
        self.w = torch.empty(WIDTH, WIDTH, requires_grad=True)
        self.in_flight, self.sent = [], []

    def forward(self):
        x = torch.empty(BATCH, WIDTH)
        if self.previous is not None:
            dist.recv(x, self.previous)
            x.requires_grad_()
        y = torch.nn.functional.gelu(x @ self.w)
        if self.next is not None:
            self.sent.append(dist.isend(y.detach(), self.next))
        self.in_flight.append((x, y))

    def backward(self):
        x, y = self.in_flight.pop(0)
        if self.next is not None:
            gradient = torch.empty_like(y)
            dist.recv(gradient, self.next)
            y.backward(gradient)
        else:
            y.square().mean().backward()
        if self.previous is not None:
            self.sent.append(dist.isend(x.grad, self.previous))


def one_f_one_b(rank, world_size, microbatches):
    """One layer per rank: as many forwards first as ranks follow, then alternately one forward and one backward."""
    stage = Stage(rank, world_size)
    ahead = min(microbatches, world_size - 1 - rank)
    for _ in range(ahead):
        stage.forward()
    for _ in range(microbatches - ahead):
        stage.forward()
        stage.backward()
    for _ in range(ahead):
        stage.backward()
    for handle in stage.sent:
        handle.wait()


def seconds(program, world_size, *args):
    """Real time of one call of `simulate`."""
    began = time.perf_counter()
    simulate(program, world_size, *args)
    return time.perf_counter() - began
