"""The competitors' environment, build/bench-env. It uses the course's packages, so torch is not installed twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from tests.bench.kernel import ROOT

FOLDER = ROOT / "build" / "bench-env"
COMPETITORS = Path(__file__).with_name("requirements.txt")
PINNED = re.compile(r"^([\w.-]+)==\S+$", re.MULTILINE)


def make() -> tuple[str, dict[str, str]]:
    """Make or update the environment. Returns (its Python, {package: why it can't be installed})."""
    venv.create(FOLDER, symlinks=True, with_pip=False)
    python = FOLDER / "bin" / "python"
    packages = sysconfig.get_path("purelib", "venv", vars={"base": str(FOLDER)})
    course_packages = sysconfig.get_path("purelib")
    Path(packages, "course.pth").write_text(f"import site; site.addsitedir({course_packages!r})\n")

    constraints = FOLDER / "constraints.txt"  # keeps the versions of the course's packages
    names = PINNED.findall((ROOT / "requirements.txt").read_text())
    constraints.write_text("".join(f"{name}=={version(name)}\n" for name in names))

    refused = {}
    for competitor in tqdm(list(PINNED.finditer(COMPETITORS.read_text())), "installing competitors", leave=False):
        why = install(python, competitor[0], constraints)
        if why:
            refused[competitor[1]] = why
    return str(python), refused


def install(python: Path, requirement: str, constraints: Path) -> str:
    """Install one package with pip. Returns why that failed, in one line, or ""."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--constraint", str(constraints)]
    done = subprocess.run([*command, requirement], capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return f"not installed: {(errors or lines)[-1]}"


def refusal(source: str, refused: dict[str, str]) -> str | None:
    """Why the cell `source` can't run, if it imports a package that couldn't be installed."""
    imported = re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE)
    return next((why for package, why in refused.items() if package in imported), None)


def describe() -> dict[str, str | int]:
    """The machine and the versions, for the head of the report."""
    return {
        "torch": version("torch"),
        "python": ".".join(map(str, sys.version_info[:3])),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
    }
