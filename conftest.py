"""For all of pytest: kernels that tests start find `utils` and `grader`, and behave as they do outside of pytest."""

import os
from pathlib import Path

import jupyter_client.provisioning.local_provisioner as local_provisioner
import pytest

ROOT = Path(__file__).parent

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))

_launch_kernel = local_provisioner.launch_kernel


def launch_kernel(command, **options):
    """A kernel that sees PYTEST_CURRENT_TEST captures less of what its children print than one that does not."""
    if options.get("env") is not None:
        options["env"].pop("PYTEST_CURRENT_TEST", None)
    return _launch_kernel(command, **options)


local_provisioner.launch_kernel = launch_kernel


def pytest_configure(config):
    """`pytest --nbval solutions/` compares everything but times, cell numbers, addresses and device names."""
    if not getattr(config.option, "nbval_sanitize_with", None):
        config.option.nbval_sanitize_with = str(ROOT / "tests" / "nbval_sanitize.cfg")


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the course."""
    return ROOT


def pytest_collection_modifyitems(items):
    """Files marked `long` come first, so that no core waits for one of them in the end (`make test` uses all cores).

    A file's tests stay together, for the sake of their fixtures; those that run for each lesson, lesson by lesson.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    for item in items:
        lesson = item.callspec.params.get("lesson", "") if hasattr(item, "callspec") else ""
        item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {lesson}".strip()))


def pytest_runtest_setup(item):
    """Grading needs a sandbox. A contributor's machine may have none; on CI its absence is a failure, not a skip."""
    if item.get_closest_marker("sandbox") and not os.environ.get("CI"):
        from grader.sandbox import why_not

        if reason := why_not():
            pytest.skip(reason)
