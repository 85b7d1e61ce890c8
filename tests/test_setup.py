"""Set-up, everything before the first lesson: `make`, setup_env.py, requirements.txt.

Installing torch takes minutes, so most tests set up a tiny course: the real Makefile and setup_env.py, a requirements
file with one empty package, and a folder of wheels for an index.
"""

import ast
import json
import os
import re
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
import zipfile
from contextlib import contextmanager, suppress
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from jupyter_client import BlockingKernelClient
from packaging.requirements import Requirement
from uv import find_uv_bin

from grader.authoring import requirements
from grader.authoring.release import FOR_TEACHERS

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent
VERBS = [
    "lab",
    "test",
    "quick",
    "try",
    "build",
    "book",
    "grade",
    "release",
    "script",
    "lock",
    "lint",
    "format",
    "bench",
    "clean",
]
DEADLINE = 120
SET_UP = (sys.executable, "setup_env.py", "--uv=")
AS_MAIN = "runpy.run_path('setup_env.py', run_name='__main__')"


# --- a tiny course -------------------------------------------------------------------------------------------------


class TinyCourse:
    """A folder with the real set-up and requirements that install in a second, without a network."""

    def __init__(self, folder):
        self.folder = folder
        self.wheels = folder.parent / "wheels"
        self.venv = folder / ".venv"
        self.requirements = folder / "requirements.txt"
        folder.mkdir(parents=True)
        (folder / "utils").mkdir()
        (folder / "utils" / "__init__.py").write_text("here = True\n")
        for name in ("Makefile", "setup_env.py"):
            shutil.copy(ROOT / name, folder)
        self.require("tiny-one")

    def require(self, *names):
        for name in names:
            write_wheel(self.wheels, name)
        self.requirements.write_text("".join(f"{name}==1.0\n" for name in names))

    def environment(self, **extra):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE", "PYTHON"))}
        return {
            **kept,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": self.wheels.as_uri(),
            "PIP_CONFIG_FILE": os.devnull,
            **extra,
        }

    def set_up(self, *command, env=None):
        """Run setup_env.py (or `command`) to the end, with pip unless `command` says otherwise."""
        command = command or SET_UP
        env = env or self.environment()
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=DEADLINE)

    def imports(self, module):
        """Whether the environment's Python can import `module` when it runs outside the course's folder."""
        command = [str(self.venv / "bin" / "python"), "-c", f"import {module}"]
        done = subprocess.run(command, cwd="/", env=self.environment(), capture_output=True, text=True)
        print(done.stderr)
        return done.returncode == 0

    def leave_a_note(self):
        """A file that survives a repair, but not a newly created environment."""
        (self.venv / "note").write_text("still here")

    @property
    def was_made_anew(self):
        return not (self.venv / "note").exists()


def write_wheel(folder, name, version="1.0"):
    """The smallest package that pip can install: one empty module."""
    folder.mkdir(exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def one_line(text):
    assert len(text.strip().splitlines()) == 1, text
    return text.strip()


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Set up once for all tests; each finds it ready, breaks something, and sees it repaired."""
    course = TinyCourse(tmp_path_factory.mktemp("set up") / "a course")
    done = course.set_up()
    assert done.returncode == 0, done.stderr
    return course


@pytest.fixture
def ready(course):
    course.require("tiny-one")
    assert course.set_up().returncode == 0
    course.leave_a_note()
    return course


# --- creating and repairing ----------------------------------------------------------------------------------------


def test_the_requirements_and_the_course_can_be_imported_from_any_folder(ready):
    assert ready.imports("tiny_one")
    assert ready.imports("utils")


def test_a_ready_environment_is_left_alone_and_nothing_is_printed(ready):
    done = ready.set_up(env=ready.environment(PIP_FIND_LINKS=""))  # would fail if it ran pip for anything new
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not ready.was_made_anew


def test_a_ready_environment_no_longer_needs_the_right_python(ready):
    assert ready.set_up(*as_python(ready, version=(3, 9))).returncode == 0


def test_changed_requirements_are_installed_into_the_same_environment(ready):
    ready.require("tiny-one", "tiny-two")
    assert ready.set_up().returncode == 0
    assert ready.imports("tiny_two")
    assert not ready.was_made_anew


def test_an_environment_older_than_its_requirements_is_checked(ready):
    stamp = ready.venv / ".ready"
    later = stamp.stat().st_mtime + 1
    os.utime(ready.requirements, (later, later))
    os.utime(stamp, (later - 2, later - 2))
    assert "is ready" in ready.set_up().stdout
    assert not ready.was_made_anew


def remove_python(course):
    for python in (course.venv / "bin").glob("python*"):
        python.unlink()


def break_the_python_link(course):
    remove_python(course)
    (course.venv / "bin" / "python").symlink_to("/usr/bin/python-that-was-upgraded")


def remove_pip(course):
    for pip in course.venv.glob("lib/python*/site-packages/pip"):
        shutil.rmtree(pip)


def leave_an_empty_folder(course):
    shutil.rmtree(course.venv)
    course.venv.mkdir()


def stop_before_the_stamp(course):
    (course.venv / ".ready").write_text("set-up has not finished\n")


DAMAGE = [remove_python, break_the_python_link, remove_pip, leave_an_empty_folder, stop_before_the_stamp]


@pytest.mark.thorough
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_environment_is_created_again(ready, damage):
    damage(ready)
    done = ready.set_up()
    assert done.returncode == 0, done.stderr
    assert ready.was_made_anew
    assert ready.imports("tiny_one")


@pytest.mark.thorough
def test_an_environment_that_was_moved_with_its_course_is_created_again(ready, tmp_path):
    moved = TinyCourse(tmp_path / "moved")
    shutil.copytree(ready.venv, moved.venv, symlinks=True)
    assert moved.set_up().returncode == 0
    assert moved.was_made_anew
    assert str(moved.venv) in (moved.venv / "bin" / "activate").read_text()


@pytest.mark.thorough
def test_an_environment_created_by_hand_is_kept_and_filled(tmp_path):
    course = TinyCourse(tmp_path / "course")
    subprocess.run([sys.executable, "-m", "venv", str(course.venv)], check=True)
    course.leave_a_note()
    assert course.set_up().returncode == 0
    assert course.imports("tiny_one")
    assert not course.was_made_anew


@pytest.mark.thorough
def test_killed_half_way_then_run_again(ready):
    """Set-up is killed while pip waits for an index that never answers; the next set-up first waits for that pip."""
    ready.require("tiny-one", "tiny-three")
    with socket.create_server(("127.0.0.1", 0)) as index:
        url = f"http://127.0.0.1:{index.getsockname()[1]}/"
        env = ready.environment(PIP_INDEX_URL=url, PIP_RETRIES="0", PIP_FIND_LINKS="")
        del env["PIP_NO_INDEX"]
        first = subprocess.Popen(SET_UP, cwd=ready.folder, env=env, stdout=subprocess.DEVNULL)
        index.settimeout(DEADLINE)
        connection, _ = index.accept()  # pip is in the middle of it
        first.kill()
        first.wait()
        second = subprocess.Popen(SET_UP, cwd=ready.folder, env=ready.environment(), stdout=subprocess.PIPE, text=True)
        assert "waiting" in second.stdout.readline()
        connection.close()
    said, _ = second.communicate(timeout=DEADLINE)
    assert second.returncode == 0, said
    assert ready.imports("tiny_three")


# --- uv, a system's torch, an environment of somebody else ---------------------------------------------------------


def with_uv(course):
    """uv's answer to PIP_NO_INDEX and PIP_FIND_LINKS."""
    settings = course.folder.parent / "uv.toml"
    settings.write_text(f'no-index = true\nfind-links = ["{course.wheels.as_uri()}"]\n')
    return course.environment(UV_CONFIG_FILE=str(settings), UV_CACHE_DIR=str(course.folder.parent / "cache"))


def installed(course):
    """{package: version} in the environment, except pip itself."""
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    printed = subprocess.check_output([course.venv / "bin" / "python", "-I", "-c", code], text=True)
    return {name: version for name, version in json.loads(printed).items() if name not in ("pip", "setuptools")}


@pytest.mark.thorough
def test_uv_and_pip_install_the_same(tmp_path):
    by_pip, other = TinyCourse(tmp_path / "pip"), TinyCourse(tmp_path / "uv")
    for course in (by_pip, other):
        course.require("tiny-one", "tiny-two")
    assert by_pip.set_up().returncode == 0
    done = other.set_up(*SET_UP[:-1], f"--uv={find_uv_bin()}", env=with_uv(other))
    assert done.returncode == 0, done.stderr
    assert installed(by_pip) == installed(other) == {"tiny-one": "1.0", "tiny-two": "1.0"}
    assert list(other.venv.glob("lib/*/site-packages/__pycache__/tiny_one*")), "not compiled, as pip does"
    assert other.imports("tiny_one") and other.imports("utils")
    assert "Installed 2 packages" in (other.venv / "setup.log").read_text()


def test_without_pythons_venv_module_uv_creates_the_environment(tmp_path):
    course = TinyCourse(tmp_path / "course")
    for seed in ("pip", "setuptools", "wheel"):
        write_wheel(course.wheels, seed, "99.0")
    done = course.set_up(*as_python(course, without=["ensurepip"])[:-1], f"--uv={find_uv_bin()}", env=with_uv(course))
    assert done.returncode == 0, done.stderr
    assert course.imports("tiny_one") and course.imports("pip")


def test_what_uv_does_not_find_is_reported_in_one_line(ready):
    ready.requirements.write_text("tiny-nobody==1.0\n")
    said = one_line(ready.set_up(*SET_UP[:-1], f"--uv={find_uv_bin()}", env=with_uv(ready)).stderr)
    assert "uv found no package" in said and "tiny-nobody==1.0" in said


def system_with_torch(folder, version):
    """A folder for PYTHONPATH, as a cluster's modules set it: a torch, and one package that this torch requires."""
    for name, number, needs in [("torch", version, "Requires-Dist: tiny-two>=1\n"), ("tiny_two", "1.5", "")]:
        info = folder / f"{name}-{number}.dist-info"
        info.mkdir(parents=True)
        (folder / f"{name}.py").write_text("")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n{needs}")
    return str(folder)


@pytest.mark.thorough
def test_the_systems_torch_is_used_when_asked_for(tmp_path):
    course = TinyCourse(tmp_path / "course")
    course.require("tiny-one", "tiny-two")
    course.requirements.write_text(course.requirements.read_text() + "torch==2.13.0\n")
    system = system_with_torch(tmp_path / "system", "2.12.1+local")
    command = ["make", f"PYTHON={sys.executable}", "UV=", "env"]
    env = course.environment(PYTHONPATH=system)
    done = course.set_up(*command, "SYSTEM_SITE=1", env=env)
    assert done.returncode == 0, done.stderr
    assert "Using the torch 2.12.1+local that is installed already" in done.stdout
    assert course.imports("torch") and course.imports("tiny_one") and course.imports("tiny_two")
    inside = [path.name for path in course.venv.glob("lib/*/site-packages/t*.dist-info")]
    assert inside == ["tiny_one-1.0.dist-info"], "the rest is the system's"

    course.leave_a_note()
    assert course.set_up(*command).stdout == ""  # from now on without being asked again
    course.require("tiny-one", "tiny-three")
    assert course.set_up(*command).returncode != 0  # the module with torch is not loaded
    assert course.set_up(*command, "SYSTEM_SITE=1", env=env).returncode == 0
    assert course.imports("tiny_three") and course.imports("torch")


@pytest.mark.parametrize(
    "version, has",
    [("2.14.0", "torch 2.14.0"), ("2.11.1", "torch 2.11.1"), (None, "none")],
)
@pytest.mark.thorough
def test_a_systems_torch_that_will_not_do_is_reported_in_one_line(unmade, tmp_path, version, has):
    system = system_with_torch(tmp_path / "system", version) if version else ""
    done = unmade.set_up(*SET_UP, "--system-site", env=unmade.environment(PYTHONPATH=system))
    assert done.returncode != 0
    assert f"which has {has}." in one_line(done.stderr) and "torch 2.12 up to, but not including, 2.14" in done.stderr
    assert not unmade.venv.exists()


def test_an_environment_that_cannot_be_written_to_is_used_if_it_has_what_is_needed(ready, tmp_path):
    """One for a whole class: each student works in a folder of their own, as a user who can't change it."""
    mine = TinyCourse(tmp_path / "mine")
    as_reader = f"import os; os.access = lambda path, how: False; import runpy; {AS_MAIN}"
    command = (sys.executable, "-c", as_reader, "--uv=", "--venv", str(ready.venv))
    before = (ready.venv / ".ready").read_text()
    done = mine.set_up(*command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    mine.require("tiny-one", "tiny-five")
    said = one_line(mine.set_up(*command).stderr)
    assert "it lacks tiny-five==1.0" in said and "make VENV=.venv env" in said
    assert (ready.venv / ".ready").read_text() == before


# --- messages when set-up fails -----------------------------------------------------------------------------------


def as_python(course, version=None, without=()):
    """A command that runs setup_env.py as if Python had a different version or lacked some modules."""
    disguise = f"import runpy, sys; sys.version_info = {version or tuple(sys.version_info)}; "
    disguise += "".join(f"sys.modules[{name!r}] = None; " for name in without)
    return sys.executable, "-c", disguise + AS_MAIN, "--uv="


@pytest.fixture
def unmade(tmp_path):
    return TinyCourse(tmp_path / "course")


def test_a_python_that_is_too_old_is_reported_in_one_line(unmade):
    done = unmade.set_up(*as_python(unmade, version=(3, 9)))
    assert done.returncode != 0
    said = one_line(done.stderr)
    assert "This is Python 3.9" in said and "3.11 or newer" in said and "make PYTHON=python3" in said
    assert not unmade.venv.exists()


def test_setup_env_can_be_read_by_an_old_python():
    ast.parse((ROOT / "setup_env.py").read_text(), feature_version=(3, 6))


def test_a_missing_python_is_reported_in_one_line(unmade):
    done = unmade.set_up("make", "--silent", "env", "UV=", "PYTHON=python-of-nobody")
    assert done.returncode != 0
    said = done.stderr.splitlines()[0]
    assert "'python-of-nobody'" in said and "Install Python 3.11 or newer" in said


def test_a_missing_venv_module_is_reported_in_one_line(unmade):
    done = unmade.set_up(*as_python(unmade, without=["ensurepip"]))
    assert done.returncode != 0
    assert re.search(r"apt install python3\.\d+-venv", one_line(done.stderr))
    assert not unmade.venv.exists()


def test_a_missing_network_is_reported_in_one_line_and_nothing_is_lost(ready):
    ready.require("tiny-one", "tiny-four")
    with socket.socket() as closed:  # bound and never listening: whoever connects is refused
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        env = ready.environment(PIP_INDEX_URL=url, PIP_RETRIES="1", PIP_FIND_LINKS="")
        del env["PIP_NO_INDEX"]
        done = ready.set_up(env=env)
    assert done.returncode != 0
    said = one_line(done.stderr)
    assert "can't reach its package index" in said and "run the same command again" in said
    log = Path(said.split("pip's log is in ")[1])
    assert "tiny-four" in log.read_text()
    assert ready.imports("tiny_one")

    assert ready.set_up().returncode == 0
    assert ready.imports("tiny_four")
    assert not ready.was_made_anew


def test_a_disabled_index_is_reported(ready):
    ready.requirements.write_text("tiny-nobody==1.0\n")
    said = one_line(ready.set_up().stderr)
    assert "tiny-nobody==1.0" in said and "PIP_NO_INDEX" in said


def test_a_folder_with_files_is_never_emptied(unmade):
    home = unmade.folder / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    done = unmade.set_up(*SET_UP, "--venv", str(home))
    assert done.returncode != 0
    assert "VENV=" in one_line(done.stderr)
    assert (home / "thesis.txt").read_text() == "years of work"


# --- make ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["make"], ["make", "help"]], ids=" ".join)
def test_make_lists_the_verbs(command):
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for verb in VERBS:
        assert re.search(rf"^  make {verb} +\w+", listed, re.MULTILINE), f"{verb} is not in:\n{listed}"


def test_a_release_carries_the_projects_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    command = ["make", "--dry-run", "-o", "release", "-o", "book", "dist"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in (f"distributed-training-{version}.zip", f"book-{version}.zip", f"course-{version}.tar.gz"):
        assert f"dist/{name}" in shown


def test_make_sets_up_in_any_shell_environment(tmp_path):
    """From another folder, in parallel, in a path with spaces, among other environments and pip settings."""
    course = TinyCourse(tmp_path / "with two spaces")
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "pip.py").write_text("raise SystemExit('the wrong pip')")
    env = course.environment(
        PYTHONPATH=str(trap), PYTHONHOME="/nowhere", VIRTUAL_ENV=str(trap), CONDA_PREFIX=str(trap),
        PIP_USER="1", PIP_TARGET=str(trap / "target"), PIP_PREFIX=str(trap / "prefix"),
    )  # fmt: skip
    command = ["make", "-j4", "-C", str(course.folder), f"PYTHON={sys.executable}", "UV=", "env", "help"]
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert course.imports("tiny_one") and course.imports("utils")
    assert not (trap / "target").exists() and not (trap / "prefix").exists()


def test_clean_keeps_submissions_grades_and_the_environment(tmp_path):
    course = TinyCourse(tmp_path / "course")
    kept = ["submitted/student-01/x.ipynb", "gradebook.db", ".venv/pyvenv.cfg", ".venv/__pycache__/x"]
    gone = ["build/x", "dist/x.zip", "utils/__pycache__/x.pyc", "a b/.ipynb_checkpoints/x", ".pytest_cache/x"]
    for name in kept + gone:
        (course.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (course.folder / name).write_text("")
    assert course.set_up("make", "clean").returncode == 0
    assert [name for name in kept + gone if (course.folder / name).exists()] == kept


# --- make lab ------------------------------------------------------------------------------------------------------


@contextmanager
def lab(tmp_path):
    """JupyterLab as `make lab` starts it, on a free port; yields the address it prints, then ends it."""
    env = {**os.environ, "JUPYTER_TOKEN": "test", "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    del env["PYTEST_CURRENT_TEST"]
    command = ["make", "-o", "env", f"VENV={sys.prefix}", "LAB_ARGS=--no-browser", "lab"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "bufsize": 0}  # select() sees no buffer
    make = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **output)
    try:
        address = printed_address(make)
        wait_until_listening(address)
        yield address
        os.killpg(make.pid, signal.SIGTERM)
        make.communicate(timeout=DEADLINE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(make.pid, signal.SIGKILL)
        make.wait()


def printed_address(make):
    """Read Lab's output until it prints its address."""
    said, ends = [], time.monotonic() + DEADLINE
    while select.select([make.stdout], [], [], max(0, ends - time.monotonic()))[0]:
        line = make.stdout.readline().decode()
        said.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+(?=/lab/tree/notebooks)", line):
            return found[0]
        if not line:
            break
    pytest.fail("make lab did not say where it is:\n" + "".join(said))


def wait_until_listening(address):
    """Wait until it answers: Jupyter prints its address a moment before it listens."""
    ends = time.monotonic() + DEADLINE
    host, port = address.removeprefix("http://").split(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=DEADLINE).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < ends, f"nothing listens at {address}"
            time.sleep(0.02)


def ask(address, what, **body):
    """One request to the Jupyter server's own API."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"{address}/{what}", data, {"Authorization": "token test"})
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        return json.loads(answer.read())


def printed_in_kernel(connection_file, code):
    """Run `code` in a running kernel and return what the cell shows as text."""
    client = BlockingKernelClient(connection_file=str(connection_file))
    client.load_connection_file()
    client.start_channels(hb=False)  # a heart that misses one second, as it may on two cores, is not a dead kernel
    try:
        client.wait_for_ready(timeout=DEADLINE)
        shown = []
        reply = client.execute_interactive(code, timeout=DEADLINE, output_hook=lambda message: shown.append(message))
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(message["content"].get("text", "") for message in shown)
    finally:
        client.stop_channels()


def test_make_lab_serves_the_lessons_and_a_kernel_that_spawns_ranks(tmp_path):
    lesson = sorted((ROOT / "notebooks").glob("*/*.ipynb"))[0]
    with lab(tmp_path) as address:
        folders = {entry["name"] for entry in ask(address, "api/contents/notebooks")["content"]}
        assert lesson.parent.name in folders
        path = lesson.relative_to(ROOT).as_posix()
        session = ask(address, "api/sessions", path=path, name=lesson.name, type="notebook", kernel={"name": "python3"})
        connection_file = tmp_path / "runtime" / f"kernel-{session['kernel']['id']}.json"
        code = "from utils import spawn\ndef hello(rank, world_size): print('of', world_size)\nrun = spawn(hello, 2)"
        assert printed_in_kernel(connection_file, code) == "[rank 0] of 2\n[rank 1] of 2\n"


# --- requirements --------------------------------------------------------------------------------------------------


def requirement_parts():
    """The packages that requirements.txt pins: for students, and for teachers and developers."""
    students, developers = (ROOT / "requirements.txt").read_text().split(FOR_TEACHERS)
    pinned = r"^([A-Za-z0-9_.-]+)=="
    return re.findall(pinned, students, re.MULTILINE), re.findall(pinned, developers, re.MULTILINE)


def imported_packages(*folders):
    """The distributions that the Python files below `folders` import, anywhere in a file."""
    modules = set()
    for file in (file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules.add(node.module.split(".")[0])
    ours = {path.stem for path in ROOT.iterdir()} | {path.stem for path in (ROOT / "tests").iterdir()}
    names = packages_distributions()
    return {names[module][0].lower().replace("_", "-") for module in modules - ours if module in names}


def test_every_requirement_is_pinned_and_named_once():
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and line[0] != "#"]
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9.-]+==[0-9.]+(b\d+)?( ; .+)?", line)] == []
    wanted = [Requirement(line) for line in lines]
    here = [one.name for one in wanted if one.marker is None or one.marker.evaluate()]
    assert len(here) == len(set(here))
    assert "torch==2.13.0" in lines


def test_the_requirements_are_what_the_lock_says_and_the_lock_fits_the_project():
    assert (ROOT / "requirements.txt").read_text() == requirements.text(), "run `make lock`"


def test_a_change_without_make_lock_is_noticed(tmp_path):
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "uv.lock"):
        shutil.copy(ROOT / name, tmp_path)
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace('"tqdm>=', '"tqdm>4.'))
    with pytest.raises(SystemExit, match="make lock"):
        requirements.text(tmp_path)


def test_the_lock_names_only_public_addresses_and_a_hash_for_each():
    """Not the mirror of whoever made it: others can't reach that."""
    lines = (ROOT / "uv.lock").read_text().splitlines()
    hosts = {host for line in lines for host in re.findall(r"\w+://([^/\"]+)", line)}
    assert hosts == {"pypi.org", "files.pythonhosted.org"}
    assert not [line for line in lines if "source =" in line and "registry =" not in line and "editable" not in line]
    files = [line for line in lines if "url = " in line]
    assert len(files) > 1000
    assert [line for line in files if not re.search(r'hash = "sha256:[0-9a-f]{64}"', line)] == []


def test_no_part_of_the_project_names_another_package_index():
    public = {"pypi.org", "download.pytorch.org"}
    text = "".join((ROOT / name).read_text() for name in ("pyproject.toml", "requirements.txt", "Makefile", ".ci/run"))
    assert set(re.findall(r"https?://([\w.-]+)", text)) <= public


def test_versions_in_set_up_are_those_of_the_project():
    """setup_env.py can't read pyproject.toml: the bundle has none, and an old Python no reader for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = runpy.run_path(str(ROOT / "setup_env.py"))
    first, last = (".".join(map(str, version)) for version in given["TORCH"])
    assert f"torch>={first},<{last}" in project["dependencies"]
    assert project["requires-python"].startswith(">=" + ".".join(map(str, given["OLDEST_PYTHON"])))


def test_students_get_every_package_that_utils_imports():
    students, _ = requirement_parts()
    assert imported_packages("utils") - set(students) == set()


def test_every_imported_package_is_required():
    students, developers = requirement_parts()
    folders = ("utils", "grader", "solutions", "tests", "bench")
    assert imported_packages(*folders) - {*students, *developers} == set()
