"""Collectives that reach torch as operators, not as calls of a process group.

Their kernels for the CPU call the process group; those for tensors without values don't, which would make them free. So
each is called by the kernel that does, or replaced by operators of which that is true:

    _c10d_functional             its kernel for the CPU, whatever the tensors are. For those that write to `out`, C++
                                 calls the backend behind the group: they become a call without `out`, and a copy
    _c10d_functional_autograd    that of _c10d_functional with the same name, once autograd has done its part
    _dtensor                     its kernel for the CPU
    symm_mem                     a fused one as a collective and a product, one after the other; an all-reduce by any
                                 algorithm as all_reduce; what reads other ranks' memory raises
    c10d_functional              torch makes it of _c10d_functional
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ...recording.torch_private import DispatchKey, OpOverload, call_kernel, functional_collectives, group_named

NAMESPACES = {"_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"}
# How often these copy a tensor of their first argument's size, which is read and written, beside the collective.
COPIES = {
    "_c10d_functional::all_reduce": 1,
    "_c10d_functional::all_reduce_coalesced": 1,
    "_c10d_functional::broadcast": 1,
    "_dtensor::shard_dim_alltoall": 2,
}
TOGETHER = "fused_"  # in symm_mem: what torch can do by other operators, as its kernel for tensors without values does

collectives: Any = functional_collectives
Operator = Callable[..., Any]


def is_collective(function: OpOverload[..., Any]) -> bool:
    return function.namespace in NAMESPACES


def copied(function: OpOverload[..., Any], args: tuple[Any, ...]) -> Iterator[Tensor]:
    """The tensors that a kernel of its own copies, once for each copy."""
    for _ in range(COPIES.get(name_of(function), 0)):
        yield from args[0] if isinstance(args[0], (list, tuple)) else args[:1]


def name_of(function: OpOverload[..., Any]) -> str:
    return f"{function.namespace}::{function.overloadpacket.__name__}"


def made_of_others(function: OpOverload[..., Any]) -> Operator | None:
    """What does the same by operators that a rank can call in turn; None if the kernel for the CPU does.

    Raises NotImplementedError for a collective that a virtual cluster does not have.
    """
    name = function.overloadpacket.__name__
    if function.namespace == "_c10d_functional_autograd":
        return getattr(collectives, name)  # type: ignore[no-any-return]
    if function.namespace == "_c10d_functional" and name.endswith("_out"):
        return into(getattr(collectives, name.removesuffix("_out")))
    if function.namespace != "symm_mem":
        return None
    if name.startswith(TOGETHER):
        return lambda *args, **kwargs: call_kernel(function, DispatchKey.Meta, *args, **kwargs)
    if name in SYMMETRIC:
        return SYMMETRIC[name]
    raise NotImplementedError(
        f"torch.ops.symm_mem.{name} reads or writes the memory of other GPUs, which virtual ranks don't share. "
        "Use a collective or messages of torch.distributed."
    )


def into(operator: Operator) -> Operator:
    """An operator that returns its result, as one that writes it to `out`."""

    def call(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return out.copy_(waited(operator(*args, **kwargs)))

    return call


def waited(tensor: Tensor) -> Tensor:
    result: Tensor = collectives.wait_tensor(tensor)
    return result


def all_reduce(tensor: Tensor, reduce_op: str, group_name: str) -> Tensor:
    return waited(collectives.all_reduce(tensor, reduce_op, group_name))


def all_reduce_in_place(tensor: Tensor, reduce_op: str, group_name: str) -> Tensor:
    return waited(collectives.all_reduce_(tensor, reduce_op, group_name))


def all_reduce_into(tensor: Tensor, reduce_op: str, group_name: str, out: Tensor) -> Tensor:
    return out.copy_(all_reduce(tensor, reduce_op, group_name))


def all_gather(tensor: Tensor, group_name: str) -> Tensor:
    return waited(collectives.all_gather_into_tensor(tensor, size_of(group_name), group_name))


def all_gather_into(tensor: Tensor, group_name: str, out: Tensor) -> Tensor:
    return out.copy_(all_gather(tensor, group_name).view(out.shape))


def reduce_scatter(tensor: Tensor, reduce_op: str, group_name: str) -> Tensor:
    return waited(collectives.reduce_scatter_tensor(tensor, reduce_op, size_of(group_name), group_name))


def size_of(group_name: str) -> int:
    return group_named(group_name).size()


SYMMETRIC: dict[str, Operator] = {
    "one_shot_all_reduce": all_reduce,
    "one_shot_all_reduce_out": all_reduce_into,
    "multimem_one_shot_all_reduce": all_reduce,
    "multimem_one_shot_all_reduce_out": all_reduce_into,
    "two_shot_all_reduce_": all_reduce_in_place,
    "two_shot_all_reduce_out": all_reduce_into,
    "multimem_all_reduce_": all_reduce_in_place,
    "multimem_all_gather_out": all_gather_into,
    "_low_contention_all_gather": all_gather,
    "_low_contention_reduce_scatter": reduce_scatter,
}
