"""Each launcher in its own kernel: 4 ranks, init + all-reduce + results, as in a student's cells.

All kernels are open at the same time, and later calls take turns in rounds, so that a disturbance hits them all.
"""

from __future__ import annotations

import ast
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from tests.bench.environment import refusal
from tests.bench.kernel import CellFailed, Kernel

WORLD_SIZE = 4
OURS = "utils.spawn"
CALLS_A_ROUND = 4
AFTER_THE_IMPORT = 2.0  # seconds between the cell that imports and the first call, which a student has to type
A_QUICK_STUDENT = 0.3  # seconds between two cells


class Launcher:
    """A file of cells, whose docstring is `name: what it does`."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.name, self.about = ast.get_docstring(ast.parse(source)).split(": ", 1)
        self.has_start, self.has_stop = ("\ndef start(" in source), ("\ndef stop(" in source)


def all_launchers() -> list[Launcher]:
    return [Launcher(path.read_text()) for path in sorted(Path(__file__).with_name("launchers").glob("*.py"))]


class Session:
    """A launcher in its kernel, and its measurements so far."""

    def __init__(self, launcher: Launcher, python: str, refused: dict[str, str]) -> None:
        self.launcher, self.python = launcher, python
        self.kernel: Kernel | None = None
        self.failed = refusal(launcher.source, refused)  # None, or why it takes no further part
        self.measured: dict = {"later": [], "with_pauses": []}

    def attempt(self, step) -> None:
        if self.failed is None:
            try:
                step(self)
                self.kernel.wait_until_idle()
            except CellFailed as error:
                self.failed = str(error)
                self.close()

    def begin(self) -> None:
        """Import, start engines if the launcher has any, and make the first call."""
        if self.launcher.name == OURS:
            self.measured["first_at_once"] = self.first_at_once()
        self.kernel = Kernel(self.python)
        self.kernel.run(self.launcher.source)
        if self.launcher.has_start:
            self.measured["start"] = self.kernel.evaluate(f"timed(start, {WORLD_SIZE})")[0]
        time.sleep(AFTER_THE_IMPORT)
        self.measured["first"] = self.call()

    def first_at_once(self) -> float:
        """The first call in the same cell as the import, in a separate kernel."""
        with Kernel(self.python) as kernel:
            cell = f"{self.launcher.source}\nanswer = timed(call, {WORLD_SIZE})"
            return checked([kernel.run(cell, value="answer")], WORLD_SIZE)[0]

    def later_calls(self) -> None:
        """One round: calls in a row; if they are fast, also with pauses between cells; for ours, also with 8 ranks."""
        self.measured["later"] += self.calls_in_a_row(WORLD_SIZE)
        if statistics.median(self.measured["later"]) < 1:
            for _ in range(CALLS_A_ROUND):
                time.sleep(A_QUICK_STUDENT)
                self.measured["with_pauses"].append(self.call())
        if self.launcher.name == OURS:
            self.measured.setdefault("later_twice_the_ranks", []).extend(self.calls_in_a_row(2 * WORLD_SIZE))

    def stop(self) -> None:
        if self.launcher.has_stop:
            self.kernel.run("stop()")

    def close(self) -> None:
        if self.kernel is not None:
            self.kernel.close()
            self.kernel = None

    def call(self) -> float:
        return checked([self.kernel.evaluate(f"timed(call, {WORLD_SIZE})")], WORLD_SIZE)[0]

    def calls_in_a_row(self, world_size: int) -> list[float]:
        return checked(self.kernel.evaluate(f"timed_in_a_row({CALLS_A_ROUND}, call, {world_size})"), world_size)

    def record(self) -> dict:
        """Everything measured; if the launcher failed, only why."""
        about = {"about": self.launcher.about, "failed": self.failed}
        return about if self.failed else {**about, **self.measured}


def checked(answers: list[tuple[float, list]], world_size: int) -> list[float]:
    """The seconds of the calls. Raises CellFailed unless each returned the sum of the ranks on every rank."""
    expected = [world_size * (world_size - 1) / 2] * world_size
    for _, results in answers:
        if results != expected:
            raise CellFailed(f"wrong results: {results}, expected {expected}")
    return [seconds for seconds, _ in answers]


def measure(launchers: list[Launcher], python: str, refused: dict[str, str], rounds: int) -> dict[str, dict]:
    """{launcher's name: its record}."""
    with ExitStack() as stack:
        sessions = [Session(launcher, python, refused) for launcher in launchers]
        for session in sessions:
            stack.callback(session.close)
        steps = [Session.begin, *[Session.later_calls] * rounds, Session.stop]
        turns = [(session, step) for step in steps for session in sessions]
        for session, step in (bar := tqdm(turns, "launchers", leave=False)):
            bar.set_postfix_str(session.launcher.name)
            session.attempt(step)
    return {session.launcher.name: session.record() for session in sessions}
