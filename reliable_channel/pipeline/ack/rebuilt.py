"""Holds rebuilt application messages until SDS has delivered enough of their segments.

A segment counts for a message only if the record that SDS accepted under its id has the same sender and the same
``entire_message_hash``: segments that others publish under the same ids complete nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.pipeline.ack.message_records import MessageRecord, RecordKey, SeenMessages, record_key
from reliable_channel.pipeline.ack.records import InputRow, hash_of, message_key, row_from_json, row_to_json

MAX_PENDING = 2_000
"""Messages that wait, in one channel."""
MAX_PENDING_SEGMENTS = 50_000
"""Segments of the messages that wait, in one channel."""
MAX_FINISHED = 2_000
"""Delivered messages that are remembered, so that another completed row of theirs changes nothing."""
_KEY_BYTES = 16


@dataclass(slots=True)
class _Pending:
    row: InputRow
    lacking: int
    """So many more parts must be delivered before it is worth counting them again; a lower bound."""


class RebuiltMessages:
    """The messages of one channel that are rebuilt and not delivered, and the keys of those that were. ``seen``: what
    SDS accepted."""

    def __init__(self, seen: SeenMessages) -> None:
        self._seen = seen
        self._pending: dict[bytes, _Pending] = {}
        self._by_part: dict[RecordKey, list[bytes]] = {}
        self._segments = 0
        self._finished: dict[bytes, None] = {}

    def knows(self, row: InputRow) -> bool:
        """Whether the message of a completed row waits, or was delivered."""
        key = _key(row)
        return key in self._pending or key in self._finished

    def wait(self, row: InputRow) -> Iterator[InputRow]:
        """Take a completed row. Gives back the rows that must go for it: too many wait, and the oldest of the sender
        with the most of them goes first."""
        self._add(_key(row), row)
        while len(self._pending) > MAX_PENDING or (self._segments > MAX_PENDING_SEGMENTS and len(self._pending) > 1):
            yield self._remove(self._of_the_greediest())

    def delivered(self, row: InputRow) -> list[MessageRecord] | None:
        """The delivered segments of a message that waits, when they are enough; it waits no longer then."""
        return self._try(_key(row))

    def delivered_with(self, seen: MessageRecord) -> Iterator[tuple[InputRow, list[MessageRecord]]]:
        """The messages that are deliverable now that SDS has delivered one segment, with their delivered segments."""
        for key in list(self._by_part.get(seen.key, ())):
            pending = self._pending[key]
            if hash_of(pending.row) != seen.entire_message_hash:
                continue
            pending.lacking -= 1
            if pending.lacking > 0:
                continue
            held = self._try(key)
            if held is not None:
                yield pending.row, held

    def given_up(self) -> Iterator[InputRow]:
        """Forget everything; gives the rows that waited."""
        for pending in self._pending.values():
            yield pending.row
        self._pending.clear()
        self._by_part.clear()
        self._finished.clear()
        self._segments = 0

    def possible(self, row: InputRow, may_come: Callable[[str, int], bool]) -> bool:
        """Whether SDS may have k segments of a rebuilt message delivered that were not delivered with it before: what
        a store brings back after all memory of it has gone was delivered then.

        ``may_come``: whether SDS may still accept a segment with this SDS id and Lamport timestamp of this sender."""
        hash_, first = hash_of(row), row.first_lamport_timestamp
        possible = 0
        for ordinal, sds_id in enumerate(row.sds_ids):
            if sds_id is None:
                continue
            key = record_key(sds_id, row.sender_id)
            seen = self._seen.get(key)
            if seen is not None and seen.entire_message_hash == hash_:
                possible += not self._seen.is_settled(key)
            else:
                possible += first is None or may_come(sds_id, first + ordinal)
        return possible >= (row.data_count or 1)

    # ---- state ---------------------------------------------------------------------------------------------------

    def write(self, proto: pb.ObserverStateProto) -> None:
        """Into the state."""
        proto.pending.extend([pb.PendingProto(row=row_to_json(pending.row)) for pending in self._pending.values()])
        proto.finished.extend(self._finished)

    def read(self, proto: pb.ObserverStateProto) -> None:
        """What :meth:`write` wrote."""
        for pending in proto.pending:
            row = row_from_json(pending.row)
            self._add(_key(row), row)
        self._finished = dict.fromkeys(proto.finished)

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _add(self, key: bytes, row: InputRow) -> None:
        self._pending[key] = _Pending(row, 0)
        for part in _parts(row):
            self._by_part.setdefault(part, []).append(key)
        self._segments += len(row.sds_ids)

    def _remove(self, key: bytes) -> InputRow:
        row = self._pending.pop(key).row
        self._segments -= len(row.sds_ids)
        for part in _parts(row):
            keys = self._by_part[part]
            keys.remove(key)
            if not keys:
                del self._by_part[part]
        return row

    def _try(self, key: bytes) -> list[MessageRecord] | None:
        pending = self._pending[key]
        hash_ = hash_of(pending.row)
        held = [seen for part in _parts(pending.row) if (seen := self._seen.part(part, hash_)) is not None]
        needed = pending.row.data_count or 1
        if len(held) < needed:
            pending.lacking = needed - len(held)
            return None
        self._remove(key)
        for seen in held:
            self._seen.settle(seen)
        self._finished[key] = None
        if len(self._finished) > MAX_FINISHED:
            del self._finished[next(iter(self._finished))]
        return held

    def _of_the_greediest(self) -> bytes:
        counts: Counter[str | None] = Counter()
        for pending in self._pending.values():
            counts[pending.row.sender_id] += max(1, len(pending.row.sds_ids))
        (greediest, _), *_ = counts.most_common(1)
        return next(key for key, pending in self._pending.items() if pending.row.sender_id == greediest)


def _parts(row: InputRow) -> Iterable[RecordKey]:
    """The keys of a message's segments, each once."""
    return {record_key(sds_id, row.sender_id): None for sds_id in row.sds_ids if sds_id is not None}


def _key(row: InputRow) -> bytes:
    return hashlib.sha256(message_key(row).encode("utf-8", "surrogatepass")).digest()[:_KEY_BYTES]
