"""Data parallelism with a hook: gradients as one process has them, buckets in order, hooks during backward."""

import torch
from torch import nn

from utils import simulate, spawn
from utils.kit.data_parallel import DataParallel, Finish, all_reduce_mean
from utils.kit.mlp import MLP, loss_of, make_batch, make_weights, serial_gradients
from utils.kit.regression import imitation, make_lessons, make_student

DOUBLE = torch.float64
NBYTES = 4 * 4 * 8  # of a weight


def shard(rank: int, step: int = 0) -> torch.Tensor:
    return make_batch(2, 4, seed=10 * step + rank, dtype=DOUBLE)


def two_steps(rank: int, world_size: int, cap: float) -> list[list[torch.Tensor]]:
    replica = DataParallel(MLP(make_weights(5, 4, dtype=DOUBLE)), cap=cap)
    found = []
    for step in range(2):
        replica.zero_grad()
        replica.backward(loss_of(replica(shard(rank, step))))
        found.append([weight.grad for weight in replica.parameters()])
    return found


def test_gradients_are_those_of_one_process_in_every_step() -> None:
    for cap in (0, 2 * NBYTES, 1e9):
        for results in spawn(two_steps, 3, cap).results:
            for step, gradients in enumerate(results):
                rows = torch.cat([shard(rank, step) for rank in range(3)])
                _, right = serial_gradients(make_weights(5, 4, dtype=DOUBLE), rows)
                assert all(torch.allclose(a, b) for a, b in zip(gradients, right, strict=True))


def test_buckets_are_filled_up_to_the_cap_and_start_during_backward() -> None:
    run = simulate(two_steps, 2, 2 * NBYTES, device="cpu")
    calls = [event for event in run.events if event.rank == 0]
    assert [call.bytes // NBYTES for call in calls] == [2, 2, 1, 2, 2, 1]
    first, second = [each for each in run.regions if each.rank == 0 and each.name == "backward"]
    for backward, mine in ((first, calls[:3]), (second, calls[3:])):
        assert all(call.is_async and backward.start < call.start <= backward.end for call in mine)


def with_a_hook(rank: int, world_size: int) -> tuple[list[str], list[float]]:
    said: list[str] = []

    def hook(bucket) -> Finish:  # type: ignore[no-untyped-def]
        said.append(f"start {bucket.index}")
        assert all(view.data_ptr() >= bucket.flat.data_ptr() for view in bucket.gradients)

        def finish() -> None:
            said.append(f"finish {bucket.index}")
            bucket.flat.fill_(bucket.index + 0.5)

        return finish

    frozen = nn.Linear(4, 4).double().requires_grad_(False)
    replica = DataParallel(nn.Sequential(MLP(make_weights(2, 4, dtype=DOUBLE)), frozen), hook, cap=NBYTES)
    replica.backward(loss_of(replica(shard(rank))))
    assert all(parameter.grad is None for parameter in frozen.parameters())
    return said, [weight.grad[0, 0].item() for weight in replica.module[0].weights]


def test_a_hook_starts_every_bucket_before_any_is_finished_and_decides_what_the_gradients_are() -> None:
    said, gradients = spawn(with_a_hook, 1).results[0]
    assert said == ["start 0", "start 1", "finish 0", "finish 1"]
    assert gradients == [1.5, 0.5]  # the last layer is in bucket 0


def unused(rank: int, world_size: int) -> str:
    replica = DataParallel(nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)}), all_reduce_mean)
    try:
        replica.backward(replica.module["used"](torch.ones(1, 2)).sum())
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_parameter_without_a_gradient_is_named_as_the_cause() -> None:
    assert "doesn't depend on one of its parameters" in spawn(unused, 1).results[0]


def mixed_dtypes(rank: int, world_size: int) -> list[torch.dtype]:
    model = nn.Sequential(nn.Linear(2, 2).double(), nn.Linear(2, 2))
    replica = DataParallel(model)
    replica.backward(model[1](model[0](torch.ones(1, 2, dtype=DOUBLE)).float()).sum())
    return [parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None]


def test_a_bucket_holds_one_dtype() -> None:
    assert spawn(mixed_dtypes, 2).results[0] == [DOUBLE, DOUBLE, torch.float32, torch.float32]


def test_the_student_can_learn_and_each_rank_has_lessons_of_its_own() -> None:
    student, (inputs, targets) = make_student(), make_lessons(0)
    assert sum(parameter.numel() for parameter in student.parameters()) == 2128
    assert not torch.equal(inputs, make_lessons(1)[0])
    optimizer = torch.optim.SGD(student.parameters(), lr=0.5)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = imitation(student(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert 0.3 < losses[0] < 0.5 and losses[-1] < 0.06
