"""Find the checks of a lesson, run a student's function on ranks, and report the outcome."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from IPython.display import display
except ModuleNotFoundError:  # a lesson as a script, on a machine without Jupyter
    display = print

from ..diagnosis.returned_values import misused_value
from ..report.run import Run
from .answer import CheckFailed
from .finished import finished
from .frozen_cases import FrozenCases, points_of
from .kinds import kind_of
from .known_mistakes import KnownMistakes, mistakes_file
from .oracles import Oracle
from .progress import Passed, Progress, Summary
from .registration import Check, exercise_of
from .rooms import HIDDEN, load_checks
from .runner import Runner
from .saved import saved_passes
from .scores import Score, best_scores
from .timelines import keep, to_look_at

if TYPE_CHECKING:
    from ..figures import Timeline

WIDTH = 78  # columns of a message's first line
ASSUMES = (
    "Hidden tests try cases that the notebook doesn't: does your code rely on what the notebook's cases have in "
    "common, such as a size, an order or a dtype?"
)


class Checks:
    """All checks of one lesson. Calling it judges a function: `check(broadcast_by_hand, judges="values")`."""

    def __init__(self, room: Path, hidden: bool = False) -> None:
        self.room, self.hidden = room, hidden
        self.module = load_checks(room)
        self.checks: dict[tuple[str, str], Check] = {}  # {(exercise, judges): the check}
        self.names: dict[tuple[str, str], str] = {}  # {(exercise, judges): the module's name for it}
        for name, item in vars(self.module).items():
            for one in checks_in(item) if name.startswith(HIDDEN) == hidden else ():
                self.checks[one.exercise, one.judges] = one
                self.names[one.exercise, one.judges] = name
        self.known = KnownMistakes.read(mistakes_file(room, hidden))
        self.best = {} if hidden else best_scores(room)
        self.progress = Progress({} if hidden else points_of(room))
        self.scores: dict[str, Score] = {}  # passed challenges alone
        self.runs: dict[str, Run] = {}  # {exercise: the last run that has passed a check of time}
        self.looked_at: set[tuple[str, bool]] = set()  # (exercise, whether it got stuck) whose timeline has been shown

    def __call__(self, function: Callable[..., Any], judges: str = "values", extra_credit: float = 0) -> None:
        """Judge a student's function and print one line if it is right. Raises CheckFailed if it is not.

        extra_credit: the points of a challenge, beyond those of the lesson. They count in grading; here they are for
        reading
        """
        exercise = exercise_of(getattr(function, "__name__", ""))
        try:
            said = self.judge(function, judges, Runner)
        except CheckFailed as failed:
            self.progress.note(exercise, judges, passed=False)
            self.look(exercise, failed)
            raise
        self.progress.note(exercise, judges, passed=True)
        display(Passed(said, self.progress))

    def look(self, exercise: str, failed: CheckFailed) -> None:
        """In a notebook, show the timeline of a run that got stuck or was too slow; once, not at each attempt."""
        about = (exercise, failed.deadlock is not None)
        if about in self.looked_at or not in_notebook() or self.hidden:
            return
        if (picture := to_look_at(failed, self.room, exercise)) is not None:
            self.looked_at.add(about)
            display_below(picture)

    def summary(self) -> Summary:
        """The lesson's exercises: what has passed, in this session or as saved, what is left, and where to go on."""
        summary = Summary(self.progress, saved_passes(Path(f"{self.room.name}.ipynb")))
        if summary.progress.is_finished:
            summary.picture = finished(self.room.name, summary.progress, self.scores, self.runs)
        return summary

    def judge(
        self, function: Callable[..., Any], judges: str, runner: Callable[[Callable[..., Any], str, bool], Runner]
    ) -> str:
        """Judge a function on the ranks of runner(function, if_stuck, quiet).

        Returns the line that says that it is right. Raises CheckFailed if it is not, ValueError if nothing judges it.
        """
        exercise = exercise_of(getattr(function, "__name__", repr(function)))
        if (exercise, judges) not in self.checks:
            raise ValueError(
                f"nothing judges the {judges} of {exercise}: is the function still called what it was called?"
            )
        one = self.checks[exercise, judges]
        run = runner(function, one.if_stuck, self.hidden)
        run.known, are_drawn = self.known.of(exercise, judges), run.draws.salt != 0
        run.best = self.best.get(exercise, ())
        try:
            remark = one(run)
        except CheckFailed as failed:
            if are_drawn and run.known and failed.outcome and run.is_certain:
                failed.mistake = words_in_a_notebook(one, run) or failed.mistake
            failed.mistake = taken_for_the_result(failed, run) or failed.mistake
            failed.header = header([exercise, judges] + ["hidden test"] * self.hidden, run.situation)
            if failed.expected and self.hidden:
                failed.expected, failed.mistake = "something else", failed.mistake or ASSUMES
            failed.run = self.timeline_of(run, judges)
            raise failed from None
        if run.scores:
            self.scores[exercise] = run.scores[-1]
        if timeline := self.timeline_of(run, judges):
            keep(exercise, timeline)
            self.runs[exercise] = timeline
        shown = f"\n  {remark}" if remark and not self.hidden else ""
        return f"{exercise} · {judges} · {'hidden test · ' * self.hidden}passed{shown}"

    def timeline_of(self, run: Runner, judges: str) -> Run | None:
        """The run that a student can look at, if it was about time and there was just one."""
        return run.runs[0] if kind_of(judges).is_timed and len(run.runs) == 1 and not self.hidden else None


def taken_for_the_result(failed: CheckFailed, run: Runner) -> str:
    """What to do where it takes what a call of `dist` returns for its result; "" where the report has said so."""
    words = misused_value(run.source)
    return "" if words in failed.saw else words


def words_in_a_notebook(one: Check, run: Runner) -> str:
    """What a check says of the same function in a notebook, if that is the outcome of a known wrong answer; else ""."""
    try:
        one(run.as_in_a_notebook())
    except CheckFailed as failed:
        return failed.mistake if failed.is_known else ""
    return ""


def in_notebook() -> bool:
    return "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None


def display_below(picture: Timeline) -> None:
    """Show it when the cell has ended: below the message of an exception that is about to be raised."""
    events = sys.modules["IPython"].get_ipython().events

    def show(_: object) -> None:
        events.unregister("post_run_cell", show)
        display(picture)

    events.register("post_run_cell", show)


def checks_in(item: object) -> list[Check]:
    """The checks that a variable of a lesson's module holds, if any."""
    if isinstance(item, Oracle | FrozenCases):
        return item.checks()
    return [item] if isinstance(item, Check) else []


def header(words: list[str], situation: str) -> str:
    """The title of a message. A long situation takes a line of its own, so that "not passed" stays in its column."""
    one_line = " · ".join([*words, situation] if situation else words)
    short = len(one_line) <= WIDTH - len("  not passed")
    title = (one_line if short else " · ".join(words)).ljust(WIDTH - len("not passed")) + "  not passed"
    return title if short else f"{title}\n  {situation}"
