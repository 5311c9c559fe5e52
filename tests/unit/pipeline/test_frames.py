"""What pandas does to the rows of a keyed micro-batch on their way to the stateful functions changes no number."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.wire.sds import HistoryEntry
from reliable_channel.lake.schema import ARROW_TYPES
from reliable_channel.pipeline.ack.records import InputRow, row_of
from tests.unit.pipeline.buckets import text_of

WIDE = st.none() | st.integers(0, 2**63 - 1)
AT_US = 1_767_225_600_000_000


def as_spark_gives(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    """One frame of rows, over Arrow: a column of integers with a null in it becomes floats."""
    schema = pa.schema([(name, ARROW_TYPES[type_.upper()]) for name, type_ in columns.items()])
    return pa.Table.from_pylist(rows, schema=schema).to_pandas()


def test_the_frames_here_lose_what_sparks_lose() -> None:
    frame = as_spark_gives([{"kafka_offset": 2**62 + 1}, {"kafka_offset": None}], {"kafka_offset": "bigint"})
    assert int(frame["kafka_offset"][0]) != 2**62 + 1


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
