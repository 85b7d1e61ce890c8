"""The temporary folder of a world, made where there is room for what its ranks record and return."""

from __future__ import annotations

import os
import shutil
import tempfile

ROOM = 8 << 20  # bytes that a world should have for what its ranks record and return


def working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise RuntimeError("This notebook's folder has been deleted. Use os.chdir to move to another.") from None


def make_folder(program_bytes: int) -> str:
    """Make a folder for a world: in the temporary folder or, if that is full or can't be written to, in memory.

    Raises RuntimeError if there is room in neither.
    """
    for parent in (None, "/dev/shm"):
        try:
            folder = tempfile.mkdtemp(prefix="ranks-", dir=parent)
        except OSError:
            continue
        if shutil.disk_usage(folder).free > program_bytes + ROOM:
            return folder
        os.rmdir(folder)
    raise RuntimeError(
        f"The ranks need a temporary folder with {(program_bytes + ROOM) >> 20} MB free; neither {temporary_name()} "
        "nor /dev/shm has that. Make room there, or set TMPDIR to a different folder before Python starts."
    )


def temporary_name() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "any of the usual ones"
