"""grader/authoring/lesson.py and grader/authoring/build.py, on tiny lessons in a folder of their own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.authoring import build, execute
from grader.authoring.lesson import BuildError, find_lessons, read_lesson
from grader.authoring.markers import clear_solution, replace_solution, solution_lines
from tests.grader.authoring.tiny_lesson import ROOT, TINY, make_course, make_judge, write_lesson

pytestmark = pytest.mark.long

MESSAGES = "solutions/01_tiny/messages.txt"


@pytest.fixture
def course(tmp_path):
    return make_course(tmp_path)


def problems(tmp_path, text, name="01_tiny"):
    """The problems of a lesson, [(line, text)]."""
    (tmp_path / "solutions").mkdir(exist_ok=True)
    path = write_lesson(tmp_path, text, name)
    with pytest.raises(BuildError) as caught:
        read_lesson(path)
    for problem in caught.value.problems:
        assert str(problem).startswith(f"solutions/{name}/lesson_{name[:2]}.py:{problem.line}: ") and "\n" not in str(
            problem
        )
    return [(problem.line, problem.text) for problem in caught.value.problems]


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_a_lesson_is_read(course):
    lesson = read_lesson(course / "solutions/01_tiny/lesson_01.py")
    assert lesson.name == "01_tiny" and lesson.points == 3.5
    assert list(lesson.exercises) == ["add-one"]
    exercise = lesson.exercises["add-one"]
    assert (exercise.function, exercise.line) == ("add_one", 15)
    assert exercise.source.startswith("def add_one(x):") and exercise.source.endswith("### END SOLUTION")
    assert [(c.exercise, c.judges, c.points, c.line, c.id) for c in lesson.checks] == [
        ("add-one", "values", 1.5, 22, "add-one-values"),
        ("add-one", "types", 2, 25, "add-one-types"),
    ]
    assert [cell.kind for cell in lesson.cells] == ["markdown", "code", "markdown", "code", "code", "code", "code"]


def test_the_solution_region():
    source = read_source = (
        "def f(x):\n    a = 1\n    ### BEGIN SOLUTION\n    a = 2\n\n    ### END SOLUTION\n    return a"
    )
    assert solution_lines(source) == [(3, "    a = 2"), (4, "")]
    assert (
        clear_solution(source)
        == "def f(x):\n    a = 1\n    # YOUR CODE HERE\n    raise NotImplementedError()\n    return a"
    )
    assert (
        replace_solution(source, "if x:\n    a = 3\n") == "def f(x):\n    a = 1\n    if x:\n        a = 3\n    return a"
    )
    assert source == read_source


def test_windows_line_ends_a_byte_order_mark_and_a_jupytext_header_are_fine(course):
    header = "# ---\n# jupyter:\n#   jupytext:\n#     formats: py:percent\n# ---\n\n"
    path = write_lesson(course, "")
    path.write_bytes(b"\xef\xbb\xbf" + (header + TINY).replace("\n", "\r\n").encode())
    lesson = read_lesson(path)
    assert lesson.exercises["add-one"].line == 15 + header.count("\n")
    assert "\r" not in "".join(cell.source for cell in lesson.cells)


def test_what_stands_in_a_string_is_no_cell(course):
    text = TINY.replace('print("add_one(3)', 'text = """\n# %% exercise="no"\n"""\nprint("add_one(3)')
    assert len(read_lesson(write_lesson(course, text)).cells) == 7


def test_magics_and_await_are_fine(course):
    text = TINY.replace('print("add_one(3)', '# %matplotlib inline\n# !ls\nawait add_one(3)\nprint("add_one(3)')
    assert read_lesson(write_lesson(course, text)).cells[-1].source.startswith("%matplotlib inline\n!ls\n")


@given(
    bodies=st.lists(
        st.lists(
            st.sampled_from(["", "x = 1", "# a comment", '"""', "    ", "y = 'it''s'", "# # %%"]),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None)
def test_every_cell_knows_its_lines(tmp_path_factory, bodies):
    """For any content: a cell's source is on the lines of the file that it reports, or the file is refused."""
    text = "".join("# %%\nstart = 0\n" + "\n".join(body) + "\n\n" for body in bodies)
    path = tmp_path_factory.mktemp("any") / "01_any.py"
    path.write_text(text)
    try:
        lesson = read_lesson(path)
    except BuildError:
        return
    lines = text.split("\n")
    for cell in lesson.cells:
        assert lines[cell.line - 1] == "# %%"
        first, count = cell.body_line - 1, cell.source.count("\n") + 1
        assert "\n".join(lines[first : first + count]).rstrip() == cell.source


# ---- refusing --------------------------------------------------------------------------------------------------------

EXERCISE, CHECK, TYPES = (
    '# %% exercise="add-one" difficulty=1 minutes=5',
    '# %% check="add-one" points=1.5',
    'judges="types" points=2',
)
BEGIN, END, ANSWER = "    ### BEGIN SOLUTION\n", "    ### END SOLUTION\n", "    return x + 1\n"
WHOLE = 'def add_one(x):\n    """Return x + 1."""\n' + BEGIN + ANSWER + END

MALFORMED = {
    "unknown exercise": (
        CHECK,
        '# %% check="ad-one" points=1',
        22,
        "unknown exercise 'ad-one': did you mean 'add-one'?",
    ),
    "check without a name": (CHECK, "# %% check points=1", 22, "check has no value: write"),
    "check with an empty name": (CHECK, '# %% check="" points=1', 22, "check='' is not a name"),
    "exercise without a name": (EXERCISE, "# %% exercise", 15, "exercise has no value: write"),
    "exercise with nothing after =": (EXERCISE, "# %% exercise=", 15, "exercise= is not a name"),
    "name without quotes": (EXERCISE, "# %% exercise=add-one", 15, 'needs quotes: write exercise="add-one"'),
    "quote not closed": (EXERCISE, '# %% exercise="add-one', 15, "can't read"),
    "name is a number": (EXERCISE, "# %% exercise=3", 15, "exercise=3 is not a name"),
    "name with capitals": (EXERCISE, '# %% exercise="Add One"', 15, "lower-case letters, digits and -"),
    "name is a keyword": (EXERCISE, '# %% exercise="lambda"', 15, "a Python keyword"),
    "name too long": ("add-one", "add-" + "o" * 70, 22, "(64 characters)"),
    "two exercises of one name": (
        "# %%\nprint",
        EXERCISE + "\ndef add_one(x):\n" + BEGIN + ANSWER + END + "\n# %%\nprint",
        28,
        "two exercises are called 'add-one' (the first on line 15)",
    ),
    "two checks of one thing": (
        TYPES,
        "points=2",
        25,
        "two checks judge the 'values' of 'add-one' (the first on line 22)",
    ),
    "missing END": (END, "", 18, "BEGIN SOLUTION without an END"),
    "missing BEGIN": (BEGIN, "", 19, "END SOLUTION without a BEGIN"),
    "nested BEGIN": (ANSWER, BEGIN + ANSWER, 19, "BEGIN SOLUTION inside a solution"),
    "no solution": (BEGIN + ANSWER + END, ANSWER, 15, "has no ### BEGIN SOLUTION"),
    "empty solution": (ANSWER, "", 18, "the solution is empty"),
    "solution outside an exercise": (EXERCISE, "# %%", 16 + 2, "a solution outside an exercise"),
    "mark with other words": (BEGIN, "    ### BEGIN SOLUTION (easy)\n", 18, "alone on its line"),
    "mark in small letters": (BEGIN, "    # begin solution\n", 18, "alone on its line"),
    "mark misspelled": (END, "    ### END SOLUTON\n", 20, "alone on its line"),
    "mark in markdown": ("# A lesson of one", "# BEGIN SOLUTION of one", 5, "alone on its line"),
    "BEGIN indented otherwise": (BEGIN, "### BEGIN SOLUTION\n", 18, "indent BEGIN SOLUTION exactly like"),
    "not Python once cleared": (
        BEGIN + ANSWER + END,
        "    if x:\n" + "    " + BEGIN + "    " + ANSWER + "    " + END + "  else:\n    pass\n",
        22,
        "not Python",
    ),
    "def inside the solution": (
        WHOLE,
        "### BEGIN SOLUTION\ndef add_one(x):\n    return x + 1\n### END SOLUTION\n",
        15,
        "move BEGIN SOLUTION below it",
    ),
    "function of another name": (
        "def add_one(x)",
        "def add_two(x)",
        15,
        "needs def add_one(...), but this cell defines add_two",
    ),
    "no function": (WHOLE, "### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n", 15, "this cell defines no function"),
    "points missing": (CHECK, '# %% check="add-one"', 22, "points are missing"),
    "points nothing": ("points=1.5", "points=", 22, "points= is not a number"),
    "points a word": ("points=1.5", "points=two", 22, "points=two is not a number"),
    "points a text": ("points=1.5", 'points="2"', 22, "without quotes"),
    "points nan": ("points=1.5", "points=nan", 22, "points=nan is not a number"),
    "points 0": ("points=1.5", "points=0", 22, "more than 0"),
    "points True": ("points=1.5", "points=True", 22, "points=True is not a number"),
    "points twice": ("points=1.5", "points=1 points=2", 22, "points= is given twice"),
    "points with a comma": ("points=1.5", "points=1,5", 22, "is not a number"),
    "key misspelled": (EXERCISE, '# %% exersise="add-one"', 15, "unknown key exersise=: did you mean 'exercise'?"),
    "key unknown": (CHECK, CHECK + " color=3", 22, "unknown key color="),
    "points on an exercise": (EXERCISE, EXERCISE + " points=2", 15, "points= belongs to a check"),
    "judges without a check": ("# %%\nprint", '# %% judges="values"\nprint', 28, "judges= belongs to a check"),
    "judges no name": (TYPES, 'judges="The Types" points=2', 25, "lower-case letters, digits and -"),
    "exercise and check in one": (EXERCISE, EXERCISE + ' check="add-one" points=1', 15, "split it in two"),
    "marker on markdown": (
        "# %% [markdown]\n# ## Add",
        '# %% [markdown] exercise="b"\n# ## Add',
        12,
        "doesn't go on a markdown cell",
    ),
    "words in a marker": (EXERCISE, "# %% Here we go", 15, "can't read 'Here'"),
    "marker inside a cell": ("def check(", '## %% check="add-one" points=2\ndef check(', 8, "looks like a cell marker"),
    "marker indented": (EXERCISE, " " + EXERCISE, 15, "at the start of the line"),
    "marker of another kind": ("# %%\nprint", "# In[3]:\nprint", 28, "write a cell marker as '# %%'"),
    "tags no list": ("# %%\nprint", '# %% tags="slow"\nprint', 28, "tags=slow is not a list"),
    "tag that gives points": (CHECK, CHECK + ' tags=["skip-execution"]', 22, "would give points for nothing"),
    "check cell of another function": (
        'check(add_one, judges="values")',
        'check(check, judges="values")',
        22,
        'one line: check(add_one, judges="values")',
    ),
    "check cell of two lines": (
        'check(add_one, judges="values")\n',
        'check(add_one, judges="values")\nprint(1)\n',
        22,
        "one line",
    ),
    "check cell empty": ('check(add_one, judges="values")\n', "", 22, "this cell is empty"),
    "hidden test in the source": (
        "# %%\nprint",
        "# %%\n### BEGIN HIDDEN TESTS\nprint",
        29,
        "hidden tests go in checks_01.py",
    ),
    "import of the hidden tests": (
        "# %%\nprint",
        "# %%\nfrom grader.hidden import x\nprint",
        29,
        "hidden tests go in",
    ),
    "autotest in the source": ("# %%\nprint", "# %%\n### AUTOTEST add_one(1)\nprint", 29, "doesn't belong here"),
    "difficulty missing": (" difficulty=1", "", 15, "difficulty= is missing: write difficulty=2"),
    "difficulty 6": ("difficulty=1", "difficulty=6", 15, "difficulty=6 is not between 1 and 5"),
    "difficulty a word": ("difficulty=1", "difficulty=easy", 15, "difficulty=easy is not a whole number"),
    "minutes 25": ("minutes=5", "minutes=25", 15, "minutes=25 is not between 5 and 20"),
    "minutes on a check": (CHECK, CHECK + " minutes=5", 22, "minutes= belongs to an exercise"),
    "question that asks nothing": ("more?", "more", 1, "question=What is one more is not a question"),
    "not Python": ('print("add', 'print(("add', 29, "not Python: '(' was never closed"),
    "string not closed": (
        '"""Return x + 1."""',
        '"""Return x + 1.',
        17,
        "not Python: unterminated triple-quoted string",
    ),
    "text before the first cell": (
        "# %% [markdown] question",
        "import math\n# %% [markdown] question",
        1,
        "text before the first cell",
    ),
    "control character": ("# A lesson", "# A\x00lesson", 5, "control character"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_lesson_is_refused(tmp_path, case):
    old, new, line, text = MALFORMED[case]
    assert old in TINY
    found = problems(tmp_path, TINY.replace(old, new, -1 if case == "name too long" else 1))
    assert any(at == line and text in said for at, said in found), found


def test_a_check_must_be_below_its_exercise(tmp_path):
    above = '# %% check="add-one" judges="early" points=1\ncheck(add_one, judges="early")\n\n' + EXERCISE
    text = TINY.replace(EXERCISE, above)
    assert problems(tmp_path, text) == [(15, "this check comes before its exercise (line 18): move it below")]


def test_a_check_and_an_exercise_of_one_id(tmp_path):
    text = (
        TINY
        + '\n# %% exercise="add-one-types" difficulty=1 minutes=5\ndef add_one_types():\n'
        + BEGIN
        + "    return 1\n"
        + END
    )
    assert problems(tmp_path, text) == [(25, "the cell id 'add-one-types' is also the name of an exercise: rename one")]


def test_all_problems_are_told_at_once_in_the_order_of_lines(tmp_path):
    text = TINY.replace(END, "").replace("points=1.5", "points=nan").replace('"add-one" judges', '"x" judges')
    lines = [line for line, _ in problems(tmp_path, text)]
    assert lines == sorted(lines) and {18, 21, 24} <= set(lines)


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_an_empty_file_is_refused(tmp_path, text):
    assert problems(tmp_path, text) == [(1, "the file is empty: a lesson starts with # %% [markdown]")]


@pytest.mark.parametrize("text", ["print(1)\n", "hello there\n"])
def test_a_file_without_cells_is_refused(tmp_path, text):
    assert problems(tmp_path, text) == [(1, "there is text before the first cell: start it with # %% [markdown]")]


@pytest.mark.parametrize("name", ["tiny", "1_tiny", "01", "01-tiny", "01_Tiny", "01_tiny_"])
def test_a_file_of_another_name_is_refused(tmp_path, name):
    assert "NN_topic" in problems(tmp_path, TINY, name)[0][1]


def test_a_file_that_is_not_utf8_is_refused(course):
    path = write_lesson(course, TINY)
    path.write_bytes(TINY.replace("A lesson", "Ä lesson").encode("latin-1"))
    with pytest.raises(BuildError, match=r"solutions/01_tiny/lesson_01.py:5: byte 0xc4 is not UTF-8"):
        read_lesson(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(BuildError, match="lesson_01.py:1: there is no such file"):
        read_lesson(tmp_path / "01_tiny" / "lesson_01.py")


def test_lessons_are_found_by_name(course):
    write_lesson(course, TINY, "02_more")
    assert [path.parent.name for path in find_lessons(root=course)] == ["01_tiny", "02_more"]
    assert [path.parent.name for path in find_lessons(["solutions/02_more/lesson_02.py", "02_more"], course)] == [
        "02_more"
    ]
    with pytest.raises(
        BuildError, match="no lesson called '02_moore': did you mean '02_more'.; there are: 01_tiny, 02_more"
    ):
        find_lessons(["02_moore"], course)
    write_lesson(course, TINY, "helper")
    with pytest.raises(BuildError, match=r"solutions/helper:1: a lesson must be called NN_topic"):
        find_lessons(root=course)


def test_a_course_without_lessons(tmp_path):
    with pytest.raises(BuildError, match="there is no lesson"):
        find_lessons(root=tmp_path)


@given(
    text=st.lists(st.sampled_from(TINY.split("\n") + ["# %%", '"""', "# %% check=", "'"]), max_size=30).map("\n".join)
)
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "01_any.py"
    path.write_text(text)
    try:
        read_lesson(path)
    except BuildError as error:
        assert error.problems


# ---- the notebooks ---------------------------------------------------------------------------------------------------


def read_both(course, name="01_tiny"):
    return [
        nbformat.read(course / folder / name / f"{name}.ipynb", as_version=4) for folder in ("solutions", "notebooks")
    ]


def contents(course):
    """Every file of the course that a build makes, with its bytes."""
    return {path.relative_to(course): path.read_bytes() for path in sorted(course.rglob("*.ipynb"))}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    course = make_course(tmp_path_factory.mktemp("built"))
    build.build(root=course)
    return course


@pytest.fixture
def restored(built):
    """The built course; every change that a test makes is undone."""
    before = contents(built)
    yield built
    for path in built.rglob("*.ipynb"):
        path.unlink()
    for path, content in before.items():
        (built / path).parent.mkdir(exist_ok=True)
        (built / path).write_bytes(content)
    write_lesson(built, TINY)


def by_id(notebook):
    return {cell.id: cell for cell in notebook.cells}


def test_both_notebooks_are_made(course):
    (course / "grader").mkdir()
    (course / "grader" / "hidden.py").write_text(
        "def hidden_tests_for(lesson):\n    return lambda f, judges: print('hidden', lesson, judges, f(2))\n"
    )
    with (course / "solutions/01_tiny/checks_01.py").open("a") as checks:
        hidden = "hidden_add_one_types = check('add-one', judges='types')(print)"
        checks.write(f"### BEGIN HIDDEN TESTS\n{hidden}\n### END HIDDEN TESTS\n")
    (course / "grader" / "__init__.py").touch()
    assert build.build(root=course) == ["01_tiny"]
    solution, release = read_both(course)

    for notebook in (solution, release):
        nbformat.validate(notebook)
        ids = [cell.id for cell in notebook.cells]
        assert ids[3:6] == ["add-one", "add-one-values", "add-one-types"]
        assert notebook.cells[0].metadata.made_from == "solutions/01_tiny/lesson_01.py"
        assert notebook.metadata == build.METADATA
        flags = {name: cell.metadata.nbgrader for name, cell in by_id(notebook).items() if "nbgrader" in cell.metadata}
        assert [(name, m.grade, m.solution, m.locked, m.get("points")) for name, m in flags.items()] == [
            ("add-one", False, True, False, None),
            ("add-one-values", True, False, True, 1.5),
            ("add-one-types", True, False, True, 2),
        ]
    code = [cell for cell in solution.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, 2, 3, 4, 5]
    assert by_id(solution)["add-one-values"].outputs[0].text == "values right\n"
    assert by_id(solution)["add-one-types"].outputs[0].text == "types right\nhidden 01_tiny types 3\n"
    assert "execution" not in solution.cells[2].metadata
    assert by_id(solution)["add-one-types"].source == textwrap.dedent("""\
        check(add_one, judges="types")
        ### BEGIN HIDDEN TESTS
        from grader.hidden import hidden_tests_for
        hidden_tests_for("01_tiny")(add_one, judges="types")
        ### END HIDDEN TESTS""")
    assert by_id(release)["add-one-types"].source == 'check(add_one, judges="types")'
    exercise = read_lesson(course / "solutions/01_tiny/lesson_01.py").exercises["add-one"]
    assert by_id(release)["add-one"].source == clear_solution(exercise.source)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in release.cells)
    assert sorted(p.name for p in (course / "notebooks").rglob("*")) == ["01_tiny", "01_tiny.ipynb"]


def test_a_rebuild_gives_the_same_bytes(restored):
    first = contents(restored)
    assert build.build(root=restored) == [] and contents(restored) == first
    assert build.build(["01_tiny"], force=True, root=restored) == ["01_tiny"] and contents(restored) == first


def test_nbgrader_by_hand_gives_the_same_bytes(restored):
    first = contents(restored)
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", "01_tiny", "--no-db", "--force"]
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=restored,
        env=os.environ | {"PATH": search, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert contents(restored) == first


def test_an_insertion_does_not_rename_other_cells(course):
    before = build.notebook_of(read_lesson(course / "solutions/01_tiny/lesson_01.py"))
    text = TINY.replace(
        "# %% [markdown]\n# ## Add", '# %%\nprint("new")\n\n# %%\nprint("new")\n\n# %% [markdown]\n# ## Add'
    )
    after = build.notebook_of(read_lesson(write_lesson(course, text)))
    new = [cell.id for cell in after.cells if cell.id not in {cell.id for cell in before.cells}]
    assert len(after.cells) == len(before.cells) + 2 and new[1] == f"{new[0]}-2"


def test_a_change_of_text_executes_nothing(restored, monkeypatch):
    write_lesson(restored, TINY.replace("A lesson of", "A small lesson of"))
    monkeypatch.setattr(build, "execute", lambda *_: pytest.fail("executed"))
    assert build.build(root=restored) == ["01_tiny"] and build.drift(root=restored) == []
    assert by_id(read_both(restored)[0])["add-one-values"].outputs[0].text == "values right\n"


def test_a_change_of_tags_is_executed(restored):
    write_lesson(restored, TINY.replace("# %%\nprint", '# %% tags=["slow"]\nprint'))
    before = (restored / SOLUTION).stat().st_mtime_ns
    assert build.build(root=restored) == ["01_tiny"]
    assert (restored / SOLUTION).stat().st_mtime_ns > before
    assert read_both(restored)[1].cells[-1].metadata.tags == ["slow"]


def test_a_change_of_code_is_executed(restored):
    write_lesson(restored, TINY.replace("add_one(3)", "add_one(4)"))
    assert build.build(root=restored) == ["01_tiny"]
    assert read_both(restored)[0].cells[-1].outputs[0].text == "add_one(4) is 5\n"


# ---- drift -----------------------------------------------------------------------------------------------------------


def edit(path, change):
    """Change a notebook on disk as somebody would who edits it in JupyterLab."""
    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    nbformat.write(notebook, path)


SOLUTION, RELEASE = "solutions/01_tiny/01_tiny.ipynb", "notebooks/01_tiny/01_tiny.ipynb"
DRIFTS = {
    "text of the solution": (
        SOLUTION,
        lambda nb: nb.cells[0].update(source="# Other"),
        "solutions/01_tiny/lesson_01.py:1 says",
    ),
    "answer of the solution": (
        SOLUTION,
        lambda nb: nb.cells[3].update(source="add_one = 3"),
        "solutions/01_tiny/lesson_01.py:15 says",
    ),
    "points of the solution": (
        SOLUTION,
        lambda nb: nb.cells[4].metadata.nbgrader.update(points=9),
        "lesson_01.py:22 says",
    ),
    "cell added to the solution": (SOLUTION, lambda nb: nb.cells.append(nbformat.v4.new_code_cell("1")), "says"),
    "outputs cleared": (SOLUTION, lambda nb: nb.cells[4].update(execution_count=None, outputs=[]), "was not executed"),
    "text of the release": (
        RELEASE,
        lambda nb: nb.cells[0].update(source="# Other"),
        "is not what nbgrader makes from",
    ),
    "points of the release": (
        RELEASE,
        lambda nb: nb.cells[4].metadata.nbgrader.update(points=9),
        "is not what nbgrader",
    ),
    "kernel of the release": (
        RELEASE,
        lambda nb: nb.metadata.language_info.update(version="3.13"),
        "is not what nbgrader",
    ),
}


@pytest.mark.parametrize("case", DRIFTS)
def test_drift_is_reported(restored, case):
    path, change, text = DRIFTS[case]
    assert build.drift(root=restored) == []
    edit(restored / path, change)
    (found,) = build.drift(root=restored)
    assert found.startswith(path) and text in found and found.endswith("run `make build`")


def test_drift_of_the_source_is_told_for_both(restored):
    write_lesson(restored, TINY.replace("return x + 1\n", "return 1 + x\n"))
    assert build.drift(root=restored) == [
        f"{SOLUTION} is not what solutions/01_tiny/lesson_01.py:15 says: run `make build`"
    ]
    write_lesson(restored, TINY.replace("# # Tiny", "# # Small"))
    assert [text.split()[0] for text in build.drift(root=restored)] == [SOLUTION, RELEASE]


def test_missing_damaged_stray_and_stale_notebooks_are_reported(restored):
    (restored / RELEASE).unlink()
    (restored / SOLUTION).write_text("{ half a notebo")
    stray, stale = restored / "solutions/01_tiny/answers.py", restored / "notebooks/00_old/00_old.ipynb"
    stale.parent.mkdir()
    stale.write_text("{}")
    stray.touch()
    try:
        assert build.drift(root=restored) == [
            "solutions/01_tiny/answers.py does not belong there: remove it",
            f"{RELEASE} is missing: run `make build`",
            f"{SOLUTION} can't be read: run `make build`",
            "notebooks/00_old has no source solutions/00_old/lesson_00.py: remove the folder",
        ]
    finally:
        stray.unlink()
        stale.unlink()
        stale.parent.rmdir()
    assert build.build(root=restored) == ["01_tiny"] and build.drift(root=restored) == []


def test_different_outputs_are_not_drift(restored):
    edit(restored / SOLUTION, lambda nb: nb.cells[-1].outputs[0].update(text="on another machine\n"))
    assert build.drift(root=restored) == []


def test_a_notebook_saved_in_another_form_is_drift(restored):
    notebook = json.loads((restored / SOLUTION).read_text())
    (restored / SOLUTION).write_text(json.dumps(notebook))
    assert build.drift(root=restored) == [f"{SOLUTION} was not written by `make build`: run `make build`"]


# ---- failing ---------------------------------------------------------------------------------------------------------


PRINT = 'print("add_one(3)'
SHOWS = 'print(judges, "right")'
# What fails: text of the lesson, what takes its place, and the reported line with what is said of it.
FAILURES = {
    "a check": ("return x + 1\n", "return x + 2\n", "23: AssertionError: 3 is not 2"),
    "a line of a cell": (PRINT, f"a = 1\n1 / 0\n{PRINT}", "30: ZeroDivisionError: division by zero"),
    "the kernel": (PRINT, f"__import__('os')._exit(3)\n{PRINT}", "28: this cell killed its kernel"),
    "a path of this machine": (
        "add_one(3))",
        "add_one(3), __import__('os').getcwd())",
        "28: the output shows a path on this machine: shorten it",
    ),
    # nbgrader gives 0 points for any stderr, and reads a value as the score
    "a check that prints to stderr": (
        SHOWS,
        "import sys; print(judges, file=sys.stderr)",
        "22: this check outputs stderr",
    ),
    "a check that shows a value": (SHOWS, "return 1", "22: this check outputs execute_result"),
}


def refused(course, old, new):
    """The error message when a changed lesson is built; nothing may be written."""
    assert old in TINY
    write_lesson(course, TINY.replace(old, new))
    with pytest.raises(BuildError) as caught:
        build.build(root=course)
    assert contents(course) == {}
    return str(caught.value)


@pytest.mark.parametrize("case", FAILURES)
def test_what_fails_is_named(course, case):
    old, new, told = FAILURES[case]
    assert refused(course, old, new).startswith(f"solutions/01_tiny/lesson_01.py:{told}")


def test_a_cell_that_does_not_finish_is_reported(course, monkeypatch):
    monkeypatch.setattr(execute, "CELL_TIMEOUT", 2)
    told = refused(course, PRINT, f'__import__("time").sleep(60)\n{PRINT}')
    assert told.startswith("solutions/01_tiny/lesson_01.py:28: this cell did not finish")


def test_a_cell_may_raise_if_its_tag_says_so(course):
    write_lesson(course, TINY.replace("# %%\nprint", '# %% tags=["raises-exception"]\n1 / 0\nprint'))
    assert build.build(root=course) == ["01_tiny"]
    assert read_both(course)[0].cells[-1].outputs[0].ename == "ZeroDivisionError"


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a" / "b.ipynb"
    build.write(path, b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError):
        build.write(path, b"new")
    assert path.read_bytes() == b"old" and sorted(p.name for p in path.parent.iterdir()) == ["b.ipynb"]


# ---- the command line ------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_did(course, capfd):
    make_judge(course)
    assert build.command(check=True, root=course) == 1
    assert "01_tiny.ipynb is missing: run `make build`" in capfd.readouterr().out
    assert build.command(root=course) == 0
    assert capfd.readouterr() == (f"built 01_tiny, {MESSAGES}\nall notebooks match their sources\n", "")
    assert build.command(root=course) == 0
    assert build.command(check=True, root=course) == 0
    told = "nothing to build\nall notebooks match their sources\nall notebooks match their sources\n"
    assert capfd.readouterr().out == told


def test_the_command_reports_what_it_can_not_fix(course, capfd):
    make_judge(course)
    build.build(root=course)
    (course / "solutions" / "01_tiny" / "answers.py").touch()
    assert build.command(root=course) == 1
    told = "solutions/01_tiny/answers.py does not belong there: remove it"
    assert capfd.readouterr().out == f"built {MESSAGES}\n{told}\n"


def test_the_command_refuses_in_one_line(course, capfd):
    write_lesson(course, TINY.replace("points=1.5", "points=two"))
    assert build.command(root=course) == 1
    assert capfd.readouterr() == ("", "solutions/01_tiny/lesson_01.py:22: points=two is not a number: write points=2\n")
    assert build.command(["07_none"], root=course) == 1
    assert capfd.readouterr().err == "there is no lesson called '07_none'; there are: 01_tiny\n"
