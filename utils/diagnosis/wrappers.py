"""What torch's wrappers (DDP, FSDP and so on) do on the network, for students who only wrote `model(x)`."""

from __future__ import annotations

from collections.abc import Iterable

from ..events.event import DTENSORS_EXCHANGE, Event

EQUALLY = "so every rank must run it the same number of times."
# {(wrapper, operation, or "" for any): what it does, and what that means for the program}
ON_THE_NETWORK = {
    ("DDP", ""): "DDP(model) compares the parameters of all ranks and broadcasts rank 0's, so every rank must wrap its "
    "model, at the same point of the program.",
    ("DDP buffers", ""): "Calling a DDP model broadcasts rank 0's buffers, such as batch norm's averages, so all ranks "
    "must call it. To evaluate on one rank, call model.module(x), which communicates nothing.",
    ("DDP forward", "broadcast"): "In its second step, a DDP model agrees with all ranks on the order of gradients, "
    + EQUALLY,
    ("DDP backward", "all_reduce"): f"The backward pass of a DDP model all-reduces the gradients, {EQUALLY}",
    ("FSDP", "all_gather"): "An FSDP model all-gathers its parameters when it is called and for its state_dict, so all "
    "ranks must call it, even if only one of them evaluates or saves.",
    ("FSDP backward", ""): "The backward pass of an FSDP model all-gathers parameters and reduce-scatters gradients, "
    + EQUALLY,
    ("SyncBatchNorm", ""): f"SyncBatchNorm adds up the statistics of all ranks, {EQUALLY}",
    ("SyncBatchNorm backward", ""): f"SyncBatchNorm's backward pass adds up sums over all ranks, {EQUALLY}",
    ("checkpoint", ""): "torch.distributed.checkpoint saves and loads with all ranks together.",
    ("DTensor", ""): "An operation on a DTensor may communicate, and full_tensor() always does: all ranks of its mesh "
    "must call it.",
    ("DTensor backward", ""): f"The backward pass through DTensors communicates, {EQUALLY}",
    ("state dict", ""): "A full state dict is gathered from all ranks, so all must call it, even if only one saves it.",
    ("pipeline", ""): "A step of a pipeline schedule passes activations and gradients from rank to rank: every rank "
    "must call it the same number of times, with the same number of microbatches.",
    ("ZeroRedundancyOptimizer", ""): "The step of a ZeroRedundancyOptimizer broadcasts each rank's share of the "
    "parameters, and consolidate_state_dict its state: all ranks must call them.",
}
NAMES = {wrapper for wrapper, _ in ON_THE_NETWORK}


def what_it_does(event: Event) -> str:
    """What the wrapper that made this call does on the network, in a sentence or two; "" if no wrapper made it."""
    wrapper = event.wrapper.replace(DTENSORS_EXCHANGE, "DTensor")
    return ON_THE_NETWORK.get((wrapper, event.op)) or ON_THE_NETWORK.get((wrapper, ""), "")


def what_they_do(events: Iterable[Event]) -> list[str]:
    """The same for several calls, without repetition."""
    return [said for said in dict.fromkeys(map(what_it_does, events)) if said]
