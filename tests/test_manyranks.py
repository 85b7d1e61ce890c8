"""The library under its own name: a wheel as `pip install .` makes it, used by a project that has its own `utils`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setuptools import find_packages

from tests.test_setup import imported_packages

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
SECONDS = 120

EVERYTHING = """\
import sys

import torch
import torch.distributed as dist
import utils
from manyranks import RankFailed, region, simulate, spawn
from manyranks.cluster import Cluster
from manyranks.kit import gpu_topology
from utils import weight


class Batch:
    def __init__(self, rank):
        self.x = torch.full((3,), float(rank)) * weight


def total(rank, world_size):
    batch = Batch(rank)
    with region("reduce"):
        dist.all_reduce(batch.x)
    return batch, [name for name in sys.modules if name.startswith("utils.")], utils.__file__


def fails(rank, world_size):
    raise ValueError("on purpose")


for run in (spawn(total, 3), simulate(total, 3, device="cpu")):
    for batch, others, file in run.results:
        assert batch.x.tolist() == [6.0] * 3 and not others and file == utils.__file__, (batch.x, others, file)
    assert run.events[0].where.startswith(__file__), run.events[0]
    assert run.timeline() and run.traffic()
assert gpu_topology.names() and Cluster
try:
    spawn(fails, 2)
except RankFailed as error:
    print(error)
"""
TWO_RANKS = """\
import torch
import torch.distributed as dist
from manyranks import spawn


def train(rank, world_size):
    loss = torch.zeros(1)
    if rank == 0:
        dist.all_reduce(loss)


spawn(train, 2)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, since setuptools leaves what it built in the folder."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "utils", source / "utils", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", source / "dist", source)
    (made,) = (source / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed") / "lib" / "python3" / "site-packages"
    pip("install", "--no-deps", "--target", folder, wheel)
    return folder


def pip(*arguments):
    command = [sys.executable, "-m", "pip", *map(str, arguments), "--quiet", "--no-index"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def project(tmp_path):
    """Somebody's project, with a package called utils."""
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "__init__.py").write_text("weight = 2\n")
    return tmp_path


def python(project, installed, *arguments, **environment):
    """Run Python in the project, where the library is installed."""
    environment = {**os.environ, "PYTHONPATH": str(installed), **environment}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=SECONDS)


# --- the wheel


def test_the_wheel_holds_the_library_and_nothing_of_the_course(wheel):
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        metadata = packed.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"manyranks", f"manyranks-{PROJECT['version']}.dist-info"}
    packages = {f"manyranks/{name.replace('.', '/')}" for name in find_packages(ROOT / "utils")}
    inside = {name.rpartition("/")[0] for name in names if name.endswith("/__init__.py")}
    assert packages | {"manyranks"} == inside | {"manyranks/checks"}
    assert "manyranks/checks" not in inside
    data = {path.relative_to(ROOT / "utils").as_posix() for path in (ROOT / "utils/kit/topologies").iterdir()}
    assert data and {f"manyranks/{name}" for name in data} <= set(names)
    needed = {Requirement(line).name for line in re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)}
    assert needed == required() | optional()


def required():
    return {Requirement(line).name for line in PROJECT["dependencies"]}


def optional():
    return {Requirement(line).name for lines in PROJECT["optional-dependencies"].values() for line in lines}


def test_the_library_requires_what_it_imports():
    folders = [path.relative_to(ROOT) for path in (ROOT / "utils").iterdir() if path.is_dir() and path.name != "checks"]
    assert imported_packages(*folders) == required() | optional()


# --- three lines for an engineer


def said_of_a_hang(done):
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("Traceback") == 1
    assert "WorldStuck: " in done.stderr and "dist.all_reduce(loss)" in done.stderr
    assert "manyranks/" not in done.stderr and 'File "<frozen' not in done.stderr
    return done.stderr


@pytest.mark.thorough
def test_the_same_with_python_m_in_a_package(project, installed):
    (project / "app").mkdir()
    (project / "app" / "__init__.py").touch()
    (project / "app" / "script.py").write_text(TWO_RANKS)
    said = said_of_a_hang(python(project, installed, "-m", "app.script"))
    assert "app/script.py, line 9:  dist.all_reduce(loss)" in said


@pytest.mark.thorough
def test_the_same_inside_a_function_of_another_module(project, installed):
    (project / "training.py").write_text(TWO_RANKS.replace("spawn(train, 2)", "def main():\n    spawn(train, 2)"))
    (project / "script.py").write_text("from training import main\n\nmain()\n")
    said = said_of_a_hang(python(project, installed, "script.py"))
    assert re.search(r'script\.py", line 3.*training\.py", line 13, in main', said, re.DOTALL)


def test_other_exceptions_look_as_they_always_do(project, installed):
    (project / "script.py").write_text("import manyranks\nraise KeyError('mine')\n")
    done = python(project, installed, "script.py")
    assert done.returncode == 1 and done.stderr.endswith("raise KeyError('mine')\nKeyError: 'mine'\n")


# --- a script as torchrun runs it


def test_the_console_script_runs_a_script_beside_a_package_called_utils(project, installed):
    (project / "train.py").write_text(
        "import torch.distributed as dist\nimport utils\n\n"
        "if __name__ == '__main__':\n    dist.init_process_group('gloo')\n"
        "    if dist.get_rank() < utils.weight - 1:\n        dist.barrier()\n"
    )
    done = python(project, installed, installed / "bin" / "manyranks", "--nproc-per-node", 2, "train.py")
    assert done.returncode == 1 and done.stderr.startswith("WorldStuck: "), done.stderr
    assert "train.py, line 7:  dist.barrier()" in done.stderr and "manyranks" not in done.stderr
    assert python(project, installed, "-m", "manyranks", "explain", "--live").stdout.count("manyranks") == 0


# --- everything else


@pytest.mark.parametrize("without_fork", ["", pytest.param("1", marks=pytest.mark.thorough)])
def test_both_worlds_work_beside_a_package_called_utils_and_a_hang_shows_the_scripts_lines(
    project, installed, without_fork
):
    (project / "program.py").write_text(EVERYTHING + TWO_RANKS)
    options = {"SPAWN_WITHOUT_FORK": "1"} if without_fork else {}
    done = python(project, installed, "program.py", **options)
    said = said_of_a_hang(done)  # so everything before it went well
    assert "raised ValueError: on purpose\n  program.py, line 25, in fails" in done.stdout, done.stdout
    assert re.search(r'File ".*program\.py", line 49, in <module>\n +spawn\(train, 2\)', said)
    assert "program.py, line 46:  dist.all_reduce(loss)" in said


@pytest.mark.thorough
def test_the_benchmark_runs_and_calls_itself_by_its_name(project, installed):
    def benchmark(*options):
        done = python(project, installed, "-m", "manyranks.benchmark", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "python -m manyranks.benchmark" in benchmark("--help")
    shown = benchmark("all_reduce", "--cluster", "laptop", "-n", "2", "--sizes", "1K")
    assert "all_reduce, 2 ranks of laptop" in shown
