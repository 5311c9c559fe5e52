"""The tables' evidence to ``delivery_status``: one row per message known to exist, replaced as the evidence grows.

Units are gathered from the surest source on: messages delivered, sets that expired, what senders say they queued,
segments that wait, ids that others name. An SDS id belongs to the first unit that claims it. The rules stand in
:mod:`reliable_channel.pipeline.verdict.rules`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pandas as pd
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import Settings
from reliable_channel.pipeline.storage.ddl import create_tables
from reliable_channel.pipeline.storage.io import read_table
from reliable_channel.pipeline.tables import (
    ACKS,
    CLOCK,
    DELIVERIES,
    DELIVERY_STATUS,
    INCOMPLETE_MESSAGES,
    LOST_DEPENDENCIES,
    MESSAGES,
    QUARANTINE,
    REPAIR_REQUESTS,
    SEGMENTS,
    SENDER_EVENTS,
    SOURCE_GAPS,
    STORE_PRESENCE,
)
from reliable_channel.pipeline.verdict.gather import EVIDENCE, SHARED, VIEWS
from reliable_channel.pipeline.verdict.rules import Evidence, decide

TABLES_READ = (
    ACKS,
    CLOCK,
    DELIVERIES,
    INCOMPLETE_MESSAGES,
    LOST_DEPENDENCIES,
    MESSAGES,
    QUARANTINE,
    REPAIR_REQUESTS,
    SEGMENTS,
    SENDER_EVENTS,
    SOURCE_GAPS,
    STORE_PRESENCE,
)
KEY = ("pubsub_topic", "content_topic", "channel_id", "message_key")


def run(spark: SparkSession, settings: Settings) -> int:
    """Judge every message known to exist and merge the verdicts into ``delivery_status``; how many there are.

    The time of judgement is the recorded clock's, so the same tables give the same verdicts."""
    create_tables(spark, settings.paths, (*TABLES_READ, DELIVERY_STATUS))
    judged = statuses(spark, settings).localCheckpoint()
    oldest = judged.agg(F.date_format(F.min("first_seen"), "yyyy-MM-dd HH:mm:ss.SSSSSS")).collect()[0][0]
    if oldest is None:
        return 0
    target = DeltaTable.forPath(spark, settings.paths.table(DELIVERY_STATUS.name)).alias("old")
    same = " and ".join(f"old.{name} <=> new.{name}" for name in KEY)
    changed = "old.verdict <> new.verdict or not (old.cause <=> new.cause) or not old.settled"
    (
        target.merge(judged.alias("new"), same)
        .whenMatchedUpdateAll(f"{changed} or size(old.acknowledged_by) <> size(new.acknowledged_by)")
        .whenNotMatchedInsertAll()
        # What was taken up into a surer unit. Not what is older than the evidence: that was judged in its time.
        .whenNotMatchedBySourceDelete(f"old.verdict <> 'delivered' and old.first_seen >= timestamp'{oldest} UTC'")
        .execute()
    )
    return judged.count()


def statuses(spark: SparkSession, settings: Settings) -> DataFrame:
    """The rows of ``delivery_status`` that the tables give now.

    Views that others read are checkpointed, not cached: Spark tells its listeners of every change of a plan as text, in
    which a cached plan stands at each of its uses, and the text of all verdicts took longer than the verdicts."""
    for table in TABLES_READ:
        read_table(spark, settings.paths, table).createOrReplaceTempView(f"v_{table.name}")
    for name, text in VIEWS:
        view = spark.sql(text)
        (view.localCheckpoint() if name in SHARED else view).createOrReplaceTempView(name)
    evidence = spark.sql(EVIDENCE)
    return evidence.mapInPandas(_judge(settings.pipeline.settle_delay_ms), DELIVERY_STATUS.ddl())


def _judge(settle_delay_ms: int) -> Any:
    def judge(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.DataFrame(
                [_row(row, settle_delay_ms) for row in frame.to_dict("records")], columns=[*DELIVERY_STATUS.names()]
            )

    return judge


def _row(row: dict[str, Any], settle_delay_ms: int) -> dict[str, Any]:
    """One row of ``delivery_status`` from one row of evidence."""
    settled = _settled(row, settle_delay_ms)
    needed = row["needed"] if not pd.isna(row["needed"]) else row["data_count"]
    absent, present = _true(row["absent"]), _true(row["present"])
    evidence = Evidence(
        delivered=row["source"] == "delivered",
        late=_true(row["late"]),
        settled=settled,
        needed=1 if pd.isna(needed) else int(needed),
        received=0 if pd.isna(row["received"]) else int(row["received"]),
        hash_mismatch=row["reason"] == "hash_mismatch",
        sent=_true(row["sent"]),
        held_back=_true(row["held_back"]),
        given_up=_true(row["given_up"]),
        undecodable=_true(row["undecodable"]),
        undecryptable=_true(row["undecryptable"]),
        heard_by_others=_true(row["heard"]) or row["source"] == "named",
        store_has=True if present else (False if absent else None),
        in_gap=_true(row["in_gap"]),
        before_observation=_true(row["before_observation"]),
    )
    verdict, cause = decide(evidence)
    ids = row["ids"]
    by = row["acknowledged_by"]
    return {
        **{name: row[name] for name in (*KEY, "sender_id", "entire_message_hash", "first_seen", "data_missing")},
        "sds_ids": sorted(ids),
        "verdict": verdict.value,
        "cause": cause.value if cause else None,
        "detail": f"{evidence.received} of {evidence.needed} needed segments came" if not evidence.delivered else None,
        "acknowledged_by": sorted(by) if by is not None else [],
        "delivered_at": None if pd.isna(row["delivered_at"]) else row["delivered_at"],
        "as_of": row["as_of"],
        "settled": settled or evidence.delivered,
    }


def _settled(row: dict[str, Any], settle_delay_ms: int) -> bool:
    if pd.isna(row["as_of"]) or pd.isna(row["first_seen"]):
        return False
    elapsed: dt.timedelta = row["as_of"] - row["first_seen"]
    return elapsed >= dt.timedelta(milliseconds=settle_delay_ms)


def _true(value: Any) -> bool:
    return value is not None and not pd.isna(value) and bool(value)
