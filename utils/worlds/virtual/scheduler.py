"""Ranks as threads of which one runs at a time: always the one whose clock is furthest behind.

A rank gives its turn away when it must know what the others do: when it waits. Who is next is decided by the virtual
clocks alone, never by the machine's scheduler, so that a program takes the same course each time.
"""

from __future__ import annotations

import heapq
import math
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic  # the machine's: virtual_clock.py gives ranks another

import numpy.random
import torch

from ...recording.torch_private import GroupsOfProcess, set_groups_of_process


class Groups(GroupsOfProcess):
    """What torch keeps of its process groups; there it is one for a process, here it must be one for each rank."""

    pg_map = pg_names = pg_group_ranks = pg_backend_config = tags_to_pg = pg_to_tag = None
    group_count = 0

    def __init__(self):
        super().__init__()
        self.pg_map, self.pg_names, self.pg_group_ranks, self.pg_backend_config = {}, {}, {}, {}
        self.tags_to_pg, self.pg_to_tag = {}, {}


class TooManyRanks(RuntimeError):
    """There is no room for so many threads."""


class RankThread(threading.Thread):
    """One rank's thread, its clock, and what is each process's own where ranks are processes.

    clock   seconds since the world began at which what it has asked of its GPU so far is done
    """

    def __init__(self, number: int, turns: Scheduler):
        super().__init__(name=f"rank {number}", daemon=True)
        self.number, self.turns = number, turns
        self.clock = 0.0
        self.finished = False
        self.ours = False  # see Turns
        self.baton = threading.Lock()
        self.baton.acquire()
        self.groups = Groups()
        self.random = None  # states of the generators of torch, Python and numpy; None before its first turn

    def work(self) -> None:
        """What the rank does when its first turn has come."""
        raise NotImplementedError

    def run(self) -> None:
        self.baton.acquire()
        self.come_in()
        try:
            self.work()
        finally:
            self.finished = True
            self.turns.give_away(self)

    def come_in(self) -> None:
        """From now on, what belongs to a process is this rank's."""
        self.turns.running, self.turns.ours = self, self.ours
        set_groups_of_process(self.groups)
        self.bring_random_numbers()
        os.environ["RANK"] = str(self.number)
        os.environ["LOCAL_RANK"] = str(self.turns.local_rank(self.number))

    def bring_random_numbers(self) -> None:
        """Every rank begins with those with which the world began, numpy's with seed 0."""
        if self.random is None:
            numpys = numpy.random.MT19937(0)
            numpys._legacy_seeding(0)
            self.random = *self.turns.random, numpys
        torchs, pythons, numpys = self.random
        torch.default_generator.set_state(torchs)
        random.setstate(pythons)
        numpy.random.set_bit_generator(numpys)

    def go_out(self) -> None:
        self.ours = self.turns.ours
        self.random = torch.default_generator.get_state(), random.getstate(), self.random[2]


class Scheduler:
    """Whose turn it is.

    earliest    of the network: when its next transfer could begin; inf if there is none
    commit      of the network: do that transfer; returns the ranks that have waited for it
    local_rank  of a rank, among those on its node
    """

    def __init__(self, earliest: Callable[[], float], commit: Callable[[], list], local_rank: Callable[[int], int]):
        self.earliest, self.commit, self.local_rank = earliest, commit, local_rank
        self.ready: list[tuple[float, int, RankThread]] = []  # a heap
        self.running: RankThread | None = None
        self.ours = False  # whether what is computed now is our own work, not the program's
        self.over = threading.Event()
        self.broken: BaseException | None = None  # what went wrong in our own code
        self.give_up: float | None = None  # the machine's time after which nobody gets a turn any more
        self.on_turn: Callable[[], None] = lambda: None

    def run(self, ranks: list[RankThread]) -> None:
        """Until all have finished, or none can go on."""
        self.random = torch.default_generator.get_state(), random.getstate()
        for rank in ranks:
            self.make_ready(rank)
            try:
                rank.start()
            except RuntimeError:  # "can't start new thread"
                raise TooManyRanks(f"This machine does not allow {len(ranks)} threads: use fewer ranks.") from None
        self.next().baton.release()
        self.over.wait()
        if self.broken is not None:
            raise self.broken

    def make_ready(self, rank: RankThread) -> None:
        heapq.heappush(self.ready, (rank.clock, rank.number, rank))

    def next(self) -> RankThread | None:
        """Whose turn it is now; None if nobody can go on.

        A transfer may begin only when no rank that can run could still ask for an earlier one.
        """
        self.on_turn()
        if self.give_up is not None and monotonic() > self.give_up:
            return None
        while True:
            earliest = self.earliest()
            if self.ready and self.ready[0][0] <= earliest:
                return heapq.heappop(self.ready)[2]
            if earliest == math.inf:
                return None
            for rank in self.commit():
                self.make_ready(rank)

    def give_away(self, rank: RankThread) -> None:
        """`rank` waits, or has finished; it goes on when somebody has made it ready and its turn has come."""
        try:
            following = self.next()
        except BaseException as error:  # ours: without this, all would wait for ever
            following, self.broken = None, error
        if following is rank:
            return
        rank.go_out()
        if following is None:
            self.over.set()
        else:
            following.baton.release()
        if not rank.finished:
            rank.baton.acquire()
            rank.come_in()

    def look_around(self, rank: RankThread) -> None:
        """Let everything happen that happens before this rank's clock."""
        self.make_ready(rank)
        self.give_away(rank)

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """What is computed inside is ours, not the program's: it costs the virtual GPU nothing."""
        before, self.ours = self.ours, True
        try:
            yield
        finally:
            self.ours = before
