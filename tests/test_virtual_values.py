"""The same random rank programs in both worlds: what ranks hold afterwards, what they asked for, and what was sent."""

import random

import numpy
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from utils import simulate, spawn

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32)
REDUCE_OPS = ("SUM", "MIN", "MAX", "PRODUCT")
COLLECTIVES = (
    *("all_reduce", "broadcast", "reduce", "gather", "scatter", "all_gather", "reduce_scatter", "all_to_all"),
    *("all_gather_into_one", "reduce_scatter_of_one", "all_to_all_uneven", "barrier"),
)


@st.composite
def steps(draw):
    """One step that all ranks of a world take, as plain values."""
    kind = draw(st.sampled_from((*COLLECTIVES, "ring", "exchange", "compute")))
    return {
        "kind": kind,
        "dtype": draw(st.integers(0, len(DTYPES) - 1)),
        "count": draw(st.integers(1, 5)),
        "op": draw(st.sampled_from(REDUCE_OPS)),
        "root": draw(st.integers(0, 3)),
        "tag": draw(st.integers(0, 3)),
        "is_async": draw(st.booleans()),
        "in_half": draw(st.booleans()),
    }


def program(rank, world_size, plan):
    """Take the steps of a plan; returns what every step has left behind, in steps that say so."""
    half = list(range((world_size + 1) // 2))
    group_of_half = dist.new_group(half)
    torch.manual_seed(rank)
    kept = []
    for number, step in enumerate(plan):
        in_half = step["in_half"] and step["kind"] not in ("ring", "exchange")
        if in_half and rank not in half:
            continue
        group, members = (group_of_half, half) if in_half else (dist.group.WORLD, list(range(world_size)))
        kept.append(take(step, number, rank, group, members))
    return kept


def take(step, number, rank, group, members):
    kind, count, size = step["kind"], step["count"], len(members)
    dtype, op = DTYPES[step["dtype"]], getattr(dist.ReduceOp, step["op"])
    root, me = members[step["root"] % size], members.index(rank)
    options = {"group": group, "async_op": step["is_async"]}

    def mine(length=count, salt=0):
        return (torch.arange(length) * (me + 1) + number + salt).remainder(5).to(dtype)

    def empty(length=count):
        return torch.zeros(length, dtype=dtype)

    if kind == "compute":
        return torch.rand(count) @ torch.rand(count, 3)
    if kind == "barrier":
        dist.barrier(group=group)
        return []
    if kind == "ring":
        x, y = mine(), empty()
        right, left = (rank + 1) % len(members), (rank - 1) % len(members)
        works = [dist.isend(x, right, tag=step["tag"]), dist.irecv(y, left, tag=step["tag"])]
        for work in works if step["is_async"] else reversed(works):
            work.wait()
        return y
    if kind == "exchange":
        x, y = mine(), empty()
        if rank >= 2:
            return []
        sends = dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)
        for work in dist.batch_isend_irecv(list(sends)):
            work.wait()
        return y
    handle, kept = collective(kind, op, root, me, size, mine, empty, options, rank == root, count)
    if step["is_async"]:
        handle.wait()
    return kept if kind not in ("reduce", "gather") or rank == root else []


def collective(kind, op, root, me, size, mine, empty, options, at_root, count):
    """(handle, what the rank holds once the handle is done)."""
    x = mine()
    if kind == "all_reduce":
        return dist.all_reduce(x, op=op, **options), x
    if kind == "broadcast":
        return dist.broadcast(x, src=root, **options), x
    if kind == "reduce":
        return dist.reduce(x, dst=root, op=op, **options), x
    if kind == "gather":
        into = [empty() for _ in range(size)] if at_root else None
        return dist.gather(x, into, dst=root, **options), into
    if kind == "scatter":
        y = empty()
        return dist.scatter(y, [mine(salt=i) for i in range(size)] if at_root else None, src=root, **options), y
    if kind == "all_gather":
        into = [empty() for _ in range(size)]
        return dist.all_gather(into, x, **options), into
    if kind == "reduce_scatter":
        y = empty()
        return dist.reduce_scatter(y, [mine(salt=i) for i in range(size)], op=op, **options), y
    if kind == "all_gather_into_one":
        y = empty(size * count)
        return (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(y, x, **options), y
    if kind == "reduce_scatter_of_one":
        y = empty()
        call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return call(y, mine(size * count), op=op, **options), y
    if kind == "all_to_all":
        y = [empty() for _ in range(size)]
        return dist.all_to_all(y, [mine(salt=i) for i in range(size)], **options), y
    given, taken = [(me + i) % 3 for i in range(size)], [(i + me) % 3 for i in range(size)]
    y = empty(sum(taken))
    return dist.all_to_all_single(y, mine(sum(given)), taken, given, **options), y


def asked_for(event):
    """An Event but for its times."""
    return (
        *(event.rank, event.index, event.op, event.members, event.peer, event.tag, event.bytes, event.dtype),
        *(event.shape, event.reduce_op, event.is_async, event.where),
    )


def alike(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    return len(one) == len(other) and all(map(alike, one, other))


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(world_size=st.integers(2, 4), plan=st.lists(steps(), min_size=12, max_size=24))
def test_random_programs_are_the_same_in_both_worlds(world_size, plan):
    real, virtual = spawn(program, world_size, plan), simulate(program, world_size, plan, device="cpu")
    assert alike(virtual.results, real.results)
    assert list(map(asked_for, virtual.events)) == list(map(asked_for, real.events))
    assert repr(virtual.traffic()) == repr(real.traffic())
    meta = simulate(program, world_size, plan)
    times = [(event.start, event.end) for event in virtual.events]
    assert [(event.start, event.end) for event in meta.events] == times  # values change no times
    assert meta.elapsed == virtual.elapsed


def test_random_numbers_are_each_ranks_own_whatever_the_turns():
    def draws(rank, world_size):
        torch.manual_seed(rank)
        drawn = []
        for _ in range(3):
            drawn += [torch.rand(2), torch.nn.functional.dropout(torch.ones(4))]
            drawn += [torch.tensor([random.random(), numpy.random.rand()])]
            dist.barrier()
        return drawn

    assert alike(simulate(draws, 3, device="cpu").results, spawn(draws, 3).results)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_object_collectives_carry_their_objects(device):
    def exchange(rank, world_size):
        everybody = [None] * world_size
        dist.all_gather_object(everybody, {"rank": rank})
        told = ["from 1"] if rank == 1 else [None]
        dist.broadcast_object_list(told, src=1)
        return everybody, told

    assert simulate(exchange, 3, device=device).results == [([{"rank": r} for r in range(3)], ["from 1"])] * 3
