"""The ack query: the SDS state machine per channel (:mod:`.channel_state`), in ``transformWithStateInPandas``.

Reads ``ordered_sds_messages``; writes ``deliveries``, ``delivered_messages``, ``acks``, ``refetch_requests``,
``lost_dependencies``, ``repair_requests`` and ``channel_events``. The tasks that write the results also look up the
payloads of delivered messages (:mod:`.deliver`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import PathSettings, Settings
from reliable_channel.config.channels import ChannelsSettings
from reliable_channel.core.sds import SdsParameters
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.schema import Row
from reliable_channel.lake.tables import (
    ACKS,
    CHANNEL_EVENTS,
    CHANNEL_KEY,
    DELIVERED_MESSAGES,
    DELIVERIES,
    LOST_DEPENDENCIES,
    ORDERED_SDS_MESSAGES,
    RECORD_KEY,
    REFETCH_REQUESTS,
    REPAIR_REQUESTS,
    TIMERS,
)
from reliable_channel.pipeline import guarded, timers
from reliable_channel.pipeline.ack import output_rows
from reliable_channel.pipeline.ack.buckets import Buckets, Update
from reliable_channel.pipeline.ack.channel_state import BucketState, Channels, Rules
from reliable_channel.pipeline.ack.deliver import messages_of
from reliable_channel.pipeline.ack.observer import ChannelKey, ChannelObserver
from reliable_channel.pipeline.ack.records import InputRow, row_of
from reliable_channel.pipeline.delta import running
from reliable_channel.pipeline.gc_paused import exempt_survivors, gc_paused
from reliable_channel.pipeline.result_files import PACKED, RESULTS, Result, packed, written_results
from reliable_channel.pipeline.session import own_workers

JOB = "ack"
_OF_STATE = (ACKS, REFETCH_REQUESTS, LOST_DEPENDENCIES, REPAIR_REQUESTS, CHANNEL_EVENTS, DELIVERIES)
TABLES_WRITTEN = (*_OF_STATE, DELIVERED_MESSAGES)

_TICK_COLUMNS = ORDERED_SDS_MESSAGES.types(*CHANNEL_KEY, "row_kind", *RECORD_KEY, "sub_order") | {"event_us": "BIGINT"}
_TICK = ", ".join(f"{name} {type_}" for name, type_ in _TICK_COLUMNS.items())
_IN_TEXT = ("sub_order", *(name for name in InputRow._fields if name != "bloom_filter"))
"""The columns of a row that are passed as one JSON text: creating objects from Arrow's columns costs more, and a
channel's journal stores the text."""

BUCKETS_PER_PARTITION = 8
"""The number of keys of the state in each shuffle partition. Each key that a micro-batch touches costs 2 ms of CPU, and
the rows of one key are in memory together. Changing it requires new checkpoints."""

_OUT = "kind string, results binary"


def acknowledged(settings: Settings, update: Update | None = None) -> Callable[[DataFrame], DataFrame]:
    """The transformation of the stream of ``ordered_sds_messages`` to packed results, by one SDS state machine per
    channel. ``update``: processes the rows of a bucket; by default :func:`configured`."""
    update = update or configured(settings)

    def transform(ordered_sds_messages: DataFrame) -> DataFrame:
        rows = ordered_sds_messages.withColumn("event_us", F.unix_micros("event_time"))
        messages = rows.where("row_kind <> 'tick'").select(*CHANNEL_KEY, _text(_IN_TEXT), "bloom_filter")
        ticks = (
            rows.where("row_kind = 'tick'")
            .select(*RECORD_KEY, "sub_order", "event_us")
            .coalesce(1)  # there are few rows, and every Python task costs as much as reading them
            .mapInPandas(due_timer_rows(settings.paths), _TICK)
        )
        due = ticks.select(
            *CHANNEL_KEY,
            _text([name for name in _TICK_COLUMNS if name not in CHANNEL_KEY]),
            F.lit(None).cast("binary").alias("bloom_filter"),
        )
        by_bucket = messages.unionByName(due).withColumn("bucket", bucket_of(settings, *CHANNEL_KEY)).groupBy("bucket")
        with own_workers(ordered_sds_messages.sparkSession, JOB):  # they cache live channels
            return by_bucket.transformWithStateInPandas(Buckets(update), _OUT, "append", "none")

    return transform


def bucket_of(settings: Settings, *channel_key: str | Column) -> Column:
    """The key of the state that holds the channel with this key."""
    buckets = settings.spark.shuffle_partitions * BUCKETS_PER_PARTITION
    return F.pmod(F.xxhash64(*channel_key), F.lit(buckets)).cast("int")


def _text(columns: Sequence[str]) -> Column:
    return F.to_json(F.struct(*columns)).alias("row")


def due_timer_rows(paths: PathSettings) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """A function from tick rows to one row for every channel whose timer is due."""
    return timers.due_rows(
        paths,
        JOB,
        _TICK_COLUMNS,
        lambda key: {**dict(zip(CHANNEL_KEY, json.loads(key), strict=True)), "row_kind": "tick"},
    )


def configured(settings: Settings) -> Update:
    """:func:`stateful` with the values of a configuration."""
    own = settings.channels.participant_id
    return stateful(own, settings.sds, settings.pipeline.channel_expiry_ms, settings.channels)


def stateful(
    participant_id: str | None, config: SdsParameters, expiry_ms: int | None, channels: ChannelsSettings | None = None
) -> Update:
    """The ``update`` function of :class:`.buckets.Buckets`: processes the channels of one bucket, each in record order.
    ``channels`` gives the SDS family of a content topic: filter, clock and history differ."""
    known: dict[SdsParameters, Rules] = {}

    def rules_of(key: ChannelKey) -> Rules:
        sds = config if channels is None else channels.sds_config(config, key[1], key[0])
        if sds not in known:
            known[sds] = Rules(participant_id, sds, expiry_ms)
        return known[sds]

    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: BucketState) -> Iterator[pd.DataFrame]:
        now = running()
        bucket = Channels(state, int(key[0]), rules_of, "" if now is None else now[0])
        with gc_paused():
            by_channel = _by_channel(frames).items()
            # Yielded as they are made, so that another process writes them in the meantime.
            results = chain.from_iterable(taken(bucket, channel, rows) for channel, rows in by_channel)
            while some := [*islice(results, PACKED)]:
                yield pd.DataFrame([(RESULTS, blob) for blob in packed(some)], columns=["kind", "results"])
        bucket.close()
        exempt_survivors()

    return update


_Given = tuple[str, bytes | None]
"""The text and the Bloom filter of a row."""


def taken(channels: Channels, key: ChannelKey, given: Sequence[_Given]) -> Iterator[Result]:
    """Process one channel's rows of a micro-batch; yields their results."""
    ordered = sorted(_in_order(given), key=lambda row: row[0])
    live = channels.load(key)
    before = live.observer.next_due_us()

    def restored(blob: bytes | None) -> ChannelObserver:
        return channels.restored(key).observer if blob is None else live.rules.observer(key, blob)

    live.observer, failed = yield from guarded_rows(live.observer, restored, [row for _, row, _ in ordered])
    bad = set(failed)
    kept = [text_and_filter for number, (_, _, text_and_filter) in enumerate(ordered) if number not in bad]
    channels.store(key, live, [text for text, _ in kept], [some for _, some in kept])
    if failed:
        yield guarded.FailedRows(len(failed))
    after = live.observer.next_due_us()
    if after != before:
        yield timers.TimerChange(json.dumps(key, ensure_ascii=False), live.observer.place, after)


def guarded_rows(
    observer: ChannelObserver, restore: Callable[[bytes | None], ChannelObserver], rows: Sequence[InputRow]
) -> Generator[Row, None, tuple[ChannelObserver, list[int]]]:
    """Apply the rows of a channel to its observer; a row on which the program fails becomes a ``channel_events`` row
    (:func:`reliable_channel.pipeline.guarded.taken`)."""
    return guarded.taken(observer, restore, rows, ChannelObserver.take, _failed)


def _failed(observer: ChannelObserver, row: InputRow, error: Exception) -> Row:
    detail = f"{row.row_kind} row: {guarded.reason_of(error)}"
    base = observer.base(row.event_us // 1000)
    return output_rows.channel_event(base, guarded.EVENT, row.sds_id, row.sender_id, detail, row)


def _by_channel(frames: Iterator[pd.DataFrame]) -> dict[ChannelKey, list[_Given]]:
    """Group a bucket's rows of a micro-batch by channel."""
    found: dict[ChannelKey, list[_Given]] = {}
    for frame in frames:
        columns = (frame[name].tolist() for name in (*CHANNEL_KEY, "row", "bloom_filter"))
        for pubsub_topic, content_topic, channel_id, text, bloom_filter in zip(*columns, strict=True):
            some = None if bloom_filter is None else bytes(bloom_filter)
            found.setdefault((pubsub_topic, content_topic, channel_id), []).append((text, some))
    return found


def _in_order(given: Sequence[_Given]) -> Iterator[tuple[tuple[int, int, int], InputRow, _Given]]:
    """Rows with their positions in the record order. A row that cannot be read becomes one of kind ``unreadable``."""
    for one in given:
        fields = json.loads(one[0])
        # A completed row precedes the record that completed the message. Otherwise messages that wait for that record
        # would be delivered before the message.
        sub_order = -1 if fields["row_kind"] == "completed" else fields["sub_order"]
        place = (fields["kafka_partition"], fields["kafka_offset"])
        try:
            row = row_of(fields, one[1])
        except (ValueError, TypeError, KeyError, AttributeError):
            at = (fields["kafka_topic"], *place, fields["event_us"])
            row = InputRow("unreadable", *at, fields.get("sender_id"), fields.get("sds_id"))
        yield (*place, sub_order), row, one


def written(rows: DataFrame, sink: BatchSink) -> None:
    """Write the results of one micro-batch."""
    sink.open_ahead(DELIVERIES, DELIVERED_MESSAGES, ACKS, TIMERS)
    results = written_results(rows, sink, {DELIVERIES.name: messages_of})
    sink.together(
        *(partial(sink.add_files, table, results.files) for table in TABLES_WRITTEN),
        partial(timers.record, sink, JOB, results.of(timers.TimerChange)),
    )
