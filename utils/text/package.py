"""What this package is called and where it lies. The same folder may be installed under a name of its own."""

from __future__ import annotations

from pathlib import Path

NAME = __name__.rpartition(".")[0].rpartition(".")[0]  # as `import NAME` finds it
FOLDER = Path(__file__).resolve().parents[1]
IMPORT_ROOT = Path(__file__).resolve().parents[__name__.count(".")]  # the folder that must be on sys.path
