"""Programs that are slow but right: a rank is quiet for longer than it takes to look for a deadlock, for a good reason.

Each names the public source of its kind, and is written afresh. `slow(world_size)` puts a rank program into the table;
every rank must return "right".
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from .mistakes import model, x

SLOW = []
QUIET = 1.0  # seconds; twice as long as a world must be quiet before it is looked at


def slow(world_size=2):
    def put(program):
        SLOW.append(pytest.param(program, world_size, id=program.__name__))
        return program

    return put


def wait_for_a_process() -> None:
    """Wait for another process that sleeps: no processor time passes, and no call to the network holds us up."""
    subprocess.run([sys.executable, "-S", "-c", f"import time; time.sleep({QUIET})"], check=True)


@slow()
def a_slow_loader(rank, world_size):
    """Rank 1 waits at the end of its backward pass meanwhile. https://github.com/pytorch/pytorch/issues/22834"""
    net = DDP(model())
    for step in range(2):
        if rank == 0 and step == 1:
            time.sleep(QUIET)
        net(x()).sum().backward()
    return "right"


@slow(3)
def rank_0_evaluates(rank, world_size):
    """The others wait at a barrier. https://github.com/pytorch/pytorch/issues/72897"""
    net = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    net(x()).sum().backward()
    if rank == 0:
        until = time.monotonic() + QUIET
        while time.monotonic() < until:
            net.module(x())
    dist.barrier()
    return "right"


@slow()
def data_prepared_by_rank_0_first(rank, world_size):
    """Rank 0 waits for processes that it has started. https://github.com/mosaicml/llm-foundry/pull/716"""
    if rank > 0:
        dist.barrier()
    wait_for_a_process()
    if rank == 0:
        dist.barrier()
    return "right"


@slow()
def a_large_checkpoint(rank, world_size):
    """Rank 0 writes while the others have begun the next backward pass. https://github.com/mosaicml/llm-foundry/pull/733"""
    net = DDP(model())
    net(x()).sum().backward()
    if rank == 0:
        wait_for_a_process()
    net(x()).sum().backward()
    return "right"


@slow()
def reading_while_a_call_is_in_flight(rank, world_size):
    """An all-reduce is in flight, which rank 1 joins only later. https://github.com/pytorch/pytorch/issues/33148"""
    flag, data = torch.ones(2), torch.ones(2)
    if rank == 0:
        work = dist.all_reduce(flag, async_op=True)
        wait_for_a_process()
        dist.send(data, dst=1)
        work.wait()
    else:
        dist.recv(data, src=0)
        dist.all_reduce(flag)
    return "right" if flag.tolist() == [2, 2] else flag


@slow()
def gradients_reduced_by_own_hooks(rank, world_size):
    """Rank 0 is through its backward pass, whose all-reduces are in flight, and does something else before it waits.

    https://github.com/NVIDIA/Megatron-LM/issues/879
    """
    net, works = model(), []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))
    if rank == 1:
        dist.recv(torch.zeros(2), src=0)
    net(x()).sum().backward()
    if rank == 0:
        wait_for_a_process()
        dist.send(torch.ones(2), dst=1)
    for work in works:
        work.wait()
    return "right"


class Patient(torch.autograd.Function):
    """A layer whose backward pass waits for something outside."""

    @staticmethod
    def forward(ctx, inputs, patient):
        ctx.patient = patient
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.patient:
            wait_for_a_process()
        return gradient, None


@slow()
def a_slow_backward_pass(rank, world_size):
    """DDP's first bucket is in flight, while a layer of rank 0 takes its time. https://github.com/pytorch/pytorch/issues/20630"""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, inputs, patient):
            return self.last(Patient.apply(self.first(inputs), patient))

    net = DDP(Net(), bucket_cap_mb=1e-5)
    for step in range(2):
        net(x(), rank == 0 and step == 1).sum().backward()
    return "right"


@slow()
def a_future_of_a_thread(rank, world_size):
    """Rank 0 waits for a future that a thread of its own will set. https://github.com/pytorch/pytorch/issues/152310"""
    saved, flag = torch.futures.Future(), torch.ones(2)
    if rank == 0:
        work = dist.all_reduce(flag, async_op=True)
        threading.Timer(QUIET, lambda: saved.set_result(True)).start()
        saved.wait()
        dist.send(torch.ones(2), dst=1)
        work.wait()
    else:
        dist.recv(torch.zeros(2), src=0)
        dist.all_reduce(flag)
    return "right"


@slow()
def a_background_thread_that_communicates(rank, world_size):
    """Rank 0's main thread waits for a thread that will send. https://github.com/pytorch/pytorch/issues/152310"""

    def upload():
        time.sleep(QUIET)
        dist.send(torch.ones(2), dst=1)

    if rank == 0:
        thread = threading.Thread(target=upload)
        thread.start()
        thread.join()
    else:
        dist.recv(torch.zeros(2), src=0)
    return "right"


class Sleepy(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        time.sleep(QUIET / 2)
        return torch.ones(4)


@slow()
def a_worker_of_a_loader(rank, world_size):
    """Batches come from a worker process. https://github.com/Lightning-AI/pytorch-lightning/issues/10947"""
    net = DDP(model())
    batches = torch.utils.data.DataLoader(Sleepy(), batch_size=2, num_workers=1) if rank == 0 else [torch.ones(2, 4)]
    for batch in batches:
        net(batch).sum().backward()
    return "right"


@slow()
def uneven_batches_under_join(rank, world_size):
    """`Join` lets the rank with fewer batches help the others. https://github.com/microsoft/PyMarlin/issues/80"""
    from torch.distributed.algorithms.join import Join

    net = DDP(model())
    with Join([net]):
        for _ in range(2 + rank):
            net(x()).sum().backward()
            if rank == 1:
                time.sleep(QUIET / 2)
    return "right"


@slow()
def a_key_in_the_store(rank, world_size):
    """Rank 1 waits for a key that rank 0 sets later, with a call in flight. https://github.com/axolotl-ai-cloud/axolotl/issues/2684"""
    store, flag = dist.distributed_c10d._get_default_store(), torch.ones(2)
    if rank == 1:
        work = dist.all_reduce(flag, async_op=True)
        store.get("ready")
        work.wait()
    else:
        wait_for_a_process()
        store.set("ready", "yes")
        dist.all_reduce(flag)
    return "right"
