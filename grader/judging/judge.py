"""Judge a submission: run every check of its notebook on the student's answers, and report what each has earned.

The checks, the hidden tests and everything they expect are in this process, which runs no student code. A check gets a
`run` (remote_runner.py) whose ranks are processes in a sandbox (rank_host.py). It returns values (inside/codec.py) and
the record of the hub that carried all messages (hub.py).

    judge(notebook) -> Judgement        notebook: sanitised, with the official check cells (classroom/submission.py)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from nbformat.notebooknode import NotebookNode

from grader.inside.codec import Breach, receive
from grader.inside.orders import ReadOrder
from grader.judging.check_cells import CheckCell, lesson_of, read_notebook
from grader.judging.hidden_words import Case, differences, veiled
from grader.judging.program_packing import NotForRanks, give_order
from grader.judging.rank_host import HostGone
from grader.judging.ranks import Ranks
from grader.judging.remote_runner import RemoteRunner, TooLong
from grader.judging.verdict import BLANK, NOT_RUN, PART, PASSED, STUCK, WRONG, Flag, Judgement, Score, Verdict
from grader.sandbox.bounded import memory_limited
from grader.sandbox.bubblewrap import ROOT
from utils.checks.answer import CheckFailed
from utils.checks.registry import Checks
from utils.checks.rooms import room_of
from utils.checks.scores import SCORE
from utils.report.run import Run

if TYPE_CHECKING:
    from grader.inside.slices import Slice

MEMORY = 4 << 30  # bytes, for what a submission sends to this process: a rank is ended when it takes more
MAX_TEXT = 10_000  # characters of a verdict: some checks quote all that they were given
TOOK_TOO_LONG = "took too long or used too much"
FAILURES = (CheckFailed, TooLong, HostGone, Breach, OSError)  # how the judging of one check can end, but for passing it


@memory_limited(MEMORY)
def judge(
    nb: NotebookNode,
    lessons: str = "solutions",
    sandboxed: bool = True,
    seconds: float = 600,
    audit: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Judgement:
    """Judge a notebook. Nothing that a submission does makes it raise.

    lessons   the folder with the lessons' rooms, relative to the project's
    seconds   for the whole notebook; checks that have not started by then are not run
    audit     flag answers whose ranks come to something else when each is run again alone (audit.py)
    progress  called with (checks judged so far, all checks)

    Raises NoSandbox if this machine can't make a sandbox, ValueError if the check cells are not checks of ours,
    NotForRanks if a check hands its ranks something that no rank may know.
    """
    began = monotonic()
    cells, official = read_notebook(nb)
    lesson = lesson_of(nb)
    judgement = Judgement(lesson)
    room = room_of(lesson, ROOT / lessons) if official else None
    parts = [Checks(room), Checks(room, hidden=True)] if room else []
    judging = Judging(cells, official, Ranks(sandboxed, began + seconds), audit)
    try:
        for number, cell in enumerate(official):
            verdict = judging.verdict(cell, parts)
            verdict.said, verdict.mistake = verdict.said[:MAX_TEXT], verdict.mistake[:MAX_TEXT]
            judgement.verdicts.append(verdict)
            if progress:
                progress(number + 1, len(official))
    finally:
        judging.close()
    not_run = [verdict.check for verdict in judgement.verdicts if verdict.kind == NOT_RUN]
    if not_run:
        judgement.problems.append(f"took more than {seconds:g} s in all; not judged: {', '.join(not_run)}")
    judgement.flags, judgement.seconds = judging.flags, monotonic() - began
    return judgement


# ---- one submission --------------------------------------------------------------------------------------------------


class Judging:
    """The judging of one submission: its cells, its ranks, and what became of its functions.

    audit  whether all checks are audited; challenges are in any case
    """

    def __init__(self, cells: list[str], official: list[CheckCell], ranks: Ranks, audit: bool = False):
        self.cells, self.official, self.ranks, self.audit = cells, official, ranks, audit
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
        """The statements that the function of a check needs (inside/slices.py). Raises HostGone, Breach."""
        if self.slices is None:
            wanted = [(one.function, one.before) for one in self.official]
            if self.unreadable:
                raise Breach(self.unreadable)
            self.unreadable = "the notebook's cells took too long to be read"
            [rank] = self.ranks.start(1)
            try:
                give_order(rank.socket, ReadOrder(self.cells, wanted))
                [connection] = self.ranks.connect([rank])
                message = receive(rank.socket, read=connection.read)
                if message is None or len(message["slices"]) != len(wanted):
                    raise Breach("the cells could not be read")
                self.slices = dict(zip(wanted, message["slices"], strict=True))
            except TimeoutError:
                raise Breach(self.unreadable) from None
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
        if monotonic() > self.ranks.until:
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
            if failed.impossible:
                self.flag("claims what is impossible", f"{cell.name}: {failed.saw}, expected {failed.expected}")
            verdict.hidden = "hidden test" in failed.header
            verdict.points = cell.points * failed.share
            verdict.kind = PART if failed.share else BLANK if failed.saw == "Not written yet." else WRONG
        except TooLong as error:
            verdict.kind, verdict.said = STUCK, str(error)
            self.stuck[cell.function] = str(error)
            self.flag(TOOK_TOO_LONG, f"{cell.name}: {error}")
        except (HostGone, Breach, OSError) as error:
            verdict.kind, verdict.said = STUCK, f"It was stopped: {error}."
            self.stuck[cell.function] = verdict.said
            self.flag("ended its sandbox", f"{cell.name}: {error}")
            self.close()
        else:
            verdict.kind, verdict.points = PASSED, cell.points
            verdict.score = next(iter(scores), None)
            verdict.said = "\n".join(line for remark in remarks for line in remark.splitlines())
        finally:
            with suppress(HostGone):
                self.ranks.dismiss_crew()
        return verdict

    def judge_part(self, part: Checks, cell: CheckCell, code: Slice, visible: list[Case], scores: list[Score]) -> str:
        """Let the visible or the hidden check judge. Returns its remark. Raises CheckFailed, TooLong, HostGone.

        visible   the cases of the visible check, which are added here; what is said of a hidden one differs from them
        scores    of a challenge, in the order of the cases, which are added here
        """
        function = stand_in(cell.function, code["parameters"] or [])
        longest = max((source.count("\n") + 1 for source in self.cells), default=0)
        run = RemoteRunner(self.ranks, code, function, longest, audited=self.audit or cell.judges == SCORE)
        try:
            return judge_openly(run, part, cell)
        except CheckFailed as failed:
            if not part.hidden:
                raise
            if failed.impossible:
                self.flag("claims what is impossible", f"{cell.name}: {failed.saw}, expected {failed.expected}")
            where = differences(run.cases[-1], visible) if run.cases else "in a different case"
            raise veiled(failed, cell.judges, run.ended, where) from None
        except TooLong as error:
            if not part.hidden:
                raise
            self.flag(TOOK_TOO_LONG, f"{cell.name}: {error}")
            raise TooLong("It took too long in a hidden test.\n\nIs there a loop that never ends?") from None
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
    if needs_messages(part, cell) and says_nothing(run.runs):
        run.flags.append(Flag("sent no message", "its ranks came to the right result without hearing of others"))
    return said


def has_check(part: Checks, cell: CheckCell) -> bool:
    """Whether it judges this cell; the visible part has to, a hidden one need not."""
    exercise = cell.function.replace("_", "-")
    return not part.hidden or (exercise, cell.judges) in part.registered


def needs_messages(part: Checks, cell: CheckCell) -> bool:
    """Whether this is about messages: their cost is judged, here or in another check of the exercise."""
    return cell.judges == SCORE or (cell.function.replace("_", "-"), "traffic") in part.registered


def says_nothing(runs: Sequence[Run]) -> bool:
    """Whether several ranks have run, and none sent anything in any run."""
    return any(run.world_size > 1 for run in runs) and not any(run.events for run in runs)


def stand_in(name: str, parameters: list[str]) -> Callable[..., Any]:
    """Takes the place of the student's function in this process: same name, same parameters, and it can't be run."""

    def answer(*args: Any, **kwargs: Any) -> None:
        raise TypeError("a check may call the student's function only through `run`")

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [one for one in dict.fromkeys(parameters) if one.isidentifier()]
    answer.__name__ = answer.__qualname__ = name
    vars(answer)["__signature__"] = inspect.Signature([inspect.Parameter(one, kind) for one in names])
    return answer
