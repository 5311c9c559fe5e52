"""Decoded records as an Arrow struct array: the shape in which they leave Python.

Built column by column; a list of dictionaries per row would cost as much as the decoding itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from reliable_channel.pipeline.ingest.decode import Decoded
from reliable_channel.pipeline.tables import HISTORY_TYPE
from reliable_channel.wire.sds import HistoryEntry

_ENTRY = pa.struct([("sds_id", pa.string()), ("retrieval_hint", pa.binary()), ("sender_id", pa.string())])
_TYPES: dict[str, tuple[pa.DataType, str]] = {
    "kind": (pa.string(), "STRING"),
    "source": (pa.string(), "STRING"),
    "pubsub_topic": (pa.string(), "STRING"),
    "content_topic": (pa.string(), "STRING"),
    "message_hash": (pa.binary(), "BINARY"),
    "sender_timestamp_ns": (pa.int64(), "BIGINT"),
    "ephemeral": (pa.bool_(), "BOOLEAN"),
    "channel_id": (pa.string(), "STRING"),
    "sender_id": (pa.string(), "STRING"),
    "sds_id": (pa.string(), "STRING"),
    "sds_kind": (pa.string(), "STRING"),
    "lamport_timestamp": (pa.int64(), "BIGINT"),
    "causal_history": (pa.list_(_ENTRY), HISTORY_TYPE),
    "filter_at": (pa.int32(), "INT"),
    "filter_bytes": (pa.int32(), "INT"),
    "repair_request": (pa.list_(_ENTRY), HISTORY_TYPE),
    "content_at": (pa.int32(), "INT"),
    "content": (pa.binary(), "BINARY"),
    "content_bytes": (pa.int32(), "INT"),
    "content_digest": (pa.binary(), "BINARY"),
    "segment_kind": (pa.string(), "STRING"),
    "entire_message_hash": (pa.binary(), "BINARY"),
    "segment_index": (pa.int32(), "INT"),
    "data_count": (pa.int32(), "INT"),
    "parity_count": (pa.int32(), "INT"),
    "segment_dialect": (pa.string(), "STRING"),
    "sealed": (pa.bool_(), "BOOLEAN"),
    "stage": (pa.string(), "STRING"),
    "reason": (pa.string(), "STRING"),
    "detail": (pa.string(), "STRING"),
    "disposition": (pa.string(), "STRING"),
    "bloom_filter": (pa.binary(), "BINARY"),
}
_HISTORIES = ("causal_history", "repair_request")

DECODED_DDL = "STRUCT<" + ", ".join(f"{n}: {t[1]}" for n, t in _TYPES.items()) + ", event_time_us: BIGINT>"
"""The Spark type of :func:`decoded_array`."""

if set(Decoded._fields) != set(_TYPES):
    raise ImportError(f"Decoded and its Arrow shape differ: {set(Decoded._fields) ^ set(_TYPES)}")


def decoded_array(rows: Sequence[Decoded], event_times_us: Any) -> pa.StructArray:
    """Rows and their event times (int64 array, µs) as one struct array of type ``DECODED_DDL``."""
    columns = dict(zip(Decoded._fields, zip(*rows, strict=True), strict=True)) if rows else {}
    arrays = [
        history_array(columns.get(name, ())) if name in _HISTORIES else pa.array(columns.get(name, ()), type_)
        for name, (type_, _) in _TYPES.items()
    ]
    return pa.StructArray.from_arrays([*arrays, pa.array(event_times_us, pa.int64())], [*_TYPES, "event_time_us"])


def history_array(histories: Sequence[tuple[HistoryEntry, ...]]) -> pa.ListArray:
    """Causal histories as a list array of structs."""
    offsets = [0]
    entries: list[HistoryEntry] = []
    for history in histories:
        entries.extend(history)
        offsets.append(len(entries))
    flat = pa.StructArray.from_arrays(
        [
            pa.array([e.message_id for e in entries], pa.string()),
            pa.array([e.retrieval_hint for e in entries], pa.binary()),
            pa.array([e.sender_id for e in entries], pa.string()),
        ],
        fields=list(_ENTRY),
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)
