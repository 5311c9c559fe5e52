"""The notebook's questions, asked of small Delta tables written by hand with delta-rs; and the terminal report."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from report_example import faultless, true_conversation
from rich.console import Console

from reliable_channel.errors import EnvironmentFault
from reliable_channel.report import frames
from reliable_channel.report.check import Difference
from reliable_channel.report.render import render

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NS = int(START.timestamp()) * 10**9


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Channel a: two delivered, one of them late and repaired; channel b: nothing delivered, one set incomplete."""
    place = tmp_path_factory.mktemp("tables")
    rows: dict[str, list[dict[str, object]]] = {
        "delivered_messages": [
            {
                "channel_id": "a",
                "event_time": at(second),
                "payload_bytes": 5,
                "repaired_segments": repaired,
                "late": late,
                "sender_timestamp_ns": NS + 10**9,
            }
            for second, repaired, late in ((1.25, 0, False), (20, 2, True))
        ],
        "incomplete_messages": [
            {
                "channel_id": "b",
                "event_time": at(30),
                "sender_id": "bob",
                "data_held": [0, 2],
                "data_count": 3,
                "data_missing": [1],
            }
        ],
        "lost_dependencies": [
            {"channel_id": "a", "sds_id": sds_id, "status": status, "event_time": at(40)}
            for sds_id, status in (("x", "lost"), ("y", "lost"), ("y", "recovered"), ("z", "before_observation"))
        ],
        "acks": [
            {
                "channel_id": "a",
                "sds_id": "m",
                "acknowledged_by": "bob",
                "evidence": evidence,
                "certainty": certainty,
                "latency_ms": latency,
            }
            for evidence, certainty, latency in (("causal_history", "certain", 900), ("bloom_filter", "possible", 300))
        ],
        "quarantine": [{"stage": "sds", "reason": "malformed_sds"}] * 2 + [{"stage": "record", "reason": "null_value"}],
    }
    for name, content in rows.items():
        write_deltalake(str(place / name), pa.Table.from_pylist(content))
    return place


def test_delivery_by_channel_counts_what_was_saved_and_what_was_lost(tables: Path) -> None:
    rows = frames.delivery_by_channel(tables).to_dict("records")
    assert rows == [
        {"channel_id": "a", "delivered": 2, "repaired": 1, "late": 1, "incomplete": 0, "lost_dependencies": 1},
        {"channel_id": "b", "delivered": 0, "repaired": 0, "late": 0, "incomplete": 1, "lost_dependencies": 0},
    ]


def test_deliveries_fall_into_bins_of_event_time(tables: Path) -> None:
    frame = frames.deliveries_over_time(tables, seconds=15)
    assert [(t.second, n) for t, n in zip(frame["time"], frame["messages"], strict=True)] == [(0, 1), (15, 1)]


def test_latency_is_from_the_senders_timestamp_in_ms(tables: Path) -> None:
    assert sorted(frames.delivery_latency(tables)["latency_ms"]) == [250.0, 19_000.0]


def test_losses_name_what_is_missing_and_leave_out_what_came_after_all(tables: Path) -> None:
    frame = frames.losses(tables)
    assert list(frame["what"]) == ["incomplete message", "lost dependency"]
    assert list(frame["detail"]) == ["has 2 of 3, missing 1", "x"]


def test_an_acknowledgement_counts_when_the_first_evidence_came(tables: Path) -> None:
    (row,) = frames.acknowledgement_latency(tables).to_dict("records")
    assert (row["latency_ms"], row["evidence"], row["certainty"]) == (300, "bloom_filter", "possible")


def test_quarantine_reasons_come_most_frequent_first(tables: Path) -> None:
    assert list(frames.quarantine_reasons(tables)["reason"]) == ["malformed_sds", "null_value"]


def test_a_table_that_is_not_there_is_said_by_name(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="quarantine"):
        frames.quarantine_reasons(tmp_path)


def report(differences: list[Difference]) -> str:
    out = io.StringIO()
    render(Console(file=out, width=200), true_conversation(), faultless(), differences)
    return out.getvalue()


def test_the_report_names_every_message_that_is_missing_and_what_of_it() -> None:
    text = report([])
    assert "c #2 from alice, 40 bytes: has 1 of 2 segments; missing 1" in text
    assert "c #3 from bob, 4 bytes: nothing arrived; others name it (l0…)" in text
    assert "c #5 from carol, 4 bytes: left no trace on the wire, known from the truth only" in text
    assert "The tables match the truth exactly." in text


def test_the_report_says_where_the_tables_differ_and_shows_hostile_text_as_text() -> None:
    text = report([Difference("delivered messages", "[red]c[/red]", "x", "is not delivered")])
    assert "differ from the truth in 1 places" in text
    assert "delivered messages: [red]c[/red] x: is not delivered" in text
    assert "match the truth exactly" not in text
