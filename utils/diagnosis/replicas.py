"""Replicas that are no longer alike: gradients that DDP never reduced, and fingerprints that differ between ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..events.event import Event
from ..events.rank_state import RankState, ReplicaPrints
from ..text.source_lines import place
from .words import ranks_text

MOST_NAMES = 3
OWN_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast")


def step_without_reduction(states: Sequence[RankState]) -> str:
    """Sentences about a step that used gradients of one rank alone; "" if there was none.

    Whoever reduces tensors by hand may mean to average gradients or weights without DDP, so nothing is said of that.
    """
    for state in states:
        if state.unreduced is None or len(states) < 2 or any(map(reduces, state.events)):
            continue
        where, unused = state.unreduced
        begin = f"Rank {state.rank} took an optimizer step ({place(where)}), but DDP has not all-reduced any gradient. "
        if not unused:
            return begin + "Is every backward pass inside no_sync()? The last one before each step must be outside."
        names = ", ".join(f"`{name}`" for name in unused[:MOST_NAMES]) + ", ..." * (len(unused) > MOST_NAMES)
        return begin + (
            f"The backward pass did not reach {names}, and DDP reduces a bucket only once all gradients in it are "
            "there. So each rank stepped with its own gradients. Use every parameter, freeze those that you don't use, "
            "or wrap the model with DDP(model, find_unused_parameters=True)."
        )
    return ""


def frozen_remark(states: Sequence[RankState]) -> str:
    """A remark on a frozen parameter that differs between ranks, all of which are replicas of a DDP model; or ""."""
    if not any(e.wrapper == "DDP" and len(e.members) == len(states) for e in states[0].events) or len(states) < 2:
        return ""
    tables = [by_name(state.frozen) for state in states]
    for name, numbers in tables[0].items():
        odd = [s.rank for s, table in zip(states, tables, strict=True) if table.get(name, numbers) != numbers]
        if odd:
            return (
                f"The frozen parameter `{name}` differs between rank {states[0].rank} and {ranks_text(odd).lower()}. "
                "DDP broadcasts only what it wraps. If all ranks should have the same, seed them alike before they "
                "make it, or broadcast it from rank 0."
            )
    return ""


def reduces(event: Event) -> bool:
    """Whether a call can be DDP's reduction of gradients, or the program's own; a single number is rather a loss."""
    by_ddp = event.wrapper == "DDP backward" or (event.wrapper == "DDP" and event.op == "all_reduce")
    own = not event.wrapper and event.op in OWN_REDUCTIONS and "float" in event.dtype
    return by_ddp or own and math.prod(event.shape) > 1


def differing_replicas(states: Sequence[RankState]) -> str:
    """Sentences about the first parameter or buffer that differs after an optimizer step; "" if none is known to."""
    for prints in zip(*(state.replicas for state in states), strict=False):
        if sentence := first_difference(prints, [state.rank for state in states]):
            return sentence
    return ""


def first_difference(prints: Sequence[ReplicaPrints], ranks: Sequence[int]) -> str:
    tables = [by_name(one.fingerprints) for one in prints]
    differing = [name for name in tables[0] if len({tuple(table.get(name, tables[0][name])) for table in tables}) > 1]
    if not differing:
        return ""
    name = differing[0]
    odd = [rank for rank, table in zip(ranks, tables, strict=True) if table.get(name) not in (None, tables[0][name])]
    more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
    return (
        f"After optimizer step {prints[0].step} ({place(prints[0].where)}), `{name}`{more} differs between rank "
        f"{ranks[0]} and {ranks_text(odd).lower()}. Replicas stay alike only if they begin alike and take the "
        "same steps. DDP sees to that for the parameters that it wraps and every backward pass reaches; what is "
        "frozen, or outside of the wrapped model, keeps what its rank gave it: seed all ranks alike, or broadcast it."
    )


def by_name(fingerprints: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    """{name: its fingerprints, sorted}: several modules may have parameters of one name."""
    table: dict[str, list[int]] = {}
    for name, number in fingerprints:
        table.setdefault(name, []).append(number)
    return {name: sorted(numbers) for name, numbers in table.items()}
