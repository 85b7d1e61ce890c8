"""`python -m grader new`: grader/authoring/new.py and its templates."""

import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from grader.authoring import build, new
from grader.authoring.lesson import ROOT, BuildError
from grader.authoring.messages import read_messages
from grader.authoring.new import new_lesson
from grader.authoring.try_out import TryOut
from grader.commands import app

pytestmark = pytest.mark.long
FILES = ["answers_06.py", "checks_06.py", "lesson_06.py"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A course of one new lesson, in which notebooks can run."""
    course = tmp_path_factory.mktemp("course")
    for folder in ("utils", "grader"):
        shutil.copytree(ROOT / folder, course / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("nbgrader_config.py", "pyproject.toml"):
        shutil.copy(ROOT / file, course)
    new_lesson("06_compression", ["top-k", "error-feedback-of-a-name-that-makes-lines-too-long"], course)
    return course


@pytest.mark.parametrize("words", [["a,b-c,d"], ["a, b-c, d"], ["a", "b-c", "d"], ["a,", "b-c", ",d"]])
def test_commas_or_spaces_separate_the_exercises(words, monkeypatch):
    asked = []
    monkeypatch.setattr(new, "command", lambda *names: asked.append(names) or 0)
    done = CliRunner().invoke(app, ["new", "06_compression", "--exercises", *words])
    assert (done.exit_code, asked) == (0, [("06_compression", ["a", "b-c", "d"])]), done.output


def test_the_three_files_are_written(made):
    assert sorted(path.name for path in (made / "solutions/06_compression").glob("*.py")) == FILES


def run(made, *command: str) -> str:
    """What `python -m ...` prints in the course; it must not fail."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=made, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
def test_a_new_lesson_builds_at_once(made):
    said = "built 06_compression, solutions/06_compression/messages.txt\nall notebooks match their sources\n"
    assert run(made, "grader", "build") == said
    messages = read_messages(build.read_lessons(root=made)[0])
    assert [name for name in messages if name.startswith("top-k")] == ["top-k/overwrites", "top-k/counts-to-four"]
    assert "hidden test" in messages["top-k/counts-to-four"]


def test_all_answers_to_a_new_exercise_are_as_they_should_be(made, capsys):
    assert TryOut("06", "top", made).round(), capsys.readouterr().out


def test_a_new_lesson_is_in_good_style(made):
    files = [f"solutions/06_compression/{name}" for name in FILES]
    run(made, "ruff", "check", "--no-cache", *files)
    run(made, "ruff", "format", "--no-cache", "--check", "--force-exclude", *files)


def test_nothing_is_overwritten(tmp_path, capsys):
    path = tmp_path / "solutions/06_compression/checks_06.py"
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert new.command("06_compression", ["top-k"], tmp_path) == 1
    told = "solutions/06_compression is there already, and stays as it is: choose another name\n"
    assert capsys.readouterr() == ("", told)
    assert path.read_text() == "mine" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("lesson", "exercises", "says"),
    [
        ("compression", ["top-k"], "a lesson must be called NN_topic, such as 01_collectives"),
        ("../06_x", ["top-k"], "a lesson must be called NN_topic, such as 01_collectives"),
        ("06_x", ["Top K"], "exercise='Top K': a name consists of lower-case letters, digits and -, such as 'top-k'"),
        ("06_x", ["if"], "exercise='if' is a Python keyword: choose another name"),
        ("06_x", ["a", "a"], "2 exercises are called 'a': rename one"),
        ("06_x", ["top-k", "top-k-values"], "the cell id 'top-k-values' is also the name of an exercise: rename one"),
        ("06_x", [], "a lesson needs an exercise: --exercises top-k,error-feedback"),
    ],
)
def test_a_name_that_can_not_be_used_is_refused_in_the_builds_words(tmp_path, lesson, exercises, says):
    with pytest.raises(BuildError) as caught:
        new_lesson(lesson, exercises, tmp_path)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_is_next(tmp_path, capsys):
    assert new.command("06_compression", ["top-k"], tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [f"wrote solutions/06_compression/{name}" for name in FILES]
    assert lines[3].endswith("python -m grader try 06_compression --watch")
