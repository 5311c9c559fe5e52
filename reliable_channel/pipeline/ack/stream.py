"""``sds_input`` to ``deliveries``, ``delivered_messages``, ``acks``, ``refetch_requests``, ``lost_dependencies``,
``repair_requests`` and ``channel_events``: the SDS state machine per channel, in ``applyInPandasWithState``.

The step that writes what the state machine gave also looks up the payloads of delivered messages (:mod:`.deliver`).
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from reliable_channel.config import PathSettings, Settings
from reliable_channel.pipeline import open_keys
from reliable_channel.pipeline.ack import guarded
from reliable_channel.pipeline.ack.deliver import messages_of
from reliable_channel.pipeline.ack.observed import InputRow
from reliable_channel.pipeline.ack.observer import STATE_VERSION, ChannelObserver
from reliable_channel.pipeline.garbage import without_collection
from reliable_channel.pipeline.operations import counters
from reliable_channel.pipeline.storage.io import BatchSink
from reliable_channel.pipeline.storage.result_files import RESULTS, packed, written_results
from reliable_channel.pipeline.tables import (
    ACKS,
    CHANNEL_EVENTS,
    DELIVERED_MESSAGES,
    DELIVERIES,
    LOST_DEPENDENCIES,
    REFETCH_REQUESTS,
    REPAIR_REQUESTS,
)
from reliable_channel.pipeline.waking import waking
from reliable_channel.sds import SdsConfig
from reliable_channel.wire.sds import HistoryEntry

JOB = "ack"
_OF_STATE = (ACKS, REFETCH_REQUESTS, LOST_DEPENDENCIES, REPAIR_REQUESTS, CHANNEL_EVENTS, DELIVERIES)
TABLES_WRITTEN = (*_OF_STATE, DELIVERED_MESSAGES)

_KEY = ("pubsub_topic", "content_topic", "channel_id")
_ROW_COLUMNS = {
    "pubsub_topic": "string",
    "content_topic": "string",
    "channel_id": "string",
    "row_kind": "string",
    "kafka_topic": "string",
    "kafka_partition": "int",
    "kafka_offset": "bigint",
    "sub_order": "int",
    "event_us": "bigint",
    "sender_id": "string",
    "sds_id": "string",
    "sds_kind": "string",
    "lamport_timestamp": "string",
    "causal_history": "string",
    "bloom_filter": "binary",
    "repair_request": "string",
    "content_digest": "binary",
    "id_verified": "boolean",
    "content_bytes": "int",
    "envelope_hash": "binary",
    "sender_timestamp_ns": "string",
    "segment_kind": "string",
    "entire_message_hash": "binary",
    "segment_index": "int",
    "data_count": "int",
    "parity_count": "int",
    "repaired_by": "string",
    "sds_ids": "string",
    "payload_bytes": "bigint",
    "first_lamport_timestamp": "string",
    "position_exact": "boolean",
}
_AS_JSON = ("causal_history", "repair_request", "sds_ids")
"""Lists are text on their way to the state machine: to make objects of Arrow's costs three times as much."""

_AS_DIGITS = ("lamport_timestamp", "sender_timestamp_ns", "first_lamport_timestamp")
"""Numbers that may be null and do not fit into a float, which pandas makes of them if one row of a frame has none."""

_EMPTY = "[]"

_ROW = ", ".join(f"{name} {type_}" for name, type_ in _ROW_COLUMNS.items())
_OUT = "kind string, results binary"
_STATE = "version int, blob binary"
_KINDS = {table.name: table.name for table in _OF_STATE} | {"open_key": None, "failed_rows": None}


def acknowledged(settings: Settings) -> Callable[[DataFrame], DataFrame]:
    """The stream of ``sds_input`` → packed results (kind = table name), by one SDS state machine per channel."""

    def transform(sds_input: DataFrame) -> DataFrame:
        rows = sds_input.withColumn("event_us", F.unix_micros("event_time"))
        texts = {name: F.to_json(name) for name in _AS_JSON}
        texts |= {name: F.col(name).cast("string") for name in _AS_DIGITS}
        messages = rows.where("row_kind <> 'tick'").withColumns(texts).select(*_ROW_COLUMNS)
        ticks = (
            rows.where("row_kind = 'tick'")
            .select("kafka_topic", "kafka_partition", "kafka_offset", "sub_order", "event_us")
            .mapInPandas(woken(settings.paths), _ROW)
        )
        return (
            messages.unionByName(ticks)
            .groupBy(*_KEY)
            .applyInPandasWithState(
                stateful(settings.channels.participant_id, settings.sds, settings.pipeline.channel_expiry_ms),
                _OUT,
                _STATE,
                "append",
                GroupStateTimeout.NoTimeout,
            )
        )

    return transform


def woken(paths: PathSettings) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """Tick rows → one row for every channel whose timer is due."""
    return waking(
        paths, JOB, _ROW_COLUMNS, lambda key: {**dict(zip(_KEY, json.loads(key), strict=True)), "row_kind": "tick"}
    )


def stateful(
    participant_id: str | None, config: SdsConfig, expiry_ms: int | None
) -> Callable[[tuple[Any, ...], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The function of ``applyInPandasWithState``: one channel's rows of a micro-batch, in record order."""

    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        channel = (str(key[0]), str(key[1]), str(key[2]))
        stored = _stored(state)

        def restored(blob: bytes | None) -> ChannelObserver:
            if blob is None:
                return ChannelObserver(channel, participant_id, config, expiry_ms)
            return ChannelObserver.from_bytes(blob, channel, participant_id, config, expiry_ms)

        observer = restored(stored)
        before = observer.next_due_us()
        with without_collection():
            rows = _in_record_order(frames)
            observer, outputs, failed = guarded.taken(observer, restored, stored, rows)
            blobs = list(packed([(output.table, output.fields) for output in outputs], _KINDS))
        if not observer.is_blank:
            state.update((STATE_VERSION, observer.to_bytes()))
        elif state.exists:
            state.remove()
        if failed:
            blobs += packed([("failed_rows", {"rows": failed})], _KINDS)
        after = observer.next_due_us()
        if after != before:
            topic, partition = observer.place
            change = {"key": json.dumps(channel, ensure_ascii=False), "due": after}
            blobs += packed([("open_key", {**change, "kafka_topic": topic, "kafka_partition": partition})], _KINDS)
        if blobs:
            yield pd.DataFrame([(RESULTS, blob) for blob in blobs], columns=["kind", "results"])

    return update


def _stored(state: GroupState) -> bytes | None:
    """The bytes of a channel's state, ``None`` for a channel without one."""
    if not state.exists:
        return None
    version, blob = state.get
    if version != STATE_VERSION:
        raise RuntimeError(
            f"Ack state of version {version} is unknown to this program (it writes {STATE_VERSION})."
            " Run the program that wrote it, or start anew with `reliable-channel rebuild`."
        )
    return bytes(blob)


def _in_record_order(frames: Iterator[pd.DataFrame]) -> list[InputRow]:
    """A channel's rows of a micro-batch."""
    rows = [row for frame in frames for row in _input_rows(frame)]
    rows.sort(key=lambda row: row[:3])
    return [row[3] for row in rows]


def _input_rows(frame: pd.DataFrame) -> Iterator[tuple[int, int, int, InputRow]]:
    """A frame's rows with their order. Numbers that are null in one row come as floats, so they are made whole."""
    columns = {name: frame[name].tolist() for name in InputRow._fields}
    order = zip(
        frame["kafka_partition"].tolist(), frame["kafka_offset"].tolist(), frame["sub_order"].tolist(), strict=True
    )
    for name in ("causal_history", "repair_request"):
        columns[name] = [_history(value) for value in columns[name]]
    for name in _WHOLE:
        columns[name] = [None if value is None or value != value else int(value) for value in columns[name]]
    for name in ("bloom_filter", "content_digest", "envelope_hash", "entire_message_hash"):
        columns[name] = [None if value is None else bytes(value) for value in columns[name]]
    columns["sds_ids"] = [() if value is None else tuple(json.loads(value)) for value in columns["sds_ids"]]
    for (partition, offset, sub_order), *values in zip(order, *columns.values(), strict=True):
        row = InputRow(*values)
        # That a message is whole is known before the record that made it so is delivered: else what waits for that
        # record, and is released by it, would overtake the message.
        yield int(partition), int(offset), -1 if row.row_kind == "completed" else int(sub_order), row


_WHOLE = (
    "kafka_partition",
    "kafka_offset",
    "event_us",
    "content_bytes",
    "segment_index",
    "data_count",
    "parity_count",
    "payload_bytes",
    *_AS_DIGITS,
)


def _history(text: str | None) -> tuple[HistoryEntry, ...]:
    """What Spark's ``to_json`` made of a causal history; a field that is null is not there."""
    return () if text is None or text == _EMPTY else tuple([_entry(fields) for fields in json.loads(text)])


def _entry(fields: dict[str, str]) -> HistoryEntry:
    hint = fields.get("retrieval_hint")
    return HistoryEntry(fields["sds_id"], None if hint is None else b64decode(hint), fields.get("sender_id"))


class AckWriter:
    """Writes the results of one micro-batch."""

    def __init__(self, settings: Settings) -> None:
        self._paths = settings.paths

    def __call__(self, rows: DataFrame, sink: BatchSink) -> None:
        results = written_results(rows, self._paths, _KINDS, {DELIVERIES.name: messages_of})
        failed = sum(said["rows"] for said in results.told.get("failed_rows", ()))
        counters.put(sink.query_id, sink.batch_id, failed_rows=failed)
        sink.together(
            *(partial(sink.add_files, table, results.files) for table in TABLES_WRITTEN),
            partial(open_keys.record, sink, JOB, open_keys.changes_of(results.told.get("open_key", ()))),
        )
