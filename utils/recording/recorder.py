"""The recorder of one rank: what it writes of each call, and when."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from threading import get_ident

import torch

from .call_table import COLUMNS, END, HEADER, KIND, LINE, START, WAITED, Table
from .callers import who_called


class Recorder:
    """Records the calls of one rank: each is a row of numbers in `table` (see call_table.py), and what can't be said in
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
