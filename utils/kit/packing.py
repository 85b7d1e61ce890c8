"""Small whole numbers without gaps: PyTorch's smallest dtype has 8 bits, so these put several into each byte.

packed = pack_bits(x > 0)            # (n,) bool -> (ceil(n / 8),) uint8
unpack_bits(packed, n)               # and back
packed = pack_nibbles(codes)         # (n,) int8 from -8 to 7 -> (ceil(n / 2),) uint8
unpack_nibbles(packed, n)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def pack_bits(flags: Tensor) -> Tensor:
    """flags: (n,) bool. Returns (ceil(n / 8),) uint8."""
    return packed(flags.to(torch.uint8), 1)


def unpack_bits(whole: Tensor, count: int) -> Tensor:
    """The first `count` flags, bool."""
    return unpacked(whole, 1)[:count].bool()


def pack_nibbles(codes: Tensor) -> Tensor:
    """codes: (n,) int8, from -8 to 7. Returns (ceil(n / 2),) uint8."""
    return packed((codes + 8).to(torch.uint8), 4)


def unpack_nibbles(whole: Tensor, count: int) -> Tensor:
    """The first `count` codes, int8."""
    return unpacked(whole, 4)[:count].to(torch.int8) - 8


def packed(numbers: Tensor, bits: int) -> Tensor:
    """(n,) uint8, each below 2 ** bits -> (ceil(n * bits / 8),) uint8, the first number in the lowest bits."""
    each = 8 // bits
    rows = nn.functional.pad(numbers, (0, -len(numbers) % each)).view(-1, each)
    whole: Tensor = (rows << places(bits, numbers.device)).sum(1, dtype=torch.uint8)
    return whole


def unpacked(whole: Tensor, bits: int) -> Tensor:
    numbers: Tensor = whole[:, None] >> places(bits, whole.device) & 2**bits - 1
    return numbers.flatten()


def places(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)
