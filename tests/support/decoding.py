"""Records with SDS messages in envelopes, and the decoder of ingest, for tests."""

from __future__ import annotations

from reliable_channel.config import ChannelsSettings, ChannelTopic
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.sds import SdsMessage, WireFamily, encode_sds_message
from reliable_channel.core.wire.segment import Segment, encode_segment
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.pipeline.ingest.decode import Decoded, RecordDecoder

TOPIC = "/app/1/chat/proto"
PUBSUB = b"/waku/2/rs/1/0"
NOW_MS = 1_767_225_600_000
PAYLOAD = bytes(range(256)) * 4


def decoder(family: WireFamily = WireFamily.SPEC) -> RecordDecoder:
    topic = ChannelTopic(content_topic=TOPIC, family=family)
    return RecordDecoder(ChannelsSettings(content_topics=(topic,)))


def decode(
    value: bytes | None, pubsub: bytes | None = PUBSUB, source: bytes | None = b"relay", at_ms: int = NOW_MS
) -> Decoded:
    return decoder().decode(value, pubsub, source, at_ms * 1000)


def sds(content: bytes | None = b"hello", lamport: int | None = NOW_MS, **changes: object) -> bytes:
    fields: dict[str, object] = {"sender_id": "alice", "message_id": "m1", "channel_id": "talk"}
    return encode_sds_message(
        SdsMessage(**{**fields, "content": content, "lamport_timestamp": lamport, **changes})  # type: ignore[arg-type]
    )


def envelope(payload: bytes, topic: str = TOPIC, timestamp: int | None = NOW_MS * 10**6, **changes: object) -> bytes:
    return encode_waku_message(WakuMessage(payload, topic, timestamp=timestamp, **changes))  # type: ignore[arg-type]


def segment(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "entire_message_hash": keccak256(PAYLOAD),
        "index": 0,
        "data_count": 2,
        "parity_count": None,
        "is_parity": False,
        "payload": PAYLOAD[:512],
    }
    return encode_segment(Segment(**{**fields, **changes}))  # type: ignore[arg-type]
