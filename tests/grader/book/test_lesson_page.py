"""grader/book/lesson_page.py: what of a lesson stands on its page, and which outputs start closed."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from grader.authoring.build import notebook_of
from grader.authoring.lesson import BuildError, read_lesson
from grader.authoring.markers import clear_solution
from grader.book.lesson_page import PREDICT_FIRST, YOUR_CODE_FIRST, closed_outputs, lesson_page, nest_parts

LESSON = '''\
# %% [markdown] question="What is twice a number?"
# # Doubling
# *you need: nothing.*
#
# A lesson of one exercise.

# %%
print("given")

# %% [markdown]
# # Part 1 · Twice
# ## Double it

# %% exercise="double-it" difficulty=1 minutes=5
def double_it(left, right):
    """Return twice the sum."""
    ### BEGIN SOLUTION
    total = left + right - 1
    return (left - 1) / total
    ### END SOLUTION

# %% check="double-it" judges="values" points=1
check(double_it, judges="values")

# %%
double_it("one", 2)
'''
REPORT = """\
TypeError: no
  In[4], line 3, in double_it
      total = left + right - 1
  In[9], line 1: return (left - 1) / total"""


@pytest.fixture
def lesson(tmp_path):
    source = tmp_path / "solutions" / "01_doubling" / "lesson_01.py"
    source.parent.mkdir(parents=True)
    source.write_text(LESSON)
    source.with_name("checks_01.py").write_text("")
    return read_lesson(source)


@pytest.fixture
def page(lesson):
    return lesson_page(lesson, *notebooks(lesson), links="<p>links</p>")


def notebooks(lesson):
    """The students' notebook and the executed one."""
    released, executed = notebook_of(lesson), notebook_of(lesson)
    for cell in released.cells:
        cell.source = clear_solution(cell.source)
    for cell in executed.cells:
        if cell.cell_type == "code":
            cell.outputs = [new_output("stream", text=f"output of {cell.id}\n")]
    executed.cells[-1].outputs.append(new_output("error", traceback=REPORT.split("\n")))
    return released, executed


def given(source):
    return new_code_cell(source)


def exercise(source):
    return new_code_cell(source, metadata={"nbgrader": {"solution": True, "grade": False}})


def check(source):
    return new_code_cell(source, metadata={"nbgrader": {"solution": False, "grade": True}})


def closed(*cells):
    """What is said on the closed output of each code cell; "" on an open one."""
    said = closed_outputs(list(cells))
    return [said.get(cell.id, "") for cell in cells if cell.cell_type == "code"]


def test_exercises_are_empty_and_only_given_cells_have_outputs(page):
    shown = {tuple(cell.metadata.tags): cell for cell in page.cells if cell.cell_type == "code"}
    assert "raise NotImplementedError()" in shown["exercise",].source and "total" not in shown["exercise",].source
    assert shown["exercise",].outputs == shown["check",].outputs == []
    assert shown[()].outputs[0].text.startswith("output of code-")
    assert shown["hide-output",].metadata.mystnb.code_prompt_show == YOUR_CODE_FIRST


def test_a_report_does_not_quote_lines_of_the_answer(page):
    _, report = page.cells[-1].outputs
    assert report.traceback == [
        "TypeError: no",
        "  In[4], line 3, in double_it",
        "      (a line of your code)",
        "  In[9], line 1: (a line of your code)",
    ]


def test_the_page_has_one_title_with_the_lessons_number_and_the_links_below(page):
    assert page.cells[0].source == (
        "# 01 · Doubling\n*about 10 min · 1 exercise · 1 point · you need: nothing.*\n\n<p>links</p>\n\n"
        "A lesson of one exercise."
    )
    part = next(cell for cell in page.cells if "Part 1" in cell.source)
    assert part.source == "## Part 1 · Twice\n### Double it"


def test_headings_in_code_stay_as_they_are():
    cells = [new_markdown_cell("## Why"), new_markdown_cell("# Part 1\n```\n# a comment\n```\n## Text")]
    nest_parts(cells)
    assert [cell.source for cell in cells] == ["## Why", "## Part 1\n```\n# a comment\n```\n### Text"]


def test_notebooks_that_differ_are_reported(lesson):
    released, executed = notebooks(lesson)
    executed.cells = executed.cells[:-1]
    with pytest.raises(BuildError, match="the two notebooks of 01_doubling differ: run `make build`"):
        lesson_page(lesson, released, executed, links="")


def test_outputs_to_predict_are_closed():
    ask, text = new_markdown_cell("Both send. **Predict** what happens."), new_markdown_cell("So it is.")
    hint = new_markdown_cell("<details><summary>Hint</summary>\n\nThink.\n</details>")
    answered = new_markdown_cell("**Predict**.\n<details><summary>Check your prediction</summary>\n\n4\n</details>")
    assert closed(given("1"), ask, given("2"), hint, given("3"), text, given("4")) == [
        "", PREDICT_FIRST, PREDICT_FIRST, "",
    ]  # fmt: skip
    assert closed(answered, given("1")) == [""]


def test_outputs_that_need_the_students_code_are_closed():
    assert closed(
        given("x = 1"),
        exercise("def f():\n    raise NotImplementedError()"),
        check("check(f)"),
        given("def program(rank):\n    return f()\nrun = spawn(program, 2)"),
        given("run.timeline()"),
        given("x"),
        given("run = spawn(print, 2)"),
        given("run.timeline()"),
    ) == ["", "", "", YOUR_CODE_FIRST, YOUR_CODE_FIRST, "", "", ""]


def test_a_notebook_of_text_alone_has_nothing_to_close():
    assert closed_outputs(new_notebook(cells=[new_markdown_cell("**Predict**")]).cells) == {}
