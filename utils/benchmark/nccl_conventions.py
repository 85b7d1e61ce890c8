"""Sizes and bandwidths of collectives as nccl-tests define them, so that results can be compared.

    size     S, the bytes of the WHOLE: everything gathered, scattered or exchanged; or the tensor that all ranks hold
    algbw    S / time: how fast you get your result
    busbw    algbw times a factor: bytes each rank must send / time; compare it with ONE direction of a link
    GB/s     1e9 bytes per second; sizes such as 1K and 64M are 1024 and 64 * 1024 ** 2 bytes

                    S if a rank's input has n bytes    factor, with P ranks
    all_reduce      n                                  2 (P-1)/P
    reduce_scatter  n (all P chunks)                   (P-1)/P
    all_gather      P n                                (P-1)/P
    all_to_all      n                                  (P-1)/P
    gather          P n                                (P-1)/P
    scatter         n (the root's P chunks)            (P-1)/P
    broadcast       n                                  1
    reduce          n                                  1

(From nccl-tests' doc/PERFORMANCE.md and src/*.cu, where the sizes of reduce_scatter, all_gather and alltoall are
count * typesize * nranks. The 2 of all_reduce stands for its two halves; received bytes are never counted.)
"""

from __future__ import annotations

import re
from fractions import Fraction

from ..events.collectives import COLLECTIVES, NOBODY

GIGA = 1e9
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
DTYPES = {  # torch's name: (nccl-tests' name, bytes per element)
    **{"float32": ("float", 4), "float64": ("double", 8), "float16": ("half", 2), "bfloat16": ("bfloat16", 2)},
    **{"int32": ("int32", 4), "int64": ("int64", 8), "int8": ("int8", 1), "uint8": ("uint8", 1)},
}
OPS = COLLECTIVES.names(lambda one: one.gives != NOBODY)


def check_op(op: str) -> str:
    """Returns `op`. Raises ValueError for an unknown collective."""
    if op not in OPS:
        from ..text.units import nearest

        raise ValueError(f"there is no collective {op!r}{nearest(str(op), OPS)} There are {', '.join(OPS)}.")
    return op


def total_bytes(op: str, input_bytes: int, world_size: int) -> int:
    """S, if the input of each rank (for scatter: of the root) has `input_bytes` bytes.

    Raises ValueError for an unknown collective.
    """
    return input_bytes * (world_size if COLLECTIVES[check_op(op)].input_is_chunk else 1)


def bus_factor(op: str, world_size: int) -> Fraction:
    """busbw / algbw: the multiple of S that every rank must send; 0 for a single rank, except for broadcast and reduce.

    Raises ValueError for an unknown collective.
    """
    return COLLECTIVES[check_op(op)].ring_share(world_size)


def algbw(size: float, seconds: float) -> float:
    """GB/s of `size` bytes in `seconds`."""
    return size / seconds / GIGA


def busbw(op: str, size: float, seconds: float, world_size: int) -> float:
    """GB/s, comparable with one direction of a link. Raises ValueError for an unknown collective."""
    return algbw(size, seconds) * float(bus_factor(op, world_size))


# ---- sizes


def parse_size(text: str) -> int:
    """Bytes: "1K" is 1024. Raises ValueError for anything but a whole number, alone or with K, M or G."""
    match = SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(
            f"{text!r} is not a size: write a whole number of bytes, optionally with K, M or G, such as 512, 1K or 64M"
        )
    return int(match[1]) * UNITS[match[2].upper()]


def parse_sizes(text: str, step: int = 2) -> list[int]:
    """Sizes in bytes, ascending: "1K..64M" grows by the factor `step`; "1K,3K,1M" and "1M" are taken as they are.

    Raises ValueError for malformed or descending sizes, for a size of 0, and for a step below 2.
    """
    if step < 2:
        raise ValueError(f"step is {step}, but sizes grow by this factor: make it 2 or more")
    first, dots, last = text.partition("..")
    if not dots:
        sizes = sorted({parse_size(part) for part in text.split(",")})
    else:
        smallest, largest = parse_size(first), parse_size(last)
        if largest < smallest:
            raise ValueError(f"{text!r} is descending: write the smaller size first, as in {last}..{first}")
        sizes = [smallest]
        while smallest and sizes[-1] * step <= largest:
            sizes.append(sizes[-1] * step)
    if not sizes[0]:
        raise ValueError(f"{text!r} contains a size of 0 bytes: nothing would be sent")
    return sizes


def count_of(op: str, size: int, itemsize: int, world_size: int) -> int:
    """What nccl-tests call count, rounded down: the elements of the tensor, or of one chunk. Its true S is `size_of`.

    Raises ValueError if not even one element fits, and for an unknown collective.
    """
    chunks = world_size if COLLECTIVES[check_op(op)].in_chunks else 1
    count = size // itemsize // chunks
    if count == 0:
        least = f"one element on each of {world_size} ranks takes" if chunks > 1 else "one element takes"
        raise ValueError(f"a size of {size} is too small for {op}: {least} {itemsize * chunks} bytes")
    return count


def size_of(op: str, count: int, itemsize: int, world_size: int) -> int:
    """S in bytes, from the elements that `count_of` returns."""
    return count * itemsize * (world_size if COLLECTIVES[op].in_chunks else 1)
