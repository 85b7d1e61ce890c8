"""Names of files and modules that are written as text, where no import would reveal that one is wrong."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import torch

from grader.judging import rank_host
from utils import RankFailed, simulate, spawn
from utils.kit import functional_collectives, gpu_topology
from utils.text.source_lines import is_students
from utils.worlds.real import rank_process
from utils.worlds.real.world import RealWorld
from utils.worlds.real.zygote.client import IN_ZYGOTE, zygote
from utils.worlds.virtual.world import VirtualWorld

ROOT = Path(__file__).resolve().parent.parent
MAKEFILES = ["Makefile", "grader/bundle/Makefile"]


def modules_of_makefiles() -> list[tuple[str, str]]:
    found = [
        (name, module)
        for name in MAKEFILES
        for module in re.findall(r"\$\(run\) -m ([\w.]+)", (ROOT / name).read_text())
    ]
    return sorted(set(found))


@pytest.mark.parametrize("makefile, module", modules_of_makefiles())
def test_modules_that_makefiles_run_exist(makefile, module):
    assert importlib.util.find_spec(module), f"{makefile} runs `-m {module}`"


def modules_of_warm_up() -> tuple[str, ...]:
    """Read, not imported: importing it patches torch for good."""
    text = (ROOT / "grader" / "inside" / "warm_up.py").read_text()
    return ast.literal_eval(re.search(r"^MODULES = (\(.*?\))$", text, re.MULTILINE | re.DOTALL)[1])


@pytest.mark.parametrize(
    "module", [*rank_process.PRELOADED, *zygote.preload, *rank_host.PRELOADED, *modules_of_warm_up()]
)
def test_modules_that_are_imported_ahead_of_time_exist(module):
    assert importlib.util.find_spec(module)


def test_no_zygote_starts_in_a_graded_rank():
    assert IN_ZYGOTE in rank_host.ENVIRONMENT


@pytest.mark.parametrize("world", [RealWorld, VirtualWorld])
def test_the_entry_of_a_worlds_processes_exists_and_is_preloaded(world):
    module, _, function = world.entry.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert module in (*zygote.preload, rank_process.__name__), "each rank would have to import it itself"


def test_every_file_other_than_python_is_package_data():
    """Of the library; the checks' frozen cases belong to the course, which isn't installed as a package."""
    globs = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["manyranks"]
    shipped = {path for glob in globs for path in (ROOT / "utils").glob(glob)}
    there = {path for path in (ROOT / "utils").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert {path for path in there if "checks" not in path.parts} == shipped
    assert gpu_topology.names()


def test_no_file_of_utils_counts_as_the_students():
    assert not [path for path in (ROOT / "utils").rglob("*.py") if is_students(str(path))]
    assert is_students(__file__)


def sum_by_library(rank, world_size):
    return functional_collectives.all_reduce(torch.ones(2))


@pytest.mark.parametrize("run", [spawn, simulate])
def test_a_call_that_utils_makes_for_the_student_is_attributed_to_the_students_line(run):
    wheres = {event.where.rpartition(":")[0] for event in run(sum_by_library, 2).events}
    assert wheres == {__file__}


def spawn_again(rank, world_size):
    spawn(sum_by_library, 2)


def test_spawn_inside_spawn_is_refused():
    with pytest.raises(RankFailed, match="inside a world that spawn made"):
        spawn(spawn_again, 2)
