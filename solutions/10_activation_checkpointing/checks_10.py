"""The checks of lesson 10. Form: see oracles.py; what a rank runs: kit/drivers/recomputed.py.

What is right comes from the same program without checkpoints: gradients must be equal to the last bit. An answer that
keeps everything has the right values, too, so memory is judged by live bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from utils.checks.answer import Answer, CheckFailed
from utils.checks.compare import expect_possible
from utils.checks.frozen_cases import frozen_cases, frozen_par
from utils.checks.inputs import Draws
from utils.checks.oracles import Case, Then, every, oracle, vary
from utils.checks.runner import simulate
from utils.checks.scores import Measure
from utils.kit.chain import Chain, Segment, drawn_chain, peak_of, peak_of_plan, train_chain
from utils.kit.drivers import recomputed
from utils.kit.drivers.recomputed import (
    BEFORE,
    Segments,
    bytes_of,
    decisions,
    packed,
    plainly,
    squared_sine,
    through_backward,
    through_replays,
    through_segments,
    unpacked,
    words_for,
)
from utils.text.units import plural

ROOM = Path(__file__).parent

peak_bytes = frozen_cases(ROOM, "peak-bytes")


### BEGIN HIDDEN TESTS


@oracle(values=[(7, 3, 2, 5), (12, 12, 3, 4), (9, 1, 4, 4), (5, 8, 1, 6), (64, 8, 32, 1088), (10, 4, 8, 9)])
def hidden_peak_bytes(_: Draws, layers: int, k: int, boundary: int, keeps: int) -> Case:
    """Layer by layer: what is alive while the backward pass goes through each segment."""
    starts = list(range(0, layers, k))
    alive = [
        sum(boundary for other in starts if other < start) + sum(keeps for n in range(start, start + k) if n < layers)
        for start in starts
    ]
    return Case(
        [[layers], [k], [boundary], [keeps]],
        right=max(alive),
        seen=f"for {layers} layers, k = {k}, boundary {boundary} and keeps {keeps} it returned",
    )


### END HIDDEN TESTS
stage_peak = frozen_cases(ROOM, "stage-peak")


### BEGIN HIDDEN TESTS


@oracle(
    values=[(p, 5, m, 3, 2, 9, again) for p in (0, 2, 4) for m in (1, 3, 8) for again in (False, True)]
    + [(0, 1, 4, 1, 7, 7, True), (1, 64, 512, 2, 32, 1088, True)]
)
def hidden_stage_peak(
    _: Draws, stage: int, stages: int, microbatches: int, layers: int, boundary: int, keeps: int, recompute: bool
) -> Case:
    """Counted by going through the stage's steps, one at a time."""

    def most(warm_up: int) -> int:
        in_flight = sorted([*range(microbatches), *(m + warm_up + 0.5 for m in range(microbatches))])  # F1B's order
        alive = [sum(1 if isinstance(step, int) else -1 for step in in_flight[: n + 1]) for n in range(len(in_flight))]
        return max(alive)

    live = most(min(stages - stage, microbatches) - 1)
    inside = layers * (boundary if recompute else keeps)
    return Case(
        [[stage], [stages], [microbatches], [layers], [boundary], [keeps], [recompute]],
        right=live * inside + (keeps - boundary) * recompute,
        seen=f"for stage {stage} of {stages}, {microbatches} microbatches, {layers} layers, boundary {boundary}, keeps "
        f"{keeps}, recompute {recompute} it returned",
    )


### END HIDDEN TESTS


def normal(draws: Draws, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=draws.generator(seed), dtype=torch.float64).to(dtype)


# ---- what is kept


def chain(x: Tensor, w: Tensor) -> Tensor:
    """Keeps the products' factors and the arguments of two GELUs."""
    return nn.functional.gelu(nn.functional.gelu(x @ w) @ w)


def result_kept(x: Tensor, w: Tensor) -> Tensor:
    """A softmax keeps its result, the product after it the same memory."""
    return (x @ w).softmax(-1) @ w


def two_sizes(x: Tensor, w: Tensor) -> Tensor:
    """Pieces of memory of different sizes."""
    return (w.sin() @ x.t()).exp()


def slices(x: Tensor, w: Tensor) -> Tensor:
    """Two slices of one tensor are kept: one memory, which is larger than both."""
    first, second, _ = (x @ w).split([1, 1, w.shape[1] - 2], 1)
    total: Tensor = first.sin() + second.cos() + x.exp().sum(1, keepdim=True)
    return total


def adds_only(x: Tensor, w: Tensor) -> Tensor:
    return x + w.sum(0)


def other_dtypes(x: Tensor, w: Tensor) -> Tensor:
    """Keeps a mask of booleans, float64 numbers, and a weight that isn't an input."""
    own = torch.linspace(0.5, 1.5, x.shape[1]).requires_grad_()
    return torch.where(x > 0, (x * own).double().sin(), 0.0) @ w.double()


def view_of_input(x: Tensor, w: Tensor) -> Tensor:
    return x[1:].sin() @ w.t()


Piece = Callable[[Tensor, Tensor], Tensor]


def notes(piece: Piece, x: Tensor, w: Tensor) -> dict[int, int]:
    """{address: bytes} of the memory of each tensor that is saved, in order."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.clone):
        output = piece(x, w)
    places = [x.untyped_storage() for x in saved]
    del output
    return {place.data_ptr(): place.nbytes() for place in places}


def leaves_of(x: Tensor, w: Tensor, trained: bool, together: bool) -> Sequence[Tensor]:
    """together: both lie in one memory."""
    if together:
        one = torch.cat([x, w]).requires_grad_()
        return one[: len(x)], one[len(x) :]
    return x.clone().requires_grad_(trained), w.clone().requires_grad_()


def call_with_grad(
    function: Callable[..., Any], x: Tensor, w: Tensor, piece: Piece, trained: bool, together: bool
) -> Any:
    return function(piece, *leaves_of(x, w, trained, together))


@oracle(values=[(chain, 4, 6), (result_kept, 3, 5), (slices, 4, 6), (two_sizes, 4, 6), (chain, 3, 5, False)])
def kept_for_backward(
    draws: Draws, piece: Piece, rows: int, dim: int, trained: bool = True, together: bool = False
) -> Case:
    """trained: whether x, too, requires a gradient."""
    x, w = normal(draws, rows, dim), normal(draws, dim, dim, seed=1)
    leaves = leaves_of(x, w, trained, together)
    given = [leaf.untyped_storage().data_ptr() for leaf in leaves]
    right = [nbytes for place, nbytes in notes(piece, *leaves).items() if place not in given]
    return Case(
        [[x], [w]],
        for_all={"piece": piece, "trained": trained, "together": together},
        driver=call_with_grad,
        right=every(right),
        mistakes={
            "a list in a different order: they come as they are saved": lambda got: (
                isinstance(got, list) and sorted(got) == sorted(right)
            ),
        },
        seen=f"for {piece.__name__}(x, w) the list is",
    )


### BEGIN HIDDEN TESTS
hidden_kept_for_backward = vary(
    kept_for_backward,
    values=[
        (adds_only, 3, 4),
        (view_of_input, 5, 3),
        (slices, 2, 9),
        (chain, 1, 2),
        (other_dtypes, 3, 5),
        (two_sizes, 3, 5, True, True),
    ],
)
### END HIDDEN TESTS


# ---- a checkpoint


def pieces_gone_through(
    draws: Draws, piece: Callable[..., Any], rows: int, dim: int, dtype: torch.dtype
) -> list[Tensor]:
    shapes = [(rows, dim), (dim, dim), (rows, dim)]
    return [normal(draws, *shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


ADVICE = {
    "missing 1 required positional argument: 'tensors'|does not require grad and does not have a grad_fn": (
        "What the inner backward pass starts from requires no gradient. Compute it inside torch.enable_grad(), and "
        "leave out outputs that need none."
    ),
    "incorrect number of gradients": (
        "backward returns one entry for each argument of forward: one for the function, and one for each of args, "
        "which is None where it isn't a tensor."
    ),
    "backward through the graph a second time": (
        "The inner backward pass runs on into the graph of what came before: recompute from detached tensors."
    ),
    "'tuple' object has no attribute": (
        "The function may return a tuple: go backward from all outputs at once, each with its own gradient."
    ),
    r"unsupported operand type|\.piece\(\) (missing|takes)": (
        "The recomputation called the function with different arguments: put each back in its own place."
    ),
    "only Tensors of floating point dtype can require gradients": (
        "A tensor of whole numbers is among the arguments: a detached tensor requires a gradient only if the original "
        "does."
    ),
}


@oracle(
    values=[
        (recomputed.one_layer, 3, 4),
        (recomputed.several, 3, 4),
        (recomputed.one_of_two, 3, 4),
        (recomputed.nested, 3, 4),
    ],
    memory=[(recomputed.one_layer, 192, 192), (recomputed.nested, 192, 192)],
)
def checkpoint(
    draws: Draws, piece: Callable[..., Any], rows: int, dim: int, dtype: torch.dtype = torch.float32
) -> Case:
    x, w, gradient = pieces_gone_through(draws, piece, rows, dim, dtype)
    plain = through_backward(plainly, x, w, gradient, piece)
    most = {"nested": x.nbytes, "frozen": x.nbytes + 8 * rows}.get(piece.__name__, 0)  # arguments that are not leaves

    def memory(answer: Answer) -> str:
        words = expect_recomputed(answer.results[0], most, plain["kept"])
        if unseen := answer.results[0]["unseen"]:
            raise CheckFailed(
                f"the forward pass keeps {plural(unseen, 'tensor')} where hooks don't see it",
                "all tensors among the arguments, among the saved tensors",
                "Keep them, with or without gradient, with ctx.save_for_backward(...), not as attributes of ctx.",
            )
        return words

    return Case(
        [[x], [w], [gradient]],
        for_all={"piece": piece},
        driver=through_backward,
        right={part: plain[part] for part in ("the output", "the gradient of x", "the gradient of w")},
        mistakes={
            "": {
                "no gradient at all, not even for weights: the recomputation was not recorded. Does the function run "
                "inside torch.enable_grad()?": lambda got: got["the gradient of x"] is got["the gradient of w"] is None,
            },
            "the gradient of x": {
                "no gradient at all: do the detached inputs require one where the originals do, and does `backward` "
                "return their .grad, each at its place?": None,
            },
            "the gradient of w": {
                "no gradient at all: torch.autograd.backward reaches weights that aren't arguments, "
                "torch.autograd.grad does not": None,
            },
        },
        advice=ADVICE,
        seen=f"{piece.__name__}: {{part}} is",
        before=expect_own_checkpoint,
        values_first=True,
        memory=memory,
    )


### BEGIN HIDDEN TESTS
hidden_checkpoint = vary(
    checkpoint,
    values=[(piece, 5, 3, torch.float64) for piece in (recomputed.several, recomputed.nested)]
    + [(recomputed.one_of_two, 1, 2), (recomputed.frozen, 3, 4)],
    memory=[(recomputed.nested, 32, 16), (recomputed.frozen, 16, 32), (recomputed.one_of_two, 32, 16)],
)
### END HIDDEN TESTS


def expect_own_checkpoint(answer: Answer) -> None:
    if answer.results[0]["by torch"]:
        raise CheckFailed(
            "torch.utils.checkpoint runs the function",
            "a checkpoint of your own",
            "It is what this exercise is about: write Checkpoint.forward and Checkpoint.backward yourself.",
        )


def expect_recomputed(result: dict[str, Any], most: int, plain: int) -> str:
    forward, backward = result["calls"]
    if (forward, backward) != (1, 1):
        raise CheckFailed(
            f"the function ran {plural(forward, 'time')} in the forward pass and {plural(backward, 'time')} in the "
            "backward pass",
            "once in each",
            "Nothing was computed again: the forward pass keeps what it has computed." if not backward else "",
        )
    if result["held"] and not result["unseen"]:
        raise CheckFailed(
            f"{plural(result['held'], 'tensor')} among the arguments is alive although hooks have moved it elsewhere",
            "none: hooks that move saved tensors to the host free their memory",
            "Keep tensors with ctx.save_for_backward(...) alone: not as attributes of ctx too, nor in a function.",
        )
    if result["kept"] > most:
        raise CheckFailed(
            f"after the forward pass {result['kept']:,} bytes are alive besides the leaves and the output",
            f"{most:,}",
            "That is as much as without a checkpoint: the graph of the forward pass is still alive."
            if result["kept"] >= plain
            else "Keep the arguments, and nothing else.",
        )
    return f"{result['kept']:,} bytes are kept, {plain:,} without the checkpoint."


# ---- random state


@oracle(values=[(4, False, False), (4, True, False)])
def replayable(
    draws: Draws, rows: int, first: bool, later: bool, rate: float = 0.5, dtype: torch.dtype = torch.bfloat16
) -> Case:
    """first, later: whether autocast is on in the first call, and in those after it. dtype: of autocast."""
    x, seed = normal(draws, rows, 8), draws.salted(5) % 2**31
    plain = through_replays(lambda piece: piece, x, seed, first, later, rate, dtype)
    numbers = stream(x, seed, rate)
    right = {
        **{f"the result of call {number}": plain["the result of call 1"] for number in (1, 2)},
        "the result of call 3": 4 * plain["the result of call 1"],  # for 2 * x: a power of two is exact
        "the random numbers after call 1": numbers[0],
        "the result of another wrapper": plain["the result of another wrapper"],
        "the random numbers after call 2": numbers[1],
        "the random numbers after call 3": numbers[2],
        "the number of times that the function has run": 4,
    }
    new_mask = "a result with another mask: later calls must start from the random state of the first"
    another_mask = masked_otherwise(right["the result of call 1"])
    return Case(
        [[x]],
        for_all={"seed": seed, "first": first, "later": later, "rate": rate, "dtype": dtype},
        driver=through_replays,
        right=right,
        mistakes={
            "the result of call 1": {
                "a result that the function doesn't give by itself: the first call changes nothing": lambda got: (
                    isinstance(got, Tensor) and got.shape == (rows, rows)
                ),
            },
            "the result of call 2": {
                "a float32 result: the first call ran with autocast, so must this one": lambda got: (
                    isinstance(got, Tensor) and first and got.dtype == torch.float32
                ),
                "a bfloat16 result: the first call ran without autocast, so must this one": lambda got: (
                    isinstance(got, Tensor) and not first and got.dtype == torch.bfloat16
                ),
                "a result of a different dtype: autocast has one, so note torch.get_autocast_dtype, too": lambda got: (
                    isinstance(got, Tensor) and first and got.dtype != dtype
                ),
                new_mask: another_mask,
            },
            "the result of call 3": {
                new_mask: another_mask,
            },
            "the number of times that the function has run": {
                "too few: again(*args) calls the function each time, with the arguments of this call": lambda got: (
                    got < 4
                ),
            },
        },
        seen="{part} is" if not first and not later else f"autocast {on(first)}, later {on(later)}: {{part}} is",
    )


### BEGIN HIDDEN TESTS
hidden_replayable = vary(
    replayable,
    values=[(3, False, True), (5, True, True, 0.25), (2, True, False, 0.9), (4, True, False, 0.5, torch.float16)],
)
### END HIDDEN TESTS


def masked_otherwise(right: Tensor) -> Callable[[Any], bool]:
    return lambda got: isinstance(got, Tensor) and got.shape == right.shape and not torch.equal(got == 0, right == 0)


def on(whether: bool) -> str:
    return "on" if whether else "off"


def stream(x: Tensor, seed: int, rate: float) -> list[Tensor]:
    """The random numbers between calls if only the first call of each of two wrappers moves the random state on."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        torch.rand(BEFORE)
        nn.functional.dropout(x @ x.t(), rate)
        numbers = [torch.rand(4)]
        nn.functional.dropout(x @ x.t(), rate)
        return [*numbers, torch.rand(4), torch.rand(4)]


# ---- every k layers


@oracle(values=[(4, 2), (5, 2), (3, 1)], memory=[(8, 2, 192), (7, 3, 192)])
def forward_in_segments(draws: Draws, layers: int, k: int, dim: int = 4) -> Case:
    rows = dim - 1
    x, gradient = normal(draws, rows, dim, seed=90), normal(draws, rows, dim, seed=91)
    weights = [normal(draws, dim, dim, seed=number) for number in range(layers)]
    starts = range(0, layers, k)
    lengths = [min(k, layers - start) for start in starts]

    def apart(layers: Sequence[Any], x: Tensor, k: int, checkpoint: Any) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    plain = through_segments(apart, x, gradient, weights, Segments(), k)
    parts = ("the output", *(f"the gradient of weight {number}" for number in range(layers)), "the gradient of x")

    def memory(answer: Answer) -> str:
        seen, end = answer.inputs_after[0][3], answer.results[0]["end"]
        own = {"kept": answer.results[0]["kept"], "lengths": [len(one) for one in seen.checkpoints]}
        said = expect_segments(own, lengths, layers, (len(lengths) - 1) * x.nbytes)
        if seen.ran.get(end) != list(range(layers)) or sum(seen.checkpoints, []) != list(range(layers)):
            raise CheckFailed("the layers have run in a different order", "each once, from the first to the last")
        return said

    return Case(
        [[x], [gradient], [weights], [Segments()]],
        for_all={"k": k},
        driver=through_segments,
        right={part: plain[part] for part in parts},
        seen=f"{layers} layers, k = {k}: {{part}} is",
        values_first=True,
        memory=memory,
    )


### BEGIN HIDDEN TESTS
hidden_forward_in_segments = vary(
    forward_in_segments, values=[(1, 1), (5, 7), (7, 3), (6, 3)], memory=[(5, 1), (5, 5), (8, 3)]
)
### END HIDDEN TESTS


def expect_segments(result: dict[str, Any], lengths: list[int], layers: int, kept: int) -> str:
    count = len(result["lengths"])
    if count != len(lengths):
        usual = {
            0: "Nothing is recomputed: hand each segment to `checkpoint`.",
            len(lengths) - 1: "The last segment is a checkpoint, too, whatever its length."
            if sum(result["lengths"]) < layers
            else f"One of them has {max(result['lengths'])} layers: what is left over is a segment of its own.",
            layers: "That is one for each layer: a checkpoint takes k layers at once.",
        }
        inside = "Layers inside a segment run in the ordinary way: they are not checkpoints of their own."
        other = inside if count > layers else "k is the number of layers in each segment."
        raise CheckFailed(
            f"checkpoint was called {plural(count, 'time')}",
            f"{plural(len(lengths), 'time')}, once for each segment",
            usual.get(count, other),
        )
    if result["lengths"] != lengths and sorted(result["lengths"]) == sorted(lengths):
        raise CheckFailed(
            f"the checkpoints have {', '.join(map(str, result['lengths']))} layers",
            ", ".join(map(str, lengths)),
            "The last segment is the one that is shorter.",
        )
    if result["kept"] != kept:
        raise CheckFailed(
            f"after the forward pass {result['kept']:,} bytes are kept besides x",
            f"{kept:,}",
            "Some layers run outside of the checkpoints: each checkpoint takes k layers." * (result["kept"] > kept),
        )
    return f"{plural(len(lengths), 'segment')}, {kept:,} bytes besides x and the output."


# ---- uneven chains


STEPS = 30  # lines of Python that may run for each of the L * L steps: many more than simple code needs


# On the first chain, usual mistakes lead to cuts that differ.
@oracle(values=[([9, 1, 7, 6, 7, 1], [14, 4, 11, 7, 12, 3]), ([9, 10], [10, 11]), (9,), (14,)])
def best_segments(draws: Draws, boundaries: list[int] | int, keeps: Sequence[int] = ()) -> Case:
    """boundaries: or how many layers to draw."""
    if isinstance(boundaries, int):
        inputs, more = torch.randint(1, 30, (2, boundaries), generator=draws.generator())
        given, inside = inputs.tolist(), (inputs + more).tolist()  # a layer's input is among what it keeps
    else:
        given, inside = boundaries, list(keeps)
    count = len(given)
    most = STEPS * max(count, 12) ** 2  # short chains need some for what goes before and after

    def also(answer: Answer) -> str:
        if answer.results[0] == recomputed.TOO_MANY:
            raise CheckFailed(
                f"for {count} layers it was stopped after {most:,} lines of Python",
                f"about {count} * {count} steps",
                f"There are {2 ** (count - 1):,} ways to cut. Don't go through them: work out `least[start]` once for "
                "each start, and look it up.",
            )
        starts = answer.results[0]
        expect_starts(starts, count)
        peak = peak_of(starts, given, inside)
        every = ([0, *(n for n in range(1, count) if cuts >> n & 1)] for cuts in range(0, 2**count, 2))
        best = min(every, key=lambda each: peak_of(each, given, inside))
        least = peak_of(best, given, inside)
        if peak > least:
            raise CheckFailed(
                f"for boundaries {given} and keeps {inside} the segments that start at {starts} have a peak of {peak}",
                str(least),
                shape_of(starts, count),
            )
        return f"a peak of {least}, the least of {2 ** (count - 1)} ways to cut {count} layers."

    return Case([[given], [inside]], for_all={"most": most}, driver=recomputed.in_steps, also=also)


### BEGIN HIDDEN TESTS
hidden_best_segments = vary(
    best_segments, values=[([3], [5]), (10,), (14,), ([50, 1, 1, 50, 1, 1], [60, 20, 20, 60, 2, 2])]
)
### END HIDDEN TESTS


def shape_of(starts: list[int], count: int) -> str:
    """What there is to say of a cut that isn't the best: nothing, if its segments have different lengths."""
    if len(starts) == 1:
        return "All layers are one segment, so all that they keep is alive at once."
    if len(starts) == count:
        return "Every layer is a segment of its own. The inputs of all segments before it stay alive while one runs."
    if starts == list(range(0, count, starts[1])):
        return "These segments have equal lengths: let each have a length of its own."
    return ""


def expect_starts(starts: Any, count: int) -> None:
    if not isinstance(starts, list) or not all(type(start) is int for start in starts):
        raise CheckFailed(f"it returned {starts!r}"[:200], "a list of whole numbers")
    if not starts or starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= count:
        raise CheckFailed(
            f"it returned {starts}",
            f"the numbers of the layers where segments start: 0 first, then rising, all below {count}",
        )


# ---- selective checkpoints

Asked = tuple[str, list[tuple[int, ...]]]  # an operation's name, and the shapes of its arguments
PRODUCTS = ("mm", "bmm", "addmm")


def products(least: int) -> list[Asked]:
    """Every kind of product, below the limit, at it and above it, with other dimensions that would mislead."""
    asked: list[Asked] = [("gelu", [(least, 2 * least)]), ("add", [(2, 3 * least), (2, 3 * least)]), ("arange", [])]
    for inner in (least - 1, 2 * least, least):  # where an answer is only wrong at the limit, nothing fails before it
        for rows, columns in ((3, 3 * least), (3 * least, 3)):
            asked.append(("mm", [(rows, inner), (inner, columns)]))
            asked.append(("addmm", [(columns,), (rows, inner), (inner, columns)]))
            asked.append(("bmm", [(least + 1, rows, inner), (least + 1, inner, columns)]))
    return [*asked, ("mm", [(least + 1, 3), (3, 2)])]  # many rows, but not many numbers


@oracle(values=[(128,)])
def keep_expensive(_: Draws, least: int) -> Case:
    asked = products(least)

    keeps = [name in PRODUCTS and shapes[-1][-2] >= least for name, shapes in asked]
    usual = "no CheckpointPolicy for some operations: return MUST_SAVE or PREFER_RECOMPUTE in each case"
    return Case(
        [[asked]],
        for_all={"least": least},
        driver=decisions,
        right={words_for(*one): "keep" if keep else "recompute" for one, keep in zip(asked, keeps, strict=True)},
        mistakes={"": {usual: lambda got: not {"keep", "recompute"}.issuperset(got.values())}},
        seen=f"least = {least}, {{part}}: the policy said",
    )


### BEGIN HIDDEN TESTS
hidden_keep_expensive = vary(keep_expensive, values=[(2,), (64,), (1000,)])
### END HIDDEN TESTS


# ---- partitioned over a group


@oracle(
    values=[([[0, 1]], (4, 3)), ([[0, 2], [1, 3]], (5, 3))],
    memory=[([[0, 1, 2]], (300, 311))],
    traffic=[([[0, 1]], (4, 5))],
    if_stuck="every rank of the group must gather once for each saved tensor, and no rank of another group may.",
)
def pieces_over(
    draws: Draws, groups: list[list[int]], shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Case:
    ranks, size = sum(map(len, groups)), len(groups[0])
    number = {rank: n for n, members in enumerate(groups) for rank in members}
    xs = [normal(draws, *shape, seed=number[rank], dtype=dtype) for rank in range(ranks)]
    gradients = [normal(draws, *shape, seed=10, dtype=dtype) for _ in range(ranks)]
    piece = -(-xs[0].numel() // size) * dtype.itemsize

    right = [gradient_of(x + 1, g) for x, g in zip(xs, gradients, strict=True)]

    return Case(
        [xs],
        for_all={"groups": groups},
        driver=packed,
        then=Then(unpacked, [gradients]),
        right={"the gradient": right},
        mistakes={
            "the gradient": {
                "right to some 7 digits: the tensor has come back in float32": lambda got: (
                    isinstance(got, Tensor) and any(nearly(got, one) for one in right)
                ),
            }
        },
        advice={
            "invalid tensor size": (
                "The gather must be handed the group, and every rank of it a piece of the same size, ceil(n / t) "
                "numbers: lay the tensor's numbers end to end, and pad."
            ),
            "invalid tensor type": "What is gathered has the dtype of the pieces: take piece.new_empty(...).",
            "is invalid for input of size [1-9]": "Pad before you cut; cut the padding off before .view(shape).",
            "is invalid for input of size 0": (
                "This rank's piece was empty. Its place in the group is dist.get_rank(group), not its number in the "
                "world."
            ),
            "Mismatch in shape: grad_output": (
                "unpack returned a different shape from what pack was given: keep each tensor's shape with its piece, "
                "cut off the padding, then take .view(shape)."
            ),
        },
        world_size=ranks,
        values_first=True,
        memory=lambda answer: judge_pieces(answer, size, piece, xs[0].nbytes),
        traffic=lambda answer: judge_gathers(answer, piece),
    )


### BEGIN HIDDEN TESTS
hidden_pieces_over = vary(
    pieces_over,
    values=[([[0, 1, 2]], (7,)), ([[1, 0]], (2, 2, 3), torch.float64), ([[0]], (3,)), ([[0, 1, 2]], (2,))],
    memory=[([[0, 2], [1, 3]], (5, 13), torch.float64)],
    traffic=[([[0, 1, 2]], (5, 2))],
)
### END HIDDEN TESTS


A_SHAPE = 64  # bytes of what else `pack` may keep, such as the shape


def judge_pieces(answer: Answer, size: int, piece: int, whole: int) -> str:
    """size: of a group. piece, whole: bytes."""
    assert answer.first
    for rank, result in enumerate(answer.first.results):
        came = bytes_of(result["packed"])
        expect_possible(rank, min(result["kept"], came), least=whole - (size - 1) * piece)
        kept = max(result["kept"], came - A_SHAPE)
        if kept > piece:
            raise CheckFailed(f"rank {rank} keeps {kept:,} bytes", f"{piece:,}", too_much(kept, piece, whole))
    return f"each rank keeps {piece:,} bytes of {whole:,}."


def judge_gathers(answer: Answer, piece: int) -> str:
    for rank in range(len(answer.results)):
        calls = [(event.op, event.bytes) for event in answer.events if event.rank == rank]
        if calls != [("all_gather", piece)]:
            shown = ", ".join(f"{op} of {nbytes} bytes" for op, nbytes in calls) or "nothing"
            raise CheckFailed(f"rank {rank} called {shown}", f"one all_gather of {piece} bytes, in unpack")
    return f"one all_gather of {piece} bytes."


def too_much(kept: int, piece: int, whole: int) -> str:
    if kept >= whole + piece:
        return "The whole tensor is kept besides the piece: pack may return its shape, but not the tensor."
    if kept >= whole:
        return (
            "That is the whole tensor. A piece that is a view keeps all of it alive: keep .clone() of the piece, and "
            "gather in unpack."
        )
    return "Keep this rank's piece alone."


def nearly(got: Tensor, right: Tensor) -> bool:
    """Whether all but the last digits of float64 numbers are right."""
    close = got.shape == right.shape and torch.allclose(got.double(), right.double(), rtol=1e-5, atol=1e-5)
    return close and right.dtype == torch.float64


def gradient_of(x: Tensor, gradient: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(squared_sine(leaf), leaf, gradient)[0]


# ---- the challenge


@oracle(score=[(24, 1, 0.4)], par=frozen_par(ROOM, "recompute-plan"))
def recompute_plan(_: Draws, layers: int, seed: int, share: float) -> Case:
    """share: how much of what all layers keep there is room for."""
    chain = drawn_chain(layers, seed)
    memory = int(share * sum(chain.keeps))
    return Case(
        [[chain.boundaries], [chain.keeps], [chain.seconds], [memory]],
        also=lambda answer: expect_plan(answer.results[0], chain.boundaries, chain.keeps, memory),
        score=Measure(lambda answer: seconds_of_step(chain, answer.results[0]), "s", "of virtual time"),
        limit=seconds_of_step(chain, [(0, layers, False)]),
    )


### BEGIN HIDDEN TESTS


def seconds_of_recompute_plan(layers: int, seed: int, share: float) -> float:
    """Each layer by itself; those that cost most time per byte are kept, as long as they fit."""
    chain = drawn_chain(layers, seed)
    boundaries, keeps, seconds = chain.boundaries, chain.keeps, chain.seconds
    again = [True] * layers

    def plan() -> list[tuple[int, int, bool]]:
        return [(number, number + 1, recompute) for number, recompute in enumerate(again)]

    for number in sorted(range(layers), key=lambda n: seconds[n] / (keeps[n] - boundaries[n]), reverse=True):
        again[number] = False
        again[number] = peak_of_plan(plan(), boundaries, keeps) > share * sum(keeps)
    return float(seconds_of_step(chain, plan()))


hidden_recompute_plan = vary(recompute_plan, par=seconds_of_recompute_plan, score=[(16, 2, 0.5), (30, 3, 0.35)])
### END HIDDEN TESTS


def seconds_of_step(chain: Chain, plan: Sequence[Segment]) -> float:
    return simulate(train_chain, 1, chain, plan, cluster="dgx-h100").elapsed


def expect_plan(plan: Any, boundaries: list[int], keeps: list[int], memory: int) -> None:
    segments = plan if isinstance(plan, list) else []
    if not segments or not all(
        isinstance(each, tuple) and len(each) == 3 and type(each[0]) is type(each[1]) is int and type(each[2]) is bool
        for each in segments
    ):
        raise CheckFailed(f"it returned {plan!r}"[:200], "a list of (start, end, recompute): two whole numbers, a bool")
    place = 0
    for start, end, _ in segments:
        if start != place or end <= start:
            raise CheckFailed(
                f"a segment goes from layer {start} to {end}", f"one that starts at {place}, and ends later"
            )
        place = end
    if place != len(keeps):
        raise CheckFailed(f"the last segment ends at {place}", str(len(keeps)))
    peak = peak_of_plan(segments, boundaries, keeps)
    if peak > memory:
        raise CheckFailed(f"the plan has a peak of {peak} bytes", f"{memory} or less")


### BEGIN HIDDEN TESTS
FROZEN = (
    vary(recompute_plan, par=seconds_of_recompute_plan),
    vary(hidden_peak_bytes, values=[(15, 5, 3, 5), (24, 4, 10, 20), (11, 4, 10, 25), (6, 6, 5, 7)]),
    vary(
        hidden_stage_peak,
        values=[
            (3, 10, 14, 2, 1, 4, False),
            (3, 9, 13, 3, 1, 5, True),
            (3, 4, 8, 2, 3, 10, True),
            (0, 4, 2, 3, 2, 7, True),
        ],
    ),
)
### END HIDDEN TESTS
