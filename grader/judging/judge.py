"""Judge a submission: run every check of its notebook on the student's answers, and say what each has earned.

The checks, the hidden tests and all that they expect are in this process, which runs no student code. A check gets a
`run` whose ranks are processes in a sandbox (rank_host.py), and which brings back values (inside/codec.py) and the record
of the hub that has carried all messages (hub.py).

    judge(notebook) -> Judgement        notebook: sanitised, with the official check cells (submission.py)
"""

from __future__ import annotations

import atexit
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import cloudpickle
from nbformat.notebooknode import NotebookNode

from grader.inside.codec import Breach, receive
from grader.judging.check_cells import CheckCell, lesson_of, read_notebook, salt_of
from grader.judging.rank_connection import RankConnection
from grader.judging.rank_host import HostGone, Rank, RankHost
from grader.judging.remote_runner import (
    CPU_SECONDS,
    CPU_SECONDS_EACH,
    RUN_SECONDS,
    TOOK_TOO_LONG,
    NotTheSame,
    RemoteRunner,
    ReplayAlone,
    ReplayCheck,
    TooLong,
)
from grader.judging.shared_objects import READ_SECONDS, NotForRanks, give_order
from grader.judging.verdict import BLANK, NOT_RUN, PART, PASSED, STUCK, WRONG, Flag, Judgement, Verdict
from grader.sandbox.bubblewrap import Limits
from utils.checks.answer import CheckFailed
from utils.checks.inputs import Draws
from utils.checks.registry import Checks

MOST_SAID = 10_000  # characters of a verdict: some checks quote what they were given whole
MOST_HOSTS = 4  # that one submission may break


def judge(
    nb: NotebookNode,
    checks: str = "utils.checks",
    hidden: str = "grader.hidden",
    sandboxed: bool = True,
    seconds: float = 600,
    progress: Callable[[int, int], None] | None = None,
) -> Judgement:
    """Judge a notebook. Never raises for what a submission does.

    checks, hidden  packages with a module for each lesson: the visible checks, and the hidden tests
    seconds         for all of it; checks whose turn has not come by then are not run
    progress        is told (checks judged, all checks)

    Raises NoSandbox when there can be no sandbox here, ValueError when the check cells are no checks of ours,
    NotForRanks when a check hands its ranks what no rank may know.
    """
    began = monotonic()
    cells, official = read_notebook(nb)
    lesson = lesson_of(nb)
    said = Judgement(lesson)
    parts = [Checks(checks, lesson), Checks(hidden, lesson, hidden=True)] if official else []
    for part in parts:
        by_value(part)
    judging = Judging(cells, official, sandboxed, began + seconds, Draws(salt_of(cells, parts)))
    try:
        for number, cell in enumerate(official):
            verdict = judging.verdict(cell, parts)
            verdict.said, verdict.mistake = verdict.said[:MOST_SAID], verdict.mistake[:MOST_SAID]
            said.verdicts.append(verdict)
            if progress:
                progress(number + 1, len(official))
    finally:
        judging.close()
    not_run = [verdict.check for verdict in said.verdicts if verdict.kind == NOT_RUN]
    if not_run:
        said.troubles.append(f"took more than {seconds:g} s in all; not judged: {', '.join(not_run)}")
    said.looks, said.seconds = judging.looks, monotonic() - began
    return said


def by_value(part: Checks) -> None:
    """What a check hands to the ranks travels by value, unless the sandbox has it: no file of the tests is in there."""
    for function in part.functions.values():
        if not function.__module__.startswith("utils."):
            cloudpickle.register_pickle_by_value(sys.modules[function.__module__])


# ---- hosts -----------------------------------------------------------------------------------------------------------

HOST_LIMITS = Limits(wall=24 * 3600, cpu=24 * 3600)  # a run's own time is the hub's to bound
spare: list[RankHost] = []  # it takes seconds to start one, and nothing of a rank outlives its world


def host_for(sandboxed: bool) -> RankHost:
    """A host of ranks, from the submission before or a new one."""
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


# ---- one submission --------------------------------------------------------------------------------------------------


class Judging:
    """The judging of one submission: its answers, the host of its ranks, and how much time is left.

    draws  for the run that comes next: no two runs of a submission are given the same numbers
    """

    def __init__(self, cells: list[str], official: list[CheckCell], sandboxed: bool, until: float, draws: Draws):
        self.cells, self.official, self.sandboxed, self.until = cells, official, sandboxed, until
        self.draws = draws
        self.looks: list[Flag] = []
        self.host: RankHost | None = None
        self.hosts = 0
        self.answers: dict[tuple[str, int], dict] | None = None
        self.stuck: dict[str, str] = {}  # function -> how it was stopped

    def close(self) -> None:
        """Let the host serve the next submission, unless this one has given cause to want a new one."""
        if self.host is not None:
            if any(look.what != TOOK_TOO_LONG for look in self.looks):
                self.host.close()
            else:
                spare.append(self.host)
            self.host = None

    def ranks_of(self, count: int) -> list:
        """Fresh processes for the ranks of a world. Raises HostGone."""
        if self.host is None:
            self.hosts += 1
            if self.hosts > MOST_HOSTS:
                raise HostGone("the submission has ended its sandbox again and again")
            self.host = host_for(self.sandboxed)
        return self.host.start(count)

    def lines_to(self, ranks: list[Rank]) -> list[RankConnection]:
        """Lines to the ranks of one run, with the end of its time."""
        until, host = min(monotonic() + RUN_SECONDS, self.until), self.host

        def spent(number: int) -> bool:
            used = host.used(ranks)
            too_much = sum(used) > CPU_SECONDS + CPU_SECONDS_EACH * len(ranks)
            return used[number] > (CPU_SECONDS_EACH if too_much else CPU_SECONDS)

        return [RankConnection(rank.socket, until, spent=partial(spent, number)) for number, rank in enumerate(ranks)]

    def end(self, ranks: list) -> None:
        """Nothing is left of them afterwards."""
        try:
            self.host.end(ranks)
        finally:
            for rank in ranks:
                rank.socket.close()

    def look(self, what: str, evidence: str) -> None:
        look = Flag(what, evidence[:2000])
        if look not in self.looks:  # a run that crashed is run a second time
            self.looks.append(look)

    # ---- the answers

    def answer(self, cell: CheckCell) -> dict:
        """The statements that a check's function needs (inside/slices.py). Raises HostGone, Breach."""
        if self.answers is None:
            wanted = [(one.function, one.before) for one in self.official]
            [rank] = self.ranks_of(1)
            try:
                order = {"read": {"cells": self.cells, "wanted": wanted}}
                give_order(rank.socket, order)
                rank.socket.settimeout(READ_SECONDS)
                message = receive(rank.socket)
                if message is None or len(message["answers"]) != len(wanted):
                    raise Breach("the cells could not be read")
                self.answers = dict(zip(wanted, message["answers"], strict=True))
            finally:
                self.end([rank])
        return self.answers[cell.function, cell.before]

    # ---- verdicts

    def verdict(self, cell: CheckCell, parts: list[Checks]) -> Verdict:
        """What one check says."""
        verdict = Verdict(cell.name, 0.0, cell.points, NOT_RUN)
        if cell.function in self.stuck:
            verdict.kind, verdict.said = STUCK, f"Not run again: {self.stuck[cell.function]}"
            return verdict
        if monotonic() > self.until:
            verdict.said = "Not run: the time for this submission was over."
            return verdict
        try:
            answer = self.answer(cell)
            if answer["problem"] or answer["parameters"] is None:
                verdict.kind, verdict.said = WRONG, answer["problem"] or f"There is no function {cell.function}."
                return verdict
            judging = [part for part in parts if registered(part, cell)]
            remarks = [self.judge_part(part, cell, answer, part is judging[-1]) for part in judging]
        except CheckFailed as failed:
            verdict.said, verdict.mistake = str(failed), failed.mistake
            verdict.hidden = "hidden test" in failed.header
            verdict.points = cell.points * failed.share
            verdict.kind = PART if failed.share else BLANK if failed.saw == "Not written yet." else WRONG
        except TooLong as error:
            verdict.kind, verdict.said = STUCK, str(error)
            self.stuck[cell.function] = str(error)
            self.look(TOOK_TOO_LONG, f"{cell.name}: {error}")
        except (HostGone, Breach, OSError) as error:
            verdict.kind, verdict.said = STUCK, f"It was stopped: {error}."
            self.stuck[cell.function] = verdict.said
            self.look("ended its sandbox", f"{cell.name}: {error}")
            self.close()
        else:
            verdict.kind, verdict.points = PASSED, cell.points
            verdict.said = "\n".join(line for remark in remarks for line in remark.splitlines())
        return verdict

    def judge_part(self, part: Checks, cell: CheckCell, answer: dict, decides: bool) -> str:
        """Let the visible or the hidden check judge; returns its remark. Raises CheckFailed, TooLong, HostGone.

        decides: it is the last to judge this, so what it judges are values of ranks that were alone.
        """
        function = stand_in(cell.function, answer["parameters"])
        draws = self.draws
        try:
            if decides:
                with suppress(NotTheSame):
                    return ReplayCheck(self, answer, function).judge(part, cell.judges)
                self.draws = draws  # the very same inputs once more
                return ReplayAlone(self, answer, function).judge(part, cell.judges)
            return RemoteRunner(self, answer, function).judge(part, cell.judges)
        except (CheckFailed, TooLong, HostGone, Breach, OSError, NotForRanks):
            raise
        except Exception as error:  # a check met something that it did not expect: it is no right answer
            where = f"{cell.name}: {type(error).__name__}: {error}"
            self.look("a check could not judge what came back", where)
            raise CheckFailed(
                f"What came back can't be judged ({type(error).__name__}).",
                mistake="Does your function return what its description says, in that form?",
            ) from None


def registered(part: Checks, cell: CheckCell) -> bool:
    exercise = cell.function.replace("_", "-")
    return not part.hidden or (exercise, cell.judges) in part.registered


def stand_in(name: str, parameters: list[str]) -> Callable:
    """Takes the place of the student's function in this process: it has the name and the parameters, and can't run."""

    def answer(*args: Any, **kwargs: Any) -> None:
        raise TypeError("a check calls the student's function by `run` alone")

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [one for one in dict.fromkeys(parameters) if one.isidentifier()]
    answer.__name__ = answer.__qualname__ = name
    answer.__signature__ = inspect.Signature([inspect.Parameter(one, kind) for one in names])
    return answer
