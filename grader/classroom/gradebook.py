"""Transactions for nbgrader's gradebook: the grades of a submission are written all together or not at all.

nbgrader commits after every grade, so an interruption leaves a submission half graded. Here the commits wait until the
end. Several processes may grade at once, formgrader among them: a process that finds the gradebook locked waits.
"""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbgrader.api import Grade, Gradebook
from sqlalchemy import Engine, event
from sqlalchemy.exc import SAWarning
from sqlalchemy.orm import scoped_session, sessionmaker

LOCK_TIMEOUT = 120  # seconds; writing a submission takes 0.05

warnings.filterwarnings("ignore", category=SAWarning)  # SQLAlchemy 2.1 warns nbgrader's authors often


@event.listens_for(Engine, "connect")  # type: ignore[untyped-decorator]
def wait_for_others(connection: object, record: object) -> None:
    """Make nbgrader wait for other processes instead of failing with "database is locked" after 5 s."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute(f"PRAGMA busy_timeout = {LOCK_TIMEOUT * 1000}")


@contextmanager
def one_transaction(db_url: str) -> Iterator[Gradebook]:
    """A gradebook that commits when the `with` block ends, and rolls everything back if the block raises.

    No other process can write during the block, so what you read in it is still true at its end.
    """
    with Gradebook(db_url, course_id="") as gradebook, gradebook.engine.connect() as connection, connection.begin():
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # by itself, Python's sqlite3 waits for the first write
        gradebook.db.remove()
        # A session inside our transaction: its commits write but don't commit.
        gradebook.db = scoped_session(sessionmaker(bind=connection, autoflush=True))
        yield gradebook
        gradebook.db.flush()


def waits_for_a_person(grade: Grade) -> bool:
    """Whether nobody has graded this yet: neither a check nor, where that is needed, a person."""
    return grade.auto_score is None and grade.manual_score is None


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file atomically: any reader, even after a crash, finds the old content or the new, never a mix."""
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
