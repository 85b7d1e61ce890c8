"""A course of one tiny lesson in a folder of its own, for the tests of building."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TINY = '''\
# %% [markdown] question="What is one more?"
# # Tiny
# *you need: nothing.*
#
# A lesson of one exercise.

# %%
def check(function, judges):
    assert function(1) == 2, f"{function(1)} is not 2"
    print(judges, "right")

# %% [markdown]
# ## Add one

# %% exercise="add-one" difficulty=1 minutes=5
def add_one(x):
    """Return x + 1."""
    ### BEGIN SOLUTION
    return x + 1
    ### END SOLUTION

# %% check="add-one" points=1.5
check(add_one, judges="values")

# %% check="add-one" judges="types" points=2
check(add_one, judges="types")

# %%
print("add_one(3) is", add_one(3))
'''
# The notebook's own `check` judges; these are here because a lesson needs them.
CHECKS = """\
from utils.checks.registration import check


@check("add-one")
def add_one_values(run):
    pass


@check("add-one", judges="types")
def add_one_types(run):
    pass
"""
# Checks and hidden tests that judge, for tests of what judges answers.
JUDGING = """\
from utils.checks.compare import expect
from utils.checks.registration import check


@check("add-one")
def add_one_values(run):
    [got] = run(1, [1]).results
    expect(got, 2, rank=0)


@check("add-one", judges="types")
def add_one_types(run):
    [got] = run(1, [1]).results
    expect(type(got).__name__, "int", rank=0)
"""
HIDDEN = """

### BEGIN HIDDEN TESTS
@check("add-one")
def hidden_add_one_values(run):
    [got] = run(1, [5]).results
    expect(got, 6, rank=0)
### END HIDDEN TESTS
"""
ANSWERS = """\
from grader.authoring.variants import Answers

ANSWERS = Answers()

wrong, right = ANSWERS.to("add-one")
wrong("adds-two", "returned 3").body("return 2 + x")
wrong("adds-nothing", "returned 1").body("return x")
right("by-sum").body("return sum((x, 1))")
"""


def make_course(root: Path) -> Path:
    """Write the tiny lesson, its checks and answers, with this project's own nbgrader_config.py."""
    (root / "solutions/01_tiny").mkdir(parents=True)
    (root / "nbgrader_config.py").write_bytes((ROOT / "nbgrader_config.py").read_bytes())
    (root / "solutions/01_tiny/checks_01.py").write_text(CHECKS)
    (root / "solutions/01_tiny/answers_01.py").write_text(ANSWERS)
    write_lesson(root, TINY)
    return root


def make_judged_course(root: Path) -> Path:
    """The same course, with checks that judge, and a hidden test."""
    make_course(root)
    make_judge(root, HIDDEN)
    return root


def make_judge(root: Path, hidden: str = "") -> None:
    """Let the checks of the tiny course judge."""
    (root / "solutions/01_tiny/checks_01.py").write_text(JUDGING + hidden)


def write_lesson(course: Path, text: str, name: str = "01_tiny") -> Path:
    path = course / "solutions" / name / f"lesson_{name[:2]}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
