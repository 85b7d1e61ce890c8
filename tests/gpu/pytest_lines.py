"""A pytest plug-in that writes each test's outcome as soon as it is known: `-p tests.gpu.pytest_lines`.

pytest's own JUnit file comes at the very end, so a part that is ended early would leave nothing.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.gpu.lines import FAILED, NOT_TRIED, PASSED, Check, Lines

LINES = "GPU_LINES"  # environment variable: the file to write
lines = Lines(os.environ[LINES])
MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    names = [item.nodeid for item in session.items]
    if session.config.option.collectonly:
        name = f"{len(names)} tests are found" if names else "no test is found"
        lines.ended(Check(name, PASSED if names else NOT_TRIED, numbers={"tests": len(names)}))
    else:
        lines.planned(names)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that can't be imported, or that skips itself."""
    if report.failed:
        text = str(report.longrepr)
        package = MISSING.search(text)
        why = f"needs {package[1]}, which this Python doesn't have" if package else text
        lines.ended(Check(report.nodeid, NOT_TRIED if package else FAILED, why))
    elif report.skipped:
        lines.ended(Check(report.nodeid, NOT_TRIED, reason(report.longrepr)))


def pytest_runtest_logstart(nodeid: str) -> None:
    lines.began(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        lines.ended(Check(report.nodeid, NOT_TRIED, reason(report.longrepr)))
    elif report.failed:
        lines.ended(Check(report.nodeid, FAILED, str(report.longrepr), report.duration))
    elif report.when == "call":
        printed = "\n".join(text for name, text in report.sections if "stdout" in name)
        lines.ended(Check(report.nodeid, PASSED, printed, report.duration))


def reason(longrepr: object) -> str:
    words = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return str(words).removeprefix("Skipped: ")
