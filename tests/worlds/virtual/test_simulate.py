"""`simulate` as its users call it: the Run, calls that are refused, and the reports about wrong programs."""

import os
import signal

import pytest
import torch
import torch.distributed as dist

from tests.kernel import Notebook
from utils import RankCrashed, RankError, RankFailed, RankTimeout, Run, WorldStuck, get_device, region, simulate, spawn
from utils.cluster import Cluster, Gpu, Link
from utils.worlds.real.zygote.client import zygote


def exchange(rank, world_size):
    print("before")
    x = torch.arange(4) + rank
    dist.all_reduce(x)
    print("after")
    if rank == 0:
        dist.send(x, dst=world_size - 1)
    if rank == world_size - 1:
        dist.recv(x, src=0)
    return x


def one_number(rank, world_size):
    x = torch.arange(6.0)[rank::3][:1]  # contiguous, with a stride of 3
    if rank == 1:
        dist.send(x.clone(), dst=0)
    else:
        dist.recv(x := torch.zeros(1, 1), src=1)
    return x


def test_a_single_number_may_have_any_stride():
    assert [run.results for run in (simulate(one_number, 2, device="cpu"), spawn(one_number, 2))] == [[1, 1]] * 2


def test_a_run_has_all_that_a_run_of_spawn_has(capsys):
    virtual = simulate(exchange, 3, device="cpu")
    printed = capsys.readouterr().out
    real = spawn(exchange, 3)
    assert printed == capsys.readouterr().out and printed.startswith("[rank 0] before\n[rank 1] before\n")
    assert isinstance(virtual, Run)
    assert all(torch.equal(a, b) for a, b in zip(virtual.results, real.results, strict=True))
    assert virtual.output == real.output == ["before\nafter\n"] * 3
    assert [(e.rank, e.index, e.op, e.peer, e.bytes, e.where) for e in virtual.events] == [
        (e.rank, e.index, e.op, e.peer, e.bytes, e.where) for e in real.events
    ]
    assert repr(virtual) == "Run(3 ranks, virtual, dgx-h100, achieved rates)"
    assert repr(virtual.traffic()) == repr(real.traffic())
    assert virtual.elapsed == max(event.end for event in virtual.events)
    virtual.timeline()
    assert "all_reduce" in repr(virtual.costs())
    assert "tree" in repr(virtual.costs())
    with pytest.raises(ValueError, match="this run was real"):
        real.costs()


def test_a_custom_cluster_takes_five_lines():
    mine = Cluster(
        "mine",
        nodes=4,
        gpus_per_node=8,
        gpu=Gpu(flops={"bf16": 989e12, "fp32": 67e12}, memory=80e9, bandwidth=3.35e12, launch=4e-6),
        intra=Link(alpha=2e-6, bandwidth=450e9),
        inter=Link(alpha=5e-6, bandwidth=50e9),
    )

    def place(rank, world_size):
        dist.barrier()
        return os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], get_device().type

    run = simulate(place, 32, cluster=mine)
    assert run.results[9] == ("9", "1", "8", "cpu")
    with pytest.raises(ValueError, match=r"33 ranks don't fit on 'mine': it has room for 32"):
        simulate(place, 33, cluster=mine)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: simulate(exchange, 2, cluster="dgx-h10"), "did you mean 'dgx-h100'"),
        (lambda: simulate(exchange, 2, device="cuda"), 'device is "meta" .sizes only. or "cpu"'),
        (lambda: simulate(exchange, 0), "at least 1, and got 0"),
        (lambda: simulate(exchange, 1 << 20), "simulate starts threads on this machine, at most 16384"),
        (lambda: simulate(3, 2), r"Pass it without calling it: simulate\(work, 4\)"),
        (lambda: simulate(lambda rank: rank, 2), "takes its rank and the world size first"),
    ],
)
def test_calls_that_cannot_work_are_refused(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def everyone_sends_first(rank, world_size):
    x = torch.ones(3)
    dist.send(x, (rank + 1) % world_size)
    dist.recv(x, (rank - 1) % world_size)


def one_skips(rank, world_size):
    if rank != 1:
        dist.all_reduce(torch.ones(3))


def shapes_differ(rank, world_size):
    dist.all_reduce(torch.ones(3 + rank))


def nobody_made_it(rank, world_size):
    if rank == 0:
        dist.new_group([0, 1])
    dist.barrier()


def one_raises(rank, world_size):
    if rank == 1:
        raise ValueError("no")
    dist.barrier()


def nobody_waits(rank, world_size):
    dist.all_reduce(torch.ones(4), async_op=True)


def a_view_with_gaps(rank, world_size):
    dist.all_reduce(torch.zeros(8)[::2])


def a_short_send(rank, world_size):
    if rank == 0:
        dist.send(torch.ones(2), dst=1)
    elif rank == 1:
        dist.recv(torch.zeros(4), src=0)


def dtypes_differ(rank, world_size):
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank else torch.float32))


@pytest.mark.parametrize(
    "program",
    [everyone_sends_first, one_skips, nobody_made_it, one_raises, nobody_waits, a_view_with_gaps, a_short_send],
)
def test_reports_are_those_of_spawn(program):
    with pytest.raises(RankError) as real:
        spawn(program, 3)
    with pytest.raises(RankError) as virtual:
        simulate(program, 3)
    assert str(virtual.value) == str(real.value)
    assert type(virtual.value) is type(real.value)
    assert len(virtual.value.events) == len(real.value.events)


def test_mismatches_that_gloo_lets_pass_stop_a_virtual_world():
    with pytest.raises(WorldStuck, match="rank 0 brought float32 .4., rank 1 brought int32 .4."):
        simulate(dtypes_differ, 3)
    with pytest.raises(WorldStuck, match="rank 0 brought float32 .3., rank 1 brought float32 .4., rank 2 brought"):
        simulate(shapes_differ, 3)


def test_ranks_in_the_same_state_share_a_line():
    with pytest.raises(WorldStuck) as stuck:
        simulate(one_skips, 64)
    lines = str(stuck.value).splitlines()
    assert lines[1].startswith("  ranks 0, 2-63  wait in all_reduce")
    assert lines[2] == "  rank 1  has finished"
    with pytest.raises(WorldStuck) as stuck:
        simulate(everyone_sends_first, 64)
    lines = str(stuck.value).splitlines()
    assert lines[15] == "  ... 49 lines like these ..."
    assert "0 → 1 → 2 → 3 → 4 → ... → 63 → 0" in lines[-1]


def test_asking_for_a_value_that_does_not_exist_is_explained():
    def asks(rank, world_size, how):
        x = torch.randn(3)
        return x.sum().item() if how == "item" else x.tolist() if how == "tolist" else bool(x[0] > 0)

    for how in ("item", "tolist", "if"):
        with pytest.raises(RankFailed, match=r"on device='meta' tensors have sizes only.*device='cpu'"):
            simulate(asks, 2, how)
        assert simulate(asks, 2, how, device="cpu").results[0] is not None


def test_regions_are_in_virtual_time_and_default_to_what_the_gpu_computed():
    def named(rank, world_size):
        with region("forward"):
            torch.empty(1000, 1000) @ torch.empty(1000, 1000)
        dist.barrier()

    def unnamed(rank, world_size):
        torch.empty(1000, 1000) @ torch.empty(1000, 1000)
        dist.barrier()

    gpu = Gpu(flops={"fp32": 1e12}, memory=1e9, bandwidth=float("inf"), launch=0.0)
    cluster = Cluster("exact", nodes=1, gpus_per_node=2, gpu=gpu, intra=Link(1e-3, 1e9), inter=Link(1e-3, 1e9))
    forward = simulate(named, 2, cluster=cluster).regions
    assert [(r.rank, r.name, r.start, r.end) for r in forward] == [(0, "forward", 0, 2e-3), (1, "forward", 0, 2e-3)]
    run = simulate(unnamed, 2, cluster=cluster)
    assert [(r.name, r.start, r.end) for r in run.regions] == [("compute", 0, 2e-3)] * 2
    assert run.elapsed == 2e-3 + 2 * 1e-3  # a barrier is a tree of two steps


def test_the_kernel_is_left_as_it_was(monkeypatch):
    monkeypatch.setenv("RANK_OF_MINE", "x")
    environment = dict(os.environ)
    state = torch.get_rng_state()

    def busy(rank, world_size):
        torch.manual_seed(rank)
        os.environ["RANK_OF_MINE"] = "changed"
        torch.set_default_dtype(torch.float64)
        return torch.rand(1).dtype

    assert simulate(busy, 2, device="cpu").results == [torch.float64] * 2
    assert dict(os.environ) == environment
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    assert not dist.is_initialized()


def test_each_rank_has_its_own_copy_of_what_the_program_captures():
    weights, seen = torch.zeros(2), []

    def program(rank, world_size):
        weights.add_(rank)
        seen.append(rank)
        dist.barrier()
        return weights, seen

    for rank, (own, mine) in enumerate(simulate(program, 3, device="cpu").results):
        assert torch.equal(own, torch.full((2,), float(rank)))
        assert mine == [rank]
    assert seen == []


def test_a_process_that_dies_or_never_ends_is_reported():
    def dies(rank, world_size):
        os._exit(3)

    def spins(rank, world_size):
        while rank == 1:
            pass
        dist.barrier()

    with pytest.raises(RankCrashed, match="the process of the virtual cluster exited with code 3"):
        simulate(dies, 2)
    with pytest.raises(RankTimeout) as late:
        simulate(spins, 2, timeout=0.5)
    report = str(late.value)
    assert "rank 0  waits in barrier" in report
    assert "rank 1  is running" in report
    assert "while rank == 1:" in report


@pytest.mark.thorough
def test_a_killed_zygote_is_started_again():
    zygote.start()
    os.kill(zygote.process.pid, signal.SIGKILL)
    zygote.process.wait()
    assert simulate(exchange, 2).world_size == 2


def test_in_a_notebook_a_long_run_shows_its_progress_and_an_interrupt_where_the_ranks_are():
    notebook = Notebook()
    try:
        notebook.run("from utils import simulate\nimport time, torch, torch.distributed as dist")
        cell = notebook.send(
            "def work(rank, world_size):\n"
            "    dist.barrier()\n"
            "    while True:\n"
            "        time.sleep(0.005)  # so that the record stays short, also on a busy machine\n"
            "        dist.all_reduce(torch.empty(1000))\n"
            "simulate(work, 3)"
        )
        notebook.wait_for_output("[virtual] 3 ranks at ")
        notebook.manager.interrupt_kernel()
        shown = notebook.outputs_of(cell)
        assert "the simulation was ended." in shown["error"]
        assert "dist.all_reduce(torch.empty(1000))" in shown["error"]
        assert notebook.run("simulate(lambda rank, world_size: rank, 2).results")["error"] is None
    finally:
        notebook.close()


def prints_its_loss(rank, world_size):
    x = torch.randn(4, 2)
    loss = x.square().mean()
    if loss > 3:
        print("large")
    print(f"rank {rank}: {loss:.2f}")
    return loss.item(), float(loss), x.sum(0).tolist()


def test_values_may_be_nan_on_request_which_is_said_once(capsys):
    results = simulate(prints_its_loss, 2, item_as_nan=True).results
    assert str(results) == str([(float("nan"), float("nan"), [float("nan")] * 2)] * 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[rank 0] On device='meta' tensors have no values, so ")
    assert lines[0].endswith("if loss > 3: gets False.")
    assert lines[1:] == ["[rank 0] rank 0: nan", "[rank 1] rank 1: nan"]


def test_a_whole_number_without_a_value_is_an_error_all_the_same():
    with pytest.raises(RankFailed, match="item_as_nan=True, or let the program decide by sizes"):
        simulate(lambda rank, world_size: torch.randn(4).argmax().item(), 1, item_as_nan=True)
