"""A table of envelopes, for tests of the store server."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message, message_hash
from reliable_channel.lake.tables import ENVELOPES

PUBSUB_TOPICS = ["/waku/2/rs/16/32", "/waku/2/rs/16/33"]
TOPICS = ["/a/1/x/p", "/a/1/y/p", "/a/1/z/p"]
BASE = 1_795_254_432_521_844_140
TYPES = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_(), "BINARY": pa.binary()}


def append(table: Path, envelopes: list[tuple[str, WakuMessage]]) -> None:
    """Rows as the ingest job writes them."""
    rows = []
    for offset, (pubsub_topic, message) in enumerate(envelopes):
        value = encode_waku_message(message)
        rows.append(
            {
                "kafka_topic": "waku.envelopes",
                "kafka_partition": 0,
                "kafka_offset": offset,
                "source": "relay",
                "pubsub_topic": pubsub_topic,
                "content_topic": message.content_topic,
                "message_hash": message_hash(pubsub_topic, message),
                "value": value,
                "value_bytes": len(value),
                "sender_timestamp_ns": message.timestamp,
                "ephemeral": message.ephemeral,
                "kind": "plain",
            }
        )
    schema = pa.schema([(c.name, TYPES.get(c.type, pa.timestamp("us", tz="UTC"))) for c in ENVELOPES.columns])
    write_deltalake(table, pa.Table.from_pylist(rows, schema), mode="append")


def some(count: int, first: int = 0) -> list[tuple[str, WakuMessage]]:
    return [
        (PUBSUB_TOPICS[n % 2], WakuMessage(b"%d" % n, TOPICS[n % 3], None, BASE + n // 2, b"meta"))
        for n in range(first, first + count)
    ]
