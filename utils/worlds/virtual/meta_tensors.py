"""device="meta": tensors that have sizes but no values, whatever device the program asks for.

Integers that a program makes itself (the ranks of a group, a permutation of samples) and numbers without a dimension
(an optimizer's step) stay on the CPU with their values, because they steer the program. Where such a tensor meets one
without values, the result has none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ...recording.torch_private import OpOverload, kernels_of_optimizers, local_scalar_dense, schema_of

aten = torch.ops.aten
# Functions that make integers: unless a float is among their arguments; always.
BY_ARGUMENTS, INTEGERS = {aten.arange, aten.full, aten.scalar_tensor}, {aten.randint, aten.randperm}
BY_MASK = {aten.index, aten.index_put, aten.index_put_}  # their index may be a mask
ONE_VALUE = {local_scalar_dense, aten.is_nonzero}
READS_A_VALUE = {local_scalar_dense, aten.is_nonzero, aten.equal, aten.nonzero, aten.masked_select}


class NoValues(RuntimeError):
    """The program asked for a value in a world that only has sizes."""

    def __init__(self, what: str):
        super().__init__(
            f"{what} needs the values of a tensor, and on device='meta' tensors have sizes only. (.item(), .tolist(), "
            "f'{loss:.2f}' and an `if` on a tensor need them too.) Compute values with simulate(..., device='cpu'), "
            "have them be nan with item_as_nan=True, or let the program decide by sizes, ranks and integers."
        )


@functools.cache
def place_of_device(function: OpOverload[..., Any]) -> int | None:
    """Which argument is the device of the result; None if there is none."""
    names = [argument.name for argument in schema_of(function).arguments]
    return names.index("device") if "device" in names else None


def arguments(
    function: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which `function` makes tensors without values wherever they should have none."""
    with_values, without = kinds(args)
    if with_values and without:
        if function.overloadpacket in BY_MASK:
            args = (args[0], masks_to_indices(args[1]), *args[2:])
        args = tuple(map(without_values, args))
    place = place_of_device(function)
    if place is not None:
        asked = args[place] if place < len(args) else kwargs.get("device")
        device = device_for(function, args, kwargs, asked, without)
        if place < len(args):
            args = (*args[:place], device, *args[place + 1 :])
        else:
            kwargs = {**kwargs, "device": device}
        kwargs.pop("pin_memory", None)
    elif function.overloadpacket is aten.lift_fresh and is_data(args[0].dtype, args[0].dim()):
        args = (without_values(args[0]),)
    return args, kwargs


def masks_to_indices(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Each mask that has values as the indices it selects: their number is the size of the result."""
    selected: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8) and not index.is_meta:
            selected += index.nonzero(as_tuple=True)
        else:
            selected.append(index)
    return selected


def kinds(args: Iterable[Any]) -> tuple[bool, bool]:
    """Whether there are tensors with values and a dimension, and tensors without values."""
    with_values = without = False
    for argument in args:
        if isinstance(argument, Tensor):
            if argument.is_meta:
                without = True
            elif argument.dim():
                with_values = True
        elif isinstance(argument, (list, tuple)) and argument and not isinstance(argument[0], (int, float)):
            some = kinds(argument)
            with_values, without = with_values or some[0], without or some[1]
    return with_values, without


def without_values(value: Any) -> Any:
    """A tensor, or nested lists of them, stripped of the values; numbers without a dimension keep theirs."""
    if isinstance(value, Tensor):
        return value if value.is_meta or not value.dim() else value.to("meta")
    return type(value)(map(without_values, value)) if type(value) in (list, tuple) else value


def is_data(dtype: torch.dtype, dimensions: int) -> bool:
    """Whether such a tensor is data, whose values don't matter here; otherwise it steers the program."""
    return (dtype.is_floating_point or dtype.is_complex) and dimensions > 0


def device_for(
    function: OpOverload[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    asked: torch.device | str | None,
    any_without: bool,
) -> str | None:
    """Where to make the result.

    asked         the device that the program asks for, if any
    any_without   whether an argument has no values
    """
    if any_without:
        return None if asked is None else "meta"
    tensor = next((argument for argument in args if isinstance(argument, Tensor)), None)
    packet = function.overloadpacket
    if kwargs.get("dtype") is not None:
        dtype = kwargs["dtype"]
    elif tensor is not None:
        dtype = tensor.dtype
    elif packet in INTEGERS or (packet in BY_ARGUMENTS and not any(isinstance(a, float) for a in args)):
        dtype = torch.int64
    else:
        dtype = torch.get_default_dtype()
    sizes = next((argument for argument in args if isinstance(argument, (list, tuple))), None)
    if sizes is not None:
        dimensions = len(sizes)
    elif tensor is not None:
        dimensions = tensor.dim()
    else:
        dimensions = 0 if packet is aten.scalar_tensor else 1
    return "meta" if is_data(dtype, dimensions) else "cpu"


def nan_like(tensor: torch.Tensor) -> float | bool | None:
    """What a tensor of unknown value gives where one number is asked for: nan, or False, as from a comparison with nan.

    None for a whole number, which would steer the program.
    """
    return math.nan if tensor.is_floating_point() else False if tensor.dtype is torch.bool else None


def do(function: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out an operation. Raises NoValues if that takes values which are not there."""
    _, without = kinds(args)
    packet = function.overloadpacket
    name = ".item()" if packet is local_scalar_dense else packet.__name__
    if without and packet in READS_A_VALUE:
        raise NoValues(name)
    if without and packet in kernels_of_optimizers:
        return None
    try:
        return function(*args, **kwargs)
    except NotImplementedError:
        if without:
            raise NoValues(name) from None
        raise
