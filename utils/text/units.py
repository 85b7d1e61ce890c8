"""Small pieces of messages: a quantity with its unit, a count with its noun, the name that was probably meant."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from difflib import get_close_matches


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def is_or_are(noun: str) -> str:
    """`are` for "the weights of rank 1", `is` for "the loss" and "the bias"."""
    head = re.split(r" (?:of|in|on|at|after|before|for|from|to|with|without|that)\b", noun)[0]
    return "are" if re.search(r"[^aius]s$", head) or " and " in head else "is"


def quantity(amount: float, unit: str) -> str:
    """450e9 and "B/s" as "450 GB/s", to four significant digits; without a unit, "450,000,000,000"."""
    amount = float(amount)
    if amount == 0 or math.isinf(amount):
        return f"{'infinite' if amount else 0} {unit}".strip()
    factors = [("n", 1e-9), ("µ", 1e-6), ("m", 1e-3), ("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)]
    shown = float(f"{amount:.4g}")  # round first, so that 999,999 is 1 M
    usable = factors if unit == "s" else factors[3:] if unit else factors[3:4]  # half a byte is 0.5 B
    prefix, factor = next((pair for pair in reversed(usable) if shown >= pair[1]), usable[0])
    number = f"{shown / factor:,.4g}" if shown / factor < 1e4 else f"{shown / factor:,.0f}"
    return f"{number} {prefix}{unit}".strip()


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about a wrong `name`: ": did you mean 'ring'?", or "." if none of `names` is close."""
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f": did you mean {close[0]!r}?" if close else "."
