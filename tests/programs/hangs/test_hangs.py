"""Hangs of other people's programs are explained; programs that are only slow are never accused."""

import inspect
import re

import pytest

from utils import RankTimeout, simulate, spawn

from .hangs import HANGS, REAL
from .slow import SLOW

pytestmark = pytest.mark.long

PATIENCE = {"spawn": {"timeout": 30}, "simulate": {}}
WORLDS = {"spawn": spawn, "simulate": simulate}
CASES = [pytest.param(hang, world, id=f"{hang}-{world}") for world in WORLDS for hang in HANGS if world in hang.worlds]


@pytest.mark.parametrize("hang, world", CASES)
def test_a_hang_is_explained(hang, world):
    patience = {"timeout": 1} if hang.error is RankTimeout else PATIENCE[world]
    with pytest.raises(hang.error) as caught:
        WORLDS[world](hang.program, hang.world_size, **patience)
    assert hang.error is RankTimeout or type(caught.value) is not RankTimeout
    report = str(caught.value)
    for words in hang.words:
        assert words in report, report
    assert "have not finished" not in report or hang.error is RankTimeout
    assert "say how long" not in report


@pytest.mark.parametrize("program, world_size", SLOW)
def test_a_slow_program_is_not_accused(program, world_size):
    run = spawn(program, world_size, timeout=30)
    assert run.results == ["right"] * world_size


def test_there_are_enough_and_each_names_its_source():
    assert len(HANGS) >= 30 and len(SLOW) >= 10
    programs = [hang.program for hang in HANGS] + [slow.values[0] for slow in SLOW]
    assert all(re.search(r"https?://\w", inspect.getdoc(program)) for program in programs)
    assert len({program.__name__ for program in programs}) == len(programs)
    assert any(hang.worlds != REAL for hang in HANGS)
