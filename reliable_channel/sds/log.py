"""The log of a channel: what was delivered here and sent from here, in the order ``(lamport, id)`` (protocol.md §5).

Look-ups by id are O(1), appending is O(1), and a restored log decodes an entry only when it is asked for: a snapshot is
read and written at every touch of a channel, and most touches need few entries.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from reliable_channel.wire._pb import sds_state_pb2 as pb

Position = tuple[int, str]


def bits_to_bytes(bits: int) -> bytes:
    """One bit per participant, little-endian, as snapshots have them."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


class LogEntry:
    """One message of the log. ``past`` holds a bit per participant that is known to have this message in its causal
    past, so that no part of the past is walked twice for one participant."""

    __slots__ = ("digest", "encoded", "hint", "history", "lamport", "message_id", "past", "sender_id")

    def __init__(
        self,
        message_id: str,
        lamport: int,
        sender_id: str,
        history: tuple[str, ...],
        digest: bytes,
        hint: bytes | None,
        past: int = 0,
    ) -> None:
        self.message_id = message_id
        self.lamport = lamport
        self.sender_id = sender_id
        self.history = history
        self.digest = digest
        self.hint = hint
        self.past = past
        self.encoded: bytes | None = None

    def reach(self, bit: int) -> None:
        """A participant has this message in its causal past."""
        self.past |= bit
        self.encoded = None

    def set_hint(self, hint: bytes) -> None:
        """The hash of its newest envelope."""
        if hint != self.hint:
            self.hint = hint
            self.encoded = None

    def to_bytes(self) -> bytes:
        """Everything but id and timestamp, which the log keeps in columns; cached until the entry changes."""
        if self.encoded is None:
            self.encoded = pb.LogEntry(
                sender_id=self.sender_id,
                history=self.history,
                digest=self.digest,
                hint=self.hint or b"",
                past=bits_to_bytes(self.past),
            ).SerializeToString()
        return self.encoded


class Log:
    """Entries by id and by position; bounded: the oldest go first, in blocks."""

    def __init__(self, max_entries: int) -> None:
        self._max = max_entries
        self._slack = max(1, max_entries // 16)
        self._entries: dict[str, LogEntry | tuple[int, bytes]] = {}
        self._order: list[Position] = []
        self.horizon: Position | None = None
        """The highest position that was dropped."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._entries

    def get(self, message_id: str) -> LogEntry | None:
        """The entry of an id, decoded on first use after a restore."""
        found = self._entries.get(message_id)
        if not isinstance(found, tuple):
            return found
        entry = _decode(message_id, *found)
        self._entries[message_id] = entry
        return entry

    def add(self, entry: LogEntry) -> None:
        """Insert at the entry's position."""
        position = (entry.lamport, entry.message_id)
        self._entries[entry.message_id] = entry
        order = self._order
        if not order or order[-1] < position:
            order.append(position)
        else:
            insort(order, position)
        if len(order) > self._max + self._slack:
            self._drop_oldest(len(order) - self._max)

    def remove(self, message_id: str) -> None:
        """Take an entry out (another message with its id has won)."""
        entry = self.get(message_id)
        if entry is not None:
            del self._entries[message_id]
            del self._order[bisect_left(self._order, (entry.lamport, message_id))]

    def last(self, count: int) -> list[LogEntry]:
        """The ``count`` highest entries, ascending."""
        return [entry for _, message_id in self._order[-count:] if (entry := self.get(message_id))] if count else []

    def positions(self) -> tuple[Position, ...]:
        """All positions, ascending."""
        return tuple(self._order)

    def recent_ids(self, count: int) -> list[str]:
        """The ids of the ``count`` highest entries."""
        return [message_id for _, message_id in self._order[-count:]]

    def forgotten(self, position: Position) -> bool:
        """Whether a message of this position may have been in the part of the log that was dropped."""
        return self.horizon is not None and position <= self.horizon

    def forget(self) -> None:
        """Drop every entry; the horizon stays, behind all of them."""
        if self._order:
            self._drop_oldest(len(self._order))

    def _drop_oldest(self, count: int) -> None:
        for _, message_id in self._order[:count]:
            del self._entries[message_id]
        self.horizon = max(self._order[count - 1], self.horizon or (0, ""))
        del self._order[:count]

    # ---- snapshot ------------------------------------------------------------------------------------------------

    def write(self, state: pb.SdsState) -> None:
        """Into a snapshot; unchanged entries are copied as they are."""
        state.log_lamports.extend([lamport for lamport, _ in self._order])
        state.log_ids.extend([message_id for _, message_id in self._order])
        state.log_entries.extend(self._encoded())
        if self.horizon is not None:
            state.horizon_lamport, state.horizon_id = self.horizon

    def _encoded(self) -> Iterator[bytes]:
        entries = self._entries
        for _, message_id in self._order:
            entry = entries[message_id]
            yield entry[1] if isinstance(entry, tuple) else entry.to_bytes()

    @classmethod
    def read(cls, state: pb.SdsState, max_entries: int) -> Log:
        """From a snapshot."""
        log = cls(max_entries)
        lamports: Iterable[int] = state.log_lamports
        ids = list(state.log_ids)
        log._order = list(zip(lamports, ids, strict=True))
        log._entries = dict(zip(ids, zip(state.log_lamports, state.log_entries, strict=True), strict=True))
        if state.HasField("horizon_id"):
            log.horizon = (state.horizon_lamport, state.horizon_id)
        return log


def _decode(message_id: str, lamport: int, data: bytes) -> LogEntry:
    proto = pb.LogEntry.FromString(data)
    entry = LogEntry(
        message_id,
        lamport,
        proto.sender_id,
        tuple(proto.history),
        proto.digest,
        proto.hint or None,
        int.from_bytes(proto.past, "little"),
    )
    entry.encoded = data
    return entry
