"""The connection between the hub and a rank: limited in time and bytes, with a log for audits (audit.py)."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from grader.inside import codec

Argument = TypeVar("Argument")
Done = TypeVar("Done")


class Exchange(NamedTuple):
    """One message of a rank and the hub's answer to it."""

    digest: bytes  # a hash of the message
    answer: bytes  # b"" if it got none


class RankConnection:
    """The hub's end of the socket to a rank.

    until           the machine's time (monotonic) at which waiting ends
    count           called with the number of bytes about to arrive or to be sent; raises Breach when they are too many
    has_overspent   whether the rank has computed for too long; polled once a second while waiting
    log             every message of the rank with its answer, in order
    """

    def __init__(
        self,
        socket: socket.socket,
        until: float,
        count: Callable[[int], None] = lambda nbytes: None,
        has_overspent: Callable[[], bool] = lambda: False,
    ):
        self.socket, self.until, self.count, self.has_overspent = socket, until, count, has_overspent
        self.log: list[Exchange] = []
        self.received = hashlib.sha256()

    def receive(self, resolve: Callable[[Any], Any]) -> dict[str, Any] | None:
        """The next message; None when the rank has closed its end. Raises Breach, TimeoutError, OSError."""
        message = self.receive_unread()
        return None if message is None else codec.unpack(*message, resolve)

    def receive_unread(self) -> tuple[bytes, bytes] | None:
        """The same, as bytes."""
        self.received = hashlib.sha256()
        message = codec.receive_unread(self.read)
        self.log.append(Exchange(self.received.digest(), b""))
        return message

    def answer(self, answer: dict[str, Any]) -> None:
        data = codec.pack(answer)
        self.count(len(data))  # they stay in the log
        self.send(data)

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self.before_deadline(self.socket.send, left) :]
        except (BrokenPipeError, ConnectionResetError):  # it has stopped listening; what it sent can still be read
            pass
        if self.log:
            self.log[-1] = Exchange(self.log[-1].digest, data)

    def read(self, nbytes: int) -> bytes:
        self.count(nbytes)
        data = bytearray()
        while len(data) < nbytes:
            part = self.before_deadline(self.socket.recv, min(nbytes - len(data), 1 << 20))
            if not part:
                break
            data += part
        self.received.update(data)
        return bytes(data)

    def before_deadline(self, act: Callable[[Argument], Done], argument: Argument) -> Done:
        """Call `act`, which waits for the socket. Raises TimeoutError when the rank has used up its time."""
        while True:
            left = self.until - monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(min(left, 1.0))
            try:
                return act(argument)
            except TimeoutError:
                if self.has_overspent():
                    raise
