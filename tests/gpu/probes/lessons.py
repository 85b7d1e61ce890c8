"""Part 5: every lesson's cells, in order, with its visible checks, as they stand in solutions/*.py.

Lessons compute over Gloo on the CPU, with or without GPUs, so what counts here is that they still do so beside a GPU;
where a lesson asks for whatever `spawn` would choose, it gets the GPU.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import linecache
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.gpu.probe import NotHere, Numbers, Setting

ROOT = Path(__file__).resolve().parents[3]
MARKER = re.compile(r"^# %%(.*)$", re.MULTILINE)
AT_ONCE = 4  # lessons; their ranks need cores


def cells(source: str) -> list[tuple[str, str]]:
    """[(what stands on the marker, the code)] of the code cells of a lesson in jupytext's percent format."""
    _, *rest = MARKER.split(source)
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return [(marker.strip(), code) for marker, code in pairs if not marker.strip().startswith("[markdown]")]


def run_lesson(path: Path) -> int:
    """Run the cells of a lesson in one namespace, as a kernel would. Returns how many checks there were.

    Raises what a cell raises, unless its marker says that it does.
    """
    space: dict[str, object] = {"__name__": "__main__"}
    checks = 0
    for number, (marker, code) in enumerate(cells(path.read_text()), 1):
        name = f"<{path.stem}, cell {number}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        fails_on_purpose = "raises-exception" in marker
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, name, "exec"), space)
        except Exception:
            if not fails_on_purpose:
                print(printed.getvalue()[-2000:])
                raise
        else:
            if fails_on_purpose:
                raise AssertionError(f"cell {number} should raise, and didn't")
        checks += marker.startswith("check=")
    return checks


def lesson_in_a_process(path: Path) -> tuple[Path, float, str]:
    """(path, seconds, its last line if it failed)."""
    began = time.monotonic()
    words = [sys.executable, "-m", "tests.gpu.probes.lessons", str(path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "MPLBACKEND": "agg"})
    tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
    return path, time.monotonic() - began, "" if done.returncode == 0 else tail


def all_lessons(setting: Setting) -> Numbers:
    """Every lesson's cells and visible checks, with a GPU in the machine"""
    paths = sorted((ROOT / "solutions").glob("[0-9]*.py"))
    if setting.dry:
        for path in paths:
            for marker, code in cells(path.read_text()):
                compile(code, f"{path.stem}, {marker}", "exec")
        return {path.stem: f"{len(cells(path.read_text()))} cells" for path in paths}
    missing = [name for name in ("matplotlib", "tqdm") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotHere(f"lessons need {' and '.join(missing)}")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lesson_in_a_process, paths))
    failed = {path.stem: tail for path, _, tail in results if tail}
    assert not failed, "\n\n".join(f"{name}: {tail}" for name, tail in failed.items())
    return {path.stem: seconds for path, seconds, _ in results}


CHECKS = [all_lessons]

if __name__ == "__main__":
    print(run_lesson(Path(sys.argv[1])), "checks")
