"""The checks of lesson 00. Where the answer is a formula, the oracle is hidden."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from utils.checks.answer import Answer, CheckFailed
from utils.checks.compare import holds_tensors
from utils.checks.equality import equal_values, is_number
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, as_tuple, every, oracle, taken_apart, vary
from utils.checks.registration import check
from utils.checks.runner import Runner
from utils.checks.scores import Measure
from utils.checks.show import show
from utils.checks.traffic import SHARED_FILE, calls_of_ranks, expect_only_messages
from utils.cluster.hardware import links
from utils.diagnosis.words import ranks_text
from utils.events.event import Event
from utils.kit import mlp
from utils.recording import in_flight
from utils.text.units import plural

ROOM = Path(__file__).parent

smallest_cluster = frozen_cases(ROOM, "smallest-cluster")


### BEGIN HIDDEN TESTS
A100, SMALL = (80e9, 125e12), (24e9, 60e12)  # bytes, FLOP per second


@oracle(
    values=[(1e9, 20e9, 7.0, *SMALL), (3e9, 60e9, 30.0, *SMALL), (175e9, 300e9, 50.0, *A100), (1e6, 1e6, 1.0, *A100)]
)
def hidden_smallest_cluster(
    _: Draws, parameters: float, tokens: float, days: float, memory: float, flops: float
) -> Case:
    state, work, seconds = 16 * parameters, 6 * parameters * tokens, days * 24 * 3600
    by_memory, by_time = math.ceil(state / memory), math.ceil(work / (flops * seconds))

    def rounding(exactly: float) -> dict[str, Any]:
        return {
            "rounded down: what is left over needs one more GPU": int(exactly),
            "not a whole number of GPUs: round up": exactly,
            "rounded to the nearest: round up": round(exactly),
            "one too many: what fits exactly needs no further GPU": int(exactly) + 1,
        }

    def within(seconds: float) -> int:
        return math.ceil(work / (flops * seconds))

    memories = {
        "what the parameters alone take, in bfloat16: gradients and Adam's state count too": state / 8,
        "what you get if a GB has 2**30 bytes: gpu_memory is in bytes already": state / 1.024**3,
    }
    times = {
        "what the forward pass alone takes: 6 FLOP per parameter and token, not 2": within(3 * seconds),
        "what a single FLOP per parameter and token takes: there are 6": within(6 * seconds),
        "what you get if a day has 24 seconds: an hour has 3600": within(days * 24),
        "what you get if a day has 24 * 60 seconds: those are its minutes": within(days * 24 * 60),
        "what you get if `days` counts seconds: a day has 24 * 3600": within(days),
        "what you get if `days` counts hours: a day has 24 of them": within(days * 3600),
        "the number for a single day: you have `days` of them": within(24 * 3600),
        "what you get if a GPU reaches 40 % of gpu_flops: that is already what it reaches": within(0.4 * seconds),
    }
    return Case(
        [[parameters], [tokens], [days], [memory], [flops]],
        right={"GPUs by memory": by_memory, "GPUs by time": by_time},
        rtol=1e-9,
        mistakes={
            "": {"the two the other way round: memory comes first": (by_time, by_memory)},
            "GPUs by memory": {
                "the number for the time: the first number counts the state alone, however long so few GPUs would "
                "train. Return it as it is, without max or min": by_time,
                **{words: math.ceil(nbytes / memory) for words, nbytes in memories.items()},
                **rounding(state / memory),
            },
            "GPUs by time": {
                "the number for the memory: the second number counts the time alone, even if so few GPUs couldn't hold "
                "the state. Return it as it is, without max or min": by_memory,
                **times,
                **rounding(work / (flops * seconds)),
            },
        },
        seen=f"{parameters / 1e9:g} billion parameters, {tokens / 1e9:g} billion tokens, {days:g} days, GPUs of "
        f"{memory / 1e9:g} GB and {flops / 1e12:g} TFLOP/s: {{part}} is",
    )


### END HIDDEN TESTS


# ---- part 1

ON_GPUS = "device on a machine with GPUs"
ASK = "take str(get_device())"


def here_and_on_gpus(function: Callable[[], Any]) -> Any:
    """What the function returns, and as one more entry the device it names where get_device() is the rank's GPU.

    To torchrun's variables it looks as if every two ranks had a machine of their own.
    """
    with patch.dict(os.environ, LOCAL_RANK=str(dist.get_rank() % 2), LOCAL_WORLD_SIZE="2"):
        me = function()
    if not isinstance(me, dict):
        return me
    on_gpus = f"cuda:{dist.get_rank()}"  # also of an answer that needs a real GPU there
    cuda = patch.multiple(torch.cuda, current_device=dist.get_rank, device_count=dist.get_world_size)
    nccl = patch.multiple(dist, get_backend=lambda *_: "nccl", get_backend_config=lambda *_: "cuda:nccl")
    with contextlib.suppress(Exception), cuda, nccl:
        on_gpus = function()["device"]
    return {**me, ON_GPUS: on_gpus}


@oracle(values=[(4,), (2,)])
def hello_ranks(_: Draws, world_size: int) -> Case:
    ranks = list(range(world_size))
    by_hand = {f"not what get_device() says: {ASK}": lambda got: not callable(got)}

    def entries(got: Any, rank: int) -> Mapping[str, Any]:
        if not isinstance(got, dict):
            advice = "Add your entries to the dict `me`, and return that."
            raise CheckFailed(f"rank {rank} returned {show(got)}", "a dict", advice)
        for part, wanted in {"device": "cpu", ON_GPUS: f"cuda:{rank}"}.items():
            device, seen = got.get(part), f"rank {rank} says that its {part} is {got.get(part)!r}"
            if isinstance(device, torch.device):
                advice = "That isn't a string: take str(...) of it."
                raise CheckFailed(f"{seen} (a torch.device)", f"{wanted!r} (a str)", advice, lead=31)
            if isinstance(device, str) and device != wanted and device.startswith(wanted):
                advice = f"get_device() says no more than {wanted!r}, so that is a name put together by hand: {ASK}."
                raise CheckFailed(seen, repr(wanted), advice)
        return taken_apart(got, ["rank", "world_size", "device", ON_GPUS], rank)

    def explain(got: Any, rank: int) -> str:
        if callable(got) or str(got).startswith("<function"):
            return "a function. Call it: write () after it"
        return "text, as os.environ holds it: take int(...) of it" if isinstance(got, str) and got.isdigit() else ""

    def expect_processes(answer: Answer) -> None:
        processes = [me.get("process") for me in answer.results]
        if len(set(processes)) < world_size or os.getpid() in processes:
            advice = "Leave the entry that `me` starts with as it was, and add yours to the same dict."
            raise CheckFailed(f"the processes are {processes}", "one for each rank", advice)

    return Case(
        world_size=world_size,
        driver=here_and_on_gpus,  # without rank and world_size
        advice={"positional argument": "Your function takes an argument, and gets none. Ask `dist` instead."},
        unpack=entries,
        right={"rank": ranks, "world_size": world_size, "device": "cpu", ON_GPUS: [f"cuda:{rank}" for rank in ranks]},
        mistakes={
            "rank": {
                "how many ranks there are: ask get_rank()": world_size,
                "rank 0's: each has its own": 0,
                "one too many: ranks are counted from 0": [rank + 1 for rank in ranks],
            },
            "world_size": {
                "this rank's own number: ask get_world_size()": ranks,
                "the number of ranks in a different run: ask get_world_size()": 4,
            },
            "device": by_hand,
            ON_GPUS: {
                f"the kind of device without the GPU's number, as .type gives it: {ASK}": "cuda",
                f"the CPU, where get_device() names a GPU: {ASK}": "cpu",
                f"rank 0's GPU, but each rank has its own: {ASK}": "cuda:0",
                **by_hand,
            },
        },
        explain=explain,
        seen="rank {rank} says that its {part} is",
        in_order=True,
        also=expect_processes,
    )


### BEGIN HIDDEN TESTS
hidden_hello_ranks = vary(hello_ranks, values=[(3,), (5,), (1,)])
### END HIDDEN TESTS


def items(got: Any) -> list[str]:
    """The items of a list, as text; none of anything else."""
    return [str(item) for item in got] if isinstance(got, list) else []


NO_SUM = {"MAX", "MIN", "PRODUCT"}
EARLY = "what you get if you read before the call has delivered: call wait() on its handle first"


def told_by_calls(answers: list[Answer], rights: Sequence[Any] = ()) -> Mapping[str, Any]:
    """Mistakes that the calls of a run explain. rights: the first thing a rank returns, where it is right."""

    def is_one(got: Any, values: Sequence[Any]) -> bool:
        return isinstance(got, list | tuple) and any(equal_values(got[:1], [value], 1e-6) for value in values)

    def collects(got: Any, op: str) -> bool:
        ops = {event.op for event in answers[0].events}
        alone = any(is_one(other, rights) for other in answers[0].results) and not is_one(got, rights)
        return op in ops and (alone if rights else not ops & {"broadcast", "scatter", "send"})

    leads = "leads to: it gives what it collects to one rank alone,"
    return {f"what `{op}` {leads} all_{op} to all": partial(collects, op=op) for op in ("reduce", "gather")}


@oracle(values=[(2, 3, 3), (4, 2, 2)], if_stuck="do all ranks make the same all-reduces, in the same order, each step?")
def replicas_in_step(draws: Draws, world_size: int, layers: int, steps: int, lr: float = 4.0) -> Case:
    """Three rows on each rank at each step. What is right is what one process computes on the whole batches."""
    weights = mlp.make_weights(layers, 2, draws.salted(), torch.float64)
    batches = [mlp.make_batch(3 * world_size, 2, draws.salted(step), torch.float64) for step in range(steps)]
    shares = [list(mine) for mine in zip(*(batch.chunk(world_size) for batch in batches), strict=True)]
    [right] = descend(weights, [batches], lr)
    apart, apart_divided = (descend(weights, shares, each, alone=True) for each in (lr, lr / world_size))
    answers: list[Answer] = []

    def explain(got: Any, rank: int) -> str:
        advice = "all-reduce each weight.grad itself, not a copy, after backward() and before optimizer.step()"
        if 0 < max((event.bytes for event in answers[0].events), default=0) < weights[0].nbytes:
            advice = "averaging the losses brings in no other rank's gradient, so all-reduce each weight.grad"
        if ops := {event.reduce_op.upper() for event in answers[0].events} & NO_SUM:
            return f"what ReduceOp.{ops.pop()} leads to: leave op= out, and the gradients are summed"
        ways = {"": apart, ", with the gradient divided by the number of ranks": apart_divided}
        fitting = (how for how, ends in ways.items() if any(equal_values(got, own, 1e-6) for own in ends[rank]))
        return next((f"what this rank gets from its own rows alone{how}: {advice}" for how in fitting), "")

    return Case(
        [[weights] * world_size, shares],
        for_all={"lr": lr},
        right={f"weight {n}": weight for n, weight in enumerate(right)},
        mistakes={"": told_by_calls(answers)},
        before=answers.append,
        explain=explain,
        advice={
            "NoneType": "A weight has no gradient there: call loss.backward() first, and zero_grad() before that.",
            "leaf Variable": "Average the gradients, each weight.grad, and not the weights.",
        },
        rtol=1e-9,
    )


### BEGIN HIDDEN TESTS
hidden_replicas_in_step = vary(replicas_in_step, values=[(3, 2, 4), (2, 1, 2, 0.5), (1, 2, 3)])
### END HIDDEN TESTS


def descend(
    weights: list[Tensor], shares: Sequence[list[Tensor]], lr: float, alone: bool = False
) -> list[list[Tensor]]:
    """Gradient descent by replicas on their shares: the weights of each at the end. alone: by its own gradients."""
    replicas = [weights] * len(shares)
    for batches in zip(*shares, strict=True):
        found = [mlp.serial_gradients(mine, batch)[1] for mine, batch in zip(replicas, batches, strict=True)]
        mean = [torch.stack(layer).mean(0) for layer in zip(*found, strict=True)]
        used = found if alone else [mean] * len(found)
        replicas = [[w - lr * g for w, g in zip(*pair, strict=True)] for pair in zip(replicas, used, strict=True)]
    return replicas


MEET = (
    "does each process open a FileStore at the path of this meeting, and hand it over as store=, with its rank in the "
    "meeting and the number who come? init_process_group waits until that many have called it."
)
LEAVE = "Leave each meeting before the next one: call dist.destroy_process_group() after each gathering."
WRONG_ORDER = "the right numbers in the wrong order: give rank= the rank in that meeting, and keep all_gather's order"
TENSORS = "made of tensors, where numbers are wanted: take .item() of each"
STILL_THERE = "the group of the last meeting: call dist.destroy_process_group() after that one too"
UNDELIVERED = f"That is {EARLY}; or what `gather` leads to: it delivers to one rank alone, all_gather to all"
MEETING = {  # torch's errors, and what they mean
    "default process group twice": LEAVE,
    "rank < size": "rank= takes the rank of this process in the meeting, and world_size= the number who come to it.",
    "invalid output tensor list": f"The list needs one tensor per rank. Is it the group of an earlier meeting? {LEAVE}",
    "different dtypes": "The tensors of the list need the dtype of `mine`: torch.empty_like(mine) has it.",
    "has not been initialized": "There is no process group at this point: call dist.init_process_group before the "
    "gathering and dist.destroy_process_group after it.",
    "elements of type": "all_gather moves tensors: put `number` into one, and fill the list with others like it.",
    "connectFullMesh failed": "The store holds addresses of an earlier meeting: each meeting has a path of its own.",
    "EADDRINUSE": "A server's port can be taken: meet at a file, dist.FileStore(path, world_size).",
    "incompatible constructor": "store= takes the store, dist.FileStore(path, world_size), and not its path.",
    "must be positive": "With a store, PyTorch needs rank= and world_size= too.",
    "float NaN": f"{UNDELIVERED}.",
    "float infinity": f"{UNDELIVERED}.",
    "Wait timeout": f"A rank did not come: {MEET}",
}
POISON = [in_flight.poison_of(dtype) for dtype in (torch.int32, torch.int64)]  # while a call is in flight
Team = tuple[int, ...]
PAIRS, ALL = ((2, 0), (1, 3)), ((1, 3, 2, 0),)  # who meets at the same time; in each meeting, in the order there


def go_to_meetings(function: Callable[..., Any], number: int, meetings: list[tuple[str, int, int]]) -> Any:
    """What the function returns; but that a process group is left is seen here, whatever the function says."""
    result = function(number, meetings)
    return (result[0], True) if dist.is_initialized() and isinstance(result, tuple) else result


@oracle(values=[(4, PAIRS, ALL)], if_stuck=MEET)
def rendezvous_by_hand(draws: Draws, world_size: int, *rounds: tuple[Team, ...]) -> Case:
    """Rounds of meetings, of one or more teams each. Rank r brings the number 7 r + 3, and in grading a secret more."""
    folder, numbers = tempfile.mkdtemp(), [7 * rank + 3 + 100 * draws.secret(rank) for rank in range(world_size)]
    meetings: list[list[tuple[str, int, int]]] = [[] for _ in range(world_size)]
    right: list[list[list[int]]] = [[] for _ in range(world_size)]
    answers: list[Answer] = []
    for number, teams in enumerate(rounds):
        for place, team in enumerate(teams):
            for rank_there, rank in enumerate(team):
                meetings[rank].append((os.path.join(folder, f"meeting-{number}-{place}"), rank_there, len(team)))
                right[rank].append([numbers[member] for member in team])

    case = Case(
        [numbers, meetings],
        right={"gathered": right, "still has a process group:": False},
        mistakes={"": told_by_calls(answers, right)},
        before=answers.append,
        explain=lambda got, rank: STILL_THERE if got is True else misread(got, right[rank]),
        seen="rank {rank} {part}",
        driver=go_to_meetings,
        also=lambda answer: expect_groups(answer, meetings),
        advice=MEETING,
    )
    weakref.finalize(case, shutil.rmtree, folder, ignore_errors=True)
    return case


### BEGIN HIDDEN TESTS
hidden_rendezvous_by_hand = vary(
    rendezvous_by_hand,
    values=[
        (3, ((0, 1, 2),)),
        (5, ((0, 1, 2, 3, 4),), ((4, 0, 2), (3, 1)), ((2,), (1, 0, 3, 4))),
        (1, ((0,),), ((0,),)),
    ],
)
### END HIDDEN TESTS


def misread(got: Any, right: list[list[int]]) -> str:
    """What is wrong with the numbers that a rank has gathered at its meetings, in words."""
    if holds_tensors(got):
        return TENSORS
    if len(items(got)) != len(right) or not all(isinstance(met, list | tuple) for met in got):
        return "not one list for each meeting: append each meeting's own list to `gathered`"
    if len(right) > 1 and got == [right[0]] * len(right):
        return "the first meeting's numbers each time: leave the group at the end of each meeting, and join a new one"
    if got == [list(range(len(met))) for met in right]:
        return "the ranks of all who came: gather `number`"
    if got == [met[-1:] * len(met) for met in right]:
        return "the last number several times: [tensor] * n is the SAME tensor n times, so make n of them"
    if sorted(map(items, got)) == sorted(map(items, right)):
        return "the meetings in a different order: append each one's list at the end of `gathered`"
    if any(number in met for met in got for number in POISON):
        return EARLY
    in_order = [sorted(items(met)) for met in got] == [sorted(items(met)) for met in right]
    return WRONG_ORDER if in_order else ""


def expect_groups(answer: Answer, meetings: list[list[tuple[str, int, int]]]) -> None:
    """Raise CheckFailed unless each rank made a call in a group as large as each of its meetings."""
    for rank, mine in enumerate(meetings):
        sizes = {1, *(len(event.members) for event in answer.events if event.rank == rank)}
        for size in (size for _, _, size in mine if size not in sizes):
            seen = f"rank {rank} made no call of `dist` in a group of {size}"
            advice = "Call dist.init_process_group with the store, then dist.all_gather."
            raise CheckFailed(seen, "that it joins each and gathers there", advice)


@oracle(
    values=[([3, 0, 2, 1],), ([1, 0],)],
    traffic=[([3, 0, 2, 1],), ([0, 1],)],
    if_stuck="the barrier is inside an `if`, so not all ranks call it.",
)
def take_turns(_: Draws, order: list[int]) -> Case:
    folder, right = tempfile.mkdtemp(), [f"rank {rank}" for rank in order]
    answers: list[Answer] = []

    def explain(got: Any, rank: int) -> str:
        if not isinstance(got, list):
            return "not a list: return file.lines() as it is"
        if not set(items(got)) <= set(right):
            return 'not the text that is asked for: append f"rank {rank}", and nothing else'
        if set(items(got)) == set(right) and len(got) > len(right):
            return "the same lines several times: only one rank writes in each turn"
        incomplete = len(got) < len(right)
        words = barrier_missing(answers[0], order, rank, incomplete)
        if words:
            return f"{'incomplete' if incomplete else 'the right lines in the wrong order'}: {words}"
        if got == sorted(right):
            return "in the order of the ranks: `order` says whose turn it is, and each writes its own rank"
        if got == [f"rank {order.index(turn)}" for turn in range(len(order))]:
            return "what order[rank] leads to: in each turn, the rank order[turn] writes its own number"
        return "the right lines in the wrong order: in each turn, counted from 0, the rank order[turn] writes"

    case = Case(
        [[os.path.join(folder, "lines")] * len(order)],
        for_all={"order": order},
        right=every(right),
        before=answers.append,
        explain=explain,
        seen=f"order {order}: rank {{rank}} read",
        traffic=lambda answer: expect_turns(answer, order),
    )
    weakref.finalize(case, shutil.rmtree, folder, ignore_errors=True)
    return case


### BEGIN HIDDEN TESTS
hidden_take_turns = vary(
    take_turns,
    values=[([2, 1, 0],), ([4, 0, 2, 1, 3],), ([0],)],
    traffic=[([2, 1, 0],), ([0, 1, 2, 3, 4],), ([1, 0],), ([0],)],
)
### END HIDDEN TESTS


def barrier_missing(answer: Answer, order: list[int], rank: int, reads: bool) -> str:
    """What is wrong with the barriers, if a rank's last read comes too early or (not `reads`) a turn; "" if unknown."""
    barriers = [event for event in answer.events if event.op == "barrier"]
    counts = Counter(event.rank for event in barriers)
    read = max((one.start for one in answer.run.regions if (one.rank, one.name) == (rank, "read")), default=0.0)
    if any(event.is_async and event.waited is None for event in barriers):
        return "a barrier with async_op=True holds nobody up until you call wait() on its handle"
    if min(counts[one] for one in order) < len(order) - reads:
        return "after each turn, let ALL ranks call the barrier, outside the `if`"
    if reads and any(event.rank == rank and event.start > read for event in barriers):
        return "you read before the last barrier. Read after it"
    return "a barrier after the last turn is missing. In each turn, it belongs after the write" * reads


def expect_turns(answer: Answer, order: list[int]) -> str:
    """Raise CheckFailed unless barriers keep each append after the one before, and each read after the last append."""
    # An access certainly follows another if its rank has left more barriers than the other's had entered by its end.
    barriers, turns, reads = dict(calls_of_ranks(answer, "barrier", besides=SHARED_FILE)), [], []
    for rank in order:
        mine = [region for region in answer.run.regions if region.rank == rank]
        appended, read = ([region for region in mine if region.name == name] for name in ("append", "read"))
        if len(appended) != 1:
            seen = f"rank {rank} appended {plural(len(appended), 'line')} to the file"
            raise CheckFailed(seen, "1 line, by file.append(...)", "Each rank writes its own line, once.")
        if not read:
            raise CheckFailed(f"rank {rank} did not read the file", "file.lines() at the end")
        turns += appended
        reads.append(read[-1])
    for one, other in [*pairwise(turns), *((turns[-1], read) for read in reads)]:
        entered = sum(event.start <= one.end for event in barriers[one.rank])
        left = sum(event.end is not None and event.end <= other.start for event in barriers[other.rank])
        if one.rank != other.rank and left <= entered:
            does, reads_early = ("reads", True) if other.name == "read" else ("writes", False)
            seen = f"rank {other.rank} {does} without a barrier after the turn of rank {one.rank}"
            words = barrier_missing(answer, order, other.rank, reads_early) or "nothing guarantees it"
            luck = f"If the order was right in this run, that was luck: {words}."
            raise CheckFailed(seen, "a barrier between them", luck)
    return "there is a barrier between each turn and the next, and before the reading."


# ---- part 2

CALLS_ALL = "a rank with an empty list still has to make the calls that the others make."
STOPS = "Did a rank leave the loop while others stayed? All must decide by the same number, this step's average."
BY_REDUCE = "`reduce` gives the sum to one rank alone, all_reduce to all. All must decide by the same number."
LISTS: list[list[float]] = [[10, 20], [30], [], [40, 50, 60]]  # from the lesson's two programs
LOSSES = [[6.0, 4.0, 2.0, 0.9], [5.0, 0.5, 1.0, 0.3], [7.0, 3.0, 0.6, 0.3]]


@oracle(values=[((2, 1, 0, 3),), ((1, 2, 0), 0.25)], if_stuck=CALLS_ALL)
def one_failing_rank(draws: Draws, counts: tuple[int, ...], more: float = 0) -> Case:
    """So many numbers on each rank: whole ones, with `more` added to each."""
    world_size, columns = len(counts), draws.different_integers(len(counts), max(counts), torch.int64)
    lists = [[number + more for number in x[:n].tolist()] for x, n in zip(columns, counts, strict=True)]
    sums, total = [sum(numbers) for numbers in lists], sum(map(sum, lists))
    own = [one / max(1, n) for one, n in zip(sums, counts, strict=True)]
    longer, both, right = "longer lists must count for more", "sum the numbers and the counts", total / sum(counts)
    answers: list[Answer] = []

    def explain(got: Any, rank: int) -> str:
        if is_number(got) and got % 1 == 0 and abs(got - right) < 1:
            return "the average without its fraction: divide by /, and don't round"
        if not is_number(got) or got == got:
            return ""
        is_async = any(event.is_async for event in answers[0].events)
        return EARLY if is_async else f"NaN: an empty list has no average, so {both}, and divide once"

    mistakes = {
        f"the average of the ranks' averages: {longer}": sum(own) / world_size,
        f"the sum of the ranks' averages: {both}, since {longer}": sum(own),
        f"the average of the averages of ranks that have numbers: {longer}": sum(own) / sum(n > 0 for n in counts),
        "the sum of all numbers: divide it by the sum of the counts": total,
        "the average per rank, not per number: divide by the sum of the counts": total / world_size,
        "this rank's own average: sum over the ranks by all_reduce, so that all have the sums": own,
        "the sum of all numbers divided by one rank's count: sum the counts too": [total / max(1, n) for n in counts],
        "this rank's own sum divided by the count of all: sum over the ranks too": [x / sum(counts) for x in sums],
        "what you get if an empty list counts as one number: its count is 0": total / sum(max(1, n) for n in counts),
        "what you get if fractions are cut off: keep floats, dtype=torch.float64": sum(map(int, sums)) / sum(counts),
    }
    return Case(
        [lists],
        right={"the average": right},
        mistakes={"": told_by_calls(answers, [right]), "the average": mistakes},
        before=answers.append,
        explain=explain,
        rtol=1e-6,
        unpack=lambda got, rank: as_tuple(got, ["the average", "the reading"], rank),
    )


### BEGIN HIDDEN TESTS
hidden_one_failing_rank = vary(
    one_failing_rank, values=[((0, 0, 3),), ((3, 0, 1, 2, 4), -30), ((2,), 0.75), ((1, 1), -0.5)]
)
### END HIDDEN TESTS


@oracle(
    values=[
        # Below 1 are, one after another: rank 1's loss, the average (twice), rank 0's loss, the larger loss, the sum.
        ([6.0, 5.0, 1.5, 1.25, 0.25, 0.75, 0.25, 1.0], [0.0, 3.0, 0.25, 0.5, 1.25, 0.5, 0.25, 0.5]),
        tuple(LOSSES),
        ([2.0, 1.0, 3.0, 2.0], [4.0, 1.0, 1.0, 2.0]),  # an average of exactly 1 is not below 1
    ],
    if_stuck=STOPS,
)
def one_deadlock(_: Draws, *losses: list[float]) -> Case:
    steps = list(zip(*losses, strict=True))
    averages = [sum(step) / len(losses) for step in steps]

    def until(small: list[bool]) -> list[float]:
        """The averages up to the first step that is small."""
        return averages[: [*small, True].index(True) + 1]

    right, sums = until([average < 1 for average in averages]), [average * len(losses) for average in averages]
    answers: list[Answer] = []
    decides = "below 1, but the average decides"
    mistakes = {
        f"too short: you stop when one of the losses is {decides}": until([min(step) < 1 for step in steps]),
        f"too long: you stop when all of the losses are {decides}": until([max(step) < 1 for step in steps]),
        f"too long: you stop when the sum of the losses is {decides}": until([one < 1 for one in sums]),
        f"what you get if you stop when rank 0's own loss is {decides}": until([loss < 1 for loss in losses[0]]),
        "too short: you stop at an average of 1, which is not below 1": until([average <= 1 for average in averages]),
        "too long: you stop a step late. This step's average decides, not the one before": averages[: len(right) + 1],
        "too short: the step whose average is below 1 is the last one, and it counts too": right[:-1],
        "the last average alone: return those of all steps": right[-1:],
    }

    def explain(got: Any, rank: int) -> str:
        if not isinstance(got, list) or not got or not all(map(is_number, got)):
            return TENSORS * holds_tensors(got)
        if any(one != one for one in got):
            return EARLY
        instead = {
            "the sums: divide each by the number of ranks": sums,
            "the averages divided by the number of ranks again": [average / len(losses) for average in averages],
            "this rank's own losses: sum each over the ranks, by all_reduce": losses[rank],
        }
        longer = "too long. You go on after an average below 1: compare each step's average over all ranks with 1"
        named = (words for words, wrong in instead.items() if equal_values(got, wrong[: len(got)], 1e-6))
        return next(named, longer if len(got) > len(right) else "")

    def expect_barrier(answer: Answer) -> None:
        for rank in range(len(losses)):
            *_, last = "", *(event.op for event in answer.events if event.rank == rank)
            if last != "barrier":
                after = f" after its last {last}" * bool(last)
                when = f"With losses whose average {'falls' if right[-1] < 1 else 'never falls'} below 1"
                advice = "Put it after the loop, as the last call, so that every way out of the loop passes it."
                seen = f"{when}, rank {rank} returned without a dist.barrier(){after}"
                raise CheckFailed(seen, "one dist.barrier() on every rank, however the loop ended", advice)

    return Case(
        [losses],
        right={"the averages": every(right)},
        mistakes={"": told_by_calls(answers, [right]), "the averages": {w: every(x) for w, x in mistakes.items()}},
        before=answers.append,
        advice={r"waits in reduce \(root": BY_REDUCE, r"(?s)\A(?!.*has finished).*waits in barrier": STOPS},
        explain=explain,
        rtol=1e-6,
        seen="rank {rank}: {part} are",
        unpack=lambda got, rank: as_tuple(got, ["the averages", "the reading"], rank),
        also=expect_barrier,
    )


### BEGIN HIDDEN TESTS
hidden_one_deadlock = vary(
    one_deadlock,
    values=[
        ([2.0, 3.0],),
        ([9.0, 0.5, 7.0, 0.1], [0.0, 9.0, 0.2, 0.1], [0.0, 2.5, 0.3, 8.8], [3.0] * 4, [3.0] * 4),
        ([0.5, 4.0], [0.5, 4.0], [1.0, 4.0]),
    ],
)
### END HIDDEN TESTS


# The readings: no message gives the right one away, so these checks are no oracles.


@check("one-failing-rank", judges="reading", if_stuck=CALLS_ALL)
def one_failing_rank_reading(run: Runner) -> None:
    empty = LISTS.index([])
    others = sorted({*range(len(LISTS))} - {empty})
    where = "in the first line of the report"
    right = {
        "raised": (empty, f"One number: it is {where}."),
        "error": (ZeroDivisionError.__name__, f"The name alone, as a string: it is {where}, before the colon."),
        "waited": (others, "A list of numbers, without the rank that raised: they are in the report's last line."),
    }
    expect_reading(run, [[1.0], [2.0]], right)


@check("one-deadlock", judges="reading", if_stuck=STOPS)
def one_deadlock_reading(run: Runner) -> None:
    leaves_after = [[loss < 1 for loss in mine].index(True) for mine in LOSSES]  # this step, each rank
    odd = leaves_after.index(min(leaves_after))
    others = sorted({*range(len(LOSSES))} - {odd})
    where = "A list of numbers: each rank has a line in the report that names the call it waits in."
    steps = "Rank 1 left after the step in which its own loss was below 1: count the steps up to that one."
    right = {"in all_reduce": (others, where), "in barrier": ([odd], where), "steps": (leaves_after[odd] + 1, steps)}
    expect_reading(run, [[0.5], [0.25]], right)


def expect_reading(run: Runner, inputs: list[list[float]], right: dict[str, tuple[Any, str]]) -> None:
    """Raise CheckFailed at the first entry that is not right, with its advice. right: {entry: (its value, advice)}"""
    answer = run(len(inputs), inputs)
    run.situation = ""  # the question is about the report in the lesson, not about these ranks
    reading = as_tuple(answer.results[0], ["the result", "the reading"], 0)["the reading"]
    if not isinstance(reading, dict):
        raise CheckFailed(f"the reading is {show(reading)}", f"a dict with the entries {', '.join(right)}")
    for name, (wanted, advice) in right.items():
        got: Any = reading.get(name)
        if isinstance(got, list | tuple | set) and all(map(is_number, got)):
            got = sorted(got)
        if got != wanted:
            says = f"your reading says {name!r}: {show(got)}, which is not what happened"
            raise CheckFailed(f"your reading leaves {name!r} empty" if got is None else says, mistake=advice)


# ---- the challenge

MESSAGE = 1e-5  # seconds


@oracle(
    score=[(6,)],  # not a power of two
    par=frozen_par(ROOM, "barrier-by-hand"),
    if_stuck="each send needs a recv on the other rank, and two ranks that both send first wait forever.",
)
def barrier_by_hand(_: Draws, world_size: int) -> Case:
    def expect_barrier(answer: Answer) -> None:
        expect_only_messages(answer)
        heard = heard_of(answer.events, world_size)
        known_by = [rank for rank, known in enumerate(heard) if len(known) == world_size]
        advice = "No rank heard of all the others: pass on what each has heard until one has, and let it tell the rest."
        if known_by:
            only = f"Only {ranks_text(known_by).lower()} heard of all the others"
            advice = f"{only}: once a rank has, it must tell the rest, and they must wait for that message."
        if skips_partners(answer.events, heard):
            that_exist = "choose partners that always exist, such as (rank + distance) % world_size."
            advice = f"A rank whose partner doesn't exist learns nothing in that round: {that_exist}"
        for rank, known in enumerate(heard):
            for other in sorted(set(range(world_size)) - known):
                seen = f"rank {rank} leaves though it can't know that rank {other} has come"
                those = f"{ranks_text(sorted(known - {rank})).lower()} only" if len(known) > 1 else "no other rank"
                advice = f"Rank {rank} had heard of {those}. {advice}"
                raise CheckFailed(seen, "that all ranks wait for the last one", advice)

    return Case(
        world_size=world_size,
        driver=lambda function, rank, world_size: [function(rank, world_size)],
        also=expect_barrier,
        advice={"does not exist here": "It must work for any number of ranks, not only for powers of two."},
        clock=links(world_size, MESSAGE, 1e18),
        score=Measure(lambda answer: answer.run.elapsed, "s", "of virtual time"),
        limit=MESSAGE * (world_size - 1).bit_length(),
    )


### BEGIN HIDDEN TESTS


def seconds_by_way_of_rank_0(world_size: int) -> float:
    """Rank 0 takes the messages of all others one after another, and then answers one after another."""
    return float(MESSAGE * 2 * (world_size - 1))


hidden_barrier_by_hand = vary(barrier_by_hand, par=seconds_by_way_of_rank_0, score=[(8,), (5,), (16,), (2,)])
### END HIDDEN TESTS


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


def skips_partners(events: Sequence[Event], heard: list[set[int]]) -> bool:
    """Whether ranks pass on what they hear to partners at distances 1, 2, 4 and so on, where these exist."""
    ranks, sent = range(len(heard)), {(event.rank, event.peer) for event in events if event.op == "send"}
    passed_on = any((other, rank) not in sent for rank in ranks for other in heard[rank] - {rank})
    for partner in (operator.xor, operator.add, operator.sub):
        meant = {(rank, partner(rank, 1 << n)) for rank in ranks for n in range(ranks[-1].bit_length())}
        if passed_on and sent == {pair for pair in meant if pair[1] in ranks} < meant:
            return True
    return False


def moment(event: Event) -> tuple[float, bool, int, int]:
    """When a rank sends, or knows what it has received: then it can pass that on at once."""
    is_send = event.op == "send"
    at = event.start if is_send else max(event.end or 0.0, event.waited or 0.0)
    return at, is_send, event.rank, event.index


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(barrier_by_hand, par=seconds_by_way_of_rank_0),
    vary(
        hidden_smallest_cluster, values=[(103e9, 126e9, 50.0, *A100), (100e9, 1e9, 90.0, *A100)]
    ),  # then 20 GPUs exactly
)
### END HIDDEN TESTS
