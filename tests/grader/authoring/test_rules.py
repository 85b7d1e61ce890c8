"""grader/authoring/rules.py: each rule is broken once, and the breach is reported with file and line."""

import re

import pytest

from grader.authoring import build, facts, rules
from grader.authoring.lesson import BuildError, read_lesson
from tests.grader.authoring.tiny_lesson import CHECKS, TINY, make_course, write_lesson

SOURCE, VISIBLE = "solutions/01_tiny/lesson_01.py", "solutions/01_tiny/checks_01.py"
MUTANTS = "solutions/01_tiny/answers_01.py"
IMPORT = "from utils.kit.predictions import predict, reveal"
HINTS = """# %% [markdown]
# <details><summary>Hint 1: where to look</summary>
#
# There.
# </details>
# <details><summary>Hint 2: the idea</summary>
#
# That.
# </details>
# <details><summary>Hint 3: almost the code</summary>
#
# `x`
# </details>

"""
CHALLENGE = f"""
# %% [markdown]
# ## The least

{HINTS}# %% exercise="the-least" difficulty=5 minutes=20
board_name = ""  # your name on the class's board; empty for none

def the_least(x):
    ### BEGIN SOLUTION
    return x
    ### END SOLUTION

# %% check="the-least" judges="score" points=3
check(the_least, judges="score", extra_credit=3)
"""
TYPES = '\n# %% check="add-one" judges="types" points=2\ncheck(add_one, judges="types")\n'


@pytest.fixture
def course(tmp_path):
    return make_course(tmp_path)


def broken(course):
    return [str(problem) for problem in rules.broken_rules(read_lesson(course / SOURCE))]


def test_the_tiny_lesson_keeps_every_rule(course):
    assert broken(course) == []


# what is broken: file, text in it, what takes its place, the reported place, words of the report
BREACHES = {
    "no title": (SOURCE, "# # Tiny\n", "# Tiny\n", f"{SOURCE}:1", "first line is '# Its title'"),
    "no needs": (SOURCE, "*you need: nothing.*", "*For all.*", f"{SOURCE}:3", "'*you need: lesson 01.*'"),
    "no question": (SOURCE, ' question="What is one more?"', "", f"{SOURCE}:1", "which question the lesson answers"),
    "a question below": (
        SOURCE,
        "# %% [markdown]\n# ## Add",
        '# %% [markdown] question="Why?"\n# ## Add',
        f"{SOURCE}:12",
        "goes on the first cell",
    ),
    "no heading": (SOURCE, "# ## Add one", "# ### Add one", f"{SOURCE}:15", "'add-one' has no heading"),
    "two exercises under the same heading": (
        SOURCE,
        "# %%\nprint",
        '# %% [markdown]\n# ## Add one\n\n# %% exercise="two" difficulty=1 minutes=5\ndef two():\n'
        "    ### BEGIN SOLUTION\n    return 2\n    ### END SOLUTION\n\n# %%\nprint",
        f"{SOURCE}:29",
        "the heading 'Add one' is on line 13 already",
    ),
    "import in a later cell": (
        SOURCE,
        'print("add_one(3)',
        'for i in range(3):\n    import math\nprint("add_one(3)',
        f"{SOURCE}:30",
        "move this import to the first code cell, on line 7: import math",
    ),
    "code that is too wide": (
        SOURCE,
        '    print(judges, "right")',
        f"    print(judges, 'right')  # {'so ' * 21}on",
        f"{SOURCE}:10",
        "this line is 95 columns wide",
    ),
    "docstring that is too wide": (
        SOURCE,
        '"""Return x + 1."""',
        f'"""Return x + 1.\n\n    {"so " * 29}on.\n    """',
        f"{SOURCE}:19",
        "this line is 94 columns wide",
    ),
    "code in a text that is too wide": (
        SOURCE,
        "# ## Add one",
        f"# ## Add one\n# ```python\n# add_one(1)  # {'so ' * 30}on\n# ```",
        f"{SOURCE}:15",
        "this line of code is 106 columns wide",
    ),
    "prediction that is never revealed": (
        SOURCE,
        "# %%\nprint",
        f'# %%\n{IMPORT}\npredict("a sum", ...)\n\n# %%\nprint',
        f"{SOURCE}:30",
        "nothing below reveals 'a sum'",
    ),
    "answer that nobody predicted": (
        SOURCE,
        "# %%\nprint",
        f'# %%\n{IMPORT}\npredict("a sum", ...)\n\n# %%\nreveal("the sum", 4)\n\n# %%\nprint',
        f"{SOURCE}:33",
        "nobody predicts 'the sum' above this reveal(): did you mean 'a sum'?",
    ),
    "answer before its prediction": (
        SOURCE,
        "# %%\nprint",
        f'# %%\n{IMPORT}\n\n# %%\nreveal("a sum", 4)\n\n# %%\npredict("a sum", ...)\n\n# %%\nprint',
        f"{SOURCE}:32",
        "nobody predicts 'a sum' above",
    ),
    "answer in a cell that shows its code": (
        SOURCE,
        "# %%\nprint",
        f'# %%\n{IMPORT}\npredict("a sum", ...)\n\n# %%\ntotal = 4\nreveal("a sum", total)\n\n# %%\nprint',
        f"{SOURCE}:34",
        "give reveal() a cell of its own",
    ),
    "two predictions of one name": (
        SOURCE,
        "# %%\nprint",
        f'# %%\n{IMPORT}\npredict("a sum", ...)\npredict("a sum", ...)\n\n# %%\nreveal("a sum", 4)\n\n# %%\nprint',
        f"{SOURCE}:31",
        "'a sum' is predicted twice",
    ),
    "prediction without its question": (
        SOURCE,
        "# %%\nprint",
        f"# %%\n{IMPORT}\npredict(...)\n\n# %%\nprint",
        f"{SOURCE}:30",
        "predict() starts with its question",
    ),
    "exercise without a check": (
        SOURCE,
        "# %%\nprint",
        '# %% [markdown]\n# ## Two\n\n# %% exercise="two" difficulty=1 minutes=5\ndef two():\n    ### BEGIN SOLUTION\n'
        "    return 2\n    ### END SOLUTION\n\n# %%\nprint",
        f"{SOURCE}:31",
        "exercise 'two' has no check: add # %% check=\"two\"",
    ),
    "check cell that nothing judges": (
        VISIBLE,
        ', judges="types"',
        ', judges="traffic"',
        f"{SOURCE}:25",
        "no visible check judges the 'types' of 'add-one': add @check(\"add-one\", judges=\"types\")",
    ),
    "visible check that never runs": (
        SOURCE,
        TYPES,
        "",
        f"{VISIBLE}:9",
        "never runs: solutions/01_tiny/lesson_01.py has no cell",
    ),
    "check made elsewhere": (
        VISIBLE,
        "def add_one_types(run):\n    pass",
        "def add_one_types(run):\n    pass\n\nmade = check('more')(print)",
        f"{VISIBLE}:13",
        "the visible check of 'more' for 'values' never runs",
    ),
    "oracle that never runs": (
        VISIBLE,
        "def add_one_types(run):\n    pass",
        "def add_one_types(run):\n    pass\n\nfrom utils.checks.oracles import oracle\n\n"
        "@oracle(values=[(2,)], time=[(3,)])\ndef add_one(draws, x):\n    pass",
        f"{VISIBLE}:15",
        "the visible check of 'add-one' for 'time' never runs",
    ),
    "checks that are not Python": (
        VISIBLE,
        "def add_one_types(run)",
        "def add_one_types(run",
        f"{VISIBLE}:10",
        "not Python",
    ),
    "checks that raise": (VISIBLE, '@check("add-one")', '@chekc("add-one")', f"{VISIBLE}:4", "NameError: name 'chekc'"),
    "one wrong answer": (
        MUTANTS,
        'wrong("adds-nothing", "returned 1").body("return x")\n',
        "",
        f"{MUTANTS}:5",
        "1 wrong answer to 'add-one': give at least 2",
    ),
    "wrong answer that no longer applies": (
        MUTANTS,
        '.body("return 2 + x")',
        '.replace("x + one", "x")',
        f"{MUTANTS}:6",
        "add-one/adds-two: the solution has changed",
    ),
    "answer to no exercise": (
        MUTANTS,
        "right(",
        'ANSWERS.to("add-two")[0]("a", "").body("pass")\nright(',
        f"{MUTANTS}:8",
        "add-two/a: 01_tiny has no such exercise",
    ),
    "answers that raise": (
        MUTANTS,
        'ANSWERS.to("add-one")',
        "ANSWERS.too()",
        f"{MUTANTS}:5",
        "AttributeError: 'Answers'",
    ),
}


@pytest.mark.parametrize("case", BREACHES)
def test_a_breach_is_reported_with_its_line(course, case):
    file, old, new, place, words = BREACHES[case]
    text = (course / file).read_text()
    assert old in text
    (course / file).write_text(text.replace(old, new, 1))
    found = broken(course)
    assert any(one.startswith(f"{place}: ") and words in one for one in found), found
    with pytest.raises(BuildError, match=re.escape(words)):
        build.drift(root=course)


def test_an_import_in_a_function_is_fine(course):
    write_lesson(course, TINY.replace('print("add', 'def late():\n    import math\n    return math\n\nprint("add'))
    assert broken(course) == []


def test_a_prediction_and_its_answer_are_fine(course):
    cells = '# %%\npredict("a sum", ...)\n\n# %%\nreveal("a sum", 4)\n\n# %%\nprint'
    write_lesson(course, TINY.replace("# %%\nprint", cells).replace("# %%\ndef", f"# %%\n{IMPORT}\n\ndef"))
    assert broken(course) == []
    notebook = build.notebook_of(read_lesson(course / SOURCE))
    [folded] = [cell.source for cell in notebook.cells if "jupyter" in cell.metadata]
    assert folded.split("\n")[1:] == ['reveal("a sum", 4)']  # JupyterLab shows the line above, which says no answer


def test_a_lesson_may_have_a_predict_of_its_own(course):
    write_lesson(course, TINY.replace("# %%\nprint", "# %%\ndef predict(x):\n    return x\n\npredict(3)\nprint"))
    assert broken(course) == []


def test_missing_files_are_named(course):
    for file in (VISIBLE, MUTANTS):
        (course / file).unlink()
    holds = "wrong answers that the lesson's checks must catch, and right ones that they must not"
    assert broken(course) == [
        f"{MUTANTS}:1: there is no such file: it holds {holds}",
        f"{VISIBLE}:1: there is no such file: it holds the lesson's checks",
    ]


def test_a_hidden_test_that_no_check_cell_runs(course):
    hidden = "hidden_add_one = check('add-one', judges='time')(print)"
    (course / VISIBLE).write_text(f"{CHECKS}\n### BEGIN HIDDEN TESTS\n{hidden}\n### END HIDDEN TESTS\n")
    (found,) = broken(course)
    assert found.startswith(f"{VISIBLE}:14: the hidden test of 'add-one' for 'time' never runs")


@pytest.mark.parametrize(
    ("hidden", "line", "what"),
    [
        ("hidden_add_one = check('add-one')(print)", 13, "'hidden_add_one' is not between BEGIN and END HIDDEN TESTS"),
        ("### BEGIN HIDDEN TESTS\nSECRET = 5\n### END HIDDEN TESTS\nCOPY = SECRET", 16, "'SECRET' is hidden"),
        ("### BEGIN HIDDEN TESTS\nSECRET = 5\n", 13, "BEGIN HIDDEN TESTS without END HIDDEN TESTS"),
    ],
)
def test_what_is_hidden_is_marked_and_not_needed_by_what_is_not(course, hidden, line, what):
    (course / VISIBLE).write_text(f"{CHECKS}\n{hidden}\n")
    assert any(breach.startswith(f"{VISIBLE}:{line}: {what}") for breach in broken(course))


def test_an_error_that_a_check_raises_is_reported_at_its_line(course):
    """Also where something else raises it for the check. The notebook's own `check` calls the check's function."""
    load = "import runpy, sys, types\n"
    load += "registered = types.SimpleNamespace(check=lambda *_, **__: lambda function: function)\n"
    load += "sys.modules['utils.checks.registration'] = registered  # which would import torch\n"
    load += "of_room = runpy.run_path('../../solutions/01_tiny/checks_01.py')\n"
    load += "add_one_values = of_room['add_one_values']\n\n"
    text = TINY.replace("# %%\ndef check", f"# %%\n{load}def check").replace(
        "assert function(1)", "add_one_values(1)\n    assert function(1)"
    )
    write_lesson(course, text)
    (course / VISIBLE).write_text(CHECKS.replace("    pass", "    import json\n    json.loads('')", 1))
    with pytest.raises(BuildError) as caught:
        build.build(root=course)
    line = 1 + text.split("\n").index('# %% check="add-one" points=1.5')
    what = f"JSONDecodeError: Expecting value: line 1 column 1 (char 0) (in the check on line {line} of {SOURCE})"
    assert str(caught.value) == f"{VISIBLE}:7: {what}"


def test_a_hard_exercise_has_three_hints(course):
    hard = TINY.replace("difficulty=1", "difficulty=3")
    for text in (hard, hard.replace("# %% exercise", HINTS.replace("Hint 2", "Another") + "# %% exercise")):
        write_lesson(course, text)
        [said] = rules.hard_exercises_have_hints(read_lesson(course / SOURCE))
        assert "'add-one' needs three hints" in str(said)
    write_lesson(course, hard.replace("# %% exercise", HINTS + "# %% exercise"))
    assert list(rules.hard_exercises_have_hints(read_lesson(course / SOURCE))) == []


# ---- what students get

LONG = TINY.replace("    return x + 1\n", "    bigger_by_one = x + 1\n    return bigger_by_one\n")
OTHER = LONG.replace("bigger_by_one = x + 1", "another_lesson = x + 1").replace("return bigger", "return another")
LINE = "def helps(x):\n    bigger_by_one=x+1\n"
WAY_OUT = "name a variable differently here; or, if students may see this line, show it in the lesson's text"


@pytest.mark.parametrize("file", [VISIBLE, "utils/kit/helps.py"])
def test_a_line_of_an_answer_may_not_ship(course, file):
    write_lesson(course, LONG)
    assert broken(course) == []
    (course / file).parent.mkdir(parents=True, exist_ok=True)
    (course / file).write_text(LINE + CHECKS)
    [said] = broken(course)
    assert said == f"{file}:2: this holds a line of the answer at {SOURCE}:19, bigger_by_one=x+1: {WAY_OUT}"


def test_both_ways_out_of_a_leak_work(course):
    write_lesson(course, LONG)
    (course / VISIBLE).write_text(LINE.replace("bigger_by_one", "one_more_of_x") + CHECKS)
    assert broken(course) == []
    (course / VISIBLE).write_text(LINE + CHECKS)
    write_lesson(
        course, LONG.replace("# A lesson of", "# `bigger_by_one = x + 1` is what it's about.\n#\n# A lesson of")
    )
    assert broken(course) == []


def test_the_checks_of_a_lesson_may_not_hold_another_lessons_answer_but_other_files_are_no_fault_of_it(course):
    write_lesson(course, OTHER, "02_other")
    (course / VISIBLE).write_text(LINE.replace("bigger_by_one=x+1", "another_lesson = x + 1") + CHECKS)
    [said] = broken(course)
    assert said.startswith(f"{VISIBLE}:2: this holds a line of the answer at solutions/02_other/lesson_02.py:19, ")
    (course / VISIBLE).write_text(CHECKS)
    (course / "utils").mkdir()
    (course / "utils/helps.py").write_text("another_lesson = x + 1\n")
    assert broken(course) == []


# ---- a challenge


def add_challenge(course, text: str = CHALLENGE, hidden: str = "score") -> None:
    write_lesson(course, TINY.replace("return function", "pass") + text)
    checks = course / VISIBLE
    visible = '\n\n@check("the-least", judges="score")\ndef the_least_score(run):\n    pass\n'
    secret = f'hidden_the_least = check("the-least", judges="{hidden}")(print)'
    checks.write_text(f"{checks.read_text()}{visible}### BEGIN HIDDEN TESTS\n{secret}\n### END HIDDEN TESTS\n")
    path = course / MUTANTS
    path.write_text(
        path.read_text() + '\nwrong, right = ANSWERS.to("the-least")\n'
        'wrong("more", "par", caught_by="score").body("return x + 1")\n'
        'wrong("less", "par", caught_by="score").body("return x - 1")\n'
    )


def test_a_challenge_at_the_end_is_fine_and_its_points_are_extra(course):
    add_challenge(course)
    assert broken(course) == []
    lesson = read_lesson(course / SOURCE)
    assert lesson.points == 3.5 and lesson.challenge.name == "the-least"
    assert [one.name for one in lesson.required] == ["add-one"]
    shown = "\n".join(cell.source for cell in facts.shown_cells(lesson))
    assert "1 exercise · 3.5 points · a challenge" in shown
    assert "difficulty ●●●●● · about 20 minutes · challenge: 3 points of extra credit" in shown
    assert "| 1 | 3.5 |" in facts.row(lesson)
    [cell] = [cell for cell in build.notebook_of(lesson).cells if cell.id == "the-least-score"]
    assert cell.metadata.nbgrader.points == 0, "nbgrader's maximum is without it"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('board_name = ""  # your name on the class\'s board; empty for none\n', "", "start the cell of 'the-least'"),
        ('check="the-least" judges="score"', 'check="the-least" judges="values"', 'judges="values")'),
        ("extra_credit=3", "extra_credit=2", 'check(the_least, judges="score", extra_credit=3)'),
        (", extra_credit=3", "", 'check(the_least, judges="score", extra_credit=3)'),
    ],
)
def test_a_challenge_that_is_not_one(course, old, new, says):
    assert old in CHALLENGE
    add_challenge(course, CHALLENGE.replace(old, new))
    try:
        found = broken(course)
    except BuildError as error:
        found = [str(problem) for problem in error.problems]
    assert any(says in line for line in found), found


def test_a_challenge_is_the_last_exercise_has_one_check_and_a_hidden_test(course):
    more = CHALLENGE.replace("the-least", "the-most").replace("the_least", "the_most").replace("The least", "The most")
    values = '\n# %% check="the-least" points=1\ncheck(the_least, judges="values")\n'
    add_challenge(course, CHALLENGE + values + more, hidden="values")
    found = "\n".join(broken(course))
    assert "move 'the-least' below 'the-most'" in found
    assert "the score of a challenge proves its values too: remove this check" in found
    assert "one challenge ends a lesson, and 'the-least' is one already" in found
    assert "no hidden test scores 'the-least'" in found
