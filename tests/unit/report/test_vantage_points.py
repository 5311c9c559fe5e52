"""The time line of a message says at which vantage points its envelopes were seen, at which not, and who had them."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise
from pathlib import Path

from reliable_channel.analysis.dashboard.message import places
from reliable_channel.analysis.report import quarantine
from reliable_channel.analysis.report.graph import Kind, graph
from reliable_channel.analysis.report.investigate import find, timeline
from reliable_channel.analysis.report.source import TableWindow, Window
from reliable_channel.config import PathSettings
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow

CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/reliable-channel/1/v/proto", "channel_id": "c"}
AT_US = 1_767_225_600_000_000


def seen(digit: bytes, vantage: str, source: str, seconds: int, node: str = "http://own") -> dict[str, object]:
    at = AT_US + seconds * 1_000_000
    return {"message_hash": digit * 32, "vantage": vantage, "node": node, "source": source, "seen_at": at}


def test_where_an_envelope_was_seen_and_where_not(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    segments = [
        {
            **CHANNEL,
            "kafka_topic": "waku.envelopes",
            "kafka_partition": 0,
            "kafka_offset": number,
            "event_time": AT_US,
            "ingest_time": AT_US,
            "sender_id": "alice",
            "sds_id": sds_id,
            "sds_kind": "content",
            "envelope_hash": digit * 32,
        }
        for number, (sds_id, digit) in enumerate((("first", b"1"), ("second", b"2")))
    ]
    sightings = [
        seen(b"1", "north", "sender", 0),
        seen(b"1", "south", "relay", 1),
        seen(b"2", "north", "relay", 5),
        seen(b"2", "south", "store", 90, "http://store-c"),
    ]
    for table, rows in ((tables.SDS_MESSAGES, segments), (tables.SIGHTINGS, sightings)):
        create_tables(paths, [table])
        append_rows(paths, table, as_arrow(rows, table))
    source = TableWindow(Path(paths.data_dir))
    found = {}
    for sds_id in ("first", "second"):
        (message,) = find(source, sds_id)
        lines = timeline(source, message)
        lines = lines[lines["lane"] == "vantage"]
        found[sds_id] = list(zip(lines["who"], lines["what"], lines["detail"], strict=True))
    assert found == {
        "first": [("north", "dispatched", "sender of http://own"), ("south", "seen", "relay of http://own")],
        "second": [
            ("south", "not seen", "others saw it"),
            ("north", "seen", "relay of http://own"),
            ("south", "a store had it", "store of http://store-c"),
        ],
    }
    points = quarantine.vantages(source).set_index("vantage")
    counts = {name: (row.nodes, row.seen, row.not_seen, row.from_a_store) for name, row in points.iterrows()}
    assert counts == {"north": ("http://own", 2, 0, 0), "south": ("http://own", 1, 1, 1)}


def test_an_envelope_that_bridges_saw_on_both_sides_of_an_edge_was_seen_by_both(tmp_path: Path) -> None:
    """The later one had not seen it in the window that ended between them, nor the earlier one in the next window."""
    paths = PathSettings(run_dir=str(tmp_path))
    sightings = [
        *(seen(b"1", "north", "relay", 59), seen(b"1", "south", "relay", 61)),
        *(seen(b"2", "north", "relay", 70), seen(b"2", "south", "store", 130)),
        *(seen(b"3", "north", "relay", 121), seen(b"3", "south", "relay", 121)),
    ]
    create_tables(paths, [tables.SIGHTINGS])
    append_rows(paths, tables.SIGHTINGS, as_arrow(sightings, tables.SIGHTINGS))
    edges = [dt.datetime.fromtimestamp(AT_US / 10**6 + seconds, dt.UTC) for seconds in (0, 60, 120)]
    counts = []
    for since, until in pairwise(edges):
        points = quarantine.vantages(TableWindow(Path(paths.data_dir), Window(since, until)))
        counts.append(points[["vantage", "seen", "not_seen", "from_a_store"]].to_numpy().tolist())
    assert counts == [[["north", 1, 0, 0], ["south", 1, 0, 0]], [["north", 1, 0, 0], ["south", 0, 1, 1]]]


def test_what_is_known_of_an_envelope_that_never_arrived(tmp_path: Path) -> None:
    """Its sender names it, a bridge saw it, and a recipient reports that it gave the message up."""
    paths = PathSettings(run_dir=str(tmp_path))
    record = {**CHANNEL, "sender_id": "alice", "sds_id": "gone"}
    records = [
        {**record, "event": "sent", "envelope_hash": b"3" * 32, "event_time": AT_US},
        {**record, "event": "lost", "reported_by": "carol", "event_time": AT_US + 9_000_000},
    ]
    verdict = {
        **{**CHANNEL, "message_key": "gone", "sender_id": "alice", "sds_ids": ["gone"], "verdict": "missing"},
        **{"first_seen": AT_US, "as_of": AT_US, "settled": True, "acknowledged_by": [], "lost_by": ["carol"]},
    }
    for table, rows in (
        (tables.DELIVERY_STATUS, [verdict]),
        (tables.SENDER_EVENTS, records),
        (tables.SIGHTINGS, [seen(b"3", name, "relay", 1) for name in ("west", "south", "north", "east")]),
    ):
        create_tables(paths, [table])
        append_rows(paths, table, as_arrow(rows, table))
    source = TableWindow(Path(paths.data_dir))
    (message,) = find(source, (b"3" * 32).hex())
    assert message.message_key == "gone"
    lines = timeline(source, message)
    who = ["alice", "east", "north", "south", "west", "carol"]  # of equal times in the order of their names
    assert [*zip(lines["what"], lines["who"], strict=True)] == [*zip(["sent", *["seen"] * 4, "lost"], who, strict=True)]
    assert {(row["vantage"], row["seen"]) for row in places(source.snapshot, message)} == {
        (name, 1) for name in who[1:5]
    }


def test_a_message_without_a_pubsub_topic_has_a_time_line_and_a_graph(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    place = {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "kafka_offset": 7}
    segment = {**CHANNEL, **place, "event_time": AT_US, "ingest_time": AT_US, "sds_id": "only", "sds_kind": "content"}
    create_tables(paths, [tables.SDS_MESSAGES])
    append_rows(paths, tables.SDS_MESSAGES, as_arrow([{**segment, "pubsub_topic": None}], tables.SDS_MESSAGES))
    source = TableWindow(Path(paths.data_dir))
    (message,) = find(source, "only")
    assert list(timeline(source, message)["lane"]) == ["segment"]
    assert [node.kind for node in graph(source, message).nodes] == [Kind.OWN]
