"""The views: their columns are those of their definitions, and their rows those of the tables behind them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables.ingest import SDS_MESSAGES
from reliable_channel.lake.tables.views import VIEWS
from tests.support.alert_rows import bridge_row, minutes
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


@pytest.mark.parametrize("name", VIEWS)
def test_it_has_the_columns_of_its_definition(name: str, lake: TableSnapshot) -> None:
    described = lake.select(f"DESCRIBE {name}")
    assert {row["column_name"]: row["column_type"] for row in described} == {
        column.name: DUCKDB_TYPES.get(column.type, column.type) for column in VIEWS[name].columns
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


def ms(moment: dt.datetime) -> int:
    return round(moment.timestamp() * 1_000)


def test_dispatches_has_each_envelope_once_with_what_it_was_for(tmp_path: Path) -> None:
    def envelope(offset: int, sds_id: str, *, sent: float, came: float | None = None, **more: Any) -> dict[str, Any]:
        stamp = ms(minutes(sent)) * 1_000_000 + 999
        row = bridge_row(offset, minutes(sent if came is None else came), sds_id=sds_id, envelope_hash=bytes([offset]))
        return {**row, "sender_id": "alice", "sender_timestamp_ns": stamp, "segment_kind": "data", **more}

    rows = [
        envelope(1, "a", sent=-30),
        envelope(2, "a", sent=-29, envelope_hash=bytes([1]), sender_timestamp_ns=ms(minutes(-30)) * 1_000_000),  # copy
        envelope(3, "p", sent=-28, segment_kind="parity"),
        envelope(5, "a", sent=-27, came=-5),  # is read first, was sent last
        envelope(4, "p", sent=-26, segment_kind="parity"),
        envelope(6, "s", sent=-25, sds_kind="sync", segment_kind=None),
        envelope(7, "e", sent=-24, sds_kind="ephemeral"),
        envelope(8, "f", sent=-23, sender_timestamp_ns=2**63 - 1, channel_id="another"),
        envelope(9, "a", sent=-22, channel_id="another"),  # ids are unique in a channel only
        envelope(10, "t", sent=-21, sds_kind="tick"),
    ]
    schema = arrow_schema(SDS_MESSAGES)
    complete = [{column: row.get(column) for column in schema.names} for row in rows]
    write_deltalake(str(tmp_path / "sds_messages"), pa.Table.from_pylist(complete, schema=schema))
    lake = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    dispatches = lake.select("SELECT envelope_hash, role, sent_ms, first_seen FROM dispatches")
    assert {(row["envelope_hash"][0], row["role"], row["sent_ms"], row["first_seen"]) for row in dispatches} == {
        (number, role, ms(minutes(sent)), minutes(came))
        for number, role, sent, came in (
            (1, "content", -30, -30),
            (3, "parity", -28, -28),
            (5, "repeat", -27, -5),
            (4, "repeat", -26, -26),
            (6, "sync", -25, -25),
            (7, "ephemeral", -24, -24),
            (8, "content", -23, -23),
            (9, "content", -22, -22),
        )
    }


def test_peer_formats_tells_software_apart_by_what_it_sends(tmp_path: Path) -> None:
    noon = ms(minutes(0))
    entry = {"sds_id": "x", "retrieval_hint": None, "sender_id": None}
    js = {
        "sender_id": "js",
        "family": "spec",
        "segment_dialect": "v0.1",
        "lamport_timestamp": noon,
        "id_verified": True,
        "id_scheme": "sha256",
        "encryption_layer": "around_sds",
    }
    nim = {
        "sender_id": "nim",
        "family": "nim",
        "segment_dialect": "lip243",
        "lamport_timestamp": noon // 1_000,
        "id_verified": False,
    }
    rows = [
        {**bridge_row(1, minutes(-9)), **js, "causal_history": [entry] * 2, "bloom_filter": bytes(1_200)},
        {**bridge_row(2, minutes(-1)), **js, "causal_history": [entry], "repair_request": [entry], "sds_kind": "sync"},
        {**bridge_row(3, minutes(-8)), **nim, "causal_history": [entry] * 10},
        {**bridge_row(4, minutes(-7)), **nim, "segment_dialect": "lip243-length"},
        {**bridge_row(5, minutes(-6)), "sender_id": "counts", "segment_kind": "bare", "lamport_timestamp": 2**63 - 1},
        {**bridge_row(6, minutes(-5)), "sender_id": "ns", "lamport_timestamp": noon * 1_000_000},
        {**bridge_row(7, minutes(-4)), "sender_id": "brief", "sds_kind": "ephemeral"},
        {**bridge_row(8, minutes(-3)), "sds_kind": "tick"},
    ]
    schema = arrow_schema(SDS_MESSAGES)
    complete = [{column: row.get(column) for column in schema.names} for row in rows]
    write_deltalake(str(tmp_path / "sds_messages"), pa.Table.from_pylist(complete, schema=schema))
    lake = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    formats = {row["sender_id"]: row for row in lake.select("SELECT * FROM peer_formats")}
    assert (formats["js"]["family"], formats["nim"]["family"]) == ("spec", "nim")
    assert {who: (row["dialects"], row["clock"]) for who, row in formats.items()} == {
        "js": (["v0.1"], "ms"),
        "nim": (["lip243", "lip243-length"], "s"),
        "counts": (None, "count"),
        "ns": (None, "ns"),
        "brief": (None, None),
    }
    js_row, nim_row = formats["js"], formats["nim"]
    assert {who: (row["encryption_layers"], row["id_schemes"]) for who, row in formats.items()} == {
        "js": (["around_sds"], ["sha256"]),
        "nim": (None, ["unproven"]),
        "counts": (None, ["unproven"]),
        "ns": (None, ["unproven"]),
        "brief": (None, None),
    }
    assert (js_row["messages"], js_row["since"], js_row["last"]) == (2, minutes(-9), minutes(-1))
    assert (js_row["history_length"], js_row["filter_bytes"], js_row["repair_requests"], js_row["syncs"]) == (
        2,
        1200,
        1,
        1,
    )
    assert (js_row["proven_ids"], nim_row["unproven_ids"], nim_row["history_length"]) == (2, 2, 10)
    assert formats["counts"]["bare"] == 1


@pytest.mark.parametrize("field", [b"", b"\xff" * 100, b"\xff" * FilterFormat().byte_count, None])
def test_a_filter_that_shows_nothing_leaves_the_rest_as_it_is(field: bytes | None, tmp_path: Path) -> None:
    a_story = story()
    for row in a_story.rows["sds_messages"]:
        if row["channel_id"] == "talk" and row["sender_id"] == "carol":
            row["bloom_filter"] = field
    write(tmp_path, a_story)
    rows = TableSnapshot(PathSettings(data_dir=str(tmp_path))).select(
        "SELECT * FROM participant_views WHERE channel_id = 'talk'"
    )
    carol = next(row for row in rows if row["participant"] == "carol")
    assert len(rows) == 3
    assert (carol["lacks"], carol["in_filter"], carol["false_positive_rate"]) == (0, 0, None)
    assert carol["has"] > 0 and carol["may_lack"] > 0
