"""Values on a virtual cluster: random rank programs get what real ranks get; with sizes only, what still has values.

A program is drawn as data, a list of steps, and every rank of either world works through the steps that it is in.
"""

import copy
import os
import random
from dataclasses import dataclass

import numpy
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from utils import RankFailed, get_device, simulate, spawn

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

DTYPES = [torch.float32, torch.int64, torch.float64, torch.bfloat16]
SHAPES = [(), (1,), (5,), (2, 3), (3, 1, 2)]
OF_INTEGERS, OF_FLOATS = ("BAND", "BOR", "BXOR"), ("AVG",)
COLLECTIVES = (
    *("broadcast", "reduce", "all_reduce", "gather", "scatter", "all_gather", "reduce_scatter", "all_to_all"),
    *("all_gather_into_one", "reduce_scatter_of_one", "all_to_all_uneven"),
)


@dataclass(frozen=True)
class Collective:
    op: str
    group: int  # 0 is the world
    dtype: torch.dtype
    shape: tuple
    reduce_op: str
    root: int
    is_async: bool

    @property
    def can_be(self) -> bool:
        return self.reduce_op not in (OF_FLOATS if self.dtype is torch.int64 else OF_INTEGERS)


@dataclass(frozen=True)
class Messages:
    """pairs: (sender, receiver, tag), one after another

    how   "blocking", "asynchronous", "batched"; "from anybody": only the first, with a tag that nobody else uses
    """

    how: str
    pairs: list
    dtype: torch.dtype
    shape: tuple


@dataclass(frozen=True)
class Other:
    what: str  # "barrier", "compute", "wait" for all that is open
    group: int


@st.composite
def programs(draw):
    """(world size, groups besides the world, steps)"""
    world_size = draw(st.integers(2, 4))
    rank = st.integers(0, world_size - 1)
    groups = draw(st.lists(st.sets(rank, min_size=1).map(sorted), max_size=3))
    group, kind = st.integers(0, len(groups)), {"dtype": st.sampled_from(DTYPES), "shape": st.sampled_from(SHAPES)}
    reduce_op = st.sampled_from(["SUM", "PRODUCT", "MIN", "MAX", *OF_FLOATS, *OF_INTEGERS])
    collective = st.builds(
        Collective, st.sampled_from(COLLECTIVES), group, reduce_op=reduce_op, root=rank, is_async=st.booleans(), **kind
    ).filter(lambda step: step.can_be)
    pairs = st.lists(st.tuples(rank, rank, st.integers(0, 2)).filter(lambda p: p[0] != p[1]), min_size=1, max_size=4)
    ways = st.sampled_from(["blocking", "asynchronous", "batched", "from anybody"])
    other = st.builds(Other, st.sampled_from(["barrier", "compute", "wait"]), group)
    step = st.one_of(collective, collective, st.builds(Messages, ways, pairs, **kind), other)
    return world_size, groups, draw(st.lists(step, min_size=15, max_size=30))


def numbers(rank, salt, dtype, shape):
    """Small integers, others on each rank: their sums and products are exact in every dtype."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 3 + rank * 5 + salt) % 4).to(dtype).view(shape)


def work(rank, world_size, groups, steps):
    """Returns what each step has brought to this rank."""
    made = [dist.group.WORLD, *(dist.new_group(ranks) for ranks in groups)]
    members = [list(range(world_size)), *groups]
    got, handles = [], []
    for salt, step in enumerate(steps):
        if isinstance(step, Messages):
            handles += send_and_receive(step, rank, salt, got)
        elif rank in members[step.group]:
            group, team = made[step.group], members[step.group]
            if isinstance(step, Collective):
                result, handle = call(step, rank, salt, group, team)
                got.append(result)
                handles += [handle] if step.is_async else []
            elif step.what == "barrier":
                dist.barrier(group)
            elif step.what == "compute":
                got.append(torch.ones(3, 3).matmul(numbers(rank, salt, torch.float32, (3, 3))))
            else:
                while handles:
                    handles.pop().wait()
    for handle in handles:
        handle.wait()
    return got


def call(step, rank, salt, group, team):
    """(what the collective brings to this rank, its handle)"""
    size, place = len(team), team.index(rank)
    root = team[step.root % size]
    shape = step.shape or (1,)
    reduced, options = getattr(dist.ReduceOp, step.reduce_op), {"group": group, "async_op": step.is_async}

    def mine(*dimensions):
        return numbers(rank, salt, step.dtype, dimensions)

    def room(*dimensions):
        return torch.zeros(dimensions, dtype=step.dtype)

    def list_of(make):
        return [make(*step.shape) for _ in team]

    x, y = mine(*step.shape), room(*step.shape)
    if step.op == "broadcast":
        return x, dist.broadcast(x, src=root, **options)
    if step.op == "all_reduce":
        return x, dist.all_reduce(x, op=reduced, **options)
    if step.op == "reduce":
        handle = dist.reduce(x, dst=root, op=reduced, **options)
        return x if rank == root else None, handle  # Gloo leaves its intermediate sums with the others
    if step.op == "gather":
        into = list_of(room) if rank == root else None
        return into, dist.gather(x, into, dst=root, **options)
    if step.op == "scatter":
        return y, dist.scatter(y, list_of(mine) if rank == root else None, src=root, **options)
    if step.op == "all_gather":
        into = list_of(room)
        return into, dist.all_gather(into, x, **options)
    if step.op == "reduce_scatter":
        return y, dist.reduce_scatter(y, list_of(mine), op=reduced, **options)
    if step.op == "all_to_all":
        into = list_of(room)
        return into, dist.all_to_all(into, list_of(mine), **options)
    whole = size * shape[0], *shape[1:]
    if step.op == "all_gather_into_one":
        into = room(*whole)
        return into, all_gather_single(into, mine(*shape), **options)
    if step.op == "reduce_scatter_of_one":
        into = room(*shape)
        return into, reduce_scatter_single(into, mine(*whole), op=reduced, **options)
    rows = [[(sender + 2 * receiver + salt) % 3 for receiver in range(size)] for sender in range(size)]
    given, taken = rows[place], [row[place] for row in rows]
    into = room(sum(taken), *shape[1:])
    return into, dist.all_to_all_single(into, mine(sum(given), *shape[1:]), taken, given, **options)


def send_and_receive(step, rank, salt, got):
    """Do this rank's part of the messages; returns handles that are open."""
    handles, batch = [], []
    anybody = step.how == "from anybody"
    for sender, receiver, tag in [(*step.pairs[0][:2], 10 + salt)] if anybody else step.pairs:
        if rank not in (sender, receiver):
            continue
        sends, other = rank == sender, receiver if rank == sender else sender
        x = numbers(rank, salt + tag, step.dtype, step.shape) if sends else torch.zeros(step.shape, dtype=step.dtype)
        got += [] if sends else [x]
        if step.how == "asynchronous":
            handles.append(dist.isend(x, other, tag=tag) if sends else dist.irecv(x, other, tag=tag))
        elif step.how == "batched":
            batch.append(dist.P2POp(dist.isend if sends else dist.irecv, x, other))
        elif sends:
            dist.send(x, other, tag=tag)
        else:
            dist.recv(x, None if anybody else other, tag=tag)
    return handles + (dist.batch_isend_irecv(batch) if batch else [])


# --- both worlds


def asked_for(event):
    """An Event but for its times, and for the names that torch gives to groups."""
    call = event.op, event.group == "world", event.members, event.peer, event.tag, event.reduce_op, event.is_async
    tensor = event.bytes, event.dtype, event.shape
    return event.rank, event.index, *call, *tensor, event.where, event.waited is None


def alike(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype and one.shape == other.shape
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_programs_are_the_same_in_both_worlds(program):
    world_size, groups, steps = program
    real = spawn(work, world_size, groups, steps)
    virtual = simulate(work, world_size, groups, steps, device="cpu")
    assert alike(virtual.results, real.results)
    assert list(map(asked_for, virtual.events)) == list(map(asked_for, real.events))
    assert repr(virtual.traffic()) == repr(real.traffic())
    sizes_only = simulate(work, world_size, groups, steps)
    assert list(map(asked_for, sizes_only.events)) == list(map(asked_for, virtual.events))
    times = [(event.start, event.end) for event in virtual.events]
    assert [(event.start, event.end) for event in sizes_only.events] == times  # values change no times
    assert sizes_only.elapsed == virtual.elapsed


def test_what_is_each_process_s_own_is_each_ranks_own_whatever_the_turns():
    def draws(rank, world_size):
        drawn = [torch.rand(1).item(), random.random(), numpy.random.rand()]  # alike on all ranks
        torch.manual_seed(rank)
        generator = torch.Generator().manual_seed(rank)
        for seed in (None, rank):
            if seed is not None:
                random.seed(seed)
                numpy.random.seed(seed)
            drawn += [torch.rand(2), functional.dropout(torch.ones(4)), torch.rand(2, generator=generator)]
            drawn += [random.random(), numpy.random.rand(), torch.randperm(4).tolist()]
            dist.barrier()
            drawn += [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        return drawn, str(get_device()), dist.get_rank()

    assert alike(simulate(draws, 3, device="cpu").results, spawn(draws, 3).results)


# --- device="meta"


captured = torch.ones(3, 4)  # in the notebook; a rank that has only sizes gets only its size
indices = torch.tensor([3, 1])


def still_known(rank, world_size):
    """Integers that steer a program keep their values, and numbers do."""
    samples = DistributedSampler(range(10), world_size, rank, seed=1)
    expert = torch.arange(6) % 2
    tokens = torch.randn(6, 4)
    tokens[expert == 0] += 1
    counts = torch.bincount(expert, minlength=world_size)
    dist.all_reduce(counts)
    loss_scale = torch.tensor(2.0) * 3
    dist.all_reduce(loss_scale)
    return (
        *(list(samples), torch.arange(3).tolist(), indices.sort().values.tolist(), counts.tolist()),
        *(loss_scale.item(), tokens[expert == 1].shape, tokens[indices].shape, captured.matmul(tokens[:4]).shape),
        *(
            [batch.tolist() for batch in DataLoader(list(range(4)), batch_size=2)],
            str(torch.zeros(2, dtype=torch.int64)),
        ),
    )


def test_with_sizes_only_integers_keep_their_values():
    assert simulate(still_known, 2).results == spawn(still_known, 2).results


class Model(nn.Module):
    """A transformer's block, convolution, and experts whose sizes are known."""

    def __init__(self, words=32, width=16):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 32, dropout=0.1, batch_first=True)
        self.mix = nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.BatchNorm1d(width), nn.GELU())
        self.router, self.expert = nn.Linear(width, 4), nn.Linear(width, width)
        self.head = nn.Linear(width, words)
        self.register_buffer("mask", torch.triu(torch.full((8, 8), float("-inf")), 1))
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.orthogonal_(self.router.weight)

    def forward(self, ids):
        x = self.block(self.words(ids), src_mask=self.mask)
        x = self.mix(x.transpose(1, 2)).transpose(1, 2)
        weight, chosen = self.router(x).softmax(-1).topk(1)
        sent = torch.empty_like(x)
        dist.all_to_all_single(sent, self.expert(x))  # as many tokens from each rank to each
        return self.head(torch.where(chosen > 1, x, weight * sent))


def training(rank, world_size):
    torch.manual_seed(rank)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    ids, targets = torch.randint(0, 32, (4, 8)), torch.arange(32)
    for _ in range(2):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(ids).flatten(0, 1), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    smoothed = loss.detach().clone()
    dist.all_reduce(smoothed)
    print(smoothed)
    copy.deepcopy(model).load_state_dict(model.state_dict())
    return [p.shape for p in model.parameters()], schedule.get_last_lr()


def test_with_sizes_only_a_model_is_trained_as_with_values():
    virtual, real = simulate(training, 2), spawn(training, 2)
    assert virtual.results == real.results
    assert list(map(asked_for, virtual.events)) == list(map(asked_for, real.events))
    assert virtual.output[0] == "tensor(..., device='meta', size=())\n"


@pytest.mark.parametrize(
    "ask", [torch.Tensor.item, float, bool, torch.Tensor.tolist, torch.Tensor.numpy, "{:.2f}".format]
)
def test_with_sizes_only_a_value_that_is_asked_for_is_refused(ask):
    with pytest.raises(RankFailed, match=r"needs the values of a tensor, and on device='meta' tensors have sizes only"):
        simulate(lambda rank, world_size: ask(torch.randn(3).sum()), 1)
