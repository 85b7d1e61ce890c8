"""device="meta": tensors that have sizes and no values, whatever device the program asks for.

Left on the CPU, with their values, are the integers that a program makes itself (the ranks of a group, a permutation
of samples) and numbers without a dimension (an optimizer's step): they steer the program. Where such a tensor meets one
without values, what comes out has none.
"""

from __future__ import annotations

import functools

import torch

from ...recording.torch_private import OpOverload, local_scalar_dense, schema_of

aten = torch.ops.aten
# What these make is of integers unless a float is among their arguments, or always.
BY_ARGUMENTS, INTEGERS = {aten.arange, aten.full, aten.scalar_tensor}, {aten.randint, aten.randperm}
BY_MASK = {aten.index, aten.index_put, aten.index_put_}  # may take a mask for an index
READS_A_VALUE = {local_scalar_dense, aten.is_nonzero, aten.equal, aten.nonzero, aten.masked_select}


class NoValues(RuntimeError):
    """The program asked for a value in a world that has only sizes."""

    def __init__(self, what: str):
        super().__init__(
            f"{what} needs the values of a tensor, and on device='meta' tensors have sizes only. (So do .item(), "
            ".tolist(), f'{loss:.2f}' and an `if` on a tensor.) Ask for values with simulate(..., device='cpu'), or "
            "take from sizes, ranks and integers what the program must know."
        )


@functools.cache
def place_of_device(function: OpOverload) -> int | None:
    """Which argument says on what device the result shall be; None if there is none."""
    names = [argument.name for argument in schema_of(function).arguments]
    return names.index("device") if "device" in names else None


def arguments(function: OpOverload, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments with which `function` makes tensors without values where there shall be none."""
    with_values, without = kinds(args)
    if with_values and without:
        if function.overloadpacket in BY_MASK:
            args = (args[0], chosen(args[1]), *args[2:])
        args = tuple(map(emptied, args))
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
        args = (emptied(args[0]),)
    return args, kwargs


def chosen(indices: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Of a mask that has values, the places that it chooses: how many there are is the size of what comes out."""
    places: list[torch.Tensor | None] = []
    for index in indices:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8) and not index.is_meta
        places += index.nonzero(as_tuple=True) if is_mask else [index]
    return places


def kinds(args) -> tuple[bool, bool]:
    """Whether there are tensors with values and a dimension, and tensors without values."""
    with_values = without = False
    for argument in args:
        if isinstance(argument, torch.Tensor):
            if argument.is_meta:
                without = True
            elif argument.dim():
                with_values = True
        elif isinstance(argument, (list, tuple)) and argument and not isinstance(argument[0], (int, float)):
            some = kinds(argument)
            with_values, without = with_values or some[0], without or some[1]
    return with_values, without


def emptied(value):
    """Tensors without their values."""
    if isinstance(value, torch.Tensor):
        return value if value.is_meta or not value.dim() else value.to("meta")
    return type(value)(map(emptied, value)) if type(value) in (list, tuple) else value


def is_data(dtype: torch.dtype, dimensions: int) -> bool:
    """Whether such a tensor is data, whose values nobody needs to know; else it steers the program."""
    return (dtype.is_floating_point or dtype.is_complex) and dimensions > 0


def device_for(function: OpOverload, args, kwargs, asked, without_values: bool) -> str | None:
    """Where to make it. asked: the device that the program asks for, if it does."""
    if without_values:
        return None if asked is None else "meta"
    tensor = next((argument for argument in args if isinstance(argument, torch.Tensor)), None)
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


def do(function: OpOverload, args, kwargs):
    """Do it; raises NoValues if it can't be done without values."""
    _, without = kinds(args)
    packet = function.overloadpacket
    name = ".item()" if packet is local_scalar_dense else packet.__name__
    if without and packet in READS_A_VALUE:
        raise NoValues(name)
    try:
        return function(*args, **kwargs)
    except NotImplementedError:
        if without:
            raise NoValues(name) from None
        raise
