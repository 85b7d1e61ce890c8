"""torch's own wrappers on a virtual cluster: the calls, bytes and gradients of a real world; overlap, and 64 ranks."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.bench import parallelisms
from utils import simulate, spawn
from utils.cluster import Cluster, Gpu, Link

PROGRAMS = [parallelisms.ddp, parallelisms.fsdp2, parallelisms.tensor_parallel, parallelisms.pipelining]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_calls_are_those_of_a_real_world(program):
    def calls(run):
        return Counter((e.rank, e.op, e.members, e.peer, e.bytes, e.dtype, e.reduce_op) for e in run.events)

    real = calls(spawn(program, 4))
    assert calls(simulate(program, 4, device="cpu")) == real
    assert calls(simulate(program, 4, device="meta")) == real


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def gradients(model, x):
    model(x).square().mean().backward()
    whole = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
    return [gradient.clone() for gradient in whole]


def ddp(rank, world_size):
    return gradients(DistributedDataParallel(mlp(), gradient_as_bucket_view=True), torch.ones(4, 8) * (rank + 1))


def fsdp2(rank, world_size):
    model, mesh = mlp(), init_device_mesh("cpu", (world_size,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return gradients(model, torch.ones(4, 8) * (rank + 1))


def tensor_parallel(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    return gradients(
        parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), torch.ones(4, 8)
    )


@pytest.mark.parametrize("program", [ddp, fsdp2, tensor_parallel], ids=lambda program: program.__name__)
def test_gradients_are_those_of_a_real_world_to_the_bit_with_two_ranks(program):
    for real, virtual in zip(spawn(program, 2).results, simulate(program, 2, device="cpu").results, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(real, virtual, strict=True))
    for real, virtual in zip(spawn(program, 4).results, simulate(program, 4, device="cpu").results, strict=True):
        assert all(torch.allclose(a, b) for a, b in zip(real, virtual, strict=True))
    assert [g.shape for g in simulate(program, 2).results[0]] == [p.shape for p in mlp().parameters()]


def test_ddp_sends_its_buckets_while_backward_goes_on():
    wide, layers = 512, 8
    gpu = Gpu(flops={"fp32": 1e12}, memory=80e9, bandwidth=float("inf"), launch=0.0)
    cluster = Cluster("slow", nodes=1, gpus_per_node=4, gpu=gpu, intra=Link(0.0, 1e10), inter=Link(0.0, 1e10))

    def step(rank, world_size):
        model = nn.Sequential(*(nn.Linear(wide, wide, bias=False) for _ in range(layers)))
        model = DistributedDataParallel(model, bucket_cap_mb=1)
        for _ in range(2):  # in the first step DDP does not know the order yet, and has one bucket
            loss = model(torch.empty(1024, wide)).sum()
            dist.barrier()
            loss.backward()

    run = simulate(step, 4, cluster=cluster)
    buckets = [e for e in run.events if e.rank == 0 and e.op == "all_reduce"][1:]
    assert len(buckets) == layers  # each layer's gradient is a megabyte
    layer = 2 * 1024 * wide * wide / 1e12  # seconds of one product; backward has two a layer, one in the first layer
    begins = buckets[0].start - layer
    assert [round((b.start - begins) / layer, 6) for b in buckets] == [1, 3, 5, 7, 9, 11, 13, 14]
    one = 2 * 3 / 4 * wide * wide * 4 / 1e10  # a ring without latency
    assert buckets[-1].end == pytest.approx(max(buckets[-1].start, buckets[-2].end) + one)
    assert run.elapsed == pytest.approx(buckets[-1].end)  # what is exposed is the last bucket's


def test_models_that_differ_are_refused_in_torchs_words():
    def differ(rank, world_size):
        DistributedDataParallel(nn.Linear(4, 4 + rank))

    def more(rank, world_size):
        DistributedDataParallel(nn.Sequential(*(nn.Linear(4, 4) for _ in range(1 + rank))))

    with pytest.raises(RuntimeError, match=r"params\[0\] in this process with sizes \[5, 4\] appears not to match"):
        simulate(differ, 2)
    with pytest.raises(RuntimeError, match="Rank 0 has 2 params, while rank 1 has inconsistent 4 params"):
        simulate(more, 2)


def test_sixty_four_ranks_of_each():
    for program in PROGRAMS:
        run = simulate(program, 64)
        assert {event.rank for event in run.events} == set(range(64))
