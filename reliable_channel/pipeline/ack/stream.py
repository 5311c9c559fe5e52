"""The ack query: the SDS state machine per channel (:mod:`.channel_state`), in ``transformWithStateInPandas``.

Reads ``ordered_sds_messages``; writes ``deliveries``, ``delivered_messages``, ``acks``, ``refetch_requests``,
``lost_dependencies``, ``repair_requests`` and ``channel_events``. The tasks that write the results also look up the
payloads of delivered messages (:mod:`.deliver`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import Settings
from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.wire.sds import WireFamily
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.schema import Row
from reliable_channel.lake.tables import (
    ACKS,
    CHANNEL_EVENTS,
    CHANNEL_KEY,
    DELIVERED_MESSAGES,
    DELIVERIES,
    LOST_DEPENDENCIES,
    REFETCH_REQUESTS,
    REPAIR_REQUESTS,
    TopicPartition,
)
from reliable_channel.pipeline import guarded
from reliable_channel.pipeline.ack import output_rows
from reliable_channel.pipeline.ack.buckets import Buckets, StoredBucket, Update
from reliable_channel.pipeline.ack.channel_state import Channels, Given, Rules
from reliable_channel.pipeline.ack.deliver import make_messages
from reliable_channel.pipeline.ack.observer import ChannelKey, ChannelObserver
from reliable_channel.pipeline.ack.records import InputRow, load_fields, row_of
from reliable_channel.pipeline.delta import running
from reliable_channel.pipeline.gc_paused import exempt_survivors, gc_paused
from reliable_channel.pipeline.result_files import PACKED, RESULTS, Result, pack, write_results
from reliable_channel.pipeline.session import own_workers

JOB = "ack"
_OF_STATE = (ACKS, REFETCH_REQUESTS, LOST_DEPENDENCIES, REPAIR_REQUESTS, CHANNEL_EVENTS, DELIVERIES)
TABLES_WRITTEN = (*_OF_STATE, DELIVERED_MESSAGES)

_IN_TEXT = ("sub_order", *(name for name in InputRow._fields if name != "bloom_filter"))
"""The columns of a row that are passed as one JSON text: creating objects from Arrow's columns costs more, and a
channel's journal stores the text."""

BUCKETS_PER_PARTITION = 8
"""The number of keys of the state in each shuffle partition. A micro-batch touches all of them, because a tick goes to
each, and each costs 2 ms of CPU (docs/decisions.md, *Where the first design was wrong or short*); the rows of one key
are in memory together. Changing it requires new checkpoints."""

_KEY = (*CHANNEL_KEY, "family")
_OUT = "kind string, results binary"


def acknowledge(settings: Settings, update: Update | None = None) -> Callable[[DataFrame], DataFrame]:
    """The transformation of the stream of ``ordered_sds_messages`` to packed results, by one SDS state machine per
    channel. ``update``: processes the rows of a bucket; by default :func:`stateful`."""
    own, expiry_ms = settings.channels.participant_id, settings.pipeline.channel_expiry_ms
    update = update or stateful(own, settings.sds, expiry_ms)

    def transform(ordered_sds_messages: DataFrame) -> DataFrame:
        spark = ordered_sds_messages.sparkSession
        rows = ordered_sds_messages.withColumn("event_us", F.unix_micros("event_time"))
        # A tick moves the time of every channel in its Kafka partition; which ones these are, only the buckets know.
        every = F.sequence(F.lit(0), F.lit(_count_buckets(spark) - 1))
        of_row = F.when(F.col("row_kind") == "tick", every).otherwise(F.array(bucket_of(spark, *CHANNEL_KEY)))
        text = F.to_json(F.struct(*_IN_TEXT)).alias("row")
        by_bucket = rows.select(F.explode(of_row).alias("bucket"), *_KEY, text, "bloom_filter").groupBy("bucket")
        # Not applyInPandasWithState, whose state of a key is one value, read and written whole at every touch. No time
        # mode, and so no timers of Spark's: they fire when a micro-batch happens to run, and the rows must not depend
        # on that (docs/decisions.md, *Where the first design was wrong or short*).
        with own_workers(spark, JOB):  # they cache live channels
            return by_bucket.transformWithStateInPandas(Buckets(update), _OUT, "append", "none")

    return transform


def bucket_of(spark: SparkSession, *channel_key: str | Column) -> Column:
    """The key of the state that holds the channel with this key."""
    return F.pmod(F.xxhash64(*channel_key), F.lit(_count_buckets(spark))).cast("int")


def _count_buckets(spark: SparkSession) -> int:
    # Of the session, which is compared with the checkpoint: `spark-submit` may give another number than the
    # configuration, and a channel in another bucket would begin anew.
    return int(str(spark.conf.get("spark.sql.shuffle.partitions"))) * BUCKETS_PER_PARTITION


def stateful(participant_id: str | None, config: SdsParameters, expiry_ms: int | None) -> Update:
    """The ``update`` function of :class:`.buckets.Buckets`: processes the channels of one bucket, each in record
    order, with the filter, clock and history of its family."""
    rules = {family.value: Rules(participant_id, config.in_family(family), expiry_ms) for family in WireFamily}

    def rules_of(key: ChannelKey) -> Rules:
        return rules[key[-1]]

    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: StoredBucket) -> Iterator[pd.DataFrame]:
        now = running()
        bucket = Channels(state, int(key[0]), rules_of, "" if now is None else now[0])
        with gc_paused():
            # Yielded as they are made, so that another process writes them in the meantime.
            results = process(bucket, frames)
            while some := [*islice(results, PACKED)]:
                yield pd.DataFrame([(RESULTS, blob) for blob in pack(some)], columns=["kind", "results"])
            bucket.close()
            exempt_survivors()  # in the block, whose end would scan what it has made

    return update


_Ordered = tuple[InputRow, Given]
Ticks = dict[TopicPartition, _Ordered]
"""Kafka partition → its last tick of a micro-batch."""


def process(channels: Channels, frames: Iterator[pd.DataFrame]) -> Iterator[Result]:
    """Process a bucket's rows of a micro-batch, and what its ticks let fall due; yields the results."""
    by_channel, ticks = _group_by_channel(frames)
    due = channels.due({topic_partition: tick.event_us for topic_partition, (tick, _) in ticks.items()})
    # Sorted: the order of a set depends on the hash seed of the process, and that of the results should not.
    for key in (*by_channel, *sorted(due - by_channel.keys())):
        yield from process_channel(channels, key, by_channel.get(key, ()), ticks)


def process_channel(channels: Channels, key: ChannelKey, given: Sequence[Given], ticks: Ticks) -> Iterator[Result]:
    """Process one channel's rows of a micro-batch, and the tick of its Kafka partition if something is due by then;
    yields their results.

    The tick comes last, although rows may have come after it: these have run what was due before them."""
    live = channels.load(key)
    kept: list[_Ordered] = []

    def restore_observer(blob: bytes | None) -> ChannelObserver:
        if blob is not None:
            return live.rules.observer(key, blob)
        observer = channels.restore(key).observer
        for row, _ in kept:
            observer.take(row)
        return observer

    def apply_ordered(rows: Sequence[_Ordered]) -> Iterator[Result]:
        live.observer, failed = yield from apply_rows(live.observer, restore_observer, [row for row, _ in rows])
        bad = set(failed)
        kept.extend([each for number, each in enumerate(rows) if number not in bad])
        if failed:
            yield guarded.FailedRows(len(failed))

    yield from apply_ordered(_sort_rows(given))
    tick = ticks.get(live.observer.topic_partition)
    if tick is not None and live.observer.is_due(tick[0].event_us):
        yield from apply_ordered([tick])
    channels.store(live, [one for _, one in kept])


def apply_rows(
    observer: ChannelObserver, restore: Callable[[bytes | None], ChannelObserver], rows: Sequence[InputRow]
) -> Generator[Row, None, tuple[ChannelObserver, list[int]]]:
    """Apply the rows of a channel to its observer; a row on which the program fails becomes a ``channel_events`` row
    (:func:`reliable_channel.pipeline.guarded.apply_guarded`)."""
    return guarded.apply_guarded(observer, restore, rows, ChannelObserver.take, _make_failure_row)


def _make_failure_row(observer: ChannelObserver, row: InputRow, error: Exception) -> Row:
    detail = f"{row.row_kind} row: {guarded.reason_of(error)}"
    base = observer.base(row.event_us // 1000)
    return output_rows.channel_event(base, guarded.EVENT, row.sds_id, row.sender_id, detail, row)


def _group_by_channel(frames: Iterator[pd.DataFrame]) -> tuple[dict[ChannelKey, list[Given]], Ticks]:
    """Group a bucket's rows of a micro-batch by channel, and keep the last tick of each Kafka partition."""
    by_channel: dict[ChannelKey, list[Given]] = {}
    ticks: Ticks = {}
    for frame in frames:
        columns = (frame[name].tolist() for name in (*_KEY, "row", "bloom_filter"))
        for pubsub_topic, content_topic, channel_id, family, text, bloom_filter in zip(*columns, strict=True):
            if channel_id is None:
                tick = row_of(load_fields(text), None)
                last = ticks.setdefault((tick.kafka_topic, tick.kafka_partition), (tick, (text, None)))
                if last[0].event_us < tick.event_us:
                    ticks[tick.kafka_topic, tick.kafka_partition] = (tick, (text, None))
                continue
            some = None if bloom_filter is None else bytes(bloom_filter)
            by_channel.setdefault((pubsub_topic, content_topic, channel_id, family), []).append((text, some))
    return by_channel, ticks


def _sort_rows(given: Sequence[Given]) -> list[_Ordered]:
    """Rows in record order. A row that cannot be read becomes one of kind ``unreadable``."""
    placed: list[tuple[tuple[int, int, int], _Ordered]] = []
    for one in given:
        fields = load_fields(one[0])
        # A completed row precedes the record that completed the message. Otherwise messages that wait for that record
        # would be delivered before the message.
        sub_order = -1 if fields["row_kind"] == "completed" else fields["sub_order"]
        position = (fields["kafka_partition"], fields["kafka_offset"])
        try:
            row = row_of(fields, one[1])
        except (ValueError, TypeError, KeyError, AttributeError):
            at = (fields["kafka_topic"], *position, fields["event_us"])
            row = InputRow("unreadable", *at, fields.get("sender_id"), fields.get("sds_id"))
        placed.append(((*position, sub_order), (row, one)))
    placed.sort(key=lambda each: each[0])
    return [each for _, each in placed]


def write_batch(rows: DataFrame, sink: BatchSink) -> None:
    """Write the results of one micro-batch."""
    sink.open_ahead(DELIVERIES, DELIVERED_MESSAGES, ACKS)
    results = write_results(rows, sink, {DELIVERIES.name: make_messages})
    # Side by side, because none of these tables leads its readers to another one.
    sink.together(*(partial(sink.add_files, table, results.files) for table in TABLES_WRITTEN))
