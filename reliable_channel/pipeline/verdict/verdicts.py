"""Writes ``delivery_status``: one row per message known to exist, replaced as evidence grows. A round judges messages
with new evidence (:mod:`.affected`), and unsettled ones.

Sources, the most certain first: delivered messages, incomplete sets, sends that senders record, waiting segments,
ids that others name. An SDS id belongs to the message of the first source that contains it. The rules are in
:mod:`reliable_channel.pipeline.verdict.rules`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import PathSettings, Settings
from reliable_channel.lake import tables
from reliable_channel.lake.commit import data_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import in_our_time, open_table
from reliable_channel.lake.retry import retry_on_conflict
from reliable_channel.lake.schema import as_arrow, file_schema
from reliable_channel.lake.tables import Table
from reliable_channel.pipeline.delta import create_table_views
from reliable_channel.pipeline.lookup import Lookup, list_suspected
from reliable_channel.pipeline.session import set_meanwhile
from reliable_channel.pipeline.verdict.affected import count_undelivered, find_affected
from reliable_channel.pipeline.verdict.as_of import find_as_of
from reliable_channel.pipeline.verdict.gaps import NO_SILENCE, Silence, find_silence, read_open_gaps
from reliable_channel.pipeline.verdict.gather import EVIDENCE, FACTS, IDS, NO_SENT_SINCE, SENT_SINCE_IN_SPARK, SUSPECTS
from reliable_channel.pipeline.verdict.in_duckdb import gather_evidence
from reliable_channel.pipeline.verdict.judge import judge_message, make_filter
from reliable_channel.pipeline.verdict.position import USER_METADATA, find_position, make_position, refuse_older_tables
from reliable_channel.pipeline.verdict.replace import replace_all_verdicts, replace_verdicts
from reliable_channel.pipeline.verdict.since_gaps import SinceGaps
from reliable_channel.pipeline.verdict.touched import COLUMNS, REMEMBERED_MS, read_touched

Judge = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
TABLES_READ = (*COLUMNS, tables.CLOCK, tables.ENVELOPES, tables.SOURCE_GAPS)
WITHOUT_FILE_SKIPPING = {"spark.databricks.delta.stats.skipping": "false"}
"""Whole tables are read here. To skip files by their statistics, Spark would run a job per table, which cost as much as
the rest of the planning."""

MAX_UNDELIVERED = 20_000
"""With more verdicts that may change with the times in which no bridge listened, Spark judges everything."""


@retry_on_conflict
def run(spark: SparkSession, settings: Settings) -> int:
    """Judge messages with new evidence and unsettled ones, and replace their verdicts in ``delivery_status``; returns
    how many. Without verdicts, all evidence is new; without the position of an earlier round, judge all messages.

    Verdicts are computed as of an event time that the jobs have reached, so the same tables and positions give the same
    verdicts."""
    paths = settings.paths
    create_tables(paths, (*TABLES_READ, tables.DELIVERY_STATUS))
    as_of = find_as_of(paths)
    if as_of is None:
        return 0
    remembered = dt.timedelta(milliseconds=REMEMBERED_MS)
    since = as_of - remembered
    opened = open_evidence(paths)  # before anything is read: rows that come later are new in the next round
    silence = read_silence(paths, opened)
    since_gaps = SinceGaps(opened, silence.gaps) if silence.gaps else None
    noted = {**opened, tables.ENVELOPES: open_table(paths, tables.ENVELOPES)}  # from which a rebuild derives the others
    position = make_position(noted, settings, silence)
    metadata = {USER_METADATA: position.text()}
    status = open_table(paths, tables.DELIVERY_STATUS)
    look_up = {
        table: Lookup(paths, table, data_files(there))
        for table, there in {**opened, tables.DELIVERY_STATUS: status}.items()
    }
    before = find_position(paths, status)
    refuse_older_tables(paths, before, noted)
    touched = None
    # Where no verdict exists yet, all evidence is new. If it is little, Spark need not open a Delta table.
    if status.version() == 0 or (before is not None and before.digest == position.digest):
        touched = read_touched(paths, opened, before)
    if touched is not None and before is not None and before.silence != position.silence:
        touched.silence = True
        if count_undelivered(look_up[tables.DELIVERY_STATUS]) > MAX_UNDELIVERED:
            touched = None
    if touched is None:
        with set_meanwhile(spark, WITHOUT_FILE_SKIPPING):
            judged = compute_verdicts(spark, settings, as_of, silence)
            judged = judged.where(F.col("first_seen") >= F.lit(since)).localCheckpoint()
            replace_all_verdicts(spark, paths, status, judged, since, metadata)
            return judged.count()
    affected = find_affected(look_up, touched, since_gaps, since - remembered)
    if affected is None:
        return 0
    sent = since_gaps.find_time_sent(affected.rows[tables.LOST_DEPENDENCIES]) if since_gaps else None
    evidence = gather_evidence(affected.rows, affected.ids, affected.suspected, sent)
    judge = _judge(as_of, settings, silence)
    judged = pa.Table.from_batches(judge(iter(evidence.to_batches())), file_schema(tables.DELIVERY_STATUS))
    judged = judged.filter(pc.greater_equal(judged["first_seen"], since))
    replace_verdicts(paths, status, look_up[tables.DELIVERY_STATUS], affected.verdicts, judged, since, metadata)
    return int(judged.num_rows)


def open_evidence(paths: PathSettings) -> dict[Table, DeltaTable]:
    """The tables with evidence."""
    return {table: open_table(paths, table) for table in COLUMNS}


def read_silence(paths: PathSettings, opened: Mapping[Table, DeltaTable]) -> Silence:
    """The times in which no bridge listened, from the tables with evidence."""
    gaps = read_open_gaps(paths)
    return find_silence(gaps, SinceGaps(opened, gaps).select) if gaps else NO_SILENCE


def compute_verdicts(spark: SparkSession, settings: Settings, as_of: dt.datetime, silence: Silence) -> DataFrame:
    """Compute the rows of ``delivery_status`` from all evidence, at a time of the recorded clock."""
    create_table_views(spark, settings.paths, COLUMNS)
    if silence.gaps:
        missed = F.coalesce("missing_since", "event_time") >= F.lit(min(gap.span.since for gap in silence.gaps))
        spark.table(tables.LOST_DEPENDENCIES.name).where(missed).createOrReplaceTempView("named_since_gaps")
    spark.sql(SUSPECTS).mapInArrow(_add_suspected, "sds_id string").distinct().createOrReplaceTempView("suspected")
    spark.sql(SENT_SINCE_IN_SPARK if silence.gaps else NO_SENT_SINCE).createOrReplaceTempView("sent")
    spark.sql(FACTS).createOrReplaceTempView("facts")
    spark.sql(IDS).createOrReplaceTempView("ids")
    return spark.sql(EVIDENCE).mapInArrow(_judge(as_of, settings, silence), tables.DELIVERY_STATUS.ddl())


def _add_suspected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"sds_id": pa.array(list_suspected(batch), pa.string())})


def _judge(as_of: dt.datetime, settings: Settings, silence: Silence) -> Judge:
    """A function from rows of evidence to rows of ``delivery_status``."""
    gaps, by_topic = [gap.span for gap in silence.gaps], silence.by_topic
    settle_delay_ms = settings.pipeline.settle_delay_ms
    ask_stores = bool(settings.store.nodes)
    channels, read = settings.channels, frozenset(settings.bridge.content_topics)  # nothing secret goes to executors

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        followed = make_filter(channels, read)
        for batch in batches:
            rows = []
            for row in in_our_time(batch).to_pylist():
                topic = row["pubsub_topic"], row["content_topic"]
                if row["first_seen"] is not None:
                    silent = by_topic.get(topic, gaps)
                    rows.append(judge_message(row, as_of, settle_delay_ms, silent, followed(*topic), ask_stores))
            yield from as_arrow(rows, tables.DELIVERY_STATUS).to_batches()

    return judge
