"""What pandas does to the rows of a keyed micro-batch on their way to the stateful functions changes no number."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.pipeline.ack import stream as ack
from reliable_channel.pipeline.reassembly import stream as reassembly
from reliable_channel.pipeline.storage.arrow_schema import ARROW_TYPES

WIDE = st.none() | st.integers(0, 2**63 - 1)
AT_US = 1_767_225_600_000_000


def as_spark_gives(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    """One frame of rows, over Arrow: a column of integers with a null in it becomes floats."""
    schema = pa.schema([(name, ARROW_TYPES[type_.upper()]) for name, type_ in columns.items()])
    return pa.Table.from_pylist(rows, schema=schema).to_pandas()


def test_the_frames_here_lose_what_sparks_lose() -> None:
    frame = as_spark_gives([{"kafka_offset": 2**62 + 1}, {"kafka_offset": None}], {"kafka_offset": "bigint"})
    assert int(frame["kafka_offset"][0]) != 2**62 + 1


@given(st.lists(st.tuples(WIDE, st.none() | st.integers(-(2**63), 2**63 - 1), WIDE), min_size=1, max_size=5))
def test_ack_rows_keep_their_numbers(numbers: list[tuple[int | None, int | None, int | None]]) -> None:
    digits = [tuple(None if n is None else str(n) for n in each) for each in numbers]
    rows = [
        {
            "row_kind": "message",
            "kafka_topic": "t",
            "kafka_partition": 0,
            "kafka_offset": offset,
            "sub_order": 0,
            "event_us": AT_US,
            "lamport_timestamp": lamport,
            "sender_timestamp_ns": sent,
            "first_lamport_timestamp": first,
            "payload_bytes": None if offset % 2 else 7,
        }
        for offset, (lamport, sent, first) in enumerate(digits)
    ]
    found = [row for *_, row in ack._input_rows(as_spark_gives(rows, ack._ROW_COLUMNS))]
    assert [(r.lamport_timestamp, r.sender_timestamp_ns, r.first_lamport_timestamp) for r in found] == numbers
    assert [r.payload_bytes for r in found] == [None if offset % 2 else 7 for offset in range(len(rows))]


@pytest.mark.parametrize("lamport", [None, 0, 2**53 + 1, 2**63 - 1])
def test_segments_in_state_keep_their_lamport_timestamp(lamport: int | None) -> None:
    tick = {"kind": "tick", "kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 1, "event_us": AT_US}
    row = {**tick, "kind": "segment", "content": b"", "lamport_timestamp": None if lamport is None else str(lamport)}
    frame = as_spark_gives([row, tick], reassembly._ROW_COLUMNS)
    assert reassembly._segment_row(frame.to_dict("records")[0]).lamport_timestamp == lamport
