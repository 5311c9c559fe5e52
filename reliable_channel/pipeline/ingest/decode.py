"""Decodes one Kafka record into the fields of ``envelopes`` and ``sds_messages``, or into a reason of the fixed list
(docs/quarantine.md). Pure Python: no Spark, no clock, no exception for invalid bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import lru_cache

from reliable_channel.config import ChannelsSettings, ChannelTopic
from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.core.sds.verify import check_id
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.sds import HistoryEntry, SdsKind, WireFamily, decode_in_families
from reliable_channel.core.wire.segment import Dialect, Segment, decode_segment, lookalike, open_ephemeral
from reliable_channel.core.wire.waku import WakuMessage, decode_waku_message, message_hash
from reliable_channel.pipeline.ingest.decryption import PayloadDecryptor, ReadMessage

SOURCES = frozenset({"relay", "filter", "store", "repair", "sender"})
"""The valid values of the Kafka header ``source`` (docs/spec/envelope.md, *Kafka record*)."""

LAMPORT_MAX_AHEAD_MS = 24 * 3600 * 1000
"""Lamport timestamps further in the future are refused: one of 2^64 − 1 would end the channel (docs/spec/sds.md,
*Bounds*)."""

MAX_VALUE_BYTES = 1_048_576
"""A larger record is refused without decoding. The network's limit is far lower: 150 KiB per envelope
(docs/spec/envelope.md)."""

_KIND_NAMES = {kind: kind.value for kind in SdsKind}
_FAMILY_NAMES = {family: family.value for family in WireFamily}
_DIALECT_NAMES = {dialect: dialect.value for dialect in Dialect}
_LAYER_NAMES = {layer: layer.value for layer in EncryptionLayer}
"""Cached, because reading the value of an enumeration's member calls a function, and every record needs it."""

_CACHED_TOPICS = 4_096
_CACHED_CHARACTERS = 512
"""Longer names are not cached: strangers may invent them, and one may be as long as a record."""


class Decoded:
    """One decoded record. ``kind``: ``sds``, ``plain`` or ``quarantined``; ``None`` if it is not an envelope.

    Decoding sets fields as far as it gets; all others keep the defaults of the class. Most records leave half of them
    unset, and setting or copying all of them was a fifth of the decoding time.

    In an ``encrypted`` row ``content`` is the ciphertext; ``content_bytes`` and ``content_digest`` describe the
    plaintext, of an ephemeral message its payload without the segment around it."""

    kind: str | None = None
    source: str | None = None
    pubsub_topic: str | None = None
    content_topic: str | None = None
    message_hash: bytes | None = None
    sender_timestamp_ns: int | None = None
    ephemeral: bool | None = None
    channel_id: str | None = None
    family: str | None = None
    sender_id: str | None = None
    sds_id: str | None = None
    sds_kind: str | None = None
    lamport_timestamp: int | None = None
    causal_history: tuple[HistoryEntry, ...] = ()
    bloom_filter: bytes | None = None
    repair_request: tuple[HistoryEntry, ...] = ()
    content: bytes | None = None
    content_bytes: int | None = None
    content_digest: bytes | None = None
    id_verified: bool | None = None
    id_scheme: str | None = None
    segment_kind: str | None = None
    entire_message_hash: bytes | None = None
    segment_index: int | None = None
    data_count: int | None = None
    parity_count: int | None = None
    segment_dialect: str | None = None
    encrypted: bool | None = None
    encryption_layer: str | None = None
    stage: str | None = None
    reason: str | None = None
    detail: str | None = None
    disposition: str | None = None


def refuse(row: Decoded, stage: str, malformed: Malformed) -> Decoded:
    """Set a reason on ``row``: it becomes a row of ``quarantine`` and, if the envelope could be read, one of
    ``envelopes``."""
    row.kind = "quarantined" if row.message_hash is not None else None
    row.stage, row.reason, row.detail = stage, malformed.reason.value, malformed.detail or None
    row.disposition = "dropped"
    return row


class RecordDecoder:
    """Decodes records for one configuration of channels. Created once per Python worker; not thread-safe."""

    def __init__(self, channels: ChannelsSettings) -> None:
        self._channels = channels
        self._decryptor = PayloadDecryptor()
        self._decode_text = lru_cache(_CACHED_TOPICS)(_decode_utf8)
        self._find_topic = lru_cache(_CACHED_TOPICS)(channels.topic_for)

    def decode(
        self, value: bytes | None, pubsub_header: bytes | None, source_header: bytes | None, record_time_us: int
    ) -> Decoded:
        """Decode one record. ``record_time_us``: :func:`~.stream.limit_record_time`, µs."""
        row = Decoded()
        pubsub_topic, source = self.text(pubsub_header), self.text(source_header)
        if not pubsub_topic:
            return refuse(row, "record", _NO_TOPIC)
        if source not in SOURCES:
            return refuse(row, "record", _NO_SOURCE)
        row.pubsub_topic, row.source = pubsub_topic, source
        if value is not None and len(value) > MAX_VALUE_BYTES:
            too_large = Malformed(Reason.TOO_LARGE, f"{len(value)} bytes, at most {MAX_VALUE_BYTES}")
            return refuse(row, "record", too_large)
        envelope = decode_waku_message(value)
        if isinstance(envelope, Malformed):
            return refuse(row, "record" if value is None else "envelope", envelope)
        row.kind = "plain"
        row.content_topic = envelope.content_topic
        row.message_hash = message_hash(pubsub_topic, envelope)
        row.sender_timestamp_ns = envelope.timestamp
        row.ephemeral = bool(envelope.ephemeral)
        topic = self.topic(envelope.content_topic, pubsub_topic)
        if topic is None:
            return row
        read = self._read(envelope, topic, pubsub_topic)
        if isinstance(read, Malformed):
            return refuse(row, "decryption" if read.reason in _OF_DECRYPTION else "sds", read)
        return self._decode_sds(row, envelope, read, topic, record_time_us)

    def _read(self, envelope: WakuMessage, topic: ChannelTopic, pubsub_topic: str) -> ReadMessage | Malformed:
        if topic.decryption_key_files:
            return self._decryptor.read(envelope.payload, topic, pubsub_topic, envelope.content_topic)
        decoded = decode_in_families(envelope.payload, topic.families)
        return decoded if isinstance(decoded, Malformed) else ReadMessage(*decoded, None, decoded[1].content or None)

    def text(self, header: bytes | None) -> str | None:
        """The text of a header; ``None`` without one, or if it is no UTF-8 text."""
        if header is None:
            return None
        return (_decode_utf8 if len(header) > _CACHED_CHARACTERS else self._decode_text)(header)

    def topic(self, content_topic: str, pubsub_topic: str) -> ChannelTopic | None:
        """The configuration of a content topic; ``None`` if it has no channels."""
        is_long = len(content_topic) + len(pubsub_topic) > 2 * _CACHED_CHARACTERS
        return (self._channels.topic_for if is_long else self._find_topic)(content_topic, pubsub_topic)

    def _decode_sds(
        self,
        row: Decoded,
        envelope: WakuMessage,
        read: ReadMessage,
        topic: ChannelTopic,
        record_time_us: int,
    ) -> Decoded:
        message, content = read.message, read.content
        lamport, kind = message.lamport_timestamp, message.kind
        if lamport is not None and lamport > record_time_us // 1000 + LAMPORT_MAX_AHEAD_MS:
            return refuse(row, "sds", Malformed(Reason.LAMPORT_OUT_OF_RANGE, f"{lamport} ms"))
        has_keys = bool(topic.decryption_key_files)
        row.kind, row.family = "sds", _FAMILY_NAMES[read.family]
        row.encrypted = has_keys and not topic.store_plaintext
        row.channel_id, row.sender_id, row.sds_id = message.channel_id, message.sender_id, message.message_id
        row.sds_kind = _KIND_NAMES[kind] if kind else None
        row.lamport_timestamp = lamport
        row.causal_history = message.causal_history
        row.bloom_filter = message.bloom_filter
        row.repair_request = message.repair_request
        is_inside = read.layer is EncryptionLayer.INSIDE_SDS
        row.encryption_layer = _LAYER_NAMES[read.layer] if read.layer else None
        digest = hashlib.sha256(message.content).digest() if message.content is not None else None
        row.id_verified, row.id_scheme = check_id(message, read.family, content if is_inside else None, digest)
        if content is None:
            return row
        taken = take_content(row, content, kind is SdsKind.EPHEMERAL, topic.dialects)
        if isinstance(taken, Malformed):
            return refuse(row, "segment", taken)
        row.content = (message.content if is_inside else envelope.payload) if row.encrypted else taken
        row.content_bytes = len(taken)
        row.content_digest = digest if taken is message.content else hashlib.sha256(taken).digest()
        return row


def _decode_utf8(header: bytes) -> str | None:
    try:
        return header.decode("utf-8")
    except UnicodeDecodeError:
        return None


_OF_DECRYPTION = frozenset({Reason.UNDECRYPTABLE, Reason.PLAINTEXT_REFUSED})
_NO_TOPIC = Malformed(Reason.BAD_HEADER, "header pubsub_topic is missing or no UTF-8 text")
_NO_SOURCE = Malformed(Reason.BAD_HEADER, f"header source is none of {', '.join(sorted(SOURCES))}")


def take_content(row: Decoded, content: bytes, ephemeral: bool, dialects: Collection[Dialect]) -> bytes | Malformed:
    """Set what the content of an SDS message is: a segment, or the payload itself. Returns the content that its row
    has, for an ephemeral message without the segment around it, or why participants refuse it."""
    if ephemeral:
        payload = open_ephemeral(content, dialects)
        if not isinstance(payload, Malformed):
            _take_bare(row, payload, None)
        return payload
    segment = decode_segment(content, dialects)
    if isinstance(segment, Segment):
        _take_segment(row, segment)
    elif Dialect.V01 in dialects:
        _take_bare(row, content, segment)
    else:
        return segment
    return content


def _take_segment(row: Decoded, segment: Segment) -> None:
    row.segment_kind = "parity" if segment.is_parity else "data"
    row.entire_message_hash = segment.entire_message_hash
    row.segment_index = segment.index
    row.data_count, row.parity_count = segment.data_count, segment.parity_count
    row.segment_dialect = _DIALECT_NAMES[segment.dialect]


def _take_bare(row: Decoded, content: bytes, malformed: Malformed | None) -> None:
    """Treat content that is not a valid segment as a bare payload (Segmentation 0.1)."""
    row.segment_kind, row.entire_message_hash, row.data_count = "bare", keccak256(content), 1
    why = None if malformed is None else lookalike(content, malformed)
    if why is not None:
        row.stage, row.reason, row.detail = "segment", why.reason.value, why.detail or None
        row.disposition = "kept"
