"""`python -m tests.gpu.probes NAME ... --folder FOLDER [--dry]`: runs the checks of NAME.py, and of others."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from tests.gpu.lines import Lines, lines_of
from tests.gpu.probe import Probe, Setting, run

parser = argparse.ArgumentParser()
parser.add_argument("names", nargs="+")
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--dry", action="store_true")
given = parser.parse_args()
for name in given.names:
    probes: list[Probe] = importlib.import_module(f"tests.gpu.probes.{name}").CHECKS
    run(probes, Setting(given.dry, given.folder), Lines(lines_of(given.folder, name)))
