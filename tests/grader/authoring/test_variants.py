"""`grader.authoring.variants`: how answers are written into a cell, and what is reported about ones that don't fit."""

import textwrap
from pathlib import Path

import pytest

from grader.authoring.lesson import Exercise, Lesson
from grader.authoring.variants import Answers, Variant, read_answers

SOURCE = '''\
def sum_by_hand(x: Tensor, others: list[int]) -> Tensor:
    """Add what arrives: total += arrived."""
    total, arrived = x.clone(), torch.empty_like(x)
    ### BEGIN SOLUTION
    for other in others:  # in the order of the ranks
        dist.recv(arrived, src=other)
        total += arrived
    ### END SOLUTION
    return total
'''
LESSON = Lesson(
    Path("solutions/07_sums/lesson_07.py"),
    (),
    {"sum-by-hand": Exercise("sum-by-hand", SOURCE, 1, difficulty=2, minutes=10)},
)


def written(give) -> str:
    """The cell's code below its first line with the answer that `give` makes of an empty one."""
    variant = Variant("sum-by-hand", "another")
    give(variant)
    return textwrap.dedent(variant.apply(SOURCE).partition("\n")[2]).strip()


@pytest.fixture
def answers() -> Answers:
    return Answers()


def test_text_is_replaced_in_the_code_but_not_in_docstrings_and_comments():
    code = written(lambda answer: answer.replace("total += arrived", "total = arrived").replace("other", "one"))
    assert code.split("\n") == [
        "total, arrived = x.clone(), torch.empty_like(x)",
        "for one in ones:",
        "    dist.recv(arrived, src=one)",
        "    total = arrived",
        "return total",
    ]


def test_text_outside_the_region_is_replaced_too():
    assert "total, arrived = x, torch" in written(lambda answer: answer.replace("x.clone()", "x"))


def test_later_lines_are_indented_relative_to_the_first():
    code = written(
        lambda answer: answer.replace("recv(arrived, src=other)\ntotal", "recv(arrived)\nif other:\n    total")
    )
    assert "    dist.recv(arrived)\n    if other:\n        total += arrived\n" in code


def test_a_body_takes_the_place_of_the_region():
    code = written(lambda answer: answer.body("dist.all_reduce(total)"))
    assert code.endswith("torch.empty_like(x)\ndist.all_reduce(total)\nreturn total")


def test_a_cell_takes_the_place_of_the_cell():
    assert (
        written(lambda answer: answer.cell("\n    def sum_by_hand(x, others):\n        return x\n    ")) == "return x"
    )


def test_a_function_keeps_its_first_line_and_nothing_else():
    code = written(
        lambda answer: answer.function("""
        dist.all_reduce(x)
        return x
    """)
    )
    assert code == "dist.all_reduce(x)\nreturn x"


def test_an_answer_can_start_from_another_one(answers):
    wrong, _ = answers.to("sum-by-hand")
    whole = wrong("whole", "")
    whole.function("dist.all_reduce(x)\nreturn x")
    assert written(lambda answer: answer.like(whole).replace("return x", "return 2 * x")).endswith("return 2 * x")
    wrong("same", "").like(whole)
    [problem] = answers.problems(LESSON)
    assert problem.startswith("sum-by-hand/same: say how it differs")


@pytest.mark.parametrize(
    "give, says",
    [
        (
            lambda answer: answer.replace("total += arived", "pass"),
            "the solution has changed: 'total += arived' is not in it; the nearest line is 'total += arrived'",
        ),
        (lambda answer: answer.replace("dist.recv(arrived, src=other)\n    total", "pass"), "the solution has changed"),
        (lambda answer: answer.replace("in the order of the ranks", "in any order"), "the solution has changed"),
        (lambda answer: answer.replace("total += arrived", "total += arrived  # add"), "this is the solution"),
        (lambda answer: answer.body("total +="), "this isn't Python"),
        (lambda answer: None, "say how it differs"),
        (lambda answer: answer.replace("total", "x").body("pass"), "say how it differs"),
    ],
)
def test_an_answer_that_does_not_fit_is_reported_by_name(answers, give, says):
    _, right = answers.to("sum-by-hand")
    give(right("a-name"))
    (problem,) = answers.problems(LESSON)
    assert problem.startswith(f"sum-by-hand/a-name: {says}")


def test_an_answer_like_one_that_is_not_python_is_reported_too(answers):
    wrong, _ = answers.to("sum-by-hand")
    wrong("broken", "").body("total +=")
    wrong("like-it", "").like(answers.wrong[0]).replace("+=", "-=")
    assert [problem.partition(" isn't")[0] for problem in answers.problems(LESSON)] == [
        "sum-by-hand/broken: this",
        "sum-by-hand/like-it: this",
    ]


def test_names_are_given_once(answers):
    wrong, right = answers.to("sum-by-hand")
    wrong("a-name", "").body("total = x")
    right("a-name").body("dist.all_reduce(total)")
    assert list(answers.problems(LESSON)) == ["sum-by-hand/a-name: 2 answers have this name"]


def test_an_unknown_exercise_is_reported_with_the_nearest(answers):
    answers.to("sum-by-hnad")[0]("a-name", "").body("pass")
    says = "sum-by-hnad/a-name: 07_sums has no such exercise: did you mean 'sum-by-hand'?"
    assert list(answers.problems(LESSON)) == [says]


def test_two_answers_with_the_same_code_are_reported(answers):
    wrong, right = answers.to("sum-by-hand")
    wrong("one", "").replace("total += arrived", "total = arrived")
    wrong("two", "").body("for other in others:\n    dist.recv(arrived, src=other)\n    total = (arrived)")
    assert list(answers.problems(LESSON)) == ["sum-by-hand/two: this is the same code as sum-by-hand/one"]
    wrong("three", "", caught_by="traffic").replace("total += arrived", "total = arrived")
    assert len(list(answers.problems(LESSON))) == 1, "two checks may catch the same code"
    right("four").replace("total += arrived", "total = arrived")
    assert len(list(answers.problems(LESSON))) == 4, "but it can't be right and wrong"


def test_answers_are_read_from_a_file(tmp_path):
    path = tmp_path / "07_sums.py"
    path.write_text(
        "from grader.authoring.variants import Answers\n"
        "ANSWERS = Answers()\n"
        'wrong, right = ANSWERS.to("sum-by-hand")\n'
        'wrong("overwrites", "add, don\'t overwrite", hidden=True).replace("+=", "=")\n'
        'right("by-the-library").body("dist.all_reduce(total)")\n'
    )
    answers = read_answers(path)
    (mutant,), (variant,) = answers.wrong, answers.right
    assert (mutant.name, mutant.says, mutant.caught_by, mutant.hidden) == (
        "overwrites",
        "add, don't overwrite",
        "values",
        True,
    )
    assert str(variant) == "sum-by-hand/by-the-library"
    assert list(answers.problems(LESSON)) == []
