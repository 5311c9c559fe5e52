"""The evidence of a round, gathered in DuckDB. `tests/spark/test_verdict_rounds.py` compares its verdicts with those of
Spark."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import pyarrow as pa
import pytest

from reliable_channel.lake import tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CHANNEL_KEY
from reliable_channel.pipeline.verdict.gather import READ
from reliable_channel.pipeline.verdict.in_duckdb import gather_evidence

CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/a/1/b/proto", "channel_id": "c"}
AT_US = 1_767_225_600_000_000


def gather(
    ids: list[dict[str, Any]], rows: dict[tables.Table, list[dict[str, Any]]], suspected: Set[str] = frozenset()
) -> list[dict[str, Any]]:
    given = {table: as_arrow(rows.get(table, []), table) for table in READ}
    about = pa.table({name: pa.array([each[name] for each in ids], pa.string()) for name in (*CHANNEL_KEY, "sds_id")})
    return gather_evidence(given, about, suspected, None).to_pylist()


def segment(sds_id: str, **columns: Any) -> dict[str, Any]:
    said = {**CHANNEL, "sds_id": sds_id, "sds_kind": "content", "segment_kind": "bare", "sender_id": "alice"}
    return {**said, "entire_message_hash": b"h" * 32, "event_time": AT_US, **columns}


def test_only_the_ids_that_are_asked_for_in_their_channels() -> None:
    nowhere = {**CHANNEL, "pubsub_topic": None}
    rows = [segment("m"), segment("m", **nowhere), segment("other"), segment("m", channel_id="d")]
    gathered = gather([{**CHANNEL, "sds_id": "m"}, {**nowhere, "sds_id": "m"}], {tables.SDS_MESSAGES: rows})
    assert {(row["pubsub_topic"], row["channel_id"], *row["ids"], row["received"]) for row in gathered} == {
        (None, "c", "m", 1),
        (CHANNEL["pubsub_topic"], "c", "m", 1),
    }


def test_an_undecodable_record_is_evidence_about_the_id_in_it() -> None:
    rows = {tables.SDS_MESSAGES: [segment("m"), segment("n")]}
    gathered = gather([{**CHANNEL, "sds_id": sds_id} for sds_id in "mn"], rows, {"m"})
    assert {row["ids"][0]: row["undecodable"] for row in gathered} == {"m": True, "n": False}


def test_of_two_last_reports_of_a_set_the_one_counts_that_counts_in_spark() -> None:
    report = {**CHANNEL, "sds_ids": ["m"], "sender_id": "alice", "entire_message_hash": b"h" * 32}
    report |= {"event_time": AT_US, "first_seen": AT_US, "status": "overdue", "reason": "expired"}
    for reports in ([3, None], [None, 3]):
        rows = {tables.INCOMPLETE_MESSAGES: [{**report, "data_count": count} for count in reports]}
        (row,) = gather([{**CHANNEL, "sds_id": "m"}], rows)
        assert row["needed"] is None, "null comes first"


BITS = {"BIGINT": 63, "TIMESTAMP": 63, "INT": 31}


@pytest.mark.parametrize("extreme", ["least", "most"])
def test_no_number_or_time_of_a_row_makes_it_fail(extreme: str) -> None:
    def fill(table: tables.Table) -> dict[str, Any]:
        row: dict[str, Any] = {**CHANNEL, "sds_id": "m", "sds_ids": ["m"], "sender_id": "a\0", "row_kind": "message"}
        row |= {"sds_kind": "content", "segment_kind": "parity", "event": "queued", "entire_message_hash": b"h" * 32}
        for column in table.columns:
            if (bits := BITS.get(column.type)) is not None:
                row[column.name] = -(2**bits) if extreme == "least" else 2**bits - 1
        return row

    rows = {table: [fill(table), {**fill(table), "segment_kind": None, "sds_id": "n"}] for table in READ}
    honest = {**CHANNEL, "row_kind": "message", "first_sds_id": "x", "sds_id": "x", "segment_kind": "bare"}
    rows[tables.DELIVERIES].append({**honest, "sender_id": "alice", "entire_message_hash": b"x" * 32})
    rows[tables.DELIVERIES][-1] |= {"event_time": AT_US, "first_seen": AT_US, "first_lamport_timestamp": 5}
    gathered = gather([{**CHANNEL, "sds_id": sds_id} for sds_id in "mnx"], rows)
    assert [row["sender_id"] for row in gathered if row["ids"] == ["x"]] == ["alice"]


def test_no_evidence_gives_no_message() -> None:
    assert gather([{**CHANNEL, "sds_id": "m"}], {}) == []
