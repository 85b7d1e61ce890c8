"""What ranks reach through the hub besides messages: key-value stores, text files, SlowMemories and Witnesses.

Whatever goes through a store or a file could have gone through a message, so each access is an event of the run with
its bytes (`note`), takes as long as a message, and counts wherever traffic is judged. A store is there for ranks to
meet: beyond MEETING and MEETING_BYTES, it refuses. A Witness has a single rank that may ask it, so what it says is no
message, and takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grader.inside.codec import Breach
from grader.judging.hub_rank import RankOfHub, Stays, stay_of
from grader.judging.untrusted import Message, text
from utils.checks.traffic import SHARED_FILE
from utils.events.event import Event, Region
from utils.kit.slow_memory import SlowMemory
from utils.kit.witness import Witness

MAX_KEYS, MAX_LINES = 10_000, 10_000  # per store; per file
STORE = "dist.Store"  # the op of an access to a store
MEETING, MEETING_BYTES = 100, 10_000  # uses of stores by one rank in one run, and the keys and values in them
# The words of requests, each the name of the method that answers it
REQUESTS = ("key_get", "key_check", "key_set", "key_add", "append", "lines", "load", "let_go", "store", "ask")


class Storage:
    """The stores (dist.Store), files, memories and witnesses of one run; it answers REQUESTS.

    now         the time at which a rank makes a request
    seconds_of  how long a message of so many bytes takes
    make_ready  lets a rank that waits for a key continue
    """

    def __init__(
        self,
        stays: Sequence[Stays],
        now: Callable[[RankOfHub, Message], float],
        seconds_of: Callable[[int], float],
        make_ready: Callable[[RankOfHub], None],
    ) -> None:
        self.stays, self.now, self.seconds_of, self.make_ready = stays, now, seconds_of, make_ready
        self.stores: dict[str, dict[str, bytes]] = {}  # store -> {key: value}
        self.written: dict[tuple[str, str], float] = {}  # (store, key) -> when
        self.waiting: dict[tuple[str, str], list[RankOfHub]] = {}  # (store, key) -> ranks that wait for it
        self.files: dict[str, list[str]] = {}

    def note(self, rank: RankOfHub, what: str, nbytes: int) -> None:
        """Record that a rank has used a store or a file, and let it take the time of a message."""
        start = self.now(rank, {})
        rank.clock += self.seconds_of(nbytes)
        number = len(rank.shared)
        event = Event(rank.number, number, what, "", (), None, 0, nbytes, "", (), "", False, start, rank.clock, "")
        rank.shared.append(event)

    # ---- keys

    def key_request(self, rank: RankOfHub, message: Message, value: bytes = b"") -> tuple[str, str] | None:
        """The store and the key that a rank names, once its use of them is noted; None if it has been refused."""
        store, key = text(message["store"]), text(message["key"])
        self.note(rank, STORE, len(key) + len(value))
        uses = [event.bytes for event in rank.shared if event.op == STORE]
        if len(uses) <= MEETING and sum(uses) <= MEETING_BYTES:
            return store, key
        said = (
            f"a store is where ranks find each other: {MEETING} calls and {MEETING_BYTES:,} bytes per rank are enough "
            "for that. To exchange data, send messages or call a collective."
        )
        rank.answer(error=RuntimeError(said))
        return None

    def key_get(self, rank: RankOfHub, message: Message) -> bool:
        """Wait until the key is there, and get its value."""
        if (request := self.key_request(rank, message)) is None:
            return False
        name, key = request
        values = self.stores.setdefault(name, {})

        def reply() -> dict[str, Any]:
            rank.clock = max(rank.clock, self.written[name, key])
            self.note(rank, STORE, len(values[key]))
            return {"value": values[key].hex()}

        rank.reply = reply
        if key in values:
            self.make_ready(rank)
        else:
            self.waiting.setdefault((name, key), []).append(rank)
        return True

    def key_check(self, rank: RankOfHub, message: Message) -> None:
        if request := self.key_request(rank, message):
            name, key = request
            rank.answer(value=key in self.stores.setdefault(name, {}))

    def key_set(self, rank: RankOfHub, message: Message) -> None:
        value = bytes.fromhex(message["value"])
        if request := self.key_request(rank, message, value):
            self.write_key(rank, *request, value)
            rank.answer(value=None)

    def key_add(self, rank: RankOfHub, message: Message) -> None:
        """Add to a number; a key that is not there counts as 0."""
        if request := self.key_request(rank, message, b"8 bytes."):
            name, key = request
            before = self.stores.get(name, {}).get(key, b"0")
            written = str(int(before) + int(message["amount"])).encode()
            self.write_key(rank, name, key, written)
            rank.answer(value=int(written))

    def write_key(self, rank: RankOfHub, name: str, key: str, value: bytes) -> None:
        values = self.stores.setdefault(name, {})
        if len(values) > MAX_KEYS:
            raise Breach("more keys than a store may hold")
        values[key] = value
        self.written[name, key] = rank.clock
        for other in self.waiting.pop((name, key), []):
            self.make_ready(other)

    # ---- files

    def append(self, rank: RankOfHub, message: Message) -> None:
        lines = self.files.setdefault(text(message["path"]), [])
        if len(lines) > MAX_LINES:
            raise Breach("more lines than a file may hold")
        start = self.now(rank, {})
        lines.append(text(message["line"]))
        self.note(rank, SHARED_FILE, len(lines[-1]))
        rank.regions.append(Region(rank.number, "append", start, self.now(rank, {})))
        rank.answer()

    def lines(self, rank: RankOfHub, message: Message) -> None:
        start = self.now(rank, {})
        found = list(self.files.get(text(message["path"]), []))
        self.note(rank, SHARED_FILE, sum(map(len, found)))
        rank.regions.append(Region(rank.number, "read", start, self.now(rank, {})))
        rank.answer(lines=found)

    # ---- memories

    def load(self, rank: RankOfHub, message: Message) -> None:
        """The tile stays on the chip until the rank says that it has let go of it."""
        memory, where = stay_of(SlowMemory, self.stays, message["memory"]), [slice(*part) for part in message["where"]]
        try:
            tile = memory.load(message["name"], *where)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            rank.answer(error=error)
        else:
            number = len(memory.loads) - 1
            rank.tiles[message["memory"], number] = tile
            rank.answer(tile=tile, number=number)

    def let_go(self, rank: RankOfHub, message: Message) -> None:
        rank.tiles.pop((message["memory"], message["number"]), None)

    def store(self, rank: RankOfHub, message: Message) -> None:
        memory, where = stay_of(SlowMemory, self.stays, message["memory"]), [slice(*part) for part in message["where"]]
        before = memory.stored
        try:
            memory.store(message["name"], message["tile"], *where)
        except (KeyError, TypeError, ValueError) as error:
            rank.answer(error=error)
        else:
            rank.answer(bytes=memory.stored - before)

    # ---- witnesses

    def ask(self, rank: RankOfHub, message: Message) -> None:
        """A question to a Witness that the rank was given."""
        witness = stay_of(Witness, self.stays, message["witness"])
        if witness.rank != rank.number:
            raise Breach("a question to something that it was not given")
        try:
            said = witness(*message["question"])
        except (TypeError, ValueError) as error:
            rank.answer(error=error)
        else:
            rank.answer(said=said)
