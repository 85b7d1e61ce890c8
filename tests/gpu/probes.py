"""Probes. `main` runs those of a stage and prints what each one found.

A probe takes a Setting and returns its numbers. It raises NotHere if this machine lacks what it needs, and anything
else if it fails; the next probe of the stage runs all the same. Rank programs are functions of a module, so that they
also travel where cloudpickle is missing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from utils import get_device, measure_this_machine, region, simulate, spawn, track_memory
from utils.benchmark.machine.probes import seconds_of
from utils.cluster import MeasuredGpu, find_cluster
from utils.cluster.kernel_times import write_kernel_times
from utils.worlds.virtual.kernel_names import kernel_name

Numbers = dict[str, Any]


class NotHere(Exception):
    """This machine lacks what the probe needs."""


@dataclass(frozen=True)
class Setting:
    """dry: on the CPU, over Gloo, at a small size."""

    dry: bool
    folder: Path

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def backend(self) -> str:
        return "gloo" if self.dry else "nccl"

    @property
    def world_sizes(self) -> list[int]:
        gpus = 2 if self.dry else torch.cuda.device_count()
        return [size for size in (1, 2, 4, 8) if size <= gpus]


# ---- machine

OPTIONAL = ("cloudpickle", "pynvml", "matplotlib", "tqdm", "psutil", "hypothesis", "jupyter_client", "nbformat")


def software(setting: Setting) -> Numbers:
    """Versions, and what is missing"""
    packages = [f"{found.name} {found.version}" for found in importlib.metadata.distributions() if "nccl" in found.name]
    return {
        "Python": platform.python_version(),
        "torch": f"{torch.__version__}, built for CUDA {torch.version.cuda}",
        "NCCL": f"{torch.cuda.nccl.version() if dist.is_nccl_available() else None}, installed: {packages}",
        "system": f"{platform.system()} {platform.release()}, {len(os.sched_getaffinity(0))} cores",
        "missing packages": ", ".join(name for name in OPTIONAL if not importlib.util.find_spec(name)) or "none",
    }


def gpus(setting: Setting) -> Numbers:
    """GPUs and driver"""
    if not torch.cuda.is_available():
        raise NotHere("torch finds no GPU")
    began = time.perf_counter()
    torch.ones(1, device="cuda").sum().item()
    numbers: Numbers = {"first kernel, s": time.perf_counter() - began}
    numbers["torch sees"] = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    for command in ("nvidia-smi", "nvidia-smi topo -m"):
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=15)
        numbers[command] = f"\n{done.stdout.strip() or done.stderr.strip()}"
    return numbers


# ---- world


def losses(rank: int, world_size: int, wrapper: str) -> list[float]:
    """Three training steps under one of torch's wrappers; all ranks have the same batch."""
    device = get_device()
    torch.manual_seed(0)
    x, model = torch.randn(16, 64).to(device), nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    model.to(device)
    if wrapper == "FSDP2":
        fully_shard(model, mesh=init_device_mesh(device.type, (world_size,)))
    wrapped = nn.parallel.DistributedDataParallel(model) if wrapper == "DDP" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = wrapped(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def wrappers(setting: Setting) -> Numbers:
    """DDP and FSDP2 over NCCL train as a single rank on the CPU does"""
    table: Numbers = {"one rank": spawn(losses, 1, "none", backend="gloo").results[0]}
    for size in setting.world_sizes:
        for wrapper in ("DDP", "FSDP2"):
            began = time.perf_counter()
            run = spawn(losses, size, wrapper, backend=setting.backend)
            assert run.backend == setting.backend
            numbers = {"whole call, s": time.perf_counter() - began, "calls recorded": len(run.events)}
            table[f"{wrapper}, {size} ranks"] = {"losses": run.results[-1], **numbers}
            for result in run.results:
                torch.testing.assert_close(result, table["one rank"], rtol=1e-4, atol=0)
    return table


# ---- collectives

IN_PLACE = ("all_reduce", "broadcast", "reduce")
COLLECTIVES = (*IN_PLACE, "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")


def collective(name: str, rank: int, size: int, device: torch.device | str, group: dist.ProcessGroup | None) -> Tensor:
    """What this rank holds after a collective of `group` on `device`, with numbers that make rounding visible."""
    x = torch.rand(8 * size, generator=torch.Generator().manual_seed(rank)).to(device)
    out = x.new_zeros(x.numel() * size if "gather" in name else 8 if "scatter" in name else x.numel())
    if name == "all_reduce":
        dist.all_reduce(x, group=group)
    elif name == "broadcast":
        dist.broadcast(x, group_src=size - 1, group=group)
    elif name == "reduce":
        dist.reduce(x, group_dst=0, group=group)
    elif name == "all_gather":
        dist.all_gather(list(out.chunk(size)), x, group=group)
    else:
        getattr(dist, name)(out, x, group=group)
    if name == "reduce" and rank != 0:  # undefined except on the root
        return torch.zeros(0)
    return (x if name in IN_PLACE else out).cpu()


def against_gloo(rank: int, world_size: int, device: str) -> dict[str, str]:
    """{collective: "works", or what is wrong}, with tensors on `device`; on the CPU, Gloo says what is right."""
    table = {}
    for name in COLLECTIVES:
        expected = collective(name, rank, world_size, "cpu", None)
        try:
            result = collective(name, rank, world_size, device, None)
            table[name] = "works" if torch.equal(result, expected) else f"WRONG VALUES {result}"
        except (RuntimeError, ValueError, NotImplementedError) as error:
            table[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return table


def shared_gpu(setting: Setting) -> Numbers:
    """Gloo with tensors of two ranks on one GPU: only wrong values are a failure"""
    tables = spawn(against_gloo, 2, setting.device, backend="gloo").results
    found = {name: " / ".join(sorted({table[name] for table in tables})) for name in COLLECTIVES}
    assert "WRONG" not in str(found), f"{found}"
    return found


def recorded_and_plain(rank: int, world_size: int) -> list[str]:
    """Names of the collectives whose bits differ between the recorded group and the one behind it."""
    world: Any = dist.group.WORLD
    differ = []
    for name in COLLECTIVES:
        recorded, plain = (collective(name, rank, world_size, get_device(), g) for g in (world, world.inner))
        differ += [] if torch.equal(recorded, plain) else [name]
    return differ


def recorder(setting: Setting) -> Numbers:
    """Every call is recorded once, and recording changes no bit of any result"""
    expected = [re.sub("_(into_tensor|tensor|single)$", "", name) for name in COLLECTIVES]
    for size in setting.world_sizes:
        run = spawn(recorded_and_plain, size, backend=setting.backend)
        assert not any(run.results), f"bits differ: {run.results}"
        for rank in range(size):
            events = [event for event in run.events if event.rank == rank]
            assert [event.op for event in events] == expected, f"{events}"
            assert all(event.end is not None and event.start <= event.end for event in events), f"{events}"
    return {"world sizes": setting.world_sizes}


def block_times(rank: int, world_size: int, elements: int, calls: int) -> dict[str, float]:
    """Seconds per all-reduce, in turns: on the plain group; on the recorded one; and of a region around the latter."""
    world: Any = dist.group.WORLD
    x = torch.zeros(elements, device=get_device())
    wait_for_gpu = torch.cuda.synchronize if x.is_cuda else lambda: None
    seconds: dict[str, list[float]] = {"plain": [], "recorded": []}
    for block in range(22):
        for name in sorted(seconds, reverse=block % 2 == 1):
            dist.barrier()
            wait_for_gpu()
            began = time.perf_counter()
            with region(name):
                for _ in range(calls):
                    dist.all_reduce(x, group=world if name == "recorded" else world.inner)
            wait_for_gpu()
            seconds[name].append((time.perf_counter() - began) / calls)
    return {f"{name}, s": median(measured[2:]) for name, measured in seconds.items()}


def overhead(setting: Setting) -> Numbers:
    """What recording costs per all-reduce; regions timed by CUDA events agree with the clock to within 5 %"""
    table: Numbers = {}
    for size in setting.world_sizes:
        for elements, calls in ((1, 10), (1 << 18, 4)) if setting.dry else ((1, 100), (1 << 24, 20)):
            run = spawn(block_times, size, elements, calls, backend=setting.backend)
            regions = [one.end - one.start for one in run.regions if one.rank == 0 and one.name == "recorded"]
            found = {**run.results[0], "region, s": median(regions[2:]) / calls}
            table[f"{size} ranks, {4 * elements:,} bytes"] = found
    off = abs(found["region, s"] / found["recorded, s"] - 1)  # the last one's: the most ranks, the largest tensor
    assert off < (0.5 if setting.dry else 0.05), f"a region's time is off by {off:.1%}: {table}"
    return table


# ---- memory


def live_bytes(rank: int, world_size: int, device: str, width: int) -> dict[str, int]:
    """{moment: live bytes} of a training step, by the GPU's allocator or by track_memory."""
    found: dict[str, int] = {}
    if device == "cuda":
        torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)  # cuBLAS takes its workspace
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    with track_memory() as tracked:

        def note(moment: str) -> None:
            found[moment] = torch.cuda.memory_allocated() - before if device == "cuda" else tracked.live

        model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(device)
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(256, width, device=device)
        note("model and batch")
        loss = model(x).square().mean()
        note("after forward")
        loss.backward()
        del loss
        note("after backward")
        optimizer.step()
        note("after the optimizer")
    return found


def memory(setting: Setting) -> Numbers:
    """Live bytes of a training step: the allocator's, track_memory's and simulate's agree to within 2 %"""
    width = 64 if setting.dry else 2048
    run = spawn(live_bytes, 1, setting.device, width, backend=setting.backend)
    ways = {
        setting.device: run.results[0],
        "track_memory": spawn(live_bytes, 1, "cpu", width, backend="gloo").results[0],
        "simulate": simulate(live_bytes, 1, "cpu", width).results[0],
    }
    table: Numbers = {moment: {way: counted[moment] for way, counted in ways.items()} for moment in run.results[0]}
    for moment, counted in table.items():
        apart, rounding = max(counted.values()) - min(counted.values()), 64 * 512  # CUDA's allocator rounds up to 512
        assert apart <= 0.02 * max(counted.values()) + rounding, f"{moment}: {apart:,} bytes apart: {table}"
    report = run.memory()
    assert report.device[0] == setting.device and report.peak[0] >= max(nbytes for _, nbytes in report.at[0])
    return table | {"peak of the Run": report.peak[0]}


# ---- kernels


class KernelTimer(TorchDispatchMode):
    """Times each operation of a program on `device`, once: seconds from one call to the next, with random values."""

    def __init__(self, device: str, times: dict[str, float]) -> None:
        super().__init__()
        self.device, self.times = torch.device(device), times

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = kernel_name(function, args)
        if not function.is_view and name not in self.times:
            try:
                arguments, options = tree_map(self.with_values, (args, kwargs or {}))
                self.times[name] = repeated(partial(function, *arguments, **options), self.device)
            except (RuntimeError, TypeError) as error:  # it needs more than random numbers
                print(f"    no time for {name}: {str(error).splitlines()[0]}")
        return function(*args, **(kwargs or {}))

    def with_values(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return self.device
        if not isinstance(value, Tensor):
            return value
        storage = torch.empty(value.untyped_storage().nbytes() // value.itemsize, dtype=value.dtype, device=self.device)
        real = storage.uniform_(0.1, 1) if value.is_floating_point() else storage.zero_()  # 0 is an index that exists
        return real.as_strided(value.shape, value.stride(), value.storage_offset())


def repeated(work: Callable[[], object], device: torch.device, sample: float = 4e-3) -> float:
    """Seconds of `work`, the median of five samples of at least `sample` seconds."""
    calls = 1
    while (taken := seconds_of(work, calls, device) * calls) < sample:
        calls = max(2 * calls, int(calls * sample / max(taken, 1e-7)))
    return median(seconds_of(work, calls, device) for _ in range(5))


def programs(device: str, dry: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    dtype = torch.float32 if dry else torch.bfloat16
    for width in [64] if dry else [1024, 2048, 4096, 8192]:
        a = torch.rand(width, width, dtype=dtype, device=device)
        yield f"product, {width}", partial(torch.mm, a, a)
        yield f"thin product, {width}", partial(torch.mm, a[:64], a)
        yield f"softmax, {width}", partial(torch.softmax, a, -1)
        yield f"layer norm, {width}", partial(nn.functional.layer_norm, a, (width,), a[0], a[1])
        yield f"sum, {width}", partial(torch.add, a, a)
        q = torch.rand(2, 16, width, 64, dtype=dtype, device=device)
        yield f"attention, {width}", partial(nn.functional.scaled_dot_product_attention, q, q, q, is_causal=True)
    yield "training step", training_step(device, dtype, *((1, 64, 32) if dry else (4, 2048, 1024)))


def training_step(device: str, dtype: torch.dtype, layers: int, width: int, length: int) -> Callable[[], None]:
    """Forward, backward and AdamW of transformer layers."""
    with torch.device(device):
        layer = partial(nn.TransformerEncoderLayer, width, width // 32, 4 * width, dropout=0.0, batch_first=True)
        model = nn.Sequential(*(layer(norm_first=True, dtype=dtype) for _ in range(layers)))
        x = torch.rand(4, length, width, dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    step()  # makes the optimizer's state
    return step


def virtual_seconds(rank: int, world_size: int, dry: bool) -> dict[str, float]:
    """{program: its seconds}, by a virtual rank's clock."""
    found = {}
    for name, program in programs("cpu", dry):
        began = time.perf_counter()
        program()
        found[name] = time.perf_counter() - began
    return found


def kernels(setting: Setting) -> Numbers:
    """Measured times beside simulate's; kernels.csv holds every operation's, for MeasuredGpu"""
    times: dict[str, float] = {}
    device, file = torch.device(setting.device), setting.folder / "kernels.csv"
    measured = {name: repeated(program, device) for name, program in programs(setting.device, setting.dry)}
    for where in (setting.device, "meta"):  # torch may choose other operations where tensors have no values
        for _, program in programs(where, setting.dry):
            with KernelTimer(setting.device, times):
                program()
    write_kernel_times(file, times)
    clusters, here = {"dgx-h100": find_cluster("dgx-h100", 1)}, "something else kept it too busy to measure its rates"
    with suppress(ValueError):
        own = measure_this_machine(1, setting.backend, seconds=0.2 if setting.dry else 2)
        clusters |= {"own rates": own, "kernels.csv": replace(own, gpu=MeasuredGpu.of(own.gpu, file))}
        here = str(own)
    virtual = {name: simulate(virtual_seconds, 1, setting.dry, cluster=c).results[0] for name, c in clusters.items()}
    table: Numbers = {
        name: {"measured, s": seconds} | {way: found[name] for way, found in virtual.items()}
        for name, seconds in measured.items()
    }
    return table | {"operations timed": len(times), "this machine": here}


STAGES: dict[str, list[Callable[[Setting], Numbers]]] = {
    "machine": [software, gpus],
    "world": [wrappers],
    "collectives": [shared_gpu, recorder, overhead],
    "memory": [memory],
    "kernels": [kernels],
}
STAGES["all"] = sum(STAGES.values(), [])


def main(stage: str, folder: str, *options: str) -> int:
    """Returns the exit code: 5 if a probe did not pass."""
    setting, code = Setting("--dry" in options, Path(folder)), 0
    if setting.dry:
        torch.set_num_threads(1)  # beside other work on a small machine
    for probe in STAGES[stage]:
        print(probe.__doc__, end=" ... ", flush=True)
        began = time.perf_counter()
        try:
            outcome, text = "PASSED", "\n".join(f"{name}: {text_of(value)}" for name, value in probe(setting).items())
        except NotHere as error:
            outcome, text, code = "SKIPPED", str(error), 5
        except Exception:
            outcome, text, code = "FAILED", traceback.format_exc(), 5
        print(f"{outcome} in {time.perf_counter() - began:.1f} s", textwrap.indent(text, "    "), sep="\n", flush=True)
    return code


def text_of(value: Any) -> str:
    """Floats to four digits."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {text_of(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(map(text_of, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
