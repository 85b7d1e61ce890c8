"""Part 6: times of kernels as a file for the virtual cluster, and a training step that is simulated with them.

Every operation is timed as torch dispatches it, many calls in a row, by CUDA events. The file holds a sweep (products
by shape and dtype, attention, element-wise operations, norms, Adam) and every operation of the step, so that the step
that is simulated with the file can be held against the step that was measured.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tests.gpu.probe import Numbers, Setting, measured_cluster
from utils import simulate
from utils.benchmark.machine.probes import seconds_of
from utils.cluster import Cluster, MeasuredGpu, find_cluster
from utils.cluster.kernel_times import write_kernel_times
from utils.kit.transformer import make_layer, transformer_layer
from utils.worlds.virtual.kernel_names import kernel_name

SAMPLES, SAMPLE = 5, 4e-3  # for each kernel: how many samples, and seconds that one takes at least
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # an operation of torch, its arguments


# ---- the step


def sizes(dry: bool) -> dict[str, int]:
    """Of a transformer: LAYERS of a width, heads, and the batch of sequences that a step trains on."""
    small = {"layers": 1, "width": 64, "heads": 2, "batch": 2, "length": 32}
    return small if dry else {"layers": 4, "width": 2048, "heads": 16, "batch": 4, "length": 1024}


class Transformer(nn.Module):
    """The layers of utils/kit/transformer.py as a module."""

    def __init__(self, layers: int, width: int, heads: int, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        shapes = {name: [width * part for part in one.shape] for name, one in make_layer(1, 4).items()}  # all scale
        self.heads = heads
        self.layers = nn.ModuleList(
            nn.ParameterDict({name: nn.Parameter(weight(shape, dtype, device)) for name, shape in shapes.items()})
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for weights in self.layers:
            x = transformer_layer(x, dict(weights.items()), self.heads)
        return x


def weight(shape: list[int], dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=device) * shape[0] ** -0.5


def make_step(size: dict[str, int], dtype: torch.dtype, device: str) -> Callable[[], None]:
    """One training step: forward, backward and Adam. It returns nothing and reads no value."""
    model = Transformer(size["layers"], size["width"], size["heads"], dtype, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    x = torch.ones(size["batch"], size["length"], size["width"], dtype=dtype, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    return step


def step_on_rank(rank: int, world_size: int, size: dict[str, int], dtype: torch.dtype, device: str) -> float:
    """Seconds of the second step, by the rank's own clock; the first makes the optimizer's state."""
    import time

    step = make_step(size, dtype, device)
    step()
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


# ---- operations, recorded and timed


class Recording(TorchDispatchMode):
    """Keeps each operation of a program once, with its arguments: tensors as tensors without values."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Call] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not function.is_view:
            name = kernel_name(function, args)
            if name not in self.calls:
                self.calls[name] = function, on_meta(args), on_meta(kwargs or {})
        return function(*args, **(kwargs or {}))


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(changed(item, change) for item in value)
    if isinstance(value, dict):
        return {name: changed(item, change) for name, item in value.items()}
    return value


def on_meta(value: Any) -> Any:
    return changed(
        value, lambda tensor: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    )


def with_values(value: Any, device: str) -> Any:
    """Random numbers, since kernels are quicker on zeros; for integers, indices that exist everywhere."""

    def filled(tensor: Tensor) -> Tensor:
        real = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return real.uniform_(0.1, 1) if tensor.is_floating_point() else real.zero_()

    moved = changed(value, filled)
    if isinstance(moved, dict) and "device" in moved:
        moved["device"] = torch.device(device)
    return moved


def operations_of(program: Callable[[], object]) -> dict[str, Call]:
    with Recording() as recording:
        program()
    return recording.calls


def seconds_of_call(call: Call, device: str) -> float:
    """Seconds from one call to the next: the median of a few samples."""
    function, args, kwargs = call[0], with_values(call[1], device), with_values(call[2], device)
    work, where = partial(function, *args, **kwargs), torch.device(device)
    calls = 1
    while (taken := seconds_of(work, calls, where) * calls) < SAMPLE:
        calls = max(2 * calls, int(calls * SAMPLE / max(taken, 1e-7)))
    return median(seconds_of(work, calls, where) for _ in range(SAMPLES))


# ---- the sweep


def sweep(dry: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """(what it is, a program on tensors without values)."""
    widths = [64] if dry else [512, 1024, 2048, 4096, 8192]
    dtypes = [torch.float32] if dry else [torch.bfloat16, torch.float16, torch.float32]

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    for dtype in dtypes:
        of = partial(empty, dtype=dtype)
        for width in widths:
            yield "product of square matrices", partial(torch.mm, of(width, width), of(width, width))
            yield "product, a few rows", partial(torch.mm, of(64, width), of(width, width))
            yield "product, short inner dimension", partial(torch.mm, of(width, 64), of(64, width))
            rows = of(4096 if not dry else 64, width)
            yield "softmax", partial(torch.softmax, rows, -1)
            yield "layer norm", partial(nn.functional.layer_norm, rows, (width,), of(width), of(width))
            yield "GELU", partial(nn.functional.gelu, rows)
            yield "sum of two tensors", partial(torch.add, rows, rows)
    for count in [1 << 10] if dry else [1 << 20, 1 << 24, 1 << 27]:
        of = partial(empty, count, dtype=torch.float32)
        yield "Adam, fused", partial(fused_adam, of)


def fused_adam(of: Callable[[], Tensor]) -> None:
    weights, gradients, means, squares = ([of()] for _ in range(4))
    torch._fused_adamw_(
        weights, gradients, means, squares, [], [torch.empty((), device="meta")],
        lr=1e-4, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip


def attentions(dry: bool, device: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Attention on real tensors: torch chooses its kernel by the device."""
    for length in [32] if dry else [512, 1024, 2048, 4096, 8192]:
        dtype = torch.float32 if dry else torch.bfloat16
        q, k, v = (torch.rand(2, 16, length, 64, dtype=dtype, device=device) for _ in range(3))
        for causal in (False, True):
            attend = partial(nn.functional.scaled_dot_product_attention, q, k, v, is_causal=causal)
            yield f"attention{', causal' if causal else ''}", attend


# ---- the checks


def timed(
    named: Iterator[tuple[str, Callable[[], object]]], setting: Setting, times: dict[str, float]
) -> list[list[Any]]:
    """Time every operation of the programs, add it to `times`, and return rows for readers."""
    rows = []
    for what, program in named:
        for name, call in operations_of(program).items():
            if name in times:
                continue
            try:
                times[name] = seconds_of_call(call, setting.device)
            except (RuntimeError, NotImplementedError, TypeError) as error:  # it needs more than random numbers
                rows.append([what, name, "", "", str(error).splitlines()[0][:100]])
                continue
            rows.append([what, name, times[name], flops_of(call) / times[name], ""])
    return rows


def flops_of(call: Call) -> int:
    function, args, kwargs = call
    count = flop_registry.get(function.overloadpacket)
    return count(*args, **kwargs, out_val=function(*args, **kwargs)) if count else 0


def all_times(setting: Setting) -> tuple[dict[str, float], list[list[Any]]]:
    """Kernel times of the sweep and of the step, also written to kernels.csv; and rows for readers."""
    dtype, size = step_dtype(setting), sizes(setting.dry)
    times: dict[str, float] = {}
    step, on_meta_step = (make_step(size, dtype, device) for device in (setting.device, "meta"))
    for one in (step, on_meta_step):
        one()  # makes the optimizer's state
    steps = iter([("a step", step), ("a step without values", on_meta_step)])
    rows = timed(steps, setting, times)
    rows += timed(attentions(setting.dry, setting.device), setting, times)
    rows += timed(sweep(setting.dry), setting, times)
    write_kernel_times(setting.folder / "kernels.csv", times)
    with open(setting.folder / "kernels-to-read.csv", "w", newline="") as file:
        csv.writer(file).writerows([["what", "kernel", "seconds", "FLOP/s", "why there is no time"], *rows])
    return times, rows


def step_dtype(setting: Setting) -> torch.dtype:
    return torch.float32 if setting.dry else torch.bfloat16


def sweep_of_kernels(setting: Setting) -> Numbers:
    """Kernels by shape and dtype"""
    times, rows = all_times(setting)
    best = sorted((row for row in rows if row[3]), key=lambda row: -row[3])[:8]
    return {
        "kernels timed": len(times),
        "kernels that could not be": sum(1 for row in rows if row[4]),
        **{f"FLOP/s of {row[1]}": row[3] for row in best},
    }


def simulated_step(setting: Setting) -> Numbers:
    """A training step of a transformer, measured and simulated"""
    dtype, size = step_dtype(setting), sizes(setting.dry)
    step = make_step(size, dtype, setting.device)
    step()
    where = torch.device(setting.device)
    measured = median(seconds_of(step, 1 if setting.dry else 3, where) for _ in range(SAMPLES))
    here = measured_cluster(setting, 1)
    table: Numbers = {"measured": {"seconds": measured, "of the measured": 1.0}}
    for name, cluster in clusters(here, setting.folder / "kernels.csv").items():
        seconds = simulate(step_on_rank, 1, size, dtype, "cpu", cluster=cluster).results[0]
        table[f"simulated with {name}"] = {"seconds": seconds, "of the measured": seconds / measured}
    return table


def clusters(here: Cluster, kernels: Path) -> dict[str, Cluster]:
    """Ways to describe this GPU: its measured rates, the same with measured kernels, and an H100's data sheet."""
    found = {"the rates measured here": here, "the data sheet of an H100": find_cluster("dgx-h100", 1)}
    if kernels.exists():
        found["the kernel times measured here"] = replace(here, gpu=MeasuredGpu.of(here.gpu, kernels))
    return found


CHECKS = [sweep_of_kernels, simulated_step]
