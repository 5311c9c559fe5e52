"""Writes ``delivery_status``: one row per message known to exist, replaced as the evidence grows.

Evidence is gathered from the surest source on: messages delivered, sets that expired, what senders say they queued,
segments that wait, ids that others name. An SDS id belongs to the first unit that claims it. The rules are in
:mod:`reliable_channel.pipeline.verdict.rules`.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import ChannelsSettings, Settings
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import in_our_time
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    ACKS,
    CLOCK,
    DELIVERIES,
    DELIVERY_STATUS,
    INCOMPLETE_MESSAGES,
    LOST_DEPENDENCIES,
    QUARANTINE,
    REASSEMBLED_MESSAGES,
    REPAIR_REQUESTS,
    SDS_MESSAGES,
    SENDER_EVENTS,
    SIGHTINGS,
    SOURCE_GAPS,
    STORE_PRESENCE,
)
from reliable_channel.pipeline.clock import EPOCH, recorded
from reliable_channel.pipeline.delta import read_table
from reliable_channel.pipeline.session import set_meanwhile
from reliable_channel.pipeline.verdict.gaps import HEARD, Gap, Span, open_gaps, unheard
from reliable_channel.pipeline.verdict.gather import EVIDENCE, FACTS, IDS, NO_SENT_SINCE, SENT_SINCE, SUSPECTS
from reliable_channel.pipeline.verdict.rules import Cause, VerdictEvidence, decide

TABLES_READ = (
    ACKS,
    CLOCK,
    DELIVERIES,
    INCOMPLETE_MESSAGES,
    LOST_DEPENDENCIES,
    REASSEMBLED_MESSAGES,
    QUARANTINE,
    REPAIR_REQUESTS,
    SDS_MESSAGES,
    SENDER_EVENTS,
    SIGHTINGS,
    SOURCE_GAPS,
    STORE_PRESENCE,
)
KEY = ("pubsub_topic", "content_topic", "channel_id", "message_key")
COPIED = (*KEY, "sender_id", "entire_message_hash", "first_seen", "delivered_at", "data_missing")
"""What a row of evidence says already."""
SDS_ID_TAG = b"\x12"
"""The byte before the SDS message id on the wire: field 2, length-delimited (LIP-109)."""
FILES_UNASKED = {"spark.databricks.delta.stats.skipping": "false"}
"""Whole tables are read here. Asking every file's statistics what may be left out is a Spark job per table, which cost
as much as the rest of the planning."""
REMEMBERED_MS = min(table.retention_ms for table in TABLES_READ if table.retention_ms is not None)
"""How far back (ms of the recorded clock) the evidence is whole. What is older was judged in its time, and stays so."""


def run(spark: SparkSession, settings: Settings) -> int:
    """Judge every message known to exist and merge the verdicts into ``delivery_status``; how many there are.

    The time of judgement is the recorded clock's, so the same tables give the same verdicts."""
    create_tables(settings.paths, (*TABLES_READ, DELIVERY_STATUS))
    as_of_us = max((reached.event_time_us for reached in recorded(settings.paths).values()), default=None)
    if as_of_us is None:
        return 0
    as_of = EPOCH + dt.timedelta(microseconds=as_of_us)
    since = f"first_seen >= timestamp'{as_of - dt.timedelta(milliseconds=REMEMBERED_MS):%Y-%m-%d %H:%M:%S.%f} UTC'"
    with set_meanwhile(spark, FILES_UNASKED):
        judged = statuses(spark, settings, as_of).where(since).localCheckpoint()
    target = DeltaTable.forPath(spark, settings.paths.table(DELIVERY_STATUS.name)).alias("old")
    same = " and ".join(f"old.{name} <=> new.{name}" for name in KEY)
    changed = "old.verdict <> new.verdict or not (old.cause <=> new.cause) or not old.settled"
    (
        target.merge(judged.alias("new"), same)
        .whenMatchedUpdateAll(f"{changed} or size(old.acknowledged_by) <> size(new.acknowledged_by)")
        .whenNotMatchedInsertAll()
        # What was taken up into a surer unit.
        .whenNotMatchedBySourceDelete(f"old.verdict <> 'delivered' and old.{since}")
        .execute()
    )
    return judged.count()


def statuses(spark: SparkSession, settings: Settings, as_of: dt.datetime) -> DataFrame:
    """The rows of ``delivery_status`` that the tables give now, judged at a time of the recorded clock."""
    for table in TABLES_READ:
        if table in (CLOCK, SOURCE_GAPS):
            continue  # small, and read here in the driver
        read_table(spark, settings.paths, table).createOrReplaceTempView(f"v_{table.name}")
    spark.sql(SUSPECTS).mapInArrow(_suspected, "sds_id string").distinct().createOrReplaceTempView("v_suspected")
    gaps = open_gaps(settings.paths)
    if gaps:
        lost = read_table(spark, settings.paths, LOST_DEPENDENCIES)
        missed = F.coalesce("missing_since", "event_time") >= F.lit(min(gap.span.since for gap in gaps))
        lost.where(missed).createOrReplaceTempView("v_named_since_gaps")
    spark.sql(SENT_SINCE if gaps else NO_SENT_SINCE).createOrReplaceTempView("v_sent")
    spark.sql(FACTS).createOrReplaceTempView("said")
    spark.sql(IDS).createOrReplaceTempView("ids")
    judge = _judge(as_of, settings, [gap.span for gap in gaps], _unheard(spark, gaps))
    return spark.sql(EVIDENCE).mapInArrow(judge, DELIVERY_STATUS.ddl())


Topic = tuple[str, str]
"""Pubsub topic and content topic."""


def _unheard(spark: SparkSession, gaps: list[Gap]) -> dict[Topic, list[Span]]:
    """When nobody listened, for every topic that another bridge has heard then; for other topics that is every gap."""
    if all(gap.vantage is None for gap in gaps):
        return {}  # no other bridge can have listened
    heard: dict[Topic, dict[str, Span]] = {}
    for row in in_our_time(spark.sql(HEARD).toArrow()).to_pylist():
        by = heard.setdefault((row["pubsub_topic"], row["content_topic"]), {})
        by[row["vantage"]] = Span(row["since"], row["until"])
    every = [gap.span for gap in gaps]
    return {topic: left for topic, by in heard.items() if (left := unheard(gaps, by)) != every}


def _suspected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What stands where an SDS message has its own id (text of up to 127 bytes), in bytes that could not be decoded."""
    for batch in batches:
        found = {
            raw[at + 1 : at + 1 + raw[at]]
            for raw in batch["raw"].to_pylist()
            for at in map(re.Match.end, re.finditer(SDS_ID_TAG, raw))
            if at < len(raw) and 0 < raw[at] < 128 and at + 1 + raw[at] <= len(raw)
        }
        ids = [text for value in found if (text := _text(value)) is not None]
        yield pa.record_batch({"sds_id": pa.array(ids, pa.string())})


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _followed(channels: ChannelsSettings, read: frozenset[str]) -> Callable[[str, str], bool]:
    """Whether a content topic is read by the bridge (``read``; empty: all are) and configured as a channel's."""

    @functools.lru_cache(4_096)
    def followed(pubsub_topic: str, content_topic: str) -> bool:
        return (not read or content_topic in read) and channels.topic_for(content_topic, pubsub_topic) is not None

    return followed


def _judge(as_of: dt.datetime, settings: Settings, gaps: list[Span], by_topic: dict[Topic, list[Span]]) -> Any:
    settle_delay_ms = settings.pipeline.settle_delay_ms
    ask_stores = bool(settings.store.nodes)
    channels, read = settings.channels, frozenset(settings.bridge.content_topics)  # nothing secret goes to executors

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        followed = _followed(channels, read)
        for batch in batches:
            rows = [
                _row(row, as_of, settle_delay_ms, by_topic.get(_topic(row), gaps), followed, ask_stores)
                for row in in_our_time(batch).to_pylist()
                if row["first_seen"] is not None
            ]
            yield from as_arrow(rows, DELIVERY_STATUS).to_batches()

    return judge


def _row(
    row: dict[str, Any],
    as_of: dt.datetime,
    settle_delay_ms: int,
    gaps: list[Span],
    followed: Callable[[str, str], bool],
    ask_stores: bool,
) -> dict[str, Any]:
    """One row of ``delivery_status`` from one row of evidence."""
    first_seen = row["first_seen"]
    # What others name was sent before they did, and after its neighbours in Lamport order; of a message of which
    # nothing is known before, only that it was sent earlier.
    named = row["source"] == "named"
    sent_since = row["sent_since"] if named else first_seen
    settled = as_of - first_seen >= dt.timedelta(milliseconds=settle_delay_ms)
    needed = next((said for name in ("needed", "data_count") if (said := row[name]) is not None), 1)
    times = Counter(row["acknowledgements"])
    acknowledged_by = sorted(who for who, segments in times.items() if segments >= needed)
    evidence = VerdictEvidence(
        delivered=row["source"] == "delivered",
        late=bool(row["late"]),
        settled=settled,
        needed=needed,
        received=row["received"],
        hash_mismatch=row["reason"] == "hash_mismatch",
        sent=bool(row["sent"]),
        held_back=bool(row["held_back"]),
        given_up=bool(row["given_up"]),
        undecodable=bool(row["undecodable"]),
        undecryptable=bool(row["undecryptable"]),
        heard_by_others=bool(acknowledged_by) or bool(row["asked_for"]) or row["source"] == "named",
        store_has=True if bool(row["present"]) else (False if bool(row["absent"]) else None),
        in_gap=any(since <= first_seen and (sent_since is None or sent_since <= until) for since, until in gaps),
        before_observation=bool(row["before_observation"]),
        followed=followed(*_topic(row)),
    )
    verdict, cause = decide(evidence)
    return {
        **{
            name: row[name]
            for name in (*KEY, "sender_id", "entire_message_hash", "first_seen", "delivered_at", "data_missing")
        },
        "sds_ids": sorted(row["ids"]),
        "verdict": verdict.value,
        "cause": cause.value if cause else None,
        "detail": None if evidence.delivered else _detail(evidence, cause, ask_stores),
        "acknowledged_by": acknowledged_by,
        "as_of": as_of,
        "settled": settled or evidence.delivered,
    }


def _detail(evidence: VerdictEvidence, cause: Cause | None, ask_stores: bool) -> str:
    """What came of the message, and without a cause: what evidence would tell it."""
    came = f"{evidence.received} of {evidence.needed} needed segments came"
    if cause is Cause.PROPAGATED_NOT_STORED:
        return f"{came}; no store node that was asked has it"
    if cause is not None:
        return came
    if evidence.store_has is False:
        return f"{came}; its sender does not say whether it was sent"
    if not ask_stores:
        return f"{came}; no store node is configured (store.nodes) that could be asked"
    return f"{came}; no store node has answered for it: no retrieval hint and no sender's record names its envelope"


def _topic(row: dict[str, Any]) -> Topic:
    return row["pubsub_topic"], row["content_topic"]
