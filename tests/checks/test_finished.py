"""utils/checks/finished.py: the picture of a finished lesson, and that it comes no earlier."""

import re
from base64 import b64decode
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.checks.test_progress import DONE, a_lesson, answer, progress
from tests.figures.test_figures import call, run_of
from utils.checks.finished import finished
from utils.checks.scores import VIRTUAL_TIME, Score
from utils.events.event import Region
from utils.kit import predictions

SCORE = Score(200e-6, par=300e-6, limit=100e-6, measure=VIRTUAL_TIME, best=150e-6)


@pytest.fixture(autouse=True)
def no_predictions_yet(monkeypatch):
    monkeypatch.setattr(predictions, "made", {})


@pytest.fixture
def check(tmp_path):
    return a_lesson(tmp_path)


def words(html):
    sheet = ElementTree.fromstring(b64decode(re.search(r"base64,([^\"]+)", html)[1]))
    return [one.text for one in sheet.iter("{http://www.w3.org/2000/svg}text")]


def a_run():
    return run_of([replace(call(0, 0, "send", 0, 1), where="a.py:7")], [Region(0, "forward", 0, 1)])


def test_it_says_what_was_reached():
    for question, guess in {"one": 1, "two": 3, "three": ...}.items():
        predictions.predict(question, guess)
        predictions.reveal(question, 1)
    html = finished("02_all_reduce", progress(*DONE), {"fastest": SCORE}, {"sum": a_run()})
    said = words(html)
    assert said[:7] == [
        "✓ Lesson 02 · all reduce",
        "6.5 of 6.5",
        "points",
        "+3",
        "extra credit",
        "1 of 2",
        "predictions right",
    ]
    assert said[7:11] == [
        "fastest: 200 µs of virtual time",
        "par 300 µs",
        "limit 100 µs",
        "best known ◆ 150 µs: 66 % of the way to it",
    ]
    assert "sum, my run" in said and "rank 0" in said


def test_what_is_not_known_is_left_out():
    said = words(finished("02_all_reduce", progress(*DONE[:3]), {}, {}))
    assert said == ["✓ Lesson 02 · all reduce", "6.5 of 6.5", "points"]
    assert not any(
        "best" in one for one in words(finished("x_y", progress(*DONE), {"fastest": replace(SCORE, best=None)}, {}))
    )


def test_the_same_lesson_gives_the_same_bytes_without_what_is_for_scripts():
    htmls = {finished("02_all_reduce", progress(*DONE), {"fastest": SCORE}, {"sum": a_run()}) for _ in range(2)}
    (html,) = htmls
    assert b"<metadata" not in b64decode(re.search(r"base64,([^\"]+)", html)[1]) and "<script" not in html


def test_a_summary_has_it_once_all_but_the_challenge_has_passed(check):
    check.progress = progress(*DONE[1:3])
    assert check.summary().picture == "" and "<img" not in check.summary()._repr_html_()
    check(answer(3))
    summary = check.summary()
    assert summary.picture in summary._repr_html_() and words(summary.picture)[1] == "6.5 of 6.5"
    assert "Lesson 77" not in repr(summary) and "2 of 3 exercises done" in repr(summary)
    with pytest.raises(AssertionError):
        check(answer(4))
    assert check.summary().picture == ""


def test_nothing_is_finished_in_a_lesson_that_is_not_built(check):
    check.progress = type(check.progress)({})
    assert check.summary().picture == ""
