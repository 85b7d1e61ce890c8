"""The process group that writes Events: it stands in front of the real one and notes each call, then passes it on.

torch's own parallel wrappers (DDP, FSDP2, DTensor, pipelining) call the process group as a student does, so their calls
are recorded too. Each call becomes a row of the rank's table when it starts, and its end is put there when its result
is; the launcher reads the table while the world runs, which is how it knows who waits for whom.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..events.matching import POINT_TO_POINT
from . import regions
from .callers import who_called
from .recorder import Recorder
from .torch_calls import (
    ASYNCHRONOUS,
    OPERATIONS,
    OUTPUT_FIRST,
    TAKEN_AS_DENSE,
    name_of_member,
    peer_of,
    reduce_op_name,
    tensors_in,
)
from .torch_private import (
    NewGroup,
    Work,
    register_backend,
    set_sequence_number,
    source_rank_of,
    wrap_making_of_groups,
)


class RecordedWork(Work):
    """The handle of a recorded call. An asynchronous call ends when its work does, waited for or not, if the backend
    tells (Gloo does for collectives); else when `wait()` has found it done (see events/isend_ends.py).
    """

    def __init__(self, work: Work, recorder: Recorder, index: int, is_async: bool, is_message: bool, senders=()):
        """senders: of a receive from any source, the ranks that may have sent it."""
        super().__init__()
        self.work, self.recorder, self.index = work, recorder, index
        self.is_async, self.is_message, self.senders = is_async, is_message, senders
        self.table = recorder.table
        self.waited = False
        self.ended = False
        if is_async:
            try:
                work.get_future().add_done_callback(lambda _: self.end())
            except RuntimeError:  # of a message there is no future
                pass

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            if self.table is self.recorder.table:  # else its program is over, and the index another call's
                self.recorder.end(self.index)

    def __del__(self):
        if self.is_message and not self.ended:  # its buffer goes too: what was not sent or received by now, never is
            self.recorder.write(("lost", self.index, self.recorder.now()))

    def asked(self) -> Work:
        """The work behind this handle, for somebody who wants to know how it stands."""
        self.recorder.unasked.pop(self.index, None)
        return self.work

    def wait(self, timeout=None):
        work = self.asked()
        if self.is_async and not self.waited and get_ident() == self.recorder.main_thread:
            self.waited = True
            self.recorder.wait(self.index)
        try:
            result = work.wait() if not timeout else work.wait(timeout)
        except BaseException:
            self.recorder.failed(self.index)
            raise
        finally:  # also when it raises: the rank is not inside the call any more
            self.end()
        if self.senders:
            self.recorder.write(("source", self.index, self.senders[source_rank_of(work)]))
        return result

    def is_completed(self):
        return self.asked().is_completed()

    def is_success(self):
        return self.asked().is_success()

    def exception(self):
        return self.asked().exception()

    def result(self):
        return self.asked().result()

    def source_rank(self):
        return source_rank_of(self.work)

    def _source_rank(self):  # torch's name for it: `recv` asks for it
        return source_rank_of(self.work)

    def synchronize(self):
        return self.asked().synchronize()

    def block_current_stream(self):
        return self.asked().block_current_stream()

    def get_future(self):
        return self.asked().get_future()


class WaitedMessage(Work):
    """The handle of a message that has been waited for. torch waits once more, and Gloo's own would do so for ever."""

    def __init__(self, work: Work):
        super().__init__()
        self.work = work

    def wait(self, timeout=None):
        return True

    def _source_rank(self):
        return source_rank_of(self.work)


class RecordedGroup(dist.ProcessGroup):
    """A process group that records each call and hands it to an ordinary one over the same backend."""

    def __init__(self, backend, backend_type, device: str, store, rank: int, size: int, recorder: Recorder):
        super().__init__(rank, size)
        self.recorder = recorder
        self.backend, self.on_device = backend, device == "cuda"
        self.inner = dist.ProcessGroup(store, rank, size)
        for group in (self, self.inner):  # this one too: names, timeouts and the like then work as usual
            register_backend(group, [device], backend_type, backend)
        self._name = None

    def __getattr__(self, name):
        """What torch asks of a backend and a process group does not have."""
        return getattr(vars(self)["backend"], name)

    @functools.cached_property
    def members(self) -> tuple[int, ...]:
        """Global ranks, in group order."""
        members = tuple(dist.get_process_group_ranks(self))
        self.recorder.write(("group", self.name, members))
        return members

    @property
    def name(self) -> str | None:
        """ "world" for the default group, torch's name for another; None while torch is still making it."""
        if self._name is None and dist.group.WORLD is not None:
            self._name = "world" if self is dist.group.WORLD else self.group_name
        return self._name


def _recorded(method: str, op: str):
    """The method of RecordedGroup that records `op` and calls `method` of the group behind it.

    It is called between any two steps of a ring, so it takes short cuts: of a call like an earlier one only the times
    are written, and one that torch waits for at once is waited for here, without a handle of ours.
    """
    carry_out = getattr(dist.ProcessGroup, method)
    is_message, taken = op in POINT_TO_POINT, 1 if op in OUTPUT_FIRST else 0
    dense = TAKEN_AS_DENSE.get(method, ())

    def fields(self, args, options, tensors, is_async, where) -> dict:
        """What an Event says of this call and of all like it."""
        return {
            "op": op,
            "group": self.name,
            "peer": peer_of(op, method, args, options, self.members),
            "tag": (args[1] if method == "recv_anysource" else args[2]) if is_message else 0,
            "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            "dtype": name_of_member(tensors[0].dtype) if tensors else "",
            "shape": tuple(tensors[0].shape) if tensors else (),
            "reduce_op": reduce_op_name(options),
            "is_async": is_async,
            "where": where,
        }

    def call(self, *args, **kwargs):
        group = self._name or self.name
        if group is None:  # torch is still making it
            return carry_out(self.inner, *args, **kwargs)
        recorder = self.recorder
        where, function, directly = who_called()
        options = args[-1] if args else kwargs.get("opts")
        gives_handle = getattr(options, "asyncOp", None)
        is_async = bool(gives_handle) or (is_message and function in ASYNCHRONOUS)
        if get_ident() != recorder.main_thread:  # a thread that waits does not keep the rank from going on
            is_async = True
        tensors = tensors_in(args[taken] if taken < len(args) else args[:1])
        root_or_peer = args[1:] if is_message else getattr(options, "rootRank", None)
        reduce_op = getattr(options, "reduceOp", None)
        reduce_op = None if reduce_op is None else hash(reduce_op)
        if len(tensors) == 1:
            tensor = tensors[0]
            alike = method, group, where, is_async, root_or_peer, reduce_op, tensor.shape, tensor.dtype
        else:
            alike = method, group, where, is_async, root_or_peer, reduce_op, *((t.shape, t.dtype) for t in tensors)
        kind = recorder.numbers.get(alike)
        if kind is None:
            kind = recorder.number("call", alike, fields(self, args, options, tensors, is_async, where))
        index = recorder.start(kind)
        if self.on_device:
            recorder.began_on_device[index] = recorder.mark()
        elif dense:
            read_or_written = tensors if dense == (taken,) else tensors_in([args[position] for position in dense])
            for tensor in read_or_written:
                if tensor.layout is torch.strided and not tensor.is_contiguous():
                    recorder.write(("strides", index, (tuple(tensor.shape), tensor.stride())))
        if group == "world" and not is_message:
            recorder.on_synchronisation()
        is_waited_for_here = not is_async and (gives_handle is False or (is_message and function != ""))
        try:
            work = carry_out(self.inner, *args, **kwargs)
            if is_waited_for_here and work is not None:
                work.wait()
        except BaseException:
            recorder.failed(index)
            recorder.end(index)
            raise
        if not is_waited_for_here and isinstance(work, Work):
            if is_async and directly and not self.on_device:  # on a GPU a stream can be waited for instead
                recorder.unasked[index] = where
            senders = self.members if method == "recv_anysource" else ()
            return RecordedWork(work, recorder, index, is_async, is_message and not self.on_device, senders)
        recorder.end(index)
        if method == "recv_anysource":
            recorder.write(("source", index, self.members[source_rank_of(work)]))
        return WaitedMessage(work) if is_message else work

    call.__name__ = method
    return call


for _method, _op in OPERATIONS.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(RecordedGroup, _method, _recorded(_method, _op))


def install(recorder: Recorder) -> None:
    """From now on, every group of this process is made recorded. Its name stays "gloo" or "nccl" for all who ask."""
    regions.recorder = recorder
    gloo, types = c10d.ProcessGroupGloo, dist.ProcessGroup.BackendType

    class RecordedGloo(RecordedGroup):
        def __init__(self, store, rank, size, timeout):
            backend = gloo(store, rank, size, timeout=timeout)
            super().__init__(backend, types.GLOO, "cpu", store, rank, size, recorder)
            for group in (self, self.inner):  # Gloo takes CUDA tensors too
                register_backend(group, ["cuda"], types.GLOO, backend)

        def _set_sequence_number_for_group(self):
            set_sequence_number(self.backend)

    c10d.ProcessGroupGloo = RecordedGloo
    if dist.is_nccl_available():
        nccl = c10d.ProcessGroupNCCL

        class RecordedNccl(RecordedGroup):
            Options = nccl.Options

            def __init__(self, store, rank, size, options):
                super().__init__(nccl(store, rank, size, options), types.NCCL, "cuda", store, rank, size, recorder)

            def _set_sequence_number_for_group(self):
                set_sequence_number(self.backend)

        c10d.ProcessGroupNCCL = RecordedNccl
    wrap_making_of_groups(_recorded_making(recorder))


def _recorded_making(recorder: Recorder) -> Callable[[NewGroup, Callable[[], Any]], Any]:
    """The making of a group, recorded: a rank may wait in it for ranks that never make that group."""

    def make_group(asked: NewGroup, make: Callable[[], Any]) -> Any:
        if not asked.members:  # the default group
            return make()
        number, members = next(recorder.groups_made), tuple(asked.members)
        fields = {"group": asked.name, "members": members, "where": who_called()[0], "start": recorder.now()}
        recorder.write(("make", number, fields))
        try:
            return make()
        finally:
            recorder.write(("made", number, recorder.now()))

    return make_group
