"""Set-up, everything before the first lesson: `make`, setup_env.py, requirements.txt, README.md.

Installing torch takes minutes, so most tests set up a tiny course: the real Makefile and setup_env.py, a requirements
file with one empty package, and a folder of wheels for an index.
"""

import ast
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from contextlib import contextmanager, suppress
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from jupyter_client import BlockingKernelClient

from tests import architecture

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]
MADE_BY_MAKE = ("dist/", "submitted/", "judgements/", "autograded/", "feedback/", "gradebook.db", ".venv", "build/")
VERBS = ["lab", "test", "quick", "try", "build", "book", "grade", "release", "script", "lint", "format"]
VERBS += ["bench", "clean"]
DEADLINE = 120


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
        """Run setup_env.py (or `command`) to the end."""
        command = command or (sys.executable, "setup_env.py")
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


def write_wheel(folder, name):
    """The smallest package that pip can install: one empty module."""
    folder.mkdir(exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
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


OTHER_DAMAGE = [break_the_python_link, remove_pip, leave_an_empty_folder, stop_before_the_stamp]


@pytest.mark.parametrize(
    "damage",
    [remove_python, *(pytest.param(one, marks=pytest.mark.thorough) for one in OTHER_DAMAGE)],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_environment_is_created_again(ready, damage):
    damage(ready)
    done = ready.set_up()
    assert done.returncode == 0, done.stderr
    assert ready.was_made_anew
    assert ready.imports("tiny_one")


def test_an_environment_that_was_moved_with_its_course_is_created_again(ready, tmp_path):
    moved = TinyCourse(tmp_path / "moved")
    shutil.copytree(ready.venv, moved.venv, symlinks=True)
    assert moved.set_up().returncode == 0
    assert moved.was_made_anew
    assert str(moved.venv) in (moved.venv / "bin" / "activate").read_text()


def test_an_environment_created_by_hand_is_kept_and_filled(tmp_path):
    course = TinyCourse(tmp_path / "course")
    subprocess.run([sys.executable, "-m", "venv", str(course.venv)], check=True)
    course.leave_a_note()
    assert course.set_up().returncode == 0
    assert course.imports("tiny_one")
    assert not course.was_made_anew


def test_killed_half_way_then_run_again(ready):
    """Set-up is killed while pip waits for an index that never answers; the next set-up first waits for that pip."""
    ready.require("tiny-one", "tiny-three")
    with socket.create_server(("127.0.0.1", 0)) as index:
        url = f"http://127.0.0.1:{index.getsockname()[1]}/"
        env = ready.environment(PIP_INDEX_URL=url, PIP_RETRIES="0", PIP_FIND_LINKS="")
        del env["PIP_NO_INDEX"]
        first = subprocess.Popen([sys.executable, "setup_env.py"], cwd=ready.folder, env=env, stdout=subprocess.DEVNULL)
        index.settimeout(DEADLINE)
        connection, _ = index.accept()  # pip is in the middle of it
        first.kill()
        first.wait()
        again = [sys.executable, "setup_env.py"]
        second = subprocess.Popen(again, cwd=ready.folder, env=ready.environment(), stdout=subprocess.PIPE, text=True)
        assert "waiting" in second.stdout.readline()
        connection.close()
    said, _ = second.communicate(timeout=DEADLINE)
    assert second.returncode == 0, said
    assert ready.imports("tiny_three")


# --- messages when set-up fails -----------------------------------------------------------------------------------


def as_python(course, version=None, without=()):
    """A command that runs setup_env.py as if Python had a different version or lacked some modules."""
    disguise = f"import runpy, sys; sys.version_info = {version or tuple(sys.version_info)}; "
    disguise += "".join(f"sys.modules[{name!r}] = None; " for name in without)
    return sys.executable, "-c", disguise + "runpy.run_path('setup_env.py', run_name='__main__')"


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
    done = unmade.set_up("make", "--silent", "env", "PYTHON=python-of-nobody")
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
    done = unmade.set_up(sys.executable, "setup_env.py", "--venv", str(home))
    assert done.returncode != 0
    assert "VENV=" in one_line(done.stderr)
    assert (home / "thesis.txt").read_text() == "years of work"


# --- make ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["make"], ["make", "help"]], ids=" ".join)
def test_make_lists_the_verbs(command):
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for verb in VERBS:
        assert re.search(rf"^  make {verb} +\w+", listed, re.MULTILINE), f"{verb} is not in:\n{listed}"


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
    command = ["make", "-j4", "-C", str(course.folder), f"PYTHON={sys.executable}", "env", "help"]
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


# --- requirements, README, CONTRIBUTING ----------------------------------------------------------------------------


def requirement_parts():
    """The names in requirements.txt: for students, and for teachers and developers."""
    students, developers = (ROOT / "requirements.txt").read_text().split("# For teachers and developers")
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
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9.]+", line)] == []
    names = [line.split("==")[0] for line in lines]
    assert len(names) == len(set(names))
    assert "torch==2.13.0" in lines


def test_students_get_every_package_that_utils_imports():
    students, _ = requirement_parts()
    assert imported_packages("utils") - set(students) == set()


def test_every_imported_package_is_required():
    students, developers = requirement_parts()
    folders = ("utils", "grader", "solutions", "tests", "bench")
    assert imported_packages(*folders) - {*students, *developers} == set()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "grader/bundle/README.md"])
def test_every_make_verb_that_a_page_names_exists(page):
    makefile = (ROOT / page).parent / "Makefile" if "bundle" in page else ROOT / "Makefile"
    verbs = set(re.findall(r"^([a-z]+):", makefile.read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make (?:[A-Z_]+=\S+ )*([a-z]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named and named <= verbs


@pytest.mark.parametrize("page", PAGES)
def test_every_path_and_link_in_a_page_exists(page):
    """Links are relative to the page, paths in backquotes to the root. Files that `make` writes need not exist."""
    text = (ROOT / page).read_text()
    links = {link.partition("#")[0] for link in re.findall(r"\]\((?!https?:|#)([^)\s]+)\)", text)}
    missing = {link for link in links if not ((ROOT / page).parent / link).exists()}
    named = set(re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|md|toml|txt))`", text))
    named = {path for path in named if "NN" not in path and not path.startswith(MADE_BY_MAKE)}
    missing |= {path for path in named if not (ROOT / path).exists()}
    assert links and named
    assert missing == set(), f"{page} names files that do not exist"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_inside_a_page_leads_to_a_heading(page):
    text = (ROOT / page).read_text()
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)\s]+)\)", text)) - anchors == set()


def test_the_architecture_page_names_every_package():
    text = (ROOT / "docs" / "architecture.md").read_text()
    inits = [*ROOT.glob("utils/*/**/__init__.py"), *ROOT.glob("grader/*/**/__init__.py")]
    folders = {file.parent.relative_to(ROOT).as_posix() for file in inits}
    missing = {folder for folder in folders if f"(../{folder}/)" not in text}
    assert folders
    assert missing == set(), "give each of these a line, with a link, in docs/architecture.md"


def test_the_pictures_of_the_packages_are_current():
    drawn = architecture.MERMAID.findall(architecture.PAGE.read_text())
    assert drawn == architecture.pictures(), "docs/architecture.md: run `python -m tests.architecture --write`"


def test_every_name_in_the_architecture_page_is_in_the_code():
    """Every name on the page (`spawn`, `Network.commit`, `start_zygote()`) is still defined somewhere."""
    text = architecture.MERMAID.sub("", architecture.PAGE.read_text())
    named = set(re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", text))
    files = [*ROOT.glob("utils/**/*.py"), *ROOT.glob("grader/**/*.py")]
    words = set(re.findall(r"\w+", " ".join(file.read_text() for file in files)))
    gone = {name for name in named if set(name.strip(".").split(".")) - words}
    assert gone == set(), "docs/architecture.md calls these by names that are no longer in utils or grader"


def test_the_walks_name_functions_in_the_files_they_link():
    """A link in parentheses right after a name, `spawn` ([launch.py](...)), leads to the file that defines the name."""
    text = architecture.PAGE.read_text()
    pairs = re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`\s+\(\[[^\]]+\]\(\.\./([^)]+\.py)\)", text)
    assert len(pairs) > 20
    wrong = [(name, file) for name, file in pairs if not is_defined_in(name, ROOT / file)]
    assert wrong == [], "docs/architecture.md looks for these names in the wrong file"


def is_defined_in(name, file):
    """Whether each part of a name such as `Network.commit` is a function, a class or a table of that file."""
    defined = re.findall(r"^ *(?:def|class) (\w+)|^([A-Z_]+)\b.* = ", file.read_text(), re.MULTILINE)
    return set(name.split(".")) <= {word for pair in defined for word in pair}


def test_what_the_readme_shows_is_what_a_lesson_prints():
    shown = re.findall(r"```python\n(.*?)```\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    cells = [cell for path in (ROOT / "solutions").glob("*/*.ipynb") for cell in json.loads(path.read_text())["cells"]]
    printed = {"".join(cell["source"]).strip(): text_of(cell) for cell in cells if cell["cell_type"] == "code"}
    assert len(shown) == 2
    for code, output in shown:
        assert output.strip() == printed[code.strip()].strip()


def text_of(cell):
    """Everything a cell shows, as text."""
    parts = []
    for output in cell["outputs"]:
        text = (
            output.get("text") or output.get("data", {}).get("text/plain") or ["\n".join(output.get("traceback", []))]
        )
        parts.append("".join(text).strip("\n"))
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(parts))
