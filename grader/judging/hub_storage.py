"""What ranks share through the hub besides messages: key-value stores, text files, and SlowMemories.

Each function answers one request of the protocol (hub.HANDLERS).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from grader.inside.codec import Breach
from grader.judging.hub_rank import Rank
from grader.judging.untrusted import Message, index_into, text
from utils.events.event import Region
from utils.kit.slow_memory import SlowMemory

if TYPE_CHECKING:
    from grader.judging.hub import Hub

MAX_KEYS, MAX_VALUE, MAX_LINES = 10_000, 1 << 20, 10_000  # per store; characters; per file


class KeyStores:
    """The stores of a world (dist.Store), each with its keys."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, bytes]] = {}  # store -> {key: value}
        self.written: dict[tuple[str, str], float] = {}  # (store, key) -> when
        self.waiting: dict[tuple[str, str], list[Rank]] = {}  # (store, key) -> ranks that wait for it


# ---- keys


def key_get(hub: Hub, rank: Rank, message: Message) -> bool:
    """Wait until the key is there, and get its value."""
    stores, name, key = hub.key_stores, text(message["store"]), text(message["key"])
    values = stores.values.setdefault(name, {})

    def reply() -> dict[str, Any]:
        rank.clock = max(rank.clock, stores.written[name, key])
        hub.charge(rank, len(values[key]))
        return {"value": values[key].hex()}

    rank.reply = reply
    if key in values:
        hub.make_ready(rank)
    else:
        stores.waiting.setdefault((name, key), []).append(rank)
    return True


def key_check(hub: Hub, rank: Rank, message: Message) -> None:
    name, key = text(message["store"]), text(message["key"])
    hub.answer(rank, value=key in hub.key_stores.values.setdefault(name, {}))


def key_set(hub: Hub, rank: Rank, message: Message) -> None:
    value = message["value"]
    if len(value) > MAX_VALUE:
        raise Breach("a larger value than a store may hold")
    write_key(hub, rank, message, lambda before: bytes.fromhex(value))
    hub.answer(rank, value=None)


def key_add(hub: Hub, rank: Rank, message: Message) -> None:
    """Add to a number; a key that is not there counts as 0."""
    written = write_key(hub, rank, message, lambda before: str(int(before) + int(message["amount"])).encode())
    hub.answer(rank, value=int(written))


def write_key(hub: Hub, rank: Rank, message: Message, new_value: Callable[[bytes], bytes]) -> bytes:
    stores, name, key = hub.key_stores, text(message["store"]), text(message["key"])
    values = stores.values.setdefault(name, {})
    if len(values) > MAX_KEYS:
        raise Breach("more keys than a store may hold")
    values[key] = new_value(values.get(key, b"0"))
    hub.charge(rank, len(values[key]))
    stores.written[name, key] = rank.clock
    for other in stores.waiting.pop((name, key), []):
        hub.make_ready(other)
    return values[key]


# ---- files


def append(hub: Hub, rank: Rank, message: Message) -> None:
    lines = hub.files.setdefault(text(message["path"]), [])
    if len(lines) > MAX_LINES:
        raise Breach("more lines than a file may hold")
    start = hub.now(rank, {})
    lines.append(text(message["line"]))
    hub.charge(rank, len(message["line"]))
    rank.regions.append(Region(rank.number, "append", start, hub.now(rank, {})))
    hub.answer(rank)


def lines(hub: Hub, rank: Rank, message: Message) -> None:
    start = hub.now(rank, {})
    found = list(hub.files.get(text(message["path"]), []))
    hub.charge(rank, sum(map(len, found)))
    rank.regions.append(Region(rank.number, "read", start, hub.now(rank, {})))
    hub.answer(rank, lines=found)


# ---- memories


def memory_of(hub: Hub, message: Message) -> SlowMemory:
    return hub.memories[index_into(hub.memories, message["memory"])]


def load(hub: Hub, rank: Rank, message: Message) -> None:
    memory, where = memory_of(hub, message), [slice(*part) for part in message["where"]]
    try:
        tile = memory.load(message["name"], *where)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        hub.answer(rank, error=error)
    else:
        hub.answer(rank, tile=tile)


def store(hub: Hub, rank: Rank, message: Message) -> None:
    memory, where = memory_of(hub, message), [slice(*part) for part in message["where"]]
    before = memory.stored
    try:
        memory.store(message["name"], message["tile"], *where)
    except (KeyError, TypeError, ValueError) as error:
        hub.answer(rank, error=error)
    else:
        hub.answer(rank, bytes=memory.stored - before)


def arrays(hub: Hub, rank: Rank, message: Message) -> None:
    """The arrays of a memory, without loading them: that is not counted, and the check will notice it."""
    hub.answer(rank, arrays=memory_of(hub, message).arrays)


def overwrite(hub: Hub, rank: Rank, message: Message) -> None:
    """Write back arrays that the rank got without loading them."""
    held = memory_of(hub, message).arrays
    for name, array in message["arrays"].items():
        held[name].copy_(array)
