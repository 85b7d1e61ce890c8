"""What a rank runs where a check judges a function that takes a process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .backward import my_group


def call_in_group(
    function: Callable[..., Any], *mine: Any, rank: int, groups: Sequence[list[int]] | None = None, **for_all: Any
) -> Any:
    """Call the function with this rank's inputs and its `group`.

    groups: the ranks of each process group; without them, the group is None, which stands for all ranks.
    """
    return function(*mine, **for_all, group=my_group(rank, groups) if groups else None)
