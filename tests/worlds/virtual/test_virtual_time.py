"""Time on the virtual cluster: rank programs made of messages take exactly what the textbooks' closed forms say.

alpha and beta are powers of two here, so their sums are exact in any order, and times are compared with ==.
"""

import functools
import math
import random
import time
from collections import Counter, defaultdict
from time import monotonic

import pytest
import torch
import torch.distributed as dist
from torch import nn

from utils import RankFailed, region, simulate
from utils.cluster import Cluster, Gpu, Layout, Link, cost
from utils.events.event import Event
from utils.worlds.virtual.calls import VirtualCall
from utils.worlds.virtual.network import Network

ALPHA, BETA = 2.0**-20, 2.0**-30  # s, s/byte
SLOW_ALPHA, SLOW_BETA = 2.0**-17, 2.0**-26  # between nodes
FREE = Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=math.inf, launch=0.0)


def cluster(gpus=16, nodes=1, alpha=ALPHA, beta=BETA, gpu=FREE, **more):
    intra = Link(alpha, 1 / beta if beta else math.inf)
    return Cluster("exact", nodes, gpus, gpu, intra, Link(SLOW_ALPHA, 1 / SLOW_BETA), **more)


def seconds_of(op, nbytes, where, ranks):
    return cost(op, nbytes, where, Layout.of(where, ranks)).seconds


def took(run) -> dict[str, float]:
    """{region: from its start, which is the same on all ranks, to its last end}."""
    spans = {}
    for r in run.regions:
        spans.setdefault(r.name, []).append(r)
    assert all(len({r.start for r in rows}) == 1 for rows in spans.values())
    return {name: max(r.end for r in rows) - rows[0].start for name, rows in spans.items()}


# --- algorithms as a student writes them; `team`: the ranks that take part


def naive_all_reduce(x, rank, team):
    if rank == team[0]:
        got = torch.empty_like(x)
        for other in team[1:]:
            dist.recv(got, other)
            x += got
        for other in team[1:]:
            dist.send(x, other)
    else:
        dist.send(x, team[0])
        dist.recv(x, team[0])


def tree_all_reduce(x, rank, team):
    place, size, got = team.index(rank), len(team), torch.empty_like(x)
    steps = [1 << level for level in range((size - 1).bit_length())]
    for step in steps:
        if place % (2 * step) == step:
            dist.send(x, team[place - step])
        elif place % (2 * step) == 0 and place + step < size:
            dist.recv(got, team[place + step])
            x += got
    for step in reversed(steps):
        if place % (2 * step) == step:
            dist.recv(x, team[place - step])
        elif place % (2 * step) == 0 and place + step < size:
            dist.send(x, team[place + step])


def ring_reduce_scatter(x, rank, team):
    place, size = team.index(rank), len(team)
    chunks = list(x.chunk(size))
    got = torch.empty_like(chunks[0])
    for step in range(size - 1):
        out = dist.isend(chunks[(place - step - 1) % size], team[(place + 1) % size])
        dist.recv(got, team[place - 1])
        chunks[(place - step - 2) % size] += got
        out.wait()


def ring_all_gather(x, rank, team):
    place, size = team.index(rank), len(team)
    chunks = x.chunk(size)
    for step in range(size - 1):
        out = dist.P2POp(dist.isend, chunks[(place - step) % size], team[(place + 1) % size])
        into = dist.P2POp(dist.irecv, chunks[(place - step - 1) % size], team[place - 1])
        for work in dist.batch_isend_irecv([out, into]):
            work.wait()


def ring_all_reduce(x, rank, team):
    ring_reduce_scatter(x, rank, team)
    ring_all_gather(x, rank, team)


def recursive_doubling(x, rank, team):
    place, step, got = team.index(rank), 1, torch.empty_like(x)
    while step < len(team):
        into, out = dist.irecv(got, team[place ^ step]), dist.isend(x.clone(), team[place ^ step])
        into.wait()
        out.wait()
        x += got
        step *= 2


def halving_doubling(x, rank, team):
    place, step = team.index(rank), len(team) // 2
    parts = [x]  # each is half of the one before
    others = []
    while step:
        lower, upper = parts[-1].chunk(2)
        mine, other = (upper, lower) if place & step else (lower, upper)
        got = torch.empty_like(mine)
        out = dist.isend(other, team[place ^ step])
        dist.recv(got, team[place ^ step])
        out.wait()
        mine += got
        parts.append(mine)
        others.append(other)
        step //= 2
    step = 1
    while step < len(team):
        out = dist.isend(parts.pop(), team[place ^ step])
        dist.recv(others.pop(), team[place ^ step])
        out.wait()
        step *= 2


def hierarchical_all_reduce(x, rank, team, local):
    """local: ranks on each node"""
    node, place = rank // local, rank % local
    inside = range(node * local, (node + 1) * local)
    ring_reduce_scatter(x, rank, inside)
    ring_all_reduce(x.chunk(local)[place], rank, range(place, len(team), local))
    ring_all_gather(x, rank, inside)


def pairwise_all_to_all(x, rank, team):
    place, size = team.index(rank), len(team)
    mine, into = x.clone().chunk(size), x.chunk(size)
    for step in range(1, size):
        out = dist.isend(mine[(place + step) % size], team[(place + step) % size])
        dist.recv(into[place - step], team[place - step])
        out.wait()


PIECES = 4


def chain_broadcast(x, rank, team):
    place, out = team.index(rank), []
    for piece in x.chunk(PIECES):
        if place:
            dist.recv(piece, team[place - 1])
        if place + 1 < len(team):
            out.append(dist.isend(piece, team[place + 1]))
    for work in out:
        work.wait()


def gather_at_once(x, rank, team):
    if rank == team[0]:
        works = [dist.irecv(torch.empty_like(x), other) for other in team[1:]]
        for work in works:
            work.wait()
    else:
        dist.send(x, team[0])


def scatter_at_once(x, rank, team):
    if rank == team[0]:
        works = [dist.isend(x, other) for other in team[1:]]
        for work in works:
            work.wait()
    else:
        dist.recv(x, team[0])


def swap(x, rank, team):
    """Neighbours in pairs exchange tensors, all at once, in both directions."""
    other = team.index(rank) ^ 1
    if other < len(team):
        works = [dist.isend(x, team[other]), dist.irecv(torch.empty_like(x), team[other])]
        for work in works:
            work.wait()


# p ranks, n bytes (of the whole), a alpha, b beta
levels = lambda p: (p - 1).bit_length()  # noqa: E731 one of the formulas
FORMS = {
    naive_all_reduce: lambda p, n, a, b: 2 * (p - 1) * (a + n * b),
    tree_all_reduce: lambda p, n, a, b: 2 * levels(p) * (a + n * b),
    ring_all_reduce: lambda p, n, a, b: 2 * (p - 1) * a + 2 * (p - 1) * (n // p) * b,
    ring_reduce_scatter: lambda p, n, a, b: (p - 1) * a + (p - 1) * (n // p) * b,
    ring_all_gather: lambda p, n, a, b: (p - 1) * a + (p - 1) * (n // p) * b,
    pairwise_all_to_all: lambda p, n, a, b: (p - 1) * a + (p - 1) * (n // p) * b,
    chain_broadcast: lambda p, n, a, b: (p - 2 + PIECES) * (a + n // PIECES * b),
    gather_at_once: lambda p, n, a, b: (p - 1) * (a + n * b),
    scatter_at_once: lambda p, n, a, b: (p - 1) * (a + n * b),
    swap: lambda p, n, a, b: a + n * b,
    recursive_doubling: lambda p, n, a, b: levels(p) * (a + n * b),
    halving_doubling: lambda p, n, a, b: 2 * levels(p) * a + 2 * (p - 1) * (n // p) * b,
}
ALL_REDUCES = [form for form in FORMS if "all_reduce" in form.__name__] + [recursive_doubling, halving_doubling]
POWER_OF_TWO = (recursive_doubling, halving_doubling)
PER_RANK = (1, 1000)  # floats in a chunk, times PIECES


def forms_of(size):
    return [form for form in FORMS if size & (size - 1) == 0 or form not in POWER_OF_TWO]


def all_forms(rank, world_size):
    for form in forms_of(world_size):
        for count in PER_RANK:
            x = torch.ones(count * PIECES * world_size)
            dist.barrier()
            with region(f"{form.__name__} {count}"):
                form(x, rank, range(world_size))


@functools.cache
def times(size, alpha, beta):
    return took(simulate(all_forms, size, cluster=cluster(alpha=alpha, beta=beta)))


@pytest.mark.parametrize("alpha, beta", [(ALPHA, BETA), (0.0, BETA), (ALPHA, 0.0)])
@pytest.mark.parametrize("form", FORMS)
def test_messages_take_what_the_closed_forms_say(form, alpha, beta):
    for size in (2, 3, 4, 5, 8, 16) if alpha and beta else (2, 5, 8):
        if form in forms_of(size):
            seen = [times(size, alpha, beta)[f"{form.__name__} {count}"] for count in PER_RANK]
            nbytes = [4 * count * PIECES * size for count in PER_RANK]
            assert seen == [FORMS[form](size, n, alpha, beta) for n in nbytes], size


def test_values_are_right_and_change_no_times():
    def programs(rank, world_size):
        sums = []
        for form in ALL_REDUCES if world_size == 8 else ALL_REDUCES[:3]:
            x = torch.arange(8.0 * 3 * 5) + rank
            with region(form.__name__):
                form(x, rank, range(world_size))
            dist.barrier()
            sums.append(x)
        return sums

    for size in (3, 8):
        with_values, without = (
            simulate(programs, size, cluster=cluster(), device=device) for device in ("cpu", "meta")
        )
        right = torch.arange(120.0) * size + sum(range(size))
        assert all(torch.equal(x, right) for sums in with_values.results for x in sums)
        assert with_values.events == without.events


@pytest.mark.parametrize("local, nodes", [(2, 2), (4, 2), (2, 4), (3, 2), (2, 3), (4, 4)])
def test_two_tiers(local, nodes):
    """A hierarchical all-reduce sends n/L bytes over the slow link; in a flat ring every step is as slow as that."""

    def program(rank, world_size):
        for count in PER_RANK:
            x = torch.ones(count * world_size)
            for form in (ring_all_reduce, hierarchical_all_reduce):
                dist.barrier()
                with region(f"{form.__name__} {count}"):
                    form(x, rank, range(world_size), *([local] if form is hierarchical_all_reduce else []))

    size = local * nodes
    seen = took(simulate(program, size, cluster=cluster(local, nodes)))
    for count in PER_RANK:
        chunk = 4 * count  # bytes; n / P
        inside = (local - 1) * (ALPHA + chunk * nodes * BETA)
        between = 2 * (nodes - 1) * (SLOW_ALPHA + chunk * SLOW_BETA)
        assert seen[f"hierarchical_all_reduce {count}"] == 2 * inside + between
        assert seen[f"ring_all_reduce {count}"] == 2 * (size - 1) * (SLOW_ALPHA + chunk * SLOW_BETA)


def test_a_machine_that_you_can_buy():
    def program(rank, world_size):
        chunk, got = torch.empty(10**6), torch.empty(10**6)
        for _ in range(2 * (world_size - 1)):
            out = dist.isend(chunk, (rank + 1) % world_size)
            dist.recv(got, (rank - 1) % world_size)
            out.wait()

    assert simulate(program, 8, rates="datasheet").elapsed == pytest.approx(14 * (3e-6 + 4e6 / 450e9), rel=1e-12)


@pytest.mark.parametrize("nics", [None, 4, 2, 1])
def test_messages_over_one_network_card_share_its_bandwidth_but_not_their_latencies(nics):
    n = 4000

    def program(rank, world_size):
        x, got = torch.ones(1000), torch.ones(1000)
        for senders in (1, 2, 3, 4):
            for both_ways in (False, True):
                dist.barrier()
                with region(f"{senders} {both_ways}"):
                    works = []
                    if rank % 4 < senders and (rank < 4 or both_ways):
                        works += [dist.isend(x, (rank + 4) % 8)]
                    if rank % 4 < senders and (rank >= 4 or both_ways):
                        works += [dist.irecv(got, (rank + 4) % 8)]
                    for work in works:
                        work.wait()
        dist.barrier()
        with region("inside"):
            swap(x, rank, range(world_size))

    seen = took(simulate(program, 8, cluster=cluster(4, 2, nics=nics)))
    each = 4 // (nics or 4)
    for senders in (1, 2, 3, 4):
        on_the_busiest = min(senders, each)
        for both_ways in (False, True):
            assert seen[f"{senders} {both_ways}"] == SLOW_ALPHA + on_the_busiest * n * SLOW_BETA
    assert seen["inside"] == ALPHA + n * BETA


# --- messages one by one


ONE = ALPHA + 4000 * BETA  # a message of 1000 floats
STEPS = Gpu(flops={"fp32": 2.0**20}, memory=math.inf, bandwidth=math.inf, launch=0.0)
STEP = 2.0**-7  # seconds for a product of two 16 x 16 matrices: 2 * 16**3 FLOPs


def compute(steps):
    for _ in range(steps):
        torch.empty(16, 16) @ torch.empty(16, 16)


def messages(run):
    """[(source, destination, tag, start of the send, end)] of all messages, by their ends."""
    sends = [e for e in run.events if e.op == "send"]
    return sorted(((e.rank, e.peer, e.tag, e.start, e.end) for e in sends), key=lambda row: row[-1])


def test_a_receive_from_any_source_takes_the_message_that_comes_first():
    def program(rank, world_size):
        x = torch.empty(1000)
        compute([0, 3, 1, 2][rank])
        if rank:
            dist.send(x, 0)
            return None
        blocking = [dist.recv(x), dist.recv(x)]
        last = dist.irecv(x)
        last.wait()
        return [*blocking, last._source_rank()]

    run = simulate(program, 4, cluster=cluster(gpu=STEPS))
    assert run.results[0] == [2, 3, 1]
    assert messages(run) == [(r, 0, 0, n * STEP, n * STEP + ONE) for r, n in ((2, 1), (3, 2), (1, 3))]
    assert [e.peer for e in run.events if e.op == "recv"] == [2, 3, 1]


def test_a_message_goes_to_the_receive_that_names_its_sender_unless_another_took_it_before():
    """As on Gloo: receives called before the message was sent come first, and among those the earliest."""

    def program(rank, world_size, receiver, message_at, named_at):
        if rank == receiver:
            anybody, named = torch.empty(1), torch.empty(1)
            from_anybody = dist.irecv(anybody)
            compute(named_at)
            works = [from_anybody, dist.irecv(named, 1 - rank)]
        else:
            compute(message_at)
            works = [dist.isend(torch.tensor([x]), receiver) for x in (1.0, 2.0)]
        for work in works:
            work.wait()
        return (anybody.item(), named.item()) if rank == receiver else None

    where = cluster(gpu=STEPS)
    for receiver in (0, 1):  # whichever of the two has the first turn
        for (message_at, named_at), right in {(2, 0): (2, 1), (2, 1): (2, 1), (0, 2): (1, 2)}.items():
            run = simulate(program, 2, receiver, message_at, named_at, cluster=where, device="cpu")
            assert run.results[receiver] == right


def test_tags_are_received_in_any_order():
    def program(rank, world_size):
        x = torch.empty(1000)
        if rank == 0:
            works = [dist.isend(x, 1, tag=tag) for tag in (7, 8, 9)]
            for work in works:
                work.wait()
        else:
            for tag in (9, 7, 8):
                dist.recv(x, 0, tag=tag)

    run = simulate(program, 2, cluster=cluster())
    assert messages(run) == [(0, 1, tag, 0.0, n * ONE) for n, tag in ((1, 9), (2, 7), (3, 8))]


def test_an_empty_message_takes_the_latency():
    def program(rank, world_size):
        if rank == 0:
            dist.send(torch.empty(0), 1)
        else:
            dist.recv(torch.empty(0), 0)

    assert simulate(program, 2, cluster=cluster()).elapsed == ALPHA


def test_a_world_ends_with_its_last_message_even_if_the_sender_has_finished():
    def program(rank, world_size):
        if rank == 0:
            dist.isend(torch.empty(1000), 1)
        else:
            compute(rank)
            dist.recv(torch.empty(1000), 0)

    run = simulate(program, 2, cluster=cluster(gpu=STEPS))
    assert messages(run) == [(0, 1, 0, 0.0, STEP + ONE)]
    assert run.elapsed == STEP + ONE
    assert simulate(lambda rank, size: compute(rank), 3, cluster=cluster(gpu=STEPS)).elapsed == 2 * STEP


def test_polling_in_a_loop_ends():
    """Rank 0 must answer rank 2 before rank 1 can send: polling in a loop waits for whichever comes first."""

    def program(rank, world_size):
        x, got = torch.empty(1000), []
        if rank == 1:
            dist.recv(x, 0)
        if rank:
            compute(5)
            return dist.send(x, 0)
        waiting = {source: dist.irecv(x, source) for source in (1, 2)}
        while waiting:
            for source, work in list(waiting.items()):
                if work.is_completed():
                    got.append(source)
                    del waiting[source]
                    if source == 2:
                        dist.send(x, 1)
        return got

    run = simulate(program, 3, cluster=cluster(gpu=STEPS))
    assert run.results[0] == [2, 1]
    assert run.elapsed == 10 * STEP + 3 * ONE


def test_polling_between_computations_costs_nothing():
    def program(rank, world_size):
        work = dist.isend(torch.empty(1000), 1) if rank == 0 else dist.irecv(torch.empty(1000), 0)
        steps = 0
        while not work.is_completed():
            compute(1)
            steps += 1
        return steps

    slow = cluster(gpu=STEPS, alpha=2.5 * STEP, beta=0.0)
    run = simulate(program, 2, cluster=slow)
    assert run.results == [3, 3]
    assert run.elapsed == 3 * STEP


def test_making_a_group_waits_for_all_its_members():
    def program(rank, world_size):
        if rank == 0:
            dist.recv(torch.empty(1000), 2)
            compute(2)
        if rank == 2:
            compute(1)
            dist.send(torch.empty(1000), 0)
        dist.new_group([0, 1])
        if rank == 1:
            dist.send(torch.empty(1000), 2)
        if rank == 2:
            dist.recv(torch.empty(1000), 1)

    came = STEP + ONE + 2 * STEP
    run = simulate(program, 3, cluster=cluster(gpu=STEPS))
    assert messages(run) == [(2, 0, 0, STEP, STEP + ONE), (1, 2, 0, came, came + ONE)]


def test_a_message_to_oneself_is_refused():
    with pytest.raises(RankFailed, match="rank 1 receives from itself"):
        simulate(lambda rank, size: dist.irecv(torch.empty(1), 1) if rank else None, 2)


def random_traffic(rank, world_size, seed):
    """Messages and collectives between random ranks, each called at its own moment and waited for late."""
    draw = random.Random(seed)  # the same on all ranks
    groups = [dist.new_group(sorted(draw.sample(range(world_size), size))) for size in (2, 3, world_size)]
    works = []
    for _ in range(40):
        kind, x, (source, target) = (
            draw.randrange(6),
            torch.empty(draw.randrange(4000)),
            draw.sample(range(world_size), 2),
        )
        length, waits = [[draw.randrange(20_000) for _ in range(world_size)][rank] for _ in range(2)]
        torch.empty(1, length) @ torch.empty(length, 1)
        if kind < 3 and dist.get_rank(groups[kind]) >= 0:
            works.append(dist.all_reduce(x, group=groups[kind], async_op=True))
        elif kind >= 3 and rank == source:
            works.append(dist.isend(x, target))
        elif kind >= 3 and rank == target:
            works.append(dist.irecv(x, source))
        if works and waits < 8_000:
            works.pop(0).wait()
    for work in works:
        work.wait()


def as_early_as_possible(run, where):
    """[(event, its end)] if the message or collective that can begin first always does."""
    together, numbers, free, ends = defaultdict(list), Counter(), defaultdict(float), []
    for event in run.events:
        between = {"send": (event.rank, event.peer), "recv": (event.peer, event.rank)}.get(event.op)
        number = numbers[event.rank, event.op, event.peer, event.group]
        numbers[event.rank, event.op, event.peer, event.group] += 1
        together[between, event.group, number].append(event)

    def ways(between, events):
        if between:
            return [
                (rank, way, tier) for rank, way in zip(between, ("out", "in"), strict=True) for tier in (True, False)
            ]
        members = events[0].members
        inside = len({where.node_of(rank) for rank in members}) == 1
        return [(rank, way, inside) for rank in members for way in ("out", "in")]

    def could_start(key):
        ready = max(event.start for event in together[key])
        return max(ready, *(free[way] for way in ways(key[0], together[key]))), ready

    while together:
        key = min(together, key=could_start)
        start, _ = could_start(key)
        between, events = key[0], together[key]
        if between:
            end = start + where.link(*between).seconds(events[0].bytes)
        else:
            end = start + seconds_of(events[0].op, events[0].bytes, where, events[0].members)
        free.update(dict.fromkeys(ways(between, events), end))
        ends += [(event, end) for event in together.pop(key)]
    return ends


@pytest.mark.parametrize("seed", range(8))
def test_the_earliest_transfer_that_could_begin_does(seed):
    where = cluster(2, 3, gpu=STEPS, alpha=2.0**-9, beta=2.0**-21)
    run = simulate(random_traffic, 6, seed, cluster=where)
    assert all(event.end == end for event, end in as_early_as_possible(run, where))
    assert run.elapsed == max(span.end for span in (*run.events, *run.regions))


# --- pipelines


def gpipe(rank, stages, batches, chunks):
    """[(what to do, with which chunk of the layers, on which microbatch)]"""
    return [(step, 0, batch) for step in ("forward", "backward") for batch in range(batches)]


def one_forward_one_backward(rank, stages, batches, chunks):
    ahead = min(stages - 1 - rank, batches)
    forward = [("forward", 0, batch) for batch in range(batches)]
    backward = [("backward", 0, batch) for batch in range(batches)]
    pairs = zip(forward[ahead:], backward, strict=False)
    return [*forward[:ahead], *(step for pair in pairs for step in pair), *backward[batches - ahead :]]


def interleaved(rank, stages, batches, chunks):
    """As in Megatron: groups of `stages` microbatches go through chunk 0, then chunk 1, ..."""
    ahead = min(2 * (stages - 1 - rank) + (chunks - 1) * stages, batches * chunks)
    places = [(k // stages % chunks, k // (stages * chunks) * stages + k % stages) for k in range(batches * chunks)]
    forward = [("forward", chunk, batch) for chunk, batch in places]
    backward = [("backward", chunks - 1 - chunk, batch) for chunk, batch in places]
    pairs = zip(forward[ahead:], backward, strict=False)
    return [*forward[:ahead], *(step for pair in pairs for step in pair), *backward[len(places) - ahead :]]


def pipeline(rank, stages, schedule, batches, chunks):
    """Do the steps of a schedule; a stage is two layers, and rank r has the stages r, r + stages, r + 2 stages, ..."""
    models = [nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(2))) for _ in range(chunks)]
    before, after, last = (rank - 1) % stages, (rank + 1) % stages, stages * chunks - 1
    kept, sent = {}, []
    for step, chunk, batch in schedule(rank, stages, batches, chunks):
        stage = chunk * stages + rank
        tag = 2 * (batch * (last + 1) + stage)  # for this stage's output; a gradient coming back has one more
        if step == "forward":
            x = torch.zeros(16, 16)
            if stage > 0:
                dist.recv(x, before, tag=tag - 2)
            y = models[chunk](x.requires_grad_())
            if stage < last:
                sent.append(dist.isend(y.detach(), after, tag=tag))
            kept[chunk, batch] = x, y
        else:
            x, y = kept.pop((chunk, batch))
            gradient = torch.ones(16, 16)
            if stage < last:
                dist.recv(gradient, after, tag=tag + 1)
            y.backward(gradient)
            if stage > 0:
                sent.append(dist.isend(x.grad, before, tag=tag - 1))
    for work in sent:
        work.wait()


F = 2 * STEP  # a stage forward; backward is twice that


def program_of_pipelines(rank, world_size, cases):
    for schedule, batches, chunks in cases:
        dist.barrier()
        with region(f"{schedule.__name__} {batches} {chunks}"):
            pipeline(rank, world_size, schedule, batches, chunks)


def most_activations(run, rank, within):
    """The largest number of microbatches whose activations a rank holds at one time in a region: its input and the
    tensor between its two layers.
    """
    [span] = [r for r in run.regions if r.rank == rank and r.name == within]
    [(_, samples, _)] = run.memory_notes[rank]
    live = [n for seconds, kind, n in samples if kind == "activations" and span.start <= seconds <= span.end]
    return max(live) / (16 * 16 * 4) // 2  # rounded down: the last input may still exist


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_pipelines_have_the_bubble_of_the_textbooks(stages):
    free = cluster(alpha=0.0, beta=0.0, gpu=STEPS)
    cases = [(schedule, m, 1) for schedule in (gpipe, one_forward_one_backward) for m in (1, stages + 1, 2 * stages)]
    cases += [(interleaved, stages, 3), (interleaved, 2 * stages, 2)]
    run = simulate(program_of_pipelines, stages, cases, cluster=free)
    seen = took(run)
    for schedule, batches, chunks in cases:
        name = f"{schedule.__name__} {batches} {chunks}"
        busy = batches * chunks * 3 * F
        bubble = (stages - 1) * 3 * F
        assert seen[name] == busy + bubble, name
        share = (stages - 1) / (chunks * batches + stages - 1)
        assert 1 - busy / seen[name] == pytest.approx(share, rel=1e-12)
        for rank in range(stages):
            held = {
                gpipe: batches,
                one_forward_one_backward: min(batches, stages - rank),
                interleaved: min(batches * chunks, 2 * (stages - 1 - rank) + (chunks - 1) * stages + 1),
            }[schedule]
            if rank > 0 or chunks == 1:  # rank 0 has the first stage and, interleaved, others
                assert most_activations(run, rank, name) == held, (name, rank)


# --- computing and communicating at the same time


def all_reduces(*sizes):
    return [dist.all_reduce(torch.empty(size), async_op=True) for size in sizes]


def test_overlapped_computing_and_communication_take_as_long_as_the_longer_of_the_two():
    def program(rank, world_size):
        for steps in (0, 1, 100):
            dist.barrier()
            with region(f"beside {steps}"):
                [work] = all_reduces(10**6)
                compute(steps)
                work.wait()
            dist.barrier()
            with region(f"after {steps}"):
                compute(steps)
                dist.all_reduce(torch.empty(10**6))
            dist.barrier()
            with region(f"late {steps}"):  # one rank calls long after the others
                compute(steps * (rank == 2))
                dist.all_reduce(torch.empty(10**6))

    where = cluster(4, gpu=STEPS, beta=2.0**-25)
    seen, all_reduce = took(simulate(program, 4, cluster=where)), seconds_of("all_reduce", 4 * 10**6, where, range(4))
    assert STEP < all_reduce < 100 * STEP
    for steps in (0, 1, 100):
        assert seen[f"beside {steps}"] == max(steps * STEP, all_reduce)
        assert seen[f"after {steps}"] == seen[f"late {steps}"] == steps * STEP + all_reduce


def test_collectives_of_one_group_run_in_turn_and_those_inside_nodes_beside_those_across():
    def program(rank, world_size):
        inside = [dist.new_group([first, first + 1]) for first in (0, 2)][rank // 2]
        across = [dist.new_group([first, first + 2]) for first in (0, 1)][rank % 2]
        x = torch.empty(1000)
        for groups in ([dist.group.WORLD] * 3, [inside] * 3, [inside, across], [across, inside, across]):
            for work in [dist.all_reduce(x, group=group, async_op=True) for group in groups]:
                work.wait()

    where = cluster(2, 2)
    run = simulate(program, 4, cluster=where)
    of = {name: seconds_of("all_reduce", 4000, where, r) for name, r in (("w", range(4)), ("i", (0, 1)), ("a", (0, 2)))}
    start = 0.0
    for rank in range(4):
        events = [e for e in run.events if e.rank == rank]
        ends = []
        for calls in ("www", "iii", "ia", "aia"):
            start = events[len(ends)].start
            for place, call in enumerate(calls):
                same_way = calls[: place + 1].count(call)
                ends.append(start + same_way * of[call])
        assert [e.end for e in events] == ends


def data_parallel(rank, world_size, rows):
    """A step of a hand-written DDP: four buckets of two layers, each all-reduced as soon as its gradients exist."""
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(8)))
    parameters = list(model.parameters())
    buckets = [parameters[first : first + 2] for first in (6, 4, 2, 0)]
    sent = []

    def ready(parameter):
        bucket = next(bucket for bucket in buckets if any(parameter is p for p in bucket))
        if parameter is bucket[0]:  # the gradient of its first layer comes last
            flat = torch.cat([p.grad.flatten() for p in bucket])
            sent.append((dist.all_reduce(flat, async_op=True), flat, bucket))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(ready)
    dist.barrier()
    with region(f"step {rows}"):
        model(torch.empty(rows, 16)).sum().backward()
        for work, flat, bucket in sent:
            work.wait()
            for p, mean in zip(bucket, (flat / world_size).split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(mean.view_as(p))


def test_in_a_data_parallel_step_only_the_last_bucket_is_exposed():
    def program(rank, world_size):
        for rows in (16, 1024):
            data_parallel(rank, world_size, rows)

    where = cluster(4, gpu=STEPS, beta=2.0**-16)
    seen = took(simulate(program, 4, cluster=where))
    all_reduce = seconds_of("all_reduce", 2 * 16 * 16 * 4, where, range(4))
    for rows in (16, 1024):
        product = rows / 16 * STEP
        # Two products per layer in backward, but the first layer needs no gradient with respect to its input.
        ready = [8 * product + 4 * bucket * product for bucket in (1, 2, 3)] + [8 * product + 15 * product]
        end = 0.0
        for moment in ready:
            end = max(end, moment) + all_reduce
        assert seen[f"step {rows}"] == end
    assert STEP < all_reduce < 60 * STEP
    assert seen["step 1024"] == 23 * 64 * STEP + all_reduce
    assert seen["step 16"] == 12 * STEP + 4 * all_reduce  # it waits for the network


def native_collectives(rank, world_size, members):
    """Each of them once; returns the bytes of the whole."""
    group, size, root = dist.new_group(members), len(members), members[-1]
    if rank not in members:
        return None
    whole = torch.empty(1200 * size)
    piece, pieces = torch.empty(1200), [torch.empty(1200) for _ in range(size)]
    dist.barrier(group)
    dist.all_reduce(whole, group=group)
    dist.broadcast(whole, root, group)
    dist.reduce(whole, root, group=group)
    dist.gather(piece, pieces if rank == root else None, root, group)
    dist.scatter(piece, pieces if rank == root else None, root, group)
    dist.all_gather(pieces, piece, group)
    dist.reduce_scatter(piece, pieces, group=group)
    dist.all_to_all_single(torch.empty_like(whole), whole, group=group)
    return whole.nbytes


@pytest.mark.parametrize(
    "members", [range(8), range(4), (0, 4), (1, 3, 4, 5), (0, 1, 2, 5, 6), (3,)], ids=lambda members: str(list(members))
)
def test_native_collectives_cost_what_the_tables_say(members):
    where = cluster(4, 2, nics=2)
    run = simulate(native_collectives, 8, list(members), cluster=where)
    assert len(run.events) == 9 * len(members)
    for event in run.events:
        assert event.end == event.start + seconds_of(event.op, run.results[event.rank], where, members)
    assert sum(times for _, _, _, times, _ in run.algorithms) == 9


# --- reproducibility


def a_bit_of_everything(rank, world_size):
    """A program in which the order of turns matters on nearly every line."""
    pair = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)][rank // 2]
    x = torch.empty(1000)
    works = [dist.all_reduce(torch.empty(size), async_op=True) for size in (10, 1000)]
    compute(rank % 3)
    works.append(dist.all_reduce(x.clone(), group=pair, async_op=True))
    if rank == 0:
        for _ in range(2 * (world_size - 1)):
            source = dist.recv(x)
            works.append(dist.isend(x, source, tag=1))
    else:
        for _ in range(2):
            dist.send(x, 0)
            work = dist.irecv(x, 0, tag=1)
            while not work.is_completed():
                compute(1)
    works += [dist.isend(x, other, tag=2) for other in range(world_size) if other != rank]
    works += [dist.irecv(x, other, tag=2) for other in range(world_size) if other != rank]
    for work in works:
        work.wait()


def test_a_program_takes_the_same_course_each_time():
    runs = [simulate(a_bit_of_everything, 6, cluster=cluster(2, 3, gpu=STEPS, nics=1)) for _ in range(20)]
    first = repr((runs[0].events, runs[0].regions, runs[0].memory_notes, runs[0].elapsed, runs[0].algorithms))
    for run in runs[1:]:
        assert repr((run.events, run.regions, run.memory_notes, run.elapsed, run.algorithms)) == first


# --- a program that times itself


def benchmark(rank, world_size, numel):
    """What a student's benchmark does, with clocks imported in three ways."""
    from time import perf_counter_ns

    x, seconds = torch.ones(numel), []
    for _ in range(3):
        dist.barrier()
        start, start_ns = time.perf_counter(), perf_counter_ns()
        dist.all_reduce(x)
        seconds.append((time.perf_counter() - start, (perf_counter_ns() - start_ns) * 1e-9, monotonic() - start))
    return seconds


def test_pythons_clocks_read_the_virtual_ranks_clock():
    run = simulate(benchmark, 4, 1000, cluster=cluster())
    want = seconds_of("all_reduce", 4000, cluster(), range(4))
    for seconds in run.results:
        for by_float, by_ns, by_another in seconds:
            assert by_float == by_another == pytest.approx(want, rel=1e-12)
            assert by_ns == pytest.approx(want, abs=1e-9)
    assert time.perf_counter() > 1  # the notebook's own clock is unchanged


def test_sleep_takes_virtual_time_and_no_real_time():
    def late(rank, world_size):
        time.sleep(100.0 * rank)
        dist.barrier()
        return time.time()

    before = time.monotonic()
    run = simulate(late, 3, cluster=cluster(alpha=0.0, beta=0.0))
    assert run.results == [200.0] * 3 and run.elapsed == 200.0
    assert time.monotonic() - before < 60


def test_a_rank_may_poll_a_handle_between_sleeps():
    def poll(rank, world_size):
        x = torch.ones(1 << 20)
        handle, times = dist.all_reduce(x, async_op=True), 0
        while not handle.is_completed():
            time.sleep(2.0**-10)
            times += 1
        return times

    [times, *others] = simulate(poll, 4, cluster=cluster()).results
    assert others == [times] * 3
    assert times == math.ceil(seconds_of("all_reduce", 4 << 20, cluster(), range(4)) / 2.0**-10)


@pytest.mark.parametrize("length", [-1, "long"])
def test_sleep_refuses_what_python_refuses(length):
    def nap(rank, world_size):
        time.sleep(length)

    with pytest.raises(RankFailed, match="ValueError: sleep length must be non-negative|TypeError"):
        simulate(nap, 2, cluster=cluster())


# --- the network itself


def ends_of_collectives(seed, members_of):
    """When the collectives of random groups end, if `members_of` makes the members that each call names."""
    chance, network, ends = random.Random(seed), Network(cluster(4, nodes=4), 16), []
    groups = [tuple(sorted(chance.sample(range(16), chance.randint(2, 16)))) for _ in range(8)]
    for _ in range(60):
        group, nbytes, start = chance.choice(groups), chance.randint(1, 1 << 20), 2.0**-10 * chance.random()
        for rank in group:
            fields = ("all_reduce", "g", members_of(group), None, 0, nbytes, "", (), "sum", False, start, None, "")
            call = VirtualCall(Event(rank, 0, *fields), "allreduce", ())
            network.ask(call)
        network.earliest()
        network.commit()
        ends.append(call.end)
    return ends


@pytest.mark.parametrize("seed", range(5))
def test_equal_members_are_one_group_whether_calls_share_their_tuple_or_not(seed):
    ends = ends_of_collectives(seed, lambda group: group)
    assert ends == ends_of_collectives(seed, lambda group: tuple(map(int, group)))  # a new one each time, freed at once
    assert None not in ends
