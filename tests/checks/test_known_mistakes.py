"""utils/checks/known_mistakes.py and fingerprints.py: an answer that fails as a wrong one did gets its sentence."""

import math

import pytest
import torch

from utils.checks import CheckFailed
from utils.checks.answer import Outcome
from utils.checks.fingerprints import agree, fingerprint, fits, is_telling
from utils.checks.inputs import Draws
from utils.checks.known_mistakes import KnownMistakes, sentences, written_down
from utils.checks.oracles import Case, oracle
from utils.checks.registry import Checks
from utils.checks.runner import Runner
from utils.cluster.hardware import links

X = torch.tensor([1.5, 2.25, -3.125, 4.0], dtype=torch.float64)
TINY = 1e-7  # below the error with which mistakes are recognised


# ---- fingerprints


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (X, X.flip(0)),
        (X, X.reshape(2, 2)),
        (X, X * (1 + 1e-5)),
        (torch.tensor([1, 2, 3, 4]), torch.tensor([2, 1, 4, 3])),
        (torch.tensor([1.0, torch.nan, 2.0]), torch.tensor([torch.nan, 1.0, 2.0])),
        ([1, [2, 3]], [[1, 2], 3]),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        ("cpu", "cuda"),
        (None, 0),
        (True, 1),
    ],
    ids=str,
)
def test_a_fingerprint_tells_values_apart(value, other):
    assert fits(fingerprint(value), value, 1e-6)
    assert not fits(fingerprint(value), other, 1e-6) and not agree(fingerprint(value), fingerprint(other))


def test_a_fingerprint_fits_but_for_rounding_and_dtype():
    assert fits(fingerprint(X), X.float() * (1 + TINY), 1e-6)
    assert not fits(fingerprint(X), X * (1 + TINY)), "where numbers are exact"
    assert fits(fingerprint(torch.tensor([1, 2])), torch.tensor([1.0, 2.0]))
    assert agree(fingerprint(X), fingerprint(X * (1 + TINY)))


@pytest.mark.parametrize("value", [X, 0.123456, [3, 1, 4, 5]], ids=str)
def test_a_value_tells_how_it_came_about(value):
    assert is_telling(value)


@pytest.mark.parametrize(
    "value", [None, "no", 3, 0.25, 1e9, torch.zeros(9), torch.tensor([1.0, torch.inf]), [0, 1, 1, 0], X[:0]], ids=str
)
def test_a_value_that_can_be_what_it_is_by_chance_tells_nothing(value):
    assert not is_telling(value)


# ---- which sentences fit


def outcome(*wrong, case=0, inputs=0, place=(0, ""), rtol=1e-9, right=None) -> Outcome:
    """What ranks returned, in one part each; or {place: what was there}."""
    places = wrong[0] if isinstance(wrong[0], dict) else {(rank, ""): got for rank, got in enumerate(wrong)}
    return Outcome(case, inputs, {at: (got, right) for at, got in places.items()}, place, rtol)


def known(**of_sentences: Outcome) -> list:
    return [(words, written_down(one)) for words, one in of_sentences.items()]


def test_the_whole_outcome_comes_first_and_all_that_fit_are_said():
    answers = known(mean=outcome(X, X), own=outcome(X, 2 * X), own_again=outcome(X, 2 * X))
    assert sentences(answers, outcome(X, 2 * X)) == ["own", "own_again"]
    assert sentences(answers, outcome(X.float(), X * (1 + TINY))) == ["mean"]


def test_a_part_counts_on_all_ranks_or_at_least_on_the_one_that_is_shown():
    both = {(0, "y"): X, (1, "y"): 2 * X, (0, "grad"): -X}
    rank_0 = {(0, "y"): X, (1, "y"): X, (0, "grad"): X}
    answers = known(both=outcome(both), rank_0=outcome(rank_0))
    assert sentences(answers, outcome({(0, "y"): X, (1, "y"): 2 * X}, place=(0, "y"))) == ["both"]
    assert sentences(answers, outcome({(0, "y"): X, (1, "y"): 3 * X}, place=(0, "y"))) == ["both", "rank_0"]
    assert sentences(answers, outcome({(0, "grad"): -X}, place=(0, "grad"))) == ["both"]
    assert sentences(answers, outcome({(0, "y"): X, (1, "y"): 2 * X}, place=None)) == [], "nothing is shown"


def test_a_part_that_can_be_chance_is_no_evidence_but_the_whole_is():
    answers = known(zero=outcome(torch.zeros(3), X))
    assert sentences(answers, outcome(torch.zeros(3), 2 * X)) == []
    assert sentences(answers, outcome(torch.zeros(3), X)) == ["zero"]


def test_nothing_is_named_on_other_inputs_or_in_another_case():
    answers = known(own=outcome(X, inputs=[X]))
    assert sentences(answers, outcome(X, inputs=[X])) == ["own"]
    assert sentences(answers, outcome(X, inputs=[-X])) == sentences(answers, outcome(X, inputs=[X], case=1)) == []


def test_a_value_that_is_right_in_another_type_has_no_mistake():
    answers = known(rounded=outcome(X * (1 + 1e-8), right=X))
    assert sentences(answers, outcome(X.float(), right=X)) == []
    assert sentences(answers, outcome(X * (1 + 1e-8), right=X)) == ["rounded"]
    assert sentences(answers, outcome(X * (1 + 2e-8), right=X)) == [], "nearly right: the check's own tolerance counts"


def test_floats_that_another_processor_rounds_differently_are_named_where_a_check_is_exact():
    answers = known(shifted=outcome(X, rtol=0, right=2 * X), whole=outcome([3, 1, 400_001, 5], rtol=0))
    assert sentences(answers, outcome(X * (1 + TINY), rtol=0, right=2 * X)) == ["shifted"]
    assert sentences(answers, outcome(X * (1 + TINY), rtol=0, right=X * (1 + 2 * TINY))) == [], "nearly right"
    assert sentences(answers, outcome([3, 1, 400_000, 5], rtol=0)) == [], "whole numbers are exact"


def test_what_differs_between_two_runs_tells_nothing():
    first = written_down(outcome(X, 2 * X))
    confirmed = first.confirmed_by(outcome(X, 3 * X))
    assert confirmed.wrong[1, ""] == "" and confirmed.wrong[0, ""] == first.wrong[0, ""]
    assert sentences([("races", confirmed)], outcome(X, 5 * X)) == ["races"]
    assert sentences([("races", confirmed)], outcome(-X, 5 * X)) == []
    mistakes = KnownMistakes()
    for again in (outcome(-X, 3 * X), outcome(X, 2 * X, case=1), outcome(X, inputs=1), None):
        mistakes.add("sum-up", "values", "all differs", first.confirmed_by(again))
    assert mistakes.text() == ""


# ---- the file


def test_a_file_holds_all_and_no_value(tmp_path):
    mistakes = KnownMistakes()
    mistakes.add("sum-up", "values", "the mean", written_down(outcome({(0, "y"): X, (1, "the sum"): X}, case=1)))
    mistakes.add("sum-up", "values", "the average", written_down(outcome({(1, "the sum"): X, (0, "y"): X}, case=1)))
    mistakes.add("sum-up", "traffic", "two calls", written_down(outcome([("all_reduce", 8)] * 2)))
    (tmp_path / "01_sums.json").write_text(mistakes.text())
    again = KnownMistakes.read(tmp_path / "01_sums.json")
    assert again.known == mistakes.known and again.of("sum-up", "time") == []
    assert list(again.not_told_apart()) == [("sum-up", "the mean", "the average")]
    assert "2.25" not in mistakes.text()
    assert KnownMistakes.read(tmp_path / "02_none.json").text() == ""


# ---- checks


@oracle(values=[(2,), (3,)], traffic=[(2,)])
def sum_up(draws: Draws, n: int) -> Case:
    xs = [float(x) for x in torch.rand(n, generator=draws.generator(), dtype=torch.float64)]
    return Case([[xs]], right=sum(xs), rtol=1e-9, cluster=links(1, 0.0, math.inf), traffic=no_traffic)


def no_traffic(answer):
    if answer.events:
        raise CheckFailed("it calls", mistake="None is needed.")


def lesson(*known: tuple[str, str, object]) -> Checks:
    """A lesson of this one exercise that knows wrong answers: (sentence, what is judged, the answer)."""
    checks = Checks.__new__(Checks)
    checks.checks = {(one.exercise, one.judges): one for one in sum_up.checks()}
    checks.hidden, checks.known, checks.best = False, KnownMistakes(), {}
    for words, judges, answer in known:
        checks.known.add("sum-up", judges, words, written_down(failure(checks, answer, judges).outcome))
    return checks


def failure(checks: Checks, answer, judges: str = "values", salt: int = 0) -> CheckFailed:
    def runner(*about):
        run = Runner(*about)
        run.draws = Draws(salt)
        runs.append(run)
        return run

    runs: list[Runner] = []
    answer.__name__ = "sum_up"
    with pytest.raises(CheckFailed) as failed:
        checks.judge(answer, judges, runner)
    failed.value.draws = runs[0].draws
    return failed.value


def mean(xs):
    return sum(xs) / len(xs)


def mean_of_three(xs):
    return sum(xs) / (len(xs) if len(xs) == 3 else 1)


def test_a_check_says_the_sentence_of_a_wrong_answer():
    checks = lesson(("the mean: add alone", "values", mean))
    assert failure(checks, lambda xs: sum(xs) / 2).mistake == "That is the mean: add alone."
    assert failure(checks, lambda xs: 7.0).mistake == ""


def test_where_inputs_are_drawn_it_looks_at_those_of_a_notebook_for_the_words_alone():
    checks = lesson(("the mean: add alone", "values", mean), ("the mean of three", "values", mean_of_three))
    failed = failure(checks, mean, salt=5)
    assert failed.mistake == "That is the mean: add alone." and failed.draws == Draws(5)
    first = sum_up.drawn(Draws(5), (2,))
    assert failed.outcome.inputs[0] == first.inputs
    assert failure(checks, mean_of_three, salt=5).mistake == "That is the mean of three."


def test_an_answer_that_is_right_in_a_notebook_keeps_what_the_check_says():
    checks = lesson(("the mean: add alone", "values", mean))
    seen = [sum_up.drawn(Draws(), case).right for case in ((2,), (3,))]
    assert (
        failure(checks, lambda xs: sum(xs) if sum(xs) in seen else 2 * sum(xs), salt=5).mistake
        == "That is 2 times the right one."
    )


def test_other_judgements_are_named_as_a_whole():
    def twice(xs):
        import torch.distributed as dist

        dist.all_reduce(torch.ones(2))
        return sum(xs)

    checks = lesson(("a call that nobody needs: the numbers are here", "traffic", twice))
    assert failure(checks, twice, "traffic").mistake == "That is a call that nobody needs: the numbers are here."


def test_an_exception_keeps_its_advice():
    def fails(xs):
        raise KeyError(0)

    failed = failure(lesson(("the mean", "values", mean)), fails, salt=5)
    assert failed.outcome is None and failed.mistake == ""
