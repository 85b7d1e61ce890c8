"""A question that a person grades: from the lesson's source to both notebooks, its points and minutes in all counts."""

import nbformat
import pytest

from grader.authoring import build
from grader.authoring.facts import minutes, row, shown_cells
from grader.authoring.lesson import BuildError, read_lesson
from grader.authoring.release import with_solutions
from grader.authoring.rules import headings
from tests.all_lessons import LESSONS
from tests.grader.authoring.tiny_lesson import TINY, make_course, write_lesson

ESSAY = """
# %% [markdown]
# ## In words
# Why not two more?

# %% [markdown] essay="why-one" points=3 minutes=10
# ### BEGIN SOLUTION
# Because one is enough.
#
# **Rubric**
#
# - 1 point: says because
# - 2 points: says enough
# ### END SOLUTION
"""


def read(folder, text):
    return read_lesson(write_lesson(make_course(folder), text))


def test_its_points_and_minutes_count(tmp_path):
    lesson = read(tmp_path, TINY + ESSAY)
    assert (lesson.points, lesson.essays["why-one"].points) == (6.5, 3)
    assert row(lesson).endswith("| 20 min | 1 | 6.5 |") and minutes(lesson) == 20
    shown = shown_cells(lesson)[-2].source
    assert shown.startswith("## In words\n`why-one` · about 10 minutes · 3 points, graded by a person\n\nWhy not")
    assert list(headings(lesson)) == []


def test_a_person_grades_it_and_students_do_not_get_the_answer(tmp_path):
    lesson = read(tmp_path, TINY + ESSAY)
    notebook = build.notebook_of(lesson)
    about = notebook.cells[-1].metadata.nbgrader
    assert (about.grade, about.solution, about.locked, about.points) == (True, True, False, 3)
    released = nbformat.reads(build.release_of(lesson, notebook).decode(), as_version=4)
    assert (released.cells[-1].id, released.cells[-1].source) == ("why-one", "YOUR ANSWER HERE")
    study = nbformat.reads(with_solutions(nbformat.writes(released).encode(), lesson).decode(), as_version=4)
    assert study.cells[-1].source.startswith("<details>") and "- 2 points: says enough" in study.cells[-1].source


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("2 points: says", "1 point: says", "its points are 2 of 3"),
        ("# ### BEGIN SOLUTION\n", "# A question.\n# ### BEGIN SOLUTION\n", "holds BEGIN and END SOLUTION alone"),
        ("[markdown] essay", "essay", "an essay is a markdown cell of its own"),
        ("why-one", "add-one", "the name 'add-one' is taken"),
        (" points=3", "", "points are missing"),
        ("minutes=10", "minutes=100", "minutes=100 is not between 5 and 20"),
        ("minutes=10", "minutes=10 difficulty=2", "difficulty= belongs to an exercise"),
    ],
)
def test_an_essay_that_is_malformed_is_refused(tmp_path, old, new, why):
    assert old in ESSAY
    with pytest.raises(BuildError, match=why):
        read(tmp_path, TINY + ESSAY.replace(old, new, 1))


def test_an_essay_has_a_heading_of_its_own(tmp_path):
    lesson = read(tmp_path, TINY + ESSAY.replace("## In words\n# ", ""))
    assert [problem.text for problem in headings(lesson)] == [
        "essay 'why-one' has no heading: above it, start a markdown cell with '## ' and a noun phrase"
    ]


def test_three_lessons_have_one():
    assert len([lesson for lesson in LESSONS.values() if lesson.essays]) >= 3
