"""The walk in CONTRIBUTING.md works: its three pieces, in a new lesson, judge as it says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WALK = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LEFT_OUT = shutil.ignore_patterns("__pycache__")


def course_in(folder: Path) -> Path:
    """This project without its lessons."""
    for part in ("grader", "utils"):
        shutil.copytree(ROOT / part, folder / part, ignore=LEFT_OUT)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def grader(course: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "grader", *arguments]
    done = subprocess.run(command, cwd=course, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_walk_leads_to_a_lesson_in_which_all_is_as_it_should_be(tmp_path):
    course = course_in(tmp_path)
    lesson, exercise = re.search(r"-m grader new (\S+) --exercises (\S+)", WALK).groups()
    assert not list((ROOT / "solutions").glob(f"{lesson[:2]}_*")), "the walk's first command would be refused"
    grader(course, "new", lesson, "--exercises", exercise)
    source, check, answers = re.findall(r"^```python walk\n(.*?)^```", WALK, re.DOTALL | re.MULTILINE)
    first_piece = {  # kind: (where what is to be replaced begins in the file that `new` wrote, what replaces it)
        "lesson": ("# %% [markdown]\n# ## Running total", source),
        "checks": ("@oracle(", check),
        "answers": ("wrong, right = ", answers),
    }
    for kind, (begin, piece) in first_piece.items():
        path = course / "solutions" / lesson / f"{kind}_{lesson[:2]}.py"
        above, found, _ = path.read_text().partition(begin)
        assert found, f"`new` writes no {begin!r} into {path.name}"
        path.write_text(above + piece)
    said = grader(course, "try", lesson[:2], exercise)
    assert "all as they should be" in said
    assert "That is the sum over two ranks: pass on the total, not your own tensor." in said
