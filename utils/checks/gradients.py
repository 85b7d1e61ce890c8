"""Oracles for functions that autograd goes through: one process on whole tensors says what is right on each rank.

    @oracle(values=[(4, 3, 2, 8)], traffic=[(4, 3, 2, 8)])
    def row_product(draws: Draws, size: int, B: int, D: int, F: int) -> Case:
        x, w, grad = (draws.integers(shape, seed=seed) for seed, shape in enumerate([(B, F), (F, D), (B, D)]))
        truth = Sharded(torch.matmul, size, {"input": x, "other": w}, grad, cut={"input": 1, "other": 0})
        partial_sums, _ = truth.alone()
        mistakes = {
            "output": {"a partial sum. Where is g?": partial_sums},
            "other_local": truth.too_large("other", "g passes its gradient on, once"),
        }
        return truth.case(mistakes, traffic=partial(expect_passes, forward=[("all_reduce", grad.nbytes)], backward=[]))

The student's row_product(input_local, other_local, g) runs forward, then backward from `grad`, as
kit/drivers/backward.py says. What is judged on each rank: its output, all gradients, that it has left its inputs alone,
and what it called in each pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from types import MappingProxyType
from typing import Any

import torch

from ..events.event import Event
from ..kit.drivers.backward import DriveResult, drive
from ..text.units import plural
from .answer import Answer, CheckFailed
from .compare import Mistakes
from .inputs import Draws
from .oracles import Case, Drawing, as_tuple, part_of_rank, side_by_side
from .traffic import expect_all_waited

CLOSE = 1e-9  # relative error of float64 numbers, after gelu, exp or additions in another order
TWICE = {"values": partial(drive, twice=True)}  # to find a function that keeps something from call to call

Call = tuple[str, int]  # (op, bytes handed in)
NO_MISTAKES: Mapping[str, Mistakes] = MappingProxyType({})
GIVES = {
    "all_reduce": "gives every rank the whole sum",
    "reduce_scatter": "gives each rank one part of the sum",
    "all_gather": "gives every rank the tensors of all",
    "all_to_all": "gives each rank one part of every tensor",
    "broadcast": "gives every rank the root's tensor",
    "reduce": "gives the sum to the root alone",
}


# ---- what is right


def serial(
    function: Callable[..., torch.Tensor], grad: torch.Tensor, **tensors: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(output, {name: gradient}) of a function in one process; gradients of floating point tensors only."""
    leaves = {name: x.detach().clone() for name, x in tensors.items()}
    wanted = {name: x.requires_grad_() for name, x in leaves.items() if x.is_floating_point()}
    output = function(**leaves)
    gradients = torch.autograd.grad(output, list(wanted.values()), grad)
    return output.detach(), dict(zip(wanted, gradients, strict=True))


def shards(x: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """The parts of x, cut along `dim`, along a new first dimension: (size, ...)."""
    return torch.stack(x.chunk(size, dim))


@dataclass
class Sharded:
    """A function of whole tensors that ranks compute on shards; what is right on each rank follows from it.

    function  of the whole tensors, by name, in one process
    size      how many ranks share the tensors
    whole     {name: tensor}
    grad      the gradient with respect to the function's result, y
    cut       {name: the dimension along which it is cut}, of the tensors of which each rank has a shard; "y" stands for
              the result and its gradient. Every rank has all of the others
    """

    function: Callable[..., torch.Tensor]
    size: int
    whole: Mapping[str, torch.Tensor]
    grad: torch.Tensor
    cut: Mapping[str, int]

    def __post_init__(self) -> None:
        self.y, self.gradients = serial(self.function, self.grad, **self.whole)

    def case(self, mistakes: Mapping[str, Mistakes] = NO_MISTAKES, **options: Any) -> Case:
        """The case of a function that autograd goes through; see `driven`."""
        right = {"output": self.part("y", self.y), **self.parts(self.gradients)}
        return driven(self.size, self.parts(self.whole), self.part("y", self.grad), right, mistakes, **options)

    def case_by_hand(self, mistakes: Mapping[str, Mistakes] = NO_MISTAKES, **options: Any) -> Case:
        """The case of a function that is given `grad` as well and returns y and all gradients, as a tuple.

        mistakes  {"y", "grad_x", "grad_w_local", ...: {a usual mistake, in words: what it leads to}}
        """
        right = self.parts({"y": self.y}) | self.parts(self.gradients, "grad_")
        grad = {self.named("y").replace("y", "grad"): self.part("y", self.grad)}

        def unpack(result: DriveResult, rank: int) -> Mapping[str, Any]:
            expect_untouched(result, rank)
            return as_tuple(result["output"], list(right), rank)

        options.setdefault("also", expect_repeats)
        inputs: list[list[Any]] = [per_rank(self.size, self.parts(self.whole) | grad), [None] * self.size]
        how = {"driver": drive, "drivers": TWICE, "unchanged": False, **options}
        return Case(inputs, right=right, mistakes=mistakes, unpack=unpack, **how)

    def alone(self) -> tuple[list[torch.Tensor], dict[str, list[torch.Tensor]]]:
        """(outputs, {name: gradients}) of the function on each rank's tensors alone, as lists with one entry per rank.

        That is what ranks get that never communicate.
        """
        given = per_rank(self.size, {name: self.part(name, x) for name, x in self.whole.items()})
        grads = [part_of_rank(self.part("y", self.grad), rank, self.size) for rank in range(self.size)]
        ranks = [serial(self.function, grad, **mine) for grad, mine in zip(grads, given, strict=True)]
        return [y for y, _ in ranks], {name: [of_rank[name] for _, of_rank in ranks] for name in self.gradients}

    def too_large(self, name: str, why: str) -> dict[str, Any]:
        """The mistake of adding up over the ranks what each of them has in full already."""
        return {f"{self.size} times too large: {why}": self.part(name, self.size * self.gradients[name])}

    def part(self, name: str, value: torch.Tensor) -> Any:
        """A list with a copy of each rank's shard, or the whole tensor if every rank has all of it."""
        return [shard.clone() for shard in value.chunk(self.size, self.cut[name])] if name in self.cut else value

    def parts(self, values: Mapping[str, torch.Tensor], prefix: str = "") -> dict[str, Any]:
        """{the name of the student's argument: what the ranks have of it}"""
        return {prefix + self.named(name): self.part(name, value) for name, value in values.items()}

    def named(self, name: str) -> str:
        return f"{name}_local" if name in self.cut else name


def driven(
    size: int,
    given: Mapping[str, Any],
    grad: Any,
    right: Mapping[str, Any],
    mistakes: Mapping[str, Mistakes] = NO_MISTAKES,
    **options: Any,
) -> Case:
    """The case of a function that autograd goes through. Lists have one entry per rank, as in any Case.

    given     {argument: value}
    grad      the gradient with respect to the output
    right     {"output": the right output, argument: its right gradient}
    mistakes  {"output" or argument: {a usual mistake, in words: what it leads to}}
    options   further fields of the Case
    """
    also = options.pop("also", None)

    def repeats_and_more(answer: Answer) -> str | None:
        expect_repeats(answer)
        return also(answer) if also else None

    usual = {name: {OVERFLOW: overflows, NO_GRADIENT: None, **mistakes.get(name, {})} for name in right}
    usual["output"] = {OVERFLOW: overflows, NO_RETURN: None, **mistakes.get("output", {})}
    return Case(
        [per_rank(size, given), [part_of_rank(grad, rank, size) for rank in range(size)]],
        right={part_named(name): value for name, value in right.items()},
        mistakes={part_named(name): of_part for name, of_part in usual.items()},
        unpack=unpacked,
        driver=drive,
        drivers=TWICE,
        unchanged=False,  # `changed` says which input
        also=repeats_and_more,
        **options,
    )


def per_rank(size: int, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{name: part_of_rank(x, rank, size) for name, x in given.items()} for rank in range(size)]


def part_named(name: str) -> str:
    return "" if name == "output" else f"the gradient of {name}"


def unpacked(result: DriveResult, rank: int) -> dict[str, Any]:
    expect_untouched(result, rank)
    of_names = {"output": result["output"], **result["gradients"]}
    return {part_named(name): value for name, value in of_names.items()}


def expect_untouched(result: DriveResult, rank: int) -> None:
    """Raise CheckFailed if the function has changed one of its inputs."""
    for name in result["changed"]:
        raise CheckFailed(
            f"rank {rank}: {name} is not what it was before the call",
            "inputs that stay as they were",
            "Something writes in place, as x += 1, x[...] = 0 and dist.all_reduce(x) do; the verbs return new tensors.",
        )


def expect_repeats(answer: Answer) -> None:
    """Raise CheckFailed if a second call with the same inputs gave a different result."""
    for rank, result in enumerate(answer.results):
        if not result["repeats"]:
            raise CheckFailed(
                f"rank {rank}: a second call with the same inputs gives a different result",
                "the same output and gradients",
                "The function keeps something from its first call: a list, a counter, a gradient that piles up.",
            )


OVERFLOW = "not a number, or infinite: something overflows, or a logarithm gets 0"
ALL_GROUPS = f"{OVERFLOW}. There are several groups here: pass tp_group to each collective"
NO_RETURN = "what a function without a `return` gives, or a call of `dist`"
NO_GRADIENT = (
    "no gradient: autograd does not see that your result depends on this tensor. It sees through neither detach(), "
    ".data and .item() nor a call of dist that isn't inside an autograd function, as it is in f and g"
)


def overflows(got: Any) -> bool:
    return isinstance(got, torch.Tensor) and not bool(got.isfinite().all())


def output_first(case: Case) -> Case:
    """The case, but its traffic is only judged where the output is right and there are gradients, right or not."""
    of_output = replace(case, right={"": case.right[""]}, mistakes={"": case.mistakes.get("", {})})

    def judge(answer: Answer) -> str | None:
        of_output.judge_values(answer)
        for rank, result in enumerate(answer.results):
            if any(gradient is None for gradient in result["gradients"].values()):
                raise CheckFailed(f"rank {rank}: a gradient is missing", mistake=f"That is {NO_GRADIENT}.")
        return case.judge(answer, "traffic")

    return replace(case, traffic=judge)


def in_groups(draw: Drawing) -> Drawing:
    """An oracle that may be asked for groups of ranks, each with a case of its own: groups=[[0, 2], [1, 3]]."""

    @wraps(draw)
    def draw_all(draws: Draws, *arguments: Any, groups: Sequence[Sequence[int]] = (), **named: Any) -> Case:
        if not groups:
            return draw(draws, *arguments, **named)
        cases = [draw(draws.again(number), *arguments, **named) for number in range(len(groups))]
        if isinstance(cases[0].right, dict):
            cases = [replace(case, mistakes=of_several_groups(case.mistakes, cases)) for case in cases]
        return replace(side_by_side(cases, groups), for_all={**cases[0].for_all, "groups": groups})

    return draw_all


def of_several_groups(mistakes: Mapping[str, Mistakes], cases: Sequence[Case]) -> dict[str, Mistakes]:
    """These mistakes, and what collectives over all groups lead to.

    Their sum, for each part that is the same on every rank of a group; or an overflow.
    """
    sums = {}
    for name in cases[0].right:
        parts = [case.right[name] for case in cases]
        if all(isinstance(part, torch.Tensor) and part.shape == parts[0].shape for part in parts):
            sums[name] = {"the sum over the ranks of all groups: pass tp_group to each collective": sum(parts)}
    usual = {
        name: {ALL_GROUPS if words == OVERFLOW else words: wrong for words, wrong in of_part.items()}
        for name, of_part in mistakes.items()
    }
    return {name: {**usual.get(name, {}), **sums.get(name, {})} for name in {**usual, **sums}}


# ---- calls


def expect_passes(
    answer: Answer,
    forward: Sequence[Call],
    backward: Sequence[Call],
    remark: str = "",
    why: tuple[str, str] = ("", ""),
    in_all: bool = False,
    ranks: Sequence[int] = (),
) -> str:
    """Raise CheckFailed unless each rank made these calls, (op, bytes handed in), in each pass, in any order.

    why     for each pass, the advice where its calls are wrong: what they are for
    in_all  for all_reduces, only the bytes of all those in a pass together count
    ranks   those to look at; by default all

    Returns a sentence with the calls, and the remark.
    """
    for rank in ranks or range(len(answer.results)):
        in_forward, in_backward = calls_of(answer, rank)
        expect_these(rank, in_forward, forward, " in the forward pass", why[0], in_all)
        expect_these(rank, in_backward, backward, " in the backward pass", why[1], in_all)
    expect_all_waited(answer)
    return f"forward: {in_words(forward, in_all)}; backward: {in_words(backward, in_all)}. {remark}".strip()


def expect_in_both(answer: Answer, calls: Sequence[Call], remark: str = "", why: str = "") -> str:
    """Raise CheckFailed unless each rank made these calls, (op, bytes handed in), in both passes together.

    why: the advice where the calls are wrong: what they are for
    """
    for rank in range(len(answer.results)):
        expect_these(rank, [event for event in answer.events if event.rank == rank], calls, why=why)
    expect_all_waited(answer)
    return remark


def calls_of(answer: Answer, rank: int) -> tuple[list[Event], list[Event]]:
    """(events of the forward pass, events of the backward pass) of a rank."""
    end = next(part.end for part in answer.run.regions if part.rank == rank and part.name == "forward")
    events = [event for event in answer.events if event.rank == rank]
    return [event for event in events if event.start <= end], [event for event in events if event.start > end]


def expect_these(
    rank: int, events: Sequence[Event], wanted: Sequence[Call], when: str = "", why: str = "", in_all: bool = False
) -> None:
    """Raise CheckFailed unless these events are the wanted calls, in any order."""
    seen = sorted((event.op, event.bytes) for event in events)
    if (added_up(seen) if in_all else seen) != sorted(wanted):
        raise CheckFailed(
            f"rank {rank} called {in_words(seen)}{when}",
            in_words(wanted, in_all),
            what_is_wrong(seen, sorted(wanted), why),
        )


def added_up(calls: Sequence[Call]) -> list[Call]:
    """The calls, with one all_reduce of all bytes in place of several."""
    total = sum(nbytes for op, nbytes in calls if op == "all_reduce")
    return sorted([call for call in calls if call[0] != "all_reduce"] + [("all_reduce", total)] * (total > 0))


def what_is_wrong(seen: Sequence[Call], wanted: Sequence[Call], why: str) -> str:
    got, needed = sum(nbytes for _, nbytes in seen), sum(nbytes for _, nbytes in wanted)
    if why and got < needed:
        return f"Fewer bytes than are needed. {why}"
    if why:
        return f"That is {got / needed:.3g} times the bytes that are needed. {why}" if got > needed > 0 else why
    if [op for op, _ in seen] == [op for op, _ in wanted]:
        return "These are the right calls with the wrong sizes: do you send the right tensor?"
    if len(seen) < len(wanted):
        return "Fewer calls than are needed: some rank's part is missing."
    if len(seen) > len(wanted):
        if not wanted:
            return "No call is needed there: the rank has all that it takes already."
        return (
            f"That is {plural(len(seen), 'call')} where {len(wanted)} will do: which result did the rank already have?"
        )
    if got != needed:
        return f"That is not the collective that is needed: it takes {got:,} bytes instead of {needed:,}."
    ops = [Counter(op for op, _ in calls) for calls in (seen, wanted)]
    different = [*(ops[0] - ops[1]), *(ops[1] - ops[0])]
    gives = ", ".join(f"{op} {GIVES[op]}" for op in different if op in GIVES)
    return "That is not the collective that is needed, though it is handed as many bytes" + (
        f": {gives}." if gives else "."
    )


def in_words(calls: Sequence[Call], in_all: bool = False) -> str:
    def words(op: str, nbytes: int) -> str:
        return f"{op}s of {nbytes:,} bytes in all" if in_all and op == "all_reduce" else f"{op} of {nbytes:,} bytes"

    return ", ".join(words(*call) for call in calls) or "nothing"
