"""Memory of virtual ranks: the literature's figures, reproduced by running sharded programs on tensors without values;
the kinds of memory; a GPU that runs out of it.
"""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from utils import RankFailed, simulate, track_memory
from utils.cluster import Cluster, Gpu, Link

PLENTY = Cluster(
    "plenty",
    nodes=128,
    gpus_per_node=8,
    gpu=Gpu(flops={"fp32": 1e12}, memory=float("inf"), bandwidth=1e12, launch=1e-6),
    intra=Link(1e-6, 1e11),
    inter=Link(1e-5, 1e10),
)
N = 7_500_000_000  # parameters


def model_states(rank, world_size, stage, n=N):
    """A step of mixed-precision Adam. Stage 1 shards the optimizer states, 2 the gradients too, 3 everything."""
    own = n // world_size
    weights = torch.nn.Parameter(torch.empty(own if stage == 3 else n, dtype=torch.bfloat16))
    master = torch.nn.Parameter(torch.empty(own if stage else n, dtype=torch.float32))
    optimizer = torch.optim.AdamW([master], foreach=False)
    with track_memory(weights, master, optimizer) as storages:
        whole = weights
        if stage == 3:
            whole = torch.empty(n, dtype=torch.bfloat16)
            dist.all_gather_into_tensor(whole, weights.detach())
            whole.requires_grad_()
        whole.sum().backward()
        gradient, whole.grad = whole.grad, None
        if stage < 2:
            dist.all_reduce(gradient)
            weights.grad = gradient
        else:
            shard = torch.empty(own, dtype=torch.bfloat16)
            dist.reduce_scatter_tensor(shard, gradient)
            weights.grad = None if stage == 2 else shard
        del gradient, whole
        kept = weights.grad if stage != 2 else shard
        master.grad = (kept if not stage or stage >= 2 else kept.view(world_size, own)[rank]).to(torch.float32)
        optimizer.step()
        optimizer.zero_grad()
        return storages.live, storages.by_kind()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.13 renamed both calls; 2.11 has only the old names
@pytest.mark.parametrize("stage, gigabytes", [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_model_states_of_zero_on_64_gpus(stage, gigabytes):
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters, mixed-precision Adam, 16 bytes each."""
    run = simulate(model_states, 64, stage, cluster=PLENTY)
    live, kinds = run.results[0]
    assert round(live / 1e9, 1) == gigabytes
    d = 64
    exact = {0: 16, 1: 4 + 12 / d, 2: 2 + 14 / d, 3: 16 / d}[stage] * N
    assert live == pytest.approx(exact, abs=100)  # Adam also stores its step count
    assert kinds["optimizer state"] == pytest.approx(8 * N / (d if stage else 1), abs=8)
    assert all(result == run.results[0] for result in run.results)


class Layer(torch.nn.Module):
    """A layer of GPT-3 as Korthikanti et al. 2022 count it: attention with dropout in it, MLP, two LayerNorms."""

    def __init__(self, h, a):
        super().__init__()
        self.a = a
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(h), torch.nn.LayerNorm(h)
        self.qkv, self.projection = torch.nn.Linear(h, 3 * h, bias=False), torch.nn.Linear(h, h, bias=False)
        self.up, self.down = torch.nn.Linear(h, 4 * h, bias=False), torch.nn.Linear(4 * h, h, bias=False)

    def forward(self, x):
        b, s, h = x.shape
        query, key, value = (
            part.view(b, s, self.a, h // self.a).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        scores = functional.softmax(query @ key.transpose(-1, -2) / (h // self.a) ** 0.5, -1)
        mixed = (functional.dropout(scores, 0.1) @ value).transpose(1, 2).reshape(b, s, h)
        x = x + functional.dropout(self.projection(mixed), 0.1)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norm_2(x)))), 0.1)


def test_activations_of_gpt_3():
    """s b h (34 + 5 a s / h) bytes per layer, 275.4 GB in all (Korthikanti et al. 2022, equation 2)."""
    s, b, h, a, layers = 2048, 1, 12288, 96, 96

    def program(rank, world_size):
        torch.set_default_dtype(torch.bfloat16)
        model = torch.nn.Sequential(*(Layer(h, a) for _ in range(layers)))
        x = torch.empty(b, s, h)
        with track_memory(model) as storages:
            loss = model(x).sum()
            kinds = storages.by_kind()
            loss.backward()
        return kinds["activations"], storages.by_kind()

    activations, after = simulate(program, 1, cluster=PLENTY).results[0]
    assert round(activations / 1e9, 1) == 275.4
    without_statistics = s * b * h * (34 + 5 * a * s / h) * layers  # of the LayerNorms
    assert activations == pytest.approx(without_statistics, rel=1e-4)
    assert after["activations"] == 2 * s * b * h  # the input, which the program still holds


def test_every_kind_of_memory_is_recognised():
    d, batch = 64, 8

    def program(rank, world_size):
        model = torch.nn.Sequential(torch.nn.Linear(d, d, bias=False), torch.nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.empty(batch, d)).sum().backward()
        bucket = torch.empty(d * d)
        bucket.copy_(model[0].weight.grad.view(-1))
        dist.all_reduce(bucket)
        optimizer.step()
        with track_memory() as storages:
            return storages.by_kind()

    run = simulate(program, 2)
    square = d * d * 4
    assert run.results[0] == {
        "parameters": square,
        "gradients": square,
        "communication": square,
        "optimizer state": square,
    }
    memory = run.memory()
    assert memory.device == ["virtual", "virtual"]
    assert memory.kinds[0]["parameters"] == square
    assert memory.peak[0] >= 4 * square


def test_what_a_stage_receives_is_not_a_parameter():
    def stage(rank, world_size):
        model, x = torch.nn.Linear(16, 16, bias=False), torch.empty(16, 16)
        if rank == 0:
            dist.send(model(x).detach(), dst=1)
            return None
        dist.recv(x, src=0)
        y = model(x.requires_grad_()).sum()
        with track_memory() as storages:
            y.backward()
            return storages.by_kind()

    square = 16 * 16 * 4
    kinds = simulate(stage, 2).results[1]
    assert (kinds["parameters"], kinds["gradients"], kinds["activations"]) == (square, square, square)


def test_a_gpu_out_of_memory_says_how_much_is_needed_and_what_holds_it():
    small = replace(PLENTY, name="small", gpu=replace(PLENTY.gpu, memory=80e9))

    def program(rank, world_size):
        weights = torch.nn.Parameter(torch.empty(5_000_000_000))
        if rank == 3:
            held = weights * 2
            held = torch.empty(10_800_000_000, dtype=torch.float32)
            del held

    with pytest.raises(RankFailed) as failed:
        simulate(program, 4, cluster=small)
    assert str(failed.value).splitlines()[0] == (
        "rank 3 raised OutOfMemoryError: rank 3 is out of memory: needs 83.2 GB of 80.0 GB. "
        "It asks for 43.2 GB and holds 20.0 GB of other, 20.0 GB of parameters."
    )

    def careful(rank, world_size):
        try:
            return torch.empty(30_000_000_000).numel()
        except torch.OutOfMemoryError:
            return "smaller"

    assert simulate(careful, 2, cluster=small).results == ["smaller", "smaller"]
