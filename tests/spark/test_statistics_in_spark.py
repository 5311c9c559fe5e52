"""Files that Spark writes, as the verdict's MERGE does: readers that skip files by their statistics see every row."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import DELIVERY_STATUS
from reliable_channel.pipeline.session import set_meanwhile
from reliable_channel.pipeline.verdict.verdicts import READABLE_FILES

LAST = "\U0010ffff"
TEXTS = ["", "a" * 40, LAST, LAST * 40, LAST * 1_024, "\uffff", "\ud7ff" * 50, "e\u0301", "\U0001f600" * 50]
TIMES = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
    dt.datetime(2026, 1, 1, 0, 0, 0, 123_456, dt.UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_001, dt.UTC),
]
NAMES = ("channel_id", "message_key", "sender_id", "first_seen", "settled", "cause")


def status_rows() -> list[dict[str, Any]]:
    empty = dict.fromkeys(DELIVERY_STATUS.names())
    return [
        empty
        | {
            "channel_id": text,
            "message_key": f"{n}",
            "sender_id": text,
            "verdict": "missing",
            "first_seen": TIMES[n % len(TIMES)],
            "as_of": TIMES[1],
            "settled": n % 2 == 0,
        }
        for n, text in enumerate(TEXTS)
    ]


def test_filters_find_every_row_that_a_merge_wrote(spark: SparkSession, settings: Settings) -> None:
    create_tables(settings.paths, (DELIVERY_STATUS,))
    place = settings.paths.table(DELIVERY_STATUS.name)
    values = as_arrow(status_rows(), DELIVERY_STATUS)
    with set_meanwhile(spark, {**READABLE_FILES, "spark.sql.files.maxRecordsPerFile": "1"}):
        target = SparkTable.forPath(spark, place)
        new = spark.createDataFrame(values, schema=target.toDF().schema)
        target.alias("old").merge(
            new.alias("new"), "old.message_key <=> new.message_key"
        ).whenNotMatchedInsertAll().execute()
    files = pafs.SubTreeFileSystem(place, pafs.LocalFileSystem())
    dataset = DeltaTable(place).to_pyarrow_dataset(filesystem=files)
    wrong = []
    for name in NAMES:
        kind = values.schema.field(name).type
        for value in {v for v in values[name].to_pylist() if v is not None}:
            expected = values.filter(pc.equal(values[name], pa.scalar(value, kind))).num_rows
            seen = dataset.to_table(filter=pc.field(name) == pa.scalar(value, kind)).num_rows
            if seen != expected:
                wrong.append((name, value, seen, expected))
    assert not wrong
