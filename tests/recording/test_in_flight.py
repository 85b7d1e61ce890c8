"""utils/recording/in_flight.py: a race shows every time, a program without one notices nothing."""

import pytest
import torch
import torch.distributed as dist

from utils import RankError, spawn
from utils.checks import CheckFailed
from utils.checks.compare import expect
from utils.checks.runner import Runner
from utils.recording import in_flight
from utils.recording.in_flight import ADVICE, BITS, WHOLE, Flight, holds_poison, is_poison, poison

FLOATS = [dtype for dtype in BITS if dtype is not torch.bfloat16]


@pytest.mark.parametrize("dtype", [*BITS, *WHOLE], ids=str)
def test_every_number_of_a_poisoned_tensor_is_poison(dtype):
    x = torch.ones(2, 3, dtype=dtype)
    poison(x)
    assert is_poison(x) and (dtype in WHOLE or holds_poison(x))
    x[1, 2] = 1
    assert not is_poison(x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_is_computed_from_poison_is_recognised_and_other_nans_are_not(dtype):
    x = torch.ones(3, dtype=dtype)
    poison(x)
    for result in (x + 1, 2 * x, x.sum(), x.double(), torch.stack([torch.zeros_like(x), x])):
        assert holds_poison(result)
    for other in (torch.full((3,), float("nan"), dtype=dtype), torch.zeros(3, dtype=dtype) / 0):
        assert other.isnan().all() and not holds_poison(other)


def test_reading_in_flight_is_named():
    x = torch.ones(3)
    poison(x)
    with pytest.raises(CheckFailed) as failed:
        expect([x + 1], [torch.ones(3)], 0, {"whatever": lambda got: True})
    assert "still in flight" in failed.value.mistake and ADVICE in failed.value.mistake


def test_a_tensor_that_is_sent_and_received_at_once_is_no_race():
    whole = torch.arange(4.0)
    flight = Flight("all_gather", [whole], [whole[:2]])
    flight.land([torch.ones(4)])
    assert whole.tolist() == [1] * 4


# ---- as answers make them. Each returns its result on two ranks


def reads_early(x, rank, world_size):
    other = torch.empty_like(x)
    sending = dist.isend(x, 1 - rank)
    receiving = dist.irecv(other, 1 - rank)
    total = x + other
    receiving.wait()
    sending.wait()
    return total


def reads_early_what_was_there_already(x, rank, world_size):
    """Another wait lets time pass, so on most networks the second message is there too."""
    first, second = torch.empty_like(x), torch.empty_like(x)
    works = [dist.isend(x, 1 - rank), dist.isend(2 * x, 1 - rank)]
    works += [dist.irecv(first, 1 - rank), dist.irecv(second, 1 - rank)]
    works[2].wait()
    total = first + second
    for work in (works[0], works[1], works[3]):
        work.wait()
    return total


def sums_early(x, rank, world_size):
    total = x.clone()
    work = dist.all_reduce(total, async_op=True)
    result = total + 0
    work.wait()
    return result


def overwrites_what_it_sends(x, rank, world_size):
    mine, other = x.clone(), torch.empty_like(x)
    sending = dist.isend(mine, 1 - rank)
    dist.recv(other, 1 - rank)
    mine += other
    sending.wait()
    return mine


def adds_to_what_it_receives(x, rank, world_size):
    other = torch.zeros_like(x)
    works = [dist.isend(x, 1 - rank), dist.irecv(other, 1 - rank)]
    other.fill_(1)
    for work in works:
        work.wait()
    return other


def divides_early(x, rank, world_size):
    total = x.clone()
    work = dist.all_reduce(total, async_op=True)
    total /= world_size  # poison, divided, is poison
    work.wait()
    return total


def writes_beside(x, rank, world_size):
    """Into another part of the same memory, which is no race."""
    both = torch.stack([x, x])
    work = dist.all_reduce(both[0], async_op=True)
    both[1] *= 2
    work.wait()
    return both


def is_right(x, rank, world_size):
    """All of it in order, views and several kinds of handles included."""
    other, gathered = torch.empty(2, *x.shape, dtype=x.dtype), [torch.empty_like(x) for _ in range(2)]
    works = [dist.isend(x, 1 - rank), dist.irecv(other[0], 1 - rank)]
    for work in works:
        work.wait()
    mine = dist.all_gather(gathered, x, async_op=True)
    mine.wait()
    total = x.clone()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, other[1], 1 - rank)])
    future = dist.all_reduce(total, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    for work in works:
        work.wait()
    from_root = x.clone()
    work = dist.broadcast(from_root, 0, async_op=True)
    while not work.is_completed():
        pass
    return torch.stack([*other, *gathered, future.wait(), total, from_root])


XS = [torch.full((3,), 1.0), torch.full((3,), 2.0)]


def judged(function) -> list:
    return Runner(function)(2, XS).results


@pytest.mark.parametrize("function", [reads_early, reads_early_what_was_there_already, sums_early])
def test_reading_in_flight_fails(function):
    assert all(holds_poison(result) for result in judged(function))


@pytest.mark.parametrize("function", [overwrites_what_it_sends, adds_to_what_it_receives, divides_early])
def test_writing_in_flight_raises(function):
    with pytest.raises(CheckFailed, match="a tensor was written to while it was in flight"):
        judged(function)


def test_an_answer_without_races_is_undisturbed():
    mine, other = (row.unsqueeze(0) for row in XS)
    for result, pair in zip(judged(is_right), ((mine, other), (other, mine)), strict=True):
        right = torch.cat([pair[1], pair[1], mine, other, 2 * (mine + other), mine + other, mine])
        assert torch.equal(result, right)


def test_writing_beside_what_is_in_flight_is_no_race():
    for x, result in zip(XS, judged(writes_beside), strict=True):
        assert torch.equal(result, torch.stack([sum(XS), 2 * x]))


def gathers_in_place(x, rank, world_size):
    whole = torch.zeros(2, *x.shape)
    whole[rank] = x
    dist.all_gather(list(whole), whole[rank], async_op=True).wait()
    return whole


def test_a_call_may_read_a_part_of_what_it_fills():
    assert all(torch.equal(result, torch.stack(XS)) for result in judged(gathers_in_place))


def test_outside_of_checks_nothing_is_watched():
    assert not in_flight.poisoning

    def program(rank, world_size):
        return overwrites_what_it_sends(XS[rank], rank, world_size)

    try:
        spawn(program, 2)
    except RankError as error:
        raise AssertionError("only what is judged is watched") from error
