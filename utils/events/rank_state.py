"""What is known of one rank while it runs, or once it has finished."""

from __future__ import annotations

from dataclasses import dataclass, field

from .event import Event, Region


@dataclass
class RankState:
    """What is known of one rank: what its recorder has written (see protocol.py), and whether it has finished."""

    rank: int
    events: list[Event] = field(default_factory=list)
    groups_made: list[Event] = field(default_factory=list)  # one for each call of new_group, also by a device mesh
    waits: dict[int, str] = field(default_factory=dict)  # asynchronous calls it has begun to wait for: index -> where
    failed: set[int] = field(default_factory=set)  # calls that raised
    lost: set[int] = field(default_factory=set)  # messages whose handle it has thrown away before they were done
    strides: dict[int, tuple] = field(default_factory=dict)  # (shape, strides) of a tensor that is not in order
    dropped: dict[int, str] = field(default_factory=dict)  # asynchronous calls whose handle was never used
    regions: list[Region] = field(default_factory=list)
    finished: bool = False

    def blocked_in(self) -> Event | None:
        """The call that this rank is inside of, if it is inside one."""
        if self.finished:
            return None
        if self.groups_made and self.groups_made[-1].end is None:
            return self.groups_made[-1]
        for event in reversed(self.events):
            if event.end is None and (not event.is_async or event.index in self.waits):
                return event
        return None

    def has_dropped(self, event: Event) -> bool:
        """Whether it only started this call and then let go of it: its tensor is gone, and the message may be too."""
        return (self.finished or event.index in self.lost) and event.is_async and event.index not in self.waits
