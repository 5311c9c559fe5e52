"""What a channel remembers of the SDS messages it has seen: where each stands, and what it is a part of.

Most of it is only carried from one micro-batch to the next, so what comes from the state stays encoded until it is
asked for (as the entries of the log do); what is new is a plain object, and is encoded once, if it is still remembered
at the end of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from itertools import islice

from reliable_channel.pipeline.ack.observed import InputRow, hash_of
from reliable_channel.wire._pb import pipeline_state_pb2 as pb


@dataclass(slots=True)
class Seen:
    """One SDS message, as it first came. ``entire_message_hash`` in base64; what is unknown is empty or ``None``."""

    sds_id: str
    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    first_seen_ms: int
    sender_id: str
    segment_kind: str
    entire_message_hash: str
    segment_index: int | None
    data_count: int | None
    parity_count: int | None
    sender_timestamp_ns: int | None
    content_bytes: int | None
    repaired_by: str
    copies: int = 1
    delivered: bool = False
    late: bool = False
    lost: tuple[str, ...] = ()
    settled: bool = False
    """Its application message was delivered."""

    @classmethod
    def first(cls, row: InputRow, now_ms: int) -> Seen:
        """What is remembered of a row that came at ``now_ms`` (event time)."""
        return cls(
            row.sds_id or "",
            row.kafka_topic,
            row.kafka_partition,
            row.kafka_offset,
            now_ms,
            row.sender_id or "",
            row.segment_kind or "",
            hash_of(row),
            row.segment_index,
            row.data_count,
            row.parity_count,
            row.sender_timestamp_ns,
            row.content_bytes,
            row.repaired_by or "",
        )

    def encoded(self) -> bytes:
        """As it stands in the state, beside its id."""
        return pb.SeenProto(**{name: getattr(self, name) for name in _ENCODED}).SerializeToString()

    @classmethod
    def decoded(cls, sds_id: str, data: bytes) -> Seen:
        """What :meth:`encoded` gave."""
        proto = pb.SeenProto.FromString(data)
        fields = {name: getattr(proto, name) for name in _ENCODED}
        fields |= {name: None for name in _MAY_BE_UNKNOWN if not proto.HasField(name)}
        return cls(sds_id, **{**fields, "lost": tuple(proto.lost)})


_ENCODED = tuple(name for name in Seen.__slots__ if name != "sds_id")
_MAY_BE_UNKNOWN = ("segment_index", "data_count", "parity_count", "sender_timestamp_ns", "content_bytes")

_ById = dict[str, Seen | bytes]


class SeenMessages:
    """By SDS id: those that wait for their delivery, the first that was seen first, and those that are delivered, the
    first that was delivered first. Bounded: of each the first go first."""

    def __init__(self, max_waiting: int, max_delivered: int) -> None:
        self._max_waiting, self._max_delivered = max_waiting, max_delivered
        self._waiting: _ById = {}
        self._delivered: _ById = {}

    def read(self, proto: pb.ObserverStateProto) -> None:
        """What :meth:`write` wrote."""
        self._waiting = dict(zip(proto.waiting_ids, proto.waiting, strict=True))
        self._delivered = dict(zip(proto.delivered_ids, proto.delivered, strict=True))

    def write(self, proto: pb.ObserverStateProto) -> None:
        """Into the state; what was not asked for is copied as it is."""
        proto.waiting_ids.extend(self._waiting)
        proto.waiting.extend(_encoded(self._waiting))
        proto.delivered_ids.extend(self._delivered)
        proto.delivered.extend(_encoded(self._delivered))

    def __contains__(self, sds_id: object) -> bool:
        return sds_id in self._delivered or sds_id in self._waiting

    def get(self, sds_id: str) -> Seen | None:
        """The message of an id."""
        among = self._delivered if sds_id in self._delivered else self._waiting
        seen = among.get(sds_id)
        if isinstance(seen, bytes):
            seen = among[sds_id] = Seen.decoded(sds_id, seen)
        return seen

    def add(self, seen: Seen) -> None:
        """Remember a message."""
        self._waiting[seen.sds_id] = seen
        if len(self._waiting) > self._max_waiting:
            del self._waiting[next(iter(self._waiting))]

    def deliver(self, seen: Seen) -> None:
        """A message is delivered."""
        seen.delivered = True
        self._waiting.pop(seen.sds_id, None)
        self._delivered[seen.sds_id] = seen

    def forget(self, open_hashes: Callable[[], Container[str]]) -> None:
        """Keep the bound of those that are delivered, but for parts of messages that are not (``open_hashes``)."""
        over = len(self._delivered) - self._max_delivered
        if over <= self._max_delivered // _SLACK:
            return
        spared = open_hashes()
        gone = (i for i in [*self._delivered] if (seen := self.get(i)) and seen.entire_message_hash not in spared)
        for sds_id in islice(gone, over):
            del self._delivered[sds_id]

    def clear(self) -> None:
        """Forget all."""
        self._waiting.clear()
        self._delivered.clear()


_SLACK = 8
"""So small a part of a bound may be over it: they are looked at together."""


def _encoded(by_id: _ById) -> list[bytes]:
    return [seen if isinstance(seen, bytes) else seen.encoded() for seen in by_id.values()]
