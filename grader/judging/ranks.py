"""The rank processes of one submission: its host, which is started when it is needed, and what they may use up."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from contextlib import suppress
from time import process_time

from grader.inside.usage import delay
from grader.judging.rank_connection import RankConnection, RunTime
from grader.judging.rank_host import HostGone, RankHandle, RankHost
from grader.sandbox.bubblewrap import Limits

MAX_HOSTS = 4  # the most that one submission may use up
CPU_SECONDS = 5  # computing time of one rank in one run; a right answer takes a tenth of one
CPU_SECONDS_EACH = 1  # a run in which all compute gets CPU_SECONDS, and this for each of its ranks
RUN_SECONDS = 60  # the hub's patience with one run's ranks, less what a busy machine has delayed them
HASTY_SECONDS = 5  # the same for a submission that is put off when it takes longer
MOST_DELAY = 20  # times as long a run may take, whatever has delayed it
HOST_LIMITS = Limits(wall=24 * 3600, cpu=24 * 3600)  # the hub limits the time of each run

spare: list[RankHost] = []  # hosts to be used again: one takes seconds to start


def host_for(sandboxed: bool) -> RankHost:
    """The previous submission's host, or a new one."""
    while spare:
        host = spare.pop()
        if host.owner != os.getpid():  # we are a fork
            continue
        if host.alive and host.sandboxed == sandboxed:
            return host
        host.close()
    return RankHost(HOST_LIMITS, sandboxed=sandboxed)


@atexit.register
def close_hosts() -> None:
    while spare:
        spare.pop().close()


class Ranks:
    """Starts and ends the ranks of one submission, each in a process of its own.

    seconds    the submission may take: those of all its runs, and those that this process computes
    run_limit  seconds of one run
    crew       processes that have been ranks in a run of this check, and wait for the next run
    overspent  whether the ranks of the last run have computed too much
    """

    def __init__(self, sandboxed: bool, seconds: float, run_limit: float | None = None):
        self.sandboxed, self.seconds = sandboxed, seconds
        self.run_limit = RUN_SECONDS if run_limit is None else run_limit
        self.host: RankHost | None = None
        self.hosts_started = 0
        self.crew: list[RankHandle] = []
        self.overspent = False
        self.began, self.waited = process_time(), 0.0

    @property
    def spent(self) -> float:
        """Seconds of the submission's so far."""
        return self.waited + process_time() - self.began

    def start(self, count: int) -> list[RankHandle]:
        """Start processes for the ranks of a world. Raises HostGone."""
        if self.host is None:
            self.hosts_started += 1
            if self.hosts_started > MAX_HOSTS:
                raise HostGone("the submission has crashed its sandbox too many times")
            self.host = host_for(self.sandboxed)
        return self.host.start(count)

    def crew_of(self, count: int) -> list[RankHandle]:
        """Processes for the ranks of a run, those of the runs before it first."""
        if len(self.crew) < count:
            self.crew += self.start(count - len(self.crew))
        return self.crew[:count]

    def dismiss_crew(self) -> None:
        crew, self.crew = self.crew, []
        if crew:
            self.end(crew)

    def connect(self, ranks: Sequence[RankHandle]) -> list[RankConnection]:
        """Connections to the ranks of one run, which share its time."""
        host, limit, waited_before = self.running_host(), min(self.run_limit, self.seconds - self.spent), self.waited
        before = host.used(ranks) if ranks[0] in self.crew else [(0.0, 0.0)] * len(ranks)
        all_before, delay_before, self.overspent = host.cpu(), delay(), False

        def is_over(waited: float, number: int) -> bool:
            now = host.used(ranks)
            used = [computed - before[rank][0] for rank, (computed, _) in enumerate(now)]
            delayed = sum(late - before[rank][1] for rank, (_, late) in enumerate(now)) + delay() - delay_before
            needed = waited - min(max(delayed, 0.0), MOST_DELAY * limit)
            self.waited = waited_before + max(needed, 0.0)
            self.overspent = has_overspent(used, host.cpu() - all_before, number)
            return self.overspent or needed > limit

        time = RunTime(is_over)
        return [RankConnection(rank.socket, time, number) for number, rank in enumerate(ranks)]

    def end(self, ranks: Sequence[RankHandle]) -> None:
        """End them and all that they have started."""
        try:
            self.running_host().end(ranks)
        finally:
            for rank in ranks:
                rank.socket.close()

    def running_host(self) -> RankHost:
        if self.host is None:
            raise HostGone("there is no sandbox")
        return self.host

    def close(self, suspicious: bool) -> None:
        """Leave the host to the next submission, unless this one has done something suspicious in it."""
        with suppress(HostGone):
            self.dismiss_crew()
        if self.host is not None:
            if suspicious:
                self.host.close()
            else:
                spare.append(self.host)
            self.host = None


def has_overspent(used: Sequence[float], all_used: float, number: int) -> bool:
    """Whether one of a run's ranks has computed too much. That is also so if all have, and it is among those to blame.

    used      by each rank, and the children that it has waited for
    all_used  by all processes of the sandbox, also those that nobody waits for
    """
    too_much = max(sum(used), all_used) > CPU_SECONDS + CPU_SECONDS_EACH * len(used)
    return used[number] > CPU_SECONDS or too_much and max(used[number], all_used - sum(used)) > CPU_SECONDS_EACH
