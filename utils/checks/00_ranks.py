"""The visible checks of lesson 00. Where the answer is a formula, grader/hidden/00_ranks.py has the oracle."""

from __future__ import annotations

import operator
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..cluster.hardware import links
from ..events.event import Event
from ..kit import mlp
from ..text.units import plural
from .answer import Answer, CheckFailed
from .equality import alike
from .inputs import Draws
from .marking import check
from .oracles import Case, as_tuple, every, oracle
from .recorded import recorded, recorded_par
from .runner import Runner
from .scores import Measure
from .show import show
from .traffic import SHARED_FILE, calls_of_ranks, expect_only_messages

smallest_cluster = recorded("00_ranks", "smallest-cluster")


# ---- part 1


@oracle(values=[(4,), (2,)])
def hello_ranks(_: Draws, world_size: int) -> Case:
    ranks = list(range(world_size))

    def not_called(got: Any, rank: int) -> str:
        is_function = callable(got) or str(got).startswith("<function")
        return "a function. Call it: write () after it" if is_function else ""

    def expect_processes(answer: Answer) -> None:
        processes = [me.get("process") for me in answer.results]
        if len(set(processes)) < world_size or os.getpid() in processes:
            raise CheckFailed(f"the processes are {processes}", "one for each rank", "Leave that line as it was.")

    return Case(
        world_size=world_size,
        through=operator.call,  # without rank and world_size
        advice={"positional argument": "Your function takes an argument, and gets none. Ask `dist` instead."},
        right={"rank": ranks, "world_size": world_size, "device": "cpu"},
        mistakes={
            "rank": {"how many ranks there are: ask get_rank()": world_size, "rank 0's: each has its own": 0},
            "world_size": {
                "this rank's own number: ask get_world_size()": ranks,
                "the number of the last rank": world_size - 1,
            },
            "device": {"a torch.device, not its name: take str(...) of it": torch.device("cpu")},
        },
        explain=not_called,
        seen="rank {rank} says that its {part} is",
        in_order=True,
        also=expect_processes,
    )


def removed_with(case: Case, folder: str) -> Case:
    """The case; when it goes, so does the folder with the files of its run."""
    weakref.finalize(case, shutil.rmtree, folder, ignore_errors=True)
    return case


def items(got: Any) -> list[str]:
    """The items of a list, as text; none of anything else."""
    return [str(item) for item in got] if isinstance(got, list) else []


@oracle(
    values=[(2, 3, 3), (4, 2, 2)],
    if_stuck="a rank has made fewer all-reduces than the others, or all-reduces of different tensors. All make the "
    "same ones, in the same order, at every step.",
)
def replicas_in_step(draws: Draws, world_size: int, layers: int, steps: int, lr: float = 4.0) -> Case:
    """Two rows on each rank at each step. What is right is what one process computes on the whole batches."""
    weights = mlp.make_weights(layers, 4, draws.salted(), torch.float64)
    batches = [mlp.make_batch(2 * world_size, 4, draws.salted(step), torch.float64) for step in range(steps)]
    shares = [list(mine) for mine in zip(*(batch.chunk(world_size) for batch in batches), strict=True)]
    everywhere = range(layers)
    apart = descend(weights, shares, lr, [])
    mistakes = {
        "what this rank gets from its own rows: the gradients that its optimizer used were not exchanged": apart,
        "what the SUM of the gradients leads to: divide by the number of ranks": descend(
            weights, shares, world_size * lr, everywhere
        ),
        "the mean of replicas that trained apart: average the gradients, at every step": [mean_of(apart)] * world_size,
        "what comes of dividing by the number of ranks twice: once is enough, and AVG does it already": descend(
            weights, shares, lr / world_size, everywhere
        ),
        "what rank 0's gradients lead to on every rank: average those of all ranks": descend(
            weights, shares[:1], lr, everywhere
        )
        * world_size,
        "what gradients lead to that add up from step to step: zero them at the beginning of each": descend(
            weights, shares, lr, everywhere, carry=1
        ),
        "what gradients lead to that add up from step to step, and are summed again: zero them at each": descend(
            weights, shares, lr, everywhere, carry=world_size
        ),
        "what comes of averaging the first weight's gradient alone": descend(weights, shares, lr, [0]),
        "what comes of averaging the last weight's gradient alone": descend(weights, shares, lr, [layers - 1]),
        "the weight before the first step: let the optimizer step": [weights] * world_size,
        "the weight after the first step: return after the loop": descend(
            weights, [mine[:1] for mine in shares], lr, everywhere
        ),
    }
    right = descend(weights, [batches], lr, everywhere)[0]
    names = {f"weight {n}": n for n in everywhere}
    return Case(
        [[weights] * world_size, shares],
        same={"lr": lr},
        right={name: right[n] for name, n in names.items()},
        mistakes={
            name: {words: [replica[n] for replica in replicas] for words, replicas in mistakes.items()}
            for name, n in names.items()
        },
        rtol=1e-9,
    )


def descend(
    weights: list[Tensor], shares: list[list[Tensor]], lr: float, averaged: Sequence[int], carry: float = 0
) -> list[list[Tensor]]:
    """Gradient descent by replicas that average the gradients of some of the layers: each replica's weights at the end.

    shares: each replica's batches. carry: by what the gradients of one step are multiplied and added to the next.
    """
    replicas, kept = [weights] * len(shares), [[torch.zeros_like(weight) for weight in weights] for _ in shares]
    for batches in zip(*shares, strict=True):
        found = [mlp.serial_gradients(mine, batch)[1] for mine, batch in zip(replicas, batches, strict=True)]
        mean = mean_of(found)
        used = [[mean[n] if n in averaged else own[n] for n in range(len(weights))] for own in found]
        kept = [[carry * one + two for one, two in zip(*pair, strict=True)] for pair in zip(kept, used, strict=True)]
        replicas = [[w - lr * g for w, g in zip(*pair, strict=True)] for pair in zip(replicas, kept, strict=True)]
    return replicas


def mean_of(replicas: list[list[Tensor]]) -> list[Tensor]:
    """Layer by layer."""
    return [torch.stack(layer).mean(0) for layer in zip(*replicas, strict=True)]


MEET = (
    "all who meet name the same path, in a meeting that has a path of its own; each names its rank there, and all the "
    "same world size. init_process_group waits until all of them have called it."
)
ONE_MEETING = "Each meeting must be over before the next: after each gathering, call dist.destroy_process_group()."
WRONG_ORDER = (
    "the right numbers in a different order: that of the ranks in the meeting is wanted. Give rank= the rank that this "
    "process has there, and leave the list in the order in which all_gather fills it"
)
MEETING = {  # what torch means by its errors
    "twice": ONE_MEETING,
    "has not been initialized": "There is no process group, or no longer: call dist.init_process_group before the "
    "gathering and dist.destroy_process_group after it.",
    "incompatible constructor": "store= takes the store, dist.FileStore(path, world_size), and not its path.",
    "must be positive": "With a store, PyTorch needs rank= and world_size= too.",
    "rank < size": "All who meet name the same world size: how many come to this meeting.",
    "Wait timeout": f"A rank did not come: {MEET}",
}
Team = tuple[int, ...]
PAIRS, ALL = ((2, 0), (1, 3)), ((1, 3, 2, 0),)  # who meets at the same time; in each meeting, in the order there


@oracle(values=[(4, PAIRS, ALL)], if_stuck=MEET)
def rendezvous_by_hand(_: Draws, world_size: int, *rounds: tuple[Team, ...]) -> Case:
    """Rounds of meetings, of one or more teams each. Rank r brings the number 7 r + 3."""
    folder, numbers = tempfile.mkdtemp(), [7 * rank + 3 for rank in range(world_size)]
    meetings: list[list[tuple[str, int, int]]] = [[] for _ in range(world_size)]
    right: list[list[list[int]]] = [[] for _ in range(world_size)]
    for number, teams in enumerate(rounds):
        for place, team in enumerate(teams):
            for rank_there, rank in enumerate(team):
                meetings[rank].append((os.path.join(folder, f"meeting-{number}-{place}"), rank_there, len(team)))
                right[rank].append([numbers[member] for member in team])

    def explain(got: Any, rank: int) -> str:
        if got is True:
            return "the last meeting's: each ends with dist.destroy_process_group(), the last one too"
        if len(items(got)) != len(rounds):
            return "not one list for each meeting"
        in_order = [sorted(items(met)) for met in got] == [sorted(items(met)) for met in right[rank]]
        return WRONG_ORDER if in_order else ""

    case = Case(
        [numbers, meetings],
        right={"gathered": right, "still has a process group:": False},
        explain=explain,
        seen="rank {rank} {part}",
        advice=MEETING,
    )
    return removed_with(case, folder)


@oracle(
    values=[([2, 0, 3, 1],), ([1, 0],)],
    traffic=[([2, 0, 3, 1],), ([0, 1],)],
    if_stuck="the barrier is inside an `if`, so not all ranks call it.",
)
def take_turns(_: Draws, order: list[int]) -> Case:
    folder, right = tempfile.mkdtemp(), [f"rank {rank}" for rank in order]
    backwards = [f"rank {order.index(turn)}" for turn in range(len(order))]
    mistakes = {
        "in the order of the ranks: `order` says whose turn it is, and each writes its own rank": every(sorted(right)),
        "what comes of order[rank] == turn: in each turn, the rank order[turn] writes": every(backwards),
        "the right lines, in disorder: put a barrier after each turn": lambda got: sorted(items(got)) == sorted(right),
        "some lines several times: in each turn only one rank writes": lambda got: set(items(got)) == set(right),
        "incomplete: you read before every rank had written": lambda got: len(items(got)) < len(right),
    }
    case = Case(
        [[os.path.join(folder, "lines")] * len(order)],
        same={"order": order},
        right=every(right),
        mistakes=mistakes,
        seen=f"order {order}: rank {{rank}} read",
        traffic=lambda answer: expect_turns(answer, order),
    )
    return removed_with(case, folder)


def expect_turns(answer: Answer, order: list[int]) -> str:
    """Raise CheckFailed unless barriers keep each append after the one before, and each read after the last append.

    An access certainly follows another one if its rank has left more barriers before it than the other's rank had
    entered by the end of its own.
    """
    barriers, turns, reads = dict(calls_of_ranks(answer, "barrier", besides=SHARED_FILE)), [], []
    for rank in order:
        mine = [region for region in answer.run.regions if region.rank == rank]
        appended, read = ([region for region in mine if region.name == name] for name in ("append", "read"))
        if len(appended) != 1:
            times = plural(len(appended), "line")
            raise CheckFailed(f"rank {rank} appended {times} to the file", "1 line, by file.append(...)")
        if not read:
            raise CheckFailed(f"rank {rank} did not read the file", "file.lines() at the end")
        turns += appended
        reads.append(read[-1])
    for one, other in [*pairwise(turns), *((turns[-1], read) for read in reads)]:
        entered = sum(event.start <= one.end for event in barriers[one.rank])
        left = sum(event.end is not None and event.end <= other.start for event in barriers[other.rank])
        if one.rank != other.rank and left <= entered:
            verb = "reads" if other.name == "read" else "writes"
            raise CheckFailed(
                f"rank {other.rank} {verb} without a barrier after the turn of rank {one.rank}",
                "a barrier between them",
                "In this run the order may have been right by luck: nothing guarantees it.",
            )
    return "there is a barrier between each turn and the next, and before the reading."


# ---- part 2

CALLS_ALL = "a rank with an empty list still has to make the calls that the others make."
STOPS = "a rank left the loop while others stayed. All must decide by the same number."
LISTS: list[list[float]] = [[10, 20], [30], [], [40, 50, 60]]  # of the lesson's two programs
LOSSES = [[6.0, 4.0, 2.0, 0.9], [5.0, 0.5, 1.0, 0.3], [7.0, 3.0, 0.6, 0.3]]


@oracle(values=[((2, 1, 0, 3),), ((1, 2, 0), 0.25)], if_stuck=CALLS_ALL)
def one_failing_rank(draws: Draws, counts: tuple[int, ...], more: float = 0) -> Case:
    """So many numbers on each rank: whole ones, with `more` added to each."""
    world_size, columns = len(counts), draws.different_integers(len(counts), max(counts), torch.int64)
    lists = [[number + more for number in x[:n].tolist()] for x, n in zip(columns, counts, strict=True)]
    sums, total = [sum(numbers) for numbers in lists], sum(map(sum, lists))
    own = [one / max(1, n) for one, n in zip(sums, counts, strict=True)]
    by_own_count = [total / max(1, n) for n in counts]
    longer = "longer lists must count for more"
    mistakes = {
        f"the average of the ranks' averages: {longer}": sum(own) / world_size,
        f"the average of the averages of ranks that have numbers: {longer}": sum(own) / sum(n > 0 for n in counts),
        "the sum of all numbers": total,
        "the average per rank, not per number: divide by the sum of the counts": total / world_size,
        "this rank's own average": own,
        "the sum of all numbers divided by this rank's own count: sum the counts too": by_own_count,
        "the result when fractions are cut off: keep floats, dtype=torch.float64": sum(map(int, sums)) / sum(counts),
    }
    return Case(
        [lists],
        right={"the average": total / sum(counts)},
        mistakes={"the average": mistakes},
        rtol=1e-6,
        unpack=lambda got, rank: as_tuple(got, ["the average", "the reading"], rank),
    )


@oracle(values=[tuple(LOSSES), ([4.0, 1.5, 0.5, 1.0, 0.25], [0.0, 0.25, 0.5, 0.5, 0.25])], if_stuck=STOPS)
def one_deadlock(_: Draws, *losses: list[float]) -> Case:
    steps = list(zip(*losses, strict=True))
    averages = [sum(step) / len(losses) for step in steps]

    def until(small: list[bool]) -> list[float]:
        """The averages up to the first step that is small."""
        return averages[: [*small, True].index(True) + 1]

    right = until([average < 1 for average in averages])
    too_short = {
        "You stop when one of the losses is below 1: the average decides": until([min(step) < 1 for step in steps]),
        "You stop at an average of 1, which is not below 1": until([average <= 1 for average in averages]),
        "The step whose average is below 1 is the last one, and it counts too": right[:-1],
    }
    too_long = "too long. You continue although the average is below 1: the average decides"

    def are_sums(got: Any) -> bool:
        return alike(got, [len(losses) * average for average in averages[: len(items(got))]], 1e-6) and bool(got)

    def expect_barrier(answer: Answer) -> None:
        for rank in range(len(losses)):
            if [event.op for event in answer.events if event.rank == rank][-1:] != ["barrier"]:
                raise CheckFailed(f"rank {rank} did not end at the barrier", "dist.barrier() after the loop")

    return Case(
        [losses],
        right={"the averages": every(right)},
        mistakes={
            "the averages": {"the sums of the losses: divide each by the number of ranks": are_sums}
            | {f"too short. {words}": every(wrong) for words, wrong in too_short.items()}
        },
        explain=lambda got, rank: too_long if len(items(got)) > len(right) else "",
        rtol=1e-6,
        seen="rank {rank}: {part} are",
        unpack=lambda got, rank: as_tuple(got, ["the averages", "the reading"], rank),
        also=expect_barrier,
    )


# The readings: no message gives the right one away, so these checks are no oracles.


@check("one-failing-rank", judges="reading", if_stuck=CALLS_ALL)
def one_failing_rank_reading(run: Runner) -> None:
    empty = LISTS.index([])
    others = sorted({*range(len(LISTS))} - {empty})
    where = "in the first line of the report"
    right = {
        "raised": (empty, f"One number: it is {where}."),
        "error": (ZeroDivisionError.__name__, f"The name alone, as a string: it is {where}, before the colon."),
        "waited": (others, "A list of numbers: the last line of the report names them, in brackets."),
    }
    expect_reading(run(2, [[1.0], [2.0]]), right)


@check("one-deadlock", judges="reading", if_stuck=STOPS)
def one_deadlock_reading(run: Runner) -> None:
    leaves_after = [[loss < 1 for loss in mine].index(True) for mine in LOSSES]  # this step, each rank
    odd = leaves_after.index(min(leaves_after))
    others = sorted({*range(len(LOSSES))} - {odd})
    where = "A list of numbers: each rank has a line in the report that names the call it waits in."
    steps = "Rank 1 left after the step in which its own loss was below 1: count the steps up to that one."
    right = {"in all_reduce": (others, where), "in barrier": ([odd], where), "steps": (leaves_after[odd] + 1, steps)}
    expect_reading(run(2, [[0.5], [0.25]]), right)


def expect_reading(answer: Answer, right: dict[str, tuple[Any, str]]) -> None:
    """Raise CheckFailed at the first entry that is not right, with its advice. right: {entry: (its value, advice)}"""
    reading = as_tuple(answer.results[0], ["the result", "the reading"], 0)["the reading"]
    if not isinstance(reading, dict):
        raise CheckFailed(f"the reading is {show(reading)}", f"a dict with the entries {', '.join(right)}")
    for name, (wanted, advice) in right.items():
        got: Any = reading.get(name)
        if (sorted(got) if are_numbers(got) else got) != wanted:
            says = f"your reading says {name!r}: {show(got)}, but the report does not"
            raise CheckFailed(f"your reading leaves {name!r} empty" if got is None else says, mistake=advice)


def are_numbers(got: Any) -> bool:
    return isinstance(got, list | tuple | set) and all(isinstance(item, int) for item in got)


# ---- the challenge

MESSAGE = 1e-5  # seconds


def go_through(function: Callable[..., Any], rank: int, world_size: int) -> bool:
    function(rank, world_size)
    return True


@oracle(
    score=[(8,)],
    par=recorded_par("00_ranks", "barrier-by-hand"),
    if_stuck="each send needs a recv on the other rank, and two ranks that both send first wait forever.",
)
def barrier_by_hand(_: Draws, world_size: int) -> Case:
    def expect_barrier(answer: Answer) -> None:
        expect_only_messages(answer)
        for rank, heard in enumerate(heard_of(answer.events, world_size)):
            for other in sorted(set(range(world_size)) - heard):
                raise CheckFailed(
                    f"rank {rank} leaves though it can't know that rank {other} has come",
                    "that all ranks wait for the last one",
                    "Whoever leaves must have heard of all others, directly or from a rank that had.",
                )

    return Case(
        world_size=world_size,
        through=go_through,
        also=expect_barrier,
        clock=links(world_size, MESSAGE, 1e15),
        score=Measure(lambda answer: answer.run.elapsed, "s", "of virtual time"),
        limit=MESSAGE * (world_size - 1).bit_length(),
    )


def heard_of(events: Sequence[Event], world_size: int) -> list[set[int]]:
    """Of which ranks each has heard when it leaves: by a message, and by all that its sender had got before it."""
    heard = [{rank} for rank in range(world_size)]
    told: dict[tuple[int | None, int | None, int], list[set[int]]] = {}  # by messages not yet received: from, to, tag
    for event in sorted(events, key=moment):
        if event.op == "send":
            told.setdefault((event.rank, event.peer, event.tag), []).append(set(heard[event.rank]))
        elif waiting := told.get((event.peer, event.rank, event.tag)):
            heard[event.rank] |= waiting.pop(0)
    return heard


def moment(event: Event) -> tuple[float, bool, int, int]:
    """When a rank sends, or knows what it has received: then it can pass that on at once."""
    is_send = event.op == "send"
    at = event.start if is_send else max(event.end or 0.0, event.waited or 0.0)
    return at, is_send, event.rank, event.index
