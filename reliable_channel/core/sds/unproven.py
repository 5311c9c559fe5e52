"""Keeps messages that are delivered but not yet accepted as the owners of their ids (docs/sds.md, *Unproven ids*).

An id in the form of a digest that cannot be recomputed from its message may belong to another message that has not
arrived yet. Until that message arrives or the time-out passes, SDS derives nothing from the first one: it meets no
dependency, counts as acknowledged by nobody, and its id is in no history or filter that is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from reliable_channel.core.sds.incoming import Waiting
from reliable_channel.core.sds.log import LogEntry
from reliable_channel.core.sds.shares import Shares, size_of


@dataclass(slots=True)
class Doubt:
    """One unproven message. ``record``: as it waits in the incoming buffer or, once it is delivered, as it will stand
    in the log. ``since`` and ``until`` (ms): when it came, and when it takes the id if nothing better has come.
    ``refuted``: no known scheme makes its id, and the search for one was complete."""

    record: LogEntry | Waiting
    since: int
    until: int
    refuted: bool = False


class Unproven:
    """Unproven messages by SDS id, one for each id, in the order in which their time is up. Bounded and divided fairly:
    the sender with most of them has its oldest settled before the time."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._shares = Shares(max_entries, max_bytes)
        self.doubts: dict[str, Doubt] = {}
        """Read it; it is changed here only."""

    def __contains__(self, message_id: object) -> bool:
        return message_id in self.doubts

    def __len__(self) -> int:
        return len(self.doubts)

    def items(self) -> tuple[tuple[str, Doubt], ...]:
        """Ids with their doubts, the first to end before the others."""
        return tuple(self.doubts.items())

    def get(self, message_id: str) -> LogEntry | Waiting | None:
        """The unproven message of an id."""
        doubt = self.doubts.get(message_id)
        return None if doubt is None else doubt.record

    def add(self, message_id: str, doubt: Doubt) -> None:
        """An unproven message has come."""
        record = doubt.record
        self.doubts[message_id] = doubt
        self._shares.add(message_id, record.sender_id, size_of(message_id, record.sender_id, *record.history))

    def delivered(self, message_id: str, entry: LogEntry) -> None:
        """The unproven message of an id no longer waits in the incoming buffer."""
        self.doubts[message_id].record = entry

    def take(self, message_id: str) -> Doubt | None:
        """The doubt of an id is over, one way or the other."""
        doubt = self.doubts.pop(message_id, None)
        if doubt is not None:
            self._shares.remove(message_id, doubt.record.sender_id)
        return doubt

    def surplus(self) -> str | None:
        """The id whose doubt has to end for want of room."""
        shares = self._shares
        return shares.oldest_of(shares.greediest()) if shares.is_over() else None

    def next_due(self) -> int | None:
        """When the next doubt ends (ms)."""
        return next(iter(self.doubts.values())).until if self.doubts else None
