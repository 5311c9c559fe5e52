"""Tracks who has acknowledged which message, and on which evidence (docs/sds.md, *Acknowledgements*).

Holds one :class:`Tracked` per message whose acknowledgements are followed, and finds which of them a received filter
holds. Cost of a filter: a few NumPy gathers over the messages its sender has not acknowledged yet.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.sds.events import Evidence
from reliable_channel.core.wire.bloom import WORTH_AN_ARRAY, Bytes, FilterFormat

_FIRST_LOOK = 3
"""Bits looked at for every open message; the rest only for those that pass. Of a filter that is not full most pass none
or all, and looking at the rest costs more than one bit more for all."""

NAMED, IMPLIED, BY_FILTER = Evidence.CAUSAL_HISTORY, Evidence.IMPLIED, Evidence.FILTER
"""Looked up once: a member of an enumeration costs as much as three calls of a function."""

MAX_VIEWS = 32
"""Participants for whom it is kept which messages their filters are asked for: some 35 KB each."""

MAX_HITS = 16
"""Participants whose filters are remembered to hold a tracked id, until two of their messages have said so."""


class Tracked:
    """One message whose acknowledgements are followed."""

    __slots__ = ("acked", "certain", "hits", "implied", "lamport", "message_id", "reached", "row", "sender_id", "since")

    def __init__(
        self,
        message_id: str,
        sender_id: str,
        lamport: int,
        since: int,
        acked: int = 0,
        implied: int = 0,
        certain: int = 0,
        reached: int = 0,
    ) -> None:
        self.message_id = message_id
        self.sender_id = sender_id
        self.lamport = lamport
        self.since = since
        self.row = -1
        self.acked, self.implied, self.certain = acked, implied, certain
        """One bit per participant: who has acknowledged it, who has implied that, and who has named it."""
        self.reached = reached
        """One bit per participant that has the message in its causal past and was heard before it was sent: when a
        filter of that participant holds the id too, the acknowledgement is implied."""
        self.hits: dict[str, list[str]] = {}
        """Participant → the messages of its own whose filters hold the id."""

    def evidence_of(self, number: int) -> Evidence | None:
        """The strongest evidence on which a participant has acknowledged; ``None`` when it has not."""
        if not self.acked >> number & 1:
            return None
        if self.certain >> number & 1:
            return NAMED
        return IMPLIED if self.implied >> number & 1 else BY_FILTER

    def acknowledge(self, number: int, evidence: Evidence) -> None:
        """A participant has acknowledged the message."""
        bit = 1 << number
        self.acked |= bit
        if evidence is NAMED:
            self.certain |= bit
        elif evidence is IMPLIED:
            self.implied |= bit

    def closed(self) -> int:
        """One bit per participant whose filters can tell nothing more of this message."""
        return self.certain | self.implied | (self.acked & ~self.reached)

    def hit_by(self, by: str, via: str) -> list[str] | None:
        """Note that a filter of ``by``, in message ``via``, holds the id; all such messages of that participant, or
        ``None`` for one that is noted already. Of at most :data:`MAX_HITS` participants; the first gives way."""
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
        """Forget what a participant has acknowledged: its number becomes another's."""
        rest = ~(1 << number)
        self.acked &= rest
        self.implied &= rest
        self.certain &= rest
        self.reached &= rest
        self.hits.pop(by, None)

    def hit_count(self) -> int:
        """Different messages, of all participants, whose filters hold the id."""
        return sum(map(len, self.hits.values()))


class Participants:
    """The participants of a channel, each with a number and the Lamport timestamp at which it was first heard.

    Bounded: when all numbers are taken, a newcomer that is heard gets that of the participant with the fewest messages,
    and of several the one that has been silent longest. So names that somebody makes up replace each other, and never
    those that talk."""

    def __init__(self, max_participants: int) -> None:
        self._max = max_participants
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._heard: list[int | None] = []
        self._counts: list[int] = []
        """How many messages each has sent."""
        self._last: list[int] = []
        """The running number of the last message of each."""
        self._counter = 0
        self.proving = 0
        """One bit per participant: the id of a message of its has been recomputed."""

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of their numbers."""
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def number(self, participant_id: str) -> int | None:
        """The number of a participant, given on first use while there are any."""
        number = self._numbers.get(participant_id)
        if number is None and len(self._names) < self._max:
            number = self._numbers[participant_id] = len(self._names)
            self._names.append(participant_id)
            self._heard.append(None)
            self._counts.append(0)
            self._last.append(0)
        return number

    def quietest(self, but: str | None) -> int | None:
        """The number that a newcomer gets when all are taken; never that of ``but``."""
        numbers = (number for number, name in enumerate(self._names) if name != but)
        return min(numbers, key=self.messages, default=None)

    def replace(self, number: int, participant_id: str) -> str:
        """Give a number to somebody else; returns whose it was. The caller forgets what is known of that one."""
        gone = self._names[number]
        del self._numbers[gone]
        self._numbers[participant_id] = number
        self._names[number] = participant_id
        self._heard[number], self._counts[number], self._last[number] = None, 0, 0
        self.proving &= ~(1 << number)
        return gone

    def record_heard(self, number: int, lamport: int | None) -> None:
        """Count a message of a participant; the Lamport timestamp of the first one that has one is remembered."""
        self._counter += 1
        self._counts[number] += 1
        self._last[number] = self._counter
        if self._heard[number] is None:
            self._heard[number] = lamport

    def proves(self, participant_id: str) -> bool:
        """Whether the id of a message of this participant has been recomputed."""
        number = self._numbers.get(participant_id)
        return number is not None and bool(self.proving >> number & 1)

    def record_proof(self, participant_id: str) -> None:
        """The id of a message of this participant was recomputed."""
        number = self._numbers.get(participant_id)
        if number is not None:
            self.proving |= 1 << number

    def first_heard(self, number: int) -> int | None:
        """The Lamport timestamp (ms) of the first message that came from a participant; ``None`` when none has."""
        return self._heard[number]

    def messages(self, number: int) -> tuple[int, int]:
        """How many messages a participant has sent, and the running number of the last one."""
        return self._counts[number], self._last[number]

    def restore(self, number: int, first_heard: int | None, messages: tuple[int, int]) -> None:
        """Take what a snapshot has of a participant."""
        self._heard[number], (self._counts[number], self._last[number]) = first_heard, messages
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
        """By id. Read it; it is changed here only."""
        self.get = self.tracked.get
        """The tracked message of an id."""
        self._by_row: list[Tracked | None] = []
        self._free: list[int] = []
        self._by_lamport: list[tuple[int, str]] = []
        """Ascending; also of messages that are tracked no more. The first ``_passed`` are such."""
        self._passed = 0
        self.is_asked = False
        """Whether a filter has come: there is something to keep for the next ones. Read it; it is changed here only."""
        k = self._format.hash_count
        self._at: npt.NDArray[np.intp] = np.zeros((k, 0), np.intp)
        self._masks: Bytes = np.zeros((k, 0), np.uint8)
        self._open: npt.NDArray[np.bool_] = np.zeros((0, 0), np.bool_)
        self._unlocated: set[int] = set()
        self._views: dict[int, tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Bytes]] = {}

    def __len__(self) -> int:
        return len(self.tracked)

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self.tracked.values())

    def floor(self) -> int | None:
        """The lowest Lamport timestamp tracked: the causal past below it needs no walk."""
        order, passed = self._by_lamport, self._passed
        while passed < len(order) and order[passed][1] not in self.tracked:
            passed += 1
        self._passed = passed
        return order[passed][0] if passed < len(order) else None

    def add(self, tracked: Tracked) -> None:
        """Follow a message from now on."""
        self.tracked[tracked.message_id] = tracked
        order, position = self._by_lamport, (tracked.lamport, tracked.message_id)
        if not order or order[-1] < position:
            order.append(position)
        else:
            insort(order, position, lo=self._passed)
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
        if self._is_slow:  # no later filter shall pay for all ids
            self._format.hashes(tracked.message_id)
        own = self._participants.number(tracked.sender_id)
        if self.is_asked:
            self._open[:, row] = True
            if own is not None and own < self._open.shape[0]:
                self._open[own, row] = False
            self._views.clear()

    def restore(self, tracked: list[Tracked]) -> None:
        """Follow the messages of a snapshot, with the acknowledgements they have: of a table that is empty, all at
        once. Whose filters need not be asked is known when the first filter comes (:meth:`_grow_participants`)."""
        self.tracked.update({each.message_id: each for each in tracked})
        self._by_lamport = sorted([(each.lamport, each.message_id) for each in tracked])
        self._by_row = [*tracked]
        for row, each in enumerate(tracked):
            each.row = row
        self._grow_rows(max(8, len(tracked)))
        self._unlocated = set(range(len(tracked)))

    def discard(self, message_id: str) -> None:
        """Stop following a message."""
        tracked = self.tracked.pop(message_id, None)
        if tracked is None:
            return
        self._by_row[tracked.row] = None
        self._free.append(tracked.row)
        if self.is_asked:
            self._open[:, tracked.row] = False
            self._views.clear()

    def ask(self, tracked: Tracked, number: int) -> None:
        """Decide whether the filters of a participant can still tell something of a message."""
        if number < self._open.shape[0]:
            self._open[number, tracked.row] = not tracked.closed() >> number & 1
            self._views.pop(number, None)

    def forget(self, number: int, gone: str, newcomer: str) -> None:
        """Forget everything of a participant whose number becomes a newcomer's, who may have been here before."""
        for tracked in self.tracked.values():
            tracked.forget(number, gone)
            if number < self._open.shape[0]:
                self._open[number, tracked.row] = tracked.sender_id != newcomer
        self._views.pop(number, None)

    def held_by(self, words: Bytes, number: int, filter_format: FilterFormat | None = None) -> list[Tracked]:
        """The tracked messages of which a participant's filter can tell something and whose ids it holds, ascending.
        ``filter_format``: of the filter, if it has another size than the channel's."""
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
        else:
            asked = [tracked for row in rows.tolist() if (tracked := self._by_row[row])]
            rows = np.array([tracked.row for tracked in asked], np.intp)
            at, masks = filter_format.places([tracked.message_id for tracked in asked])
        bits = words.take(at)
        bits &= masks
        held = [tracked for row in rows[bits.all(axis=0)].tolist() if (tracked := self._by_row[row])]
        held.sort(key=lambda tracked: (tracked.lamport, tracked.message_id))
        return held

    def _locate(self) -> None:
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
            self._at[:, rows], self._masks[:, rows] = self._format.places(ids)
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
        had, width = self._open.shape[0], max(1, number // 4)
        grown = np.zeros((8 * width, self._at.shape[1]), np.bool_)
        grown[:had] = self._open
        every = (1 << 8 * width) - 1
        closed = b"".join((tracked.closed() & every).to_bytes(width, "little") for tracked in self.tracked.values())
        bits = np.unpackbits(np.frombuffer(closed, np.uint8).reshape(-1, width), axis=1, bitorder="little")
        grown[had:, [tracked.row for tracked in self.tracked.values()]] = bits.T[had:] == 0
        for tracked in self.tracked.values():
            owner = self._participants.number(tracked.sender_id)
            if owner is not None and had <= owner < grown.shape[0]:
                grown[owner, tracked.row] = False
        self._open, self.is_asked = grown, True
        self._views.clear()
