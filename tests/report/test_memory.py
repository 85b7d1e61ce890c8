"""track_memory and run.memory(): live bytes, their kinds and their peak, against numbers worked out by hand."""

import re
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from utils import simulate, spawn, track_memory
from utils.events.memory_samples import MemoryNote, peak_of, totals
from utils.recording.recorder import Recorder
from utils.report.memory import Memory

FLOAT = 4


@pytest.mark.parametrize("batch, wide, hidden", [(3, 4, 5), (16, 8, 8)])
def test_the_live_bytes_of_a_two_layer_mlp_are_those_worked_out_by_hand(batch, wide, hidden):
    def program(rank, world_size):
        model = torch.nn.Sequential(
            torch.nn.Linear(wide, hidden, bias=False), torch.nn.ReLU(), torch.nn.Linear(hidden, wide, bias=False)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        live = []
        with track_memory(model, optimizer) as tracker:
            x = torch.ones(batch, wide)
            live.append(tracker.live)
            loss = model(x).sum()
            live.append(tracker.live)
            loss.backward()
            live.append(tracker.live)
            optimizer.step()
            optimizer.zero_grad()
            live.append(tracker.live)
        return live

    run = spawn(program, 2)
    parameters, x, a = 2 * wide * hidden * FLOAT, batch * wide * FLOAT, batch * hidden * FLOAT
    loss = seed = FLOAT  # the loss, and the gradient of itself that backward begins with
    after = [parameters + x, parameters + x + a + loss, 2 * parameters + x + loss, parameters + x + loss]
    assert run.results == [after, after]
    # The most: in the backward of ReLU, when the gradients of its output and of its input are there, and one weight's.
    kinds = {"parameters": parameters, "gradients": parameters // 2, "activations": x + a, "other": 2 * a + loss + seed}
    memory = run.memory()
    assert memory.kinds == [kinds, kinds]
    assert memory.peak == [sum(kinds.values())] * 2
    assert memory.at[0][-1][1] == after[-1]
    assert [time for time, _ in memory.at[1]] == sorted(time for time, _ in memory.at[1])
    assert 0 < memory.at[1][0][0] < memory.at[1][-1][0] < run.elapsed


def test_adam_holds_twice_the_parameters_and_a_number_for_each():
    def program(rank, world_size):
        layer = torch.nn.Linear(8, 8)
        optimizer = torch.optim.Adam(layer.parameters())
        with track_memory(layer, optimizer):
            layer(torch.ones(1, 8)).sum().backward()
            optimizer.step()

    samples = spawn(program, 1).memory().samples[0]
    last = {kind: nbytes for _, kind, nbytes in samples}
    size = (8 * 8 + 8) * FLOAT
    assert last == {
        "parameters": size,
        "gradients": size,
        "optimizer state": 2 * size + 2 * FLOAT,
        "activations": 0,
        "other": 0,
    }


def test_a_storage_counts_once_until_its_last_view_is_gone():
    with track_memory(torch.zeros(10), torch.zeros(0)) as tracker:
        before = torch.zeros(5)
        before += 1
        whole = torch.zeros(100)
        half = whole[:50].view(5, 10).t()
        assert tracker.live == 460
        del whole
        assert tracker.live == 460
        half.untyped_storage().resize_(0)
        assert tracker.live == 60
        half.untyped_storage().resize_(80)
        assert tracker.live == 140
        del half
        assert tracker.live == 60


def gradient_by_torch_func(rank, world_size):
    w, x = torch.ones(6, 3), torch.ones(4, 6)
    with track_memory(w, x) as tracker, torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), torch.sin):
        y = (x @ w.requires_grad_()).square().sum()  # these hooks stay
    with track_memory(w, x) as tracker:
        before = tracker.live
        gradient, value = torch.func.grad_and_value(lambda w: (x @ w).square().sum())(w.detach())
        left = tracker.live - before
        of_y = torch.autograd.grad((x @ w).sin().sum(), w)[0]  # saved as before
    return value.item(), y.item(), gradient.sum().item(), left, of_y.shape


@pytest.mark.parametrize("world", [spawn, partial(simulate, device="cpu")], ids=["spawn", "simulate"])
def test_torch_func_works_where_memory_is_followed(world):
    sizes = world(gradient_by_torch_func, 2).results[1]
    assert sizes == (432.0, 432.0, 864.0, (6 * 3 + 1) * FLOAT, (6, 3))


def test_nothing_is_followed_after_the_block():
    layer, resize = torch.nn.Linear(4, 4), torch.UntypedStorage.resize_
    with track_memory(layer) as tracker:
        inside = torch.ones(4)
    layer(inside).sum().backward()
    del inside
    torch.ones(100)
    assert tracker.live == 20 * FLOAT + 4 * FLOAT
    assert torch.UntypedStorage.resize_ is resize


def test_fsdp_holds_a_shard_of_everything_and_one_whole_layer():
    def program(rank, world_size):
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
        model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False) for _ in range(8)))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        x = torch.ones(1, 16)
        with track_memory(model) as tracker:
            model(x).sum().backward()
            deadline = time.monotonic() + 10
            while tracker.live > parameters and time.monotonic() < deadline:
                time.sleep(0.001)  # the last buffer is free once one of Gloo's threads has let go of it
            return tracker.live

    parameters = 8 * 16 * 16 * FLOAT
    run = spawn(program, 2)
    assert run.results == [parameters] * 2  # a half of the parameters, and as much of gradients
    memory = run.memory()
    assert parameters < memory.peak[0] < 2 * parameters
    of_kind = [nbytes for _, kind, nbytes in memory.samples[0] if kind == "parameters"]
    assert max(of_kind) == parameters // 2 + 16 * 16 * FLOAT  # one layer at a time is whole


def test_the_table_is_the_same_in_every_run_and_shows_which_ranks_did_not_track():
    def program(rank, world_size):
        layer = torch.nn.Linear(1000, 2)
        if rank:
            for _ in range(2):  # the second time counts from the start again
                with track_memory(layer):
                    layer(torch.ones(3, 1000)).sum().backward()
                    layer.zero_grad()

    memories = [spawn(program, 2).memory() for _ in range(2)]
    assert repr(memories[0]) == repr(memories[1])
    header, none, tracked = repr(memories[0]).splitlines()
    assert none.split() == ["0", "not", "tracked"]
    assert tracked.split()[:3] == ["1", f"{memories[0].peak[1]:,}", f"{2002 * FLOAT:,}"]
    assert header.split()[:4] == ["rank", "peak", "bytes", "parameters"]
    assert memories[0].at[0] == [] and memories[0].device == [None, "cpu"]
    assert "<td>not tracked</td>" in memories[0]._repr_html_() and "color: inherit" in memories[0]._repr_html_()


def test_the_peak_is_the_first_moment_with_the_most_bytes_alive():
    samples = [(0.0, "a", 5), (1.0, "b", 4), (2.0, "b", 1), (3.0, "a", 8), (4.0, "b", 0), (5.0, "b", 1)]
    assert totals(samples) == [(0.0, 5), (1.0, 9), (2.0, 6), (3.0, 9), (4.0, 8), (5.0, 9)]
    assert peak_of(samples) == (9, {"a": 5, "b": 4})
    assert peak_of(samples[3:]) == (9, {"a": 8, "b": 1})
    assert peak_of([(0.0, "a", 0)]) == peak_of([]) == (0, {})


def test_in_a_large_world_ranks_with_the_same_peak_share_a_row():
    def notes(rank):
        at = rank / 1000  # at different times
        samples = [(at, "parameters", 4000), (at, "communication", 1000 * (rank % 64 == 63))]
        return [MemoryNote("virtual", samples, sum(nbytes for _, _, nbytes in samples))] if rank < 1000 else []

    header, some, others, none = repr(Memory([notes(rank) for rank in range(1024)])).splitlines()
    assert header.split() == ["rank", "peak", "bytes", "parameters", "communication"]
    assert re.split("   +", some.strip()) == ["0-62, 64-126, 128-190 and 796 more", "4,000", "4,000"]
    assert re.split("   +", others.strip()) == ["63, 127, ... 959 (15 alike)", "5,000", "4,000", "1,000"]
    assert none.split() == ["1000-1023", "not", "tracked"]


def test_without_track_memory_the_error_says_how_to_use_it():
    with pytest.raises(ValueError, match=r"with track_memory\(model, optimizer\)"):
        spawn(lambda rank, world_size: None, 1).memory()
    with pytest.raises(TypeError, match="modules, optimizers and tensors.*'model'"), track_memory("model"):
        pass


def test_what_a_gpus_allocator_reports_replaces_what_was_tracked_on_the_cpu(monkeypatch):
    notes = []
    recorder = Recorder(notes.append, zero=0.0)
    given_out = iter([100, 40])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(given_out))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 250)
    monkeypatch.setattr(recorder, "seconds", float)
    recorder.span("region", "forward", 1, 2)  # marks that are not in seconds yet
    recorder.finish()
    allocated = next(note for note in notes if isinstance(note, MemoryNote))
    memory = Memory([[MemoryNote("cpu", [(0.0, "other", 7)], 7), allocated]])
    assert (memory.peak, memory.device) == ([250], ["cuda"])
    assert [nbytes for _, nbytes in memory.at[0]] == [100, 40]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_memory_is_recorded_without_asking():
    def program(rank, world_size):
        from utils import region

        with region("make"):
            x = torch.empty(1 << 20, device="cuda")
        del x

    memory = spawn(program, 1, backend="nccl").memory()
    assert memory.peak == [4 << 20]
    assert [nbytes for _, nbytes in memory.at[0]] == [4 << 20, 0]
