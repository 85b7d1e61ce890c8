"""Traps of plain nbgrader, each closed: one tiny class, graded once by the real `nbgrader autograde`, by itself.

Every student is one trap. The scores say what the trap costs: nothing when it is an accident, all when it is a trick.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from grader.autograde import points_of
from tests.kernel import processes_with
from tests.tiny_course import LESSON, POINTS, cell, hand_in, hand_in_file, lesson, make_course, nbgrader

pytestmark = [pytest.mark.long, pytest.mark.sandbox]
DOUBLE = "def double(x):\n    return 2 * x"
WRONG = "def double(x):\n    return x"
ONLY_SEEN = "def double(x):\n    return 4"  # right for what the visible check asks
SCORE = "def score():\n    return None"
NOISE = """import logging, subprocess, sys, warnings
def make_noise():
    warnings.warn("a warning")
    logging.warning("a log line")
    print("an error line", file=sys.stderr)
    subprocess.run([sys.executable, "-c", "import os; os.write(2, b'from a child process')"], check=True)
make_noise()
"""
ACTIVE = """<script>alert(1)</script> <img src="x" onerror="alert(2)"> <iframe src="https://elsewhere.example"></iframe>
<img src="https://elsewhere.example/pixel.png"> <a href="javascript:alert(3)" onclick="alert(4)">press</a>
[press](javascript:alert(5)) ![seen](https://elsewhere.example/seen.png)
<style>p{background:url(//elsewhere.example)}</style>
"""


def checks_of(nb):
    return [one for one in nb.cells if one.metadata.get("nbgrader", {}).get("grade")]


def tag(*tags):
    def edit(nb):
        for one in checks_of(nb):
            one.metadata["tags"] = list(tags)

    return edit


def without_checks(nb):
    nb.cells = [one for one in nb.cells if one not in checks_of(nb)]


def only_own_cells(nb):
    nb.cells = [new_code_cell(f"import math\n{DOUBLE}\n{SCORE}")]
    nb.cells[0].metadata["nbgrader"] = {"grade_id": "double"}


def with_copied_check(nb):
    nb.cells.append(nbformat.from_dict({**checks_of(nb)[0], "id": "copy"}))


def with_forged_metadata(nb):
    for one in checks_of(nb):
        one.metadata["nbgrader"].update(points=100, grade=False, solution=True, locked=False)
        one.metadata["execution"] = {"shell.execute_reply": "2020"}
        one.source = "pass"


def without_metadata(nb):
    for one in nb.cells:
        one.metadata = {}


def as_markdown(nb):
    for number, one in enumerate(nb.cells):
        if one in checks_of(nb):
            nb.cells[number] = new_markdown_cell(one.source, metadata=one.metadata)


def with_active_content(nb):
    show = f"from IPython.display import HTML, Javascript, SVG, display\ntext = {ACTIVE!r}\ndisplay(HTML(text))\n"
    svg = 'display(SVG(\'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(6)"><script>7</script></svg>\'))\n'
    nb.cells += [new_markdown_cell(ACTIVE), new_code_cell(show + svg + "display(Javascript('alert(8)'))\nprint(text)")]


def with_words_of_the_grader(nb):
    nb.cells.append(new_code_cell("### BEGIN HIDDEN TESTS\nprint('mine')"))
    nb.metadata["troubles"] = ["forged"]
    nb.metadata["not_run"] = True


def beside(folder):
    """Files that would take our modules' place, and a kernel configuration."""
    for name in ("math.py", "utils.py", "sitecustomize.py", "grader/__init__.py", "utils/__init__.py"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("print('SHADOWED')\nraise SystemExit('shadowed')\n")
    lines = {"InteractiveShellApp": {"exec_lines": ["def double(x): return 2 * x", "print('SHADOWED')"]}}
    (folder / "ipython_kernel_config.json").write_text(json.dumps(lines))


# What a submission may try beyond its cells. It earns nothing by it, and harms nobody; if anything worked, it says so.
ESCAPE = """
import glob, os, signal, socket, sqlite3, subprocess, sys
course = {course!r}
def attempt(what, act):
    try:
        print("ESCAPED:", what, act())
    except Exception:
        pass
def edit_gradebook():
    with sqlite3.connect(f"file:{{course}}/gradebook.db?mode=rw", uri=True) as db:
        return db.execute("update grade set manual_score = 100, extra_credit = 100").rowcount
for path in glob.glob(course + "/**/*.ipynb", recursive=True) + [course + "/solutions/{lesson}/{lesson}.ipynb"]:
    attempt("reads", lambda: open(path).read(20))
    attempt("writes", lambda: open(path, "a").write("x"))
attempt("edits the gradebook", edit_gradebook)
attempt("reads a secret", lambda: os.environ["GRADER_TOKEN"])
attempt("reaches the machine", lambda: socket.create_connection(("127.0.0.1", {port}), 5))
for pid in [{pid}, os.getppid()]:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
later = "import time; time.sleep(60)"
subprocess.Popen([sys.executable, "-c", later, {mark!r}], start_new_session=True)
def double(x):
    return x
"""
MARK = f"sandbox-survivor-{os.getpid()}"

FULL, NOTHING, DOUBLE_ONLY, SCORE_ONLY = (2, 4), (0, 0), (2, 0), (0, 4)
EXPECTED: dict[str, tuple[float, float]] = {}  # student -> points of double-values, score-values


def hand_in_class(course):
    """One submission a trap; fills EXPECTED."""

    def student(name, points, **how):
        EXPECTED[name] = points
        return hand_in(course, name, **{"double": DOUBLE, "score": SCORE, **how})

    def bytes_of(name, content):
        EXPECTED[name] = NOTHING
        hand_in_file(course, name, content)

    student("right", FULL)
    EXPECTED["blank"] = NOTHING
    hand_in(course, "blank")
    student("right-for-the-seen-half", SCORE_ONLY, double=ONLY_SEEN)

    student("noisy", FULL, double=NOISE + DOUBLE.replace("return", "make_noise(); return"), score=SCORE)

    student("gives-part", (2, 1.5), score="def score():\n    return 1.5")
    student("gives-nan", DOUBLE_ONLY, score="def score():\n    return float('nan')")
    student("gives-too-much", DOUBLE_ONLY, score="def score():\n    return 4.001")
    numpy_like = "class Four(float):\n    def __repr__(self): return 'np.float64(4.0)'\ndef score(): return Four(4)"
    student("gives-numpy", DOUBLE_ONLY, score=numpy_like)

    student("tags-skip", SCORE_ONLY, double=WRONG, edit=tag("skip-execution"))
    student("tags-raises", SCORE_ONLY, double=WRONG, edit=tag("raises-exception", "hide-input"))
    student("deletes-checks", FULL, edit=without_checks)
    student("deletes-checks-wrong", SCORE_ONLY, double=WRONG, edit=without_checks)
    student("merges-all-cells", FULL, edit=only_own_cells)
    student("copies-a-check", FULL, edit=with_copied_check)
    student("forges-metadata", SCORE_ONLY, double=WRONG, edit=with_forged_metadata)
    student("loses-metadata", FULL, edit=without_metadata)
    student("checks-as-markdown", FULL, edit=as_markdown)
    student("grader-words", FULL, edit=with_words_of_the_grader)

    student("kills-the-kernel", NOTHING, double="def double(x):\n    import os; os._exit(3)")
    student("loops", SCORE_ONLY, double="def double(x):\n    while True: pass")
    stubborn = """def double(x):
    import time
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            pass"""
    student("loops-on", NOTHING, double=stubborn)

    student("floods", FULL, double=f"print('x' * 30_000_000)\n{DOUBLE}")
    student("floods-error", SCORE_ONLY, double="def double(x):\n    raise ValueError('y' * 3_000_000)")
    student("raises-when-hidden", SCORE_ONLY, double="def double(x):\n    assert x == 2, 'I know only 2'\n    return 4")
    student("active", FULL, edit=with_active_content)
    beside(student("shadows", SCORE_ONLY, double=WRONG).parent)

    with socket.create_server(("127.0.0.1", 0)) as server:
        known = {"course": str(course), "lesson": LESSON, "pid": os.getpid(), "mark": MARK}
        student("escapes", SCORE_ONLY, double=ESCAPE.format(port=server.getsockname()[1], **known))
    link = student("is-a-link", NOTHING)
    link.unlink()
    link.symlink_to(course / "solutions" / LESSON / f"{LESSON}.ipynb")

    bytes_of("pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3 rubbish")
    bytes_of("text-pdf", b"%PDF-1.7 all ascii")
    bytes_of("empty", b"")
    bytes_of("half", nbformat.writes(lesson()).encode()[:300])
    bytes_of("a-list", b"[1, 2, 3]")
    bytes_of("no-cells", b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}}')
    bytes_of("damaged-cell", b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": 7}]}')
    bytes_of("newer", b'{"nbformat": 9, "nbformat_minor": 0, "metadata": {}, "cells": []}')
    other = new_notebook(cells=[cell("pass", "another-lesson", solution=True)])
    bytes_of("other-lesson", nbformat.writes(other).encode())


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The course after `nbgrader generate_assignment, autograde, generate_feedback` (course, log of autograde)."""
    course = make_course(tmp_path_factory.mktemp("course"))
    nbgrader(course, "generate_assignment", LESSON)
    hand_in_class(course)
    quick = ("--Execute.timeout=4", "--Execute.iopub_timeout=3")
    with ThreadPoolExecutor() as pool:  # two halves of the class at a time
        halves = ("--student=[a-g]*", "--student=[h-z]*")
        log = "".join(pool.map(lambda half: nbgrader(course, "autograde", LESSON, half, *quick), halves))
    nbgrader(course, "generate_feedback", LESSON)
    return course, log


@pytest.fixture(scope="module")
def scores(graded):
    """student -> (double-values, score-values), read from the gradebook with no help of ours."""
    course, _ = graded
    query = """select assignment.student_id, base_cell.name, grade.auto_score from grade
        join submitted_notebook on submitted_notebook.id = grade.notebook_id
        join submitted_assignment assignment on assignment.id = submitted_notebook.assignment_id
        join base_cell on base_cell.id = grade.cell_id"""
    found: dict[str, dict[str, float]] = {}
    with sqlite3.connect(course / "gradebook.db") as db:
        for student, check, points in db.execute(query):
            found.setdefault(student, {})[check] = points
    return {student: tuple(points[check] for check in POINTS) for student, points in found.items()}


def autograded(course, student):
    return nbformat.read(course / "autograded" / student / LESSON / f"{LESSON}.ipynb", as_version=4)


def page(course, student):
    return (course / "feedback" / student / LESSON / f"{LESSON}.html").read_text()


def test_every_trap_costs_or_earns_what_it_should(scores):
    assert scores == EXPECTED


@pytest.mark.parametrize(
    "shown, points",
    [("4", 4), ("1.5", 1.5), ("0.0", 0), ("nan", 0), ("inf", 0), ("-1", 0), ("-0.001", 0), ("4.001", 0), ("True", 0),
     ("'4'", 0), ("(4, 4)", 0), ("np.float64(4.0)", 0), ("tensor(4.)", 0), ("", 0), (["4", "4"], 0)],
)  # fmt: skip
def test_only_a_number_within_the_points_earns_points(shown, points):
    check = cell("score()", "score-values", grade=True, locked=True, points=4)
    check.metadata["execution"] = {"shell.execute_reply": "now"}
    assert points_of(check) == (4, "")
    for text in [shown] if isinstance(shown, str) else shown:
        check.outputs.append(new_output("execute_result", data={"text/plain": text}))
    assert points_of(check)[0] == points
    del check.metadata["execution"]
    assert points_of(check) == (0, "was not run")


def test_every_submission_has_its_feedback(graded):
    course, _ = graded
    assert [name for name in EXPECTED if not (course / "feedback" / name / LESSON / f"{LESSON}.html").exists()] == []


@pytest.mark.parametrize(
    "student, text",
    [
        ("pdf", "the file is not a notebook: it starts with '%PDF-1.7'"),
        ("text-pdf", "the file is not a notebook: it starts with '%PDF-1.7'"),
        ("empty", "the file is empty"),
        ("half", "the notebook is damaged and can't be read"),
        ("a-list", "the file is not a notebook"),
        ("no-cells", "the notebook is damaged and can't be read"),
        ("damaged-cell", "the notebook is damaged and can't be read"),
        ("other-lesson", "is it the notebook of another lesson?"),
        ("kills-the-kernel", "the kernel died in cell double-values"),
        ("loops-on", "there was no way to interrupt cell double-values"),
        ("is-a-link", "the file is a link to another one, which is not read"),
        ("gives-nan", "check score-values gave back 'nan'"),
        ("gives-too-much", "which is no number from 0 to 4: 0 points"),
        ("deletes-checks", "put back 2 missing cells: double-values, score-values"),
    ],
)
def test_trouble_is_one_line_in_the_feedback(graded, student, text):
    course, _ = graded
    lines = autograded(course, student).metadata["troubles"]
    assert any(text in line for line in lines)
    assert all("\n" not in line for line in lines)
    assert text.split("'")[0].strip() in page(course, student)


def test_who_tries_to_escape_reaches_nothing(graded):
    course, _ = graded
    outputs = [one.outputs for one in autograded(course, "escapes").cells if one.cell_type == "code"]
    assert "ESCAPED" not in str(outputs)
    assert processes_with(MARK) == []
    with sqlite3.connect(course / "gradebook.db") as db:
        assert db.execute("select count(*) from grade where manual_score > 4 or extra_credit > 0").fetchone() == (0,)


def test_a_reason_for_every_lost_point_is_logged(graded):
    _, log = graded
    assert "check score-values gave back 'nan', which is no number from 0 to 4: 0 points" in log
    assert "check double-values was not run: 0 points" in log
    assert "forged" not in log


def test_no_page_or_traceback_shows_a_hidden_test(graded):
    course, _ = graded
    for student in EXPECTED:
        text = page(course, student)
        assert not re.search("SECRET|double.{0,60}21|END HIDDEN", text), student


def test_feedback_still_says_why(graded):
    course, _ = graded
    assert re.search("double-values</a> .Score: 0.0 / 2.0", page(course, "tags-skip")), "the list names checks"
    assert "double(2) is not 4" in page(course, "tags-skip")
    assert "it is wrong for a number that you did not see" in page(course, "right-for-the-seen-half")
    assert "I know only 2" in page(course, "raises-when-hidden")
    assert "does a loop never end?" in page(course, "loops")


def test_nothing_in_a_page_is_active(graded):
    course, _ = graded
    text = page(course, "active")
    for element in BeautifulSoup(text, "html.parser").find_all(True):
        assert element.name not in ("script", "iframe", "svg", "object", "embed", "form", "base", "link"), element
        assert element.name != "style" or element.parent.name == "head", element
        for name, value in element.attrs.items():
            assert not name.startswith("on"), element
            assert name not in ("src", "href") or str(value).startswith(("#", "data:image/png")), element
    assert "default-src 'none'" in text
    assert "&lt;script&gt;alert(1)" in text, "what was printed is still shown, as text"


def test_a_flood_is_cut(graded):
    course, _ = graded
    for student in ("floods", "floods-error"):
        assert (course / "autograded" / student / LESSON / f"{LESSON}.ipynb").stat().st_size < 2_000_000
    assert "the rest of this output was cut off" in page(course, "floods")


def test_only_the_notebook_is_taken_over_and_nothing_is_lost(graded):
    course, _ = graded
    assert "SHADOWED" not in nbformat.writes(autograded(course, "shadows"))
    assert [path.name for path in (course / "autograded" / "shadows" / LESSON).rglob("*") if path.is_file()] == [
        f"{LESSON}.ipynb"
    ]
    assert (course / "submitted" / "shadows" / LESSON / "utils.py").exists()
    assert (course / "submitted" / "pdf" / LESSON / f"{LESSON}.ipynb").read_bytes().startswith(b"%PDF")


def test_grading_again_gives_the_same_notebook(graded):
    """Without --force nbgrader keeps what is there; with it, the same cells come out, but for times and process ids."""
    course, _ = graded
    before = autograded(course, "right")
    nbgrader(course, "autograde", LESSON, "--student=right", "--force")
    after = autograded(course, "right")
    for nb in (before, after):
        for one in nb.cells:
            one.metadata.pop("execution", None)
    assert before == after


def test_a_submission_has_a_time_limit_of_its_own(graded):
    course, _ = graded
    nbgrader(course, "autograde", LESSON, "--student=loops", "--force", "--RunCells.submission_timeout=2")
    first, *_ = autograded(course, "loops").metadata["troubles"]
    assert first.startswith("took more than 2 s: cells from number")


def test_manual_grades_and_comments_survive(graded):
    from nbgrader.api import Gradebook

    course, _ = graded
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        gradebook.find_grade("double-values", LESSON, LESSON, "tags-skip").manual_score = 1.5
        gradebook.find_comment("double", LESSON, LESSON, "tags-skip").manual_comment = "half of it is right"
        gradebook.db.commit()
    nbgrader(course, "autograde", LESSON, "--student=tags-skip", "--force")
    nbgrader(course, "generate_feedback", LESSON, "--student=tags-skip")
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        grade = gradebook.find_grade("double-values", LESSON, LESSON, "tags-skip")
        assert (grade.score, grade.auto_score, grade.needs_manual_grade) == (1.5, 0, True)
    assert "half of it is right" in page(course, "tags-skip")


def test_a_stale_release_is_replaced_and_holds_only_the_notebook(tmp_path):
    course = make_course(tmp_path)
    source = course / "solutions" / LESSON
    for name in ("hidden_answers.json", f"{LESSON}.py", "notes.md", "answers.txt", ".secret"):
        (source / name).write_text("answers")
    nbgrader(course, "generate_assignment", LESSON)
    release = course / "notebooks" / LESSON
    assert [path.name for path in release.iterdir()] == [f"{LESSON}.ipynb"]
    text = (source / f"{LESSON}.ipynb").read_text()
    (source / f"{LESSON}.ipynb").write_text(text.replace("A tiny lesson", "A changed lesson"))
    nbgrader(course, "generate_assignment", LESSON)
    released = (release / f"{LESSON}.ipynb").read_text()
    assert "A changed lesson" in released
    assert "SECRET" not in released and "2 * x" not in released


def test_plain_validate_of_a_noisy_right_notebook_succeeds(graded, tmp_path):
    """The Validate button of JupyterLab runs the same code."""
    course, _ = graded
    path = tmp_path / "noisy.ipynb"
    shutil.copy(course / "submitted" / "noisy" / LESSON / f"{LESSON}.ipynb", path)
    assert "Success" in nbgrader(course, "validate", str(path))
