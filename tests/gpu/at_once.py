"""A pytest plug-in that prints each failure at once: by the end, a later test may have hung or crashed the process."""

import textwrap

import pytest

MAX_TEXT = 4000  # characters per failure


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.register(Printer(config.get_terminal_writer()))


class Printer:
    def __init__(self, writer):
        self.writer = writer

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.writer.line("\n" + textwrap.indent(report.longreprtext[-MAX_TEXT:], "    "))

    def pytest_collectreport(self, report):
        """A file that can't be imported, since it needs a package that isn't there, has not failed."""
        if report.failed:
            lacking = "ModuleNotFoundError: No module named" in report.longreprtext
            self.writer.line(f"\n{report.nodeid} {'SKIPPED' if lacking else 'FAILED'}")
            self.pytest_runtest_logreport(report)
