"""Column functions that decode Waku envelopes, SDS messages and segments: Arrow UDFs for jobs, notebooks and SQL.

    from reliable_channel.pipeline import functions as rc

    envelopes.select(rc.decode_envelope("value").alias("envelope"))
    rc.register(spark)
    spark.sql("SELECT decode_segment(content).segment_index FROM sds_messages")

Each takes binary columns and returns a struct (the hash: binary). Bytes from the network never raise: if they cannot be
decoded, the fields are null, ``reason`` has a value of the fixed list (docs/quarantine.md) and ``detail`` explains it.
Arrow UDFs, because for pandas UDFs Spark converts every batch to pandas and back, and the entries of histories one by
one (docs/decisions.md, *What a record costs in Python*). :func:`decode_batch` combines them in one pass over Kafka
records, for the channels of a configuration: the tasks of ingest, requeue and rebuild call it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.pandas.types import to_arrow_type  # what Spark itself passes a type by
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily
from reliable_channel.core.wire.sds import decode_sds_message as parse_sds_message
from reliable_channel.core.wire.segment import DEFAULT_DIALECTS, Dialect
from reliable_channel.core.wire.segment import decode_segment as parse_segment
from reliable_channel.core.wire.waku import decode_waku_message, message_hash
from reliable_channel.lake.schema import ARROW_TYPES
from reliable_channel.lake.tables import ENVELOPES, HISTORY_TYPE, QUARANTINE, SDS_MESSAGES
from reliable_channel.pipeline.ingest.decode import Decoded, RecordDecoder
from reliable_channel.pipeline.ingest.decode_columns import ColumnDecoder, Part

Udf = Callable[..., Any]
"""An Arrow UDF: takes columns or their names, returns a column."""


def _make_struct(*fields: tuple[str, DataType, str]) -> StructType:
    """A struct of nullable fields. The comments document this module only: Spark refuses the result of a UDF whose type
    has metadata in a nested struct."""
    return StructType([StructField(name, type_) for name, type_, _ in fields])


_TEXT, _BYTES, _LONG, _INT, _FLAG = StringType(), BinaryType(), LongType(), IntegerType(), BooleanType()
_REASON = (
    ("reason", _TEXT, "why the bytes were refused, from the fixed list; null when they were decoded"),
    ("detail", _TEXT, "more about the reason, for people; never holds payload bytes"),
)

HISTORY: Final = ArrayType(
    _make_struct(
        ("sds_id", _TEXT, "SDS message id"),
        ("retrieval_hint", _BYTES, "Waku message hash under which stores keep the message, if the sender gave it"),
        ("sender_id", _TEXT, "who sent it, if the sender gave that"),
    )
)
"""The type of a causal history and of a repair request."""

ENVELOPE: Final = _make_struct(
    ("content_topic", _TEXT, "Waku content topic"),
    ("payload", _BYTES, "an SDS message, a ciphertext, or anything else"),
    ("timestamp_ns", _LONG, "Unix time set by the sender, ns"),
    ("meta", _BYTES, "application-specific, at most 64 bytes"),
    ("ephemeral", _FLAG, "stores need not keep it; null where the envelope does not say"),
    ("version", _LONG, "version of the payload's encryption; null where the envelope does not say"),
    *_REASON,
)
"""The result type of ``decode_envelope``."""

SDS_MESSAGE: Final = _make_struct(
    ("channel_id", _TEXT, "SDS channel id"),
    ("sender_id", _TEXT, "SDS sender id"),
    ("sds_id", _TEXT, "SDS message id"),
    ("sds_kind", _TEXT, "content, sync or ephemeral"),
    ("lamport_timestamp", _LONG, "Lamport timestamp, ms, below 2^63; null for an ephemeral message"),
    ("causal_history", HISTORY, "the messages it depends on, newest last"),
    ("bloom_filter", _BYTES, "the sender's filter of what it has seen"),
    ("repair_request", HISTORY, "messages that the sender asks others for"),
    ("content", _BYTES, "a segment, or a payload as it is"),
    *_REASON,
)
"""The result type of ``decode_sds_message``."""

SEGMENT: Final = _make_struct(
    ("segment_kind", _TEXT, "data or parity"),
    ("entire_message_hash", _BYTES, "Keccak-256 of the whole payload, 32 bytes"),
    ("segment_index", _INT, "from 0 among the data, or among the parity segments"),
    ("data_count", _INT, "data segments of the message; null where a parity segment does not say"),
    ("parity_count", _INT, "parity segments of the message; null where the segment does not say"),
    ("payload", _BYTES, "this segment's part of the payload"),
    ("original_bytes", _LONG, "size of the whole payload, bytes; null where the segment does not say"),
    ("segment_dialect", _TEXT, "wire dialect: v0.1, lip243 or lip243-length"),
    *_REASON,
)
"""The result type of ``decode_segment``."""


def envelopes(values: Iterable[bytes | None]) -> pa.StructArray:
    """Decode serialized ``WakuMessage`` values to rows of :data:`ENVELOPE`."""
    return _build_structs(
        to_arrow_type(ENVELOPE), list(map(decode_waku_message, values)), {"timestamp_ns": "timestamp"}
    )


def sds_messages(payloads: Iterable[bytes | None], family: WireFamily = WireFamily.SPEC) -> pa.StructArray:
    """Decode SDS messages of a wire family to rows of :data:`SDS_MESSAGE`."""
    parsed = [_NULL if each is None else parse_sds_message(each, family) for each in payloads]
    within = [
        _TOO_FAR if isinstance(each, SdsMessage) and (each.lamport_timestamp or 0) > _LARGEST else each
        for each in parsed
    ]
    return _build_structs(to_arrow_type(SDS_MESSAGE), within, {"sds_id": "message_id", "sds_kind": "kind"})


def segments(contents: Iterable[bytes | None], dialects: Collection[Dialect] = DEFAULT_DIALECTS) -> pa.StructArray:
    """Decode segments of some wire dialects to rows of :data:`SEGMENT`."""
    parsed = [_NULL if each is None else parse_segment(each, dialects) for each in contents]
    kinds = [None if isinstance(each, Malformed) else ("parity" if each.is_parity else "data") for each in parsed]
    # Numbers on the wire have up to 64 bits and no sign, BIGINT has 63: a longer length is unknown, not an error.
    sizes = [size if (size := getattr(each, "original_length", None) or 0) <= _LARGEST else None for each in parsed]
    given: dict[str, list[Any]] = {"segment_kind": kinds, "original_bytes": [size or None for size in sizes]}
    return _build_structs(
        to_arrow_type(SEGMENT), parsed, {"segment_index": "index", "segment_dialect": "dialect"}, given
    )


def hashes(pubsub_topics: Iterable[str | None], values: Iterable[bytes | None]) -> list[bytes | None]:
    """The deterministic message hashes of serialized ``WakuMessage`` values on pubsub topics, 32 bytes each; ``None``
    if not an envelope."""
    computed: list[bytes | None] = []
    for topic, value in zip(pubsub_topics, values, strict=True):
        envelope = decode_waku_message(value)
        computed.append(None if topic is None or isinstance(envelope, Malformed) else message_hash(topic, envelope))
    return computed


@arrow_udf(ENVELOPE)  # type: ignore[untyped-decorator]
def decode_envelope(value: pa.Array) -> pa.Array:
    """Decodes a serialized ``WakuMessage`` (14/WAKU2-MESSAGE) into :data:`ENVELOPE`."""
    return envelopes(value.to_pylist())


def sds_decoder(family: WireFamily = WireFamily.SPEC) -> Udf:
    """The UDF that decodes SDS messages of a wire family into :data:`SDS_MESSAGE`."""

    @arrow_udf(SDS_MESSAGE)  # type: ignore[untyped-decorator]
    def decode(payload: pa.Array) -> pa.Array:
        return sds_messages(payload.to_pylist(), family)

    return cast(Udf, decode)


decode_sds_message: Final = sds_decoder()
"""Decodes an SDS message in the specification's wire format into :data:`SDS_MESSAGE`."""


def segment_decoder(dialects: Collection[Dialect] = DEFAULT_DIALECTS) -> Udf:
    """The UDF that decodes segments of some wire dialects into :data:`SEGMENT`. Bytes that are not a segment have a
    ``reason``: a channel treats them as an unsegmented payload."""
    chosen = tuple(dialects)

    @arrow_udf(SEGMENT)  # type: ignore[untyped-decorator]
    def decode(content: pa.Array) -> pa.Array:
        return segments(content.to_pylist(), chosen)

    return cast(Udf, decode)


decode_segment: Final = segment_decoder()
"""Decodes a segment of one of the default wire dialects into :data:`SEGMENT`."""


@arrow_udf(_BYTES)  # type: ignore[untyped-decorator]
def waku_message_hash(pubsub_topic: pa.Array, value: pa.Array) -> pa.Array:
    """The deterministic message hash of a serialized ``WakuMessage`` on a pubsub topic, 32 bytes; null if not an
    envelope."""
    return pa.array(hashes(pubsub_topic.to_pylist(), value.to_pylist()), pa.binary())


def decode_batch(judge: RecordDecoder, *columns: pa.Array) -> pa.StructArray:
    """Decode a batch of records, given by the columns of :meth:`RecordDecoder.decode`: by column where that is
    possible, the rest one by one. The result has the fields of :class:`Decoded`."""
    parts = ColumnDecoder(judge).decode(*columns)
    decoded = np.concatenate([np.empty(0, np.intp), *(part.rows for part in parts)])
    left = np.setdiff1d(np.arange(len(columns[0])), decoded, assume_unique=True)
    arrays = [_build_records(part) for part in parts]
    if len(left) or not parts:
        # ``take`` copies bytes. A batch of large records, of which none is decoded by column, passes as it is.
        rest = columns if not len(decoded) else tuple(column.take(pa.array(left)) for column in columns)
        arrays.append(records(list(map(judge.decode, *(column.to_pylist() for column in rest)))))
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays).take(pa.array(np.argsort(np.concatenate([decoded, left]))))


def _build_records(part: Part) -> pa.StructArray:
    count = len(part.rows)
    arrays = []
    for field in _RECORD:
        column = part.columns.get(field.name)
        if column is None:
            column = pa.array([[]] * count, field.type) if field.type == _HISTORY else pa.nulls(count, field.type)
        arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.StructArray.from_arrays(arrays, fields=list(_RECORD))


def records(decoded: Sequence[Decoded]) -> pa.StructArray:
    """Convert decoded records to structs."""
    return _build_structs(_RECORD, decoded, {})


def register(spark: SparkSession) -> None:
    """Register the functions for SQL under their names."""
    for name, function in (
        ("decode_envelope", decode_envelope),
        ("decode_sds_message", decode_sds_message),
        ("decode_segment", decode_segment),
        ("waku_message_hash", waku_message_hash),
    ):
        spark.udf.register(name, function)


_LARGEST = 2**63 - 1  # of BIGINT
_NULL = Malformed(Reason.NULL_VALUE, "there are no bytes")
_TOO_FAR = Malformed(Reason.LAMPORT_OUT_OF_RANGE, "2^63 or more")
_HISTORY = ARROW_TYPES[HISTORY_TYPE]
_COLUMNS = {c.name: c.type for table in (ENVELOPES, SDS_MESSAGES, QUARANTINE) for c in table.columns}
_RECORD = pa.struct([(name, ARROW_TYPES[_COLUMNS[name]]) for name in Decoded.__annotations__])
"""The fields of :class:`Decoded`, with the types of the columns that store them."""


def _build_structs(
    type_: pa.StructType,
    decoded: Sequence[Any],
    names: Mapping[str, str],
    given: Mapping[str, Sequence[Any]] | None = None,
) -> pa.StructArray:
    """Convert decoded values, or the reasons for refusing them, to structs of ``type_``. A field is the attribute of
    the same name (``names`` lists different ones), or a column of ``given``."""
    columns = []
    for field in type_:
        name = names.get(field.name, field.name)
        values = (given or {}).get(field.name) or [getattr(each, name, None) for each in decoded]
        if field.type == _HISTORY:
            values = [_list_entries(history) for history in values]
        columns.append(pa.array(values, field.type))
    return pa.StructArray.from_arrays(columns, fields=list(type_))


def _list_entries(history: Sequence[HistoryEntry] | None) -> list[tuple[str, bytes | None, str | None]] | None:
    if history is None:
        return None
    return [(entry.message_id, entry.retrieval_hint, entry.sender_id) for entry in history]
