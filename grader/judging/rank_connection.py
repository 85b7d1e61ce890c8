"""What a rank and the hub say to each other: bounded in time and bytes, and written down.

Written down so that it can be played again: `replay` answers a second process of the same rank with what the first was
answered. That one is alone. Whatever it comes to it has from its own inputs and from messages; what it should have
learnt otherwise, from how long another rank slept, say, it does not know this time.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

from grader.inside import codec


class Diverged(Exception):
    """Played again, a rank says something else, at a place where all it had been told was the same."""


class RankConnection:
    """The hub's end of the socket to a rank.

    until   the machine's time (monotonic) at which nothing more is waited for
    take    is told how many bytes come, and raises Breach when there are too many
    spent   whether the rank has computed for too long: asked every second that is waited for it
    log     (digest of what was heard, what was said to it) in order
    """

    def __init__(
        self,
        socket: socket.socket,
        until: float,
        take: Callable[[int], None] = lambda count: None,
        spent: Callable[[], bool] = lambda: False,
    ):
        self.socket, self.until, self.take, self.spent = socket, until, take, spent
        self.log: list[tuple[bytes, bytes]] = []
        self.heard = hashlib.sha256()

    def hear(self, known: Callable[[dict], Any]) -> dict[str, Any] | None:
        """The next message; None when the rank has closed its end. Raises Breach, TimeoutError, OSError."""
        self.heard = hashlib.sha256()
        message = codec.receive(self.socket, known, self.read)
        self.log.append((self.heard.digest(), b""))
        return message

    def say(self, answer: dict[str, Any]) -> None:
        self.send(codec.pack(answer))

    def send(self, words: bytes) -> None:
        left = memoryview(words)
        try:
            while left:
                left = left[self.patiently(self.socket.send, left) :]
        except (BrokenPipeError, ConnectionResetError):  # it listens no more; what it has said can still be heard
            pass
        if self.log:
            self.log[-1] = self.log[-1][0], words

    def read(self, count: int) -> bytes:
        self.take(count)
        data = bytearray()
        while len(data) < count:
            part = self.patiently(self.socket.recv, min(count - len(data), 1 << 20))
            if not part:
                break
            data += part
        self.heard.update(data)
        return bytes(data)

    def patiently(self, do: Callable, what: Any) -> Any:
        """Do it as soon as it can be done. Raises TimeoutError when the rank has had its time."""
        while True:
            left = self.until - monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(min(left, 1.0))
            try:
                return do(what)
            except TimeoutError:
                if self.spent():
                    raise


def replay(log: list[tuple[bytes, bytes]], line: RankConnection, known: Callable[[dict], Any]) -> dict[str, Any]:
    """What a rank comes to that is answered as another was: the message that ends it. Raises Diverged."""
    for digest, answer in log:
        message = line.hear(known)
        if message is None:
            raise Diverged
        if message.get("do") in ("done", "failed"):
            return message
        if line.log[-1][0] != digest:
            raise Diverged
        if answer:
            line.send(answer)
    raise Diverged
