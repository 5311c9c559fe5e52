"""The rows of a micro-batch are the same after their way to the stateful functions, as text."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.wire.sds import HistoryEntry
from reliable_channel.pipeline.ack.records import InputRow, row_of
from reliable_channel.pipeline.reassembly.bucket import Tick, _in_record_order
from tests.support.buckets import text_of
from tests.support.cuts import as_frame, segment_row

WIDE = st.none() | st.integers(0, 2**63 - 1)
AT_US = 1_767_225_600_000_000


@given(
    lamport=WIDE,
    sent=st.none() | st.integers(-(2**63), 2**63 - 1),
    payload=st.none() | st.binary(max_size=40),
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    filter_=st.none() | st.binary(max_size=9),
)
def test_ack_rows_are_the_same_as_text(
    lamport: int | None, sent: int | None, payload: bytes | None, name: str, filter_: bytes | None
) -> None:
    row = InputRow(
        "completed",
        "t",
        0,
        2**62 + 1,
        AT_US,
        sender_id=name,
        lamport_timestamp=lamport,
        sender_timestamp_ns=sent,
        causal_history=(HistoryEntry(name, payload, None), HistoryEntry("b", None, name)),
        bloom_filter=filter_,
        content_digest=payload,
        entire_message_hash=payload,
        sds_ids=(name, None),
        position_exact=True,
    )
    assert row_of(json.loads(text_of(row)), filter_) == row


@given(
    lamport=WIDE, name=st.text(st.characters(exclude_categories=["Cs"]), max_size=20), content=st.binary(max_size=40)
)
def test_segments_and_ticks_are_the_same_as_text(lamport: int | None, name: str, content: bytes) -> None:
    row = segment_row("alice", name, 0, content, AT_US // 1000, b"payload")
    place = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 2**62 + 1}
    tick = {"kind": "tick", "event_us": AT_US}
    segments, ticks = _in_record_order([as_frame([{**row, "lamport_timestamp": lamport, **place}, {**tick, **place}])])
    ((hash_, (segment,)),) = segments.items()
    assert (hash_, segment.content, segment.sds_id) == (row["state_key"], content, name)
    assert (segment.lamport_timestamp, segment.kafka_offset, segment.event_us) == (lamport, 2**62 + 1, AT_US)
    assert ticks == [Tick("t", 0, 2**62 + 1, AT_US)]
