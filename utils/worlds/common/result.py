"""A rank's result on its way to the notebook: values on the CPU, or one error naming the part that can't be sent."""

from __future__ import annotations

import io
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...recording.torch_private import (
    FUNCTIONAL_COLLECTIVES,
    DisableTorchFunctionSubclass,
    async_collective_tensor,
    rebuild_from_type,
    state_of_object,
)
from .by_value import Pickler
from .outcome import Result
from .pickling import CannotTravel, imported_types, pack, pickling_error
from .unpicklable import Part, find_culprit, type_text

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class CannotReturn(TypeError):
    """A rank returned something that can't be sent to the notebook."""


def pickle_result(result: object, pickler: type[ResultPickler] | None = None) -> bytes:
    """Pickle what a rank returned, as a Result. Tensors travel as values: on the CPU, without a graph, and without the
    rest of their storage.

    Raises CannotReturn that names the type of the part that can't be sent, and where it is.
    """
    outcome = io.BytesIO()
    try:
        (pickler or ResultPickler)(outcome).dump(Result(result))
    except (torch.AcceleratorError, torch.OutOfMemoryError):  # the program's own: a GPU reports it at the next call
        raise
    except Exception as error:
        raise CannotReturn(why_refused(result, error)) from None
    return outcome.getvalue()


def why_refused(result: object, error: Exception) -> str:
    whole = Part(result, "")
    part, error = find_culprit([whole], lambda value: pickling_error(ResultPickler, value)) or (whole, error)
    advice = getattr(error, "advice", "Return tensors, numbers, strings, or lists and dicts of them.")
    where = f", whose {part.name} is {type_text(part.value)}" if part.name else ""
    return f"it returned {type_text(result)}{where}, which can't be sent to the notebook ({error}). {advice}"


class ResultPickler(Pickler):
    """Pickles by value whatever the notebook defined, and tensors as their values."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return reduce_tensor(value)
        if isinstance(value, torch.nn.parallel.DistributedDataParallel):
            raise CannotTravel(
                value, "it is bound to the ranks' process group", "Return the model inside: model.module."
            )
        return super().reducer_override(value)


def reduce_tensor(tensor: Tensor) -> Any:
    """How pickle should write `tensor`. Tensors inside it, such as a Parameter's data, pass through here themselves."""
    if FUNCTIONAL_COLLECTIVES in sys.modules and isinstance(tensor, async_collective_tensor()):
        tensor = tensor.wait()
    if isinstance(tensor, imported_types(("torch.distributed.tensor", "DTensor"))):
        tensor = whole_values(tensor)
    if isinstance(tensor, torch.nn.Parameter) or tensor.device.type == "meta":
        return NotImplemented
    kind = type(tensor)
    knows_how = (
        kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ or kind.__reduce_ex__ is not Tensor.__reduce_ex__
    )
    if knows_how or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return tensor.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    with DisableTorchFunctionSubclass():  # a subclass may do anything at any call
        rebuild, arguments = pack(tensor.detach())
    if kind is Tensor:
        return rebuild, arguments
    return rebuild_from_type, (rebuild, kind, arguments, state_of_object(tensor))


def whole_values(tensor: DTensor) -> Tensor:
    """The values of a DTensor, if this rank holds all of it. No communication here: a rank might wait forever."""
    mesh = tensor.device_mesh
    is_whole = all(place.is_replicate() or mesh.size(dim) == 1 for dim, place in enumerate(tensor.placements))
    if mesh.get_coordinate() is None or not is_whole:
        raise CannotTravel(
            tensor,
            f"this rank holds only its part: {', '.join(map(str, tensor.placements))} over {mesh.size()} ranks",
            "Return x.full_tensor(), which every rank must call, or only this rank's part, x.to_local().",
        )
    return tensor.to_local()


def write_whole(path: str, data: bytes) -> None:
    """Put `data` at `path`, whole or not at all. Raises CannotReturn, with the size, if there is no room for it."""
    try:
        with open(path + ".part", "wb") as file:
            file.write(data)
    except OSError as error:
        os.unlink(path + ".part")
        raise CannotReturn(
            f"it returned {len(data) / 1e6:,.0f} MB, which could not be written to {os.path.dirname(path)}: "
            f"{error.strerror}. Return less, or set TMPDIR to a folder with room and restart the kernel."
        ) from None
    os.replace(path + ".part", path)
