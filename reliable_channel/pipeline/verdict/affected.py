"""Finds the verdicts that new evidence can change, and reads only the evidence about them.

A verdict rests on the evidence about all SDS ids of its message. So the ids are collected first: those in new rows, and
those of verdicts that are not settled or share an id, a key or a payload with new rows. No other ids are needed,
because a verdict lists every id of its message.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import PathSettings
from reliable_channel.lake import tables
from reliable_channel.lake.tables import CHANNEL_KEY, Table
from reliable_channel.pipeline.delta import read_table
from reliable_channel.pipeline.verdict.gather import NEWLY_SURROUNDED
from reliable_channel.pipeline.verdict.touched import Channel, Touched

KEY = (*CHANNEL_KEY, "message_key")
_VERDICT = tables.DELIVERY_STATUS.types(*KEY, "sds_ids", "entire_message_hash", "first_seen", "settled")


class Affected(NamedTuple):
    """``ids``: the SDS ids, with their channels, of all messages to judge; ``verdicts``: their rows until now."""

    ids: DataFrame
    verdicts: DataFrame


def affected_by(
    spark: SparkSession, paths: PathSettings, touched: Touched, in_gap: bool, since: dt.datetime
) -> Affected:
    """What is to be judged again after evidence about ``touched``; verdicts on messages first seen before ``since`` are
    not looked at. ``in_gap``: there are gaps, so that new messages tell when missing ones were sent."""
    ids = {*touched.ids, *_linked(spark, paths, touched, in_gap)}
    chosen = naming({*touched.texts, *(sds_id for _, sds_id in ids)}, touched.payloads)
    verdicts = (
        read_table(spark, paths, tables.DELIVERY_STATUS)
        .where(F.col("first_seen") >= F.lit(since))
        .select(*_VERDICT)
        .mapInArrow(chosen, ", ".join(f"{name} {type_}" for name, type_ in _VERDICT.items()))
        .drop("settled")
        .localCheckpoint()
    )
    new = _by_channel(
        spark, [channel for channel, _ in ids], sds_id=pa.array([sds_id for _, sds_id in ids], pa.string())
    )
    known = verdicts.select(*CHANNEL_KEY, F.explode("sds_ids").alias("sds_id"))
    payloads = _frame(spark, {"entire_message_hash": pa.array(sorted(touched.payloads), pa.binary())})
    both = new.union(known).distinct().localCheckpoint()
    _create_views(spark, paths, both, payloads.union(verdicts.select("entire_message_hash")).distinct())
    return Affected(both, verdicts)


def only_about(said: DataFrame, ids: DataFrame) -> DataFrame:
    """Those rows of ``said`` that are about ``ids``."""
    about = ids.select(*(F.col(name).alias(f"about_{name}") for name in (*CHANNEL_KEY, "sds_id")))
    same = [F.col(name).eqNullSafe(F.col(f"about_{name}")) for name in (*CHANNEL_KEY, "sds_id")]
    return said.join(F.broadcast(about), same, "left_semi")


def _linked(spark: SparkSession, paths: PathSettings, touched: Touched, in_gap: bool) -> Iterable[tuple[Any, str]]:
    """The ids that rows of before name together with what is new, or that new messages tell something of."""
    found: list[DataFrame] = []
    if touched.rebuilt:
        sets = read_table(spark, paths, tables.REASSEMBLED_MESSAGES)
        rebuilt = _among(spark, sets, "entire_message_hash", touched.rebuilt)
        found.append(rebuilt.select(*CHANNEL_KEY, F.explode("sds_ids").alias("sds_id")))
    if touched.envelopes:
        senders = read_table(spark, paths, tables.SENDER_EVENTS)
        found.append(_among(spark, senders, "envelope_hash", touched.envelopes).select(*CHANNEL_KEY, "sds_id"))
    if in_gap and touched.lamport:
        least = pa.array(touched.lamport.values(), pa.int64())
        _by_channel(spark, [*touched.lamport], least=least).createOrReplaceTempView("v_new_lamport")
        texts = _frame(spark, {"new_id": pa.array(sorted({sds_id for _, sds_id in touched.ids}), pa.string())})
        texts.createOrReplaceTempView("v_new_ids")
        found.append(spark.sql(NEWLY_SURROUNDED))
    if not found:
        return []
    rows = found[0]
    for more in found[1:]:
        rows = rows.union(more)
    return [(tuple(row[:3]), row[3]) for row in rows.where("sds_id is not null").distinct().collect()]


def _create_views(spark: SparkSession, paths: PathSettings, ids: DataFrame, payloads: DataFrame) -> None:
    """Replace the views of the evidence by those that hold, of each table, at least the rows about ``ids``; and what
    these are compared with: everything about the same payloads, and about the envelopes that senders name."""
    by_id = F.broadcast(ids.select("sds_id").distinct())

    def about(table: Table, by: DataFrame) -> DataFrame:
        return read_table(spark, paths, table).join(by, by.columns, "left_semi")

    for table in (tables.SDS_MESSAGES, tables.LOST_DEPENDENCIES, tables.ACKS, tables.REPAIR_REQUESTS):
        about(table, by_id).createOrReplaceTempView(f"v_{table.name}")
    parity = spark.table(f"v_{tables.SDS_MESSAGES.name}").where("segment_kind = 'parity'").select("entire_message_hash")
    queued = about(tables.SENDER_EVENTS, by_id).where("event = 'queued'").select("entire_message_hash")
    by_payload = F.broadcast(payloads.union(parity).union(queued).distinct().localCheckpoint())
    for table in (tables.REASSEMBLED_MESSAGES, tables.INCOMPLETE_MESSAGES):
        about(table, by_payload).createOrReplaceTempView(f"v_{table.name}")
    rebuilt = about(tables.DELIVERIES, by_payload).where("segment_kind is null")
    rebuilt.unionByName(about(tables.DELIVERIES, by_id).where("segment_kind is not null")).createOrReplaceTempView(
        "v_deliveries"
    )
    sends = about(tables.SENDER_EVENTS, by_payload).where("event = 'queued'")
    sends.unionByName(about(tables.SENDER_EVENTS, by_id)).createOrReplaceTempView(
        "v_sender_events"
    )  # a row may come twice
    by_envelope = spark.sql("select distinct envelope_hash as message_hash from v_sender_events")
    answers = about(tables.STORE_PRESENCE, F.broadcast(by_envelope)).withColumn("sds_id", F.lit(None).cast("string"))
    answers.unionByName(about(tables.STORE_PRESENCE, by_id)).createOrReplaceTempView("v_store_presence")


def naming(texts: Set[str], payloads: Set[bytes]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Leaves those verdicts that are not settled, name one of the ids or keys ``texts``, or have one of the payloads.

    In Arrow: a join on one row per name took Spark 7 s over 2.5 million verdicts."""
    wanted, hashes = sorted(texts), sorted(payloads)

    def chosen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys, payloads = pa.array(wanted, pa.string()), pa.array(hashes, pa.binary())
        for batch in batches:
            names = batch["sds_ids"]
            named = pc.list_parent_indices(names).filter(pc.is_in(pc.list_flatten(names), keys))
            listed = pc.is_in(pa.array(range(batch.num_rows)), named)
            found = pc.or_(listed, pc.is_in(batch["message_key"], keys))
            found = pc.or_(found, pc.is_in(batch["entire_message_hash"], payloads))
            yield batch.filter(pc.or_kleene(found, pc.invert(batch["settled"])))

    return chosen


def _among(spark: SparkSession, rows: DataFrame, column: str, values: Iterable[bytes]) -> DataFrame:
    return rows.join(F.broadcast(_frame(spark, {column: pa.array(sorted(values), pa.binary())})), column, "left_semi")


def _frame(spark: SparkSession, columns: Mapping[str, pa.Array]) -> DataFrame:
    return spark.createDataFrame(pa.table(dict(columns)))


def _by_channel(spark: SparkSession, channels: Sequence[Channel], **columns: pa.Array) -> DataFrame:
    """``columns`` beside those of their channels."""
    keys = [pa.array(names, pa.string()) for names in zip(*channels, strict=True)] or [pa.array([], pa.string())] * 3
    return _frame(spark, {**dict(zip(CHANNEL_KEY, keys, strict=True)), **columns})
