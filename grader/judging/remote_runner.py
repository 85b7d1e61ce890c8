"""A `run` whose ranks are sandboxed processes."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from grader.inside.orders import RunOrder, packed_order
from grader.judging.audit import differs_alone
from grader.judging.hidden_words import Case, case_of, how_it_failed
from grader.judging.hub import Hub
from grader.judging.hub_rank import RankResult, Stays
from grader.judging.program_packing import pack_program, restored
from grader.judging.rank_connection import Exchange
from grader.judging.rank_host import HostGone
from grader.judging.ranks import Ranks
from grader.judging.verdict import Flag
from utils.checks.inputs import Draws
from utils.checks.kinds import kind_of
from utils.checks.registry import Checks
from utils.checks.runner import Runner, RunRequest
from utils.cluster.hardware import Cluster, links
from utils.diagnosis.errors import RankCrashed, RankError, RankTimeout
from utils.kit.witness import Witness
from utils.report.run import Run

if TYPE_CHECKING:
    from grader.inside.slices import Slice

ON_RANKS = {"rank", "world_size", "team", "group"}  # parameters of functions that work on ranks
SALT_BITS = 256  # the size of a secret that inputs are drawn with: too many to try


class TooLong(Exception):
    """The ranks were stopped; the text says why, for the student.

    computed  whether they have computed too much, which no busy machine can have caused
    """

    def __init__(self, said: str, computed: bool = False):
        super().__init__(said)
        self.computed = computed


class RemoteRunner(Runner):
    """`run` of a graded check: the ranks are sandboxed processes, and the hub is their network.

    Where values or traffic are judged in real time, the same processes serve in all runs of a check: its crew. Starting
    one costs more than most runs. What a function leaves in its process can only do it harm, and a check that fails so
    is judged once more, with new processes in each run.

    audited    whether each rank is run once more, alone (audit.py)
    may_reuse  whether processes may serve in several runs of a check
    reused     whether some have
    """

    def __init__(self, ranks: Ranks, code: Slice, function: Callable[..., Any], audited: bool = False):
        super().__init__(function)
        self.ranks, self.code, self.audited = ranks, code, audited
        self.may_reuse, self.reused = not audited, False
        self.draws = new_draws()
        self.flags: list[Flag] = []
        self.cases: list[Case] = []  # all that it was asked to run
        self.ended = ""  # how the ranks of the last one failed
        self.judges = ""

    def as_in_a_notebook(self) -> Self:
        """As Runner.as_in_a_notebook. What is said of a hidden case is not about these runs."""
        other = super().as_in_a_notebook()
        other.cases, other.ended = [], ""
        return other

    def judge(self, part: Checks, judges: str) -> str:
        """What the checks in `part` say about the function; see Checks.judge."""
        self.judges = judges

        def runner(_: Callable[..., Any], if_stuck: str, quiet: bool) -> RemoteRunner:
            self.if_stuck, self.quiet = if_stuck, quiet
            return self

        try:
            return part.judge(self.function, judges, runner)
        except Exception as error:
            if not self.reused:
                raise
            if isinstance(error, HostGone):
                self.ranks.close(suspicious=True)
            self.start_afresh()
            return part.judge(self.function, judges, runner)

    @property
    def source(self) -> str:
        return next((one["source"] for one in self.code["pieces"] if self.code["name"] in one["binds"]), "")

    @property
    def is_certain(self) -> bool:
        return not self.reused

    def start_afresh(self) -> None:
        """Forget all runs, and from now on let no process serve in two."""
        self.cases, self.flags, self.scores, self.runs, self.ended = [], [], [], [], ""
        self.may_reuse = self.reused = False

    def world(self, request: RunRequest) -> Run:
        """As Runner.world, with the results as the ranks described them. Raises TooLong, HostGone, too."""
        self.ended = ""
        own = self.code["parameters"] or []
        on_ranks = not ON_RANKS.isdisjoint(own) or "dist." in self.source
        self.cases.append(case_of(request.world_size, request.inputs, request.for_all, own, on_ranks))
        stays: list[Stays] = []
        orders = self.orders_for(request, stays)
        try:
            run = self.run_ranks(request, orders, stays)
        except RankCrashed:
            if stays:
                raise
            if self.reused:  # an earlier run may have left something in a process
                self.flags = []
            # It may be the machine's fault, which was short of memory, say.
            run = self.run_ranks(request, orders, stays)
        if self.draws.salt:  # 0 for the inputs of a notebook, which are the same in each run
            self.draws = new_draws()
        return replace(run, results=[restored_result(request, *pair) for pair in enumerate(run.results)])

    def orders_for(self, request: RunRequest, stays: list[Stays]) -> list[RunOrder]:
        """One for each rank; the SlowMemories and Witnesses in its inputs are added to `stays`."""
        size, virtual = request.world_size, request.cluster is not None
        cluster = without_links(cluster_of(request))
        packed = []
        for rank in range(size):
            before = len(stays)
            packed.append(pack_program(request.program_of(rank), self.function, stays))
            for one in stays[before:]:
                if isinstance(one, Witness):
                    one.rank = rank
        return [RunOrder(rank, size, virtual, cluster, request.device, self.code, packed[rank]) for rank in range(size)]

    def run_ranks(self, request: RunRequest, orders: list[RunOrder], stays: list[Stays]) -> Run:
        """Run one world from start to end. Raises what `spawn` raises, TooLong, HostGone."""
        first, size = orders[0], len(orders)
        may_stay = self.may_reuse and not (first.virtual or request.in_new_processes)
        is_crew = may_stay and self.judges in ("values", "traffic")
        self.reused |= is_crew and bool(self.ranks.crew)
        ranks = self.ranks.crew_of(size) if is_crew else self.ranks.start(size)
        connections, stay = self.ranks.connect(ranks), False
        hub = Hub(connections, cluster_of(request), first.virtual, stays, times_count=kind_of(self.judges).is_timed)
        try:
            for connection, order in zip(connections, orders, strict=True):
                connection.send(packed_order(replace(order, more_runs=is_crew)))
            run, stay = hub.run(), is_crew
        except (RankTimeout, TimeoutError) as error:
            raise TooLong(str(error) or "A rank did not begin.", self.ranks.overspent) from None
        except RankCrashed as error:
            self.ended = self.how_it_failed(error, hub)
            raise self.reason_of(error, hub) from None
        except RankError as error:
            self.ended = self.how_it_failed(error, hub)
            raise
        finally:
            if is_crew and not stay:
                self.ranks.dismiss_crew()
            elif not is_crew:
                self.ranks.end(ranks)
        if self.audited and size > 1:
            self.audit(orders, [connection.log for connection in connections], stays, run.results)
        return run

    def audit(
        self,
        orders: list[RunOrder],
        logs: list[list[Exchange]],
        stays: list[Stays],
        results: Sequence[RankResult],
    ) -> None:
        """Flag ranks that come to something else alone. The last is first to be run again, so that none can learn
        anything from when the one before it ended.
        """
        found = [
            str(rank)
            for rank in reversed(range(len(orders)))
            if differs_alone(self.ranks, orders[rank], logs[rank], stays, results[rank])
        ]
        if found:
            evidence = f"rank {', '.join(sorted(found))} of {len(orders)}"
            self.flags.append(Flag("did something else when it was run again, alone", evidence))

    def how_it_failed(self, error: RankError, hub: Hub) -> str:
        failures = [rank.failure for rank in hub.ranks if rank.failure is not None]
        cells: dict[str, int] = {}
        for piece in self.code["pieces"]:
            end = piece["line"] + piece["source"].count("\n")
            cells[piece["label"]] = max(end, cells.get(piece["label"], 0))
        return how_it_failed(error, failures, cells)

    def reason_of(self, error: RankCrashed, hub: Hub) -> Exception:
        """What to raise when ranks have ended without a result, or after a message that was refused."""
        breaches = [f"rank {rank.number} sent {rank.breach}" for rank in hub.ranks if rank.breach]
        if breaches:
            self.flags.append(Flag("sent the grader messages that no answer sends", "; ".join(breaches)))
        if stopped := self.ranks.running_host().stopped:
            return HostGone(stopped)
        return error


def new_draws() -> Draws:
    """No two runs get the same inputs."""
    return Draws(secrets.randbits(SALT_BITS))


def cluster_of(request: RunRequest) -> Cluster:
    return request.cluster or links(request.world_size, alpha=0.0, bandwidth=math.inf)


def without_links(cluster: Cluster) -> Cluster:
    """A cluster as its ranks may know it: messages are the hub's, and how long they take is for answers to find out."""
    intra, inter = (replace(link, alpha=0.0, bandwidth=math.inf) for link in (cluster.intra, cluster.inter))
    return replace(cluster, intra=intra, inter=inter)


def restored_result(request: RunRequest, rank: int, result: RankResult) -> RankResult:
    after = [restored(*pair) for pair in zip(request.inputs_of(rank), result.inputs_after, strict=True)]
    return result._replace(inputs_after=after)
