"""Extra credit and the class's board, from the check cell to the pages, with a stand-in judge."""

import csv
import re

import pytest
from bs4 import BeautifulSoup
from nbgrader.api import Gradebook

from grader.classroom.grades import read_grades, table
from grader.judging.verdict import Score
from grader.pages.board import board, made_up_name
from tests.stand_in_grader import grader, released_course
from tests.stand_in_judge import earning
from tests.tiny_course import LESSON, cell, hand_in, page

FAST = 'board_name = ""\n\ndef fast(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION'
CHECK = cell('check(fast, judges="score", extra_credit=3)', "fast-score", grade=True, locked=True, points=0)
EARNED = {"ada": (2, 3, 1, 3), "bo": (2, 3, 1, 0), "cy": (0, 0, 0, 3), "di": (2, 3, 1, 3)}
SIGNED = {"ada": "Ada <b>L</b>", "bo": "Bo", "cy": "", "di": "Di"}


def text_of(html: str) -> str:
    return " ".join(BeautifulSoup(html, "html.parser").body.get_text(" ").split())


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = released_course(tmp_path_factory.mktemp("course"), cell(FAST, "fast", solution=True), CHECK)
    for student, points in EARNED.items():
        fast = f"board_name = '{SIGNED[student]}'  # me\n\ndef fast(x):\n    return x"
        hand_in(course.root, student, **earning(*points), fast=fast)
    for _ in range(2):  # the second time, all are found in the gradebook as they are
        grader("grade", "--course", course.root)
    return course


def test_nbgraders_maximum_does_not_contain_extra_credit(course):
    with Gradebook(course.directories.db_url) as gradebook:
        assert gradebook.find_assignment(LESSON).max_score == 6
        scores = {one.student.id: (one.score, one.max_score) for one in gradebook.assignment_submissions(LESSON)}
        [grade] = [one for one in gradebook.find_submission(LESSON, "ada").notebooks[0].grades if one.max_score == 0]
        assert (grade.auto_score, grade.extra_credit) == (0, 3)
    assert scores == {"ada": (9, 6), "bo": (6, 6), "cy": (3, 6), "di": (9, 6)}


def test_a_persons_decision_about_a_challenge_stays(course):
    with course.gradebook() as gradebook:
        grade = gradebook.find_grade("fast-score", LESSON, LESSON, "di")
        grade.manual_score, grade.extra_credit = 0.0, 1.0
        gradebook.db.commit()
    grader("grade", "--course", course.root, "--student", "di", "--regrade")
    assert read_grades(course, LESSON).earned["di"]["fast-score"] == 1
    with course.gradebook() as gradebook:  # as it was
        grade = gradebook.find_grade("fast-score", LESSON, LESSON, "di")
        grade.manual_score, grade.extra_credit = None, 3.0
        gradebook.db.commit()


def test_grades_hold_it_and_totals_may_exceed_the_maximum(course):
    with (course.root / "grades.csv").open() as file:
        ada = next(csv.DictReader(file))
    assert (ada["student"], ada[f"{LESSON}/fast-score"], ada[f"{LESSON}/total"]) == ("ada", "3", "9")
    lines = table(read_grades(course, LESSON)).splitlines()
    assert any(line.endswith("fast (extra credit, not in the total's maximum)") for line in lines)
    [ada, of] = [line.split() for line in lines if line.startswith(("ada", "of"))]
    assert ada[-1] == "9" and of[-1] == "6" and sorted(ada[1:-1]) == sorted(of[1:-1]) == ["2", "3", "4"]


def test_feedback_says_extra_credit(course):
    text = text_of(page(course.root, "ada"))
    assert "9 of 6 points 3 of them extra credit" in text
    assert "fast 3 / 3 extra credit score" in text and "3 of 3 points of extra credit" in text
    assert "extra credit" in text_of(page(course.root, "bo")) and "of them" not in text_of(page(course.root, "bo"))


def test_the_board_has_those_who_reached_par_by_a_name_of_their_choice(course):
    html = (course.root / "report.html").read_text()
    rows = BeautifulSoup(html, "html.parser").select("table.board tbody tr")
    with course.gradebook() as gradebook:
        made_up = made_up_name(gradebook.find_submission(LESSON, "cy").id)
    assert [[cell.text.strip() for cell in row.find_all("td")[:3]] for row in rows] == [
        ["1", "Ada <b>L</b>", "100 µs"],
        ["1", "Di", "100 µs"],
        ["1", made_up, "100 µs"],
    ], "and neither bo, who did not, nor anybody by the name in the gradebook"
    assert "3 of 4 have reached par; half of them came 50 % of the way to the limit." in text_of(html)
    assert f"On the class's board you are {made_up} ." in text_of(page(course.root, "cy"))
    assert "On the class's board you are Ada <b>L</b> ." in text_of(page(course.root, "ada"))
    assert "board you are" not in text_of(page(course.root, "bo"))
    assert "of 6 points" in text_of(html)


def test_made_up_names_are_many_and_stay():
    names = {made_up_name(f"{number}") for number in range(100)}
    assert len(names) > 97 and all(re.fullmatch("[a-z]+ [a-z]+ \\d+", name) for name in names)
    assert made_up_name("7") == made_up_name("7")


def test_equal_scores_share_a_place():
    scores = {"a": 3.0, "b": 1.0, "": 2.0000001, "d": 2.0}
    rows = board([(name, Score(shown=f"{value:.3g}", value=value, share=0.5)) for name, value in scores.items()])
    assert [(row.place, row.name) for row in rows] == [(1, "b"), (2, "d"), (2, "anonymous"), (4, "a")]
