"""Run a student's function on ranks for a check, and say in its exercise's words what went wrong."""

import contextlib
import inspect
import io
import math
import re
from functools import partial

import torch

from .. import RankCrashed, RankError, RankTimeout, WorldStuck, simulate, spawn
from ..cluster.hardware import Cluster, Gpu, Link
from ..report.run import Run
from .answer import Answer, CheckFailed
from .compare import plural
from .inputs import Draws

TIMEOUT = 30  # seconds for one run; a right answer takes a fraction of one


# ---- running the student's function


class Runner:
    """`run(world_size, *inputs, **same)`: the student's function on real ranks. `run.virtual(...)`: on virtual ones.

    Each of `inputs` is a list with one entry a rank; `same` goes to every rank by name. The function gets `rank`
    and `world_size` too if it names them. With `catch=ValueError` a rank's ValueError is its result. With
    `through=driver` each rank calls `driver(function, *inputs, **same)` instead, which calls the function: for its
    gradients, say, or in a group.

    `run.draws` has the random inputs for the next run (inputs.py).
    """

    def __init__(self, function, if_stuck: str = "", quiet: bool = False):
        self.function, self.if_stuck, self.quiet, self.situation = function, if_stuck, quiet, ""
        self.draws = Draws()

    def __call__(self, world_size: int, *inputs: list, catch: type = (), through=None, **same) -> Answer:
        function = partial(through, self.function) if through else self.function
        self.situation = describe(function, world_size, inputs, same)
        return self.answer(None, "cpu", function, world_size, inputs, same, catch)

    def virtual(
        self,
        world_size: int,
        *inputs: list,
        cluster: Cluster,
        device: str = "meta",
        catch: type = (),
        through=None,
        **same,
    ) -> Answer:
        """As above, on the ranks of a virtual cluster: `answer.run.elapsed` is in virtual seconds, the same each time.

        device   "meta": results have shapes and no values; "cpu": values too
        """
        function = partial(through, self.function) if through else self.function
        said = describe(function, world_size, inputs, same)
        self.situation = said and f"{said}, on the virtual cluster {cluster.name!r}"
        return self.answer(cluster, device, function, world_size, inputs, same, catch)

    def answer(self, cluster, device: str, function, world_size: int, inputs: tuple, same: dict, catch) -> Answer:
        """Run the function in a world. Raises CheckFailed if a rank fails, if nobody can move, if all return None."""
        try:
            with contextlib.redirect_stdout(io.StringIO()) if self.quiet else contextlib.nullcontext():
                run = self.world(cluster, device, world_size, function, inputs, same, catch)
        except RankError as error:
            raise explained(error, self.if_stuck) from None
        results, inputs_after, shared = (list(column) for column in zip(*run.results, strict=True))
        if all(result is None for result in results):
            raise CheckFailed(
                "Every rank returned None.",
                mistake="Not written yet? Is the `return` missing? Or did you return what a call of `dist` gave back? "
                "Such a call fills its tensor and returns None.",
            )
        return Answer(results, inputs_after, run, shared)

    def world(self, cluster: Cluster | None, device: str, world_size: int, *program) -> Run:
        """Where the ranks live: real ones, or with a cluster virtual ones. Grading has a world of its own."""
        if cluster is None:
            return spawn(call_on_rank, world_size, *program, backend="gloo", timeout=TIMEOUT)
        return simulate(call_on_rank, world_size, *program, cluster=cluster, device=device)


def links(gpus: int, alpha: float, bandwidth: float, nodes: int = 1, inter: Link | None = None) -> Cluster:
    """A virtual cluster on which computing is free and memory has no end, so that only messages take time.

    gpus        in each node
    alpha       seconds; bandwidth: bytes/s one way, of the link between two GPUs of a node
    inter       the link between nodes; like the one inside if not given
    """
    inside = Link(alpha, bandwidth)
    free = Gpu(flops={"fp32": math.inf}, memory=math.inf, bandwidth=math.inf, launch=0)
    return Cluster("only links count", nodes, gpus, gpu=free, intra=inside, inter=inter or inside)


def call_on_rank(rank: int, world_size: int, function, inputs: tuple, same: dict, catch: type):
    """What each rank runs: its own entry of every input.

    Returns the result, the inputs as they are afterwards, and whether the result shares memory with one of them.
    """
    return call_with(rank, world_size, function, [one_per_rank[rank] for one_per_rank in inputs], same, catch)


def call_with(rank: int, world_size: int, function, mine: list, same: dict, catch: type):
    """As call_on_rank, with this rank's own inputs alone."""
    names = inspect.signature(function).parameters
    known = {name: value for name, value in [("rank", rank), ("world_size", world_size)] if name in names}
    kept = [x.detach() if isinstance(x, torch.Tensor) else x for x in mine]
    try:
        result = function(*mine, **same, **known)
        return result, kept, shares_memory(result, mine)
    except catch as error:
        return error, kept, False


def shares_memory(result, inputs: list) -> bool:
    """Whether a tensor, not an empty one, lies in the memory of an input that is a tensor; on meta there is none."""
    if not isinstance(result, torch.Tensor) or not result.numel() or not result.untyped_storage().data_ptr():
        return False
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    return any(x.untyped_storage().data_ptr() == result.untyped_storage().data_ptr() for x in tensors)


def describe(function, world_size: int, inputs: tuple, same: dict) -> str:
    """The situation in words: `5 ranks, root 3, int64 (4,)`; no ranks for a function that knows none."""
    words = [plural(world_size, "rank")] if "rank" in inspect.signature(function).parameters else []
    words += [f"{name} {value}" for name, value in same.items() if isinstance(value, int | str)]
    first = next((item for column in inputs for item in column if isinstance(item, torch.Tensor)), None)
    if first is not None:
        words.append(f"{str(first.dtype).removeprefix('torch.')} {tuple(first.shape)}")
    return ", ".join(words)


def explained(error: RankError, if_stuck: str) -> CheckFailed:
    """The report of the ranks, with the exercise's own explanation where one fits."""
    report = re.sub(r"\n\nIf the work needs longer, say how long:.*", "", str(error))  # a check's time is the check's
    if "NotImplementedError" in report:
        return CheckFailed(
            "Not written yet.",
            mistake="Write the lines that are missing in the cell above, run that cell, then this one.",
        )
    if "should not be the same as the rank of the current process" in report:  # torch's words
        return CheckFailed(report, mistake="A rank can't send to itself: copy what it keeps, send the rest.")
    if "Expected parameter `tensor`" in report and "NoneType" in report:  # torch's words, too
        return CheckFailed(
            report,
            mistake="That is None, not a tensor. Is it the .grad of a tensor that has none? Only a leaf gets a .grad, "
            "and only if it required one before it was used: what was received needs requires_grad_(), and a result "
            "of a computation has no .grad.",
        )
    if "<--> [none])" in report or " itself: a message goes to another rank" in report:  # Gloo's, and grading's
        return CheckFailed(
            report,
            mistake="A rank has no connection to itself: is `src` or `dst` the rank that calls? Who is before rank 0? "
            "Nobody, or in a ring the last one.",
        )
    unmatched = isinstance(error, WorldStuck | RankTimeout | RankCrashed)
    return CheckFailed(report, mistake=f"What usually causes this here: {if_stuck}" if unmatched and if_stuck else "")
