"""The checks of lesson 09. Each is quick: one to three runs of one to four ranks. Form: see oracles.py.

The truth about every gradient is one process with all layers. Many schedules are right, so a student's schedule is
judged by its properties, without a student's stage: kit/pipeline_schedule.py follows it, and
worlds/virtual/play_schedule.py plays it. A student's stage runs the schedules written out below. Which layers a rank
has, and how large the bubble is, are recorded, and those oracles hidden.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations, islice, pairwise, product
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from utils.checks.answer import Answer, CheckFailed
from utils.checks.equality import equal_values
from utils.checks.frozen_cases import FrozenCases, frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, Judgement, Oracle, as_tuple, every, only_at, oracle, part_of_rank, vary
from utils.checks.scores import Measure
from utils.checks.show import show
from utils.checks.traffic import expect_each_sent, expect_no_barrier, expect_only_messages, expect_time
from utils.cluster.hardware import Cluster, Gpu, Link
from utils.events.event import Event
from utils.kit import mlp
from utils.kit.drivers.batched import BATCH, marking_batches
from utils.kit.drivers.left_behind import LeftBehind
from utils.kit.pipeline_schedule import Step, problem, read, timed
from utils.text.units import plural
from utils.worlds.virtual.play_schedule import free_messages, play

DIM = 4
EXACT = torch.float64  # sums in a different order differ in the last digits only
RTOL = {torch.float64: 1e-7, torch.float32: 1e-3}
LOSS = "the gradients are right, but the loss"  # it is compared last

T = TypeVar("T")
Sizes = tuple[int, ...]  # how many layers each stage has
Stages = list[list[Tensor]]  # the weights, or the gradients, of each stage
RawStep = tuple[Any, ...]  # (kind, microbatch) or (kind, microbatch, chunk)
Schedule = list[list[Step]]  # the steps of each rank

ROOM = Path(__file__).parent
NO_MESSAGES = ("split-backward",)  # a right answer needs none: grading flags those that send nothing
bubble_shares = frozen_cases(ROOM, "bubble-shares")


### BEGIN HIDDEN TESTS


@oracle(values=[(16, 64, 0.0625), (3, 1, 0.9), (5, 7, 0.013), (1, 4, 0.2), (2, 3, 0.5)])
def hidden_bubble_shares(_: Draws, ranks: int, microbatches: int, most: float) -> Case:
    idle = ranks - 1
    total, ideal = idle / (microbatches + idle), idle / microbatches
    enough, enough_for_ideal = (next(m for m in range(1, 100_000) if idle / (m + slots) <= most) for slots in (idle, 0))
    share, ideal_share = "the share of the total time", "the share of the ideal time"
    one_fewer = "one fewer would do"
    if idle / (enough + idle) == most:
        one_fewer = (
            f"with {enough} the share is exactly `most`, which is enough. A loop must go on only while the share is "
            "larger; a formula must round up, and int(...) + 1 goes past a whole number"
        )
    smallest = "the smallest M that keeps the share of the total time at `most` or less"
    p_slots = "the share of P slots of bubble: the first microbatch fills one of them"
    return Case(
        [[ranks], [microbatches], [most]],
        right={share: total, ideal_share: ideal, smallest: enough},
        rtol=1e-9,
        seen=f"for P = {ranks}, M = {microbatches}, most = {most}: {{part}} is",
        mistakes={
            "": {"the right pair the wrong way round: the share of the total time comes first": (ideal, total, enough)},
            share: {
                "the busy share: the bubble is the rest": 1 - total,
                p_slots: ranks / (microbatches + ranks),
                "the share of M + P slots: there are M + P - 1 slots": idle / (microbatches + ranks),
                "the share of the ideal time": ideal,
                "a percentage: a share lies between 0 and 1": 100 * total,
            },
            ideal_share: {"the share of the total time": total, p_slots: ranks / microbatches},
            smallest: {
                "the smallest M for the share of the ideal time; here the total counts": enough_for_ideal,
                f"one too many: {one_fewer}": enough + 1,
                "one too few: with that number the bubble is still larger than `most`": enough - 1,
                "num_microbatches: begin with one, and add one at a time": microbatches,
            },
        },
    )


### END HIDDEN TESTS


class Layers(FrozenCases):
    """Checks of which layers a rank has. A mistake is named if all ranks show it, or else what is wrong with one."""

    def oracle(self) -> Oracle:
        plain = super().oracle()

        def draw(*arguments: Any) -> Case:
            case = plain.draw(*arguments)
            return replace(case, before=partial(expect_layers, case))

        return replace(plain, draw=draw)


def expect_layers(case: Case, answer: Answer) -> None:
    results, ranks, chunks = answer.results, case.world_size, case.for_all.get("num_chunks", 0)
    of_all = ([part_of_rank(wrong, rank, ranks) for rank in range(ranks)] for wrong in case.mistakes.values())
    if any(equal_values(results, wrong) for wrong in of_all):
        return
    for rank, (got, right) in enumerate(zip(results, case.right, strict=True)):
        if isinstance(got, list | tuple):
            stages = zip(got, right, strict=False) if chunks else [(got, right)]
            wrong = (
                (c, list(mine), wanted) for c, (mine, wanted) in enumerate(stages) if not equal_values(mine, wanted)
            )
            for chunk, mine, wanted in wrong:
                stage, seen = chunk * ranks + rank, f"{case.seen} ".format(rank=rank)
                name = f"Stage {stage}" + f", chunk {chunk} of rank {rank}," * (chunks > 0)
                more = ", and the first ones have one more until none is left over" * (not chunks)
                why = f"{name} has {plural(len(mine), 'layer')}, but each stage has layers // stages{more}."
                if len(mine) > 1 and int(mine[1].split()[1]) != int(mine[0].split()[1]) + 1:
                    why = f"{name} has layers that don't follow one another."
                elif not mine:
                    why = f"{name} is empty: does it begin at its own end, or after the last layer?"
                elif mine[0] != wanted[0]:
                    why = f"{name} should begin with {wanted[0]!r}" + ", after all stages before it" * (stage > 0) + "."
                raise CheckFailed(seen + show(got, right), show(right, got), why, lead=len(seen))


split_layers = Layers(ROOM, "split-layers")


### BEGIN HIDDEN TESTS


@oracle(values=[(11, 8), (13, 5), (3, 5), (7, 3), (1, 1)])
def hidden_split_layers(_: Draws, layers: int, ranks: int) -> Case:
    items = [f"layer {number}" for number in range(layers)]
    (size, more), ceil = divmod(layers, ranks), -(-layers // ranks)
    own, starts = zip(*((size + (rank < more), rank * size + min(rank, more)) for rank in range(ranks)), strict=True)
    even = [rank * layers // ranks for rank in range(ranks + 1)]

    def cut(begin: Iterable[int], lengths: Iterable[int]) -> list[list[str]]:
        return [items[first : first + length] for first, length in zip(begin, lengths, strict=True)]

    def by(step: int) -> list[int]:
        return [rank * step for rank in range(ranks)]

    mistakes = {
        "a cut into pieces of ceil(layers / P): the last ranks get less, or nothing": cut(by(ceil), [ceil] * ranks),
        "a cut into pieces of layers // P: the leftover layers belong to no rank": cut(by(size), [size] * ranks),
        "a cut with all leftover layers on the last rank: then it is slower than all others": cut(
            by(size), [size] * (ranks - 1) + [layers]
        ),
        "sizes that differ by one, but the larger ones are not on the first ranks": [
            items[first:end] for first, end in pairwise(even)
        ],
        "every P-th layer: a stage has consecutive layers": [items[rank::ranks] for rank in range(ranks)],
    }
    return Case(
        [[items] * ranks],
        right=cut(starts, own),
        mistakes=mistakes if layers >= ranks else {},  # with fewer layers, different mistakes look the same
        seen=f"{layers} layers: rank {{rank}} got",
    )


### END HIDDEN TESTS
interleaved_layers = Layers(ROOM, "interleaved-layers")


### BEGIN HIDDEN TESTS


@oracle(values=[(12, 3, 2), (30, 5, 3), (4, 2, 1), (3, 1, 3), (24, 2, 4)])
def hidden_interleaved_layers(_: Draws, layers: int, ranks: int, chunks: int) -> Case:
    items, numbers, size = [f"layer {number}" for number in range(layers)], range(ranks), layers // (ranks * chunks)
    stages = cut(items, [size] * ranks * chunks)
    right = [stages[rank::ranks] for rank in numbers]
    return Case(
        [[items] * ranks],
        for_all={"num_chunks": chunks},
        right=right,
        seen=f"{layers} layers, {chunks} chunks: rank {{rank}} got",
        mistakes={
            "contiguous: chunks next to each other give plain pipelining. Chunk c of rank r is stage c P + r": [
                stages[rank * chunks : (rank + 1) * chunks] for rank in numbers
            ],
            "the right layers in one list: return one list for each chunk": [sum(mine, []) for mine in right],
            "the stages of all ranks: return those of this rank": every(stages),
            "the chunks in reverse order": [mine[::-1] for mine in right],
            "one chunk too many: count the chunks from 0": [[*mine, []] for mine in right],
        },
    )


### END HIDDEN TESTS


# ---- data


def model(
    draws: Draws, layers: int, rows: int, ranks: int, dtype: torch.dtype = EXACT
) -> tuple[list[Tensor], list[Tensor]]:
    """(the weights of all layers, the batch of each rank: only rank 0's counts)"""
    batches = [mlp.make_batch(rows, DIM, draws.salted(rank), dtype) for rank in range(ranks)]
    return mlp.make_weights(layers, DIM, draws.salted(), dtype), batches


def cut(items: Iterable[T], sizes: Iterable[int]) -> list[list[T]]:
    """Consecutive items: sizes[s] of them for stage s."""
    rest = iter(items)
    return [list(islice(rest, size)) for size in sizes]


def rows_take_time(ranks: int, message: float = 0.0) -> Cluster:
    """One row through one layer takes one second, a message takes `message` seconds, and all else takes none."""
    gpu = Gpu(flops=dict.fromkeys(("fp64", "fp32"), 2 * DIM * DIM), memory=math.inf, bandwidth=math.inf)
    link = Link(alpha=message, bandwidth=math.inf)
    return Cluster("one row a second", nodes=1, gpus_per_node=ranks, gpu=gpu, intra=link, inter=link)


def crossed(
    batch: Tensor, ranks: int, chunks: int = 1, microbatches: int = 1, back: bool = True, enough: str = ""
) -> Judgement:
    """Judge that activations cross each boundary between stages, and come back as a gradient, as large as `batch`."""
    last = ranks * chunks - 1
    ways = [sum((stage < last) + (stage > 0) * back for stage in range(rank, last + 1, ranks)) for rank in range(ranks)]
    messages, sent = [microbatches * n for n in ways], [batch.nbytes * n for n in ways]
    dtype = str(batch.dtype).removeprefix("torch.")

    def judge(answer: Answer) -> str:
        expect_no_barrier(answer)
        for event in answer.events:
            if event.dtype not in ("", dtype):
                seen = f"rank {event.rank} calls {event.op} with {event.dtype} numbers"
                raise CheckFailed(seen, dtype, "That is the batch's dtype.")
        return expect_each_sent(answer, messages, sent, enough)

    return judge


def in_microbatches(batch: Tensor, size: int) -> Judgement:
    """Judge that each rank but the last sends one message for each microbatch of `size` rows, in order."""
    wanted = [len(part) for part in batch.split(size)]

    def judge(answer: Answer) -> None:
        expect_only_messages(answer)
        for rank in range(len(answer.results) - 1):
            sent = [
                event.bytes // batch[0].nbytes for event in answer.events if (event.rank, event.op) == (rank, "send")
            ]
            if sent != wanted:
                why = "micro_batch_size is the number of rows in a microbatch: batch.split(micro_batch_size)."
                seen, expected = f"rank {rank} sent {rows_of(sent)}", rows_of(wanted)
                raise CheckFailed(seen, expected, "That is the whole batch at once." if sent == [len(batch)] else why)

    return judge


def rows_of(counts: list[int]) -> str:
    return f"messages of {', '.join(map(str, counts))} rows" if counts else "no message"


def not_into(batches: Sequence[Any]) -> Judgement:
    """Judge that no rank has received into its batch, or into a view of it. (Rank 0 receives nothing in its place.)"""

    def judge(answer: Answer) -> None:
        for rank, (batch, [after, *_]) in enumerate(zip(batches, answer.inputs_after, strict=True)):
            if rank > 0 and isinstance(after, Tensor) and not equal_values(after, batch):
                seen = f"rank {rank}: batch is {show(after, batch)} after the call"
                raise CheckFailed(
                    seen,
                    show(batch, after),
                    "The input must stay as it was. `x = batch`, a slice and the pieces that `split` gives are views: "
                    "what you receive into one changes `batch`. Receive into a new tensor, torch.empty_like(...).",
                )

    return judge


# ---- forward, in parts 1, 2 and 6

EACH_BOUNDARY = (
    "each boundary needs one send on the rank before it and one receive on the rank after it. Rank 0 receives "
    "nothing, and the last rank sends nothing."
)
OVERLAP_STUCK = (
    "a rank that waits for a message that the rank before has not started to send, or a receive without a send. Each "
    "microbatch needs one send on every rank but the last and one receive on every rank but rank 0."
)


def forward(draws: Draws, layers: Sizes, rows: int, size: int, dtype: torch.dtype, **judged: Any) -> Case:
    """The output of a batch that goes through all stages, whole (size 0) or in microbatches of `size` rows."""
    weights, batches = model(draws, sum(layers), rows, len(layers), dtype)
    stages, batch = cut(weights, layers), batches[0]
    right, sent_on = mlp.forward(weights, batch), mlp.forward(stages[-1], batch)
    return Case(
        [batches, stages],
        for_all={"micro_batch_size": size} if size else {},
        right=only_at(len(layers) - 1, right, "Only the last rank has the output."),
        rtol=RTOL[dtype],
        mistakes={
            "the output if a rank sends its input on unchanged: each rank applies its layers before it sends": sent_on,
            "the last rank's layers applied to its own batch: its input is what arrives": mlp.forward(
                stages[-1], batches[-1]
            ),
            "the last rank's input: it applies its layers, too": mlp.forward(weights[: -layers[-1] or None], batch),
            "the output of the last microbatch alone: keep all of them": right.split(size or rows)[-1],
            "the microbatches in reverse order": torch.cat(right.split(size or rows)[::-1]),
            "the output without the last rows: the last microbatch may be shorter": right[
                : rows // (size or 1) * (size or 1)
            ],
        },
        advice={
            "stack expects each tensor to be equal size": (
                "Microbatches may differ in length, and the outputs are wanted as one tensor of all rows: torch.cat."
            ),
        },
        values_first=True,
        before=not_into(batches),
        **judged,
    )


@oracle(values=[((2, 1, 1, 1), 3)], traffic=[((1, 1, 1), 5)], if_stuck=EACH_BOUNDARY)
def naive_forward(draws: Draws, layers: Sizes, rows: int, dtype: torch.dtype = EXACT) -> Case:
    like = torch.empty(rows, DIM, dtype=dtype)
    once = crossed(like, len(layers), back=False, enough="Every boundary is crossed once.")
    return forward(draws, layers, rows, 0, dtype, traffic=once)


### BEGIN HIDDEN TESTS
F32 = torch.float32
hidden_naive_forward = vary(
    naive_forward,
    values=[((2, 1, 1, 1, 1), 1), ((2, 1), 7, F32), ((1, 1, 0), 2), ((2,), 3)],
    traffic=[((1,) * 5, 2), ((5,), 2)],
)
### END HIDDEN TESTS


@oracle(values=[((2, 1, 1), 10, 4), ((1, 1), 6, 2)], time=[((1,) * 4, 12, 3)], if_stuck=EACH_BOUNDARY)
def microbatch_forward(draws: Draws, layers: Sizes, rows: int, size: int, dtype: torch.dtype = EXACT) -> Case:
    """Time is judged with one layer on each rank, and messages that take none."""
    ranks = len(layers)
    serial = (
        "as long as one GPU alone would take, so the ranks work one after another. Send each microbatch on before you "
        "receive the next one"
    )

    def in_time(answer: Answer) -> str:
        needed = rows + size * (ranks - 1)
        twice = "a rank seems to compute each microbatch twice"
        wrong = {serial: float(rows * ranks)} | dict.fromkeys(why_behind(answer, size), answer.run.elapsed)
        return expect_time(answer, needed, recognise=wrong | {twice: needed + rows}, least=rows + ranks - 1)

    also = in_microbatches(torch.empty(rows, DIM, dtype=dtype), size)
    return forward(draws, layers, rows, size, dtype, also=also, clock=rows_take_time(ranks), time=in_time)


### BEGIN HIDDEN TESTS
hidden_microbatch_forward = vary(
    microbatch_forward,
    values=[((1,) * 5, 9, 2), ((1,) * 3, 4, 1, F32), ((2, 2), 5, 8), ((2,), 5, 2)],
    time=[((1,) * 3, 14, 2), ((1,) * 8, 2, 1)],
)
### END HIDDEN TESTS


@oracle(values=[((2, 1, 1), 10, 4), ((1, 1), 3, 1)], time=[((1, 1, 1), 15, 3, 2.0)], if_stuck=OVERLAP_STUCK)
def overlapped_forward(
    draws: Draws, layers: Sizes, rows: int, size: int, message: float = 0.0, dtype: torch.dtype = EXACT
) -> Case:
    """Time is judged with one layer on each rank, and messages of `message` seconds that overlap with computing."""
    ranks = len(layers)
    first = ranks * size + (ranks - 1) * message  # the first microbatch's way
    others = rows / size - 1
    serial = (
        "as long as if each rank began only when the one before has done everything. Send each microbatch as soon as "
        "it is computed, and wait for one message at a time"
    )

    def in_time(answer: Answer) -> str:
        expect_waited(answer)
        wrong = {serial: float(ranks * rows + (ranks - 1) * message)}
        of_rank_0 = [why for why in why_behind(answer, size) if why.startswith("rank 0")]
        wrong |= dict.fromkeys(why_late(answer) or of_rank_0, answer.run.elapsed)
        least = rows + (ranks - 1) * (1 + message)  # a row takes a second on each rank
        return expect_time(answer, first + others * max(size, message), recognise=wrong, least=least)

    also, clock = in_microbatches(torch.empty(rows, DIM, dtype=dtype), size), rows_take_time(ranks, message)
    return forward(draws, layers, rows, size, dtype, also=also, clock=clock, time=in_time)


### BEGIN HIDDEN TESTS
hidden_overlapped_forward = vary(
    overlapped_forward,
    values=[((1,) * 5, 9, 2), ((1,) * 3, 4, 1, 0.0, F32), ((2, 2), 5, 8), ((2,), 5, 2)],
    time=[((1,) * 5, 6, 2, 1.5), ((1,) * 2, 32, 4, 4.0), ((1,) * 4, 6, 1, 0.25)],
)
### END HIDDEN TESTS


def sends_and_receives(answer: Answer) -> list[tuple[list[Event], list[Event]]]:
    """Those of each rank."""
    calls = [[event for event in answer.events if event.rank == rank] for rank in range(len(answer.results))]
    return [([e for e in mine if e.op == "send"], [e for e in mine if e.op == "recv"]) for mine in calls]


def why_behind(answer: Answer, size: int) -> list[str]:
    """Which rank keeps a microbatch of `size` rows, each a second, from the next rank, in words: [] or one sentence."""
    for rank, (sends, receives) in enumerate(sends_and_receives(answer)):
        if rank == 0 and sends[0].start > size * 1.001:
            return ["rank 0 computes more than its first microbatch before it sends that on"]
        if any(later.start < send.start for send, later in zip(sends, receives[1:], strict=False)):
            return [f"rank {rank} receives the next microbatch before it sends this one on"]
        if not sends and any(later.start < (one.end or 0) + size * 0.999 for one, later in pairwise(receives)):
            return [f"rank {rank} receives the next microbatch before it computes this one"]
    return []


def why_late(answer: Answer) -> list[str]:
    """What kept messages from travelling while their ranks computed, in words: [] or one sentence."""
    early = late = False  # the ranks in the middle show both
    for sends, receives in sends_and_receives(answer):
        early |= any(not one.is_async or (one.waited or 0) < later.start for one, later in pairwise(sends))
        late |= any(one.start >= send.start for send, one in zip(sends, receives[1:], strict=False))
    why = ["waits for its send before it computes the next microbatch"] * early
    why += ["starts to receive the next microbatch only after it has computed this one"] * late
    return ["a rank " + ", and ".join(why)] * bool(why)


def expect_waited(answer: Answer) -> None:
    """Raise CheckFailed if a handle was dropped, which on virtual ranks keeps no message from arriving."""
    for event in answer.events:
        if event.is_async and event.waited is None:
            seen = f"rank {event.rank} started an asynchronous {event.op} to {event.peer} and never waited for it"
            raise CheckFailed(seen, "wait() for each handle", "Until then its tensor may not have been read or filled.")


# ---- gradients, in parts 3 and 5

BACK_AND_FORTH = (
    "each boundary is crossed twice: activations go forward, then the gradient comes back. A rank sends its "
    "activations before it waits for the gradient, and the gradient of its input after its own backward."
)
STUCK_STAGE = (
    "a message that was never handed over (what is left after the last step, too), or one that no rank sends: the "
    "gradient of the input goes to the rank before, the activations go to the rank after."
)
NO_TAGS = "NCCL ignores tags: between two ranks, what is sent first is received first."

# What a stage goes backward from by mistake, in place of the gradient of the next stage's x.
# (its y, the gradients of the next stage's y and x, whether that is the last stage) -> a gradient
USUAL_SENDS: dict[str, Callable[[Tensor, Tensor, Tensor, bool], Tensor]] = {
    "the gradient if each rank sends back the one of its output: the rank before needs that of your x, x.grad": (
        lambda y, of_output, of_input, is_last: of_output
    ),
    "the gradient if a rank passes on the one that it received, that of its output: the rank before needs that of your "
    "x, x.grad": lambda y, of_output, of_input, is_last: of_input if is_last else of_output,
    "the gradient if a rank sends back x itself: the rank before needs the gradient of x, x.grad": (
        lambda y, of_output, of_input, is_last: y.detach()
    ),
    "the gradient if the rank's own y is the loss: it must come from the next rank": (
        lambda y, of_output, of_input, is_last: torch.autograd.grad(mlp.loss_of(y), y, retain_graph=True)[0]
    ),
    "the gradient if backward starts from a gradient of ones: use the one that the next rank sends": (
        lambda y, of_output, of_input, is_last: torch.ones_like(y)
    ),
}
X_SENT_ON = "the gradient if each rank sends on its x: the next rank needs y, the output of your layers"
NOT_REACHED = (
    "what .grad is before a backward reaches it: was backward() called on this rank, on a tensor made of `leaves`?"
)


def wrong_sends(stages: Stages, batch: Tensor) -> dict[str, Stages]:
    """{the mistake in words: the gradients of each stage that it leads to}"""
    chain, same_x = [batch], [batch for _ in stages]
    for stage in stages[:-1]:
        chain.append(mlp.forward(stage, chain[-1]).detach())
    wrong = {words: go_back(stages, chain, sent) for words, sent in USUAL_SENDS.items()}
    return wrong | {X_SENT_ON: go_back(stages, same_x, lambda y, of_output, of_input, is_last: of_input)}


def go_back(stages: Stages, inputs: list[Tensor], sent: Callable[[Tensor, Tensor, Tensor, bool], Tensor]) -> Stages:
    """The gradients of each stage, from its input, and from what the next one has `sent` back."""
    found: Stages = []
    of_next: list[Tensor] = []  # the gradients of the next stage's y and x
    for stage, x in zip(reversed(stages), reversed(inputs), strict=True):
        leaves, x = [w.clone().requires_grad_() for w in stage], x.clone().requires_grad_()
        y = mlp.forward(leaves, x)
        if of_next:
            gradient = sent(y, of_next[0], of_next[1], len(found) == 1)
        else:
            [gradient] = torch.autograd.grad(mlp.loss_of(y), y, retain_graph=True)
        of_input, *of_leaves = torch.autograd.grad(y, [x, *leaves], gradient, retain_graph=True)
        of_next = [gradient, of_input]
        found.insert(0, list(of_leaves))
    return found


def named(gradients: Any, name: str = "the gradient of weights") -> dict[str, Any]:
    """{"the gradient of weights[0]": its first, ...} of a list of gradients; weights[0][0] and so on of lists in it."""
    if not isinstance(gradients, list | tuple):
        return {name: gradients}
    return {key: one for n, inner in enumerate(gradients) for key, one in named(inner, f"{name}[{n}]").items()}


def backward(
    inputs: Sequence[Sequence[Any]],
    right: list[dict[str, Tensor]],
    wrong: Mapping[str, list[dict[str, Any]]],
    dtype: torch.dtype,
    before: Judgement | None = None,
    **judged: Any,
) -> Case:
    """The gradients of each rank, `named`, and the loss of a rank that has one; wrong: what mistakes lead to."""
    of_gradients = [{name: x for name, x in of_rank.items() if name != LOSS} for of_rank in right]
    every = {**wrong, NOT_REACHED: [dict.fromkeys(of_rank) for of_rank in of_gradients]}
    names = list(dict.fromkeys(name for of_rank in right for name in of_rank))

    def by_rank(ranks: list[dict[str, Any]], name: str) -> list[Any]:
        return [of_rank.get(name) for of_rank in ranks]  # None where a rank has no such layer

    def unpack(got: Any, rank: int) -> dict[str, Any]:
        loss, gradients = as_tuple(got, ["the loss", "the gradients"], rank).values() if LOSS in names else (None, got)
        if named(gradients).keys() != of_gradients[rank].keys():
            raise CheckFailed(f"rank {rank} returned {show(gradients)}", f"a list with {', '.join(of_gradients[rank])}")
        return dict.fromkeys(names) | named(gradients) | {LOSS: loss}

    return Case(
        inputs,
        right={name: by_rank(right, name) for name in names},
        mistakes={
            name: {words: by_rank(ranks, name) for words, ranks in every.items() if any(name in one for one in ranks)}
            for name in names
        },
        rtol=RTOL[dtype],
        unpack=unpack,
        values_first=True,
        before=before or not_into(inputs[0]),
        **judged,
    )


def leaving_weights_alone(function: Callable[..., Any], batch: Tensor, weights: list[Tensor]) -> Any:
    """What a rank runs: the student's function. Raises LeftBehind if autograd treats the weights differently then."""
    result = function(batch, weights, rank=dist.get_rank(), world_size=dist.get_world_size())
    if any(weight.requires_grad or weight.grad is not None for weight in weights):
        raise LeftBehind("the weights that you were given require a gradient after the call: differentiate copies")
    return result


@oracle(values=[((2, 2, 1), 3), ((1, 1), 4)], traffic=[((1,) * 4, 2)], if_stuck=BACK_AND_FORTH)
def backward_across(draws: Draws, layers: Sizes, rows: int, dtype: torch.dtype = EXACT) -> Case:
    weights, batches = model(draws, sum(layers), rows, len(layers), dtype)
    stages, batch = cut(weights, layers), batches[0]
    _, gradients = mlp.serial_gradients(weights, batch)
    return backward(
        [batches, stages],
        right=list(map(named, cut(gradients, layers))),
        wrong={words: list(map(named, of)) for words, of in wrong_sends(stages, batch).items()},
        dtype=dtype,
        driver=leaving_weights_alone,
        traffic=crossed(batch, len(layers), enough="Each boundary is crossed once each way."),
    )


### BEGIN HIDDEN TESTS
hidden_backward_across = vary(
    backward_across,
    values=[((2, 2, 1, 1, 1), 2), ((2, 1), 1, F32), ((3,), 4)],
    traffic=[((2, 1, 1), 5)],
)
### END HIDDEN TESTS


@oracle(values=[(2, 6, 2), (2, 10, 4)], memory=[(2, 20, 4)])
def accumulate_gradients(draws: Draws, layers: int, rows: int, size: int, dtype: torch.dtype = EXACT) -> Case:
    weights, [batch] = model(draws, layers, rows, 1, dtype)

    def outcome(part: Tensor) -> dict[str, Tensor]:
        loss, gradients = mlp.serial_gradients(weights, part)
        return named(gradients) | {LOSS: loss}

    right, each = outcome(batch), list(map(outcome, batch.split(size)))
    count, last = len(each), len(batch.split(size)[-1])
    factors = {
        "the sum of the means: it is M times too large. Weight each by its microbatch's share of the rows": 1.0,
        "every microbatch weighted by 1 / M: the short one counts too much. Use its share of the rows": 1 / count,
        "every microbatch weighted by 1 / B: its loss is a mean already, so use its rows / B": 1 / rows,
        "every microbatch weighted by micro_batch_size / B: the last one has fewer rows": size / rows,
    }
    if rows > size and rows % size:
        full = "weighted by one over the full microbatches alone: use each microbatch's share of the rows"
        factors[full] = 1 / (rows // size)
    wrong: dict[str, list[dict[str, Any]]] = {
        words: [{name: factor * sum(of[name] for of in each) for name in right}] for words, factor in factors.items()
    }
    alone = "the last microbatch alone: don't zero the gradients in between"
    wrong[alone] = [{name: last / rows * of_last for name, of_last in each[-1].items()}]

    def one_at_a_time(answer: Answer) -> str:
        expect_one_at_a_time(answer, rows, size, layers, batch[0].nbytes)
        return f"the activations of {size} rows at a time, not of all {rows}."

    same = {"micro_batch_size": size}
    return backward(
        [[batch], [weights]], [right], wrong, dtype, for_all=same, clock=free_messages(1), memory=one_at_a_time
    )


### BEGIN HIDDEN TESTS
hidden_accumulate_gradients = vary(
    accumulate_gradients,
    values=[(1, 7, 3), (3, 5, 5), (2, 4, 9), (2, 9, 1, F32)],
    memory=[(3, 21, 3), (1, 9, 4)],
)
### END HIDDEN TESTS


def expect_one_at_a_time(answer: Answer, rows: int, size: int, layers: int, row: int) -> None:
    """Raise CheckFailed unless the activations of one microbatch of `size` rows are live at a time; row: its bytes."""
    most = most_of(answer, 0, "activations")
    # Autograd saves the inputs of each product, gelu and the loss. The first is part of the batch.
    held = round(most / (2 * layers * row))
    if not most:
        why = "torch.func doesn't say what it keeps: take the gradients by backward(), or by torch.autograd.grad."
        raise CheckFailed("no activations are held that can be seen", f"those of {size} rows, one microbatch", why)
    if abs(most - 2 * layers * size * row) > row * layers:
        raise CheckFailed(
            f"the activations of up to {plural(held, 'row')} are held at a time",
            f"those of {size}, one microbatch",
            "Is there one backward() for all microbatches, or does retain_graph=True keep the graphs? Call a plain "
            "backward() for each: it frees what the forward has kept."
            if most > 2 * layers * size * row
            else "A microbatch has micro_batch_size rows: shorter ones take longer.",
        )


def most_of(answer: Answer, rank: int, kind: str) -> int:
    """The most bytes of a kind of tensor that a rank holds at one time."""
    return max((nbytes for _, this, nbytes in answer.run.memory().samples[rank] if this == kind), default=0)


# Schedules written out, so that a stage is judged without a student's schedule.


def steps_of(text: str) -> list[RawStep]:
    """ "F0 F1 B0" as steps; with chunks "F0.1"."""
    pairs = [(word[0], word[1:].split(".")) for word in text.split()]
    return [(kind, *map(int, numbers)) for kind, numbers in pairs]


ALTERNATING = [  # three ranks, eight microbatches
    steps_of("F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"),
    steps_of("F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"),
    steps_of("F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"),
]
CHUNKED = [  # three ranks with two chunks each, two microbatches
    steps_of("F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"),
    steps_of("F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"),
    steps_of("F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0"),
]
# Rank 0 hands over the output of F1.0 before its B0.1; rank 1 receives it only after its B0.0, which needs that B0.1.
RECEIVED_LATER = [
    steps_of("F0.0 F0.1 F1.0 B0.1 B0.0 F1.1 B1.1 B1.0"),
    *[steps_of("F0.0 F0.1 B0.1 B0.0 F1.0 F1.1 B1.1 B1.0")] * 2,
]

ADVICE_ON_STEPS = {
    r"does not require grad and does not have a grad_fn": (
        "A backward finds a y without its graph: keep y itself until then, and send y.detach()."
    ),
    r"got <class 'NoneType'>": (
        "It sends None, the .grad of a tensor that has none: is it the .grad of x, did x require a gradient before it "
        "was used (on rank 0 too, in every stage but the first), and does each B take out the x of its own F?"
    ),
    r"float64 .* (?:for|into) float32 |float32 .* (?:for|into) float64 ": (
        "The two have different dtypes: torch.empty_like(...) makes a buffer with the dtype of another tensor."
    ),
    r"only has room for|the rest of that tensor stays": (
        "The two ranks are at different microbatches: does each B take out what its own F has kept, is a buffer as "
        "long as its microbatch, and is `outgoing` emptied when it has been handed over?"
    ),
    r"local variable 'gradient'": (
        "A B without a gradient: every stage but the last receives one, on the last rank too if it has several chunks."
    ),
    r"finished without sending it\.( Count .*)": "Is what is outgoing after the last step handed over, too?",
    "KeyError|non-iterable NoneType": (
        "A backward finds nothing under its key. F and B must use the same key, with the chunk in it."
    ),
    r"non-iterable int object[\s\S]*\.(?:pop|get)\(\w+, ": (
        "pop(m, c) and get(m, c) look for the key m, and return c if there is none. A key of two parts is one tuple: "
        "pop((m, c))."
    ),
    "unhashable type: 'list'": "A key can't hold a list, and `chunk` is one: take its number, c.",
}
ADVICE_IF_RECEIVED_LATER = {
    r"(?s)rank 0 +waits in send.*(\s*No send matches.*)": (
        "Rank 0 waits for a send, but rank 1 receives it only after a step that needs rank 0's next one: wait for the "
        "receive alone, and put (handle, P2POp) of each send into `sends`."
    ),
}


def ask_for_the_stage(ranks: int) -> str:
    return (
        f"Ask for `stage`, not for `rank`. Rank 0 has the stages 0 and {ranks} here, and only stage 0 takes its input "
        f"from the batch and sends no gradient. Rank {ranks - 1} has the stages {ranks - 1} and {2 * ranks - 1}, and "
        f"only stage {2 * ranks - 1} sends no output and receives no gradient."
    )


def on_one_chunk(ranks: int) -> dict[str, str]:
    """Advice where each rank has one stage."""
    ends = rf"rank 0 +waits in \w+ \w+ {ranks - 1}|rank {ranks - 1} +waits in \w+ \w+ 0"
    return {
        rf"(?s)(?:{ends}) .*?(\n\s*(?:Everyone|No send).*| Count the sends.*|$)": (
            f"No message goes between ranks 0 and {ranks - 1} here: stage 0 takes its x from the batch, the last stage "
            "its gradient from the loss. Every other x comes from the rank before, other gradients from the one after."
        )
    }


def on_chunks(ranks: int) -> dict[str, str]:
    """Advice where a rank has several stages. The case before, with one stage on each rank, has passed."""
    return {
        "class 'NoneType'": (
            "It sends None, the .grad of an x that required no gradient. Only stage 0 takes x from the batch: rank 0 "
            f"has stage {ranks} here, too, where x is received and requires one. Or a B takes out another F's x."
        ),
        r"(\s*(?:Everyone receives first|No send matches).*)": ask_for_the_stage(ranks),
        r"finished without (?:receiving|sending) it\.( Count .*)": ask_for_the_stage(ranks),
    }


@oracle(
    values=[(ALTERNATING, (2, 1, 1), 15, 2), (CHUNKED, (1,) * 6, 4, 2), (RECEIVED_LATER, (1,) * 6, 4, 2)],
    traffic=[(ALTERNATING, (1, 1, 1), 16, 2)],
    memory=[(ALTERNATING, (2, 2, 2), 8, 1)],
    if_stuck=STUCK_STAGE,
)
def run_schedule(
    draws: Draws, schedules: list[list[RawStep]], layers: Sizes, rows: int, size: int, dtype: torch.dtype = EXACT
) -> Case:
    """A whole step; with more stages than ranks, a rank has several. Memory is judged with two layers in each stage."""
    ranks, chunks = len(schedules), len(layers) // len(schedules)
    weights, batches = model(draws, sum(layers), rows, ranks, dtype)
    batch, stages = batches[0], cut(weights, layers)
    parts = batch.split(size)

    def on_ranks(items: Stages) -> list[Stages]:
        return [[items[chunk * ranks + rank] for chunk in range(chunks)] for rank in range(ranks)]

    def alone(part: Tensor) -> Stages:
        return cut((len(part) / rows * g for g in mlp.serial_gradients(weights, part)[1]), layers)

    wrong = {
        "the last microbatch's gradient alone: don't zero the gradients in between": alone(parts[-1]),
    } | wrong_sends(stages, batch)
    messages = crossed(batch, ranks, chunks, len(parts), enough="M messages each way across each boundary.")
    ask_for_stage = ask_for_the_stage(ranks)
    of_case = on_chunks(ranks) if chunks > 1 else on_one_chunk(ranks) if ranks > 2 else {}

    def expect_all_stages(answer: Answer) -> None:
        """A gradient that a rank hasn't received is any numbers: with several chunks, messages are counted first."""
        not_into(batches)(answer)
        for rank, (sent, _) in enumerate(sends_and_receives(answer)):
            wanted = len(parts) * (2 * chunks - (rank in (0, ranks - 1)))
            if len(sent) < wanted and chunks > 1:
                seen = f"rank {rank} sent {plural(len(sent), 'message')}"
                raise CheckFailed(seen, plural(wanted, "message"), ask_for_stage)

    def in_order(answer: Answer) -> str | None:
        expect_order(answer)
        remark = messages(answer)
        expect_steps_taken(answer, schedules, chunks, parts)
        return remark

    def in_memory(answer: Answer) -> str:
        expect_steps_taken(answer, schedules, chunks, parts)
        return expect_few_kept(answer, schedules, tensor=size * DIM * dtype.itemsize)

    loss, gradients = mlp.serial_gradients(weights, batch)
    right = list(map(named, on_ranks(cut(gradients, layers))))
    right[-1][LOSS] = loss
    return backward(
        [batches, on_ranks(stages), schedules],
        right=right,
        wrong={words: list(map(named, on_ranks(of))) for words, of in wrong.items()},
        dtype=dtype,
        before=expect_all_stages,
        for_all={"micro_batch_size": size},
        advice=(ADVICE_IF_RECEIVED_LATER if schedules is RECEIVED_LATER else of_case) | ADVICE_ON_STEPS,
        driver=marking_batches,
        drivers={"memory": None},  # on virtual ranks
        clock=free_messages(ranks),
        traffic=in_order,
        memory=in_memory,
    )


### BEGIN HIDDEN TESTS
GPIPE = [steps_of("F0 F1 F2 F3 B0 B1 B2 B3")] * 3
HIDDEN_ALTERNATING = [
    steps_of("F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 F9 B6 F10 B7 F11 B8 B9 B10 B11"),
    steps_of("F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 F8 B6 F9 B7 F10 B8 F11 B9 B10 B11"),
    steps_of("F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 F8 B7 F9 B8 F10 B9 F11 B10 B11"),
    steps_of("F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8 F9 B9 F10 B10 F11 B11"),
]
REVERSED = [steps_of("F0 F1 F2 F3 B3 B2 B1 B0")] * 3
hidden_run_schedule = vary(
    run_schedule,
    values=[
        (GPIPE, (2, 2, 1), 11, 3),
        (REVERSED, (1, 1, 1), 4, 1, F32),
        (CHUNKED, (2, 1, 1, 1, 2, 1), 3, 2),
        ([steps_of("F0 B0 F1 B1")], (2,), 3, 2),
        ([steps_of("F0 B0")] * 2, (1, 1), 3, 5),
    ],
    traffic=[(CHUNKED, (1,) * 6, 5, 4), (HIDDEN_ALTERNATING, (1,) * 4, 24, 2)],
    memory=[(HIDDEN_ALTERNATING, (2,) * 4, 24, 2), (GPIPE, (2,) * 3, 4, 1)],
)
### END HIDDEN TESTS


def expect_order(answer: Answer) -> None:
    """Raise CheckFailed if the messages rest on tags, or if two ranks' calls to each other don't meet in order.

    NCCL ignores tags, and works through the calls between two ranks one after another.
    """
    calls = [event for event in answer.events if event.op in ("send", "recv")]
    tagged = next((event for event in calls if event.tag), None)
    if tagged:
        raise CheckFailed(f"rank {tagged.rank} calls {tagged.op} with the tag {tagged.tag}", "no tags", NO_TAGS)
    batches = batch_of_each(answer)
    for one, other in combinations(range(len(answer.results)), 2):
        mine, theirs = ([e for e in calls if (e.rank, e.peer) == pair] for pair in ((one, other), (other, one)))
        stuck = first_stuck(mine, theirs, batches)
        if stuck:
            raise CheckFailed(
                f"ranks {one} and {other} would be stuck on NCCL, each in a {stuck.op} to the other, number "
                f"{mine.index(stuck) + 1} of rank {one}'s calls to rank {other}",
                "what one step sends and the next receives, in one batch_isend_irecv",
                "NCCL works through the calls between two ranks one after another; only one call for both directions "
                "lets them exchange.",
            )


def batch_of_each(answer: Answer) -> dict[Event, tuple[str, int]]:
    """{a call: (its line, how many batches its rank had begun by then)}: what calls of one batch have in common."""
    ranks, regions = range(len(answer.results)), answer.run.regions
    begun = [[r.start for r in regions if (r.rank, r.name) == (rank, BATCH)] for rank in ranks]
    return {e: (e.where, bisect_right(sorted(begun[e.rank]), e.start)) for e in answer.events}


def expect_steps_taken(answer: Answer, schedules: list[list[RawStep]], chunks: int, parts: Sequence[Tensor]) -> None:
    """Raise CheckFailed unless each rank sends to its neighbours in the order of its steps, a microbatch each time."""
    ranks = len(schedules)
    for rank, steps in enumerate(schedules):
        wanted = []
        for kind, m, *chunk in steps:
            stage = rank + ranks * sum(chunk)
            to = stage + (1 if kind == "F" else -1)
            wanted += [(to % ranks, parts[m].nbytes)] if 0 <= to < ranks * chunks else []
        sent = [(event.peer, event.bytes) for event in answer.events if (event.rank, event.op) == (rank, "send")]
        (got_to, got), (to_ranks, right) = (tuple(zip(*pairs, strict=True)) or ((), ()) for pairs in (sent, wanted))
        if got_to != to_ranks:
            seen = f"rank {rank} sent its messages to the ranks {show(list(got_to))}"
            why = "It doesn't take its steps in the order of `steps`. The schedule decides the order, not the engine."
            raise CheckFailed(seen, show(list(to_ranks)), why)
        if got != right:
            row = parts[0][0].nbytes
            sizes, wanted_sizes = (rows_of([n // row for n in bytes_sent]) for bytes_sent in (got, right))
            advice = "A microbatch has micro_batch_size rows, and only the last one may be shorter."
            raise CheckFailed(f"rank {rank} sent {sizes}", wanted_sizes, advice)


def first_stuck(mine: list[Event], theirs: list[Event], batches: Mapping[Event, Any]) -> Event | None:
    """The call of mine that waits forever if two ranks' calls to each other are worked off in order; None if none does.

    Two neighbouring calls of one batch, one each way, may go on at the same time.
    """
    queues = [list(mine), list(theirs)]
    while all(queues):
        pairs = product(*(going_on(queue, batches) for queue in queues))
        met = next((pair for pair in pairs if {event.op for event in pair} == {"send", "recv"}), None)
        if met is None:
            return queues[0][0]
        for queue, event in zip(queues, met, strict=True):
            queue.remove(event)
    return None


def going_on(queue: list[Event], batches: Mapping[Event, Any]) -> list[Event]:
    """The calls at the head of a queue that may go on at the same time."""
    first, *rest = queue[:2]
    rest = [e for e in rest if first.is_async and e.is_async and batches[e] == batches[first] and e.op != first.op]
    return [first, *rest]


def expect_few_kept(answer: Answer, schedules: list[list[RawStep]], tensor: int) -> str:
    """Raise CheckFailed if a rank holds the activations of more microbatches than are live in its schedule, or messages
    that have long arrived.

    tensor: bytes of the activations between two layers.
    """
    expect_waited(answer)
    counts = [max(live_at(steps)) for steps in schedules]
    for rank, live in enumerate(counts):
        # Of two layers autograd saves the inputs of each product and each gelu, and on the last stage that of the loss.
        held, room = math.ceil(most_of(answer, rank, "activations") / tensor), 5 * live + 2  # for one in, one out
        if held > room:
            enough = f"{room} at most, which is enough for the {live} microbatches that are live at a time"
            why = "Something is kept after its backward: kept.pop(...) forgets x and y, kept[...] or a list keeps them."
            raise CheckFailed(f"rank {rank} holds up to {held} tensors of activations", enough, why)
    for rank in range(len(schedules)):
        messages = most_of(answer, rank, "communication") // tensor
        if messages > MESSAGES_HELD:
            seen = f"rank {rank} holds up to {messages} tensors that it has sent or received"
            why = "Most have arrived long ago: keep what is sent in `sends` alone, and what is received until its step."
            raise CheckFailed(seen, f"{MESSAGES_HELD} at most, with room for copies", why)
    return f"live microbatches by rank: {counts}, as the schedule says."


MESSAGES_HELD = 8  # an answer that drops what has arrived holds up to 6 in these schedules, whatever their length


# ---- schedules, in parts 4 and 7

GROUPS = "Microbatches go in groups of P: through chunk 0, then chunk 1, and so on. Then comes the next group."


def live_at(steps: Sequence[RawStep]) -> list[int]:
    """The number of live microbatches during each step."""
    begin = {step[1:]: number for number, step in enumerate(steps) if step[0] == "F"}
    end = {step[1:]: number for number, step in enumerate(steps) if step[0] == "B"}
    return [sum(begin[m] <= number <= end[m] for m in begin) for number in range(len(steps))]


@oracle(values=[("F0 B0 F1 F2 B1 F3 F4 B2 F5 F6 B3 B4 B5 B6",), ("F0 B0 F1 B1",), ("F0 F1 F2 B2 B1 B0 F3 B3",)])
def live_microbatches(_: Draws, text: str) -> Case:
    """The truth comes from counting, at each step, the microbatches that have begun and not ended."""
    steps = steps_of(text)
    kinds, right = "".join(step[0] for step in steps), max(live_at(steps), default=0)
    return Case(
        [[steps]],
        right=right,
        seen=f"of {text} it returned",
        mistakes={
            "the number live at the end: keep track of the largest": 0,
            "the number of all forwards: a backward ends one": kinds.count("F"),
            "the number of forwards before the first backward: there may be more live later": len(kinds.split("B")[0]),
            "the most forwards in a row: a backward ends one microbatch, not all": max(map(len, kinds.split("B"))),
            "one too many: count the F before you look for the maximum, and the B after it": right + 1,
            "one too few: a microbatch is already live during its F": right - 1,
            "the number of steps": len(steps),
        },
    )


### BEGIN HIDDEN TESTS
hidden_live_microbatches = vary(
    live_microbatches,
    values=[
        ("F0 B0",),
        ("F0 F1 F2 F3 F4 B0 B1 B2 B3 B4",),
        ("F0 F1 F2 B0 B1 F3 F4 B2 F5 F6 B3 B4 B5 B6",),
        ("F1 F0 B0 F2 B2 B1",),
        ("F0 F1 B1 F2 B2 B0",),
        ("F0.0 F0.1 F1.0 B0.1 F1.1 B0.0 B1.1 B1.0",),
        ("",),
    ],
)
### END HIDDEN TESTS


def planned(ranks: int, microbatches: int, chunks: int | None, expect_form: Callable[[Schedule], None]) -> Case:
    """A schedule: each rank returns its steps. Many schedules are right, so form, memory and time are judged."""

    def on_steps(judge: Callable[[Schedule], Any]) -> Judgement:
        return lambda answer: judge(runnable(answer.results, microbatches, chunks or 1))

    return Case(
        world_size=ranks,
        for_all={"num_microbatches": microbatches} | ({"num_chunks": chunks} if chunks else {}),
        cluster=free_messages(ranks),
        also=on_steps(expect_form),
        memory=on_steps(lambda schedule: expect_few_live(schedule, microbatches, chunks or 1)),
        time=on_steps(lambda schedule: expect_small_bubble(schedule, microbatches, chunks or 1)),
    )


@oracle(values=[(4, 5), (2, 1)], time=[(4, 6)])
def gpipe(_: Draws, ranks: int, microbatches: int) -> Case:
    def expect_forwards_first(schedule: Schedule) -> None:
        for rank, steps in enumerate(schedule):
            if warm_up(steps) != microbatches:
                seen = f"rank {rank} goes backward after {warm_up(steps)} of {microbatches} forwards"
                raise CheckFailed(seen, "all forwards first", "1F1B will do that; GPipe is simpler.")
        expect_in_order(schedule)

    return planned(ranks, microbatches, None, expect_forwards_first)


### BEGIN HIDDEN TESTS
hidden_gpipe = vary(gpipe, values=[(3, 7), (5, 2), (1, 3)], time=[(8, 3), (2, 9)])
### END HIDDEN TESTS


@oracle(values=[(4, 8), (4, 2)], memory=[(4, 8)], time=[(4, 8)])
def one_f_one_b(_: Draws, ranks: int, microbatches: int) -> Case:
    def expect_in_turn(schedule: Schedule) -> None:
        expect_in_order(schedule)
        for rank, steps in enumerate(schedule):
            if not re.fullmatch("F*(BF)*B*", "".join(step.kind for step in steps)):
                seen = f"rank {rank}, after its warm-up, does {' '.join(map(str, steps[warm_up(steps) :]))}"
                why = "In the steady phase it does two of the same kind in a row."
                raise CheckFailed(seen, "one backward and one forward in turn until there is no forward left", why)

    return planned(ranks, microbatches, None, expect_in_turn)


### BEGIN HIDDEN TESTS
hidden_one_f_one_b = vary(
    one_f_one_b,
    values=[(5, 7), (3, 3), (8, 1), (1, 4), (2, 6)],
    memory=[(5, 9), (4, 2), (8, 3), (1, 5), (3, 3)],
    time=[(5, 9), (8, 3), (3, 3), (2, 1)],
)
### END HIDDEN TESTS


@oracle(values=[(2, 4, 2), (4, 8, 2), (4, 4, 2), (2, 4, 1)], memory=[(4, 12, 2)], time=[(4, 8, 2)])
def interleaved(_: Draws, ranks: int, microbatches: int, chunks: int) -> Case:
    def expect_groups(schedule: Schedule) -> None:
        expect_in_order(schedule)
        for rank, steps in enumerate(schedule):
            if found := not_in_groups(steps, ranks * chunks, ranks):
                seen = f"the first {ranks * chunks} forwards of rank {rank} are of the microbatches {found}"
                raise CheckFailed(seen, f"the group {list(range(ranks))}, through all {chunks} chunks", GROUPS)

    return planned(ranks, microbatches, chunks, expect_groups)


### BEGIN HIDDEN TESTS
hidden_interleaved = vary(
    interleaved,
    values=[(3, 6, 3), (5, 5, 2), (2, 8, 3), (3, 6, 1)],
    memory=[(3, 9, 3), (2, 2, 2), (8, 16, 2)],
    time=[(3, 6, 3), (8, 16, 2), (5, 5, 2)],
)
### END HIDDEN TESTS


# ---- properties of a schedule


def runnable(results: list[Any], microbatches: int, chunks: int) -> Schedule:
    """The steps that the ranks returned. Raises CheckFailed if they can't run."""
    if wrong := problem(results, microbatches, chunks):
        raise CheckFailed(f"the schedule can't run: {wrong}", mistake=why_it_cannot_run(results, microbatches, chunks))
    return read(results)


def why_it_cannot_run(results: list[Any], microbatches: int, chunks: int) -> str:
    """The usual cause of a schedule that can't run like this; "" if there is none."""
    try:
        steps = read(results)
    except ValueError:
        return ""
    if not all(steps):
        return "A rank has nothing to do at all."
    return why_miscounted(steps, microbatches, chunks) or why_out_of_order(steps, chunks)


def why_miscounted(steps: Schedule, microbatches: int, chunks: int) -> str:
    """The usual cause of a schedule in which a rank doesn't take each step once."""
    most, every = microbatches * chunks, [step for of_rank in steps for step in of_rank]
    if max(step.chunk for step in every) >= chunks > max(step.microbatch for step in every):
        return "A step is (kind, microbatch, chunk), in this order."
    for of_rank in steps:
        forwards, backwards = (sum(step.kind == kind for step in of_rank) for kind in "FB")
        if backwards == 2 * most:
            return "If nothing runs ahead, backward[-0:] is the whole list: begin at its length minus `ahead`."
        if backwards > most:
            return "Some backwards come twice: only the last `ahead` of them are left when there is no forward left."
        if forwards == backwards < most:
            return "Some microbatches go neither forward nor backward: there are num_microbatches of them."
        if len(set(of_rank)) < len(of_rank):
            return "Some steps come twice." + " Each whole group before counts P microbatches." * (chunks > 1)
        if 0 < backwards < most == warm_up(of_rank):
            return (
                "All its forwards run ahead, and some backwards are missing: `ahead` is never more than the forwards."
            )
        if len(of_rank) < 2 * most:
            return "Are the backwards after the last forward missing? Or the forwards of the warm-up?"
    return ""


def why_out_of_order(steps: Schedule, chunks: int) -> str:
    first, last, ranks = steps[0], steps[-1], len(steps)
    backwards = [step.microbatch for step in first if step.kind == "B" and step.chunk == chunks - 1]
    if len(set(backwards)) > 1 and backwards == sorted(backwards, reverse=True):
        return "The backwards are in reverse order, but the microbatch that went forward first goes backward first."
    if warm_up(first) < warm_up(last):
        return "The last rank has the longest warm-up, but rank 0 should: it is the other way round."
    if chunks == 1:
        return "A pair begins with its forward." * (warm_up(last) == 0)
    if not_in_groups(first, ranks * chunks, ranks) or any(step.chunk for step in first[:ranks]):
        return GROUPS
    if [step.chunk for step in last if step.kind == "B"][:1] == [0]:
        return "The backwards begin with chunk 0, but they go through the last chunk first."
    ahead = (chunks - 1) * ranks
    if warm_up(last) < ahead:
        return "The warm-up is too short: a microbatch goes through the first v - 1 chunks of all ranks before it."
    return "In the steady phase, a pair begins with its forward." * (warm_up(last) == ahead)


def warm_up(steps: list[Step]) -> int:
    """The number of forwards before the first backward."""
    return next((number for number, step in enumerate(steps) if step.kind != "F"), len(steps))


def not_in_groups(steps: list[Step], count: int, ranks: int) -> list[int]:
    """The microbatches of the first `count` forwards, unless they are 0 to P - 1."""
    seen = sorted({step.microbatch for step in [step for step in steps if step.kind == "F"][:count]})
    return [] if seen == list(range(ranks)) else seen


def expect_in_order(schedule: Schedule) -> None:
    """Raise CheckFailed unless each chunk's forwards and backwards go in the order of the microbatches."""
    for rank, steps in enumerate(schedule):
        for kind, chunk in sorted({(step.kind, step.chunk) for step in steps}, reverse=True):
            order = [step.microbatch for step in steps if (step.kind, step.chunk) == (kind, chunk)]
            if order != sorted(order):
                name = "forwards" if kind == "F" else "backwards"
                reverse = "That is the reverse order." if order == sorted(order)[::-1] else ""
                raise CheckFailed(
                    f"rank {rank} does its {name} in the order {order}", "the order of the microbatches", reverse
                )


def expect_few_live(schedule: Schedule, microbatches: int, chunks: int) -> str:
    """Raise CheckFailed if more microbatches are live on a rank than in 1F1B, or in interleaved 1F1B."""
    ranks, forwards = len(schedule), microbatches * chunks
    live = [max(live_at(steps)) for steps in schedule]
    for rank, most in enumerate(live):
        if chunks == 1:
            what, right, all_of_them = "microbatches", ranks - rank, "as in GPipe."
            advice = "the forward of the first pair counts, too."
        else:
            right = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1
            what = "chunks of microbatches"
            all_of_them = "as in GPipe: go backward as soon as the warm-up is over."
            advice = "2 (P - 1 - rank) + (v - 1) P forwards are enough, and the steady phase adds one."
        if most > right:
            too_long = f"Its warm-up is {most - right} too long: {advice}"
            why = f"That is all of them, {all_of_them}" if most == forwards else too_long
            raise CheckFailed(f"{most} {what} are live on rank {rank}", f"{right} at most", why)
    if chunks == 1:
        return f"live microbatches by rank: {live}; GPipe holds {forwards} on each."
    return f"live by rank, in chunks: {live}; all forwards first would hold {forwards}."


def expect_small_bubble(schedule: Schedule, microbatches: int, chunks: int) -> str:
    """Play the schedule on a virtual cluster. Raises CheckFailed if a rank idles for more than P - 1 slots."""
    slot = 3.0
    busy, took = slot * microbatches * chunks, play(schedule).elapsed
    right = busy + slot * (len(schedule) - 1)
    if took > right * (1 + 1e-9):
        seen = f"with F = 1 s and B = 2 s it took {took:g} s"
        why = f"The bubble is {took - busy:g} s; (P - 1) (F + B) is enough. {why_it_idles(schedule, chunks)}"
        raise CheckFailed(seen, f"{right:g} s", why)
    return f"{took:g} s with F = 1 s and B = 2 s: {1 - busy / took:.1%} of that is bubble."


def why_it_idles(schedule: Schedule, chunks: int) -> str:
    """Why a schedule that can run takes longer than necessary, in words."""
    if chunks > 1:
        return "Is the warm-up too short, or do the microbatches not go in groups of P?"
    for rank, steps in enumerate(schedule):
        if warm_up(steps) < min(len(steps) // 2, len(schedule) - rank):
            return f"The warm-up of rank {rank} is too short: the rank idles while it waits for its first backward."
    return "Draw it: where does a rank wait even though it has something to do?"


# ---- the challenge


@oracle(
    score=[(4, 8, 4, {"F": 1.0, "B": 1.25, "W": 0.75})],
    par=frozen_par(ROOM, "split-backward"),
)
def split_backward(_: Draws, ranks: int, microbatches: int, most_live: int, seconds: dict[str, float]) -> Case:
    def expect_schedule(answer: Answer) -> None:
        schedule = runnable(answer.results, microbatches, 1)
        for rank, steps in enumerate(schedule):
            if not any(step.kind == "W" for step in steps):
                raise CheckFailed(f"rank {rank} has no W", "F, B and W of each microbatch", "B no longer includes W.")
            if (most := live_until_weights(steps)) > most_live:
                raise CheckFailed(
                    f"{most} microbatches are live on rank {rank}",
                    f"{most_live} at most",
                    "Too many forwards come before the first backward."
                    if max(live_at([step for step in steps if step.kind != "W"])) > most_live
                    else "A microbatch stays live until the end of its W: too many W's are held back.",
                )

    return Case(
        world_size=ranks,
        for_all={"num_microbatches": microbatches, "most_live": most_live, "seconds": seconds},
        cluster=free_messages(ranks),
        also=expect_schedule,
        score=Measure(lambda answer: end_of(answer.results, seconds), "s", "for the whole schedule"),
        limit=(ranks - 1) * seconds["F"] + microbatches * sum(seconds.values()),
    )


### BEGIN HIDDEN TESTS


def seconds_of_split_1f1b(ranks: int, microbatches: int, _: int, seconds: dict[str, float]) -> float:
    """1F1B, with each W right after its B."""
    schedule = []
    for rank in range(ranks):
        ahead = min(ranks - 1 - rank, microbatches)
        steps = [("F", m) for m in range(ahead)]
        for m in range(microbatches):
            steps += [("F", ahead + m)] * (ahead + m < microbatches) + [("B", m), ("W", m)]
        schedule.append(steps)
    end: float = end_of(schedule, seconds)
    return end


hidden_split_backward = vary(
    split_backward,
    par=seconds_of_split_1f1b,
    score=[
        (3, 7, 6, {"F": 1.0, "B": 1.0, "W": 1.0}),
        (8, 16, 8, {"F": 2.0, "B": 2.5, "W": 1.5}),
        (4, 2, 4, {"F": 1.0, "B": 1.5, "W": 1.0}),
    ],
)
### END HIDDEN TESTS


def end_of(schedule: list[Any], seconds: Mapping[str, float]) -> float:
    return max(slot.end for slot in timed(schedule, seconds))


def live_until_weights(steps: list[Step]) -> int:
    """The most microbatches of which F has begun and W has not ended."""
    changes = [{"F": 1, "W": -1}.get(step.kind, 0) for step in steps]
    return max(accumulate(changes), default=0)


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(split_backward, par=seconds_of_split_1f1b),
    vary(hidden_split_layers, values=[(10, 4), (9, 4), (8, 2)]),
    vary(hidden_bubble_shares, values=[(4, 8, 0.11), (4, 4, 0.25), (8, 20, 0.5)]),
    vary(hidden_interleaved_layers, values=[(8, 4, 2), (12, 2, 3)]),
)
### END HIDDEN TESTS
