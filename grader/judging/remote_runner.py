"""A `run` whose ranks are sandboxed processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from grader.inside.orders import RunOrder
from grader.judging.hidden_words import Case, case_of, how_it_failed
from grader.judging.hub import Hub
from grader.judging.hub_rank import Placeholders, RankResult
from grader.judging.program_packing import give_order, pack_program, restored
from grader.judging.rank_connection import Exchange, replay
from grader.judging.rank_host import HostGone, Rank
from utils.checks.inputs import Draws
from utils.checks.kinds import kind_of
from utils.checks.registry import Checks
from utils.checks.runner import Runner
from utils.cluster import Cluster
from utils.cluster.hardware import links
from utils.diagnosis.errors import RankCrashed, RankError, RankTimeout
from utils.kit.slow_memory import SlowMemory
from utils.report.run import Run

if TYPE_CHECKING:
    from grader.inside.slices import Slice
    from grader.judging.judge import Judging

SALT_OF_A_RUN = 1_000_000_007  # the next run's inputs have nothing to do with this one's
OVERHEAD = 250  # bytes that an Exchange takes besides its answer


class TooLong(Exception):
    """The ranks were stopped; the text says why, for the student."""


@dataclass
class Recording:
    """A run that is over, with what it takes to replay each of its ranks.

    logs             for each rank, all its exchanges with the hub
    packed           the results as bytes, where a replay is to be compared with them
    values_were_read whether the check has looked at a value that came from a rank
    """

    orders: list[RunOrder]
    logs: list[list[Exchange]]
    memories: list[SlowMemory]
    results: list[RankResult]
    packed: list[bytes] = field(default_factory=list)
    values_were_read: bool = False

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        exchanges = sum(OVERHEAD + len(exchange.answer) for log in self.logs for exchange in log)
        return exchanges + sum(len(order.program) for order in self.orders) + 2 * sum(map(len, self.packed))


class RemoteRunner(Runner):
    """`run` of a graded check: the ranks are sandboxed processes, and the hub is their network.

    Where values or traffic are judged in real time, the same processes serve in all runs of a check: its crew. Starting
    one costs more than most runs. Whatever a function leaves in its process can then only do it harm, because a check
    that fails so is judged once more, with processes for each run.

    may_use_a_crew   False: each run gets processes of its own
    used_a_crew      whether some process had served in a run before
    """

    def __init__(self, judging: Judging, code: Slice, function: Callable[..., Any], may_use_a_crew: bool = True):
        super().__init__(function)
        self.may_use_a_crew, self.used_a_crew = may_use_a_crew, False
        self.judging, self.code, self.draws = judging, code, judging.draws
        self.cases: list[Case] = []  # those that it was asked to run
        self.ended = ""  # how the ranks of the last one failed
        self.judges = ""

    @contextmanager
    def as_in_a_notebook(self) -> Iterator[Runner]:
        """What is said of a hidden case is not about these runs."""
        with super().as_in_a_notebook() as other:
            vars(other).update(cases=[], ended="")
            yield other

    def judge(self, part: Checks, judges: str) -> str:
        """What the checks in `part` say about the function; see Checks.judge."""
        self.judges = judges

        def runner(_: Callable[..., Any], if_stuck: str, quiet: bool) -> RemoteRunner:
            self.if_stuck, self.quiet = if_stuck, quiet
            return self

        return part.judge(self.function, judges, runner)

    def world(
        self,
        cluster: Cluster | None,
        device: str,
        world_size: int,
        function: Callable[..., Any],
        inputs: tuple[Sequence[Any], ...],
        same: dict[str, Any],
        catch: Any,
    ) -> Run:
        self.cases.append(case_of(world_size, inputs, same))
        self.ended = ""
        virtual = cluster is not None
        cluster = cluster or links(world_size, alpha=0.0, bandwidth=math.inf)
        memories: list[SlowMemory] = []
        orders = []
        for rank in range(world_size):
            own = [column[rank] for column in inputs]
            packed = pack_program((function, own, same, catch), self.function, memories)
            orders.append(RunOrder(rank, world_size, virtual, cluster, device, self.code, packed))
        flags = [*self.judging.flags]
        try:
            run, hub = self.run_ranks(orders, memories)
        except RankCrashed:
            if memories:
                raise
            if self.used_a_crew:  # what an earlier run has left in a process may be to blame
                self.judging.flags = flags
            run, hub = self.run_ranks(orders, memories)  # it may be the machine's fault, which was short of memory, say
        if self.draws.salt:  # 0 for the inputs of a notebook, which are the same in each run
            self.draws = self.judging.draws = Draws(self.draws.salt + SALT_OF_A_RUN)
        results = run.results
        if world_size > 1 and device == "cpu":
            results = self.confirmed(Recording(orders, [rank.connection.log for rank in hub.ranks], memories, results))
        return replace(run, results=[self.restored(rank, inputs, result) for rank, result in enumerate(results)])

    def restored(self, rank: int, inputs: tuple[Any, ...], result: RankResult) -> RankResult:
        own = [column[rank] for column in inputs]
        after = [restored(*pair) for pair in zip(own, result.inputs_after, strict=True)]
        return result._replace(inputs_after=after)

    def confirmed(self, recording: Recording) -> list[RankResult]:
        """The results that the check gets. Subclasses replay the ranks, now or later, and compare (replay.py)."""
        return recording.results

    def run_ranks(self, orders: list[RunOrder], memories: list[SlowMemory]) -> tuple[Run, Hub]:
        """Run one world from start to end. Raises what `spawn` raises, TooLong, HostGone."""
        first = orders[0]
        is_crew = self.may_use_a_crew and not first.virtual and self.judges in ("values", "traffic")
        if is_crew:
            ranks, served = self.judging.crew_for(len(orders))
            self.used_a_crew |= served
        else:
            ranks = self.judging.start_ranks(len(orders))
        connections = self.judging.connect(ranks)
        hub = Hub(connections, first.cluster, first.virtual, memories, times_count=kind_of(self.judges).is_timed)
        stay = False
        try:
            for rank, order in zip(ranks, orders, strict=True):
                give_order(rank.socket, replace(order, more_runs=is_crew))
            run, stay = hub.run(), is_crew
            return run, hub
        except RankTimeout as error:
            raise TooLong(str(error)) from None
        except RankCrashed as error:
            self.ended = self.how_it_failed(error, hub)
            raise self.reason_of(error, hub) from None
        except RankError as error:
            self.ended = self.how_it_failed(error, hub)
            raise
        finally:
            if is_crew and not stay:
                self.judging.dismiss_crew()
            elif not is_crew:
                self.judging.end_ranks(ranks)

    def replay(self, process: Rank, recording: Recording, rank: int, more_runs: bool = False) -> dict[str, Any]:
        """Let a process be this rank once more, with the hub's recorded answers. Returns its last message.

        It may receive as many bytes as all ranks together. more_runs: it will replay another run afterwards. Raises
        Diverged, TimeoutError.
        """
        [connection] = self.judging.connect([process])
        give_order(process.socket, replace(recording.orders[rank], more_runs=more_runs))
        return replay(recording.logs[rank], connection, Placeholders(recording.memories).resolve)

    def how_it_failed(self, error: RankError, hub: Hub) -> str:
        lines = max((cell.count("\n") + 1 for cell in self.judging.cells), default=0)
        return how_it_failed(error, [rank.failure for rank in hub.ranks if rank.failure is not None], lines)

    def reason_of(self, error: RankCrashed, hub: Hub) -> Exception:
        """What to raise when ranks have ended without a result, or after a message that was refused."""
        breaches = [f"rank {rank.number} sent {rank.breach}" for rank in hub.ranks if rank.breach]
        if breaches:
            evidence = f"{self.function.__name__}: {'; '.join(breaches)}"
            self.judging.flag("sent the grader messages that no answer sends", evidence)
        if stopped := self.judging.why_host_stopped():
            return HostGone(stopped)
        return error
