"""The process group that writes Events: it stands in front of the real one and notes each call, then passes it on.

torch's own parallel wrappers (DDP, FSDP2, DTensor, pipelining) call the process group as a student does, so their calls
are recorded too. Each call becomes a row of the rank's table when it starts, and its end is put there when its result
is; the launcher reads the table while the world runs, which is how it knows who waits for whom.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
from collections.abc import Callable
from threading import get_ident

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d

from utils import regions
from utils.record import COLUMNS, END, HEADER, KIND, LINE, START, WAITED, Table

# What torch calls the method (names changed from 2.11 to 2.13; both are here), and what an Event calls the operation.
OPERATIONS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}
# These take (outputs, inputs); the others take what they hand in first.
OUTPUT_FIRST = {"gather", "scatter", "all_gather", "reduce_scatter", "all_to_all"}
POINT_TO_POINT = ("send", "recv")
ASYNCHRONOUS = ("isend", "irecv", "batch_isend_irecv")
# Which arguments of a method hold tensors that Gloo reads or writes as if their numbers lay side by side, in order.
TAKEN_AS_DENSE = {
    **dict.fromkeys(["allreduce", "allreduce_coalesced", "broadcast", "reduce"], (0,)),
    **dict.fromkeys(["scatter"], (0, 1)),
    **dict.fromkeys(["reduce_scatter", "alltoall_base", "all_to_all_single"], (0,)),
}

TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
COURSE_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
ENTRANCES = (c10d.__file__, c10d_logger.__file__)  # where a call of `dist.something` arrives
NOT_THE_STUDENTS = (TORCH_FOLDER, COURSE_FOLDER, "<frozen ", os.path.dirname(os.__file__) + os.sep)


class Recorder:
    """Records the calls of one rank: each is a row of numbers in `table` (see record.py), and what can't be said in
    numbers is handed to `write` as a note. What calls have in common is noted once, so that most cost no note at all.

    ("call", number, {fields of Event}) what the rows with this number as their KIND are
    ("line", number, where)             what this number means as a row's LINE
    ("group", name, members)            before the first call on a group
    ("failed", index, time)             when a call raised
    ("lost", index, time)               when the handle of a message was thrown away, and nobody had waited for it
    ("source", index, rank)             who sent what a receive from any source has received
    ("strides", index, strides)         of a call that gets a tensor whose memory is not in order, or has gaps
    ("make", number, {fields of Event}) when the rank begins to make a group (new_group, or a device mesh)
    ("made", number, time)              when it has it
    ("dropped", index, where)           once the program is over: its handle was never asked for the result
    ("region", name, (start, end))      when a stretch of compute with a name is over
    ("memory", device, (samples, peak)) live bytes over time and the most of them (see memory.py)
    ("device", index, (start, end))     on a GPU: when the call was at work there, told once the program is over

    On a GPU a call returns long before its work is done, so times there come from CUDA events.
    """

    def __init__(
        self, write: Callable[[tuple], None], zero: float, on_synchronisation=lambda: None, table: Table | None = None
    ):
        self.write = write
        self.zero = zero  # time.monotonic() at which the world began
        self.on_synchronisation = on_synchronisation
        self.main_thread = get_ident()
        self.table = table or Table()
        self.indices = itertools.count()
        self.numbers: dict = {}  # of what has been noted once
        self.new_numbers = itertools.count(1)
        self.groups_made = itertools.count()
        self.unasked: dict[int, str] = {}  # index -> where, of the student's own handles
        self.unsettled: list[tuple] = []  # (kind, key, CUDA event, CUDA event) of what the GPU may not have done yet
        self.began_on_device: dict[int, torch.cuda.Event] = {}
        self.allocated: list[tuple[float, str, int]] = []  # on the GPU, at the ends of regions
        self.base: tuple[torch.cuda.Event, float] | None = None  # the same moment by both clocks

    def restart(self, zero: float) -> None:
        """Another program begins in this process: its calls count from 0, in a table of its own."""
        self.zero, self.indices, self.base = zero, itertools.count(), None
        self.table, self.numbers = Table(), {}
        self.unasked.clear()

    def now(self) -> float:
        return time.monotonic() - self.zero

    def number(self, what: str, key, words) -> int:
        """The number by which rows refer to `words`; noted now. Rows that need the same find it under `key`."""
        number = next(self.new_numbers)
        self.write((what, number, words))
        self.numbers[key] = number
        return number

    def start(self, kind: int) -> int:
        index = next(self.indices)
        row = HEADER + COLUMNS * index
        cells = self.table.cells
        if len(cells) < row + COLUMNS:
            cells = self.table.make_room(row + COLUMNS)
        cells[row + START] = cells[0] = time.monotonic() - self.zero
        cells[row + KIND] = kind  # last: now it counts as a call
        return index

    def wait(self, index: int) -> None:
        where = who_called()[0]
        line = self.numbers.get(where) or self.number("line", where, where)
        row, cells = HEADER + COLUMNS * index, self.table.cells
        cells[row + WAITED] = cells[0] = self.now()
        cells[row + LINE] = line

    def end(self, index: int) -> None:
        cells = self.table.cells
        cells[HEADER + END + COLUMNS * index] = cells[0] = time.monotonic() - self.zero
        if index in self.began_on_device:
            self.span("device", index, self.began_on_device.pop(index), self.mark())

    def rows(self) -> bytes:
        """The table as it is now, once the program is over."""
        return self.table.cells[: HEADER + COLUMNS * next(self.indices)].tobytes()

    def failed(self, index: int) -> None:
        self.write(("failed", index, self.now()))

    def mark(self) -> float | torch.cuda.Event:
        """This moment: in seconds or, if the program uses a GPU, as an event in what it has asked of it."""
        if not torch.cuda.is_initialized():
            return self.now()
        if self.base is None:
            torch.cuda.synchronize()
            self.base = torch.cuda.Event(enable_timing=True), self.now()
            self.base[0].record()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def span(self, kind: str, key, begin, end) -> None:
        """Note what lay between two marks, now or when the GPU has come that far."""
        if isinstance(begin, float) and isinstance(end, float):
            self.write((kind, key, (begin, end)))
        else:
            self.unsettled.append((kind, key, begin, end))
            if kind == "region":
                self.look_at_memory()

    def look_at_memory(self) -> None:
        """What the GPU's allocator has given out; it does not know what for."""
        self.allocated.append((self.now(), "allocated", torch.cuda.memory_allocated()))

    def settle(self) -> None:
        """The program is over: note which handles were dropped, and what the GPU's clock says, and its allocator."""
        while self.unasked:
            self.write(("dropped", *self.unasked.popitem()))
        if torch.cuda.is_initialized():
            self.look_at_memory()
            self.write(("memory", "cuda", (self.allocated, torch.cuda.max_memory_allocated())))
        if self.unsettled:
            torch.cuda.synchronize()
            for kind, key, *marks in self.unsettled:
                self.write((kind, key, tuple(map(self.seconds, marks))))
            self.unsettled.clear()

    def seconds(self, mark: float | torch.cuda.Event) -> float:
        if isinstance(mark, float):
            return mark
        event, time_of_base = self.base
        return time_of_base + event.elapsed_time(mark) / 1000


def who_called() -> tuple[str, str, bool]:
    """(where, function, directly): the innermost line of the stack that is neither torch's nor ours, as "file:line";
    which function of torch.distributed it called (from a process group `isend` and `send` look alike); and whether it
    called that one itself, not through DDP or the like. "", "" and False in a thread of torch's own.
    """
    frame, function, file = sys._getframe(1), "", ""
    while frame is not None:
        code = frame.f_code
        if is_students(code.co_filename):
            return line_of(frame, code), function, file in ENTRANCES
        file = code.co_filename
        if file == c10d.__file__:
            function = code.co_name
        frame = frame.f_back
    return "", function, False


@functools.cache
def is_students(file: str) -> bool:
    return not file.startswith(NOT_THE_STUDENTS)


def line_of(frame, code) -> str:
    """ "file:line" at which `frame` is. Kept, since Python counts to a line's number from the function's first."""
    place = id(code), frame.f_lasti
    known = LINES.get(place)
    if known is None:
        known = LINES[place] = f"{code.co_filename}:{frame.f_lineno}", code  # the code too: nobody else gets its id
    return known[0]


LINES: dict[tuple[int, int], tuple[str, object]] = {}


class RecordedWork(Work):
    """The handle of a recorded call. An asynchronous call ends when its work does, waited for or not, if the backend
    tells (Gloo does for collectives); else when `wait()` has found it done (see message_ends.py).
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
            self.recorder.write(("source", self.index, self.senders[work._source_rank()]))
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
        return self.work._source_rank()

    def _source_rank(self):
        return self.work._source_rank()

    def synchronize(self):
        return self.asked().synchronize()

    def block_current_stream(self):
        return self.asked().block_current_stream()

    def get_future(self):
        return self.asked().get_future()


class Over(Work):
    """The handle of a message that has been waited for. torch waits once more, and Gloo's own would do so for ever."""

    def __init__(self, work: Work):
        super().__init__()
        self.work = work

    def wait(self, timeout=None):
        return True

    def _source_rank(self):
        return self.work._source_rank()


class RecordedGroup(dist.ProcessGroup):
    """A process group that records each call and hands it to an ordinary one over the same backend."""

    def __init__(self, backend, backend_type, device: str, store, rank: int, size: int, recorder: Recorder):
        super().__init__(rank, size)
        self.recorder = recorder
        self.backend, self.on_device = backend, device == "cuda"
        self.inner = dist.ProcessGroup(store, rank, size)
        for group in (self, self.inner):  # this one too: names, timeouts and the like then work as usual
            group._set_default_backend(backend_type)
            group._register_backend(torch.device(device), backend_type, backend)
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
            "peer": _peer(op, method, args, options, self.members),
            "tag": (args[1] if method == "recv_anysource" else args[2]) if is_message else 0,
            "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            "dtype": _name(tensors[0].dtype) if tensors else "",
            "shape": tuple(tensors[0].shape) if tensors else (),
            "reduce_op": _reduce_op(options),
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
        tensors = _tensors(args[taken] if taken < len(args) else args[:1])
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
            read_or_written = tensors if dense == (taken,) else _tensors([args[position] for position in dense])
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
            recorder.write(("source", index, self.members[work._source_rank()]))
        return Over(work) if is_message else work

    call.__name__ = method
    return call


for _method, _op in OPERATIONS.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(RecordedGroup, _method, _recorded(_method, _op))


def _tensors(value) -> list[torch.Tensor]:
    """The tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        return []
    if len(value) == 1 and isinstance(value[0], torch.Tensor):  # most often: spare it the search
        return value
    return [tensor for item in value for tensor in _tensors(item)]


def _peer(op, method, args, options, members) -> int | None:
    """The other rank of a message, or the root of a collective: as a global rank."""
    if op in POINT_TO_POINT:
        return None if method == "recv_anysource" else _global_rank(args[1], members)
    root = getattr(options, "rootRank", None)
    return None if root is None else _global_rank(root, members)


def _global_rank(group_rank: int, members) -> int:
    if not 0 <= group_rank < len(members):
        raise ValueError(
            f"there is no rank {group_rank} among {len(members)}: the last is rank {len(members) - 1}. "
            "In a ring, the right-hand neighbour is (rank + 1) % world_size."
        )
    return members[group_rank]


def _reduce_op(options) -> str:
    op = getattr(options, "reduceOp", None)
    return "" if op is None else _name(getattr(op, "op", op)).lower()


@functools.cache
def _name(member) -> str:
    """ "float32" for torch.float32, "SUM" for RedOpType.SUM."""
    return str(member).rpartition(".")[2]


def install(recorder: Recorder) -> None:
    """From now on, every group of this process is made recorded. Its name stays "gloo" or "nccl" for all who ask."""
    regions.recorder = recorder
    gloo, types = c10d.ProcessGroupGloo, dist.ProcessGroup.BackendType

    class RecordedGloo(RecordedGroup):
        def __init__(self, store, rank, size, timeout):
            backend = gloo(store, rank, size, timeout=timeout)
            super().__init__(backend, types.GLOO, "cpu", store, rank, size, recorder)
            for group in (self, self.inner):  # Gloo takes CUDA tensors too
                group._register_backend(torch.device("cuda"), types.GLOO, backend)

        def _set_sequence_number_for_group(self):
            self.backend._set_sequence_number_for_group()

    c10d.ProcessGroupGloo = RecordedGloo
    if dist.is_nccl_available():
        nccl = c10d.ProcessGroupNCCL

        class RecordedNccl(RecordedGroup):
            Options = nccl.Options

            def __init__(self, store, rank, size, options):
                super().__init__(nccl(store, rank, size, options), types.NCCL, "cuda", store, rank, size, recorder)

            def _set_sequence_number_for_group(self):
                self.backend._set_sequence_number_for_group()

        c10d.ProcessGroupNCCL = RecordedNccl
    c10d._new_process_group_helper = _recorded_making(c10d._new_process_group_helper, recorder)


def _recorded_making(make, recorder: Recorder):
    """torch's function that makes a group, recorded: a rank may wait in it for ranks that never make that group."""

    @functools.wraps(make)
    def make_group(*args, **kwargs):
        ranks, name = args[2], args[5]
        if not ranks:  # the default group
            return make(*args, **kwargs)
        number = next(recorder.groups_made)
        fields = {"group": name, "members": tuple(ranks), "where": who_called()[0], "start": recorder.now()}
        recorder.write(("make", number, fields))
        try:
            return make(*args, **kwargs)
        finally:
            recorder.write(("made", number, recorder.now()))

    return make_group
