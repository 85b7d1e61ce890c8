"""The process group of a virtual rank, through which torch's own API and its wrappers reach the virtual network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ...events.collectives import form_of
from ...recording.callers import OPERATOR, who_called
from ...recording.in_flight import WAITED_TWICE
from ...recording.torch_calls import (
    ASYNCHRONOUS,
    OPERATIONS,
    WITHOUT_HANDLE,
    check_memory,
    handed_in,
    new_event,
    options_of,
    tensors_in,
)
from ...recording.torch_private import (
    Work,
    current_autograd_node,
    current_graph_task_id,
    fake_backend,
    group_in_words,
    register_backend,
    when_backward_ends,
)
from .argument_checks import argument_error
from .calls import VirtualCall
from .rank import VirtualRank, World


class VirtualWork(Work):
    """The handle of a call: `wait()` brings the rank's clock to the moment at which the call is complete.

    from_python   whether a function of torch.distributed made the call, rather than C++ (DDP)
    only_once     whether a second wait is an error, as for a message of Gloo's
    """

    only_once = False

    def __init__(self, call: VirtualCall, rank: VirtualRank, tensors: Sequence[torch.Tensor], from_python: bool):
        super().__init__()
        self.call, self.rank, self.tensors, self.from_python = call, rank, tensors, from_python
        self.future: VirtualFuture | None = None
        self.arrived = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self.only_once and self.arrived:
            raise RuntimeError(WAITED_TWICE)
        self.arrived = wait(self.rank, self.call)
        return self.arrived

    def is_completed(self) -> bool:
        return is_completed(self.rank, self.call)

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        wait(self.rank, self.call)
        return list(self.tensors)

    def synchronize(self) -> None:
        wait(self.rank, self.call)

    block_current_stream = synchronize

    def source_rank(self) -> int:
        wait(self.rank, self.call)
        event = self.call.event
        return event.members.index(event.peer if self.call.source is None else self.call.source)

    _source_rank = source_rank

    def get_future(self) -> VirtualFuture:
        """Its future, waited for early: C++ waits for futures without asking us, and then no other rank gets a turn.

        DDP's C++ takes one in the middle of backward and waits for it when backward ends, so we wait just before that.
        When no operation of a backward is running (a static graph's first reduction, join), it waits at once, and so
        do we.
        """
        if self.future is None:
            self.rank.mark_used(self.call)
            self.future = VirtualFuture(self.rank, self.call)
            self.rank.pending_futures[self.call] = self.future, self.tensors
            if self.call.end is not None and self.rank.clock >= self.call.end:
                wait(self.rank, self.call)
            elif current_autograd_node() is not None:
                when_backward_ends(self.synchronize)
            elif not self.from_python or current_graph_task_id() != -1:
                wait(self.rank, self.call)
        return self.future


def wait(rank: VirtualRank, call: VirtualCall) -> bool:
    rank.wait_for(call)
    resolve_future(rank, call)
    return True


def is_completed(rank: VirtualRank, call: VirtualCall) -> bool:
    rank.mark_used(call)
    if not rank.poll(call):
        return False
    resolve_future(rank, call)
    return True


def resolve_future(rank: VirtualRank, call: VirtualCall) -> None:
    """Give the future of `call`, if there is one, its result."""
    if call in rank.pending_futures:
        future, tensors = rank.pending_futures.pop(call)
        future.set_result(tensors)


class VirtualFuture(torch.futures.Future[Any]):
    """The future of a call, or one that `then` has made from it.

    It does not refer to the call's handle, which refers to it: both hold tensors, and are freed as soon as nobody needs
    them only if they form no cycle.
    """

    def __init__(self, rank: VirtualRank, call: VirtualCall):
        super().__init__()
        self.rank, self.call = rank, call

    def done(self) -> bool:
        return is_completed(self.rank, self.call)

    def wait(self) -> Any:
        wait(self.rank, self.call)
        return super().wait()

    def value(self) -> Any:
        wait(self.rank, self.call)
        return super().value()

    def then(self, callback: Callable[[VirtualFuture], Any]) -> VirtualFuture:
        after = VirtualFuture(self.rank, self.call)

        def run(_: Any) -> None:
            try:
                after.set_result(callback(self))
            except Exception as error:  # raised where `after` is waited for
                after.set_exception(error)

        super().then(run)
        return after


class VirtualGroup(dist.ProcessGroup):
    """A process group whose calls go to the network of a virtual cluster."""

    def __init__(self, world: World, rank: int, size: int):
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.world = world
        backend = fake_backend(rank, size)  # for names and timeouts
        register_backend(self, ["cpu", "meta", "cuda"], dist.ProcessGroup.BackendType.GLOO, backend)
        self.options = SimpleNamespace()  # torch writes to it; unused here

    def __repr__(self) -> str:
        return group_in_words(self)

    def _set_sequence_number_for_group(self) -> None:
        pass

    def getBackendName(self) -> str:
        """Not "gloo": DDP's C++ logger would take the backend for Gloo's own and read fields that it doesn't have."""
        return "virtual"

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Global ranks, in group order."""
        if self is dist.group.WORLD and (everyone := self.world.running.default_group) is not None:
            return everyone  # no need for each rank to list all others
        return self.world.to_world_ranks(dist.get_process_group_ranks(self))

    @cached_property
    def key(self) -> str:
        """What events call it: "world" for the default group, torch's name for any other."""
        return "world" if self is dist.group.WORLD else self.group_name


def _virtual(method: str, op: str) -> Callable[..., VirtualWork]:
    """The method of VirtualGroup that asks the network for `op`."""

    def call(self: VirtualGroup, *args: Any, **kwargs: Any) -> VirtualWork:
        rank, caller = self.world.running, who_called(in_full=True)
        options = args[-1] if args else None
        event = new_event(
            method,
            handed_in(op, args),
            options_of(method, args, options, self.members),
            rank=rank.number,
            index=len(rank.calls),
            group=self.key,
            members=self.members,
            is_async=bool(getattr(options, "asyncOp", False)) or caller.function in ASYNCHRONOUS,
            start=rank.clock,
            where=caller.where,
            wrapper=caller.wrapper,
            callers=caller.callers,
            part=caller.part,
        )
        if error := argument_error(method, op, args, len(self.members), event.reduce_op):
            raise RuntimeError(error)
        tensors = tensors_in(args)
        check_memory(tensors)
        if op == "broadcast" and caller.directly:
            rank.note_parameter(event.index, tensors[0])
        request = VirtualCall(event, method, args)
        dense = [tensor for place in form_of(op, method).dense for tensor in tensors_in(args[place])]
        rank.call(request, caller.directly or caller.wrapper == OPERATOR, tensors, dense)
        work = VirtualWork(request, rank, tensors_in(args[:1]), from_python=bool(caller.function))
        rank.handle_created(work)
        if method in WITHOUT_HANDLE:
            work.wait()
        return work

    call.__name__ = method
    return call


for _method, _op in OPERATIONS.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(VirtualGroup, _method, _virtual(_method, _op))
