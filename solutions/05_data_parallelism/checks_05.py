"""The checks of lesson 05. Each is quick: one to three runs of two to five ranks. Form: see registry.py.

What is right comes from one process: the gradients of the whole batch, a batch norm over all rows. Everything is
float64, so that "equal" can mean nine digits, whatever the order of the additions.
"""

from __future__ import annotations

import itertools
import math
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from utils.checks.answer import Answer, CheckFailed
from utils.checks.equality import equal_values
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, as_tuple, every, oracle, vary
from utils.checks.registration import check
from utils.checks.runner import Runner
from utils.checks.scores import Measure
from utils.checks.show import show
from utils.checks.traffic import calls_of_ranks, expect_launched_first, expect_time
from utils.cluster.collective_costs import Layout, cost
from utils.cluster.hardware import Cluster, Gpu, Link
from utils.events.event import Event
from utils.kit.drivers.held_gradients import with_gradients
from utils.kit.mlp import MLP, loss_of, make_batch, make_weights
from utils.kit.tied_mlp import AwkwardMLP
from utils.recording.regions import region
from utils.recording.torch_private import backward_hooks_of, when_backward_ends
from utils.text.units import plural, quantity

ROOM = Path(__file__).parent

DOUBLE = torch.float64
RTOL = 1e-9  # additions in a different order
SAME_SHAPES = "every rank must make the same all-reduces, of the same shapes."
SAME_CALLS = "every rank must make the same all-reduces, in the same order."

Models = list[nn.Module]  # one per rank
Make = Callable[[Draws, int], Models]  # for so many ranks
Buckets = list[list[int]]
End = Callable[[list[float], list[float]], float]  # (ready times, durations) -> when the last all-reduce ends


# ---- models, and their gradients in one process


def mlp(layers: int = 2) -> Make:
    return lambda draws, world_size: replicas(MLP(make_weights(layers, 2, draws.salted(), DOUBLE)), world_size)


def mixed(draws: Draws, world_size: int) -> Models:
    """Models with four parameters of three sizes: 6, 3, 6 and 2 numbers."""
    model, generator = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2)), draws.generator()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=DOUBLE)
    return replicas(model, world_size)


def branched(orders: list[list[int]], branches: int, freeze: bool = False) -> Make:
    """orders: the branches that each rank uses, in this order."""

    def make(draws: Draws, _: int) -> Models:
        weights = make_weights(2 + branches, 2, draws.salted(), DOUBLE)
        return [AwkwardMLP(weights, order, freeze) for order in orders]

    return make


def replicas(model: nn.Module, world_size: int) -> Models:
    return [deepcopy(model) for _ in range(world_size)]


def rows_of(draws: Draws, sizes: Sequence[int], dim: int = 2, seed: int = 0) -> list[Tensor]:
    """A shard for each rank, of sizes[rank] rows."""
    return [shard.clone() for shard in make_batch(sum(sizes), dim, draws.salted(seed), DOUBLE).split(list(sizes))]


def gradients(model: nn.Module, rows: Tensor) -> Tensor:
    """Of the mean loss over these rows: all in one vector, with NaN for a parameter that has none."""
    model = deepcopy(model)
    loss_of(model(rows)).backward()
    every = [torch.full_like(one, math.nan) if one.grad is None else one.grad for one in model.parameters()]
    return torch.cat([one.flatten() for one in every]).detach()


def local_gradients(models: Models, shards: Sequence[Tensor]) -> Tensor:
    """(P, all parameters)"""
    return torch.stack([gradients(model, rows) for model, rows in zip(models, shards, strict=True)])


def bytes_of(model: nn.Module) -> list[int]:
    return [parameter.nbytes for parameter in model.parameters()]


# ---- what ranks must return, where that is gradients


def gradient_case(
    models: Models,
    data: Sequence[Any],
    local: Tensor,
    right: Tensor,
    mistakes: Mapping[str, Tensor],
    buckets: Buckets | None = None,
    when: str = "",
    unsent: str = "nothing was averaged, or the mean never got into `grad`. Was it that of a copy, or of the weights?",
    advice: Mapping[str, str] | None = None,
    **more: Any,
) -> Case:
    """Each rank gets its model and its data, must return the right gradients, and leave the weights alone.

    local     (P, all parameters): each rank's own gradients
    mistakes  what a mistake leads to, on all ranks or, with a row for each, on that rank
    when      behind the advice to divide: at what moment
    unsent    why a rank may still have its own gradient
    """
    before = deepcopy(models)
    usual = {**mistakes, **wrong_gradients(models, local, right, buckets, when, unsent)}
    pieces = {f"the gradient of parameter {number}": one for number, one in enumerate(cut(right, models[0]))}
    case = Case(
        [models, data],
        right=pieces,
        mistakes=by_piece(usual, models[0], local),
        explain=lambda got, _: in_wrong_places(got, right),
        rtol=RTOL,
        driver=with_hooks if buckets else with_gradients,
        unpack=lambda got, rank: as_tuple(got and got["returned"], [*pieces], rank),
        unchanged=False,
        before=lambda answer: expect_all_digits(answer, case),
        for_all={"buckets": buckets} if buckets else {},
        advice={**DTYPE, **(advice or {})},
        **more,
    )

    def expect_held_too(answer: Answer) -> None:
        """What is returned is right; so must be what an optimizer reads."""
        expect_same_weights(answer, before)
        judge_held(answer, case, local, right, models[0])

    case.also = expect_held_too
    return case


def own_and_total(local: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Each rank's own gradients, right where it has none; and their sum, NaN where nobody has one."""
    known = local.isnan().logical_not()
    return local.where(known, right), local.nansum(0).where(known.any(0), math.nan)


def wrong_gradients(
    models: Models, local: Tensor, right: Tensor, buckets: Buckets | None, when: str, unsent: str
) -> dict[str, Tensor]:
    """What usual mistakes lead to; the arguments are those of gradient_case."""
    world_size, known = len(models), local.isnan().logical_not()
    weights = torch.cat([parameter.flatten() for parameter in models[0].parameters()])
    shared = known.sum(0) != 1  # one rank's gradient is its sum too; who returns sums fails at a shared one before
    own, total = own_and_total(local, right)
    divided = (local / world_size).where(known, right)
    heads = {FIRST_NUMBERS: first_numbers(right, models[0], buckets)} if buckets else {}
    return {
        **heads,
        f"your own shard's gradient: {unsent}": own,
        f"the sum over the ranks: divide by world_size{when}": total.where(shared, right),
        "the mean divided by world_size once more: divide once": total / world_size**2,
        "your own shard's gradient divided by world_size: it was never added to the others'": divided,
        "the largest of the ranks' gradients: add them": local.nan_to_num().amax(0).where(total == total, math.nan),
        "all zeros: you all-reduced tensors other than those `backward` wrote. `zero_grad` sets `grad` to None, and "
        "then `backward` makes new tensors": 0 * total,
        "rank 0's gradient: average those of all ranks": own[0].where(shared, right),
        "the weights: all-reduce the gradients, not the parameters": weights.detach(),
    }


def in_wrong_places(got: Any, right: Tensor) -> str:
    """The mistake, if each number is one of the right ones."""
    numbers = got.detach().double().reshape(-1, 1) if isinstance(got, Tensor) else torch.zeros(1, 1, dtype=DOUBLE)
    words = "the right numbers in the wrong places: cut a flat tensor in the order in which it was put together, "
    words += "and return the gradients in the order of model.parameters()"
    return words if torch.isclose(numbers, right, 1e-6, 0).any(1).all() else ""


def judge_held(answer: Answer, case: Case, local: Tensor, right: Tensor, model: nn.Module) -> None:
    """Judge what is in each `grad`, and that no hook is left."""
    own, total = own_and_total(local, right)
    too_little = "the optimizer reads `grad`, so the mean must be there, not only in what you return"
    usual = {f"the sum over the ranks: {too_little}": total, f"your own shard's gradient: {too_little}": own}
    held = replace(
        case,
        seen="rank {rank} returned the right gradients, but in `parameter.grad`, {part} is",
        mistakes=by_piece(usual, model, local),
        explain=lambda *_: f"not what you returned: {too_little}",
        unpack=lambda got, rank: as_tuple(got["held"], list(case.right), rank),
    )
    for rank, result in enumerate(answer.results):
        held.judge_rank(result, rank)
        fail_if(
            result["hooks"] > 0,
            f"rank {rank}: {plural(result['hooks'], 'hook')} left on the model after the call",
            "Append each hook to `hooks`, so that it is removed at the end; otherwise every step adds more.",
        )


FIRST_NUMBERS = (
    "the first numbers of its bucket's flat tensor: cut that in the order in which it was put together, and begin each "
    "piece where the one before it ends"
)


def first_numbers(right: Tensor, model: nn.Module, buckets: Buckets) -> Tensor:
    """What each parameter has if every piece of a bucket is cut from the start of its flat tensor."""
    pieces = right.split([parameter.numel() for parameter in model.parameters()])
    trained = [number for number, parameter in enumerate(model.parameters()) if parameter.requires_grad]
    flats = {trained[i]: torch.cat([pieces[trained[n]] for n in bucket]) for bucket in buckets for i in bucket}
    heads = torch.cat([flats.get(number, piece)[: len(piece)] for number, piece in enumerate(pieces)])
    return heads.nan_to_num().where(right == right, math.nan)


def expect_sum_everywhere(answer: Answer) -> None:
    ops = {event.op for event in answer.events}
    if "reduce" in ops and not ops & {"broadcast", "scatter", "all_gather", "send"}:
        raise CheckFailed("your function calls reduce", "all_reduce", "With `reduce` only one rank has the sum.")


DTYPE = {
    "grad_dtype|brought float(?:32 .*brought float64|64 .*brought float32)": "A gradient has the dtype of its "
    "parameter, float64 here: torch.zeros_like(parameter) takes it over, but torch.zeros makes float32.",
}


def expect_all_digits(answer: Answer, case: Case) -> None:
    """Judge that nothing is right to 7 digits only, as what went through float32 is."""
    expect_sum_everywhere(answer)
    sent = "It all-reduced float32 numbers: torch.zeros and torch.tensor make those unless you pass a dtype."
    factor = "A factor was float32, as an int divided by an int64 tensor is. Take .item() of the tensor."
    for rank, got in enumerate(answer.results):
        in_float32 = any(event.dtype == "float32" for event in answer.events if event.rank == rank)
        values = case.unpacked(got, rank)
        for part, right, _ in case.parts(rank):
            if equal_values(values[part], right, 1e-6) and not equal_values(values[part], right, RTOL):
                seen = f"rank {rank}: {part or 'the result'} is right to 7 digits only"
                raise CheckFailed(seen, "9 digits: the numbers are float64", sent if in_float32 else factor)


def by_piece(mistakes: Mapping[str, Tensor], model: nn.Module, local: Tensor) -> dict[str, dict[str, list[Any]]]:
    """{the gradient of a parameter: {a mistake: what it leads to on each rank}}; local: as above."""
    on_ranks = {words: [cut(row, model) for row in wrong.expand_as(local)] for words, wrong in mistakes.items()}
    return {
        f"the gradient of parameter {n}": {words: [row[n] for row in rows] for words, rows in on_ranks.items()}
        for n, _ in enumerate(model.parameters())
    }


def cut(flat: Tensor, model: nn.Module) -> list[Tensor | None]:
    """The gradient of each parameter: None if it is NaN."""
    shapes = [parameter.shape for parameter in model.parameters()]
    pieces = flat.split([shape.numel() for shape in shapes])
    return [None if x.isnan().all() else x.reshape(shape) for x, shape in zip(pieces, shapes, strict=True)]


def expect_same_weights(answer: Answer, before: Models) -> None:
    for rank, ([after, _], model) in enumerate(zip(answer.inputs_after, before, strict=True)):
        for number, (has_become, was) in enumerate(zip(after.parameters(), model.parameters(), strict=True)):
            if not torch.equal(has_become, was):
                raise CheckFailed(
                    f"rank {rank}: the weights of parameter {number} have changed",
                    mistake="Average the gradients, not the parameters. (A post-accumulate hook gets the "
                    "parameter; its gradient is parameter.grad.)",
                )


def averaged(models: Models, shards: list[Tensor], **more: Any) -> Case:
    """Each rank gets its model and its shard, and must return the gradients of all rows together."""
    right = gradients(models[0], torch.cat(shards))
    return gradient_case(models, shards, local_gradients(models, shards), right, {}, **more)


# ---- part 1


@oracle(values=[(5, 17), (4, 5), (2, 4)])
def shard_the_batch(draws: Draws, world_size: int, rows: int, dim: int = 2, dtype: torch.dtype = torch.float32) -> Case:
    """Rows are dealt out one by one, to count how many each rank gets; then the batch is cut in blocks of so many."""
    batch = torch.randperm(rows * dim, generator=draws.generator()).reshape(rows, dim).to(dtype)
    dealt = [batch[rank::world_size] for rank in range(world_size)]
    return Case(
        [[batch] * world_size],
        in_order=True,
        also=lambda answer: expect_silent(answer, "Every rank has the whole batch: cut your part out of it."),
        right=list(batch.split([len(mine) for mine in dealt])),
    )


### BEGIN HIDDEN TESTS
hidden_shard_the_batch = vary(
    shard_the_batch, values=[(rows, size, 3, torch.int64) for rows, size in ((3, 11), (5, 3), (1, 4), (4, 0))]
)
### END HIDDEN TESTS


def expect_silent(answer: Answer, why: str) -> None:
    ops = sorted({event.op for event in answer.events})
    if ops:
        raise CheckFailed(f"your function calls {', '.join(ops)}", "no communication", why)


@oracle(values=[(mlp(), [4, 4, 4])], traffic=[(mixed, [2, 2])], if_stuck=SAME_CALLS)
def average_gradients(draws: Draws, make: Make, sizes: list[int]) -> Case:
    models, shards = make(draws, len(sizes)), rows_of(draws, sizes)
    return averaged(models, shards, traffic=lambda answer: expect_all_reduces(answer, bytes_of(models[0])))


### BEGIN HIDDEN TESTS
hidden_average_gradients = vary(
    average_gradients, values=[(mixed, [1] * 5), (mlp(), [3])], traffic=[(mlp(5), [2, 2, 2])]
)
### END HIDDEN TESTS


def expect_all_reduces(answer: Answer, nbytes: list[int], in_order: bool = False) -> str:
    """Judge that every rank made these all-reduces and no other calls, and waited for each."""
    for rank, calls in calls_of_ranks(answer, "all_reduce"):
        sent, each = [call.bytes for call in calls], "bucket" if in_order else "parameter"
        if sent != nbytes if in_order else Counter(sent) != Counter(nbytes):
            raise CheckFailed(
                f"rank {rank} made {plural(len(sent), 'all-reduce')} of {', '.join(map(str, sent))} bytes",
                f"{plural(len(nbytes), 'all-reduce')} of {', '.join(map(str, nbytes))} bytes"
                + ", in this order" * in_order,
                "Start them in the order of `buckets`."
                if Counter(sent) == Counter(nbytes)
                else f"Make one all-reduce for each {each}"
                + (": don't put several together." if len(sent) < len(nbytes) else ", not for parts of it."),
            )
    return f"each rank made {plural(len(nbytes), 'all-reduce')}, {sum(nbytes)} bytes in all."


def expect_broadcasts(answer: Answer, nbytes: int) -> str:
    """Judge that every rank made broadcasts alone, with each tensor once."""
    did, once = "took part in broadcasts of", f"{nbytes} bytes: each parameter and buffer once"
    for rank, calls in calls_of_ranks(answer, "broadcast"):
        sent = sum(call.bytes for call in calls)
        if sent != nbytes:
            too_much = f"{sent / nbytes:.3g} times as much as is needed: broadcast each tensor only once."
            mistake = too_much if sent > nbytes else "Some tensors are left out, or not sent in their own dtype."
            raise CheckFailed(f"rank {rank} {did} {sent} bytes", once, mistake)
    return f"each rank {did} {once}."


def held_by(model: nn.Module) -> dict[str, Tensor]:
    """All parameters, then all buffers."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@oracle(
    values=[(3,), (2, 2, True)],
    traffic=[(2,)],
    if_stuck="every rank must broadcast the same tensors, in the same order, from rank 0.",
)
def broadcast_weights(draws: Draws, world_size: int, features: int = 2, frozen: bool = False) -> Case:
    """Replicas with a batch norm, whose parameters and buffers hold whole numbers that differ from rank to rank. One
    buffer is not persistent, so `state_dict` leaves it out.
    """
    norm = nn.Sequential(nn.Linear(2, features), nn.BatchNorm1d(features)).double().requires_grad_(not frozen)
    norm.register_buffer("scale", torch.zeros(features, dtype=DOUBLE), persistent=False)
    models, right, mistakes = replicas(norm, world_size), {}, {}
    for number, (name, tensor) in enumerate(held_by(norm).items()):
        drawn = draws.different_integers(world_size, tuple(tensor.shape), tensor.dtype, seed=number)
        held = torch.stack(drawn) + 100 * number + (2**-20 if tensor.is_floating_point() else 0)  # too long for float32
        for model, value in zip(models, held, strict=True):
            held_by(model)[name].detach().copy_(value)
        part, own = f"parameter {name!r}", "it was not broadcast, or not into the model's own memory"
        if frozen:
            own = "frozen parameters must be broadcast too"
        if name in dict(norm.named_buffers()):
            part, own = f"buffer {name!r}", "buffers must be broadcast too"
            own += ", those of whole numbers as well" * (tensor.dtype == torch.int64)
            own += ", also those that `state_dict` leaves out" * (name not in norm.state_dict())
        right[part] = held[0]
        mistakes[part] = {
            f"this rank's own: {own}": list(held),
            "the sum over the ranks: copy rank 0's, don't add": held.sum(0),
            "the mean over the ranks: copy rank 0's": held.double().mean(0),
            "another rank's: rank 0 is the source": held[-1],
        }
    case = Case(
        [models],
        right=right,
        mistakes=mistakes,
        seen="rank {rank}: {part} was returned as",
        in_order=True,
        unchanged=False,
        traffic=lambda answer: expect_broadcasts(answer, sum(value.nbytes for value in right.values())),
    )

    def expect_in_model(answer: Answer) -> None:
        inside = replace(case, seen="rank {rank}: {part} in the model is")
        for rank, [model] in enumerate(answer.inputs_after):
            inside.judge_rank([tensor.detach() for tensor in held_by(model).values()], rank)

    case.also = expect_in_model
    return case


### BEGIN HIDDEN TESTS
hidden_broadcast_weights = vary(broadcast_weights, values=[(4, 5), (2, 2, True), (1,)], traffic=[(3, 4)])
### END HIDDEN TESTS


# ---- part 2


@oracle(values=[(mlp(), [4, 3]), (mlp(), [1, 4, 2])], if_stuck=SAME_SHAPES)
def weigh_uneven_shards(draws: Draws, make: Make, sizes: list[int]) -> Case:
    return averaged(make(draws, len(sizes)), rows_of(draws, sizes))


### BEGIN HIDDEN TESTS
hidden_weigh_uneven_shards = vary(weigh_uneven_shards, values=[(mixed, [5, 1, 1, 2]), (mlp(), [2, 2, 2]), (mlp(), [3])])
### END HIDDEN TESTS


@check("epoch-indices")  # explicit, since any shuffled order is right: its properties are judged, over several runs
def epoch_indices_values(run: Runner) -> None:
    judge_epochs(run, 2, 24)
    judge_epoch(run, 4, 11, epoch=0, seed=run.draws.salted() % 1000)
    judge_epoch(run, 5, 2, epoch=0, seed=run.draws.salted() % 1000)


### BEGIN HIDDEN TESTS


@check("epoch-indices")
def hidden_epoch_indices_values(run: Runner) -> None:
    judge_epochs(run, 3, 40)
    for world_size, num_samples in ((5, 2), (1, 7), (4, 9)):
        judge_epoch(run, world_size, num_samples, epoch=2, seed=run.draws.salted() % 1000)


### END HIDDEN TESTS


def judge_epochs(run: Runner, world_size: int, num_samples: int) -> None:
    """Judge epochs 0 and 1, and epoch 0 again. There are enough samples that two orders can't be equal by chance."""
    seed = 1 + run.draws.salted() % 1000  # the same in each run, and not 0
    first, second, again = (judge_epoch(run, world_size, num_samples, epoch, seed) for epoch in (0, 1, 0))
    steps = [{(b - a) % num_samples for a, b in zip(mine, mine[1:], strict=False)} for mine in first]
    in_step, mine = all(len(each) == 1 for each in steps), shortened(first[0])
    sets = [[set(mine) for mine in indices] for indices in (first, second)]
    seeded = "Draw only from a generator that is seeded with seed and epoch."
    fail_if(first != again, "epoch 0 has a different order the second time", seeded)
    fail_if(in_step, f"rank 0 sees the samples {mine}: not shuffled", "Take this rank's part of a shuffled order.")
    is_sorted = all(part == sorted(part) for part in first)
    fail_if(is_sorted, f"rank 0 sees the samples {mine}: sorted", "Keep them in the shuffled order.")
    pairs = [{frozenset(pair) for mine in indices for pair in itertools.pairwise(mine)} for indices in (first, second)]
    always = judge_epoch(run, world_size, num_samples, 0, seed + 1) == first
    if first == second:
        raise CheckFailed(
            "epochs 0 and 1 have the same order" + ", and a different seed changes nothing" * always,
            mistake="Nothing draws from the seeded generator: hand it to randperm, `generator=generator`. (Without it, "
            "the ranks agree only because all of them start here with the same random numbers.)"
            if always
            else "The epoch must be part of the generator's seed.",
        )
    unseeded = "The seed must count in epoch 0, too: seed * epoch is 0 there."
    fail_if(always, f"in epoch 0 the seeds {seed} and {seed + 1} give the same order", unseeded)
    fail_if(
        world_size > 1 and sets[0] == sets[1],
        f"rank 0 sees the same {len(sets[0][0])} samples in epochs 0 and 1, in a different order",
        "Shuffle all samples first, then take this rank's part.",
    )
    fail_if(
        len(pairs[0] & pairs[1]) > len(pairs[0]) / 2,
        "in epoch 1 most samples have the same neighbours as in epoch 0",
        "Shuffle anew in each epoch. To start elsewhere in the same order, reverse it or swap parts is not enough.",
    )


def judge_epoch(run: Runner, world_size: int, num_samples: int, epoch: int, seed: int) -> list[list[int]]:
    """Judge one epoch: every rank gets the same number of samples, every sample is seen, none much more often."""
    answer = run(world_size, num_samples=num_samples, epoch=epoch, seed=seed)
    results, each = answer.results, -(-num_samples // world_size)
    expect_silent(answer, "Every rank can draw the same order by itself.")
    for rank, mine in enumerate(results):
        if not isinstance(mine, list) or any(type(index) is not int or not 0 <= index < num_samples for index in mine):
            wanted = f"a list of plain Python numbers from 0 to {num_samples - 1}"
            tensors = isinstance(mine, Tensor) or isinstance(mine, list) and any(isinstance(x, Tensor) for x in mine)
            raise CheckFailed(f"rank {rank} returned {show(mine)}", wanted, "Take .tolist() of the tensor." * tensors)
        if len(mine) != each:
            why = "Pad the order to a multiple of world_size, so that all ranks get equally many."
            padding = -num_samples % world_size
            if len(mine) == num_samples:
                why = "Those are all samples: give each rank its own part of the order."
            elif len(mine) > each:
                why = f"Pad the order by -num_samples % world_size, which is {padding} here" + (
                    f": {num_samples} is a multiple of {world_size} already." if not padding else "."
                )
            elif num_samples * 2 < world_size:
                why = "One more round of the order is not enough padding here: repeat it as often as needed."
            elif not padding:
                why = f"{num_samples} is a multiple of {world_size}: together, the ranks take the whole order."
            raise CheckFailed(f"rank {rank} got {plural(len(mine), 'sample')}", f"{each} on every rank", why)
    seen = Counter(index for mine in results for index in mine)
    never = [index for index in range(num_samples) if not seen[index]]
    twice = [index for mine in results for index, times in Counter(mine).items() if times > 1]
    fail_if(
        bool(never),
        f"no rank sees {plural(len(never), 'sample')} of {num_samples}: {shortened(never)}",
        f"One rank sees sample {twice[0]} twice: draw without replacement, as randperm does and randint doesn't."
        if twice
        else "Either the ranks shuffle differently, or their parts overlap: use the same seed on every rank, and give "
        "each entry of the order to one rank.",
    )
    most, least = max(seen.values()), min(seen.values())
    often = sorted(index for index in seen if seen[index] == most)
    fail_if(
        most > least + (num_samples % world_size > 0),
        f"some samples are seen {most} times: {shortened(often)}",
        "Pad with the samples from the order's beginning, each of them once before any is used again.",
    )
    return results


def fail_if(is_wrong: bool, saw: str, mistake: str) -> None:
    if is_wrong:
        raise CheckFailed(saw, mistake=mistake)


def shortened(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:6])) + ", ..." * (len(numbers) > 6)


# ---- part 4

make_buckets = frozen_cases(ROOM, "make-buckets")


### BEGIN HIDDEN TESTS


@oracle(
    values=[
        ([5], 10),
        ([100, 1, 100], 10),
        ([4] * 7, 12),
        ([7, 3, 5, 5, 1, 9, 10, 11, 2], 10),
        ([1, 2, 3], 100),
        ([], 8),
        ([], 14, 12),
    ]
)
def hidden_make_buckets(draws: Draws, sizes: list[int], cap: int, count: int = 0) -> Case:
    """count: of sizes to draw, behind the others."""
    sizes = sizes + torch.randint(1, 10, (count,), generator=draws.generator()).tolist()
    right: list[list[int]] = []
    for index in reversed(range(len(sizes))):
        if not right or sum(sizes[other] for other in right[-1]) >= cap:
            right.append([])
        right[-1].append(index)
    return Case(
        [[sizes]],
        for_all={"cap": cap},
        right=every(right),
        seen=f"sizes {sizes}, cap {cap}: you returned",
    )


### END HIDDEN TESTS
communication_end = frozen_cases(ROOM, "communication-end")


### BEGIN HIDDEN TESTS
EMPTY = {"IndexError|is empty|is an empty|empty iterable": "Both lists may be empty: then return 0.0."}


@oracle(
    values=[
        ([2.0], [0.5]),
        ([1.0, 1.5, 6.0, 6.5], [3.0, 3.0, 0.5, 2.0]),
        ([3.0, 2.0, 4.0], [2.0, 0.5, 0.25]),  # not ready in the order in which they are sent
        ([1.0, 2.0, 2.5], [0.5, 4.0, 0.0]),
        ([], [], 8),
    ]
)
def hidden_communication_end(draws: Draws, ready: list[float], took: list[float], count: int = 0) -> Case:
    """count: of buckets to draw, behind the others."""
    steps, all_reduces = torch.randint(1, 9, (2, count), generator=draws.generator()) / 4  # sums of these are exact
    ready, took = ready + steps.cumsum(0).tolist(), took + all_reduces.tolist()
    seen = f"ready {ready}, took {took}: you returned"
    return Case([[ready], [took]], right=end_of(ready, took), seen=seen, advice=EMPTY)


def end_of(ready: list[float], took: list[float]) -> float:
    """The longest chain: a bucket and all those after it, from the moment it is ready."""
    return max((at + sum(took[number:]) for number, at in enumerate(ready)), default=0.0)


### END HIDDEN TESTS

AFTER_WAIT = ", after `wait`: until then the sum is not there"
IN_BUCKETS = [[3], [2, 1], [0]]  # the parameters of `mixed`: 2, 9 and 6 numbers


@oracle(values=[(mixed, [2, 2], IN_BUCKETS)], traffic=[(mixed, [2, 2], IN_BUCKETS)], if_stuck=SAME_CALLS)
def bucketed_gradients(draws: Draws, make: Make, sizes: list[int], buckets: Buckets) -> Case:
    models, shards = make(draws, len(sizes)), rows_of(draws, sizes)
    nbytes = bytes_in(buckets, models[0])
    return averaged(
        models,
        shards,
        when=AFTER_WAIT,
        buckets=buckets,
        advice=PIECES,
        traffic=lambda answer: expect_starts(answer, nbytes),
    )


### BEGIN HIDDEN TESTS
hidden_bucketed_gradients = vary(
    bucketed_gradients,
    values=[
        (mlp(5), [1, 1, 1, 1], [[4], [3, 2, 1], [0]]),
        (mixed, [2, 2], [[3, 2, 1, 0]]),
        (mixed, [2], IN_BUCKETS),
    ],
    traffic=[(mixed, [2, 2, 2], [[3, 2], [1], [0]])],
)
### END HIDDEN TESTS


def bytes_in(buckets: Buckets, model: nn.Module) -> list[int]:
    return [sum(bytes_of(model)[index] for index in bucket) for bucket in buckets]


def expect_starts(answer: Answer, nbytes: list[int]) -> str:
    """Judge that there are all-reduces of so many bytes, in this order, and all are started before any wait."""
    expect_all_reduces(answer, nbytes, in_order=True)
    expect_launched_first(answer)
    return f"each rank started {plural(len(nbytes), 'all-reduce')} of {', '.join(map(str, nbytes))} bytes."


SAME_ORDER = (
    "the ranks started buckets in different orders, so that all-reduces of different sizes met; or a rank "
    "never started a bucket. Start a bucket when it is complete and all before it have been started."
)
OWN_ORDER = (
    "Gradients become ready in a different order on each rank, and each rank all-reduced one as soon as it, or its "
    "bucket, was complete. Start only whole buckets, each when it is complete and all before it have been started."
)
WHILE = (
    "One gradient can let several buckets start: its own, and those behind it that were complete already. Start them "
    "in a `while`, not an `if`."
)
TWICE = (
    "On the rank whose gradients became ready out of order, one bucket was all-reduced twice and another never. "
    "In the `while`, the bucket to start is number len(flights), not the `number` that the hook was called with."
)
PIECES = {
    "index out of range": "The indices in `buckets` number the model's trained parameters. Flat tensors, handles, and "
    "the pieces of one flat tensor are counted from 0.",
    "doesn't require grad": "Frozen parameters get no gradient, and `buckets` doesn't count them: use "
    "self.trained[index], not list(module.parameters())[index].",
    "split_with_sizes|invalid for input of size|must match the size": "Cut each flat tensor into the pieces that it "
    "was put together from.",
}
IN_HOOK = (
    "Start each bucket in the hook that completes it, whether those behind it are complete or not. Is each hook on its "
    "own parameter, and does it count for that parameter's bucket?"
)
SLOW = (0.1, 12.0)  # no all-reduce ends before backward does, so a wait in any hook makes backward longer
AT_THE_END = "only when the last gradient was there, or later"
HOOK_ADVICE = {  # the report leaves out the part in parentheses
    "split_with_sizes": "A flat tensor was put together from a different bucket than it is cut for. A name from a loop "
    "outside, such as `bucket`, has its last value when a hook runs.",
    **PIECES,
    r"register_\w+hook\((?!partial)[\w.]+\(|missing 1 required positional": "Autograd calls a hook with the parameter "
    "alone. Register a function, with its number bound and not called yet: partial(one_more_is_ready, number).",
    r"branches\.0 when rank \d+ reduced that of \S*branches\.1\.( (?:Go through|Both ranks)[\s\S]*)": TWICE,
    r"reduced the gradient of \S+ when rank \d+ reduced that of \S+\.( (?:Go through|Both ranks)[\s\S]*)": OWN_ORDER,
    (NEVER := r"has finished after \d+ calls? of this all_reduce; rank .*\.( A collective[\s\S]*)"): (
        f"So a bucket was never started there, although all its gradients had come. {WHILE}"
    ),
    r"(?:brought|'s all_reduce) [\s\S]*int64": (
        "The all-reduce of the users met that of a bucket. On every rank start all buckets first, in order, then the "
        "users; and in an earlier microbatch, let the hooks do nothing."
    ),
    "brought float": OWN_ORDER,
    r"NoneType.*( \(register_hook\))": "A hook ran before its gradient was in `grad`. A register_hook hook is called "
    "before that, a register_post_accumulate_grad_hook hook after it.",
    r"NoneType.*( \(complete\))": "The bucket whose turn it is was complete, but another one was put together. Take "
    "buckets[len(flights)]: a name from a loop outside, such as `bucket`, has its last value when a hook runs.",
    "NoneType(?!' and)": "A bucket was put together with a gradient missing: start it once its own count is 0.",
}


def with_hooks(
    function: Callable[..., Any], model: nn.Module, data: Tensor, rank: int, world_size: int, buckets: Buckets
) -> Any:
    """As with_gradients; where a gradient is None, the error says more, for HOOK_ADVICE."""
    try:
        return with_gradients(function, model, data, rank, world_size, buckets=buckets)
    except (AttributeError, TypeError) as error:
        parameters = list(model.parameters())
        hooks = [hook for parameter in parameters for hook in (backward_hooks_of(parameter) or {}).values()]
        scopes = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
        turn = buckets[len(next((scope["flights"] for scope in scopes if "flights" in scope), ())) :][:1]
        if any(not type(hook).__module__.startswith("utils.") for hook in hooks):
            error.args = (f"{error} (register_hook)",)
        elif turn and all(parameters[index].grad is not None for index in turn[0]):
            error.args = (f"{error} (complete)",)
        raise


@oracle(
    values=[(mixed, [2, 2], IN_BUCKETS), (branched([[0, 1], [1, 0]], 2), [2, 2], [[3], [2], [1], [0]])],
    traffic=[
        (mlp(4), [2, 2], [[3], [2], [1, 0]], SLOW),
        (branched([[0, 1], [1, 0]], 2), [2, 2], [[3], [2], [1], [0]], SLOW),
    ],
    time=[(mlp(4), [2, 2], [[3], [2], [1], [0]], (0.1, 0.7))],  # the network keeps up: 0.9 units per bucket
    if_stuck=SAME_ORDER,
)
def overlap_by_hooks(
    draws: Draws, make: Make, sizes: list[int], buckets: Buckets, network: Sequence[float] = (), end: End | None = None
) -> Case:
    """In branched models the gradients are ready in a different order on each rank.

    network  latency and transfer of a virtual cluster; real ranks by default
    end      by default, that of a network which keeps up
    """
    models, shards = make(draws, len(sizes)), rows_of(draws, sizes)
    nbytes, cluster = bytes_in(buckets, models[0]), cluster_of_units(len(sizes), *network) if network else None
    case = averaged(
        models,
        shards,
        when=AFTER_WAIT,
        unsent="its bucket was never started, or the mean never got into `grad`. Does each hook count for its own "
        "bucket? A `lambda` looks up `number` when it is called, not when it is made",
        buckets=buckets,
        cluster=cluster,
        clock=cluster,
        advice=HOOK_ADVICE,
        traffic=lambda answer: expect_starts_in_backward(answer, nbytes),
    )
    case.time = lambda answer: expect_overlap(answer, case, buckets, end)
    return case


### BEGIN HIDDEN TESTS
hidden_overlap_by_hooks = vary(
    overlap_by_hooks,
    values=[
        (branched([[0, 1, 2], [2, 0, 1], [1, 2, 0]], 3), [2, 2, 2], [[4], [3], [2], [1], [0]]),
        (branched([[0, 1, 2], [2, 1, 0]], 3), [2, 2], [[4, 2], [3], [1, 0]]),
        (mixed, [2], IN_BUCKETS),
        (mlp(3), [1] * 5, [[2, 1, 0]]),
    ],
    traffic=[(mlp(5), [2] * 3, [[4, 3], [2], [1], [0]], SLOW)],
    time=[
        (mlp(6), [2] * 4, [[5, 4], [3, 2], [1], [0]], (0.05, 2.5), end_of),
        (mlp(3), [2] * 2, [[2, 1, 0]], (0.1, 1.3), end_of),
        (mlp(6), [2] * 2, [[5, 4, 3], [2], [1], [0]], (0.1, 1.3), end_of),
        (mlp(5), [2] * 2, [[4], [3], [2], [1], [0]], (0.1, 4.0), end_of),
    ],
)
### END HIDDEN TESTS


def expect_starts_in_backward(answer: Answer, nbytes: list[int]) -> str:
    said = expect_all_reduces(answer, nbytes, in_order=True)
    for rank, calls in calls_of_ranks(answer, "all_reduce"):
        backward = [each.end for each in answer.run.regions if each.rank == rank and each.name == "backward"]
        if not backward:
            raise CheckFailed(f"rank {rank} has no region 'backward'", mistake="Keep the line with region(...).")
        expect_no_waits(rank, calls, backward[0] * (1 - 1e-9))
        late = sum(call.start >= backward[0] * (1 - 1e-9) for call in calls[:-1])
        if late:
            raise CheckFailed(
                f"rank {rank} started {late} of the first {plural(len(calls) - 1, 'bucket')} {AT_THE_END}",
                "all but the last to start before that",
                IN_HOOK if late == len(calls) - 1 else WHILE,
            )
    expect_launched_first(answer)
    return said + " All but the last started before backward ended."


def expect_no_waits(rank: int, calls: Sequence[Event], end: float) -> None:
    """Judge that no rank waits before its backward pass ends, by a wait() or in a call that blocks."""
    blocked = sum(not call.is_async for call in calls if call.start < end)
    waits = sum(call.is_async and call.waited is not None and call.waited < end for call in calls)
    if blocked or waits:
        raise CheckFailed(
            f"rank {rank}: {blocked or waits} of {plural(len(calls), 'all-reduce')} "
            + ("blocked" if blocked else "had been waited for before backward ended"),
            "none",
            "Pass async_op=True and keep the handle." if blocked else "Call wait() when the backward pass is over.",
        )


UNIT = 1e-6  # seconds per matrix product on the cluster below
NBYTES = 2 * 2 * 8  # one weight of the MLP


def cluster_of_units(world_size: int, latency: float, transfer: float) -> Cluster:
    """On this cluster a matrix product of one layer takes one unit, for 2 rows, and all other computing takes none.

    So the forward pass takes one unit per layer and the backward pass two, but only one for the first layer, since the
    gradient of the batch is not needed.
    latency, transfer: of a message, and of one weight's all-reduce between two ranks, in units.
    """
    gpu = Gpu({"fp64": 2 * 2**3 / UNIT}, memory=math.inf, bandwidth=math.inf, launch=0)
    link = Link(latency * UNIT, NBYTES / (transfer * UNIT))
    return Cluster("units", 1, world_size, gpu=gpu, intra=link, inter=link)


def expect_overlap(answer: Answer, case: Case, buckets: Buckets, end: End | None) -> str:
    """Judge the values, and that only the communication that can't be hidden is exposed."""
    case.judge_values(answer)
    assert case.clock
    layers, layout = max(map(max, buckets)) + 1, Layout.of(case.clock, range(case.world_size))
    took = [cost("all_reduce", len(bucket) * NBYTES, case.clock, layout).seconds for bucket in buckets]
    ready = [min(2 * (layers - min(bucket)), 2 * layers - 1) * UNIT for bucket in buckets]
    backward = next((each.end for each in answer.run.regions if each.name == "backward"), math.inf) * (1 - 1e-9)
    calls = [event for event in answer.events if event.rank == 0]
    words = ""
    if calls and min(call.start for call in calls) >= backward:
        words = "the time of a network that is idle until backward is over: start each bucket in a hook"
    elif any(not call.is_async or (call.waited is not None and call.waited < backward) for call in calls):
        words = "the time of a backward that waits for the network: start each all-reduce in its hook, wait at the end"
    best = layers * UNIT + (end(ready, took) if end else ready[-1] + took[-1])
    least = (3 * layers - 1) * UNIT + took[-1]
    expect_time(answer, best, recognise={words: answer.run.elapsed} if words else {}, least=least)
    exposed, last = answer.run.elapsed - (3 * layers - 1) * UNIT, calls[-1]
    assert last.end is not None  # virtual ranks that never wait for a call fail
    return f"{quantity(exposed, 's')} exposed; the last all-reduce takes {quantity(last.end - last.start, 's')}."


# ---- part 5

BY_USERS = "the mean over the ranks that have used it: divide by world_size, the others count as zero"
BY_ALL_USERS = "the sum over the ranks divided by `users.sum()`, all parameters' users together: divide by world_size"


@oracle(
    values=[([[0, 2], [2]], 3)],
    if_stuck="a rank all-reduced a gradient that another rank does not have, or skipped one. All must first agree "
    "on which parameters have been used anywhere, then contribute zeros where they have no gradient.",
)
def average_what_is_used(draws: Draws, orders: list[list[int]], branches: int, freeze: bool = True) -> Case:
    """orders: the branches that each rank uses."""
    models = branched(orders, branches, freeze)(draws, len(orders))
    shards = rows_of(draws, [2] * len(orders))
    local = local_gradients(models, shards)
    right = mean_of_users(local)[0]
    mistakes = {
        "None, but another rank has used it: every rank needs the mean": math.nan * right,
        BY_USERS: local.nanmean(0),
        BY_ALL_USERS: len(orders) * right / all_users(local, models[0]),
    } | zeros_for_none(right, models[0], "used it: leave it None, or AdamW keeps moving it")
    return gradient_case(models, shards, local, right, mistakes)


### BEGIN HIDDEN TESTS
hidden_average_what_is_used = vary(
    average_what_is_used,
    values=[([[3], [0, 1], [1], [3, 1]], 5), ([[], [0], []], 2, False), ([[1]], 2)],
)
### END HIDDEN TESTS


STEPS = 2
INPUT = "the gradient of the input"  # the last thing that a backward pass computes; then come the last hooks
OVER = "the end of the backward pass"
LAST = "of the last microbatch"
ZEROS = "A flat tensor has a place for each parameter of its bucket: without a gradient, zeros of its shape and dtype."
ANEW = (
    "Or counts and flights are left from an earlier pass: set both anew before each last one, and count in no other. "
    "Or a flat tensor has no zeros for a parameter without a gradient."
)
TOO_EARLY = (
    "the mean without some rank's gradient, or a part of it: the bucket was sent before all its gradients had come."
)
ITSELF = "Start a bucket only when the count of its own missing gradients is 0, and put it together from self.trained"
AGAIN = "In the first step it wasn't, so set the counts of missing gradients anew before each last backward"
ANOTHERS = "another parameter's gradient: the indices in `buckets` count the trained ones, so use self.trained[index]"
UNUSED = (
    "a gradient: set None there, or the weight decays. Count the users before you fill in zeros; if a hook filled them "
    "in, it started its bucket too early"
)
STALE = "the first step's result, divided once more: begin each step with no flights, or no bucket of it is sent"


@oracle(
    values=[
        ([[1, 2], [2]], 3, 3, True, [[3], [2], [1, 0]]),
        ([[0, 1], [1, 0], [0, 1]], 2, 1, False, [[3], [2], [1], [0]]),
    ],
    traffic=[([[0, 1], [1, 0]], 2, count, True, [[2], [1], [0]]) for count in (1, 3)],
    if_stuck="the ranks start different all-reduces, or in a different order. Every rank reduces every bucket once, in "
    "order, whatever it has used; then the users.",
)
def replica(draws: Draws, orders: list[list[int]], branches: int, count: int, freeze: bool, buckets: Buckets) -> Case:
    """Some steps of `count` microbatches. orders: the branches that each rank uses, in this order."""
    starts = [make_weights(2 + branches, 2, draws.salted(100 * rank), DOUBLE) for rank in range(len(orders))]
    models = [AwkwardMLP(weights, order, freeze) for weights, order in zip(starts, orders, strict=True)]
    for rank, model in enumerate(models):
        model.register_buffer("scale", torch.full((2,), float(rank + 1)))
    ranks, parts = len(orders), [[2] * len(orders) for _ in range(count)]
    batches = [[rows_of(draws, part, seed=10 * n + m) for m, part in enumerate(parts)] for n in range(STEPS)]
    of_ranks = [[[of_all[rank] for of_all in step] for step in batches] for rank in range(ranks)]
    nbytes = [sum(bytes_of_trained(models[0])[index] for index in bucket) for bucket in buckets]

    right: dict[str, Any] = {f"{name!r} at the start": x.detach() for name, x in held_by(models[0]).items()}
    not_sent = "this rank's own: broadcast all that rank 0 holds, frozen parameters and buffers too"
    mistakes: dict[str, dict[str, Any]] = {
        f"{name!r} at the start": {not_sent: [held_by(model)[name].detach() for model in models]}
        for name in held_by(models[0])
    }
    for step, (local, last) in enumerate(steps := trained_serially(models, of_ranks), 1):
        mean, usual = mean_of_users(local), wrong_in_a_step(models[0], local, last, count, buckets)
        usual |= {STALE: mean_of_users(steps[0][0]) / ranks} if step > 1 else {}
        for n, (name, pieces) in enumerate(by_piece(usual, models[0], local).items()):
            part = f"{name} in step {step}"
            right[part] = cut(mean[0], models[0])[n]
            why = AGAIN if step > 1 else "Count in a last backward only. " * (count > 1) + ITSELF
            also = {ANOTHERS: lambda got: isinstance(got, Tensor) and bool(got.any())} if right[part] is None else {}
            mistakes[part] = {**pieces, **also, f"{TOO_EARLY} {why}": partial(lacks_some, local, last, models[0], n)}
    case = Case(
        [models, of_ranks],
        for_all={"buckets": buckets},
        right=right,
        mistakes=mistakes,
        rtol=RTOL,
        driver=train_replica,
        unpack=lambda got, _: dict(zip(right, got, strict=True)),
        unchanged=False,
        before=lambda answer: expect_all_digits(answer, case),
        advice=DTYPE
        | {"split_with_sizes|NoneType(?!' and)": ZEROS}
        | {pattern: words.replace(OWN_ORDER, f"{OWN_ORDER} {ANEW}") for pattern, words in HOOK_ADVICE.items()}
        | {NEVER: f"So a bucket was never started there. {WHILE} After backward, start those that still wait."},
        traffic=lambda answer: expect_reduced_once(answer, nbytes, count),
    )
    return case


### BEGIN HIDDEN TESTS
hidden_replica = vary(
    replica,
    values=[
        ([[3], [0, 1], [1], [3, 1]], 5, 2, False, [[6, 5], [4, 3, 2], [1], [0]]),
        ([[], [0]], 2, 1, True, [[2, 1, 0]]),
        ([[1]], 2, 3, True, [[2], [1, 0]]),
    ],
    traffic=[([[2, 0, 1], [1, 2, 0], [0, 1, 2]], 3, count, True, [[3, 2], [1], [0]]) for count in (1, 2)],
)
### END HIDDEN TESTS


def wrong_in_a_step(model: nn.Module, local: Tensor, last: Tensor, count: int, buckets: Buckets) -> dict[str, Tensor]:
    """What usual mistakes lead to. local, last: the ranks' gradients of all microbatches, and of the last one."""
    ranks, known, mean = len(local), local.isnan().logical_not(), mean_of_users(local)
    usual = {
        "this rank's own gradient: it was in no bucket that was sent (indices in `buckets` count the trained "
        "parameters only), or the mean was not put into grad": local.where(known, mean),
        "the sum over the ranks: divide by world_size": (ranks * mean).where(known.sum(0) != 1, mean),
        "the mean divided by world_size once more: divide once": mean / ranks,
        "this rank's own gradient plus the mean: put the mean in its place": local.nan_to_num() + mean,
        FIRST_NUMBERS: first_numbers(mean[0], model, buckets),
        BY_USERS: local.nanmean(0),
        BY_ALL_USERS: ranks * mean / all_users(local, model),
        "what rank 0 decides alone: any rank may have used the parameter": mean.where(known[0], math.nan),
        "the result of each rank deciding for itself what has been used, or of leaving out what some rank hasn't: "
        "only where the sum of the users is 0, the result is None": mean.where(known, math.nan),
        **zeros_for_none(mean, model, UNUSED),
    }
    if count > 1:
        usual |= {
            "the mean divided by the number of microbatches: the loss is divided by it already": mean / count,
            "the last microbatch's gradient alone: leave what earlier ones have put into grad": mean_of_users(last),
        }
    return usual


def lacks_some(local: Tensor, last: Tensor, model: nn.Module, number: int, got: Any) -> bool:
    """Whether that is the mean gradient of parameter `number` if some ranks add nothing, or all but the last part."""
    added, ranks = torch.stack([local, local - last, 0 * local]).nan_to_num(), range(len(local))
    sums = (added[list(those), ranks].sum(0) for those in itertools.product(range(3), repeat=len(ranks)))
    return any(equal_values(got, cut(total / len(ranks), model)[number], 1e-6) for total in sums)


def zeros_for_none(mean: Tensor, model: nn.Module, unused: str) -> dict[str, Tensor]:
    """What zeros in place of None are, in a frozen parameter and in one that no rank has `unused`."""
    frozen = torch.cat([torch.full((one.numel(),), not one.requires_grad) for one in model.parameters()])
    return {
        "all zeros, but it is frozen: leave it None. `users` has one entry for each parameter of `trained`, so go "
        "through these two together": mean.nan_to_num().where(frozen, mean),
        f"all zeros, where no rank has {unused}": mean.nan_to_num().where(~frozen, mean),
    }


def all_users(local: Tensor, model: nn.Module) -> int:
    """The sum over all parameters of how many ranks have a gradient."""
    return sum(piece is not None for row in local for piece in cut(row, model))


def mean_of_users(local: Tensor) -> Tensor:
    """(P, n) -> (P, n): the mean over the ranks, where NaN counts as zero; NaN where all are."""
    return local.nan_to_num().mean(0).where(local.isnan().all(0).logical_not(), math.nan).expand_as(local)


def bytes_of_trained(model: nn.Module) -> list[int]:
    return [parameter.nbytes for parameter in model.parameters() if parameter.requires_grad]


def train_replica(
    function: Callable[..., Any], model: nn.Module, batches: Sequence[Sequence[Tensor]], buckets: Buckets
) -> list[Tensor | None]:
    """What a rank runs: what it holds at the start, then its gradients in each step."""
    wrapped = function(model, buckets=buckets)
    optimizer = sgd(model)
    held: list[Tensor | None] = [tensor.detach().clone() for tensor in held_by(model).values()]
    for microbatches in batches:
        for number, rows in enumerate(microbatches):
            is_last, x = number == len(microbatches) - 1, rows.clone().requires_grad_()
            when, loss = LAST if is_last else "of an earlier one", loss_of(wrapped(x)) / len(microbatches)
            x.register_hook(partial(mark, f"{INPUT} {when}"))
            loss.register_hook(lambda _, over=f"{OVER} {when}": when_backward_ends(partial(mark, over)))
            wrapped.backward(loss, last=is_last)
        held += [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return held


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """No Adam, which would hide a wrong scale. A gradient of zeros isn't None: the weights decay."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, weight_decay=0.5)


def mark(name: str, _: Tensor | None = None) -> None:
    with region(name):
        pass


def trained_serially(
    models: list[AwkwardMLP], of_ranks: Sequence[Sequence[Sequence[Tensor]]]
) -> list[tuple[Tensor, Tensor]]:
    """In each step: each rank's own gradients of all microbatches, and of the last one, (P, n); NaN for none."""
    replicas, steps = deepcopy(models), []
    for model in replicas:
        model.load_state_dict(models[0].state_dict())
    optimizers = [sgd(model) for model in replicas]
    for step in range(STEPS):
        of_each = [
            [gradients(m, rows) / len(own[step]) for rows in own[step]]
            for m, own in zip(replicas, of_ranks, strict=True)
        ]
        local = torch.stack([torch.stack(parts).sum(0) for parts in of_each])
        steps.append((local, torch.stack([parts[-1] for parts in of_each])))
        for model, optimizer in zip(replicas, optimizers, strict=True):
            for parameter, gradient in zip(model.parameters(), cut(mean_of_users(local)[0], model), strict=True):
                parameter.grad = gradient
            optimizer.step()
    return steps


def expect_reduced_once(answer: Answer, nbytes: list[int], count: int) -> str:
    """Judge that each bucket is reduced once in a step, then the users, and that backward starts what it can."""
    each, wanted = len(nbytes) + 1, STEPS * (len(nbytes) + 1)
    for rank, calls in calls_of_ranks(answer, "all_reduce", besides="broadcast"):
        marks = [each.start for each in answer.run.regions if each.rank == rank and INPUT in each.name]
        sent = [event.start for event in answer.events if (event.rank, event.op) == (rank, "broadcast")]
        again = sum(start > min(marks, default=math.inf) for start in sent)
        seen = f"rank {rank} took part in {plural(again, 'broadcast')} after the first backward pass"
        fail_if(again > 0, seen, "All ranks stay equal by themselves: broadcast in `__init__` alone.")
        made = [call.bytes for call in calls]
        if len(made) != wanted or any(made[n * each : (n + 1) * each - 1] != nbytes for n in range(STEPS)):
            raise CheckFailed(
                f"rank {rank} made {plural(len(made), 'all-reduce')} in {STEPS} steps",
                f"{wanted}: in each step each bucket once, in order, then the users",
                "Only the last microbatch's backward pass communicates." if len(made) > wanted else "",
            )
        ends, overs = (
            [at.start for at in answer.run.regions if (at.rank, at.name) == (rank, f"{what} {LAST}")]
            for what in (INPUT, OVER)
        )
        for step, (end, over) in enumerate(zip(ends, overs, strict=False)):
            of_step = calls[step * each : (step + 1) * each - 1]
            expect_no_waits(rank, of_step, over)
            late = sum(call.start > end for call in of_step[:-1])
            if late:
                advice = WHILE if late < len(nbytes) - 1 else IN_HOOK
                if step > 0:
                    advice = "In the first step they did: are the numbers of missing gradients set anew in each step?"
                elif count > 1:  # the same with one microbatch has been judged before
                    advice = "In steps of one microbatch they did: set the counts anew before each last backward pass."
                raise CheckFailed(
                    f"rank {rank} started {late} of the first {plural(len(nbytes) - 1, 'bucket')} {AT_THE_END}",
                    "all but the last to start before that, in the last backward pass",
                    advice,
                )
    return f"each rank reduced {plural(len(nbytes), 'bucket')} once in a step: all but the last started in backward."


# ---- part 6

EPS = 0.25  # large enough to show when it is forgotten


@oracle(values=[([4, 2], 3)], traffic=[([5, 4], 3)], if_stuck=SAME_SHAPES)
def normalise_globally(draws: Draws, sizes: list[int], dim: int, eps: float = EPS) -> Case:
    """A batch norm over the rows of all ranks."""
    shards = rows_of(draws, sizes, dim)
    rows = torch.cat(shards)
    mean, var = rows.mean(0), rows.var(0, correction=0)
    case = Case(
        [shards],
        for_all={"eps": eps},
        unpack=lambda got, rank: as_tuple(got, ["x_hat", "var"], rank),
        right={"var": var, "x_hat": [(x - mean) / torch.sqrt(var + eps) for x in shards]},
        rtol=RTOL,
        in_order=True,
        before=lambda answer: expect_all_digits(answer, case),
        advice={
            "invalid tensor size|gather needs the same": "Shards differ in size. Don't gather rows: all-reduce sums."
        },
        traffic=lambda answer: expect_small_all_reduces(answer, dim),
    )
    return case


### BEGIN HIDDEN TESTS
SHARDS = [([1, 5, 2], 2, 1e-5), ([2, 2, 2, 1, 1], 4), ([4], 3)]
hidden_normalise_globally = vary(normalise_globally, values=SHARDS, traffic=[([12, 9, 30], 2, 0.1)])
### END HIDDEN TESTS


def expect_small_all_reduces(answer: Answer, features: int) -> str:
    limit = 2 * features + 1
    for rank, events in calls_of_ranks(answer, "all_reduce"):
        if not 1 <= len(events) <= 2:
            raise CheckFailed(
                f"rank {rank} made {plural(len(events), 'all-reduce')}",
                "one or two",
                "Put what you sum into one tensor, with torch.cat." if events else "",
            )
        largest = max(math.prod(event.shape) for event in events)
        if largest > limit:
            raise CheckFailed(
                f"rank {rank} all-reduced {largest} numbers at once",
                f"at most {limit}: 2 for each of {features} columns, and one",
                "Sum over your own rows first: the size of an all-reduce must not grow with the batch.",
            )
    return f"each rank made {plural(len(events), 'all-reduce')} of {largest} numbers at most."


@oracle(values=[([4, 2], 3)], traffic=[([5, 4], 3)], if_stuck=SAME_SHAPES)
def normalise_backward(draws: Draws, sizes: list[int], dim: int, eps: float = EPS) -> Case:
    """Autograd, through a batch norm over the rows of all ranks."""
    rows = torch.cat(rows_of(draws, sizes, dim)).requires_grad_()
    var, g = rows.var(0, correction=0), rows_of(draws, sizes, dim, seed=1)
    normalised = (rows - rows.mean(0)) / torch.sqrt(var + eps)
    right = torch.autograd.grad(normalised, rows, torch.cat(g))[0].split(sizes)
    x_hat, var = [part.clone() for part in normalised.detach().split(sizes)], var.detach()
    case = Case(
        [g, x_hat, [var.clone() for _ in sizes]],
        for_all={"eps": eps},
        right=list(right),
        rtol=RTOL,
        in_order=True,
        before=lambda answer: expect_all_digits(answer, case),
        traffic=lambda answer: expect_small_all_reduces(answer, dim),
    )
    return case


### BEGIN HIDDEN TESTS
hidden_normalise_backward = vary(normalise_backward, values=SHARDS, traffic=[([12, 9, 30], 2, 0.1)])
### END HIDDEN TESTS


# ---- the challenge

RATE = 36.8e9  # bytes of gradients that the backward pass makes in a second


@oracle(score=[([3, 1, 4, 4] * 24, 2**21, 2e-4, 40e9)], par=frozen_par(ROOM, "best-buckets"))
def best_buckets(_: Draws, parts: list[int], unit: int, latency: float, bandwidth: float) -> Case:
    """parts: how many times `unit` bytes each parameter has."""
    sizes, ready = gradients_of(parts, unit)

    def exposed(buckets: Buckets) -> float:
        return end_of_buckets(buckets, sizes, ready, latency, bandwidth) - max(ready)

    def expect_in_order(answer: Answer) -> None:
        """Judge that these are buckets, and that they aren't slower than par just because of their order."""
        plan, why = answer.results[0], ""
        expect_buckets(plan, len(sizes))
        score, paid = exposed(plan), latency * len(plan)
        in_order = exposed(sorted(plan, key=lambda bucket: max(ready[index] for index in bucket)))
        if score > 1.2 * in_order:
            why = f"The same buckets, sent as they get ready, would score {quantity(in_order, 's')}. They are sent in "
            why += "the order of your list, so the first one should hold the last parameter."
        elif paid > score / 2 > case.par:
            why = f"Your {len(plan)} buckets pay the latency {len(plan)} times: {quantity(paid, 's')} in all."
        if why and score > case.par:
            seen = f"the values are right; the score is {quantity(score, 's')} exposed"
            raise CheckFailed(seen, f"par, {quantity(case.par, 's')}, or less", why)

    case = Case(
        [[sizes], [ready]],
        for_all={"latency": latency, "bandwidth": bandwidth},
        also=expect_in_order,
        score=Measure(lambda answer: exposed(answer.results[0]), "s", "exposed"),
        limit=least_exposed(sizes, ready, latency, bandwidth),
    )
    return case


### BEGIN HIDDEN TESTS


def exposed_with_one_cap(parts: list[int], unit: int, latency: float, bandwidth: float) -> float:
    """The best of all caps of whole MiB, up to 100."""
    sizes, ready = gradients_of(parts, unit)
    ends: list[float] = []
    for cap in range(2**20, 101 * 2**20, 2**20):
        plan: list[list[int]] = []
        room = 0
        for index in reversed(range(len(sizes))):
            if room <= 0:
                plan.append([])
                room = cap
            plan[-1].append(index)
            room -= sizes[index]
        ends.append(end_of_buckets(plan, sizes, ready, latency, bandwidth))
    exposed: float = min(ends) - max(ready)
    return exposed


hidden_best_buckets = vary(
    best_buckets,
    par=exposed_with_one_cap,
    score=[
        ([3, 1, 4, 4] * 6, 2**23, 1e-3, 39e9),
        ([5, 1, 1, 2, 9, 3] * 8, 2**20, 1e-4, 45e9),
        ([3], 2**20, 1e-4, 40e9),
    ],
)
### END HIDDEN TESTS


def gradients_of(parts: list[int], unit: int) -> tuple[list[int], list[float]]:
    """(bytes of each parameter, the second at which its gradient is ready): the last one comes first."""
    sizes = [unit * part for part in parts]
    return sizes, [sum(sizes[index:]) / RATE for index in range(len(sizes))]


def end_of_buckets(buckets: Buckets, sizes: list[int], ready: list[float], latency: float, bandwidth: float) -> float:
    """The longest chain: from the moment when a bucket is ready, it and all those after it."""
    took = [latency + sum(sizes[index] for index in bucket) / bandwidth for bucket in buckets]
    return max(max(ready[index] for index in bucket) + sum(took[n:]) for n, bucket in enumerate(buckets))


def least_exposed(sizes: list[int], ready: list[float], latency: float, bandwidth: float) -> float:
    """No plan is better: what gets ready from some moment on is sent after it, by one all-reduce at least."""
    late = [sum(size for size, at in zip(sizes, ready, strict=True) if at >= moment) for moment in ready]
    return max(at + latency + nbytes / bandwidth for at, nbytes in zip(ready, late, strict=True)) - max(ready)


def expect_buckets(buckets: Any, count: int) -> None:
    """Judge that these are buckets in which each parameter is once."""
    if not isinstance(buckets, list) or not all(isinstance(bucket, list) for bucket in buckets):
        raise CheckFailed(f"it returned {show(buckets)}", "a list of buckets, each a list of indices")
    if [] in buckets:
        raise CheckFailed(f"bucket {buckets.index([])} is empty", mistake="There would be nothing to send.")
    times = Counter(index for bucket in buckets for index in bucket)
    strange = [index for index in times if type(index) is not int or not 0 <= index < count]
    if strange:
        raise CheckFailed(f"there is an index {show(strange[0])}", f"whole numbers from 0 to {count - 1}")
    for index in range(count):
        if times[index] != 1:
            raise CheckFailed(f"parameter {index} is in {plural(times[index], 'bucket')}", "each in one bucket")


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(best_buckets, par=exposed_with_one_cap),
    vary(
        hidden_make_buckets, values=[([40, 40, 450, 120, 120, 120, 200, 200], 400), ([8, 8, 8], 16), ([30, 10, 10], 20)]
    ),
    vary(
        hidden_communication_end,
        values=[
            ([4.25, 5.0, 6.25], [4.0, 0.5, 1.0]),
            ([1.0, 2.0, 4.0], [0.5, 0.75, 3.0]),
            ([1.0, 4.0, 5.25], [2.0, 3.0, 1.5]),
            ([], []),
        ],
    ),
)
### END HIDDEN TESTS
