"""Who keeps what for the backward pass, read from the graph that autograd has built.

y = gelu(x @ w)
for entry in saved_tensors(y):
    print(entry.node, entry.name, entry.shape, entry.nbytes)    # GeluBackward0 self (4, 8) 128 ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

RAW = "_raw_saved_"  # torch's prefix of saved tensors' names; plain "_saved_" also gives numbers


class Saved(NamedTuple):
    """A tensor that an operation keeps for its backward pass.

    node    the operation's name in the graph
    name    what the operation calls the tensor
    nbytes  of the memory that it keeps alive, which may be more than the tensor's own
    first   whether no operation listed before it keeps the same memory
    """

    node: str
    name: str
    shape: tuple[int, ...]
    nbytes: int
    first: bool


def saved_tensors(output: Tensor) -> list[Saved]:
    """All tensors kept for the backward pass of `output`, from its last operation to its first."""
    seen: set[int] = set()
    entries = []
    for node in nodes_of(output.grad_fn):
        for name, tensor in kept_by(node):
            memory = tensor.untyped_storage()
            first = memory.data_ptr() not in seen
            seen.add(memory.data_ptr())
            entries.append(Saved(node.name(), name, tuple(tensor.shape), memory.nbytes(), first))
    return entries


def nodes_of(last: Node | None) -> Iterator[Node]:
    """Every operation of a graph once, those nearest to the end first."""
    waiting, known = [last], {last}
    while waiting:
        node = waiting.pop(0)
        if node is not None:
            yield node
            found = [before for before, _ in node.next_functions if before not in known]
            known.update(found)
            waiting += found


def kept_by(node: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of what one operation keeps."""
    for number, tensor in enumerate(getattr(node, "saved_tensors", ())):  # tensors that an autograd.Function saved
        if isinstance(tensor, Tensor):
            yield f"saved {number}", tensor
    for name in dir(node):
        if name.startswith(RAW):
            tensor = getattr(node, name.replace("_raw", "", 1), None)
            if isinstance(tensor, Tensor):
                yield name.removeprefix(RAW), tensor
