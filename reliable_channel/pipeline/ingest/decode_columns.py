"""Decodes batches of Kafka records by column: the usual records of :mod:`.decode`, without a Python object per field.

``ptars`` reads a column of protobuf messages into Arrow columns. Its result counts only for messages that give the same
bytes when they are encoded again: those bytes mean the same to every protobuf parser. All other records (malformed,
refused or encrypted ones, unknown or repeated fields, another order of fields, …) are left to
:class:`.decode.RecordDecoder`, the judge of limits and reasons. So the rows of a record never depend on the others of
its batch. A small record takes half as long as one by one (docs/decisions.md, *What a record costs in Python*). No
Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ptars import HandlerPool

from reliable_channel.config import ChannelTopic
from reliable_channel.core.sds.verify import check_id
from reliable_channel.core.wire._pb import sds_pb2, waku_message_pb2
from reliable_channel.core.wire.sds import (
    MAX_HINT_BYTES,
    MAX_HISTORY_ENTRIES,
    MAX_ID_CHARACTERS,
    SdsKind,
    SdsMessage,
    WireFamily,
)
from reliable_channel.core.wire.waku import MAX_META_BYTES
from reliable_channel.lake.schema import ARROW_TYPES
from reliable_channel.lake.tables import HISTORY_TYPE
from reliable_channel.pipeline.ingest.decode import LAMPORT_MAX_AHEAD_MS, SOURCES, Decoded, RecordDecoder, take_content

MAX_COLUMN_BYTES = 4 * 1024
"""Larger records are left to the judge. ptars descends into nested groups without a limit: every byte of a record may
open one, and each takes some 80 bytes of the stack. Without this bound one record could end the process; with it the
stack grows by a third of a MiB. What larger records cost are their bytes, where columns gain nothing."""

SMALLEST_SPLIT = 16
"""ptars refuses a batch that has one malformed message. A refused batch is halved again and again; if one of this size
is still refused, its messages are left to the judge."""

_POOL = HandlerPool([waku_message_pb2.DESCRIPTOR, sds_pb2.DESCRIPTOR])
_ENVELOPES = _POOL.get_for_message(waku_message_pb2.WakuMessage.DESCRIPTOR)
_MESSAGES = {
    WireFamily.SPEC: _POOL.get_for_message(sds_pb2.SpecMessage.DESCRIPTOR),
    WireFamily.NIM: _POOL.get_for_message(sds_pb2.NimMessage.DESCRIPTOR),
}

Rows = np.ndarray[Any, np.dtype[Any]]
"""Positions of records in their batch."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Columns = dict[str, pa.Array]


class Part(NamedTuple):
    """Decoded records of a batch. ``columns``: fields of :class:`Decoded` by name; missing ones have their defaults."""

    rows: Rows
    columns: Columns


class ColumnDecoder:
    """Decodes the usual records of batches, with the configuration and caches of ``judge``."""

    def __init__(self, judge: RecordDecoder) -> None:
        self._judge = judge

    def decode(
        self, value: pa.Array, pubsub_header: pa.Array, source_header: pa.Array, time_us: pa.Array
    ) -> list[Part]:
        """Decode the usual ones of some records, given by the columns of :meth:`.decode.RecordDecoder.decode`. Those
        that are in no part are left to the judge."""
        pubsub_topic = self._decode_texts(pubsub_header)
        source = self._decode_texts(source_header)
        short = pc.less_equal(pc.binary_length(value), MAX_COLUMN_BYTES)
        known = pc.and_(pc.greater(pc.binary_length(pubsub_topic), 0), pc.is_in(source, pa.array(sorted(SOURCES))))
        rows = np.flatnonzero(_to_mask(pc.and_(short, known)))
        if not len(rows):
            return []
        envelopes, rows = _read(_ENVELOPES, value, rows)
        named = pc.greater(pc.binary_length(envelopes["content_topic"]), 0)
        short = pc.less_equal(pc.binary_length(envelopes["meta"]).fill_null(0), MAX_META_BYTES)
        good = _to_mask(pc.and_(named, short))
        envelopes, rows = _filter(envelopes, good), rows[good]
        headers = _take({"pubsub_topic": pubsub_topic, "source": source}, rows)
        return list(self._decode_parts({**envelopes, **headers}, rows, time_us))

    def _decode_texts(self, headers: pa.Array) -> pa.Array:
        """The texts of headers, of which few are different; null if one is no UTF-8 text."""
        encoded = headers.dictionary_encode()
        texts = [self._judge.text(header) for header in encoded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(encoded.indices)

    def _decode_parts(self, envelopes: Columns, rows: Rows, time_us: pa.Array) -> Iterator[Part]:
        """Decode further, the SDS messages of one configuration together."""
        common = {
            "source": envelopes["source"],
            "pubsub_topic": envelopes["pubsub_topic"],
            "content_topic": envelopes["content_topic"],
            "message_hash": _compute_hashes(envelopes),
            "sender_timestamp_ns": envelopes["timestamp"],
            "ephemeral": envelopes["ephemeral"].fill_null(False),
        }
        for topic, here in self._group_by_topic(envelopes):
            if topic is None:
                yield Part(rows[here], {**_take(common, here), "kind": _repeat("plain", len(here))})
            elif not topic.decryption_key_files:
                for family in topic.families:
                    messages, kept = _read(_MESSAGES[family], envelopes["payload"], here)
                    usual = _find_usual(messages, family, time_us.take(rows[kept]))
                    messages, kept = _filter(messages, usual), kept[usual]
                    described = _describe_contents(messages, topic, family)
                    clear = np.array([each is not None for each in described], np.bool_)
                    messages, kept = _filter(messages, clear), kept[clear]
                    columns = _build_sds_columns(messages, [each for each in described if each is not None], family)
                    yield Part(rows[kept], {**_take(common, kept), **columns})
                    here = np.setdiff1d(here, kept, assume_unique=True)

    def _group_by_topic(self, envelopes: Columns) -> Iterator[tuple[ChannelTopic | None, Rows]]:
        """The configurations of content topics, and the positions of their envelopes."""
        content, pubsub = (envelopes[name].dictionary_encode() for name in ("content_topic", "pubsub_topic"))
        width = max(1, len(pubsub.dictionary))
        pairs = np.asarray(content.indices).astype(np.int64) * width + np.asarray(pubsub.indices)
        codes, inverse = np.unique(pairs, return_inverse=True)
        contents, pubsubs = content.dictionary.to_pylist(), pubsub.dictionary.to_pylist()
        numbers: dict[int, int] = {}
        topics: list[ChannelTopic | None] = []
        of_code = []
        for code in codes.tolist():
            topic = self._judge.topic(contents[code // width], pubsubs[code % width])
            # By identity: all topics that a pattern admits have the same object.
            if id(topic) not in numbers:
                numbers[id(topic)] = len(topics)
                topics.append(topic)
            of_code.append(numbers[id(topic)])
        number = np.array(of_code, np.intp)[inverse]
        for each, topic in enumerate(topics):
            yield topic, np.flatnonzero(number == each)


def _read(handler: Any, data: pa.Array, rows: Rows) -> tuple[Columns, Rows]:
    """Read the messages at ``rows`` of ``data`` into columns, if their bytes are what the columns give when encoded
    again; returns also the positions of these."""
    batches, kept, waiting = [], [rows[:0]], [rows]
    while waiting:
        some = waiting.pop()
        taken = data if len(some) == len(data) else data.take(pa.array(some))
        try:
            batch = handler.array_to_record_batch(taken)
        except ValueError:
            if len(some) > SMALLEST_SPLIT:
                # The first half is taken from the end next, so that rows stay in ascending order.
                waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
            continue
        same = _to_mask(pc.equal(handler.record_batch_to_array(batch), taken))
        batches.append(batch if same.all() else batch.filter(pa.array(same)))
        kept.append(some[same])
    if not batches:  # for the columns and their types
        batches.append(handler.array_to_record_batch(pa.array([], pa.binary())))
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return dict(zip(whole.schema.names, whole.columns, strict=True)), np.concatenate(kept)


def _find_usual(messages: Columns, family: WireFamily, time_us: pa.Array) -> Mask:
    """Which messages are valid, and have no value that the judge would have to look at."""
    good = np.ones(len(time_us), np.bool_)
    # Older builds of nim-sds send no sender id (docs/sds.md, *Interoperability*).
    for name, least in (("message_id", 1), ("channel_id", 1), ("sender_id", 0 if family is WireFamily.NIM else 1)):
        length = np.asarray(pc.binary_length(messages[name]))
        good &= (length >= least) & (length <= MAX_ID_CHARACTERS)  # a text has at least as many bytes as characters
    for name in ("causal_history", "repair_request"):
        history = messages[name]
        good &= np.asarray(pc.list_value_length(history)) <= MAX_HISTORY_ENTRIES
        ids, hints, senders = (pc.binary_length(each).fill_null(0) for each in history.flatten().flatten())
        bad = (np.asarray(ids) > MAX_ID_CHARACTERS) | (np.asarray(senders) > MAX_ID_CHARACTERS)
        bad |= np.asarray(hints) > MAX_HINT_BYTES
        if family is WireFamily.NIM:  # without an id it may be another layout
            bad |= np.asarray(ids) == 0
        good[np.asarray(pc.list_parent_indices(history))[bad]] = False
    lamport = messages["lamport_timestamp"]
    latest = np.asarray(time_us) // 1000 + LAMPORT_MAX_AHEAD_MS
    within = (latest >= 0) & (np.asarray(lamport.fill_null(0)) <= latest.astype(np.uint64))
    timed = np.asarray(lamport.is_valid())
    if family is WireFamily.NIM:  # it always writes the field, so zero means absent
        timed &= np.asarray(lamport.fill_null(0)) > 0
    filled = np.asarray(pc.binary_length(messages["content"]).fill_null(0)) > 0
    usual: Mask = good & (within | ~timed) & (timed | filled)
    return usual


def _get_lamport(messages: Columns, family: WireFamily) -> pa.Array:
    lamport = messages["lamport_timestamp"].cast(pa.int64())
    return (
        pc.if_else(pc.equal(lamport, 0), pa.scalar(None, pa.int64()), lamport) if family is WireFamily.NIM else lamport
    )


def _describe_contents(messages: Columns, topic: ChannelTopic, family: WireFamily) -> list[tuple[Any, ...] | None]:
    """The values of :data:`_CONTENT`; ``None`` for a content that is refused, or that its row has without the segment
    around it."""
    ephemeral = np.asarray(_get_lamport(messages, family).is_null()).tolist()
    return [
        _describe_content(content or None, each, topic)
        for content, each in zip(messages["content"].to_pylist(), ephemeral, strict=True)
    ]


def _build_sds_columns(messages: Columns, described: list[tuple[Any, ...]], family: WireFamily) -> Columns:
    """The columns of valid SDS messages of one family."""
    lamport, content = _get_lamport(messages, family), _drop_empty(messages["content"])
    count = len(lamport)
    timed, filled = lamport.is_valid(), content.is_valid()
    kind = pc.if_else(timed, pc.if_else(filled, SdsKind.CONTENT.value, SdsKind.SYNC.value), SdsKind.EPHEMERAL.value)
    contents = content.to_pylist()
    given = (messages["message_id"], messages["sender_id"], lamport)
    digests = [None if each is None else hashlib.sha256(each).digest() for each in contents]
    checks = [
        check_id(SdsMessage(sender, sds_id, "", at, content=content), family, digest=digest)
        for sds_id, sender, at, content, digest in zip(
            *(each.to_pylist() for each in given), contents, digests, strict=True
        )
    ]
    return {
        "kind": _repeat("sds", count),
        "channel_id": messages["channel_id"],
        "family": _repeat(family.value, count),
        "sender_id": messages["sender_id"],
        "sds_id": messages["message_id"],
        "sds_kind": kind,
        "lamport_timestamp": lamport,
        "causal_history": _rename_entries(messages["causal_history"]),
        "bloom_filter": _drop_empty(messages["bloom_filter"]),
        "repair_request": _rename_entries(messages["repair_request"]),
        "content": content,
        "content_bytes": pc.binary_length(content),
        "content_digest": pa.array(digests, pa.binary()),
        "id_verified": pa.array([each.verified for each in checks], pa.bool_()),
        "id_scheme": pa.array([each.scheme for each in checks], pa.string()),
        "encrypted": _repeat(False, count),
        # Not strict: without any message there are no values, and the columns get their defaults.
        **{name: pa.array(values) for name, values in zip(_CONTENT, zip(*described, strict=True), strict=False)},
    }


_CONTENT = (
    *("segment_kind", "entire_message_hash", "segment_index", "data_count", "parity_count", "segment_dialect"),
    *("stage", "reason", "detail", "disposition"),
)
_content_of = attrgetter(*_CONTENT)
_NO_CONTENT = _content_of(Decoded())


def _describe_content(content: bytes | None, ephemeral: bool, topic: ChannelTopic) -> tuple[Any, ...] | None:
    if content is None:
        return _NO_CONTENT
    row = Decoded()
    return _content_of(row) if take_content(row, content, ephemeral, topic.dialects) is content else None


def _compute_hashes(envelopes: Columns) -> pa.Array:
    """The deterministic message hashes (14/WAKU2-MESSAGE), as :func:`~reliable_channel.core.wire.waku.message_hash`."""
    time = envelopes["timestamp"]
    # As 8 bytes, big-endian (docs/spec/envelope.md, *Message hash*).
    stamps = pa.array(np.asarray(time.fill_null(0)).astype(">i8").view("V8").tolist(), pa.binary())
    parts = [envelopes[name].cast(pa.binary()) for name in ("pubsub_topic", "payload", "content_topic", "meta")]
    parts.append(pc.if_else(time.is_valid(), stamps, pa.scalar(None, pa.binary())))
    # The last argument is the separator: the fields follow one another, and an absent one is omitted.
    joined = pc.binary_join_element_wise(*parts, b"", null_handling="skip")
    return pa.array([hashlib.sha256(each).digest() for each in joined.to_pylist()], pa.binary())


def _rename_entries(entries: pa.ListArray) -> pa.ListArray:
    structs = pa.StructArray.from_arrays(entries.flatten().flatten(), fields=list(ARROW_TYPES[HISTORY_TYPE].value_type))
    lengths = np.asarray(pc.list_value_length(entries))
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return pa.ListArray.from_arrays(offsets, structs)


def _drop_empty(data: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(pc.binary_length(data), 0), pa.scalar(None, pa.binary()), data)


def _repeat(value: object, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), count)


def _take(columns: Columns, rows: Rows) -> Columns:
    """Select rows; ``rows`` ascend."""
    if all(len(rows) == len(column) for column in columns.values()):
        return columns
    return {name: column.take(pa.array(rows)) for name, column in columns.items()}


def _filter(columns: Columns, mask: Mask) -> Columns:
    return columns if mask.all() else {name: column.filter(pa.array(mask)) for name, column in columns.items()}


def _to_mask(values: pa.Array) -> Mask:
    """Booleans; null counts as false."""
    return np.asarray(values.fill_null(False), np.bool_)
