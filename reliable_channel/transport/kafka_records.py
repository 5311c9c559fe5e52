"""The Kafka contract of the project: an envelope as a record and back (protocol.md §2).

key = content topic in UTF-8, so that one channel stays in one partition, in order; value = serialized ``WakuMessage``;
headers ``pubsub_topic`` and ``source``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reliable_channel.transport.base import Source
from reliable_channel.wire.malformed import Malformed, Reason
from reliable_channel.wire.waku import WakuMessage, decode_waku_message, encode_waku_message

PUBSUB_TOPIC_HEADER = "pubsub_topic"
SOURCE_HEADER = "source"
REQUEST_HEADER = "request_id"
"""Only in the outgoing topic: the RequestId of the send, for logs and for ``sender_events``."""

MAX_TOPIC_BYTES = 1024
"""Longest topic that is believed."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the contract, decoded."""

    message: WakuMessage
    pubsub_topic: str
    source: Source | None


def key_of(message: WakuMessage) -> bytes:
    """The record key."""
    return message.content_topic.encode("utf-8")


def value_of(message: WakuMessage) -> bytes:
    """The record value."""
    return encode_waku_message(message)


def headers_of(pubsub_topic: str, source: Source | None, request_id: str | None = None) -> list[tuple[str, bytes]]:
    """The record headers; outgoing records have no source yet."""
    headers = [(PUBSUB_TOPIC_HEADER, pubsub_topic.encode("utf-8"))]
    if source is not None:
        headers.append((SOURCE_HEADER, source.value.encode()))
    if request_id is not None:
        headers.append((REQUEST_HEADER, request_id.encode()))
    return headers


def read_record(value: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None) -> Record | Malformed:
    """A record as somebody wrote it; hostile bytes become a reason."""
    message = decode_waku_message(value)
    if isinstance(message, Malformed):
        return message
    found = dict(headers or ())
    raw_topic = found.get(PUBSUB_TOPIC_HEADER)
    if not raw_topic or len(raw_topic) > MAX_TOPIC_BYTES:
        return Malformed(Reason.BAD_HEADER, "no pubsub_topic header, or too long")
    try:
        pubsub_topic = raw_topic.decode("utf-8")
    except UnicodeDecodeError:
        return Malformed(Reason.BAD_HEADER, "the pubsub_topic header is not UTF-8")
    raw_source = found.get(SOURCE_HEADER)
    try:
        source = None if raw_source is None else Source(raw_source.decode("ascii"))
    except (ValueError, UnicodeDecodeError):
        return Malformed(Reason.BAD_HEADER, "the source header is none of relay, filter, store, repair, sender")
    return Record(message, pubsub_topic, source)
