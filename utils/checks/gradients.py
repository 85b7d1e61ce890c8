"""Run a student's function and its backward on ranks, and compare values, gradients and calls with one process.

    given = per_rank(4, x=x, w_local=parts(w, 4, dim=1))              # {name: tensor} of each rank
    answer = run(4, given, [grad] * 4, through=drive)                 # forward, backward from `grad`, on each rank
    y, right = serial(lambda x, w: x @ w, grad, x=x, w=w)             # the oracle: one process, whole tensors
    for rank, result in enumerate(answer.results):
        judge_rank(result, rank, y.chunk(4, 1)[rank], {"x": right["x"]}, {"x": {"half of it": right["x"] / 2}})
    expect_passes(answer, forward=[], backward=[("all_reduce", x.nbytes)])

The function gets its tensors by name, and whatever else it names in its signature: its group, or building blocks such
as f and g.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

import torch
import torch.distributed as dist

from .. import region
from ..events.event import Event
from ..kit.functional_collectives import all_gather, all_reduce, reduce_scatter
from .answer import Answer, CheckFailed
from .compare import Mistakes, expect
from .equality import alike
from .traffic import expect_all_waited

EXACT, CLOSE = 0.0, 1e-9  # relative error: of whole numbers; of float64 after gelu, exp or reordered additions

Verb = Callable[[torch.Tensor], torch.Tensor]
Call = tuple[str, int]  # (op, bytes handed in)

# ---- on each rank


class ThereAndBack(torch.autograd.Function):
    """`there` in the forward pass, `back` in the backward pass: the building block that some exercises are given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Verb, back: Verb) -> torch.Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(grad), None, None


def blocks_for(group: dist.ProcessGroup | None) -> dict[str, Any]:
    """Everything that an exercise may ask for by name besides its tensors."""

    def same(x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    def block(there: Verb, back: Verb) -> Verb:
        return lambda x: ThereAndBack.apply(x, there, back)  # type: ignore[no-untyped-call]

    summed = partial(all_reduce, group=group)
    gathered, scattered = (partial(verb, group=group, dim=1) for verb in (all_gather, reduce_scatter))
    return {
        "tp_group": group,
        "tp_rank": dist.get_rank(group),
        "tp_size": dist.get_world_size(group),
        "f": block(same, summed),
        "g": block(summed, same),
        "gather": block(gathered, scattered),
        "scatter": block(scattered, gathered),
    }


def my_group(rank: int, groups: Sequence[list[int]] | None) -> dist.ProcessGroup | None:
    """The process group that `rank` is in, the whole world without `groups`; every rank must create all of them."""
    made = [dist.new_group(members) for members in groups or []]
    return next((group for group, members in zip(made, groups or [], strict=True) if rank in members), dist.group.WORLD)


class DriveResult(TypedDict):
    """What one rank comes to.

    gradients  {name: gradient}; None if what the function returns has no gradient
    changed    names of the inputs that the function has changed
    """

    output: Any
    gradients: dict[str, torch.Tensor | None] | None
    changed: list[str]


def drive(
    function: Callable[..., Any],
    given: dict[str, Any],
    grad: torch.Tensor | None,
    rank: int,
    world_size: int,
    groups: Sequence[list[int]] | None = None,
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    **same: Any,
) -> DriveResult:
    """What a rank runs: call `function` with its tensors, by name, then run backward from the gradient `grad`.

    given   {name: value} of this rank; floating point tensors become leaves
    grad    the gradient with respect to the function's result; None: no backward pass, the result is the answer
    groups  the ranks of each process group; this rank's group is the function's `tp_group`
    around  wraps the function: around(function) -> function
    """
    leaves = {name: leaf(value, grad is not None) for name, value in given.items()}
    known = blocks_for(my_group(rank, groups))
    known = {name: value for name, value in known.items() if name in inspect.signature(function).parameters}
    function = around(function) if around else function
    with region("forward"):
        output = function(**leaves, **known, **same)
    if grad is None:
        return {"output": output, "gradients": {}, "changed": changed(leaves, given)}
    if not isinstance(output, torch.Tensor):
        return {"output": output, "gradients": None, "changed": changed(leaves, given)}
    gradients: dict[str, torch.Tensor | None] | None = {} if output.requires_grad else None
    if gradients is not None and output.shape == grad.shape:  # if the shape is wrong, only the output is judged
        output.backward(grad)
        gradients = {name: x.grad for name, x in leaves.items() if isinstance(x, torch.Tensor) and x.requires_grad}
    return {"output": output.detach(), "gradients": gradients, "changed": changed(leaves, given)}


def leaf(value: Any, needs_grad: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)  # a view with gaps keeps its gaps
    copy.copy_(value)
    return copy.requires_grad_(needs_grad and value.is_floating_point())


def changed(leaves: dict[str, Any], given: dict[str, Any]) -> list[str]:
    return [
        name
        for name, x in leaves.items()
        if isinstance(x, torch.Tensor) and not x.is_meta and not torch.equal(x.detach(), given[name])
    ]


# ---- comparing


def serial(
    function: Callable[..., torch.Tensor], grad: torch.Tensor, **tensors: Any
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(output, {name: gradient}) of a function on whole tensors, in one process."""
    leaves = {
        name: x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in tensors.items()
    }
    output = function(**leaves)
    wanted = [x for x in leaves.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    gradients = iter(torch.autograd.grad(output, wanted, grad, allow_unused=True))
    return output.detach(), {
        name: next(gradients) for name, x in leaves.items() if isinstance(x, torch.Tensor) and x.requires_grad
    }


def judge_rank(
    result: DriveResult,
    rank: int,
    output: torch.Tensor,
    gradients: Mapping[str, torch.Tensor],
    mistakes: Mapping[str, Mistakes] | None = None,
    rtol: float = CLOSE,
) -> None:
    """Raise CheckFailed unless one rank's output and gradients are right, and its inputs unchanged.

    output     the right output
    gradients  {name: the right gradient}
    mistakes   {"output" or name: {a common mistake, in words: the wrong value that it leads to}}
    """
    mistakes = mistakes or {}
    name_the_untouched(result, rank)
    close(result["output"], output, rank, mistakes.get("output", {}), rtol)
    if result["gradients"] is None:
        raise CheckFailed(
            f"rank {rank}: the result of your function has no gradient (requires_grad is False)",
            "",
            "Somewhere you call a verb or a function of dist directly, and autograd does not see through it: "
            "communicate inside an autograd function, with f, g and the like.",
        )
    for name, wanted in gradients.items():
        who = f"rank {rank}: the gradient of {name} is"
        close(result["gradients"].get(name), wanted, who, mistakes.get(name, {}), rtol)


def name_the_untouched(result: DriveResult, rank: int) -> None:
    """Raise CheckFailed if the function has changed one of its inputs."""
    for name in result["changed"]:
        raise CheckFailed(
            f"rank {rank}: {name} is not what it was before the call",
            "inputs that stay as they were",
            "Something writes in place, as x += 1, x[...] = 0 and dist.all_reduce(x) do. The verbs return new tensors.",
        )


def close(got: Any, wanted: torch.Tensor, who: int | str, mistakes: Mistakes, rtol: float) -> None:
    """Like `expect`, but every entry may be off by as much as the largest one may."""
    comparable = isinstance(got, torch.Tensor) and got.shape == wanted.shape and got.dtype == wanted.dtype
    if rtol and comparable and torch.allclose(got, wanted, rtol=rtol, atol=rtol * wanted.abs().max().item()):
        return
    if isinstance(got, torch.Tensor) and got.dtype.is_floating_point and bool(got.isnan().any() or got.isinf().any()):
        mistakes = {**mistakes, "not a number, or infinite: something overflows": got}
    different = {words: wrong for words, wrong in mistakes.items() if not alike(wrong, wanted, rtol)}
    expect(got, wanted, who, different, rtol or EXACT)


def calls_of(answer: Answer, rank: int) -> tuple[list[Event], list[Event]]:
    """(events of the forward pass, events of the backward pass) of a rank."""
    end = next(part.end for part in answer.run.regions if part.rank == rank and part.name == "forward")
    events = [event for event in answer.events if event.rank == rank]
    return [event for event in events if event.start <= end], [event for event in events if event.start > end]


def expect_passes(answer: Answer, forward: Sequence[Call], backward: Sequence[Call], remark: str = "") -> str:
    """Raise CheckFailed unless each rank made these calls, (op, bytes handed in), in each pass, in any order."""
    for rank in range(len(answer.results)):
        in_forward, in_backward = calls_of(answer, rank)
        expect_these(rank, in_forward, forward, " in the forward pass")
        expect_these(rank, in_backward, backward, " in the backward pass")
    expect_all_waited(answer)
    return f"forward: {in_words(forward)}; backward: {in_words(backward)}. {remark}".strip()


def expect_these(rank: int, events: Sequence[Event], wanted: Sequence[Call], when: str = "") -> None:
    """Raise CheckFailed unless these events are the wanted calls, (op, bytes handed in), in any order."""
    seen, wanted = sorted((event.op, event.bytes) for event in events), sorted(wanted)
    if seen != wanted:
        raise CheckFailed(
            f"rank {rank} called {in_words(seen)}{when}", f"{in_words(wanted)}{when}", what_is_wrong(seen, wanted)
        )


def what_is_wrong(seen: Sequence[Call], wanted: Sequence[Call]) -> str:
    if [op for op, _ in seen] == [op for op, _ in wanted]:
        return "The right calls with the wrong sizes: do you send the right tensor?"
    got, needed = sum(nbytes for _, nbytes in seen), sum(nbytes for _, nbytes in wanted)
    if len(seen) < len(wanted):
        return "Fewer calls than are needed: some rank's part is missing."
    if len(seen) > len(wanted):
        return f"{len(seen)} calls where {len(wanted)} will do: which of these results did the rank have already?"
    return f"Not the collective that is needed; it takes {got:,} bytes instead of {needed:,}."


def in_words(calls: Sequence[Call]) -> str:
    return ", ".join(f"{op} of {nbytes:,} bytes" for op, nbytes in calls) or "nothing"


# ---- tensors: whole ones, and each rank's part of them


def parts(x: torch.Tensor, size: int, dim: int) -> list[torch.Tensor]:
    return [part.clone() for part in x.chunk(size, dim)]


def per_rank(size: int, **tensors: Any) -> list[dict[str, Any]]:
    """{name: value} for each rank; a list has one entry per rank, anything else is the same on every rank."""
    return [{name: x[rank] if isinstance(x, list) else x for name, x in tensors.items()} for rank in range(size)]
