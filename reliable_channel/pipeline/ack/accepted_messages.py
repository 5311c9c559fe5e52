"""Remembers, per channel, the messages that SDS accepted: their Kafka records, senders, and the message of a segment.

A message is added after SDS has accepted its very record, under its SDS id *and* its sender, with the digest of its
content, so no other user of the same id can change it. An entry that was read from the state, or written to it, stays
encoded until it is used, because most are only carried from one micro-batch to the next.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

from reliable_channel.core.shares import Shares, list_surplus
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.core.wire.hashing import IdScheme
from reliable_channel.core.wire.segment import MAX_TOTAL_SEGMENTS
from reliable_channel.pipeline.ack.records import InputRow, base64_of, hash_of

DIGEST_BYTES = 16
"""As in the events of SDS: the first bytes of the SHA-256 of the content."""

SdsKey = str
"""An SDS id and a sender as one text, made by :func:`sds_key`. Every micro-batch reads and writes many of them, and
tuples would cost twice as much."""


def sds_key(sds_id: str | None, sender_id: str | None) -> SdsKey:
    """The key of a message. It contains the length of the id, so two different pairs never have the same key."""
    sds_id = sds_id or ""
    return f"{len(sds_id)} {sds_id}{sender_id or ''}"


def sender_in(key: SdsKey) -> str:
    """The sender of a :func:`sds_key`."""
    length, _, texts = key.partition(" ")
    return texts[int(length) :]


@dataclass(slots=True)
class AcceptedMessage:
    """One SDS message as first received. Unknown fields are empty or ``None``."""

    key: SdsKey
    digest: bytes
    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    first_seen_ms: int
    segment_kind: str
    entire_message_hash: bytes
    segment_index: int | None
    data_count: int | None
    parity_count: int | None
    sender_timestamp_ns: int | None
    content_bytes: int | None
    repaired_by: str
    sender_verified: bool
    """Whether its id was recomputed from sender, time and content."""
    copies: int = 1
    late: bool = False
    lost: tuple[str, ...] = ()
    """Its newest lost dependencies (:func:`~reliable_channel.core.delivery.keep_newest`)."""

    @classmethod
    def first(cls, row: InputRow, now_ms: int) -> AcceptedMessage:
        """The entry for a row received at ``now_ms`` (event time)."""
        return cls(
            sds_key(row.sds_id, row.sender_id),
            digest_of(row),
            row.kafka_topic,
            row.kafka_partition,
            row.kafka_offset,
            now_ms,
            row.segment_kind or "",
            hash_of(row),
            row.segment_index,
            row.data_count,
            row.parity_count,
            row.sender_timestamp_ns,
            row.content_bytes,
            row.repaired_by or "",
            binds_sender(row),
        )

    def encode(self) -> bytes:
        """The bytes for the state, without the key, which has a column of its own."""
        fields = dict(zip(_ENCODED, _VALUES(self), strict=True))
        fields["entire_message_hash"] = base64_of(self.entire_message_hash)
        return pb.SeenProto(**fields).SerializeToString()

    @classmethod
    def decode(cls, key: SdsKey, data: bytes) -> AcceptedMessage:
        """Restore the result of :meth:`encode`."""
        proto = pb.SeenProto.FromString(data)
        fields = {name: getattr(proto, name) for name in _ENCODED}
        fields |= {name: None for name in _MAY_BE_UNKNOWN if not proto.HasField(name)}
        hash_ = b64decode(proto.entire_message_hash)
        return cls(key, **{**fields, "lost": tuple(proto.lost), "entire_message_hash": hash_})


_ENCODED = tuple(name for name in AcceptedMessage.__slots__ if name != "key")
_VALUES = attrgetter(*_ENCODED)
_MAY_BE_UNKNOWN = ("segment_index", "data_count", "parity_count", "sender_timestamp_ns", "content_bytes")


def digest_of(row: InputRow) -> bytes:
    """The digest of a row's content; empty if it has none."""
    return (row.content_digest or b"")[:DIGEST_BYTES]


def binds_sender(row: InputRow) -> bool:
    """Whether the SDS id of a row was recomputed from its sender, time and content. An id that is a hash of the content
    alone (js-waku's, LIP-173's) is recomputed too, but fits any sender, and one of joined texts fits two."""
    recomputed = row.id_verified is True or row.repaired_by is not None
    if row.id_scheme is None:  # from a journal or table that does not record the scheme yet
        return recomputed and row.content_digest is not None and row.sds_id != row.content_digest.hex()
    return recomputed and row.id_scheme == IdScheme.KECCAK


Seniors = Callable[[], Collection[str]]


class _Stage:
    """The messages in one stage of their life, by key, oldest first; at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_key: dict[SdsKey, AcceptedMessage | bytes] = {}

    def __contains__(self, key: SdsKey) -> bool:
        return key in self._by_key

    def get(self, key: SdsKey) -> AcceptedMessage | None:
        seen = self._by_key.get(key)
        if isinstance(seen, bytes):
            seen = self._by_key[key] = AcceptedMessage.decode(key, seen)
        return seen

    def add(self, key: SdsKey, seen: AcceptedMessage, seniors: Seniors = frozenset) -> list[SdsKey]:
        """Add a message; returns the keys of the messages that were dropped for it."""
        self._by_key[key] = seen
        over = len(self._by_key) - self._limit
        if over <= self._limit // _SLACK:
            return []
        gone = dict.fromkeys(self._choose_surplus(over, seniors))
        self._by_key = {key: seen for key, seen in self._by_key.items() if key not in gone}
        return [*gone]

    def _choose_surplus(self, over: int, seniors: Seniors) -> list[SdsKey]:
        """The ``over`` oldest keys of the senders with most."""
        return list_surplus(self._by_key, [*map(sender_in, self._by_key)], self._limit)

    def discard(self, key: SdsKey) -> None:
        self._by_key.pop(key, None)

    def discard_others(self, sds_id: str, kept: SdsKey) -> None:
        """Discard the messages with an id but for one."""
        own = sds_key(sds_id, "")
        for key in [key for key in self._by_key if key.startswith(own) and key != kept]:
            del self._by_key[key]

    def write(self, proto: pb.SeenColumnsProto) -> None:
        encoded = {key: seen if isinstance(seen, bytes) else seen.encode() for key, seen in self._by_key.items()}
        proto.keys.extend(encoded)
        proto.seen.extend(encoded.values())
        self._by_key.update(encoded)

    def read(self, proto: pb.SeenColumnsProto) -> None:
        self._by_key = dict(zip(proto.keys, proto.seen, strict=True))


_SLACK = 8
"""A stage may exceed its bound by one part in this many. Entries are dropped in bulk, because finding the first key of
a dictionary is slow after its first keys were deleted."""


class _Parts(_Stage):
    """Drops first the entries of a sender with more than the segments of one message, so that a flood costs its
    sender; then those of senders that are not ``seniors`` of the channel's log, so that a flood of invented senders
    costs itself."""

    def _choose_surplus(self, over: int, seniors: Seniors) -> list[SdsKey]:
        shares = Shares[SdsKey](self._limit, self._limit)
        for key in self._by_key:
            shares.add(key, sender_in(key), 1)
        gone: dict[SdsKey, None] = {}
        while (
            shares.weight_of(shares.greediest()) > MAX_TOTAL_SEGMENTS and (oldest := shares.take_surplus()) is not None
        ):
            gone[oldest] = None
        known = seniors()
        left = sorted((key for key in self._by_key if key not in gone), key=lambda key: sender_in(key) in known)
        return [*gone, *islice(left, over - len(gone))]


class AcceptedMessages:
    """The SDS messages of one channel in three bounded stages. A full one drops the oldest of the sender with most.

    *Waiting*: accepted by SDS, not delivered. *Parts*: delivered segments whose application message is not delivered.
    *Settled*: delivered, and remembered for acknowledgements only."""

    def __init__(self, max_waiting: int, max_parts: int, max_settled: int) -> None:
        self._waiting, self._parts, self._settled = _Stage(max_waiting), _Parts(max_parts), _Stage(max_settled)

    def read(self, proto: pb.ObserverStateProto) -> None:
        """Restore the result of :meth:`write`."""
        self._waiting.read(proto.waiting)
        self._parts.read(proto.parts)
        self._settled.read(proto.settled)

    def write(self, proto: pb.ObserverStateProto) -> None:
        """Write to the state; entries that were not used are copied unchanged."""
        self._waiting.write(proto.waiting)
        self._parts.write(proto.parts)
        self._settled.write(proto.settled)

    def __contains__(self, key: SdsKey) -> bool:
        return key in self._settled or key in self._parts or key in self._waiting

    def get(self, key: SdsKey) -> AcceptedMessage | None:
        """The message with an id and a sender, in any stage."""
        return self._settled.get(key) or self._parts.get(key) or self._waiting.get(key)

    def is_settled(self, key: SdsKey) -> bool:
        """Whether the application message was delivered; a bare payload is its own."""
        return key in self._settled

    def part(self, key: SdsKey, entire_message_hash: bytes) -> AcceptedMessage | None:
        """A delivered segment of the application message with this hash, while that message is not delivered."""
        seen = self._parts.get(key)
        return seen if seen is not None and seen.entire_message_hash == entire_message_hash else None

    def accept(self, seen: AcceptedMessage) -> None:
        """Add a record that SDS accepted. It replaces another one with the same id and sender, whose content lost."""
        key = seen.key
        self._parts.discard(key)
        self._settled.discard(key)
        self._waiting.discard(key)
        self._waiting.add(key, seen)

    def forget_losers(self, sds_id: str, winner_id: str) -> None:
        """Note that the message of the sender ``winner_id`` has taken an id. SDS never delivers what it held under that
        id for others."""
        self._waiting.discard_others(sds_id, sds_key(sds_id, winner_id))

    def deliver(self, seen: AcceptedMessage, seniors: Seniors = frozenset) -> Mapping[str, int]:
        """Note a delivery by SDS: a segment becomes a part, any other message is settled. Returns how many parts of
        which senders were dropped for it. ``seniors``: the senders that the channel has known longest."""
        key = seen.key
        self._waiting.discard(key)
        if seen.segment_kind in ("data", "parity"):
            gone = self._parts.add(key, seen, seniors)
            return Counter(map(sender_in, gone)) if gone else {}
        self._settled.add(key, seen)
        return {}

    def settle(self, seen: AcceptedMessage) -> None:
        """Note that the application message of a part was delivered."""
        key = seen.key
        self._parts.discard(key)
        self._settled.add(key, seen)
