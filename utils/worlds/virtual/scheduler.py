"""A cooperative scheduler: ranks are threads, and only one runs at a time, the one whose clock is furthest behind.

A rank gives up its turn when it needs to know what the others do, that is, when it waits. Only the virtual clocks
decide which rank runs next, never the machine's own scheduler, so a program takes the same course every time.

    run -> next_rank: the rank that is furthest behind, once every earlier transfer is done -> resume it
           it runs until it waits (`suspend`) or finishes -> next_rank -> ... -> None: all have finished, or are stuck
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic  # the machine's clock: virtual_clock.py gives ranks another
from typing import Any

import torch

from ...recording.torch_private import GroupsOfProcess, set_groups_of_process
from .random_state import RandomState, pythons_state
from .surroundings import Surroundings
from .turns import Turns
from .waiting_threads import all_wait_for_locks, computed_by_other_threads

LOOK_EVERY = 0.5  # seconds of the machine's clock
LONG_TURN = 120  # looks: a minute
NOTHING = 1e-3  # seconds of processor time: what all ranks together use between two looks if none can go on


class Groups(GroupsOfProcess):
    """torch's registry of process groups: torch has one per process, and here there must be one per rank."""

    _replaced: Any = None  # in torch they are properties, which read what the process shares
    pg_map = pg_names = pg_group_ranks = pg_backend_config = tags_to_pg = pg_to_tag = _replaced
    group_count = 0

    def __init__(self) -> None:
        super().__init__()
        self.pg_map, self.pg_names, self.pg_group_ranks, self.pg_backend_config = {}, {}, {}, {}
        self.tags_to_pg, self.pg_to_tag = {}, {}


class TooManyRanks(RuntimeError):
    """The machine does not allow this many threads."""


class RankThread(threading.Thread):
    """One rank: a thread, its virtual clock, and its own copy of what each process would have if ranks were processes.

    clock   seconds since the world began; everything that the rank has asked of its GPU so far is done by then
    host    when its program had asked for all that, at achieved rates: usually before the clock
    busy    [start, end] of each stretch in which it computed
    """

    def __init__(self, number: int, scheduler: Scheduler, surroundings: Surroundings):
        super().__init__(name=f"rank {number}", daemon=True)
        self.number, self.scheduler, self.surroundings = number, scheduler, surroundings
        self.clock = self.host = 0.0
        self.busy: list[list[float]] = []
        self.read_at, self.reads = -1.0, 0  # how often the program has read the clock since it reached that moment
        self.finished = False
        self.in_bookkeeping = False  # the scheduler's flag, kept here while another rank runs
        self.turn = threading.Lock()  # released to resume the rank
        self.turn.acquire()
        self.groups = Groups()
        self.random: RandomState | None = None  # until its first turn

    def work(self) -> None:
        """What the rank does, from its first turn on."""
        raise NotImplementedError

    def run(self) -> None:
        self.turn.acquire()
        self.switch_in()
        try:
            self.work()
        finally:
            self.finished = True
            self.scheduler.suspend(self)

    def compute(self, seconds: float) -> None:
        """Move the clock on by a stretch of computing."""
        start, self.clock = self.clock, self.clock + seconds
        if self.busy and self.busy[-1][1] == start:
            self.busy[-1][1] = self.clock
        else:
            self.busy.append([start, self.clock])

    def switch_in(self) -> None:
        """Make everything that belongs to the process this rank's."""
        self.scheduler.running, self.scheduler.in_bookkeeping = self, self.in_bookkeeping
        set_groups_of_process(self.groups)
        self.restore_random_state()
        self.surroundings.enter()

    def switch_out(self) -> None:
        """Save what the next rank's `switch_in` will overwrite."""
        self.in_bookkeeping = self.scheduler.in_bookkeeping
        self.surroundings.leave()
        assert self.random is not None  # since the first turn
        self.random.save()

    def restore_random_state(self) -> None:
        if self.random is None:
            self.random = RandomState(*self.scheduler.random)
        self.random.restore()


class Scheduler(Turns[RankThread]):
    """Decides which rank runs, and runs it."""

    random: tuple[torch.Tensor, Any]  # states of torch's and Python's generators when the world began

    def __init__(self, earliest: Callable[[], float], commit: Callable[[], Sequence[RankThread]]):
        super().__init__(earliest, commit)
        self.running: RankThread | None = None
        self.in_bookkeeping = False  # whether the running rank does the simulator's work, not the program's
        self.done = threading.Event()
        self.error: BaseException | None = None  # a mistake in the simulator itself
        self.deadline: float | None = None  # on the machine's clock: no rank gets another turn after that
        self.on_turn: Callable[[], None] = lambda: None
        self.on_long_turn: Callable[[RankThread], None] = lambda rank: None
        self.say_once: Callable[[str, str], None] = lambda about, text: None  # prints a remark
        self.turns = 0  # number of turns that have ended
        self.held_up: RankThread | None = None  # the rank that waits for a lock which nobody will release

    def run(self, ranks: Sequence[RankThread]) -> None:
        """Returns when all ranks have finished or none can go on; then `held_up` may say why. Raises TooManyRanks."""
        self.random = torch.default_generator.get_state(), pythons_state()
        for rank in ranks:
            self.make_ready(rank)
            try:
                rank.start()
            except RuntimeError:  # "can't start new thread"
                raise TooManyRanks(f"This machine does not allow {len(ranks)} threads: use fewer ranks.") from None
        first = self.next_rank()
        if first is not None:
            first.turn.release()
            self.wait_for_the_end()
        if self.error is not None:
            raise self.error

    def wait_for_the_end(self) -> None:
        """Until all is done, or a rank has been waiting since the last look for a lock that nobody can release.

        Threads are looked at one by one, and ranks take turns meanwhile: so nobody must have had a turn or computed.
        """
        turns, computed = self.turns, computed_by_other_threads()
        looks = 0  # at the same turn
        while not self.done.wait(LOOK_EVERY):
            looks = looks + 1 if self.turns == turns else 0
            if looks == LONG_TURN and self.running is not None:
                self.on_long_turn(self.running)
            locked = self.turns == turns and all_wait_for_locks()  # to look at a thousand threads takes long
            before, turns, computed = (turns, computed), self.turns, computed_by_other_threads()
            if locked and turns == before[0] and computed - before[1] < NOTHING:
                self.held_up = self.running
                return

    def next_rank(self) -> RankThread | None:
        """The rank whose turn it is; None if none can go on."""
        self.on_turn()
        if self.deadline is not None and monotonic() > self.deadline:
            return None
        return super().next_rank()

    def suspend(self, rank: RankThread) -> None:
        """Let others run: `rank` waits, or has finished. Returns when it has been made ready and its turn has come."""
        try:
            following = self.next_rank()
        except BaseException as error:  # the simulator's: every thread would wait forever
            following, self.error = None, error
        if following is rank:
            return
        rank.switch_out()
        self.turns += 1
        if following is None:
            self.done.set()
        else:
            following.turn.release()
        if not rank.finished:
            rank.turn.acquire()
            rank.switch_in()

    def yield_turn(self, rank: RankThread) -> None:
        """Let everything happen that is due before this rank's clock."""
        self.make_ready(rank)
        self.suspend(rank)

    def yield_moment(self, rank: RankThread) -> None:
        """Let everything happen that is due before this rank's clock or at the same moment."""
        heapq.heappush(self.ready, (math.nextafter(rank.clock, math.inf), rank.number, rank))
        self.suspend(rank)

    @contextmanager
    def bookkeeping(self) -> Iterator[None]:
        """What is computed inside is the simulator's work, not the program's: it costs the virtual GPU nothing."""
        before, self.in_bookkeeping = self.in_bookkeeping, True
        try:
            yield
        finally:
            self.in_bookkeeping = before
