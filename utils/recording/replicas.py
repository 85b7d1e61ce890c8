"""After an optimizer's step: whether DDP has reduced the gradients that it used, and, on request, what the ranks hold.

Nothing is sent for it. Each rank notes fingerprints, and whoever reads the notes of all ranks compares them.
"""

from __future__ import annotations

import gc
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..events.rank_state import ReplicaPrints
from .callers import who_called
from .gradients import fingerprint
from .notes import FrozenParameters, StepWithoutReduction

# Their buffers are each rank's own, until DDP broadcasts them.
NO_REPLICAS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Notebook(Protocol):
    """What this needs of a Recorder.

    makes_ddp, ddp_reduces   whether a DDP model has been made, and has reduced gradients
    """

    makes_ddp: bool
    ddp_reduces: bool

    def write(self, note: Any, /) -> object: ...


class Steps:
    """The steps of all optimizers of a rank. every: compare replicas once in so many; 0: never."""

    def __init__(self, recorder: Notebook, every: int = 0) -> None:
        self.recorder, self.every, self.count = recorder, every, 0
        self.looked = False

    def taken(self, optimizer: Optimizer, *_: object) -> None:
        """The optimizer has taken a step."""
        self.count += 1
        if self.recorder.makes_ddp and not self.looked:
            self.looked = True
            if not self.recorder.ddp_reduces and (found := unreduced(optimizer)) is not None:
                self.recorder.write(StepWithoutReduction(*found))
            self.recorder.write(FrozenParameters(list(frozen())))
        if self.every and self.count % self.every == 0:
            self.recorder.write(ReplicaPrints(self.count, who_called().where, list(fingerprints())))


def unreduced(optimizer: Optimizer) -> tuple[str, list[str]] | None:
    """(where, the parameters without a gradient) of a step that a DDP model's parameters took; None if none did.

    A virtual rank shares its process with others, so the model is found by the optimizer's parameters.
    """
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for model in instances(DistributedDataParallel):
        trained = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        if any(p.grad is not None and id(p) in own for _, p in trained):
            return who_called().where, [name for name, p in trained if p.grad is None]
    return None


def fingerprints() -> Iterator[tuple[str, int]]:
    """(name, checksum of all values) of the parameters and buffers of all modules, in the order of their names' module.

    A tensor goes by its longest name, which begins at the outermost module. Shards of FSDP and tensor parallelism are
    left out.
    """
    names: dict[int, tuple[str, torch.Tensor]] = {}
    for module in instances(torch.nn.Module):
        if isinstance(module, DistributedDataParallel):
            continue
        kind = type(module).__name__
        for name, tensor in (*module.named_parameters(), *replicated_buffers(module)):
            known = names.get(id(tensor), ("", tensor))[0]
            if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_meta:
                names[id(tensor)] = max(known, f"{kind}.{name}", key=len), tensor
    for name, tensor in names.values():
        numbers = tensor.detach().cpu().contiguous()
        data = numbers.as_strided((numbers.numel(),), (1,)).view(torch.uint8)  # a single number may have any stride
        yield name, zlib.crc32(f"{tuple(tensor.shape)}".encode() + data.numpy().tobytes())


def frozen(is_own: Callable[[torch.Tensor], bool] = lambda _: True) -> Iterator[tuple[str, int]]:
    """(name, fingerprint) of the parameters that are not trained; from a sample of their values, so this is quick.

    is_own   whether a parameter is this rank's, where several share a process
    """
    names: dict[int, tuple[str, torch.Tensor]] = {}
    for module in instances(nn.Module):
        for name, tensor in module.named_parameters():
            if type(tensor) is nn.Parameter and not (tensor.requires_grad or tensor.is_meta) and tensor.numel():
                known = names.get(id(tensor), ("", tensor))[0]
                names[id(tensor)] = max(known, f"{type(module).__name__}.{name}", key=len), tensor
    for name, tensor in names.values():
        if is_own(tensor):
            yield name, fingerprint(tensor)


def replicated_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, inner in module.named_modules():
        if not isinstance(inner, NO_REPLICAS):
            for name, buffer in inner.named_buffers(recurse=False):
                yield f"{prefix}.{name}" if prefix else name, buffer


def instances(kind: type[Any]) -> Iterator[Any]:
    """All objects of this kind in the process."""
    return (thing for thing in gc.get_objects() if issubclass(type(thing), kind))
