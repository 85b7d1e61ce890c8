"""How values travel between the notebook and its ranks: what both directions have in common."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    import torch


class CannotTravel(TypeError):
    """Pickle would accept this value, but at its destination it would be useless or do harm."""

    def __init__(self, value: object, why: str, advice: str):
        super().__init__(why)
        self.value = value
        self.advice = advice


def pickled_size(pickler: Callable[[Any], pickle.Pickler], value: object) -> int:
    """The size of `value` when pickled, in bytes, without keeping them. Raises whatever pickling it raises."""
    counter = _Counter()
    pickler(counter).dump(value)
    return counter.size


def pickling_error(pickler: Callable[[Any], pickle.Pickler], value: object) -> Exception | None:
    """The error that pickling `value` raises, or None."""
    try:
        pickled_size(pickler, value)
    except Exception as error:
        return error
    return None


class _Counter:
    """A file that keeps nothing but its size."""

    size = 0

    def write(self, data: Any) -> None:
        self.size += memoryview(data).nbytes


def imported_types(*names: tuple[str, str]) -> tuple[type[Any], ...]:
    """The classes with these names, (module, class). A module that is not imported is left out: it has no instances."""
    found = (getattr(sys.modules.get(module), name, None) for module, name in names)
    return tuple(kind for kind in found if kind is not None)


def pack(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    """A strided tensor by its values, in the form that `__reduce__` returns. Its bytes are copied once.

    torch's own way copies them several times, and takes along the whole storage of a view. A tensor whose memory has
    been freed arrives on the device meta: it has a shape and a dtype, and no values.
    """
    import torch

    if not has_memory(tensor):
        return without_values, (tensor.dtype, tuple(tensor.shape))
    values = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    flat = values.as_strided((values.numel(),), (1,))  # a single number may have any stride
    return unpack, (flat.view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor's storage holds all its numbers. If it was resized to less, reading them would crash."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size() if tensor.numel() else 0
    return tensor.untyped_storage().nbytes() >= needed


def without_values(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.empty(shape, dtype=dtype, device="meta")


def unpack(data: numpy.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.from_numpy(data).view(dtype).reshape(shape).clone()  # a clone owns its memory, so it can be resized
