"""For all tests: kernels that tests start can import `utils` and `grader`, and behave as they do outside pytest."""

import gc
import os
import re
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

try:
    import jupyter_client.provisioning.local_provisioner as local_provisioner
except ModuleNotFoundError:  # on a bare GPU machine (docs/gpu.md), where tests with kernels skip themselves
    local_provisioner = None

ROOT = Path(__file__).parent

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def launch_kernel(command, **options):
    """Start a kernel without PYTEST_CURRENT_TEST, which makes it capture less of what its children print."""
    if options.get("env") is not None:
        options["env"].pop("PYTEST_CURRENT_TEST", None)
    return _launch_kernel(command, **options)


if local_provisioner is not None:
    _launch_kernel, local_provisioner.launch_kernel = local_provisioner.launch_kernel, launch_kernel


gc.disable()  # while tests are collected: a sixth of the time, in each worker


def pytest_collection_finish():
    """What has been imported stays: from now on the collector has no need to look at it."""
    gc.freeze()
    gc.enable()


def pytest_configure(config):
    """Make `pytest --nbval solutions/` ignore times, cell numbers, addresses and device names."""
    if not getattr(config.option, "nbval_sanitize_with", None):
        config.option.nbval_sanitize_with = str(ROOT / "tests" / "nbval_sanitize.cfg")


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the course."""
    return ROOT


def pytest_collection_modifyitems(items):
    """Start the files marked `long` first, the longest at the very start, so that no core is left waiting for one."""
    marks = {item: item.get_closest_marker("long") for item in items}
    items.sort(key=lambda item: -marks[item].kwargs.get("minutes", 1) if marks[item] else 0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker a file at a time, as --dist loadfile does, or one lesson's tests of a file about all lessons.

    So the time that lessons take is divided among the cores, however many lessons there are.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrLesson(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, lesson = super()._split_scope(nodeid), re.search(r"^tests/lessons/.*[\[-](\d\d_\w+)", nodeid)
            return f"{file}::{lesson[1]}" if lesson else file

    return ByFileOrLesson(config, log) if config.option.dist == "loadfile" else None


def pytest_runtest_setup(item):
    """Skip tests that need a sandbox on machines that can't make one, except on CI, where they then fail."""
    if item.get_closest_marker("sandbox") and not os.environ.get("CI"):
        from grader.sandbox.bubblewrap import why_not

        if reason := why_not():
            pytest.skip(reason)


# ---- where the time goes ---------------------------------------------------------------------------------------------

SLOWEST = 25  # files
USED = pytest.StashKey[float]()


def processor_seconds() -> float:
    """Used so far by this process, its children that have ended, and the process that makes its ranks, if there is one.

    Not by what was killed together with its parent, such as the ranks of a kernel that was ended.
    """
    pids = [os.getpid()]
    if client := sys.modules.get("utils.worlds.real.zygote.client"):
        pids += [process.pid for process in [client.zygote.process] if process and process.returncode is None]
    ticks = 0
    for pid in pids:
        with suppress(OSError):  # it has just ended, or there is no /proc
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Note what each report's test has used since the last one, if tests run on CI."""
    report = yield
    if os.environ.get("CI"):
        now = processor_seconds()
        report.processor_seconds = max(0.0, now - item.session.stash.get(USED, now))
        item.session.stash[USED] = now
    return report


def pytest_terminal_summary(terminalreporter):
    """On CI, list the slowest files, for whoever finds that `make test` takes too long."""
    reports = [one for some in terminalreporter.stats.values() for one in some if hasattr(one, "processor_seconds")]
    if not reports:
        return
    used, took = Counter(), Counter()
    for report in reports:
        file = report.nodeid.partition("::")[0]
        used[file] += report.processor_seconds
        took[file] += report.duration
    terminalreporter.section("slowest files: processor seconds, seconds")
    for file, seconds in used.most_common(SLOWEST):
        terminalreporter.write_line(f"{seconds:7.1f} {took[file]:7.1f}  {file}")
