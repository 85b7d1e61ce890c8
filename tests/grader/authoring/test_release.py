"""grader/authoring/release.py: the students' bundle works on its own and contains no line of an answer."""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

from grader.authoring import build, leaks, release
from grader.authoring.lesson import BuildError

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
LESSON = '''\
# %% [markdown] question="What is twice the sum?"
# # Doubling
# *you need: nothing.*
#
# Here is a hint: `total = left_neighbour + right_neighbour`

# %%
from utils import check

# %% [markdown]
# ## Double it

# %% exercise="double-it" difficulty=1 minutes=5
def double_it(left, right):
    """Return twice the sum."""
    left_neighbour, right_neighbour = left, right
    ### BEGIN SOLUTION
    for value in range(left_neighbour):
        pass
    total = left_neighbour + right_neighbour
    twice_the_sum = total * 2  # the whole secret
    x = 1
    return twice_the_sum
    ### END SOLUTION

# %% check="double-it" points=1
check(double_it, judges="values")
'''
CHECK = "def check(function, judges):\n    assert function(1, 2) == 6\n    print('right')\n"
REGISTERED = "from utils.checks.registration import check\n\n\n@check('double-it')\ndef double_it(run):\n    pass\n"
LEAK = (
    f"this holds a line of the answer at solutions/01_doubling/lesson_01.py:21, twice_the_sum=total*2: {leaks.WAY_OUT}"
)
ANSWERS = """\
from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("double-it")
wrong("triples", "").replace("total * 2", "total * 3")
wrong("only-left", "").body("return 2 * left")
"""


@pytest.fixture(scope="module")
def lessons():
    return build.read_lessons(root=ROOT)


@pytest.fixture(scope="module")
def made(lessons):
    """This course's real bundle, as bytes, made without touching dist/."""
    return release.zipped(release.contents(lessons, ROOT))


@pytest.fixture(scope="module")
def unpacked(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("student")
    with zipfile.ZipFile(io.BytesIO(made)) as bundle:
        bundle.extractall(folder)
    return folder / release.NAME


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A small course, built and ready for release."""
    folder = tmp_path_factory.mktemp("built")
    files = {
        "solutions/01_doubling/lesson_01.py": LESSON,
        "utils/__init__.py": CHECK,
        "solutions/01_doubling/checks_01.py": REGISTERED,
        "utils/__pycache__/x.pyc": "",
        "utils/.ipynb_checkpoints/x.py": "",
        "solutions/01_doubling/answers_01.py": ANSWERS,
        "grader/bundle/README.md": "# For you, version <!-- version -->\n\n<!-- lessons -->\n",
        "grader/bundle/Makefile": "lab:\n",
        "grader/bundle/jupyter/config.json": "{}\n",
        "requirements.txt": "# For students\ntorch==2.13.0\n\n# For teachers: more\njupytext==1\n",
        "LICENSE": "MIT\n",
        "pyproject.toml": '[project]\nversion = "1.2.3"\n',
        "LICENSE-TEXT": "CC BY 4.0\n",
        "setup_env.py": "print()\n",
        "nbgrader_config.py": (ROOT / "nbgrader_config.py").read_text(),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    build.build(root=folder)
    return folder


@pytest.fixture
def course(built, tmp_path):
    """A copy of it for each test, which may change it."""
    return shutil.copytree(built, tmp_path, dirs_exist_ok=True)


def opened(packed):
    """The files of a bundle, as it unpacks."""
    with zipfile.ZipFile(io.BytesIO(packed)) as bundle:
        return {entry.removeprefix(f"{release.NAME}/"): bundle.read(entry) for entry in bundle.namelist()}


def found_in(files, lessons, solutions=False):
    return leaks.leaks(files, told_by(lessons), solutions)


def told_by(lessons):
    return leaks.telling_lines(lesson.path for lesson in lessons)


def plant(packed, name, text):
    """One of the bundle's files with a line added; in the others there is nothing to find."""
    return {name: opened(packed).get(name, b"") + f"\n{text}\n".encode()}


# ---- what is in it ---------------------------------------------------------------------------------------------------


def test_the_bundle_of_a_small_course(course):
    path = release.bundle(course)
    assert path == course / "dist" / "distributed-training.zip"
    with zipfile.ZipFile(path) as bundle:
        assert bundle.testzip() is None
        assert bundle.namelist() == [
            f"distributed-training/{name}"
            for name in (
                "LICENSE",
                "LICENSE-TEXT",
                "Makefile",
                "README.md",
                "jupyter/config.json",
                "notebooks/01_doubling/01_doubling.ipynb",
                "requirements.txt",
                "setup_env.py",
                "utils/__init__.py",
                "utils/checks/rooms/01_doubling/checks_01.py",
                "utils/checks/rooms/01_doubling/frozen_cases.json",
            )
        ]
        assert bundle.read("distributed-training/requirements.txt") == b"# For students\ntorch==2.13.0\n"
        readme = bundle.read("distributed-training/README.md").decode()
    assert readme.startswith("# For you, version 1.2.3\n")
    link = "[01 · Doubling](notebooks/01_doubling/01_doubling.ipynb)"
    assert f"| {link} | 10 min | 1 | nothing. |" in readme


def test_the_same_course_gives_the_same_bytes(course):
    first = release.bundle(course).read_bytes()
    for path in course.rglob("*"):
        os.utime(path, (1, 1))
    assert release.bundle(course).read_bytes() == first
    assert [path.name for path in (course / "dist").iterdir()] == ["distributed-training.zip"]


def test_drift_stops_the_bundle(course):
    source = course / "solutions/01_doubling/lesson_01.py"
    source.write_text(LESSON.replace("Return twice", "Return two times"))
    with pytest.raises(BuildError, match="is not what solutions/01_doubling/lesson_01.py:13 says: run `make build`"):
        release.bundle(course)
    assert not (course / "dist").exists()


@pytest.mark.parametrize("name", ["LICENSE", "grader/bundle/README.md", "grader/bundle/Makefile", "requirements.txt"])
def test_a_missing_file_stops_the_bundle(course, name):
    (course / name).unlink()
    with pytest.raises(BuildError, match=f"the bundle needs {name}, but there is no such file"):
        release.bundle(course)


def test_requirements_without_a_students_part_stop_the_bundle(course):
    (course / "requirements.txt").write_text("torch==2.13.0\njupytext==1\n")
    with pytest.raises(BuildError, match="requirements.txt has no line '# For teachers'"):
        release.bundle(course)


def test_an_answer_in_utils_stops_the_bundle(course, capsys):
    (course / "utils" / "help.py").write_text(
        "def f(a):\n    # total=left_neighbour + right_neighbour\n    twice_the_sum=total*2\n"
    )
    (course / "dist").mkdir()
    (course / "dist" / "distributed-training.zip").write_text("the one before")
    assert release.command(course) == 1
    assert capsys.readouterr() == ("", f"utils/help.py:3: {LEAK}\n")
    assert (course / "dist" / "distributed-training.zip").read_text() == "the one before"


def test_the_command_says_what_it_made(course, capsys):
    assert release.command(course) == 0
    assert capsys.readouterr().out == "dist/distributed-training.zip: 1 lesson, 11 files, no answer in it\n"


# ---- the proof -------------------------------------------------------------------------------------------------------


def test_the_bundle_for_self_study_has_each_answer_once_and_folded(course, capsys):
    """Below the last check of its exercise. A bundle for a class may not have it even there."""
    assert release.command(course, solutions=True) == 0
    assert "each answer folded below its exercise" in capsys.readouterr().out
    path = course / "dist" / f"{release.SELF_STUDY}.zip"
    lessons = build.read_lessons(root=course)
    files = opened(path.read_bytes())
    [name] = [name for name in files if name.endswith(".ipynb")]
    cells = nbformat.reads(files[name].decode(), as_version=4).cells
    answers = [at for at, cell in enumerate(cells) if cell.id.startswith(leaks.SOLUTION_CELL)]
    for at in answers:
        assert cells[at].cell_type == "markdown" and cells[at].source.startswith("<details><summary>")
        assert cells[at - 1].metadata.nbgrader.grade and "SOLUTION" not in cells[at].source
    assert len(answers) == sum(len(lesson.exercises) for lesson in lessons)
    telling = told_by(lessons)
    assert telling and all(any(line in leaks.squeeze(cells[at].source) for at in answers) for line in telling)
    assert found_in(files, lessons, solutions=True) == []
    assert found_in(files, lessons), "it would not pass for a class's bundle"
    assert found_in(opened(release.bundle(course).read_bytes()), lessons) == []


def test_which_lines_are_telling(course):
    """Not short lines, heads of blocks, plain returns, or lines that the lesson gives away."""
    assert told_by(build.read_lessons(root=course)) == {
        "twice_the_sum=total*2": "solutions/01_doubling/lesson_01.py:21"
    }


def test_no_line_of_an_answer_is_in_the_bundle(made, lessons):
    assert len(told_by(lessons)) >= len(lessons)
    assert found_in(opened(made), lessons) == []


def test_every_planted_line_is_found(made, lessons):
    """The proof itself: every telling line is found, each hidden in a different place."""
    places = ["utils/__init__.py", "README.md", "Makefile", "requirements.txt", "notes.txt"]
    lines = list(told_by(lessons))
    for start, place in enumerate(places):
        planted = lines[start :: len(places)]
        found = found_in(plant(made, place, "\n".join(f"    # {line}  # see" for line in planted)), lessons)
        assert {leak.file for leak in found} == {place}
        assert len({leak.line for leak in found}) == len(planted) > 0


def test_an_answer_in_a_notebook_is_found(lessons):
    """The instructor's notebook instead of the students'; a line in an output; a line in a cell's metadata."""
    lesson = lessons[0]
    name = f"notebooks/{lesson.name}/{lesson.name}.ipynb"
    entries = {name: build.solution_path(lesson).read_bytes()}
    found = "\n".join(leak.text for leak in found_in(entries, lessons))
    assert all(f"{place}, " in found for place in told_by(lessons).values() if place.startswith(lesson.file))

    line = next(iter(told_by(lessons)))
    for place in ("outputs", "metadata"):
        notebook = nbformat.read(build.release_path(lesson), as_version=4)
        cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
        cell.outputs = [nbformat.v4.new_output("stream", text=f"a\n{line}\n")] if place == "outputs" else []
        cell.metadata.answer = line if place == "metadata" else ""
        entries[name] = nbformat.writes(notebook).encode()
        assert len(found_in(entries, lessons)) == 1


@pytest.mark.parametrize("mark", ["BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "grader.hidden"])
def test_marks_of_the_grader_are_found(made, lessons, mark):
    (leak,) = found_in(plant(made, "utils/__init__.py", f"text {mark}  # more"), lessons)
    assert leak.file == "utils/__init__.py" and mark in leak.text


@pytest.mark.parametrize("name", ["solutions/a.py", "grader/hidden.py", "tests/a.py", "feedback/x.html"])
def test_files_of_the_grader_are_found(made, lessons, name):
    assert [leak.file for leak in found_in(plant(made, name, "hello"), lessons)] == [name]


# ---- a student's day -------------------------------------------------------------------------------------------------


def test_nothing_of_the_grader_is_in_the_bundle(made):
    files = {"LICENSE", "LICENSE-TEXT", "Makefile", "README.md", "requirements.txt", "setup_env.py"}
    with zipfile.ZipFile(io.BytesIO(made)) as bundle:
        assert {name.split("/")[1] for name in bundle.namelist()} == {*files, "notebooks", "utils", "jupyter"}
        assert b"# For teachers" not in bundle.read(f"{release.NAME}/requirements.txt")


def test_the_bundle_lists_the_packages_it_needs(unpacked):
    """The students' requirements cover every package that a lesson or utils imports, in the versions installed here."""
    install = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", "-r"]
    done = subprocess.run([*install, unpacked / "requirements.txt"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout


@pytest.fixture(scope="module")
def student_python(unpacked):
    """A new environment for the bundle, which uses this one's packages and imports the bundle's utils."""
    venv = unpacked / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=300)
    packages = next(venv.glob("lib/python*/site-packages"))
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join([str(unpacked), *borrowed]) + "\n")
    start = [f"{venv}/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = venv / "share" / "jupyter" / "kernels" / "student" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps({"argv": start, "display_name": "Student", "language": "python"}))
    return venv


def test_a_student_can_start_working(unpacked, student_python, lessons, monkeypatch):
    """Unpacked into an empty folder, the first lesson runs up to its first exercise, which is not written yet.

    So do the imports of all lessons, in the student's own Python, which has nothing of the course but the bundle.
    """
    monkeypatch.setenv("JUPYTER_PATH", str(student_python / "share" / "jupyter"))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_CURRENT_TEST")
    }
    sockets = tempfile.TemporaryDirectory()  # a short path, as sockets need it; and no port to fight for
    over_files = Config(ConnectionFileMixin={"transport": "ipc", "ip": f"{sockets.name}/kernel"})
    lesson = lessons[0]
    path = unpacked / "notebooks" / lesson.name / f"{lesson.name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    first = next(number for number, cell in enumerate(notebook.cells) if cell.id in lesson.exercises)
    imports = [next(cell.source for cell in one.cells if cell.kind == "code") for one in lessons]
    imported = f"for source in {imports}:\n    exec(source, {{}})"
    where = nbformat.v4.new_code_cell(f"{imported}\nimport utils; print(utils.__file__)")
    notebook.cells.insert(first, where)
    folder = {"metadata": {"path": str(path.parent)}}
    with pytest.raises(CellExecutionError, match="NotImplementedError|[Nn]ot written"):
        client = NotebookClient(notebook, kernel_name="student", timeout=120, resources=folder, config=over_files)
        client.execute(env=environment)
    [printed] = where.outputs
    assert (printed.name, printed.text.strip()) == ("stdout", str(unpacked / "utils" / "__init__.py"))
    ran = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert ran[: len(ran) - ran.count(None)] == list(range(1, len(ran) - ran.count(None) + 1))
    assert notebook.cells[first + 1].execution_count == where.execution_count + 1
