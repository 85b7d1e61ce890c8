"""Which ranks compute, by two looks at their processes: one that asks for a key every few milliseconds doesn't."""

import pytest

from utils.worlds.real.processor_time import Look, computes

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
