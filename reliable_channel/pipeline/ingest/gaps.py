"""Kafka offsets that a micro-batch should have brought and did not: retention, deletion, or records nobody may read.

With ``failOnDataLoss=false`` Spark goes on without a word; these rows are the word (design.md *Nothing is lost
silently*).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.pipeline.clock import Place, Reached

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        pa.field("kafka_topic", pa.string(), nullable=False),
        pa.field("kafka_partition", pa.int32(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("last_offset", pa.int64(), nullable=False),
        ("cause", pa.string()),
        ("name", pa.string()),
        ("status", pa.string()),
        ("from_time", _TIMESTAMP),
        ("to_time", _TIMESTAMP),
        ("ingest_time", _TIMESTAMP),
    ]
)


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets ``first`` to ``last`` (inclusive) of a partition are missing. Times: event time around it, µs."""

    place: Place
    first: int
    last: int
    from_us: int | None
    to_us: int
    ingest_time: dt.datetime


def missing_offsets(
    rows: DataFrame, stats: Mapping[Place, dict[str, Any]], before: Mapping[Place, Reached]
) -> list[Gap]:
    """The gaps of a micro-batch: between the last one and this one, and inside it.

    ``rows`` are only looked at (one more pass) where the numbers do not add up. Before the first record ever read there
    is no gap: what was deleted then was never to be observed.
    """
    gaps = []
    for place, s in stats.items():
        known = before.get(place)
        if known is not None and s["first_offset"] > known.next_offset:
            gaps.append(
                Gap(
                    place,
                    known.next_offset,
                    s["first_offset"] - 1,
                    known.event_time_us,
                    max(s["first_time_us"], known.event_time_us),
                    s["ingest_time"],
                )
            )
    broken = [place for place, s in stats.items() if s["last_offset"] - s["first_offset"] + 1 != s["records"]]
    if broken:
        gaps += _inside(rows, set(broken))
    return sorted(gaps, key=lambda gap: (gap.place, gap.first))


def _inside(rows: DataFrame, places: set[Place]) -> list[Gap]:
    order = Window.partitionBy("topic", "partition").orderBy("offset")
    jumps = (
        rows.select("topic", "partition", "offset", "ingest_time", F.col("d.event_time_us").alias("us"))
        .withColumn("previous", F.lag("offset").over(order))
        .withColumn("previous_us", F.lag("us").over(order))
        .where("offset > previous + 1")
    )
    return [
        Gap(
            (row["topic"], row["partition"]),
            row["previous"] + 1,
            row["offset"] - 1,
            row["previous_us"],
            row["us"],
            row["ingest_time"],
        )
        for row in jumps.collect()
        if (row["topic"], row["partition"]) in places
    ]


def gap_rows(gaps: list[Gap]) -> pa.Table:
    """Gaps as rows of ``source_gaps``."""
    return pa.Table.from_pylist(
        [
            {
                "kafka_topic": gap.place[0],
                "kafka_partition": gap.place[1],
                "first_offset": gap.first,
                "last_offset": gap.last,
                "cause": "offset_jump",
                "name": f"{gap.place[0]}/{gap.place[1]}/{gap.first}",
                "status": "open",
                "from_time": _moment(gap.from_us),
                "to_time": _moment(gap.to_us),
                "ingest_time": gap.ingest_time.astimezone(dt.UTC),
            }
            for gap in gaps
        ],
        schema=_SCHEMA,
    )


def _moment(us: int | None) -> dt.datetime | None:
    return None if us is None else dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
