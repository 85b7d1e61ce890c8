"""A `run` whose ranks are sandboxed processes, and whose results are confirmed before they earn points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grader.inside import codec
from grader.inside.codec import Breach
from grader.judging.hub import Hub
from grader.judging.hub_rank import Known
from grader.judging.rank_connection import Diverged, replay
from grader.judging.rank_host import HostGone, Rank
from grader.judging.shared_objects import give_order, pack_program, restored
from utils.checks.answer import Answer, CheckFailed
from utils.checks.inputs import Draws
from utils.checks.registry import Checks
from utils.checks.runner import Runner, links
from utils.cluster import Cluster
from utils.diagnosis.errors import RankCrashed, RankTimeout
from utils.kit.slow_memory import SlowMemory
from utils.report.run import Run

if TYPE_CHECKING:
    from grader.judging.judge import Judging

CPU_SECONDS = 5  # of computing for one rank in one run; a right answer takes a tenth of one
CPU_SECONDS_EACH = 1  # if all compute: a run gets CPU_SECONDS and this for each of its ranks
RUN_SECONDS = 60  # for one run, on a machine that has other things to do too
MESSAGE = 250  # bytes that a line of a log takes, without the words
MOST_HELD = 64 << 20  # bytes of runs that are still to be confirmed
SALT_OF_A_RUN = 1_000_000_007  # the next run's inputs have nothing to do with this one's
TOOK_TOO_LONG = "took too long or too much"


class TooLong(Exception):
    """The ranks were stopped; the text says why, for the student."""


# ---- running an answer on ranks --------------------------------------------------------------------------------------


class RemoteRunner(Runner):
    """`run` of a graded check: the ranks are sandboxed processes, the network is the hub."""

    def __init__(self, judging: Judging, answer: dict, function: Callable):
        super().__init__(function)
        self.judging, self.code, self.draws = judging, answer, judging.draws

    def judge(self, part: Checks, judges: str) -> str:
        """What `part` says of the function; see Checks.judge."""

        def runner(_, if_stuck: str, quiet: bool) -> RemoteRunner:
            self.if_stuck, self.quiet = if_stuck, quiet
            return self

        return part.judge(self.function, judges, runner)

    def world(
        self, cluster: Cluster | None, device: str, world_size: int, function, inputs: tuple, same: dict, catch
    ) -> Run:
        virtual = cluster is not None
        cluster = cluster or links(world_size, alpha=0.0, bandwidth=math.inf)
        memories: list[SlowMemory] = []
        orders = []
        for number in range(world_size):
            mine = [column[number] for column in inputs]
            program = pack_program((function, mine, same, catch), self.function, memories)
            order = {"rank": number, "world_size": world_size, "virtual": virtual, "cluster": cluster, "device": device}
            orders.append({**order, "answer": self.code, "program": program, "more": False})
        try:
            run, hub = self.run_ranks(orders, memories)
        except RankCrashed:
            if memories:
                raise
            run, hub = self.run_ranks(orders, memories)  # it may have been the machine's fault: short of memory, say
        self.draws = self.judging.draws = Draws(self.draws.salt + SALT_OF_A_RUN)
        if world_size > 1 and device == "cpu":
            played = Played(orders, [rank.line.log for rank in hub.ranks], memories, run.results)
            run = replace(run, results=self.alone(played))
        results = []
        for rank, (result, after, shared) in enumerate(run.results):
            mine = [column[rank] for column in inputs]
            results.append((result, [restored(*pair) for pair in zip(mine, after, strict=True)], shared))
        return replace(run, results=results)

    def alone(self, played: Played) -> list[tuple]:
        """What ranks come to that were not together, where that is asked; the same as its results if all is well."""
        return played.results

    def run_ranks(self, orders: list[dict], memories: list[SlowMemory]) -> tuple[Run, Hub]:
        """One world, from its beginning to its end. Raises what `spawn` raises, TooLong, HostGone."""
        ranks = self.judging.ranks_of(len(orders))
        hub = Hub(self.judging.lines_to(ranks), orders[0]["cluster"], orders[0]["virtual"], memories)
        try:
            for rank, order in zip(ranks, orders, strict=True):
                give_order(rank.socket, order)
            return hub.run(), hub
        except RankTimeout as error:
            raise TooLong(str(error)) from None
        except RankCrashed as error:
            raise self.how_it_crashed(error, hub) from None
        finally:
            self.judging.end(ranks)

    def play_alone(self, process: Rank, played: Played, rank: int, more: bool = False) -> dict[str, Any]:
        """What a process says in the end that is told what the hub told this rank. Raises Diverged, TimeoutError.

        It may receive as many bytes as all ranks together. more: it will play another run.
        """
        [line] = self.judging.lines_to([process])
        give_order(process.socket, {**played.orders[rank], "more": more})
        return replay(played.logs[rank], line, Known(played.memories))

    def how_it_crashed(self, error: RankCrashed, hub: Hub) -> Exception:
        """The ranks have ended without a word, or with a wrong one."""
        breaches = [f"rank {rank.number} sent {rank.breach}" for rank in hub.ranks if rank.breach]
        if breaches:
            self.judging.look(
                "sent the grader what no answer sends", f"{self.function.__name__}: {'; '.join(breaches)}"
            )
        if self.judging.host.stopped:
            return HostGone(self.judging.host.stopped)
        return error


class ReplayCheck(RemoteRunner):
    """Judges what ranks came to together, and then looks whether each comes to the very same alone. Raises NotTheSame.

    Alone is one process for each rank: it plays that rank's part in all runs of the check, one after the other. What it
    may remember of a run says nothing of the next, whose inputs are drawn anew. Runs of which the check has looked at
    no value are not played again: traffic is the hub's own record.
    """

    def __init__(self, judging: Judging, answer: dict, function: Callable):
        super().__init__(judging, answer, function)
        self.played: list[Played] = []

    def judge(self, part: Checks, judges: str) -> str:
        said = super().judge(part, judges)
        self.confirm()
        return said

    def answer(self, *run: Any) -> Answer:
        before = len(self.played)
        answer = super().answer(*run)
        return Witnessed(answer, self.played[-1]) if len(self.played) > before else answer

    def alone(self, played: Played) -> list[tuple]:
        played.told = list(map(told_as, played.results))
        self.played.append(played)
        if sum(one.held for one in self.played) > MOST_HELD:
            self.confirm(all_of_them=True)
        return played.results

    def confirm(self, all_of_them: bool = False) -> None:
        """The last rank first: what a rank may have told the next by the moment at which it ended, it has not told yet.

        Virtual time, once it has taken the place of time in a process, stays: such a run has processes of its own.
        """
        played = [one for one in self.played if one.is_judged or all_of_them]
        self.played = []
        together = [one for one in played if not one.orders[0]["virtual"]]
        for runs in (together, *([one] for one in played if one.orders[0]["virtual"])):
            for number in reversed(range(max((len(one.orders) for one in runs), default=0))):
                self.confirm_rank(number, [one for one in runs if number < len(one.orders)])

    def confirm_rank(self, number: int, runs: list[Played]) -> None:
        [process] = self.judging.ranks_of(1)
        try:
            for one in runs:
                said = self.play_alone(process, one, number, more=one is not runs[-1])
                if said["do"] != "done" or told_as((said["result"], said["after"], said["shared"])) != one.told[number]:
                    raise NotTheSame
        except (Diverged, Breach, OSError, KeyError):
            raise NotTheSame from None
        finally:
            self.judging.end([process])


class NotTheSame(Exception):
    """Alone, a rank came to something else, or to nothing. That need not be its fault: the runs are played again."""


class Played:
    """A run that has been played: what each rank was to do, what it and the hub said, and what it came to.

    told       what it came to, packed, where it is to be confirmed
    is_judged  whether the check has looked at that
    """

    def __init__(self, orders: list[dict], logs: list[list], memories: list[SlowMemory], results: list[tuple]):
        self.orders, self.logs, self.memories, self.results = orders, logs, memories, results
        self.told: list[bytes] = []
        self.is_judged = False

    @property
    def held(self) -> int:
        """Bytes that are kept for it, more or less."""
        said = sum(MESSAGE + len(answer) for log in self.logs for _, answer in log)
        return said + sum(len(order["program"]) for order in self.orders) + 2 * sum(map(len, self.told))


class Witnessed(Answer):
    """An Answer that tells when a check looks at values."""

    def __init__(self, answer: Answer, played: Played):
        self.unseen, self.played = answer, played
        self.run = replace(answer.run, results=[])

    def seen(self) -> Answer:
        self.played.is_judged = True
        return self.unseen

    results = property(lambda self: self.seen().results)
    inputs_after = property(lambda self: self.seen().inputs_after)
    shared = property(lambda self: self.seen().shared)


def told_as(told: tuple) -> bytes:
    """What a rank came to, as bytes that can be compared."""
    return codec.pack({"told": told})


class ReplayAlone(RemoteRunner):
    """Judges what each rank comes to when it is alone, in a process of its own, told what the hub has told it."""

    def alone(self, played: Played) -> list[tuple]:
        """The last rank first, as above."""
        results = []
        for rank in reversed(range(len(played.orders))):
            [process] = self.judging.ranks_of(1)
            try:
                said = self.play_alone(process, played, rank)
            except TimeoutError:
                raise TooLong(f"rank {rank} took too long, when it was run once more.") from None
            except Diverged:
                said = {"do": "failed"}
            finally:
                self.judging.end([process])
            if said["do"] != "done":
                evidence = f"{self.function.__name__}, rank {rank}"
                self.judging.look("did something else when it was run once more, alone", evidence)
                raise CheckFailed(
                    f"rank {rank} did something else when it was run once more, with the same inputs and the "
                    "same messages",
                    mistake="What a rank does must follow from its inputs and from what it receives: not from time, "
                    "chance, files, or what another rank leaves behind.",
                )
            results.append((said["result"], said["after"], said["shared"]))
        return results[::-1]
