"""The name and the folder of this package. It may be installed under another name."""

from __future__ import annotations

from pathlib import Path

NAME = __name__.rpartition(".")[0].rpartition(".")[0]  # what `import NAME` takes
FOLDER = Path(__file__).resolve().parents[1]
IMPORT_ROOT = Path(__file__).resolve().parents[__name__.count(".")]  # the folder that must be on sys.path
