"""Conversions between placements: values, and bytes by the formula, for every pair, with uneven and empty parts."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.distributed as dist

from utils import region, spawn
from utils.kit.placements import both_passes, convert, converter, local_shape, moved, part
from utils.report.traffic import Traffic


def all_pairs(rank, world_size, shape, pairs):
    """The pairs of placements whose conversion gives something else than it should."""
    generator = torch.Generator().manual_seed(0)
    shares = [torch.randint(-99, 100, shape, generator=generator) for _ in range(world_size)]

    def held(placement):
        return shares[rank] if placement == "P" else part(sum(shares), (placement,), (world_size,), (rank,)).clone()

    wrong = []
    for src, dst in pairs:
        with region(f"{src} {dst}"):
            got = convert(held(src), src, dst, shape)
        if dst == "P":
            got = got.clone()
            dist.all_reduce(got)
        if not torch.equal(got, sum(shares) if dst == "P" else held(dst)):
            wrong.append((src, dst))
    return wrong


def pairs_of(dims):
    cuts = [f"S{dim}" for dim in range(dims)]
    return list(product(["R", "P", *cuts], repeat=2))


@pytest.mark.parametrize(("n", "shape"), [(1, (2, 3)), (4, (5, 3)), (3, (7, 10)), (4, (1, 2, 5))])
def test_every_conversion_is_right_for_uneven_and_empty_parts(n, shape):
    assert spawn(all_pairs, n, shape, pairs_of(len(shape))).results == [[]] * n


def test_a_conversion_sends_what_the_formula_says():
    pairs, shape = [pair for pair in pairs_of(2) if pair[1] != "P"], (8, 12)
    run = spawn(all_pairs, 4, shape, pairs)
    for src, dst in pairs:
        [inside] = [part for part in run.regions if part.rank == 0 and part.name == f"{src} {dst}"]
        events = [event for event in run.events if event.rank == 0 and inside.start <= event.start < inside.end]
        assert Traffic(4, events).implied(0) == moved(8 * 8 * 12, src, dst, 4), (src, dst)


def gradient(rank, world_size, src, dst):
    to = converter()
    x = torch.ones(local_shape((4, 4), (src,), (world_size,), (rank,)), requires_grad=True)
    to(x, src, dst).backward(torch.ones(local_shape((4, 4), (dst,), (world_size,), (rank,))))
    return x.grad


@pytest.mark.parametrize(("src", "dst", "ones"), [("I", "R", 2), ("P", "I", 1), ("P", "R", 2), ("S0", "R", 2)])
def test_gradients_lie_as_the_duals(src, dst, ones):
    """The gradient of "R" is a partial sum: where the value is "R", the ones of both ranks add up."""
    for got in spawn(gradient, 2, src, dst).results:
        assert torch.equal(got, torch.full_like(got, ones))


def test_local_shapes_follow_torchs_chunk_and_the_first_axis_cuts_first():
    places = product(range(2), range(3))
    assert [local_shape((7, 4), ("S0", "S0"), (2, 3), place)[0] for place in places] == [2, 2, 0, 1, 1, 1]


def test_data_parallelism_and_fsdp_send_the_same():
    assert both_passes(64, "I", "R", 4) == both_passes(64, "S0", "R", 4) == 96
