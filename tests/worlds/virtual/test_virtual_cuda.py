"""Programs written for GPUs run on a virtual cluster as they are: torch.cuda, autocast, fused optimizers."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from utils import simulate
from utils.cluster.hardware import Cluster, Gpu, Link

LINK = Link(alpha=1e-6, bandwidth=1e9)
GPU = Gpu({"fp32": 1e12, "bf16": 4e12}, memory=80e9, bandwidth=1e12, launch=1e-6)
CLUSTER = Cluster("mine", nodes=1, gpus_per_node=2, gpu=GPU, intra=LINK, inter=LINK)
devices = pytest.mark.parametrize("device", ["meta", "cpu"])


def on_two(program, *args, device="meta"):
    return simulate(program, 2, *args, cluster=CLUSTER, device=device)


# --- where tensors are


def model_and_batch(move):
    model, batch = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.ones(5, 8)
    return move(model), move(batch)


WAYS = {
    "not at all": lambda thing, rank: thing,
    "cuda": lambda thing, rank: thing.cuda(),
    "cuda(rank)": lambda thing, rank: thing.cuda(rank),
    "to(rank)": lambda thing, rank: thing.to(rank),
    "to a name": lambda thing, rank: thing.to("cuda"),
    "to a device": lambda thing, rank: thing.to(torch.device("cuda", rank), non_blocking=True),
    "to(device=)": lambda thing, rank: thing.to(device=f"cuda:{rank}"),
}


@devices
def test_moving_to_the_gpu_costs_nothing_and_changes_nothing(device):
    def program(rank, world_size, way):
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        model, batch = model_and_batch(lambda thing: WAYS[way](thing, rank))
        loss = model(batch).square().mean()
        loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    here, *others = (on_two(program, way, device=device) for way in WAYS)
    for way, there in zip([*WAYS][1:], others, strict=True):
        assert there.elapsed == here.elapsed, way
        for mine, plain in zip(there.results[1], here.results[1], strict=True):
            assert mine.device == plain.device, way
            assert device == "meta" or torch.equal(mine, plain), way


@devices
def test_tensors_are_made_on_the_gpu_however_it_is_named(device):
    def program(rank, world_size):
        named = (0, "cuda", "cuda:1", torch.device("cuda"))
        made = [torch.full((3,), 2.0, device=name) + torch.ones(3, device=name) for name in named]
        return [*made, torch.tensor([3.0] * 3, device="cuda"), torch.empty(3).new_full((3,), 3.0, device="cuda")]

    for tensor in on_two(program, device=device).results[0]:
        assert tensor.device.type == device and tensor.shape == (3,)
        assert device == "meta" or tensor.tolist() == [3.0, 3.0, 3.0]


def test_to_still_changes_the_dtype_and_copies_when_asked():
    def program(rank, world_size):
        x = torch.ones(3)
        copy = x.to("cuda", copy=True)
        copy += 1
        return x.to("cuda", torch.bfloat16), x.to(0, torch.float64), copy, x, x.to("cuda") is x, x.to(torch.float16)

    bf16, fp64, copy, x, same, fp16 = on_two(program, device="cpu").results[0]
    assert (bf16.dtype, fp64.dtype, fp16.dtype) == (torch.bfloat16, torch.float64, torch.float16)
    assert copy.tolist() == [2.0] * 3 and x.tolist() == [1.0] * 3 and same


def test_scripts_find_the_functions_that_make_tensors():
    def program(rank, world_size):
        @torch.jit.script
        def two(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(2) + torch.ones_like(x)

        return two(torch.ones(2)).shape

    assert on_two(program).results == [(2,)] * 2


# --- torch.cuda


def test_a_rank_knows_its_gpu():
    def program(rank, world_size):
        torch.cuda.set_device(rank)
        cuda = torch.cuda
        return cuda.current_device(), cuda.device_count(), cuda.get_device_properties(rank).total_memory

    assert on_two(program).results == [(0, 2, 80_000_000_000), (1, 2, 80_000_000_000)]


def test_random_states_are_put_back_however_many_gpus_a_node_has():
    def program(rank, world_size):
        torch.manual_seed(rank)
        with torch.random.fork_rng():
            first = torch.rand(4)
        return first, torch.rand(4)

    for first, after in simulate(program, 2, device="cpu").results:
        assert torch.equal(first, after)


def test_events_measure_virtual_milliseconds():
    def program(rank, world_size):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a = torch.empty(512, 512)
        start.record()
        with torch.cuda.stream(torch.cuda.Stream()):
            a @ a
        torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    assert on_two(program).results[0] == pytest.approx(1e3 * (2 * 512**3 / 1e12 + 1e-6))


def test_memory_is_what_the_tensors_take():
    def program(rank, world_size):
        keep = torch.empty(1000)
        torch.empty(5000)
        most = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated(), most, torch.cuda.max_memory_allocated(), keep.shape

    assert on_two(program).results[0][:3] == (4000, 24000, 4000)


# --- what else such programs use


def test_a_step_as_people_write_it_runs_with_values_and_without():
    def program(rank, world_size):
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        torch.cuda.set_device(rank)
        torch.cuda.manual_seed_all(1)
        model = DistributedDataParallel(nn.Linear(8, 4).to(rank), device_ids=[rank], output_device=rank)
        model = torch.compile(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(torch.ones(2, 8, device="cuda")), torch.zeros(2, 4))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        torch.cuda.empty_cache()
        return loss.dtype, next(model.parameters()).detach()

    for device in ("meta", "cpu"):
        run = on_two(program, device=device)
        assert {event.op for event in run.events} >= {"all_reduce", "broadcast"}
        assert {dtype for dtype, _ in run.results} == {torch.float32}


def test_a_fused_step_moves_the_bytes_of_its_states():
    def program(rank, world_size, fused):
        x = nn.Parameter(torch.empty(1_000_000))
        x.grad = torch.empty(1_000_000)
        optimizer = torch.optim.AdamW([x], fused=fused, foreach=not fused)
        optimizer.step()
        before = torch.cuda.Event(enable_timing=True)
        before.record()
        optimizer.step()
        after = torch.cuda.Event(enable_timing=True)
        after.record()
        return before.elapsed_time(after) / 1e3

    fused, unfused = (on_two(program, fused).results[0] for fused in (True, False))
    assert fused >= 4 * 4_000_000 / GPU.bandwidth  # parameter, gradient, two moments
    assert fused < unfused


# --- autocast


def dtypes_of(step):
    def program(rank, world_size):
        torch.manual_seed(0)
        layer, x = nn.Linear(8, 8), torch.ones(2, 8)
        return step(layer, x)

    return on_two(program).results[0]


def test_autocast_gives_each_operation_the_dtype_that_it_has_on_a_gpu():
    def step(layer, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = layer(x)
            found = {
                "linear": y,
                "matmul": x @ layer.weight,
                "einsum": torch.einsum("ij,kj->ik", x, layer.weight),
                "gelu": nn.functional.gelu(y),
                "softmax": y.softmax(-1),
                "norm": nn.functional.layer_norm(y, (8,)),
                "loss": nn.functional.mse_loss(y, x),
                "entropy": nn.functional.cross_entropy(y, torch.tensor([1, 2])),
                "sum": y.sum(),
                "power": y**2,
                "added": y + x,
                "joined": torch.cat([y, x]),
                "attention": nn.functional.scaled_dot_product_attention(*[x.view(1, 1, 2, 8)] * 3),
                "double": x.double() @ x.double().T,
            }
            with torch.autocast("cuda", enabled=False):
                found["off"] = x @ layer.weight
            found["on again"] = x @ layer.weight
        found["outside"] = x @ layer.weight
        return {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in found.items()}

    low = dict.fromkeys(["linear", "matmul", "einsum", "gelu", "attention", "on again"], "bfloat16")
    full = ["softmax", "norm", "loss", "entropy", "sum", "power", "added", "joined", "off", "outside"]
    assert dtypes_of(step) == {**low, **dict.fromkeys(full, "float32"), "double": "float64"}


def test_under_autocast_gradients_of_parameters_keep_their_dtype_and_half_the_bytes_are_saved():
    def program(rank, world_size, low):
        layers = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(4)])
        x = torch.empty(4096, 256)
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=low):
            y = layers(x)
        saved = torch.cuda.memory_allocated() - before
        y.sum().backward()
        return saved, {str(parameter.grad.dtype) for parameter in layers.parameters()}

    (low, dtypes), (full, _) = (on_two(program, low).results[0] for low in (True, False))
    activation, weight = 4096 * 256, 256 * 256
    assert dtypes == {"torch.float32"}
    assert full == 4 * 4 * activation
    assert low == 5 * 2 * activation + 3 * 2 * weight  # with copies of the input and of all weights but the first


def test_a_parameter_is_cast_once_within_a_context():
    def program(rank, world_size, times):
        weight, x = nn.Parameter(torch.empty(512, 512)), torch.empty(4, 512, dtype=torch.bfloat16)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for _ in range(times):
                x @ weight

    once, twice, thrice = (on_two(program, times).elapsed for times in (1, 2, 3))
    assert thrice - twice == pytest.approx(twice - once - 0.0)
    assert once > 2 * (twice - once)  # the cast reads 1 MB, the product half of that


def test_an_error_inside_autocast_ends_it():
    def step(layer, x):
        try:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                raise KeyError
        except KeyError:
            return (x @ layer.weight).dtype

    assert dtypes_of(step) == torch.float32


def test_autocast_for_cuda_is_autocast_on_the_cpu_where_tensors_have_values():
    def program(rank, world_size):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return nn.Linear(4, 4)(torch.ones(1, 4)).dtype

    assert on_two(program, device="cpu").results == [torch.bfloat16] * 2
