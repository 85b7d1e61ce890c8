"""grader/authoring/records.py: what hidden oracles say of the visible cases is written down, and kept up to date."""

import json

import pytest

from grader.authoring.best_scores import best_scores_drift
from grader.authoring.check_files import checks_file
from grader.authoring.lesson import BuildError, find_lessons, read_lesson
from grader.authoring.records import record_drift, record_file, write_record
from grader.authoring.workbench import forget
from tests.grader.authoring.tiny_lesson import make_course
from utils.checks.frozen_cases import POINTS

HIDDEN = """
from utils.checks.oracles import Case, oracle, vary

@oracle("add-one", values=[(5,)])
def hidden_add_one(draws, number):
    return Case([[number]], right=number + STEP, mistakes={"the number itself": number})

FROZEN = (vary(hidden_add_one, values=[(1,), (2,)]),)
"""


@pytest.fixture
def lesson(tmp_path):
    return read_lesson(make_course(tmp_path) / "solutions/01_tiny/lesson_01.py")


def hide(lesson, text: str) -> None:
    checks_file(lesson).write_text(text)
    forget(lesson)


@pytest.mark.parametrize("path", find_lessons(), ids=lambda path: path.parent.name)
def test_the_records_are_what_the_hidden_oracles_say(path):
    assert list(record_drift(read_lesson(path))) == []


@pytest.mark.parametrize("path", find_lessons(), ids=lambda path: path.parent.name)
def test_each_challenge_has_a_best_known_score_at_par_or_better(path):
    one = read_lesson(path)
    assert list(best_scores_drift(one)) == []


def test_a_record_is_written_once_and_follows_its_oracle(lesson):
    hide(lesson, HIDDEN.replace("STEP", "1"))
    assert write_record(lesson)
    assert '"right": 3' in record_file(lesson).read_text()
    assert not write_record(lesson)
    hide(lesson, HIDDEN.replace("STEP", "2"))
    [drift] = record_drift(lesson)
    files = "solutions/01_tiny/lesson_01.py and checks_01.py"
    assert drift == f"solutions/01_tiny/frozen_cases.json is not what {files} say: run `make build`"
    assert write_record(lesson)
    assert '"right": 4' in record_file(lesson).read_text()
    hide(lesson, "")
    assert write_record(lesson)
    assert json.loads(record_file(lesson).read_text()) == {POINTS: {"add-one": {"values": 1.5, "types": 2}}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HIDDEN, "checks_01.py:6: NameError: name 'STEP' is not defined"),
        (
            HIDDEN.replace("number + STEP", "{number}"),
            "add-one can't be recorded: it holds a set, which is not plain data",
        ),
    ],
)
def test_a_case_that_can_not_be_recorded_is_a_problem_with_its_line(lesson, text, says):
    hide(lesson, text)
    with pytest.raises(BuildError, match="solutions/01_tiny/checks_01.py") as error:
        write_record(lesson)
    assert says in str(error.value)
