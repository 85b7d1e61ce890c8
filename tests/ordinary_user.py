"""If root runs the tests, an ordinary user runs some of them, too."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.tiny_course import PROJECT

if_root = pytest.mark.skipif(os.geteuid() != 0, reason="all of these tests run as an ordinary user already")


def said_to_an_ordinary_user(*arguments: str) -> str:
    """What `python ...` prints: the system's Python, with a copy of the grader that the user can read."""
    python = shutil.which("python3", path="/usr/bin")
    version = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if not python or subprocess.run(version).returncode != 0:
        pytest.skip("there is no Python that an ordinary user may run")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for name in ("grader", "utils", "tests"):
            shutil.copytree(PROJECT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, *arguments]
        env = {"PATH": os.defpath, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, env=env, cwd="/", text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
