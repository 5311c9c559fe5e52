"""``deliveries`` and payloads to ``delivered_messages`` (design.md, fourth hop).

No stream-stream join: a delivery says at which Kafka record its payload stands (a bare payload in ``segments``, a
rebuilt one in ``messages``), and the few files that hold those records are read.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import Settings
from reliable_channel.pipeline.storage.io import BatchSink, kept, read_table
from reliable_channel.pipeline.tables import DELIVERED_MESSAGES, MESSAGES, SEGMENTS, Table

TABLES_READ = (SEGMENTS, MESSAGES)
TABLES_WRITTEN = (DELIVERED_MESSAGES,)

_PLACE = ("kafka_topic", "kafka_partition", "kafka_offset")


def messages_only(deliveries: DataFrame) -> DataFrame:
    """The application messages among the deliveries."""
    return deliveries.where("row_kind = 'message'")


class DeliverWriter:
    """Looks up the payloads of one micro-batch and appends the messages."""

    def __init__(self, settings: Settings) -> None:
        self._paths = settings.paths

    def __call__(self, rows: DataFrame, sink: BatchSink) -> None:
        with kept(rows) as computed:
            self._write(computed, sink)

    def _write(self, rows: DataFrame, sink: BatchSink) -> None:
        bounds = (
            rows.groupBy("kafka_topic", "kafka_partition")
            .agg(F.min("kafka_offset").alias("low"), F.max("kafka_offset").alias("high"))
            .collect()
        )
        if not bounds:
            return
        spark = rows.sparkSession
        # By partition: how far one of them is says nothing about the offsets of another.
        there = reduce(
            lambda a, b: a | b,
            [
                (F.col("kafka_topic") == at["kafka_topic"])
                & (F.col("kafka_partition") == at["kafka_partition"])
                & F.col("kafka_offset").between(at["low"], at["high"])
                for at in bounds
            ],
        )

        def stored(table: Table, payload: str) -> DataFrame:
            found = read_table(spark, self._paths, table).where(there).where(F.col(payload).isNotNull())
            if table is SEGMENTS:  # the content of a sealed row is the ciphertext
                found = found.where("not coalesce(sealed, false)")
            return found.select(*_PLACE, "entire_message_hash", F.col(payload).alias("payload"))

        bare = rows.where("segment_kind is not null").join(
            stored(SEGMENTS, "content"), [*_PLACE, "entire_message_hash"], "left"
        )
        rebuilt = rows.where("segment_kind is null").join(
            stored(MESSAGES, "payload"), [*_PLACE, "entire_message_hash"], "left"
        )
        sink.append(delivered(bare.unionByName(rebuilt)), DELIVERED_MESSAGES)


def delivered(rows: DataFrame) -> DataFrame:
    """Deliveries with their payloads, as rows of ``delivered_messages``."""
    return rows.select(
        "pubsub_topic",
        "content_topic",
        "channel_id",
        "delivery_seq",
        "event_time",
        "sender_id",
        "entire_message_hash",
        F.col("first_lamport_timestamp").alias("causal_lamport"),
        F.col("first_sds_id").alias("causal_sds_id"),
        "position_exact",
        "payload",
        "payload_bytes",
        (F.col("sds_kind") == "ephemeral").alias("ephemeral"),
        "data_count",
        "parity_count",
        "repaired_segments",
        "late",
        "lost_dependencies",
        "sender_timestamp_ns",
        "first_seen",
        "kafka_partition",
        "kafka_offset",
        F.current_timestamp().alias("written_at"),
    )
