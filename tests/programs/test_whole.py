"""Whole programs as people write them, unchanged in `spawn` and in `simulate`: every value is the same to the last bit.

Each is a file in whole/, written afresh, whose docstring names the public program of its kind. Sums of more than two
floats depend on their order, which is the backend's choice, so no group that adds up has more than two members.
"""

import importlib
from functools import partial
from pathlib import Path

import pytest
import torch

from utils import simulate, spawn

FOLDER = Path(__file__).parent / "whole"
PROGRAMS = sorted(path.stem for path in FOLDER.iterdir() if not path.stem.startswith("_"))
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::FutureWarning")]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_worlds_give_the_same_values(name, tmp_path):
    program = importlib.import_module(f"tests.programs.whole.{name}")
    results = []
    for world in (spawn, partial(simulate, device="cpu")):
        folder = tmp_path / str(len(results))
        folder.mkdir()
        results.append(world(program.main, program.WORLD_SIZE, str(folder)).results)
    assert same(*results), f"spawn: {results[0]}\nsimulate: {results[1]}"


def test_there_are_enough_of_them_and_each_names_its_source():
    assert len(PROGRAMS) >= 12
    for name in PROGRAMS:
        assert "The kind of " in importlib.import_module(f"tests.programs.whole.{name}").__doc__
