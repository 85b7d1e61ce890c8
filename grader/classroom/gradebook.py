"""nbgrader's gradebook, written as one: all that grading one submission writes is there, or nothing of it.

nbgrader commits after every grade, so what is interrupted half-way stays half-way. Here its commits wait for the end.
Several may grade at a time, in formgrader too: who finds the gradebook taken waits for it.
"""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbgrader.api import Gradebook
from sqlalchemy import Engine, event
from sqlalchemy.exc import SAWarning
from sqlalchemy.orm import scoped_session, sessionmaker

PATIENCE = 120  # seconds; writing a submission takes a twentieth of one

warnings.filterwarnings("ignore", category=SAWarning)  # SQLAlchemy 2.1 has many for nbgrader's authors


@event.listens_for(Engine, "connect")  # type: ignore[untyped-decorator]
def wait_for_others(connection: object, record: object) -> None:
    """Let every nbgrader that loads this file wait for others, rather than stop with "database is locked" after 5 s."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000}")


@contextmanager
def one_transaction(db_url: str) -> Iterator[Gradebook]:
    """A gradebook that keeps what was written in the `with` block when the block ends, and nothing if it raises.

    Nobody else writes meanwhile, so what is read in the block is still true when it ends.
    """
    with Gradebook(db_url, course_id="") as gradebook, gradebook.engine.connect() as connection, connection.begin():
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # Python's sqlite3 begins only before the first write
        gradebook.db.remove()
        # A session in somebody else's transaction: its commits write, and don't commit.
        gradebook.db = scoped_session(sessionmaker(bind=connection, autoflush=True))
        yield gradebook
        gradebook.db.flush()


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that whoever reads it, now or after a crash, finds the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.chmod(mode)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
