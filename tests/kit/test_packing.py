"""Several small numbers in a byte."""

import pytest
import torch

from utils.kit.packing import pack_bits, pack_nibbles, unpack_bits, unpack_nibbles

COUNTS = [0, 1, 7, 8, 9, 33]


@pytest.mark.parametrize("count", COUNTS)
def test_flags_come_back_from_an_eighth_of_the_bytes(count: int) -> None:
    flags = torch.rand(count, generator=torch.Generator().manual_seed(count)) > 0.5
    packed = pack_bits(flags)
    assert packed.dtype == torch.uint8 and len(packed) == -(-count // 8)
    assert torch.equal(unpack_bits(packed, count), flags)


@pytest.mark.parametrize("count", COUNTS)
def test_codes_come_back_from_half_the_bytes(count: int) -> None:
    codes = torch.arange(count, dtype=torch.int8) % 16 - 8  # all that four bits can hold
    packed = pack_nibbles(codes)
    assert packed.dtype == torch.uint8 and len(packed) == -(-count // 2)
    assert torch.equal(unpack_nibbles(packed, count), codes)
