"""Which rank of `spawn` this process is, if it is one."""

from __future__ import annotations

number: int | None = None  # set by the rank itself, before any student code runs
