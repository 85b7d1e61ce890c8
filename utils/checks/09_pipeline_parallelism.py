"""The visible checks of lesson 09. Each is quick: one to three runs of one to four ranks. Form: see registry.py.

The oracle of every gradient is one process with all layers. A student's schedule is judged without a student's stage:
kit/pipeline_schedule.py follows it, worlds/virtual/play_schedule.py plays it. A student's stage runs the schedules
written out below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, TypeVar

import torch

from ..cluster.hardware import Cluster, Gpu, Link
from ..kit import mlp
from ..kit.pipeline_schedule import Step, problem, read
from ..worlds.virtual.play_schedule import play
from .answer import Answer, CheckFailed
from .compare import expect, expect_unchanged
from .equality import alike
from .inputs import Draws
from .marking import check
from .runner import Runner
from .traffic import expect_each_sent, expect_only_messages, expect_time

DIM = 4
EXACT = torch.float64  # sums in a different order differ in the last digits only
RTOL = 1e-7

T = TypeVar("T")
World = Callable[..., Answer]  # called as a Runner is
Stages = list[list[torch.Tensor]]  # the weights, or the gradients, of each stage
LossAndGradients = tuple[torch.Tensor, list[torch.Tensor]]
RawStep = tuple[Any, ...]  # (kind, microbatch) or (kind, microbatch, chunk)


# ---- data


def model(
    draws: Draws, layers: int, rows: int, dtype: torch.dtype = EXACT, seed: int = 0
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(weights of all layers, the batch)"""
    seed = draws.salted(seed)
    return mlp.make_weights(layers, DIM, seed, dtype), mlp.make_batch(rows, DIM, seed, dtype)


def cut_evenly(items: Sequence[T], ranks: int) -> list[list[T]]:
    """Each rank's consecutive items; the first ranks get one more if they don't divide evenly."""
    sizes = [len(items) // ranks + (rank < len(items) % ranks) for rank in range(ranks)]
    starts = [sum(sizes[:rank]) for rank in range(ranks)]
    return [list(items[start : start + size]) for start, size in zip(starts, sizes, strict=True)]


def batches_of(batch: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    """The batch for rank 0, and different numbers of the same shape for the others."""
    rows, columns = batch.shape
    strangers = [mlp.make_batch(rows, columns, 100 + rank, batch.dtype) for rank in range(1, ranks)]
    return [batch, *strangers]


def exactly(dtype: torch.dtype) -> float:
    return RTOL if dtype == EXACT else 1e-3


def on_cluster(run: Runner, cluster: Cluster) -> World:
    return lambda ranks, *inputs, **same: run.virtual(ranks, *inputs, cluster=cluster, device="cpu", **same)


def instant(ranks: int) -> Cluster:
    """Nothing takes any time. Functions that send nothing run here too: that is quicker than real ranks."""
    gpu = Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=math.inf)
    free = Link(alpha=0.0, bandwidth=math.inf)
    return Cluster("nothing takes time", nodes=1, gpus_per_node=ranks, gpu=gpu, intra=free, inter=free)


# ---- part 1


@check("split-layers")
def split_layers_values(run: Runner) -> None:
    for layers, ranks in ((10, 4), (9, 4), (8, 2)):
        judge_split(run, layers, ranks)


def judge_split(run: Runner, layers: int, ranks: int) -> None:
    items = [f"layer {number}" for number in range(layers)]
    answer = on_cluster(run, instant(ranks))(ranks, [list(items) for _ in range(ranks)])
    got = [list(of_rank) if isinstance(of_rank, tuple) else of_rank for of_rank in answer.results]
    right = cut_evenly(items, ranks)
    words = next((words for words, wrong in wrong_splits(items, ranks).items() if got == wrong), "")
    for rank, mine in enumerate(got):
        expect(mine, right[rank], f"{layers} layers: rank {rank} got", {words: mine} if words else {})
    expect_unchanged(answer, [items] * ranks)


def wrong_splits(items: list[str], ranks: int) -> dict[str, list[list[str]]]:
    """{the mistake in words: the items it gives each rank}"""
    numbers, size, ceiling = range(ranks), len(items) // ranks, -(-len(items) // ranks)
    pieces = [items[rank * size : (rank + 1) * size] for rank in numbers]
    ends = [(rank + 1) * len(items) // ranks for rank in numbers]
    return {
        "a cut into pieces of ceil(layers / P): the last ranks then get less, or nothing": [
            items[rank * ceiling : (rank + 1) * ceiling] for rank in numbers
        ],
        "a cut into pieces of layers // P: the leftover layers belong to no rank": pieces,
        "a cut with all leftover layers on the last rank: then it is slower than all others": [
            *pieces[:-1],
            items[(ranks - 1) * size :],
        ],
        "every P-th layer: a stage has consecutive layers": [items[rank::ranks] for rank in numbers],
        "sizes that differ by one, but the larger ones are not on the first ranks": [
            items[start:end] for start, end in zip([0, *ends], ends, strict=False)
        ],
    }


EACH_BOUNDARY = (
    "each boundary needs one send on the rank before it and one receive on the rank after it. Rank 0 receives "
    "nothing, and the last rank sends nothing."
)


@check("naive-forward", if_stuck=EACH_BOUNDARY)
def naive_forward_values(run: Runner) -> None:
    judge_forward(run, ranks=4, layers=5, rows=3)


@check("naive-forward", judges="traffic", if_stuck=EACH_BOUNDARY)
def naive_forward_traffic(run: Runner) -> str:
    answer, nbytes = judge_forward(run, ranks=3, layers=3, rows=5)
    return expect_each_sent(answer, [1, 1, 0], [nbytes, nbytes, 0], "Every boundary is crossed once.")


def judge_forward(
    run: Runner,
    ranks: int,
    layers: int,
    rows: int,
    dtype: torch.dtype = EXACT,
    world: World | None = None,
    **options: Any,
) -> tuple[Answer, int]:
    """Judge the last rank's output, for one batch or for microbatches. Returns the answer and the batch's bytes."""
    weights, batch = model(run.draws, layers, rows, dtype)
    stages, batches = cut_evenly(weights, ranks), batches_of(batch, ranks)
    answer = (world or run)(ranks, batches, stages, **options)
    right, size = mlp.forward(weights, batch), options.get("micro_batch_size", rows)
    mistakes = forward_mistakes(weights, stages, batches, size)
    for rank, got in list(enumerate(answer.results))[::-1]:
        if rank < ranks - 1:
            if got is not None:
                raise CheckFailed(
                    f"rank {rank} returned a tensor of shape {tuple(getattr(got, 'shape', ()))}",
                    "None",
                    "Only the last rank has the output.",
                )
            continue
        expect(got, right, rank, mistakes, rtol=exactly(dtype))
    expect_unchanged(answer, batches, stages)
    return answer, batch.nbytes


def forward_mistakes(
    weights: list[torch.Tensor], stages: Stages, batches: list[torch.Tensor], size: int
) -> dict[str, torch.Tensor]:
    batch, last = batches[0], len(stages) - 1
    right = mlp.forward(weights, batch)
    pieces = list(right.split(size))
    mistakes = {
        "the output for the last rank's own tensor: it never received anything": mlp.forward(
            stages[last], batches[last]
        ),
        "the tensor that the last rank received: it must apply its own layers": mlp.forward(
            sum(stages[:last], []), batch
        ),
        "the output for the input sent on unchanged: each rank applies its layers before it sends": mlp.forward(
            stages[last], batch
        ),
    }
    if len(pieces) > 1:
        mistakes |= {
            "the outputs in reverse order": torch.cat(pieces[::-1]),
            "the output of the last microbatch alone: keep all of them": pieces[-1],
            "the output of the first microbatch alone: keep all of them": pieces[0],
            "the output without the last microbatch: it is shorter, but it counts": torch.cat(pieces[:-1]),
            "the last microbatch's output in every place: each needs a buffer of its own": torch.cat(
                [pieces[-1][: len(piece)] for piece in pieces]
            ),
        }
    return mistakes


# ---- part 2


@check("microbatch-forward", if_stuck=EACH_BOUNDARY)
def microbatch_forward_values(run: Runner) -> None:
    judge_forward(run, ranks=3, layers=4, rows=10, micro_batch_size=4)
    judge_forward(run, ranks=2, layers=2, rows=6, micro_batch_size=2)


def rows_take_time(ranks: int, message: float = 0.0) -> Cluster:
    """One row through one layer takes one second, a message takes `message` seconds, and all else takes none."""
    gpu = Gpu(flops=dict.fromkeys(("fp64", "fp32"), 2 * DIM * DIM), memory=math.inf, bandwidth=math.inf)
    link = Link(alpha=message, bandwidth=math.inf)
    return Cluster("one row a second", nodes=1, gpus_per_node=ranks, gpu=gpu, intra=link, inter=link)


@check("microbatch-forward", judges="time", if_stuck=EACH_BOUNDARY)
def microbatch_forward_time(run: Runner) -> str:
    return judge_streaming(run, ranks=4, microbatches=4, rows=3)


def judge_streaming(run: Runner, ranks: int, microbatches: int, rows: int) -> str:
    """Judge values and time of a forward pass in microbatches of `rows` rows: one layer per stage, free messages."""
    answer, _ = judge_forward(
        run,
        ranks=ranks,
        layers=ranks,
        rows=rows * microbatches,
        micro_batch_size=rows,
        world=on_cluster(run, rows_take_time(ranks)),
    )
    serial = float(rows * microbatches * ranks)
    words = {"the time of one GPU: send each microbatch on before you compute the next": serial}
    return expect_time(answer, rows * (microbatches + ranks - 1), recognise=words)


@check("bubble-shares")
def bubble_shares_values(run: Runner) -> None:
    for ranks, microbatches, most in ((4, 4, 0.25), (4, 8, 0.11), (8, 4, 0.5)):
        judge_shares(run, ranks, microbatches, most)


def judge_shares(run: Runner, ranks: int, microbatches: int, most: float) -> None:
    answer = run(1, [ranks], [microbatches], [most])
    [got] = answer.results
    situation = f"for P = {ranks}, M = {microbatches}, most = {most} it returned"
    total, ideal = (ranks - 1) / (microbatches + ranks - 1), (ranks - 1) / microbatches
    if not isinstance(got, tuple | list) or len(got) != 3:
        raise CheckFailed(f"{situation} {got!r}", "(share of the total, share of the ideal, number of microbatches)")
    if close(got[:2], (ideal, total)) and ranks > 1:
        mistake = "Those are the two the wrong way round: the share of the total time comes first."
        raise CheckFailed(f"{situation} {got!r}", f"{total:.4f} first, then {ideal:.4f}", mistake)
    for name, value, right, usual in (
        (
            "of the total",
            got[0],
            total,
            {
                "the busy share: the bubble is the rest": microbatches / (microbatches + ranks - 1),
                "the share of P slots of bubble: the first microbatch fills one of them": ranks
                / (microbatches + ranks),
                "the share of M + P slots: there are M + P - 1 slots": (ranks - 1) / (microbatches + ranks),
                "the share of the ideal time": ideal,
            },
        ),
        (
            "of the ideal",
            got[1],
            ideal,
            {
                "the share of the total time": total,
                "the share of P slots of bubble: the first microbatch fills one of them": ranks / microbatches,
            },
        ),
    ):
        if not close([value], [right]):
            words = next((words for words, wrong in usual.items() if close([value], [wrong])), "")
            raise CheckFailed(
                f"{situation} {value!r} as the share {name}", f"{right:.4f}", words and f"That is {words}."
            )
    enough = next(m for m in range(1, 100_000) if (ranks - 1) / (m + ranks - 1) <= most)
    if got[2] != enough:
        words = "One fewer would do." if got[2] == enough + 1 else ""
        words = "With that number the bubble is still larger than `most`." if got[2] < enough else words
        ideal_enough = next(m for m in range(1, 100_000) if (ranks - 1) / m <= most)
        words = "That is for the share of the ideal time; here the total counts." if got[2] == ideal_enough else words
        raise CheckFailed(f"{situation} {got[2]!r} microbatches", f"{enough}", words)


def close(got: Sequence[object], right: Sequence[float]) -> bool:
    """Whether they are numbers and equal up to rounding."""
    return all(
        isinstance(a, Real) and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in zip(got, right, strict=True)
    )


# ---- part 3


BACK_AND_FORTH = (
    "each boundary is crossed twice: activations go up, then the gradient comes down. A rank sends its activations "
    "before it waits for the gradient, and the gradient of its input after its own backward."
)


@check("backward-across", if_stuck=BACK_AND_FORTH)
def backward_across_values(run: Runner) -> None:
    judge_backward(run, ranks=3, layers=5, rows=3)
    judge_backward(run, ranks=2, layers=2, rows=4)


@check("backward-across", judges="traffic", if_stuck=BACK_AND_FORTH)
def backward_across_traffic(run: Runner) -> str:
    answer, nbytes = judge_backward(run, ranks=4, layers=4, rows=2)
    return expect_each_sent(
        answer, [1, 2, 2, 1], [nbytes, 2 * nbytes, 2 * nbytes, nbytes], "Each boundary is crossed once each way."
    )


def judge_backward(run: Runner, ranks: int, layers: int, rows: int, dtype: torch.dtype = EXACT) -> tuple[Answer, int]:
    weights, batch = model(run.draws, layers, rows, dtype)
    stages, batches = cut_evenly(weights, ranks), batches_of(batch, ranks)
    answer = run(ranks, batches, stages)
    _, gradients = mlp.serial_gradients(weights, batch)
    wrong = {
        "the gradient if each rank sends back that of its output: the rank before needs that of your input": (
            cut_evenly(gradients_with_wrong_sends(stages, batch), ranks)
        ),
        "the gradient if the rank's own y is the loss: it must come from the next rank": (
            cut_evenly(gradients_with_own_losses(stages, batch), ranks)
        ),
        "the gradient if backward starts from a gradient of ones: use the one that the next rank sends": (
            cut_evenly(gradients_of_ones(stages, batch), ranks)
        ),
    }
    judge_gradients(answer.results, cut_evenly(gradients, ranks), wrong, exactly(dtype))
    expect_unchanged(answer, batches, stages)
    return answer, batch.nbytes


def judge_gradients(results: list[Any], right: Stages, wrong: dict[str, Stages], rtol: float) -> None:
    """results[rank], right[rank] and each wrong[words][rank]: a list of gradients.

    Later ranks are judged first: they run backward first, and their mistakes spread to all the others.
    """
    for rank in reversed(range(len(right))):
        got = results[rank]
        if not isinstance(got, list | tuple) or len(got) != len(right[rank]):
            raise CheckFailed(f"rank {rank} returned {got!r}"[:200], f"a list of {len(right[rank])} gradients")
        for number, (mine, wanted) in enumerate(zip(got, right[rank], strict=True)):
            if mine is None:
                raise CheckFailed(
                    f"rank {rank}, layer {number} of its own: the gradient is None",
                    "a tensor",
                    "No backward has reached it. Was backward() called on this rank, and on a tensor made of `leaves`?",
                )
            usual = {words: per_rank[rank][number] for words, per_rank in wrong.items()}
            usual["all zeros"] = torch.zeros_like(wanted)
            usual["twice the gradient: backward was called twice"] = 2 * wanted
            expect(
                mine, wanted, f"rank {rank}, layer {number} of its own: the gradient is", usual, rtol=max(rtol, 1e-12)
            )


def stage_by_stage(stages: Stages, batch: torch.Tensor) -> list[tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]]:
    """(leaves, input, output) of each stage, with the graph cut between stages, as on ranks."""
    x, cut = batch, []
    for stage in stages:
        leaves, x = [w.clone().requires_grad_() for w in stage], x.detach().clone().requires_grad_()
        y = mlp.forward(leaves, x)
        cut.append((leaves, x, y))
        x = y
    return cut


def gradients_with_wrong_sends(stages: Stages, batch: torch.Tensor) -> list[torch.Tensor]:
    """Each stage sends back the gradient of its output instead of its input."""
    cut, found = stage_by_stage(stages, batch), []
    leaves, _, y = cut[-1]
    gradient, *of_leaves = torch.autograd.grad(mlp.loss_of(y), [y, *leaves])
    found = [of_leaves]
    for leaves, _, y in cut[-2::-1]:
        found.insert(0, list(torch.autograd.grad(y, leaves, gradient)) if leaves else [])
    return sum(found, [])


def gradients_with_own_losses(stages: Stages, batch: torch.Tensor) -> list[torch.Tensor]:
    return sum(
        [list(torch.autograd.grad(mlp.loss_of(y), leaves)) for leaves, _, y in stage_by_stage(stages, batch) if leaves],
        [],
    )


def gradients_of_ones(stages: Stages, batch: torch.Tensor) -> list[torch.Tensor]:
    *earlier, (leaves, _, y) = stage_by_stage(stages, batch)
    ones = [list(torch.autograd.grad(y, leaves, torch.ones_like(y))) for leaves, _, y in earlier if leaves]
    return sum([*ones, list(torch.autograd.grad(mlp.loss_of(y), leaves))], [])


@check("accumulate-gradients")
def accumulate_gradients_values(run: Runner) -> None:
    judge_accumulation(run, layers=2, rows=6, size=2)
    judge_accumulation(run, layers=2, rows=10, size=4)


def judge_accumulation(run: Runner, layers: int, rows: int, size: int, dtype: torch.dtype = EXACT) -> None:
    weights, batch = model(run.draws, layers, rows, dtype)
    answer = run(1, [batch], [weights], micro_batch_size=size)
    [got] = answer.results
    if not isinstance(got, tuple | list) or len(got) != 2 or not isinstance(got[0], torch.Tensor):
        raise CheckFailed(f"it returned {got!r}"[:200], "(the loss as a tensor, a list of gradients)")
    loss, gradients = mlp.serial_gradients(weights, batch)
    wrong = wrong_accumulations(weights, batch, size, loss, gradients)
    judge_gradients([got[1]], [gradients], {words: [of] for words, (_, of) in wrong.items()}, exactly(dtype))
    mistakes = {words: of for words, (of, _) in wrong.items()} | {"zero: add each microbatch's loss": 0 * loss}
    expect(got[0], loss, "the gradients are right; as the loss it returned", mistakes, rtol=exactly(dtype))
    expect_unchanged(answer, [batch], [weights])


def wrong_accumulations(
    weights: list[torch.Tensor], batch: torch.Tensor, size: int, loss: torch.Tensor, gradients: list[torch.Tensor]
) -> dict[str, LossAndGradients]:
    """{the mistake in words: the (loss, gradients) it leads to}"""
    parts = batch.split(size)
    each = [mlp.serial_gradients(weights, part) for part in parts]

    def weighted(factors: list[float]) -> LossAndGradients:
        total, *sums = (
            torch.stack([f * x for f, x in zip(factors, column, strict=True)]).sum(0)
            for column in zip(*([of, *g] for of, g in each), strict=True)
        )
        return total, sums

    sizes, count = [len(part) for part in parts], len(parts)
    right = [n / len(batch) for n in sizes]
    wrong = {
        "the sum of the means: it is M times too large. Each microbatch counts by its rows, m / B": [1.0] * count,
        "every microbatch weighted by 1 / M: the short one counts too much. Use its rows, m / B": [1 / count] * count,
        "the last microbatch alone: don't zero the gradients in between": [0.0] * (count - 1) + right[-1:],
        "the last microbatch alone, weighted as if it were the whole batch": [0.0] * (count - 1) + [1.0],
        "the first microbatch alone": right[:1] + [0.0] * (count - 1),
        "every microbatch weighted by micro_batch_size / B: the last one has fewer rows": [size / len(batch)] * count,
        "every microbatch weighted by its rows, but not divided by the rows of the batch": [float(n) for n in sizes],
    }
    found = {words: weighted(factors) for words, factors in wrong.items()}
    return {words: of for words, of in found.items() if not alike(of[0], loss, 1e-6)}


# ---- part 4: schedules


def all_ranks(run: Runner, ranks: int, microbatches: int, chunks: int = 1) -> list[list[Step]]:
    """Each rank's steps from the student's function. Raises CheckFailed if they can't run."""
    options = {"num_microbatches": microbatches} | ({"num_chunks": chunks} if chunks > 1 else {})
    schedules = on_cluster(run, instant(ranks))(ranks, **options).results
    if wrong := problem(schedules, microbatches, chunks):
        raise CheckFailed(f"the schedule can't run: {wrong}", mistake=usual_mistake(schedules, microbatches, chunks))
    return [list(steps) for steps in read(schedules)]


def usual_mistake(schedules: list[Any], microbatches: int, chunks: int) -> str:
    """The usual cause of a schedule that can't run like this; "" if there is none."""
    try:
        steps = read(schedules)
    except ValueError:
        return ""
    if any(not of_rank for of_rank in steps):
        return "A rank has nothing to do at all."
    if all(of_rank == steps[0] for of_rank in steps) and len(steps) > 1:
        return "Every rank has the same steps. The warm-up depends on the rank."
    if any(len(of_rank) < 2 * microbatches * chunks for of_rank in steps):
        return "Are the backwards after the last forward missing? Or the forwards of the warm-up?"
    if len(steps) > 1 and warm_up(steps[0]) < warm_up(steps[-1]):
        return "The last rank has the longest warm-up, but rank 0 should: it is the other way round."
    if chunks > 1 and not_in_groups(steps[0], len(steps) * chunks, len(steps)):
        return GROUPS
    if chunks > 1 and any(step.chunk == 0 for of_rank in steps for step in of_rank if step.kind == "B"):
        first = next((step for step in steps[-1] if step.kind == "B"), None)
        if first is not None and first.chunk == 0:
            return "The backwards begin with chunk 0, but they go through the last chunk first."
    return ""


GROUPS = "Microbatches go in groups of P: through chunk 0, then chunk 1, and so on. Then comes the next group."


def not_in_groups(steps: list[Step], count: int, ranks: int) -> list[int]:
    """The microbatches of the first `count` forwards, unless they are 0 to P - 1."""
    seen = sorted({step.microbatch for step in [step for step in steps if step.kind == "F"][:count]})
    return [] if seen == list(range(ranks)) else seen


def warm_up(steps: list[Step]) -> int:
    """The number of forwards before the first backward."""
    return next((number for number, step in enumerate(steps) if step.kind != "F"), len(steps))


def expect_in_order(schedules: list[list[Step]], chunks: int = 1) -> None:
    """Raise CheckFailed unless each chunk's forwards and backwards go in the order of the microbatches."""
    for rank, steps in enumerate(schedules):
        for kind in ("F", "B"):
            for chunk in range(chunks):
                order = [step.microbatch for step in steps if step.kind == kind and step.chunk == chunk]
                if order != sorted(order):
                    name = "forwards" if kind == "F" else "backwards"
                    reverse = "That is the reverse order." if order == sorted(order)[::-1] else ""
                    raise CheckFailed(
                        f"rank {rank} does its {name} in the order {order}", "the order of the microbatches", reverse
                    )


@check("gpipe")
def gpipe_values(run: Runner) -> None:
    judge_gpipe(run, ranks=4, microbatches=5)
    judge_gpipe(run, ranks=2, microbatches=1)


def judge_gpipe(run: Runner, ranks: int, microbatches: int) -> None:
    schedules = all_ranks(run, ranks, microbatches)
    for rank, steps in enumerate(schedules):
        if warm_up(steps) != microbatches:
            raise CheckFailed(
                f"rank {rank} goes backward after {warm_up(steps)} of {microbatches} forwards",
                "all forwards first",
                "1F1B will do that; GPipe is simpler.",
            )
    expect_in_order(schedules)


@check("gpipe", judges="time")
def gpipe_time(run: Runner) -> str:
    return judge_bubble(all_ranks(run, 4, 6), 6)


def judge_bubble(schedules: list[list[Step]], microbatches: int, chunks: int = 1) -> str:
    """Play the schedules on a virtual cluster; judge that no rank idles for more than P - 1 slots."""
    ranks, slot = len(schedules), 3.0
    run = play(schedules)
    right, took = slot * (microbatches * chunks + ranks - 1), run.elapsed
    if took > right * (1 + 1e-9):
        raise CheckFailed(
            f"with F = 1 s and B = 2 s it took {took:g} s",
            f"{right:g} s",
            f"The bubble is {took - slot * microbatches * chunks:g} s; (P - 1) (F + B) is enough. "
            + too_long(schedules, chunks),
        )
    bubble = 1 - slot * microbatches * chunks / took
    return f"{took:g} s with F = 1 s and B = 2 s: {bubble:.1%} of it bubble."


def too_long(schedules: list[list[Step]], chunks: int) -> str:
    """Why a schedule that can run takes longer than necessary, in words."""
    if chunks > 1:
        return "Is the warm-up too short, or do the microbatches not go in groups of P?"
    short = [rank for rank, steps in enumerate(schedules) if warm_up(steps) < needed_ahead(schedules, rank)]
    if short:
        return f"The warm-up of rank {short[0]} is too short: the rank idles while it waits for its first backward."
    return "Draw it: where does a rank wait even though it has something to do?"


def needed_ahead(schedules: list[list[Step]], rank: int) -> int:
    """Forwards before the first backward in 1F1B: the warm-up's, and that of the first pair."""
    microbatches = sum(step.kind == "F" for step in schedules[rank])
    return min(microbatches, len(schedules) - rank)


@check("live-microbatches")
def live_microbatches_values(run: Runner) -> None:
    for steps in (
        [("F", 0), ("B", 0), ("F", 1), ("B", 1)],
        [("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("F", 3), ("F", 4), ("B", 2), ("B", 3), ("B", 4)],
        [("F", 0), ("F", 1), ("F", 2), ("B", 2), ("B", 1), ("B", 0), ("F", 3), ("B", 3)],
    ):
        judge_live(run, steps)


def live_at(steps: Sequence[RawStep]) -> list[int]:
    """The number of live microbatches during each step."""
    begin = {step[1:]: number for number, step in enumerate(steps) if step[0] == "F"}
    end = {step[1:]: number for number, step in enumerate(steps) if step[0] == "B"}
    return [sum(begin[m] <= number <= end[m] for m in begin) for number in range(len(steps))]


def judge_live(run: Runner, steps: Sequence[RawStep]) -> None:
    answer = run(1, [list(steps)])
    [got] = answer.results
    text = " ".join(f"{step[0]}{step[1]}" for step in steps)
    right = max(live_at(steps), default=0)
    forwards = [step for step in steps if step[0] == "F"]
    ahead = next((number for number, step in enumerate(steps) if step[0] == "B"), len(steps))
    expect(
        got,
        right,
        f"of {text} it returned",
        {
            "the number live at the end: keep track of the largest": 0,
            "the number of all forwards: a backward ends one": len(forwards),
            "the number of forwards before the first backward: there may be more live later": ahead,
            "one too many: count the F before you look for the maximum, and the B after it": right + 1,
            "one too few: a microbatch is already live during its F": right - 1,
            "the number of steps": len(steps),
        },
    )
    expect_unchanged(answer, [list(steps)])


@check("one-f-one-b")
def one_f_one_b_values(run: Runner) -> None:
    judge_1f1b(run, ranks=4, microbatches=8)
    judge_1f1b(run, ranks=4, microbatches=2)


def judge_1f1b(run: Runner, ranks: int, microbatches: int) -> None:
    schedules = all_ranks(run, ranks, microbatches)
    expect_in_order(schedules)
    for rank, steps in enumerate(schedules):
        middle = steps[warm_up(steps) :]
        last_forward = max((number for number, step in enumerate(middle) if step.kind == "F"), default=-1)
        steady = [step.kind for step in middle[: last_forward + 1]]
        if steady != ["B", "F"] * (len(steady) // 2):
            raise CheckFailed(
                f"rank {rank}, after its warm-up, does {' '.join(map(str, middle[: last_forward + 1]))}",
                "one backward and one forward in turn until there is no forward left",
                "In the steady phase it does two of the same kind in a row.",
            )


@check("one-f-one-b", judges="memory")
def one_f_one_b_memory(run: Runner) -> str:
    remark, _ = (judge_live_1f1b(all_ranks(run, 4, microbatches), microbatches) for microbatches in (8, 2))
    return remark


def judge_live_1f1b(schedules: list[list[Step]], microbatches: int) -> str:
    live = [max(live_at(steps)) for steps in schedules]
    for rank, most in enumerate(live):
        right = min(microbatches, len(schedules) - rank)
        if most > right:
            all_of_them = most == microbatches and right < microbatches
            raise CheckFailed(
                f"{most} microbatches are live on rank {rank}",
                f"{right} at most",
                "That is all of them, as in GPipe."
                if all_of_them
                else f"Its warm-up is {most - right} too long: the forward of the first pair counts, too.",
            )
    return f"live microbatches by rank: {live}; GPipe holds {microbatches} on each."


@check("one-f-one-b", judges="time")
def one_f_one_b_time(run: Runner) -> str:
    schedules = all_ranks(run, 4, 8)
    return judge_bubble(schedules, 8)


# ---- part 5: a stage, on schedules that are right


def step_list(text: str) -> list[RawStep]:
    """ "F0 F1 B0" as steps; with chunks "F0.1"."""
    pairs = [(word[0], word[1:].split(".")) for word in text.split()]
    return [(kind, *map(int, numbers)) for kind, numbers in pairs]


# Written out, so that a stage is judged without a student's schedule. For three ranks and four microbatches:
GPIPE = [step_list("F0 F1 F2 F3 B0 B1 B2 B3")] * 3
ALTERNATING = [
    step_list("F0 F1 F2 B0 F3 B1 B2 B3"),
    step_list("F0 F1 B0 F2 B1 F3 B2 B3"),
    step_list("F0 B0 F1 B1 F2 B2 F3 B3"),
]
REVERSED = [step_list("F0 F1 F2 F3 B3 B2 B1 B0")] * 3
# For two ranks with two chunks each, and two microbatches:
CHUNKED = [
    step_list("F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"),
    step_list("F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0"),
]

STUCK_STAGE = (
    "a send that waits (use isend, keep the handle), a message that no rank sends (the gradient of the input goes to "
    "the rank before, the activations to the rank after), or a tag that doesn't name the stage that needs the message."
)


@check("run-schedule", if_stuck=STUCK_STAGE)
def run_schedule_values(run: Runner) -> None:
    judge_run(run, ALTERNATING, layers=4, rows=7, size=2)
    judge_run(run, CHUNKED, layers=4, rows=4, size=2, chunks=2)


@check("run-schedule", judges="traffic", if_stuck=STUCK_STAGE)
def run_schedule_traffic(run: Runner) -> str:
    answer, nbytes = judge_run(run, ALTERNATING, layers=3, rows=8, size=2)
    return expect_each_sent(
        answer, [4, 8, 4], [nbytes, 2 * nbytes, nbytes], "M messages each way across each boundary."
    )


def stages_of(items: Sequence[T], ranks: int, chunks: int) -> list[list[list[T]]]:
    """[rank][chunk]: the items of that stage."""
    stages = cut_evenly(items, ranks * chunks)
    return [[stages[chunk * ranks + rank] for chunk in range(chunks)] for rank in range(ranks)]


def judge_run(
    run: Runner,
    schedules: list[list[RawStep]],
    layers: int,
    rows: int,
    size: int,
    chunks: int = 1,
    dtype: torch.dtype = EXACT,
    world: World | None = None,
) -> tuple[Answer, int]:
    """Judge a whole step: loss and gradients. Returns the answer and the batch's bytes."""
    ranks, (weights, batch) = len(schedules), model(run.draws, layers, rows, dtype)
    held, batches = stages_of(weights, ranks, chunks), batches_of(batch, ranks)
    try:
        answer = (world or run)(ranks, batches, held, schedules, micro_batch_size=size)
    except CheckFailed as failed:
        if "KeyError" in failed.saw:
            failed.mistake = (
                "A backward finds nothing under its key. F and B must use the same key, with the chunk in it."
            )
        raise
    loss, gradients = mlp.serial_gradients(weights, batch)
    right = [sum(of_rank, []) for of_rank in stages_of(gradients, ranks, chunks)]
    results = []
    for rank, got in enumerate(answer.results):
        if not isinstance(got, tuple | list) or len(got) != 2 or not isinstance(got[1], list | tuple):
            raise CheckFailed(f"rank {rank} returned {got!r}"[:200], "(loss or None, gradients for each chunk)")
        results.append([gradient for chunk in got[1] for gradient in chunk])
    judge_gradients(results, right, wrong_runs(weights, batch, size, gradients, ranks, chunks), exactly(dtype))
    expect(answer.results[-1][0], loss, f"rank {ranks - 1}, as the loss, returned", rtol=exactly(dtype))
    expect_unchanged(answer, batches, held, schedules)
    return answer, batch.nbytes


def wrong_runs(
    weights: list[torch.Tensor], batch: torch.Tensor, size: int, gradients: list[torch.Tensor], ranks: int, chunks: int
) -> dict[str, Stages]:
    parts = batch.split(size)
    scaled = [[g * (len(p) / len(batch)) for g in mlp.serial_gradients(weights, p)[1]] for p in parts]
    found = {
        "the last microbatch's gradient alone: don't zero the gradients in between": scaled[-1],
        "the first microbatch's gradient alone": scaled[0],
        "the gradient if each rank sends back that of its output: send that of the input, x.grad": [
            sum(column)
            for column in zip(
                *(
                    [
                        g * (len(p) / len(batch))
                        for g in gradients_with_wrong_sends(cut_evenly(weights, ranks * chunks), p)
                    ]
                    for p in parts
                ),
                strict=True,
            )
        ],
    }
    return {
        words: [sum(of_rank, []) for of_rank in stages_of(of, ranks, chunks)]
        for words, of in found.items()
        if not alike(of, gradients, 1e-6)
    }


@check("run-schedule", judges="memory", if_stuck=STUCK_STAGE)
def run_schedule_memory(run: Runner) -> str:
    return judge_memory(run, in_pairs(ranks=3, microbatches=8), rows=8)


def in_pairs(ranks: int, microbatches: int) -> list[list[RawStep]]:
    """Rank r starts with P - r forwards, then does a backward and a forward in turn."""
    schedules = []
    for rank in range(ranks):
        waiting, ahead = [*range(microbatches)], ranks - rank
        steps = [("F", m) for m in waiting[:ahead]]
        for m in waiting:
            steps += [("B", m), *[("F", m + ahead)] * (m + ahead < microbatches)]
        schedules.append(steps)
    return schedules


def judge_memory(run: Runner, schedules: list[list[RawStep]], rows: int) -> str:
    """Judge that a rank holds the activations of its live microbatches only."""
    ranks, microbatches = len(schedules), sum(step[0] == "F" for step in schedules[0])
    size = rows // microbatches
    answer, _ = judge_run(run, schedules, layers=2 * ranks, rows=rows, size=size, world=on_cluster(run, instant(ranks)))
    for dropped in unwaited(answer):
        raise CheckFailed(*dropped)
    tensor = size * DIM * 8  # bytes of the activations between two layers, float64
    # Of two layers autograd saves the inputs of each product and each gelu (rank 0's input is part of the batch), and
    # on the last stage that of the loss.
    of_one = [(3 + (rank > 0) + (rank == ranks - 1)) * tensor for rank in range(ranks)]
    counts = [max(live_at(steps)) for steps in schedules]
    for rank, live in enumerate(counts):
        activations = most_activations(answer.run.memory().samples[rank])
        if activations > (5 * live + 2) * tensor:  # room for copies, an input arriving and one leaving
            raise CheckFailed(
                f"rank {rank} holds the activations of up to {activations / of_one[rank]:.2g} microbatches",
                f"{live}",
                "Is something kept after its backward? kept.pop(...) returns the tensors and forgets them; "
                "a list of outputs keeps them all; a y that waits to be sent keeps its graph, so send y.detach(). "
                "Or do you not take the steps in the order of `steps`?",
            )
    return f"live microbatches by rank: {counts}, as the schedule says."


def most_activations(samples: list[tuple[float, str, int]]) -> int:
    return max((nbytes for _, kind, nbytes in samples if kind == "activations"), default=0)


def unwaited(answer: Answer) -> list[tuple[str, str, str]]:
    """(saw, expected, mistake) for each call on virtual ranks whose handle was dropped."""
    return [
        (
            f"rank {event.rank} started an asynchronous {event.op} to {event.peer} and never waited for it",
            "wait() for each handle",
            "Until then its tensor may not have been read or filled.",
        )
        for event in answer.events
        if event.is_async and event.waited is None
    ]


# ---- part 6


OVERLAP_STUCK = (
    "a rank that waits for a message that the rank before has not started to send, or a receive without a send. Each "
    "microbatch needs one send on every rank but the last and one receive on every rank but rank 0."
)


@check("overlapped-forward", if_stuck=OVERLAP_STUCK)
def overlapped_forward_values(run: Runner) -> None:
    for ranks, layers, rows, size in ((3, 4, 10, 4), (2, 2, 3, 1)):
        answer, _ = judge_forward(run, ranks=ranks, layers=layers, rows=rows, micro_batch_size=size)
        expect_only_messages(answer)


@check("overlapped-forward", judges="time", if_stuck=OVERLAP_STUCK)
def overlapped_forward_time(run: Runner) -> str:
    return judge_overlap(run, ranks=3, microbatches=5, rows=3, message=2.0)


def judge_overlap(run: Runner, ranks: int, microbatches: int, rows: int, message: float) -> str:
    """Judge values and time: a microbatch takes `rows` s on a stage, a message `message` s, and the two overlap."""
    answer, _ = judge_forward(
        run,
        ranks=ranks,
        layers=ranks,
        rows=rows * microbatches,
        micro_batch_size=rows,
        world=on_cluster(run, rows_take_time(ranks, message)),
    )
    for dropped in unwaited(answer):
        raise CheckFailed(*dropped)
    way = ranks * rows + (ranks - 1) * message  # of the first microbatch
    each = {
        "the time if the sender or the receiver waits for each message: nothing overlaps": rows + message,
        "the time if every message is waited for on both sides: a rank sends, then receives, then computes": rows
        + 2 * message,
    }
    words = {words: way + (microbatches - 1) * slot for words, slot in each.items()}
    return expect_time(answer, way + (microbatches - 1) * max(rows, message), recognise=words)


# ---- part 7


@check("interleaved-layers")
def interleaved_layers_values(run: Runner) -> None:
    judge_interleaved_layers(run, layers=8, ranks=4, chunks=2)
    judge_interleaved_layers(run, layers=12, ranks=2, chunks=3)


def judge_interleaved_layers(run: Runner, layers: int, ranks: int, chunks: int) -> None:
    items = [f"layer {number}" for number in range(layers)]
    answer = on_cluster(run, instant(ranks))(ranks, [list(items) for _ in range(ranks)], num_chunks=chunks)
    right = stages_of(items, ranks, chunks)
    stages = cut_evenly(items, ranks * chunks)
    for rank, got in enumerate(answer.results):
        mine = [list(chunk) for chunk in got] if isinstance(got, list | tuple) and not strings(got) else got
        expect(
            mine,
            right[rank],
            f"{layers} layers, {chunks} chunks: rank {rank} got",
            {
                "contiguous: chunks next to each other give plain pipelining. Chunk c of rank r is stage c P + r": (
                    stages[rank * chunks : (rank + 1) * chunks]
                ),
                "the right layers in one list: return one list for each chunk": sum(right[rank], []),
                "single layers dealt round-robin: a stage has consecutive ones": [
                    items[rank::ranks][chunk :: layers // ranks // chunks or 1] for chunk in range(chunks)
                ],
                "the chunks in reverse order": right[rank][::-1],
            },
        )
    expect_unchanged(answer, [items] * ranks)


def strings(values: Sequence[object]) -> bool:
    return any(isinstance(value, str) for value in values)


@check("interleaved")
def interleaved_values(run: Runner) -> None:
    judge_interleaved(run, ranks=2, microbatches=4, chunks=2)
    judge_interleaved(run, ranks=4, microbatches=8, chunks=2)


def judge_interleaved(run: Runner, ranks: int, microbatches: int, chunks: int) -> None:
    schedules = all_ranks(run, ranks, microbatches, chunks)
    expect_in_order(schedules, chunks)
    for rank, steps in enumerate(schedules):
        if seen := not_in_groups(steps, ranks * chunks, ranks):
            raise CheckFailed(
                f"the first {ranks * chunks} forwards of rank {rank} are of the microbatches {seen}",
                f"the group {list(range(ranks))}, through all {chunks} chunks",
                GROUPS,
            )


@check("interleaved", judges="memory")
def interleaved_memory(run: Runner) -> str:
    return judge_live_interleaved(all_ranks(run, 4, 12, 2), 12, 2)


def judge_live_interleaved(schedules: list[list[Step]], microbatches: int, chunks: int) -> str:
    ranks = len(schedules)
    live = [max(live_at(steps)) for steps in schedules]
    for rank, most in enumerate(live):
        right = min(microbatches * chunks, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1)
        if most > right:
            raise CheckFailed(
                f"{most} chunks of microbatches are live on rank {rank}",
                f"{right} at most",
                "That is all of them: go backward as soon as the warm-up is over."
                if most == microbatches * chunks
                else "The warm-up is 2 (P - 1 - rank) + (v - 1) P forwards, and the steady phase adds one.",
            )
    return f"live by rank, in chunks: {live}; all forwards first would hold {microbatches * chunks}."


@check("interleaved", judges="time")
def interleaved_time(run: Runner) -> str:
    return judge_bubble(all_ranks(run, 4, 8, 2), 8, 2)
