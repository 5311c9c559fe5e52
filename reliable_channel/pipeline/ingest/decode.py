"""One Kafka record to one decoded row: pure Python, no Spark, no clock; never raises on bytes from outside.

The unhappy half of every record is a reason from the fixed list (docs/quarantine.md), the happy half the fields of
``envelopes`` and ``segments``.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from google.protobuf.message import DecodeError

from reliable_channel.config import ChannelsSettings, ChannelTopic, PipelineSettings
from reliable_channel.pipeline.ingest.decryption import Opener
from reliable_channel.wire._pb import segment_pb2 as pb
from reliable_channel.wire.hashing import keccak256
from reliable_channel.wire.malformed import Malformed, Reason
from reliable_channel.wire.sds import HistoryEntry, SdsKind, SdsMessage, decode_sds_message
from reliable_channel.wire.segment import Segment, decode_segment
from reliable_channel.wire.waku import WakuMessage, decode_waku_message, message_hash

SOURCES = frozenset({"relay", "filter", "store", "repair", "sender"})
"""What the Kafka header ``source`` may say (protocol.md §2)."""

LAMPORT_MAX_AHEAD_MS = 24 * 3600 * 1000
"""Lamport values further ahead are refused: one of 2^64 − 1 would end the channel (protocol.md §5 *Bounds*)."""

MAX_RECORD_TIME_US = 253_402_300_799_999_999
"""The end of the year 9999, which is where Spark's and Python's timestamps end."""

MAX_VALUE_BYTES = 1_048_576
"""A record above this is refused unread: far above the network's limit of 150 KiB an envelope (protocol.md §2)."""

_CACHED_TOPICS = 4_096


class Decoded(NamedTuple):
    """One record, decoded. ``kind``: ``sds``, ``plain`` or ``quarantined``; ``None`` when it is no envelope at all.

    ``content`` of a ``sealed`` row is the ciphertext; ``content_bytes`` and ``content_digest`` are the plaintext's."""

    kind: str | None = None
    source: str | None = None
    pubsub_topic: str | None = None
    content_topic: str | None = None
    message_hash: bytes | None = None
    sender_timestamp_ns: int | None = None
    ephemeral: bool | None = None
    channel_id: str | None = None
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
    segment_kind: str | None = None
    entire_message_hash: bytes | None = None
    segment_index: int | None = None
    data_count: int | None = None
    parity_count: int | None = None
    segment_dialect: str | None = None
    sealed: bool | None = None
    stage: str | None = None
    reason: str | None = None
    detail: str | None = None
    disposition: str | None = None


def refused(stage: str, malformed: Malformed, base: Decoded | None = None) -> Decoded:
    """``base`` with a reason: a row for ``quarantine`` and, where the envelope could be read, one for ``envelopes``."""
    known = base or Decoded()
    return known._replace(
        kind="quarantined" if known.message_hash is not None else None,
        stage=stage,
        reason=malformed.reason.value,
        detail=malformed.detail or None,
        disposition="dropped",
    )


class RecordDecoder:
    """Decodes records for one configuration of channels. Made once per Python worker; not thread-safe."""

    def __init__(self, channels: ChannelsSettings, pipeline: PipelineSettings) -> None:
        self._channels = channels
        self._store_plaintext = pipeline.store_plaintext
        self._opener = Opener()
        self._topics: dict[tuple[str, str], ChannelTopic | None] = {}
        self._headers: dict[bytes, str | None] = {}

    def decode(
        self, value: bytes | None, pubsub_header: bytes | None, source_header: bytes | None, record_time_us: int
    ) -> Decoded:
        """Decode one record. ``record_time_us``: its record time, bounded by the ingest clock (µs)."""
        base = self._headers_of(pubsub_header, source_header)
        if isinstance(base, Malformed):
            return refused("record", base)
        if not 0 <= record_time_us <= MAX_RECORD_TIME_US:
            return refused("record", Malformed(Reason.RECORD_TIME_OUT_OF_RANGE, f"{record_time_us} µs"), base)
        if value is not None and len(value) > MAX_VALUE_BYTES:
            return refused(
                "record", Malformed(Reason.TOO_LARGE, f"{len(value)} bytes, at most {MAX_VALUE_BYTES}"), base
            )
        envelope = decode_waku_message(value)
        if isinstance(envelope, Malformed):
            return refused("record" if value is None else "envelope", envelope, base)
        pubsub_topic = base.pubsub_topic or ""  # it is there: see above
        base = base._replace(
            kind="plain",
            content_topic=envelope.content_topic,
            message_hash=message_hash(pubsub_topic, envelope),
            sender_timestamp_ns=envelope.timestamp,
            ephemeral=bool(envelope.ephemeral),
        )
        topic = self._topic(envelope.content_topic, pubsub_topic)
        if topic is None:
            return base
        payload = envelope.payload
        if topic.decryption_key_files:
            opened = self._opener.open(envelope.payload, topic, pubsub_topic, envelope.content_topic)
            if isinstance(opened, Malformed):
                return refused("decryption", opened, base)
            payload = opened
        message = decode_sds_message(payload, topic.family)
        if isinstance(message, Malformed):
            return refused("sds", message, base)
        return self._sds(envelope, message, topic, base, record_time_us)

    def _headers_of(self, pubsub_header: bytes | None, source_header: bytes | None) -> Decoded | Malformed:
        pubsub_topic = self._text(pubsub_header)
        if not pubsub_topic:
            return Malformed(Reason.BAD_HEADER, "header pubsub_topic is missing or no UTF-8 text")
        source = self._text(source_header)
        if source not in SOURCES:
            return Malformed(Reason.BAD_HEADER, f"header source is none of {', '.join(sorted(SOURCES))}")
        return Decoded(pubsub_topic=pubsub_topic, source=source)

    def _text(self, header: bytes | None) -> str | None:
        if header is None:
            return None
        if header not in self._headers:
            if len(self._headers) >= _CACHED_TOPICS:
                self._headers.clear()
            try:
                self._headers[header] = header.decode("utf-8")
            except UnicodeDecodeError:
                self._headers[header] = None
        return self._headers[header]

    def _topic(self, content_topic: str, pubsub_topic: str) -> ChannelTopic | None:
        key = (content_topic, pubsub_topic)
        if key not in self._topics:
            if len(self._topics) >= _CACHED_TOPICS:
                self._topics.clear()
            self._topics[key] = self._channels.topic_for(content_topic, pubsub_topic)
        return self._topics[key]

    def _sds(
        self,
        envelope: WakuMessage,
        message: SdsMessage,
        topic: ChannelTopic,
        base: Decoded,
        record_time_us: int,
    ) -> Decoded:
        lamport = message.lamport_timestamp
        if lamport is not None and lamport > record_time_us // 1000 + LAMPORT_MAX_AHEAD_MS:
            return refused("sds", Malformed(Reason.LAMPORT_OUT_OF_RANGE, f"{lamport} ms"), base)
        content = message.content or None
        encrypted = bool(topic.decryption_key_files)
        sealed = encrypted and not (topic.store_plaintext and self._store_plaintext)
        row = base._replace(
            kind="sds",
            channel_id=message.channel_id,
            sender_id=message.sender_id,
            sds_id=message.message_id,
            sds_kind=message.kind.value if message.kind else None,
            lamport_timestamp=lamport,
            causal_history=message.causal_history,
            bloom_filter=message.bloom_filter,
            repair_request=message.repair_request,
            content=None if content is None else envelope.payload if sealed else content,
            content_bytes=len(content) if content is not None else None,
            content_digest=hashlib.sha256(content).digest() if content is not None else None,
            sealed=sealed,
        )
        if content is None:
            return row
        if message.kind is SdsKind.EPHEMERAL:
            # One segment at most (protocol.md §5), so its content is always the payload.
            return row._replace(segment_kind="bare", entire_message_hash=keccak256(content), data_count=1)
        return _with_segment(row, content, topic)


def _with_segment(row: Decoded, content: bytes, topic: ChannelTopic) -> Decoded:
    """The content is a segment when it parses and validates as one, else a bare payload (protocol.md §3)."""
    segment = decode_segment(content, topic.dialects)
    if isinstance(segment, Segment):
        return row._replace(
            segment_kind="parity" if segment.is_parity else "data",
            entire_message_hash=segment.entire_message_hash,
            segment_index=segment.index,
            data_count=segment.data_count,
            parity_count=segment.parity_count,
            segment_dialect=segment.dialect.value,
        )
    bare = row._replace(segment_kind="bare", entire_message_hash=keccak256(content), data_count=1)
    why = lookalike(content, segment)
    if why is None:
        return bare
    return bare._replace(stage="segment", reason=why.reason.value, detail=why.detail or None, disposition="kept")


def lookalike(content: bytes, malformed: Malformed) -> Malformed | None:
    """Why bytes that are no valid segment were probably meant as one, or ``None`` for an honest bare payload.

    They stay a bare payload all the same, as the protocol says; the quarantine row tells people to look.
    """
    if malformed.reason is Reason.MALFORMED_SEGMENT:
        return None
    try:
        proto = pb.SegmentMessageProto.FromString(content)
    except DecodeError:
        return None
    canonical = proto.SerializeToString() == content
    counted = proto.segments_count or proto.parity_segments_count or proto.index
    hash_like = 16 <= len(proto.entire_message_hash) <= 64
    if canonical and hash_like and proto.payload and (counted or len(proto.entire_message_hash) == 32):
        return malformed
    return None
