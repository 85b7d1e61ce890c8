"""grader/authoring/facts.py: the lines in notebooks and the table in README.md come from the markers."""

import pytest

from grader.authoring import build
from grader.authoring.execute import code_cells
from grader.authoring.facts import hours, minutes, readme_with, row, shown_cells
from grader.authoring.lesson import BuildError, read_lesson
from tests.grader.authoring.tiny_lesson import TINY, make_course, write_lesson


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course whose notebooks count as executed without a kernel: the table doesn't show what they print."""

    def count(lesson, notebook, *_):
        for number, cell in enumerate(code_cells(notebook), 1):
            cell.execution_count = number

    monkeypatch.setattr(build, "execute", count)
    return make_course(tmp_path)


def read(course, text=TINY):
    return read_lesson(write_lesson(course, text))


def test_a_line_under_the_title_and_one_under_each_heading(course):
    title, _, heading, *_ = shown_cells(read(course))
    assert title.source == (
        "# Tiny\n*about 10 min · 1 exercise · 3.5 points · you need: nothing.*\n\nA lesson of one exercise."
    )
    assert heading.source == "## Add one\ndifficulty ●○○○○ · about 5 minutes · 3.5 points: values 1.5, types 2"


def test_a_heading_in_other_words_has_the_exercises_name_below_it(course):
    heading = shown_cells(read(course, TINY.replace("## Add one", "## The successor of a number")))[2]
    assert heading.source.startswith("## The successor of a number\n`add-one` · difficulty ●○○○○ · about 5 minutes")
    assert not shown_cells(read(course, TINY.replace("## Add one", "## Add: one")))[2].source.count("`")


def test_the_lines_follow_the_markers(course):
    text = TINY.replace("difficulty=1 minutes=5", "difficulty=4 minutes=20").replace("points=1.5", "points=1")
    text = text.replace('judges="types" points=2', 'judges="virtual-time" points=3').replace(
        '"types")', '"virtual-time")'
    )
    title, _, heading, *_ = shown_cells(read(course, text.replace("# ## Add one", "# ## Add one\n#\n# It's easy.")))
    assert "*about 30 min · 1 exercise · 4 points · you need: nothing.*" in title.source
    about = "difficulty ●●●●○ · about 20 minutes · 4 points: values 1, virtual time 3"
    assert heading.source == f"## Add one\n{about}\n\nIt's easy."


def test_text_right_below_the_heading_stays_a_paragraph_of_its_own(course):
    heading = shown_cells(read(course, TINY.replace("# ## Add one", "# ## Add one\n# It's easy.")))[2]
    assert heading.source.endswith("types 2\n\nIt's easy.")


def test_a_heading_far_above_its_exercise(course):
    text = TINY.replace("# ## Add one\n", "# ## Add one\n\n# %%\n1 + 1\n\n# %% [markdown]\n# ### In words\n# Text.\n")
    shown = [cell.source for cell in shown_cells(read(course, text))]
    assert shown[2].startswith("## Add one\ndifficulty") and shown[4] == "### In words\nText."


def test_the_minutes_are_exercises_words_and_predictions_rounded_up(course):
    """5 minutes of exercise; 12 words in Tiny's text; 2 minutes for a prediction; 180 words a minute."""
    title = "# A lesson of one exercise."
    for more, expected in [
        ("", 10),
        (" **Predict** one." * 2, 10),  # 5 + 2 * 2 + a few words
        (" **Predict** one." * 3, 20),  # 5 + 3 * 2 + ...
        (" word" * 880, 10),  # 5 + 892 / 180 = 9.96
        (" word" * 890, 20),  # 5 + 902 / 180 = 10.01
        (" $=$ · -" * 900, 10),  # no words
    ]:
        assert minutes(read(course, TINY.replace(title, title + more))) == expected, more[:20]


@pytest.mark.parametrize(("number", "words"), [(50, "50 min"), (60, "1 h"), (70, "1 h 10 min"), (180, "3 h")])
def test_hours(number, words):
    assert hours(number) == words


def readme_of(*rows):
    table = ["| lesson | question it answers | time | exercises | points |", "| --- | --- | --- | --- | --- |", *rows]
    before, after = "# Course\n\n<!-- lessons: made -->\n", "\n<!-- end of lessons -->\n\nMore.\n"
    return before + "\n".join(table) + after


def test_a_lessons_row_links_to_the_students_notebook(course):
    link = "[01 · Tiny](notebooks/01_tiny/01_tiny.ipynb)"
    assert row(read(course)) == f"| {link} | What is one more? | 10 min | 1 | 3.5 |"


def test_build_writes_the_table_and_only_the_table(course):
    readme = course / "README.md"
    readme.write_text(readme_of("anything"))
    assert build.build(["01_tiny"], root=course) == ["01_tiny", "README.md"]
    assert readme.read_text() == readme_of(row(read(course)))
    readme.write_text(readme_of())
    (drifted,) = build.drift(root=course)
    assert drifted == "README.md's table of lessons is out of date: run `make build`"
    assert build.build(root=course) == ["README.md"]
    assert readme.read_text() == readme_of(row(read(course)))
    assert build.drift(root=course) == [] == build.build(root=course)


def test_building_one_lesson_leaves_the_rows_of_the_others(course):
    """Even of one whose source can't be read at the moment. A build of all lessons drops those of lessons long gone."""
    readme = course / "README.md"
    other = "| [{0} · Other](notebooks/{0}_other/{0}_other.ipynb) | Why? | 3 h | 12 | 40 |".format
    readme.write_text(readme_of(other("00"), other("02")))
    write_lesson(course, "# %% nonsense=", "02_other")
    (drifted,) = [line for line in build.drift(["01_tiny"], root=course) if "README" in line]
    assert drifted == "README.md's table of lessons is out of date: run `make build`"
    build.build(["01_tiny"], root=course)
    assert readme.read_text() == readme_of(other("00"), row(read(course)), other("02"))
    assert build.drift(["01_tiny"], root=course) == []
    (course / "solutions/02_other/lesson_02.py").unlink()
    assert build.build(root=course) == ["README.md"]
    assert readme.read_text() == readme_of(row(read(course)))


def test_a_readme_without_a_place_for_the_table_is_refused(course):
    with pytest.raises(BuildError, match="README.md:1: the table of lessons goes between"):
        readme_with("# Course\n", [read(course)])
