"""What a plan for a transformer block on a mesh costs each rank: bytes sent in a training step, and bytes held.

    plan = {"qkv": ("bf", ("S0", "S1"), "x"), "out": ..., "up": ..., "down": ...}
    sent, held = cost_of_plan(plan, tokens, sequences, width, hidden, mesh)

For each of the four products, a plan says (labels, stored, kept): the label that each axis of the mesh cuts, the layout
of the weight, and which operands are kept until the backward pass as the product uses them: "", "x", "w" or "xw". An
operand that isn't kept is converted a second time there.

In front of qkv and up, and behind out and down, activations are cut by tokens along all axes. Attention takes q, k and
v as qkv leaves them: whole sequences or whole heads. Values have 2 bytes, a stored weight 16: with it, its gradient and
what Adam needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product

from .placements import USES, Layout, both_passes, moved

Plan = dict[str, tuple[str, Layout, str]]
VALUE, WEIGHT = 2, 16  # bytes
PLACEMENTS = ("R", "S0", "S1")


def weights_of_block(width: int, hidden: int) -> dict[str, tuple[int, int]]:
    """The shape of the weight of each product, in order. q, k and v are one product."""
    return {"qkv": (width, 3 * width), "out": (width, width), "up": (width, hidden), "down": (hidden, width)}


def uniform_plan(axes: str, stored: str, kept: str) -> Plan:
    """A plan that treats all products alike. axes: "b", or "t" for Megatron's f and d, for each axis of the mesh.

    stored: how a weight that is used whole along an axis is stored there, "S0" or "I". Others are stored as used.
    """
    at = {"b": stored, "f": "S1", "d": "S0"}
    plan: Plan = {}
    for name, cut in {"qkv": "f", "out": "d", "up": "f", "down": "d"}.items():
        labels = axes.replace("t", cut)
        plan[name] = labels, tuple(at[label] for label in labels), kept
    return plan


def layouts_of(labels: str) -> tuple[Layout, Layout, Layout]:
    """How x, w and y of a product lie whose axes cut these labels."""
    x, w, y = zip(*(USES[label] for label in labels), strict=True)
    return x, w, y


def share(size: int, layout: Sequence[str], mesh: Sequence[int]) -> int:
    """How many of `size` numbers a rank has."""
    return size // math.prod(n for placement, n in zip(layout, mesh, strict=True) if placement[0] == "S")


@cache
def price(size: int, src: Layout, dst: Layout, mesh: tuple[int, ...]) -> tuple[int, int]:
    """Numbers that a rank sends to get a tensor from src to dst: (forward, in both passes), the least of the latter.

    src: of "R", "I", "P", "S0" and "S1"; dst: without "P" and "I". The gradient goes the same way back.
    """
    found, waiting = {src: (0, 0)}, [src]  # (in both passes, forward) of the best way so far
    while waiting:
        now = waiting.pop()
        for axis, new in product(range(len(mesh)), PLACEMENTS):
            old, later = now[axis], now[axis + 1 :]
            if new == old or any(placement in later for placement in (old, new) if placement[0] == "S"):
                continue
            together, n = share(size, (*now[:axis], "R", *later), mesh), mesh[axis]
            way = found[now][0] + both_passes(together, old, new, n), found[now][1] + moved(together, old, new, n)
            after = (*now[:axis], new, *later)
            if after not in found or way < found[after]:
                found[after] = way
                waiting.append(after)
    both, forward = found[dst]
    return forward, both


def cost_of_plan(
    plan: Plan, tokens: int, sequences: int, width: int, hidden: int, mesh: tuple[int, ...]
) -> tuple[int, int]:
    """(bytes that a rank sends in both passes, bytes that it holds between them). All sizes divide evenly.

    Raises ValueError if the plan isn't one, or if attention would have less than a sequence on a rank.
    """
    cut, sent, held = ("S0",) * len(mesh), 0, 0
    now = cut
    for name, (rows, columns) in weights_of_block(width, hidden).items():
        labels, stored, kept = entry_of(plan, name, mesh)
        x, w, made = layouts_of(labels)
        for operand, size, old, new in (("x", tokens * rows, now, x), ("w", rows * columns, stored, w)):
            forward, both = price(size, old, new, mesh)
            sent += both + (0 if operand in kept else forward)
            if operand == "x":
                held += VALUE * share(size, new if "x" in kept else old, mesh)
            else:
                held += WEIGHT * share(size, old, mesh) + VALUE * share(size, new, mesh) * ("w" in kept and forward > 0)
        now = made
        if name == "qkv":
            expect_attention(made, sequences, mesh)
        if name in ("out", "down"):
            sent += price(tokens * columns, made, cut, mesh)[1]
            now = cut
    return VALUE * sent, held


def entry_of(plan: Plan, name: str, mesh: tuple[int, ...]) -> tuple[str, Layout, str]:
    """(labels, stored, kept) of a product. Raises ValueError if the plan doesn't say them for this mesh."""
    try:
        labels, stored, kept = plan[name]
        known = {*labels} <= {*USES} and {*stored} <= {"I", "S0", "S1"} and {*kept} <= {"x", "w"}
        if known and len(labels) == len(stored) == len(mesh):
            return labels, tuple(stored), kept
    except (KeyError, TypeError, ValueError):
        pass
    example = ("b" * len(mesh), ("S0",) * len(mesh), "x")
    raise ValueError(f"the plan does not say how {name} is computed, such as {example} for this mesh")


def expect_attention(layout: Layout, sequences: int, mesh: tuple[int, ...]) -> None:
    """Raise ValueError if attention can't work with q, k and v in this layout."""
    if "P" in layout:
        raise ValueError("attention needs whole numbers, and label d of qkv leaves partial sums")
    by_tokens = math.prod(n for placement, n in zip(layout, mesh, strict=True) if placement == "S0")
    if by_tokens > sequences:
        raise ValueError(
            f"attention needs whole sequences, and label b of qkv cuts {sequences} of them {by_tokens} ways"
        )
