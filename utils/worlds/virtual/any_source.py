"""Receives that name no sender, and which of the messages that are there each of them gets."""

from __future__ import annotations

import heapq
from collections import deque

from ...events.matching import Channel, channel_of
from .calls import VirtualCall

Key = tuple[float, int, int]
Entry = tuple[float, int, int, VirtualCall]


class AnySource:
    """One rank's receives from any source, on one group and tag. The first of them takes the best message.

    That is the one that could begin first. Of those that could begin at the same moment it is the one sent first, and
    of those sent before the receive was called, the one that comes first in its sender's program. Only the best message
    competes with the network's other transfers, beside those that their senders' links hold back. So a rank can receive
    from thousands of others, one after the other, and the network doesn't look at all messages each time.

    receives    in the order in which they were called
    on_offer    {channel: its first message}, of the channels that have one
    competing   the messages that compete for the first receive
    front       the one of them that no better message needs to join; None if one does
    crossed     channels where a message waits for the first receive, though a later one names its sender
    """

    def __init__(self) -> None:
        self.receives: deque[VirtualCall] = deque()
        self.on_offer: dict[Channel, VirtualCall] = {}
        self.competing: list[VirtualCall] = []
        self.front: VirtualCall | None = None
        self.crossed: dict[Channel, bool] = {}
        self.sent: list[Entry] = []  # before the first receive was called: a heap by (0, index, sender)
        self.later: list[Entry] = []  # a heap by (when it was sent, index, sender)

    def offer(self, channel: Channel, message: VirtualCall | None) -> None:
        """Say which message is the first on a channel now; None if there is none."""
        if message is None:
            self.on_offer.pop(channel, None)
        elif self.on_offer.get(channel) is not message:
            self.on_offer[channel] = message
            self.put_back(message)
        if self.front is not None and not self.is_on_offer(self.front):
            self.front = None

    def put_back(self, message: VirtualCall) -> None:
        heapq.heappush(self.later, (message.event.start, message.event.index, message.event.rank, message))

    def is_on_offer(self, message: VirtualCall) -> bool:
        return self.on_offer.get(channel_of(message.event)) is message

    def next_to_compete(self) -> VirtualCall | None:
        """The best message that doesn't compete yet, if it is better than `front`; it becomes `front`."""
        if not self.receives:
            return None
        called = self.receives[0].event.start
        while self.later and self.later[0][0] <= called:
            _, index, sender, message = heapq.heappop(self.later)
            heapq.heappush(self.sent, (0.0, index, sender, message))
        for heap in (self.sent, self.later):
            while heap and not self.is_on_offer(heap[0][-1]):
                heapq.heappop(heap)
        heap = self.sent or self.later
        if not heap or (self.front is not None and key(self.front, called) < key(heap[0][-1], called)):
            return None
        self.front = heapq.heappop(heap)[-1]
        self.competing.append(self.front)
        return self.front

    def start_again(self) -> None:
        """Another receive is the first now, so no message competes yet."""
        for message in self.competing:
            if self.is_on_offer(message):
                self.put_back(message)
        self.competing, self.front = [], None

    def messages(self) -> list[VirtualCall]:
        """Those that the first receive may get."""
        return [*self.on_offer.values()] if self.receives else []


def key(message: VirtualCall, called: float) -> Key:
    """What orders the messages to a receive that was called at `called`."""
    return max(message.event.start, called), message.event.index, message.event.rank
