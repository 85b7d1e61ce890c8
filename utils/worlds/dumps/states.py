"""A dump of torch's flight recorder as the record of a rank, which the reports are made from.

Fields are those of torch's FlightRecorder.hpp, version 2.10 of its format; what another version lacks is left open. The
entries of Gloo have been tried. Those of NCCL are read as torch's source describes them, and untried.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import Any

from ...events.collectives import COLLECTIVES, POINT_TO_POINT
from ...events.event import Event
from ...events.rank_state import RankState
from ...recording import last_calls
from ...recording.callers import ENGINE, HOME, kind_of
from ...text.source_lines import IN_ENVIRONMENT

Dump = dict[str, Any]
# Names that differ from the public ones; torch prefixes them with the backend, and appends the ranks of a message.
OPS = {
    "allreduce": "all_reduce",
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_reduce_barrier": "barrier",
}
DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}
PEERS = re.compile(r"(\d+)(->|<-)(\d+)")


class Entry:
    """One entry of a dump, with what it lacks filled in."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        said = str(fields.get("profiling_name", ""))
        name = re.split(r"[: ]", said.rpartition(":")[2].strip())[0].removesuffix("_coalesced").lower()
        self.op = OPS.get(name, name)
        group = fields.get("process_group")
        self.group, self.description = (str(group[0]), str(group[1])) if group else (str(fields.get("pg_id", "0")), "")
        self.is_message = self.op in POINT_TO_POINT
        self.number = int(fields.get("p2p_seq_id" if self.is_message else "collective_seq_id") or 0)
        peers = PEERS.search(said)
        self.peer = int(peers[3]) if peers else None
        sizes = fields.get("input_sizes") or fields.get("output_sizes") or [[]]
        self.shape = tuple(int(size) for size in sizes[0])
        dtypes = fields.get("input_dtypes") or fields.get("output_dtypes") or [""]
        self.dtype = DTYPES.get(str(dtypes[0]), str(dtypes[0]).lower())
        self.time = float(fields.get("time_created_ns") or 0) / 1e9
        self.where, self.wrapper = caller(fields.get("frames") or [])

    @property
    def is_known(self) -> bool:
        return self.is_message or self.op in COLLECTIVES


def states_of(dumps: dict[int, Dump]) -> dict[int, RankState]:
    """The record of each rank that left a dump. The groups of its calls hold only ranks that left one."""
    if all("watch" in dump for dump in dumps.values()):
        return last_calls.states_of({rank: dump["watch"] for rank, dump in dumps.items()})
    entries = {rank: read_entries(dump) for rank, dump in dumps.items()}
    first = first_in_all(entries)
    callers: dict[str, set[int]] = defaultdict(set)
    for rank, mine in entries.items():
        for entry in mine:
            callers[entry.group].add(rank)
    return {rank: state_of(rank, dumps, mine, first, callers) for rank, mine in entries.items()}


def read_entries(dump: Dump) -> list[Entry]:
    entries = [Entry(fields) for fields in dump.get("entries") or [] if isinstance(fields, dict)]
    return [entry for entry in entries if entry.is_known]


def unknown_calls(dump: Dump) -> list[str]:
    """The names of calls that nothing is known of."""
    entries = [Entry(fields) for fields in dump.get("entries") or [] if isinstance(fields, dict)]
    return [entry.op for entry in entries if not entry.is_known]


def check(dump: Dump) -> None:
    """Raise any exception if a field of the dump is of a kind that no version of torch writes."""
    if "watch" in dump:
        last_calls.states_of({0: dump["watch"]})
    else:
        read_entries(dump), last_completed(dump)
        for group in (dump.get("pg_config") or {}).values():
            listed(group)


def first_in_all(entries: dict[int, list[Entry]]) -> dict[str, int]:
    """{group: the number of its first collective that all dumps still hold}: a recorder forgets its oldest."""
    begins: dict[str, list[int]] = defaultdict(list)
    for mine in entries.values():
        own: dict[str, int] = {}
        for entry in mine:
            if not entry.is_message:
                own.setdefault(entry.group, entry.number)
        for group, number in own.items():
            begins[group].append(number)
    return {group: max(numbers) for group, numbers in begins.items()}


def state_of(
    rank: int, dumps: dict[int, Dump], entries: list[Entry], first: dict[str, int], callers: dict[str, set[int]]
) -> RankState:
    done, waits = last_completed(dumps[rank]), False
    events: list[Event] = []
    for entry in entries:
        ended = is_completed(entry, done)
        if not ended if entry.is_message else entry.number >= first[entry.group]:
            is_async = waits and not ended  # it waits for the first; what follows was started and is in flight
            waits = waits or not ended
            events.append(event_of(rank, len(events), entry, members_of(entry, dumps, callers), ended, is_async))
    return RankState(rank, events, finished=not waits)


def event_of(rank: int, index: int, entry: Entry, members: tuple[int, ...], ended: bool, is_async: bool) -> Event:
    group = "world" if is_world(entry) else entry.group
    peer = members[entry.peer] if entry.is_message and entry.peer is not None and entry.peer < len(members) else None
    return Event(
        rank,
        index,
        entry.op,
        group,
        members,
        peer,
        tag=0,
        bytes=0,
        dtype=entry.dtype,
        shape=entry.shape,
        reduce_op="",
        is_async=is_async,
        start=entry.time,
        end=entry.time if ended else None,
        where=entry.where,
        wrapper=entry.wrapper,
    )


def is_completed(entry: Entry, done: dict[str, int]) -> bool:
    """Whether the call had ended. Gloo's entries say it late, so the group's last completed number counts as well."""
    if entry.fields.get("state") == "completed":
        return True
    return not entry.is_message and entry.number <= done.get(str(entry.fields.get("pg_id", entry.group)), -1)


def last_completed(dump: Dump) -> dict[str, int]:
    """{this rank's own number of a group: that of the group's last collective that has ended}."""
    status = dump.get("pg_status") or {}
    return {str(group): int(one.get("last_completed_collective", -1)) for group, one in status.items()}


def members_of(entry: Entry, dumps: dict[int, Dump], callers: dict[str, set[int]]) -> tuple[int, ...]:
    """The global ranks of a call's group that left a dump, in the group's order.

    callers   {group: those who called something on it}: Gloo's dumps don't name the members of a group
    """
    for dump in dumps.values():
        for name, group in (dump.get("pg_config") or {}).items():
            if entry.group in (str(name), str(group.get("name", name))) and (ranks := listed(group)):
                return tuple(rank for rank in ranks if rank in dumps)
    return tuple(sorted(dumps if is_world(entry) else callers[entry.group]))


def listed(group: dict[str, Any]) -> list[int]:
    """The ranks that an entry of `pg_config` names."""
    ranks = group.get("ranks") or "[]"
    return [int(rank) for rank in (ast.literal_eval(ranks) if isinstance(ranks, str) else ranks)]


def is_world(entry: Entry) -> bool:
    return entry.description == "default_pg" or entry.group in ("", "0")


def caller(frames: list[dict[str, Any]]) -> tuple[str, str]:
    """("file:line" of the user's innermost line, what of torch it went through), as recording/callers.py says it.

    frames   innermost first. They are another machine's: its torch is recognised by its folder
    """
    wrapper = ""
    for frame in frames:
        file = str(frame.get("filename", ""))
        inside = file.rpartition("/torch/")[2] if IN_ENVIRONMENT.match(file) and "/torch/" in file else None
        here = HOME + inside if inside else file
        is_students, wrappers = kind_of(here)
        if is_students and inside is None:
            return f"{file}:{int(frame.get('line') or 0)}", wrapper
        if here == ENGINE:
            wrapper = f"{wrapper or 'DDP'} backward"
        elif wrappers and wrapper in ("", "DTensor"):
            wrapper = wrappers.get(str(frame.get("name"))) or wrappers.get("") or wrapper
    return "", wrapper
