"""Programs on their way to sandboxed ranks: what is pickled by value, and what stays with the judge."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch

from grader.inside.codec import Other
from grader.inside.rank import strided
from grader.judging.hub_rank import Stays
from utils.checks.inputs import Draws
from utils.checks.runner import Runner
from utils.kit.slow_memory import SlowMemory
from utils.kit.witness import Witness
from utils.worlds.common import pickling


class NotForRanks(Exception):
    """A check hands its ranks something that reveals each other's inputs. The check is wrong, not the answer."""


def pack_program(program: tuple[Any, ...], function: Callable[..., Any], stays: list[Stays]) -> bytes:
    """What one rank calls, with its own inputs and no others.

    function   the student's; a placeholder takes its place
    stays      the SlowMemories and Witnesses in the program are added to it; placeholders take their places

    Raises NotForRanks.
    """
    file = io.BytesIO()
    ProgramPickler(file, function, stays).dump(program)
    return file.getvalue()


class ProgramPickler(cloudpickle.Pickler):
    """Puts placeholders where the student's function, memories and witnesses stand, and sends tensors by value.

    A view travels without the rest of its storage, which may hold other ranks' inputs or the expected values. The
    generators that inputs are drawn from do not travel at all.
    """

    def __init__(self, file: io.BytesIO, function: Callable[..., Any], stays: list[Stays]):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.function, self.stays = function, stays

    def persistent_id(self, value: Any) -> Any:
        if value is self.function:
            return "answer"
        if isinstance(value, SlowMemory):
            self.stays.append(value)
            return len(self.stays) - 1, value.room, {name: array.to("meta") for name, array in value.arrays.items()}
        if isinstance(value, Witness):
            if any(value is one for one in self.stays):
                raise NotForRanks(f"the check of {self.function.__name__} hands one Witness to two ranks")
            self.stays.append(value)
            return (len(self.stays) - 1,)
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Draws | Runner | torch.Generator):
            raise NotForRanks(
                f"the check of {self.function.__name__} hands a {type(value).__name__} to its ranks, as an input or in "
                "a function that uses one. A rank that has it can draw the inputs of all ranks. Draw in the check, and "
                "hand over the tensors."
            )
        if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_meta and value.is_leaf:
            strides = value.stride() if 0 not in value.stride() else value.contiguous().stride()
            _, (data, dtype, shape) = pickling.pack(value.detach())
            return strided, (data, dtype, shape, strides, value.requires_grad)
        return super().reducer_override(value)


def restored(original: Any, described: Any) -> Any:
    """An input as it was after the call, from the rank's description; an object with state is a copy of ours."""
    if isinstance(original, Witness):
        return original
    kind, state = described if type(described) is list and len(described) == 2 else ("", None)
    if kind == "value":
        return state
    if kind != "state" or type(state) is not dict:
        return Other("nothing", "a value that can't be judged")
    if isinstance(original, torch.nn.Module):
        model = copy.deepcopy(original)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        if state.keys() != tensors.keys() or not set(map(type, state.values())) <= {torch.Tensor, torch.nn.Parameter}:
            return Other("module", "a different model")
        for name, tensor in tensors.items():
            after = state[name].detach()
            if isinstance(tensor, torch.nn.Parameter):
                after = torch.nn.Parameter(after, requires_grad=tensor.requires_grad)
            torch.utils.swap_tensors(tensor, after)  # unlike a new .data, it may be on the device meta: see codec.py
        return model
    owner = copy.copy(getattr(original, "__self__", original))
    owner.__dict__.update({str(name): value for name, value in state.items()})
    return types.MethodType(original.__func__, owner) if inspect.ismethod(original) else owner
