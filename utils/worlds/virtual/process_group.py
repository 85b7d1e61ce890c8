"""The process group of a virtual rank: torch's own API, and torch's own wrappers, talk to the network through it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist

from ...events.event import Event
from ...events.matching import POINT_TO_POINT
from ...recording import torch_calls
from ...recording.callers import who_called
from ...recording.torch_calls import ASYNCHRONOUS, OPERATIONS, OUTPUT_FIRST, TAKEN_AS_DENSE
from ...recording.torch_private import (
    Work,
    current_autograd_node,
    current_graph_task_id,
    fake_backend,
    register_backend,
    when_backward_ends,
)
from .argument_checks import misfit
from .network import VirtualCall


class VirtualWork(Work):
    """The handle of a call: `wait()` brings the rank's clock to the moment at which its result is there.

    from_python   whether a function of torch.distributed made the call, not C++ (DDP)
    """

    def __init__(self, call: VirtualCall, rank, tensors: list[torch.Tensor], from_python: bool):
        super().__init__()
        self.call, self.rank, self.tensors, self.from_python = call, rank, tensors, from_python
        self.future: VirtualFuture | None = None

    def wait(self, timeout=None) -> bool:
        self.rank.wait_for(self.call)
        self.keep_promise()
        return True

    def is_completed(self) -> bool:
        self.rank.asked_for(self.call)
        if not self.rank.has_come(self.call):
            return False
        self.keep_promise()
        return True

    def keep_promise(self) -> None:
        if self.rank.promised.pop(self, None):
            self.future.set_result(self.tensors)

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self):
        return None

    def result(self):
        self.wait()
        return self.tensors

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        self.wait()
        event = self.call.event
        return event.members.index(event.peer if self.call.source is None else self.call.source)

    _source_rank = source_rank

    def get_future(self) -> VirtualFuture:
        """C++ waits for a future where nobody asks us, and nobody else would get a turn: so we wait before it does.

        DDP's C++ asks for one in the middle of backward and waits when backward ends, so we wait just before that. When
        no operation of a backward runs (a static graph's first reduction, join), it waits at once, and so do we.
        """
        if self.future is None:
            self.rank.asked_for(self.call)
            self.future = VirtualFuture(self)
            self.rank.promised[self] = self.future
            if self.call.end is not None and self.rank.clock >= self.call.end:
                self.wait()
            elif current_autograd_node() is not None:
                when_backward_ends(self.wait)
            elif not self.from_python or current_graph_task_id() != -1:
                self.wait()
        return self.future


class VirtualFuture(torch.futures.Future):
    """The future of a virtual work, or what `then` has made of it."""

    def __init__(self, work: VirtualWork):
        super().__init__()
        self.work = work

    def done(self) -> bool:
        return self.work.is_completed()

    def wait(self):
        self.work.wait()
        return super().wait()

    def value(self):
        self.work.wait()
        return super().value()

    def then(self, callback) -> VirtualFuture:
        after = VirtualFuture(self.work)

        def run(_) -> None:
            try:
                after.set_result(callback(self))
            except Exception as error:  # whoever waits for `after` gets it
                after.set_exception(error)

        super().then(run)
        return after


class VirtualGroup(dist.ProcessGroup):
    """A process group whose calls go to the network of a virtual cluster."""

    def __init__(self, world, rank: int, size: int):
        super().__init__(rank, size)
        self.world = world
        backend = fake_backend(rank, size)  # for names and time-outs
        register_backend(self, ["cpu", "meta", "cuda"], dist.ProcessGroup.BackendType.GLOO, backend)
        self.options = SimpleNamespace()  # torch writes into them what nobody here reads
        self._members = self._name = None

    def _set_sequence_number_for_group(self):
        pass

    def getBackendName(self) -> str:
        """Not "gloo" for C++: DDP's logger would take the backend for Gloo's own and read from it what isn't there."""
        return "virtual"

    @property
    def members(self) -> tuple[int, ...]:
        """Global ranks, in group order."""
        if self._members is None:
            self._members = self.world.numbers_of(dist.get_process_group_ranks(self))
        return self._members

    @property
    def name(self) -> str:
        """ "world" for the default group, torch's name for another."""
        if self._name is None:
            self._name = "world" if self is dist.group.WORLD else self.group_name
        return self._name


def _virtual(method: str, op: str):
    """The method of VirtualGroup that asks the network for `op`."""

    def call(self, *args, **kwargs):
        rank, (where, function, directly) = self.world.turns.running, who_called()
        options = args[-1] if args else None
        tensors = torch_calls.tensors_in(args[1] if op in OUTPUT_FIRST and len(args) > 1 else args[:1])
        first = tensors[0] if tensors else None
        event = Event(
            rank=rank.number,
            index=len(rank.calls),
            op=op,
            group=self.name,
            members=self.members,
            peer=torch_calls.peer_of(op, method, args, options, self.members),
            tag=(args[1] if method == "recv_anysource" else args[2]) if op in POINT_TO_POINT else 0,
            bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            dtype=torch_calls.name_of_member(first.dtype) if first is not None else "",
            shape=tuple(first.shape) if first is not None else (),
            reduce_op=torch_calls.reduce_op_name(options),
            is_async=bool(getattr(options, "asyncOp", False)) or function in ASYNCHRONOUS,
            start=rank.clock,
            end=None,
            where=where,
        )
        if said := misfit(method, op, args, len(self.members), event.reduce_op):
            raise RuntimeError(said)
        request = VirtualCall(event, method, args)
        dense = [
            tensor for position in TAKEN_AS_DENSE.get(method, ()) for tensor in torch_calls.tensors_in(args[position])
        ]
        rank.call(request, directly, torch_calls.tensors_in(args), dense)
        work = VirtualWork(request, rank, torch_calls.tensors_in(args[:1]), from_python=bool(function))
        rank.hands_out(work)
        return work

    call.__name__ = method
    return call


for _method, _op in OPERATIONS.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(VirtualGroup, _method, _virtual(_method, _op))
