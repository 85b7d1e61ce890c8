"""A pipeline schedule as data: for each rank the list of its steps. Here it is checked and timed.

    schedules = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)],     rank 0: forward of microbatch 0, of microbatch 1, ...
                 [("F", 0), ("B", 0), ("F", 1), ("B", 1)]]     rank 1
    problem(schedules)              "" if every step can be taken, else what is wrong, in words
    timed(schedules)                which step begins and ends when, if messages are free
    figures.schedule(schedules)     a picture, also of one that can't run
    play(schedules)                 the same on the virtual cluster, with messages: a Run (play_schedule.py)

A step is (kind, microbatch), or (kind, microbatch, chunk) where a rank has several stages.

    F   forward: needs the forward of the stage before
    B   backward: needs the backward of the stage after, and what this stage's own forward has kept
    W   gradient of the weights, where B is the gradient of the input alone: needs this stage's own B

With P ranks, chunk c of rank r is stage c * P + r. What a schedule should look like is not said here: that is yours.
"""

from collections import Counter
from typing import NamedTuple

COSTS = {"F": 1.0, "B": 2.0, "W": 1.0}  # seconds of a step; a backward has two matrix products for each of a forward
SPLIT_COSTS = {"F": 1.0, "B": 1.0, "W": 1.0}  # where B is split in B and W


class Step(NamedTuple):
    """One step of one rank."""

    kind: str
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f" of chunk {self.chunk}" if self.chunk else "")


class Slot(NamedTuple):
    """When a rank takes a step, in seconds."""

    rank: int
    step: Step
    start: float
    end: float


def read(schedules: list) -> list[list[Step]]:
    """Every step as a Step. Raises ValueError that says which is none."""
    steps = []
    for rank, given in enumerate(schedules):
        if not isinstance(given, list | tuple):
            raise ValueError(f'rank {rank} has {given!r}: a schedule is a list of steps such as ("F", 0).')
        for number, step in enumerate(given):
            if not (
                isinstance(step, list | tuple)
                and len(step) in (2, 3)
                and step[0] in ("F", "B", "W")
                and all(type(index) is int and index >= 0 for index in step[1:])
            ):
                raise ValueError(
                    f'step {number} of rank {rank} is {step!r}: a step is ("F", microbatch), ("B", microbatch) or, '
                    'with chunks, ("F", microbatch, chunk).'
                )
        steps.append([Step(*step) for step in given])
    return steps


# ---- checked


def problem(schedules: list, microbatches: int | None = None, chunks: int | None = None) -> str:
    """What keeps the schedule from running, in words; "" if it can run.

    microbatches, chunks   how many there are: as many as the steps name if not given
    """
    try:
        steps = read(schedules)
    except ValueError as error:
        return str(error)
    every = [step for of_rank in steps for step in of_rank]
    if not every and not microbatches:
        return ""
    microbatches = microbatches or 1 + max(step.microbatch for step in every)
    chunks = chunks or 1 + max((step.chunk for step in every), default=0)
    return counted(steps, microbatches, chunks) or in_order(steps) or stuck(steps)


def counted(schedules: list[list[Step]], microbatches: int, chunks: int) -> str:
    """Whether every rank takes each step once."""
    kinds = ("F", "B", "W") if any(step.kind == "W" for steps in schedules for step in steps) else ("F", "B")
    wanted = [Step(kind, m, c) for kind in kinds for c in range(chunks) for m in range(microbatches)]
    known = set(wanted)
    for rank, steps in enumerate(schedules):
        times = Counter(steps)
        strangers = [step for step in times if step not in known]
        missing = [step for step in wanted if not times[step]]
        twice = [step for step in wanted if times[step] > 1]
        if strangers:
            there = f"microbatches 0 to {microbatches - 1}" + (f" and chunks 0 to {chunks - 1}" if chunks > 1 else "")
            return f"rank {rank} does {strangers[0]}, but there are {there}."
        if missing:
            return f"rank {rank} never does {named(missing)}."
        if twice:
            return f"rank {rank} does {named(twice)} more than once."
    return ""


def named(steps: list[Step], most: int = 4) -> str:
    return ", ".join(map(str, steps[:most])) + (f" and {len(steps) - most} more" if len(steps) > most else "")


def in_order(schedules: list[list[Step]]) -> str:
    """Whether every rank goes forward before it goes backward."""
    earlier = {"B": "F", "W": "B"}
    for rank, steps in enumerate(schedules):
        place = {step: number for number, step in enumerate(steps)}
        for step, number in place.items():
            first = step._replace(kind=earlier.get(step.kind, step.kind))
            if place[first] > number:
                return (
                    f"rank {rank} does {step} (its step {number}) before {first} (its step {place[first]}): "
                    f"{step.kind} needs what {first.kind} has kept."
                )
    return ""


def stuck(schedules: list[list[Step]]) -> str:
    """Who waits for whom, if some ranks wait for each other for ever."""
    _, waiting = run_through(schedules, COSTS)
    lines = []
    for rank, (step, missing) in waiting.items():
        owner, wanted = missing.stage % len(schedules), Step(missing.kind, missing.microbatch)
        lines.append(
            f"  rank {rank} wants to do {step}, and waits for {wanted.kind}{wanted.microbatch} of rank {owner}"
        )
    return "\n".join(["nobody can go on:", *lines]) if lines else ""


# ---- timed


class Done(NamedTuple):
    """What a stage has done with a microbatch."""

    kind: str
    microbatch: int
    stage: int


def needed(step: Step, stage: int, last: int) -> list[Done]:
    """What must be done before a step can begin, by this stage or a neighbour."""
    kind, microbatch, _ = step
    if kind == "F":
        return [Done("F", microbatch, stage - 1)] if stage > 0 else []
    if kind == "W":
        return [Done("B", microbatch, stage)]
    own, after = Done("F", microbatch, stage), Done("B", microbatch, stage + 1)
    return [own, after] if stage < last else [own]


def run_through(schedules: list[list[Step]], costs: dict) -> tuple[list[Slot], dict]:
    """(the steps that can be taken, {rank: (the step that it can't take, what that waits for)})."""
    ranks, chunks = len(schedules), 1 + max((step.chunk for steps in schedules for step in steps), default=0)
    done: dict[Done, float] = {}
    slots, place, clock = [], [0] * ranks, [0.0] * ranks
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


def costs_of(schedules: list[list[Step]]) -> dict:
    return SPLIT_COSTS if any(step.kind == "W" for steps in schedules for step in steps) else COSTS


def timed(schedules: list, costs: dict | None = None) -> list[Slot]:
    """When each step begins and ends if messages take no time; of a schedule that gets stuck, the steps before that.

    costs   seconds of a step of each kind; if not given, F 1 and B 2, or F, B and W 1 each
    """
    steps = read(schedules)
    return run_through(steps, costs or costs_of(steps))[0]
