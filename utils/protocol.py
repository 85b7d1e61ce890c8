"""What the launcher and a rank say to each other. Imports nothing heavy: the kernel reads it before torch is there.

Everything lies in the folder of the world: `request` and `program` (what to run), `store` (the rendezvous), and for
each rank `events-R` (what it asked of the network), `stack-R` (its line, when it crashed or was asked) and `outcome-R`.
"""

from __future__ import annotations

import marshal
import os
import struct
from dataclasses import dataclass

from utils.run import Event, Region

# What a rank says inside its own output, in bytes that no text contains: that it has called one more collective on the
# whole world; that its function is over and its outcome is there. It then waits to be ended, because a process that
# leaves takes its connections with it, and the ranks that still need them would be blamed.
SYNCHRONISED = b"\xff\x00synchronised\x00\xff"
FINISHED = b"\xff\x00finished\x00\xff"
# The one process of a virtual cluster says whose text follows; and how far it is: virtual seconds, calls, ranks done.
SPEAKS = b"\xff\x00rank %d\x00\xff"
NEWS_IS = b"\xff\x00news %s\x00\xff"


_SIZE = struct.Struct("=I")


@dataclass(frozen=True)
class Request:
    """What the launcher asks of each rank."""

    world_size: int
    backend: str
    folder: str
    zero: float  # time.monotonic() at which the world began
    environment: dict[str, str]
    working_directory: str
    sys_path: list[str]
    sources: dict  # linecache entries of the notebook's cells, so that a traceback inside a rank shows their lines
    cluster: object = None  # a Cluster if the ranks are virtual: threads of one process
    device: str = "cpu"  # theirs: "cpu", or "meta" for sizes without values


@dataclass(frozen=True)
class Frame:
    """One line of a traceback."""

    file: str
    line: int
    function: str
    source: str


@dataclass(frozen=True)
class Failure:
    """An exception that ended a rank, in a form that needs none of the student's classes to read."""

    kind: str
    message: str
    frames: tuple[Frame, ...]  # outermost first
    time: float  # seconds since the world began


def path_in(folder: str, name: str, rank: int) -> str:
    return os.path.join(folder, f"{name}-{rank}")


def pack_note(note: tuple) -> bytes:
    """A note of a recorder as bytes: their number, then marshal's, which is what Python packs fastest."""
    packed = marshal.dumps(note)
    return _SIZE.pack(len(packed)) + packed


def unpack_notes(data: bytes) -> tuple[list[tuple], bytes]:
    """The whole notes at the beginning of `data`, and the bytes of one that has only begun."""
    notes, at = [], 0
    while len(data) >= at + _SIZE.size and len(data) >= (end := at + _SIZE.size + _SIZE.unpack_from(data, at)[0]):
        notes.append(marshal.loads(data[at + _SIZE.size : end]))
        at = end
    return notes, data[at:]


def read_events(rank: int, notes: list[tuple]) -> dict[str, object]:
    """What a recorder wrote (its notes are listed there), as the fields of a RankState."""
    tables: dict[str, dict] = {}
    regions = []
    for kind, key, value in notes:
        if kind == "region":
            regions.append(Region(rank, key, *value))
        elif kind != "memory":  # see read_memory
            tables.setdefault(kind, {}).setdefault(key, value)
    members, ends, sources = (tables.get(kind, {}) for kind in ("group", "end", "source"))
    waits, made, on_device = (tables.get(kind, {}) for kind in ("wait", "made", "device"))
    events = []
    for index, fields in tables.get("start", {}).items():
        fields = {**fields, "members": tuple(members[fields["group"]]), "shape": tuple(fields["shape"])}
        fields["peer"] = sources.get(index, fields["peer"])
        start, end = on_device.get(index, (fields.pop("start"), ends.get(index)))
        _, waited = waits.get(index, ("", None))
        events.append(Event(rank=rank, index=index, start=start, end=end, waited=waited, **fields))
    return {
        "events": events,
        "groups_made": [
            making(rank, number, end=made.get(number), **fields) for number, fields in tables.get("make", {}).items()
        ],
        "waits": {index: where for index, (where, _) in waits.items()},
        "failed": set(tables.get("failed", ())),
        "lost": set(tables.get("lost", ())),
        "strides": tables.get("strides", {}),
        "dropped": tables.get("dropped", {}),
        "regions": regions,
    }


def making(rank: int, number: int, group: str, members, start: float, end: float | None, where: str) -> Event:
    """That a rank makes a group, in the form of an Event: it may have to wait for others in it. Not one of a Run's."""
    return Event(rank, number, "new_group", group, tuple(members), None, 0, 0, "", (), "", False, start, end, where)


def read_memory(notes: list[tuple]) -> list[tuple[str, list, int]]:
    """From what a recorder wrote: (device, samples, peak) of each stretch in which the rank's memory was tracked."""
    return [(device, *value) for kind, device, value in notes if kind == "memory"]
