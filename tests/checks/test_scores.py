"""utils/checks/scores.py: an answer is right first, then its score is held against par and the limit."""

import json
from dataclasses import replace

import pytest

from grader.hidden import hidden_tests_for
from utils.checks import CheckFailed, checks_for, frozen_cases
from utils.checks.answer import Answer
from utils.checks.frozen_cases import frozen_par, written_down
from utils.checks.oracles import Case, oracle, vary
from utils.checks.runner import Runner
from utils.checks.scores import VIRTUAL_TIME, Measure, Score, best_scores

RESULT = Measure(lambda answer: float(sum(answer.results)), "B", "in all")


def score(value: float, par: float = 300e-6, limit: float = 100e-6) -> Score:
    return Score(value, par, limit, VIRTUAL_TIME)


def failure(one: Score) -> CheckFailed:
    with pytest.raises(CheckFailed) as failed:
        one.judge()
    return failed.value


@oracle(score=[(3,)], par=lambda least: 4.0 * least)
def any_large_number(draws, least: int) -> Case:
    return Case([[least]], also=at_least(least), score=RESULT, limit=least)


def at_least(least: int):
    def judge(answer: Answer) -> None:
        if answer.results[0] < least:
            raise CheckFailed(f"{answer.results[0]} is too small")

    return judge


def test_par_passes_and_the_bar_shows_the_way_to_the_limit():
    assert score(300e-6).judge() == (
        "300 µs of virtual time\n  par 300 µs [░░░░░░░░░░░░░░░░░░░░] limit 100 µs: 0 % of the way"
    )
    assert "[██████████░░░░░░░░░░] limit 100 µs: 50 % of the way" in score(200e-6).judge()
    assert "[████████████████████] limit 100 µs: 100 % of the way" in score(100e-6).judge()
    assert "0 % of the way" in score(300e-6, limit=300e-6).judge(), "where par is the limit, there is no way to go"


def test_the_best_known_answer_is_a_mark_on_the_bar_and_all_of_the_way():
    def said(value):
        return replace(score(value), best=200e-6).judge().splitlines()[1:]

    assert said(250e-6) == [
        "  par 300 µs [█████░░░░░◆░░░░░░░░░] limit 100 µs",
        "  best known ◆ 200 µs: 50 % of the way to it",
    ]
    assert said(200e-6 * (1 + 1e-7)) == [
        "  par 300 µs [█████████░◆░░░░░░░░░] limit 100 µs",
        "  best known ◆ 200 µs: you have reached it",
    ]
    assert said(100e-6)[1] == "  best known ◆ 200 µs: yours is better"
    assert said(300e-6)[1] == "  best known ◆ 200 µs: 0 % of the way to it"
    assert replace(score(300e-6), best=300e-6).share == 1, "where par is the best that is known"


def test_the_best_known_scores_are_read_from_the_room(tmp_path):
    (tmp_path / "best_scores.json").write_text('{"any-large-number": [4.0]}')
    run = Runner(lambda least: least + 1)
    run.best = best_scores(tmp_path)["any-large-number"]
    [check] = any_large_number.checks()
    assert check(run).endswith("you have reached it")


def test_par_was_written_down_with_fewer_digits():
    assert score(300e-6 * (1 + 1e-6)).reaches_par and not score(300e-6 * 1.001).reaches_par


def test_worse_than_par_does_not_pass_and_better_than_the_limit_is_impossible():
    assert failure(score(450e-6)).saw == "the values are right; the score is 450 µs of virtual time"
    assert failure(score(450e-6)).mistake == "That is 1.5 times par. The hints of the exercise lead to par."
    assert not failure(score(450e-6)).impossible and failure(score(90e-6)).impossible


def test_an_answer_must_be_right_before_it_is_scored():
    [check] = any_large_number.checks()
    run = Runner(lambda least: least - 1)
    with pytest.raises(CheckFailed, match="2 is too small"):
        check(run)
    assert run.scores == []
    run = Runner(lambda least: 2 * least)
    assert "par 12 B" in check(run)
    assert [(one.value, one.par, one.limit) for one in run.scores] == [(6.0, 12.0, 3)]


def test_a_score_is_measured_once():
    measured = []
    counting = Measure(lambda answer: float(measured.append(answer) or 12), "B", "in all")
    [check] = oracle(score=[()], par=lambda: 12.0)(lambda draws: Case([[1]], score=counting, limit=3)).checks()
    check(Runner(lambda one: one))
    assert len(measured) == 1, "a measurement can be a run of seconds"


def test_a_challenge_without_par_is_its_authors_mistake():
    [check] = replace(any_large_number, par=None).checks()
    with pytest.raises(TypeError, match="par is not known"):
        check(Runner(lambda least: least))


def test_par_is_computed_where_it_is_hidden_and_only_looked_up_by_the_visible_check(tmp_path):
    visible = replace(any_large_number, par=frozen_par(tmp_path, "any-large-number"))
    hidden = vary(visible, par=lambda least: 2 * least, score=[(5,)])
    text = written_down([vary(visible, par=lambda least: 2 * least + 1 / 3)])
    (tmp_path / frozen_cases.FILE).write_text(text)
    assert json.loads(text) == {"any-large-number": {"par": {"(3,)": 6.333333}}}, "nothing else is given away"
    [check], [hidden_check] = visible.checks(), hidden.checks()
    assert "par 6.333 B" in check(Runner(lambda least: least + 1))
    assert "par 10 B" in hidden_check(Runner(lambda least: least + 1))
    [other] = replace(visible, cases={"score": [(4,)]}).checks()
    with pytest.raises(ValueError, match=r"in the case \(4,\) is not recorded: run `make build`"):
        other(Runner(lambda least: least))


def test_the_extra_credit_is_only_shown_to_the_reader_of_the_notebook(capsys):
    """Both in a notebook and in grading, where the visible call is made with it and the hidden one without."""
    assert ("mixed-sizes", "score") in checks_for("02_all_reduce").checks
    assert ("mixed-sizes", "score") in hidden_tests_for("02_all_reduce").checks
    with pytest.raises(CheckFailed, match="Not written yet"):
        checks_for("02_all_reduce")(mixed_sizes, judges="score", extra_credit=3)


def mixed_sizes(xs, rank, world_size, local):
    raise NotImplementedError
