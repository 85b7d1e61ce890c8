"""Run a student's function and its backward on ranks, and compare values, gradients and calls with one process.

    given = per_rank(4, x=x, w_local=parts(w, 4, dim=1))              # {name: tensor} for each rank
    answer = run(4, given, [grad] * 4, through=drive)                 # forward, backward from `grad`, on each rank
    y, right = serial(lambda x, w: x @ w, grad, x=x, w=w)             # the oracle: one process, whole tensors
    for rank, result in enumerate(answer.results):
        judge_rank(result, rank, y.chunk(4, 1)[rank], {"x": right["x"]}, {"x": {"half of it": right["x"] / 2}})
    expect_passes(answer, forward=[], backward=[("all_reduce", x.nbytes)])

The function gets its tensors by name, and what else it names: a group, and building blocks that it builds on.
"""

import inspect
from functools import partial

import torch
import torch.distributed as dist

from .. import region
from ..kit.functional_collectives import all_gather, all_reduce, reduce_scatter
from .answer import CheckFailed
from .compare import expect
from .equality import alike
from .traffic import expect_all_waited

EXACT, CLOSE = 0, 1e-9  # relative error: of whole numbers; of float64 with gelu, exp and other orders of additions

# ---- on each rank


class ThereAndBack(torch.autograd.Function):
    """A building block for exercises that are handed one: `there` in the forward pass, `back` in the backward pass."""

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.back(grad), None, None


def blocks_for(group) -> dict:
    """Everything that an exercise may ask for by name besides its tensors."""

    def same(x):
        return x.view_as(x)

    def block(there, back):
        return lambda x: ThereAndBack.apply(x, there, back)

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


def my_group(rank: int, groups):
    """The process group that `rank` is in; every rank makes all of them. None: the whole world."""
    made = [dist.new_group(members) for members in groups or []]
    return next((group for group, members in zip(made, groups or [], strict=True) if rank in members), dist.group.WORLD)


def drive(function, given: dict, grad, rank: int, world_size: int, groups=None, around=None, **same) -> dict:
    """What a rank runs: call `function` with its tensors, by name, then backward from the gradient `grad`.

    given   {name: value} of this rank; floating point tensors become leaves
    grad    the gradient of what the function returns; None: no backward, what it returns is the answer
    around  what to do around the function: around(function) -> function

    Returns {"output", "gradients": {name: gradient}, "changed": [names of inputs that the function has changed]}.
    """
    leaves = {name: leaf(value, grad is not None) for name, value in given.items()}
    known = blocks_for(my_group(rank, groups))
    known = {name: value for name, value in known.items() if name in inspect.signature(function).parameters}
    function = around(function) if around else function
    with region("forward"):
        output = function(**leaves, **known, **same)
    if grad is None:
        return {"output": output, "gradients": {}, "changed": changed(leaves, given)}
    gradients = None if not isinstance(output, torch.Tensor) or not output.requires_grad else {}
    if gradients is not None and output.shape == grad.shape:  # another shape: the output alone is judged
        output.backward(grad)
        gradients = {name: x.grad for name, x in leaves.items() if isinstance(x, torch.Tensor) and x.requires_grad}
    output = output.detach() if isinstance(output, torch.Tensor) else output
    return {"output": output, "gradients": gradients, "changed": changed(leaves, given)}


def leaf(value, needs_grad: bool):
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)  # views with gaps stay what they are
    copy.copy_(value)
    return copy.requires_grad_(needs_grad and value.is_floating_point())


def changed(leaves: dict, given: dict) -> list[str]:
    return [
        name
        for name, x in leaves.items()
        if isinstance(x, torch.Tensor) and not x.is_meta and not torch.equal(x.detach(), given[name])
    ]


# ---- comparing


def serial(function, grad, **tensors) -> tuple[torch.Tensor, dict]:
    """(output, {name: gradient}) of a function on whole tensors, by one process."""
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


def judge_rank(result: dict, rank: int, output, gradients: dict, mistakes: dict | None = None, rtol=CLOSE) -> None:
    """Compare what one rank came to with what is right.

    gradients  {name: what is right}; mistakes: {"output" or name: {what the mistake is: the wrong value}}
    """
    mistakes = mistakes or {}
    name_the_untouched(result, rank)
    close(result["output"], output, rank, mistakes.get("output", {}), rtol)
    if result["gradients"] is None:
        raise CheckFailed(
            f"rank {rank}: what your function returns has no gradient (requires_grad is False)",
            "",
            "Somewhere a verb or a call of dist stands alone, and autograd does not see through it: communicate inside "
            "an autograd function, by f, g and their like.",
        )
    for name, wanted in gradients.items():
        who = f"rank {rank}: the gradient of {name} is"
        close(result["gradients"].get(name), wanted, who, mistakes.get(name, {}), rtol)


def name_the_untouched(result: dict, rank: int) -> None:
    for name in result["changed"]:
        raise CheckFailed(
            f"rank {rank}: {name} is not what it was before the call",
            "inputs that stay as they were",
            "Something writes in place, as x += 1, x[...] = 0 and dist.all_reduce(x) do. The verbs return new tensors.",
        )


def close(got, wanted, who, mistakes: dict, rtol: float) -> None:
    """As `expect`; entries that are tiny beside the largest may be off by as much as that one may."""
    comparable = isinstance(got, torch.Tensor) and got.shape == wanted.shape and got.dtype == wanted.dtype
    if rtol and comparable and torch.allclose(got, wanted, rtol=rtol, atol=rtol * wanted.abs().max().item()):
        return
    if isinstance(got, torch.Tensor) and got.dtype.is_floating_point and bool(got.isnan().any() or got.isinf().any()):
        mistakes = {**mistakes, "not a number, or infinite: something overflows": got}
    different = {words: wrong for words, wrong in mistakes.items() if not alike(wrong, wanted, rtol)}
    expect(got, wanted, who, different, rtol or EXACT)


def calls_of(answer, rank: int) -> tuple[list, list]:
    """(events of the forward pass, events of the backward pass) of a rank."""
    end = next(part.end for part in answer.run.regions if part.rank == rank and part.name == "forward")
    events = [event for event in answer.events if event.rank == rank]
    return [event for event in events if event.start <= end], [event for event in events if event.start > end]


def expect_passes(answer, forward: list[tuple], backward: list[tuple], remark: str = "") -> str:
    """Raise CheckFailed unless each rank called these collectives, (op, bytes handed in), in each pass, in any order"""
    for rank in range(len(answer.results)):
        in_forward, in_backward = calls_of(answer, rank)
        expect_these(rank, in_forward, forward, " in the forward pass")
        expect_these(rank, in_backward, backward, " in the backward pass")
    expect_all_waited(answer)
    return f"forward: {in_words(forward)}; backward: {in_words(backward)}. {remark}".strip()


def expect_these(rank: int, events: list, wanted: list[tuple], when: str = "") -> None:
    """Raise CheckFailed unless these events are the wanted calls, (op, bytes handed in), in any order."""
    seen, wanted = sorted((event.op, event.bytes) for event in events), sorted(wanted)
    if seen != wanted:
        saw, expected = (f"{in_words(calls)}{when}" for calls in (seen, wanted))
        raise CheckFailed(f"rank {rank} called {saw}", expected, what_is_wrong(seen, wanted))


def what_is_wrong(seen: list, wanted: list) -> str:
    if [op for op, _ in seen] == [op for op, _ in wanted]:
        return "The right calls of other sizes: is it the right tensor that is sent?"
    got, needed = sum(nbytes for _, nbytes in seen), sum(nbytes for _, nbytes in wanted)
    if len(seen) < len(wanted):
        return "Fewer calls than are needed: somebody's part is missing."
    if len(seen) > len(wanted):
        return f"{len(seen)} calls where {len(wanted)} will do: which of these results did the rank have already?"
    return f"Another collective than is needed, {got:,} bytes instead of {needed:,}."


def in_words(calls: list[tuple]) -> str:
    return ", ".join(f"{op} of {nbytes:,} bytes" for op, nbytes in calls) or "nothing"


# ---- tensors: whole ones, and each rank's part of them


def parts(x: torch.Tensor, size: int, dim: int) -> list[torch.Tensor]:
    return [part.clone() for part in x.chunk(size, dim)]


def per_rank(size: int, **tensors) -> list[dict]:
    """{name: value} for each rank; a list has one entry a rank, all else is the same on every rank."""
    return [{name: x[rank] if isinstance(x, list) else x for name, x in tensors.items()} for rank in range(size)]
