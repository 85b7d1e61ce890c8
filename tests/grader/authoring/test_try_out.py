"""`python -m grader try`: grader/authoring/try_out.py and preview.py."""

import os
import time
from collections.abc import Callable
from types import SimpleNamespace

import nbformat
import pytest

from grader.authoring import preview, try_out
from grader.authoring.lesson import BuildError
from grader.authoring.try_out import TryOut, exercise_called
from tests.grader.authoring.tiny_lesson import ANSWERS, JUDGING, TINY, make_judged_course, write_lesson

CHECKS = "solutions/01_tiny/checks_01.py"
MUTANTS = "solutions/01_tiny/answers_01.py"


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # files change within a second; TryOut.watch sets it for good
    return make_judged_course(tmp_path)


@pytest.fixture
def judged(monkeypatch):
    """The answers that were judged, by name."""
    names = []

    def judge(bench, candidate):
        names.append(str(candidate))
        return real(bench, candidate)

    real = try_out.judge
    monkeypatch.setattr(try_out, "judge", judge)
    return names


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_name_may_be_its_beginning():
    names = ["call-rooted", "call-unrooted", "call"]
    assert exercise_called("call", names) == "call"
    assert exercise_called("call-u", names) == "call-unrooted"
    with pytest.raises(BuildError, match="^'call-' could be call-rooted or call-unrooted$"):
        exercise_called("call-", names)
    with pytest.raises(BuildError, match="^there is no exercise called 'cal-rooted': did you mean 'call-rooted'?"):
        exercise_called("cal-rooted", names)
    with pytest.raises(
        BuildError, match="^there is no exercise called 'x': there are call-rooted, call-unrooted, call$"
    ):
        exercise_called("x", names)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["77"], "✗ there is no lesson called '77'; there are: 00_ranks, "),
        (
            ["01", "brodcast-by-hand"],
            "✗ there is no exercise called 'brodcast-by-hand': did you mean 'broadcast-by-hand'?",
        ),
    ],
)
def test_the_command_says_which_name_is_unknown(arguments, says, capsys):
    assert try_out.command(*arguments) == 1
    assert capsys.readouterr().out.startswith(says)


# ---- one round -------------------------------------------------------------------------------------------------------


def test_what_is_printed(course, capsys):
    assert TryOut("01", None, course).round()
    said = capsys.readouterr()
    assert said.err == "", "no bar where there is no terminal"
    assert "\x1b" not in said.out, "no colours either"
    lines = said.out.splitlines()
    heads = [" ".join(line.rpartition("  (")[0].split()) for line in lines if line.startswith("✓ add-one")]
    assert heads == [
        "✓ add-one · solution passes",
        "✓ add-one · blank not written",
        "✓ add-one · wrong: adds-two caught by the check of values",
        "✓ add-one · wrong: adds-nothing caught by the check of values",
        "✓ add-one · right: by-sum passes",
    ]
    assert "        rank 0 returned 3, expected 2" in lines, "what a student reads, indented"
    assert lines[-1].startswith("✓ 5 answers, all as they should be (")


def test_what_is_not_as_it_should_be_comes_last(course, capsys):
    (course / MUTANTS).write_text(ANSWERS.replace("return 2 + x", "return sum((1, x))").replace("returned 1", "ten"))
    assert not TryOut("01", "add", course).round()
    first, last = capsys.readouterr().out.split("\n\n", 1)
    assert "✗ add-one · wrong: adds-two" in first and "returned" not in first
    assert last.startswith("✗ add-one · wrong: adds-two: nothing catches it\n  Write a check that does; or ")
    assert "✗ add-one · wrong: adds-nothing: the message does not say 'ten'" in last
    assert "        rank 0 returned 1, expected 2\n\n✗ 2 not as they should be, of 5 answers" in last


def test_where_the_solution_fails_no_other_answer_is_judged(course, judged, capsys):
    (course / CHECKS).write_text(JUDGING.replace("expect(got, 2, rank=0)", "expect(gott, 2, rank=0)"))
    assert not TryOut("01", "add-one", course).round()
    said = capsys.readouterr().out
    assert f"✗ add-one · solution: the check itself fails: {CHECKS}:8: NameError: name 'gott'" in said
    assert "add-one: its 4 other answers are judged when the solution passes" in said
    assert "✗ 1 not as it should be, of 1 answer (" in said
    assert judged == ["solution"]


def test_a_fault_that_spoils_several_answers_is_explained_once(course, capsys):
    (course / CHECKS).write_text(JUDGING.replace("expect(got, 2, rank=0)", "if got != 2: return gott"))
    assert not TryOut("01", "add-one", course).round()
    said = capsys.readouterr().out
    assert said.count("NameError") == 1
    assert "✗ add-one · wrong: adds-two, add-one · wrong: adds-nothing: the check itself fails" in said
    assert "✗ 2 not as they should be, of 5 answers" in said


def test_what_build_would_refuse_is_said(course, capsys):
    (course / "solutions/01_tiny/lesson_01.py").write_text(TINY.replace("# ## Add one", "# Add one"))
    assert not TryOut("01", "add-one", course).round()
    *_, refused, end = capsys.readouterr().out.split("\n\n")
    assert refused.startswith(
        "`make build` will refuse the lesson until this is corrected:\n✗ solutions/01_tiny/lesson_01.py:15:"
    )
    assert end.startswith("✗ 5 answers, all as they should be; 1 other problem (")


ORACLE = """
from utils.checks.oracles import Case, oracle

@oracle(values=[()])
def add_one(draws):
    return Case([[1]], right=2, mistakes={"no 1 was added": 1, "one less": 0})
"""


BROKEN_ORACLES = {
    "an error of its own": (
        "    return Case",
        "    1 / 0\n    return Case",
        f"{CHECKS}:19: ZeroDivisionError: division by zero",
    ),
    "an argument short": ("draws)", "draws, size)", f"{CHECKS}:17: TypeError: add_one() missing 1 required positional"),
    "nothing to judge": (
        "values=",
        "traffic=[()], values=",
        f"{CHECKS}:17: TypeError: there are cases for its traffic",
    ),
}


@pytest.mark.parametrize("case", BROKEN_ORACLES)
def test_an_error_in_an_oracle_is_one_line_at_the_authors_place(course, capsys, case):
    old, new, says = BROKEN_ORACLES[case]
    if case == "nothing to judge":
        write_lesson(course, TINY.replace('judges="types"', 'judges="traffic"'))
    checks = JUDGING.replace('@check("add-one")\ndef add_one_values', "def unused") + ORACLE.replace(old, new)
    (course / CHECKS).write_text(checks)
    assert not TryOut("01", "add-one", course).round()
    said = capsys.readouterr().out
    assert f"\n✗ add-one · solution: the check itself fails: {says}" in said and "Traceback" not in said
    assert said.count("✗ add-one") == 2, "once above, once at the end"


def test_an_error_in_a_hidden_case_is_reported_at_the_hidden_test(course, capsys):
    hidden = "### BEGIN HIDDEN TESTS\nfrom utils.checks.oracles import vary\n\n"
    hidden += "hidden_add_one = vary(add_one, values=[(), (7,)])\n### END HIDDEN TESTS\n"
    visible = JUDGING.replace('@check("add-one")\ndef add_one_values', "def unused") + ORACLE
    (course / CHECKS).write_text(visible + hidden)
    assert not TryOut("01", "add-one", course).round()
    assert (
        "the check itself fails: solutions/01_tiny/checks_01.py:23: TypeError: add_one() takes 1"
        in capsys.readouterr().out
    )


def test_mistakes_that_no_answer_makes_are_listed(course, capsys):
    (course / CHECKS).write_text(JUDGING.replace('@check("add-one")\ndef add_one_values', "def unused") + ORACLE)
    (course / MUTANTS).write_text(ANSWERS.replace('"returned 1"', '"That is no 1 was added"'))
    assert TryOut("01", None, course).round()
    said = capsys.readouterr().out
    assert "No wrong answer makes these mistakes" in said and "  - one less\n" in said
    assert "- no 1 was added" not in said


def test_an_answer_to_no_exercise_and_a_second_one_are_problems(course, capsys):
    more = 'wrong("adds-2", "returned 3").body("return 2 + x")\nANSWERS.to("add-two")[1]("none").body("pass")\n'
    (course / MUTANTS).write_text(ANSWERS.replace("right(", f"{more}right("))
    assert not TryOut("01", "add-one", course).round()
    said = capsys.readouterr().out
    assert f"✗ {MUTANTS}:8: add-one/adds-2: this is the same code as add-one/adds-two\n" in said
    assert f"✗ {MUTANTS}:9: add-two/none: 01_tiny has no such exercise: did you mean 'add-one'?\n" in said
    assert "all as they should be; 2 other problems" in said


def test_only_what_can_have_changed_is_judged_again(course, judged):
    attempt = TryOut("01", None, course)
    attempt.round()
    assert len(judged) == 5
    judged.clear()
    attempt.round()
    assert judged == []
    (course / MUTANTS).write_text(ANSWERS.replace("return x", "return 0 + x"))
    attempt.round()
    assert judged == ["wrong: adds-nothing"]
    judged.clear()
    (course / CHECKS).write_text(f"{JUDGING}\n# the same, with a comment\n")
    attempt.round()
    assert len(judged) == 5


def test_a_save_in_the_middle_starts_over(course, judged):
    attempt = TryOut("01", None, course)
    assert not attempt.round(interrupted=lambda: len(judged) == 2)
    assert judged == ["solution", "blank"]
    assert attempt.round()
    assert len(judged) == 5


# ---- watching --------------------------------------------------------------------------------------------------------


@pytest.fixture
def author(monkeypatch) -> Callable[..., None]:
    """An author who saves files while `try` waits: author(save, save, ...). At the end they press Ctrl-C."""

    def author(*saves: Callable[[], object]) -> None:
        waits = iter([wait for save in saves for wait in (save, lambda: None)])  # files are at rest at the second look

        def sleep(_: float) -> None:
            next(waits, interrupt)()

        monkeypatch.setattr(try_out, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))

    return author


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_watching_judges_at_each_save_and_survives_errors(course, author, judged, capsys):
    write = (course / MUTANTS).write_text
    author(
        lambda: write(ANSWERS.replace("return x", "return 0 + x")),
        lambda: write(ANSWERS.replace("Answers()", "Answers(")),
        lambda: write(ANSWERS),
        lambda: write_lesson(course, TINY.replace("points=1.5", "points=many")),
        lambda: (course / "solutions/01_tiny/lesson_01.py").unlink(),
        lambda: write_lesson(course, TINY),
    )
    with pytest.raises(KeyboardInterrupt):
        TryOut("01", None, course).watch()
    assert len(judged) == 6, "nothing twice"
    said = capsys.readouterr().out.splitlines()
    told = [line.partition(" (")[0] for line in said if line.startswith(("saved", "waiting", "✗", "✓ 5"))]
    fine, waiting = "✓ 5 answers, all as they should be", "waiting for a save"
    assert told == [
        *(fine, waiting),
        *(f"saved: {MUTANTS}", fine, waiting),
        *(f"saved: {MUTANTS}", f"✗ {MUTANTS}:3: not Python: '(' was never closed", waiting),
        *(f"saved: {MUTANTS}", fine, waiting),
        "saved: solutions/01_tiny/lesson_01.py",
        "✗ solutions/01_tiny/lesson_01.py:22: points=many is not a number: write points=2",
        waiting,
        *(
            "saved: solutions/01_tiny/lesson_01.py",
            "✗ there is no lesson: solutions/ holds no NN_topic/lesson_NN.py",
            waiting,
        ),
        *("saved: solutions/01_tiny/lesson_01.py", fine, waiting),
    ]


def test_ctrl_c_ends_watching_with_0_and_judging_with_130(monkeypatch, capsys):
    monkeypatch.setattr(TryOut, "round", interrupt)
    assert try_out.command("01", watch=True) == 0
    assert try_out.command("01") == 130
    assert capsys.readouterr() == ("\nstopped\n\nstopped\n", "")


# ---- --notebook ------------------------------------------------------------------------------------------------------


def test_the_notebook_of_a_lesson_is_written_but_not_run(course):
    path, problems = preview.write_preview("01_tiny", course)
    assert path == course / "build/preview/01_tiny.ipynb" and not problems
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert 'hidden_tests_for("01_tiny")(add_one, judges="values")' in notebook.cells[4].source
    assert all(not cell.get("outputs") for cell in notebook.cells)


def test_the_notebook_of_an_unfinished_lesson_has_its_cells(course):
    write_lesson(course, TINY.replace("    return x + 1\n    ### END SOLUTION", "    return x +"))
    path, problems = preview.write_preview("01_tiny", course)
    assert [str(problem) for problem in problems] == [
        "solutions/01_tiny/lesson_01.py:18: BEGIN SOLUTION without an END: put ### END SOLUTION after the answer",
        "solutions/01_tiny/lesson_01.py:19: not Python: invalid syntax",
    ]
    notebook = nbformat.read(path, as_version=4)
    assert len(notebook.cells) == 7 and notebook.cells[3].source.startswith("def add_one(x):")
    assert notebook.metadata.kernelspec.name == "python3"


def test_a_lesson_that_no_reader_can_cut_is_refused(course):
    write_lesson(course, TINY.replace("points=2", 'tags="a"'))
    with pytest.raises(BuildError, match="lesson_01.py:25: points are missing"):
        preview.write_preview("01_tiny", course)


def test_jupyterlab_opens_on_the_notebook(course, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    preview.open_in_lab(course / "build/preview/01_tiny.ipynb", course)
    [(_, command, environment)] = calls
    assert "--LabApp.default_url=/lab/tree/build/preview/01_tiny.ipynb" in command
    assert f"--ServerApp.root_dir={course}" in command
    assert environment["PYTHONPATH"].startswith(str(course))
