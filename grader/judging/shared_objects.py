"""Programs on their way to sandboxed ranks: what is pickled by value, and what stays with the hub."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import socket
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch

from grader.inside.codec import Other
from grader.inside.rank import LENGTH, strided
from utils.checks.inputs import Draws
from utils.checks.runner import Runner
from utils.kit.slow_memory import SlowMemory
from utils.worlds.common import pickling

READ_SECONDS = 60  # for reading a notebook's cells


def give_order(line: socket.socket, order: dict) -> None:
    """What a rank gets first. It is made here, so it may be a pickle."""
    data = pickle.dumps(order)
    line.settimeout(READ_SECONDS)
    line.sendall(LENGTH.pack(len(data)) + data)


class NotForRanks(Exception):
    """A check hands its ranks what would tell them each other's inputs. The check is wrong, not the answer."""


def pack_program(program: tuple, function: Callable, memories: list[SlowMemory]) -> bytes:
    """What a rank shall call, with its own inputs and nobody else's. Raises NotForRanks."""
    file = io.BytesIO()
    ProgramPickler(file, function, memories).dump(program)
    return file.getvalue()


class ProgramPickler(cloudpickle.Pickler):
    """Puts signs where the student's function and memories stand; tensors go by their values.

    A view goes without the storage that it is a part of: that may hold what other ranks have, or what is expected. And
    what inputs are drawn from does not go at all.
    """

    def __init__(self, file, function: Callable, memories: list[SlowMemory]):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.function, self.memories = function, memories

    def persistent_id(self, value: Any):
        if value is self.function:
            return "answer"
        if isinstance(value, SlowMemory):
            self.memories.append(value)
            return len(self.memories) - 1, value.room
        return None

    def reducer_override(self, value: Any):
        if isinstance(value, Draws | Runner | torch.Generator):
            raise NotForRanks(
                f"the check of {self.function.__name__} hands a {type(value).__name__} to its ranks, as an input or in "
                "a function that uses one: whoever has it can draw the inputs of all ranks. Draw in the check, and "
                "hand over the tensors."
            )
        if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_meta and value.is_leaf:
            strides = value.stride() if 0 not in value.stride() else value.contiguous().stride()
            _, (data, dtype, shape) = pickling.pack(value.detach())
            return strided, (data, dtype, shape, strides, value.requires_grad)
        return super().reducer_override(value)


def restored(original: Any, told: Any) -> Any:
    """An input as it was after the call; of one that has state, a copy of ours with the state that was told."""
    kind, state = told if type(told) is list and len(told) == 2 else ("", None)
    if kind == "value":
        return state
    if kind != "state" or type(state) is not dict:
        return Other("nothing", "nothing that can be judged")
    if isinstance(original, torch.nn.Module):
        model = copy.deepcopy(original)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        if state.keys() != tensors.keys() or not all(type(one) in TENSORS for one in state.values()):
            return Other("module", "another model")
        for name, tensor in tensors.items():
            tensor.data = state[name].detach()
        return model
    owner = copy.copy(getattr(original, "__self__", original))
    owner.__dict__.update({str(name): value for name, value in state.items()})
    return types.MethodType(original.__func__, owner) if inspect.ismethod(original) else owner


TENSORS = (torch.Tensor, torch.nn.Parameter)
