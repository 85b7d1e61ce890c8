"""The goals and whether the measurements meet them. Nothing is asserted, since the answer depends on the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from tests.bench import grading, one_class
from tests.bench.imports import FIRST_SPAWN, TORCH, UTILS_PART
from tests.bench.side_by_side import OURS
from tests.bench.virtual import ALIKE, DDP, PIPELINE
from tests.bench.worlds import LARGE, PARALLELISMS, SMALL

TORCHS = "torch.multiprocessing.spawn"


@dataclass(frozen=True)
class Goal:
    """`measure` gets all measurements; it raises LookupError if the ones it needs are missing or failed."""

    text: str
    limit: float
    unit: str
    measure: Callable[[dict], float]
    at_least: bool = False
    names: Callable[[dict], str] = lambda measured: ""  # replaces {} in the text

    def judge(self, measured: dict) -> tuple[str, str, str, str]:
        """(what, the limit, what was measured, "met" or "not met" or "not measured")."""
        sign = "≥" if self.at_least else "≤"
        limit = f"{sign} {self.limit:g} {self.unit}"
        try:
            value, text = self.measure(measured), self.text.format(self.names(measured))
        except LookupError:
            return self.text.format("?"), limit, "", "not measured"
        met = value >= self.limit if self.at_least else value <= self.limit
        return text, limit, f"{value:.3g} {self.unit}", "met" if met else "not met"


def later(measured: dict, launcher: str = OURS) -> float:
    return median(measured["launchers"][launcher]["later"])


def fastest_other(measured: dict) -> str:
    others = {name: row for name, row in measured["launchers"].items() if name != OURS and not row["failed"]}
    if not others:
        raise LookupError("no other launcher has run")
    return min(others, key=lambda name: later(measured, name))


def slowest_parallelism(measured: dict) -> str:
    return max(PARALLELISMS, key=lambda name: median(measured["programs"][name]["later"]))


def times_as_fast(measured: dict) -> float:
    return later(measured, TORCHS) / later(measured)


def first_times_as_fast(measured: dict) -> float:
    return measured["launchers"][TORCHS]["first"] / measured["launchers"][OURS]["first"]


def over_the_fastest(measured: dict) -> float:
    return later(measured) / later(measured, fastest_other(measured))


def twice_the_ranks(measured: dict) -> float:
    return median(measured["launchers"][OURS]["later_twice_the_ranks"]) / later(measured)


def microseconds_of_recording(measured: dict) -> float:
    row = measured["recorder"][SMALL]
    return (row["on"] - row["off"]) * 1e6


def percent_of_recording(measured: dict) -> float:
    row = measured["recorder"][LARGE]
    return (row["on"] / row["off"] - 1) * 100


def private_bytes(measured: dict, program: str) -> int:
    return max(rank["private"] for rank in measured["memory"]["programs"][program]["ranks"])


def largest_program(measured: dict) -> str:
    return max(measured["memory"]["programs"], key=lambda name: private_bytes(measured, name))


def private_megabytes(measured: dict) -> float:
    return private_bytes(measured, largest_program(measured)) / 1e6


def seconds_of_the_slowest(measured: dict) -> float:
    return median(measured["programs"][slowest_parallelism(measured)]["later"])


def milliseconds_of_the_import(measured: dict) -> float:
    return 1000 * median(measured["import"][UTILS_PART])


def first_spawn_over_torch(measured: dict) -> float:
    return median(measured["import"][FIRST_SPAWN]) / median(measured["import"][TORCH])


def simulated(measured: dict, program: str) -> float:
    """The median seconds of `simulate`. Raises LookupError if a call failed."""
    taken = measured["virtual"]["seconds"][program]
    if any(isinstance(seconds, dict) for seconds in taken):
        raise LookupError(f"{program} failed")
    return median(taken)


def growth_of_time_per_rank(measured: dict) -> float:
    few, many = min(DDP), max(DDP)
    return simulated(measured, DDP[many]) / many / (simulated(measured, DDP[few]) / few)


def simulating_gigabytes(measured: dict) -> float:
    if measured["virtual"]["peak"] is None:
        raise LookupError("it failed")
    return measured["virtual"]["peak"] / 1e9


GOALS = [
    Goal(f"later calls: times as fast as {TORCHS}", 40, "x", times_as_fast, at_least=True),
    Goal("later calls: time over that of the fastest other, {}", 1.2, "x", over_the_fastest, names=fastest_other),
    Goal(f"first call: times as fast as {TORCHS}'s", 10, "x", first_times_as_fast, at_least=True),
    Goal("8 ranks: time over that of 4", 2, "x", twice_the_ranks),
    Goal("private memory of a rank in {}", 45, "MB", private_megabytes, names=largest_program),
    Goal("the slowest parallelism, {}", 0.25, "s", seconds_of_the_slowest, names=slowest_parallelism),
    Goal("import utils, beyond import torch", 50, "ms", milliseconds_of_the_import),
    Goal("import utils and the first spawn, over import torch", 1.3, "x", first_spawn_over_torch),
    Goal(f"recording a call of {SMALL}", 20, "µs", microseconds_of_recording),
    Goal(f"recording a call of {LARGE}", 3, "%", percent_of_recording),
    Goal(f"simulate: {DDP[1024]}", 3, "s", lambda measured: simulated(measured, DDP[1024])),
    *(
        Goal(f"simulate: {program}", most, "s", partial(simulated, program=program))
        for program, most in zip(ALIKE, (8, 8, 15, 15, 60), strict=True)
    ),
    Goal("simulate: time per rank, 1,024 ranks over 64", 1, "x", growth_of_time_per_rank),
    Goal(f"simulate: {PIPELINE}", 5, "s", lambda measured: simulated(measured, PIPELINE)),
    Goal("simulate: memory of its process, 1,024 ranks", 2, "GB", simulating_gigabytes),
    Goal(
        "grading a class: times as fast as plain nbgrader",
        3,
        "x",
        lambda measured: grading.times_as_fast(measured["grading"]),
        at_least=True,
    ),
    Goal("grading a class of solutions: CPU for each", 18, "s", lambda measured: one_class.dearest(measured["class"])),
    Goal("the same: most workers over fewest", 1.2, "x", lambda measured: one_class.growth(measured["class"])),
]
