"""Run a student's function on ranks for a check, and turn errors into advice on the exercise."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch

from .. import RankCrashed, RankError, RankTimeout, WorldStuck, spawn
from .. import simulate as simulate_at_any_rates
from ..cluster.hardware import Cluster
from ..diagnosis.why_stuck import NO_CAUSE
from ..kit.drivers.call import Catch, Returned, call_with
from ..recording import in_flight
from ..report.run import Run
from ..text.units import plural
from .answer import Answer, CheckFailed
from .inputs import Draws
from .known_mistakes import Known
from .scores import Score
from .show import show

TIMEOUT = 30  # seconds for one run; a right answer takes a fraction of a second
NO_BRANCH = "In an earlier case it returned something: is there a branch without `return`?"
NO_RETURN = (
    "Is the function not written yet, or its `return` missing? Calls of `dist` return None too: they put their result "
    "into the tensor that you pass."
)

# Checks compare times with formulas, and those hold at the datasheet's rates.
simulate = partial(simulate_at_any_rates, rates="datasheet")

World = Callable[..., Answer]  # a `run`, or a `run.virtual` that has its cluster


# ---- running the student's function


@dataclass(frozen=True)
class RunRequest:
    """One run that a check asks for.

    function  what each rank calls: the student's function, or a driver that calls it
    inputs    the positional arguments: for each, one entry per rank
    for_all   arguments that every rank gets, by name
    catch     errors that are a rank's result
    cluster   whose virtual ranks it runs on; real ones if there is none
    device    of virtual ranks: "meta", without values, or "cpu"
    in_new_processes  in grading: none that knows anything of an earlier run
    """

    world_size: int
    function: Callable[..., Any]
    inputs: Sequence[Sequence[Any]] = ()
    for_all: Mapping[str, Any] = field(default_factory=dict)
    catch: Catch = ()
    cluster: Cluster | None = None
    device: str = "cpu"
    in_new_processes: bool = False

    def inputs_of(self, rank: int) -> list[Any]:
        return [one_per_rank[rank] for one_per_rank in self.inputs]

    def program_of(self, rank: int) -> tuple[Callable[..., Any], list[Any], dict[str, Any], Catch]:
        """What a rank calls, and with what: arguments of `call_with`."""
        return self.function, self.inputs_of(rank), dict(self.for_all), self.catch


class Runner:
    """`run(world_size, *inputs, **for_all)`: the student's function on real ranks. `run.virtual(...)`: on virtual ones.

    Each of `inputs` is a list with one entry per rank; `for_all` goes to every rank, by name. The function also gets
    `rank` and `world_size` if it names them. With `catch=ValueError`, a ValueError that a rank raises is its result.
    With `driver=driver`, each rank calls `driver(function, *inputs, **for_all)` instead, and the driver calls the
    function: to take its gradients, for example, or to run it in a process group.

    `run.draws` has the random inputs for the next run (inputs.py), `run.situation` describes the last one in words.
    """

    def __init__(self, function: Callable[..., Any], if_stuck: str = "", quiet: bool = False) -> None:
        self.function, self.if_stuck, self.quiet, self.situation = function, if_stuck, quiet, ""
        self.draws = Draws()
        self.scores: list[Score] = []  # a challenge's measurements, one for each case
        self.runs: list[Run] = []  # the runs that have ended well, in order
        self.known: Sequence[Known] = ()  # outcomes of wrong answers in a notebook
        self.best: Sequence[float] = ()  # a challenge's best known score in each case

    @property
    def is_certain(self) -> bool:
        """Whether a check that fails with this runner has failed; if not, it will judge once more."""
        return True

    @property
    def source(self) -> str:
        """Of the student's function; "" if there is none to read."""
        try:
            return inspect.getsource(self.function)
        except (OSError, TypeError):
            return ""

    def as_in_a_notebook(self) -> Self:
        """A runner of the same function that starts with the inputs of a notebook, and leaves no trace in this one."""
        other = copy.copy(self)
        other.draws, other.scores, other.runs = Draws(), [], []
        return other

    def __call__(
        self,
        world_size: int,
        /,
        *inputs: Sequence[Any],
        catch: Catch = (),
        driver: Callable[..., Any] | None = None,
        in_new_processes: bool = False,
        **for_all: Any,
    ) -> Answer:
        function = partial(driver, self.function) if driver else self.function
        return self.answer(RunRequest(world_size, function, inputs, for_all, catch, in_new_processes=in_new_processes))

    def virtual(
        self,
        world_size: int,
        /,
        *inputs: Sequence[Any],
        cluster: Cluster,
        device: str = "meta",
        catch: Catch = (),
        driver: Callable[..., Any] | None = None,
        **for_all: Any,
    ) -> Answer:
        """As above, on the ranks of a virtual cluster: `answer.run.elapsed` is in virtual seconds, the same each time.

        device   "meta": results have shapes and no values; "cpu": values too
        """
        function = partial(driver, self.function) if driver else self.function
        return self.answer(RunRequest(world_size, function, inputs, for_all, catch, cluster, device))

    def answer(self, request: RunRequest) -> Answer:
        """Run the function in a world. Raises CheckFailed if a rank fails, if they deadlock, or if all return None."""
        self.situation = describe(request, self.function)
        function, inputs = request.function, request.inputs
        names = input_names(self.function, function, len(inputs))
        try:
            with contextlib.redirect_stdout(io.StringIO()) if self.quiet else contextlib.nullcontext():
                run = self.world(request)
        except RankError as error:
            failed = explained(error, self.if_stuck, self.quiet)
            if "rank" not in inspect.signature(function).parameters:  # then the number of the rank says nothing
                failed.saw = without_ranks(failed.saw, error.rank or 0, dict(zip(names, inputs, strict=True)))
            failed.deadlock = error if error.waiting else None
            raise failed from None
        self.runs.append(run)
        results, inputs_after, shared = (list(column) for column in zip(*run.results, strict=True))
        if all(result is None for result in results):
            raise CheckFailed("Every rank returned None.", mistake=NO_BRANCH if self.runs[:-1] else NO_RETURN)
        return Answer(results, inputs_after, run, shared, names)

    def world(self, request: RunRequest) -> Run:
        """Real ranks, or virtual ones if there is a cluster; `run.results` are Returned. Grading overrides this."""
        if request.cluster is None:
            return spawn(call_on_rank, request.world_size, request, backend="gloo", timeout=TIMEOUT)
        return simulate(call_on_rank, request.world_size, request, cluster=request.cluster, device=request.device)


def call_on_rank(rank: int, world_size: int, request: RunRequest) -> Returned:
    """What each rank runs: the function, with its own entry of every input."""
    with in_flight.watched():
        return call_with(rank, world_size, *request.program_of(rank))


def input_names(answer: Callable[..., Any], called: Callable[..., Any], number: int) -> list[str]:
    """What the answer calls its inputs; "" where the driver that is called in its place has a name of its own."""
    own = inspect.signature(answer).parameters
    names = [name for name in inspect.signature(called).parameters if name not in ("rank", "world_size")]
    return [name if name in own else "" for name in (names + [""] * number)[:number]]


def describe(request: RunRequest, answer: Callable[..., Any]) -> str:
    """The situation in words: `5 ranks, root 3, int64 (4,)`; without the ranks if the function takes no `rank`.

    True and False of an argument that only a driver takes would say nothing.
    """
    own = inspect.signature(answer).parameters
    words = [plural(request.world_size, "rank")] if "rank" in inspect.signature(request.function).parameters else []
    given = {name: value for name, value in request.for_all.items() if name in own or not isinstance(value, bool)}
    words += [f"{name} {value}" for name, value in given.items() if isinstance(value, int | str)]
    words += [f"{name} {value:g}" for name, value in given.items() if isinstance(value, float)]
    first = next((item for column in request.inputs for item in column if isinstance(item, torch.Tensor)), None)
    if first is not None:
        words.append(f"{str(first.dtype).removeprefix('torch.')} {tuple(first.shape)}")
    if words and request.cluster is not None:
        words.append(f"on the virtual cluster {request.cluster.name!r}")
    return ", ".join(words)


def without_ranks(report: str, rank: int, given: Mapping[str, Sequence[Any]]) -> str:
    """A report on a function that knows no ranks: each has called it with other inputs, which say more than a number.

    rank   the one to look at
    given  {name of an input: it, on each rank}
    """
    report = RANKS_THAT.sub(lambda at: f"your function {at[1] or 'has ' + at[2]}", report)
    if running := RUNNING.search(report):
        inputs = ", ".join(f"{name} {show(values[rank])}" for name, values in given.items() if name)
        report = ALL_RANKS.sub(f"  {inputs}: it is running {running[1]}\n".replace("  : it", "  it"), report)
    return report


# ---- turning errors into advice

NO_CONNECTION = (
    "A rank has no connection to itself: is `src` or `dst` the rank that makes the call? Nothing comes before rank 0, "
    "except in a ring, where the last rank does."
)
RANKS_THAT = re.compile(r"^ranks? \d[\d, and]* (?:(raised)|(?:has|have) (not finished))", re.MULTILINE)
RUNNING = re.compile(r"^  ranks? .* (?:is|are) running +(.*)$", re.MULTILINE)
ALL_RANKS = re.compile(r"(?:^  ranks? .*\n)+", re.MULTILINE)  # a line for each, where they are
# In place of the advice to give the ranks more time: a check has its own time-out.
NEVER_ENDS = "A right answer takes a fraction of a second. Is there a loop that never ends?"
# Pattern in the report of a failed run -> advice. The texts are those of torch 2.13 and of its Gloo, and one of ours.
ADVICE = {
    "should not be the same as the rank of the current process": (
        "A rank can't send to itself: copy its own part, and send only the others."
    ),
    r"Expected parameter `tensor`[\s\S]*NoneType": (
        "That is None, not a tensor. Is it the .grad of a tensor that has none? Only a leaf gets a .grad, and only if "
        "it required one before it was used: call requires_grad_() on a received tensor. The result of a computation "
        "has no .grad."
    ),
    r"CONNECTED\. 1 vs 4\. Pair is not": NO_CONNECTION,  # Gloo's for a pair that it never tried to connect
    r"rank \d+ (sends to|receives from) itself": NO_CONNECTION,  # ours, on virtual ranks
}


def explained(error: RankError, if_stuck: str, hidden: bool) -> CheckFailed:
    """The report of the ranks, with advice on the exercise where some fits.

    What the exercise says of deadlocks is a guess, so it is left out where the report has found the cause. Of a hidden
    test students don't read the report.
    """
    report = re.sub(r"(If the work needs longer, say|Is there an endless loop).*", NEVER_ENDS, str(error))
    if "NotImplementedError" in report:
        return CheckFailed(
            "Not written yet.",
            mistake="Write the missing lines in the cell above, run that cell, then this one.",
        )
    for pattern, advice in ADVICE.items():
        if re.search(pattern, report):
            return CheckFailed(report, mistake=advice)
    has_cause = "\n\n" in report and NO_CAUSE not in report and not hidden and not isinstance(error, RankTimeout)
    unexplained = isinstance(error, WorldStuck | RankTimeout | RankCrashed) and not has_cause
    return CheckFailed(report, mistake=f"Worth checking: {if_stuck}" if unexplained and if_stuck else "")
