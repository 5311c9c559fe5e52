"""Keeps the log of a channel: the messages delivered here and sent from here, ordered by ``(lamport, id)``.

Look-ups by id are O(1), appending is O(1), and a restored log decodes an entry only when it is requested: every access
to a channel reads and writes a snapshot, and most accesses need few entries.

The log is bounded in entries and bytes. When it is full, the senders that use most of it lose their oldest entries, so
no sender can displace the entries of another. Names cost nothing, so shares alone do not protect against many of them:
the newest entries are never dropped, and the senders that have been in the log longest (:data:`SENIORS`) share half of
it among themselves, whatever number of names comes later. Each sender has a *horizon*: entries before it may have been
dropped.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from reliable_channel.core.sds.horizons import Horizons, Position
from reliable_channel.core.shares import compute_surplus, size_of
from reliable_channel.core.wire._pb import sds_state_pb2 as pb
from reliable_channel.core.wire.sds import HistoryEntry

KEPT_HISTORY_IDS = 64
KEPT_HISTORY_BYTES = 4_096
"""Bytes of a message's causal history that are kept (its last entries), to walk the causal past of a message."""

SENIORS, SENIOR_ENTRIES = 256, 16
"""The senders that entered the log first, and have entries in it, share at least half of its room: so many of them that
each has room for :data:`SENIOR_ENTRIES` at least, and no more than :data:`SENIORS`."""

NEWEST_RESERVE = 4
"""One part in this many of the log, its newest entries, is never dropped: what has just been delivered is known."""


def keep_history(history: Sequence[HistoryEntry]) -> tuple[str, ...]:
    """The ids of a causal history that are kept with a message."""
    ids = [entry.message_id for entry in history]
    if len(ids) <= KEPT_HISTORY_IDS and len("".join(ids)) * 4 <= KEPT_HISTORY_BYTES:  # at most 4 bytes per character
        return tuple(ids)
    del ids[:-KEPT_HISTORY_IDS]
    while size_of(*ids) > KEPT_HISTORY_BYTES:
        del ids[0]
    return tuple(ids)


def bits_to_bytes(bits: int) -> bytes:
    """Encode one bit per participant, little-endian, as in snapshots."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


@dataclass(slots=True, eq=False, repr=False)
class LogEntry:
    """One message of the log. ``past`` has one bit per participant known to have this message in its causal past, so
    that no part of the past is walked twice for one participant."""

    message_id: str
    lamport: int
    sender_id: str
    history: tuple[str, ...]
    digest: bytes
    hint: bytes | None
    past: int = 0
    size: int = 0
    """Bytes that it counts in the log, if that is more than the minimum per entry; else 0."""
    verified: bool = False
    """Whether its id was recomputed from it."""
    won: bool = False
    """Whether it replaced another message."""
    encoded: bytes | None = None

    def reach(self, bit: int) -> None:
        """Record that a participant has this message in its causal past."""
        self.past |= bit
        self.encoded = None

    def set_hint(self, hint: bytes) -> None:
        """Set the hash of its newest envelope."""
        if hint != self.hint:
            self.hint = hint
            self.encoded = None

    def set_history(self, history: tuple[str, ...]) -> None:
        """Set its causal history, which was not known before."""
        self.history = history
        self.encoded = None

    def to_bytes(self) -> bytes:
        """Encode everything but id and timestamp, which the log stores in columns; cached until the entry changes."""
        if self.encoded is None:
            self.encoded = pb.LogEntry(
                sender_id=self.sender_id,
                history=self.history,
                digest=self.digest,
                hint=self.hint or b"",
                past=bits_to_bytes(self.past),
                verified=self.verified,
                won=self.won,
            ).SerializeToString()
        return self.encoded

    @classmethod
    def from_bytes(cls, message_id: str, lamport: int, data: bytes, size: int = 0) -> LogEntry:
        """Decode the result of :meth:`to_bytes`."""
        proto = pb.LogEntry.FromString(data)
        past = int.from_bytes(proto.past, "little")
        history = tuple(proto.history)
        entry = cls(message_id, lamport, proto.sender_id, history, proto.digest, proto.hint or None, past, size)
        entry.verified, entry.won = proto.verified, proto.won
        entry.encoded = data
        return entry


class MessageLog:
    """Entries by id and by position, bounded in entries and bytes. Surplus entries are dropped in blocks."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max = max_entries
        self._unit = max(1, max_bytes // max_entries)
        """The minimum bytes that an entry counts, so that one bound limits both entries and bytes."""
        self._seniors = max(1, min(SENIORS, max_entries // (2 * SENIOR_ENTRIES)))
        # Above the bound: what must go is chosen from the whole log, so it is chosen for many entries at once.
        self._slack = max(1, max_entries // 16)
        self._weight = 0
        self._held: Counter[str] = Counter()
        """The weight of each sender's entries, the sender that has been here longest first."""
        self._entries: dict[str, LogEntry | _Stored] = {}
        self.holds = self._entries.__contains__
        """Return whether an id is in the log."""
        self.find = self._entries.get
        """A faster :meth:`get`; a tuple is an entry that is not decoded yet."""
        self._order: list[Position] = []
        self.horizons = Horizons(max_entries * self._unit // 8)
        """Up to where entries may have been dropped."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._entries

    def get(self, message_id: str) -> LogEntry | None:
        """The entry of an id, decoded on first use after a restore."""
        stored = self._entries.get(message_id)
        if not isinstance(stored, tuple):
            return stored
        lamport, data, _, size = stored
        entry = LogEntry.from_bytes(message_id, lamport, data, size)
        self._entries[message_id] = entry
        return entry

    def add(self, entry: LogEntry, now: int) -> None:
        """Insert at the entry's position."""
        position = (entry.lamport, entry.message_id)
        self._entries[entry.message_id] = entry
        size, unit = size_of(entry.message_id, entry.sender_id, *entry.history), self._unit
        entry.size = size if size > unit else 0
        self._weigh(entry.sender_id, entry.size or unit)
        order = self._order
        if not order or order[-1] < position:
            order.append(position)
        else:
            insort(order, position)
        if self._weight > (self._max + self._slack) * self._unit:
            self._make_room(now)

    def remove(self, message_id: str) -> None:
        """Remove an entry (another message with its id has won)."""
        entry = self.get(message_id)
        if entry is not None:
            del self._entries[message_id]
            self._weigh(entry.sender_id, -self._weigh_entry(entry))
            del self._order[bisect_left(self._order, (entry.lamport, message_id))]

    def last(self, count: int, clock: int, counts: Callable[[str], bool]) -> list[LogEntry]:
        """The ``count`` highest entries whose ids count and that are not above ``clock``, descending."""
        order = self._order
        end = len(order)
        if order and order[-1][0] > clock:  # messages that the clock does not follow
            end = bisect_left(order, (clock + 1, ""))
        ids = (order[place][1] for place in range(end - 1, -1, -1))
        return [entry for each in islice(filter(counts, ids), count) if (entry := self.get(each))]

    def positions(self) -> tuple[Position, ...]:
        """All positions, ascending."""
        return tuple(self._order)

    def recent_ids(self, count: int) -> list[str]:
        """The ids of the ``count`` highest entries."""
        return [message_id for _, message_id in self._order[-count:]]

    def seniors(self) -> frozenset[str]:
        """The senders that have been in the log longest and share half of it; at most :data:`SENIORS`."""
        return frozenset(islice(self._held, self._seniors))

    def may_have_forgotten(self, position: Position, sender_id: str | None = None) -> bool:
        """Whether a message with this position and sender may have been in the dropped part of the log. ``None``: any
        sender."""
        return self.horizons.covers(position, sender_id)

    def forget(self) -> None:
        """Drop every entry. A single horizon for all senders remains, at the highest position."""
        self.horizons.join(self._order[-1:])
        self._entries.clear()
        self._order.clear()
        self._held.clear()
        self._weight = 0

    def _make_room(self, now: int) -> None:
        """Drop entries until the log is within its bound: the oldest of the senders with the largest shares, and of
        the newest entries none."""
        order = self._order
        droppable = len(order) - len(order) // NEWEST_RESERVE
        gone = self._choose(order[:droppable])
        over = self._weight - self._max * self._unit - sum(map(self._weigh_id, gone))
        for _, message_id in order[:droppable]:  # shares did not suffice, because the newest entries stay
            if over <= 0:
                break
            if message_id not in gone:
                gone[message_id] = None
                over -= self._weigh_id(message_id)
        for position in order[:droppable]:
            message_id = position[1]
            if message_id not in gone:
                continue
            entry = self._entries.pop(message_id)
            sender_id = _get_sender(entry)
            self._weigh(sender_id, -self._weigh_entry(entry))
            self.horizons.advance(sender_id, position, now)
        self._order = [position for position in order if position[1] not in gone]
        self.horizons.limit()

    def _choose(self, candidates: list[Position]) -> dict[str, None]:
        """The ids, among these positions, that the shares of their senders do not cover. Seniors are cut to a common
        level, and so are the others."""
        limit = self._max * self._unit
        seniors = dict(islice(self._held.items(), self._seniors))
        others = dict(islice(self._held.items(), self._seniors, None))
        room = max(limit // 2, limit - sum(others.values()))
        surplus = compute_surplus(seniors, room)
        left = limit - min(room, sum(seniors.values()))
        # More names than entries is a flood of names: shares would be empty, so the oldest go, whoever sent them.
        pooled = max(0, sum(others.values()) - left) if len(others) * self._unit > left else 0
        if not pooled:
            surplus |= compute_surplus(others, left)
        gone: dict[str, None] = {}
        for _, message_id in candidates:
            entry = self._entries[message_id]
            sender_id, weight = _get_sender(entry), self._weigh_entry(entry)
            if pooled > 0 and sender_id in others:
                pooled -= weight
            elif surplus.get(sender_id, 0) > 0:
                surplus[sender_id] -= weight
            else:
                continue
            gone[message_id] = None
        return gone

    def _weigh(self, sender_id: str, weight: int) -> None:
        """Count an entry of a sender, or stop counting it if the weight is negative."""
        self._weight += weight
        held = self._held[sender_id] + weight
        if held:
            self._held[sender_id] = held
        else:
            del self._held[sender_id]

    def _weigh_id(self, message_id: str) -> int:
        return self._weigh_entry(self._entries[message_id])

    def _weigh_entry(self, entry: LogEntry | _Stored) -> int:
        return max(self._unit, entry.size if isinstance(entry, LogEntry) else entry[3])

    # ---- snapshot ------------------------------------------------------------------------------------------------

    def write(self, state: pb.SdsState) -> None:
        """Write the log to a snapshot; unchanged entries are copied in their encoded form."""
        state.log_lamports.extend([lamport for lamport, _ in self._order])
        state.log_ids.extend([message_id for _, message_id in self._order])
        state.log_entries.extend(self._encode())
        entries = self._entries
        numbers = {sender_id: number for number, sender_id in enumerate(self._held)}
        ordered = [entries[message_id] for _, message_id in self._order]
        senders = [entry[2] if isinstance(entry, tuple) else entry.sender_id for entry in ordered]
        state.log_senders.extend([numbers[sender_id] for sender_id in senders])
        if self._weight > len(ordered) * self._unit:
            state.log_sizes.extend([entry[3] if isinstance(entry, tuple) else entry.size for entry in ordered])
        state.log_sender_ids.extend(numbers)
        if self.horizons.common is not None:
            state.horizon_lamport, state.horizon_id = self.horizons.common
        self.horizons.write(state.horizons)

    def _encode(self) -> Iterator[bytes]:
        entries = self._entries
        for _, message_id in self._order:
            entry = entries[message_id]
            yield entry[1] if isinstance(entry, tuple) else entry.to_bytes()

    @classmethod
    def read(cls, state: pb.SdsState, max_entries: int, max_bytes: int) -> MessageLog:
        """Read the log from a snapshot."""
        log = cls(max_entries, max_bytes)
        ids = list(state.log_ids)
        data = list(state.log_entries)
        log._order = list(zip(state.log_lamports, ids, strict=True))
        names = list(state.log_sender_ids)
        senders = [names[number] for number in state.log_senders]
        sizes = list(state.log_sizes) or [0] * len(ids)  # written only if one is above the minimum
        columns = zip(state.log_lamports, data, senders, sizes, strict=True)
        log._entries.update(zip(ids, columns, strict=True))
        unit = log._unit
        counts = Counter(senders)
        seniority = dict.fromkeys([*state.log_sender_ids, *senders])
        log._held.update({sender_id: counts[sender_id] * unit for sender_id in seniority if counts[sender_id]})
        for sender_id, size in zip(senders, sizes, strict=True):
            if size > unit:
                log._held[sender_id] += size - unit
        log._weight = log._held.total()
        if state.HasField("horizon_id"):
            log.horizons.common = (state.horizon_lamport, state.horizon_id)
        log.horizons.read(state.horizons)
        return log


_Stored = tuple[int, bytes, str, int]
"""Lamport timestamp, encoded entry, sender, size."""


def _get_sender(entry: LogEntry | _Stored) -> str:
    return entry.sender_id if isinstance(entry, LogEntry) else entry[2]
