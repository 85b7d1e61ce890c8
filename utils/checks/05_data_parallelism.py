"""The visible checks of lesson 05. Each is quick: one to three runs of two to four ranks. Form: see registry.py.

The oracle is one process: gradients of the whole batch, a batch norm over all rows. Everything is float64, so that
"equal" can mean nine digits, whatever the order of the additions.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from ..cluster.collective_costs import Layout, cost
from ..cluster.hardware import Cluster, Gpu, Link
from ..kit.mlp import MLP, loss_of, make_batch, make_weights
from ..kit.tied_mlp import AwkwardMLP
from ..text.units import quantity
from .answer import Answer, CheckFailed
from .compare import expect, expect_unchanged, plural
from .equality import alike
from .inputs import Draws
from .marking import check
from .runner import Runner
from .traffic import expect_all_waited, expect_calls, expect_time

DOUBLE = torch.float64
RTOL = 1e-9  # additions in a different order
BYTES = 8  # of a float64

Models = list[nn.Module]  # one per rank
Gradients = list[Tensor | None]  # one per parameter, None where it has none
Mistakes = Mapping[str, Sequence[Gradients]]  # {the mistake in words: the gradients it leads to on each rank}


# ---- models, and their gradients in one process


def mlps(world_size: int, layers: int = 2, dim: int = 2, seed: int = 0) -> Models:
    """The same MLP for each rank."""
    return [MLP(make_weights(layers, dim, seed, DOUBLE)) for _ in range(world_size)]


def mixed_models(world_size: int, seed: int = 0) -> Models:
    """The same model for each rank, with four parameters of three sizes: 6, 3, 6 and 2 numbers."""
    model = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=DOUBLE))
    return [deepcopy(model) for _ in range(world_size)]


def rows_of(draws: Draws, sizes: list[int], dim: int = 2, seed: int = 0) -> list[Tensor]:
    """A shard for each rank, of sizes[rank] rows."""
    return [shard.clone() for shard in make_batch(sum(sizes), dim, draws.salted(seed), DOUBLE).split(sizes)]


def gradients(model: nn.Module, rows: Tensor) -> Gradients:
    """Of the mean loss over these rows, in one process; None for a parameter without one."""
    model = deepcopy(model)
    loss_of(model(rows)).backward()
    return [parameter.grad for parameter in model.parameters()]


def scaled(gradients: Gradients, factor: float) -> Gradients:
    return [gradient if gradient is None else gradient * factor for gradient in gradients]


def summed(several: Sequence[Gradients]) -> Gradients:
    """Sums over the ranks of gradients[rank][parameter]; None where no rank has one."""
    columns = [[gradient for gradient in column if gradient is not None] for column in zip(*several, strict=True)]
    return [torch.stack(column).sum(0) if column else None for column in columns]


def bytes_of(model: nn.Module) -> list[int]:
    return [parameter.numel() * parameter.element_size() for parameter in model.parameters()]


def usual_mistakes(local: Sequence[Gradients]) -> Mistakes:
    """The usual wrong answers of each rank, given each rank's local gradients."""
    world_size, total = len(local), summed(local)
    return {
        "your own shard's gradient: nothing was averaged, or not the tensors in `grad`": local,
        "the sum over the ranks: divide by world_size": [total] * world_size,
        "the mean divided by world_size once more: divide once": [scaled(total, world_size**-2)] * world_size,
        "your own shard's gradient divided by world_size: it was never added to the others'": [
            scaled(mine, 1 / world_size) for mine in local
        ],
        "all zeros: you all-reduced tensors other than those `backward` wrote. `zero_grad` sets `grad` to None, and "
        "then `backward` makes new tensors": [scaled(total, 0)] * world_size,
        "rank 0's gradient: average those of all ranks": [local[0]] * world_size,
    }


def expect_gradients(answer: Answer, right: Gradients, mistakes: Mistakes, models: Models) -> None:
    """Judge what each rank returned, then that the weights have not changed. mistakes[words][rank][parameter]."""
    for rank, got in [*enumerate(answer.results)][::-1]:  # rank 0's own is also "rank 0's", so it comes last
        if not isinstance(got, list | tuple) or len(got) != len(right):
            kind = plural(len(got), "entry") if isinstance(got, list | tuple) else f"a {type(got).__name__}"
            raise CheckFailed(f"rank {rank} returned {kind}", f"a list of {plural(len(right), 'gradient')}")
        for number, (mine, wanted) in enumerate(zip(got, right, strict=True)):
            usual = {words: wrong[rank][number] for words, wrong in mistakes.items()}
            if alike(mine, wanted, rtol=1e-5):
                usual["right to a few digits only: a factor was float32, as an int divided by an int64 tensor is"] = (
                    mine
                )
            expect(mine, wanted, f"rank {rank}: the gradient of parameter {number} is", usual, RTOL)
    expect_same_weights(answer, models)


def expect_same_weights(answer: Answer, models: Models) -> None:
    for rank, after in enumerate(answer.inputs_after):
        pairs = zip(after[0].parameters(), models[rank].parameters(), strict=True)
        for number, (has_become, was) in enumerate(pairs):
            if not torch.equal(has_become, was):
                raise CheckFailed(
                    f"rank {rank}: the weights of parameter {number} have changed",
                    mistake="Average the gradients, not the parameters. (A post-accumulate hook gets the "
                    "parameter; its gradient is parameter.grad.)",
                )


# ---- part 1


@check("shard-the-batch")
def shard_the_batch_values(run: Runner) -> None:
    for world_size, rows in ((4, 10), (4, 5), (2, 4)):
        judge_shards(run, world_size, torch.arange(rows * 2.0).reshape(rows, 2))


def judge_shards(run: Runner, world_size: int, batch: Tensor) -> None:
    answer = run(world_size, [batch] * world_size)
    right, chunks = batch.tensor_split(world_size), batch.chunk(world_size)
    equal = len(batch) // world_size
    for rank, got in enumerate(answer.results):
        mistakes = {
            "the whole batch: each rank gets its own rows": batch,
            f"every {world_size}th row: a shard is a block of consecutive rows": batch[rank::world_size],
            "without the leftover rows: the first B % P ranks get one more": batch[rank * equal : (rank + 1) * equal],
            "columns: cut the batch along its rows": batch.tensor_split(world_size, dim=1)[rank],
        }
        if rank < len(chunks):
            mistakes["the result of `chunk`: its last chunk may be much smaller than the others"] = chunks[rank]
        expect(got, right[rank], rank, mistakes)
    expect_unchanged(answer, [batch] * world_size)


@check("average-gradients", if_stuck="every rank must make the same all-reduces, in the same order.")
def average_gradients_values(run: Runner) -> None:
    judge_average(run, mlps(3), rows_of(run.draws, [2, 2, 2]))


def judge_average(
    run: Callable[..., Answer], models: Models, shards: list[Tensor], *more: list[object], **same: Any
) -> Answer:
    """With equal shards the right gradient is that of the whole batch."""
    local = [gradients(model, rows) for model, rows in zip(models, shards, strict=True)]
    answer = run(len(models), models, shards, *more, **same)
    expect_gradients(answer, gradients(models[0], torch.cat(shards)), usual_mistakes(local), models)
    return answer


@check("average-gradients", judges="traffic")
def average_gradients_traffic(run: Runner) -> str:
    models = mixed_models(2)
    return expect_all_reduces(run(2, models, rows_of(run.draws, [2, 2])), bytes_of(models[0]))


def expect_all_reduces(answer: Answer, nbytes: list[int]) -> str:
    """Judge that every rank made these all-reduces and no other calls, in any order, and waited for each."""
    expect_only(answer, "all_reduce")
    for rank in range(len(answer.results)):
        sent = [event.bytes for event in answer.events if event.rank == rank]
        if Counter(sent) != Counter(nbytes):
            raise CheckFailed(
                f"rank {rank} made {plural(len(sent), 'all-reduce')} of {', '.join(map(str, sent))} bytes",
                f"{plural(len(nbytes), 'all-reduce')} of {', '.join(map(str, nbytes))} bytes",
            )
    expect_all_waited(answer)
    return f"each rank made {plural(len(nbytes), 'all-reduce')}, {sum(nbytes)} bytes in all."


def expect_only(answer: Answer, op: str) -> None:
    strangers = sorted({event.op for event in answer.events} - {op})
    if strangers:
        raise CheckFailed(f"your function calls {', '.join(strangers)}", f"{op} only")


@check("broadcast-weights", if_stuck="every rank must broadcast the same tensors, in the same order, from rank 0.")
def broadcast_weights_values(run: Runner) -> None:
    judge_broadcast(run, different_models(3))


def different_models(world_size: int, features: int = 2) -> Models:
    """Replicas with a batch norm. Their parameters and buffers hold whole numbers that differ from rank to rank."""
    models: Models = []
    for rank in range(world_size):
        model = nn.Sequential(nn.Linear(2, features), nn.BatchNorm1d(features)).double()
        with torch.no_grad():
            for number, tensor in enumerate([*model.parameters(), *model.buffers()]):
                values = 100 * (rank + 1) + 10 * number + torch.arange(tensor.numel())
                tensor.copy_(values.reshape(tensor.shape))
        models.append(model)
    return models


def tensors_of(model: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]


def judge_broadcast(run: Runner, models: Models) -> None:
    held = [tensors_of(model) for model in models]
    names = [name for name, _ in (*models[0].named_parameters(), *models[0].named_buffers())]
    parameters = len(list(models[0].parameters()))
    answer = run(len(models), models)
    for rank, (got, [after]) in enumerate(zip(answer.results, answer.inputs_after, strict=True)):
        if not isinstance(got, list) or len(got) != len(names):
            raise CheckFailed(f"rank {rank} returned a {type(got).__name__}", f"a list of {len(names)} tensors")
        for number, (returned, inside) in enumerate(zip(got, tensors_of(after), strict=True)):
            kind = "parameter" if number < parameters else "buffer"
            own = "it was not broadcast, or not into the model's own memory"
            columns = torch.stack([each[number] for each in held])
            usual = {
                f"this rank's own: {own if kind == 'parameter' else 'buffers must be broadcast too'}": columns[rank],
                "the sum over the ranks: copy rank 0's, don't add": columns.sum(0),
                "the mean over the ranks: copy rank 0's": columns.double().mean(0),
                "another rank's: rank 0 is the source": columns[-1],
            }
            for where, value in (("was returned as", returned), ("in the model is", inside)):
                expect(value, held[0][number], f"rank {rank}: {kind} {names[number]!r} {where}", usual)


@check("broadcast-weights", judges="traffic")
def broadcast_weights_traffic(run: Runner) -> str:
    return expect_broadcasts(run(2, different_models(2)), different_models(1)[0])


def expect_broadcasts(answer: Answer, model: nn.Module) -> str:
    expect_only(answer, "broadcast")
    wanted = sum(tensor.nbytes for tensor in tensors_of(model))
    for rank in range(len(answer.results)):
        sent = sum(event.bytes for event in answer.events if event.rank == rank)
        if sent != wanted:
            raise CheckFailed(
                f"rank {rank} took part in broadcasts of {sent} bytes",
                f"{wanted} bytes: each parameter and buffer once",
                "Broadcast each tensor only once." if sent > wanted else "Some tensors are left out.",
            )
    expect_all_waited(answer)
    return f"{wanted} bytes were broadcast: each tensor once."


# ---- part 2


@check("weigh-uneven-shards", if_stuck="every rank must make the same all-reduces, of the same shapes.")
def weigh_uneven_shards_values(run: Runner) -> None:
    judge_uneven(run, [4, 3])
    judge_uneven(run, [1, 4, 2])


def judge_uneven(run: Runner, sizes: list[int], models: Models | None = None) -> None:
    models, shards = models or mlps(len(sizes)), rows_of(run.draws, sizes)
    world_size, rows = len(sizes), sum(sizes)
    local = [gradients(model, shard) for model, shard in zip(models, shards, strict=True)]
    weighed = summed([scaled(mine, size) for mine, size in zip(local, sizes, strict=True)])
    mistakes = {
        "the mean of the ranks' means: a row of a short shard counts more than one of a long shard": [
            scaled(summed(local), 1 / world_size)
        ]
        * world_size,
        "the sum over all rows: divide by how many rows there are on all ranks": [weighed] * world_size,
        "the sum over all rows divided by world_size: divide by how many rows there are on all ranks": [
            scaled(weighed, 1 / world_size)
        ]
        * world_size,
        "P times too large: the weights of the rows must add up to one over all ranks": [
            scaled(weighed, world_size / rows)
        ]
        * world_size,
        "the right gradient divided by world_size: the weights of all rows already add up to one": [
            scaled(weighed, 1 / rows / world_size)
        ]
        * world_size,
        "the sum divided by your own number of rows: that number must be summed over the ranks too": [
            scaled(weighed, 1 / size) for size in sizes
        ],
        **usual_mistakes(local),
    }
    answer = run(world_size, models, shards)
    expect_gradients(answer, gradients(models[0], torch.cat(shards)), mistakes, models)


@check("accumulate-gradients", if_stuck="every rank must make the same all-reduces, in the same order.")
def accumulate_gradients_values(run: Runner) -> None:
    judge_accumulation(run, mlps(2), microbatches_of(run.draws, 2, 3))


def microbatches_of(draws: Draws, world_size: int, count: int, rows: int = 2) -> list[list[Tensor]]:
    """`count` microbatches for each rank."""
    return [list(shard.split(rows)) for shard in rows_of(draws, [rows * count] * world_size)]


def judge_accumulation(run: Runner, models: Models, microbatches: list[list[Tensor]]) -> None:
    world_size, count = len(models), len(microbatches[0])
    each = [[gradients(model, rows) for rows in mine] for model, mine in zip(models, microbatches, strict=True)]
    local = [scaled(summed(mine), 1 / count) for mine in each]
    right = gradients(models[0], torch.cat([rows for mine in microbatches for rows in mine]))
    again = reduced_each_time(each)
    last = scaled(summed([mine[-1] for mine in each]), 1 / world_size)
    mistakes = {
        "the sum over the microbatches' means: divide each loss by the number of microbatches": [scaled(right, count)]
        * world_size,
        "the result of an all-reduce after each microbatch: gradients already averaged are averaged and added again": [
            scaled(again, 1 / count)
        ]
        * world_size,
        "the result of an all-reduce after each microbatch, with losses not divided by the number of microbatches": [
            again
        ]
        * world_size,
        "the last microbatch alone: don't clear `grad` in between": [last] * world_size,
        "the last microbatch alone, divided by the number of microbatches: don't clear `grad` in between": [
            scaled(last, 1 / count)
        ]
        * world_size,
        **usual_mistakes(local),
    }
    expect_gradients(run(world_size, models, microbatches), right, mistakes, models)


def reduced_each_time(each: Sequence[Sequence[Gradients]]) -> Gradients:
    """The contents of `grad` if it is summed over the ranks after each microbatch and divided at the end."""
    held = [scaled(mine[0], 0) for mine in each]
    for number in range(len(each[0])):
        added = [summed([before, mine[number]]) for before, mine in zip(held, each, strict=True)]
        held = [summed(added)] * len(each)
    return scaled(held[0], 1 / len(each))


@check("accumulate-gradients", judges="traffic")
def accumulate_gradients_traffic(run: Runner) -> str:
    models = mlps(2)
    return expect_reduced_once(run(2, models, microbatches_of(run.draws, 2, 3)), models[0])


def expect_reduced_once(answer: Answer, model: nn.Module) -> str:
    expect_only(answer, "all_reduce")
    wanted = sum(bytes_of(model))
    for rank in range(len(answer.results)):
        sent = sum(event.bytes for event in answer.events if event.rank == rank)
        if sent != wanted:
            raise CheckFailed(
                f"rank {rank} all-reduced {sent} bytes",
                f"{wanted} bytes: each gradient once",
                f"{sent / wanted:.3g} times as much as is needed: reduce after the last microbatch only.",
            )
    expect_all_waited(answer)
    return f"each rank all-reduced {wanted} bytes: each gradient once."


@check("epoch-indices")
def epoch_indices_values(run: Runner) -> None:
    judge_epochs(run, 2, 24)
    judge_cover(run(4, num_samples=10, epoch=0, seed=0).results, 10)


def judge_epochs(run: Runner, world_size: int, num_samples: int, seed: int = 0) -> None:
    """Judge epochs 0 and 1, and epoch 0 again. There are enough samples that two orders can't be equal by chance."""
    first, second, again = (
        run(world_size, num_samples=num_samples, epoch=epoch, seed=seed).results for epoch in (0, 1, 0)
    )
    for indices in (first, second):
        judge_cover(indices, num_samples)
    if first != again:
        raise CheckFailed(
            "epoch 0 has a different order the second time",
            mistake="Draw only from a generator that is seeded with seed and epoch.",
        )
    steps = [{(b - a) % num_samples for a, b in zip(mine, mine[1:], strict=False)} for mine in first]
    if all(len(each) == 1 for each in steps):
        raise CheckFailed(
            f"rank 0 sees the samples {shortened(first[0])}: not shuffled",
            mistake="Take this rank's part of a shuffled order.",
        )
    if first == second:
        raise CheckFailed(
            "epochs 0 and 1 have the same order", mistake="The epoch must be part of the generator's seed."
        )
    if world_size > 1 and [set(mine) for mine in first] == [set(mine) for mine in second]:
        raise CheckFailed(
            f"rank 0 sees the same {len(set(first[0]))} samples in both epochs, in a different order",
            mistake="Shuffle all samples first, then take this rank's part.",
        )


def judge_cover(results: list[Any], num_samples: int) -> None:
    """Judge one epoch: every rank gets the same number of samples, every sample is seen, none much more often."""
    each = math.ceil(num_samples / len(results))
    for rank, mine in enumerate(results):
        if not isinstance(mine, list) or any(type(index) is not int for index in mine):
            raise CheckFailed(f"rank {rank} returned {mine!r}", "a list of plain Python numbers")
        if any(not 0 <= index < num_samples for index in mine):
            raise CheckFailed(f"rank {rank} returned {mine}", f"indices from 0 to {num_samples - 1}")
        if len(mine) != each:
            missing = "Pad the order until it divides evenly, or else one rank takes more steps than another."
            raise CheckFailed(f"rank {rank} got {plural(len(mine), 'sample')}", f"{each} on every rank", missing)
    seen = Counter(index for mine in results for index in mine)
    never = [index for index in range(num_samples) if not seen[index]]
    if never:
        raise CheckFailed(
            f"no rank sees {plural(len(never), 'sample')} of {num_samples}: {shortened(never)}",
            mistake="All ranks must cut up the same order: use the same seed on every rank.",
        )
    most, least = max(seen.values()), min(seen.values())
    if most > least + (1 if num_samples % len(results) else 0):
        often = [index for index in range(num_samples) if seen[index] == most]
        raise CheckFailed(
            f"{plural(len(often), 'sample')} of {num_samples} are seen {most} times: {shortened(often)}",
            mistake="The parts of two ranks overlap: split one common order so that each entry goes to one rank.",
        )


def shortened(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:6])) + ", ..." * (len(numbers) > 6)


# ---- part 3


@check("flat-gradients", if_stuck="every rank must make one all-reduce, with a tensor of the same size.")
def flat_gradients_values(run: Runner) -> None:
    judge_average(run, mixed_models(3), rows_of(run.draws, [2, 2, 2]))


@check("flat-gradients", judges="traffic")
def flat_gradients_traffic(run: Runner) -> str:
    models = mixed_models(2)
    return expect_all_reduces(run(2, models, rows_of(run.draws, [2, 2])), [sum(bytes_of(models[0]))])


# ---- part 4


@check("make-buckets")
def make_buckets_values(run: Runner) -> None:
    for sizes, cap in (([40, 40, 450, 120, 120, 120, 200, 200], 400), ([8, 8, 8], 16), ([30, 10, 10], 20)):
        judge_buckets(run, sizes, cap)


def cut_in_buckets(sizes: list[int], cap: int) -> list[list[int]]:
    """The longest run from the end that fits is the first bucket; the rest is cut the same way."""
    if not sizes:
        return []
    fitting = [length for length in range(1, len(sizes) + 1) if sum(sizes[-length:]) <= cap]
    left = len(sizes) - max(fitting, default=1)
    return [list(range(len(sizes) - 1, left - 1, -1)), *cut_in_buckets(sizes[:left], cap)]


def closed_when_reached(sizes: list[int], cap: int, order: Iterable[int]) -> list[list[int]]:
    """A bucket is closed once it holds `cap` or more."""
    order, numbers, held = list(order), [0], 0  # the number of each index's bucket
    for index in order:
        numbers.append(numbers[-1] + (held >= cap))
        held = sizes[index] + (0 if held >= cap else held)
    together = groupby(zip(numbers[1:], order, strict=True), key=lambda pair: pair[0])
    return [[index for _, index in pairs] for _, pairs in together]


def judge_buckets(run: Runner, sizes: list[int], cap: int) -> None:
    [got] = run(1, [sizes], cap=cap).results
    right, last = cut_in_buckets(sizes, cap), len(sizes) - 1
    forward = [[last - index for index in bucket] for bucket in cut_in_buckets(sizes[::-1], cap)]
    strictly = cut_in_buckets(sizes, cap - 1)
    expect(
        got,
        right,
        f"sizes {sizes}, cap {cap}: you returned",
        {
            "right except for the order of the buckets: the last parameter's is the first to be sent": right[::-1],
            "right except for the order inside the buckets: go from the last parameter to the first": [
                bucket[::-1] for bucket in right
            ],
            "from the first parameter to the last: backward starts at the other end": forward,
            "right except for an empty bucket at the start": [[], *right],
            "a bucket that is closed only when it is over the cap: check before you add a parameter": (
                closed_when_reached(sizes, cap, reversed(range(len(sizes))))
            ),
            "a bucket for each parameter": [[index] for index in reversed(range(len(sizes)))],
            "one bucket for all: start a new one when the next parameter does not fit": [
                list(reversed(range(len(sizes))))
            ],
            "a bucket that is closed too early: a parameter that fills it exactly still fits": strictly,
            "without the last bucket: it isn't full, but it counts": right[:-1],
        },
    )


IN_BUCKETS = [[3], [2, 1], [0]]  # of mixed_models: 2, 9 and 6 numbers


@check("bucketed-gradients", if_stuck="every rank must start the same all-reduces in the same order.")
def bucketed_gradients_values(run: Runner) -> None:
    judge_average(run, mixed_models(2), rows_of(run.draws, [2, 2]), buckets=IN_BUCKETS)


@check("bucketed-gradients", judges="traffic")
def bucketed_gradients_traffic(run: Runner) -> str:
    models = mixed_models(2)
    return expect_bucket_calls(run(2, models, rows_of(run.draws, [2, 2]), buckets=IN_BUCKETS), models[0], IN_BUCKETS)


def expect_bucket_calls(answer: Answer, model: nn.Module, buckets: list[list[int]]) -> str:
    """Judge that there is one all-reduce for each bucket, in order, and that all are started before any wait."""
    sizes = bytes_of(model)
    nbytes = [sum(sizes[index] for index in bucket) for bucket in buckets]
    expect_all_reduces(answer, nbytes)
    expect_calls(answer, ["all_reduce"] * len(buckets), nbytes)
    for rank in range(len(answer.results)):
        events = [event for event in answer.events if event.rank == rank]
        blocking = sum(not event.is_async for event in events)
        if blocking:
            raise CheckFailed(
                f"rank {rank}: {blocking} of {plural(len(events), 'all-reduce')} blocked",
                "none",
                "Pass async_op=True and keep the handle.",
            )
        waits = [event.waited for event in events if event.waited is not None]
        if waits and max(event.start for event in events) > min(waits):
            raise CheckFailed(
                f"rank {rank} waited for a bucket before it had started the last one",
                "all started, then the first wait",
                "Use two loops: one that starts them all, and one that waits for them.",
            )
    return f"each rank started {plural(len(buckets), 'all-reduce')} of {', '.join(map(str, nbytes))} bytes."


@check("communication-end")
def communication_end_values(run: Runner) -> None:
    for ready, took in (
        ([1.0, 2.0, 3.0], [4.0, 0.5, 1.0]),
        ([1.0, 2.0, 4.0], [0.5, 0.5, 3.0]),
        ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]),
        ([], []),
    ):
        judge_end(run, ready, took)


def end_of(ready: list[float], took: list[float]) -> float:
    """The longest chain: a bucket and all those after it, from the moment it is ready."""
    return max((at + sum(took[number:]) for number, at in enumerate(ready)), default=0.0)


def judge_end(run: Runner, ready: list[float], took: list[float]) -> None:
    [got] = run(1, [ready], [took]).results
    got = float(got) if isinstance(got, int) else got
    expect(
        got,
        end_of(ready, took),
        f"ready {ready}, took {took}: you returned",
        {
            "when the last bucket would end on a free network: the one before may still occupy it": (
                ready[-1] + took[-1] if ready else None
            ),
            "the sum of all: no all-reduce starts before its bucket is ready": float(sum(took)),
            "the end if all start after backward, one after another: each starts as soon as it is ready": (
                ready[-1] + sum(took) if ready else None
            ),
            "the end if all ran at the same time: the network does one at a time": max(
                (at + long for at, long in zip(ready, took, strict=True)), default=None
            ),
        },
    )


SAME_ORDER = (
    "the ranks started buckets in different orders, so that all-reduces of different sizes met; or a rank "
    "never started a bucket. Start a bucket when it is complete and all before it have been started."
)


@check("overlap-by-hooks", if_stuck=SAME_ORDER)
def overlap_by_hooks_values(run: Runner) -> None:
    with naming_the_wrong_hook():
        judge_average(run, mixed_models(2), rows_of(run.draws, [2, 2]), buckets=IN_BUCKETS)
        judge_orders(run, [[0, 1], [1, 0]])


@contextlib.contextmanager
def naming_the_wrong_hook() -> Iterator[None]:
    """Explain an error caused by a gradient that is not there yet."""
    try:
        yield
    except CheckFailed as failed:
        if "NoneType" in failed.saw:
            failed.mistake = (
                "A hook ran before its gradient was in `grad`. A register_hook hook is called before that, a "
                "register_post_accumulate_grad_hook hook after it. (Or the bucket was not complete yet.)"
            )
        raise


def judge_orders(run: Runner, orders: list[list[int]], buckets: list[list[int]] | None = None) -> None:
    """Branches whose gradients are ready in a different order on each rank. buckets: one per parameter by default."""
    branches = max(map(max, orders)) + 1
    models: Models = [AwkwardMLP(make_weights(2 + branches, 2, dtype=DOUBLE), order, freeze=False) for order in orders]
    shards = rows_of(run.draws, [2] * len(orders))
    local = [gradients(model, rows) for model, rows in zip(models, shards, strict=True)]
    right = scaled(summed(local), 1 / len(orders))
    buckets = buckets or [[index] for index in reversed(range(len(right)))]
    mistakes = usual_mistakes(local)
    as_ready = [[2 + branch for branch in reversed(order)] for order in orders]  # the branch used last comes first
    mixed = [list(right) for _ in orders]
    for at_once in zip(*as_ready, strict=True):  # the parameters whose gradients meet in one all-reduce
        [met] = summed([[mine[number]] for mine, number in zip(local, at_once, strict=True)])
        for rank, number in enumerate(at_once):
            [mixed[rank][number]] = scaled([met], 1 / len(orders))
    words = "the mean of different parameters' gradients: the ranks started their buckets in different orders"
    answer = run(len(orders), models, shards, buckets=buckets)
    expect_gradients(answer, right, {words: mixed, **mistakes}, models)


@check("overlap-by-hooks", judges="traffic", if_stuck=SAME_ORDER)
def overlap_by_hooks_traffic(run: Runner) -> str:
    with naming_the_wrong_hook():
        models, buckets, cluster, _ = overlap_case(2, 4, [[3], [2], [1, 0]])
        answer = run.virtual(2, models, rows_of(run.draws, [2, 2]), buckets=buckets, cluster=cluster, device="cpu")
    return expect_starts_in_backward(answer, models[0], buckets)


UNIT = 1e-6  # seconds per matrix product on the cluster below


def overlap_case(
    world_size: int, layers: int, buckets: list[list[int]], latency: float = 0.1, transfer: float = 1.3
) -> tuple[Models, list[list[int]], Cluster, float]:
    """(models, buckets, cluster, seconds of the fastest possible step), for shards of 2 rows and 2 columns.

    On this cluster a matrix product of one layer takes one unit, and all other computing takes none. So the forward
    pass takes one unit per layer and the backward pass two, but only one for the first layer, since the gradient of the
    batch is not needed.
    latency, transfer: of a message, and of one weight's all-reduce between two ranks, in units.
    """
    models, dim = mlps(world_size, layers), 2
    nbytes = dim * dim * BYTES
    gpu = Gpu({"fp64": 2 * dim**3 / UNIT}, memory=math.inf, bandwidth=math.inf, launch=0)
    link = Link(latency * UNIT, nbytes / (transfer * UNIT))
    cluster = Cluster("a product takes a unit", 1, world_size, gpu=gpu, intra=link, inter=link)
    layout = Layout.of(cluster, range(world_size))
    took = [cost("all_reduce", len(bucket) * nbytes, cluster, layout).seconds for bucket in buckets]
    ready = [min(2 * (layers - min(bucket)), 2 * layers - 1) * UNIT for bucket in buckets]
    return models, buckets, cluster, layers * UNIT + end_of(ready, took)


def expect_starts_in_backward(answer: Answer, model: nn.Module, buckets: list[list[int]]) -> str:
    said = expect_bucket_calls(answer, model, buckets)
    for rank in range(len(answer.results)):
        backward = [each.end for each in answer.run.regions if each.rank == rank and each.name == "backward"]
        if not backward:
            raise CheckFailed(f"rank {rank} has no region 'backward'", mistake="Keep the line with region(...).")
        starts = [event.start for event in answer.events if event.rank == rank]
        late = sum(start >= backward[0] * (1 - 1e-9) for start in starts[:-1])
        if late:
            raise CheckFailed(
                f"rank {rank} started {late} of the first {plural(len(starts) - 1, 'bucket')} after backward had ended",
                "all but the last to start during backward",
                "Start each bucket in the hook that completes it.",
            )
    return said + " All but the last started before backward ended."


@check("overlap-by-hooks", judges="time", if_stuck=SAME_ORDER)
def overlap_by_hooks_time(run: Runner) -> str:
    return judge_overlap(run, 2, 4, [[3], [2], [1], [0]], transfer=0.7)  # the network keeps up: 0.9 units per bucket


def judge_overlap(run: Runner, world_size: int, layers: int, buckets: list[list[int]], **network: float) -> str:
    """Judge the values of one run, and that only the communication that can't be hidden is exposed."""
    models, buckets, cluster, best = overlap_case(world_size, layers, buckets, **network)
    with naming_the_wrong_hook():
        more = {"cluster": cluster, "device": "cpu"}
        answer = judge_average(run.virtual, models, rows_of(run.draws, [2] * world_size), buckets=buckets, **more)
    backward = next((each.end for each in answer.run.regions if each.name == "backward"), math.inf)
    events = [event for event in answer.events if event.rank == 0]
    in_the_way = [event for event in events if not event.is_async or (event.waited or math.inf) < backward * (1 - 1e-9)]
    words: dict[str, float] = {}
    if events and min(event.start for event in events) >= backward * (1 - 1e-9):
        words["the time of a network that is idle until backward is over: start each bucket in a hook"] = (
            answer.run.elapsed
        )
    elif in_the_way:
        words[
            "the time of a backward that waits for the network: start each all-reduce in its hook, wait at the end"
        ] = answer.run.elapsed
    expect_time(answer, best, recognise=words)
    last = events[-1]
    assert last.end is not None  # virtual ranks that never wait for a call fail
    exposed, took = answer.run.elapsed - (3 * layers - 1) * UNIT, last.end - last.start
    return f"{quantity(exposed, 's')} exposed; the last bucket's all-reduce takes {quantity(took, 's')}."


# ---- part 5


@check(
    "average-what-is-used",
    if_stuck="a rank all-reduced a gradient that another rank does not have, or skipped one. All must first agree "
    "on which parameters have been used anywhere, then contribute zeros where they have no gradient.",
)
def average_what_is_used_values(run: Runner) -> None:
    judge_used(run, [[0, 2], [2]], branches=3)


def judge_used(run: Runner, orders: list[list[int]], branches: int, freeze: bool = True) -> None:
    models: Models = [AwkwardMLP(make_weights(2 + branches, 2, dtype=DOUBLE), order, freeze) for order in orders]
    shards = rows_of(run.draws, [2] * len(orders))
    local = [gradients(model, rows) for model, rows in zip(models, shards, strict=True)]
    total = summed(local)
    right = scaled(total, 1 / len(orders))
    users = [sum(gradient is not None for gradient in column) for column in zip(*local, strict=True)]
    by_users = [x if x is None else x / count for x, count in zip(total, users, strict=True)]
    zeros = [torch.zeros_like(parameter) for parameter in models[0].parameters()]
    filled: Gradients = [zero if x is None else x for x, zero in zip(right, zeros, strict=True)]
    mistakes: dict[str, Gradients] = {
        "the mean over the ranks that have used it: divide by world_size, the others count as zero": by_users,
        "all zeros, where no rank has used it (or it is frozen): leave None, or AdamW keeps moving it": filled,
        "the sum over the ranks: divide by world_size": total,
    }
    wrong = {words: [gradient] * len(orders) for words, gradient in mistakes.items()}
    own = {"your own shard's gradient: nothing was averaged": local}
    answer = run(len(orders), models, shards)
    for rank in range(len(orders)):  # `None` is right for some parameters and wrong for others
        for number, got in enumerate(answer.results[rank] or []):
            if number < len(right) and got is None and right[number] is not None:
                raise CheckFailed(
                    f"rank {rank}: the gradient of parameter {number} is None",
                    "a tensor",
                    "Another rank has used it: every rank needs the mean.",
                )
    expect_gradients(answer, right, wrong | own, models)


# ---- part 6

EPS = 0.25  # large enough to show when it is forgotten


@check("normalise-globally", if_stuck="every rank must make the same all-reduces, of the same shapes.")
def normalise_globally_values(run: Runner) -> None:
    judge_normalise(run, rows_of(run.draws, [3, 1], dim=3))


def judge_normalise(run: Runner, shards: list[Tensor], eps: float = EPS) -> None:
    rows, world_size = torch.cat(shards), len(shards)
    mean, var = rows.mean(0), rows.var(0, correction=0)
    answer = run(world_size, shards, eps=eps)
    means = torch.stack([shard.mean(0) for shard in shards])
    variances = torch.stack([shard.var(0, correction=0) for shard in shards])
    sizes = torch.tensor([float(len(shard)) for shard in shards], dtype=rows.dtype)[:, None]
    within = (sizes * variances).sum(0) / sizes.sum()  # leaves out the spread of the means
    of_means = means.mean(0)
    squares = torch.stack([shard.square().mean(0) for shard in shards]).mean(0)

    def with_these(x: Tensor, mu: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return (x - mu) / torch.sqrt(variance + eps), variance

    for rank, got in enumerate(answer.results):
        x = shards[rank]
        if not isinstance(got, tuple | list) or len(got) != 2:
            raise CheckFailed(f"rank {rank} returned a {type(got).__name__}", "a tuple (x_hat, var)")
        pairs = {
            "the result for your own rows: nothing was exchanged": with_these(x, means[rank], variances[rank]),
            "the result with the mean of the ranks' means: a short shard counts as much as a long one": with_these(
                x, of_means, squares - of_means.square()
            ),
            "the result with the mean of the ranks' variances: that leaves out the spread of their means": with_these(
                x, mean, variances.mean(0)
            ),
            "the result with the weighted mean of the ranks' variances: that leaves out the spread of their means": (
                with_these(x, mean, within)
            ),
            "the result with a variance that divides by one less than the number of rows: use correction=0": with_these(
                x, mean, rows.var(0, correction=1) if len(rows) > 1 else var
            ),
            "the result with eps added to the root: add it to the variance": (
                (x - mean) / (torch.sqrt(var) + eps),
                var,
            ),
            "the standard deviation: return the variance": (
                (x - mean) / torch.sqrt(var + eps),
                torch.sqrt(var),
            ),
            "the result with the mean of the squares: subtract the square of the mean": with_these(
                x, mean, rows.square().mean(0)
            ),
            "the result with sums: divide them by the number of all rows": with_these(
                x, rows.sum(0), (rows.square().sum(0) - rows.sum(0).square()).clamp(min=0)
            ),
        }
        for place, name in ((1, "var"), (0, "x_hat")):
            right = with_these(x, mean, var)[place]
            usual = {words: pair[place] for words, pair in pairs.items()}
            expect(got[place], right, f"rank {rank}: {name} is", usual, RTOL)
    expect_unchanged(answer, shards)


@check("normalise-globally", judges="traffic")
def normalise_globally_traffic(run: Runner) -> str:
    return expect_small_all_reduces(run(2, rows_of(run.draws, [5, 4], dim=3), eps=EPS), features=3)


def expect_small_all_reduces(answer: Answer, features: int) -> str:
    expect_only(answer, "all_reduce")
    limit = 2 * features + 1
    for rank in range(len(answer.results)):
        events = [event for event in answer.events if event.rank == rank]
        if not 1 <= len(events) <= 2:
            raise CheckFailed(f"rank {rank} made {plural(len(events), 'all-reduce')}", "one or two")
        largest = max(math.prod(event.shape) for event in events)
        if largest > limit:
            raise CheckFailed(
                f"rank {rank} all-reduced {largest} numbers at once",
                f"at most {limit}: 2 for each of {features} columns, and one",
                "Sum over your own rows first: the size of an all-reduce must not grow with the batch.",
            )
    expect_all_waited(answer)
    return f"each rank made {plural(len(events), 'all-reduce')} of {largest} numbers at most."


@check("normalise-backward", if_stuck="every rank must make the same all-reduces, of the same shapes.")
def normalise_backward_values(run: Runner) -> None:
    judge_backward(run, rows_of(run.draws, [3, 1], dim=3))


def backward_inputs(draws: Draws, shards: list[Tensor], eps: float) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """(g, x_hat, var) of each rank."""
    rows = torch.cat(shards)
    mean, var = rows.mean(0), rows.var(0, correction=0)
    x_hats = [(shard - mean) / torch.sqrt(var + eps) for shard in shards]
    incoming = rows_of(draws, [len(shard) for shard in shards], dim=rows.shape[1], seed=1)
    return incoming, x_hats, [var.clone() for _ in shards]


def judge_backward(run: Runner, shards: list[Tensor], eps: float = EPS) -> None:
    g, x_hat, var = backward_inputs(run.draws, shards, eps)
    rows = torch.cat(shards).requires_grad_()
    normalised = (rows - rows.mean(0)) / torch.sqrt(rows.var(0, correction=0) + eps)
    right = torch.autograd.grad((normalised * torch.cat(g)).sum(), rows)[0].split([len(shard) for shard in shards])
    answer = run(len(shards), g, x_hat, var, eps=eps)
    products = [mine * hats for mine, hats in zip(g, x_hat, strict=True)]
    mean_g, mean_gx = torch.cat(g).mean(0), torch.cat(products).mean(0)
    each_g, each_gx = torch.stack([mine.mean(0) for mine in g]), torch.stack([mine.mean(0) for mine in products])
    for rank, got in enumerate(answer.results):
        mine, hats, std = g[rank], x_hat[rank], torch.sqrt(var[rank] + eps)
        expect(
            got,
            right[rank],
            rank,
            {
                "the result with the means over your own rows: every row of every rank counts": (
                    mine - each_g[rank] - hats * each_gx[rank]
                )
                / std,
                "the result with the mean of the ranks' means: a short shard counts as much as a long one": (
                    mine - each_g.mean(0) - hats * each_gx.mean(0)
                )
                / std,
                "the incoming gradient divided by the standard deviation: mean and variance depend on x too": mine
                / std,
                "the gradient without the term of the variance": (mine - mean_g) / std,
                "the gradient without the term of the mean": (mine - hats * mean_gx) / std,
                "the result with sums: divide them by the number of all rows": (
                    mine - torch.cat(g).sum(0) - hats * torch.cat(products).sum(0)
                )
                / std,
                "the result with the sum of the ranks' means: divide by the number of all rows": (
                    mine - each_g.sum(0) - hats * each_gx.sum(0)
                )
                / std,
                "the result with sums divided by your own number of rows: sum that number too": (
                    mine - (torch.cat(g).sum(0) + hats * torch.cat(products).sum(0)) / len(mine)
                )
                / std,
            },
            RTOL,
        )
    expect_unchanged(answer, g, x_hat, var)


@check("normalise-backward", judges="traffic")
def normalise_backward_traffic(run: Runner) -> str:
    g, x_hat, var = backward_inputs(run.draws, rows_of(run.draws, [5, 4], dim=3), EPS)
    return expect_small_all_reduces(run(2, g, x_hat, var, eps=EPS), features=3)
