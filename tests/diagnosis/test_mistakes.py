"""Every mistake in mistakes.py is reported as it says there, at once: a timeout would be another error."""

import inspect
import re

import pytest

from utils import RankCrashed, RankError, RankTimeout, SilentMistake, simulate, spawn

from .mistakes import MISTAKES, REAL, as_many_numbers_in_another_order

pytestmark = pytest.mark.long

WORLDS = {"spawn": spawn, "simulate": simulate}
CASES = [
    pytest.param(mistake, world, id=f"{mistake}-{world}")
    for world in WORLDS
    for mistake in MISTAKES
    if world in mistake.worlds
]


@pytest.fixture(scope="module", autouse=True)
def a_call_before():
    spawn(lambda rank, n: None, 4)


@pytest.mark.parametrize("mistake, world", CASES)
def test_a_mistake_is_reported(mistake, world):
    error = mistake.errors[world]
    patience = {} if world == "simulate" else {"timeout": 1 if error is RankTimeout else 30}

    with pytest.raises(error) as caught:
        WORLDS[world](mistake.program, mistake.world_size, **patience)
    report, kind = str(caught.value), type(caught.value)
    assert kind is error or (error is RankError and kind is not RankTimeout)
    assert not [words for words in mistake.words if words not in report], report
    if mistake.says:
        assert report.split("\n\n")[0 if error is RankCrashed else -1] == mistake.says
    assert error is RankTimeout or "have not finished" not in report
    assert "say how long" not in report


def test_a_silent_mistake_keeps_the_results_and_shows_both_lines():
    with pytest.raises(SilentMistake) as caught:
        spawn(as_many_numbers_in_another_order, 2)
    report = str(caught.value)
    assert report.startswith("every rank finished, but the values can't be trusted.\n  rank 0  all_reduce")
    assert report.count("dist.all_reduce(x)") == 2
    assert caught.value.results == [None, None] and len(caught.value.events) == 4


def test_there_are_enough_and_each_from_elsewhere_names_its_source():
    sources = [inspect.getdoc(mistake.program) for mistake in MISTAKES if mistake.words]
    assert len(sources) >= 30 and all(re.search(r"https?://\w", source) for source in sources)
    assert len({str(mistake) for mistake in MISTAKES}) == len(MISTAKES)
    assert any(mistake.worlds != REAL for mistake in MISTAKES)
