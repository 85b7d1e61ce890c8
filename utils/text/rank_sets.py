"""Ranks that did the same: grouped, named in a few words, and thinned out where there is no room for all of them.

In a virtual world equal work takes exactly equal time, so 1,024 ranks often fall into a handful of groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

FEW = 16  # ranks; up to this many, tables and pictures give each rank its own row or lane, alike or not


def group_alike(ranks: Sequence[int], looks: Iterable[Hashable]) -> list[list[int]]:
    """Lists of ranks that look alike, ordered by their first rank. Up to FEW ranks, each is in a list of its own.

    looks   what each of `ranks` is compared by, in the same order
    """
    if len(ranks) <= FEW:
        return [[rank] for rank in ranks]
    alike: dict[Hashable, list[int]] = {}
    for rank, look in zip(ranks, looks, strict=True):
        alike.setdefault(look, []).append(rank)
    return list(alike.values())


def format_ranks(ranks: list[int], most: int = 8) -> str:
    """[0, 1, 2, 5] as "0-2, 5".

    With more than `most` such stretches, "0, 8, ... 56 (8 alike)" if they are evenly spaced, else "0, 3, 7 and 5 more".
    """
    stretches: list[list[int]] = []
    for rank in ranks:
        if stretches and rank == stretches[-1][1] + 1:
            stretches[-1][1] = rank
        else:
            stretches.append([rank, rank])
    names = [str(first) if first == last else f"{first}-{last}" for first, last in stretches]
    if len(names) <= most:
        return ", ".join(names)
    steps = {(b[0] - a[0], b[1] - a[1]) for a, b in zip(stretches, stretches[1:], strict=False)}
    if len(steps) == 1:
        return f"{names[0]}, {names[1]}, ... {names[-1]} ({len(ranks):,} alike)"
    named = sum(last - first + 1 for first, last in stretches[:3])
    return f"{', '.join(names[:3])} and {len(ranks) - named:,} more"


def lane_name(ranks: list[int]) -> str:
    """The label of a lane that these ranks share."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ranks(ranks, most=3)}".replace(" (", "\n(")


def spread(number: int, most: int, always: Iterable[int]) -> list[int]:
    """At most `most` of 0 to `number` - 1: the first, the last, those in `always`, and evenly spaced ones."""
    if number <= most:
        return list(range(number))
    chosen: set[int] = set()
    for evenly in range(most, 1, -1):
        chosen = {round(i * (number - 1) / (evenly - 1)) for i in range(evenly)} | set(always)
        if len(chosen) <= most:
            break
    return sorted(chosen)
