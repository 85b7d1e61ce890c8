"""Which files count as the student's own."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import sysconfig

import numpy
import pytest
import torch

from utils.recording import callers
from utils.text import package, source_lines
from utils.text.source_lines import is_students
from utils.worlds.common import unpicklable

ROOT = os.path.dirname(package.FOLDER)
STUDENTS = [
    "/home/ada/course/notebooks/my.py",
    "/home/ada/notes-on-site-packages/my.py",
    "/home/ada/my-dist-packages-talk/my.py",
    "/home/ada/site-packages/my.py",  # a folder of this name is not an environment
    "/home/ada/lib/python/my.py",
    "/tmp/ipykernel_4711/123456.py",
    "<ipython-input-3-0123456789ab>",
    "<stdin>",
    __file__,
]
OTHERS = [
    "/home/ada/course/.venv/lib/python3.12/site-packages/transformers/modeling.py",
    "/home/ada/.venv/lib64/python3.13t/site-packages/lightning.py",
    "/usr/lib/python3/dist-packages/numpy/core.py",
    "/opt/conda/envs/course/lib/python3.11/site-packages/torch/nn/modules/module.py",
    "C:\\Users\\ada\\venv\\Lib\\site-packages\\transformers\\modeling.py",
    "<frozen importlib._bootstrap>",
    json.__file__,
    numpy.__file__,
    torch.__file__,
    pytest.__file__,
    source_lines.__file__,
    os.path.join(sysconfig.get_path("stdlib"), "threading.py"),
    os.path.join(site.getusersitepackages(), "mine.py"),
]


@pytest.mark.parametrize("file", STUDENTS)
def test_the_students_own_files(file):
    assert is_students(file)


@pytest.mark.parametrize("file", OTHERS)
def test_files_of_libraries_and_of_this_package(file):
    assert not is_students(file)


def test_what_pip_has_put_into_a_folder_of_pythonpath_is_a_librarys(tmp_path):
    for folder, installed in (("site", True), ("own", False), ("here", True)):
        (tmp_path / folder / "package").mkdir(parents=True)
        if installed:
            (tmp_path / folder / "package-1.0.dist-info").mkdir()
    paths = [str(tmp_path / folder / "package" / "core.py") for folder in ("site", "own", "here")]
    done = subprocess.run(
        [sys.executable, "-c", f"from utils.text.source_lines import is_students as s; print([*map(s, {paths})])"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, *(str(tmp_path / f) for f in ("site", "own", "here"))])},
        cwd=tmp_path / "here",
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "[False, True, True]\n"


@pytest.mark.parametrize(
    "file, name",
    [
        (torch.autograd.graph.__file__, "torch/autograd/graph.py"),
        (torch.__file__, "torch/__init__.py"),
        (json.decoder.__file__, "json/decoder.py"),
        (subprocess.__file__, "subprocess.py"),
        (source_lines.__file__, "utils/text/source_lines.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("/opt/course/.venv/lib/python3.11/site-packages/not_here/core.py", "core.py"),
    ],
)
def test_the_name_of_a_librarys_file_does_not_tell_where_it_is(file, name, tmp_path, monkeypatch):
    for folder in (os.path.dirname(os.path.dirname(torch.__file__)), tmp_path, "/"):
        monkeypatch.chdir(folder)
        assert source_lines.name_of_file(file) == name


def test_recorder_reports_and_pickling_agree():
    assert all(callers.kind_of(file).is_students == is_students(file) for file in (*STUDENTS, *OTHERS))
    assert unpicklable.source_lines.is_students is is_students


ODD_FOLDERS = """
import torch, torch.distributed as dist
from helper import all_reduce_twice
from utils import spawn

def work(rank, world_size):
    all_reduce_twice(torch.ones(1))

print([event.where for event in spawn(work, 2).events if event.rank == 0])
"""
HELPER = """
import torch.distributed as dist
def all_reduce_twice(x):
    dist.all_reduce(x)
    dist.all_reduce(x)
"""


@pytest.mark.parametrize(
    "folder, helper_in, counts",
    [
        ("notes-on-site-packages", ".", "helper.py:4"),  # the student's own helper: the line in it
        ("course", ".venv/lib/python3.12/site-packages", "program.py:7"),  # a library's: the line that calls it
    ],
)
def test_a_call_is_attributed_to_the_students_line_whatever_the_folders_are_called(
    tmp_path, root, folder, helper_in, counts
):
    home = tmp_path / folder
    (home / helper_in).mkdir(parents=True)
    (home / helper_in / "helper.py").write_text(HELPER)
    (home / "program.py").write_text(ODD_FOLDERS)
    path = os.pathsep.join([str(root), str(home / helper_in)])
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=home, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert counts in done.stdout and done.returncode == 0, done.stdout + done.stderr
