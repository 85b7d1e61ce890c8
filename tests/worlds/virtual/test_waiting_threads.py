"""A virtual rank that waits for a lock: for one that nobody will release, or for one that a thread of its own will."""

import math
import queue
import subprocess
import sys
import threading
import time

import pytest
import torch.distributed as dist

from utils import WorldStuck, simulate
from utils.worlds.virtual import scheduler

SECONDS = 1.6  # longer than it takes to find that nobody is left


def nobody_puts(rank, world_size):
    items = queue.Queue()
    if rank == 1:
        items.get()
    dist.barrier()


def a_thread_that_waits_itself(rank, world_size):
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    if rank == 1:
        thread.join()
    dist.barrier()


@pytest.mark.parametrize("program", [nobody_puts, a_thread_that_waits_itself])
def test_a_lock_that_nobody_will_release_is_reported(program):
    with pytest.raises(WorldStuck) as caught:
        simulate(program, 2)
    report = str(caught.value)
    assert report.startswith(
        "rank 1 waits for a lock, a queue, an event or a thread, and nobody is left to end that wait."
    )
    assert "rank 0  waits in barrier" in report
    assert "items.get()" in report or "thread.join()" in report


def a_timer(rank, world_size):
    event = threading.Event()
    threading.Timer(SECONDS, event.set).start()
    return event.wait()


def a_thread_that_waits_for_a_process(rank, world_size):
    items = queue.Queue()
    sleeps = [sys.executable, "-S", "-c", f"import time; time.sleep({SECONDS})"]
    threading.Thread(target=lambda: items.put(subprocess.run(sleeps, check=True).returncode == 0)).start()
    return items.get()


@pytest.mark.parametrize("program", [a_timer, a_thread_that_waits_for_a_process])
def test_a_lock_that_a_thread_will_release_is_waited_for(program):
    assert simulate(program, 1).results == [True]


def take_a_turn(ranks):
    ranks.turns += 1


def compute(ranks):
    began = time.process_time()
    while time.process_time() < began + 0.01:
        pass


def rest(ranks):
    """Nothing."""


@pytest.mark.parametrize(("what", "is_held_up"), [(take_a_turn, False), (compute, False), (rest, True)])
def test_ranks_that_look_locked_but_had_a_turn_or_computed_go_on(what, is_held_up, monkeypatch):
    """Threads are looked at one after the other, so all may have been seen in a lock although one always ran."""
    ranks = scheduler.Scheduler(lambda: math.inf, list)
    ranks.running = object()
    looks = []

    def look():
        looks.append(1)
        thread = threading.Thread(target=what, args=(ranks,))
        thread.start()
        thread.join()
        if len(looks) == 3:
            ranks.done.set()
        return True

    monkeypatch.setattr(scheduler, "all_wait_for_locks", look)
    monkeypatch.setattr(scheduler, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(scheduler, "NOTHING", 0.008)
    ranks.wait_for_the_end()
    assert (ranks.held_up is ranks.running) == is_held_up
