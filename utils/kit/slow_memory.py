"""Memory that counts every byte that travels between it and the chip that computes: HBM and an SM, RAM and a core.

    memory = SlowMemory({"a": a, "b": b, "c": empty}, room=1024)
    tile = memory.load("a", slice(0, 16), slice(0, 16))          # a copy of a[0:16, 0:16], on the chip
    memory.store("c", tile, slice(0, 16), slice(0, 16))          # c[0:16, 0:16] = tile
    memory.loaded, memory.stored                                 # bytes so far

What is computed on the chip is free. Only so many loaded numbers may be there at a time: `room`.
"""

import weakref

import torch
from torch import Tensor


class ChipFull(RuntimeError):
    """More numbers were loaded than the chip has room for."""


class SlowMemory:
    """Named arrays far from the chip.

    room            loaded numbers that the chip can hold at a time; what was loaded goes when no variable holds it
    loaded, stored  bytes that travelled to the chip, and back
    """

    def __init__(self, arrays: dict[str, Tensor], room: int):
        self.arrays = {name: array.clone() for name, array in arrays.items()}
        self.room, self.on_chip = room, 0
        self.loaded = self.stored = 0

    def load(self, name: str, *where: slice) -> Tensor:
        """A copy of a part of an array: one slice a dimension, which may reach over the end.

        Raises ChipFull, and TypeError for anything but slices.
        """
        check_slices(name, where)
        tile = self.fetch(name, where)
        if self.on_chip + tile.numel() > self.room:
            raise ChipFull(
                f"the chip has room for {self.room} loaded numbers, holds {self.on_chip}, and you load {tile.numel()} "
                "more: load smaller parts, and keep no variable of what you no longer need."
            )
        self.loaded += nbytes(tile)
        self.on_chip += tile.numel()
        weakref.finalize(tile.untyped_storage(), self.let_go, tile.numel()).atexit = False
        return tile

    def store(self, name: str, values: Tensor, *where: slice) -> None:
        """Write a part of an array. Raises ValueError if `values` has another shape, and TypeError for no slices."""
        check_slices(name, where)
        self.stored += self.put(name, values, where)

    def fetch(self, name: str, where: tuple) -> Tensor:
        return self.arrays[name][where].clone()

    def put(self, name: str, values: Tensor, where: tuple) -> int:
        """Returns how many bytes were written."""
        part = self.arrays[name][where]
        if values.shape != part.shape:
            raise ValueError(
                f"this part of {name!r} has shape {tuple(part.shape)}, and you store {tuple(values.shape)}"
            )
        part.copy_(values)
        return nbytes(part)

    @property
    def moved(self) -> int:
        """Bytes that travelled, both ways together."""
        return self.loaded + self.stored

    def let_go(self, numbers: int) -> None:
        self.on_chip -= numbers


def check_slices(name: str, where: tuple) -> None:
    if not all(isinstance(part, slice) for part in where):
        raise TypeError(f"say which part of {name!r} by slices, one a dimension: slice(a, b) for a:b; got {where!r}")


def nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def unwritten(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """An array that nothing has been stored in yet: all NaN, or -1 for whole numbers."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else -1, dtype=dtype)
