"""requirements.txt, derived from uv.lock: the versions that `make` installs, with uv or with pip.

    python -m grader.authoring.requirements [--write]

The lock names every package that any part of the project needs, for Linux and macOS. Its hashes and its CUDA libraries
stay behind. Which torch you get, for the CPU or for CUDA, is a matter of the index that you install from, and a torch
for CUDA itself names the libraries that go with it, each with its version.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from grader.authoring.lesson import ROOT
from grader.authoring.release import FOR_TEACHERS

SECTIONS = {  # of setup_env.py's groups: what each needs besides the ones before it
    "course": "# For students: all that the lessons need.",
    "instructor": f"{FOR_TEACHERS}: building, grading.",
    "developer": "# For developers: testing, checking.",
    "bench": "# For benchmarks.",
}
SUPPORTED = "sys_platform == 'darwin' or sys_platform == 'linux'"  # goes without saying
AND_SUPPORTED = f" and ({SUPPORTED})"
HEAD = """\
# Made from uv.lock by `make lock`: change pyproject.toml, not this. Installed by setup_env.py, by the groups below.
# torch comes with CUDA or without, depending on the index that it is installed from.
"""


def text(root: Path = ROOT) -> str:
    """The whole file."""
    lines, listed = HEAD.splitlines(), set[str]()
    for group, heading in SECTIONS.items():
        packages = [line for line in exported(root, group) if line not in listed]
        lines += ["", heading, *packages]
        listed.update(packages)
    return "\n".join(lines) + "\n"


def exported(root: Path, group: str) -> list[str]:
    """The pinned packages of a dependency group and of the library, as lines of a requirements file. No network."""
    command = [sys.executable, "-m", "uv", "export", "--project", str(root), "--locked", "--offline", "--no-config"]
    command += ["--quiet", "--no-default-groups", "--group", group, "--no-emit-project", "--no-hashes", "--no-annotate"]
    command += ["--no-header", *(f"--prune={name}" for name in cuda_libraries(root))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr.strip()}\nRun `make lock`.")
    return [line.replace(AND_SUPPORTED, "").replace(f" ; {SUPPORTED}", "") for line in done.stdout.splitlines()]


def cuda_libraries(root: Path) -> list[str]:
    """What the torch in the lock needs on Linux only."""
    packages = tomllib.loads((root / "uv.lock").read_text(encoding="utf-8"))["package"]
    return sorted(
        {
            needed["name"]
            for package in packages
            if package["name"] == "torch"
            for needed in package["dependencies"]
            if "linux" in needed.get("marker", "")
        }
    )


if __name__ == "__main__":
    if "--write" in sys.argv:
        (ROOT / "requirements.txt").write_text(text(), encoding="utf-8")
    else:
        print(text(), end="")
