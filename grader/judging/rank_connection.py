"""Connections between the hub and the ranks of a run: limited in time and bytes, with a log for audits (audit.py)."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from grader.inside import codec

Argument = TypeVar("Argument")
Done = TypeVar("Done")

LOOK_EVERY = 1.0  # seconds of waiting


class Exchange(NamedTuple):
    """One message of a rank and the hub's answer to it."""

    digest: bytes  # a hash of the message
    answer: bytes  # b"" if it got none


class RunTime:
    """How long the hub has waited for the ranks of a run. What the hub itself computes meanwhile is not in it.

    is_over   whether that is too long, or the ranks have computed for too long, given the number of the rank it waits
              for. Asked once a second while waiting
    """

    def __init__(self, is_over: Callable[[float, int], bool] = lambda waited, number: False):
        self.is_over, self.waited, self.next_look = is_over, 0.0, LOOK_EVERY

    def look(self, number: int) -> None:
        """Raises TimeoutError if the time is over."""
        if self.waited >= self.next_look:
            self.next_look = self.waited + LOOK_EVERY
            if self.is_over(self.waited, number):
                raise TimeoutError


class RankConnection:
    """The hub's end of the socket to a rank.

    time      that of the run
    number    the rank's
    count     called with the number of bytes about to arrive or to be sent; raises Breach when they are too many
    log       every message of the rank with its answer, in order
    """

    def __init__(
        self,
        socket: socket.socket,
        time: RunTime,
        number: int = 0,
        count: Callable[[int], None] = lambda nbytes: None,
    ):
        self.socket, self.time, self.number, self.count = socket, time, number, count
        self.log: list[Exchange] = []
        self.received = hashlib.sha256()

    def receive(self, resolve: codec.Resolve | None = None) -> dict[str, Any] | None:
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
        """Call `act`, which waits for the socket. Raises TimeoutError when the run has used up its time."""
        while True:
            self.time.look(self.number)
            self.socket.settimeout(LOOK_EVERY)
            began = monotonic()
            try:
                return act(argument)
            except TimeoutError:
                continue
            finally:
                self.time.waited += monotonic() - began
