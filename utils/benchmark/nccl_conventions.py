"""Bytes and bandwidths of collectives as nccl-tests count them, so that numbers can be laid beside those of others.

    size     S, the bytes of the WHOLE: what is gathered, scattered or exchanged in all; of the tensor where all hold it
    algbw    S / time: how soon you have your result
    busbw    algbw times a factor: the bytes that each rank must send / time, to hold against ONE direction of a link
    GB/s     1e9 bytes a second; sizes as 1K, 64M are 1024 and 64 * 1024 ** 2 bytes

                    S, when a rank hands in n bytes    factor, with P ranks
    all_reduce      n                                  2 (P-1)/P
    reduce_scatter  n (all P chunks)                   (P-1)/P
    all_gather      P n                                (P-1)/P
    all_to_all      n                                  (P-1)/P
    gather          P n                                (P-1)/P
    scatter         n (the root's P chunks)            (P-1)/P
    broadcast       n                                  1
    reduce          n                                  1

(nccl-tests, doc/PERFORMANCE.md and src/*.cu, where the sizes of reduce_scatter, all_gather and alltoall are
count * typesize * nranks. The 2 of an all-reduce is its two halves; received bytes are never counted.)
"""

from __future__ import annotations

import re
from fractions import Fraction

GIGA = 1e9
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
IN_CHUNKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")  # P of them make the whole
TAKES_PARTS = ("all_gather", "gather")  # a rank hands in one chunk, not the whole
DTYPES = {  # torch's name: nccl-tests' name, bytes
    **{"float32": ("float", 4), "float64": ("double", 8), "float16": ("half", 2), "bfloat16": ("bfloat16", 2)},
    **{"int32": ("int32", 4), "int64": ("int64", 8), "int8": ("int8", 1), "uint8": ("uint8", 1)},
}
OPS = ("all_reduce", "broadcast", "reduce", *IN_CHUNKS)


def check_op(op: str) -> str:
    """Raises ValueError for a collective that has no convention."""
    if op not in OPS:
        from ..text.units import nearest

        raise ValueError(f"there is no collective {op!r}{nearest(str(op), OPS)} There are {', '.join(OPS)}.")
    return op


def total_bytes(op: str, handed_in: int, world_size: int) -> int:
    """S, when each rank (of a scatter: the root) hands in `handed_in` bytes."""
    return handed_in * (world_size if check_op(op) in TAKES_PARTS else 1)


def bus_factor(op: str, world_size: int) -> Fraction:
    """busbw / algbw: the share of S that every rank must send; 0 where one rank has nobody to send to."""
    others = Fraction(world_size - 1, world_size)
    if check_op(op) in IN_CHUNKS:
        return others
    return 2 * others if op == "all_reduce" else Fraction(1)


def algbw(size: float, seconds: float) -> float:
    """GB/s."""
    return size / seconds / GIGA


def busbw(op: str, size: float, seconds: float, world_size: int) -> float:
    """GB/s."""
    return algbw(size, seconds) * float(bus_factor(op, world_size))


# ---- sizes


def parse_size(text: str) -> int:
    """Bytes: "1K" is 1024. Raises ValueError for anything else than a whole number with K, M, G or nothing."""
    match = SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(
            f"{text!r} is no size: write a whole number of bytes, with K, M or G if you like: 512, 1K, 64M"
        )
    return int(match[1]) * UNITS[match[2].upper()]


def parse_sizes(text: str, step: int = 2) -> list[int]:
    """ "1K..64M": each size `step` times the one before; "1K,3K,1M": these; "1M": this one. In bytes, rising.

    Raises ValueError for sizes that can't be read, that fall, or that are 0.
    """
    if step < 2:
        raise ValueError(f"step is {step}: each size is so many times the one before, 2 or more")
    first, dots, last = text.partition("..")
    if not dots:
        sizes = sorted({parse_size(part) for part in text.split(",")})
    else:
        smallest, largest = parse_size(first), parse_size(last)
        if largest < smallest:
            raise ValueError(f"{text!r} falls: write the smaller size first, such as {last}..{first}")
        sizes = [smallest]
        while smallest and sizes[-1] * step <= largest:
            sizes.append(sizes[-1] * step)
    if not sizes[0]:
        raise ValueError(f"{text!r} has a size of 0 bytes: nothing would be sent")
    return sizes


def count_of(op: str, size: int, itemsize: int, world_size: int) -> int:
    """Elements in what nccl-tests call count: of the tensor, or of one chunk. Rounded down; the true S is then

        count * itemsize * (world_size where there are chunks)

    Raises ValueError if not even one element fits.
    """
    pieces = world_size if check_op(op) in IN_CHUNKS else 1
    count = size // itemsize // pieces
    if count == 0:
        each = f"one element on each of {world_size} ranks takes" if pieces > 1 else "one element takes"
        raise ValueError(f"a size of {size} is too small for {op}: {each} {itemsize * pieces} bytes")
    return count


def size_of(op: str, count: int, itemsize: int, world_size: int) -> int:
    """S of `count` elements: the inverse of count_of."""
    return count * itemsize * (world_size if op in IN_CHUNKS else 1)
