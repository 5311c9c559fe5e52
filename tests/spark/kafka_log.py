"""A Delta table shaped like Spark's Kafka source: what ingest reads in tests, cut into micro-batches at will."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

TOPIC = "waku.envelopes"
_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True)
class Record:
    """One Kafka record; ``time_ms`` is its record time."""

    value: bytes | None
    offset: int
    time_ms: int
    partition: int = 0
    pubsub_topic: bytes | None = b"/waku/2/rs/1/0"
    source: bytes | None = b"relay"


class KafkaLog:
    """Every ``produce`` is one commit of one file, and so one micro-batch of ``stream``."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self._path = str(path)

    def produce(self, records: Sequence[Record]) -> None:
        rows = [
            {
                "key": None,
                "value": r.value,
                "topic": TOPIC,
                "partition": r.partition,
                "offset": r.offset,
                "timestamp": dt.datetime.fromtimestamp(r.time_ms / 1000, dt.UTC),
                "timestampType": 1,
                "headers": [
                    {"key": key, "value": value}
                    for key, value in (("pubsub_topic", r.pubsub_topic), ("source", r.source))
                    if value is not None
                ],
            }
            for r in records
        ]
        write_deltalake(self._path, pa.Table.from_pylist(rows, schema=_SCHEMA), mode="append")

    def stream(self) -> DataFrame:
        return (
            self._spark.readStream.format("delta")
            .option("startingVersion", "0")
            .option("maxFilesPerTrigger", "1")
            .load(self._path)
        )
