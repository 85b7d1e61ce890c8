"""Every lesson: a blank fails every check, each wrong answer is caught where it says,
and a right one in another form is not.

That the solution passes is seen in its notebook, which tests/test_notebooks.py runs, hidden tests included.

Nothing here names a lesson: what is tested is read from solutions/, utils/checks/, grader/hidden/ and tests/mutants/.
"""

import functools
import linecache
import re

import pytest

from grader.authoring.lesson import find_lessons, read_lesson
from grader.authoring.markers import clear_solution
from grader.authoring.rules import broken_rules
from grader.hidden import hidden_tests_for
from tests.mutants import also_right, mutants_of
from utils.checks import CheckFailed, checks_for

pytestmark = pytest.mark.long(minutes=9)
LESSONS = {path.stem: read_lesson(path) for path in find_lessons()}
MUTANTS = [pytest.param(name, mutant, id=f"{name}-{mutant}") for name in LESSONS for mutant in mutants_of(name)]


def first_of_each_exercise(ones_of) -> list:
    """(lesson, one) for each of `ones_of(lesson)`; in `make test`, only the first of each exercise."""
    found, seen = [], set()
    for name in LESSONS:
        for one in ones_of(name):
            marks = pytest.mark.thorough if (name, one.exercise) in seen else ()
            found.append(pytest.param(name, one, id=f"{name}-{getattr(one, 'id', one)}", marks=marks))
            seen.add((name, one.exercise))
    return found


CHECKS = first_of_each_exercise(lambda name: LESSONS[name].checks)
VARIANTS = first_of_each_exercise(also_right)


def run_cell(source: str, namespace: dict, name: str) -> None:
    """Run a cell as a notebook does, so that tracebacks and the ranks' reports can show its lines."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


@functools.cache
def namespace_with_solutions(lesson: str) -> dict:
    """A kernel's namespace after the lesson's first code cell and all solutions."""
    namespace = {"__name__": "__main__"}
    first = next(cell for cell in LESSONS[lesson].cells if cell.kind == "code")
    for cell in [first, *(cell for cell in LESSONS[lesson].cells if cell.exercise)]:
        run_cell(cell.source, namespace, f"<{lesson} line {cell.line}>")
    return namespace


def answer(lesson: str, exercise: str, change=lambda source: source):
    """The exercise's function, from its cell as `change` leaves it; all other exercises are solved."""
    namespace = dict(namespace_with_solutions(lesson))
    run_cell(change(LESSONS[lesson].exercises[exercise].source), namespace, f"<{lesson} {exercise}>")
    return namespace[LESSONS[lesson].exercises[exercise].function]


def judges_of(lesson: str, check) -> list:
    """The visible check, and the hidden test if there is one."""
    hidden = hidden_tests_for(lesson)
    return [checks_for(lesson)] + [hidden] * ((check.exercise, check.judges) in hidden.registered)


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_rule_is_kept(lesson):
    assert not broken_rules(LESSONS[lesson])


@pytest.mark.parametrize("lesson, check", CHECKS)
def test_a_blank_answer_fails_with_the_message_that_nothing_is_written(lesson, check):
    for judge in judges_of(lesson, check):
        with pytest.raises(CheckFailed, match="Not written yet") as failed:
            judge(answer(lesson, check.exercise, clear_solution), judges=check.judges)
        assert "Traceback" not in str(failed.value)


@pytest.mark.parametrize("lesson, mutant", MUTANTS)
def test_a_wrong_answer_is_caught(lesson, mutant):
    wrong = answer(lesson, mutant.exercise, mutant.apply)
    if mutant.hidden:
        checks_for(lesson)(wrong, judges=mutant.caught_by)
    judge = hidden_tests_for(lesson) if mutant.hidden else checks_for(lesson)
    with pytest.raises(CheckFailed, match=re.escape(mutant.says)) as failed:
        judge(wrong, judges=mutant.caught_by)
    first_line = str(failed.value).splitlines()[0]
    assert first_line.startswith(f"{mutant.exercise} · {mutant.caught_by} ")
    assert first_line.endswith("not passed")
    if mutant.hidden:  # its text reaches students: it must not give away what is expected
        assert "hidden test" in first_line
        assert not re.search(r"expected [\[\d(-]", str(failed.value))


@pytest.mark.parametrize("hidden", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["visible", "hidden"])
@pytest.mark.parametrize("lesson, variant", VARIANTS)
def test_a_correct_answer_in_a_different_form_passes(lesson, variant, hidden):
    """The hidden tests are slower and judge by the same rules, so they only run in `make thorough`."""
    for check in LESSONS[lesson].checks:
        if check.exercise == variant.exercise:
            for judge in judges_of(lesson, check)[hidden:][:1]:
                judge(answer(lesson, variant.exercise, variant.apply), judges=check.judges)
