"""A memory that counts every byte moved between it and the chip that computes, as between HBM and an SM.

    memory = SlowMemory({"a": a, "b": b, "c": empty}, room=1024)
    tile = memory.load("a", slice(0, 16), slice(0, 16))          # a copy of a[0:16, 0:16], on the chip
    memory.store("c", tile, slice(0, 16), slice(0, 16))          # c[0:16, 0:16] = tile
    memory.loaded, memory.stored                                 # bytes so far

Computing on the chip costs nothing, but it holds at most `room` loaded numbers at a time.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor


class ChipFull(RuntimeError):
    """More numbers were loaded than the chip has room for."""


@dataclass
class Load:
    """A tile that was loaded: the part `where` of an array, so many numbers.

    until   how many loads there had been when it was let go; None while it is on the chip
    """

    name: str
    where: tuple[slice, ...]
    numbers: int
    until: int | None = None


class SlowMemory:
    """Named arrays, off the chip.

    room            how many loaded numbers the chip holds at most; a tile is freed when no variable refers to it
    on_chip         loaded numbers that the chip holds now
    loaded, stored  bytes moved to the chip, and back
    loads           every Load so far, in order; the place in this list is the time at which it came
    """

    def __init__(self, arrays: dict[str, Tensor], room: int) -> None:
        self.arrays = {name: array.clone() for name, array in arrays.items()}
        self.room, self.on_chip = room, 0
        self.loaded = self.stored = 0
        self.loads: list[Load] = []

    def load(self, name: str, *where: slice) -> Tensor:
        """A copy of part of an array: one slice per dimension; slices are clipped at the end of the array.

        Raises ChipFull if the tile doesn't fit on the chip, TypeError for anything but slices.
        """
        check_slices(name, where)
        tile = self.fetch(name, where)
        if self.on_chip + tile.numel() > self.room:
            raise ChipFull(
                f"the chip has room for {self.room} loaded numbers and holds {self.on_chip}; you load {tile.numel()} "
                "more. Load smaller tiles, or `del` those you no longer need."
            )
        self.loaded += tile.nbytes
        self.on_chip += tile.numel()
        self.loads.append(Load(name, where, tile.numel()))
        weakref.finalize(tile.untyped_storage(), self.let_go, self.loads[-1], tile.numel()).atexit = False
        return tile

    def store(self, name: str, values: Tensor, *where: slice) -> None:
        """Overwrite part of an array. Raises ValueError if `values` has a different shape, TypeError without slices."""
        check_slices(name, where)
        self.stored += self.put(name, values, where)

    def fetch(self, name: str, where: tuple[slice, ...]) -> Tensor:
        return self.arrays[name][where].clone()

    def put(self, name: str, values: Tensor, where: tuple[slice, ...]) -> int:
        """Returns the number of bytes written."""
        part = self.arrays[name][where]
        if values.shape != part.shape:
            raise ValueError(
                f"this part of {name!r} has shape {tuple(part.shape)}, but you store shape {tuple(values.shape)}"
            )
        part.copy_(values)
        return part.nbytes

    @property
    def moved(self) -> int:
        """Bytes moved in both directions together."""
        return self.loaded + self.stored

    def let_go(self, load: Load, numbers: int) -> None:
        self.on_chip -= numbers
        load.until = len(self.loads)


def check_slices(name: str, where: tuple[object, ...]) -> None:
    if not all(isinstance(part, slice) for part in where):
        raise TypeError(f"choose a part of {name!r} with one slice per dimension, slice(a, b) for a:b; got {where!r}")


def unwritten(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """An array that nothing has been stored in yet: all NaN, or -1 for integer dtypes."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else -1, dtype=dtype)
