"""What ranks share through the hub besides messages: key-value stores, text files, and SlowMemories.

Each function answers one request of the protocol (hub.HANDLERS). Whatever goes through a store or a file could have
gone through a message, so each access is an event of the run with its bytes (`note`), takes as long as a message, and
counts wherever traffic is judged. A store is there for ranks to meet: beyond MEETING and MEETING_BYTES, it refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grader.inside.codec import Breach
from grader.judging.hub_rank import Rank
from grader.judging.untrusted import Message, index_into, text
from utils.checks.traffic import SHARED_FILE
from utils.events.event import Event, Region
from utils.kit.slow_memory import SlowMemory

if TYPE_CHECKING:
    from grader.judging.hub import Hub

MAX_KEYS, MAX_LINES = 10_000, 10_000  # per store; per file
STORE = "dist.Store"  # the op of an access to a store
MEETING, MEETING_BYTES = 100, 10_000  # uses of stores by one rank in one run, and the keys and values in them


class KeyStores:
    """The stores of a world (dist.Store), each with its keys."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, bytes]] = {}  # store -> {key: value}
        self.written: dict[tuple[str, str], float] = {}  # (store, key) -> when
        self.waiting: dict[tuple[str, str], list[Rank]] = {}  # (store, key) -> ranks that wait for it


def note(hub: Hub, rank: Rank, what: str, nbytes: int) -> None:
    """Record that a rank has used a store or a file, and let it take the time of a message."""
    start = hub.now(rank, {})
    if hub.virtual:
        rank.clock += hub.cluster.inter.alpha + nbytes / hub.cluster.inter.bandwidth
    number = len(rank.shared)
    event = Event(rank.number, number, what, "", (), None, 0, nbytes, "", (), "", False, start, rank.clock, "")
    rank.shared.append(event)


# ---- keys


def key_request(hub: Hub, rank: Rank, message: Message, value: bytes = b"") -> tuple[str, str] | None:
    """The store and the key that a rank names, once its use of them is noted; None if it has been refused."""
    store, key = text(message["store"]), text(message["key"])
    note(hub, rank, STORE, len(key) + len(value))
    uses = [event.bytes for event in rank.shared if event.op == STORE]
    if len(uses) <= MEETING and sum(uses) <= MEETING_BYTES:
        return store, key
    said = (
        f"a store is where ranks find each other: {MEETING} calls and {MEETING_BYTES:,} bytes per rank are enough for "
        "that. To exchange data, send messages or call a collective."
    )
    hub.answer(rank, error=RuntimeError(said))
    return None


def key_get(hub: Hub, rank: Rank, message: Message) -> bool:
    """Wait until the key is there, and get its value."""
    if (request := key_request(hub, rank, message)) is None:
        return False
    stores, (name, key) = hub.key_stores, request
    values = stores.values.setdefault(name, {})

    def reply() -> dict[str, Any]:
        rank.clock = max(rank.clock, stores.written[name, key])
        note(hub, rank, STORE, len(values[key]))
        return {"value": values[key].hex()}

    rank.reply = reply
    if key in values:
        hub.make_ready(rank)
    else:
        stores.waiting.setdefault((name, key), []).append(rank)
    return True


def key_check(hub: Hub, rank: Rank, message: Message) -> None:
    if request := key_request(hub, rank, message):
        name, key = request
        hub.answer(rank, value=key in hub.key_stores.values.setdefault(name, {}))


def key_set(hub: Hub, rank: Rank, message: Message) -> None:
    value = bytes.fromhex(message["value"])
    if request := key_request(hub, rank, message, value):
        write_key(hub, rank, *request, value)
        hub.answer(rank, value=None)


def key_add(hub: Hub, rank: Rank, message: Message) -> None:
    """Add to a number; a key that is not there counts as 0."""
    if request := key_request(hub, rank, message, b"8 bytes."):
        name, key = request
        before = hub.key_stores.values.get(name, {}).get(key, b"0")
        written = str(int(before) + int(message["amount"])).encode()
        write_key(hub, rank, name, key, written)
        hub.answer(rank, value=int(written))


def write_key(hub: Hub, rank: Rank, name: str, key: str, value: bytes) -> None:
    stores = hub.key_stores
    values = stores.values.setdefault(name, {})
    if len(values) > MAX_KEYS:
        raise Breach("more keys than a store may hold")
    values[key] = value
    stores.written[name, key] = rank.clock
    for other in stores.waiting.pop((name, key), []):
        hub.make_ready(other)


# ---- files


def append(hub: Hub, rank: Rank, message: Message) -> None:
    lines = hub.files.setdefault(text(message["path"]), [])
    if len(lines) > MAX_LINES:
        raise Breach("more lines than a file may hold")
    start = hub.now(rank, {})
    lines.append(text(message["line"]))
    note(hub, rank, SHARED_FILE, len(lines[-1]))
    rank.regions.append(Region(rank.number, "append", start, hub.now(rank, {})))
    hub.answer(rank)


def lines(hub: Hub, rank: Rank, message: Message) -> None:
    start = hub.now(rank, {})
    found = list(hub.files.get(text(message["path"]), []))
    note(hub, rank, SHARED_FILE, sum(map(len, found)))
    rank.regions.append(Region(rank.number, "read", start, hub.now(rank, {})))
    hub.answer(rank, lines=found)


# ---- memories


def memory_of(hub: Hub, message: Message) -> SlowMemory:
    return hub.memories[index_into(hub.memories, message["memory"])]


def load(hub: Hub, rank: Rank, message: Message) -> None:
    """The tile stays on the chip until the rank says that it has let go of it."""
    memory, where = memory_of(hub, message), [slice(*part) for part in message["where"]]
    try:
        tile = memory.load(message["name"], *where)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        hub.answer(rank, error=error)
    else:
        number = len(memory.loads) - 1
        rank.tiles[message["memory"], number] = tile
        hub.answer(rank, tile=tile, number=number)


def let_go(hub: Hub, rank: Rank, message: Message) -> None:
    rank.tiles.pop((message["memory"], message["number"]), None)


def store(hub: Hub, rank: Rank, message: Message) -> None:
    memory, where = memory_of(hub, message), [slice(*part) for part in message["where"]]
    before = memory.stored
    try:
        memory.store(message["name"], message["tile"], *where)
    except (KeyError, TypeError, ValueError) as error:
        hub.answer(rank, error=error)
    else:
        hub.answer(rank, bytes=memory.stored - before)
