"""The recorder of one rank: what it writes about each call, and when."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable
from threading import get_ident
from typing import Literal

import torch

from ..events.memory_samples import MemoryNote, Sample
from .call_table import COLUMNS, END, HEADER, KIND, LINE, START, WAITED, Table
from .callers import who_called
from .gradients import Gradients
from .notes import CallFailed, DeviceTime, HandleNeverUsed, Note, RegionEnded, WaitLine
from .replicas import Steps
from .torch_private import current_autograd_node, current_graph_task_id, when_backward_ends

Mark = float | torch.cuda.Event  # a moment: in seconds, or on a GPU as an event among the work it was given
SPANS: dict[str, Callable[..., Note]] = {"region": RegionEnded, "device": DeviceTime}


class Recorder:
    """Records the calls of one rank: each is a row of numbers in `table` (see call_table.py).

    What a row can't hold is handed to `write` as a note (see notes.py). What calls have in common is noted once, so
    most calls need no note at all.

    On a GPU a call returns long before its work is done, so times there come from CUDA events.
    """

    def __init__(
        self,
        write: Callable[[Note], object],
        zero: float,
        on_synchronisation: Callable[[], object] = lambda: None,
        table: Table | None = None,
    ) -> None:
        self.write = write
        self.zero = zero  # time.monotonic() at which the world began
        self.on_synchronisation = on_synchronisation
        self.on_first_group: Callable[[], object] | None = None
        self.main_thread = get_ident()
        self.table = table or Table()
        self.indices = itertools.count()
        self.numbers: dict[Hashable, int] = {}  # the number of each note that is written once
        self.new_numbers = itertools.count(1)
        self.groups_made = itertools.count()
        self.worlds = int(torch.distributed.is_initialized())  # default groups so far; programs may start again
        self.backward = -1  # torch's number of the backward pass that makes calls now
        self.of_backward: list[int] = []  # the asynchronous collectives it has made
        self.unused_handles: dict[int, str] = {}  # the student's own handles -> where
        self.gradients = Gradients()
        self.makes_ddp = self.ddp_reduces = False
        self.steps = Steps(self)
        self.is_forked = False  # whether this is a copy in a child of the rank's process
        self.pending: list[tuple[str, str | int, Mark, Mark]] = []  # spans whose end the GPU may not have reached
        self.began_on_device: dict[int, Mark] = {}
        self.allocated: list[Sample] = []  # on the GPU, at the ends of regions
        self.base: tuple[torch.cuda.Event, float] | None = None  # the same moment by both clocks

    def restart(self, zero: float) -> None:
        """A new program begins in this process: its calls count from 0, in a new table."""
        self.zero, self.indices, self.base = zero, itertools.count(), None
        self.table, self.numbers = Table(), {}
        self.unused_handles.clear()

    def forked(self) -> None:
        self.is_forked = True

    def group_begins(self) -> None:
        if self.on_first_group is not None:
            act, self.on_first_group = self.on_first_group, None
            act()

    def label_of(self, group: str) -> str:
        """What events call a group. In a world that was started again, torch gives out its names and numbers anew."""
        return group if self.worlds < 2 else f"{group}.{self.worlds}"

    def now(self) -> float:
        return time.monotonic() - self.zero

    def note_once(self, key: Hashable, note: Callable[[int], Note]) -> int:
        """Write `note(number)` and return the number, by which rows refer to it. From now on `numbers[key]` has it."""
        number = next(self.new_numbers)
        self.write(note(number))
        self.numbers[key] = number
        return number

    def start(self, kind: int) -> int:
        index = next(self.indices)
        row = HEADER + COLUMNS * index
        cells = self.table.cells
        if len(cells) < row + COLUMNS:
            cells = self.table.make_room(row + COLUMNS)
        cells[row + START] = cells[0] = time.monotonic() - self.zero
        cells[row + KIND] = kind  # last, since this makes it count as a call
        return index

    def watch_backward(self, index: int, from_python: bool) -> None:
        """An asynchronous collective has begun. If a backward pass made it, C++ may wait for it without asking us.

        DDP's C++ waits for its all-reduces once all gradients are there. Autograd then runs what has been queued, in
        order: first our `wait_in_backward`, queued at the first of these calls; then what DDP queued after the last of
        them, which waits; then what `wait_in_backward` queues in turn. So both ends of the wait are known.
        """
        task = current_graph_task_id()
        if task == -1 or get_ident() != self.main_thread:
            return
        if task != self.backward:
            self.backward = task
            self.of_backward.clear()
            when_backward_ends(self.wait_in_backward)
        self.of_backward.append(index)
        if current_autograd_node() is None and not from_python:  # all gradients are there already: a static graph
            self.wait(index)

    def wait_in_backward(self) -> None:
        for index in self.of_backward:
            if not self.table.cells[HEADER + END + COLUMNS * index]:
                self.wait(index)
        self.of_backward, waits = [], self.of_backward
        self.backward = -1
        when_backward_ends(lambda: self.waited_in_backward(waits))

    def waited_in_backward(self, indices: list[int]) -> None:
        """The backward pass is over. Calls that have not ended are the program's own, which waits for them later."""
        for index in indices:
            row, cells = HEADER + COLUMNS * index, self.table.cells
            if not cells[row + END]:
                cells[row + LINE] = cells[row + WAITED] = 0
                cells[0] = self.now()

    def wait(self, index: int) -> None:
        where = who_called().where
        line = self.numbers.get(where) or self.note_once(where, lambda number: WaitLine(number, where))
        row, cells = HEADER + COLUMNS * index, self.table.cells
        cells[row + WAITED] = cells[0] = self.now()
        cells[row + LINE] = line

    def end(self, index: int) -> None:
        cells = self.table.cells
        cells[HEADER + END + COLUMNS * index] = cells[0] = time.monotonic() - self.zero
        if index in self.began_on_device:
            self.span("device", index, self.began_on_device.pop(index), self.mark())

    def rows(self) -> bytes:
        """The table, once the program is over."""
        return self.table.cells[: HEADER + COLUMNS * next(self.indices)].tobytes()

    def failed(self, index: int) -> None:
        self.write(CallFailed(index, self.now()))

    def mark(self) -> Mark:
        """This moment. A CUDA event, if the program uses a GPU."""
        if not torch.cuda.is_initialized():
            return self.now()
        if self.base is None:
            torch.cuda.synchronize()
            self.base = torch.cuda.Event(enable_timing=True), self.now()
            self.base[0].record()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def span(self, kind: Literal["region", "device"], key: str | int, begin: Mark, end: Mark) -> None:
        """Note a region by its name, or a call on the GPU by its index: now or, if a mark is an event, in `finish`."""
        if isinstance(begin, float) and isinstance(end, float):
            self.write(SPANS[kind](key, begin, end))
        else:
            self.pending.append((kind, key, begin, end))
            if kind == "region":
                self.sample_allocated()

    def sample_allocated(self) -> None:
        """Note how much the GPU's allocator has given out; it does not know what for."""
        self.allocated.append((self.now(), "allocated", torch.cuda.memory_allocated()))

    def finish(self) -> None:
        """The program is over: note which handles were never used, and what the GPU's clock and allocator say."""
        while self.unused_handles:
            self.write(HandleNeverUsed(*self.unused_handles.popitem()))
        if torch.cuda.is_initialized():
            self.sample_allocated()
            self.write(MemoryNote("cuda", self.allocated, torch.cuda.max_memory_allocated()))
        if self.pending:
            torch.cuda.synchronize()
            for kind, key, begin, end in self.pending:
                self.write(SPANS[kind](key, self.seconds(begin), self.seconds(end)))
            self.pending.clear()

    def seconds(self, mark: Mark) -> float:
        if isinstance(mark, float):
            return mark
        assert self.base is not None  # there is one as soon as a mark is an event
        event, time_of_base = self.base
        return time_of_base + float(event.elapsed_time(mark)) / 1000
