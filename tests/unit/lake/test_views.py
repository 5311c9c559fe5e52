"""The view ``messages``: its columns are those of its definition, and its rows those of the tables behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.lake.tables.views import MESSAGES
from tests.support.sample_tables import story, write

DUCKDB_TYPES = {
    "STRING": "VARCHAR",
    "INT": "INTEGER",
    "BINARY": "BLOB",
    "TIMESTAMP": "TIMESTAMP WITH TIME ZONE",
    "ARRAY<STRING>": "VARCHAR[]",
    "ARRAY<INT>": "INTEGER[]",
    "MAP<STRING, TIMESTAMP>": "MAP(VARCHAR, TIMESTAMP WITH TIME ZONE)",
}


@pytest.fixture(scope="module")
def lake(sample_tables: Path) -> TableSnapshot:
    return TableSnapshot(PathSettings(data_dir=str(sample_tables)))


def test_it_has_the_columns_of_its_definition(lake: TableSnapshot) -> None:
    described = lake.select("DESCRIBE messages")
    assert {row["column_name"]: row["column_type"] for row in described} == {
        column.name: DUCKDB_TYPES.get(column.type, column.type) for column in MESSAGES.columns
    }


def test_it_has_each_message_once_and_each_delivered_one_with_its_delivery(lake: TableSnapshot) -> None:
    (counts,) = lake.select(
        """SELECT (SELECT count(*) FROM delivery_status) AS judged, (SELECT count(*) FROM messages) AS messages,
                (SELECT count(*) FROM (SELECT DISTINCT content_topic, channel_id, message_key FROM messages)) AS keys,
                (SELECT count(*) FROM messages WHERE (verdict = 'delivered') <> (delivery_seq IS NOT NULL)) AS wrong"""
    )
    assert counts["judged"] == counts["messages"] == counts["keys"] > 100
    assert counts["wrong"] == 0


def test_it_holds_what_the_tables_know_about_a_message(lake: TableSnapshot) -> None:
    (late,) = lake.select("SELECT * FROM messages WHERE channel_id = 'talk' AND delivery_seq = 21")
    assert (late["sender_id"], late["late"], late["waited_ms"], late["latency_ms"]) == ("alice", True, 400000, 400100)
    assert (late["payload_bytes"], late["data_count"], late["segments_seen"]) == (41, 1, 1)
    assert late["acknowledged_by"] == [who for who, _ in sorted(late["acknowledged_at"])] == ["bob", "carol"]
    short = lake.select("SELECT * FROM messages WHERE data_missing = [1, 2, 3]")
    assert [(row["data_count"], row["segments_seen"], row["delivery_seq"]) for row in short] == [(4, 1, None)]
    assert {tuple(row["seen_by"]) for row in lake.select("SELECT seen_by FROM messages WHERE seen_by IS NOT NULL")}


def test_an_acknowledgement_counts_from_the_segment_that_sufficed(tmp_path: Path) -> None:
    """Two of two segments are needed: the second acknowledgement is the time, not the first nor one of parity."""
    told = story()
    (message,) = [row for row in told.rows["delivery_status"] if row["sds_ids"] == told.messages["whole"].sds_ids]
    acks = [row for row in told.rows["acks"] if row["sds_id"] in message["sds_ids"]]
    times = sorted(row["event_time"] for row in acks)
    assert len(set(times)) == 4
    write(tmp_path, told)
    lake = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    (row,) = lake.select("SELECT * FROM messages WHERE message_key = $key", {"key": message["message_key"]})
    assert row["acknowledged_at"] == [(acks[0]["acknowledged_by"], times[-1])]


def test_a_clock_that_cannot_be_true_gives_no_latency(tmp_path: Path) -> None:
    told = story()
    for number, stamp in enumerate((None, -(2**63), 2**63 - 1, 1_793_000_000)):
        told.rows["delivered_messages"][number]["sender_timestamp_ns"] = stamp
    write(tmp_path, told)
    lake = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    rows = lake.select(
        "SELECT latency_ms FROM messages WHERE channel_id = 'talk' AND delivery_seq <= 5 ORDER BY delivery_seq"
    )
    assert [row["latency_ms"] is None for row in rows] == [True, True, True, True, False]
