"""Random numbers that can't be guessed: torch's generator on the CPU, from a seed of any length."""

from __future__ import annotations

from hashlib import shake_256

import torch

WORDS = 624  # 32-bit words in the state of a Mersenne twister
STATE = slice(24, 24 + 8 * WORDS)  # their place in torch's get_state(), 8 bytes each


def generator_of(seed: int) -> torch.Generator:
    """A generator on the CPU that depends on every bit of its seed.

    torch itself takes only the lowest 32 bits, few enough to try them all. So a longer seed fills the whole state, by
    way of a cryptographic hash: from the numbers, nobody can find the seed, nor the numbers of another seed.
    """
    generator = torch.Generator().manual_seed(seed & 0xFFFF_FFFF)
    if not 0 <= seed < 2**32:
        state = generator.get_state()
        filled = bytearray(shake_256(str(seed).encode()).digest(4 * WORDS))
        state[STATE].view(torch.int64).copy_(torch.frombuffer(filled, dtype=torch.int32).long() & 0xFFFF_FFFF)
        generator.set_state(state)
    return generator
