"""Memory of virtual ranks: the literature's figures, reproduced by running sharded programs on tensors without values;
the kinds of memory; a GPU that runs out of it.
"""

import gc
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as attention_by_its_name
from torch.nn.parallel import DistributedDataParallel

from utils import RankFailed, simulate, spawn, track_memory
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
    without_statistics = s * b * h * (34 + 5 * a * s / h) * layers  # but for the LayerNorms
    assert activations == pytest.approx(without_statistics, rel=1e-4)
    assert after["activations"] == 2 * s * b * h  # the input, which the program still holds


@pytest.mark.parametrize(
    "attend",
    [lambda *x: functional.scaled_dot_product_attention(*x), lambda *x: attention_by_its_name(*x)],
    ids=["of its module", "by its name"],
)
def test_attention_does_not_keep_the_scores(attend):
    """Flash attention, whether the program names the function by its module or has imported it on its own."""
    s, d = 4096, 64

    def program(rank, world_size):
        q, k, v = [torch.empty(1, 1, s, d, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        with track_memory() as storages:
            mixed = attend(q, k, v)
            return mixed.numel() and storages.by_kind()["activations"]

    held = simulate(program, 1).results[0]
    assert held < 10 * s * d  # the scores alone are s * s * 2 bytes


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


def kinds_with_an_input(rank, world_size, weights_are):
    """The input requires a gradient, and so do the weights: {kind: bytes} after backward, in units of a weight."""
    w, x = torch.ones(16, 16, requires_grad=True), torch.ones(32, 16, requires_grad=True)
    if weights_are == "nn.Parameter":
        w = torch.nn.Parameter(w)
    optimizers = [torch.optim.SGD([w], foreach=False)] if weights_are == "in an optimizer" else []
    with track_memory(w, x, *optimizers) as storages:
        y = x @ w
        y.sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        return {kind: size / (16 * 16 * 4) for kind, size in storages.by_kind().items() if size >= 16 * 16 * 4}


@pytest.mark.parametrize("world", [simulate, spawn])
@pytest.mark.parametrize("weights_are", ["nn.Parameter", "in an optimizer"])
def test_an_input_that_requires_a_gradient_is_no_parameter(world, weights_are):
    [kinds] = world(kinds_with_an_input, 1, weights_are).results
    assert (kinds["parameters"], kinds["gradients"], kinds["activations"]) == (1, 1, 2)


@pytest.mark.parametrize("world", [simulate, spawn])
def test_without_any_nn_parameter_all_leaves_that_require_a_gradient_are_parameters(world):
    [kinds] = world(kinds_with_an_input, 1, "plain tensors").results
    assert (kinds["parameters"], kinds["gradients"]) == (3, 3) and "activations" not in kinds


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


# ---- memory is that of the program, whenever Python collects its garbage ---------------------------------------------


def drops_graphs(rank, world_size):
    """Forward passes without backward, as in an evaluation that forgets no_grad: live bytes after each."""
    gc.disable()
    x = torch.ones(64, 64, requires_grad=True)
    after = {name: [] for name in SAVE_THEIR_RESULT}
    with track_memory(x) as storages:
        for name, operation in SAVE_THEIR_RESULT.items():
            for _ in range(3):
                operation(x * 2)
                after[name].append(storages.live)
    return after


SAVE_THEIR_RESULT = {
    "softmax": lambda x: x.softmax(1),
    "tanh": torch.tanh,
    "sigmoid": lambda x: torch.sigmoid(x).sum(),
    "exp": torch.exp,
    "dropout": lambda x: functional.dropout(x.relu(), 0.5).sqrt(),
}


@pytest.mark.parametrize("world", [simulate, partial(simulate, device="cpu"), spawn], ids=["meta", "cpu", "spawn"])
def test_a_graph_that_is_dropped_without_backward_is_gone(world):
    """An operation that saves its own result must not be kept alive by it."""
    [after] = world(drops_graphs, 1).results
    assert after == dict.fromkeys(SAVE_THEIR_RESULT, [64 * 64 * 4] * 3)


def three_steps(rank, world_size, wrap, collects):
    """Live bytes after each forward, backward and step. collects: whether Python's garbage is collected there."""
    gc.disable()
    live = []

    def look():
        if collects:
            gc.collect()
        live.append(storages.live)

    with track_memory() as storages:
        model = wrap(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))))
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        for _ in range(3):
            loss = model(torch.ones(2, 64)).tanh().sum()
            look()
            loss.backward()
            look()
            optimizer.step()
            look()
            optimizer.zero_grad()
            del loss
    return live


def by_hand(model):
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    return model


def average(parameter):
    work = dist.all_reduce(parameter.grad, async_op=True)
    work.get_future().then(lambda future: future.value()[0].div_(dist.get_world_size())).wait()


def fsdp(model):
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def tensor_parallel(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {str(place): (ColwiseParallel() if place % 2 == 0 else RowwiseParallel()) for place in range(len(model))}
    return parallelize_module(model, mesh, plan)


def compressed(model):
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, fp16_compress_hook)
    return ddp


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("wrap", [DistributedDataParallel, compressed, by_hand, fsdp, tensor_parallel])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_memory_does_not_depend_on_when_python_collects(wrap, device):
    left_alone, collected = (
        simulate(three_steps, 2, wrap, collects, device=device, cluster=PLENTY) for collects in (False, True)
    )
    assert left_alone.results == collected.results
    assert left_alone.memory().peak == collected.memory().peak


def ddp_bytes_per_parameter(rank, world_size):
    gc.disable()
    with track_memory() as storages:
        model = DistributedDataParallel(torch.nn.Linear(1000, 1000, bias=False))
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        after = []
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 1000)).sum().backward()
            optimizer.step()
            after.append(storages.live // 1_000_000)
    return after


def test_ddp_holds_20_bytes_per_parameter_after_each_step():
    """Weights, gradients, DDP's bucket and Adam's two: 4 bytes each."""
    assert simulate(ddp_bytes_per_parameter, 2).results == [[20, 20, 20]] * 2


# ---- what memory is tracked by must not get in the program's way -----------------------------------------------------


def meta_initialised(rank, world_size, finish):
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    finish(model)
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    dtype = next(model.parameters()).dtype
    with track_memory() as storages:
        loss = model(torch.ones(2, 8, dtype=dtype)).sum()
        loss.backward()
    kinds = storages.by_kind()
    return kinds.get("parameters"), kinds.get("gradients"), loss.detach()


def to_empty(model):
    model.to_empty(device="cpu")


def to_bfloat16(model):
    model.to_empty(device="cpu").to(torch.bfloat16)


@pytest.mark.parametrize("finish, size", [(to_empty, 4), (to_bfloat16, 2)])
def test_fsdp_takes_a_model_initialised_on_the_meta_device(finish, size):
    """Issue 20: "Cannot swap t1 because it has weakref associated with it"."""
    parameters = (8 * 8 + 8) * 2 // 2 * size  # two layers, sharded over two ranks
    for device in ("meta", "cpu"):
        run = simulate(meta_initialised, 2, finish, device=device)
        assert [result[:2] for result in run.results] == [(parameters, parameters)] * 2
    real = spawn(meta_initialised, 2, finish)
    assert [[float(loss) for *_, loss in world.results] for world in (run, real)] == [[2 * 8 * (8 * 9 + 1)] * 2] * 2


def exchanges_weights(rank, world_size):
    """Weights that came in a message are parameters, and can be converted."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    layer = torch.nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        if rank == 0:
            dist.send(layer.weight, 1)
        else:
            dist.recv(layer.weight, 0)
    layer.to(torch.float64)
    with track_memory() as storages:
        layer(torch.ones(1, 8, dtype=torch.float64)).sum().backward()
        return storages.by_kind()


def test_weights_that_were_received_are_parameters():
    for kinds in simulate(exchanges_weights, 2, device="cpu").results:
        assert kinds["parameters"] == kinds["gradients"] == 8 * 8 * 8


def changes_what_is_saved(rank, world_size):
    x = torch.ones(4, requires_grad=True)
    with track_memory(x):
        y = torch.sigmoid(x)
        y.detach().add_(1)
        y.sum().backward()


@pytest.mark.parametrize("world", [simulate, partial(simulate, device="cpu"), spawn], ids=["meta", "cpu", "spawn"])
def test_autograd_still_notices_that_a_saved_tensor_was_changed(world):
    with pytest.raises(RankFailed, match="modified by an inplace operation: .*at version 1; expected version 0"):
        world(changes_what_is_saved, 1)


def test_a_masks_values_decide_how_much_it_selects():
    def program(rank, world_size):
        x = torch.empty(4)
        masks = [True, False, False, True], [True, True, True, False]
        return [x[torch.tensor(mask)].shape[0] for mask in masks]

    assert simulate(program, 2).results == [[2, 3]] * 2
