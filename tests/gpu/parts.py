"""What is tried, most telling first, and how many seconds each part may take: nine minutes in all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MINUTES = 9
WORLDS = "tests/worlds/real/test_gpu.py"
# pytest's -k looks at the tests' names, and these say which process has used CUDA before: "too" is the notebook's.
NOT_TWICE = "not too"


@dataclass(frozen=True)
class Part:
    """pytest: its arguments; probe: a module of tests/gpu/probes. One of them is given.

    seconds      the limit. Those of parts 0 to 7 add up to nine minutes; the tests in part 8 get what is left.
    needs_gpu    whether there is nothing to do without a GPU; a dry run looks at it all the same
    """

    name: str
    number: str  # in the order of docs/gpu.md
    title: str
    seconds: float
    pytest: tuple[str, ...] = ()
    probe: str = ""
    needs_gpu: bool = True

    @property
    def is_pytest(self) -> bool:
        return not self.probe

    def command(self, lines: Path, folder: Path, dry: bool) -> list[str]:
        """What follows Python's own name."""
        if self.probe:
            words = ["-m", "tests.gpu.probes", self.probe, "--lines", str(lines), "--folder", str(folder)]
            return [*words, "--dry"] if dry else words
        quietly = ["-p", "no:cacheprovider", "-p", "tests.gpu.pytest_lines", "-q", "--tb=short", "-m", "gpu"]
        return ["-m", "pytest", *quietly, *self.pytest, *(["--collect-only"] if dry else [])]


CONTINUE = "--continue-on-collection-errors"
PARTS = (
    Part("machine", "0", "What is there", 40, probe="machine", needs_gpu=False),
    Part("worlds", "1", "Ranks on GPUs", 65, pytest=(WORLDS, "-k", f"not failure and {NOT_TWICE}")),
    Part("shared", "1", "Several ranks on one GPU", 50, probe="shared_gpu"),
    Part("failures", "2", "Failures and deadlocks on GPUs", 100, pytest=(WORLDS, "-k", f"failure and {NOT_TWICE}")),
    Part("recorder", "3", "The recorder", 30, probe="recorder"),
    Part("start_up", "4", "Starting ranks", 30, probe="start_up"),
    Part("wrappers", "5", "torch's parallel wrappers", 35, probe="wrappers"),
    Part("lessons", "5", "The lessons and their visible checks", 75, probe="lessons"),
    Part("collectives", "6", "Collectives and links, timed", 35, probe="collectives"),
    Part("kernels", "6", "Kernels, timed, and a simulated step against the measured one", 60, probe="kernels"),
    Part("memory", "7", "Memory", 20, probe="memory"),
    Part("others", "8", "The other tests that need a GPU", 60, pytest=(
        "tests/benchmark", "tests/report", "tests/worlds/jobs", "tests/grader/sandbox", "tests/grader/judging",
        CONTINUE,
    )),
    Part("again", "8", "Ranks on GPUs, after the notebook has used one itself", 120, pytest=(WORLDS, "-k", "too")),
)  # fmt: skip
