"""What a rank runs where a check judges activation checkpointing: pieces of a forward pass, there and back."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from functools import partial
from traceback import walk_stack
from types import FrameType
from typing import Any
from weakref import ref

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from ...recording.track_memory import track_memory
from ..mlp import layer
from ..witness import Witness
from .backward import my_group

Apply = Callable[..., Any]  # apply(function, *arguments)


def plainly(piece: Callable[..., Any], *given: Any) -> Any:
    """piece(*given): what a checkpoint must not be told apart from, except by memory and time."""
    return piece(*given)


# ---- pieces of a forward pass; `calls` notes each time that one runs, and for whom

BY_TORCH = "torch's own checkpoint"


def caller() -> str:
    """BY_TORCH if torch's own checkpoint is what calls."""
    files = {frame.f_code.co_filename for frame, _ in walk_stack(None)}
    return BY_TORCH if torch.utils.checkpoint.__file__ in files else ""


def one_layer(apply: Apply, x: Tensor, w: Tensor, calls: list[str]) -> Any:
    """Four tensors kept inside; the weight is not among the arguments."""

    def piece(x: Tensor) -> Tensor:
        calls.append(caller())
        return nn.functional.gelu(nn.functional.gelu(x @ w) @ w)

    return apply(piece, x)


def several(apply: Apply, x: Tensor, w: Tensor, calls: list[str]) -> Any:
    """Several arguments and results of all kinds: two gradients, a tensor without one, a number, None, a mask."""
    bias = x.detach() + 1

    def piece(bias: Tensor, x: Tensor, times: float, nothing: None, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls.append(caller())
        return nn.functional.gelu(x @ w + bias) * times, bias > 0, x.sin()

    y, mask, z = apply(piece, bias, x, 3.0, None, w)
    return torch.where(mask, y, y * 2) + z


def one_of_two(apply: Apply, x: Tensor, w: Tensor, calls: list[str]) -> Any:
    """A result that nobody uses."""

    def piece(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(caller())
        return x.exp(), nn.functional.gelu(x @ w)

    return apply(piece, x, w)[1]


def nested(apply: Apply, x: Tensor, w: Tensor, calls: list[str]) -> Any:
    """A checkpoint in a checkpoint."""

    def inner(x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.gelu(x @ w).sin()

    def piece(x: Tensor, w: Tensor) -> Tensor:
        calls.append(caller())
        result: Tensor = apply(inner, nn.functional.gelu(x @ w), w)
        return result

    return apply(piece, x.sin(), w)


def frozen(apply: Apply, x: Tensor, w: Tensor, calls: list[str]) -> Any:
    """Whole numbers, a dictionary and a frozen tensor among the arguments."""
    places, still = torch.arange(x.shape[0]).flip(0), x.detach() * 2

    def piece(places: Tensor, of_name: dict[str, Tensor], still: Tensor, x: Tensor) -> Tensor:
        calls.append(caller())
        return nn.functional.gelu(x[places] @ of_name["w"]) * still

    return apply(piece, places, {"w": w}, still, x)


def through_backward(
    function: Apply,
    x: Tensor,
    weight: Tensor,
    gradient: Tensor,
    piece: Callable[..., Any],
    **_: Any,
) -> dict[str, Any]:
    """A piece with `function` as its checkpoint: its output, the gradients, bytes that it keeps, and how often it ran.

    The bytes are those alive after the forward pass besides the arguments and the output. "unseen": how many tensors
    among the arguments of the (outer) checkpoint are not saved where hooks see it; "held": how many live on when the
    hooks have put copies in their places. "by torch": whether torch's own checkpoint has run the piece.
    """
    calls: list[str] = []
    given: list[int] = []  # addresses of the tensors that the checkpoint is called with
    inner: dict[int, ref[Tensor]] = {}  # the ones that are not leaves
    saved: list[int] = []  # addresses, as hooks see them
    leaf, w = x.clone().requires_grad_(), nn.Parameter(weight.clone())

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.data_ptr())
        return tensor.detach().clone() if tensor.data_ptr() in inner else tensor

    def apply(part: Callable[..., Any], *args: Any) -> Any:
        if not given:
            given.extend(arg.data_ptr() for arg in args if isinstance(arg, Tensor))
            inner.update({x.data_ptr(): ref(x) for x in args if isinstance(x, Tensor) and x is not leaf and x is not w})
        return function(part, *args)

    with track_memory(leaf, w) as storages:
        before = storages.live
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            output = piece(apply, leaf, w, calls)
        kept = storages.live - before - output.nbytes
        held = sum(one() is not None for one in inner.values())
        forward = len(calls)
        if output.requires_grad:
            output.backward(gradient)
    return {
        "the output": output.detach(),
        "the gradient of x": leaf.grad,
        "the gradient of w": w.grad,
        "kept": kept,
        "unseen": len(set(given) - set(saved)),
        "held": held,
        "calls": (forward, len(calls) - forward),
        "by torch": BY_TORCH in calls,
    }


# ---- random state


BEFORE = 3  # random numbers that are drawn between making the wrapper and its first call


def through_replays(
    function: Callable[..., Any],
    x: Tensor,
    seed: int,
    first: bool,
    later: bool,
    rate: float,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """Three calls of what `function` makes of a piece with dropout, and the random numbers that come after each.

    The third is given 2 * x, so its result is 4 times as large.

    Between the first two, another wrapper that `function` has made is called for the first time.
    first, later: whether autocast is on in the first call, and in the others; dtype: of the first one
    """
    runs: list[int] = []

    def piece(x: Tensor, rate: float) -> Tensor:
        runs.append(1)
        return nn.functional.dropout(x @ x.t(), rate)

    results: dict[str, Any] = {}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        again, another = function(piece), function(piece)
        torch.rand(BEFORE)
        for number in (1, 2, 3):
            of_call, enabled = (dtype, first) if number == 1 else (torch.bfloat16, later)
            with torch.autocast("cpu", of_call, enabled=enabled):
                results[f"the result of call {number}"] = again(2 * x if number == 3 else x, rate)
            results[f"the random numbers after call {number}"] = torch.rand(4)
            if number == 1:
                with torch.autocast("cpu", of_call, enabled=enabled):
                    results["the result of another wrapper"] = another(x, rate)
    results["the number of times that the function has run"] = len(runs)
    return results


# ---- segments


class Segments(Witness):
    """Applies layers to numbers that stand for tensors, and notes which layers have run in each checkpoint.

    checkpoints  the layers of each, in order
    ran          {what a layer returned, a number that only the witness can know: all layers on the way to it}
    """

    def __init__(self) -> None:
        self.checkpoints: list[list[int]] = []
        self.ran: dict[int, list[int]] = {0: []}
        self.inside = False

    def __call__(self, what: str, number: int = 0, x: int = 0) -> int:
        if what == "layer":
            before = self.ran.get(x, [-1])
            made = secrets.randbits(48)
            self.ran[made] = [*before, number]
            if self.inside:
                self.checkpoints[-1].append(number)
            return made
        self.inside = what == "begin"
        if self.inside:
            self.checkpoints.append([])
        return 0


def through_segments(
    function: Callable[..., Any],
    x: Tensor,
    gradient: Tensor,
    weights: Sequence[Tensor],
    segments: Segments,
    k: int,
) -> dict[str, Any]:
    """Layers of the MLP in segments: output and gradients, and the bytes kept besides x and the output.

    Then once more with numbers in place of tensors, before a witness: "end" is what comes out.
    """

    def checkpoint(piece: Callable[..., Any], *args: Any) -> Any:
        return torch_checkpoint(piece, *args, use_reentrant=True)

    def with_weight(weight: Tensor, x: Tensor) -> Tensor:
        return layer(x, weight)

    def seen(number: int, x: Tensor) -> Tensor:
        return torch.full_like(x, segments("layer", number, int(x)))

    def checkpoint_seen(piece: Callable[..., Any], *args: Any) -> Any:
        segments("begin")
        output = piece(*args)
        segments("end")
        return output

    leaf = x.clone().requires_grad_()
    leaves = [nn.Parameter(weight.clone()) for weight in weights]
    with track_memory(leaf, *leaves) as storages:
        before = storages.live
        output = function([partial(with_weight, w) for w in leaves], leaf, k, checkpoint)
        kept = storages.live - before - output.nbytes
        if output.requires_grad:
            output.backward(gradient)
    numbers = [partial(seen, number) for number in range(len(leaves))]
    end = function(numbers, torch.zeros((), dtype=torch.float64), k, checkpoint_seen)
    return {
        "the output": output.detach(),
        "the gradient of x": leaf.grad,
        **{f"the gradient of weight {number}": w.grad for number, w in enumerate(leaves)},
        "end": int(end),
        "kept": kept,
    }


TOO_MANY = "too many steps"


class TooManySteps(Exception):
    """More lines have run than are allowed."""


def in_steps(function: Callable[..., Any], *given: Any, most: int) -> Any:
    """function(*given), or TOO_MANY if more than `most` lines of Python run in it."""
    lines = 0

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines > most:
            raise TooManySteps
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return function(*given)
    except TooManySteps:
        return TOO_MANY
    finally:
        sys.settrace(before)


# ---- selective checkpoints

OPERATIONS = {
    "mm": torch.ops.aten.mm.default,
    "addmm": torch.ops.aten.addmm.default,
    "bmm": torch.ops.aten.bmm.default,
    "gelu": torch.ops.aten.gelu.default,
    "add": torch.ops.aten.add.Tensor,
    "arange": torch.ops.aten.arange.default,
}


def decisions(
    function: Callable[..., Any], asked: Sequence[tuple[str, list[tuple[int, ...]]]], least: int
) -> dict[str, Any]:
    """What the policy does with each operation: "keep" or "recompute". asked: (its name, the arguments' shapes)."""
    policy, answers = function(least), {}
    for name, shapes in asked:
        args: list[Any] = [torch.empty(shape, device="meta") for shape in shapes] or [4]
        got = policy(None, OPERATIONS[name], *args)
        keep = got in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
        answers[words_for(name, shapes)] = (
            ("keep" if keep else "recompute") if isinstance(got, CheckpointPolicy) else got
        )
    return answers


def words_for(name: str, shapes: Sequence[tuple[int, ...]]) -> str:
    return f"{name} of {', '.join(map(str, shapes)) or 'a number'}"


# ---- partitioned over a group, in two acts: the process that unpacks has never had what was packed


def packed(function: Callable[..., Any], x: Tensor, rank: int, groups: Sequence[list[int]]) -> dict[str, Any]:
    """What the hook of `function(group)` keeps of a checkpoint's input, "packed", and the bytes that it keeps alive."""
    pack, unpack = function(my_group(rank, groups))
    leaf, made = x.clone().requires_grad_(), []

    def keep(tensor: Tensor) -> None:
        made.append(pack(tensor))

    with track_memory(leaf) as storages:
        before = storages.live
        with saved_tensors_hooks(keep, unpack):
            output = torch_checkpoint(squared_sine, leaf + 1, use_reentrant=True)
        kept = storages.live - before - output.nbytes
    return {"packed": made[0], "kept": kept}


def unpacked(
    function: Callable[..., Any], first: dict[str, Any], gradient: Tensor, rank: int, groups: Sequence[list[int]]
) -> dict[str, Any]:
    """The gradient of x, from what was packed of it. The forward pass here is one of zeros."""
    _, unpack = function(my_group(rank, groups))
    leaf = torch.zeros_like(gradient).requires_grad_()
    with saved_tensors_hooks(lambda _: first["packed"], unpack):
        output = torch_checkpoint(squared_sine, leaf + 1, use_reentrant=True)
    output.backward(gradient)
    return {"the gradient": leaf.grad}


def bytes_of(value: Any) -> int:
    """What a value takes, as it travels: its tensors, and 8 bytes for anything else that has no parts."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return bytes_of([*value, *value.values()])
    if isinstance(value, list | tuple | set | frozenset):
        return sum(map(bytes_of, value))
    return len(value) if isinstance(value, str) else 8


def squared_sine(x: Tensor) -> Tensor:
    return x.sin() * x
