"""The rank processes of one submission: its host, which is started when it is needed, and what they may use up."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

from grader.judging.rank_connection import RankConnection
from grader.judging.rank_host import HostGone, RankHandle, RankHost
from grader.sandbox.bubblewrap import Limits
from grader.sandbox.load import patience

MAX_HOSTS = 4  # the most that one submission may use up
CPU_SECONDS = 5  # computing time of one rank in one run; a right answer takes a tenth of one
CPU_SECONDS_EACH = 1  # a run in which all compute gets CPU_SECONDS, and this for each of its ranks
RUN_SECONDS = 60  # wall time of one run; more where the machine is busy
HOST_LIMITS = Limits(wall=24 * 3600, cpu=24 * 3600)  # the hub limits the time of each run

spare: list[RankHost] = []  # hosts to be used again: one takes seconds to start


def host_for(sandboxed: bool) -> RankHost:
    """The previous submission's host, or a new one."""
    while spare:
        host = spare.pop()
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

    until  the machine's time (monotonic) at which the submission's own time is over
    crew   processes that have been ranks in a run of this check, and wait for the next run
    """

    def __init__(self, sandboxed: bool, until: float):
        self.sandboxed, self.until = sandboxed, until
        self.host: RankHost | None = None
        self.hosts_started = 0
        self.crew: list[RankHandle] = []

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
        until, host = min(monotonic() + RUN_SECONDS * patience(), self.until), self.running_host()
        before = host.used(ranks) if ranks[0] in self.crew else [0.0] * len(ranks)

        def has_overspent(number: int) -> bool:
            used = [now - then for now, then in zip(host.used(ranks), before, strict=True)]
            too_much = sum(used) > CPU_SECONDS + CPU_SECONDS_EACH * len(ranks)
            return used[number] > (CPU_SECONDS_EACH if too_much else CPU_SECONDS)

        return [
            RankConnection(rank.socket, until, has_overspent=partial(has_overspent, number))
            for number, rank in enumerate(ranks)
        ]

    def end(self, ranks: Sequence[RankHandle]) -> None:
        """End them and all that they have started."""
        try:
            self.running_host().end(ranks)
        finally:
            for rank in ranks:
                rank.socket.close()

    @property
    def why_host_stopped(self) -> str | None:
        return self.running_host().stopped

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
