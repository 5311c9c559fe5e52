"""Defines the input rows of a :class:`~.observer.ChannelObserver`, and their encoding in its state."""

from __future__ import annotations

import base64
import json
from binascii import a2b_base64
from operator import itemgetter
from typing import Any, NamedTuple

from pydantic_core import from_json

from reliable_channel.core.wire.sds import HistoryEntry


class InputRow(NamedTuple):
    """One row of ``ordered_sds_messages``; ``event_us`` in µs."""

    row_kind: str
    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    event_us: int
    sender_id: str | None = None
    sds_id: str | None = None
    sds_kind: str | None = None
    lamport_timestamp: int | None = None
    causal_history: tuple[HistoryEntry, ...] = ()
    bloom_filter: bytes | None = None
    repair_request: tuple[HistoryEntry, ...] = ()
    content_digest: bytes | None = None
    id_verified: bool | None = None
    id_scheme: str | None = None
    content_bytes: int | None = None
    envelope_hash: bytes | None = None
    sender_timestamp_ns: int | None = None
    segment_kind: str | None = None
    entire_message_hash: bytes | None = None
    segment_index: int | None = None
    data_count: int | None = None
    parity_count: int | None = None
    repaired_by: str | None = None
    sds_ids: tuple[str | None, ...] = ()
    payload_bytes: int | None = None
    first_lamport_timestamp: int | None = None
    position_exact: bool | None = None


def message_key(row: InputRow) -> str:
    """The key of a sender's message: the payload's hash and the send, identified by its first Lamport timestamp or, if
    unknown, by an SDS id."""
    send = row.first_lamport_timestamp if row.first_lamport_timestamp is not None else row.sds_id
    return f"{row.sender_id}\x00{base64_of(row.entire_message_hash) or ''}\x00{send}"


def hash_of(row: InputRow) -> bytes:
    """The hash of a row's payload; empty if it has none."""
    return row.entire_message_hash or b""


def coordinates(row: InputRow | None) -> dict[str, Any]:
    """The Kafka coordinates of the record that brought a row; nulls for a timer."""
    if row is None:
        return {"kafka_partition": None, "kafka_offset": None}
    return {"kafka_partition": row.kafka_partition, "kafka_offset": row.kafka_offset}


def base64_of(data: bytes | None) -> str | None:
    """Encode bytes as base64 for the state, where rows are JSON."""
    return None if data is None else base64.b64encode(data).decode("ascii")


def load_fields(text: str) -> dict[str, Any]:
    """The JSON object of a row, for :func:`row_of`. Raises ``ValueError``."""
    fields: dict[str, Any] = from_json(text, cache_strings="keys")  # takes half of what json.loads takes
    return fields


_BINARY = ("content_digest", "envelope_hash", "entire_message_hash")
_HISTORIES = ("causal_history", "repair_request")


def row_of(fields: dict[str, Any], bloom_filter: bytes | None) -> InputRow:
    """A row from its JSON object, in which null columns may be absent and binary columns are base64. Modifies
    ``fields``."""
    for name in _BINARY:
        if fields.get(name) is not None:
            fields[name] = a2b_base64(fields[name])
    for name in _HISTORIES:
        if name in fields:
            fields[name] = tuple([_parse_entry(entry) for entry in fields[name]])
    if "sds_ids" in fields:
        fields["sds_ids"] = tuple(fields["sds_ids"])
    fields.pop("sub_order", None)
    # Not as keyword arguments: Python compares each name of parsed JSON, which is not interned, with every parameter.
    columns = {**InputRow._field_defaults, **fields, "bloom_filter": bloom_filter}
    if len(columns) > len(InputRow._fields):
        raise ValueError("a row has a column that rows do not have")
    return InputRow._make(_values(columns))


_values = itemgetter(*InputRow._fields)


def _parse_entry(fields: dict[str, str]) -> HistoryEntry:
    hint = fields.get("retrieval_hint")
    return HistoryEntry(fields["sds_id"], None if hint is None else a2b_base64(hint), fields.get("sender_id"))


def row_to_json(row: InputRow) -> str:
    """Encode a completed row, which has no history, filter and id scheme, as JSON."""
    fields = row._asdict()
    for name in _BINARY:
        fields[name] = base64_of(fields[name])
    for name in ("causal_history", "bloom_filter", "repair_request", "id_scheme"):
        del fields[name]
    return json.dumps(fields)


def row_from_json(text: str) -> InputRow:
    """Restore the result of :func:`row_to_json`."""
    return row_of(json.loads(text), None)
