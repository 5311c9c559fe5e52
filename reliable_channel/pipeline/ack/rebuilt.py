"""Holds rebuilt application messages until SDS has delivered enough of their segments
(:mod:`reliable_channel.core.delivery`). Bounded.

A segment counts for a message only if the record that SDS accepted under its id has the same sender and the same
``entire_message_hash``: segments that others publish under the same ids complete nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator

from reliable_channel.core.delivery import AwaitedMessages
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.pipeline.ack.accepted_messages import AcceptedMessage, AcceptedMessages, SdsKey, sds_key
from reliable_channel.pipeline.ack.records import InputRow, hash_of, message_key, row_from_json, row_to_json

MAX_PENDING = 2_000
"""The maximum number of waiting messages in one channel."""
MAX_PENDING_SEGMENTS = 50_000
"""The maximum number of segments of waiting messages in one channel."""
MAX_FINISHED = 2_000
"""The maximum number of delivered messages remembered, so that another completed row for them changes nothing."""
_KEY_BYTES = 16


class RebuiltMessages:
    """The messages of one channel that are rebuilt and not delivered, and the keys of delivered ones. ``seen``: the
    messages that SDS accepted."""

    def __init__(self, seen: AcceptedMessages) -> None:
        self._seen = seen
        self._awaited: AwaitedMessages[bytes, SdsKey, InputRow, AcceptedMessage] = AwaitedMessages(
            lambda part, row: seen.part(part, hash_of(row))
        )
        self._segments = 0
        self._finished: dict[bytes, None] = {}

    def knows(self, row: InputRow) -> bool:
        """Whether the message of a completed row waits or was delivered."""
        key = _make_key(row)
        return key in self._awaited or key in self._finished

    def add(self, row: InputRow) -> list[AcceptedMessage] | None:
        """Add a completed row. If enough of the message's segments are delivered, it does not wait: returns these
        segments."""
        key = self._wait(row)
        held = self._awaited.take(key)
        if held is not None:
            self._finish(key, row, held)
        return held

    def too_many(self) -> Iterator[InputRow]:
        """Remove and return the rows that exceed a bound: the oldest of the sender with the most waiting messages, or
        with the most segments."""
        while len(self._awaited) > MAX_PENDING:
            yield self._give_up(Counter(row.sender_id for row in self.list_waiting()))
        while self._segments > MAX_PENDING_SEGMENTS and len(self._awaited) > 1:
            segments: Counter[str | None] = Counter()
            for row in self.list_waiting():
                segments[row.sender_id] += len(row.sds_ids)
            yield self._give_up(segments)

    def take_completed_by(self, seen: AcceptedMessage) -> Iterator[tuple[InputRow, list[AcceptedMessage]]]:
        """The messages that the delivery of one segment completes, with their delivered segments."""
        for key, row, held in self._awaited.take_with(seen.key):
            self._finish(key, row, held)
            yield row, held

    def list_waiting(self) -> list[InputRow]:
        """The rows that wait, oldest first."""
        return [row for _, row in self._awaited.items()]

    def possible(
        self, row: InputRow, may_come: Callable[[str, int], bool], is_further: Callable[[str, int], bool]
    ) -> int:
        """The number of segments of a rebuilt message that SDS has delivered or may still deliver, without those of an
        earlier delivery. It is 0 for a message that a store returns after it was forgotten: it was delivered before.

        ``may_come``: whether SDS may still accept a segment of this sender with this SDS id and Lamport timestamp;
        ``is_further``: whether it may deliver one again that it has delivered."""
        hash_, first = hash_of(row), row.first_lamport_timestamp
        possible = 0
        for ordinal, sds_id in enumerate(row.sds_ids):
            if sds_id is None:
                continue
            key = sds_key(sds_id, row.sender_id)
            seen = self._seen.get(key)
            if seen is not None and seen.entire_message_hash == hash_:
                settled = self._seen.is_settled(key)
                possible += not settled or (first is not None and is_further(sds_id, first + ordinal))
            else:
                possible += first is None or may_come(sds_id, first + ordinal)
        return possible

    def count_repaired(self, row: InputRow) -> int:
        """The number of data segments of a rebuilt message that were rebuilt, whether or not their ids are known and
        SDS has delivered them."""
        ids = row.sds_ids[: row.data_count or 1]
        parts = [None if sds_id is None else self._seen.get(sds_key(sds_id, row.sender_id)) for sds_id in ids]
        return sum(seen is None or bool(seen.repaired_by) for seen in parts)

    # ---- state ---------------------------------------------------------------------------------------------------

    def write(self, proto: pb.ObserverStateProto) -> None:
        """Write to the state."""
        proto.pending.extend([pb.PendingProto(row=row_to_json(row)) for row in self.list_waiting()])
        proto.finished.extend(self._finished)

    def read(self, proto: pb.ObserverStateProto) -> None:
        """Restore the result of :meth:`write`."""
        for pending in proto.pending:
            self._wait(row_from_json(pending.row))
        self._finished = dict.fromkeys(proto.finished)

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _wait(self, row: InputRow) -> bytes:
        key = _make_key(row)
        parts = [sds_key(sds_id, row.sender_id) for sds_id in row.sds_ids if sds_id is not None]
        self._awaited.add(key, row, parts, row.data_count or 1)
        self._segments += len(row.sds_ids)
        return key

    def _finish(self, key: bytes, row: InputRow, held: list[AcceptedMessage]) -> None:
        self._segments -= len(row.sds_ids)
        for seen in held:
            self._seen.settle(seen)
        self._finished[key] = None
        if len(self._finished) > MAX_FINISHED:
            del self._finished[next(iter(self._finished))]

    def _give_up(self, amounts: Counter[str | None]) -> InputRow:
        (greediest, _), *_ = amounts.most_common(1)
        row = self._awaited.remove(next(key for key, row in self._awaited.items() if row.sender_id == greediest))
        self._segments -= len(row.sds_ids)
        return row


def _make_key(row: InputRow) -> bytes:
    return hashlib.sha256(message_key(row).encode("utf-8", "surrogatepass")).digest()[:_KEY_BYTES]
