"""What NCCL's order of messages would do to a program that runs on Gloo and on a virtual cluster."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from utils import simulate, spawn

both = pytest.mark.parametrize("world", [spawn, partial(simulate, device="cpu")], ids=["spawn", "simulate"])


def receives_first(rank, world_size):
    """As in pytorch issue 109401."""
    got, other = torch.zeros(1), 1 - rank
    coming = dist.irecv(got, other)
    going = dist.isend(torch.ones(1), other)
    coming.wait()
    going.wait()


def one_receives_first(rank, world_size):
    got, other = torch.zeros(1), 1 - rank
    if rank == 0:
        calls = [dist.irecv(got, other)]
        calls.append(dist.isend(torch.ones(1), other))
    else:
        calls = [dist.isend(torch.ones(1), other)]
        calls.append(dist.irecv(got, other))
    for call in calls:
        call.wait()


def both_in_a_batch(rank, world_size):
    got, other = torch.zeros(1), 1 - rank
    operations = [dist.P2POp(dist.irecv, got, other), dist.P2POp(dist.isend, torch.ones(1), other)]
    for call in dist.batch_isend_irecv(operations):
        call.wait()


def ring(rank, world_size):
    got = torch.zeros(1)
    coming = dist.irecv(got, (rank - 1) % world_size)
    going = dist.isend(torch.ones(1), (rank + 1) % world_size)
    coming.wait()
    going.wait()


def by_tags(rank, world_size, order):
    if rank == 0:
        calls = [dist.isend(torch.ones(1) * tag, 1, tag=tag) for tag in (1, 2)]
    else:
        calls = [dist.irecv(torch.zeros(1), 0, tag=tag) for tag in order]
    for call in calls:
        call.wait()


@both
def test_what_would_hang_is_said_once(world, capsys):
    world(receives_first, 2)
    said = capsys.readouterr().out
    assert said.count("On GPUs this program would hang. Ranks 0 and 1") == 1
    assert f"line {receives_first.__code__.co_firstlineno + 3}" in said


@both
def test_messages_that_only_tags_keep_apart_are_said_to(world, capsys):
    world(by_tags, 2, (2, 1))
    assert "On GPUs this program would mix up messages. Rank 1" in capsys.readouterr().out


@both
@pytest.mark.parametrize(
    ("program", "ranks", "arguments"),
    [(one_receives_first, 2, ()), (both_in_a_batch, 2, ()), (ring, 3, ()), (by_tags, 2, ((1, 2),))],
)
def test_nothing_is_said_of_what_nccl_allows(world, program, ranks, arguments, capsys):
    world(program, ranks, *arguments)
    assert capsys.readouterr().out == ""
