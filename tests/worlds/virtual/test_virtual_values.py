"""Values on a virtual cluster: random rank programs get what real ranks get, and some values exist on "meta" too.

A program is drawn as data, a list of steps; in both worlds every rank works through the steps that it takes part in.
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
    """pairs: (sender, receiver, tag), in order

    how   "blocking", "asynchronous", "batched"; "any source": only the first pair, with a tag of its own
    """

    how: str
    pairs: list
    dtype: torch.dtype
    shape: tuple


@dataclass(frozen=True)
class Other:
    what: str  # "barrier", "compute", or "wait" for all open handles
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
    ways = st.sampled_from(["blocking", "asynchronous", "batched", "any source"])
    other = st.builds(Other, st.sampled_from(["barrier", "compute", "wait"]), group)
    step = st.one_of(collective, collective, st.builds(Messages, ways, pairs, **kind), other)
    return world_size, groups, draw(st.lists(step, min_size=15, max_size=30))


def numbers(rank, salt, dtype, shape):
    """Small integers, different on each rank: their sums and products are exact in every dtype."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 3 + rank * 5 + salt) % 4).to(dtype).view(shape)


def work(rank, world_size, groups, steps):
    """Returns what this rank has received in each step."""
    made = [dist.group.WORLD, *(dist.new_group(ranks) for ranks in groups)]
    members = [list(range(world_size)), *groups]
    got, handles = [], []
    for salt, step in enumerate(steps):
        if isinstance(step, Messages):
            handles += send_and_receive(step, rank, salt, got)
        elif rank in members[step.group]:
            group, team = made[step.group], members[step.group]
            if isinstance(step, Collective):
                result, handle = getattr(Call(step, rank, salt, group, team), step.op)()
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


class Call:
    """One rank's call of a collective: a method for each, which returns (what this rank receives, the handle)."""

    def __init__(self, step, rank, salt, group, team):
        self.step, self.rank, self.salt, self.team = step, rank, salt, team
        self.size, self.root = len(team), team[step.root % len(team)]
        self.options = {"group": group, "async_op": step.is_async}
        self.reduced = {"op": getattr(dist.ReduceOp, step.reduce_op), **self.options}
        self.x, self.y = self.mine(*step.shape), self.room(*step.shape)
        self.shape = step.shape or (1,)
        self.whole = self.size * self.shape[0], *self.shape[1:]

    def mine(self, *dimensions):
        return numbers(self.rank, self.salt, self.step.dtype, dimensions)

    def room(self, *dimensions):
        return torch.zeros(dimensions, dtype=self.step.dtype)

    def list_of(self, make, only_root=False):
        return None if only_root and self.rank != self.root else [make(*self.step.shape) for _ in self.team]

    def broadcast(self):
        return self.x, dist.broadcast(self.x, src=self.root, **self.options)

    def all_reduce(self):
        return self.x, dist.all_reduce(self.x, **self.reduced)

    def reduce(self):
        handle = dist.reduce(self.x, dst=self.root, **self.reduced)
        return self.x if self.rank == self.root else None, handle  # Gloo leaves intermediate sums on the others

    def gather(self):
        into = self.list_of(self.room, only_root=True)
        return into, dist.gather(self.x, into, dst=self.root, **self.options)

    def scatter(self):
        given = self.list_of(self.mine, only_root=True)
        return self.y, dist.scatter(self.y, given, src=self.root, **self.options)

    def all_gather(self):
        into = self.list_of(self.room)
        return into, dist.all_gather(into, self.x, **self.options)

    def reduce_scatter(self):
        return self.y, dist.reduce_scatter(self.y, self.list_of(self.mine), **self.reduced)

    def all_to_all(self):
        into = self.list_of(self.room)
        return into, dist.all_to_all(into, self.list_of(self.mine), **self.options)

    def all_gather_into_one(self):
        into = self.room(*self.whole)
        return into, all_gather_single(into, self.mine(*self.shape), **self.options)

    def reduce_scatter_of_one(self):
        into = self.room(*self.shape)
        return into, reduce_scatter_single(into, self.mine(*self.whole), **self.reduced)

    def all_to_all_uneven(self):
        place = self.team.index(self.rank)
        rows = [
            [(sender + 2 * receiver + self.salt) % 3 for receiver in range(self.size)] for sender in range(self.size)
        ]
        given, taken = rows[place], [row[place] for row in rows]
        into = self.room(sum(taken), *self.shape[1:])
        return into, dist.all_to_all_single(into, self.mine(sum(given), *self.shape[1:]), taken, given, **self.options)


def send_and_receive(step, rank, salt, got):
    """Do this rank's part of the messages; returns the open handles."""
    handles, batch = [], []
    any_source = step.how == "any source"
    for sender, receiver, tag in [(*step.pairs[0][:2], 10 + salt)] if any_source else step.pairs:
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
            dist.recv(x, None if any_source else other, tag=tag)
    return handles + (dist.batch_isend_irecv(batch) if batch else [])


# --- both worlds


def without_times(event):
    """An Event without its times and without the names that torch gives to groups."""
    call = event.op, event.group == "world", event.members, event.peer, event.tag, event.reduce_op, event.is_async
    tensor = event.bytes, event.dtype, event.shape
    return event.rank, event.index, *call, *tensor, event.where, event.waited is None


def alike(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype and one.shape == other.shape
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


@pytest.mark.parametrize("examples", [8, pytest.param(25, marks=pytest.mark.thorough)])
def test_random_programs_are_the_same_in_both_worlds(examples):
    some = settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    some(given(programs())(is_the_same_in_both_worlds))()


def is_the_same_in_both_worlds(program):
    world_size, groups, steps = program
    real = spawn(work, world_size, groups, steps)
    virtual = simulate(work, world_size, groups, steps, device="cpu")
    assert alike(virtual.results, real.results)
    assert list(map(without_times, virtual.events)) == list(map(without_times, real.events))
    assert repr(virtual.traffic()) == repr(real.traffic())
    sizes_only = simulate(work, world_size, groups, steps)
    assert list(map(without_times, sizes_only.events)) == list(map(without_times, virtual.events))
    times = [(event.start, event.end) for event in virtual.events]
    assert [(event.start, event.end) for event in sizes_only.events] == times  # values change no times
    assert sizes_only.elapsed == virtual.elapsed


def test_each_rank_has_its_own_random_numbers_and_environment_in_any_order_of_turns():
    def draws(rank, world_size):
        drawn = [torch.rand(1).item(), random.random(), numpy.random.rand()]  # the same on all ranks
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


captured = torch.ones(3, 4)  # in the notebook; with sizes only, a rank gets only its size
indices = torch.tensor([3, 1])


def still_known(rank, world_size):
    """Integers that steer a program keep their values, and so do single numbers."""
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
    """A transformer block, a convolution, and experts of known sizes."""

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
        dist.all_to_all_single(sent, self.expert(x))  # the same number of tokens from each rank to each
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


def test_with_sizes_only_a_model_trains_as_with_values():
    virtual, real = simulate(training, 2), spawn(training, 2)
    assert virtual.results == real.results
    assert list(map(without_times, virtual.events)) == list(map(without_times, real.events))
    assert virtual.output[0] == "tensor(..., device='meta', size=())\n"


@pytest.mark.parametrize(
    "ask", [torch.Tensor.item, float, bool, torch.Tensor.tolist, torch.Tensor.numpy, "{:.2f}".format]
)
def test_with_sizes_only_asking_for_a_value_is_refused(ask):
    with pytest.raises(RankFailed, match=r"needs the values of a tensor, and on device='meta' tensors have sizes only"):
        simulate(lambda rank, world_size: ask(torch.randn(3).sum()), 1)
