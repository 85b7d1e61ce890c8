"""Every lesson: a blank fails every check, each wrong answer is caught where it says, in the words that are stored in
messages.txt, and a right one in another form is not.

That the solution passes is seen in its notebook, which tests/test_notebooks.py runs, hidden tests included.

Nothing here names a lesson: what is tested is read from the rooms in solutions/.
"""

import functools
import random
from operator import attrgetter

import pytest

from grader.authoring.messages import has_changed, made_here, message_drift, message_of, read_messages
from grader.authoring.trial import Candidate, Result, judge
from grader.authoring.workbench import Workbench
from tests.all_lessons import LESSONS, also_right, mutants_of
from utils.checks.inputs import Draws
from utils.checks.oracles import Oracle
from utils.checks.rooms import load_checks

pytestmark = pytest.mark.long(minutes=9)
bench = functools.cache(Workbench.load)
messages = functools.cache(lambda lesson: read_messages(LESSONS[lesson]))


def first_of_each(part_of, ones_of) -> list:
    """(lesson, one) for each of `ones_of(lesson)`.

    `make test` runs one of each part of a lesson, or just one if `make build` has judged the lesson's present answers.
    """
    found, seen = [], set()
    for name in LESSONS:
        changed = has_changed(LESSONS[name])
        for one in ones_of(name):
            part = (name, part_of(one) if changed else "")
            marks = pytest.mark.thorough if part in seen else ()
            found.append(pytest.param(name, one, id=f"{name}-{getattr(one, 'id', one)}", marks=marks))
            seen.add(part)
    return found


CHECKS = first_of_each(attrgetter("exercise"), lambda name: LESSONS[name].checks)
VARIANTS = first_of_each(attrgetter("exercise"), also_right)
MUTANTS = first_of_each(str, mutants_of)


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_stored_messages_are_those_of_the_wrong_answers(lesson):
    assert not list(message_drift(LESSONS[lesson]))


@pytest.mark.thorough
@pytest.mark.parametrize("lesson", LESSONS)
def test_every_case_can_be_drawn_with_any_salt(lesson):
    """Or a right answer would be refused now and then, on inputs on which what is right can't be computed."""
    salts = [random.Random(attempt).getrandbits(256) for attempt in range(40)]
    for oracle in vars(load_checks(LESSONS[lesson].room)).values():
        for arguments in sum(map(list, oracle.cases.values()), []) if isinstance(oracle, Oracle) else []:
            for salt in salts:
                oracle.case(Draws(salt), arguments)


@pytest.mark.parametrize("lesson, check", CHECKS)
def test_a_blank_answer_fails_with_the_message_that_nothing_is_written(lesson, check):
    ways = [way for way in bench(lesson).ways(check.exercise) if way.judges == check.judges]
    is_as_it_should_be(judge(bench(lesson), Candidate(check.exercise, "blank"), ways))


@pytest.mark.parametrize("lesson, mutant", MUTANTS)
def test_a_wrong_answer_is_caught_in_the_stored_words(lesson, mutant):
    stored = messages(lesson).get(str(mutant), "")
    result = message_of(bench(lesson), mutant, stored)
    is_as_it_should_be(result)
    if made_here(LESSONS[lesson]):
        assert result.words == stored, f"the messages of {lesson} are out of date: run `make build`"


@pytest.mark.parametrize("hidden", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["visible", "hidden"])
@pytest.mark.parametrize("lesson, variant", VARIANTS)
def test_a_correct_answer_in_a_different_form_passes(lesson, variant, hidden):
    """The hidden tests are slower and judge by the same rules, so they only run in `make thorough`."""
    ways = [way for way in bench(lesson).ways(variant.exercise) if way.hidden == hidden]
    is_as_it_should_be(judge(bench(lesson), Candidate(variant.exercise, "right", variant), ways))


def is_as_it_should_be(result: Result) -> None:
    assert not result.problem, f"{result.problem}. {result.advice}\n{result.words}"
