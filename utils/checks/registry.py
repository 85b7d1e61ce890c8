"""Find the checks of a lesson, run a student's function on ranks, and say how it went.

A check never touches the student's function: it gets `run`, which calls the function on real ranks, and it judges
what `run` returns. So where the ranks live can change, and no check has to be rewritten.

    @check("reduce-by-hand")
    def reduce_by_hand_values(run):
        xs = run.draws.different_integers(4, 3)          # one tensor a rank
        answer = run(4, xs, root=1)                      # rank r gets xs[r]; every rank gets root=1
        expect(answer.results[1], torch.stack(xs).sum(0), rank=1)

    @check("reduce-by-hand", judges="time")
    def reduce_by_hand_time(run):
        answer = run.virtual(8, [torch.empty(1000)] * 8, root=1, cluster=links(8, alpha=1e-6, bandwidth=1e9))
        expect_time(answer, 7 * (1e-6 + 4000 / 1e9))
"""

import importlib
from pathlib import Path

from .answer import CheckFailed
from .runner import Runner

WIDTH = 78  # columns of a message's first line


# ---- registering and finding checks


def check(exercise: str, judges: str = "values", if_stuck: str = ""):
    """Mark a function `f(run)` as the check of `exercise`. `if_stuck`: what a deadlock usually means here.

    What `f` returns, if anything, is shown to the student when the check passes.
    """

    def mark(function):
        function.judged, function.if_stuck = (exercise, judges), if_stuck
        return function

    return mark


class Checks:
    """All checks of one lesson. Calling it judges a function: `check(broadcast_by_hand, judges="values")`."""

    def __init__(self, package: str, lesson: str, hidden: bool = False):
        folder = Path(importlib.import_module(package).__file__).parent
        lessons = sorted(path.stem for path in folder.glob("[0-9]*.py"))
        if lesson not in lessons:
            raise ValueError(f"there is no lesson {lesson!r}: choose one of {', '.join(lessons)}")
        module = importlib.import_module(f"{package}.{lesson}")
        marked = [item for item in vars(module).values() if hasattr(item, "judged")]
        self.functions, self.hidden = {item.judged: item for item in marked}, hidden

    @property
    def registered(self) -> set[tuple[str, str]]:
        """The (exercise, judges) pairs there is a check for."""
        return set(self.functions)

    def __call__(self, answer, judges: str = "values") -> None:
        """Judge the function `answer`, print one line if it is right. Raises CheckFailed if it is not."""
        print(self.judge(answer, judges, Runner))

    def judge(self, answer, judges: str, runner: type) -> str:
        """Judge a function on the ranks of a runner; returns the line that says it is right. Raises CheckFailed."""
        exercise = getattr(answer, "__name__", repr(answer)).replace("_", "-")
        if (exercise, judges) not in self.functions:
            raise ValueError(f"nothing judges the {judges} of {exercise}: is the function's name as it was given?")
        function = self.functions[exercise, judges]
        run = runner(answer, function.if_stuck, quiet=self.hidden)
        try:
            remark = function(run)
        except CheckFailed as failed:
            where = " · ".join(
                [exercise, judges] + ["hidden test"] * self.hidden + [run.situation] * bool(run.situation)
            )
            failed.header = where.ljust(WIDTH - len("not passed")) + "  not passed"
            failed.expected = "something else" if failed.expected and self.hidden else failed.expected
            raise failed from None
        return f"{exercise} · {judges} · {'hidden test · ' * self.hidden}passed" + (f"\n  {remark}" if remark else "")
