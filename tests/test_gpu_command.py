"""`make gpu`: a part that fails, crashes or hangs stops no other, the page says so, and nothing names the machine.

The dry run itself runs in a copy of the project, without network, with a Python that has torch, numpy and pytest only.
"""

import getpass
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

from tests.gpu import __main__ as command
from tests.gpu import page, places, running
from tests.gpu.lines import FAILED, NOT_TRIED, PASSED, Check, Lines, lines_of, read
from tests.gpu.page import Page
from tests.gpu.parts import MINUTES, PARTS, Part
from tests.gpu.probe import NotHere, Setting
from tests.gpu.probe import run as run_probes
from tests.gpu.running import ROOT


class Program(Part):
    """A part that runs the given Python source, with the path of its lines as argument."""

    source = ""

    def command(self, folder, dry, *others):
        return ["-c", self.source, str(lines_of(folder, self.name))]


def program(name, source, seconds=30.0):
    part = Program(name, "1", name, seconds, probe=True, needs_gpu=False)
    object.__setattr__(
        part, "source", f"import sys\nfrom tests.gpu.lines import Check, Lines\nl = Lines(sys.argv[1])\n{source}"
    )
    return part


GOOD = "l.planned(['a']); l.began('a'); l.ended(Check('a', 'passed', numbers={'seconds': 1.5}))"
FAILS = "l.ended(Check('b', 'failed', 'ValueError: the GPU is on fire'))"
CRASHES = "import os, signal\nl.planned(['c', 'never begun']); l.began('c'); os.kill(os.getpid(), signal.SIGSEGV)"
HANGS = (
    "import subprocess, time\nl.planned(['d', 'e']); l.began('d')\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
    "l.ended(Check('d', 'passed', str(child.pid))); l.began('e'); time.sleep(1000)"
)
EXITS = "print('out of disk'); sys.exit(3)"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Of parts that fail in every way, run one after the other."""
    of_all = [
        program("fails", FAILS),
        program("crashes", CRASHES),
        program("hangs", HANGS, seconds=3.0),
        program("exits", EXITS),
        program("good", GOOD),
    ]
    found = command.run_all(of_all, tmp_path, 100, dry=False)
    command.write(found, tmp_path, dry=False)
    return {result.part.name: result for result in found}


def test_a_part_that_fails_crashes_or_hangs_stops_no_other(results, tmp_path):
    assert {name: result.outcome for name, result in results.items()} == {
        **dict.fromkeys(["fails", "crashes", "hangs", "exits"], FAILED),
        "good": PASSED,
    }
    outcomes = {check.name: (check.outcome, check.text) for result in results.values() for check in result.checks}
    assert outcomes["c"] == (FAILED, "its process was killed by SIGSEGV")
    assert outcomes["never begun"][0] == NOT_TRIED
    assert outcomes["e"] == (FAILED, "its 3 s were up")
    assert results["exits"].problem == "its process ended with exit code 3"
    child = int(outcomes["d"][1])
    assert not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text()
    for text in (tmp_path / "page.md").read_text(), (tmp_path / "page.html").read_text():
        for words in "the GPU is on fire", "SIGSEGV", "its 3 s were up", "out of disk", "exit code 3":
            assert words in text
    numbers = {part["name"]: part for part in json.loads((tmp_path / "numbers.json").read_text())}
    assert numbers["good"]["checks"][0]["numbers"] == {"seconds": 1.5}


def test_when_the_time_for_everything_is_up_parts_are_not_tried(tmp_path):
    found = command.run_all([program("late", GOOD)], tmp_path, command.TOO_LITTLE - 1, dry=False)
    assert found[0].outcome == NOT_TRIED and "were up before it began" in found[0].checks[0].text


def test_without_a_gpu_only_what_needs_none_is_tried(tmp_path):
    machine = program("machine", "l.ended(Check('GPUs', 'passed', numbers={'GPUs': 0}))")
    needs_one = Part("worlds", "1", "needs one", 10, probe=True)
    found = command.run_all([machine, needs_one], tmp_path, 100, dry=False)
    assert [result.outcome for result in found] == [PASSED, NOT_TRIED]
    assert found[1].checks[0].text == "torch finds no GPU here"


def test_a_folder_with_something_else_in_it_is_not_emptied(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit, match="holds something else"):
        command.main(["--dry", "--folder", str(tmp_path)])
    assert (tmp_path / "thesis.txt").exists()
    ours = tmp_path / "ours"
    assert command.emptied(ours) == ours and [path.name for path in ours.iterdir()] == ["numbers.json"]
    (ours / "old.txt").write_text("")
    command.emptied(ours)
    assert not (ours / "old.txt").exists()


def test_the_folder_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MOST", 4000)
    for name, size in {"large.json": 3000, "larger.json": 5000, "small.txt": 10}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    assert command.make_room(tmp_path) == ["larger.json", "large.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["small.txt"]


def test_paths_and_names_of_the_machine_are_left_out(tmp_path, monkeypatch):
    host, home = "h200-box", os.path.expanduser("~")
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    text = (
        f"{ROOT}/utils/x.py, line 3; {home}/secret/key.pem; {sys.prefix}/lib/python3/site-packages/torch/cuda.py; "
        f'"/tmp/tmpabc/store"; /opt/conda/lib/libnccl.so.2; host {host}: see https://pytorch.org/docs/x.html and 1/2, '
        f"/dev/nvidiactl"
    )
    cleaned = places.without_places(text)
    for there in host, str(ROOT), "/tmp", "/opt", "secret/", "conda", home + "/":
        assert there not in cleaned
    for kept in (
        "utils/x.py, line 3",
        "key.pem",
        "libnccl.so.2",
        "https://pytorch.org/docs/x.html",
        "1/2",
        "/dev/nvidiactl",
    ):
        assert kept in cleaned
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "trace.json").write_text(json.dumps({"file": f"{home}/secret/run.py", "host": host}))
    places.clean(tmp_path)
    assert json.loads((tmp_path / "traces" / "trace.json").read_text()) == {"file": "…/run.py", "host": "HOST"}


def test_a_short_or_common_name_stays(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-17.example.org")
    assert places.without_places("root of the group, on gpu-17.example.org or gpu-17, not gpu-170") == (
        "root of the group, on HOST or HOST, not gpu-170"
    )


def test_a_line_that_was_cut_off_is_not_read(tmp_path):
    lines = Lines(tmp_path / "lines")
    lines.planned(["one", "two"])
    lines.ended(Check("one", PASSED))
    lines.file.write('{"ended": {"name": "tw')
    lines.file.flush()
    assert [(check.name, check.outcome) for check in read(tmp_path / "lines")] == [("one", PASSED), ("two", NOT_TRIED)]


def fine(setting):
    """What works."""
    return {"seconds": 1}


def broken(setting):
    """What doesn't work."""
    raise RuntimeError("CUDA error")


def lacking(setting):
    """What isn't here."""
    raise NotHere("there is no second GPU")


def without_a_package(setting):
    """What needs a package."""
    import a_package_that_nobody_has  # noqa: F401


def test_checks_of_a_probe_go_on_after_one_that_fails(tmp_path):
    run_probes([broken, lacking, without_a_package, fine], Setting(True, tmp_path), Lines(tmp_path / "lines"))
    found = {check.name: check for check in read(tmp_path / "lines")}
    assert {name: check.outcome for name, check in found.items()} == {
        "What doesn't work": FAILED,
        "What isn't here": NOT_TRIED,
        "What needs a package": NOT_TRIED,
        "What works": PASSED,
    }
    assert "RuntimeError: CUDA error" in found["What doesn't work"].text
    assert found["What needs a package"].text.startswith("needs a_package_that_nobody_has")


TESTS = """
    import pytest
    pytestmark = pytest.mark.gpu
    def test_right(): print("seen")
    def test_wrong(): assert 1 == 2
    @pytest.mark.skip(reason="no second GPU")
    def test_skipped(): pass
"""


def test_outcomes_of_tests_are_read(tmp_path, monkeypatch):
    (tmp_path / "test_some.py").write_text(textwrap.dedent(TESTS))
    (tmp_path / "test_lacks.py").write_text("import a_package_that_nobody_has")
    files = tmp_path / "test_some.py", tmp_path / "test_lacks.py"
    part = Part(
        "tests", "1", "tests", 60, pytest=(*map(str, files), "--continue-on-collection-errors", "-c", os.devnull)
    )
    result = running.run([part], tmp_path, 60, dry=False)[0]
    found = {check.name.rpartition("::")[2].rpartition("/")[2]: check for check in result.checks}
    assert {name: check.outcome for name, check in found.items()} == {
        "test_lacks.py": NOT_TRIED,
        "test_right": PASSED,
        "test_wrong": FAILED,
        "test_skipped": NOT_TRIED,
    }
    assert found["test_right"].text == "seen\n" and "assert 1 == 2" in found["test_wrong"].text
    assert found["test_skipped"].text == "no second GPU" and "a_package_that_nobody_has" in found["test_lacks.py"].text


def test_a_page_escapes_what_it_shows():
    shown = Page()
    shown.heading(1, "<b>")
    shown.table(["a|b"], [["x|y\nz"]])
    shown.code("<script>")
    assert "<script>" not in shown.html() and "&lt;script&gt;" in shown.html() and "a\\|b" in shown.markdown()
    assert "x\\|y z" in shown.markdown() and "    <script>" in shown.markdown()


def test_the_time_is_enough_for_the_parts_that_matter_and_most_telling_come_first():
    numbered = [part for part in PARTS if part.number < "8"]
    assert sum(part.seconds for part in numbered) <= 60 * MINUTES
    assert [part.number for part in PARTS] == sorted(part.number for part in PARTS)
    assert {part.number for part in PARTS} >= set("1234567")


def test_every_file_with_a_test_for_gpus_belongs_to_a_part():
    named = [word for part in PARTS for word in part.pytest if word.startswith("tests/")]
    for path in Path(ROOT, "tests").rglob("test_*.py"):
        if re.search(r"^(?:@pytest\.mark\.gpu|pytestmark = .*mark\.gpu)", path.read_text(), re.MULTILINE):
            name = str(path.relative_to(ROOT))
            assert any(name == word or name.startswith(f"{word}/") for word in named), f"{name} is in no part"


# ---- on a bare machine

BARE = ("torch", "numpy", "pytest")


def needs_of(names):
    """The distributions that these need, and so on: what pip would install with them."""
    found, new = {}, list(names)
    while new:
        name = new.pop()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # only needed on other systems
            continue
        if distribution.metadata["Name"] not in found:
            found[distribution.metadata["Name"]] = distribution
            required = [line for line in distribution.requires or [] if "extra ==" not in line]
            new += [re.match(r"[\w.-]+", line)[0] for line in required]
    return found.values()


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """A Python that has torch, numpy, pytest and what they need, by links to what is installed here."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    packages = next(folder.glob("lib/python*/site-packages"))
    for distribution in needs_of(BARE):
        tops = {Path(file).parts[0] for file in distribution.files or [] if ".." not in Path(file).parts}
        for top in tops - {"__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top).resolve())
    return python


@pytest.fixture(scope="module")
def copy_of_project(tmp_path_factory):
    """The files that git would commit, in an empty folder."""
    folder = tmp_path_factory.mktemp("copy")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def without_network():
    """What to put before a command so that it has only a loopback device; nothing if that can't be done here."""
    words = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    inside = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    works = shutil.which("unshare") and subprocess.run([*words, *inside, "true"], capture_output=True).returncode == 0
    return [*words, *inside] if works else []


@pytest.mark.thorough  # .ci/run makes a dry run of most parts, with all packages
def test_a_dry_run_on_a_bare_machine_ends_with_its_page(bare_python, copy_of_project, tmp_path):
    environment = {"PATH": os.defpath, "HOME": str(tmp_path)}
    has = (
        "import torch, numpy, pytest, importlib.util as u; print(u.find_spec('cloudpickle'), u.find_spec('matplotlib'))"
    )
    found = subprocess.run([bare_python, "-c", has], capture_output=True, text=True, env=environment)
    assert found.stdout == "None None\n", found.stderr
    done = subprocess.run(
        [*without_network(), bare_python, "-m", "tests.gpu", "--dry"],
        cwd=copy_of_project, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    folder = copy_of_project / "build" / "gpu"
    about = (folder / "page.md").read_text()
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{about}"
    for part in PARTS:
        assert f"| {part.title} | passed |" in about
    assert "cloudpickle is missing. Left out:" in about and "A DRY RUN" in about
    everything = [path for path in folder.rglob("*") if path.is_file()]
    assert {"page.md", "page.html", "numbers.json", "kernels.csv"} <= {path.name for path in everything}
    assert sum(path.stat().st_size for path in everything) < page.MOST
    for path in everything:
        text = path.read_text(errors="replace")
        assert str(copy_of_project) not in text and str(ROOT) not in text and str(tmp_path) not in text, path.name


def test_the_command_itself_imports_no_torch():
    """A driver that hangs, or a torch that can't be imported, then stops one part and not everything."""
    script = "import sys, tests.gpu.__main__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
