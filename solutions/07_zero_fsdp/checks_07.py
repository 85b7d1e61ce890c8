"""The checks of lesson 07. Form: see oracles.py; what a rank runs: kit/drivers/sharded.py.

What is right comes from AdamW in one process on all rows. Its eps is large here, so that a gradient of the wrong size
shows. Memory is judged by live bytes: an answer that keeps whole tensors on every rank has the right values, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from utils import RankFailed
from utils.checks.answer import Answer, CheckFailed
from utils.checks.compare import expect_possible
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, every, oracle, vary
from utils.checks.runner import simulate
from utils.checks.scores import Measure
from utils.checks.traffic import expect_all_waited, expect_time
from utils.cluster.hardware import Cluster, Gpu, Link, links
from utils.cluster.presets import find_cluster
from utils.kit.drivers.sharded import gather_and_go_back, in_groups, in_groups_alone, measure, through_backward, train
from utils.kit.mlp import MLP, forward, layer, loss_of, make_batch, make_weights
from utils.kit.overlapped_fsdp import overlapped_step
from utils.kit.tied_mlp import AwkwardMLP
from utils.text.units import plural

### BEGIN HIDDEN TESTS


def end_of(layers: list[tuple[float, ...]]) -> float:
    """When the last layer has left the last station."""
    free = [0.0] * 3
    for at, *times in layers:
        for station, takes in enumerate(times):
            free[station] = at = max(at, free[station]) + takes
    return free[2]


### END HIDDEN TESTS

ROOM = Path(__file__).parent
DOUBLE, SINGLE, HALF = torch.float64, torch.float32, torch.bfloat16
RTOL = {DOUBLE: 1e-9, SINGLE: 1e-5, HALF: 1e-5}  # where a model is in bfloat16, what is judged are float32 shards
SLACK = 512  # bytes: counters of steps, losses
ADAMW = {"lr": 0.05, "eps": 0.1, "weight_decay": 0.1}
STUCK = "every rank must make the same calls, on tensors of the same size, in the same order."
# What to do about the errors that are raised, by Gloo or in its place, where padding or a cast is missing.
SIZES_DIFFER = "Check failed: outputShape|times as many elements"
PADDING = {
    SIZES_DIFFER: "Each rank's piece has the same length: pad the flat gradient with zeros, up to "
    "world_size times that.",
    "is invalid for input of size": "Take as many numbers of the flat tensor as the shape has: what comes after is "
    "padding.",
}
CASTS = PADDING | {
    "grad_dtype": "The shard may be in a wider dtype than the model: cast the reduced gradient to it.",
    "invalid tensor type": "A collective's two tensors have one dtype: cast before you call it.",
    "'NoneType' object has no attribute 'flatten'": "A gradient is None: is its parameter frozen, or was it cleared "
    "too early?",
}

Make = Callable[[Draws], nn.Module]
Several = Sequence[Tensor]

state_bytes = frozen_cases(ROOM, "state-bytes")


### BEGIN HIDDEN TESTS


@oracle(values=[(0, 999, 7), (1, 1001, 10), (2, 13, 5), (3, 7, 64), (3, 4096, 1)])
def hidden_state_bytes(_: Draws, stage: int, numbers: int, ranks: int) -> Case:
    piece = -(-numbers // ranks)
    return Case(
        [[stage], [numbers], [ranks]],
        right=sum(nbytes * (piece if place < stage else numbers) for place, nbytes in enumerate((12, 2, 2))),
        seen=f"for stage {stage}, {numbers} numbers and {ranks} ranks it returned",
    )


### END HIDDEN TESTS
offload_end = frozen_cases(ROOM, "offload-end")


### BEGIN HIDDEN TESTS


@oracle(
    values=[
        ([1.0], [2.0], [3.0], [4.0]),
        ([0.0, 0.5, 4.0], [1.0, 3.0, 1.0], [2.0, 0.5, 4.0], [0.25, 2.0, 1.0]),
        ([2.0, 3.0, 4.0], [0.5, 0.5, 0.5], [2.5, 2.5, 2.5], [0.5, 0.5, 0.5]),
        ([4.0, 1.0, 2.0], [1.0, 2.0, 0.5], [0.5, 3.0, 1.0], [2.0, 1.0, 0.25]),
        ([], [], [], []),
        ([], [], [], [], 6),
    ]
)
def hidden_offload_end(
    draws: Draws, ready: list[float], down: list[float], update: list[float], up: list[float], count: int = 0
) -> Case:
    """count: of layers to draw, behind the others."""
    drawn = torch.randint(1, 9, (4, count), generator=draws.generator()) / 4  # sums of these are exact
    ready = ready + drawn[0].cumsum(0).tolist()
    stations = [each + more.tolist() for each, more in zip((down, update, up), drawn[1:], strict=True)]
    return Case(
        [[ready], *[[each] for each in stations]],
        right=end_of(list(zip(ready, *stations, strict=True))),
        seen=f"ready {ready}, down {stations[0]}, update {stations[1]}, up {stations[2]}: you returned",
    )


### END HIDDEN TESTS
slices_to_read = frozen_cases(ROOM, "slices-to-read")


### BEGIN HIDDEN TESTS


@oracle(
    values=[(10, 4, 3), (100, 7, 5), (5, 2, 4), (12, 3, 3), (9, 1, 4), (9, 4, 1), (3, 5, 2), (6, 4, 5)],
)
def hidden_slices_to_read(_: Draws, numbers: int, saved_size: int, ranks: int) -> Case:
    saved, mine = -(-numbers // saved_size), -(-numbers // ranks)

    def read(wanted: range) -> list[tuple[int, int, int]]:
        """Number by number: where each is, then neighbours joined."""
        slices: list[tuple[int, int, int]] = []
        for number in wanted:
            file, place = number // saved, number % saved
            if slices and slices[-1][0] == file:
                slices[-1] = (file, slices[-1][1], place + 1)
            else:
                slices.append((file, place, place + 1))
        return slices

    return Case(
        [[numbers] * ranks, [saved_size] * ranks],
        right=[read(range(min(rank * mine, numbers), min((rank + 1) * mine, numbers))) for rank in range(ranks)],
        in_order=True,
        seen=f"{numbers} numbers, saved by {saved_size} ranks, now {ranks}: rank {{rank}} got",
        world_size=ranks,
    )


### END HIDDEN TESTS


# ---- models and their flat tensors


def mlp(layers: int = 2, dim: int = 3, dtype: torch.dtype = DOUBLE) -> Make:
    return lambda draws: MLP(make_weights(layers, dim, draws.salted(), dtype))


def uneven(draws: Draws) -> nn.Module:
    """Four parameters of three sizes: 6, 3, 6 and 2 numbers."""
    return with_random_weights(nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2)), draws)


def awkward(draws: Draws) -> nn.Module:
    """A tied parameter and a frozen one, and two more, of 3 x 3 numbers each."""
    return AwkwardMLP(make_weights(4, 3, draws.salted(), DOUBLE), [0, 1])


def with_random_weights(model: nn.Module, draws: Draws) -> nn.Module:
    generator = draws.generator()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=DOUBLE)
    return model


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.detach().reshape(-1) for x in tensors])


def pieces_of(x: Tensor, world_size: int) -> list[Tensor]:
    """The pieces of a tensor, one per rank, with zeros behind its last number."""
    size = math.ceil(x.numel() / world_size)
    whole = x.new_zeros(size * world_size)
    whole[: x.numel()] = x.detach().reshape(-1)
    return [piece.clone() for piece in whole.split(size)] if size else [whole.clone() for _ in range(world_size)]


def nbytes_of(tensors: Sequence[Tensor]) -> int:
    return sum(x.nbytes for x in tensors)


# ---- flat shards


@oracle(values=[(4, uneven), (3, awkward)], memory=[(4, mlp(2, 160))])
def flat_shard(draws: Draws, world_size: int, make: Make) -> Case:
    model = make(draws)
    flat = end_to_end(trainable(model))
    right = pieces_of(flat, world_size)
    return Case(
        [[deepcopy(model) for _ in range(world_size)]],
        right={
            "its piece": right,
            "whether autograd follows it": False,
            "the model afterwards": every([p.detach() for p in model.parameters()]),
        },
        mistakes={
            "whether autograd follows it": {"a piece with a graph behind it: detach the parameters": bool},
            "the model afterwards": {"a changed model: leave its parameters as they are": lambda got: True},
        },
        unpack=lambda got, _: {
            "its piece": got["result"],
            "whether autograd follows it": got["tracked"],
            "the model afterwards": got["parameters"],
        },
        in_order=True,
        driver=measure,
        unchanged=False,
        values_first=True,
        memory=lambda answer: expect_little_kept(answer, right[0].nbytes, flat.nbytes),
    )


### BEGIN HIDDEN TESTS
hidden_flat_shard = vary(
    flat_shard,
    values=[(5, awkward), (7, uneven), (1, uneven), (2, mlp(3, 3, SINGLE))],
    memory=[(3, mlp(1, 20))],
)
### END HIDDEN TESTS


def expect_little_kept(answer: Answer, piece: int, whole: int) -> str:
    for rank, result in enumerate(answer.results):
        expect_possible(rank, result["held"], least=piece)
        if result["held"] > piece + SLACK:
            raise CheckFailed(
                f"after the call {result['held']:,} bytes are alive on rank {rank}",
                f"{piece:,}",
                "Your piece is a view, and keeps the whole flat tensor alive: return .clone() of it."
                if abs(result["held"] - whole) <= piece
                else "Something besides the piece is still alive.",
            )
    return f"{piece:,} bytes are alive after the call; the whole has {whole:,}."


# ---- training, in one process, as P ranks would do it


def everywhere(x: Tensor, world_size: int) -> Tensor:
    return x.expand(world_size, -1)


class Training:
    """P ranks with AdamW on flat weights, (P, N), in one process.

    owner: the rank whose piece each number belongs to
    """

    def __init__(self, model: nn.Module, owner: Tensor, world_size: int, dtype: torch.dtype) -> None:
        self.model, self.owner, self.world_size, self.dtype = deepcopy(model), owner, world_size, dtype

    def gradient(self, flat: Tensor, rows: Tensor) -> Tensor:
        """(N,), of the mean loss over these rows: in the model's dtype for two at a time, then added up."""
        parameters = trainable(self.model)
        nn.utils.vector_to_parameters(flat.to(parameters[0].dtype).clone(), parameters)
        gradients = []
        for two in rows.split(2):
            self.model.zero_grad()
            loss_of(self.model(two)).backward()
            gradients.append(end_to_end([p.grad for p in parameters if p.grad is not None]).to(self.dtype))
        return torch.stack(gradients).mean(0)

    def owned(self, x: Tensor) -> Tensor:
        """(P, N) -> (P, N): each number as its owner has it."""
        return everywhere(x.gather(0, self.owner[None])[0], self.world_size)

    def run(self, batches: Sequence[Several]) -> Tensor:
        """(P, N): the weights on each rank at the end. batches: of each step, each rank's rows."""
        start = end_to_end(trainable(self.model)).to(self.dtype)
        weights = everywhere(start, self.world_size).clone().requires_grad_()
        optimizer = torch.optim.AdamW([weights], **ADAMW)  # type: ignore[arg-type]
        for rows in batches:
            local = torch.stack([self.gradient(*each) for each in zip(weights.detach(), rows, strict=True)])
            weights.grad = everywhere(local.mean(0), self.world_size).clone()
            optimizer.step()
            weights.data.copy_(self.owned(weights.detach()))
        return weights.detach().clone()


def owner_of(sizes: Sequence[int], world_size: int, together: bool) -> Tensor:
    """(N,): the rank to whose piece each number belongs; together: one flat tensor, or one for each parameter."""
    units = [sum(sizes)] if together else sizes
    return torch.cat([torch.arange(n) // math.ceil(n / world_size) for n in units])


def split_up(x: Tensor, model: nn.Module) -> list[Tensor]:
    """The numbers (N,) of flat weights as the model's parameters, in its dtype; frozen ones as they are."""
    pieces = iter(x.split([p.numel() for p in trainable(model)]))
    return [next(pieces).view_as(p).to(p.dtype) if p.requires_grad else p.detach() for p in model.parameters()]


def rows_for(draws: Draws, steps: int, ranks: int, rows: int, dim: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Of each step, each rank's rows."""
    batches = [make_batch(ranks * rows, dim, draws.salted(number), dtype) for number in range(steps)]
    return [[piece.clone() for piece in batch.chunk(ranks)] for batch in batches]


def width_of(model: nn.Module) -> int:
    return next(model.parameters()).shape[-1]


IN_HALF = "right to two or three digits, as many as bfloat16 has: add up in the shard's dtype"


def almost(got: Any, start: Tensor, right: Tensor) -> bool:
    """Whether a shard has moved as far as it should, to 5 %."""
    return isinstance(got, Tensor) and bool((got - right).norm() < 0.05 * (right - start).norm())


def trained(
    draws: Draws,
    make: Make,
    ranks: int,
    wide: torch.dtype | None,
    microbatches: int = 0,
    freed: bool = False,
    **more: Any,
) -> Case:
    """Three steps of a stage of ZeRO. wide: the dtype of the shards; microbatches: 0 where a step takes rows.

    freed: the weights are freed in the end, so what is judged are the shards
    """
    model, count = make(draws), microbatches or 1
    parameters, together = trainable(model), not (microbatches or freed)
    dtype = parameters[0].dtype
    of_shards = freed or (dtype == HALF and bool(microbatches))
    shard_dtype = wide or dtype
    sizes = [parameter.numel() for parameter in parameters]
    of_steps = rows_for(draws, 3, ranks, 2 * count, width_of(model), dtype)
    right = Training(model, owner_of(sizes, ranks, together), ranks, shard_dtype).run(of_steps)
    units = [end_to_end(parameters)] if together else list(parameters)
    cut = [pieces_of(unit.to(shard_dtype), ranks) for unit in units]
    shards: list[Any] = cut[0] if together else [list(of_rank) for of_rank in zip(*cut, strict=True)]
    batches: list[list[Any]] = [[of_ranks[rank] for of_ranks in of_steps] for rank in range(ranks)]
    if microbatches:
        batches = [[list(rows.split(2)) for rows in of_rank] for of_rank in batches]

    def named(x: Tensor) -> dict[str, list[Tensor]]:
        """{part: its value on each rank}"""
        if of_shards:
            of_parameters = [pieces_of(one, ranks) for one in x[0].split(sizes)]
            return {f"shard {number}": one for number, one in enumerate(of_parameters)}
        on_ranks = [split_up(of_rank, model) for of_rank in x]
        return {f"parameter {number}": list(one) for number, one in enumerate(zip(*on_ranks, strict=True))}

    def unpack(got: dict[str, Any], rank: int) -> dict[str, Any]:
        return dict(zip(named(right), got["shards" if of_shards else "weights"], strict=True))

    starts = named(everywhere(end_to_end(parameters).to(shard_dtype), ranks))
    ends = named(right) if dtype == HALF else {}
    return Case(
        [[deepcopy(model) for _ in range(ranks)], shards, batches],
        for_all={"options": ADAMW, "clear": not together, **more.pop("for_all", {})},
        right=named(right),
        mistakes={part: {IN_HALF: partial(almost, start=starts[part][0], right=end[0])} for part, end in ends.items()},
        seen="rank {rank}: after three steps {part} is",
        rtol=RTOL[dtype],
        in_order=True,
        unpack=unpack,
        advice=CASTS | more.pop("advice", {}),
        driver=train,
        clock=links(ranks, alpha=1e-6, bandwidth=1e9),  # memory is judged on virtual ranks
        unchanged=False,
        values_first=True,
        **more,
    )


# ---- what is held and what is sent


def expect_held(answer: Answer, most: int, full: int, what: str) -> str:
    """Judge the bytes between two steps. full: what AdamW holds without ZeRO beyond what is allowed."""
    for rank, result in enumerate(answer.results):
        held = result["held"]
        if held > most + SLACK:
            raise CheckFailed(
                f"between two steps rank {rank} holds {held:,} bytes besides the model's gradients",
                f"{most:,} at most: {what}",
                "That is as much as AdamW's state for all parameters: the optimizer must get the shard alone."
                if held > most + 0.8 * full
                else "Some tensor of the size of the whole model, or several shards, outlive the step.",
            )
    most_held = max(result["held"] for result in answer.results)
    return f"between two steps the fullest rank holds {most_held:,} bytes; {most:,} are allowed: {what}."


def expect_peak(answer: Answer, most: int, why: str) -> None:
    """Judge the most bytes alive before the first update."""
    for rank, result in enumerate(answer.results):
        if result["peak"] > most:
            raise CheckFailed(
                f"in its first forward and backward pass rank {rank} holds up to {result['peak']:,} bytes",
                f"{most:,} at most",
                why,
            )


def expect_sent(answer: Answer, ops: dict[str, int], nbytes: float, unit: float, words: str) -> str:
    """Judge the bytes that each rank's collectives send, by the usual algorithms.

    ops   the collectives that are allowed, with the most calls of each
    unit  the bytes of one way: what reduces or gathers all numbers once sends
    """
    expect_all_waited(answer)
    for rank in range(len(answer.results)):
        events = [event for event in answer.events if event.rank == rank]
        strangers = sorted({event.op for event in events} - ops.keys())
        sent = answer.run.traffic().implied(rank)
        if sent > nbytes * (1 + 1e-9) + 8:
            raise CheckFailed(
                f"rank {rank} sends {sent / unit:.3g} times as many numbers as it holds in all"
                if unit
                else f"rank {rank} sends {sent:,} bytes",
                f"{nbytes / unit:.3g} times: {words}" if unit else words,
                f"It calls {', '.join(strangers)}, which carries more than is needed." if strangers else "",
            )
        if strangers:
            raise CheckFailed(f"rank {rank} calls {', '.join(strangers)}", f"only {', '.join(ops)}")
        for op, most in ops.items():
            calls = sum(event.op == op for event in events)
            if calls > most:
                raise CheckFailed(f"rank {rank} calls {op} {plural(calls, 'time')}", f"{most} at most")
    return words


def one_way(numbers: Sequence[int], ranks: int, itemsize: int) -> float:
    """What a rank sends to reduce-scatter, or to gather, tensors of so many numbers once, padding included."""
    return sum((ranks - 1) * math.ceil(n / ranks) for n in numbers) * itemsize


@oracle(
    values=[(mlp(), 4, None), (awkward, 3, None), (mlp(2, 3, SINGLE), 2, DOUBLE), (mlp(2, 3, HALF), 1, SINGLE)],
    memory=[(mlp(2, 160), 4, None)],
    traffic=[(mlp(2, 3, SINGLE), 4, DOUBLE)],
    if_stuck=STUCK,
)
def zero_1(draws: Draws, make: Make, ranks: int, wide: torch.dtype | None) -> Case:
    model = make(draws)
    parameters = trainable(model)
    number, itemsize = sum(p.numel() for p in parameters), parameters[0].element_size()
    shard = math.ceil(number / ranks) * (wide or parameters[0].dtype).itemsize
    most, unit = nbytes_of(list(model.parameters())) + 4 * shard, one_way([number], ranks, itemsize)
    words = "one reduce_scatter and one all_gather of all numbers, in the model's dtype"
    return trained(
        draws,
        make,
        ranks,
        wide,
        memory=lambda answer: expect_held(
            answer, most, 2 * (nbytes_of(parameters) - shard), "the model, and four tensors of the shard's size"
        ),
        traffic=lambda answer: expect_sent(
            answer, {"reduce_scatter": 3, "all_gather": 3}, 3 * 2 * unit, 3 * unit, words
        ),
    )


### BEGIN HIDDEN TESTS
hidden_zero_1 = vary(
    zero_1,
    values=[(uneven, 5, None), (mlp(1, 2), 3, None), (mlp(3), 1, None), (awkward, 2, None)],
    memory=[(mlp(3, 16, SINGLE), 5, DOUBLE)],
    traffic=[(uneven, 3, None)],
)
### END HIDDEN TESTS


@oracle(
    values=[(mlp(3), 3, 2, None), (awkward, 2, 1, None), (mlp(2, 3, HALF), 1, 16, SINGLE)],
    memory=[(mlp(12, 96), 4, 2, None)],
    traffic=[(mlp(3, 3, SINGLE), 2, 3, DOUBLE)],
    if_stuck=STUCK,
)
def zero_2(draws: Draws, make: Make, ranks: int, microbatches: int, wide: torch.dtype | None) -> Case:
    model = make(draws)
    parameters = trainable(model)
    numbers, itemsize = [p.numel() for p in parameters], parameters[0].element_size()
    shards = sum(math.ceil(n / ranks) for n in numbers) * (wide or parameters[0].dtype).itemsize
    whole, unit = nbytes_of(list(model.parameters())), one_way(numbers, ranks, itemsize)
    activations = 2 * 2 * width_of(model) * len(parameters) * itemsize  # two rows
    backward = whole + 2 * shards + 5 * max(numbers) * itemsize + activations

    def memory(answer: Answer) -> str:
        expect_peak(
            answer,
            backward,
            "Whole gradients of many parameters are alive at a time: reduce each in its hook, and set p.grad = None.",
        )
        return expect_held(answer, whole + 4 * shards, 2 * (whole - shards), "the model, and four of each shard")

    count = len(parameters)
    ops = {"reduce_scatter": 3 * microbatches * count, "all_gather": 3 * count}
    words = f"{plural(microbatches, 'reduce_scatter')} of all numbers, and one all_gather, in the model's dtype"

    def traffic(answer: Answer) -> str:
        said = expect_sent(answer, ops, 3 * (microbatches + 1) * unit, 3 * unit, words)
        calls = sum((event.rank, event.op) == (0, "reduce_scatter") for event in answer.events)
        if calls < ops["reduce_scatter"]:
            raise CheckFailed(
                f"rank 0 calls reduce_scatter {plural(calls, 'time')} in three steps",
                f"{ops['reduce_scatter']} times: once for each parameter and microbatch",
                "Go through one microbatch after another, and reduce each gradient in its hook: whatever waits, be it "
                "activations or whole gradients, takes memory.",
            )
        return said

    return trained(
        draws,
        make,
        ranks,
        wide,
        microbatches,
        memory=memory,
        traffic=traffic,
    )


### BEGIN HIDDEN TESTS
hidden_zero_2 = vary(
    zero_2,
    values=[(uneven, 5, 3, None), (mlp(2), 1, 2, None), (mlp(2, 3, SINGLE), 2, 2, DOUBLE), (awkward, 3, 2, None)],
    memory=[(mlp(14, 32), 5, 3, None)],
    traffic=[(uneven, 3, 1, None), (mlp(2, 3, SINGLE), 2, 4, DOUBLE)],
)
### END HIDDEN TESTS


# ---- ZeRO-3


def gathered(weight: Tensor, shard: Tensor, world_size: int) -> Tensor:
    """A correct gather_weight, for the exercise that builds on it."""
    if not weight.untyped_storage().nbytes():
        parts = [torch.empty_like(shard, dtype=weight.dtype) for _ in range(world_size)]
        torch.distributed.all_gather(parts, shard.detach().to(weight.dtype))
        weight.untyped_storage().resize_(weight.nbytes)
        weight.data.view(-1).copy_(torch.cat(parts).narrow(0, 0, weight.numel()))
    return weight


@oracle(
    values=[(3, 4, False, None), (2, 3, False, DOUBLE), (2, 3, True, None)],
    traffic=[(4, 3, False, DOUBLE), (2, 3, True, None)],
    if_stuck=STUCK,
)
def gather_weight(draws: Draws, ranks: int, dim: int, there: bool, wide: torch.dtype | None) -> Case:
    dtype = SINGLE if wide else DOUBLE
    [weight], rows = make_weights(1, dim, draws.salted(), dtype), make_batch(2, dim, draws.salted(), dtype)
    # The forward pass uses other numbers: no rank may have the weight before it gathers it.
    [decoy] = [weight] if there else make_weights(1, dim, draws.salted(1), dtype)
    leaf = decoy.clone().requires_grad_()
    loss_of(layer(rows, leaf)).backward()
    shards = pieces_of(weight.to(wide or dtype), ranks)
    padded = torch.cat(shards)
    return Case(
        [[decoy] * ranks, shards, [rows] * ranks],
        for_all={"there": there},
        right={"the weight": weight, "its gradient": leaf.grad, "whether the weight itself was returned": True},
        mistakes={
            "the weight": {
                "None, for its storage is still empty: resize that, and copy the numbers into it": lambda got: (
                    got is None
                ),
                "what the memory held by chance: copy the gathered numbers into it": lambda got: (
                    isinstance(got, Tensor)
                    and not (got.any() and torch.isin(got.double(), padded.double()).all())  # may be zeros
                ),
            },
        },
        seen="rank {rank}: {part} is",
        rtol=RTOL[dtype],
        driver=gather_and_go_back,
        advice=CASTS
        | {
            "modified by an inplace operation": "Autograd counts this change of the weight. Copy into weight.data, "
            "whose changes aren't counted.",
            r"storage of size 0(?![\s\S]*(?:\bcell\b|In\[))": "The tensor that autograd saved has no memory. Fill the "
            "weight's own storage again, by resize_, instead of giving the weight a new tensor.",
            r"SIGSEGV|SIGBUS|ended without a result|SIGABRT[\s\S]*completed: all_gather"
            r"|setStorage|out of bounds for storage": "The storage has no room yet: resize it to weight.numel() * "
            "weight.element_size() bytes before you copy.",
        },
        values_first=True,
        traffic=lambda answer: expect_gathers(answer, 0 if there else shards[0].numel() * dtype.itemsize),
    )


### BEGIN HIDDEN TESTS
hidden_gather_weight = vary(
    gather_weight,
    values=[(5, 2, False, None), (1, 3, False, None), (3, 4, True, DOUBLE), (3, 5, False, DOUBLE)],
    traffic=[(5, 3, False, None), (3, 4, True, DOUBLE)],
)
### END HIDDEN TESTS


def expect_gathers(answer: Answer, nbytes: int) -> str:
    expect_all_waited(answer)
    for rank in range(len(answer.results)):
        calls = [(event.op, event.bytes) for event in answer.events if event.rank == rank]
        seen = ", ".join(f"{op} of {n} bytes" for op, n in calls) or "nothing"
        if not nbytes and calls:
            raise CheckFailed(f"the weight was there, and rank {rank} called {seen}", "no call")
        if nbytes and calls != [("all_gather", nbytes)]:
            wide = calls == [("all_gather", 2 * nbytes)]
            raise CheckFailed(
                f"rank {rank} called {seen}",
                f"one all_gather of {nbytes} bytes",
                "Cast the shard to the dtype of the weight before you gather." if wide else "",
            )
    return f"one all_gather of {nbytes} bytes." if nbytes else "the weight was there, and nothing was sent."


@oracle(
    values=[(3, 3, 4, True), (3, 2, 3, False)],
    memory=[(12, 4, 96, True)],
    traffic=[(3, 4, 4, True), (3, 2, 4, False)],
    if_stuck=STUCK,
)
def zero_3(draws: Draws, layers: int, ranks: int, dim: int, reshard: bool, wide: torch.dtype | None = None) -> Case:
    dtype = SINGLE if wide else DOUBLE
    make, one = mlp(layers, dim, dtype), dim * dim
    shards = layers * math.ceil(one / ranks) * (wide or dtype).itemsize
    unit, whole = one_way([one] * layers, ranks, dtype.itemsize), layers * one * dtype.itemsize
    most = 2 * shards + 6 * one * dtype.itemsize + 2 * 2 * dim * layers * dtype.itemsize

    def memory(answer: Answer) -> str:
        if reshard:
            left = max(result["held"] for result in answer.results) > 4 * shards + SLACK
            room = f"A whole weight has {one * dtype.itemsize:,}. "
            expect_peak(
                answer,
                most,
                room + "Tensors outlive the step, too: drop each gradient when it is reduced."
                if left
                else room + "What is too much is gone after the step: a weight and its gradient are whole only while "
                "their layer runs.",
            )
        said = expect_held(answer, 4 * shards, 2 * (whole - shards), "four of each shard, and no whole weight")
        peak = max(result["peak"] for result in answer.results)
        return f"{said} At most {peak:,} in a forward and backward pass; all weights have {whole:,}."

    ops = {"reduce_scatter": 3 * layers, "all_gather": 3 * layers * (1 + reshard)}
    words = "all numbers gathered " + ("twice" if reshard else "once (resharding is off)") + " and reduced once"
    return trained(
        draws,
        make,
        ranks,
        wide,
        freed=True,
        for_all={"reshard": reshard, "gather_weight": gathered},
        memory=memory,
        advice={
            "has changed the size of value": "What a tensor's hook returns replaces the gradient: return nothing.",
            "storage of size 0|setStorage|no memory|data is not allocated": "A weight is used while its memory is "
            "gone: gather it before its layer, and in a hook on this layer's output before its backward pass.",
            "modified by an inplace operation": "Autograd counts this change of the weight: fill it by gather_weight.",
        },
        traffic=lambda answer: expect_sent(answer, ops, 3 * (2 + reshard) * unit, 3 * unit, words),
    )


### BEGIN HIDDEN TESTS
hidden_zero_3 = vary(
    zero_3,
    values=[(2, 5, 3, True), (1, 2, 2, False), (3, 1, 3, True), (2, 3, 4, True, DOUBLE)],
    memory=[(14, 5, 32, True), (4, 4, 16, False)],
    traffic=[(2, 3, 3, False), (4, 5, 3, True), (2, 2, 4, True, DOUBLE)],
)
### END HIDDEN TESTS


@oracle(
    values=[(3, 3, 4, 2), (1, 2, 3, 2)],
    time=[(6, 4, 4, 4, 2.0), (4, 2, 4, 4, 0.5)],
    memory=[(6, 4, 160, 1)],
    if_stuck=STUCK,
)
def prefetched_forward(
    draws: Draws, layers: int, ranks: int, dim: int, rows: int, gather: float = 1.0, dtype: torch.dtype = DOUBLE
) -> Case:
    """gather: how long a gather takes, on a cluster where a layer takes one unit."""
    weights = make_weights(layers, dim, draws.salted(), dtype)
    xs = [make_batch(rows, dim, draws.salted(rank), dtype) for rank in range(ranks)]
    shards = [list(of_rank) for of_rank in zip(*(pieces_of(w, ranks) for w in weights), strict=True)]
    unit, nbytes = 1e-3, math.ceil(dim * dim / ranks) * ranks * dtype.itemsize
    gpu = Gpu({"fp64": 2 * rows * dim**2 / unit}, memory=math.inf, bandwidth=math.inf, launch=0)
    link = Link(0.0, max(ranks - 1, 1) / ranks * nbytes / (gather * unit))
    clock = Cluster("a layer takes 1 ms", 1, ranks, gpu=gpu, intra=link, inter=link)
    exposed = gather + (layers - 1) * max(gather, 1.0) + 1.0
    waiting = {"the time of one after another: start the next gather before you compute": layers * (gather + 1) * unit}

    def time(answer: Answer) -> str:
        expect_all_waited(answer)
        return expect_time(answer, exposed * unit, recognise=waiting, least=max(layers, layers * gather) * unit)

    def memory(answer: Answer) -> str:
        most = 2.5 * dim * dim * dtype.itemsize
        for rank, result in enumerate(answer.results):
            if result["peak"] > most:
                held = result["peak"] / (dim * dim * dtype.itemsize)
                raise CheckFailed(
                    f"up to {held:.1f} whole weights are alive on rank {rank}",
                    "two: one in use, one on its way",
                    "That is all of them: start only the next gather, and let go of each weight after its layer."
                    if held > layers - 0.5
                    else "Some name still holds the weight of the layer before, or two gathers are under way.",
                )
        return "at most two whole weights are alive."

    return Case(
        [xs, shards],
        right={"the output": [forward(weights, x) for x in xs]},
        unpack=lambda got, _: {"the output": got["result"]},
        rtol=RTOL[dtype],
        advice=PADDING,
        driver=measure,
        clock=clock,
        values_first=True,
        time=time,
        memory=memory,
    )


### BEGIN HIDDEN TESTS
hidden_prefetched_forward = vary(
    prefetched_forward,
    values=[(4, 5, 3, 1), (2, 1, 4, 3), (3, 2, 4, 2, 1.0, SINGLE)],
    time=[(5, 3, 3, 2, 3.0), (1, 2, 4, 4, 2.0), (7, 4, 4, 1, 0.75)],
    memory=[(9, 2, 16, 1), (3, 3, 16, 2)],
)
### END HIDDEN TESTS


# ---- mixed precision, norms, hybrid sharding


@oracle(values=[(3, (2, 3)), (2, (5,))], traffic=[(4, (3, 3))], if_stuck=STUCK)  # pieces of other than P numbers
def mixed_precision_weight(draws: Draws, ranks: int, shape: tuple[int, ...]) -> Case:
    """Gradients of 256 on rank 0 and small numbers elsewhere: bfloat16 can't add them."""
    bf16 = torch.bfloat16
    weight = torch.randn(shape, generator=draws.generator())
    small = draws.different_integers(ranks, shape, seed=1)
    gradients = [((x + 246) if rank == 0 else x % 10 + 1).to(bf16).float() for rank, x in enumerate(small)]
    shards, total = pieces_of(weight, ranks), torch.stack(gradients).sum(0)
    means = pieces_of(total / ranks, ranks)
    rounded = [mean.to(bf16).float() for mean in means]
    divided_first = torch.stack([(gradient.to(bf16) / ranks).float() for gradient in gradients]).sum(0)

    def like_bf16(got: Any) -> bool:
        """Near the right means, with as few digits as bfloat16 has; and not just the right ones, rounded at the end."""
        if not isinstance(got, Tensor) or not torch.equal(got.float(), got.to(bf16).float()):
            return False
        return any(
            got.shape == one.shape and torch.allclose(got.float(), one, rtol=1e-2) and not torch.equal(got.float(), end)
            for one, end in zip(means, rounded, strict=True)
        )

    return Case(
        [shards, [gradient.to(bf16) for gradient in gradients]],
        right={"the weight": weight.to(bf16), "the gradient of the shard": means},
        mistakes={
            "the gradient of the shard": {
                "the mean, rounded to bfloat16 at the end: reduce in float32, and return that": rounded,
                "the mean of gradients that were divided in bfloat16: cast first, then divide": pieces_of(
                    divided_first, ranks
                ),
                "a sum in bfloat16, which has lost the small gradients: cast before you reduce": like_bf16,
            },
        },
        seen="rank {rank}: {part} is",
        rtol=1e-6,
        advice=PADDING | {"incorrect number of gradients": "Return one for each argument of forward, None for most."},
        driver=through_backward,
        traffic=partial(expect_narrow_gather, numbers=shards[0].numel()),
    )


def expect_narrow_gather(answer: Answer, numbers: int) -> str:
    """numbers: in each rank's piece."""
    ranks = len(answer.results)
    want = [("all_gather", 2 * numbers), ("reduce_scatter", 4 * numbers * ranks)]
    for rank in range(ranks):
        calls = [(event.op, event.bytes) for event in answer.events if event.rank == rank]
        if calls != want:
            shown, right = (", ".join(f"{op} of {n} bytes" for op, n in each) for each in (calls, want))
            why = ""
            if ("all_gather", 4 * numbers) in calls:
                why = "The gather moves float32: cast the shard first."
            elif ("reduce_scatter", 2 * numbers * ranks) in calls:
                why = "The reduction adds up bfloat16: cast the gradient to float32 first."
            raise CheckFailed(f"rank {rank} called {shown or 'nothing'}", right, why)
    return "the gather moves 2 bytes per number, the reduction 4."


### BEGIN HIDDEN TESTS
hidden_mixed_precision_weight = vary(
    mixed_precision_weight, values=[(5, (2, 4)), (1, (3,)), (4, (3, 2, 2))], traffic=[(3, (7,)), (2, (1,))]
)
### END HIDDEN TESTS


@oracle(
    values=[([[0, 1]], 2, 100.0), ([[0, 1, 2]], 2, 1.0), ([[0, 1], [2, 3]], 2, 0.5)],
    traffic=[([[0, 1], [2, 3]], 3, 1.0)],
    if_stuck=STUCK,
)
def clip_shards(
    draws: Draws,
    groups: list[list[int]],
    count: int,
    max_norm: float,
    dtype: torch.dtype = DOUBLE,
    empty: bool = False,
    unit: float = 1.0,
) -> Case:
    """count: of pieces on each rank. Each group holds other numbers, multiples of `unit`. empty: the last rank of each
    has no pieces.
    """
    ranks = sum(map(len, groups))
    of = {rank: number for number, members in enumerate(groups) for rank in members}
    pieces = [
        [(draws.integers(2 + number, dtype, seed=10 * rank + number) + rank + 5) * unit for number in range(count)]
        for rank in range(ranks)
    ]
    if empty:
        for members in groups:
            pieces[members[-1]] = []
    squares = [sum(x.double().square().sum().item() for x in mine) for mine in pieces]
    in_group = [[squares[other] for other in groups[of[rank]]] for rank in range(ranks)]
    norms = [math.sqrt(sum(each)) for each in in_group]

    def scaled(norms: Sequence[float]) -> list[list[Tensor]]:
        factors = [min(1.0, max_norm / norm) if norm else 1.0 for norm in norms]
        return [[x * factor for x in mine] for mine, factor in zip(pieces, factors, strict=True)]

    def in_float32(got: Any) -> bool:
        return isinstance(got, float) and any(math.isclose(got, norm, rel_tol=1e-6) for norm in norms)

    def traffic(answer: Answer) -> str:
        for rank in range(ranks):
            calls = [event for event in answer.events if event.rank == rank]
            if [event.op for event in calls] != ["all_reduce"] or math.prod(calls[0].shape) != 1:
                shown = ", ".join(f"{event.op} of {math.prod(event.shape)} numbers" for event in calls) or "nothing"
                raise CheckFailed(f"rank {rank} called {shown}", "one all_reduce of one number")
        return "one all_reduce of one number."

    return Case(
        [pieces],
        for_all={"max_norm": max_norm, "groups": {"group": groups}},
        right={"the norm": norms, "its gradients": scaled(norms)},
        mistakes={"the norm": {"right to 7 digits only: add up in the gradients' dtype, or in float64": in_float32}},
        seen="rank {rank}: {part} is",
        rtol=RTOL[dtype],
        in_order=True,  # the last rank's norm is often the largest
        world_size=ranks,
        driver=in_groups,
        advice={"non-empty": "A rank may have no pieces: the sum of its squares is then 0."},
        traffic=traffic,
    )


### BEGIN HIDDEN TESTS
hidden_clip_shards = vary(
    clip_shards,
    values=[
        ([[0, 2], [1, 3]], 1, 0.1, DOUBLE, False, 0.1),
        ([[0], [1, 2]], 3, 2.0, SINGLE),
        ([[0, 1, 2]], 2, 1.0, DOUBLE, True),
        ([[0]], 2, 0.25),
    ],
    traffic=[([[1, 2], [0, 3]], 1, 0.5)],
)
### END HIDDEN TESTS


@oracle(
    values=[(1, 2, 3, (2, 2)), (2, 2, 2, (5,)), (1, 3, 1, (4,))],
    traffic=[(1, 2, 2, (3, 3)), (2, 1, 3, (5,))],
    if_stuck=STUCK,
)
def hybrid_reduce(
    draws: Draws, grids: int, replicas: int, shard_size: int, shape: tuple[int, ...], dtype: torch.dtype = DOUBLE
) -> Case:
    """grids: of so many, side by side, each of which has gradients of its own."""
    world = torch.arange(grids * replicas * shard_size).view(grids, replicas, shard_size)
    ranks = world.numel()
    gradients = draws.different_integers(ranks, shape, dtype)
    means = torch.stack(gradients).unflatten(0, world.shape).mean((1, 2))
    right = [pieces_of(means[rank // (replicas * shard_size)], shard_size)[rank % shard_size] for rank in range(ranks)]
    numbers = right[0].numel()

    def traffic(answer: Answer) -> str:
        want = [("reduce_scatter", numbers * shard_size * dtype.itemsize), ("all_reduce", numbers * dtype.itemsize)]
        for rank in range(ranks):
            calls = [(event.op, event.bytes) for event in answer.events if event.rank == rank]
            if calls != want:
                shown, right = (", ".join(f"{op} of {n} bytes" for op, n in each) for each in (calls, want))
                first = calls and calls[0] == ("all_reduce", want[0][1])
                raise CheckFailed(
                    f"rank {rank} called {shown or 'nothing'}",
                    right,
                    "The all-reduce comes first and carries the whole gradient: reduce-scatter first." if first else "",
                )
        return f"one reduce_scatter in the shard group, one all_reduce of {plural(numbers, 'number')}."

    return Case(
        [gradients],
        for_all={
            "groups": {"shard_group": world.flatten(0, 1).tolist(), "replica_group": world.mT.flatten(0, 1).tolist()}
        },
        right=right,
        rtol=RTOL[dtype],
        advice={
            SIZES_DIFFER: "The flat gradient needs one piece for each rank of the shard group: pass "
            "group=shard_group, and pad with zeros."
        },
        driver=in_groups_alone,
        traffic=traffic,
    )


### BEGIN HIDDEN TESTS
hidden_hybrid_reduce = vary(
    hybrid_reduce,
    values=[(1, 3, 2, (5,)), (3, 1, 2, (4, 3)), (2, 2, 2, (7,), SINGLE), (2, 3, 1, (3,))],
    traffic=[(1, 3, 2, (3,)), (2, 1, 2, (6,))],
)
### END HIDDEN TESTS


# ---- the challenge

PLAN = ("rows", "keep", "recompute", "microbatches")


@oracle(score=[(40, 18_032, 8, 40e9)], par=frozen_par(ROOM, "training-plan"))
def training_plan(_: Draws, layers: int, dim: int, ranks: int, memory: float) -> Case:
    peak = find_cluster("dgx-a100", 8).gpu.peak("bfloat16")
    return Case(
        [[layers], [dim], [ranks], [memory]],
        also=lambda answer: expect_plan(answer.results[0]),
        score=Measure(
            lambda answer: seconds_per_million(answer.results[0], layers, dim, ranks, memory),
            "s",
            "for a million tokens",
        ),
        limit=2 * (3 * layers - 1) * dim**2 * 1e6 / (ranks * peak),  # nobody needs the gradient of the first input
    )


### BEGIN HIDDEN TESTS


def seconds_of_training_plan(layers: int, dim: int, ranks: int, memory: float) -> float:
    """Nothing is recomputed or kept, and as many rows as a cautious estimate allows."""
    state, whole, of_a_row = 16 * layers * dim**2 / ranks, 10 * dim**2, 4 * dim * layers
    plan = {"rows": int((0.9 * memory - state - whole) / of_a_row), "keep": [], "recompute": [], "microbatches": 1}
    seconds: float = seconds_per_million(plan, layers, dim, ranks, memory)
    return seconds


hidden_training_plan = vary(training_plan, par=seconds_of_training_plan, score=[(24, 16_384, 8, 24e9)])
### END HIDDEN TESTS


def expect_plan(plan: Any) -> None:
    if not isinstance(plan, dict) or set(plan) != set(PLAN):
        raise CheckFailed(f"it returned {plan!r}"[:200], f"a dict with {', '.join(PLAN)}")
    for name in ("rows", "microbatches"):
        if not isinstance(plan[name], int) or plan[name] < 1:
            raise CheckFailed(f"{name} is {plan[name]!r}", "a whole number, 1 or more")
    for name in ("keep", "recompute"):
        if not isinstance(plan[name], list) or not all(isinstance(number, int) for number in plan[name]):
            raise CheckFailed(f"{name} is {plan[name]!r}"[:200], "a list of numbers of layers")


def seconds_per_million(plan: dict[str, Any], layers: int, dim: int, ranks: int, memory: float) -> float:
    """On nodes of four A100s with so much memory. Raises CheckFailed if the plan needs more."""
    dgx = find_cluster("dgx-a100", ranks)
    cluster = replace(dgx, nodes=math.ceil(ranks / 4), gpus_per_node=4, gpu=replace(dgx.gpu, memory=memory))
    try:
        run = simulate(overlapped_step, ranks, layers, dim, cluster=cluster, **plan)
    except RankFailed as error:
        first = str(error).strip().splitlines()[0]  # the other ranks say the same
        raise CheckFailed(
            first, f"a plan that fits into {memory / 1e9:g} GB", "Fewer rows, or fewer activations that stay."
        ) from None
    steps = [each for each in run.regions if each.name == "step"]
    took = max(each.end for each in steps) - min(each.start for each in steps)
    tokens: int = ranks * plan["rows"] * plan["microbatches"]
    return took * 1e6 / tokens


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(training_plan, par=seconds_of_training_plan),
    vary(hidden_state_bytes, values=[(0, 100, 4), (1, 100, 4), (2, 100, 4), (3, 103, 4)]),
    vary(
        hidden_offload_end,
        values=[
            ([0.5, 9.0, 6.0, 10.5], [1.0, 3.5, 0.5, 0.5], [2.5, 4.5, 3.5, 1.5], [3.5, 2.5, 5.0, 5.0]),
            ([1.0, 2.0, 3.0], [0.5, 0.25, 0.5], [3.0, 1.0, 2.0], [1.0, 4.0, 0.5]),
            ([4.0, 1.0, 2.0], [1.0, 2.0, 0.5], [0.5, 3.0, 1.0], [2.0, 1.0, 0.25]),
            ([], [], [], []),
        ],
    ),
    vary(hidden_slices_to_read, values=[(14, 5, 3), (20, 2, 6), (13, 5, 2)]),
)
### END HIDDEN TESTS
