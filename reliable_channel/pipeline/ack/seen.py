"""What a channel remembers of the SDS messages it has seen: where each stands, and what it is a part of.

Most of it is only carried from one micro-batch to the next, so what comes from the state stays encoded until it is
asked for (as the entries of the log do); what is new is a plain object, and is encoded once, if it is still remembered
at the end of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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

    def encoded(self) -> pb.SeenProto:
        """As it stands in the state."""
        return pb.SeenProto(**{name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def decoded(cls, proto: pb.SeenProto) -> Seen:
        """What :meth:`encoded` gave."""
        fields = {name: getattr(proto, name) for name in cls.__slots__}
        fields |= {name: None for name in _MAY_BE_UNKNOWN if not proto.HasField(name)}
        return cls(**{**fields, "lost": tuple(proto.lost)})


_MAY_BE_UNKNOWN = ("segment_index", "data_count", "parity_count", "sender_timestamp_ns", "content_bytes")


@dataclass(slots=True)
class SeenMessages:
    """By SDS id, the first that was seen first."""

    _by_id: dict[str, Seen | pb.SeenProto] = field(default_factory=dict)

    @classmethod
    def decoded(cls, protos: Iterable[pb.SeenProto]) -> SeenMessages:
        """What :meth:`encoded` gave."""
        return cls({proto.sds_id: proto for proto in protos})

    def encoded(self) -> list[pb.SeenProto]:
        """As they stand in the state."""
        return [seen.encoded() if isinstance(seen, Seen) else seen for seen in self._by_id.values()]

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, sds_id: object) -> bool:
        return sds_id in self._by_id

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def get(self, sds_id: str) -> Seen | None:
        """The message of an id."""
        seen = self._by_id.get(sds_id)
        if isinstance(seen, pb.SeenProto):
            seen = self._by_id[sds_id] = Seen.decoded(seen)
        return seen

    def add(self, seen: Seen) -> None:
        """Remember a message."""
        self._by_id[seen.sds_id] = seen

    def discard(self, sds_ids: Iterable[str]) -> None:
        """Forget messages."""
        for sds_id in sds_ids:
            del self._by_id[sds_id]

    def clear(self) -> None:
        """Forget all."""
        self._by_id.clear()

    def delivered(self) -> Iterator[tuple[str, str]]:
        """Id and hash of those that SDS has delivered."""
        for sds_id, seen in self._by_id.items():
            if seen.delivered:
                yield sds_id, seen.entire_message_hash
