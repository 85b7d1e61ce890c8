"""How things travel between the notebook and its ranks: what both directions have in common."""

from __future__ import annotations

import pickle
import sys


class CannotTravel(TypeError):
    """Pickle would take this value, and where it arrives it would be of no use, or do harm."""

    def __init__(self, value, why: str, advice: str):
        super().__init__(why)
        self.value = value
        self.advice = advice


def pickled_size(pickler: type[pickle.Pickler], value) -> int:
    """How many bytes `value` would be, without keeping them. Raises what pickling it raises."""
    counter = _Counter()
    pickler(counter).dump(value)
    return counter.size


def why_not(pickler: type[pickle.Pickler], value) -> Exception | None:
    """The error that pickling `value` gives, or None."""
    try:
        pickled_size(pickler, value)
    except Exception as error:
        return error
    return None


class _Counter:
    """A file that keeps nothing."""

    size = 0

    def write(self, data) -> None:
        self.size += memoryview(data).nbytes


def imported_types(*names: tuple[str, str]) -> tuple[type, ...]:
    """The classes of these names, (module, class), whose module is imported: of the others nobody holds an instance."""
    found = (getattr(sys.modules.get(module), name, None) for module, name in names)
    return tuple(kind for kind in found if kind is not None)


def pack(tensor) -> tuple:
    """A strided tensor on the CPU, by its values, as a `__reduce__` would give it; its bytes are copied once.

    torch's own way copies them several times, and takes the whole storage of a view along.
    """
    import torch

    values = tensor.resolve_conj().resolve_neg().contiguous()
    return unpack, (values.reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))


def unpack(data, dtype, shape):
    import torch

    return torch.from_numpy(data).view(dtype).reshape(shape).clone()  # a clone owns its memory, so it can be resized
