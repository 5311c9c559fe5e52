"""Sends messages from a Delta table into a reliable channel, from the Spark driver, and records their state.

``spark-submit jobs/send.py --channel ID --from TABLE [--config FILE] …``

``TABLE`` has the columns ``row_id`` (string, unique) and ``payload`` (binary). Every row is one message with one SDS
identity: its id is the send's label, kept with the SDS bytes before anything is dispatched. So a re-run, after a crash
at any point or over a table that has grown, sends the same bytes for the same row, and receivers see one message. The
channel applies segmentation, rate limit, retransmission and back-pressure while the job runs: with ``--until
delivered`` until every row is acknowledged. The table ``sent_rows`` gets one row per message with its segments' ids;
joined with ``acks`` it shows who has acknowledged which row.

Only the driver sends: a channel has one clock and one rate limit. Rows come to it one partition at a time.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reliable_channel.runtime.interrupts import end_at_once

with end_at_once():
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - the name Spark's users know

    from reliable_channel.channel import ReliableChannel, SendState
    from reliable_channel.config import Settings
    from reliable_channel.core.errors import ConfigurationError, EnvironmentFault, LocalError
    from reliable_channel.core.wire.malformed import Malformed
    from reliable_channel.core.wire.sds import decode_sds_message
    from reliable_channel.lake.create import create_tables
    from reliable_channel.lake.read import exists
    from reliable_channel.lake.tables import ACKS, CHANNEL_KEY, SENDER_EVENTS, SENT_ROWS
    from reliable_channel.pipeline.delta import append_frame, read_table
    from reliable_channel.runtime.job import make_parser, run_job
    from reliable_channel.runtime.participant import ParticipantOptions, participant
    from reliable_channel.runtime.spark import spark_session

SENDER = [*CHANNEL_KEY, "sender_id"]
"""Identifies a sender in a channel; row ids and SDS ids are unique within it."""

FOLLOW_S = 5.0
"""How often the tables are asked for acknowledgements."""


def send_rows(channel: ReliableChannel, rows: Iterable[Row]) -> Iterator[Row]:
    """Send every row that was not sent yet, in order; returns one row of ``sent_rows`` for each. Raises
    ``LocalError`` naming a row that cannot be sent, ``ConfigurationError`` for one without an id, and as
    ``ReliableChannel.send``."""
    for row in rows:
        if row["row_id"] is None:  # without a label every run would send it again
            raise ConfigurationError("A row has no row_id.", "Give every row one of its own.")
        try:
            channel.send(row["payload"], label=row["row_id"])
        except LocalError as error:
            raise type(error)(f"Row {row['row_id']!r}: {error.cause}", error.remedy) from None
        kept = channel.find_send(row["row_id"])
        if kept is None:
            raise EnvironmentFault(f"Row {row['row_id']!r} was sent but not stored.", "Use a durable persistence.")
        messages = [decode_sds_message(data, channel.wire_family) for data in kept.segments]
        ids = [message.message_id for message in messages if not isinstance(message, Malformed)]
        yield Row(
            row_id=row["row_id"],
            send_id=kept.send_id,
            pubsub_topic=channel.pubsub_topic,
            content_topic=channel.content_topic,
            channel_id=channel.channel_id,
            sender_id=channel.sender_id,
            required=kept.required,
            sds_ids=ids,
            recorded_at=dt.datetime.now(dt.UTC),
        )


def with_acknowledgements(sent: DataFrame, acks: DataFrame, sender_events: DataFrame | None = None) -> DataFrame:
    """``sent`` with ``acknowledged_by`` (array of participants) and ``acknowledged_at``: a participant has acknowledged
    a row when any ``required`` of its segments are acknowledged by it (LIP-109), unless it reports in ``sender_events``
    that it gave the message up."""
    row = [*SENDER, "row_id"]
    segments = sent.select(*row, "required", F.explode("sds_ids").alias("sds_id"))
    per_participant = (
        segments.join(acks.select(*SENDER, "sds_id", "acknowledged_by", "event_time"), [*SENDER, "sds_id"])
        .groupBy(*row, "required", "acknowledged_by", "sds_id")
        .agg(F.min("event_time").alias("at"))
        .groupBy(*row, "required", "acknowledged_by")
        .agg(F.sort_array(F.collect_list("at")).alias("at"))
        .where(F.size("at") >= F.col("required"))
    )
    if sender_events is not None:
        lost = sender_events.where("event = 'lost'").select(
            *SENDER, "sds_id", F.col("reported_by").alias("acknowledged_by")
        )
        gave_up = segments.join(lost, [*SENDER, "sds_id"]).select(*row, "acknowledged_by")
        per_participant = per_participant.join(gave_up, [*row, "acknowledged_by"], "left_anti")
    whole = per_participant.groupBy(*row).agg(
        F.sort_array(F.collect_set("acknowledged_by")).alias("acknowledged_by"),
        F.min(F.element_at("at", F.col("required"))).alias("acknowledged_at"),
    )
    return sent.join(whole, row, "left").withColumn(
        "acknowledged_by", F.coalesce("acknowledged_by", F.array().cast("array<string>"))
    )


def append_new(spark: SparkSession, settings: Settings, rows: list[Row]) -> int:
    """Add the rows that ``sent_rows`` does not have yet, and count them; a re-run adds nothing twice."""
    create_tables(settings.paths, [SENT_ROWS])
    known = read_table(spark, settings.paths, SENT_ROWS)
    given = spark.createDataFrame([tuple(row[name] for name in SENT_ROWS.names()) for row in rows], SENT_ROWS.ddl())
    new = given.join(known, list(SENT_ROWS.key), "left_anti").select(*SENT_ROWS.names()).collect()
    if new:
        append_frame(settings.paths, SENT_ROWS, spark.createDataFrame(new, SENT_ROWS.ddl()))
    return len(new)


def find_acknowledged(spark: SparkSession, settings: Settings, rows: list[Row]) -> set[str]:
    """The row ids among ``rows`` that at least one participant has acknowledged, from the tables ``sent_rows``,
    ``acks`` and ``sender_events``."""
    if not rows or not exists(settings.paths, ACKS):
        return set()
    one = rows[0]
    mine = F.lit(True)
    for name in SENDER:
        mine = mine & (F.col(name) == one[name])
    sent, acks = (read_table(spark, settings.paths, table).where(mine) for table in (SENT_ROWS, ACKS))
    events = (
        read_table(spark, settings.paths, SENDER_EVENTS).where(mine) if exists(settings.paths, SENDER_EVENTS) else None
    )
    with_ack = with_acknowledgements(sent, acks, events).where(F.size("acknowledged_by") > 0).select("row_id").collect()
    return {row["row_id"] for row in with_ack} & {row["row_id"] for row in rows}


@dataclass(frozen=True)
class SentTable:
    """The result for a source: its rows, how many of them are new in ``sent_rows``, and how many are acknowledged by at
    least one participant."""

    rows: int
    new: int
    acknowledged: int


def send_table(
    spark: SparkSession,
    settings: Settings,
    who: ParticipantOptions,
    source: DataFrame,
    wait_s: float,
    until: Literal["queued", "sent", "delivered"] = "sent",
) -> SentTable:
    """Send the rows of ``source`` and note them in ``sent_rows``; then wait until all are sent, or ``delivered``,
    or at least ``queued`` in Kafka.

    Until then the channel retransmits unacknowledged messages and receives acknowledgements. Acknowledgements in
    ``acks``, which the pipeline recorded while no job ran, count as well. ``sent_rows`` is complete before the wait
    begins. Raises ``EnvironmentFault`` after ``wait_s`` seconds, when the channel stops, and when retransmissions are
    used up."""
    missing = {"row_id", "payload"} - set(source.columns)
    if missing:
        raise ConfigurationError(f"The source has no column {', '.join(sorted(missing))}.", "Name and type as above.")
    rows: list[Row] = []
    new = 0
    with participant(settings, who) as opened:
        opened.start()
        deadline = time.monotonic() + wait_s
        ordered = source.select("row_id", "payload").orderBy("row_id").toLocalIterator(prefetchPartitions=True)
        try:
            rows.extend(send_rows(opened.channel, ordered))
        finally:
            new = append_new(spark, settings, rows) if rows else 0
        waiting = {row["row_id"]: row["send_id"] for row in rows}
        acknowledged: set[str] = set()
        while not opened.channel.wait(
            waiting.values(),
            delivered=until == "delivered",
            queued=until == "queued",
            timeout_s=min(FOLLOW_S, deadline - time.monotonic()),
        ):
            if until == "delivered":
                acknowledged |= find_acknowledged(spark, settings, rows)
                waiting = {row_id: send_id for row_id, send_id in waiting.items() if row_id not in acknowledged}
            if not opened.channel.status()["started"]:  # or `wait` would return at once, again and again
                raise EnvironmentFault("The channel stopped; its log says why.", "Run again: it goes on from there.")
            if time.monotonic() >= deadline:
                raise EnvironmentFault(
                    f"{len(waiting)} of {len(rows)} rows are not {until} within {wait_s:g} s, or not known to be.",
                    "Run again: it goes on where it stopped.",
                )
        ended = {row_id: opened.channel.send_state(send_id) for row_id, send_id in waiting.items()}
    acknowledged |= find_acknowledged(spark, settings, rows)
    acknowledged |= {row_id for row_id, state in ended.items() if state is SendState.DELIVERED}
    bad = {SendState.FAILED, SendState.UNACKNOWLEDGED} if until == "delivered" else {SendState.FAILED}
    failed = [row_id for row_id, state in ended.items() if state in bad and row_id not in acknowledged]
    if failed:
        raise EnvironmentFault(
            f"{len(failed)} of {len(rows)} rows failed, {failed[0]!r} first: refused, or acknowledged by nobody.",
            "Check that somebody listens on the channel, and send them with other row ids.",
        )
    return SentTable(len(rows), new, len(acknowledged))


def main() -> int:
    """0 done, 1 a fault, 2 a wrong setting."""
    parser = make_parser("send", (__doc__ or "").partition("\n")[0])
    parser.add_argument("--channel", required=True, help="the channel's id")
    parser.add_argument("--from", dest="source", required=True, help="Delta table of row_id, payload")
    parser.add_argument("--topic", help="content topic; /reliable-channel/1/<channel>/proto by default")
    parser.add_argument("--sender", help="sender id; the database's own by default")
    parser.add_argument("--database", type=Path, help="state file; channel.sqlite in the run directory by default")
    parser.add_argument("--until", choices=["queued", "sent", "delivered"], default="sent", help="what to wait for")
    parser.add_argument("--wait", type=float, default=600.0, help="seconds to wait for it")
    options = parser.parse_args()
    who = ParticipantOptions(options.channel, options.topic, options.sender, options.database)

    def run(settings: Settings) -> None:
        with spark_session(settings, "reliable-channel send") as spark:
            source = spark.read.format("delta").load(options.source)
            done = send_table(spark, settings, who, source, options.wait, options.until)
        sys.stdout.write(
            f"{done.rows} rows are sent, {done.new} of them new, {done.acknowledged} acknowledged by somebody; "
            f"their segments are in {settings.paths.table(SENT_ROWS.name)}\n"
        )

    return run_job("send", options.config, run)


if __name__ == "__main__":
    sys.exit(main())
