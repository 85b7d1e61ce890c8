"""JAX in lesson 13, without JAX."""

from __future__ import annotations

import math
import re
from types import FunctionType

import pytest

from grader.authoring.lesson import ROOT
from tests.graded import lesson
from utils.kit import stored_jax


def test_without_jax_the_stored_value_comes_back_with_a_word_on_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(stored_jax, "find_spec", lambda name: None)

    def conversions(jax):
        pytest.fail("it is not called")

    found = stored_jax.from_jax(conversions)
    assert "all-gather(" in found["S0 R"][0]
    assert "make jax" in capsys.readouterr().out


def test_all_that_the_lesson_asks_for_is_stored(monkeypatch):
    monkeypatch.setattr(stored_jax, "find_spec", lambda name: None)
    text = (ROOT / "solutions/13_declarative_sharding/lesson_13.py").read_text(encoding="utf-8")
    names = re.findall(r"from_jax\((\w+)\)", text)
    assert len(names) == 4
    for name in names:
        assert stored_jax.from_jax(FunctionType((lambda jax: None).__code__, {}, name))


def read_hlo(text):
    """By the lesson's solution."""
    namespace = {"re": re, "math": math}
    exec(lesson("13_declarative_sharding").exercises["read-hlo"].source, namespace)
    return namespace["read_hlo"](text)


def test_the_stored_programs_are_read(monkeypatch):
    """Two of the three forms of groups: all one by one, and a mesh whose axes XLA has named."""
    monkeypatch.setattr(stored_jax, "find_spec", lambda name: None)

    def stored(name):
        return stored_jax.from_jax(FunctionType((lambda jax: None).__code__, {}, name))

    assert read_hlo("\n".join(stored("opening"))) == [("all-to-all", 4 * 16 * 8 * 4, 4)]
    assert read_hlo(stored("conversions")["S0 R"][0]) == [("all-gather", 256, 4)]
    assert read_hlo(stored("strategies")["data parallel"][0]) == [("all-reduce", 2 * 64 * 16 * 4, 4)]
    assert read_hlo(stored("types_and_errors")["psum_scatter in shard_map"]) == [("reduce-scatter", 256, 8)]


@pytest.mark.parametrize(
    ("groups", "n"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),  # in all versions
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['x'=2,'y'=4] {'y'}", 4),  # 0.12: the program's own names
        ("mesh['x'=2,'y'=4] {'x','y'}", 8),
    ],
)
def test_all_forms_of_groups_are_read(groups, n):
    line = f"%all-gather = f32[16,16]{{1,0}} all-gather(%param), replica_groups={groups}, dimensions={{0}}"
    assert read_hlo(line) == [("all-gather", 1024 // n, n)]
