"""JAX in lesson 13, without JAX."""

from __future__ import annotations

import re
from types import FunctionType

import pytest

from grader.authoring.lesson import ROOT
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
