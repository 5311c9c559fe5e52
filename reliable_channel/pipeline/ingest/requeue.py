"""Decodes quarantined records again, after a fix or with a new key, and inserts them into ``sds_messages``.

A record keeps its Kafka coordinates and event time, so it joins the record order late. It is inserted only if its
coordinates are missing, so neither a run killed between two tables nor two concurrent runs insert it twice. Its
quarantine row is updated after that. Ingest may write the same tables at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import PathSettings, Settings
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.tables import ENVELOPES, QUARANTINE, RECORD_KEY, SDS_MESSAGES, Table
from reliable_channel.pipeline.delta import read_table
from reliable_channel.pipeline.ingest.admission import QuotaGate, make_candidates
from reliable_channel.pipeline.ingest.quotas import ADMISSION_COLUMNS, Refused, sum_by_sender
from reliable_channel.pipeline.ingest.stream import select_coordinates, select_records
from reliable_channel.pipeline.ingest.task import date_batches, decode_batches
from reliable_channel.pipeline.rewrite import insert_missing, rewrite

_PLACE = [*RECORD_KEY]
REQUEUED = "requeued"


def requeue(spark: SparkSession, settings: Settings, reasons: Sequence[str] = ()) -> int:
    """Decode dropped records again (of the given reasons, or of all); returns how many are now accepted.

    Records that are refused again, still exceed a quota, or were not kept whole stay unchanged."""
    paths = settings.paths
    create_tables(paths, (ENVELOPES, SDS_MESSAGES, QUARANTINE))
    records = _read_records(spark, settings, reasons)
    refused = _find_above_quota(records, settings)
    segments, envelopes = (
        _decode_rows(records, settings, table, refused).localCheckpoint() for table in (SDS_MESSAGES, ENVELOPES)
    )
    count = envelopes.count()
    if count:
        # A clock row has the coordinates of the last record it covers, but is not that record.
        insert_missing(spark, paths, SDS_MESSAGES, segments, REQUEUED, _PLACE, "sds_kind <> 'tick'")
        insert_missing(spark, paths, ENVELOPES, envelopes, REQUEUED, _PLACE)
        _update(spark, paths, ENVELOPES, envelopes.withColumn("_now", F.col("kind")), "kind", "quarantined")
        _update(spark, paths, QUARANTINE, envelopes.withColumn("_now", F.lit(REQUEUED)), "disposition", "dropped")
    return count


def _read_records(spark: SparkSession, settings: Settings, reasons: Sequence[str]) -> DataFrame:
    """The dropped records with their event times, computed once, because the run changes the tables they come from."""
    times = read_table(spark, settings.paths, QUARANTINE).select(*select_coordinates(), "event_time")
    position = ["topic", "partition", "offset"]
    records = read_dropped(spark, settings, reasons).transform(select_records(settings.pipeline))
    # Not cached: what a cache drops would be computed again, from tables that this run has changed.
    return records.join(times.dropDuplicates(position), position).localCheckpoint()


def _decode_rows(records: DataFrame, settings: Settings, table: Table, refused: Refused) -> DataFrame:
    """The records that can be decoded now, except the ``refused`` ones, as rows of ``table``."""
    wants_segments, channels = table is SDS_MESSAGES, settings.channels

    def accept(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in date_batches(decode_batches(batches, channels), {}, refused):
            good = batch.where(pc.is_in(batch.decoded["kind"], pa.array(["sds", "plain"])))
            yield good.segments() if wants_segments else good.envelopes()

    return records.mapInArrow(accept, table.ddl())


def _find_above_quota(records: DataFrame, settings: Settings) -> Refused:
    """The records that still exceed a quota, beside all messages that were admitted in their windows."""
    asking = _decode_rows(records, settings, SDS_MESSAGES, {}).select(*ADMISSION_COLUMNS).toArrow()
    batches = asking.to_batches()
    candidates = sorted(one for batch in batches for one in make_candidates(batch, settings.quotas))
    groups = [
        g
        for batch in batches
        for g in sum_by_sender(dict(zip(ADMISSION_COLUMNS, batch.columns, strict=True)), settings.quotas)
    ]
    admission = QuotaGate(settings.quotas, settings.channels)
    admission.restore_for(settings.paths, groups)
    return admission.find_refused(
        groups, lambda topics: [c for c in candidates if (c.topic_partition, c.sender[:2]) in topics]
    )


def _update(spark: SparkSession, paths: PathSettings, table: Table, rows: DataFrame, column: str, was: str) -> None:
    """Change ``column`` from ``was`` to the ``_now`` of the row in ``rows`` with the same coordinates."""
    # So that the rows of the table are not shuffled to meet these few.
    now = F.broadcast(rows.select(*_PLACE, "_now"))
    holds = F.col(column) == was

    def change(old: DataFrame) -> DataFrame:
        joined = old.join(now, _PLACE, "left")
        return joined.withColumn(column, F.when(holds, F.coalesce("_now", column)).otherwise(F.col(column)))

    rewrite(spark, paths, table, lambda old: old.where(holds).join(now, _PLACE, "left_semi"), change)


def read_dropped(spark: SparkSession, settings: Settings, reasons: Sequence[str]) -> DataFrame:
    """The dropped records in the form of Kafka's source: whole values from ``envelopes`` if it has them, else from
    quarantine, if that kept the whole value."""
    refused = read_table(spark, settings.paths, QUARANTINE).where(
        "disposition = 'dropped' and pubsub_topic is not null"
    )
    if reasons:
        refused = refused.where(F.col("reason").isin(*reasons))
    values = read_table(spark, settings.paths, ENVELOPES).select(*_PLACE, "value")
    whole = refused.dropDuplicates(_PLACE).join(values, _PLACE, "left")
    kept = F.when(F.octet_length("raw") == F.col("raw_bytes"), F.col("raw"))

    def header(name: str) -> Column:
        return F.struct(F.lit(name).alias("key"), F.encode(F.col(name), "UTF-8").alias("value"))

    return whole.select(
        *select_coordinates(),
        F.col("record_time").alias("timestamp"),
        F.coalesce("value", kept).alias("value"),
        F.array(header("pubsub_topic"), header("source")).alias("headers"),
    ).where("value is not null")
