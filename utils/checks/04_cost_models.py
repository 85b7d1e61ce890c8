"""The visible checks of lesson 04. Where the answer is a formula, grader/hidden/04_cost_models.py has the oracle.

What can be confirmed by a run is: times by the clock of virtual GPUs and links, memory by the bytes that are alive.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from .. import RankError, track_memory
from ..cluster.hardware import Cluster, Gpu, Link
from ..cluster.presets import find_cluster
from ..kit import gpu_topology, split_mlp
from ..kit.message_rounds import Round, play
from ..kit.slow_memory import Load, SlowMemory, unwritten
from ..text.units import plural, quantity
from .answer import Answer, CheckFailed
from .closed_forms import simulate
from .equality import alike, is_number
from .inputs import Draws
from .oracles import Case, as_tuple, every, oracle
from .recorded import recorded, recorded_par
from .scores import Measure
from .show import show

bandwidth_of_levels = recorded("04_cost_models", "bandwidth-of-levels")
roofline_time = recorded("04_cost_models", "roofline-time")
collective_costs = recorded("04_cost_models", "collective-costs")
tuning_table = recorded("04_cost_models", "tuning-table")
critical_batch = recorded("04_cost_models", "critical-batch")
scaling_efficiency = recorded("04_cost_models", "scaling-efficiency")
activation_bytes = recorded("04_cost_models", "activation-bytes")
mfu_and_hfu = recorded("04_cost_models", "mfu-and-hfu")


# ---- part 2

GPU = Gpu(flops={"bf16": 400e12, "fp32": 50e12}, memory=80e9, bandwidth=2e12, launch=3e-6)
INPUTS = {"add": 2, "matmul": 2, "relu": 1}


def operate(rank: int, world_size: int, name: str, n: int, dtype: torch.dtype) -> None:
    getattr(torch, name)(*(torch.empty(n, n, dtype=dtype) for _ in range(INPUTS[name])))


@oracle("roofline-time", time=[(torch.bfloat16, ("add", 3000), ("relu", 1000), ("matmul", 64), ("matmul", 2048))])
def roofline_on_the_clock(_: Draws, dtype: torch.dtype, *operations: tuple[str, int]) -> Case:
    """Each rank predicts an operation on (n, n) matrices. What is right, the clock of a virtual GPU says."""
    nowhere = Link(0, math.inf)
    one = Cluster("one GPU", 1, 1, gpu=GPU, intra=nowhere, inter=nowhere)
    took = [simulate(operate, 1, name, n, dtype, cluster=one).elapsed for name, n in operations]
    said = ", ".join(f"{name} {n:,}: {quantity(s, 's')}" for (name, n), s in zip(operations, took, strict=True))
    flops = [float({"add": n**2, "matmul": 2 * n**3}.get(name, 0)) for name, n in operations]
    moved = [float((INPUTS[name] + 1) * n**2 * dtype.itemsize) for name, n in operations]
    return Case(
        [flops, moved],
        same={"gpu": GPU, "dtype": str(dtype).removeprefix("torch.")},
        right={"seconds": took},
        rtol=1e-6,
        seen=[f"{name} of size {n:,}: you predict" for name, n in operations],
        in_order=True,
        unpack=lambda got, rank: as_tuple(got, ["seconds", "the bound"], rank),
        values_first=True,
        time=lambda _: f"the virtual GPU took what you predicted: {said}.",
    )


# ---- part 3


@oracle(values=[(20, 16), (10, 16)], traffic=[(1000, 256)])
def fused_chain(
    draws: Draws, numel: int, room: int, dtype: torch.dtype = torch.float32, scale: float = 2.0, shift: float = 3.0
) -> Case:
    x = draws.different_integers(1, numel, dtype)[0] - 15
    right, empty = (x * scale + shift).clamp(min=0), unwritten(numel, dtype=dtype)
    whole = numel - numel % (room // 4)
    mistakes = {
        "nothing: no number of y was stored": empty,
        "without the last, shorter block": torch.cat([right[:whole], empty[whole:]]),
        "without the relu: numbers below 0 become 0": x * scale + shift,
        "with the shift first: scale, then shift": ((x + shift) * scale).clamp(min=0),
        "with the relu first: it comes last": x.clamp(min=0) * scale + shift,
        "x itself": x,
    }
    return Case(
        [[SlowMemory({"x": x, "y": empty}, room)]],
        same={"numel": numel, "scale": scale, "shift": shift},
        right={"y": right, "x": x},
        mistakes={"y": mistakes},
        seen="afterwards {part} is",
        unpack=lambda got, rank: memory_of(got).arrays,
        unchanged=False,
        traffic=lambda answer: expect_moved(
            answer,
            loaded=(x.nbytes, x.nbytes, "What is already on the chip need not go back to memory and be loaded again."),
            stored=(x.nbytes, x.nbytes, "Compute all three operations before you store."),
            without=f"as three operations it would be {6 * x.nbytes:,}.",
        ),
    )


@oracle(values=[(4, 4, 4, 2), (4, 8, 6, 2)], traffic=[(16, 16, 16, 4)])
def tiled_matmul(draws: Draws, m: int, k: int, n: int, tile: int, dtype: torch.dtype = torch.float32) -> Case:
    """Small whole numbers: every product is exact, in bfloat16 too."""
    [a], [b] = draws.different_integers(1, (m, k)), draws.different_integers(1, (k, n), seed=1)
    a, b, empty = (a % 4).to(dtype), (b % 3).to(dtype), unwritten(m, n, dtype=dtype)
    last = slice((k - 1) // tile * tile, k)
    mistakes = {
        "nothing: no number of c was stored": empty,
        "the last product of tiles: add them up along the inner dimension": a[:, last] @ b[last],
        "the first product of tiles: go on along the inner dimension": a[:, :tile] @ b[:tile],
        "twice the product": 2 * (a @ b),
    }
    mistakes |= {
        f"the sum over the first {side} places of the inner dimension, which has {k}": a[:, :steps] @ b[:steps]
        for side, size in (("m", m), ("n", n))
        if (steps := math.ceil(size / tile) * tile) < k
    }
    if m == n == k and m % tile == 0:
        in_tiles = (m // tile, tile, m // tile, tile)  # row of tiles, row of a tile, column of tiles, column of a tile
        tiles = a.reshape(in_tiles), b.reshape(in_tiles)
        swapped = torch.einsum("IrKk, JkKc -> IrJc", *tiles).reshape(m, n)
        mistakes |= {
            "b @ a": b @ a,
            "a times b transposed": a @ b.T,
            "a product element by element: use @": torch.einsum("IrKc, KrJc -> IrJc", *tiles).reshape(m, n),
            "made with the wrong tiles of b: its rows go along the inner dimension, its columns are C's": swapped,
        }
    most = a.itemsize * (m * k * math.ceil(n / tile) + k * n * math.ceil(m / tile))
    return Case(
        [[SlowMemory({"a": a, "b": b, "c": empty}, room=4 * tile * tile)]],
        same={"m": m, "k": k, "n": n},
        right={"c": a @ b, "a": a, "b": b},
        mistakes={"c": mistakes},
        seen="afterwards {part} is",
        unpack=lambda got, rank: memory_of(got).arrays,
        unchanged=False,
        traffic=lambda answer: expect_met(
            answer,
            (m, k, n),
            expect_moved(
                answer,
                loaded=(a.nbytes + b.nbytes, most, "Each step takes one tile of a and one of b."),
                stored=(empty.nbytes, empty.nbytes, "A tile of c stays on the chip until it is complete."),
                without=f"number by number it would be {a.itemsize * (2 * m * k * n + m * n):,}.",
            ),
        ),
    )


def expect_met(answer: Answer, sizes: tuple[int, int, int], said: str) -> str:
    """Raise CheckFailed unless all numbers of a and b that are multiplied were on the chip at the same time.

    What was computed from a tile, in a different dtype, say, may outlive it until `room` more numbers have been loaded.
    Returns `said`.
    """
    m, k, n = sizes
    memory, met = memory_of(answer.results[0]), torch.zeros(m, k, n, dtype=torch.bool)
    before = list(accumulate((load.numbers for load in memory.loads), initial=0))  # how many numbers came before each
    present: list[Load] = []
    for moment, load in enumerate(memory.loads):
        there = [one for one in present if one.until is None or before[moment] <= before[one.until] + memory.room]
        present = [*there, load]
        for one in there:
            tiles = {part.name: (*part.where, slice(None))[:2] for part in (one, load)}
            if tiles.keys() == {"a", "b"}:
                (rows, left), (right, columns) = tiles["a"], tiles["b"]
                inner = torch.zeros(2, k, dtype=torch.bool)
                inner[0, left] = inner[1, right] = True
                met[rows, :, columns] |= inner.all(0)[:, None]
    if not met.all():
        row, at, column = (~met).nonzero()[0].tolist()
        raise CheckFailed(
            f"a[{row}, {at}] and b[{at}, {column}] were never on the chip at the same time",
            "all that you multiply to be there together",
            "Multiply tiles while both are loaded. Numbers that you keep in variables of your own aren't on the chip.",
        )
    return said


def memory_of(got: Any) -> SlowMemory:
    if not isinstance(got, SlowMemory):
        raise CheckFailed(f"you returned {show(got)}", "the memory")
    return got


def expect_moved(answer: Answer, without: str, **moved: tuple[int, int, str]) -> str:
    """Raise CheckFailed unless so many bytes were loaded and stored: (at least, at most, words for too many)."""
    memory = memory_of(answer.results[0])
    for verb, (least, most, too_many) in moved.items():
        got = getattr(memory, verb)
        if not least <= got <= most:
            few = f"Some numbers were never {verb}: only memory.load and memory.store move what is in memory.arrays."
            wanted = f"{most:,}: each number once" if least == most else f"{least:,} to {most:,}"
            many = f"{got / most:.3g} times what is needed. {too_many}"
            raise CheckFailed(f"you {verb} {got:,} bytes", wanted, many if got > most else few)
    return f"{memory.moved:,} bytes moved; {without}"


# ---- part 4

Matrix = list[list[str]]
CUBE_MESH_EDGES = {
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 6), (3, 7), (4, 7), (5, 6)], "NV2"),
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 3), (4, 5), (4, 6), (5, 7), (6, 7)], "NV1"),
}


def links_of(size: int, edges: dict[tuple[int, int], str], other: str = "SYS") -> Matrix:
    """The matrix in which edges[i, j], i < j, join GPUs, and `other` those that have no edge."""
    return [["X" if i == j else edges.get((min(i, j), max(i, j)), other) for j in range(size)] for i in range(size)]


BRIDGED, PCIE = links_of(2, {(0, 1): "NV4"}), links_of(4, {(0, 2): "PIX", (1, 3): "NODE"})


@oracle(values=[(gpu_topology.recorded("two-bridged"), BRIDGED), (gpu_topology.recorded("four-pcie"), PCIE)])
def read_topology(_: Draws, text: str, matrix: Matrix) -> Case:
    gpus = len(matrix)

    def rows(got: Any, rank: int) -> dict[str, Any]:
        if not isinstance(got, list) or not all(isinstance(row, list) for row in got):
            raise CheckFailed(f"you returned {show(got)}", "a list of lists of strings")
        if len(got) != gpus:
            words = "Only rows of GPUs count: no header, no NICs, no legend." if len(got) > gpus else ""
            raise CheckFailed(f"{gpus} GPUs: you returned {plural(len(got), 'row')}", str(gpus), words)
        return {f"row {gpu}": row for gpu, row in enumerate(got)}

    def mistakes(gpu: int, right: list[str]) -> dict[str, Any]:
        return {
            "with the GPU's name in front": every([f"GPU{gpu}", *right]),
            "shifted: the first word of a line is its name": every([f"GPU{gpu}", *right[:-1]]),
            "with columns that are not GPUs but NICs or affinities": lambda row: row[:gpus] == right,
            "empty: columns may be separated by spaces; line.split() splits at any white space": (
                lambda row: row == [] and "\t" not in text
            ),
            "with white space around the labels": lambda row: [str(label).strip() for label in row] == right,
        }

    return Case(
        [[text]],
        right={f"row {gpu}": every(row) for gpu, row in enumerate(matrix)},
        mistakes={f"row {gpu}": mistakes(gpu, row) for gpu, row in enumerate(matrix)},
        seen=f"{gpus} GPUs: {{part}} is",
        unpack=rows,
    )


# ---- part 5: collective-costs on the clock

LINK, ADDS = Link(alpha=2e-6, bandwidth=1e10), Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=6e10)
GAMMA = 3 / ADDS.bandwidth  # to add m bytes reads two chunks and writes one
HALVES = [([(0, 2), (2, 0), (1, 3), (3, 1)], 1 / 2), ([(0, 1), (1, 0), (2, 3), (3, 2)], 1 / 4)]
ROUNDS: dict[tuple[str, int], list[Round]] = {
    ("flat gather", 3): [Round([(1, 0)], 1 / 3, False), Round([(2, 0)], 1 / 3, False)],
    ("flat scatter", 3): [Round([(0, 1)], 1 / 3, False), Round([(0, 2)], 1 / 3, False)],
    ("tree broadcast", 3): [Round([(0, 1)], 1, False), Round([(0, 2)], 1, False)],
    ("tree reduce", 4): [Round([(1, 0), (3, 2)], 1, True), Round([(2, 0)], 1, True)],
    ("ring reduce-scatter", 3): [Round([(0, 1), (1, 2), (2, 0)], 1 / 3, True)] * 2,
    ("ring all-gather", 4): [Round([(0, 1), (1, 2), (2, 3), (3, 0)], 1 / 4, False)] * 3,
    ("halving-doubling all-reduce", 4): [
        *[Round(pairs, share, True) for pairs, share in HALVES],
        *[Round(pairs, share, False) for pairs, share in reversed(HALVES)],
    ],
}


@oracle(
    "collective-costs",
    time=[(("flat gather", 3), ("tree reduce", 4), ("ring reduce-scatter", 3), ("halving-doubling all-reduce", 4))],
)
def collective_costs_on_the_clock(_: Draws, *runs: tuple[str, int]) -> Case:
    """Each rank predicts an algorithm for some number of ranks. What is right, a run of its messages says."""
    nbytes = 12_000_000
    took = [
        simulate(play, ranks, ROUNDS[name, ranks], nbytes, cluster=Cluster("lab", 1, ranks, ADDS, LINK, LINK)).elapsed
        for name, ranks in runs
    ]

    def seconds(got: Any, rank: int) -> dict[str, Any]:
        costs = as_tuple(got, ["the messages", "what is sent", "what is added"], rank)
        for part, one in costs.items():
            if not is_number(one):
                raise CheckFailed(f"{runs[rank][0]}: {part} is {show(one)}", "a number")
        messages, sent, added = costs.values()
        return {"seconds": messages * LINK.alpha + nbytes * (sent / LINK.bandwidth + added * GAMMA)}

    said = ", ".join(f"{name}: {quantity(s, 's')}" for (name, _), s in zip(runs, took, strict=True))
    return Case(
        [[name for name, _ in runs], [ranks for _, ranks in runs]],
        right={"seconds": took},
        rtol=1e-9,
        seen=[f"{name} of 12 MB on {ranks} ranks: by your numbers it takes, in seconds," for name, ranks in runs],
        in_order=True,
        unpack=seconds,
        values_first=True,
        time=lambda _: f"the virtual cluster took what you predicted: {said}.",
    )


# ---- two-lines

Line = tuple[float, float]  # alpha in seconds, beta in seconds per byte


def fit(sizes: list[int], seconds: list[float]) -> Line:
    """The line through the first and the last point: a student's function gets it as `fit`, and has to use it.

    It refuses parts that are too small.
    """
    if len(sizes) < 3 or len(sizes) != len(seconds):  # a rank in grading has no CheckFailed
        given = f"fit was given {len(sizes)} sizes and {len(seconds)} times"
        raise ValueError(f"{given}: a part has three at least, and as many of both")
    beta = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    return seconds[0] - sizes[0] * beta, beta


def misses(line: Line, sizes: list[int], seconds: list[float]) -> list[float]:
    alpha, beta = line
    return [(alpha + n * beta) / t - 1 for n, t in zip(sizes, seconds, strict=True)]


DRAWS = 200  # at most, until each other way to choose the cut chooses another one


@oracle(values=[(10, 5, (20e-6, 1e-10), (90e-6, 2e-11), 0.3), (6, 3, (1e-5, 1e-9), (1e-4, 1e-10), 0.0)])
def two_lines(draws: Draws, count: int, cut: int, left: Line, right: Line, noise: float) -> Case:
    """`count` sizes, four times as large each; from size number `cut` on they follow the second line."""
    sizes, generator = [4**power * 1024 for power in range(count)], draws.generator()
    lines = [left] * cut + [right] * (count - cut)
    shaken = 1 + noise * (2 * torch.rand(DRAWS, count, generator=generator, dtype=torch.float64) - 1)
    exact = [alpha + n * beta for (alpha, beta), n in zip(lines, sizes, strict=True)]
    found = []
    for factors in shaken.tolist() if noise else [[1.0] * count]:
        seconds = [t * factor for t, factor in zip(exact, factors, strict=True)]
        others = cuts_by(sizes, seconds)
        best = others.pop(RIGHTLY)
        found.append((sum(other == best for other in others.values()), seconds))
        if found[-1][0] == 0:
            break
    return case_of_lines(sizes, min(found)[1])


RIGHTLY = "as the docstring says"
WAYS: dict[str, tuple[Callable[[float, float], float], Callable[[list[float]], float]]] = {
    RIGHTLY: (lambda miss, _: miss**2, sum),
    "the cut with the smallest ABSOLUTE errors: take relative ones": (lambda miss, t: (miss * t) ** 2, sum),
    "the cut with the smallest errors relative to the line: divide by the seconds that were measured": (
        lambda miss, _: (miss / (1 + miss)) ** 2,
        sum,
    ),
    "the cut with the smallest sum of errors: square them first": (lambda miss, _: abs(miss), sum),
    "the cut whose largest error is smallest: take the smallest sum of squares": (lambda miss, _: abs(miss), max),
    "a cut whose errors cancel, or the worst of all: square the errors, then take the smallest sum": (
        lambda miss, _: miss,
        sum,
    ),
    "the worst of all cuts: take the smallest sum": (lambda miss, _: -(miss**2), sum),
}
IN_THE_MIDDLE = "the cut in the middle: try all of them"


Cut = tuple[int, Line, Line]  # the first size of the second part, and the two lines


def cut_at(sizes: list[int], seconds: list[float], at: int, shared: int = 0) -> Cut:
    """shared: how many sizes from the cut on belong to the first part, too."""
    return sizes[at], fit(sizes[: at + shared], seconds[: at + shared]), fit(sizes[at:], seconds[at:])


def cuts_by(sizes: list[int], seconds: list[float], shared: int = 0) -> dict[str, Cut]:
    """{words: the cut that is chosen so}. WAYS are of (relative error, seconds) of each size, and of all of them."""
    cuts = {at: cut_at(sizes, seconds, at, shared) for at in range(3, len(sizes) - 2)}
    errors = {
        at: misses(below, sizes[:at], seconds[:at]) + misses(above, sizes[at:], seconds[at:])
        for at, (_, below, above) in cuts.items()
    }
    found = {IN_THE_MIDDLE: cuts[len(sizes) // 2]}
    for words, (error, of_all) in WAYS.items():
        totals = {
            at: of_all([error(miss, t) for miss, t in zip(each, seconds, strict=True)]) for at, each in errors.items()
        }
        found[words] = cuts[min(totals, key=totals.__getitem__)]
    return found


def case_of_lines(sizes: list[int], seconds: list[float]) -> Case:
    cuts, one = cuts_by(sizes, seconds), fit(sizes, seconds)
    first, below, above = right = cuts.pop(RIGHTLY)
    at = sizes.index(first)
    lines = [
        one,
        *(line for n in range(3, len(sizes) - 2) for k in (0, 1) for line in cut_at(sizes, seconds, n, k)[1:]),
    ]

    def fits_otherwise(got: Any) -> bool:
        if not isinstance(got, tuple | list) or len(got) != 3:
            return False
        return not any(alike(mine, line, 1e-9) for mine in got[1:] for line in lines)

    several: dict[Cut, list[str]] = {}  # what leads to the same cut is named together
    for words, cut in cuts.items():
        several.setdefault(cut, []).append(words)
    mistakes = {
        "the two lines in the wrong order": (first, above, below),
        "the last size of the first part: return the first one of the second": (sizes[at - 1], below, above),
        "the place of the cut: return the size in bytes": (at, below, above),
        "one line for all sizes": (first, one, one),
        "made with lines that share a size: the second part begins behind the first": (
            cuts_by(sizes, seconds, shared=1)[RIGHTLY]
        ),
        **{"; or ".join(words): cut for cut, words in several.items() if cut != right},
        "not what the `fit` that you are given says of these parts": fits_otherwise,
    }
    return Case(
        same={"sizes": sizes, "seconds": seconds, "fit": fit},
        right={"the first size of the second part": first, "the first line": below, "the second line": above},
        rtol=1e-9,
        mistakes={"": mistakes},
        seen=f"{len(sizes)} sizes: {{part}} is",
        advice={"is an empty sequence|is empty": "No cut was tried: with six sizes there is one, at place 3."},
    )


# ---- part 6: critical-batch on the clock


def backward_beside(rank: int, world_size: int, dim: int, tokens: int) -> float:
    """Backward through one layer during an all-reduce of its gradient; returns seconds that are waited for."""
    weight, gradient, x = torch.empty(dim, dim), torch.empty(dim, dim), torch.empty(tokens, dim)
    handle = dist.all_reduce(gradient, async_op=True)
    _ = x @ weight, x.T @ x  # as many FLOP as the gradients of x and of the weight
    computed = time.perf_counter()
    handle.wait()
    return time.perf_counter() - computed


@oracle("critical-batch", time=[(2000, 3, Link(2e-6, 2e10)), (1000, 2, Link(1.37e-6, 5e10))])
def critical_batch_on_the_clock(_: Draws, dim: int, ranks: int, link: Link) -> Case:
    gpu = Gpu(flops={"fp32": 2e13}, memory=math.inf, bandwidth=math.inf)
    lab = Cluster("lab", 1, ranks, gpu, link, link)

    def waits(tokens: int) -> float:
        return float(max(simulate(backward_beside, ranks, dim, tokens, cluster=lab).results))

    def expect_no_waiting(answer: Answer) -> str:
        tokens = answer.results[0]
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 < tokens < 10**7:
            raise CheckFailed(f"you returned {show(tokens)}", "a whole number of tokens", "Round up: math.ceil(...).")
        waited, with_less = waits(tokens), waits(tokens - 1)
        if waited > 1e-12:
            raise CheckFailed(
                f"with {tokens:,} tokens each GPU waits {quantity(waited, 's')} for the all-reduce", "no waiting"
            )
        if with_less <= 1e-12:
            raise CheckFailed(
                f"with {tokens - 1:,} tokens nobody waits either; you returned {tokens:,}", "the smallest"
            )
        return f"with {tokens:,} tokens no GPU waits, with {tokens - 1:,} each waits {quantity(with_less, 's')}."

    return Case(
        same={
            **{"parameters": dim * dim, "itemsize": 4, "peak": gpu.peak("float32"), "P": ranks},
            **{"alpha": link.alpha, "bandwidth": link.bandwidth},
        },
        time=expect_no_waiting,
    )


# ---- part 7: sharded-state

BYTES = "bytes of what is returned"


def hold(function: Callable[..., Any], recipe: dict[str, str], **given: Any) -> dict[str, Any]:
    """What a rank holds, {name: its shape and dtype}, and the bytes of all of it."""
    dtypes = {name: getattr(torch, dtype) for name, dtype in recipe.items()}
    with track_memory():
        state = function(recipe=dtypes, **given)
        if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
            return {"it": repr(state)[:100]}
        shapes = {name: f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for name, one in state.items()}
        return {**shapes, BYTES: sum(one.nbytes for one in state.values())}


sharded_state = recorded("04_cost_models", "sharded-state", through=hold)


@oracle("sharded-state", memory=[(1_000_000, {"parameters": "bfloat16", "m": "float32"}, 3, 8)])
def sharded_state_memory(_: Draws, parameters: int, recipe: dict[str, str], stage: int, ranks: int) -> Case:
    def expect_nothing_larger(answer: Answer) -> str:
        returned, peak = answer.results[0].get(BYTES), answer.run.memory().peak[0]
        if returned is None:
            raise CheckFailed(f"you returned {answer.results[0]['it']}", "a dict of tensors")
        if peak is None or peak > returned:
            raise CheckFailed(
                f"at the peak {peak:,} bytes were alive, to return {returned:,}",
                f"{returned:,}",
                "Make each tensor in its final size. A slice of a whole tensor is a view and keeps the whole alive.",
            )
        return f"{returned:,} bytes, and no more at any time."

    return Case(
        same={"parameters": parameters, "recipe": recipe, "stage": stage, "world_size": ranks},
        through=hold,
        memory=expect_nothing_larger,
    )


# ---- the challenge

DIM, LAYERS, PER_MACHINE = 16384, 16, 8


def seconds_per_row_that_counts(plan: tuple[int, int, int], critical: int) -> float:
    """By a run of it. Raises CheckFailed if it fails: if the plan needs too much memory, say."""
    dp, tp, rows = plan
    try:
        run = simulate(split_mlp.step, dp * tp, dp, tp, rows, dim=DIM, layers=LAYERS, cluster="dgx-h100")
    except RankError as error:
        said = str(error).splitlines()[0]
        raise CheckFailed(
            f"the run of your plan {plan} fails: {said}", mistake="Does it fit into the memory?"
        ) from None
    return float(max(run.results) / rows * (1 + rows / critical))


@oracle(score=[(2, 32768)], par=recorded_par("04_cost_models", "best-plan"))
def best_plan(_: Draws, machines: int, critical: int) -> Case:
    gpus = PER_MACHINE * machines

    def expect_plan(answer: Answer) -> None:
        plan = answer.results[0]
        numbers = as_tuple(plan, ["dp", "tp", "rows"], 0)
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise CheckFailed(f"{name} is {show(number)}", "a whole number, 1 or more")
        dp, tp, rows = numbers.values()
        if dp * tp > gpus:
            raise CheckFailed(f"dp {dp} times tp {tp} is {dp * tp} GPUs", f"{gpus} at most")
        if tp & (tp - 1):
            raise CheckFailed(f"tp is {tp}", "a power of two")
        if rows % dp:
            raise CheckFailed(
                f"{rows:,} rows for {dp} groups", "a multiple of dp", "Each group has the same number of rows."
            )

    return Case(
        same={"machines": machines, "critical": critical},
        also=expect_plan,
        score=Measure(
            lambda answer: seconds_per_row_that_counts(tuple(answer.results[0]), critical), "s", "per row that counts"
        ),
        limit=6 * LAYERS * DIM**2 / (gpus * find_cluster("dgx-h100", gpus).gpu.peak("bfloat16")),
    )
