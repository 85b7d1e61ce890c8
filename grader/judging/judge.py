"""Judge a submission: run every check of its notebook on the student's answers, and report what each has earned.

The checks, the hidden tests and everything they expect are in this process, which runs no student code. A check gets a
`run` (remote_runner.py) whose ranks are processes in a sandbox (rank_host.py). It returns values (inside/codec.py) and
the record of the hub that carried all messages (hub.py).

    judge(notebook) -> Judgement        notebook: sanitised, with the official check cells (classroom/submission.py)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from nbformat.notebooknode import NotebookNode

from grader.inside.codec import Breach
from grader.inside.orders import ReadOrder, packed_order
from grader.judging.check_cells import CheckCell, lesson_of, read_notebook
from grader.judging.hidden_words import Case, differences, veiled
from grader.judging.program_packing import NotForRanks
from grader.judging.rank_host import HostGone
from grader.judging.ranks import HASTY_SECONDS, Ranks
from grader.judging.remote_runner import RemoteRunner, TooLong
from grader.judging.verdict import BLANK, NOT_RUN, PART, PASSED, STUCK, WRONG, Flag, Judgement, Score, Verdict
from grader.sandbox.bounded import TooMuch, in_steps, memory_limited
from grader.sandbox.bubblewrap import ROOT
from utils.checks.answer import CheckFailed
from utils.checks.registry import Checks
from utils.checks.rooms import room_of
from utils.checks.scores import SCORE

if TYPE_CHECKING:
    from grader.inside.slices import Slice

MEMORY = 4 << 30  # bytes, for what a submission sends to this process: a rank is ended when it takes more
JUDGE_SECONDS, HASTY_JUDGE_SECONDS = 60, 10  # this process's computing for one check
SLEEPS = 20  # times as long as that, a check may take: only a process that hangs does
HASTY_TOTAL = 120  # seconds of a submission, until the rest is put off
MAX_TEXT = 10_000  # characters of a verdict: some checks quote all that they were given
TOOK_TOO_LONG = "took too long or used too much"
FAILURES = (CheckFailed, TooLong, HostGone, Breach, OSError)  # how the judging of one check can end, but for passing it


@dataclass(frozen=True)
class SoFar:
    """How far the judging of a submission is: what a new process must know to continue.

    judged  how many checks
    stuck   function -> how it was stopped
    spent   seconds of the submission's
    hosts   sandboxes that it has used up
    """

    judged: int = 0
    stuck: dict[str, str] = field(default_factory=dict)
    spent: float = 0.0
    hosts: int = 0


Step = tuple[Verdict, list[Flag], SoFar]


class PutOff(Exception):
    """Something took long, or a sandbox ended, which a busy machine may have caused: to be judged again, alone."""


def judge(
    nb: NotebookNode,
    lessons: str = "solutions",
    sandboxed: bool = True,
    seconds: float = 600,
    audit: bool = False,
    hasty: bool = False,
    limited: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Judgement:
    """Judge a notebook. Nothing that a submission does makes it raise.

    lessons   the folder with the lessons' rooms, relative to the project's
    seconds   for the whole notebook; checks that have not started by then are not run
    audit     flag answers whose ranks come to something else when each is run again alone (audit.py)
    hasty     at the first thing that takes long, leave that check and all after it "not run"
    limited   judge in a child process, which is ended when a submission makes the judge itself work too much
    progress  called with (checks judged so far, all checks)

    Raises NoSandbox if this machine can't make a sandbox, ValueError if the check cells are not checks of ours,
    NotForRanks if a check hands its ranks something that no rank may know.
    """
    began, judgement, official = monotonic(), Judgement(lesson_of(nb)), read_notebook(nb)[1]
    how = (lessons, sandboxed, min(seconds, HASTY_TOTAL) if hasty else seconds, audit, hasty)
    steps = partial(in_child, hasty) if limited else verdicts
    for number, (verdict, flags, _) in enumerate(steps(nb, *how, SoFar()), 1):
        judgement.verdicts.append(verdict)
        judgement.flags += [flag for flag in flags if flag not in judgement.flags]
        if progress:
            progress(number, len(official))
    put_off = official[len(judgement.verdicts) :]
    judgement.verdicts += [Verdict(cell.name, 0.0, cell.points, NOT_RUN) for cell in put_off]
    not_run = [verdict.check for verdict in judgement.verdicts if verdict.kind == NOT_RUN]
    if not_run and not hasty:
        judgement.problems.append(f"took more than {seconds:g} s in all; not judged: {', '.join(not_run)}")
    judgement.seconds = monotonic() - began
    return judgement


def in_child(hasty: bool, nb: NotebookNode, *how: Any) -> Iterator[Step]:
    """`verdicts` in a process with limits. The check that exceeds one is stuck; a new process judges those after it."""
    official, (*settings, so_far) = read_notebook(nb)[1], how
    seconds = HASTY_JUDGE_SECONDS if hasty else JUDGE_SECONDS
    while so_far.judged < len(official):
        try:
            for step in in_steps(verdicts, seconds, SLEEPS, nb, *settings, so_far):
                so_far = step[2]
                yield step
            return
        except TooMuch as reason:
            if hasty:
                return
            cell, said = official[so_far.judged], f"It was stopped: to judge what came back {reason}."
            stuck = {**so_far.stuck, cell.function: said}
            so_far = replace(so_far, judged=so_far.judged + 1, stuck=stuck, spent=so_far.spent + seconds)
            flag = Flag(TOOK_TOO_LONG, f"{cell.name}: to judge it {reason}")
            yield Verdict(cell.name, 0.0, cell.points, STUCK, said), [flag], so_far


def verdicts(
    nb: NotebookNode, lessons: str, sandboxed: bool, seconds: float, audit: bool, hasty: bool, so_far: SoFar
) -> Iterator[Step]:
    """The verdict on one check after the other, with the flags for all of them; ends early if the rest is put off."""
    cells, official = read_notebook(nb)
    room = room_of(lesson_of(nb), ROOT / lessons) if official else None
    parts = [Checks(room), Checks(room, hidden=True)] if room else []
    ranks = Ranks(sandboxed, seconds - so_far.spent, HASTY_SECONDS if hasty else None)
    ranks.hosts_started = so_far.hosts
    judging = Judging(cells, official, ranks, audit, hasty)
    judging.stuck = dict(so_far.stuck)
    try:
        with memory_limited(MEMORY):
            for number, cell in enumerate(official[so_far.judged :], so_far.judged + 1):
                verdict = judging.verdict(cell, parts)
                verdict.said, verdict.mistake = verdict.said[:MAX_TEXT], verdict.mistake[:MAX_TEXT]
                now = SoFar(number, judging.stuck, so_far.spent + ranks.spent, ranks.hosts_started)
                yield verdict, judging.flags, now
    except PutOff:
        return
    finally:
        judging.close()


# ---- one submission --------------------------------------------------------------------------------------------------


class Judging:
    """The judging of one submission: its cells, its ranks, and what became of its functions.

    audit  whether all checks are audited; challenges are in any case
    hasty  whether to raise PutOff at the first thing that a busy machine may have caused
    """

    def __init__(
        self, cells: list[str], official: list[CheckCell], ranks: Ranks, audit: bool = False, hasty: bool = False
    ):
        self.cells, self.official, self.ranks, self.audit, self.hasty = cells, official, ranks, audit, hasty
        self.flags: list[Flag] = []
        self.slices: dict[tuple[str, int], Slice] | None = None
        self.unreadable = ""  # why the cells can't be read, once that has been tried
        self.stuck: dict[str, str] = {}  # function -> how it was stopped

    def close(self) -> None:
        self.ranks.close(suspicious=any(flag.what != TOOK_TOO_LONG for flag in self.flags))

    def flag(self, what: str, evidence: str) -> None:
        flag = Flag(what, evidence[:2000])
        if flag not in self.flags:  # a run that crashed is run a second time
            self.flags.append(flag)

    # ---- the student's functions

    def slice_for(self, cell: CheckCell) -> Slice:
        """The statements that the function of a check needs (inside/slices.py). Raises HostGone, Breach, TooLong."""
        if self.slices is None:
            wanted = [(one.function, one.before) for one in self.official]
            if self.unreadable:
                raise Breach(self.unreadable)
            self.unreadable = "the notebook's cells could not be read"
            [rank] = self.ranks.start(1)
            try:
                [connection] = self.ranks.connect([rank])
                connection.send(packed_order(ReadOrder(self.cells, wanted)))
                message = connection.receive()
                if message is None or len(message["slices"]) != len(wanted):
                    raise Breach("the cells could not be read")
                self.slices = dict(zip(wanted, message["slices"], strict=True))
            except TimeoutError:
                raise TooLong("The notebook's cells took too long to be read.", self.ranks.overspent) from None
            finally:
                self.ranks.end([rank])
        return self.slices[cell.function, cell.before]

    # ---- verdicts

    def verdict(self, cell: CheckCell, parts: list[Checks]) -> Verdict:
        """The verdict of one check."""
        verdict = Verdict(cell.name, 0.0, cell.points, NOT_RUN)
        if cell.function in self.stuck:
            verdict.kind, verdict.said = STUCK, f"Not run again: {self.stuck[cell.function]}"
            return verdict
        if self.ranks.spent > self.ranks.seconds:
            if self.hasty:
                raise PutOff
            verdict.said = "Not run: the time for this submission was over."
            return verdict
        try:
            code = self.slice_for(cell)
            if code["problem"] or code["parameters"] is None:
                verdict.kind, verdict.said = WRONG, code["problem"] or f"There is no function {cell.function}."
                return verdict
            registered = [part for part in parts if has_check(part, cell)]
            visible: list[Case] = []
            scores: list[Score] = []
            remarks = [self.judge_part(part, cell, code, visible, scores) for part in registered]
        except CheckFailed as failed:
            verdict.said, verdict.mistake = str(failed), failed.mistake
            verdict.hidden = "hidden test" in failed.header
            verdict.points = cell.points * failed.share
            verdict.kind = PART if failed.share else BLANK if failed.saw == "Not written yet." else WRONG
        except (TooLong, HostGone, Breach, OSError) as error:
            self.stop(verdict, cell.function, error)
        else:
            verdict.kind, verdict.points = PASSED, cell.points
            verdict.score = next(iter(scores), None)
            verdict.said = "\n".join(line for remark in remarks for line in remark.splitlines())
        finally:
            with suppress(HostGone):
                self.ranks.dismiss_crew()
        return verdict

    def stop(self, verdict: Verdict, function: str, error: Exception) -> None:
        """Say in a verdict what has stopped the function, which is not run again. Raises PutOff."""
        took_too_long = isinstance(error, TooLong)
        computed = isinstance(error, TooLong) and error.computed
        if self.hasty and not computed and not isinstance(error, Breach):
            raise PutOff from None
        verdict.kind, verdict.said = STUCK, str(error) if took_too_long else f"It was stopped: {error}."
        self.stuck[function] = verdict.said
        self.flag(TOOK_TOO_LONG if took_too_long else "ended its sandbox", f"{verdict.check}: {error}")
        if not took_too_long:
            self.close()

    def judge_part(self, part: Checks, cell: CheckCell, code: Slice, visible: list[Case], scores: list[Score]) -> str:
        """Let the visible or the hidden check judge. Returns its remark. Raises CheckFailed, TooLong, HostGone.

        visible   the cases of the visible check, which are added here; what is said of a hidden one differs from them
        scores    of a challenge, in the order of the cases, which are added here
        """
        function = stand_in(cell.function, code["parameters"] or [])
        run = RemoteRunner(self.ranks, code, function, audited=self.audit or cell.judges == SCORE)
        try:
            return judge_openly(run, part, cell)
        except CheckFailed as failed:
            if failed.impossible:
                self.flag("claims what is impossible", f"{cell.name}: {failed.saw}, expected {failed.expected}")
            if not part.hidden:
                raise
            where = differences(run.cases[-1], visible) if run.cases else "in a different case"
            raise veiled(failed, cell.judges, run.ended, where) from None
        except TooLong as error:
            if not part.hidden:
                raise
            self.flag(TOOK_TOO_LONG, f"{cell.name}: {error}")
            said = "It took too long in a hidden test.\n\nIs there a loop that never ends?"
            raise TooLong(said, error.computed) from None
        except (HostGone, Breach, OSError) as error:
            if not part.hidden:
                raise
            self.flag("ended its sandbox", f"{cell.name}: {error}")
            raise HostGone("in a hidden test it used too much, or ended its sandbox") from None
        finally:
            for flag in run.flags:
                self.flag(flag.what, f"{cell.name}: {flag.evidence}")
            scores += [Score(shown=one.shown, value=one.value, share=one.share) for one in run.scores]
            if not part.hidden:
                visible += run.cases


def judge_openly(run: RemoteRunner, part: Checks, cell: CheckCell) -> str:
    """Let a check judge, with all that it has to say. Flags an answer that is right and has sent nothing."""
    try:
        said = run.judge(part, cell.judges)
    except (*FAILURES, NotForRanks):
        raise
    except Exception as error:  # a check met a value that it did not expect, so the answer is not right
        run.flags.append(Flag("a check could not judge what came back", f"{type(error).__name__}: {error}"))
        raise CheckFailed(
            f"What came back can't be judged ({type(error).__name__}).",
            mistake="Does your function return what its description says, in that form?",
        ) from None
    is_silent = any(one.world_size > 1 for one in run.runs) and not any(one.events for one in run.runs)
    if is_silent and needs_messages(part, cell):
        run.flags.append(Flag("sent no message", "its ranks came to the right result without hearing of others"))
    return said


def has_check(part: Checks, cell: CheckCell) -> bool:
    """Whether it judges this cell; the visible part has to, a hidden one need not."""
    exercise = cell.function.replace("_", "-")
    return not part.hidden or (exercise, cell.judges) in part.checks


def needs_messages(part: Checks, cell: CheckCell) -> bool:
    """Whether this is about messages: their cost is judged, here or in another check of the exercise.

    A module of checks names the exercises for which that isn't so in NO_MESSAGES.
    """
    exercise = cell.function.replace("_", "-")
    is_judged = cell.judges == SCORE or (exercise, "traffic") in part.checks
    return is_judged and exercise not in getattr(part.module, "NO_MESSAGES", ())


def stand_in(name: str, parameters: list[str]) -> Callable[..., Any]:
    """Takes the place of the student's function in this process: same name, same parameters, and it can't be run."""

    def answer(*args: Any, **kwargs: Any) -> None:
        raise TypeError("a check may call the student's function only through `run`")

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [one for one in dict.fromkeys(parameters) if one.isidentifier()]
    answer.__name__ = answer.__qualname__ = name
    vars(answer)["__signature__"] = inspect.Signature([inspect.Parameter(one, kind) for one in names])
    return answer
