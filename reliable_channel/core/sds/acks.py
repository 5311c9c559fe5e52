"""Tracks who has acknowledged which message, and on which evidence (docs/sds.md, *Acknowledgements*).

Holds one :class:`Tracked` per message whose acknowledgements are tracked, and finds which of them a received filter
contains. A filter costs a few NumPy gathers over the messages that its sender has not acknowledged yet.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.sds.events import Evidence
from reliable_channel.core.wire.bloom import WORTH_AN_ARRAY, Bytes, FilterFormat

_FIRST_LOOK = 3
"""Bits tested for every open message; the rest only for messages that pass. With a filter that is not full, most
messages that pass these bits pass all, and testing the rest costs more than one more bit for every message."""

NAMED, IMPLIED, BY_FILTER = Evidence.CAUSAL_HISTORY, Evidence.IMPLIED, Evidence.FILTER
"""Looked up once, because access to an enumeration member costs as much as three function calls."""

MAX_VIEWS = 32
"""Maximum number of participants whose list of messages to test against their filters is cached: about 35 KB each."""

MAX_HITS = 16
"""Maximum number of participants per tracked id whose filter hits are remembered, until two of their messages contained
the id."""


@dataclass(slots=True, eq=False, repr=False)
class Tracked:
    """One message whose acknowledgements are tracked."""

    message_id: str
    sender_id: str
    lamport: int
    since: int
    acked: int = 0
    """One bit per participant that has acknowledged it."""
    implied: int = 0
    """One bit per participant that has implied that."""
    certain: int = 0
    """One bit per participant that has named it."""
    reached: int = 0
    """One bit per participant that has the message in its causal past and was known before it was sent: when a
    filter of that participant contains the id too, the acknowledgement is implied."""
    row: int = -1
    hits: dict[str, list[str]] = field(default_factory=dict)
    """Participant → its messages whose filters contain the id."""

    def evidence_of(self, number: int) -> Evidence | None:
        """The strongest evidence on which a participant has acknowledged; ``None`` if it has not."""
        if not self.acked >> number & 1:
            return None
        if self.certain >> number & 1:
            return NAMED
        return IMPLIED if self.implied >> number & 1 else BY_FILTER

    def acknowledge(self, number: int, evidence: Evidence) -> None:
        """Record that a participant has acknowledged the message."""
        bit = 1 << number
        self.acked |= bit
        if evidence is NAMED:
            self.certain |= bit
        elif evidence is IMPLIED:
            self.implied |= bit

    @property
    def closed_bits(self) -> int:
        """One bit per participant whose filters give no new information about this message."""
        return self.certain | self.implied | (self.acked & ~self.reached)

    def record_hit(self, by: str, via: str) -> list[str] | None:
        """Record that a filter of ``by``, in message ``via``, contains the id. Returns all such messages of that
        participant, or ``None`` if ``via`` was recorded already. Keeps at most :data:`MAX_HITS` participants and drops
        the first."""
        vias = self.hits.get(by)
        if vias is None:
            if len(self.hits) >= MAX_HITS:
                del self.hits[next(iter(self.hits))]
            vias = self.hits[by] = []
        if via in vias:
            return None
        vias.append(via)
        return vias

    def forget(self, number: int, by: str) -> None:
        """Forget the acknowledgements of a participant, because its number is reassigned."""
        rest = ~(1 << number)
        self.acked &= rest
        self.implied &= rest
        self.certain &= rest
        self.reached &= rest
        self.hits.pop(by, None)

    def hit_count(self) -> int:
        """The number of different messages, of all participants, whose filters contain the id."""
        return sum(map(len, self.hits.values()))


class Participants:
    """The participants of a channel, each with a number and the Lamport timestamp of its first message.

    Bounded: when all numbers are taken, a new participant gets the number of the participant with the fewest messages,
    and among several of these the one that has been silent longest. So invented names replace each other, and never
    participants that send."""

    def __init__(self, max_participants: int) -> None:
        self._max = max_participants
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._first_lamports: list[int | None] = []
        self._counts: list[int] = []
        """The number of messages of each participant."""
        self._last: list[int] = []
        """The running number of each participant's last message."""
        self._by_count: dict[int, dict[int, None]] | None = None
        """Number of messages → participants with so many, longest silent first; built when all numbers are taken, so
        that a flood of invented names costs the same however many participants there are."""
        self._counter = 0
        self.proving = 0
        """One bit per participant with a message whose id has been recomputed."""

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of their numbers."""
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def any_received(self) -> bool:
        """Whether any message of a participant was received."""
        return self._counter > 0

    def number(self, participant_id: str) -> int | None:
        """The number of a participant; assigned on first use while numbers are free."""
        number = self._numbers.get(participant_id)
        if number is None and len(self._names) < self._max:
            number = self._numbers[participant_id] = len(self._names)
            self._names.append(participant_id)
            self._first_lamports.append(None)
            self._counts.append(0)
            self._last.append(0)
        return number

    def quietest(self, but: str | None) -> int | None:
        """The number that a new participant gets when all are taken; never that of ``but``."""
        if self._by_count is None:
            self._by_count = {}
            for number in sorted(range(len(self._names)), key=self.messages):
                self._by_count.setdefault(self._counts[number], {})[number] = None
        for count in sorted(self._by_count):
            for number in self._by_count[count]:
                if self._names[number] != but:
                    return number
        return None

    def _recount(self, number: int, count: int) -> None:
        """Set the number of messages of a participant."""
        if self._by_count is not None:
            before = self._by_count[self._counts[number]]
            del before[number]
            if not before:
                del self._by_count[self._counts[number]]
            self._by_count.setdefault(count, {})[number] = None
        self._counts[number] = count

    def name(self, number: int) -> str:
        """The participant with a number."""
        return self._names[number]

    def replace(self, number: int, participant_id: str) -> None:
        """Reassign a number to another participant, after the caller has forgotten the state of its owner."""
        del self._numbers[self._names[number]]
        self._numbers[participant_id] = number
        self._names[number] = participant_id
        self._first_lamports[number], self._last[number] = None, 0
        self._recount(number, 0)
        self.proving &= ~(1 << number)

    def record_message(self, number: int, lamport: int | None) -> None:
        """Count a message of a participant, and remember the Lamport timestamp of its first message that has one."""
        self._counter += 1
        self._recount(number, self._counts[number] + 1)
        self._last[number] = self._counter
        if self._first_lamports[number] is None:
            self._first_lamports[number] = lamport

    def proves(self, participant_id: str) -> bool:
        """Whether the id of a message of this participant has been recomputed."""
        number = self._numbers.get(participant_id)
        return number is not None and bool(self.proving >> number & 1)

    def record_proof(self, participant_id: str) -> None:
        """Record that the id of a message of this participant was recomputed."""
        number = self._numbers.get(participant_id)
        if number is not None:
            self.proving |= 1 << number

    def first_lamport(self, number: int) -> int | None:
        """The Lamport timestamp (ms) of the first message of a participant; ``None`` if it has sent none."""
        return self._first_lamports[number]

    def messages(self, number: int) -> tuple[int, int]:
        """The number of messages of a participant, and the running number of the last one."""
        return self._counts[number], self._last[number]

    def restore(self, number: int, first_lamport: int | None, messages: tuple[int, int]) -> None:
        """Restore a participant from a snapshot."""
        self._first_lamports[number], (self._counts[number], self._last[number]) = first_lamport, messages
        self._by_count = None
        self._counter = max(self._counter, messages[1])

    def of(self, bits: int) -> list[str]:
        """The participants whose bits are set."""
        return [name for number, name in enumerate(self._names) if bits >> number & 1]


class AckTable:
    """The tracked messages, and the bits of their ids as arrays of (bit, row)."""

    def __init__(self, config: SdsParameters, participants: Participants) -> None:
        self._format = config.filter_format
        self._is_slow = self._format.is_slow
        self._participants = participants
        self.tracked: dict[str, Tracked] = {}
        """Tracked messages by id. Read-only for other modules."""
        self.get = self.tracked.get
        """The tracked message of an id."""
        self._by_row: list[Tracked | None] = []
        self._free: list[int] = []
        self._by_lamport: list[tuple[int, str]] = []
        """Ascending, with entries of messages that are no longer tracked. The first ``_passed`` entries are all
        such."""
        self._passed = 0
        self.has_filters = False
        """Whether a filter has arrived, so that caching for the next filters pays. Read-only for other modules."""
        k = self._format.hash_count
        self._at: npt.NDArray[np.intp] = np.zeros((k, 0), np.intp)
        self._masks: Bytes = np.zeros((k, 0), np.uint8)
        self._open: npt.NDArray[np.bool_] = np.zeros((0, 0), np.bool_)
        self._unlocated: set[int] = set()
        self._marks: dict[int, int] | None = None
        """Number of a participant → one bit per row: the messages on which it has left a trace, and perhaps more.
        Built when the first participant is forgotten, so that forgetting one costs as much as it has acknowledged."""
        self._views: dict[int, tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Bytes]] = {}

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self.tracked.values())

    def floor(self) -> int | None:
        """The lowest tracked Lamport timestamp: the causal past below it need not be walked."""
        order, passed = self._by_lamport, self._passed
        while passed < len(order) and order[passed][1] not in self.tracked:
            passed += 1
        self._passed = passed
        return order[passed][0] if passed < len(order) else None

    def add(self, tracked: Tracked) -> None:
        """Start tracking a message."""
        self.tracked[tracked.message_id] = tracked
        order, position = self._by_lamport, (tracked.lamport, tracked.message_id)
        if not order or order[-1] < position:
            order.append(position)
        else:
            insort(order, position, lo=self._passed)
        # Positions of messages that are no longer tracked are removed when they are most of the list.
        if len(order) > 64 + 2 * len(self.tracked):
            self._by_lamport, self._passed = [each for each in order if each[1] in self.tracked], 0
        if self._free:
            row = self._free.pop()
            self._by_row[row] = tracked
        else:
            row = len(self._by_row)
            self._by_row.append(tracked)
            if row >= self._at.shape[1]:
                self._grow_rows(max(8, 2 * row))
        tracked.row = row
        self._unlocated.add(row)
        if self._is_slow:  # so that no later filter pays for hashing all ids
            self._format.hashes(tracked.message_id)
        own = self._participants.number(tracked.sender_id)  # nobody acknowledges its own message
        if self.has_filters:
            self._open[:, row] = True
            if own is not None and own < self._open.shape[0]:
                self._open[own, row] = False
            self._views.clear()

    def restore(self, tracked: list[Tracked]) -> None:
        """Restore the tracked messages of a snapshot into an empty table, with their acknowledgements. The participants
        whose filters need no test are computed when the first filter arrives (:meth:`_grow_participants`)."""
        self.tracked.update({each.message_id: each for each in tracked})
        self._by_lamport = sorted([(each.lamport, each.message_id) for each in tracked])
        self._by_row = [*tracked]
        for row, each in enumerate(tracked):
            each.row = row
        self._grow_rows(max(8, len(tracked)))
        self._unlocated = set(range(len(tracked)))

    def discard(self, message_id: str) -> None:
        """Stop tracking a message."""
        tracked = self.tracked.pop(message_id, None)
        if tracked is None:
            return
        self._by_row[tracked.row] = None
        self._free.append(tracked.row)
        if self.has_filters:
            self._open[:, tracked.row] = False
            self._views.clear()

    def ask(self, tracked: Tracked, number: int) -> None:
        """Update whether the filters of a participant can still give new information about a message."""
        if number < self._open.shape[0]:
            self._open[number, tracked.row] = not tracked.closed_bits >> number & 1
            self._views.pop(number, None)

    def mark(self, tracked: Tracked, number: int) -> None:
        """Record that a participant has left a trace on a message: an acknowledgement, or a step towards one."""
        if self._marks is not None:
            self._marks[number] = self._marks.get(number, 0) | 1 << tracked.row

    def forget(self, number: int, gone: str, sent: Iterable[str], own: Iterable[str]) -> None:
        """Forget everything about a participant whose number is reassigned. ``sent``: the ids of its tracked messages;
        ``own``: those of the newcomer, which may have been here before."""
        if self._marks is None:
            self._marks = self._find_marks()
        marks = self._marks.pop(number, 0)
        is_located = number < self._open.shape[0]
        while marks:
            row = (marks & -marks).bit_length() - 1
            marks &= marks - 1
            if (tracked := self._by_row[row]) is not None:
                tracked.forget(number, gone)
                if is_located:
                    self._open[number, row] = True
        if is_located:
            self._open[number, [self.tracked[each].row for each in sent]] = True
            self._open[number, [self.tracked[each].row for each in own]] = False
        self._views.pop(number, None)

    def _find_marks(self) -> dict[int, int]:
        """The marks of all participants, from what is recorded with the tracked messages."""
        numbers, tracked = len(self._participants), list(self.tracked.values())
        bits = np.zeros((-(-numbers // 8) * 8, len(self._by_row)), np.bool_)
        left = [each.acked | each.reached for each in tracked]  # implied and certain acknowledgements are acknowledged
        bits[:, [each.row for each in tracked]] = _unpack(left, bits.shape[0] // 8)
        for each in tracked:
            for by in each.hits:
                if (number := self._participants.number(by)) is not None:
                    bits[number, each.row] = True
        rows = np.packbits(bits[:numbers], axis=1, bitorder="little")
        return {number: int.from_bytes(row.tobytes(), "little") for number, row in enumerate(rows)}

    def find_in_filter(self, words: Bytes, number: int, filter_format: FilterFormat | None = None) -> list[Tracked]:
        """The tracked messages whose ids a participant's filter contains, if that is new information; ascending.
        ``filter_format``: the format of the filter, if its size differs from the channel's."""
        if self._unlocated:
            self._locate()
        if number >= self._open.shape[0]:
            self._grow_participants(number)
        view = self._views.get(number)
        if view is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            rows = self._open[number, : len(self._by_row)].nonzero()[0]
            at, masks = self._at[:_FIRST_LOOK].take(rows, axis=1), self._masks[:_FIRST_LOOK].take(rows, axis=1)
            view = self._views[number] = (rows, at, masks)
        rows, at, masks = view
        if not rows.size:
            return []
        if filter_format is None or filter_format is self._format:
            bits = words.take(at)
            bits &= masks
            rows = rows[bits.all(axis=0)]
            if not rows.size:
                return []
            at, masks = self._at[_FIRST_LOOK:, rows], self._masks[_FIRST_LOOK:, rows]
        else:  # a filter of the other size has other bits; few peers send one, so they are computed for it alone
            unlocated = [tracked for row in rows.tolist() if (tracked := self._by_row[row])]
            rows = np.array([tracked.row for tracked in unlocated], np.intp)
            at, masks = filter_format.positions([tracked.message_id for tracked in unlocated])
        bits = words.take(at)
        bits &= masks
        held = [tracked for row in rows[bits.all(axis=0)].tolist() if (tracked := self._by_row[row])]
        # Rows are reused: their order differs after a restore, and that of the events must not.
        held.sort(key=lambda tracked: (tracked.lamport, tracked.message_id))
        return held

    def _locate(self) -> None:
        """Compute the bits of the ids that were added since the last filter came."""
        rows, ids = [], []
        for row in self._unlocated:
            tracked = self._by_row[row]
            if tracked is not None:
                rows.append(row)
                ids.append(tracked.message_id)
        if len(ids) < WORTH_AN_ARRAY:
            for row, message_id in zip(rows, ids, strict=True):
                self._at[:, row], self._masks[:, row] = self._format.locate(message_id)
        else:
            self._at[:, rows], self._masks[:, rows] = self._format.positions(ids)
        self._unlocated.clear()
        self._views.clear()

    def _grow_rows(self, rows: int) -> None:
        k, had = self._at.shape
        at, masks = np.zeros((k, rows), np.intp), np.zeros((k, rows), np.uint8)
        at[:, :had], masks[:, :had] = self._at, self._masks
        self._at, self._masks = at, masks
        grown = np.zeros((self._open.shape[0], rows), np.bool_)
        grown[:, :had] = self._open
        self._open = grown

    def _grow_participants(self, number: int) -> None:
        """Make room for the filters of a participant, and of those with higher numbers that may come."""
        # Twice as many as are needed, in whole bytes: each growth copies everything.
        had, width = self._open.shape[0], max(1, number // 4)
        grown = np.zeros((8 * width, self._at.shape[1]), np.bool_)
        grown[:had] = self._open
        closed = _unpack([tracked.closed_bits for tracked in self.tracked.values()], width)
        grown[had:, [tracked.row for tracked in self.tracked.values()]] = closed[had:] == 0
        for tracked in self.tracked.values():
            owner = self._participants.number(tracked.sender_id)
            if owner is not None and had <= owner < grown.shape[0]:
                grown[owner, tracked.row] = False
        self._open, self.has_filters = grown, True
        self._views.clear()


def _unpack(numbers: list[int], width: int) -> npt.NDArray[np.uint8]:
    """The lowest 8 · ``width`` bits of integers: one row per bit, one column per integer."""
    every = (1 << 8 * width) - 1
    packed = b"".join((each & every).to_bytes(width, "little") for each in numbers)
    return np.unpackbits(np.frombuffer(packed, np.uint8).reshape(-1, width), axis=1, bitorder="little").T
