"""The reassembly query: rebuilds payloads from segments, and passes on all SDS messages in record order.

Reads ``sds_messages``; writes ``ordered_sds_messages``, ``reassembled_messages`` and ``incomplete_messages``. Rows that
need no state pass straight through. Segments go to the combiner, which rebuilds and writes the sets that are complete
within the micro-batch; partial sets go to keyed state. The combiner's reports to the driver pass through the same
operator under the key ``REPORTS``: a second branch of the plan would run the combiner twice. Only the Reassembler
removes duplicates, because no earlier step knows which copy came first (docs/pipeline.md *Reassembly*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.schema import Row, as_arrow
from reliable_channel.lake.tables import (
    CHANNEL_EVENTS,
    INCOMPLETE_MESSAGES,
    ORDERED_SDS_MESSAGES,
    REASSEMBLED_MESSAGES,
    RECORD_KEY,
    TIMERS,
)
from reliable_channel.pipeline import guarded
from reliable_channel.pipeline.clock import TopicPartition
from reliable_channel.pipeline.reassembly import timers
from reliable_channel.pipeline.reassembly.already_reported import drop_already_reported
from reliable_channel.pipeline.reassembly.combiner import REPORTS, ROW_COLUMNS, TICK, TICKS, Combiner
from reliable_channel.pipeline.reassembly.set_results import ReportedSet, failure_result
from reliable_channel.pipeline.reassembly.sets import STATE_VERSION, HashSets, SegmentDecryptor, SegmentRow
from reliable_channel.pipeline.result_files import RESULTS, Result, pack, write_results

TABLES_WRITTEN = (ORDERED_SDS_MESSAGES, REASSEMBLED_MESSAGES, INCOMPLETE_MESSAGES, CHANNEL_EVENTS)
TICK_SUB_ORDER = 1_000_000
"""Ticks are ordered after all rows of the preceding record."""

_ROW = ", ".join(f"{name} {type_}" for name, type_ in ROW_COLUMNS.items())
_OUT = "kind string, results binary"
_STATE = "version int, blob binary"

Dues = Mapping[TopicPartition, int]


def reassemble(settings: Settings, *, combined: bool = True) -> Callable[[DataFrame], DataFrame]:
    """The transformation of the stream of ``sds_messages`` to rows of ``ordered_sds_messages`` and packed results of
    reassembly. ``combined=False`` sends every segment through keyed state, for comparison in the benchmark."""

    def transform(segments: DataFrame) -> DataFrame:
        rows = segments.where("sds_kind = 'tick' or segment_kind in ('data', 'parity') and content is not null").select(
            *_segment_columns()
        )
        if combined:
            rows = rows.repartition(F.col("state_key")).mapInArrow(Combiner(settings), _ROW)
        else:
            ticks = rows.where(F.col("kind") == TICK).select(*RECORD_KEY, "event_us")
            due = ticks.mapInPandas(due_timer_rows(settings.paths), _ROW)
            rows = rows.where(F.col("kind") != TICK).unionByName(due)
        results = rows.groupBy("state_key").applyInPandasWithState(
            KeyedSets(settings.segmentation, SegmentDecryptor(settings.channels)),
            _OUT,
            _STATE,
            "append",
            GroupStateTimeout.NoTimeout,
        )
        return pass_through(segments).unionByName(results, allowMissingColumns=True)

    return transform


def pass_through(segments: DataFrame) -> DataFrame:
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


def _segment_columns() -> list[Any]:
    tick = F.col("sds_kind") == "tick"
    special = {
        "state_key": F.when(tick, F.lit(TICKS)).otherwise(F.col("entire_message_hash")),
        "kind": F.when(tick, TICK).otherwise("segment"),
        "event_us": F.unix_micros("event_time"),
        "lamport_timestamp": F.col("lamport_timestamp").cast("string"),
        "sub_order": F.lit(0),
    }
    return [special.get(name, F.col(name)).alias(name) for name in ROW_COLUMNS]


def due_timer_rows(paths: PathSettings) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """A function from tick rows to one row for every key whose timer is due."""
    return timers.due_rows(paths, ROW_COLUMNS, lambda key: {"state_key": bytes.fromhex(key), "kind": "tick"})


class KeyedSets:
    """The function for ``applyInPandasWithState``: updates the sets of one hash, and passes the combiner's reports
    on."""

    def __init__(self, config: SegmentationConfig, decrypt: Callable[[SegmentRow], SegmentRow]) -> None:
        self._config, self._decrypt = config, decrypt

    def __call__(
        self, key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        hash_ = bytes(key[0])
        if hash_ == REPORTS:
            for frame in frames:
                yield frame.rename(columns={"content": "results"})[["kind", "results"]]
            return
        given = [row for frame in frames for row in frame.to_dict("records")]
        handed_on = [bytes(row["content"]) for row in given if row["kind"] == "sets"]
        rows = [row for row in given if row["kind"] != "sets"]
        rows.sort(key=lambda row: (row["kafka_partition"], row["kafka_offset"], row["kind"] == "tick"))
        restored = partial(self._restore, state, handed_on)
        sets = restored(None)
        before = sets.dues() if state.exists else {}
        steps = guarded.apply_guarded(sets, restored, rows, self._take, _failure_row)
        results, (sets, failed) = guarded.collect(steps)
        blob = sets.to_bytes()
        if blob:
            state.update((STATE_VERSION, blob))
        elif state.exists:
            state.remove()
        results += [*_timers(hash_, before, sets.dues()), *([guarded.FailedRows(len(failed))] if failed else [])]
        if results:
            yield pd.DataFrame([(RESULTS, blob) for blob in pack(results)], columns=["kind", "results"])

    def _take(self, sets: HashSets, row: dict[str, Any]) -> list[Result]:
        if row["kind"] == "segment":
            return sets.add(self._decrypt(_segment_row(row)))
        place = (row["kafka_topic"], int(row["kafka_partition"]))
        return sets.tick(place, int(row["kafka_offset"]), int(row["event_us"]))

    def _restore(self, state: GroupState, handed_on: list[bytes], blob: bytes | None) -> HashSets:
        """Restore the sets from ``blob``; without one, the sets at the beginning of the micro-batch, from the state or
        from the combiner."""
        if blob is not None:
            return HashSets.from_bytes(blob, self._config)
        if not state.exists:
            return HashSets.from_bytes(handed_on[0], self._config) if handed_on else HashSets(self._config)
        version, stored = state.get
        if version != STATE_VERSION:
            raise RuntimeError(
                f"Reassembly state of version {version} is unknown to this program (it writes {STATE_VERSION})."
                " Run the program that wrote it, or start over with `reliable-channel rebuild`."
            )
        if handed_on:
            raise RuntimeError(
                "The state has a hash that is not in the table timers: rows are missing there."
                " Start over with `reliable-channel rebuild`."
            )
        return HashSets.from_bytes(bytes(stored), self._config)


def _failure_row(sets: HashSets, row: dict[str, Any], error: Exception) -> Row:
    return failure_result(row, sets.scope(), guarded.kind_of(error))


def _timers(hash_: bytes, before: Dues, after: Dues) -> list[timers.TimerChange]:
    """The changes of the timers of a hash."""
    return [
        timers.TimerChange(hash_.hex(), place, after.get(place))
        for place in {*before, *after}
        if before.get(place) != after.get(place)
    ]


def _segment_row(row: dict[str, Any]) -> SegmentRow:
    lamport = row["lamport_timestamp"]
    fields = {name: row[name] for name in SegmentRow._fields}
    return SegmentRow(
        **{
            **fields,
            "kafka_partition": int(row["kafka_partition"]),
            "kafka_offset": int(row["kafka_offset"]),
            "event_us": int(row["event_us"]),
            "lamport_timestamp": None if pd.isna(lamport) else int(lamport),
            "content": bytes(row["content"]),
            "encrypted": row["encrypted"] is True,
        }
    )


def write_batch(rows: DataFrame, sink: BatchSink) -> None:
    """Write the results of one micro-batch: payloads before the rows that refer to them."""
    sink.open_ahead(REASSEMBLED_MESSAGES, ORDERED_SDS_MESSAGES, TIMERS)
    results = write_results(rows, sink)
    sink.add_files(REASSEMBLED_MESSAGES, results.files)
    incomplete = _incomplete_files(results.of(ReportedSet), sink.paths)
    sink.together(
        *(partial(sink.add_files, table, results.files) for table in (CHANNEL_EVENTS, ORDERED_SDS_MESSAGES)),
        partial(sink.add_files, INCOMPLETE_MESSAGES, incomplete),
        partial(timers.record, sink, results.of(timers.TimerChange)),
    )


def _incomplete_files(reported: Sequence[ReportedSet], paths: PathSettings) -> list[WrittenFile]:
    """Write the reported sets that hold something new to a file of ``incomplete_messages``. They are few."""
    sets = [
        {**each.fields, "entire_message_hash": bytes.fromhex(each.fields["entire_message_hash"])} for each in reported
    ]
    rows = drop_already_reported(sets, paths) if sets else []
    if not rows:
        return []
    with TaskFiles(paths) as files:
        files.add(INCOMPLETE_MESSAGES, as_arrow(rows, INCOMPLETE_MESSAGES))
        return files.finish()
