"""An instructor's day in a real browser: release, collect, grade a small class, formgrader, feedback, report, export.

`SCREENSHOTS=/some/folder` keeps a picture of each step there.
"""

from __future__ import annotations

import csv
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
import pytest
from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeFetchAssignment, ExchangeSubmit
from traitlets.config import Config

from grader.classroom.course import Course
from tests.browser import open_browser, visit
from tests.formgrader import Formgrader, jupyter
from tests.tiny_course import LESSON, RIGHT, WRONG, essay, grader, make_course, with_answers

pytestmark = [pytest.mark.thorough, pytest.mark.long, pytest.mark.sandbox]
LOOP = "\n    ".join(f"parts = parts + [x[{number}:] * 0 + rank // {number + 2}]" for number in range(8))
ODD = f"def total(x, rank, world_size):\n    parts = []\n    {LOOP}\n    dist.all_reduce(x)\n    return x"
DESK = {"width": 1280, "height": 900}
CLASS = {
    "ada": RIGHT,
    "bo": {**RIGHT, "double": WRONG["double"], "total": ODD},
    "cy": {"double": WRONG["double"], "total": ODD.replace("parts", "stuff")},
    "di": WRONG,
    "eve": {},
}


@pytest.fixture
def course(tmp_path):
    """A course with an exchange, a lesson with an essay, a deadline that was yesterday, and names of the students."""
    root = make_course(tmp_path / "course", essay("why", "Why is a ring fair?"))
    (tmp_path / "exchange").mkdir()
    (tmp_path / "exchange").chmod(0o777)
    with (root / "nbgrader_config.py").open("a") as file:
        file.write(f"c.Exchange.root = {str(tmp_path / 'exchange')!r}\n")
        file.write("c.ExchangeCollect.check_owner = False\nc.LateSubmissionPlugin.penalty_method = 'zero'\n")
    with Course.at(root).gradebook() as gradebook:
        yesterday = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=1)
        gradebook.update_or_create_assignment(LESSON, duedate=yesterday)
        gradebook.update_or_create_student("ada", first_name="Ada", last_name="Lovelace", email="ada@example.org")
    return root


def submit(course: Course, home: Path, student: str, answers: dict[str, str]) -> None:
    """What a student does: fetch, edit, submit."""
    home.mkdir()
    config = Config(course.config)
    config.Exchange.assignment_dir, config.Exchange.cache = str(home), str(home / "cache")
    where = CourseDirectory(config=config, root=str(course.root), assignment_id=LESSON, student_id=student)
    ExchangeFetchAssignment(coursedir=where, authenticator=Authenticator(config=config), config=config).start()
    path = home / LESSON / f"{LESSON}.ipynb"
    why = {"why": f"Because every rank sends as much as it receives, says {student}."} if answers else {}
    nbformat.write(with_answers(nbformat.read(path, as_version=4), {**answers, **why}), path)
    ExchangeSubmit(coursedir=where, authenticator=Authenticator(config=config), config=config).start()


def test_an_instructors_day(course, tmp_path):
    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    with open_browser() as browser:
        with (
            jupyter(course) as (address, token),
            visit(browser, address, viewport={"width": 1280, "height": 900}) as seen,
        ):
            formgrader, page = Formgrader(seen, address, token), seen.page

            def picture(name: str) -> None:
                page.screenshot(path=pictures / f"day-{name}.png", full_page=True)

            # Morning: the lesson is made and released.
            row = page.locator("tr", has=page.get_by_text(LESSON, exact=True))
            for button in ("assign", "release"):
                page.goto(f"{address}formgrader/manage_assignments")
                row.locator(f".{button} a").click()
                page.locator(".modal-title", has_text="Success").wait_for()
                picture(button)
            # Students hand in. In the afternoon everything is collected and graded.
            for student, answers in CLASS.items():
                submit(Course.at(course), tmp_path / student, student, answers)
            said = grader("grade", LESSON, "--course", course, "--extension", "ada=7d")
            assert "5 judged" in said and "?  not graded yet: a person has to (4 answers)" in said
            # One essay is graded by hand, with a comment.
            formgrader.open_submission("ada")
            picture("formgrader")
            formgrader.write("#why", "3", "grade")
            formgrader.write("#why-comment", "Fair, but why *fast*?", "comment")
        grader("grade", LESSON, "--course", course)
        with visit(browser, f"{course.as_uri()}/", viewport=DESK) as seen:
            page = seen.page
            page.goto(f"{course.as_uri()}/report.html")
            assert page.get_by_text("3 answers are not graded yet").is_visible()
            pair = page.locator("details.similar")
            assert "bo, cy" in pair.locator("summary").inner_text()
            page.screenshot(path=pictures / "day-report.png", full_page=True)
            pair.locator("summary").click()
            assert pair.get_by_text("stuff = stuff").first.is_visible()
            pair.screenshot(path=pictures / "day-similar.png")
            for student, words in {
                "ada": "Fair, but why",
                "bo": "Where you lost points",
                "eve": "Nothing is written",
            }.items():
                page.goto(f"{course.as_uri()}/feedback/{student}/{LESSON}/{LESSON}.html")
                assert page.get_by_text(words).first.is_visible()
                page.screenshot(path=pictures / f"day-feedback-{student}.png", full_page=True)
            page.set_viewport_size({"width": 390, "height": 800})
            page.screenshot(path=pictures / "day-feedback-phone.png", full_page=True)
            assert (seen.what_ran(), seen.console) == ([], [])
    # Evening: the grades go to Canvas. All but ada, who has more time, are late.
    grader("export", "--format", "canvas", "--course", course)
    with (course / "grades-canvas.csv").open(newline="") as file:
        _, possible, ada, *others = csv.reader(file)
    assert possible[-1] == "10" and ada == ["Lovelace, Ada", "", "", "ada", "", "9"]
    assert [(one[3], one[-1]) for one in others] == [("bo", ""), ("cy", ""), ("di", ""), ("eve", "0")]
    assert re.search(r"^eve,.*,0,0,0$", (course / "grades.csv").read_text(), re.MULTILINE)
