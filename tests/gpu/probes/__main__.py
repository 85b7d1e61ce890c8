"""`python -m tests.gpu.probes NAME --lines FILE --folder FOLDER [--dry]`: runs the checks of NAME.py."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from tests.gpu.lines import Lines
from tests.gpu.probe import Probe, Setting, run

parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("--lines", type=Path, required=True)
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--dry", action="store_true")
given = parser.parse_args()
probes: list[Probe] = importlib.import_module(f"tests.gpu.probes.{given.name}").CHECKS
run(probes, Setting(given.dry, given.folder), Lines(given.lines))
