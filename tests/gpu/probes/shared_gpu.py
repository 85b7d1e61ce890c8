"""Part 1: several ranks on one GPU. What works is written down for whoever decides; only wrong values are a failure.

Gloo takes CUDA tensors by way of the CPU. NCCL refuses a GPU that two ranks use, unless it is 2.30 or newer and
NCCL_MULTI_RANK_GPU_ENABLE=1 asks it to; NVIDIA calls that experimental. The ranks' kernels wait for each other while
they share the GPU's multiprocessors, so each may use only some of them (NCCL_MAX_CTAS).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.probe import Numbers, Setting
from utils import RankError, spawn

COLLECTIVES = [
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "send, recv"),
]
PATIENCE = 12  # seconds for the collectives that are left; a hang costs that much
Held = dict[str, Any]


def exchange(rank: int, world_size: int, name: str, device: str, group: dist.ProcessGroup) -> Held:
    """One collective of `group` on `device`. Returns what this rank holds afterwards."""
    mine = torch.arange(4.0, device=device) + 10 * rank
    other = [torch.zeros(4, device=device) for _ in range(world_size)]
    flat = torch.zeros(4 * world_size, device=device)
    part = torch.zeros(4 // world_size, device=device)
    pieces = list(mine.chunk(world_size))
    own_pieces = [torch.zeros_like(piece) for piece in pieces]

    def send_and_receive() -> None:
        work = dist.isend(mine, (rank + 1) % world_size, group=group)
        dist.recv(other[0], (rank - 1) % world_size, group=group)
        work.wait()

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(mine, group=group),
        "broadcast": lambda: dist.broadcast(mine, src=1, group=group),
        "reduce": lambda: dist.reduce(mine, dst=0, group=group),
        "all_gather": lambda: dist.all_gather(other, mine, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(flat, mine, group=group),
        "gather": lambda: dist.gather(mine, other if rank == 0 else None, dst=0, group=group),
        "scatter": lambda: dist.scatter(part, pieces if rank == 0 else None, src=0, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(part, pieces, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, mine, group=group),
        "all_to_all": lambda: dist.all_to_all(own_pieces, pieces, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(flat[:4], mine, group=group),
        "barrier": lambda: dist.barrier(group=group),
        "send, recv": send_and_receive,
    }
    calls[name]()
    held = {"other": other, "flat": flat, "part": part, "pieces": own_pieces}
    return held if name == "reduce" and rank != 0 else {**held, "mine": mine}  # undefined except on the root


def exchanges(rank: int, world_size: int, names: list[str], device: str, backend: str) -> dict[str, Held | str]:
    """{collective: what this rank holds, or the error it raised}."""
    group = dist.new_group(backend=backend)
    found: dict[str, Held | str] = {}
    for name in names:
        print(name, flush=True)  # so that a hang shows where
        try:
            found[name] = exchange(rank, world_size, name, device, group)
            if device == "cuda":
                torch.cuda.synchronize()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            found[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return found


def table_of(world_size: int, device: str, backend: str) -> Numbers:
    """{collective: what it does}, compared with Gloo on the CPU. A world that fails or hangs goes on after the culprit.

    Raises AssertionError if a value came out wrong.
    """
    expected = spawn(exchanges, world_size, COLLECTIVES, "cpu", "gloo", backend="gloo").results
    table: Numbers = {}
    left = list(COLLECTIVES)
    while left:
        try:
            run = spawn(exchanges, world_size, left, device, backend, backend="gloo", timeout=PATIENCE)
        except RankError as error:
            culprit = culprit_of(str(error), left)
            done = left[: left.index(culprit)]
            table |= dict.fromkeys(done, "no error before the next one failed")
            table[culprit] = f"{type(error).__name__}: {first_lines(error)}"
            left = left[left.index(culprit) + 1 :]
            if len([text for text in table.values() if text.startswith("Rank")]) == 2:  # a third would say no more
                table |= dict.fromkeys(left, "not tried after two failures")
                left = []
            continue
        for name in left:
            table[name] = judged([result[name] for result in run.results], [result[name] for result in expected])
        left = []
    wrong = [name for name, text in table.items() if text.startswith("WRONG")]
    assert not wrong, f"wrong values from {', '.join(wrong)} with {backend} on {device}: {table}"
    return {name: table[name] for name in COLLECTIVES}


def culprit_of(report: str, names: list[str]) -> str:
    """The collective that a report names first ("rank 0 waits in all_reduce"), or else the first of those left."""
    named = re.search(rf"\b({'|'.join(name.split(',')[0] for name in names)})\b", report)
    return next((name for name in names if named and name.startswith(named[1])), names[0])


def first_lines(error: Exception) -> str:
    return " / ".join(line.strip() for line in str(error).splitlines()[:3] if line.strip())


def judged(got: list[Held | str], expected: list[Held | str]) -> str:
    errors = sorted({held for held in got if isinstance(held, str)})
    if errors:
        return "; ".join(errors)
    return "works" if same(got, expected) else f"WRONG VALUES {got}"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    pairs = zip(one.values(), other.values(), strict=True) if isinstance(one, dict) else zip(one, other, strict=True)
    return all(same(*pair) for pair in pairs)


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Environment variables, which spawn hands to the ranks."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def only_one_gpu(world_size: int) -> dict[str, str]:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    most = str(max(1, 8 // world_size))
    return {"CUDA_VISIBLE_DEVICES": first, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": most}


def gloo_two(setting: Setting) -> Numbers:
    """Gloo, 2 ranks, tensors on one GPU"""
    return table_of(2, setting.device, "gloo")


def gloo_four(setting: Setting) -> Numbers:
    """Gloo, 4 ranks, tensors on one GPU"""
    return table_of(4, setting.device, "gloo")


def nccl_two(setting: Setting) -> Numbers:
    """NCCL, 2 ranks on one GPU, NCCL_MULTI_RANK_GPU_ENABLE=1"""
    with variables(**only_one_gpu(2)):
        return table_of(2, setting.device, setting.backend)


def nccl_four(setting: Setting) -> Numbers:
    """NCCL, 4 ranks on one GPU, NCCL_MULTI_RANK_GPU_ENABLE=1"""
    with variables(**only_one_gpu(4)):
        return table_of(4, setting.device, setting.backend)


CHECKS = [gloo_two, nccl_two, gloo_four, nccl_four]
