"""Messages that a link holds back: of those that wait for the same link, only the best competes with other transfers.

Thousands of asynchronous messages of one rank wait for one link. Each time it is taken they would all have to be looked
at again, though only one of them can be the next.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator

from .calls import Order, Transfer
from .link_occupancy import End, LinkOccupancy


class HeldBack:
    """Finds the messages that compete: of each link the one that was ready first, in the order of `Transfer`.

    best      {link: the message that competes for it}. Others may compete too, for a while
    link_of   the same the other way round, and for messages that a better one has replaced
    waiting   {link: the others, a heap}. None can begin before the best one
    """

    def __init__(self, links: LinkOccupancy) -> None:
        self.links = links
        self.best: dict[End, Transfer] = {}
        self.link_of: dict[Transfer, End] = {}
        self.waiting: dict[End, list[tuple[float, Order, Transfer]]] = defaultdict(list)

    def add(self, message: Transfer) -> Iterator[Transfer]:
        """A message that was to begin now, but one of its links is taken. Yields those that compete from now on."""
        link = self.links.last_free(*message.calls)
        if self.link_of.get(message) != link:
            yield from self.remove(message)
        best = self.best.get(link, message)
        if (message.ready, message.order) <= (best.ready, best.order):
            self.best[link], self.link_of[message] = message, link
            yield message
        else:
            self.link_of.pop(message, None)
            heapq.heappush(self.waiting[link], (message.ready, message.order, message))

    def remove(self, message: Transfer) -> Iterator[Transfer]:
        """A message that is carried out, or waits for another link now. Yields those that compete from now on."""
        link = self.link_of.pop(message, None)
        if link is None or self.best.get(link) is not message:
            return
        del self.best[link]
        while link not in self.best and self.waiting[link]:
            yield from self.add(heapq.heappop(self.waiting[link])[-1])
