"""Timestamps in another unit, or nonsense, are in no latency; they are counted apart, with sender and guessed unit."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from starlette.testclient import TestClient

from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.analysis.figures import latencies
from reliable_channel.analysis.report import delivery, terminal
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.analysis.report.summary import collect
from reliable_channel.config import PathSettings, load
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ACKS, DELIVERED_MESSAGES, TABLES, Table
from tests.support.examples import examples

SEEN_S = 1_767_225_600
ODD = {"s": SEEN_S, "ms": SEEN_S * 10**3, "µs": SEEN_S * 10**6, "none": -5}


def lake_with(
    place: Path, stamps: list[tuple[str, int]], tables: tuple[Table, ...] = TABLES, channels: str = "c"
) -> PathSettings:
    """Tables with one delivered message for each (sender, timestamp as sent), in ``channels`` in turn; each took a
    second."""
    paths = load("local").with_run_dir(place).paths
    create_tables(paths, tables)
    rows: list[dict[str, Any]] = [
        {
            **{"content_topic": "/a/1/b/proto", "channel_id": channels[number % len(channels)], "pubsub_topic": "/p"},
            **{"sender_id": sender, "payload": b"x", "payload_bytes": 1, "sender_timestamp_ns": stamp},
            **{"first_seen": SEEN_S * 10**6, "event_time": SEEN_S * 10**6, "kafka_offset": number},
            **{"kafka_topic": "t", "kafka_partition": 0},
        }
        for number, (sender, stamp) in enumerate(stamps)
    ]
    append_rows(paths, DELIVERED_MESSAGES, as_arrow(rows, DELIVERED_MESSAGES))
    return paths


@settings(max_examples=examples(15))
@given(units=st.lists(st.sampled_from([*ODD, "ns"]), min_size=1, max_size=6), any_time=st.integers(-(2**63), 2**63 - 1))
def test_only_what_can_be_true_is_in_a_latency(
    units: list[str], any_time: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stamps = [(unit, ODD.get(unit, (SEEN_S - 1) * 10**9)) for unit in units] + [("any", any_time)]
    paths = lake_with(tmp_path_factory.mktemp("t"), stamps, (DELIVERED_MESSAGES, ACKS))
    source = TableWindow(Path(paths.data_dir))
    honest = units.count("ns") + (-30 * 86_400 <= any_time / 10**9 - SEEN_S <= 86_400)
    assert delivery.overall_latency(source)["messages"].tolist() == [honest]
    odd = delivery.odd_timestamps(source).query("sender_id != 'any'")
    found = {(row.sender_id, row.guessed_unit): row.messages for row in odd.itertuples()}
    assert found == {(unit, unit): units.count(unit) for unit in units if unit != "ns"}
    if "ns" in units and honest == units.count("ns"):
        (quantiles,) = {tuple(latencies(TableSnapshot(paths), "true", {})["network"])}
        assert set(quantiles) == {1_000.0}


def test_where_all_are_odd_it_is_not_said_that_nothing_was_delivered(tmp_path: Path) -> None:
    paths = lake_with(tmp_path, [("bob", ODD["ms"])])
    console = Console(file=io.StringIO(), width=120)
    terminal.render(console, collect(TableWindow(Path(paths.data_dir)), dt.datetime.now(dt.UTC)), [])
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "No delivered message has a plausible timestamp." in said and "Nothing was delivered" not in said


def test_report_and_dashboard_count_them_apart(tmp_path: Path) -> None:
    stamps = [("alice", (SEEN_S - 1) * 10**9), ("bob", ODD["ms"]), ("carol", ODD["ms"]), ("carol", ODD["ms"])]
    paths = lake_with(tmp_path, stamps, channels="cccd")
    report = collect(TableWindow(Path(paths.data_dir)), dt.datetime.now(dt.UTC))
    assert report["latency_ms"]["p99"] == 1_000
    assert [(row["sender_id"], row["guessed_unit"]) for row in report["odd_timestamps"]] == [
        ("bob", "ms"),
        ("carol", "ms"),
        ("carol", "ms"),
    ]
    assert delivery.waiting(TableWindow(Path(paths.data_dir)))["messages"].sum() == 4, "by our own clock"
    assert any(
        "The timestamps of 3 messages of 2 senders are implausible" in note and "in ms" in note
        for note in report["notes"]
    )
    page = TestClient(create_app(paths), base_url="http://localhost").get("/?last=all").text
    assert (
        "Not counted: 3 messages of 2 senders whose timestamps are implausible, probably in ms instead of ns." in page
    )
