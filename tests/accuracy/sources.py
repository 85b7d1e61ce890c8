"""The rows by source: who measured them, on which machine."""

from __future__ import annotations

from tests.accuracy.published import published
from tests.accuracy.rows import ROWS, Row

TRAINING = [row for row in [*ROWS, *published()] if row.what != "all_reduce"]


def source_of(row: Row) -> str:
    """Families that are from one paper are one source."""
    return row.family.split(",")[0] if row.family.startswith("Korthikanti") else row.family
