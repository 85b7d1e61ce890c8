"""Programs that ask for an accelerator, pin memory, wait by the clock, or never end."""

import datetime
import time
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader

from utils import RankTimeout, simulate
from utils.worlds.virtual import scheduler
from utils.worlds.virtual.scheduler import RankThread, Scheduler

both = pytest.mark.parametrize("world", [simulate, partial(simulate, device="cpu")], ids=["meta", "cpu"])


@both
def test_torchs_accelerator_is_the_ranks_gpu(world):
    def program(rank, world_size):
        accelerator = torch.accelerator
        if not (accelerator.is_available() and accelerator.device_count() >= world_size):
            raise SystemExit(0)
        device = accelerator.current_accelerator(check_available=True)
        accelerator.set_device_index(rank)
        before = accelerator.memory_allocated()
        x = torch.ones(1000, device=device).to(f"{device.type}:{rank}", non_blocking=True)
        with accelerator.device_index(rank):
            accelerator.synchronize()
        stream, event = torch.Stream(device="cuda"), torch.Event(device="cuda")
        stream.record_event(event)
        accelerator.current_stream().wait_stream(stream)
        held = accelerator.memory_allocated() - before
        assert accelerator.memory_stats()["allocated_bytes.all.current"] == accelerator.memory_allocated()
        assert accelerator.max_memory_allocated() >= held
        free, total = accelerator.get_memory_info()
        return str(device), accelerator.current_device_index(), held, total - free >= held, x.numel()

    assert world(program, 2).results == [("cuda", rank, 4000, True, 1000) for rank in range(2)]


@both
def test_memory_can_be_pinned(world):
    def program(rank, world_size):
        pinned = torch.empty(3, pin_memory=True).pin_memory()
        batches = DataLoader(torch.ones(4, 2), batch_size=2, pin_memory=True)
        return pinned.numel(), [len(batch) for batch in batches]

    run = world(program, 2)
    assert run.results == [(3, [2, 2])] * 2
    assert run.output == ["", ""]


@both
@pytest.mark.parametrize("clock", ["time", "perf_counter", "monotonic_ns"])
def test_a_loop_that_waits_by_the_clock_ends_and_is_said_to(world, clock):
    def program(rank, world_size, clock):
        unit = 1e9 if clock.endswith("ns") else 1
        read, rounds = getattr(time, clock), 0
        end = read() + 0.2 * unit
        while read() < end:
            rounds += 1
        return rounds > 0, 0.2 <= read() / unit < 0.3

    run = world(program, 2, clock)
    assert run.results == [(True, True)] * 2
    assert run.output[0].count("while it stood still") == 1 and "test_accelerator_and_time.py" in run.output[0]
    assert run.output[1] == ""


def test_to_read_the_clock_takes_no_time():
    def program(rank, world_size):
        return [time.perf_counter() for _ in range(1000)]

    assert set(simulate(program, 1).results[0]) == {0.0}


def test_a_simulation_can_be_given_a_time_limit():
    def program(rank, world_size):
        while datetime.datetime.now().year < 3000:
            pass

    with pytest.raises(RankTimeout, match=r"(?s)not finished after 1 s of real time.*while datetime.*timeout=3600"):
        simulate(program, 2, timeout=1)
    with pytest.raises(ValueError, match="timeout is in seconds"):
        simulate(program, 2, timeout=0)


def test_a_rank_that_runs_for_a_minute_of_real_time_is_said_to(monkeypatch):
    monkeypatch.setattr(scheduler, "LOOK_EVERY", 0.001)
    monkeypatch.setattr(scheduler, "LONG_TURN", 3)
    turns = Scheduler(lambda: float("inf"), lambda: [])
    long, was_said = [], scheduler.threading.Event()

    def note(rank):
        long.append(rank.number)
        was_said.set()

    class Surroundings:
        enter = leave = lambda self: None

    class Rank(RankThread):
        def work(self):
            assert was_said.wait(60)

    turns.on_long_turn = note
    turns.run([Rank(5, turns, Surroundings())])
    assert long == [5]
