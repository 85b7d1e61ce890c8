"""What is tried, most telling first, and how many seconds each part may take: nine minutes in all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MINUTES = 9
WORLDS = "tests/worlds/real/test_gpu.py"
# pytest's -k looks at the tests' names, and these say which process has used CUDA before: the ranks only, or also the
# notebook. A shorter word would be found in other names as well.
AGAIN = "cuda-in-the-notebook-too"


@dataclass(frozen=True)
class Part:
    """A part is either pytest, with these arguments, or a probe: the module in probes/ that has its name.

    seconds      the limit. Those of parts 0 to 7 add up to nine minutes; the tests in part 8 get what is left.
    needs_gpu    whether there is nothing to do without a GPU; a dry run looks at it all the same
    """

    name: str
    number: str  # in the order of docs/gpu.md
    title: str
    seconds: float
    pytest: tuple[str, ...] = ()
    probe: bool = False
    needs_gpu: bool = True

    @property
    def is_pytest(self) -> bool:
        return not self.probe

    def command(self, folder: Path, dry: bool, *others: Part) -> list[str]:
        """What follows Python's own name. others: further probes for the same process."""
        if self.probe:
            words = ["-m", "tests.gpu.probes", *(part.name for part in (self, *others)), "--folder", str(folder)]
            return [*words, "--dry"] if dry else words
        quietly = ["-p", "no:cacheprovider", "-p", "tests.gpu.pytest_lines", "-q", "--tb=short", "-m", "gpu"]
        return ["-m", "pytest", *quietly, *self.pytest, *(["--collect-only"] if dry else [])]


PARTS = (
    Part("machine", "0", "What is there", 40, probe=True, needs_gpu=False),
    Part("worlds", "1", "Ranks on GPUs", 65, pytest=(WORLDS, "-k", f"not failure and not {AGAIN}")),
    Part("shared_gpu", "1", "Several ranks on one GPU", 50, probe=True),
    Part("failures", "2", "Failures and deadlocks on GPUs", 95, pytest=(WORLDS, "-k", f"failure and not {AGAIN}")),
    Part("recorder", "3", "The recorder", 30, probe=True),
    Part("start_up", "4", "Starting ranks", 30, probe=True),
    Part("wrappers", "5", "torch's parallel wrappers", 40, probe=True),
    Part("lessons", "5", "The lessons and their visible checks", 70, probe=True),
    Part("collectives", "6", "Collectives and links, timed", 35, probe=True),
    Part("kernels", "6", "Kernels, timed, and a simulated step against the measured one", 60, probe=True),
    Part("memory", "7", "Memory", 25, probe=True),
    Part("others", "8", "The other tests that need a GPU", 60, pytest=(
        "tests/benchmark", "tests/report", "tests/worlds/real/test_spawn.py", "tests/worlds/jobs/test_in_place.py",
        "--continue-on-collection-errors",
    )),
    Part("again", "8", "Ranks on GPUs, after the notebook has used one itself", 120, pytest=(WORLDS, "-k", AGAIN)),
)  # fmt: skip
