"""The price of a plan for a transformer block: closed forms, and plans that are refused."""

from __future__ import annotations

from itertools import product

import pytest

from utils.kit.block_plans import VALUE, WEIGHT, cost_of_plan, price, uniform_plan, weights_of_block
from utils.kit.placements import both_passes, moved

CUTS = ("R", "S0", "S1")
TOKENS, SEQUENCES, WIDTH, HIDDEN, MESH = BLOCK = 1024, 8, 64, 256, (4, 8)


def fsdp_and_megatron(kept):
    """FSDP along the first axis, Megatron with sequence parallelism along the second; two dimensions are cut."""
    plan = uniform_plan("bt", "S0", kept)
    return {name: (labels, ("S1", "S0") if labels == "bd" else cut, kept) for name, (labels, cut, _) in plan.items()}


def test_along_one_axis_a_price_is_the_formula():
    for src, dst in product((*CUTS, "I", "P"), CUTS):
        expected = moved(240, src, dst, 4), both_passes(240, src, dst, 4)
        assert price(240, (src,), (dst,), (4,)) == expected, (src, dst)


def test_along_two_axes_it_is_the_way_with_the_fewest_numbers():
    assert price(64, ("R", "S0"), ("S1", "S1"), (2, 4))[0] == 64 // 2 * 3 // 4 // 4  # a slice, then one all-to-all
    assert price(64, ("S0", "S0"), ("R", "R"), (2, 4)) == (56, 112)  # as one gather among all


@pytest.mark.parametrize("kept", ["", "x", "w", "xw"])
def test_fsdp_and_megatron_cost_what_their_formulas_say(kept):
    (n, m), weights = MESH, sum(rows * columns for rows, columns in weights_of_block(WIDTH, HIDDEN).values())
    gathered = weights // m * (n - 1) // n
    whole_rows = TOKENS * WIDTH // n * (m - 1) // m
    sent = 2 * gathered + 8 * whole_rows + ("w" not in kept) * gathered + ("x" not in kept) * 2 * whole_rows
    rows = TOKENS * WIDTH // n  # of qkv and up: gathered if kept
    of_second = TOKENS * (WIDTH + HIDDEN) // (n * m)
    held = WEIGHT * weights // (n * m) + VALUE * (2 * (rows if "x" in kept else rows // m) + of_second)
    held += ("w" in kept) * VALUE * weights // m
    assert cost_of_plan(fsdp_and_megatron(kept), *BLOCK) == (VALUE * sent, held)


@pytest.mark.parametrize(
    ("product_of", "entry", "words"),
    [
        ("qkv", ("df", ("S0", "S1"), ""), "leaves partial sums"),
        ("qkv", ("bb", ("S0", "S0"), ""), "cuts 8 of them 32 ways"),
        ("up", ("b", ("S0", "S0"), ""), "how up is computed"),
        ("up", ("bz", ("S0", "S0"), ""), "how up is computed"),
        ("down", ("bd", ("P", "S0"), ""), "how down is computed"),
        ("out", None, "how out is computed"),
    ],
)
def test_what_is_no_plan_is_refused(product_of, entry, words):
    with pytest.raises(ValueError, match=words):
        cost_of_plan(fsdp_and_megatron("") | {product_of: entry}, *BLOCK)
