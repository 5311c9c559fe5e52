"""Checks an envelope and its topics while its sender can still change it (14/WAKU2-MESSAGE)."""

from __future__ import annotations

from dataclasses import replace

from reliable_channel.core.errors import LocalError, MessageTooLarge
from reliable_channel.core.wire.waku import MAX_ENVELOPE_BYTES, MAX_META_BYTES, WakuMessage, encode_waku_message

_FIELDS_BYTES = 256
"""More than tags, lengths, meta, version, timestamp and flag can take on the wire."""

_LARGEST_STAMP = -(2**63)
"""The timestamp that takes most bytes on the wire, where timestamps are ``sint64``."""


def refuse_one_text(content_topics: object) -> None:
    """Raise ``LocalError`` for one text where a collection of content topics is expected: it would be its letters."""
    if isinstance(content_topics, str):
        raise LocalError("One text is no collection of content topics.", "Give a list of them.")


def check_envelope(message: WakuMessage, pubsub_topic: str | None) -> None:
    """Check what the network would refuse, and what cannot be encoded. The timestamp may be set later.

    Raises ``LocalError`` and ``MessageTooLarge``."""
    if not message.content_topic:
        raise LocalError("An envelope needs a content topic.", "Give one, such as /my-app/1/chat/proto.")
    try:
        memoryview(message.payload)
        encode_waku_message(replace(message, payload=b""))
        (pubsub_topic or "").encode()
    except (TypeError, ValueError, AttributeError) as error:  # where it is sent, it would end the thread
        raise LocalError(
            f"This is no envelope: {type(error).__name__} in one of its fields.",
            "Payload and meta are bytes, topics are texts, the timestamp is an integer.",
        ) from None
    if message.meta is not None and len(message.meta) > MAX_META_BYTES:
        raise LocalError(f"meta is {len(message.meta)} bytes, at most {MAX_META_BYTES} are allowed.", "Shorten it.")
    # Far from the limit the fields' lengths are enough (UTF-8 has four bytes a character at most), and a segment is not
    # encoded twice.
    size = len(message.payload) + len(message.content_topic) * 4 + _FIELDS_BYTES + len(message.rate_limit_proof or b"")
    if size > MAX_ENVELOPE_BYTES:
        size = len(encode_waku_message(replace(message, timestamp=message.timestamp or _LARGEST_STAMP)))
    if size > MAX_ENVELOPE_BYTES:
        raise MessageTooLarge(
            f"The envelope is {size} bytes, the network takes at most {MAX_ENVELOPE_BYTES} bytes.",
            "Send it through a reliable channel, which segments it.",
        )
