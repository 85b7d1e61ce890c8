"""grader/authoring/messages.py: what students read is stored, and made again only where it can have changed."""

import re
import tempfile

import pytest

from grader.authoring import messages
from grader.authoring.lesson import BuildError, read_lesson
from grader.authoring.messages import message_drift, message_of, read_messages, stable, update_messages
from grader.authoring.trial import Result
from grader.authoring.variants import Mutant
from grader.authoring.workbench import Workbench
from tests.grader.authoring.tiny_lesson import ANSWERS, HIDDEN, JUDGING, TINY, make_judged_course

FILE = "solutions/01_tiny/messages.txt"


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # files change within a second
    return make_judged_course(tmp_path)


def update(course, **how):
    return update_messages([read_lesson(course / "solutions/01_tiny/lesson_01.py")], **how)


def test_the_file_holds_every_message(course):
    assert update(course) == [FILE]
    text = (course / FILE).read_text()
    assert re.fullmatch(
        r"What students read whose answers to 01_tiny are wrong\. Written by `make build`\.\n"
        r"made from [0-9a-f]{12} with Python 3\.\d+\n\n"
        r"---- add-one/adds-two\nadd-one · values +not passed\n  rank 0 returned 3, expected 2\n\n"
        r"---- add-one/adds-nothing\nadd-one · values +not passed\n  rank 0 returned 1, expected 2\n",
        text,
    )
    lesson = read_lesson(course / "solutions/01_tiny/lesson_01.py")
    assert read_messages(lesson)["add-one/adds-two"].endswith("not passed\n  rank 0 returned 3, expected 2")
    assert list(message_drift(lesson)) == []
    assert update(course, force=True) == [] and (course / FILE).read_text() == text, "the same, every time"


@pytest.mark.thorough
def test_all_cores_give_the_same_file(course, monkeypatch):
    update(course)
    text = (course / FILE).read_text()
    (course / FILE).unlink()
    monkeypatch.setattr(messages, "FEW", 0)
    assert update(course) == [FILE]
    assert (course / FILE).read_text() == text


CHANGES = {
    "nothing": ("solutions/01_tiny/lesson_01.py", "", False),
    "the text of the lesson": ("solutions/01_tiny/lesson_01.py", TINY.replace("A lesson of", "This lesson has"), False),
    "a solution": ("solutions/01_tiny/lesson_01.py", TINY.replace("return x + 1\n", "return 1 + x\n"), True),
    "a check": ("solutions/01_tiny/checks_01.py", JUDGING.replace("[1]", "[1] "), True),
    "a hidden test": ("solutions/01_tiny/checks_01.py", JUDGING + HIDDEN.replace("[5]", "[5] "), True),
    "a wrong answer": ("solutions/01_tiny/answers_01.py", ANSWERS.replace("2 + x", "2 + x "), True),
    "what all lessons use": ("utils/text/tables.py", "WIDTH = 78", True),
    "the checks of another lesson": ("solutions/02_other/checks_02.py", "", False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_answers_are_judged_again_only_if_something_has_changed(course, monkeypatch, change):
    update(course)
    judged = []
    monkeypatch.setattr(messages, "judged", lambda work: judged.append(work) or Result())
    monkeypatch.setattr(messages, "shared_files", messages.shared_files.__wrapped__)
    file, text, again = CHANGES[change]
    path = course / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if text or not path.exists():
        path.write_text(text)
    update(course)
    assert len(judged) == (2 if again else 0)


def test_a_wrong_answer_that_is_not_caught_keeps_the_old_file(course):
    update(course)
    before = (course / FILE).read_text()
    (course / "solutions/01_tiny/answers_01.py").write_text(ANSWERS.replace("return 2 + x", "return sum((1, x))"))
    with pytest.raises(BuildError) as caught:
        update(course)
    told = "add-one/adds-two: nothing catches it; see python -m grader try 01_tiny add-one"
    assert str(caught.value) == f"solutions/01_tiny/answers_01.py:6: {told}"
    assert (course / FILE).read_text() == before


RUNS = "    [got] = run(1, [1]).results\n    expect(type(got)"


@pytest.mark.parametrize(
    "file, old, new, told",
    [
        ("answers_01.py", "sum((x, 1))", "x + 1.0", "answers_01.py:8: add-one/by-sum: the check of values refuses it"),
        ("checks_01.py", RUNS, "    return", "add-one/blank: the check of types passes it"),
    ],
)
def test_a_right_answer_that_is_refused_and_a_blank_that_is_not_stop_the_build(course, file, old, new, told):
    path = course / "solutions/01_tiny" / file
    path.write_text(path.read_text().replace(old, f"{new}  # "))
    with pytest.raises(BuildError) as caught:
        update(course)
    assert f"{told}; see python -m grader try 01_tiny add-one" in str(caught.value)
    assert not (course / FILE).exists()


def test_a_file_that_lacks_an_answer_or_has_another_is_out_of_date(course):
    [said] = message_drift(read_lesson(course / "solutions/01_tiny/lesson_01.py"))
    assert said == f"{FILE} is missing: run `make build`"
    update(course)
    [two, nothing] = [f"{line}\n" for line in ANSWERS.split("\n") if line.startswith("wrong(")]
    for text, what in (
        (f'{ANSWERS}wrong("new", "")', "it lacks add-one/new"),
        (ANSWERS.replace(two, ""), "there is no add-one/adds-two any more"),
        (ANSWERS.replace(two, "").replace(nothing, nothing + two), "the answers are in another order"),
    ):
        (course / "solutions/01_tiny/answers_01.py").write_text(text)
        [said] = message_drift(read_lesson(course / "solutions/01_tiny/lesson_01.py"))
        assert said == f"{FILE} is out of date, {what}: run `make build`"


# ---- what differs from run to run ------------------------------------------------------------------------------------


FOLDER = f"{tempfile.gettempdir()}/x-1y"
FIRST = "add-one · values  not passed\n"
UNSTABLE = {
    "ports": ("  ([127.0.0.1]:21410$0 <--> [none])   ", "  ([127.0.0.1]:PORT$0 <--> [none])"),
    "no address": ("  ([127.0.0.1]:21410$0 <--> [69.0.0.0])", "  ([127.0.0.1]:PORT$0 <--> [none])"),
    "folders": (f"  '0/', '{FOLDER}/meeting-0', line 3", "  '0/', 'FOLDER', line 3"),
    "libraries": ("  /home/a/.venv/lib/python3.11/site-packages/torch/x.py, line 5", "  FOLDER/torch/x.py, line 5"),
    "addresses": (
        "  that its rank is <function get_rank at 0x7f0fa201e700>",
        "  that its rank is <function get_rank at ADDRESS>",
    ),
    "who failed": (
        "  ranks 0, 1 and 3 raised KeyError: 0\n    a cell, line 2\n  \n  (Rank 2 was waiting in recv from 1.)\n  Why?",
        "  RANKS raised KeyError: 0\n    a cell, line 2\n  Why?",
    ),
    "equal failures": (
        f"  ranks 0 and 2 raised KeyError: '{FOLDER}/0-0'\n    line 2\n\n"
        f"  rank 1 raised KeyError: '{FOLDER}/0-1'\n    line 2\n  Why?",
        "  RANKS raised KeyError: 'FOLDER'\n    line 2\n  Why?",
    ),
    "different failures": (
        "  rank 1 raised KeyError: 1\n    line 2\n\n  rank 0 raised KeyError: 0\n    line 2\n\n"
        "  rank 2 raised KeyError: 1\n    line 2\n  Why?",
        "  RANKS raised KeyError: 0\n    line 2\n\n  RANKS raised KeyError: 1\n    line 2\n  Why?",
    ),
    "who died": ("  rank 3 was killed by SIGABRT (a C++ library).\n    the last words: 24 vs 16", "  ..."),
}


@pytest.mark.parametrize("what", UNSTABLE)
def test_only_the_stable_part_is_stored(what):
    words, stored = UNSTABLE[what]
    assert stable(FIRST + words, varies=False) == FIRST + stored
    assert stable(FIRST + words, varies=True) == f"{FIRST}  ..."


def test_what_is_stable_is_stored_as_it_is():
    words = f"{FIRST}  rank 2 returned [8 0x1 9], expected [1 2]\n\n  ranks 0 and 1 have finished (Rank 3 has not)"
    assert stable(words, varies=False) == words


@pytest.mark.parametrize(("stored", "runs"), [("", 1), ("the first", 1), ("the second", 2), ("another", 3)])
def test_an_answer_in_which_ranks_race_is_judged_again(course, monkeypatch, stored, runs):
    from grader.authoring import trial

    said = iter(["the first", "the second", "the third"])
    monkeypatch.setattr(trial, "judge", lambda *_: trial.Result(next(said)))
    mutant = Mutant("add-one", "races", "", "values", False)
    result = message_of(Workbench.load("01_tiny", course), mutant, stored)
    assert result.words == ["the first", "the second", "the third"][runs - 1]
