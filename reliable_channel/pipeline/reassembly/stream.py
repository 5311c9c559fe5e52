"""The reassembly query: rebuilds payloads from segments, and passes on all SDS messages in record order.

Reads ``sds_messages``; writes ``ordered_sds_messages``, ``reassembled_messages`` and ``incomplete_messages``. Rows that
are no segments pass straight through. Segments go to buckets of payload hashes (:mod:`.bucket`), which rebuild the sets
and store those that stay open. Only the Reassembler removes duplicates, because no earlier step knows which copy came
first (docs/pipeline.md *Reassembly*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import PathSettings, Settings
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    CHANNEL_EVENTS,
    INCOMPLETE_MESSAGES,
    ORDERED_SDS_MESSAGES,
    REASSEMBLED_MESSAGES,
)
from reliable_channel.pipeline.gc_paused import gc_paused
from reliable_channel.pipeline.keyed_state.buckets import Buckets, BucketState, Update, with_bucket
from reliable_channel.pipeline.reassembly.already_reported import without_already_reported
from reliable_channel.pipeline.reassembly.bucket import IN_TEXT, SetRules, StoredSets, process
from reliable_channel.pipeline.reassembly.set_results import ReportedSet
from reliable_channel.pipeline.reassembly.sets import SegmentDecryptor
from reliable_channel.pipeline.result_files import PACKED_ROW, packed_frames, written_results

TABLES_WRITTEN = (ORDERED_SDS_MESSAGES, REASSEMBLED_MESSAGES, INCOMPLETE_MESSAGES, CHANNEL_EVENTS)
TICK_SUB_ORDER = 1_000_000
"""Ticks are ordered after all rows of the preceding record."""


def reassembled(settings: Settings, update: Update | None = None) -> Callable[[DataFrame], DataFrame]:
    """The transformation of the stream of ``sds_messages`` to rows of ``ordered_sds_messages`` and packed results of
    reassembly. ``update``: processes the rows of a bucket; by default :func:`stateful`."""
    update = update or stateful(settings)

    def transform(segments: DataFrame) -> DataFrame:
        rows = segments.where("sds_kind = 'tick' or segment_kind in ('data', 'parity') and content is not null")
        rows = rows.withColumn("event_us", F.unix_micros("event_time"))
        given = with_bucket(rows, settings, F.col("sds_kind") == "tick", "entire_message_hash")
        text = F.to_json(F.struct(*IN_TEXT)).alias("row")
        by_bucket = given.select("bucket", text, "content").groupBy("bucket")
        results = by_bucket.transformWithStateInPandas(Buckets(update), PACKED_ROW, "append", "none")
        return passed_through(segments).unionByName(results, allowMissingColumns=True)

    return transform


def stateful(settings: Settings) -> Update:
    """The ``update`` function of :class:`~reliable_channel.pipeline.keyed_state.buckets.Buckets`: rebuilds the payloads
    of one bucket."""
    rules = SetRules(settings.segmentation, settings.paths, SegmentDecryptor(settings.channels))

    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: BucketState) -> Iterator[pd.DataFrame]:
        stored = StoredSets(state)
        with gc_paused():
            yield from packed_frames(process(stored, frames, rules))
        stored.close()

    return update


def passed_through(segments: DataFrame) -> DataFrame:
    """The metadata of every SDS message, and the ticks, as rows of ``ordered_sds_messages``; no shuffle, no Python."""
    tick = F.col("sds_kind") == "tick"
    special = {
        "sub_order": F.when(tick, TICK_SUB_ORDER).otherwise(0).cast("int"),
        "row_kind": F.when(tick, "tick").otherwise("message"),
    }
    present = set(segments.columns)
    names = [name for name in ORDERED_SDS_MESSAGES.names() if name in special or name in present]
    return segments.select(
        F.lit(ORDERED_SDS_MESSAGES.name).alias("kind"), *(special.get(name, F.col(name)).alias(name) for name in names)
    )


def written(rows: DataFrame, sink: BatchSink) -> None:
    """Write the results of one micro-batch: payloads before the rows that refer to them."""
    sink.open_ahead(REASSEMBLED_MESSAGES, ORDERED_SDS_MESSAGES)
    results = written_results(rows, sink)
    sink.add_files(REASSEMBLED_MESSAGES, results.files)
    incomplete = _incomplete_files(results.of(ReportedSet), sink.paths)
    sink.together(
        *(partial(sink.add_files, table, results.files) for table in (CHANNEL_EVENTS, ORDERED_SDS_MESSAGES)),
        partial(sink.add_files, INCOMPLETE_MESSAGES, incomplete),
    )


def _incomplete_files(reported: Sequence[ReportedSet], paths: PathSettings) -> list[WrittenFile]:
    """Write the reported sets that hold something new to a file of ``incomplete_messages``. They are few."""
    sets = [
        {**each.fields, "entire_message_hash": bytes.fromhex(each.fields["entire_message_hash"])} for each in reported
    ]
    rows = without_already_reported(sets, paths) if sets else []
    if not rows:
        return []
    with TaskFiles(paths) as files:
        files.add(INCOMPLETE_MESSAGES, as_arrow(rows, INCOMPLETE_MESSAGES))
        return files.finish()
