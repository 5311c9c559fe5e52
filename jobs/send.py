"""A sender in the Spark driver: outgoing messages from a Delta table into a reliable channel, and what became of them.

``spark-submit jobs/send.py --channel ID --from TABLE [--config FILE] …``

``TABLE`` has the columns ``row_id`` (string, unique) and ``payload`` (binary). Every row is one message with one SDS
identity: its id is the send's label, kept with the SDS bytes before anything is dispatched. So a re-run, after a crash
at any point or over a table that has grown, sends the same bytes for the same row, and receivers see one message.
Segmentation, rate limit and back-pressure are the channel's. The table ``sent_rows`` gets one row per message with its
segments' ids; joined with ``acks`` it says who has acknowledged which row.

Only the driver sends: a channel has one clock and one rate limit. Rows come to it one partition at a time.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name Spark's users know

from reliable_channel.channel import ReliableChannel
from reliable_channel.config import Settings, load
from reliable_channel.errors import ConfigurationError, EnvironmentFault, LocalError
from reliable_channel.gateway.participant import Participant, participant
from reliable_channel.pipeline.storage.ddl import create_tables
from reliable_channel.pipeline.storage.io import append_frame, exists, read_table
from reliable_channel.pipeline.tables import ACKS, SENT_ROWS
from reliable_channel.runtime.faults import ended_by
from reliable_channel.runtime.spark import spark_session
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.sds import decode_sds_message

SENDER = ["pubsub_topic", "content_topic", "channel_id", "sender_id"]
"""A sender in a channel: its row ids and its SDS ids are its own."""


def send_rows(channel: ReliableChannel, rows: Iterable[Row]) -> Iterator[Row]:
    """Send every row that was not sent yet, in their order; one row of ``sent_rows`` for each. Raises
    ``MessageTooLarge`` and ``EmptyMessage`` naming the row, and as ``ReliableChannel.send``."""
    for row in rows:
        try:
            channel.send(bytes(row["payload"]), label=row["row_id"])
        except LocalError as error:
            raise type(error)(f"Row {row['row_id']!r}: {error.cause}", error.remedy) from None
        kept = channel.labelled(row["row_id"])
        if kept is None:
            raise EnvironmentFault(f"Row {row['row_id']!r} was sent and is not kept.", "Use a durable persistence.")
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


def with_acknowledgements(sent: DataFrame, acks: DataFrame) -> DataFrame:
    """``sent`` with ``acknowledged_by`` (array of participants) and ``acknowledged_at``: a participant has acknowledged
    a row when any ``required`` of its segments are acknowledged by it (protocol.md §5)."""
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
    whole = per_participant.groupBy(*row).agg(
        F.sort_array(F.collect_set("acknowledged_by")).alias("acknowledged_by"),
        F.min(F.element_at("at", F.col("required"))).alias("acknowledged_at"),
    )
    return sent.join(whole, row, "left").withColumn(
        "acknowledged_by", F.coalesce("acknowledged_by", F.array().cast("array<string>"))
    )


def append_new(spark: SparkSession, settings: Settings, rows: list[Row]) -> None:
    """Add the rows that ``sent_rows`` does not have yet; a re-run adds nothing twice."""
    create_tables(settings.paths, [SENT_ROWS])
    known = read_table(spark, settings.paths, SENT_ROWS)
    new = spark.createDataFrame([tuple(row[name] for name in SENT_ROWS.names()) for row in rows], SENT_ROWS.ddl())
    new = new.join(known, list(SENT_ROWS.key), "left_anti").select(*SENT_ROWS.names())
    append_frame(settings.paths, SENT_ROWS, new)


def send_table(spark: SparkSession, settings: Settings, who: Participant, source: DataFrame, wait_s: float) -> int:
    """Send the rows of ``source``, note them in ``sent_rows``, wait until the broker has them; how many were sent."""
    missing = {"row_id", "payload"} - set(source.columns)
    if missing:
        raise ConfigurationError(f"The source has no column {', '.join(sorted(missing))}.", "Name and type as above.")
    with participant(settings, who) as seat:
        seat.start()
        ordered = source.select("row_id", "payload").orderBy("row_id").toLocalIterator(prefetchPartitions=True)
        rows = list(send_rows(seat.channel, ordered))
        if not seat.channel.wait([row["send_id"] for row in rows], timeout_s=wait_s):
            raise EnvironmentFault(f"Not everything was sent within {wait_s:g} s.", "Run again: it goes on.")
    if rows:
        append_new(spark, settings, rows)
    return len(rows)


def main() -> int:
    """0 done, 1 a fault, 2 a wrong setting."""
    parser = argparse.ArgumentParser(prog="jobs/send.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--channel", required=True, help="the channel's id")
    parser.add_argument("--from", dest="source", required=True, help="Delta table of row_id, payload")
    parser.add_argument("--topic", help="content topic; /reliable-channel/1/<channel>/proto by default")
    parser.add_argument("--sender", help="sender id; the database's own by default")
    parser.add_argument("--database", type=Path, help="state file; channel.sqlite in the run directory by default")
    parser.add_argument("--wait", type=float, default=600.0, help="seconds to wait for the broker")
    parser.add_argument("--config", help="a YAML file, or the name of one in conf/")
    options = parser.parse_args()
    who = Participant(options.channel, options.topic, options.sender, options.database)
    try:
        settings = load(options.config)
        with spark_session(settings, "reliable-channel send") as spark:
            source = spark.read.format("delta").load(options.source)
            count = send_table(spark, settings, who, source, options.wait)
            place = settings.paths.table(SENT_ROWS.name)
            sys.stdout.write(f"{count} messages sent; their segments stand in {place}\n")
            if count and exists(settings.paths, ACKS):
                sent, acks = (read_table(spark, settings.paths, table) for table in (SENT_ROWS, ACKS))
                done = with_acknowledgements(sent, acks).where(F.size("acknowledged_by") > 0).count()
                sys.stdout.write(f"{done} rows are acknowledged by somebody\n")
    except Exception as error:  # whatever it is, a person gets one sentence
        return ended_by(error, "send")
    return 0


if __name__ == "__main__":
    sys.exit(main())
