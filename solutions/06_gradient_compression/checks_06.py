"""The checks of lesson 06. Each is quick: one to three runs of two to four ranks. Form: see registry.py.

Numbers are chosen such that they survive the compression exactly, wherever that can be: multiples of a scale, whole
numbers, halves and quarters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from utils.checks.answer import Answer, CheckFailed
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, oracle, side_by_side, vary
from utils.checks.runner import simulate
from utils.checks.scores import VIRTUAL_TIME
from utils.checks.show import show
from utils.checks.traffic import calls_of_ranks, expect_time
from utils.cluster.collective_costs import Layout, cost
from utils.cluster.hardware import Cluster, Gpu, Link
from utils.cluster.presets import find_cluster
from utils.kit.data_parallel import DataParallel, Hook
from utils.kit.mlp import MLP, loss_of, make_batch, make_weights, serial_gradients
from utils.kit.regression import imitation, make_lessons, make_student, train_student
from utils.text.units import plural, quantity

ROOM = Path(__file__).parent

SAME_CALLS = "every rank must make the same calls, in the same order, with tensors of the same shapes."

Payload = tuple[Tensor, ...]


# ---- what is handed in


def expect_handed_in(answer: Answer, op: str, nbytes: Sequence[int], advice: str) -> str:
    """Judge that every rank made calls of `op` alone, of so many bytes each, in any order. advice: if it was more."""
    for rank, calls in calls_of_ranks(answer, op):
        sent = sorted(call.bytes for call in calls)
        if sent != sorted(nbytes):
            raise CheckFailed(
                f"rank {rank} made {in_words(op, sent)}",
                in_words(op, sorted(nbytes)),
                advice if sum(sent) > sum(nbytes) else "",
            )
    return f"each rank handed in {sum(nbytes)} bytes, in {plural(len(nbytes), 'call')} of {op}."


def in_words(op: str, nbytes: Sequence[int]) -> str:
    if len(set(nbytes)) == 1:
        return f"{plural(len(nbytes), f'{op} call')} of {nbytes[0]} bytes" + " each" * (len(nbytes) > 1)
    return f"{plural(len(nbytes), f'{op} call')} of {', '.join(map(str, nbytes))} bytes"


def signed(draws: Draws, world_size: int, numel: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Whole numbers without zero, whose magnitudes all differ on a rank; other numbers and signs on each rank."""
    generator = draws.generator(17)

    def of_rank() -> Tensor:
        signs = 2 * torch.randint(0, 2, (numel,), generator=generator) - 1
        return (signs * (1 + torch.randperm(2 * numel, generator=generator)[:numel])).to(dtype)

    return [of_rank() for _ in range(world_size)]


# ---- part 1


@oracle(values=[(4, torch.float16), (2, torch.bfloat16)], traffic=[(2, torch.float16)], if_stuck=SAME_CALLS)
def mean_in_half(
    draws: Draws, world_size: int, half: torch.dtype, numel: int = 6, dtype: torch.dtype = torch.float32
) -> Case:
    """The first numbers are so large that their sum overflows in float16; every quotient and every sum is exact."""
    generator, in_float16 = draws.generator(), half is torch.float16
    scale = 2.0 ** math.ceil(math.log2(65536 / (4 * world_size**2))) if world_size > 1 else 1.0
    large = torch.randint(4, 8, (world_size, numel), generator=generator) * (scale if in_float16 else 2.0**20)
    # Odd numbers that bfloat16 has no room for, though float16 has, and for their sum.
    digits = 2 * torch.randint(128, 1024 // world_size, (world_size, numel), generator=generator) + 1
    small = (digits if in_float16 else torch.randint(1, 8, (world_size, numel), generator=generator)) / 1024
    xs = (torch.cat([large, small], 1) * world_size).to(dtype)
    exact = (xs.double().sum(0) / world_size).to(dtype)

    def infinite(got: Any) -> bool:
        return isinstance(got, Tensor) and bool(got.isinf().any())

    def in_bfloat16(got: Any) -> bool:
        if not isinstance(got, Tensor) or got.shape != exact.shape or got.dtype != exact.dtype:
            return False
        return torch.allclose(got, exact, rtol=0.02) and torch.equal(got, got.to(torch.bfloat16).to(dtype))

    return Case(
        [list(xs)],
        for_all={"dtype": half},
        right=exact,
        mistakes={
            "infinite: the sum doesn't fit into float16. Divide by world_size first, then sum": infinite,
            "what bfloat16 makes of it: use `dtype`, which is float16 here": in_bfloat16,
        }
        if in_float16
        else {"infinite: float16 has no such numbers. Use `dtype`, which is bfloat16 here": infinite},
        rtol=1e-7,
        traffic=lambda answer: expect_handed_in(
            answer, "all_reduce", [2 * xs.shape[1]], "Convert to the 16-bit dtype before the all-reduce."
        ),
    )


### BEGIN HIDDEN TESTS
hidden_mean_in_half = vary(
    mean_in_half,
    values=[(3, torch.float16, 4, torch.float64), (5, torch.bfloat16, 3), (1, torch.float16)],
    traffic=[(3, torch.bfloat16, 5)],
)
### END HIDDEN TESTS


# Each many times. With the last three, a sum of y and a number between 0 and 1 is rounded: in bfloat16, float32, both.
ROUNDED = (0.3, -0.3, 2.75, -2.75, 0.5, 3.0, -4.0, 0.0, 100.5, 300_001.0, -200_001.0)


@oracle(values=[(3,)])
def stochastic_round(draws: Draws, world_size: int, times: int = 4000, dtype: torch.dtype = torch.float32) -> Case:
    """The ranks round the same numbers; ranks 0 and 1 with the same seed, all others with seeds of their own."""
    ys = torch.tensor(ROUNDED, dtype=dtype).repeat(times)
    seeds = torch.randperm(10**6, generator=draws.generator())[:world_size].tolist()
    seeds[1:2] = seeds[:1]
    return Case(
        [[ys.clone() for _ in seeds], seeds],
        also=lambda answer: expect_unbiased(answer, ys, times, seeds),
    )


### BEGIN HIDDEN TESTS
hidden_stochastic_round = vary(
    stochastic_round, values=[(2, 9000, torch.float64), (5, 2000), (2, 3000, torch.bfloat16)]
)
### END HIDDEN TESTS


def expect_unbiased(answer: Answer, ys: Tensor, times: int, seeds: list[int]) -> str:
    """Judge each number's roundings: below it or above it, right on average, independent, and decided by the seed."""
    columns = ys.view(times, -1)
    for rank, got in enumerate(answer.results):
        if not isinstance(got, Tensor) or got.shape != ys.shape:
            raise CheckFailed(f"rank {rank} returned {type(got).__name__} {tuple(getattr(got, 'shape', ()))}", "as y")
        if got.dtype != ys.dtype:
            raise CheckFailed(f"rank {rank} returned {got.dtype}", f"{ys.dtype}, as y has")
        for y, rounded in zip(columns[0].tolist(), got.view(times, -1).T.double(), strict=True):
            expect_roundings(rank, y, rounded, times)
    first, *others = answer.results
    for rank, (seed, got) in enumerate(zip(seeds[1:], others, strict=True), 1):
        if torch.equal(first, got) != (seed == seeds[0]):
            raise CheckFailed(
                f"ranks 0 and {rank} rounded {'differently' if seed == seeds[0] else 'alike'}",
                f"{'alike: they have the same seed' if seed == seeds[0] else 'differently: they have different seeds'}",
                "Draw from `generator`, which has the seed: torch.rand(..., generator=generator).",
            )
    return f"{times} roundings of each number: their mean is within 6 standard deviations of it."


def expect_roundings(rank: int, y: float, rounded: Tensor, times: int) -> None:
    """`rounded`: so many roundings of y, float64."""
    below, part = math.floor(y), y - math.floor(y)
    if not part and (rounded != y).sum() < 2:
        return  # `u <= fraction` is as good as `<`, though torch.rand gives 0 once in 2**24 draws
    allowed = {float(below), float(below + 1)} if part else {y}
    seen = set(rounded.unique().tolist())
    if not seen <= allowed:
        stray = sorted(seen - allowed)[0]
        words = "Converting to an integer cuts towards zero."
        if not part:
            words = "What is whole must stay as it is."
            words += " y + u is rounded, so compare u with the fraction instead." * (abs(y) > 1000)
        if part and y >= 0:
            by_ceil = seen <= {below + 1.0, below + 2.0}
            words = (
                "ceil(y + u) is 1 too high: take the floor." if by_ceil else "Is u between 0 and 1, as torch.rand is?"
            )
        raise CheckFailed(
            f"rank {rank} rounded {y:g} to {stray:g}", " or ".join(f"{x:g}" for x in sorted(allowed)), words
        )
    mean, bound = rounded.mean().item(), 6 * math.sqrt(part * (1 - part) / times) + 1e-6
    if abs(mean - y) > bound:
        up = (mean - below) if part else 0.0
        words = (
            f"{up:.0%} were rounded up, and it should be about {part:.0%}. {why_so_many(up, part, bound, y)}".strip()
        )
        if len(seen) == 1:
            words = "All of them became the same: that is rounding to nearest, or one draw for all entries."
            if y < 0:
                words = "All were cut off towards zero, though positive numbers were not: take floor."
                words = (
                    words if up else "All were rounded down: is your chance the fraction y - floor(y), also below 0?"
                )
        raise CheckFailed(
            f"rank {rank}: {times} roundings of {y:g} have a mean of {mean:.4f}", f"{y:g}, to within {bound:.4f}", words
        )
    for apart in (1, times // 2):
        changes = (rounded[apart:] != rounded[:-apart]).double().mean().item()
        if part and changes < part * (1 - part):  # expected: twice that
            raise CheckFailed(
                f"rank {rank}: entries of {y:g} are mostly rounded like those {apart} behind them",
                "each entry drawn independently",
                "Draw as many numbers as there are entries.",
            )


def why_so_many(up: float, part: float, bound: float, y: float) -> str:
    """up: the share that was rounded up; part: what it should be."""
    upside_down = "That is the chance of rounding down: the larger the fraction, the more often it goes up."
    usual = {
        "round(y + u) rounds a second time, half too high: take the floor.": part + 0.5,
        "Every number goes up half of the time: its chance is its fraction.": 0.5,
        "That is the chance with torch.randn: draw numbers from 0 to 1.": 0.5 + math.erf(part / 2**0.5) / 2,
        upside_down if y > 0 else "That is the fraction of |y|: below 0 too, it is y - floor(y).": 1 - part,
    }
    near = [words for words, share in usual.items() if abs(up - share) < bound]
    return near[0] if len(near) == 1 else ""


Whole = Callable[[Tensor], Tensor]


def upwards(x: Tensor) -> Tensor:
    """A different way to make whole numbers, which shows whether an answer calls what it is given. 0 / 0 becomes 5."""
    return torch.ceil(x).nan_to_num(5)


def blocks_of(
    draws: Draws,
    numel: int,
    block: int,
    levels: int,
    to_whole: Whole,
    zeros: int = -1,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """One process quantises numbers that are quarters of their block's scale, a power of two. zeros: a block of 0."""
    generator, count = draws.generator(numel), -(-numel // block)
    scales = 2.0 ** torch.randint(-6, 7, (count,), generator=generator)
    quarters = torch.randint(-4 * (levels - 1), 4 * (levels - 1) + 1, (count, block), generator=generator)
    quarters += (quarters % 4 == 2).to(quarters.dtype)  # a half could be rounded either way
    signs = torch.tensor([-1, 1]).repeat(count)[:count]  # a maximum without magnitudes is wrong in the first block
    quarters[:, 0] = 4 * levels * signs  # the largest, so that the scale comes out exactly
    if zeros >= 0:
        quarters[zeros], scales[zeros] = 0, 0.0
    scaled, scales = (quarters / 4).to(dtype), scales.to(dtype)
    whole = scaled * scales[:, None]
    x = whole.flatten()[:numel]

    def divisors(got: Any) -> bool:
        return (
            isinstance(got, Tensor)
            and got.shape == scales.shape
            and torch.allclose(got[scales > 0], scales[scales > 0])
        )

    return Case(
        [[x]],
        for_all={"block": block, "levels": levels, "to_whole": to_whole},
        right={"codes": to_whole(scaled).flatten()[:numel].to(torch.int8), "scales": scales},
        mistakes={
            "codes": {
                "one row per block: flatten them": (
                    lambda got: isinstance(got, Tensor) and got.shape == (count, block)
                ),
                "with the codes of the padding: keep the first len(x)": (
                    lambda got: isinstance(got, Tensor) and got.numel() == count * block > numel
                ),
            },
            "scales": {"what you divide by: the scale of a block of zeros is 0": divisors},
        },
        in_order=True,
        seen=f"blocks of {block}, levels {levels}, {numel} numbers: {{part}} came out as",
    )


def inexact_blocks_of(
    draws: Draws, numel: int, block: int, dtype: torch.dtype, levels: int = 127, to_whole: Whole = torch.round
) -> Case:
    """Numbers whose scales are rounded. In bfloat16 the largest, divided by its scale, becomes levels + 1."""
    generator, count = draws.generator(numel), -(-numel // block)
    largest = torch.arange(128, 256, dtype=torch.float64).to(dtype) / 64
    largest = largest[to_whole(largest / (largest / levels)) > levels] if dtype == torch.bfloat16 else largest * 1.1
    tops = largest[torch.randint(len(largest), (count, 1), generator=generator)]
    signs = torch.randint(-1, 2, (count, block), generator=generator)
    signs[:, 0] = torch.tensor([-1, 1]).repeat(count)[:count]
    return Case(
        [[(signs * tops).flatten()[:numel]]],
        for_all={"block": block, "levels": levels, "to_whole": to_whole},
        right={"codes": (signs * levels).flatten()[:numel].to(torch.int8), "scales": tops.flatten() / levels},
        rtol=4e-3 if dtype == torch.bfloat16 else 1e-6,  # less than 1 / 127
        in_order=True,
        seen=f"{dtype}, blocks of {block}, levels {levels}, {numel} numbers: {{part}} came out as",
    )


BF16 = torch.bfloat16


@oracle(
    values=[
        *((8, 4, 127, torch.round), (10, 4, 7, torch.round, 1), (9, 3, 7, upwards, 2)),
        *((7, 4, BF16), (6, 3, BF16, 7, upwards)),
    ]
)
def quantise(draws: Draws, *how: Any) -> Case:
    return (blocks_of if isinstance(how[2], int) else inexact_blocks_of)(draws, *how)


### BEGIN HIDDEN TESTS
hidden_quantise = vary(
    quantise,
    values=[
        (1, 5, 127, torch.round),
        (13, 5, 7, torch.floor),
        (12, 12, 127, upwards),
        (9, 2, 7, torch.round, 0, torch.float64),
        (11, 3, BF16),
        (13, 6, torch.float32),
        (7, 2, BF16, 7, upwards),
    ],
)
### END HIDDEN TESTS


def decompress_scaled(payload: Payload, numel: int) -> Tensor:
    """Codes with one scale, as a compressor of the lesson would make them."""
    codes, scale = payload
    return codes[:numel].to(scale.dtype) * scale


def decompress_alone(payload: Payload, numel: int) -> Tensor:
    return 2 * payload[0][:numel].double()


@oracle(values=[(3, 5), (2, 4)], traffic=[(3, 6)], if_stuck=SAME_CALLS)
def mean_of_gathered(draws: Draws, world_size: int, numel: int, padding: int = 1, alone: bool = False) -> Case:
    """Codes in int8 with a scale, a different power of two on each rank; or codes alone. padding: codes too many."""
    generator = draws.generator()
    codes = torch.randint(-60, 61, (world_size, numel + padding), generator=generator).to(torch.int8) * 2
    scales = 2.0 ** torch.arange(world_size).view(-1, 1)
    payloads: list[Payload] = list(zip(codes, scales, strict=True)) if not alone else [(mine,) for mine in codes]
    decompress = decompress_alone if alone else decompress_scaled
    dense = torch.stack([decompress(payload, numel) for payload in payloads])
    return Case(
        [payloads],
        for_all={"numel": numel, "decompress": decompress},
        right=dense.sum(0) / world_size,
        rtol=1e-6,
        advice={
            "values to unpack": "A payload has a tensor of each kind, all of one rank: zip(*gathered).",
            "index out of range": "A payload has one tensor or several: go through all that there are.",
            "different dtypes": "Buffers need the shape and the dtype of what arrives: torch.empty_like(tensor).",
        },
        traffic=lambda answer: expect_handed_in(
            answer,
            "all_gather",
            [x.nbytes for x in payloads[0]],
            "Gather the payload as it is, and decompress after it.",
        ),
    )


### BEGIN HIDDEN TESTS
hidden_mean_of_gathered = vary(
    mean_of_gathered, values=[(5, 3, 0), (3, 4, 2, True), (1, 3)], traffic=[(2, 5, 3, True), (4, 3)]
)
### END HIDDEN TESTS


@oracle(values=[(4, 12), (3, 9)], traffic=[(2, 20)], if_stuck=SAME_CALLS)
def majority(draws: Draws, world_size: int, numel: int, dtype: torch.dtype = torch.float32) -> Case:
    xs = torch.stack(signed(draws, world_size, numel, dtype))
    votes, nbytes = xs.sign().sum(0), -(-numel // 8)
    return Case(
        [list(xs)],
        right=votes.sign(),
        traffic=lambda answer: expect_handed_in(
            answer, "all_gather", [nbytes], "One bit per number: gather what pack_bits returned."
        ),
    )


### BEGIN HIDDEN TESTS
hidden_majority = vary(majority, values=[(5, 17), (8, 8, torch.float64), (1, 3), (2, 9)], traffic=[(3, 33)])
### END HIDDEN TESTS


# ---- part 2


@oracle(values=[(3, 6, 2), (2, 5, 3)], traffic=[(3, 8, 2)], if_stuck=SAME_CALLS)
def top_k_mean(draws: Draws, world_size: int, numel: int, k: int) -> Case:
    xs = torch.stack(signed(draws, world_size, numel)) * world_size  # so that means are whole
    indices = xs.abs().topk(k).indices  # (P, k)
    sent = torch.zeros_like(xs).scatter(1, indices, xs.gather(1, indices))
    return Case(
        [list(xs)],
        for_all={"k": k},
        right={"mean": sent.sum(0) / world_size, "sent": list(sent)},
        rtol=1e-6,
        own_memory=True,
        traffic=lambda answer: expect_handed_in(
            answer, "all_gather", [4 * k, 4 * k], "Send the k values and their indices alone, indices as int32."
        ),
    )


### BEGIN HIDDEN TESTS
hidden_top_k_mean = vary(top_k_mean, values=[(5, 9, 4), (4, 4, 4), (1, 6, 2), (2, 12, 1)], traffic=[(5, 11, 3)])
### END HIDDEN TESTS


def with_seeds(function: Callable[..., Any], x: Tensor, k: int, seeds: list[int]) -> list[Any]:
    """What a rank runs: the student's function with one seed after another."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return [function(x, k=k, seed=seed, rank=rank, world_size=world_size) for seed in seeds]


@oracle(values=[(3, 8, 2)], traffic=[(2, 10, 4)], if_stuck=SAME_CALLS)
def random_k_mean(draws: Draws, world_size: int, numel: int, k: int, seeds: int = 40) -> Case:
    xs = torch.stack([x.abs() for x in signed(draws, world_size, numel)])  # positive: no sum is 0
    drawn = torch.randperm(10**6, generator=draws.generator(3))[:seeds].tolist()
    return Case(
        [list(xs)],
        for_all={"k": k, "seeds": [*drawn, drawn[0]]},
        driver=with_seeds,
        also=lambda answer: expect_random_k(answer, xs, k),
        traffic=lambda answer: expect_handed_in(
            answer,
            "all_reduce",
            [4 * k] * (seeds + 1),
            "Pick the k entries first; all ranks pick the same, so no index is sent.",
        ),
    )


### BEGIN HIDDEN TESTS
hidden_random_k_mean = vary(random_k_mean, values=[(4, 9, 4), (5, 6, 3), (1, 5, 2)], traffic=[(3, 7, 2)])
### END HIDDEN TESTS


def expect_random_k(answer: Answer, xs: Tensor, k: int) -> str:
    """xs: (P, n), all positive."""
    numel = xs.shape[1]
    places = [[entries_of(rank, mean, xs) for mean in means] for rank, means in enumerate(answer.results)]
    first = places[0]
    for rank, mine in enumerate(places):
        expect_k(rank, sorted(map(len, mine)), k)
        step = next((step for step, (a, b) in enumerate(zip(first, mine, strict=True)) if a != b), None)
        if step is not None:
            raise CheckFailed(
                f"with the same seed, rank 0 chose the entries {first[step]} and rank {rank} {mine[step]}",
                "the same entries on all ranks",
                "An all-reduce adds by position: the seed alone, not the rank or its numbers, must choose the entries.",
            )
    for rank, means in enumerate(answer.results):
        for mean, chosen in zip(means, first, strict=True):
            expect_scaled(rank, mean[chosen], xs[:, chosen], numel / k)
    if first[0] != first[-1]:
        raise CheckFailed(
            f"the same seed chose the entries {first[0]} and then {first[-1]}",
            "the same entries",
            "Draw from `generator`, which has the seed.",
        )
    seen = sorted({place for chosen in first for place in chosen})
    if len(seen) < numel:
        raise CheckFailed(
            f"in {len(first) - 1} steps with different seeds only the entries {seen} were sent",
            f"all {numel} once in a while",
            "Draw the indices anew for each seed: torch.randperm(len(x), generator=generator).",
        )
    if len(sets := set(map(tuple, first))) <= numel:  # drawn ones are more, or chance is one in a billion
        raise CheckFailed(
            f"in {len(first) - 1} steps with different seeds only {len(sets)} sets of entries were sent",
            f"any {k} of {numel}",
            "One drawn number seems to decide about all of them: draw every entry by itself.",
        )
    return f"{k} of {numel} entries, the same on all ranks, and different ones with a different seed; unbiased."


def entries_of(rank: int, mean: Any, xs: Tensor) -> list[int]:
    """The places where it is not 0."""
    numel = xs.shape[1]
    if not isinstance(mean, Tensor) or mean.shape != (numel,) or mean.dtype != xs.dtype:
        raise CheckFailed(f"rank {rank} returned {show(mean)}", f"{numel} numbers, {xs.dtype}")
    places: list[int] = mean.nonzero().flatten().tolist()
    return places


def expect_k(rank: int, counts: list[int], k: int) -> None:
    """counts: of entries that aren't 0, for each seed; rising."""
    least, most = counts[0], counts[-1]
    if least == most == k:
        return
    words = "Draw without repetition, as torch.randperm does." if most <= k else "All other entries are 0."
    if least < k < most:
        words = "That is what you get if each entry is drawn with a chance of k / n: draw k of them."
    many = f"{least}" if least == most else f"{least} to {most}"
    raise CheckFailed(f"rank {rank} returned {many} numbers other than 0", f"always {k}", words)


def expect_scaled(rank: int, got: Tensor, those: Tensor, factor: float) -> None:
    """got: (k,), what was returned where it isn't 0; those: (P, k), what the ranks have there."""
    mean, world_size, k = those.mean(0), len(those), len(got)
    if torch.allclose(got, mean * factor, rtol=1e-5):
        return
    usual = {
        "That is the mean of these entries, without the factor n / k that makes it unbiased.": mean,
        "That is the sum over the ranks times n / k: divide by world_size.": those.sum(0) * factor,
        "That is divided by world_size twice.": mean * factor / world_size,
        "That is the sum over the ranks: divide by world_size, and multiply by n / k.": those.sum(0),
        "That is k / n times the mean: multiply by n / k.": mean / factor,
        "That is k n times the mean: the factor is n / k.": mean * factor * k**2,
        "That is the mean times n // k, which is rounded down: the factor is n / k.": mean * int(factor),
        "That is your own times n / k: nothing was summed.": those[rank] * factor,
        "That is your own: nothing was summed.": those[rank],
        "That is your own times n / k, divided by world_size: nothing was summed.": those[rank] * factor / world_size,
    }
    words = next((words for words, wrong in usual.items() if torch.allclose(got, wrong, rtol=1e-5)), "")
    raise CheckFailed(
        f"rank {rank} returned {show(got)} where the ranks have the mean {show(mean)}",
        show(mean * factor),
        words,
    )


# ---- part 3


def coarse_mean(x: Tensor, *, rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """A compressed mean that sends multiples of 8."""
    sent = torch.floor(x / 8) * 8
    mean = sent.clone()
    torch.distributed.all_reduce(mean)
    return mean / world_size, sent


def halved_mean(x: Tensor, *, rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """Another one, which sends the half of everything."""
    mean = x / 2
    torch.distributed.all_reduce(mean)
    return mean / world_size, x / 2


@oracle(
    values=[(2, 4), (4, 3)],
    if_stuck="compressed_mean is a collective: every rank must call it once.",
)
def feedback_step(draws: Draws, world_size: int, numel: int, method: Callable[..., Any] = coarse_mean) -> Case:
    gradients = torch.stack([draws.integers(numel, seed=10 + rank) * 8 + 40 * rank + 3 for rank in range(world_size)])
    owed = torch.stack([draws.integers(numel, seed=30 + rank) - 2 * rank + 9 for rank in range(world_size)])
    corrected = gradients + owed
    sent = torch.floor(corrected / 8) * 8 if method is coarse_mean else corrected / 2
    return Case(
        [list(gradients), list(owed)],
        for_all={"compressed_mean": method},
        right={"mean": sent.sum(0) / world_size, "residual": list(corrected - sent)},
        rtol=1e-6,
        in_order=True,
        also=expect_one_mean,
        advice={
            "positional argument": "Pass the others by name: compressed_mean(x, rank=rank, world_size=world_size)."
        },
    )


### BEGIN HIDDEN TESTS
hidden_feedback_step = vary(feedback_step, values=[(3, 5, halved_mean), (5, 2), (1, 4, halved_mean)])
### END HIDDEN TESTS


def expect_one_mean(answer: Answer) -> None:
    """Judge that compressed_mean, which all-reduces once, was all that communicated."""
    for rank, calls in calls_of_ranks(answer, "all_reduce"):
        if len(calls) != 1:
            raise CheckFailed(
                f"rank {rank} made {plural(len(calls), 'all_reduce call')}",
                "1, that of compressed_mean",
                "Call it once. Its mean is that of all ranks already, and the residual is this rank's alone.",
            )


# ---- part 4


@oracle(values=[(3, 5, 4, 2)], traffic=[(2, 6, 4, 2)], if_stuck=SAME_CALLS)
def power_sgd(
    draws: Draws, world_size: int, rows: int, columns: int, r: int, dtype: torch.dtype = torch.float64
) -> Case:
    """The signs and the order of orthonormal columns are free, so q is judged by q @ q.T."""
    generator = draws.generator()

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    gradients, owed, q = normal(world_size, rows, columns), normal(world_size, rows, columns), normal(columns, r)
    corrected = gradients + owed
    mean, p = corrected.mean(0), torch.linalg.qr(corrected.sum(0) @ q)[0]
    space, new_q = p @ p.T, mean.T @ p
    right = space @ mean

    def in_the_right_space(got: Any) -> bool:
        fits = isinstance(got, Tensor) and got.shape == right.shape and got.dtype == right.dtype
        return fits and torch.allclose(space @ got, got, rtol=1e-3, atol=1e-4)

    return Case(
        [list(gradients), [q.clone() for _ in gradients], list(owed)],
        unpack=lambda got, rank: as_projectors(got),
        right={"the approximation": right, "q @ q.T": new_q @ new_q.T, "residual": list(corrected - right)},
        mistakes={
            "the approximation": {
                "in the space of the right P, but not right: is P orthonormal, and q the ranks' mean of M.T @ P?": (
                    in_the_right_space
                ),
            },
        },
        rtol=1e-4 if dtype == torch.float32 else 1e-8,
        advice={rf"and {r}x{r}\)": "torch.linalg.qr returns (Q, R), and P becomes the first: it has m rows."},
        in_order=True,
        traffic=lambda answer: expect_handed_in(
            answer,
            "all_reduce",
            [rows * r * gradients.element_size(), columns * r * gradients.element_size()],
            "Only the thin matrices P and Q travel, each once.",
        ),
    )


### BEGIN HIDDEN TESTS
hidden_power_sgd = vary(
    power_sgd,
    values=[(5, 3, 6, 1), (2, 4, 4, 4), (1, 7, 5, 3), (3, 8, 3, 2, torch.float32)],
    traffic=[(3, 3, 9, 1, torch.float32)],
)
### END HIDDEN TESTS


def as_projectors(got: Any) -> dict[str, Any]:
    if not isinstance(got, tuple | list) or len(got) != 3:
        raise CheckFailed("The function didn't return three values", "(approximation, q, residual)")
    approximation, q, residual = got
    square = q @ q.T if isinstance(q, Tensor) and q.ndim == 2 else q
    return {"the approximation": approximation, "q @ q.T": square, "residual": residual}


# ---- part 5


def compress_coarsely(x: Tensor) -> Payload:
    """Multiples of 1/4, in int32, together with the scale."""
    return torch.round(4 * x).to(torch.int32), torch.full((1,), 0.25, dtype=x.dtype)


def decompress_coarsely(payload: Payload, numel: int) -> Tensor:
    codes, scale = payload
    return codes[:numel].to(scale.dtype) * scale


def compress_half(x: Tensor) -> Payload:
    return (x / 2,)


def decompress_half(payload: Payload, numel: int) -> Tensor:
    return payload[0][:numel]


COARSE, HALF = (compress_coarsely, decompress_coarsely), (compress_half, decompress_half)
Codec = tuple[Callable[[Tensor], Payload], Callable[[Payload, int], Tensor]]


def steps_with_hook(
    function: Callable[..., Any], batches: list[Tensor], weights: list[Tensor], cap: int, codec: Codec
) -> list[Any]:
    """What a rank runs: backward passes with the student's hook, one per batch, with the same weights. Returns the
    gradients of each, and at the end the residuals.
    """
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    residuals: dict[int, Tensor] = {}

    def hook(bucket: Any) -> Any:
        return function(bucket, *codec, residuals=residuals, rank=rank, world_size=world_size)

    replica, found = DataParallel(MLP(weights), hook, cap), list[Any]()
    for batch in batches:
        replica.zero_grad()
        replica.backward(loss_of(replica(batch)))
        found.append(torch.cat([flat_or_nothing(weight.grad) for weight in replica.module.parameters()]))
    return [*found, residuals]


def flat_or_nothing(gradient: Tensor | None) -> Tensor:
    return torch.zeros(0) if gradient is None else gradient.flatten()


NBYTES = 2 * 2 * 8  # one weight of the models below
ADVICE = {
    "'NoneType' object is not callable": "The hook must return the function finish, without calling it.",
    "KeyError": "In the first step nothing is owed yet: residuals.get(bucket.index, 0).",
}


@oracle(
    values=[(2, 2, 1, COARSE)],
    traffic=[(2, 4, 2, COARSE, (0.1, 1.3))],
    time=[(2, 4, 1, COARSE, (0.1, 0.35))],
    if_stuck="every rank must start the same all_gathers, in the same order: one for each tensor of the payload.",
)
def compressed_hook(
    draws: Draws,
    world_size: int,
    layers: int,
    together: int,
    codec: Codec,
    network: Sequence[float] = (),
    steps: int = 2,
) -> Case:
    """An MLP of 2 x 2 weights; `together` of them in each bucket.

    network: latency and transfer, as for cluster_of_units; by default real ranks
    """
    compress, decompress = codec
    weights = [8 * weight for weight in make_weights(layers, 2, draws.salted(), torch.float64)]  # large gradients
    batches = [
        [make_batch(2, 2, draws.salted(100 * rank + step), torch.float64) for step in range(steps)]
        for rank in range(world_size)
    ]
    local = torch.stack([torch.stack([flat_gradient(weights, batch) for batch in mine]) for mine in batches])
    members = [list(range(layers))[::-1][start : start + together] for start in range(0, layers, together)]

    def sent_of(corrected: Tensor) -> Tensor:
        return torch.stack([decompress(compress(mine), len(mine)) for mine in corrected])

    owed, means = torch.zeros_like(local[:, 0]), {}
    for step in range(steps):
        before, corrected = owed, local[:, step] + owed
        sent = sent_of(corrected)
        owed, means[f"step {step}, the gradients"] = corrected - sent, sent.mean(0)
    without, anothers = (sent_of(local[:, -1] + residual).mean(0) for residual in (0 * before, before.roll(4, 1)))
    cluster = cluster_of_units(world_size, *network) if network else None
    nbytes = [[x.nbytes for x in compress(torch.zeros(4 * len(bucket), dtype=torch.float64))] for bucket in members]
    case = Case(
        [batches, [weights] * world_size],
        for_all={"cap": together * NBYTES, "codec": codec},
        driver=steps_with_hook,
        right={**means, "the residuals": [residuals_of(mine, members) for mine in owed]},
        rtol=1e-9,
        in_order=True,
        looks_right=torch.equal(without, sent.mean(0)) or torch.equal(anothers, sent.mean(0)),
        cluster=cluster,
        clock=cluster,
        advice=ADVICE,
        traffic=lambda answer: expect_starts(answer, [size for sizes in nbytes for size in sizes] * steps),
    )
    case.time = lambda answer: expect_overlap(answer, case, members, nbytes, steps)
    return case


### BEGIN HIDDEN TESTS
hidden_compressed_hook = vary(
    compressed_hook,
    values=[(3, 3, 2, HALF, (), 3), (1, 2, 1, COARSE), (2, 4, 4, COARSE, (), 3)],
    traffic=[(3, 3, 1, HALF, (0.1, 1.3))],
    time=[(2, 5, 1, COARSE, (0.05, 2.5)), (4, 4, 2, HALF, (0.05, 0.2))],
)
### END HIDDEN TESTS


def flat_gradient(weights: list[Tensor], batch: Tensor) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in serial_gradients(weights, batch)[1]])


def residuals_of(flat: Tensor, members: list[list[int]]) -> dict[int, Tensor]:
    pieces = flat.view(-1, 4)
    return {number: torch.cat([pieces[layer] for layer in bucket]) for number, bucket in enumerate(members)}


def expect_starts(answer: Answer, nbytes: list[int]) -> str:
    """Judge that each rank started all-gathers of so many bytes, all but those of the last bucket in backward."""
    for rank, calls in calls_of_ranks(answer, "all_gather"):
        sent = [call.bytes for call in calls]
        if sorted(sent) != sorted(nbytes):
            raise CheckFailed(
                f"rank {rank} gathered {plural(len(sent), 'tensor')} of {', '.join(map(str, sent))} bytes",
                f"{plural(len(nbytes), 'tensor')} of {', '.join(map(str, nbytes))} bytes",
                "Each tensor of the payload is gathered once, as it is.",
            )
        ends = [each.end for each in answer.run.regions if each.rank == rank and each.name == "backward"]
        waits = [call.waited for call in calls if call.waited is not None and call.waited < ends[0] * (1 - 1e-9)]
        late = [call for call in calls if ends[0] * (1 + 1e-9) < call.start < (ends[1:] or [math.inf])[0] - ends[0]]
        if late:
            raise CheckFailed(
                f"rank {rank} started {plural(len(late), 'all-gather')} after the backward pass",
                "all of them to start before the hook returns",
                "Start them in the hook itself with async_op=True, not in finish().",
            )
        blocking = sum(not call.is_async for call in calls)
        if blocking:
            raise CheckFailed(
                f"rank {rank}: {blocking} of {plural(len(calls), 'all-gather')} blocked",
                "none",
                "Pass async_op=True, keep the handle, and wait in finish().",
            )
        if waits:
            raise CheckFailed(
                f"rank {rank} waited for {plural(len(waits), 'all-gather')} during the backward pass",
                "no wait before finish()",
                "The hook only starts them. Wait in finish().",
            )
    return f"each rank started {plural(len(nbytes), 'all-gather')}, {sum(nbytes)} bytes in all, during backward."


UNIT = 1e-6  # seconds per matrix product on the cluster below


def cluster_of_units(world_size: int, latency: float, transfer: float) -> Cluster:
    """On this cluster a matrix product of one layer takes one unit, for 2 rows, and all other computing takes none.

    latency, transfer: of a message, and of one weight's payload between two ranks, in units.
    """
    gpu = Gpu({"fp64": 2 * 2**3 / UNIT}, memory=math.inf, bandwidth=math.inf, launch=0)
    link = Link(latency * UNIT, NBYTES / 4 / (transfer * UNIT))
    return Cluster("a product takes a unit", 1, world_size, gpu=gpu, intra=link, inter=link)


def expect_overlap(answer: Answer, case: Case, members: list[list[int]], nbytes: list[list[int]], steps: int) -> str:
    """Judge the values, and that only the communication that can't be hidden is exposed."""
    case.judge_values(answer)
    assert case.clock
    layers, layout = sum(map(len, members)), Layout.of(case.clock, range(case.world_size))
    end, serially = 0.0, 0.0
    for bucket, sizes in zip(members, nbytes, strict=True):
        ready = min(2 * (layers - min(bucket)), 2 * layers - 1) * UNIT
        took = sum(cost("all_gather", size * case.world_size, case.clock, layout).seconds for size in sizes)
        end, serially = max(end, ready) + took, serially + took
    computing = (3 * layers - 1) * UNIT
    said = expect_time(
        answer,
        steps * (layers * UNIT + end),
        recognise={
            "the time of a network that is idle until backward is over, or of a backward that waits for the network: "
            "start the gathers in the hook, and wait for them in finish()": steps * (computing + serially)
        },
        least=steps * computing,
    )
    exposed = answer.run.elapsed / steps - computing
    return f"{said} {quantity(exposed, 's')} of each step are exposed."


# ---- part 6

break_even = frozen_cases(ROOM, "break-even")


### BEGIN HIDDEN TESTS
Numbers = tuple[float, float, float, int]  # bytes dense, bytes of a payload, seconds, ranks


@oracle(values=[((3e9, 1e7, 2e-3, 16), (4e6, 4e6, 1e-3, 2), (1e6, 2e5, 5e-4, 9), (1e6, 2e5, 5e-4, 12))])
def hidden_break_even(_: Draws, *numbers: Numbers) -> Case:
    return side_by_side([break_even_of(*each) for each in numbers])


def break_even_of(dense: float, payload: float, codec: float, ranks: int) -> Case:
    all_reduce, all_gather = 2 * (ranks - 1) / ranks * dense, (ranks - 1) * payload  # bytes that each rank sends
    return Case(
        [[dense], [payload], [codec], [ranks]],
        right=max(0.0, (all_reduce - all_gather) / codec),
        rtol=1e-9,
        seen=f"{dense:g} bytes, payload {payload:g} bytes, codec {codec:g} s, {ranks} ranks: you returned",
    )


### END HIDDEN TESTS


# ---- the challenge

TARGET, STEPS = 0.25, 60
GPU = find_cluster("dgx-h100", 1).gpu
SLOW = Cluster("two GPUs, 1 MB/s", 2, 1, GPU, intra=Link(0, 1e6), inter=Link(50e-6, 1e6))
FREE = Cluster("two GPUs, a network that costs nothing", 2, 1, GPU, intra=Link(0, math.inf), inter=Link(0, math.inf))


Rows = tuple[Tensor, Tensor]


def train_with_hook(function: Callable[..., Any], rows: Rows, steps: int, seed: int) -> Tensor:
    """What a rank runs, on its own rows: the weights at the end."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return train_student(rank, world_size, function, steps, seed, rows)[1]


def keep_all(rank: int, world_size: int) -> Hook:
    """A hook that sends nothing."""
    return lambda bucket: lambda: None


def seconds_of_training(make_hook: Callable[..., Hook], cluster: Cluster, steps: int, seed: int = 0) -> float:
    return simulate(train_student, 2, make_hook, steps, seed, cluster=cluster, device="cpu").elapsed


@oracle(
    score=[(STEPS, 0)],
    par=frozen_par(ROOM, "slow-network-hook"),
    if_stuck="both ranks must make the same calls in each step, with tensors of the same sizes.",
)
def slow_network_hook(draws: Draws, steps: int, seed: int) -> Case:
    one, two = (seconds_of_training(keep_all, FREE, count) for count in (1, 2))
    rows = [make_lessons(rank, seed=draws.salted(seed)) for rank in range(2)]
    return Case(
        [rows],
        for_all={"steps": steps, "seed": seed},
        driver=train_with_hook,
        also=partial(expect_trained, rows=rows, seed=seed),
        clock=SLOW,
        advice=ADVICE,
        score=VIRTUAL_TIME,
        limit=steps * (two - one),
    )


### BEGIN HIDDEN TESTS


def two_percent(rank: int, world_size: int) -> Any:
    """Par: top 2 % with error feedback."""
    residual = torch.zeros(1)

    def hook(bucket: Any) -> Any:
        nonlocal residual
        flat = bucket.flat + residual
        where = flat.abs().topk(len(flat) // 50).indices
        residual = flat.index_fill(0, where, 0)
        mine = [flat[where], where.int()]
        everybodys = [[x.clone() for _ in range(world_size)] for x in mine]
        for parts, x in zip(everybodys, mine, strict=True):
            dist.all_gather(parts, x)
        values, places = (torch.cat(parts) for parts in everybodys)
        bucket.flat.zero_().index_add_(0, places, values / world_size)
        return lambda: None

    return hook


def seconds_of_two_percent(steps: int, seed: int) -> float:
    seconds: float = seconds_of_training(two_percent, SLOW, steps, seed)
    return seconds


hidden_slow_network_hook = vary(slow_network_hook, par=seconds_of_two_percent, score=[(STEPS, 1)])
### END HIDDEN TESTS


def loss_at(weights: Tensor, rows: Rows, seed: int) -> float:
    """The loss over some rows of a student with these weights."""
    student, (inputs, targets) = make_student(seed), rows
    nn.utils.vector_to_parameters(weights, student.parameters())
    with torch.no_grad():
        return imitation(student(inputs), targets).item()


def expect_trained(answer: Answer, rows: Sequence[Rows], seed: int) -> None:
    weights = answer.results
    apart = (weights[0] - weights[1]).abs().max().item()
    if not apart < 1e-5:
        raise CheckFailed(
            f"at the end the two replicas' weights differ by up to {apart:.2g}",
            "the same weights on both ranks",
            "finish() must leave the same numbers in bucket.flat on every rank.",
        )
    loss = sum(map(partial(loss_at, seed=seed), weights, rows)) / len(rows)
    if not loss <= TARGET:
        raise CheckFailed(f"at the end the loss over the rows of both ranks is {loss:.3f}", f"{TARGET} at most")


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(hidden_break_even, values=[((64e6, 1e6, 1e-3, 8), (100e6, 10e6, 2e-3, 4), (8e6, 5e6, 1e-3, 8))]),
    vary(slow_network_hook, par=seconds_of_two_percent),
)
### END HIDDEN TESTS
