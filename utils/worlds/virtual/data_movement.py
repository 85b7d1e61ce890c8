"""What a message or a collective does with the values, once all have called it. Reductions go in the order of ranks."""

from __future__ import annotations

import torch

from .network import VirtualCall

REDUCTIONS = {
    "sum": torch.Tensor.add_,
    "avg": torch.Tensor.add_,
    "product": torch.Tensor.mul_,
    "min": lambda total, x: total.copy_(torch.minimum(total, x)),
    "max": lambda total, x: total.copy_(torch.maximum(total, x)),
    "band": torch.Tensor.bitwise_and_,
    "bor": torch.Tensor.bitwise_or_,
    "bxor": torch.Tensor.bitwise_xor_,
}

Part = tuple[list[torch.Tensor], list[torch.Tensor]]  # what a rank hands in, and where it wants the result


def deliver(calls: list[VirtualCall]) -> None:
    """Write what each call gets into its tensors; of a tensor without values ("meta") there is nothing to write.

    calls   of a message: the send, then the receive; of a collective: in the order of the group
    """
    event = calls[0].event
    if event.op == "barrier" or any(first(call.args).is_meta for call in calls):
        return
    if event.op == "send":
        write(calls[1].args[0][0], calls[0].args[0][0])
    elif calls[0].method in ("_allgather_base", "all_gather_single"):  # not a piece for each pair of ranks
        if not any(call.args[1].is_meta for call in calls):
            whole = torch.cat([flat(call.args[1]) for call in calls])
            for call in calls:
                write(call.args[0], whole)
    else:
        root = None if event.peer is None else event.members.index(event.peer)
        for part in zip(*(parts(call) for call in calls), strict=True):
            tensors = [tensor for given, taken in part for tensor in (*given, *taken)]
            if not any(tensor.is_meta for tensor in tensors):
                exchange(event.op, event.reduce_op, root, list(part))


def first(value) -> torch.Tensor | None:
    """The first tensor in nested lists."""
    if isinstance(value, torch.Tensor):
        return value
    for item in value if isinstance(value, (list, tuple)) else ():
        if (found := first(item)) is not None:
            return found
    return None


def exchange(op: str, reduce_op: str, root: int | None, ranks: list[Part]) -> None:
    """One collective on one tensor of each rank."""
    if op == "all_reduce":
        total = reduced(reduce_op, [given[0] for given, _ in ranks])
        for _, taken in ranks:
            write(taken[0], total)
    elif op == "reduce":
        write(ranks[root][1][0], reduced(reduce_op, [given[0] for given, _ in ranks]))
    elif op == "broadcast":
        for place, (_, taken) in enumerate(ranks):
            if place != root:
                write(taken[0], ranks[root][0][0])
    elif op in ("all_gather", "gather"):
        for _, taken in ranks:
            for into, (given, _) in zip(taken, ranks, strict=False):
                write(into, given[0])
    elif op == "scatter":
        for given, (_, taken) in zip(ranks[root][0], ranks, strict=True):
            write(taken[0], given)
    elif op == "reduce_scatter":
        for place, (_, taken) in enumerate(ranks):
            write(taken[0], reduced(reduce_op, [given[place] for given, _ in ranks]))
    elif op == "all_to_all":
        for place, (_, taken) in enumerate(ranks):
            for into, (given, _) in zip(taken, ranks, strict=True):
                write(into, given[place])


def reduced(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Number by number, whatever the tensors' shapes."""
    numbers = [tensor.data if tensor.is_sparse else flat(tensor) for tensor in tensors]
    total = numbers[0].clone()
    for one in numbers[1:]:
        REDUCTIONS[op](total, one)
    if op == "avg":
        total.div_(len(tensors))
    return total if total.is_sparse else total.view(tensors[0].shape)


def write(into: torch.Tensor, what: torch.Tensor) -> None:
    """As Gloo does: what fits, and bytes as they are; autograd is not told."""
    if into.is_meta or what.is_meta:
        return
    if into.is_sparse:
        with torch.no_grad():
            into.copy_(what)
    elif into.shape == what.shape and into.dtype == what.dtype:
        into.data.copy_(what.data)
    else:
        into, what = flat(into).view(torch.uint8), flat(what).view(torch.uint8)
        length = min(len(into), len(what))
        into[:length].copy_(what[:length])


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.data.view(-1) if tensor.is_contiguous() else tensor.data.flatten()


def parts(call: VirtualCall) -> list[Part]:
    """The call's tensors, a part for each collective in it: there are several where torch puts some into one call."""
    args, size = call.args, len(call.event.members)
    method = call.method
    if method in ("allreduce", "allreduce_coalesced", "broadcast", "reduce"):
        return [([tensor], [tensor]) for tensor in args[0]]
    if method == "allgather":
        return [([given], taken) for given, taken in zip(args[1], args[0], strict=True)]
    if method == "allgather_coalesced":
        return [([given], [of_rank[number] for of_rank in args[0]]) for number, given in enumerate(args[1])]
    if method in ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"):
        return [([given], slices(taken, size)) for given, taken in zip(args[1], args[0], strict=True)]
    if method == "gather":
        return [([args[1][0]], args[0][0] if args[0] else [])]
    if method == "scatter":
        return [(args[1][0] if args[1] else [], [args[0][0]])]
    if method == "reduce_scatter":
        return [(given, [taken]) for given, taken in zip(args[1], args[0], strict=True)]
    if method in ("_reduce_scatter_base", "reduce_scatter_single"):
        return [(slices(args[1], size), [args[0]])]
    if method in ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"):
        return [(slices(given, size), [taken]) for given, taken in zip(args[1], args[0], strict=True)]
    if method == "alltoall":
        return [(args[1], args[0])]
    out, given, out_sizes, given_sizes = args[:4]  # alltoall_base, all_to_all_single
    return [(pieces(given, given_sizes, size), pieces(out, out_sizes, size))]


def slices(tensor: torch.Tensor, size: int) -> list[torch.Tensor]:
    """A tensor as one piece of its memory for each rank."""
    return list(flat(tensor).chunk(size)) if tensor.numel() else [tensor] * size


def pieces(tensor: torch.Tensor, rows: list[int], size: int) -> list[torch.Tensor]:
    """A tensor cut along its first dimension: `rows` of it for each rank, or alike."""
    return list(tensor.data.split(rows)) if rows else list(tensor.data.chunk(size))
