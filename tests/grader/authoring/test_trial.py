"""grader/authoring/trial.py and workbench.py: what an answer gets, beside what it should get."""

import pytest

from grader.authoring.lesson import BuildError
from grader.authoring.trial import Candidate, candidates, judge
from grader.authoring.variants import Mutant, Variant
from grader.authoring.workbench import Way, Workbench
from tests.grader.authoring.tiny_lesson import HIDDEN, JUDGING, TINY, make_judge, make_judged_course, write_lesson


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Workbench.load("01_tiny", make_judged_course(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # files change within a second
    return make_judged_course(tmp_path)


def wrong(body: str, says: str = "returned", caught_by: str = "values", hidden: bool = False) -> Candidate:
    mutant = Mutant("add-one", "mine", says, caught_by, hidden)
    mutant.body(body)
    return Candidate("add-one", "wrong", mutant)


# ---- as it should be -------------------------------------------------------------------------------------------------


def test_all_answers_to_a_lesson_get_what_they_should(bench):
    found = {str(one): judge(bench, one) for one in candidates(bench)}
    assert list(found) == ["solution", "blank", "wrong: adds-two", "wrong: adds-nothing", "right: by-sum"]
    assert [result.problem for result in found.values()] == [""] * 5
    assert found["solution"].words == found["right: by-sum"].words == ""
    assert "Not written yet" in found["blank"].words
    first, *others = found["wrong: adds-two"].words.splitlines()
    assert first.split() == ["add-one", "·", "values", "not", "passed"]
    assert others == ["  rank 0 returned 3, expected 2"]


def test_what_ranks_print_is_dropped(bench, capfd):
    assert not judge(bench, wrong("print('aloud')\nreturn x")).problem
    assert "aloud" not in capfd.readouterr().out


# ---- not as it should be ---------------------------------------------------------------------------------------------

ONLY_SMALL = "return x + 1 if x < 3 else x"
NOT_AS_IT_SHOULD_BE = {
    "nothing catches it": (wrong("return sum((x, 1))"), "nothing catches it", "list it with `right`"),
    "another check": (
        wrong("return x", caught_by="types"),
        "the check of values catches it, not the check of types",
        'Write caught_by="values"',
    ),
    "the hidden test": (
        wrong(ONLY_SMALL),
        "the hidden test of values catches it, not the check of values",
        'Write caught_by="values", hidden=True',
    ),
    "the visible check too": (
        wrong("return x", hidden=True),
        "the check of values catches it already",
        "Drop hidden=True",
    ),
    "other words": (
        wrong("return x", "add one"),
        "the message does not say 'add one'",
        "Correct the check, or the words",
    ),
    "no such check": (
        wrong("return x", caught_by="types", hidden=True),
        "it names the hidden test of types, but there is the check of values and the hidden",
        "Name a check that there is",
    ),
    "an answer that doesn't run": (wrong("return ="), "it can't be judged: add-one/mine: this isn't Python", "Correct"),
    "a right answer": (
        Candidate("add-one", "right", Variant("add-one", "mine", whole_body="return x")),
        "the check of values refuses it",
        "Correct the check; or this answer",
    ),
}


@pytest.mark.parametrize("case", NOT_AS_IT_SHOULD_BE)
def test_what_is_not_as_it_should_be_is_told_apart(bench, case):
    candidate, problem, advice = NOT_AS_IT_SHOULD_BE[case]
    result = judge(bench, candidate)
    assert problem in result.problem and advice in result.advice


def test_a_hidden_test_that_gives_away_what_is_expected(course):
    tell = "from utils.checks.answer import CheckFailed\n    raise CheckFailed(f'rank 0 returned {got}, expected 6')"
    (course / "solutions/01_tiny/checks_01.py").write_text(JUDGING + HIDDEN.replace("expect(got, 6, rank=0)", tell))
    result = judge(Workbench.load("01_tiny", course), wrong(ONLY_SMALL, hidden=True))
    assert result.problem == "its message gives away what is expected" and "expected 6" in result.words


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        ("pass", "the check of values passes it"),
        (
            "expect(run(1, [1], catch=Exception).results, [2], rank=0)",
            "the check of values does not say 'Not written yet'",
        ),
    ],
)
def test_a_check_that_does_not_see_that_nothing_is_written(course, check, problem):
    text = JUDGING.replace("[got] = run(1, [1]).results\n    expect(got, 2, rank=0)", check)
    (course / "solutions/01_tiny/checks_01.py").write_text(text)
    assert judge(Workbench.load("01_tiny", course), Candidate("add-one", "blank")).problem == problem


# ---- the three files -------------------------------------------------------------------------------------------------


def test_files_are_read_again(course):
    passes = []
    for step in range(3):
        if step == 1:
            (course / "solutions/01_tiny/checks_01.py").write_text(JUDGING.replace("expect(got, 2", "expect(got, 3"))
        if step == 2:
            write_lesson(course, TINY.replace("return x + 1\n", "return x + 2\n"))
        bench = Workbench.load("01_tiny", course)
        passes.append(bench.judge(bench.answer("add-one"), "add-one", Way("values")).passed)
    assert passes == [True, False, True]


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("lesson", "return x + 1", "return x +", "solutions/01_tiny/lesson_01.py:19: not Python"),
        (
            "lesson",
            "# %%\ndef check",
            "# %%\nchek\ndef check",
            "solutions/01_tiny/lesson_01.py:8: NameError: name 'chek'",
        ),
        ("checks", "import check", "import chek", "solutions/01_tiny/checks_01.py:2: ImportError"),
        (
            "checks",
            "hidden_add_one_values(run)",
            "hidden_add_one_values(run",
            "solutions/01_tiny/checks_01.py:19: not Python",
        ),
        ("answers", "Answers()", "Answer()", "solutions/01_tiny/answers_01.py:3: NameError: name 'Answer'"),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_line(course, file, old, new, says):
    path = course / f"solutions/01_tiny/{file}_01.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(BuildError) as caught:
        Workbench.load("01_tiny", course)
    assert str(caught.value).startswith(says)


def test_the_checks_are_needed_and_the_hidden_tests_are_not(course):
    make_judge(course)
    assert Workbench.load("01_tiny", course).ways("add-one") == [Way("values"), Way("types")]
    (course / "solutions/01_tiny/checks_01.py").unlink()
    with pytest.raises(BuildError, match="solutions/01_tiny/checks_01.py:1: there is no such file"):
        Workbench.load("01_tiny", course)
