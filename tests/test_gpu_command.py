"""`make gpu`: a stage that crashes or hangs stops no other, and the summary says so without naming the machine.

.ci/run makes a dry run with all packages; here is one with torch, numpy and pytest only.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import __main__ as command
from tests.gpu.__main__ import AGAIN, ROOT, STAGES, TOTAL, WORLDS, Stage

HANGS = (
    "import subprocess, time; print('x ... ', end=''); "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True); "
    "open('pid', 'w').write(str(child.pid)); time.sleep(1000)"
)
PROGRAMS = {
    "machine": f"print('a ... PASSED'); print('in {ROOT}/utils on', {socket.gethostname()!r})",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": HANGS,
    "exits": "print('out of disk'); sys.exit(3)",
    "good": "print('b ... PASSED')",
}


class Program(Stage):
    def command(self, folder, dry):
        return ["-c", f"import os, sys; os.chdir({str(folder)!r}); {PROGRAMS[self.name]}"]


def test_a_stage_that_crashes_or_hangs_stops_no_other(tmp_path, capfd):
    stages = [Program(name, 6 if name == "hangs" else 100) for name in PROGRAMS]
    assert command.main(["--folder", str(tmp_path)], stages) == 1
    summary = (tmp_path / "summary.txt").read_text()
    for line in (
        "The process of crashes FAILED: SIGSEGV.",
        "x ...\nThe process of hangs FAILED: its 6 s were up.",
        "out of disk\nThe process of exits FAILED: exit code 3.",
        "b ... PASSED",
        "in ./utils on HOST",
    ):
        assert line in summary
    assert "2 PASSED, 3 FAILED" in capfd.readouterr().out
    child = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    assert not child.exists() or " Z " in child.read_text()


TESTS = """
import os, pytest
pytestmark = pytest.mark.gpu
def test_right(): pass
def test_wrong(): assert 1 == 2
@pytest.mark.skip(reason="no second GPU")
def test_skipped(): pass
def test_crash(): os._exit(9)
"""


def test_a_crash_loses_no_failure_of_the_tests_before_it(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_lacks.py").write_text("import a_package_that_nobody_has")
    stage = Stage("tests", 100, (str(tmp_path / "test_lacks.py"), str(tmp_path / "test_some.py"), "-c", os.devnull))
    printed, problem = command.run(stage, tmp_path, 100, dry=False)
    assert problem == "\nThe process of tests FAILED: exit code 9."
    assert "    E   assert 1 == 2" in printed and "no second GPU" in printed
    assert command.OUTCOME.findall(printed) == ["SKIPPED", "PASSED", "FAILED", "SKIPPED"]


def test_the_stages_that_matter_fit_into_the_time_and_together_run_every_test_for_gpus():
    assert sum(stage.seconds for stage in STAGES[:-2]) <= TOTAL
    tests = {name: " ".join(stage.pytest) for name, *_ in STAGES for stage in STAGES if stage.name == name}
    marked = subprocess.run(
        ["git", "grep", "-l", "mark.gpu", "tests/**/test_*.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert set(marked.stdout.split()) <= {WORLDS, *tests["others"].split(), "tests/test_gpu_command.py"}
    assert f'"{AGAIN}"' in (ROOT / WORLDS).read_text()


def test_the_command_itself_imports_no_torch():
    """A driver that hangs, or a torch that can't be imported, then stops one stage and not everything."""
    script = "import sys, tests.gpu.__main__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


BARE = """
from importlib.machinery import PathFinder
find_spec = PathFinder.find_spec
hiding = lambda cls, name, *more: None if name.partition(".")[0] in {absent} else find_spec(name, *more)
PathFinder.find_spec = classmethod(hiding)
"""
ABSENT = {*("cloudpickle", "pynvml", "matplotlib", "tqdm", "psutil", "hypothesis", "jupyter_client", "nbformat")}


@pytest.mark.thorough
def test_a_dry_run_needs_torch_numpy_and_pytest_only(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BARE.format(absent=ABSENT))
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "tests.gpu", "--dry", "--folder", str(tmp_path / "result")]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missing packages: cloudpickle, pynvml" in done.stdout
    assert (tmp_path / "result" / "kernels.csv").exists()
