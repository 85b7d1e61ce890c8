"""run.breakdown() and run.compare(): where each rank's time went, in parts that add up."""

import time

import pytest
import torch
import torch.distributed as dist

from utils import simulate, spawn
from utils.cluster.hardware import Cluster, Gpu, Link

INFINITE = float("inf")
SQUARE, PEAK, BANDWIDTH, LAUNCH = 512, 1e12, 1e11, 1e-6
MATMUL = 2 * SQUARE**3 / PEAK  # seconds


def cluster(ranks, launch=LAUNCH, memory_bandwidth=BANDWIDTH, alpha=1e-6, bandwidth=1e9):
    link = Link(alpha, bandwidth)
    gpu = Gpu({"fp32": PEAK}, memory=80e9, bandwidth=memory_bandwidth, launch=launch)
    return Cluster("mine", nodes=1, gpus_per_node=ranks, gpu=gpu, intra=link, inter=link)


def ideal(ranks):
    """Only matrix products take time."""
    return cluster(ranks, launch=0.0, memory_bandwidth=INFINITE, alpha=0.0, bandwidth=INFINITE)


def multiply(times):
    a = torch.empty(SQUARE, SQUARE)
    for _ in range(times):
        a @ a


def of_everything(rank, world_size):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = torch.empty(100_000)
    multiply(1 + rank)
    work = dist.all_reduce(x, async_op=True)
    multiply(2)
    work.wait()
    dist.all_reduce(x, group=pairs[rank // 2])
    if rank % 2:
        dist.send(x, rank - 1)
    else:
        dist.recv(x, rank + 1)
        multiply(3)
    x.relu()
    time.sleep(1e-3 * rank)


@pytest.mark.parametrize("world", [spawn, lambda program, size: simulate(program, size, cluster=cluster(size))])
def test_the_parts_of_every_rank_add_up_to_the_elapsed_time(world):
    breakdown = world(of_everything, 4).breakdown()
    for parts in breakdown.parts:
        assert sum(parts.values()) == pytest.approx(breakdown.elapsed, rel=1e-7)
        assert all(seconds > 0 for seconds in parts.values())
    assert sum(breakdown.mean.values()) == pytest.approx(breakdown.elapsed, rel=1e-7)


def test_computing_is_split_by_what_limits_it():
    def program(rank, world_size):
        multiply(3)
        torch.empty(1_000_000).relu()

    (parts,) = simulate(program, 1, cluster=cluster(1)).breakdown().parts
    moved = 2 * 4_000_000  # bytes
    expected = {"matmul": 3 * MATMUL, "memory-bound": moved / BANDWIDTH, "launch": 4 * LAUNCH}
    assert parts == pytest.approx(expected)


def test_who_comes_first_waits_for_the_slower_ranks_and_then_all_communicate():
    def program(rank, world_size):
        multiply(1 + 4 * (rank == 2))
        dist.all_reduce(torch.empty(1_000))

    run = simulate(program, 3, cluster=cluster(3))
    (charge,) = run.algorithms
    for rank, parts in enumerate(run.breakdown().parts):
        assert parts["all ranks"] == pytest.approx(charge.cost.seconds)
        late = 0 if rank == 2 else 4 * (MATMUL + LAUNCH)
        assert parts.get("waits for slower ranks", 0) == pytest.approx(late)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (3, 4), (4, 8)])
def test_the_bubble_of_a_pipeline_is_waiting_for_messages_and_being_idle(stages, microbatches):
    def program(rank, world_size):
        x = torch.empty(10)
        for _ in range(microbatches):
            if rank > 0:
                dist.recv(x, rank - 1)
            multiply(1)
            if rank < world_size - 1:
                dist.isend(x.clone(), rank + 1)

    breakdown = simulate(program, stages, cluster=ideal(stages)).breakdown()
    bubble = (stages - 1) / (microbatches + stages - 1)
    waits = breakdown.mean.get("waits for messages", 0) + breakdown.mean.get("idle at the end", 0)
    assert waits / breakdown.elapsed == pytest.approx(bubble)
    assert breakdown.hfu == pytest.approx(1 - bubble)


def test_only_the_exposed_part_of_an_overlapped_collective_counts():
    def program(rank, world_size):
        work = dist.all_reduce(torch.empty(1_000_000), async_op=True)
        multiply(5)
        work.wait()

    run = simulate(program, 2, cluster=cluster(2))
    (charge,) = run.algorithms
    for parts in run.breakdown().parts:
        assert parts["all ranks"] == pytest.approx(charge.cost.seconds - 5 * (MATMUL + LAUNCH))


def test_groups_of_one_form_are_one_part():
    def program(rank, world_size):
        mesh = dist.init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "tensor"))
        dist.all_reduce(torch.empty(1_000), group=mesh["tensor"].get_group())
        dist.all_reduce(torch.empty(1_000), group=mesh["data"].get_group())

    breakdown = simulate(program, 8, cluster="dgx-h100").breakdown()
    assert [name for name in breakdown.names if name.startswith("groups")] == ["groups like 0, 4", "groups like 0-3"]
    assert all("groups like 0-3" in parts for parts in breakdown.parts)


def test_mfu_counts_what_the_model_needs_and_hfu_all_that_was_done():
    def program(rank, world_size):
        multiply(4)

    breakdown = simulate(program, 2, cluster=ideal(2)).breakdown(tokens=100, model_flops=2 * 3 * 2 * SQUARE**3)
    assert breakdown.hfu == pytest.approx(1)
    assert breakdown.mfu == pytest.approx(3 / 4)
    assert breakdown.tokens_per_second == pytest.approx(100 / (4 * MATMUL))
    assert "tokens/s, MFU 75.0 %, HFU 100.0 %" in repr(breakdown)


def test_model_flops_need_a_run_that_counts_flops():
    with pytest.raises(ValueError, match="simulate"):
        spawn(lambda rank, world_size: None, 1).breakdown(model_flops=1)


def test_two_runs_are_compared_part_by_part():
    def program(rank, world_size, times):
        multiply(times)
        if times > 2:
            dist.barrier()

    three, two = (simulate(program, 2, times, cluster=ideal(2)) for times in (3, 2))
    rows = {name: (this, other, difference) for name, this, other, difference in three.compare(two).rows()}
    assert rows["matmul"] == rows["elapsed"] == ("805.3 µs", "536.9 µs", "+268.4 µs")


def test_a_thousand_ranks_fit_into_one_table_and_one_picture():
    def program(rank, world_size):
        multiply(rank % 100)

    breakdown = simulate(program, 256, cluster=ideal(256)).breakdown()
    assert len(repr(breakdown).splitlines()) <= 20
    assert len(breakdown.picture().png()) < 200_000
