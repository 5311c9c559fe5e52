"""Encodes an envelope as a Kafka record and decodes it (docs/spec/envelope.md, *Kafka record*).

key = content topic in UTF-8, so that one channel stays in one partition, in order; value = serialized ``WakuMessage``;
headers ``pubsub_topic`` and ``source``; in the outgoing topic ``request_id`` and ``traffic``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reliable_channel.core.rate_limit import Traffic
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.waku import WakuMessage, decode_waku_message, encode_waku_message
from reliable_channel.transport.base import Source

PUBSUB_TOPIC_HEADER = "pubsub_topic"
SOURCE_HEADER = "source"
REQUEST_HEADER = "request_id"
"""Only in the outgoing topic: the RequestId of the send, for logs and for ``sender_events``."""

TRAFFIC_HEADER = "traffic"
"""Only in the outgoing topic: the kind of traffic, which decides its priority when a rate limit delays envelopes."""

MAX_TOPIC_BYTES = 1024
"""The longest topic that is accepted."""

Headers = tuple[tuple[str, bytes | None], ...]
"""The headers of a record that was read: to Kafka, no value is a value."""


@dataclass(frozen=True, slots=True)
class KafkaEnvelope:
    """One record of the contract, decoded."""

    message: WakuMessage
    pubsub_topic: str
    source: Source | None


@dataclass(frozen=True, slots=True)
class OutRecord:
    """One record for one topic."""

    topic: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


def envelope_record(
    topic: str,
    message: WakuMessage,
    pubsub_topic: str,
    source: Source | None,
    request_id: str | None = None,
    traffic: Traffic | None = None,
) -> OutRecord:
    """An envelope as a record of the contract (14/WAKU2-MESSAGE); outgoing records have no source yet."""
    headers = [(PUBSUB_TOPIC_HEADER, pubsub_topic.encode("utf-8"))]
    if source is not None:
        headers.append((SOURCE_HEADER, source.value.encode()))
    if request_id is not None:
        headers.append((REQUEST_HEADER, request_id.encode()))
    if traffic is not None:
        headers.append((TRAFFIC_HEADER, traffic.value.encode()))
    return OutRecord(topic, key_of(message), encode_waku_message(message), tuple(headers))


def key_of(message: WakuMessage) -> bytes:
    """The record key."""
    return message.content_topic.encode("utf-8")


def traffic_of(message: WakuMessage, headers: Sequence[tuple[str, bytes | None]] | None) -> Traffic:
    """The kind of traffic of an outgoing envelope. An envelope marked ephemeral is ephemeral; an unknown kind is
    content."""
    if message.ephemeral:
        return Traffic.EPHEMERAL
    try:
        return Traffic((dict(headers or ()).get(TRAFFIC_HEADER) or b"").decode("ascii"))
    except (ValueError, UnicodeDecodeError):
        return Traffic.FIRST_SEGMENT


def read_record(value: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None) -> KafkaEnvelope | Malformed:
    """Decode a record; invalid bytes return a reason."""
    message = decode_waku_message(value)
    if isinstance(message, Malformed):
        return message
    by_name = dict(headers or ())
    raw_topic = by_name.get(PUBSUB_TOPIC_HEADER)
    if not raw_topic or len(raw_topic) > MAX_TOPIC_BYTES:
        return Malformed(Reason.BAD_HEADER, "no pubsub_topic header, or too long")
    try:
        pubsub_topic = raw_topic.decode("utf-8")
    except UnicodeDecodeError:
        return Malformed(Reason.BAD_HEADER, "the pubsub_topic header is not UTF-8")
    raw_source = by_name.get(SOURCE_HEADER)
    try:
        source = None if raw_source is None else Source(raw_source.decode("ascii"))
    except (ValueError, UnicodeDecodeError):
        return Malformed(Reason.BAD_HEADER, "the source header is none of relay, filter, store, repair, sender")
    return KafkaEnvelope(message, pubsub_topic, source)
