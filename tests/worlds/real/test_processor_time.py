"""Which ranks compute, by looks at their processes: one that asks for a key every few milliseconds doesn't."""

import pytest
import torch.distributed as dist

from utils import RankTimeout, spawn
from utils.worlds.real.processor_time import Look, computes
from utils.worlds.real.world import RealWorld

FIRST = Look(used=3.0, waits=100, runs=False)


@pytest.mark.parametrize(
    "now, does",
    [
        (Look(3.30, 100, True), True),  # it has the processor all the time
        (Look(3.05, 110, False), True),  # it reads files, and works between two reads
        (Look(3.00, 100, True), True),  # it would compute, but the machine has too much to do
        (Look(3.00, 100, False), False),  # it waits in one call
        (Look(3.02, 130, False), False),  # it looks for a key a hundred times a second
        (Look(3.00, 115, True), False),  # so does this one, and is caught at it
    ],
)
def test_what_a_process_did_between_two_looks(now, does):
    assert computes({1: FIRST}, {1: now}) is does


def test_processes_that_a_rank_has_started_count():
    waiting, worker = Look(3.0, 400, False), Look(0.2, 0, True)
    assert computes({1: FIRST}, {1: waiting, 2: worker})
    assert not computes({1: FIRST, 2: worker}, {1: waiting})


def rank_0_waits_for_a_key(rank, world_size):
    if rank == 0:
        dist.distributed_c10d._get_default_store().wait(["ready"])
    dist.barrier()


@pytest.mark.parametrize(
    "looks, words",
    [
        ([[1], [1], []], "What is rank 0 waiting for?"),  # rank 1 has only just begun to wait
        ([[0, 1]], "If the work needs longer"),
        ([[1]] * 5, "If the work needs longer"),  # a thread of rank 1 may be at work
    ],
)
def test_who_computes_although_a_call_holds_it_up_is_looked_at_again(looks, words, monkeypatch):
    seen = iter(looks)

    def look(world):
        while world.states[1].blocked_in() is None:
            world.listen(0.05)
            world.update_states()
        return next(seen)

    monkeypatch.setattr(RealWorld, "look", look)
    with pytest.raises(RankTimeout) as caught:
        spawn(rank_0_waits_for_a_key, 2, timeout=1)
    assert words in str(caught.value)
    assert list(seen) == []
