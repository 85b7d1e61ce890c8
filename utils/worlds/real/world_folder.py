"""The temporary folder of a world: made where there is room for what its ranks record and return."""

from __future__ import annotations

import os
import shutil
import tempfile

ROOM = 8 << 20  # bytes that a world should have for what its ranks record and return


def working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise RuntimeError("The folder that this notebook runs in has been deleted: os.chdir to another one.") from None


def make_folder(program_bytes: int) -> str:
    """A new folder for a world: in the temporary folder or, where that is full or can't be written, in memory."""
    for parent in (None, "/dev/shm"):
        try:
            folder = tempfile.mkdtemp(prefix="ranks-", dir=parent)
        except OSError:
            continue
        if shutil.disk_usage(folder).free > program_bytes + ROOM:
            return folder
        os.rmdir(folder)
    raise RuntimeError(
        f"The ranks need a temporary folder with {(program_bytes + ROOM) >> 20} MB free, and neither {temporary()} nor "
        "/dev/shm is one. Make room there, or name another: os.environ['TMPDIR'] = ... before Python starts."
    )


def temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "any of the usual ones"
