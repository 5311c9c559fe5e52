"""Files that Spark's tasks write: readers that skip files by their statistics see every row."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import Settings
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.commit import delete_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import DELIVERY_STATUS
from reliable_channel.pipeline.delta import append_frame, read_table
from tests.support.table_readers import Counts, Readers, differences

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


@pytest.mark.parametrize("writer", ["tasks", "driver", "rows deleted"])
def test_filters_find_every_row(writer: str, spark: SparkSession, settings: Settings) -> None:
    paths = settings.paths
    create_tables(paths, (DELIVERY_STATUS,))
    place = paths.table(DELIVERY_STATUS.name)
    values = as_arrow(status_rows(), DELIVERY_STATUS)
    if writer == "tasks":
        frame = spark.createDataFrame(values, schema=read_table(spark, paths, DELIVERY_STATUS).schema)
        append_frame(paths, DELIVERY_STATUS, frame.repartition(values.num_rows))
    else:
        for row in status_rows():
            gone = [row | {"verdict": "gone"}] if writer == "rows deleted" else []
            append_rows(paths, DELIVERY_STATUS, as_arrow([row, *gone], DELIVERY_STATUS))
        if writer == "rows deleted":
            delete_rows(open_table(paths, DELIVERY_STATUS), "verdict = 'gone'")
    readers, rows = Readers(place), spark.read.format("delta").load(place)
    assert rows.count() == values.num_rows

    def counts_of(name: str, value: pa.Scalar) -> Counts:
        if pa.types.is_timestamp(value.type):
            matching = rows.where(F.unix_micros(name) == value.value)  # Python's times have a zone of the machine
        else:
            matching = rows.where(F.col(name) == value.as_py())
        return readers.counts_of(name, value) | {"spark": matching.count()}

    assert not differences(values.select(NAMES), counts_of)
