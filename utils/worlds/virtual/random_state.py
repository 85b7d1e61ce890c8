"""The states of torch's, Python's and numpy's random number generators, which ranks exchange at each turn.

Python's own functions make a tuple of 625 integers of a state and back, which takes longer than all else in a turn. So
its memory is copied, if it looks as it does in CPython.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any

import numpy.random
import torch

PYTHONS = random.Random.random.__objclass__  # type: ignore[attr-defined]  # the class whose memory holds the state
STATE = struct.Struct("@i624I")  # where the generator stands in its words, and the words
BEGIN = object.__basicsize__


def lies_in_memory() -> bool:
    """Whether this Python keeps a generator's state in an object as we expect."""
    if sys.implementation.name != "cpython" or BEGIN + STATE.size > PYTHONS.__basicsize__:
        return False
    probe = random.Random(1)
    probe.random()
    *words, position = probe.getstate()[1]
    return ctypes.string_at(id(probe) + BEGIN, STATE.size) == STATE.pack(position, *words)


GENERATOR: random.Random = random.seed.__self__  # type: ignore[attr-defined]  # behind the functions of `random`
ADDRESS = id(GENERATOR) + BEGIN if lies_in_memory() else None


def pythons_state() -> Any:
    if ADDRESS is None:
        return GENERATOR.getstate()
    return ctypes.string_at(ADDRESS, STATE.size), GENERATOR.gauss_next  # type: ignore[attr-defined]


def set_pythons_state(state: Any) -> None:
    """state: what `pythons_state` has returned."""
    if ADDRESS is None:
        GENERATOR.setstate(state)
    else:
        memory, GENERATOR.gauss_next = state  # type: ignore[attr-defined]
        ctypes.memmove(ADDRESS, memory, STATE.size)


class RandomState:
    """One rank's. It starts from the given states of torch's and Python's generators; numpy's starts from seed 0."""

    def __init__(self, torchs: torch.Tensor, pythons: Any) -> None:
        self.torchs, self.pythons = torchs, pythons
        self.numpys = numpy.random.MT19937(0)
        self.numpys._legacy_seeding(0)

    def save(self) -> None:
        self.torchs, self.pythons = torch.default_generator.get_state(), pythons_state()

    def restore(self) -> None:
        torch.default_generator.set_state(self.torchs)
        set_pythons_state(self.pythons)
        numpy.random.set_bit_generator(self.numpys)  # type: ignore[attr-defined]
