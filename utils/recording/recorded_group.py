"""The process group that records: it stands in front of the real one, notes each call and passes it on.

torch's own parallel wrappers (DDP, FSDP2, DTensor, pipelining) call the process group just as a student does, so their
calls are recorded too. Each call becomes a row of the rank's table when it starts, and its end is filled in when its
result is there. The launcher reads the table while the world runs, which is how it knows who waits for whom.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from functools import cached_property, partial
from threading import current_thread, get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import get_worker_info

from ..events.collectives import COLLECTIVES, POINT_TO_POINT, form_of
from . import in_flight, regions
from .callers import OPERATOR, Caller, who_called
from .in_flight import WAITED_TWICE, Flight, flight_of
from .notes import (
    CallKind,
    CallLayout,
    CallSkipped,
    CallSplits,
    GroupBegun,
    GroupMade,
    GroupMembers,
    MessageLost,
    MessageSource,
    WorldLeft,
)
from .recorder import Recorder
from .samplers import watch_samplers
from .torch_calls import (
    ASYNCHRONOUS,
    OPERATIONS,
    check_memory,
    new_event,
    options_of,
    peer_of,
    reads_second,
    splits_of,
    tensors_in,
)
from .torch_private import (
    Backend,
    Future,
    NewGroup,
    Work,
    group_in_words,
    leave_uncompiled,
    register_backend,
    set_sequence_number,
    source_rank_of,
    when_call_is_skipped,
    when_world_is_left,
    wrap_making_of_groups,
)


class RecordedWork(Work):
    """The handle of a recorded call.

    An asynchronous call ends when its work does, waited for or not, if the backend reports it (Gloo does for
    collectives); otherwise when `wait()` has found it done (see events/isend_ends.py).
    """

    def __init__(
        self,
        work: Work,
        recorder: Recorder,
        index: int,
        is_async: bool,
        is_message: bool,
        senders: tuple[int, ...] = (),
        flight: Flight | None = None,
    ) -> None:
        """senders: for a receive from any source, the members of the group. flight: of its tensors, if watched."""
        super().__init__()
        self.flight = flight
        self.work, self.recorder, self.index = work, recorder, index
        self.is_async, self.is_message, self.senders = is_async, is_message, senders
        self.table = recorder.table
        self.waited = self.ended = self.arrived = self.only_once = False
        if is_async:
            try:
                work.get_future().add_done_callback(lambda _: self.end())
            except RuntimeError:  # Gloo's messages have no future, and no second wait() of theirs ever returns
                self.only_once = is_message

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            if self.table is self.recorder.table:  # else its program is over, and the index belongs to another call
                self.recorder.end(self.index)

    def __del__(self) -> None:
        if self.is_message and not self.ended:  # its buffer goes too: what has not been sent or received never will be
            self.recorder.write(MessageLost(self.index, self.recorder.now()))

    def asked(self) -> Work:
        """The work behind this handle, for a caller that asks about its state."""
        self.recorder.unused_handles.pop(self.index, None)
        return self.work

    def begin_to_wait(self) -> None:
        if self.is_async and not self.waited and get_ident() == self.recorder.main_thread:
            self.waited = True
            self.recorder.wait(self.index)

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self.only_once and self.arrived:
            raise RuntimeError(WAITED_TWICE)
        work = self.asked()
        self.begin_to_wait()
        try:
            result = work.wait() if not timeout else work.wait(timeout)
        except BaseException:
            self.recorder.failed(self.index)
            raise
        finally:  # even if it raises: the rank is no longer inside the call
            self.end()
        self.arrived = True
        if self.senders:
            self.recorder.write(MessageSource(self.index, self.senders[source_rank_of(work)]))
        self.land()
        return result

    def land(self) -> None:
        """The program knows that the call is done. Raises RuntimeError if it has changed a tensor in flight."""
        if self.flight is not None:
            self.flight.land(self.flight.stand_ins)

    def is_completed(self) -> bool:
        done = self.asked().is_completed()
        if done:
            self.land()
        return done

    def is_success(self) -> bool:
        return self.asked().is_success()

    def exception(self) -> Any:
        return self.asked().exception()

    def result(self) -> list[torch.Tensor]:
        return self.asked().result()

    def source_rank(self) -> int:
        return source_rank_of(self.work)

    _source_rank = source_rank  # torch's name for it, which `recv` uses

    def synchronize(self) -> None:
        self.asked().synchronize()

    def block_current_stream(self) -> None:
        self.asked().block_current_stream()

    def get_future(self) -> torch.futures.Future[Any]:
        future = self.asked().get_future()
        if self.flight is not None:
            future = future.then(self.landed)
        FUTURES[future] = self
        return future

    def landed(self, future: torch.futures.Future[Any]) -> Any:
        """The result of a future of this call: the program's own tensors, filled."""
        self.land()
        return self.flight.receives if self.flight is not None and self.flight.receives else future.value()


# The futures of recorded calls, and those that `then` has made of them.
FUTURES: WeakKeyDictionary[Future[Any], RecordedWork] = WeakKeyDictionary()


def record_waiting_for_futures() -> None:
    """From now on, a rank that waits for the future of a call is known to wait for the call."""
    wait, then = Future.wait, Future.then

    def recorded_wait(self: Future[Any]) -> Any:
        if (work := FUTURES.get(self)) is not None and not work.ended:
            work.begin_to_wait()
        return wait(self)

    def recorded_then(self: Future[Any], callback: Callable[..., Any]) -> Any:
        after = then(self, callback)
        if (work := FUTURES.get(self)) is not None:
            FUTURES[after] = work
        return after

    Future.wait, Future.then = recorded_wait, recorded_then  # type: ignore[method-assign]


class WaitedMessage(Work):
    """The handle of a message that has been waited for. torch waits once more, and Gloo's own handle never returns."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def _source_rank(self) -> int:
        return source_rank_of(self.work)


class RecordedGroup(dist.ProcessGroup):
    """A process group that records each call and passes it on to an ordinary one over the same backend."""

    def __init__(
        self,
        backend: Backend,
        backend_type: dist.ProcessGroup.BackendType,
        device: str,
        store: dist.Store,
        rank: int,
        size: int,
        recorder: Recorder,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch declares one of two constructors
        self.recorder = recorder
        recorder.group_begins()
        self.in_child = recorder.is_forked  # it has connections of its own
        self.backend, self.on_device = backend, device == "cuda"
        self.inner = dist.ProcessGroup(store, rank, size)
        for group in (self, self.inner):  # this one too, so that names, timeouts and the like work as usual
            register_backend(group, [device], backend_type, backend)
        self._label: str | None = None

    def __repr__(self) -> str:
        return group_in_words(self)

    def __getattr__(self, name: str) -> Any:
        """What torch asks of a backend, and a process group doesn't have."""
        return getattr(vars(self)["backend"], name)

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Global ranks, in group order."""
        members = tuple(dist.get_process_group_ranks(self))
        self.recorder.write(GroupMembers(self.label or "", members))
        return members

    def watch(self, method: Method, args: tuple[Any, ...], options: object) -> tuple[tuple[Any, ...], Flight | None]:
        """A call's arguments for the backend, and their flight, if the program made the call and it can be watched."""
        root = peer_of(method.op, method.name, args, options, self.members)
        caller = who_called()
        is_watched = caller.directly and not self.on_device
        flight = flight_of(method.op, args, root == dist.get_rank(), caller.where) if is_watched else None
        return (flight.with_stand_ins(args) if flight else args), flight

    def check_process(self, op: str) -> None:
        """Raises RuntimeError in a child that was forked from the rank, unless the child made this group."""
        if self.recorder.is_forked and not self.in_child:
            worker = get_worker_info()
            who = (
                "a process that this rank forked" if worker is None else f"worker {worker.id} of this rank's DataLoader"
            )
            raise RuntimeError(
                f"{who} called {op}. A forked process shares the rank's connections and can't use them: the messages "
                "of the two would mix. Let only the rank itself communicate; a Dataset and a collate_fn must not."
            )

    @property
    def label(self) -> str | None:
        """The group's name in Events: "world" or torch's name for it (recorder.py); None while torch is making it."""
        if self._label is None and dist.group.WORLD is not None:
            name = "world" if self is dist.group.WORLD else self.group_name
            self._label = self.recorder.label_of(name)
        return self._label


class Method:
    """A method of ProcessGroup: what it does, and how to describe a call of it."""

    def __init__(self, name: str, op: str) -> None:
        self.name, self.op = name, op
        self.carry_out: Callable[..., Any] = getattr(dist.ProcessGroup, name)
        self.is_message = op in POINT_TO_POINT
        self.reduces_in_place = not self.is_message and COLLECTIVES[op].reduces and COLLECTIVES[op].in_place
        self.looks_for_parameters = self.reduces_in_place or op == "broadcast"
        self.inputs_at = 1 if reads_second(op) else 0
        self.dense = form_of(op, name).dense

    def begin(
        self, group: RecordedGroup, label: str, args: tuple[Any, ...], options: object, is_async: bool, caller: Caller
    ) -> int:
        """Record that a call begins; returns its index."""
        recorder = group.recorder
        inputs = tensors_in(args[self.inputs_at] if self.inputs_at < len(args) else args[:1])
        check_memory(inputs)
        if self.inputs_at:
            check_memory(tensors_in(args[0]))
        index = recorder.start(self.kind(group, label, args, options, inputs, is_async, caller))
        if group.on_device:
            recorder.began_on_device[index] = recorder.mark()
        elif self.dense:
            at_risk = inputs if self.dense == (self.inputs_at,) else tensors_in([args[place] for place in self.dense])
            for tensor in at_risk:
                if tensor.layout is torch.strided and not tensor.is_contiguous():
                    recorder.write(CallLayout(index, tuple(tensor.shape), tensor.stride()))
        if self.looks_for_parameters and caller.directly and len(inputs) == 1:
            for note in recorder.gradients.notes_about(index, inputs[0]):
                recorder.write(note)
        if self.op == "all_to_all" and (splits := splits_of(args, group.size())):
            recorder.write(CallSplits(index, *splits))
        if label.startswith("world") and not self.is_message:
            recorder.on_synchronisation()
        return index

    def kind(
        self,
        group: RecordedGroup,
        label: str,
        args: tuple[Any, ...],
        options: object,
        tensors: Sequence[torch.Tensor],
        is_async: bool,
        caller: Caller,
    ) -> int:
        """The number of what this call shares with all calls like it; noted at the first of them."""
        root_or_peer = args[1:] if self.is_message else getattr(options, "rootRank", None)
        reduce_op = getattr(options, "reduceOp", None)
        reduce_op = None if reduce_op is None else hash(reduce_op)
        name, numbers = self.name, group.recorder.numbers
        in_thread = "" if get_ident() == group.recorder.main_thread else current_thread().name
        key: Hashable
        if len(tensors) == 1:
            tensor = tensors[0]
            key = name, label, caller, in_thread, is_async, root_or_peer, reduce_op, tensor.shape, tensor.dtype
        else:
            shapes = ((t.shape, t.dtype) for t in tensors)
            key = name, label, caller, in_thread, is_async, root_or_peer, reduce_op, *shapes
        if (number := numbers.get(key)) is not None:
            return number
        group.recorder.makes_ddp |= caller.wrapper == "DDP"
        group.recorder.ddp_reduces |= caller.wrapper == "DDP backward"
        event = new_event(
            name,
            tensors,
            options_of(name, args, options, group.members),
            rank=0,  # this and other fields that calls of one kind don't share are not noted
            index=0,
            group=label,
            members=group.members,
            is_async=is_async,
            start=0.0,
            where=caller.where,
            wrapper=caller.wrapper,
            callers=caller.callers,
            part=caller.part,
            thread=in_thread,
        )
        return group.recorder.note_once(key, partial(CallKind.of, event))


def recorded(method: Method) -> Callable[..., Any]:
    """The method of RecordedGroup that records a call and passes it on to the group behind.

    It runs between any two steps of a ring, so it takes short cuts: of a call like an earlier one only the times are
    written, and a call that torch waits for at once is waited for here, without a handle of ours.
    """
    carry_out, is_message = method.carry_out, method.is_message
    from_any_source = method.name == "recv_anysource"

    def call(self: RecordedGroup, *args: Any, **kwargs: Any) -> Any:
        label = self._label or self.label
        if label is None:  # torch is still making it
            return carry_out(self.inner, *args, **kwargs)
        recorder = self.recorder
        self.check_process(method.op)
        caller = who_called(in_full=True)
        where, function, directly = caller[:3]
        options = args[-1] if args else kwargs.get("opts")
        gives_handle = getattr(options, "asyncOp", None)
        is_async = bool(gives_handle) or (is_message and function in ASYNCHRONOUS)
        if get_ident() != recorder.main_thread:  # a thread that waits does not block the rank
            is_async = True
        index = method.begin(self, label, args, options, is_async, caller)
        if is_async and not is_message and not self.on_device:
            recorder.watch_backward(index, from_python=function != "")
        waits_here = not is_async and (gives_handle is False or (is_message and function != ""))
        args, flight = self.watch(method, args, options) if in_flight.poisoning and is_async else (args, None)
        try:
            work = carry_out(self.inner, *args, **kwargs)
            if waits_here and work is not None:
                work.wait()
        except BaseException:
            recorder.failed(index)
            recorder.end(index)
            raise
        if not waits_here and isinstance(work, Work):
            must_wait = method.op != "send" or in_flight.poisoning
            by_hand = directly or caller.wrapper == OPERATOR
            if is_async and by_hand and must_wait and not self.on_device:  # on a GPU a stream may wait instead
                recorder.unused_handles[index] = where
            senders = self.members if from_any_source else ()
            return RecordedWork(work, recorder, index, is_async, is_message and not self.on_device, senders, flight)
        recorder.end(index)
        if from_any_source:
            recorder.write(MessageSource(index, self.members[source_rank_of(work)]))
        return WaitedMessage(work) if is_message else work

    call.__name__ = method.name
    return call


for _method, _op in OPERATIONS.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(RecordedGroup, _method, recorded(Method(_method, _op)))
for _class in (RecordedGroup, RecordedWork, WaitedMessage):
    leave_uncompiled(_class)


def install(recorder: Recorder) -> None:
    """From now on, every new group of this process is a recorded one. Its backend's name is still "gloo" or "nccl"."""
    regions.recorder = recorder
    record_waiting_for_futures()
    gloo: Any = getattr(c10d.ProcessGroupGloo, "plain", c10d.ProcessGroupGloo)  # a second recorder replaces the first
    types = dist.ProcessGroup.BackendType

    # These live as long as the process, even if the program destroys its group. Otherwise a rank that still waits for
    # this one would raise "Connection closed by peer", which says nothing of what it waits for.
    connected: list[Backend] = []

    class RecordedGloo(RecordedGroup):
        plain = gloo

        def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
            backend = gloo(store, rank, size, timeout=timeout)
            connected.append(backend)
            super().__init__(backend, types.GLOO, "cpu", store, rank, size, recorder)
            for group in (self, self.inner):  # Gloo takes CUDA tensors too
                register_backend(group, ["cuda"], types.GLOO, backend)

        def _set_sequence_number_for_group(self) -> None:
            set_sequence_number(self.backend)

    c10d.ProcessGroupGloo = RecordedGloo  # type: ignore[misc, assignment]  # how torch finds it
    if dist.is_nccl_available():
        nccl: Any = getattr(c10d.ProcessGroupNCCL, "plain", c10d.ProcessGroupNCCL)

        class RecordedNccl(RecordedGroup):
            plain, Options = nccl, nccl.Options

            def __init__(self, store: dist.Store, rank: int, size: int, options: Any) -> None:
                super().__init__(nccl(store, rank, size, options), types.NCCL, "cuda", store, rank, size, recorder)

            def _set_sequence_number_for_group(self) -> None:
                set_sequence_number(self.backend)

        c10d.ProcessGroupNCCL = RecordedNccl  # type: ignore[misc, assignment]
    wrap_making_of_groups(recorded_making(recorder))
    os.register_at_fork(after_in_child=recorder.forked)
    watch_samplers(recorder.write)
    register_optimizer_step_post_hook(recorder.steps.taken)
    when_world_is_left(lambda: recorder.write(WorldLeft(who_called().where, recorder.now())))
    when_call_is_skipped(lambda name: recorder.write(CallSkipped(name, who_called().where, recorder.now())))


def recorded_making(recorder: Recorder) -> Callable[[NewGroup, Callable[[], Any]], Any]:
    """Records the making of groups: a rank may wait in it for ranks that never make the group."""

    def make_group(asked: NewGroup, make: Callable[[], Any]) -> Any:
        if not asked.members:  # the default group
            recorder.worlds += 1
            return make()
        number, label = next(recorder.groups_made), recorder.label_of(asked.name)
        begun = recorder.now(), who_called().where, asked.description
        recorder.write(GroupBegun(number, label, tuple(asked.members), *begun))
        try:
            return make()
        finally:
            recorder.write(GroupMade(number, recorder.now()))

    return make_group
