"""The name and the folder of this package. It may be installed under another name."""

from __future__ import annotations

import os

NAME = __name__.rpartition(".")[0].rpartition(".")[0]  # the name to import
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LESSONS = os.path.join(os.path.dirname(FOLDER), "solutions")  # in a checkout of the course
IMPORT_ROOT = os.path.normpath(os.path.join(FOLDER, *[".."] * (NAME.count(".") + 1)))  # must be on sys.path
