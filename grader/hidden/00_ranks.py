"""The hidden tests of lesson 00, and the oracles of the exercises whose answer is a formula."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from utils.checks.inputs import Draws
from utils.checks.oracles import Case, oracle, vary

visible: Any = import_module("utils.checks.00_ranks")


# ---- parts 1 and 2

hello_ranks = vary(visible.hello_ranks, values=[(3,), (5,), (1,)])
replicas_in_step = vary(visible.replicas_in_step, values=[(3, 2, 4), (2, 1, 2, 0.5), (1, 2, 3)])
rendezvous_by_hand = vary(
    visible.rendezvous_by_hand,
    values=[
        (3, ((0, 1, 2),)),
        (5, ((0, 1, 2, 3, 4),), ((4, 0, 2), (3, 1)), ((2,), (1, 0, 3, 4))),
        (1, ((0,),), ((0,),)),
    ],
)
take_turns = vary(
    visible.take_turns,
    values=[([2, 1, 0],), ([4, 0, 2, 1, 3],), ([0],)],
    traffic=[([2, 1, 0],), ([0, 1, 2, 3, 4],), ([1, 0],), ([0],)],
)
one_failing_rank = vary(
    visible.one_failing_rank, values=[((0, 0, 3),), ((3, 0, 1, 2, 4), -30), ((2,), 0.75), ((1, 1), -0.5)]
)
one_deadlock = vary(
    visible.one_deadlock,
    values=[
        ([2.0, 3.0],),
        ([9.0, 0.5, 7.0, 0.1], [0.0, 9.0, 0.2, 0.1], [0.0, 2.5, 0.3, 8.8], [3.0] * 4, [3.0] * 4),
        ([0.5, 4.0], [0.5, 4.0], [1.0, 4.0]),
    ],
)


# ---- part 3

A100, SMALL = (80e9, 125e12), (24e9, 60e12)  # bytes, FLOP per second


@oracle(
    values=[(1e9, 20e9, 7.0, *SMALL), (3e9, 60e9, 30.0, *SMALL), (175e9, 300e9, 50.0, *A100), (1e6, 1e6, 1.0, *A100)]
)
def smallest_cluster(_: Draws, parameters: float, tokens: float, days: float, memory: float, flops: float) -> Case:
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


# ---- the challenge


def seconds_by_way_of_rank_0(world_size: int) -> float:
    """Rank 0 takes the messages of all others one after another, and then answers one after another."""
    return float(visible.MESSAGE * 2 * (world_size - 1))


barrier_by_hand = vary(visible.barrier_by_hand, par=seconds_by_way_of_rank_0, score=[(8,), (5,), (16,), (2,)])

RECORDED = (
    vary(visible.barrier_by_hand, par=seconds_by_way_of_rank_0),
    vary(smallest_cluster, values=[(103e9, 126e9, 50.0, *A100), (100e9, 1e9, 90.0, *A100)]),  # then 20 GPUs exactly
)
