"""The visible checks of lesson 02. Each is quick: one to three runs of a few ranks. Form: see registry.py.

Every function under test works in a team of ranks; a check often has several teams at work at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..cluster.hardware import Link
from .answer import Answer, CheckFailed
from .compare import expect, expect_own_memory, expect_unchanged, plural
from .equality import alike
from .marking import check
from .runner import Runner, World, links
from .traffic import expect_each_sent, expect_only_messages, expect_time, expect_traffic

BYTES = 4  # of a float32
ALPHA, BANDWIDTH = 1e-6, 1e9  # of the virtual cluster on which time is judged


# ---- teams, and what they should get


def in_order(size: int) -> list[list[int]]:
    """One team of all ranks."""
    return [list(range(size))]


def team_of_each(teams: list[list[int]]) -> list[list[int]]:
    """For each rank of the world the team that it is in; every rank is in one."""
    return [next(team for team in teams if rank in team) for rank in range(sum(map(len, teams)))]


def sum_of(xs: list[torch.Tensor], team: list[int]) -> torch.Tensor:
    return torch.stack([xs[rank] for rank in team]).sum(0).to(xs[0].dtype)


def who(rank: int, team: list[int]) -> str:
    return f"rank {rank} of the team {team} returned"


def last_first(results: list[Any]) -> list[tuple[int, Any]]:
    """(rank, result), the last rank first: rank 0 is often right by luck."""
    return list(enumerate(results))[::-1]


def on_virtual(run: Runner, size: int, **links_of: Any) -> World:
    """Like `run`, on virtual ranks: values and time come from the same run."""
    return partial(run.virtual, cluster=links(size, ALPHA, BANDWIDTH, **links_of), device="cpu")


def expect_in_time(answer: Answer, seconds: float, recognise: dict[str, float] | None = None) -> str:
    """Raise CheckFailed unless messages alone took at most `seconds`: the library's own collectives are quick too."""
    expect_only_messages(answer)
    return expect_time(answer, seconds, recognise=recognise)


def seconds_of(messages: int, nbytes: float) -> float:
    """The time of this many messages, one after the other, with this many bytes in all."""
    return messages * ALPHA + nbytes / BANDWIDTH


# ---- what is wrong with a sum


def sum_mistakes(got: Any, xs: list[torch.Tensor], team: list[int], rank: int) -> dict[str, Any]:
    """{a common mistake, in words: the wrong sum that it leads to}"""
    total = sum_of(xs, team)
    mistakes = {
        "your own tensor: nothing was added to it": xs[rank],
        "the mean: all-reduce sums unless told otherwise": total / len(team),
        "the sum over all ranks of the world: only the team takes part": torch.stack(xs).sum(0),
        "your chunk of the sum alone: the all-gather is missing": total.tensor_split(len(team))[team.index(rank)],
        "the right numbers in the wrong order: a chunk is in another chunk's position": same_numbers(got, total),
    }
    words = who_is_in(got, xs, team)
    return mistakes | ({words: got} if words else {})


def same_numbers(got: Any, total: torch.Tensor) -> Any:
    """`got` if it holds the numbers of `total` in any order, else None."""
    same = isinstance(got, torch.Tensor) and got.shape == total.shape and sorted(got.tolist()) == sorted(total.tolist())
    return got if same else None


def who_is_in(got: Any, xs: list[torch.Tensor], team: list[int]) -> str:
    """Which ranks are missing from a sum or counted twice, in words; if only in some chunks, in the first of them."""
    total = sum_of(xs, team)
    if not isinstance(got, torch.Tensor) or got.shape != total.shape:
        return ""
    if len(team) <= 6 and (words := counted(got, [xs[rank] for rank in team], team)):
        return f"a sum in which {words}"
    wrong = (got != total).nonzero().flatten()
    if len(wrong) and ((got - total)[wrong] > 9 * len(team)).all():  # positions differ by at most 9 per rank
        return "too much: some numbers are counted more than once. Copy a complete sum, don't add it again"
    if len(team) > 6:
        return ""
    for chunk, places in enumerate(torch.arange(got.numel()).tensor_split(len(team))):
        at = wrong[torch.isin(wrong, places)]
        if len(at):
            where = f"in chunk {chunk}" if len(at) > 1 else f"at index {at.item()}"
            words = counted(got[at], [xs[rank][at] for rank in team], team)
            mixed = f"wrong {where}, where different positions were added up: both sides must mean the same part"
            return f"a sum in which, {where}, {words}" if words else mixed
    return ""


def counted(got: Any, parts: list[torch.Tensor], team: list[int]) -> str:
    """Which ranks are missing from `got`, or in it twice, if that explains it; "" if not, or if it is right."""
    stacked = torch.stack(parts).double()
    if not got.numel() or torch.equal(stacked.sum(0), got.double()):
        return ""
    possible = (1, 0, 2) if got.numel() > 1 else (1, 0)  # a single number has too many explanations
    for counts in sorted(itertools.product(possible, repeat=len(team)), key=lambda counts: sum(n != 1 for n in counts)):
        if torch.equal(torch.tensor(counts).double() @ stacked, got.double()):
            said: dict[str, list[int]] = {"missing": [], "counted twice": []}
            for rank, count in zip(team, counts, strict=True):
                if count != 1:
                    said["counted twice" if count else "missing"].append(rank)
            return " and ".join(ranks_are(ranks, what) for what, ranks in said.items() if ranks)
    return ""


def ranks_are(ranks: list[int], what: str) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is {what}"
    return f"ranks {', '.join(map(str, sorted(ranks)))} are {what}"


# ---- judging an all-reduce of any kind


def judge_sums(
    run: Runner,
    teams: list[list[int]],
    numel: int,
    dtype: torch.dtype = torch.float32,
    world: World | None = None,
    **same: Any,
) -> Answer:
    """Every rank of each team gets the sum over that team. world: `run.virtual` with a cluster, else `run`."""
    of = team_of_each(teams)
    xs = run.draws.different_integers(len(of), numel, dtype)
    answer = (world or run)(len(of), xs, of, **same)
    expect_more_than_one(answer.results, xs, of)
    for rank, got in last_first(answer.results):
        expect(got, sum_of(xs, of[rank]), who(rank, of[rank]), sum_mistakes(got, xs, of[rank], rank))
    expect_unchanged(answer, xs, of)
    expect_own_memory(answer)
    return answer


def expect_more_than_one(results: list[Any], xs: list[torch.Tensor], of: list[list[int]]) -> None:
    """Raise CheckFailed if all of a team got the numbers of a single rank."""
    for rank, team in enumerate(of):
        if len(team) > 1 and xs[rank].numel() and all(alike(results[other], xs[rank]) for other in team):
            words = f"the tensor of rank {rank} alone, on every rank: add what arrives, don't overwrite"
            expect(results[team[0]], sum_of(xs, team), who(team[0], team), {words: xs[rank]})


def judge_bits(run: Runner, size: int, numel: int = 64, **same: Any) -> None:
    """Random floats, large and small: all ranks must hold the same bits, whatever the order of the additions."""
    generator = run.draws.generator(size)
    scale = 10.0 ** torch.randint(-3, 4, (numel,), generator=generator)
    xs = [torch.randn(numel, generator=generator) * scale for _ in range(size)]
    answer = run(size, xs, [list(range(size))] * size, **same)
    right = torch.stack(xs).double().sum(0)
    for rank, got in enumerate(answer.results):
        close = isinstance(got, torch.Tensor) and got.shape == right.shape
        if not close or not torch.allclose(got.double(), right, rtol=1e-3, atol=1e-3):
            expect(got, right.float(), who(rank, list(range(size))), rtol=1e-3)
        expect_same_bits(rank, got, answer.results[0])


def expect_same_bits(rank: int, got: Any, first: torch.Tensor) -> None:
    if torch.equal(got, first):
        return
    at = (got != first).nonzero()[0].item()
    raise CheckFailed(
        f"rank 0 holds {first[at].item():.9g} at index {at}, rank {rank} holds {got[at].item():.9g}",
        "the same bits on every rank",
        "They added the same numbers in different orders. Compute each sum once, on one rank, and copy the result.",
    )


def expect_sent(
    judge: Callable[..., str], answer: Answer, messages: int | list[int], nbytes: int | list[int], enough: str = ""
) -> str:
    """`expect_each_sent` or `expect_traffic`, for an answer whose values are known to be right."""
    try:
        return judge(answer, messages, nbytes, enough)
    except CheckFailed as failed:
        if failed.mistake.startswith("Fewer"):
            failed.mistake = "The sum is right, so this is not the algorithm that the exercise asks for."
        raise


# ---- part 1

EACH_SIDE = (
    "one side of a message is missing, or has a different size. For each place, write down what it sends to whom and "
    "what it receives from whom, round by round; and use team[place], not the place itself, as the rank."
)
ALL_AT_ONCE = (
    "every rank waits, in its send or in its receive, for a rank that does the same. Send and receive at the same "
    "time, with `exchange`. And chunks differ in length: receive into a buffer as long as the chunk that arrives."
)
IN_PAIRS = f"the two sides do not name each other as partners; or {ALL_AT_ONCE}"


@check("naive-all-reduce", if_stuck=EACH_SIDE)
def naive_all_reduce_values(run: Runner) -> None:
    judge_sums(run, in_order(4), 6)
    judge_sums(run, [[3, 0, 4], [1, 2]], 3, torch.int64)
    judge_bits(run, 3)


@check("naive-all-reduce", judges="traffic", if_stuck=EACH_SIDE)
def naive_all_reduce_traffic(run: Runner) -> str:
    return judge_naive_traffic(run, [1, 0, 3, 2], 5)


def judge_naive_traffic(run: Runner, team: list[int], numel: int) -> str:
    answer = judge_sums(run, [team], numel)
    messages = [len(team) - 1 if rank == team[0] else 1 for rank in range(len(team))]
    expect_sent(expect_each_sent, answer, messages, [count * numel * BYTES for count in messages])
    return f"place 0 sent {messages[team[0]]} messages, each of the others one. Place 0 is the bottleneck."


@check("tree-all-reduce", if_stuck=EACH_SIDE)
def tree_all_reduce_values(run: Runner) -> None:
    judge_sums(run, in_order(4), 6)
    judge_sums(run, [[3, 0, 4], [1, 2]], 3, torch.int64)
    judge_bits(run, 3)


@check("tree-all-reduce", judges="traffic", if_stuck=EACH_SIDE)
def tree_all_reduce_traffic(run: Runner) -> str:
    return expect_tree(judge_sums(run, [[2, 0, 3, 4, 1]], 5), 5, 5 * BYTES)


def expect_tree(answer: Answer, size: int, nbytes: int) -> str:
    messages = 2 * (size - 1)
    enough = "Each rank passes its numbers on once and gets the sum once."
    return expect_sent(expect_traffic, answer, messages, messages * nbytes, enough)


@check("tree-all-reduce", judges="time", if_stuck=EACH_SIDE)
def tree_all_reduce_time(run: Runner) -> str:
    return judge_tree_time(run, 8)


def judge_tree_time(run: Runner, size: int, numel: int = 50) -> str:
    answer = judge_sums(run, in_order(size), numel, world=on_virtual(run, size))
    one, rounds = seconds_of(1, numel * BYTES), (size - 1).bit_length()
    mistakes = {
        "what the naive way takes, or a chain: sum in pairs, all pairs at the same time": 2 * (size - 1) * one,
        "a tree one way, and place 0 alone the other way": (rounds + size - 1) * one,
    }
    try:
        took = expect_in_time(answer, 2 * rounds * one, recognise=mistakes)
    except CheckFailed as failed:
        failed.mistake += (
            " On the way down the largest distance comes first: a place with many below it must get the sum early."
        )
        raise
    return f"{took} The naive way takes {(size - 1) / rounds:.2f} times as long."


# ---- part 2: the two halves of a ring

SENT_BY_ALL = "Every rank sends and receives in every step."


@check("ring-reduce-scatter", if_stuck=ALL_AT_ONCE)
def ring_reduce_scatter_values(run: Runner) -> None:
    judge_reduce_scatter(run, in_order(4), 8)
    judge_reduce_scatter(run, [[3, 0, 4], [1, 2]], 7, torch.int64)


def judge_reduce_scatter(
    run: Runner, teams: list[list[int]], numel: int, dtype: torch.dtype = torch.float32, world: World | None = None
) -> Answer:
    of = team_of_each(teams)
    xs = run.draws.different_integers(len(of), numel, dtype)
    answer = (world or run)(len(of), xs, of)
    for rank, got in last_first(answer.results):
        place, size = of[rank].index(rank), len(of[rank])
        expect(
            got,
            sum_of(xs, of[rank]).tensor_split(size)[place],
            who(rank, of[rank]),
            chunk_mistakes(got, xs, of[rank], rank),
        )
    expect_unchanged(answer, xs, of)
    expect_own_memory(answer)
    return answer


def chunk_mistakes(got: Any, xs: list[torch.Tensor], team: list[int], rank: int) -> dict[str, Any]:
    place, size = team.index(rank), len(team)
    whole = sum_of(xs, team)
    sums, own = whole.tensor_split(size), [xs[other].tensor_split(size)[place] for other in team]
    mistakes = {
        "your own chunk, and nothing was added to it: it must be the chunk that arrives in the last step": own[place],
        "the mean: all-reduce sums unless told otherwise": sums[place] / size,
        "the whole sum: return chunk `place` of it": whole,
        "all chunks: return chunk `place`": xs[rank],
    }
    for other in range(size):
        if other != place:
            words = f"the complete chunk {other}: which chunk a place completes depends on which one it sends first"
            mistakes[words] = sums[other]
            mistakes[f"your own chunk {other}, as it was at the start"] = xs[rank].tensor_split(size)[other]
    if not isinstance(got, torch.Tensor) or got.shape != own[place].shape:
        return mistakes
    words = counted(got, own, team) if size <= 5 else ""
    said = f"chunk {place} of a sum in which {words}. Does each step send the chunk that the step before added to"
    mixed = "not a sum of chunk {0}: in each step, add the chunk that arrives to the chunk with the same number"
    return mistakes | {f"{said}?" if words else mixed.format(place): got}


@check("ring-reduce-scatter", judges="traffic", if_stuck=ALL_AT_ONCE)
def ring_reduce_scatter_traffic(run: Runner) -> str:
    return judge_ring_traffic(judge_reduce_scatter(run, [[1, 0, 3, 2]], 10), [1, 0, 3, 2], 10, kept=0)


def judge_ring_traffic(answer: Answer, team: list[int], numel: int, kept: int) -> str:
    """Each place sends every chunk but one, the one `kept` places further on, and only to its right neighbour."""
    chunks = [chunk.numel() for chunk in torch.empty(numel).tensor_split(len(team))]
    sent = [numel - chunks[(team.index(rank) + kept) % len(team)] for rank in range(len(team))]
    if len(team) > 1:
        expect_ring(answer, team)
    expect_sent(expect_each_sent, answer, len(team) - 1, [count * BYTES for count in sent])
    return f"each rank sent {len(team) - 1} messages to its neighbour, every chunk but one: optimal."


def expect_ring(answer: Answer, team: list[int]) -> None:
    """Raise CheckFailed if a message goes to any place but the next."""
    for event in answer.events:
        right = team[(team.index(event.rank) + 1) % len(team)]
        if event.op == "send" and event.peer != right:
            raise CheckFailed(
                f"rank {event.rank} of the team {team} sent to rank {event.peer}",
                f"all its messages to rank {right}",
                "In a ring every message goes to the next place, and comes from the one before.",
            )


@check("ring-reduce-scatter", judges="time", if_stuck=ALL_AT_ONCE)
def ring_reduce_scatter_time(run: Runner) -> str:
    answer = judge_reduce_scatter(run, in_order(8), 8 * 25, world=on_virtual(run, 8))
    return f"{expect_ring_time(answer, 8, 8 * 25)} {SENT_BY_ALL}"


def expect_ring_time(answer: Answer, size: int, numel: int) -> str:
    chunk = numel // size * BYTES
    right = seconds_of(size - 1, (size - 1) * chunk)
    mistakes = {
        "the time of whole tensors: send one chunk in each step": seconds_of(size - 1, (size - 1) * numel * BYTES),
        "two turns in each step: send and receive at the same time": 2 * right,
    }
    return expect_in_time(answer, right, recognise=mistakes)


@check("ring-all-gather", if_stuck=ALL_AT_ONCE)
def ring_all_gather_values(run: Runner) -> None:
    judge_all_gather(run, in_order(4), 8)
    judge_all_gather(run, [[3, 0, 4], [1, 2]], 7, torch.int64)


def judge_all_gather(
    run: Runner, teams: list[list[int]], numel: int, dtype: torch.dtype = torch.float32, world: World | None = None
) -> Answer:
    of = team_of_each(teams)
    wholes = run.draws.different_integers(len(of), numel, dtype)  # a team's is that of its first rank
    mine = [wholes[team[0]].tensor_split(len(team))[team.index(rank)].clone() for rank, team in enumerate(of)]
    answer = (world or run)(len(of), mine, [numel] * len(of), of)
    for rank, got in last_first(answer.results):
        team, whole = of[rank], wholes[of[rank][0]]
        expect(got, whole, who(rank, team), gather_mistakes(got, whole, mine[rank], team.index(rank), len(team)))
    expect_unchanged(answer, mine, [numel] * len(of), of)
    expect_own_memory(answer)
    return answer


def gather_mistakes(got: Any, whole: torch.Tensor, mine: torch.Tensor, place: int, size: int) -> dict[str, Any]:
    chunks = list(whole.tensor_split(size))
    mistakes = {
        "your own chunk alone: return `whole`": mine,
        "your own chunk again and again": torch.cat([mine] * size),
        "the chunks in order of arrival: chunk c belongs into position c": torch.cat(
            [chunks[(place - step) % size] for step in range(size)]
        ),
        "the right numbers in the wrong order: chunk c belongs into position c": same_numbers(got, whole),
    }
    if isinstance(got, torch.Tensor) and got.shape == whole.shape:
        wrong = [str(c) for c, mine in enumerate(got.tensor_split(size)) if not torch.equal(mine, chunks[c])]
        where = f"wrong in chunk {', '.join(wrong)}"
        mistakes[f"{where}: each must be received, into `chunks`, before it is passed on"] = got
    return mistakes


@check("ring-all-gather", judges="traffic", if_stuck=ALL_AT_ONCE)
def ring_all_gather_traffic(run: Runner) -> str:
    return judge_ring_traffic(judge_all_gather(run, [[1, 0, 3, 2]], 10), [1, 0, 3, 2], 10, kept=1)


@check("ring-all-gather", judges="time", if_stuck=ALL_AT_ONCE)
def ring_all_gather_time(run: Runner) -> str:
    answer = judge_all_gather(run, in_order(8), 8 * 25, world=on_virtual(run, 8))
    return f"{expect_ring_time(answer, 8, 8 * 25)} {SENT_BY_ALL}"


# ---- building blocks that checks hand to an exercise, so that it is judged independently of those it builds on.
# They keep the same promises as the lesson's in a different way: every rank sends straight to every other.


def with_all_others(
    team: list[int], rank: int, outgoing: dict[int, torch.Tensor], incoming: dict[int, torch.Tensor]
) -> None:
    """outgoing, incoming: {rank: the tensor for it, or from it}. One out and one in at a time."""
    circle = team[team.index(rank) :] + team[: team.index(rank)]
    for out, into in zip(circle[1:], reversed(circle[1:]), strict=True):
        both = [dist.P2POp(dist.isend, outgoing[out], out), dist.P2POp(dist.irecv, incoming[into], into)]
        for work in dist.batch_isend_irecv(both):
            work.wait()


def be_member(rank: int, team: list[int], name: str) -> None:
    if rank not in team:
        raise ValueError(f"rank {rank} called {name} with the team {team}, but is not in it")


def direct_reduce_scatter(x: torch.Tensor, team: list[int], rank: int) -> torch.Tensor:
    be_member(rank, team, "reduce_scatter")
    chunks = dict(zip(team, x.tensor_split(len(team)), strict=True))
    rows = {other: chunks[rank].clone() for other in team}
    with_all_others(team, rank, chunks, rows)
    return torch.stack(list(rows.values())).sum(0).to(x.dtype)


def direct_all_gather(mine: torch.Tensor, numel: int, team: list[int], rank: int) -> torch.Tensor:
    be_member(rank, team, "all_gather")
    whole = mine.new_zeros(numel)
    chunks = dict(zip(team, whole.tensor_split(len(team)), strict=True))
    if mine.numel() != chunks[rank].numel():
        words = f"which has {chunks[rank].numel()} if {numel} elements are cut for the team {team}"
        raise ValueError(f"all_gather got {mine.numel()} elements as chunk {team.index(rank)}, {words}")
    chunks[rank].copy_(mine)
    with_all_others(team, rank, dict.fromkeys(team, mine), chunks)
    return whole


def direct_all_reduce(x: torch.Tensor, team: list[int], rank: int) -> torch.Tensor:
    be_member(rank, team, "all_reduce")
    return direct_all_gather(direct_reduce_scatter(x, team, rank), x.numel(), team, rank)


def only_powers_of_two(x: torch.Tensor, team: list[int], rank: int) -> torch.Tensor:
    """An all-reduce that refuses a team whose size is not a power of two."""
    if len(team) & (len(team) - 1):
        raise ValueError(f"all_reduce was called for a team of {len(team)}: it works for 1, 2, 4, 8, ... ranks")
    return direct_all_reduce(x, team, rank)


BLOCKS: dict[str, Any] = {"reduce_scatter": direct_reduce_scatter, "all_gather": direct_all_gather}


def direct_traffic(numel: int, size: int, place: int) -> tuple[int, int]:
    """(messages, elements) that a place sends in direct_all_reduce."""
    own = torch.empty(numel).tensor_split(size)[place].numel()
    return 2 * (size - 1), numel - own + (size - 1) * own


# ---- part 2: the whole ring


@check("ring-all-reduce", if_stuck=EACH_SIDE)
def ring_all_reduce_values(run: Runner) -> None:
    judge_sums(run, in_order(4), 8, **BLOCKS)
    judge_sums(run, [[3, 0, 4], [1, 2]], 7, torch.int64, **BLOCKS)
    judge_bits(run, 3, **BLOCKS)


@check("ring-all-reduce", judges="traffic", if_stuck=EACH_SIDE)
def ring_all_reduce_traffic(run: Runner) -> str:
    return judge_halves_traffic(run, 4, 12)


def judge_halves_traffic(run: Runner, size: int, numel: int) -> str:
    answer = judge_sums(run, in_order(size), numel, **BLOCKS)
    each = [direct_traffic(numel, size, place) for place in range(size)]
    sent = [count * BYTES for _, count in each]
    enough = f"That is 2 (P - 1) / P times the {numel * BYTES} bytes of x: optimal."
    return expect_sent(expect_each_sent, answer, 2 * (size - 1), sent, enough)


@check("ring-all-reduce", judges="time", if_stuck=EACH_SIDE)
def ring_all_reduce_time(run: Runner) -> str:
    return judge_halves_time(run, 8, 8 * 500)


def judge_halves_time(run: Runner, size: int, numel: int) -> str:
    answer = judge_sums(run, in_order(size), numel, world=on_virtual(run, size), **BLOCKS)
    right = seconds_of(2 * (size - 1), 2 * (size - 1) * numel // size * BYTES)
    naive = 2 * (size - 1) * seconds_of(1, numel * BYTES)
    took = expect_in_time(answer, right, recognise={"what the naive way takes": naive})
    return f"{took} The naive way takes {naive / right:.2f} times as long, as the model says."


# ---- part 3


@check("halving-doubling", if_stuck=IN_PAIRS)
def halving_doubling_values(run: Runner) -> None:
    judge_sums(run, in_order(4), 8)
    judge_sums(run, [[2, 0], [1]], 7, torch.int64)
    judge_bits(run, 4)


@check("halving-doubling", judges="traffic", if_stuck=IN_PAIRS)
def halving_doubling_traffic(run: Runner) -> str:
    answer = judge_sums(run, [[1, 0, 3, 2]], 16)
    return judge_halving_traffic(answer, 4, 16)


def judge_halving_traffic(answer: Answer, size: int, numel: int) -> str:
    """numel: a multiple of size."""
    enough = "As few bytes as a ring, in fewer messages." if size > 2 else ""
    return expect_sent(
        expect_each_sent, answer, 2 * (size.bit_length() - 1), 2 * (size - 1) * numel // size * BYTES, enough
    )


@check("halving-doubling", judges="time", if_stuck=IN_PAIRS)
def halving_doubling_time(run: Runner) -> str:
    answer = judge_sums(run, in_order(8), 8 * 25, world=on_virtual(run, 8))
    took = expect_halving_time(answer, 8, 8 * 25)
    ring = seconds_of(14, 14 * 25 * BYTES)
    return f"{took} A ring takes {ring / answer.run.elapsed:.2f} times as long here."


def expect_halving_time(answer: Answer, size: int, numel: int) -> str:
    right = seconds_of(2 * (size.bit_length() - 1), 2 * (size - 1) * numel // size * BYTES)
    mistakes = {
        "two turns in each round: send and receive at the same time": 2 * right,
        "the time of a ring: exchange halves with partners that are far away": seconds_of(
            2 * (size - 1), 2 * (size - 1) * numel // size * BYTES
        ),
        "the time of whole tensors: exchange halves": seconds_of(
            2 * (size.bit_length() - 1), 2 * (size.bit_length() - 1) * numel * BYTES
        ),
    }
    return expect_in_time(answer, right, recognise=mistakes)


FOLDED: dict[str, Any] = {"all_reduce": only_powers_of_two}


@check("halving-doubling-any-size", if_stuck=EACH_SIDE)
def halving_doubling_any_size_values(run: Runner) -> None:
    judge_sums(run, in_order(3), 8, **FOLDED)
    judge_sums(run, [[5, 0, 4, 2, 3], [1]], 7, torch.int64, **FOLDED)
    judge_bits(run, 5, **FOLDED)


@check("halving-doubling-any-size", judges="traffic", if_stuck=EACH_SIDE)
def halving_doubling_any_size_traffic(run: Runner) -> str:
    return judge_fold_traffic(run, 6, 8)


def judge_fold_traffic(run: Runner, size: int, numel: int) -> str:
    """numel: a multiple of the largest power of two up to `size`."""
    answer = judge_sums(run, in_order(size), numel, **FOLDED)
    power = 2 ** (size.bit_length() - 1)
    extra, (messages, elements) = size - power, direct_traffic(numel, power, 0)
    nbytes = (2 * extra * numel + power * elements) * BYTES
    enough = f"Of these, {2 * extra} to fold and unfold, the others inside `all_reduce`."
    return expect_sent(expect_traffic, answer, 2 * extra + power * messages, nbytes, enough)


@check("halving-doubling-any-size", judges="time", if_stuck=EACH_SIDE)
def halving_doubling_any_size_time(run: Runner) -> str:
    return judge_fold_time(run, 7)


def judge_fold_time(run: Runner, size: int, numel: int = 80) -> str:
    """numel: a multiple of the largest power of two up to `size`."""
    answer = judge_sums(run, in_order(size), numel, world=on_virtual(run, size), **FOLDED)
    power, whole = 2 ** (size.bit_length() - 1), seconds_of(1, numel * BYTES)
    inside = seconds_of(2 * (power - 1), 2 * (power - 1) * numel // power * BYTES)
    fold = 2 * whole if size > power else 0
    words = "the time of a queue: give each extra rank a different partner"
    took = expect_in_time(answer, fold + inside, recognise={words: inside + (size - power) * fold})
    return f"{took} {fold / answer.run.elapsed:.0%} of it is the fold."


# ---- part 4

WITH_BLOCKS = {**BLOCKS, "all_reduce": direct_all_reduce}
WHO_MEETS = (
    "the ranks of a team do not agree on who is in it. All ranks of a node need the same team inside; all of one seat "
    "need the same team across."
)


@check("hierarchical-all-reduce", if_stuck=WHO_MEETS)
def hierarchical_all_reduce_values(run: Runner) -> None:
    judge_sums(run, in_order(6), 8, local=3, **WITH_BLOCKS)
    judge_sums(run, [[2, 0, 3, 1]], 7, torch.int64, local=2, **WITH_BLOCKS)
    judge_bits(run, 4, local=2, **WITH_BLOCKS)


@check("hierarchical-all-reduce", judges="traffic", if_stuck=WHO_MEETS)
def hierarchical_all_reduce_traffic(run: Runner) -> str:
    return judge_levels_traffic(run, 2, 3, 12)


def judge_levels_traffic(run: Runner, nodes: int, local: int, numel: int) -> str:
    """numel: a multiple of nodes * local. Judges what crosses between nodes first, then all of it."""
    size = nodes * local
    answer = judge_sums(run, in_order(size), numel, local=local, **WITH_BLOCKS)
    sent, (crossing_messages, elements) = answer.run.traffic().bytes, direct_traffic(numel // local, nodes, 0)
    for rank in range(size):
        crossed = sum(sent[rank][other] for other in range(size) if other // local != rank // local)
        if crossed > elements * BYTES:
            raise CheckFailed(
                f"rank {rank} sent {crossed} bytes to other nodes",
                f"{elements * BYTES} at most",
                f"{crossed / (elements * BYTES):.3g} times what is needed. First reduce-scatter inside the node, so "
                f"that a rank has only 1/{local} of the elements to send across.",
            )
    inside = 2 * (local - 1) * numel // local
    expect_sent(expect_each_sent, answer, 2 * (local - 1) + crossing_messages, (inside + elements) * BYTES)
    return f"each rank sent {elements * BYTES} bytes to other nodes and {inside * BYTES} inside its own."


SLOW = Link(5e-6, 1e8)  # between nodes


@check("hierarchical-all-reduce", judges="time", if_stuck=WHO_MEETS)
def hierarchical_all_reduce_time(run: Runner) -> str:
    return judge_levels_time(run, 2, 4)


def judge_levels_time(run: Runner, nodes: int, local: int) -> str:
    size = nodes * local
    numel, chunk = size * 25, 25 * BYTES
    world = on_virtual(run, local, nodes=nodes, inter=SLOW)
    answer = judge_sums(run, in_order(size), numel, world=world, local=local, **WITH_BLOCKS)
    inside = 2 * seconds_of(local - 1, (local - 1) * nodes * chunk)
    right = inside + 2 * (nodes - 1) * SLOW.seconds(chunk)
    ring = 2 * (size - 1) * SLOW.seconds(chunk)
    try:
        took = expect_in_time(answer, right, recognise={"what a flat ring takes": ring})
    except CheckFailed as failed:
        failed.mistake += " The slow part is between the nodes: few bytes should be left by then."
        raise
    return f"{took} A flat ring takes {ring / right:.2f} times as long."


# ---- part 5


@check("pairwise-all-to-all", if_stuck=IN_PAIRS)
def pairwise_all_to_all_values(run: Runner) -> None:
    judge_all_to_all(run, in_order(4), 8)
    judge_all_to_all(run, [[3, 0, 4], [1, 2]], 7, torch.int64)


def judge_all_to_all(
    run: Runner, teams: list[list[int]], numel: int, dtype: torch.dtype = torch.float32, world: World | None = None
) -> Answer:
    of = team_of_each(teams)
    xs = run.draws.different_integers(len(of), numel, dtype)
    answer = (world or run)(len(of), xs, of)
    for rank, got in last_first(answer.results):
        team, place, size = of[rank], of[rank].index(rank), len(of[rank])
        cut = [xs[other].tensor_split(size) for other in team]  # cut[source][target]
        mistakes = {
            "your own tensor: nothing was exchanged": xs[rank],
            "in order of arrival: what came from place s belongs into position s": torch.cat(
                [cut[(place - step) % size][place] for step in range(size)]
            ),
            "the right numbers in the wrong order: what came from place s belongs into position s": same_numbers(
                got, torch.cat([chunks[place] for chunks in cut])
            ),
            "the chunks that the others keep: place s sends you its chunk `place`": torch.cat(
                [chunks[source] for source, chunks in enumerate(cut)]
            ),
        }
        expect(got, torch.cat([chunks[place] for chunks in cut]), who(rank, team), mistakes)
    expect_unchanged(answer, xs, of)
    expect_own_memory(answer)
    return answer


@check("pairwise-all-to-all", judges="traffic", if_stuck=IN_PAIRS)
def pairwise_all_to_all_traffic(run: Runner) -> str:
    return judge_pairs_traffic(run, [1, 0, 3, 2], 10)


def judge_pairs_traffic(run: Runner, team: list[int], numel: int) -> str:
    answer = judge_all_to_all(run, [team], numel)
    chunks = [chunk.numel() for chunk in torch.empty(numel).tensor_split(len(team))]
    sent = [(numel - chunks[team.index(rank)]) * BYTES for rank in range(len(team))]
    expect_sent(expect_each_sent, answer, len(team) - 1, sent)
    return f"each rank sent {len(team) - 1} messages, one to each of the others."


@check("pairwise-all-to-all", judges="time", if_stuck=IN_PAIRS)
def pairwise_all_to_all_time(run: Runner) -> str:
    return judge_pairs_time(run, 6)


def judge_pairs_time(run: Runner, size: int) -> str:
    answer = judge_all_to_all(run, in_order(size), size * 25, world=on_virtual(run, size))
    right = seconds_of(size - 1, (size - 1) * 25 * BYTES)
    mistakes = {"two turns in each step: send and receive at the same time": 2 * right}
    try:
        return f"{expect_in_time(answer, right, recognise=mistakes)} No message ever waits in a queue."
    except CheckFailed as failed:
        failed.mistake += " In each step every rank must receive exactly one message, so that none has to queue."
        raise


# ---- part 6


def rounds_of(algorithm: str, size: int) -> list[float]:
    """The share of all bytes in each message, for the messages that follow one another."""
    power = 1
    halves: list[float] = []
    while 2 * power <= size:
        power *= 2
        halves.append(1 / power)
    levels = len(halves) + (size > power)
    rounds: dict[str, list[float]] = {
        "naive": [1.0] * 2 * (size - 1),
        "tree": [1.0] * 2 * levels,
        "ring": [1 / size] * 2 * (size - 1),
        "halving-doubling": [1.0] * 2 * (size > power) + 2 * halves,
    }
    return rounds[algorithm]


def model_seconds(algorithm: str, size: int, nbytes: float, alpha: float, bandwidth: float) -> float:
    return sum(alpha + part * nbytes / bandwidth for part in rounds_of(algorithm, size))


def expect_number(
    got: Any, right: float, call: str, recognise: dict[str, float] | None = None, abs_tol: float = 1e-15
) -> None:
    """Raise CheckFailed unless `got` is the number `right`, up to rounding."""
    number = isinstance(got, int | float) and not isinstance(got, bool)
    if number and math.isclose(got, right, rel_tol=1e-9, abs_tol=abs_tol):
        return
    usual = (recognise or {}).items() if number else ()
    words = next((words for words, wrong in usual if math.isclose(got, wrong, rel_tol=1e-9)), "")
    seen = f"{got:.9g}" if number else repr(got)
    raise CheckFailed(f"{call} returned {seen}", f"{right:.9g}", words and f"That is {words}.")


NAMES = ("naive", "tree", "ring", "halving-doubling")


@check("all-reduce-seconds")
def all_reduce_seconds_values(run: Runner) -> None:
    judge_seconds(run, [(name, size, nbytes) for name in NAMES for size, nbytes in ((8, 8000), (6, 600), (1, 100))])


def judge_seconds(run: Runner, cases: list[tuple[Any, ...]], alpha: float = 1e-5, bandwidth: float = 1e9) -> None:
    """cases: (algorithm, ranks, bytes)."""
    columns = [list(column) for column in zip(*cases, strict=True)]
    answer = on_virtual(run, len(cases))(len(cases), *columns, [alpha] * len(cases), [bandwidth] * len(cases))
    for (name, size, nbytes), got in zip(cases, answer.results, strict=True):
        right, mistakes = model_seconds(name, size, nbytes, alpha, bandwidth), {}
        if size > 1:
            mistakes = seconds_mistakes(name, size, alpha, nbytes / bandwidth)
        expect_number(got, right, f"all_reduce_seconds({name!r}, size={size}, nbytes={nbytes}, ...)", mistakes)


def seconds_mistakes(name: str, size: int, alpha: float, flow: float) -> dict[str, Any]:
    """{a common mistake, in words: the wrong time that it leads to}; flow: the seconds that all bytes take."""
    rounds, whole, power = rounds_of(name, size), alpha + flow, 2 ** (size.bit_length() - 1)
    right, fold = len(rounds) * alpha + sum(rounds) * flow, 2 * whole if size > power else 0
    own = {
        "tree": {
            "the time with log2 P not rounded up: a tree has a whole number of rounds": 2 * math.log2(size) * whole,
            "the time with log2 P rounded down: the last ranks need a round too": 2 * math.log2(power) * whole,
            "the time with one round too many: 8 ranks need 3 rounds one way, 9 need 4": 2 * size.bit_length() * whole,
        },
        "ring": {"the time with whole tensors in each step: a ring sends n / P": len(rounds) * whole},
        "halving-doubling": {
            "the time without the fold: `fold` belongs to it": right - 2 * whole,
            "the time with whole tensors in each round: halves, quarters, ... are sent": fold
            + 2 * math.log2(power) * whole,
            "the time with the latencies of one way only: there are 2 log2 P' rounds": right - math.log2(power) * alpha,
            "the time of too many rounds: after the fold only P' ranks are left": right
            + 2 * (math.log2(size) - math.log2(power)) * alpha,
        },
    }
    return {
        "half of it: count the way up and the way down": right / 2,
        "the time without latency": right - len(rounds) * alpha,
        "the time with one latency in all: each round begins with one": right - (len(rounds) - 1) * alpha,
        **own.get(name, {}),
    }


@check("crossover")
def crossover_values(run: Runner) -> None:
    judge_crossover(run, [4, 8, 6, 2])


def judge_crossover(run: Runner, sizes: list[int], alpha: float = 1e-5, bandwidth: float = 1e9) -> None:
    answer = on_virtual(run, len(sizes))(len(sizes), sizes, [alpha] * len(sizes), [bandwidth] * len(sizes))
    for size, got in zip(sizes, answer.results, strict=True):
        right = crossing_of(size, alpha, bandwidth)
        mistakes = {
            "upside down: the more rounds the ring needs, the later it wins": right
            and (alpha * bandwidth) ** 2 / right,
            "the right ratio, but without alpha times bandwidth": right / (alpha * bandwidth),
            "half of it": right / 2,
            "twice as much": right * 2,
            "the right number, rounded": float(round(right)),
            "what log2 P gives if it is not rounded up: use `rounds`": crossing(
                size - 1 - math.log2(size), math.log2(size) - (size - 1) / size, alpha, bandwidth
            ),
            "the right number with the wrong sign: which one pays more latency?": -right,
        }
        call = f"crossover(size={size}, alpha={alpha}, bandwidth={bandwidth:.3g})"
        expect_number(got, right, call, mistakes, abs_tol=1e-6)


def crossing(rounds: float, parts: float, alpha: float, bandwidth: float) -> float:
    return rounds / parts * alpha * bandwidth


def crossing_of(size: int, alpha: float, bandwidth: float) -> float:
    """Where two straight lines meet, each known from its rounds."""
    tree, ring = rounds_of("tree", size), rounds_of("ring", size)
    return (len(ring) - len(tree)) * alpha / ((sum(tree) - sum(ring)) / bandwidth)


@check("choose-algorithm")
def choose_algorithm_values(run: Runner) -> None:
    both = ("tree", "ring")
    below, above = math.floor(crossing_of(8, 1e-6, 1e9)), math.ceil(crossing_of(8, 1e-6, 1e9))
    judge_choices(run, [(below, 8, both), (above, 8, both), (above, 8, NAMES), (10**6, 6, NAMES), (64, 1, both[::-1])])


def judge_choices(
    run: Runner,
    cases: list[tuple[Any, ...]],
    alpha: float = 1e-6,
    bandwidth: float = 1e9,
    seconds: Callable[..., float] = model_seconds,
) -> None:
    """cases: (bytes, ranks, candidates)."""
    columns = [list(column) for column in zip(*[(n, p, alpha, bandwidth, names) for n, p, names in cases], strict=True)]
    answer = on_virtual(run, len(cases))(len(cases), *columns, seconds=seconds)
    for (nbytes, size, names), got in zip(cases, answer.results, strict=True):
        times = {name: seconds(name, size, nbytes, alpha, bandwidth) for name in names}
        right = next(name for name in names if times[name] == min(times.values()))
        if got != right:
            took = ", ".join(f"{name} {time * 1e9:.1f} ns" for name, time in times.items())
            worst = "That is the slowest: the least time wins." if got == max(times, key=times.__getitem__) else ""
            if got not in names:
                worst = "That is not one of the candidates: return a name from `candidates`."
            ties = [name for name in names if times[name] == times[right]]
            equal = "That is as fast, but not the first of them." if got in ties else ""
            times_taken = "" if run.quiet else f"The times are {took}."  # a hidden test does not give them away
            raise CheckFailed(
                f"{nbytes:,} bytes, {plural(size, 'rank')}, candidates {', '.join(names)}: you chose {got!r}",
                repr(right),
                " ".join(words for words in (times_taken, equal or worst) if words),
            )


# Two algorithms that can be told apart by what they send, and a choice between them.
SWITCH = 64  # bytes


def by_size(nbytes: int, size: int, alpha: float, bandwidth: float) -> str:
    if (size, alpha, bandwidth) != (2, ALPHA, BANDWIDTH):
        called = f"choose was called for size {size}, alpha {alpha}, bandwidth {bandwidth:.3g}"
        raise ValueError(f"{called}: the team has 2 ranks, and alpha {ALPHA}, bandwidth {BANDWIDTH:.3g} were given")
    return "few" if nbytes < SWITCH else "many"


def for_few(x: torch.Tensor, team: list[int], rank: int) -> torch.Tensor:
    return both_ways(x, team, rank, pieces=1)


def for_many(x: torch.Tensor, team: list[int], rank: int) -> torch.Tensor:
    return both_ways(x, team, rank, pieces=2)


def both_ways(x: torch.Tensor, team: list[int], rank: int, pieces: int) -> torch.Tensor:
    """An all-reduce between two ranks: each sends the other its tensor, in this many pieces."""
    if x.dim() != 1 or not x.is_contiguous():
        raise ValueError(f"the algorithm got shape {tuple(x.shape)}, strides {x.stride()}: flatten x, without gaps")
    other, arrived = team[1 - team.index(rank)], torch.empty_like(x)
    for mine, theirs in zip(x.tensor_split(pieces), arrived.tensor_split(pieces), strict=True):
        with_all_others(team, rank, {other: mine}, {other: theirs})
    return x + arrived if rank == min(team) else arrived + x


CHOICE: dict[str, Any] = {
    "alpha": ALPHA,
    "bandwidth": BANDWIDTH,
    "choose": by_size,
    "algorithms": {"few": for_few, "many": for_many},
}


@check("all-reduce")
def all_reduce_values(run: Runner) -> None:
    judge_shapes(run, run.draws.different_integers(4, (2, 3)))
    judge_shapes(run, [x.T for x in run.draws.different_integers(4, (5, 7))])


def judge_shapes(run: Runner, xs: list[torch.Tensor]) -> Answer:
    """xs: one tensor for each of four ranks, in two teams."""
    of = team_of_each([[3, 0], [1, 2]])
    answer = run(4, xs, of, **CHOICE)
    for rank, got in enumerate(answer.results):
        total = sum_of(xs, of[rank])
        mistakes = {
            "the right numbers, flat: restore the shape": total.reshape(-1),
            "the right numbers in the order of memory: flatten by reshape(-1)": in_memory_order(total, xs[0]),
            "your own tensor: nothing was added to it": xs[rank],
            "the mean: all-reduce sums unless told otherwise": total / 2,
        }
        expect(got, total, rank, mistakes)
    expect_unchanged(answer, xs, of)
    expect_own_memory(answer)
    return answer


def in_memory_order(total: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
    """The numbers of `total` as they come out if strides are ignored; None if that makes no difference."""
    if total.dim() != 2:
        return None
    return total.T.reshape(total.shape) if not like.is_contiguous() else None


@check("all-reduce", judges="traffic")
def all_reduce_traffic(run: Runner) -> str:
    return judge_choice_by_bytes(run, torch.float32, (15, 16))


def judge_choice_by_bytes(run: Runner, dtype: torch.dtype, numels: tuple[int, ...], stride: int = 1) -> str:
    for numel in numels:
        answer = judge_shapes(run, [x[::stride] for x in run.draws.different_integers(4, stride * numel, dtype)])
        nbytes = numel * dtype.itemsize
        messages, sent = (1 if nbytes < SWITCH else 2), answer.run.traffic().sent(0)
        if sent[0] != messages:
            raise CheckFailed(
                f"{numel} elements of {dtype}: the algorithm {['few', 'many'][sent[0] - 1]!r} ran",
                f"{by_size(nbytes, 2, ALPHA, BANDWIDTH)!r}, which `choose` names for {nbytes} bytes",
                "Did you hand `choose` the number of elements? It wants bytes: x.element_size() for each element of x.",
            )
        expect_sent(expect_each_sent, answer, messages, nbytes)
    return f"the algorithm changes at {SWITCH} bytes, as `choose` says."
