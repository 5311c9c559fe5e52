"""Keeps messages that are delivered but not yet accepted as the owners of their ids (docs/sds.md, *Unproven ids*).

An id in the form of a digest that cannot be recomputed from its message may belong to another message that has not
arrived yet. Until that message arrives or the time-out passes, SDS derives nothing from the first one: it meets no
dependency, has no acknowledgements, and its id appears in no history or filter that is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from reliable_channel.core.sds.incoming import Waiting
from reliable_channel.core.sds.log import LogEntry
from reliable_channel.core.shares import Shares, size_of


@dataclass(slots=True)
class Doubt:
    """One unproven message. ``record``: its entry in the incoming buffer or, once it is delivered, its future log
    entry. ``since`` and ``until`` (ms): when it arrived, and when it takes the id if no proven message has arrived.
    ``refuted``: no known scheme gives its id, and the search was complete."""

    record: LogEntry | Waiting
    since: int
    until: int
    refuted: bool = False


class Unproven:
    """Unproven messages by SDS id, one per id, in the order in which their time ends. Bounded and divided fairly:
    beyond the bound, the oldest of the sender with most is settled early."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._shares = Shares[str](max_entries, max_bytes)
        self.doubts: dict[str, Doubt] = {}
        """Read-only for other modules."""

    def items(self) -> tuple[tuple[str, Doubt], ...]:
        """Ids with their doubts, in the order in which they end."""
        return tuple(self.doubts.items())

    def get(self, message_id: str) -> LogEntry | Waiting | None:
        """The unproven message of an id."""
        doubt = self.doubts.get(message_id)
        return None if doubt is None else doubt.record

    def meets(self, message_id: str, lamport: int) -> bool:
        """Whether an id is met for unproven messages with this Lamport timestamp, whose sender may make it in the same
        unknown way: its unproven message is delivered, or is not earlier."""
        record = self.get(message_id)
        return record is not None and not (isinstance(record, Waiting) and record.lamport < lamport)

    def add(self, message_id: str, doubt: Doubt) -> None:
        """Add an unproven message."""
        record = doubt.record
        self.doubts[message_id] = doubt
        self._shares.add(message_id, record.sender_id, size_of(message_id, record.sender_id, *record.history))

    def record_delivery(self, message_id: str, entry: LogEntry) -> None:
        """Record that the unproven message of an id was delivered and no longer waits in the incoming buffer."""
        self.doubts[message_id].record = entry

    def take(self, message_id: str) -> Doubt | None:
        """End the doubt about an id and return it."""
        doubt = self.doubts.pop(message_id, None)
        if doubt is not None:
            self._shares.remove(message_id, doubt.record.sender_id)
        return doubt

    def wake(self, slept_ms: int) -> None:
        """After a sleep, let every doubt last longer by its length: nobody received the messages that would end it."""
        for doubt in self.doubts.values():
            doubt.until += slept_ms

    def surplus(self) -> str | None:
        """The id whose doubt must end because the bound is exceeded."""
        # Ended early, not refused: others that fill a memory cost nobody a message (docs/sds.md, *Limits*).
        return self._shares.find_surplus()

    def next_due(self) -> int | None:
        """When the next doubt ends (ms)."""
        return next(iter(self.doubts.values())).until if self.doubts else None
