"""nbgrader's exchange from the command line: release, list, fetch, submit, collect, grade, and return the feedback."""

from __future__ import annotations

import csv
from datetime import datetime

import nbformat
import pytest
from nbgrader.api import Gradebook

from grader.classroom.course import Course
from grader.classroom.lms import hand_back
from tests.tiny_course import LESSON, RIGHT, make_course, nbgrader, with_answers

pytestmark = [pytest.mark.long, pytest.mark.sandbox, pytest.mark.thorough]  # the sample class goes this way, too
COURSE = "distributed-training"


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    """A course, an exchange, and a student's own folder without any configuration."""
    root = tmp_path_factory.mktemp("exchange")
    course = make_course(root / "course")
    for name in ("exchange", "ada"):
        (root / name).mkdir()
    (root / "exchange").chmod(0o777)
    return course, root / "ada", f"--Exchange.root={root / 'exchange'}", f"--Exchange.cache={root / 'cache'}"


def test_release_list_fetch_submit_collect_autograde_export(road):
    course, home, exchange, cache = road
    nbgrader(course, "generate_assignment", LESSON)
    nbgrader(course, "release_assignment", LESSON, exchange)
    assert LESSON in nbgrader(home, "list", f"--course={COURSE}", exchange, cache)
    nbgrader(home, "fetch_assignment", LESSON, f"--course={COURSE}", exchange, cache)
    assert [path.name for path in (home / LESSON).iterdir()] == [f"{LESSON}.ipynb"]

    answer(home, "def double(x):\n    return x")
    (home / LESSON / "utils.py").write_text("SHADOW = True")
    submit = ("submit", LESSON, f"--course={COURSE}", "--student=ada", exchange, cache)
    nbgrader(home, *submit)
    nbgrader(course, "collect", LESSON, exchange, "--ExchangeCollect.check_owner=False")
    submitted = course / "submitted" / "ada" / LESSON
    assert {path.name for path in submitted.iterdir()} == {f"{LESSON}.ipynb", "timestamp.txt", "submission_secret.txt"}
    nbgrader(course, "autograde", LESSON)
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        assert gradebook.find_submission(LESSON, "ada").score == 4
        gradebook.update_or_create_assignment(LESSON, duedate=datetime(2020, 1, 1))

    answer(home, "def double(x):\n    return 2 * x")
    nbgrader(home, *submit)
    nbgrader(course, "collect", LESSON, "--update", exchange, "--ExchangeCollect.check_owner=False")
    # Without --force: this one is newer than the graded one. It is also years late.
    nbgrader(course, "autograde", LESSON, "--LateSubmissionPlugin.penalty_method=zero")
    nbgrader(course, "export", "--to=grades.csv")
    with (course / "grades.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert row["student_id"] == "ada"
    assert [float(row[name]) for name in ("raw_score", "late_submission_penalty", "score")] == [6, 6, 0]

    nbgrader(course, "generate_feedback", LESSON)
    opened = Course.at(course)
    opened.config.Exchange.root = exchange.partition("=")[2]
    assert hand_back(opened, LESSON).endswith("\nreleased to the exchange: 1")
    nbgrader(home, "fetch_feedback", LESSON, f"--course={COURSE}", "--student=ada", exchange, cache)
    [page] = (home / LESSON / "feedback").rglob("*.html")
    assert "Handing in late costs 6 of them." in page.read_text()


def answer(home, double: str) -> None:
    path = home / LESSON / f"{LESSON}.ipynb"
    nbformat.write(with_answers(nbformat.read(path, as_version=4), {**RIGHT, "double": double}), path)
