"""Random programs for three ranks that are correct: whatever is said against one of them is wrong.

Each step is drawn once for all ranks. How many rows a rank sends, in what layout, when it waits: that varies.
"""

import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
from hypothesis import strategies as st

RANKS = 3
MOST_IN_FLIGHT = 4
STEPS = {}  # name -> function(step, place)


@dataclass(frozen=True)
class Step:
    op: str
    root: int  # by its place in the group; or how far a message goes
    shape: tuple[int, ...]
    dtype: torch.dtype
    group: str
    layout: str
    is_async: bool
    rows: tuple[int, ...]  # from each rank to each other

    def tensor(self):
        x = torch.ones(self.shape, dtype=self.dtype)
        return x.T if self.layout == "transpose" and x.dim() == 2 else x


@dataclass
class Place:
    """A rank's place in the group of a step, and its handles of calls in flight, each with the tensors they use."""

    group: dist.ProcessGroup
    alone: dist.ProcessGroup
    in_flight: list

    def __post_init__(self):
        self.members = dist.get_process_group_ranks(self.group)
        self.me, self.size = self.members.index(dist.get_rank()), len(self.members)

    def keep(self, work, *tensors):
        if work is not None:
            self.in_flight.append((work, tensors))


def steps():
    return st.builds(
        Step,
        op=st.sampled_from(sorted(STEPS)),
        root=st.integers(0, RANKS - 1),
        shape=st.sampled_from([(1,), (2, 3), (7,), (0,), (1, 4), (3, 0)]),
        dtype=st.sampled_from([torch.float32, torch.int64, torch.uint8]),
        group=st.sampled_from(["world", "another", "pair", "overlapping"]),
        layout=st.sampled_from(["rows", "transpose"]),
        is_async=st.booleans(),
        rows=st.tuples(*[st.integers(0, 3)] * RANKS**2),
    )


def programs():
    return st.lists(st.one_of(steps(), st.sampled_from(["start again"])), min_size=1, max_size=12)


def step(function):
    STEPS[function.__name__] = function
    return function


@step
def all_reduce(step, at):
    x = step.tensor()
    op = [dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN][step.root]
    at.keep(dist.all_reduce(x, op, at.group, step.is_async), x)


@step
def broadcast(step, at):
    x = step.tensor()
    at.keep(dist.broadcast(x, group=at.group, async_op=step.is_async, group_src=step.root % at.size), x)


@step
def reduce(step, at):
    x = step.tensor()
    at.keep(dist.reduce(x, group=at.group, async_op=step.is_async, group_dst=step.root % at.size), x)


@step
def gather(step, at):
    root, x = step.root % at.size, step.tensor()
    into = [torch.empty(x.shape, dtype=x.dtype) for _ in at.members] if at.me == root else None
    at.keep(dist.gather(x, into, group=at.group, async_op=step.is_async, group_dst=root), x, into)


@step
def scatter(step, at):
    root, x = step.root % at.size, torch.empty(step.shape, dtype=step.dtype)
    parts = [torch.ones(step.shape, dtype=step.dtype) for _ in at.members] if at.me == root else None
    at.keep(dist.scatter(x, parts, group=at.group, async_op=step.is_async, group_src=root), x, parts)


@step
def all_gather(step, at):
    x = step.tensor()
    into = [torch.empty(x.shape, dtype=x.dtype) for _ in at.members]
    at.keep(dist.all_gather(into, x, at.group, step.is_async), x, into)


@step
def rows_there_and_back(step, at):
    sends = [step.rows[RANKS * at.me + other] for other in range(at.size)]
    receives = [step.rows[RANKS * other + at.me] for other in range(at.size)]
    x, there = (torch.ones(sum(rows), 2, dtype=step.dtype) for rows in (sends, receives))
    dist.all_to_all_single(there, x, receives, sends, at.group)
    at.keep(dist.all_to_all_single(x, there, sends, receives, at.group, step.is_async), x, there)


@step
def objects(step, at):
    mine, root = "x" * 50 * step.rows[at.me], step.root % at.size
    dist.all_gather_object([None] * at.size, mine, at.group)
    dist.broadcast_object_list([mine], group=at.group, group_src=root)
    dist.gather_object(mine, [None] * at.size if at.me == root else None, group=at.group, group_dst=root)


@step
def turns(step, at):
    """In its turn a rank hands in what it has, at other times zeros."""
    for turn in range(at.size):
        if turn == at.me:
            dist.all_reduce(step.tensor(), group=at.group)
        else:
            dist.all_reduce(torch.zeros_like(step.tensor()), group=at.group)


@step
def from_anybody(step, at):
    root = step.root % at.size
    if at.me != root:
        dist.send(torch.ones(4), group=at.group, tag=step.root, group_dst=root)
    for _ in range(at.size - 1 if at.me == root else 0):
        dist.recv(torch.empty(4), group=at.group, tag=step.root)
    dist.barrier(at.group)  # or the next step's messages could be taken for this one's


@step
def one_rank_on_its_own(step, at):
    if at.me == step.root % at.size:
        dist.all_reduce(step.tensor(), group=at.alone)


@step
def caught(step, at):
    with contextlib.suppress(ValueError):
        if at.me == step.root % at.size:
            raise ValueError("only here")
    dist.barrier(at.group)


def neighbours(step, at):
    """Whom this rank sends to and receives from, and tensors for both."""
    far = 1 + step.root % max(1, at.size - 1)
    behind = (at.me - far) % at.size
    return (
        at.members[(at.me + far) % at.size],
        at.members[behind],
        torch.ones(step.rows[at.me]),
        torch.empty(step.rows[behind]),
    )


@step
def exchange(step, at):
    there, back, x, into = neighbours(step, at)
    sending = dist.isend(x, there, at.group, step.root)
    if step.is_async:
        at.keep(dist.irecv(into, back, at.group, step.root), into)
        at.keep(sending, x)
    else:
        dist.recv(into, back, at.group, step.root)
        sending.wait()


@step
def batch(step, at):
    there, back, x, into = neighbours(step, at)
    operations = [dist.P2POp(dist.irecv, into, back, at.group), dist.P2POp(dist.isend, x, there, at.group)]
    for work in dist.batch_isend_irecv(operations):
        at.keep(work, x, into)


def make_groups():
    groups = {"world": dist.group.WORLD, "another": dist.new_group()}
    groups |= {"pair": dist.new_group([0, 2]), "overlapping": dist.new_group([1, 2])}
    return groups, [dist.new_group([rank]) for rank in range(RANKS)][dist.get_rank()]


def wait_for_all(in_flight):
    for work, _ in in_flight:
        work.wait()
    in_flight.clear()


def run_program(rank, world_size, program):
    groups, alone = make_groups()
    in_flight = []
    for step in program:
        if step == "start again":
            wait_for_all(in_flight)
            dist.barrier()
            dist.destroy_process_group()
            dist.init_process_group("gloo")
            alone = [dist.new_group([other]) for other in reversed(range(world_size))][world_size - 1 - rank]
            groups = make_groups()[0]
        elif rank in dist.get_process_group_ranks(groups[step.group]):
            STEPS[step.op](step, Place(groups[step.group], alone, in_flight))
        if len(in_flight) > MOST_IN_FLIGHT:
            wait_for_all(in_flight)
    wait_for_all(in_flight)
