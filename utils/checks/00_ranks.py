"""The visible checks of lesson 00. Where the answer is a formula, grader/hidden/00_ranks.py has the oracle."""

from __future__ import annotations

import math
import operator
import os
import shutil
import tempfile
import weakref
from itertools import accumulate, pairwise
from typing import Any

import torch

from .. import simulate
from ..cluster.hardware import Cluster, Gpu, Link
from ..kit import gpu_topology
from ..kit.gpu_topology import speed
from ..kit.slow_memory import Load, SlowMemory, unwritten
from ..text.units import plural, quantity
from .answer import Answer, CheckFailed
from .inputs import Draws
from .marking import check
from .oracles import Case, as_tuple, every, oracle
from .recorded import recorded
from .runner import Runner
from .show import show
from .traffic import SHARED_FILE, calls_of_ranks

memory_wall = recorded("00_ranks", "memory-wall")
bandwidth_of_levels = recorded("00_ranks", "bandwidth-of-levels")
arithmetic_intensity = recorded("00_ranks", "arithmetic-intensity")
roofline_time = recorded("00_ranks", "roofline-time")


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


MEET = (
    "all ranks must name the same path, a new one for each meeting; each names its own rank, and all the same "
    "world_size. init_process_group waits until every rank has called it."
)
MEETING = {  # what torch means by its errors
    "twice": "The first meeting must be over before the second: after each gathering, call "
    "dist.destroy_process_group() on every rank.",
    "has not been initialized": "There is no process group, or no longer: each rank calls dist.init_process_group "
    "before the gathering and dist.destroy_process_group after it.",
    "incompatible constructor": "store= takes the store, dist.FileStore(path, world_size), and not its path.",
    "must be positive": "With a store, PyTorch needs rank= and world_size= too.",
    "rank < size": "Each rank names the same world_size: how many ranks there are in all.",
    "Wait timeout": f"A rank did not come: {MEET}",
}


@oracle(values=[([7, 5, 9, 4], 2)], if_stuck=MEET)
def rendezvous_by_hand(_: Draws, numbers: list[int], meetings: int) -> Case:
    folder = tempfile.mkdtemp()
    paths = [os.path.join(folder, f"meeting-{number}") for number in range(meetings)]

    def explain(got: Any, rank: int) -> str:
        if got is True:
            return "the last meeting's: each ends with dist.destroy_process_group(), the last one too"
        if len(items(got)) != meetings:
            return "not one list for each path"
        in_order = [sorted(items(met)) for met in got] == [sorted(items(numbers))] * meetings
        return "the right numbers in a different order: a rank did not give its own `rank`" if in_order else ""

    case = Case(
        [numbers, [paths] * len(numbers)],
        right={"gathered": every([numbers] * meetings), "still has a process group:": False},
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
        "in the order of the ranks: use `order`": every(sorted(right)),
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

    def expect_barrier(answer: Answer) -> None:
        for rank in range(len(losses)):
            if [event.op for event in answer.events if event.rank == rank][-1:] != ["barrier"]:
                raise CheckFailed(f"rank {rank} did not end at the barrier", "dist.barrier() after the loop")

    return Case(
        [losses],
        right={"the averages": every(right)},
        mistakes={"the averages": {f"too short. {words}": every(wrong) for words, wrong in too_short.items()}},
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


# ---- part 4

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


# ---- part 5


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


@oracle(values=[(4, 4, 4, 2), (4, 6, 8, 2)], traffic=[(16, 16, 16, 4)])
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
    for time, load in enumerate(memory.loads):
        there = [one for one in present if one.until is None or before[time] <= before[one.until] + memory.room]
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


# ---- part 6

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
            "with white space around the labels": lambda row: [label.strip() for label in items(row)] == right,
        }

    return Case(
        [[text]],
        right={f"row {gpu}": every(row) for gpu, row in enumerate(matrix)},
        mistakes={f"row {gpu}": mistakes(gpu, row) for gpu, row in enumerate(matrix)},
        seen=f"{gpus} GPUs: {{part}} is",
        unpack=rows,
    )


FOUR_GPUS = links_of(4, {(0, 2): "NV2", (1, 2): "PIX", (1, 3): "NV1", (0, 3): "PHB", (0, 1): "NV4"})


@oracle(values=[(links_of(8, CUBE_MESH_EDGES),), (FOUR_GPUS,)])
def best_ring(_: Draws, matrix: Matrix) -> Case:
    return Case(same={"matrix": matrix}, also=lambda answer: expect_best(answer.results[0], matrix))


def expect_best(ring: Any, matrix: Matrix) -> None:
    """Raise CheckFailed unless this is a ring of all GPUs whose slowest link is as fast as one can be."""
    gpus = len(matrix)
    if not are_numbers(ring) or isinstance(ring, set) or sorted(ring) != list(range(gpus)) or ring[0] != 0:
        twice = len(items(ring)) == gpus + 1 and ring[0] == ring[-1]
        words = "Don't name the first one again at the end: a ring is closed anyway." if twice else ""
        raise CheckFailed(f"{gpus} GPUs: you returned {show(ring)}", "a list of all, each once, GPU 0 first", words)
    links = [(matrix[one][two], one, two) for one, two in pairwise([*ring, 0])]
    label, one, two = min(links, key=lambda link: speed(link[0]))
    labels = {label for row in matrix for label in row} - {"X"}
    if speed(label) < max(speed(least) for least in labels if closes(matrix, [0], speed(least))):
        raise CheckFailed(
            f"{gpus} GPUs, ring {show(ring)}: its slowest link is {label}, between GPU {one} and GPU {two}",
            "a ring with a faster one",
            "A ring is closed: the link from the last to the first counts too." if two == 0 else "",
        )


def closes(matrix: Matrix, path: list[int], least: int) -> bool:
    """Whether `path` can be extended to a ring of all GPUs, with links of at least this speed."""
    here = path[-1]
    if len(path) == len(matrix):
        return speed(matrix[here][path[0]]) >= least
    onward = [gpu for gpu in range(len(matrix)) if gpu not in path and speed(matrix[here][gpu]) >= least]
    return any(closes(matrix, [*path, gpu], least) for gpu in onward)
