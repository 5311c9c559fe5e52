"""The column functions as plain functions: what was encoded comes back, and no bytes raise. No Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from reliable_channel.core.wire.malformed import Reason
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily, encode_sds_message
from reliable_channel.core.wire.segment import Dialect, Segment, encode_segment
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message, message_hash
from reliable_channel.pipeline import functions
from reliable_channel.pipeline.ingest.decode import Decoded

REASONS = {reason.value for reason in Reason}
texts = st.text(min_size=1, max_size=20)
data = st.binary(max_size=64)
int64 = st.integers(-(2**63), 2**63 - 1)

envelopes = st.builds(
    WakuMessage,
    payload=data,
    content_topic=texts,
    version=st.none() | st.integers(0, 2**32 - 1),
    timestamp=st.none() | int64,
    meta=st.none() | st.binary(max_size=64),
    ephemeral=st.none() | st.booleans(),
)
entries = st.lists(
    st.builds(HistoryEntry, message_id=texts, retrieval_hint=st.none() | data, sender_id=st.none() | texts), max_size=4
).map(tuple)
messages = st.builds(
    SdsMessage,
    sender_id=texts,
    message_id=texts,
    channel_id=texts,
    lamport_timestamp=st.integers(1, 2**64 - 1),
    causal_history=entries,
    bloom_filter=st.none() | st.binary(min_size=1, max_size=64),
    repair_request=entries,
    content=st.binary(min_size=1, max_size=64),
)


def only(array: pa.StructArray) -> dict[str, Any]:
    (row,) = array.to_pylist()
    return row


@given(envelope=envelopes)
def test_an_envelope_comes_back_field_by_field(envelope: WakuMessage) -> None:
    row = only(functions.envelopes([encode_waku_message(envelope)]))
    assert row["reason"] is None
    assert (row["content_topic"], row["payload"], row["timestamp_ns"], row["meta"]) == (
        envelope.content_topic,
        envelope.payload,
        envelope.timestamp,
        envelope.meta,
    )
    assert (row["ephemeral"], row["version"]) == (envelope.ephemeral, envelope.version)


@given(envelope=envelopes, topic=texts)
def test_the_hash_is_that_of_the_specification(envelope: WakuMessage, topic: str) -> None:
    value = encode_waku_message(envelope)
    assert functions.hashes([topic, None, topic], [value, value, b"\xff"]) == [
        message_hash(topic, envelope),
        None,
        None,
    ]


@pytest.mark.parametrize("family", WireFamily)
@given(message=messages)
def test_an_sds_message_comes_back_field_by_field(family: WireFamily, message: SdsMessage) -> None:
    row = only(functions.sds_messages([encode_sds_message(message, family)], family))
    if (message.lamport_timestamp or 0) >= 2**63:
        assert (row["reason"], row["sds_id"]) == ("lamport_out_of_range", None)
        return
    assert row["reason"] is None
    assert (row["sds_id"], row["sender_id"], row["channel_id"]) == (
        message.message_id,
        message.sender_id,
        message.channel_id,
    )
    assert (row["lamport_timestamp"], row["sds_kind"]) == (message.lamport_timestamp, "content")
    assert (row["bloom_filter"], row["content"]) == (message.bloom_filter, message.content)
    for name in ("causal_history", "repair_request"):
        assert [tuple(entry.values()) for entry in row[name]] == [
            (e.message_id, e.retrieval_hint, e.sender_id) for e in getattr(message, name)
        ]


@given(
    hash_=st.binary(min_size=32, max_size=32),
    index=st.integers(0, 254),
    more=st.integers(1, 100),
    parity=st.booleans(),
    payload=st.binary(min_size=1, max_size=64),
)
def test_a_segment_comes_back_field_by_field(hash_: bytes, index: int, more: int, parity: bool, payload: bytes) -> None:
    count = min(254, index + more)
    if index >= count or (not parity and count < 2):
        return
    segment = Segment(
        entire_message_hash=hash_,
        index=index,
        data_count=None if parity else count,
        parity_count=count if parity else None,
        is_parity=parity,
        payload=payload,
    )
    row = only(functions.segments([encode_segment(segment)]))
    assert row["reason"] is None
    assert (row["entire_message_hash"], row["segment_index"], row["payload"]) == (hash_, index, payload)
    assert (row["segment_kind"], row["data_count"], row["parity_count"]) == (
        "parity" if parity else "data",
        segment.data_count,
        segment.parity_count,
    )


@given(values=st.lists(st.none() | st.binary(max_size=200), max_size=5), truncate=st.integers(0, 60), valid=messages)
def test_bytes_from_the_network_never_raise(values: list[bytes | None], truncate: int, valid: SdsMessage) -> None:
    values = [*values, encode_sds_message(valid)[:truncate]]
    found = [
        functions.envelopes(values),
        *(functions.sds_messages(values, family) for family in WireFamily),
        functions.segments(values),
        functions.segments(values, frozenset(Dialect)),
    ]
    for array in found:
        assert len(array) == len(values)
        for value, row in zip(values, array.to_pylist(), strict=True):
            assert row["reason"] is None or row["reason"] in REASONS
            assert value is not None or row["reason"] == "null_value"


def test_a_length_beyond_64_bits_signed_is_left_out() -> None:
    segment = Segment(b"h" * 32, 0, 2, None, False, b"part", original_length=2**64 - 1)
    row = only(functions.segments([encode_segment(segment)]))
    assert (row["reason"], row["original_bytes"], row["payload"]) == (None, None, b"part")


def test_a_decoded_batch_has_what_the_decoder_finds() -> None:
    empty = only(functions.records([Decoded()]))
    assert empty == {name: None if value != () else [] for name, value in ((n, getattr(Decoded(), n)) for n in empty)}


@pytest.mark.parametrize(
    ("result", "type_"),
    [
        (functions.envelopes([]), functions.ENVELOPE),
        (functions.sds_messages([]), functions.SDS_MESSAGE),
        (functions.segments([]), functions.SEGMENT),
    ],
)
def test_results_have_the_type_that_spark_asks_for(result: pa.StructArray, type_: StructType) -> None:
    """Of another type, Spark would convert every batch."""
    assert result.type == to_arrow_type(type_)
