"""Tensors of an asynchronous call, from its start to its `wait()`: touching them in between is always noticed.

On a real network such a race usually goes well, and fails on the day that matters. So where answers are judged, a
tensor that is being received holds poison until the program waits: NaN, or a number far from all others. Reading it too
early then leads to wrong results every time, and a NaN of ours says where it came from. Writing into a tensor in flight
is found when the program waits, and raises RuntimeError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..events.collectives import fills
from ..text.source_lines import place
from .torch_calls import reads_second, tensors_in
from .torch_private import base_of, version_of

# NaNs with a payload of our own in the bits that all floats share, so that they are recognised after arithmetic too.
BITS = {
    torch.float64: (torch.int64, 0x7FFD_6000_0000_0000),
    torch.float32: (torch.int32, 0x7FEB_0000),
    torch.bfloat16: (torch.int16, 0x7FEB),
    torch.float16: (torch.int16, 0x7F58),
}
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64)
ADVICE = (
    "A tensor belongs to its call until you have waited: call wait() on its handle first, and give each call in flight "
    "a tensor of its own."
)
WAITED_TWICE = (
    "This message's handle was waited for before. With Gloo a second wait() never returns: wait once for each."
)

poisoning = False  # whether asynchronous calls of this process are watched; see `watched`


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """In the `with` block, races of this process always show."""
    global poisoning
    before, poisoning = poisoning, True
    try:
        yield
    finally:
        poisoning = before


class Flight:
    """The tensors of one call in flight. `land` ends it.

    where      "file:line" of the call, for the report; "" if it is not known
    receives   the tensors that the call fills; from now on they hold poison
    sends      those that it only reads
    stand_ins  copies of `receives` from before, for a backend that writes whenever it likes
    """

    def __init__(
        self, op: str, receives: Sequence[torch.Tensor], sends: Sequence[torch.Tensor], where: str = ""
    ) -> None:
        self.op, self.where, self.landed = op, where, False
        self.receives = list(receives)
        taken = {tensor.untyped_storage().data_ptr() for tensor in self.receives}
        copies = [(tensor, tensor.detach().clone()) for tensor in sends]
        shared = [pair for pair in copies if pair[0].untyped_storage().data_ptr() in taken]
        self.sends = [pair for pair in copies if pair[0].untyped_storage().data_ptr() not in taken]
        self.stand_ins = [tensor.detach().clone() for tensor in self.receives]
        # A call may read part of what it fills, as an all-gather in place does. It gets a copy without poison.
        self.instead = [*zip(self.receives, self.stand_ins, strict=True), *shared]
        for tensor in self.receives:
            poison(tensor)
        self.versions = list(map(whole_version, self.receives))

    def land(self, results: Sequence[torch.Tensor]) -> None:
        """Write what the call has delivered. Raises RuntimeError if the program has changed a tensor in flight."""
        if self.landed:
            return
        self.landed = True
        changed = [tensor for tensor, before in self.sends if not same_bits(tensor, before)]
        versions = list(map(whole_version, self.receives))
        overwritten = versions != self.versions or not all(map(is_poison, self.receives))
        for tensor, result in zip(self.receives, results, strict=True):
            tensor.data.copy_(result)
        if changed or overwritten:
            verb = "sent" if changed else "received"
            start = place(self.where).partition(":  ")[0]
            raise RuntimeError(
                f"a tensor was written to while it was in flight: between the start of this {self.op}"
                f"{f' ({start})' * bool(start)} and its wait(), when it was still being {verb}. {ADVICE}"
            )

    def with_stand_ins(self, value: Any) -> Any:
        """A call's arguments, with the stand-ins in place of what it fills."""
        if isinstance(value, torch.Tensor):
            return next((mine for it, mine in self.instead if it is value), value)
        return type(value)(map(self.with_stand_ins, value)) if isinstance(value, list | tuple) else value


def flight_of(op: str, args: Sequence[Any], is_root: bool, where: str) -> Flight | None:
    """A flight of the tensors in a call's arguments; None if there is nothing to watch.

    is_root   whether this rank is the call's root, if it has one
    where     "file:line" of the call
    """
    filled = tensors_in(args[:1])
    read = tensors_in(args[1:2]) if reads_second(op) else []
    if not fills(op, is_root):
        filled, read = [], [*filled, *read]
    tensors = [*filled, *read]
    if not tensors or not all(can_be_watched(tensor) for tensor in tensors):
        return None
    return Flight(op, filled, read, where)


def can_be_watched(tensor: torch.Tensor) -> bool:
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.is_contiguous()
    return is_plain and (tensor.dtype in BITS or tensor.dtype in WHOLE)


def poison(tensor: torch.Tensor) -> None:
    bits = as_bits(tensor)
    bits.fill_(poison_of(tensor.dtype))


def is_poison(tensor: torch.Tensor) -> bool:
    return bool((as_bits(tensor) == poison_of(tensor.dtype)).all())


def whole_version(tensor: torch.Tensor) -> int:
    """Changes with each write into a tensor, also if it leaves poison behind (a NaN that is divided stays that NaN).

    Always 0 for a view, since it would also change with writes into other parts of what it is a view of.
    """
    return 0 if base_of(tensor) is not None or tensor.is_inference() else version_of(tensor)


def holds_poison(tensor: torch.Tensor) -> bool:
    """Whether a number in it is poison, or was computed from some."""
    if tensor.dtype not in BITS or tensor.device.type != "cpu" or not tensor.numel():
        return False
    mask = BITS[tensor.dtype][1]
    bits = as_bits(tensor.detach().contiguous())
    return bool((tensor.isnan() & ((bits & mask) == mask).reshape(tensor.shape)).any())


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(as_bits(one), as_bits(other))


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as whole numbers."""
    data = tensor.data.reshape(-1)
    return data.view(BITS[tensor.dtype][0]) if tensor.dtype in BITS else data


def poison_of(dtype: torch.dtype) -> int:
    return BITS[dtype][1] if dtype in BITS else torch.iinfo(dtype).min + 3
