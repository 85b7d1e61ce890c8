"""What the recorder makes of calls, also those of torch's own wrappers: their events, their times; and regions."""

import time

import pytest
import torch
import torch.distributed as dist

from utils import SilentMistake, region, simulate, spawn


def test_an_asynchronous_call_ends_when_its_work_ends_not_when_it_is_waited_for():
    def program(rank, world_size):
        work = dist.all_reduce(torch.ones(4), async_op=True)
        time.sleep(0.3)
        before = time.monotonic()
        work.wait()
        return before

    run = spawn(program, 2)
    assert all(event.is_async and event.end - event.start < 0.25 for event in run.events)
    assert all(event.waited - event.start > 0.25 for event in run.events)


def test_a_send_ends_no_later_than_its_receive_waited_for_or_not():
    def program(rank, world_size):
        x = torch.ones(4)
        if rank == 1:
            for _ in range(2):
                dist.recv(x, 0)
            dist.send(x, 0)
        else:
            first, second = dist.isend(x, 1), dist.isend(x, 1)
            dist.recv(torch.empty(4), 1)  # now both have arrived
            first.wait()
            return second.is_completed()

    run = spawn(program, 2)
    assert run.results[0] is False  # all Gloo says about a message that nothing has waited for
    (first, second, _), (one, other, _) = (run.events[:3], run.events[3:])
    assert first.is_async and first.start < first.end <= one.end < first.waited
    assert second.is_async and second.waited is None and second.end <= other.end < first.waited


def test_a_second_wait_for_a_message_raises_where_gloo_would_hang():
    def program(rank, world_size):
        handle = dist.isend(torch.ones(4), 1) if rank == 0 else dist.irecv(torch.empty(4), 0)
        handle.wait()
        with pytest.raises(RuntimeError, match="waited for before"):
            handle.wait()

    spawn(program, 2)


@pytest.mark.parametrize("world", [spawn, simulate])
def test_a_call_with_a_tensor_whose_memory_was_freed_raises_and_does_not_crash(world):
    def program(rank, world_size):
        freed = torch.ones(4)
        freed.untyped_storage().resize_(0)
        for call in (
            lambda: dist.send(freed, 1 - rank),
            lambda: dist.recv(freed, 1 - rank),
            lambda: dist.all_reduce(freed),
            lambda: dist.all_gather_single(freed, torch.ones(2)),
        ):
            with pytest.raises(RuntimeError, match=r"a tensor of shape \(4,\) has no memory"):
                call()

    world(program, 2)


def test_a_table_of_calls_grows():
    def program(rank, world_size):
        x = torch.ones(1)
        for _ in range(4000):
            dist.all_reduce(x, dist.ReduceOp.MAX)
        return len(dist.group.WORLD.recorder.numbers)

    run = spawn(program, 1)
    assert [event.index for event in run.events] == list(range(4000))
    assert all(event.reduce_op == "max" and event.start <= event.end for event in run.events)
    assert run.results == [1]  # the calls' common part is noted once


def test_a_recorded_group_has_the_name_that_torch_gives_it():
    def program(rank, world_size):
        return dist.group.WORLD.name(), dist.new_group([0]).name()

    assert spawn(program, 1).results == [("gloo", "gloo")]


def test_calls_that_differ_are_kept_apart():
    def program(rank, world_size):
        group = dist.new_group([0])
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            for x in (torch.ones(2), torch.ones(3), torch.ones(3, dtype=torch.int32)):
                for where in (dist.group.WORLD, group):
                    for is_async in (False, True):
                        work = dist.all_reduce(x, op, group=where, async_op=is_async)
                        if is_async:
                            work.wait()
        dist.barrier(async_op=True).wait()

    *events, barrier = spawn(program, 1).events
    assert barrier.is_async
    seen = [(e.reduce_op, e.dtype, e.shape, e.bytes, e.group == "world", e.is_async) for e in events]
    tensors = [("float32", (2,), 8), ("float32", (3,), 12), ("int32", (3,), 12)]
    assert seen == [
        (op, *x, is_world, is_async)
        for op in ("sum", "max")
        for x in tensors
        for is_world in (True, False)
        for is_async in (False, True)
    ]


def test_a_call_that_is_never_waited_for_has_an_end_too():
    def program(rank, world_size):
        dist.all_reduce(torch.ones(4), async_op=True)
        dist.barrier()
        time.sleep(0.2)

    with pytest.raises(SilentMistake, match="never waited for it") as caught:
        spawn(program, 2)
    assert len(caught.value.events) == 4 and all(event.end is not None for event in caught.value.events)


def test_regions_nest_and_are_recorded_even_if_they_raise():
    @region("step")
    def step():
        with region("forward"):
            time.sleep(0.01)

    def program(rank, world_size):
        step()
        try:
            with region("fails"):
                raise ValueError
        except ValueError:
            pass

    run = spawn(program, 2)
    assert [(r.rank, r.name) for r in run.regions] == [(r, n) for r in range(2) for n in ("forward", "step", "fails")]
    forward, step_region, _ = run.regions[:3]
    assert 0 < step_region.start <= forward.start < forward.end <= step_region.end <= run.elapsed
    with region("in the notebook itself"):
        pass


def counts(run, rank=0):
    ops = {}
    for event in run.events:
        if event.rank == rank:
            calls, size = ops.get(event.op, (0, 0))
            ops[event.op] = (calls + 1, size + event.bytes)
    return ops


def test_ddp_reduces_each_gradient_once():
    def program(rank, world_size):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 7), init_sync=False)
        dist.barrier()
        model(torch.ones(1, 5)).sum().backward()

    run = spawn(program, 3)
    after = [e for e in run.events if e.rank == 0]
    after = after[[e.op for e in after].index("barrier") + 1 :]
    assert [(e.op, e.bytes) for e in after] == [("all_reduce", (5 * 7 + 7) * 4)]


def test_fsdp2_gathers_each_layer_twice_and_scatters_its_gradient_once():
    layers = 3

    def program(rank, world_size):
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(layers)))
        for layer in model:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh)
        model(torch.ones(1, 8)).sum().backward()

    run = spawn(program, 2)
    shard = 8 * 8 * 4 // 2  # bytes that each rank hands in to an all-gather
    got = counts(run)
    assert got["all_gather"] == (2 * layers, 2 * layers * shard)
    assert got["reduce_scatter"] == (layers, layers * 2 * shard)


def test_a_tensor_parallel_mlp_reduces_once_forward_and_once_backward():
    def program(rank, world_size):
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
        mlp = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))
        parallelize_module(mlp, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        x = torch.ones(5, 6, requires_grad=True)
        dist.barrier()
        mlp(x).sum().backward()

    run = spawn(program, 2)
    after = [e for e in run.events if e.rank == 1]
    after = after[[e.op for e in after].index("barrier") + 1 :]
    assert [(e.op, e.bytes) for e in after] == [("all_reduce", 5 * 6 * 4)] * 2


def test_a_pipeline_sends_each_microbatch_once_each_way():
    def program(rank, world_size):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        stage = PipelineStage(torch.nn.Linear(4, 4), rank, world_size, torch.device("cpu"))
        schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
        x = torch.ones(8, 4)
        schedule.step(x) if rank == 0 else schedule.step(target=x)

    run = spawn(program, 2)
    for source, other in ((0, 1), (1, 0)):
        tensors = [e for e in run.events if (e.rank, e.op, e.peer) == (source, "send", other) and e.shape == (2, 4)]
        assert len(tensors) == 4 and all(e.bytes == 2 * 4 * 4 for e in tensors)


def test_batched_messages_are_asynchronous_sends_and_receives():
    def program(rank, world_size):
        x, y = torch.full((3,), float(rank)), torch.empty(3)
        other = 1 - rank
        batch = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        return y[0].item()

    run = spawn(program, 2)
    assert run.results == [1.0, 0.0]
    assert [(e.op, e.is_async, e.bytes) for e in run.events if e.rank == 0] == [("send", True, 12), ("recv", True, 12)]
