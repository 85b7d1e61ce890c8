"""Set-up, everything before the first lesson: `make`, setup_env.py, requirements.txt.

Installing torch takes minutes, so most tests set up a tiny course: the real Makefile and setup_env.py, requirements of
one empty package per group, and a folder of wheels for an index.
"""

import ast
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from uv import find_uv_bin

from grader.authoring import requirements

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SET_UP = runpy.run_path(str(ROOT / "setup_env.py"))
GROUPS = dict(zip(SET_UP["GROUPS"], map(SET_UP["packages_of"], SET_UP["GROUPS"]), strict=True))
DEADLINE = 300
OUR_UV = find_uv_bin()


# --- a tiny course -------------------------------------------------------------------------------------------------


class TinyCourse:
    def __init__(self, folder):
        self.folder, self.venv, self.wheels = folder, folder / ".venv", folder.parent / "wheels"
        (folder / "utils").mkdir(parents=True)
        (folder / "utils" / "__init__.py").touch()
        self.wheels.mkdir(exist_ok=True)
        for name in ("Makefile", "setup_env.py"):
            shutil.copy(ROOT / name, folder)
        for seed in ("pip", "setuptools", "wheel"):
            write_wheel(self.wheels, seed, "99.0")
        self.require("tinyone", "tinytwo", "tinythree")

    def require(self, *names):
        """One package for each group, from students to developers."""
        for name in names:
            write_wheel(self.wheels, name)
        parts = [f"\n# For group {number}.\n{name}==1.0\n" for number, name in enumerate(names)]
        (self.folder / "requirements.txt").write_text("".join(parts))

    def make(self, *words, uv=OUR_UV, **environment):
        """`make env`, unless told otherwise. No network: pip's settings name the folder of wheels as the only index."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE", "PYTHON"))}
        env = {**kept, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}
        env["UV_CACHE_DIR"] = str(self.wheels / "cache")
        command = ["make", "-C", str(self.folder), "--silent", f"PYTHON={sys.executable}", f"UV={uv}", *words]
        command += ["env"] * (not words or "=" in words[-1])
        return subprocess.run(command, cwd="/", env=env | environment, capture_output=True, text=True, timeout=DEADLINE)

    def has(self, *modules):
        """Whether the environment's Python can import them when it runs outside the course's folder."""
        return subprocess.call([self.venv / "bin" / "python", "-c", f"import {', '.join(modules)}"], cwd="/") == 0


def write_wheel(folder, name, version="1.0", program=""):
    """The smallest package that pip can install: one empty module, or one program of its name."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        file = zipfile.ZipInfo(f"{name}-{version}.data/scripts/{name}" if program else f"{name}.py")
        file.external_attr = 0o100755 << 16
        wheel.writestr(file, program)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def course(tmp_path):
    return TinyCourse(tmp_path / "a course")


@pytest.fixture
def ready(course):
    done = course.make()
    assert done.returncode == 0, done.stderr
    return course


# --- setting up ----------------------------------------------------------------------------------------------------


def test_a_verb_installs_its_group_once_and_a_larger_one_holds_the_smaller(course):
    assert course.make("GROUP=instructor").returncode == 0
    assert course.has("utils", "tinyone", "tinytwo") and not course.has("tinythree")
    too_old = f"import runpy, sys; sys.version_info = (3, 9); sys.argv = {['setup_env.py', 'course', '--uv=']}; "
    code = too_old + "runpy.run_path('setup_env.py', run_name='__main__')"  # ready: it needs no other Python
    done = subprocess.run([sys.executable, "-c", code], cwd=course.folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    course.require("tinyone", "tinytwo", "tinythree", "tinyfour")
    assert course.make("GROUP=bench").returncode == 0
    assert course.has("tinythree", "tinyfour")


@pytest.mark.parametrize("uv", ["", "uv-of-nobody"])
def test_pip_installs_uv_where_there_is_none_or_does_it_alone(course, uv):
    program = f'#!/bin/sh\ntouch "{course.wheels}/used"\nexec {OUR_UV} "$@"\n'
    write_wheel(course.wheels, *SET_UP["UV"].split("=="), program)
    done = course.make(uv=uv, PYTHONPATH="/nowhere", PIP_USER="1", VIRTUAL_ENV="/nowhere")
    assert done.returncode == 0, done.stderr
    assert course.has("utils", "tinyone")
    assert (course.wheels / "used").exists() == bool(uv)


def interrupt(course):
    (course.venv / "course.txt").write_text("")


def lose_python(course):
    (course.venv / "bin" / "python").unlink()
    (course.venv / "bin" / "python").symlink_to("/usr/bin/python-that-was-upgraded")


def move(course):
    course.venv.rename(course.venv.with_name("before"))
    shutil.copytree(course.venv.with_name("before"), course.venv, symlinks=True)
    note = course.venv / "course.txt"
    note.write_text(note.read_text().replace(".venv with", "elsewhere with"))


@pytest.mark.parametrize("damage", [interrupt, lose_python, move])
def test_a_damaged_environment_is_made_anew(ready, damage):
    (ready.venv / "left").touch()
    damage(ready)
    assert ready.make().returncode == 0
    assert ready.has("utils", "tinyone") and not (ready.venv / "left").exists()


def test_an_environment_made_by_hand_is_filled(course):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", course.venv], check=True)
    (course.venv / "left").touch()
    assert course.make().returncode == 0
    assert course.has("utils", "tinyone") and (course.venv / "left").exists()


def test_what_could_not_be_installed_is_installed_by_the_next_run(ready):
    ready.require("tinyfive")
    failed = ready.make(PIP_FIND_LINKS="")
    assert failed.returncode and "tinyfive" in failed.stderr and "Run the same command again" in failed.stderr
    assert ready.make().returncode == 0 and ready.has("tinyfive")


def test_an_environment_that_cannot_be_written_to_is_used_if_it_has_what_is_needed(ready, tmp_path):
    mine = TinyCourse(tmp_path / "mine")
    code = f"import os, runpy, sys; os.access = lambda *_: False; sys.argv += ['--venv', {str(ready.venv)!r}]; "
    command = [sys.executable, "-c", code + "runpy.run_path('setup_env.py', run_name='__main__')"]
    assert subprocess.run(command, cwd=mine.folder).returncode == 0
    mine.require("tinysix")
    said = subprocess.run(command, cwd=mine.folder, capture_output=True, text=True).stderr
    assert "lacks tinysix==1.0. Ask whoever made it" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("version", ["2.12.1+local", "2.14.0", None])
def test_the_systems_torch_is_used_if_it_will_do(course, tmp_path, version):
    """As a cluster's modules provide it, on PYTHONPATH."""
    course.require("torch")
    if version:
        write_wheel(tmp_path, "torch", version)
        zipfile.ZipFile(tmp_path / f"torch-{version}-py3-none-any.whl").extractall(tmp_path / "system")
    done = course.make("SYSTEM_SITE=1", PYTHONPATH=str(tmp_path / "system"))
    if version == "2.12.1+local":
        assert done.returncode == 0 and course.has("torch") and not list(course.venv.glob("lib/*/site-packages/torch*"))
        assert course.make().stdout == ""  # remembered
    else:
        assert f"which has {version or 'none'}. The course works with torch 2.12" in done.stderr
        assert course.make().returncode == 0 and list(course.venv.glob("lib/*/site-packages/torch*"))


def test_a_python_that_is_too_old_and_a_folder_with_files_are_refused_in_one_line(course):
    ast.parse((ROOT / "setup_env.py").read_text(), feature_version=(3, 6))
    code = "import runpy, sys; sys.version_info = (3, 9); runpy.run_path('setup_env.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=course.folder, capture_output=True, text=True)
    assert re.fullmatch(r"set-up: This is Python 3.9 .*needs 3.11 to 3.14: make PYTHON=python3.13\n", done.stderr)
    (course.folder / "home").mkdir()
    (course.folder / "home" / "thesis.txt").touch()
    assert "contains files but isn't a Python environment" in course.make("VENV=home").stderr
    assert (course.folder / "home" / "thesis.txt").exists()


# --- make ----------------------------------------------------------------------------------------------------------


def test_make_lists_the_verbs_and_clean_keeps_submissions_grades_and_the_environment(course):
    listed = course.make("help").stdout
    assert {"lab", "test", "build", "book", "grade", "release", "lint"} <= set(
        re.findall(r"^  make (\w+) ", listed, re.M)
    )
    kept = ["submitted/student-01/x.ipynb", "gradebook.db", ".venv/pyvenv.cfg", ".venv/__pycache__/x"]
    gone = ["build/x", "dist/x.zip", "utils/__pycache__/x.pyc", "a b/.ipynb_checkpoints/x", ".pytest_cache/x"]
    for name in kept + gone:
        (course.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (course.folder / name).touch()
    assert course.make("clean").returncode == 0
    assert [name for name in kept + gone if (course.folder / name).exists()] == kept


def test_a_release_carries_the_projects_version():
    command = ["make", "--dry-run", "-o", "release", "-o", "book", "dist"]
    shown = subprocess.check_output(command, cwd=ROOT, text=True)
    version = PROJECT["project"]["version"]
    for name in (f"distributed-training-{version}.zip", f"book-{version}.zip", f"course-{version}.tar.gz"):
        assert f"dist/{name}" in shown


def test_make_lab_prints_its_address_and_serves_the_lessons(tmp_path):
    env = {**os.environ, "JUPYTER_TOKEN": "test", "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    command = ["make", "-o", "needs-course", f"VENV={sys.prefix}", "LAB_ARGS=--no-browser", "lab"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    lesson = next((ROOT / "notebooks").glob("*/*.ipynb")).relative_to(ROOT)
    page = ROOT / "notebooks" / "start.md"
    is_new = not page.exists()
    with subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **output) as make:
        try:
            pattern = re.compile(r"http://127\.0\.0\.1:\d+(?=/lab/tree/notebooks/start.md)")
            address = next(filter(None, map(pattern.search, make.stdout)))[0]
            assert ask(f"{address}/api/contents/{lesson}")["name"] == lesson.name
        finally:
            os.killpg(make.pid, signal.SIGKILL)
            if is_new:
                page.unlink(missing_ok=True)


def ask(address):
    request = urllib.request.Request(address, headers={"Authorization": "token test"})
    for _ in range(DEADLINE):
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
                return json.loads(answer.read())
        except urllib.error.URLError:  # it prints its address a moment before it listens
            time.sleep(1)
    pytest.fail(f"nothing listens at {address}")


# --- requirements --------------------------------------------------------------------------------------------------


def imported_packages(*paths):
    """The distributions that these Python files, or those below these folders, import anywhere."""
    modules, paths = set(), [ROOT / path for path in paths]
    for file in (file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules.add(node.module.split(".")[0])
    ours = {path.stem for path in ROOT.iterdir()} | {path.stem for path in (ROOT / "tests").iterdir()}
    names = packages_distributions()
    return {names[module][0].lower().replace("_", "-") for module in modules - ours if module in names}


@pytest.mark.parametrize(
    "group, paths",
    {
        "course": ["utils"],
        "instructor": ["grader", "solutions", "nbgrader_config.py", "tests/sample_class.py"],
        "bench": ["tests"],
    }.items(),
)
def test_a_group_has_every_package_that_its_verbs_import(group, paths):
    assert imported_packages(*paths) - {line.partition("==")[0] for line in GROUPS[group]} == set()


def test_requirements_are_pinned_and_are_what_the_lock_says_and_the_lock_fits_the_project(tmp_path):
    assert (ROOT / "requirements.txt").read_text() == requirements.text(), "run `make lock`"
    assert [line for line in GROUPS["bench"] if not re.fullmatch(r"[a-z0-9.-]+==[0-9.]+(b\d+)?( ; .+)?", line)] == []
    assert "torch==2.13.0" in GROUPS["course"] and SET_UP["UV"] in GROUPS["developer"]
    first, last = (".".join(map(str, version)) for version in SET_UP["TORCH"])
    assert f"torch>={first},<{last}" in PROJECT["project"]["dependencies"]
    oldest, too_new = (".".join(map(str, version)) for version in SET_UP["PYTHON"])
    assert PROJECT["project"]["requires-python"] == f">={oldest},<{too_new}"
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "uv.lock"):
        shutil.copy(ROOT / name, tmp_path)
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace('"tqdm>=', '"tqdm>4.'))
    with pytest.raises(SystemExit, match="make lock"):
        requirements.text(tmp_path)


def test_the_lock_and_set_up_name_only_public_addresses_and_the_lock_a_hash_for_each():
    """Not the mirror of whoever made it: others can't reach that."""
    lines = (ROOT / "uv.lock").read_text().splitlines()
    assert {host for line in lines for host in re.findall(r"\w+://([^/\"]+)", line)} == {
        "pypi.org",
        "files.pythonhosted.org",
    }
    assert not [line for line in lines if "source =" in line and "registry =" not in line and "editable" not in line]
    files = [line for line in lines if "url = " in line]
    assert len(files) > 1000
    assert [line for line in files if not re.search(r'hash = "sha256:[0-9a-f]{64}"', line)] == []
    names = ("pyproject.toml", "requirements.txt", "Makefile", "setup_env.py", ".ci/run")
    text = "".join((ROOT / name).read_text() for name in names)
    assert set(re.findall(r"https?://([\w.-]+)", text)) <= {"pypi.org", "download.pytorch.org"}
