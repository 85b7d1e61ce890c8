"""`torch.accelerator` of a virtual rank, and memory that is pinned: the same GPU as in virtual_cuda.py, by the names
that are the same for GPUs of all makers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

MAKERS_OWN = """
    device_count current_device_index set_device_index synchronize current_stream empty_cache memory_allocated
    max_memory_allocated memory_reserved max_memory_reserved reset_peak_memory_stats
"""  # names of torch.accelerator, all but two also in torch.cuda
IN_CUDA = {"current_device_index": "current_device", "set_device_index": "set_device"}


class OnDevice(nullcontext[None]):
    """`with torch.accelerator.device_index(number):` a rank has one GPU, whatever its number."""

    def __init__(self, device: int | None, /) -> None:
        super().__init__()
        self.idx, self.prev_idx = device, -1


def memory_stats(*_: Any) -> OrderedDict[str, Any]:
    """The counts that a virtual GPU has of those that torch's allocator keeps, in bytes."""
    allocated, most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    kinds = ("allocated_bytes", "reserved_bytes", "active_bytes")
    counts = {f"{kind}.all.{when}": size for kind in kinds for when, size in (("current", allocated), ("peak", most))}
    return OrderedDict(sorted(counts.items()))


def patch_accelerator() -> None:
    """Make `torch.accelerator` that of the running rank's GPU, once `torch.cuda` is."""
    cuda, accelerator = torch.cuda, torch.accelerator
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "get_memory_info": cuda.mem_get_info,
        "memory_stats": memory_stats,
        "device_index": OnDevice,
    }
    for name in MAKERS_OWN.split():
        answers[name] = getattr(cuda, IN_CUDA.get(name, name))
    for name in ("set_stream", "empty_host_cache", "reset_accumulated_memory_stats"):
        answers[name] = lambda *_: None
    answers["current_device_idx"], answers["set_device_idx"] = answers["current_device_index"], cuda.set_device
    for name, answer in answers.items():
        setattr(accelerator, name, answer)
        if hasattr(accelerator.memory, name):
            setattr(accelerator.memory, name, answer)
    vars(cuda)["memory_stats"] = memory_stats
    vars(torch).update(Stream=cuda.Stream, Event=cuda.Event)
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
