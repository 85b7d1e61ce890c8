"""The checks of lesson 02. Each is quick: one to four runs of a few ranks. Form: see registry.py.

Every function under test works in a team of ranks; a check often has several teams at work at once.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from utils.checks.answer import Answer, CheckFailed
from utils.checks.compare import expect
from utils.checks.equality import equal_values
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, Judgement, always, every, oracle, side_by_side, vary
from utils.checks.scores import VIRTUAL_TIME
from utils.checks.traffic import expect_each_sent, expect_only_messages, expect_time, expect_traffic
from utils.cluster.hardware import Link, links
from utils.recording.regions import region
from utils.text.units import plural

ROOM = Path(__file__).parent

Team = list[int]
Dtype = torch.dtype
FLOAT, INT = torch.float32, torch.int64
BYTES = FLOAT.itemsize  # one element, wherever traffic and time are judged
ALPHA, BANDWIDTH = 1e-6, 1e9  # the virtual cluster on which time is judged
CUT_FROM = "cut_from"  # an attribute of a chunk of the sum: of how many elements it is, and in which team
TIMES = "takes {times:.2f} times as long"
MEAN = "the mean: nothing is divided here"


# ---- ranks in teams


class Member(NamedTuple):
    """A rank in its team."""

    rank: int
    team: Team
    place: int
    x: Tensor  # its own input
    xs: list[Tensor]  # the input at each place of its team
    total: Tensor  # the sum of these
    world: Tensor  # the sum over all ranks of the world

    def cut(self, x: Tensor) -> list[Tensor]:
        return list(x.tensor_split(len(self.team)))

    def chunk(self, x: Tensor) -> Tensor:
        return self.cut(x)[self.place]

    @property
    def returned(self) -> str:
        return f"rank {self.rank} of the team {self.team} returned"


def members(xs: list[Tensor], teams: list[Team]) -> list[Member]:
    """All ranks of the world. xs: what each was given; every rank is in one team."""
    found = []
    for team in teams:
        of_team = [xs[rank] for rank in team]
        total, world = (torch.stack(several).sum(0).to(xs[0].dtype) for several in (of_team, xs))
        found += [Member(rank, team, place, xs[rank], of_team, total, world) for place, rank in enumerate(team)]
    return sorted(found, key=lambda me: me.rank)


RightAndMistakes = tuple[Tensor, dict[str, Any]]


def in_order(size: int) -> list[Team]:
    """One team of all ranks."""
    return [list(range(size))]


def in_teams(
    ranks: list[Member],
    should: Callable[[Member], RightAndMistakes],
    explain: Callable[[Any, Member], str] = lambda got, me: "",
    given: Callable[[Member], list[Any]] = lambda me: [me.x],
    **more: Any,
) -> Case:
    """should: what is right for a member, and what usual mistakes lead to. given: a member's arguments before its team.

    explain: what is wrong with a member's result, in words, where no mistake fits
    """
    wanted = [should(me) for me in ranks]
    advice = {**of_teams([me.team for me in ranks if not me.place]), **more.pop("advice", {})}
    return Case(
        list(zip(*[[*given(me), me.team] for me in ranks], strict=True)),
        right=[right for right, _ in wanted],
        mistakes={words: [wrong[words] for _, wrong in wanted] for words in wanted[0][1]},
        explain=lambda got, rank: explain(got, ranks[rank]),
        seen=[me.returned for me in ranks],
        clock=links(len(ranks), ALPHA, BANDWIDTH),
        own_memory=True,
        values_first=True,
        advice=advice,
        **more,
    )


# What a report of failed ranks says, as a pattern, and what the mistake is. The first that fits counts. What the last
# group matches is left out of the report: nothing, where that group is empty.
SENT = r"sent (\w+) \[\d+\] to rank \d+, (?:whose recv only has room for|which received it into)"
SAME_DTYPE, OTHER_DTYPE = rf"{SENT} \1 \[()", rf"{SENT} (?!\1 )()|can't be cast to the desired output type"
TO_ITSELF = r"(?:<--> \[none\]|rank of the current process|itself)"
NOT_IN_IT, TUPLE = "is not in it", "'tuple' object does not support item assignment"
# Two lines below an IndexError is the student's line: only that says which list it was.
NO_PLACE = r"list index out of range\n.*\n.*\bteam\["
NO_CHUNK = r"(?:list|tuple) index out of range\n.*\n.*\b(?:team|chunks|received)\["
LENGTHS = "Chunks differ in length by one: a buffer must be as long as the chunk that arrives in it."
MODULO = "On this line an index is beyond the last of the P places or chunks: count modulo P."
NO_ENTRY = "`tensor_split` returns a tuple, whose entries can't be replaced:"
CHUNKS = {
    SAME_DTYPE: f"{LENGTHS} If yours is, look for a rank where a place is meant.",
    "must match the size of tensor": LENGTHS,
    NO_PLACE: MODULO,
    NO_CHUNK: MODULO,
    TUPLE: f"{NO_ENTRY} write into the view, with copy_ or add_.",
    "is invalid for input of size|stack expects each tensor|don't multiply up": (
        "Not every number of elements can be cut evenly: `tensor_split` makes pieces whose lengths differ by one."
    ),
}


def of_teams(teams: list[Team]) -> dict[str, str]:
    """The mistakes that a report can show in these teams."""
    alone = {
        rf"^rank {team[0]} raised [^\n]*{TO_ITSELF}": "A team of one rank has nobody to send to: P - 1 is 0."
        for team in teams
        if len(team) == 1
    }
    named = ("team " if len(teams) == 1 else "teams ") + " and ".join(map(str, teams))
    places = {
        rf"{TO_ITSELF}|does not exist here|{NOT_IN_IT}|{NO_PLACE}[^]]*\brank\b": (
            f"In the {named} a place is not a rank: compute with places, then take the rank `team[place]`."
        )
    }
    return {
        **alone,
        **(places if any(team != sorted(team) for team in teams) else {}),
        NO_PLACE: f"No such place in the {named}: a place that has no partner in the team does nothing.",
        OTHER_DTYPE: "Create buffers with the dtype of the input, with torch.empty_like for example.",
    }


def drawn(draws: Draws, teams: list[Team], shape: Any, dtype: Dtype = FLOAT) -> list[Member]:
    return members(draws.different_integers(sum(map(len, teams)), shape, dtype), teams)


def same_numbers(right: Tensor, got: Any) -> bool:
    """Whether `got` holds the numbers of `right`, in whatever order."""
    return isinstance(got, Tensor) and got.shape == right.shape and sorted(got.tolist()) == sorted(right.tolist())


# ---- an all-reduce of any kind


def sums(draws: Draws, teams: list[Team], numel: int, dtype: Dtype = FLOAT, rough: bool = False) -> Case:
    """Every rank of each team gets the sum over that team.

    rough  floats, large and small, in one team: all must hold the same bits, whatever the order of the additions
    """
    if not rough:
        ranks = drawn(draws, teams, numel, dtype)
        return in_teams(ranks, sum_of_team, who_is_in, before=partial(expect_nothing_lost, ranks))
    generator = draws.generator()
    scale = 10.0 ** torch.randint(-3, 4, (numel,), generator=generator)
    xs = [torch.randn(numel, generator=generator) * scale for _ in teams[0]]
    return in_teams(members(xs, teams), sum_of_team, rtol=1e-5, also=expect_same_bits)


def bits(size: int, *more: int) -> tuple[Any, ...]:
    """The arguments of a case with rough numbers."""
    return (in_order(size), *more, 64, FLOAT, True)


def sum_of_team(me: Member) -> RightAndMistakes:
    return me.total, {
        "your own tensor: nothing was added to it": me.x,
        "P times your own tensor: add what others have, and reduce-scatter before you all-gather": len(me.team) * me.x,
        MEAN: me.total / len(me.team),
        "the sum over all ranks of the world: only the team takes part, and `dist.all_reduce` is for all": me.world,
        "your chunk of the sum alone: the all-gather is missing": me.chunk(me.total),
        "the right numbers in the wrong order: a chunk is in another chunk's position": partial(same_numbers, me.total),
    }


def expect_nothing_lost(ranks: list[Member], answer: Answer) -> None:
    """Raise CheckFailed if all of a team got one rank's numbers, or lack some, or if a rank keeps the sum to itself."""
    for team in {tuple(me.team): me.team for me in ranks if len(me.team) > 1 and len(me.x)}.values():
        of_team = [(me, answer.results[me.rank]) for me in ranks if me.team == team]
        first, result = of_team[0]
        for me, _ in of_team:
            if all(equal_values(got, me.x) for _, got in of_team):
                words = f"the tensor of rank {me.rank} alone, on every rank: add what arrives, don't overwrite"
                expect(me.x, me.total, me.returned, {words: always})
        lost = who_counts(result, first.xs, team)
        if lost.endswith("missing") and all(equal_values(got, result) for _, got in of_team):
            words = f"on every rank a sum in which {lost}: add what arrives, and pass on the sum, not your own tensor"
            expect(result, first.total, first.returned, {words: always})
        having = [me.rank for me, got in of_team if equal_values(got, me.total)]
        for me, got in of_team:
            own = equal_values(got, me.x)
            lost = "it is your own tensor" if own else who_counts(got, me.xs, team)
            if having and lost.endswith(("tensor", "missing")):
                have = f"{listed(having)} {'has' if len(having) == 1 else 'have'} it"
                early = "what is passed on must be the whole sum, and " * (not own)
                words = f"{early}every place must receive it into what it returns"
                expect(got, me.total, me.returned, {f"not the sum ({lost}), although {have}: {words}": always})


def expect_same_bits(answer: Answer) -> None:
    first = answer.results[0]
    for rank, got in enumerate(answer.results):
        if not torch.equal(got, first):
            at = (got != first).nonzero()[0].item()
            saw = f"rank 0 holds {first[at].item():.9g} at index {at}, rank {rank} holds {got[at].item():.9g}"
            words = "They added the same numbers in different orders. Compute each sum once, on one rank, and copy it."
            raise CheckFailed(saw, "the same bits on every rank", words)


def who_is_in(got: Any, me: Member) -> str:
    """Which ranks are missing from a sum or counted twice, in words; if only in some chunks, in the first of them."""
    if not isinstance(got, Tensor) or got.shape != me.total.shape:
        return ""
    if words := who_counts(got, me.xs, me.team):
        again = "counted" in words and "missing" not in words
        return f"a sum in which {words}" + ". Copy a complete sum, don't add it again" * again
    wrong = (got != me.total).nonzero().flatten()
    if len(wrong) and ((got - me.total)[wrong] > 9 * len(me.team)).all():  # positions differ by at most 9 per rank
        return "too much: some numbers are counted more than once. Copy a complete sum, don't add it again"
    for chunk, places in enumerate(me.cut(torch.arange(got.numel())) if len(me.team) <= 6 else []):
        at = wrong[torch.isin(wrong, places)]
        if len(at):
            where = f"in chunk {chunk}" if len(at) > 1 else f"at index {at.item()}"
            words = who_counts(got[at], [x[at] for x in me.xs], me.team)
            mixed = f"not a sum {where}: both sides of a message must mean the same positions of x"
            return f"a sum in which, {where}, {words}{which_half(got, me)}" if words else mixed
    return ""


def which_half(got: Tensor, me: Member) -> str:
    """What the place's own chunk says about the mistake, where it isn't the only one that is wrong."""
    own, right, before = me.chunk(got), me.chunk(me.total), me.chunk(me.x)
    if not len(own):
        return ""
    if got.numel() % len(me.team):
        few = (got != me.total).sum() < len(own)
        return ". Do your parts cover every element, although their lengths differ?" * bool(few)
    if any(chunk.any() and not chunk.all() for chunk in me.cut(got != me.total)):
        return ". Do your parts cover every element?"
    if equal_values(own, right):
        return f". Chunk {me.place} is complete: pass on only complete parts, in the reverse order of the first half"
    return (
        ". Your own chunk is as it was: nothing was added to it, or only in a new tensor, no part of the result"
        * equal_values(own, before)
    )


def who_counts(got: Any, parts: list[Tensor], team: Team) -> str:
    """Which ranks are missing from `got`, or in it several times, if that explains it; "" if not, or if it is right."""
    if not isinstance(got, Tensor) or got.shape != parts[0].shape or not got.numel():
        return ""
    stacked, wanted = torch.stack(parts).double(), got.double()
    if not wanted.isfinite().all() or torch.equal(stacked.sum(0), wanted):  # NaN: read in flight
        return ""
    counts = counts_in(stacked, wanted)
    if not counts:
        return ""
    several = sorted({count for count in counts if count > 1})
    named = {count: [rank for rank, this in zip(team, counts, strict=True) if this == count] for count in (0, *several)}
    what = {count: f"counted {count} times" for count in several} | {0: "missing", 2: "counted twice"}
    verbs = {count: "is" if len(ranks) == 1 else "are" for count, ranks in named.items()}
    said = [f"{listed(sorted(ranks))} {verbs[count]} {what[count]}" for count, ranks in named.items() if ranks]
    copied = ": a buffer that is filled again changes wherever it was stored" * (sum(counts) == len(team))
    return " and ".join(said) + copied


def counts_in(stacked: Tensor, wanted: Tensor) -> list[int]:
    """How often each row of `stacked` is in the sum `wanted`; [] if no whole numbers explain it."""
    size, numel = stacked.shape
    if numel > size:
        found = torch.linalg.lstsq(stacked.T, wanted[:, None]).solution.flatten().round()
        fits = torch.equal(found @ stacked, wanted) and found.min() >= 0 and found.max() <= size
        return [int(count) for count in found] if fits else []
    possible = (1, 0, 2) if numel > 1 else (1, 0)  # a single number has too many explanations
    every = itertools.product(possible, repeat=size) if size <= 6 else ()
    by_mistakes = sorted(every, key=lambda counts: sum(count != 1 for count in counts))
    fitting = (list(counts) for counts in by_mistakes if torch.equal(torch.tensor(counts).double() @ stacked, wanted))
    return next(fitting, [])


def listed(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0, 1 and 2`"""
    first = ", ".join(map(str, ranks[:-1]))
    return f"ranks {first} and {ranks[-1]}" if first else f"rank {ranks[0]}"


# ---- traffic and time. Elements are those of a float32


def each_sends(team: Team, messages: list[int], elements: list[int], remark: str) -> Judgement:
    """Judge that place p of the team sends messages[p] messages, with elements[p] elements in all."""
    counts, nbytes = ([column[team.index(rank)] for rank in sorted(team)] for column in (messages, elements))
    return as_asked(expect_each_sent, counts, [BYTES * count for count in nbytes], remark=remark)


def expect_given(answer: Answer, teams: Sequence[Team], *names: str) -> None:
    """Raise CheckFailed unless every rank of these teams, where it isn't alone, called the functions of these names."""
    called = {(one.rank, one.name) for one in answer.run.regions}
    for name in names:
        for rank in sorted(rank for team in teams if len(team) > 1 for rank in team):
            if (rank, f"given {name}") not in called:
                saw = f"rank {rank} never called the argument `{name}`"
                words = f"Something else did its work, such as a function of the lesson. Call `{name}`, the argument."
                raise CheckFailed(saw, f"a call of each function that is given: {', '.join(names)}", words)


def each_sent(messages: int, elements: int) -> str:
    return f"each rank sent {messages} messages, {elements * BYTES} bytes in all."


def as_asked(
    judge: Callable[..., str], *wanted: Any, remark: str = "", advice: Callable[[Answer], str] = lambda answer: ""
) -> Judgement:
    """A judgement of traffic, for answers whose values are known to be right. advice: where it is too much."""

    def judgement(answer: Answer) -> str:
        try:
            said = judge(answer, *wanted)
        except CheckFailed as failed:
            if failed.mistake.startswith("Fewer"):
                failed.mistake = "The values are right, so this is not the algorithm that the exercise asks for."
            elif "the bytes that are needed" in failed.mistake:
                sent = [event.bytes // BYTES for event in answer.events if (event.op, event.rank) == ("send", 0)]
                counts = ", ".join(map(str, sent))
                failed.mistake += f" Rank 0's messages have {counts} elements: send only what is needed."
            elif failed.mistake.endswith("are needed."):
                failed.mistake = f"{failed.mistake} {advice(answer)}".strip()
            raise
        return remark or said

    return judgement


def seconds_of(messages: int, elements: float) -> float:
    """The time of this many messages, one after the other, with this many elements in all."""
    return messages * ALPHA + elements * BYTES / BANDWIDTH


def takes(
    seconds: float,
    slow: Mapping[str, float],
    remark: str,
    beside: float = 0,
    advice: Callable[[Answer], str] = lambda answer: "",
) -> Judgement:
    """Judge that messages alone take at most `seconds`: the library's own collectives are quick too.

    {times} in the remark on a right answer is `beside` as a multiple of its time; advice is for times not in `slow`.
    """

    def judge(answer: Answer) -> str:
        expect_only_messages(answer)
        try:
            return f"{expect_time(answer, seconds, recognise=slow)} {remark.format(times=beside / answer.run.elapsed)}"
        except CheckFailed as failed:
            if failed.mistake.endswith("as is needed."):  # no cause is known
                failed.mistake = f"{failed.mistake} {advice(answer)}".strip()
            raise

    return judge


def at_work(
    team: Team, steps: int, elements: list[int], slow: Mapping[str, float], remarks: tuple[str, str], **more: Any
) -> dict[str, Any]:
    """Traffic and time where each place sends and receives one message in each step, elements[place] in all."""
    seconds, one = seconds_of(steps, elements[0]), "send and receive at the same time"
    turns = {f"{'two' if n == 2 else n} turns in each step: {one}": n * seconds for n in range(2, len(team) + 1)}
    slow = {**turns, **slow}
    of_traffic, of_time = remarks
    traffic = each_sends(team, [steps] * len(team), elements, of_traffic)
    return {"traffic": traffic, "time": takes(seconds, slow, of_time, **more)}


# ---- part 1

EACH_SIDE = (
    "one side of a message is missing, or the two differ in size. For each place, write down round by round what it "
    "sends to whom and what it receives from whom; and use team[place], not the place itself, as the rank."
)
ALL_AT_ONCE = (
    "every rank waits, in its send or in its receive, for a rank that does the same. Send and receive at the same "
    "time, with `exchange`. And chunks differ in length: receive into a buffer as long as the chunk that arrives."
)
IN_PAIRS = "two places must name each other as partners, and `exchange` must send and receive at the same time."
PAIRWISE = (
    "in step s, place p sends to place (p + s) % P and, with `exchange`, receives at the same time from place "
    "(p - s) % P, which is not the place that it sends to."
)
TWO_TEAMS = [[3, 0, 4], [1, 2]]
SUMS = [(in_order(4), 8), (TWO_TEAMS, 7, INT), bits(3)]
TREES = [SUMS[0], SUMS[2], SUMS[1]]  # a place has no partner first where places are ranks


@oracle(values=SUMS, traffic=[([[1, 0, 3, 2]], 5)], if_stuck=EACH_SIDE)
def naive_all_reduce(draws: Draws, teams: list[Team], numel: int, *numbers: Any) -> Case:
    others = len(teams[0]) - 1
    messages = [others] + [1] * others
    remark = f"place 0 sent {others} messages, each of the others one. Place 0 is the bottleneck."
    traffic = each_sends(teams[0], messages, [count * numel for count in messages], remark)
    return replace(sums(draws, teams, numel, *numbers), traffic=traffic)


### BEGIN HIDDEN TESTS
F32, F64, BF16, I32, I64 = torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64
# Teams, elements, dtype. The small ones last: with few numbers, different mistakes look the same.
WORLDS: list[Any] = [
    ([[4, 2, 0, 1, 3]], 13, F64),
    ([[5, 1, 3], [0, 2, 4]], 8, I32),
    ([[1, 2, 0], [3]], 10, BF16),
    ([list(range(8))], 3, F32),
    ([[1, 0]], 1, F64),
    ([[2, 1, 0]], 0, F32),
]
ALONE = ([[0]], 3)
hidden_naive_all_reduce = vary(
    naive_all_reduce,
    values=[*WORLDS[:-1], bits(5)],  # Gloo can't receive an empty tensor from any source
    traffic=[([[3, 1, 4, 0, 2]], 7), ALONE],
)
### END HIDDEN TESTS


@oracle(values=TREES, traffic=[([[2, 0, 3, 4, 1]], 5)], time=[(in_order(8), 50)], if_stuck=EACH_SIDE)
def tree_all_reduce(draws: Draws, teams: list[Team], numel: int, *numbers: Any) -> Case:
    others, one = len(teams[0]) - 1, seconds_of(1, numel)
    rounds, messages = others.bit_length(), 2 * others
    enough = "Each rank passes its numbers on once and gets the sum once."
    slow = {
        "what the naive way takes, or a chain: sum in pairs, all pairs at the same time": messages * one,
        "a tree one way, and place 0 alone the other way": (rounds + others) * one,
    }
    case, more = sums(draws, teams, numel, *numbers), partial(too_many, team=teams[0])
    return replace(
        case,
        advice={r"(Everyone (?:sends|receives) first[\s\S]*)": IN_A_ROUND, **case.advice},
        traffic=as_asked(expect_traffic, messages, messages * numel * BYTES, enough, advice=more),
        time=takes(2 * rounds * one, slow, f"The naive way {TIMES}.", messages * one, which_tree),
    )


### BEGIN HIDDEN TESTS
hidden_tree_all_reduce = vary(
    tree_all_reduce,
    values=[*WORLDS, bits(5)],
    traffic=[(in_order(6), 5), (in_order(3), 5), ALONE],
    time=[(in_order(5), 50), (in_order(16), 50)],
)
### END HIDDEN TESTS


IS_DONE = "a place that has sent its sum up is done until the way down"
IN_A_ROUND = (
    f"In each round one place of a pair sends and the other receives. {IS_DONE.capitalize()}, and a place without a "
    "partner does nothing in that round."
)


def too_many(answer: Answer, team: Team) -> str:
    """Which messages of a tree are too many, from who sent to whom."""
    sent = [(team.index(event.rank), team.index(event.peer or 0)) for event in answer.events if event.op == "send"]
    for p in range(1, len(team)):
        up, down = [b for a, b in sent if a == p > b], [a for a, b in sent if b == p > a]
        for lower, did, done in ((up, "sent its sum to", f": {IS_DONE}"), (down, "got the sum from", "")):
            if several := {*lower} if len({*lower}) > 1 else {}:
                words = (
                    f"Place {p} {did} {listed(sorted(several)).replace('rank', 'place')}, where one is enough{done}."
                )
                return f"{words} In the round with distance d, only multiples of d take part."
        if up and len(up + down) > 2:
            return f"Places {up[0]} and {p} need one message up and one down: one of a pair sends, the other receives."
    return ""


def which_tree(answer: Answer) -> str:
    """Why a tree is slow, from who sent to whom; its ranks are places."""
    for event in answer.events:
        distance = abs(event.rank - (event.peer or 0))
        if event.op == "send" and distance.bit_count() != 1:
            first, second = sorted((event.rank, event.peer or 0))
            pair = f"Places {first} and {second} exchanged messages"
            return f"{pair}: in a binomial tree, partners are 1, 2, 4, ... places apart."
    return "On the way down the largest distance comes first: a place with many below it must get the sum early."


# ---- part 2: the two halves of a ring

ONCE_AROUND: dict[str, Any] = {"traffic": [([[1, 0, 3, 2]], 10)], "time": [(in_order(8), 8 * 25)]}


def once_around(team: Team, numel: int, kept: int) -> dict[str, Any]:
    """Each place sends every chunk but one, the one `kept` places further on, and only to its right neighbour."""
    steps, sizes = len(team) - 1, chunk_sizes(numel, len(team))
    elements = [numel - sizes[(place + kept) % len(team)] for place in range(len(team))]
    slow = {"the time of whole tensors: send one chunk in each step": seconds_of(steps, steps * numel)}
    remarks = (
        f"each rank sent {steps} messages to its neighbour, every chunk but one: optimal.",
        "Every rank sends and receives in every step.",
    )
    judgements = at_work(team, steps, elements, slow, remarks)

    def traffic(answer: Answer) -> str | None:
        expect_only_messages(answer)
        for rank, right in sorted(zip(team, team[1:] + team[:1], strict=True)):
            sent = sorted({event.peer or 0 for event in answer.events if event.op == "send" and event.rank == rank})
            if sent != [right][: len(team) - 1]:
                to, mistake = listed(sent) if sent else "nobody", "In a ring every message goes to the next place"
                words = f"all its messages to go to rank {right}"
                raise CheckFailed(f"rank {rank} sent to {to}", words, f"{mistake}: the team is {team}.")
        counts: Judgement = judgements["traffic"]
        return counts(answer)

    return {**judgements, "traffic": traffic}


def chunk_sizes(numel: int, size: int) -> list[int]:
    return [len(chunk) for chunk in torch.empty(numel).tensor_split(size)]


@oracle(values=SUMS[:2], **ONCE_AROUND, if_stuck=ALL_AT_ONCE)
def ring_reduce_scatter(draws: Draws, teams: list[Team], numel: int, dtype: Dtype = FLOAT) -> Case:
    more = once_around(teams[0], numel, kept=0)
    more |= {"advice": {**CHUNKS, TUPLE: f"{NO_ENTRY} keep the list of clones in `chunks`."}}
    return in_teams(drawn(draws, teams, numel, dtype), chunk_of_sum, which_chunk, **more)


### BEGIN HIDDEN TESTS
AROUND: dict[str, Any] = {
    "values": WORLDS,
    "traffic": [([[3, 1, 4, 0, 2]], 12), ([[1, 0]], 3), ALONE],
    "time": [(in_order(5), 200), (in_order(2), 80)],
}
hidden_ring_reduce_scatter = vary(ring_reduce_scatter, **AROUND)
### END HIDDEN TESTS


def chunk_of_sum(me: Member) -> RightAndMistakes:
    right = me.chunk(me.total)
    own = "your own chunk, and nothing was added to it: add what arrives to your chunk of that number, and send chunk "
    own += "place - 1 first, so that your own arrives last"
    return right, {
        own: me.chunk(me.x),
        MEAN: right / len(me.team),
        "the whole sum: return chunk `place` of it": me.total,
        NOT_SPLIT: as_chunk_cuts(me.total, me),
    }


NOT_SPLIT = "cut by `chunk`, which makes the last chunk short: `tensor_split` spreads the elements evenly"


def as_chunk_cuts(x: Tensor, me: Member) -> Tensor:
    """What a place has if `chunk` cuts instead of `tensor_split`; nothing if there are too few chunks."""
    return [*x.chunk(len(me.team)), *[x[:0]] * len(me.team)][me.place]


def which_chunk(got: Any, me: Member) -> str:
    """What a place returned instead of its chunk of the sum, in words."""
    for chunk, (complete, own) in enumerate(zip(me.cut(me.total), me.cut(me.x), strict=True)):
        if equal_values(got, complete):
            first = "which chunk a place completes depends on which one it sends first"
            return f"chunk {chunk}, complete, but not your chunk {me.place}: {first}"
        if equal_values(got, own):
            return f"your own chunk {chunk}, as it was at the start"
    if not isinstance(got, Tensor) or got.shape != me.chunk(me.x).shape:
        return ""
    if words := who_counts(got, [me.chunk(x) for x in me.xs], me.team):
        steps = "in each of P - 1 steps, add what arrives, and send the chunk that the step before added to"
        if words == f"rank {me.rank} is counted twice":
            steps = f"it came back after {len(me.team)} steps: take P - 1, and send chunk place - 1 in the first"
        return f"chunk {me.place} of a sum in which {words}: {steps}"
    for start in range(len(me.total) - len(got) + 1):
        if len(got) and equal_values(got, me.total[start : start + len(got)]):
            return f"the sums from index {start} on, which is not where chunk {me.place} begins: cut by `tensor_split`"
    return f"not a sum of chunk {me.place}: in each step, add the chunk that arrives to the chunk with the same number"


@oracle(values=SUMS[:2], **ONCE_AROUND, if_stuck=ALL_AT_ONCE)
def ring_all_gather(draws: Draws, teams: list[Team], numel: int, dtype: Dtype = FLOAT) -> Case:
    """Each place is given its chunk of what was drawn for place 0 of its team."""
    more = once_around(teams[0], numel, kept=1)
    more |= {"given": lambda me: [me.chunk(me.xs[0]).clone(), numel], "advice": CHUNKS}
    return in_teams(drawn(draws, teams, numel, dtype), whole_of_team, wrong_chunks, **more)


### BEGIN HIDDEN TESTS
hidden_ring_all_gather = vary(ring_all_gather, **AROUND)
### END HIDDEN TESTS


def whole_of_team(me: Member) -> RightAndMistakes:
    whole = me.xs[0]
    chunks, place = me.cut(whole), me.place
    arrived = [chunks[place - step] for step in range(len(chunks))]
    return whole, {
        "your own chunk alone: return `whole`": chunks[place],
        "the chunks in order of arrival: chunk c belongs into position c": torch.cat(arrived),
        "the right numbers in the wrong order: chunk c belongs into position c": partial(same_numbers, whole),
    }


def wrong_chunks(got: Any, me: Member) -> str:
    if not isinstance(got, Tensor) or got.shape != me.x.shape:
        return ""
    pairs = enumerate(zip(me.cut(got), me.cut(me.xs[0]), strict=True))
    wrong = [chunk for chunk, (mine, right) in pairs if not torch.equal(mine, right)]
    where = f"wrong in {listed(wrong).replace('rank', 'chunk')}"
    if me.place in wrong:
        even = "without the [:], only the list changes" if not got.numel() % len(me.team) else "chunks differ in length"
        copy = f"copy `mine` into it (`chunks[place][:] = mine`: {even}) before the first step, and send it first"
        return f"{where}; chunk {me.place} is your own: {copy}"
    return f"{where}: in each step pass on the chunk that arrived last, for P - 1 steps"


# ---- building blocks that checks hand to an exercise, so that it is judged independently of those it builds on.
# They keep the same promises as the lesson's in a different way: every rank sends straight to every other.


def with_all_others(team: Team, rank: int, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
    """outgoing, incoming: {rank: the tensor for it, or from it}. One out and one in at a time."""
    circle = team[team.index(rank) :] + team[: team.index(rank)]
    for out, into in zip(circle[1:], reversed(circle[1:]), strict=True):
        both = [dist.P2POp(dist.isend, outgoing[out], out), dist.P2POp(dist.irecv, incoming[into], into)]
        for work in dist.batch_isend_irecv(both):
            work.wait()


def chunks_by_rank(x: Tensor, team: Team, rank: int, name: str) -> dict[int, Tensor]:
    if rank not in team:
        raise ValueError(f"rank {rank} called {name} with the team {team}, but {NOT_IN_IT}")
    return dict(zip(team, x.tensor_split(len(team)), strict=True))


def direct_reduce_scatter(x: Tensor, team: Team, rank: int, name: str = "reduce_scatter") -> Tensor:
    chunks = chunks_by_rank(x, team, rank, name)
    rows = {other: chunks[rank].clone() for other in team}
    with_all_others(team, rank, chunks, rows)
    mine = torch.stack(list(rows.values())).sum(0).to(x.dtype)
    setattr(mine, CUT_FROM, (x.numel(), list(team)))
    return mine


def direct_all_gather(mine: Tensor, numel: int, team: Team, rank: int) -> Tensor:
    whole = mine.new_zeros(numel)
    chunks = chunks_by_rank(whole, team, rank, "all_gather")
    were, among = getattr(mine, CUT_FROM, (numel, team))
    if were != numel and among == team:
        raise ValueError(f"all_gather got numel = {numel}, but `reduce_scatter` cut {were} elements")
    if mine.numel() != chunks[rank].numel():
        words = f"which has {chunks[rank].numel()} if {numel} elements are cut for the team {team}"
        raise ValueError(f"all_gather got {mine.numel()} elements as chunk {team.index(rank)}, {words}")
    chunks[rank].copy_(mine)
    with_all_others(team, rank, dict.fromkeys(team, mine), chunks)
    return whole


def direct_all_reduce(x: Tensor, team: Team, rank: int) -> Tensor:
    chunks_by_rank(x, team, rank, "all_reduce")
    cut, among = getattr(x, CUT_FROM, (0, []))
    if others := {*team} & {*among} - {rank}:
        words = f"but its chunk is not that of {listed(sorted(others))}"
        raise ValueError(f"rank {rank} called all_reduce with the team {team}, {words}")
    total = direct_all_gather(direct_reduce_scatter(x, team, rank, "all_reduce"), x.numel(), team, rank)
    if among:
        setattr(total, CUT_FROM, (cut, among))
    return total


def only_powers_of_two(x: Tensor, team: Team, rank: int) -> Tensor:
    """An all-reduce that refuses a team whose size is not a power of two."""
    if len(team) & (len(team) - 1):
        raise ValueError(f"all_reduce was called for a team of {len(team)}: it works for 1, 2, 4, 8, ... ranks")
    return direct_all_reduce(x, team, rank)


def given(name: str, function: Callable[..., Tensor], /, *args: Any, **named: Any) -> Tensor:
    """Call a building block, and note that it was called."""
    with region(f"given {name}"):  # for expect_given
        return function(*args, **named)


HALVES: dict[str, Callable[..., Tensor]] = {"reduce_scatter": direct_reduce_scatter, "all_gather": direct_all_gather}
BLOCKS: dict[str, Any] = {name: partial(given, name, function) for name, function in HALVES.items()}


def direct_elements(numel: int, size: int) -> list[int]:
    """How many elements each place sends in direct_all_reduce, in 2 (size - 1) messages."""
    return [numel - own + (size - 1) * own for own in chunk_sizes(numel, size)]


# ---- part 2: the whole ring


@oracle(values=SUMS, traffic=[(in_order(4), 12)], time=[(in_order(8), 8 * 500)], if_stuck=EACH_SIDE)
def ring_all_reduce(draws: Draws, teams: list[Team], numel: int, *numbers: Any) -> Case:
    steps = 2 * (len(teams[0]) - 1)
    naive, elements = seconds_of(steps, steps * numel), direct_elements(numel, len(teams[0]))
    slow = {"what the naive way takes": naive}
    optimal = f"That is 2 (P - 1) / P times the {numel * BYTES} bytes of x: optimal."
    remarks = (f"{each_sent(steps, elements[0])} {optimal}", f"The naive way {TIMES}, as the model says.")
    judgements = at_work(teams[0], steps, elements, slow, remarks, beside=naive)
    counts: Judgement = judgements["traffic"]

    def traffic(answer: Answer) -> str | None:
        said = counts(answer)
        expect_given(answer, teams, *BLOCKS)
        return said

    case = sums(draws, teams, numel, *numbers)
    mine = "Give `all_gather` your chunk of the sum, which is what `reduce_scatter` returns."
    advice = {f"{SAME_DTYPE}|{OTHER_NUMEL.format(numel)}": WHOLE.format(numel)}
    advice |= {"all_gather got": mine, **case.advice}
    return replace(case, for_all=BLOCKS, advice=advice, **{**judgements, "traffic": traffic})


### BEGIN HIDDEN TESTS
hidden_ring_all_reduce = vary(
    ring_all_reduce, values=[*WORLDS, bits(5)], traffic=[(in_order(5), 13), ALONE], time=[(in_order(5), 500)]
)
### END HIDDEN TESTS


OTHER_NUMEL = "all_gather got numel|all_gather got .* if (?!{} elements)"
WHOLE = "x has {} elements, which need not be P times your chunk's: pass x.numel() to `all_gather`."


# ---- part 3

POWERS = [(in_order(4), 8), ([[2, 0], [1]], 7, INT), bits(4), (in_order(4), 3)]
FOLD = "an extra rank and its partner must name each other, such as places p and p - P', and send one message each."
ODD = [(in_order(3), 8), ([[5, 0, 4, 2, 3], [1]], 7, INT), bits(5)]


@oracle(values=POWERS, traffic=[([[1, 0, 3, 2]], 16)], time=[(in_order(8), 8 * 25)], if_stuck=IN_PAIRS)
def halving_doubling(draws: Draws, teams: list[Team], numel: int, *numbers: Any) -> Case:
    """Where traffic or time is judged, numel is a multiple of the team's size."""
    size = len(teams[0])
    rounds, steps = 2 * (size.bit_length() - 1), 2 * (size - 1)
    elements = steps * numel // size
    ring = seconds_of(steps, elements)
    slow = {
        "two turns in each step of one half: send and receive at the same time": 1.5 * seconds_of(rounds, elements),
        "the time of a ring: exchange halves with partners that are far away": ring,
        "the time of whole tensors: exchange halves": seconds_of(rounds, rounds * numel),
    }
    few = f"{each_sent(rounds, elements)} As few bytes as a ring, in fewer messages."
    judgements = at_work(teams[0], rounds, [elements] * size, slow, (few, f"A ring {TIMES} here."), beside=ring)
    case = sums(draws, teams, numel, *numbers)
    no_place = "The team has no such place: the partner is at place ^ distance; distances are P / 2, ..., 1."
    halves = ONE_PIECE if numel < size else IN_HALVES
    advice = {**case.advice, **halves, **CHUNKS, NO_PLACE: no_place, NO_CHUNK: NO_HALF}
    return replace(case, advice=advice, **judgements)


### BEGIN HIDDEN TESTS
HIDDEN_POWERS: list[Any] = [
    ([[5, 2, 7, 0, 3, 6, 1, 4]], 21, F64),
    ([[3, 1, 0, 5], [4, 2]], 9, I32),
    ([[1, 0]], 5, BF16),
    ([list(range(4))], 3, F32),
    ([[2, 1, 3, 0]], 0, F32),
    ([[0]], 3, F32),
]
hidden_halving_doubling = vary(
    halving_doubling,
    values=HIDDEN_POWERS,
    traffic=[(in_order(8), 24), (in_order(2), 6), ALONE],
    time=[(in_order(16), 160), (in_order(4), 40)],
)
### END HIDDEN TESTS


TWO = "`tensor_split(2)` always gives two, and one of them may be empty."
ONE = f"One element makes a single piece, by `chunk(2)` for example: {TWO}"
ONE_PIECE = {r"(?:list|tuple) index out of range|got 1\)|split_size can only": ONE}
NO_HALF = "Of two halves, the indices are 0 and 1: bool(place & distance), while `place & distance` is 0 or `distance`."
IN_HALVES = {
    r"(?:list|tuple) index out of range\n.*\n.*(?:\b(?:halves|parts|pieces)\[|&)": NO_HALF,
    r"to unpack \(expected 2\)\n.*\n.*split\(": f"`split` gives a third piece where the length is odd: {TWO}",
}


@oracle(values=ODD, traffic=[(in_order(6), 8)], time=[(in_order(7), 80)], if_stuck=FOLD)
def halving_doubling_any_size(draws: Draws, teams: list[Team], numel: int, *numbers: Any) -> Case:
    """Where traffic or time is judged, numel is a multiple of the largest power of two up to the team's size."""
    size, power = len(teams[0]), 2 ** (len(teams[0]).bit_length() - 1)
    folding, steps = 2 * (size - power), 2 * (power - 1)  # messages in all; messages of each rank inside
    nbytes = (folding * numel + sum(direct_elements(numel, power))) * BYTES
    enough = f"Of these, {folding} to fold and unfold, the others inside `all_reduce`."
    inside, fold = seconds_of(steps, steps * numel // power), seconds_of(2, 2 * numel) if folding else 0
    slow = {"the time of a queue: give each extra rank a different partner": inside + (size - power) * fold}
    counts = as_asked(expect_traffic, folding + power * steps, nbytes, enough)

    def traffic(answer: Answer) -> str | None:
        expect_only_messages(answer)
        expect_folded(answer, size - power)
        return counts(answer)

    case = sums(draws, teams, numel, *numbers)
    extras = [rank for team in teams for rank in team[2 ** (len(team).bit_length() - 1) :]]
    extra_ranks = "|".join(map(str, extras)) or "none"
    everybody = {
        rf"all_reduce\([\s\S]*rank (?!(?:{extra_ranks})\b)\d+, which has finished without": (
            "All P' ranks must call `all_reduce`, partner or not."
        ),
        rf"rank (?:{extra_ranks}) called .* {NOT_IN_IT}": (
            "The extra ranks don't take part: only the first P' places call `all_reduce`, with a team of these."
        ),
    }
    others = "A rank must be in the team in which it calls `all_reduce`: the P' ranks that are left after the fold."
    return replace(
        case,
        advice={**everybody, **case.advice, NOT_IN_IT: others},
        for_all={"all_reduce": partial(given, "all_reduce", only_powers_of_two)},
        traffic=traffic,
        time=takes(fold + inside, slow, "{times:.0%} of it is the fold.", fold),
    )


### BEGIN HIDDEN TESTS
hidden_halving_doubling_any_size = vary(
    halving_doubling_any_size,
    values=[*WORLDS, bits(3)],
    traffic=[(in_order(size), 8) for size in (7, 3, 4, 1)],
    time=[(in_order(size), 80) for size in (11, 6, 8)],
)
### END HIDDEN TESTS


def expect_folded(answer: Answer, extra: int) -> None:
    """Raise CheckFailed unless the given all-reduce ran among all ranks but the extra ones, which send one message."""
    inside = [rank for rank in range(len(answer.results)) if answer.run.traffic().sent(rank)[0] != 1]
    if (single := len(answer.results) - len(inside)) != extra:
        words = "Call `all_reduce`, the argument, among all the other ranks."
        wanted = f"{extra}: each extra rank hands in its numbers, and nothing else"
        raise CheckFailed(f"{plural(single, 'rank')} sent a single message", wanted, words)
    expect_given(answer, [inside], "all_reduce")


# ---- part 4

WHO_MEETS = (
    "the ranks of a team don't agree on who is in it: all ranks on a node need the same team inside, and all ranks "
    "with the same seat need the same team across."
)
SEAT = "the ranks with its seat: every `local`-th place, from its seat on"
NODE = "the ranks of its node: `local` places in a row, from place node * local on"
SLOW = Link(5e-6, 1e8)  # between nodes
NODES = [(in_order(6), 3, 8), ([[2, 0, 3, 1]], 2, 7, INT), bits(4, 2)]  # teams, ranks of each node, elements


@oracle(values=NODES, traffic=[(in_order(6), 3, 12)], time=[(in_order(8), 4, 8 * 25)], if_stuck=WHO_MEETS)
def hierarchical_all_reduce(draws: Draws, teams: list[Team], local: int, numel: int, *numbers: Any) -> Case:
    """Where traffic or time is judged, the team is in order, and numel is a multiple of its size."""
    size, nodes, chunk = len(teams[0]), len(teams[0]) // local, numel // len(teams[0])
    steps, across = 2 * (local - 1), 2 * (nodes - 1)
    inside, crossing = steps * nodes * chunk, across * chunk  # elements that each rank sends
    remark = f"each rank sent {crossing * BYTES} bytes to other nodes and {inside * BYTES} inside its own."
    counts = each_sends(teams[0], [steps + across] * size, [inside + crossing] * size, remark)

    def traffic(answer: Answer) -> str | None:
        expect_little_between_nodes(answer, local, crossing * BYTES)
        said = counts(answer)
        expect_given(answer, teams, *[*BLOCKS] * (local > 1), *["all_reduce"] * (nodes > 1))
        return said

    message = SLOW.seconds(chunk * BYTES)
    right, ring = seconds_of(steps, inside) + across * message, 2 * (size - 1) * message
    advice = "The slow part is between the nodes: few bytes should be left by then."
    case = sums(draws, teams, numel, *numbers)
    called = {}
    cut, whole = rf"\[(?:{'|'.join(map(str, chunk_sizes(numel, local)))})\]", WHOLE.format(numel)
    gather = rf"^(?![\s\S]*(?:x\.numel\(\)|len\(x\)))[\s\S]* sent \w+ {cut} to rank \d+, .* {cut}"
    for rank, team, place, *_ in members(list(case.inputs[0]), teams):
        node, seat = team[place // local * local :][:local], team[place % local :: local]
        not_rank = " And a place is not a rank: compute with places." * (team != sorted(team))
        for name, ranks, who in [("all_reduce", seat, SEAT), *((block, node, NODE) for block in BLOCKS)]:
            words = f"Rank {rank} must call `{name}` with the team {ranks}, {who}.{not_rank}"
            called[rf"rank {rank} called {name} with the team .*, but "] = words
    return replace(
        case,
        advice={
            gather: f"{whole} If you do, {WHO_MEETS}",
            **called,
            f"{SAME_DTYPE}|Received data size": f"Most likely {WHO_MEETS}",
            **case.advice,
            OTHER_NUMEL.format(numel): whole,
            "all_gather got": "All-reduce the chunk that `reduce_scatter` returns, and gather inside the node again.",
            NO_PLACE: "The team has no such place: there are `local` ranks on each of its len(team) // local nodes.",
        },
        for_all={"local": local, **BLOCKS, "all_reduce": partial(given, "all_reduce", direct_all_reduce)},
        clock=links(local, ALPHA, BANDWIDTH, nodes=nodes, inter=SLOW),
        traffic=traffic,
        time=takes(right, {"what a flat ring takes": ring}, f"A flat ring {TIMES}.", ring, lambda answer: advice),
    )


### BEGIN HIDDEN TESTS
HIDDEN_NODES: list[Any] = [  # with the ranks of each node before the elements
    ([[5, 3, 1, 4, 0, 2]], 2, 11, F64),
    ([list(range(8))], 4, 3, I32),
    ([[2, 1, 0]], 3, 7, BF16),
    ([[1, 2, 0]], 1, 5, F32),
    ([[0]], 1, 3, F32),
    ([[0, 5, 2, 3], [4, 1]], 2, 9),
]
hidden_hierarchical_all_reduce = vary(
    hierarchical_all_reduce,
    values=HIDDEN_NODES,
    traffic=[(in_order(6), 2, 24), (in_order(8), 4, 24)],
    time=[(in_order(6), 2, 150), (in_order(16), 4, 400)],
)
### END HIDDEN TESTS


def expect_little_between_nodes(answer: Answer, local: int, nbytes: int) -> None:
    """Raise CheckFailed if a rank sent more than this many bytes to other nodes."""
    for rank, sent in enumerate(answer.run.traffic().bytes):
        crossed = sum(count for other, count in enumerate(sent) if other // local != rank // local)
        if crossed > nbytes:
            first = f"First reduce-scatter inside the node, so that a rank has only 1/{local} of the elements to send"
            words = f"{crossed / nbytes:.3g} times what is needed. {first}."
            raise CheckFailed(f"rank {rank} sent {crossed} bytes to other nodes", f"{nbytes} at most", words)


# ---- part 5


@oracle(values=SUMS[:2], traffic=[([[1, 0, 3, 2]], 10)], time=[(in_order(6), 6 * 25)], if_stuck=PAIRWISE)
def pairwise_all_to_all(draws: Draws, teams: list[Team], numel: int, dtype: Dtype = FLOAT) -> Case:
    steps = len(teams[0]) - 1
    elements = [numel - own for own in chunk_sizes(numel, steps + 1)]
    remarks = (f"each rank sent {steps} messages, one to each of the others.", "No message ever waits in a queue.")
    advice = "In each step every rank must receive exactly one message, so that none has to queue."
    judgements = at_work(teams[0], steps, elements, {}, remarks, advice=lambda answer: advice)
    advices = {**CHUNKS, TUPLE: f"{NO_ENTRY} what arrives belongs into the list `received`."}
    ranks = drawn(draws, teams, numel, dtype)
    more = {"before": partial(expect_enough_received, ranks), "advice": advices, **judgements}
    return in_teams(ranks, one_from_each, wrong_positions, **more)


### BEGIN HIDDEN TESTS
hidden_pairwise_all_to_all = vary(
    pairwise_all_to_all,
    values=WORLDS,
    traffic=[([[3, 1, 4, 0, 2]], 13), ALONE],
    time=[(in_order(5), 125), (in_order(8), 200)],
)
### END HIDDEN TESTS


def expect_enough_received(ranks: list[Member], answer: Answer) -> None:
    """Raise CheckFailed if a place can't have its numbers, however right memory that nothing filled may look."""
    if {event.op for event in answer.events} != {"send", "recv"}:
        return
    received = [[event for event in answer.events if (event.op, event.rank) == ("recv", me.rank)] for me in ranks]
    pairs = [(me, {event.peer for event in of_rank}) for me, of_rank in zip(ranks, received, strict=True)]
    xor = all(met == {rank for p, rank in enumerate(me.team) if 0 < p ^ me.place < len(me.team)} for me, met in pairs)
    for me, met in pairs:
        left_out = [(p, rank) for p, rank in enumerate(me.team) if rank not in {me.rank, *met}]
        elements = sum(math.prod(event.shape) for event in received[me.rank])
        if left_out and elements < (len(me.team) - 1) * len(me.chunk(me.x)):
            place, rank = left_out[0]
            words = f"So `received[{place}]` still holds what was in memory: {PAIRWISE}"
            words += " place ^ step reaches everybody only where P is a power of two." * xor
            saw = f"rank {me.rank} of the team {me.team} received nothing from place {place}, rank {rank}"
            raise CheckFailed(saw, "one message from each other place", words)


def one_from_each(me: Member) -> RightAndMistakes:
    cut = [me.cut(x) for x in me.xs]  # cut[source][target]
    right = torch.cat([chunks[me.place] for chunks in cut])
    arrived = torch.cat([cut[me.place - step][me.place] for step in range(len(cut))])
    return right, {
        "your own tensor: nothing was exchanged": me.x,
        "in order of arrival: what came from place s belongs into position s": arrived,
        NOT_SPLIT: torch.cat([as_chunk_cuts(x, me) for x in me.xs]),
    }


def wrong_positions(got: Any, me: Member) -> str:
    """Which place's numbers are wrong, and what they are instead, in words."""
    cut = [me.cut(x) for x in me.xs]
    size = cut[0][me.place].numel()
    if not isinstance(got, Tensor) or got.shape != (size * len(cut),) or not size:
        return ""
    wrong = [s for s, part in enumerate(got.split(size)) if not equal_values(part, cut[s][me.place])]
    if wrong == [me.place]:
        return f"wrong in position {me.place}, your own: no message brings that chunk, so copy it yourself"
    for s in wrong:
        for chunk, numbers in enumerate(cut[s]):
            if equal_values(got.split(size)[s], numbers):
                return f"chunk {chunk} of place {s} in position {s}: place s sends you its chunk `place`"
    return f"wrong in position {', '.join(map(str, wrong))}: `received[s]` must be received from place s"


# ---- part 6


def zero_or_almost(function: Callable[..., Any], size: int, *link: float) -> Any:
    """The crossover that a function returns; on 2 and 3 ranks, where it is at 0, a search may end just above."""
    got = function(size, *link)
    return 0.0 if size <= 3 and isinstance(got, float) and abs(got) < 1e-6 else got


all_reduce_seconds = frozen_cases(ROOM, "all-reduce-seconds", cluster=links(12, ALPHA, BANDWIDTH))


### BEGIN HIDDEN TESTS


def rounds_of(algorithm: str, size: int) -> list[float]:
    """The share of all bytes in each message, for the messages that follow one another."""
    halves = [0.5**level for level in range(1, size.bit_length())]
    power = 2 ** len(halves)
    rounds: dict[str, list[float]] = {
        "naive": [1.0] * 2 * (size - 1),
        "tree": [1.0] * 2 * (len(halves) + (size > power)),
        "ring": [1 / size] * 2 * (size - 1),
        "halving-doubling": [1.0] * 2 * (size > power) + 2 * halves,
    }
    return rounds[algorithm]


@oracle(values=[((2, 3, 5, 33, 1024), 100, 3e-6, 25e9), ((1, 4, 7), 0, 1e-5, 1e9)])
def hidden_all_reduce_seconds(draws: Draws, sizes: tuple[int, ...], scale: int, alpha: float, bandwidth: float) -> Case:
    """For each algorithm and size, with up to a hundred times `scale` bytes."""
    counts = torch.randint(10, 100, (len(sizes),), generator=draws.generator()).tolist()
    rows = [(size, scale * count) for size, count in zip(sizes, counts, strict=True)]
    cases = [hidden_seconds_of(name, *row, alpha, bandwidth) for name in NAMES for row in rows]
    return replace(side_by_side(cases), cluster=links(len(cases), alpha, bandwidth))


def hidden_seconds_of(name: str, size: int, nbytes: int, alpha: float, bandwidth: float) -> Case:
    rounds = rounds_of(name, size)
    return Case(
        [[name], [size], [nbytes], [alpha], [bandwidth]],
        right=len(rounds) * alpha + sum(rounds) * nbytes / bandwidth,
        rtol=1e-9,
        seen=f"all_reduce_seconds({name!r}, size={size}, nbytes={nbytes}, ...) returned",
    )


### END HIDDEN TESTS
crossover = frozen_cases(ROOM, "crossover", driver=zero_or_almost)


### BEGIN HIDDEN TESTS


@oracle(values=[(size, 3e-6, 25e9) for size in (2, 3, 5, 7, 64, 1000)])
def hidden_crossover(draws: Draws, size: int, alpha: float, bandwidth: float) -> Case:
    """Where two straight lines meet, each known from its rounds."""
    tree, ring = rounds_of("tree", size), rounds_of("ring", size)
    right = (len(ring) - len(tree)) / (sum(tree) - sum(ring)) * alpha * bandwidth
    return Case(
        [[size], [alpha], [bandwidth]],
        right=right,
        rtol=1e-9,
        seen=f"crossover(size={size}, alpha={alpha}, bandwidth={bandwidth:.3g}) returned",
        driver=zero_or_almost,
    )


### END HIDDEN TESTS

NAMES = ("naive", "tree", "ring", "halving-doubling")
FIRST = "equally fast: take the one that comes first in `candidates`"
BEST, BOTH = NAMES[-1], ("tree", "ring")


def price(
    prices: dict[str, float], known: Any, algorithm: str, size: int, nbytes: int, alpha: float, bandwidth: float
) -> float:
    """An invented `seconds`, so that choose-algorithm is judged independently of all-reduce-seconds."""
    if (asked := (size, nbytes, alpha, bandwidth)) != known:
        raise ValueError(f"seconds got (size, nbytes, alpha, bandwidth) = {asked}; choose_algorithm was given {known}")
    return prices[algorithm]


@oracle(
    values=[
        (NAMES, (1, 2, 4, 3), "naive"),
        (BOTH, (4, 2.002, 2, 1), "ring"),
        (BOTH, (4, 2, 2.002, 1), "tree"),
        (BOTH[::-1], (4, 2, 2, 1), "ring"),
        (("ring", "naive", "tree"), (2, 2, 2, 1), "ring"),
    ]
)
def choose_algorithm(draws: Draws, candidates: tuple[str, ...], times: tuple[float, ...], right: str) -> Case:
    """times: what each of NAMES takes, in nanoseconds a byte. On 2**n ranks the lesson's formulas choose BEST."""
    power, nbytes = (torch.randint(2, most, (), generator=draws.generator(most)).item() for most in (8, 10_000))
    size = int(2**power)
    prices = {name: nbytes * time * 1e-9 for name, time in zip(NAMES, times, strict=True)}
    seconds = partial(price, prices, (size, nbytes, ALPHA, BANDWIDTH))
    tied = [name for name in candidates if prices[name] == prices[right]]
    given = f"`seconds` gives {', '.join(f'{name} {prices[name] * 1e6:.5g} µs' for name in candidates)}"
    return Case(
        [[one] for one in (nbytes, size, ALPHA, BANDWIDTH, candidates, seconds)],
        right=right,
        mistakes={
            "not one of the candidates: return a name from `candidates`": lambda got: got not in candidates,
            f"the first in the alphabet of those that are {FIRST}": lambda got: got == min(tied),
            f"not the first of those that are {FIRST}": lambda got: got in tied,
            "almost as fast: don't round the times": lambda got: prices[got] < 1.01 * prices[right],
            "the slowest: take the least time": lambda got: prices[got] == max(prices[name] for name in candidates),
            "what `all_reduce_seconds` chooses: call `seconds`, the argument": lambda got: got == BEST,
            "not the fastest: compare what `seconds` gives for each candidate": always,
        },
        seen=f"{nbytes:,} bytes, {size:,} ranks; {given}: you chose",
        unchanged=False,  # a function that comes back from a rank equals no other
    )


### BEGIN HIDDEN TESTS
hidden_choose_algorithm = vary(
    choose_algorithm,
    values=[
        (NAMES, (1, 2, 1, 3), "naive"),
        (NAMES[::-1], (1, 2, 1, 3), "ring"),
        (BOTH, (1, 2, 2, 1), "tree"),
        (NAMES, (3, 2.001, 4, 2), "halving-doubling"),
        (NAMES[:3], (3, 2, 2.001, 1), "tree"),
    ],
)
### END HIDDEN TESTS


# Two algorithms that can be told apart by what they send, and a choice between them.
SWITCH = 64  # bytes


def by_size(nbytes: int, size: int, alpha: float, bandwidth: float) -> str:
    if (size, alpha, bandwidth) != (2, ALPHA, BANDWIDTH):
        called = f"choose was called for size {size}, alpha {alpha}, bandwidth {bandwidth:.3g}"
        raise ValueError(f"{called}: the team has 2 ranks, and alpha {ALPHA}, bandwidth {BANDWIDTH:.3g} were given")
    with region(f"choose {int(nbytes)}"):  # for expect_choice
        return "few" if nbytes < SWITCH else "many"


def both_ways(pieces: int, x: Tensor, team: Team, rank: int) -> Tensor:
    """An all-reduce between two ranks: each sends the other its tensor, in this many pieces."""
    if x.dim() != 1 or not x.is_contiguous():
        gaps = " (flatten and reshape leave them where there is nothing to flatten: call contiguous())" * (x.dim() == 1)
        words = f"the algorithm got shape {tuple(x.shape)}, strides {x.stride()}: flatten x, without gaps"
        raise ValueError(words + gaps)
    other, arrived = team[1 - team.index(rank)], torch.empty_like(x)
    for mine, theirs in zip(x.tensor_split(pieces), arrived.tensor_split(pieces), strict=True):
        with_all_others(team, rank, {other: mine}, {other: theirs})
    return x + arrived if rank == min(team) else arrived + x


ALGORITHMS = {"few": partial(both_ways, 1), "many": partial(both_ways, 2)}
CHOSEN = "Call `choose`, the argument, and take the algorithm of that name out of `algorithms`, the argument."
CHOICE: dict[str, Any] = {"alpha": ALPHA, "bandwidth": BANDWIDTH, "choose": by_size, "algorithms": ALGORITHMS}


def as_a_view(function: Callable[..., Any], x: Tensor, team: Team, rank: int, **for_all: Any) -> Any:
    """Call the function with a contiguous view of a storage twice as long: no copy that is sent to a rank is one."""
    return function(torch.cat([x, x])[: len(x)], team, rank, **for_all)


@oracle(
    values=[((2, 1, 3),), ((5, 7), lambda x: x.T), (12, lambda x: x[::3])],
    traffic=[(30, lambda x: x[::2]), ((8, 2),), (10, torch.clone, torch.float64, as_a_view)],
)
def all_reduce(
    draws: Draws, shape: Any, view: Any = torch.clone, dtype: Dtype = FLOAT, driver: Callable[..., Any] | None = None
) -> Case:
    xs = [view(x) for x in draws.different_integers(4, shape, dtype)]
    ranks = members(xs, [[3, 0], [1, 2]])
    given = {"KeyError|'ALGORITHMS' is not defined": CHOSEN}
    traffic = partial(expect_choice, x=xs[0], storage=xs[0].untyped_storage().nbytes() * (2 if driver else 1))
    return in_teams(ranks, sum_in_shape, for_all=CHOICE, advice=given, traffic=traffic, driver=driver)


### BEGIN HIDDEN TESTS
VIEW = (torch.clone, F64, as_a_view)
hidden_all_reduce = vary(
    all_reduce,
    values=[
        (40, lambda x: x[1::3], BF16),
        ((2, 3, 4), lambda x: x[:, 1, ::2], I64),
        ((2, 3, 4), lambda x: x.permute(2, 0, 1)),
        (3, lambda x: x[0]),
    ],
    traffic=[(7, *VIEW), (8, *VIEW), *((n, lambda x: x[::3], BF16) for n in (93, 96))],
)
### END HIDDEN TESTS


def sum_in_shape(me: Member) -> RightAndMistakes:
    in_memory = me.total.T.reshape(me.total.shape) if me.total.dim() == 2 else me.total
    return me.total, {
        "the right numbers, flat: restore the shape": me.total.reshape(-1),
        "the right numbers in the order of memory: flatten by reshape(-1)": in_memory,
        "your own tensor: nothing was added to it": me.x,
        MEAN: me.total / 2,
    }


def expect_choice(answer: Answer, x: Tensor, storage: int) -> str:
    """Raise CheckFailed unless the algorithm ran, once, that by_size names for the bytes of x."""
    nbytes = x.numel() * x.element_size()
    right, (sent, sent_bytes) = by_size(nbytes, 2, ALPHA, BANDWIDTH), answer.run.traffic().sent(0)
    seen = f"for {plural(x.numel(), 'element')} of {x.dtype}, "
    if sent > len(ALGORITHMS) or sent_bytes != nbytes:
        saw = f"{seen}rank 0 sent {plural(sent, 'message')}, {sent_bytes} bytes in all"
        words = "Call one algorithm, once, with all of x in its own dtype."
        raise CheckFailed(saw, f"{1 if right == 'few' else 2}, {nbytes} bytes in all", words)
    asked = [int(one.name.split()[1]) for one in answer.run.regions if re.fullmatch(r"choose \d+", one.name)]
    if asked and nbytes not in asked:
        counts = {storage: "the whole storage that x is a view of", 4 * x.numel(): "4 bytes for each element"}
        counts |= {len(x) * x.element_size(): "the first dimension alone", x.numel(): "elements"}
        counted = counts.get(asked[0])
        words = f"Did you count {counted}? " * bool(counted) + "Each element of x has x.element_size() bytes."
        raise CheckFailed(f"{seen}`choose` got {asked[0]} bytes", f"{nbytes}", words)
    if (ran := list(ALGORITHMS)[sent - 1]) != right:
        raise CheckFailed(f"{seen}the algorithm {ran!r} ran", f"{right!r}, which `choose` names", CHOSEN)
    return f"the algorithm changes at {SWITCH} bytes, as `choose` says."


# ---- the challenge

LAYERS = (64, 16_384, 64, 16_384, 256, 24_576, 64, 9_216, 48, 12_288, 1, 18_432, 512, 16_384, 7, 5_320)  # elements
INSIDE, ACROSS = Link(10e-6, 10e9), Link(20e-6, 2.5e9)


@oracle(
    score=[(3, 4, LAYERS)],
    par=frozen_par(ROOM, "mixed-sizes"),
    if_stuck="a rank waits for a message that nobody sends. Which ranks does each rank exchange with, in which order?",
)
def mixed_sizes(draws: Draws, nodes: int, local: int, sizes: tuple[int, ...]) -> Case:
    """Everybody gets the sum of each tensor over all ranks."""
    size = nodes * local
    by_layer = [  # too large for 16 bits, so that a shorter dtype loses some; sums are exact
        [
            torch.randint(40_000, 80_000, (numel,), generator=draws.generator(size * layer + rank)).float()
            for rank in range(size)
        ]
        for layer, numel in enumerate(sizes)
    ]
    xs = [list(of_rank) for of_rank in zip(*by_layer, strict=True)]
    totals = [torch.stack(of_layer).sum(0) for of_layer in by_layer]
    return Case(
        [xs],
        for_all={"local": local},
        right=every(totals),
        mistakes={
            "your own tensors: nothing was added to them": xs,
            "the means: all-reduce sums unless told otherwise": every([total / size for total in totals]),
            "the sums over your own node: the other nodes are missing": [
                [torch.stack(of_layer[first : first + local]).sum(0) for of_layer in by_layer]
                for first in range(0, size, local)
                for _ in range(local)
            ],
            "one flat tensor: split it into tensors of the given sizes": every(torch.cat(totals)),
            "the sums cut into equal pieces: split them into tensors of the given sizes": every(
                list(torch.cat(totals).chunk(len(totals)))
            ),
        },
        explain=lambda got, rank: which_layer(got, totals),
        clock=links(local, INSIDE.alpha, INSIDE.bandwidth, nodes=nodes, inter=ACROSS),
        also=expect_only_messages,
        score=VIRTUAL_TIME,
        limit=least_seconds(nodes, local, BYTES * sum(sizes)),
    )


### BEGIN HIDDEN TESTS


def seconds_of_mixed_sizes(nodes: int, local: int, sizes: tuple[int, ...]) -> float:
    """All tensors as one, by rings inside the nodes and across them, as hierarchical-all-reduce has it.

    In each step some rank has the longest chunk, and `tensor_split` makes the first ones longer.
    """
    numel = sum(sizes)
    chunk = -(-numel // local)
    inside: float = INSIDE.seconds(BYTES * chunk)
    across: float = ACROSS.seconds(BYTES * -(-chunk // nodes))
    return 2 * (local - 1) * inside + 2 * (nodes - 1) * across


hidden_mixed_sizes = vary(
    mixed_sizes,
    par=seconds_of_mixed_sizes,
    score=[(2, 3, (5, 3000, 0, 700, 41, 2049)), (3, 2, (1, 1, 2)), (1, 4, (900, 11))],
)
### END HIDDEN TESTS


def which_layer(got: Any, totals: list[Tensor]) -> str:
    """Which tensor is wrong first, in words, and whether it is the sum of another one."""
    pairs = enumerate(zip(got, totals, strict=False)) if isinstance(got, list | tuple) else ()
    wrong, mine = next(
        ((layer, mine) for layer, (mine, total) in pairs if not equal_values(mine, total)), (len(totals), None)
    )
    same = [other for other, total in enumerate(totals) if wrong < len(totals) and equal_values(mine, total)]
    if same:
        return f"in another order: what you returned for xs[{wrong}] is the sum of xs[{same[0]}]"
    if isinstance(mine, Tensor) and (equal_values(mine, totals[wrong], 0.01) or mine.isinf().any()):
        return f"rounded for xs[{wrong}], or too large for its dtype: send numbers in the dtype that they have"
    return f"wrong first for xs[{wrong}]" if wrong < len(totals) else ""


def least_seconds(nodes: int, local: int, nbytes: int) -> float:
    """A bound for any all-reduce: 2 (P - 1) n bytes must be sent, 2 (M - 1) n of them between the M nodes.

    Each rank sends one message at a time, so the busiest takes no less than the mean.
    """
    size, crossing = nodes * local, 2 * (nodes - 1) * nbytes
    staying = 2 * (size - 1) * nbytes - crossing
    return INSIDE.alpha + (crossing / ACROSS.bandwidth + staying / INSIDE.bandwidth) / size


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(mixed_sizes, par=seconds_of_mixed_sizes),
    vary(hidden_all_reduce_seconds, values=[((8, 6, 1), 100, 1e-5, 1e9)]),
    vary(hidden_crossover, values=[(size, 1e-5, 1e9) for size in (12, 8, 4, 2)]),
)
### END HIDDEN TESTS
