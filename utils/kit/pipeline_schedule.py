"""A pipeline schedule as data, each rank's list of steps, and functions that check and time it.

    schedules = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)],     rank 0: forward of microbatch 0, of microbatch 1, ...
                 [("F", 0), ("B", 0), ("F", 1), ("B", 1)]]     rank 1
    problem(schedules)              what keeps it from running, as text; "" if it can run
    timed(schedules)                when each step starts and ends if messages take no time
    figures.schedule(schedules)     a picture, even of a schedule that deadlocks
    play(schedules)                 a Run on the virtual cluster, with real messages (play_schedule.py)

A step is (kind, microbatch), or (kind, microbatch, chunk) where a rank has several stages.

    F   forward: needs the forward of the stage before
    B   backward: needs the backward of the stage after, and what this stage's own forward saved
    W   gradient of the weights, if B computes only the gradient of the input: needs this stage's own B

With P ranks, chunk c of rank r is stage c * P + r. What a good schedule looks like is for you to find out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ..text.units import plural

COSTS = {"F": 1.0, "B": 2.0, "W": 1.0}  # seconds; backward has two matrix products for each one of forward
SPLIT_COSTS = {"F": 1.0, "B": 1.0, "W": 1.0}  # if backward is split into B and W


class Step(NamedTuple):
    """One step of one rank."""

    kind: str
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f" of chunk {self.chunk}" if self.chunk else "")


Schedules: TypeAlias = Sequence[Sequence[tuple[str, int] | tuple[str, int, int]]]  # one list of steps per rank


class Slot(NamedTuple):
    """A step of a rank and when it starts and ends, in seconds."""

    rank: int
    step: Step
    start: float
    end: float


def read(schedules: Schedules) -> list[list[Step]]:
    """The schedules with every step as a Step. Raises ValueError that names the first malformed step."""
    steps = []
    for rank, given in enumerate(schedules):
        if not isinstance(given, list | tuple):
            raise ValueError(f'rank {rank} has {given!r}; a schedule is a list of steps such as ("F", 0).')
        for number, step in enumerate(given):
            if not (
                isinstance(step, list | tuple)
                and len(step) in (2, 3)
                and step[0] in ("F", "B", "W")
                and all(type(index) is int and index >= 0 for index in step[1:])
            ):
                raise ValueError(
                    f'step {number} of rank {rank} is {step!r}; a step is ("F", microbatch), ("B", microbatch) or, '
                    'with chunks, ("F", microbatch, chunk).'
                )
        steps.append([Step(*step) for step in given])
    return steps


# ---- checked


def problem(schedules: Schedules, microbatches: int | None = None, chunks: int | None = None) -> str:
    """What keeps the schedule from running, as text; "" if it can run.

    microbatches, chunks   how many there are; by default, as many as the steps name
    """
    try:
        steps = read(schedules)
    except ValueError as error:
        return str(error)
    every = [step for of_rank in steps for step in of_rank]
    if microbatches is None:
        microbatches = 1 + max((step.microbatch for step in every), default=-1)
    if chunks is None:
        chunks = 1 + max((step.chunk for step in every), default=0)
    return counting_problem(steps, microbatches, chunks) or order_problem(steps) or deadlock(steps)


def counting_problem(schedules: list[list[Step]], microbatches: int, chunks: int) -> str:
    """Which rank does not take every step exactly once."""
    kinds = ("F", "B", "W") if has_weight_steps(schedules) else ("F", "B")
    wanted = [Step(kind, m, c) for kind in kinds for c in range(chunks) for m in range(microbatches)]
    known = set(wanted)
    for rank, steps in enumerate(schedules):
        times = Counter(steps)
        unknown = [step for step in times if step not in known]
        missing = [step for step in wanted if not times[step]]
        repeated = [step for step in wanted if times[step] > 1]
        if unknown:
            only = f"only microbatches 0 to {microbatches - 1}" if microbatches else "no microbatches"
            there = only + (f" and chunks 0 to {chunks - 1}" if chunks > 1 else "")
            return f"rank {rank} does {unknown[0]}, but there are {there}."
        if missing:
            return f"rank {rank} never does {listed(missing)}."
        if repeated:
            return f"rank {rank} does {listed(repeated)} more than once."
    return ""


def listed(steps: list[Step], most: int = 4) -> str:
    others = plural(len(steps) - most, "other step")
    return ", ".join(map(str, steps[:most])) + (f" and {others}" if len(steps) > most else "")


def order_problem(schedules: list[list[Step]]) -> str:
    """Which rank takes a step of its own before the one it depends on."""
    earlier = {"B": "F", "W": "B"}
    for rank, steps in enumerate(schedules):
        place = {step: number for number, step in enumerate(steps)}
        for step, number in place.items():
            first = step._replace(kind=earlier.get(step.kind, step.kind))
            if place[first] > number:
                return (
                    f"rank {rank} does {step} (its step {number}) before {first} (its step {place[first]}): "
                    f"{step.kind} needs what {first.kind} saved."
                )
    return ""


def deadlock(schedules: list[list[Step]]) -> str:
    """Who waits for whom, if ranks wait for each other forever."""
    _, waiting = run_through(schedules, COSTS)
    lines = []
    for rank, (step, missing) in waiting.items():
        chunk, owner = divmod(missing.stage, len(schedules))
        wanted = Step(missing.kind, missing.microbatch, chunk)
        lines.append(f"  rank {rank} can't do {step}: it waits for {wanted} of rank {owner}")
    return "\n".join(["deadlock, no rank can go on:", *lines]) if lines else ""


# ---- timed


class Done(NamedTuple):
    """A step that a stage has finished."""

    kind: str
    microbatch: int
    stage: int


def needed(step: Step, stage: int, last: int) -> list[Done]:
    """The steps of this stage and its neighbours that must be done before `step` can start; `last`: the last stage."""
    kind, microbatch, _ = step
    if kind == "F":
        return [Done("F", microbatch, stage - 1)] if stage > 0 else []
    if kind == "W":
        return [Done("B", microbatch, stage)]
    own, after = Done("F", microbatch, stage), Done("B", microbatch, stage + 1)
    return [own, after] if stage < last else [own]


def run_through(
    schedules: list[list[Step]], costs: Mapping[str, float]
) -> tuple[list[Slot], dict[int, tuple[Step, Done]]]:
    """(the steps that can be taken, {rank: (its first step that can't be taken, what that one waits for)})."""
    ranks, chunks = len(schedules), 1 + max((step.chunk for steps in schedules for step in steps), default=0)
    done: dict[Done, float] = {}
    slots: list[Slot] = []
    waiting: dict[int, tuple[Step, Done]] = {}
    place, clock = [0] * ranks, [0.0] * ranks
    moved = True
    while moved:
        moved, waiting = False, {}
        for rank, steps in enumerate(schedules):
            while place[rank] < len(steps):
                step = steps[place[rank]]
                stage = step.chunk * ranks + rank
                wanted = needed(step, stage, ranks * chunks - 1)
                missing = [what for what in wanted if what not in done]
                if missing:
                    waiting[rank] = step, missing[0]
                    break
                start = max([clock[rank], *(done[what] for what in wanted)])
                done[Done(step.kind, step.microbatch, stage)] = clock[rank] = start + costs[step.kind]
                slots.append(Slot(rank, step, start, clock[rank]))
                place[rank], moved = place[rank] + 1, True
    return slots, waiting


def has_weight_steps(schedules: Iterable[Sequence[Step]]) -> bool:
    return any(step.kind == "W" for steps in schedules for step in steps)


def costs_of(schedules: Iterable[Sequence[Step]]) -> dict[str, float]:
    """Default seconds per step of each kind: F 1 and B 2, or 1 each if the schedule has W steps."""
    return SPLIT_COSTS if has_weight_steps(schedules) else COSTS


def timed(schedules: Schedules, costs: Mapping[str, float] | None = None) -> list[Slot]:
    """When each step starts and ends if messages take no time; if the schedule deadlocks, the steps before that.

    costs   seconds per step of each kind; by default F 1 and B 2, or F, B and W 1 each

    Raises ValueError for a malformed step.
    """
    steps = read(schedules)
    return run_through(steps, costs or costs_of(steps))[0]
