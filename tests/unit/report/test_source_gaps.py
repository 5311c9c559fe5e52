"""The report counts what each gap can hide, by senders' records and chains, beside what others name of it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from reliable_channel.analysis.report import quarantine
from reliable_channel.analysis.report.source import TableWindow, Window
from reliable_channel.config import PathSettings
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow

CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/reliable-channel/1/v/proto", "channel_id": "c"}
AT_US = 1_767_225_600_000_000


def gap(number: int, begin_s: int, end_s: int, status: str) -> dict[str, object]:
    return {
        "kafka_topic": "waku.envelopes",
        "kafka_partition": -1,
        "first_offset": number,
        "last_offset": number,
        "cause": "bridge_restart",
        "name": f"gap-{number}",
        "status": status,
        "from_time": AT_US + begin_s * 1_000_000,
        "to_time": AT_US + end_s * 1_000_000,
        "ingest_time": AT_US + end_s * 1_000_000,
        "vantage": "north",
    }


def unknown(key: str, first_named_s: int, cause: str = "source_gap") -> dict[str, object]:
    at = AT_US + first_named_s * 1_000_000
    return {
        **CHANNEL,
        "message_key": key,
        "sds_ids": [key],
        "verdict": "unknown",
        "cause": cause,
        "first_seen": at,
        "as_of": at,
        "settled": True,
        "acknowledged_by": [],
    }


def test_what_others_name_counts_for_the_last_open_gap_before_it(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    gaps = [gap(1, 10, 20, "unfilled"), gap(2, 30, 40, "filled"), gap(3, 50, 60, "open")]
    named = [unknown("a", 25), unknown("b", 45), unknown("c", 61), unknown("d", 62, "not_followed"), unknown("e", 5)]
    create_tables(paths, [tables.SDS_MESSAGES, tables.SENDER_EVENTS])
    for table, rows in ((tables.SOURCE_GAPS, gaps), (tables.DELIVERY_STATUS, named)):
        create_tables(paths, [table])
        append_rows(paths, table, as_arrow(rows, table))
    found = quarantine.source_gaps(TableWindow(Path(paths.data_dir))).set_index("name")
    assert found["named"].to_dict() == {"gap-1": 2, "gap-2": 0, "gap-3": 1}


def test_a_gap_is_in_every_window_that_it_reaches_into_with_what_it_hides(tmp_path: Path) -> None:
    """It is recorded only after its end."""
    paths = PathSettings(run_dir=str(tmp_path))
    recorded = {**gap(1, 10, 20, "open"), "ingest_time": AT_US + 90_000_000}
    filled = {**recorded, "first_offset": 2, "last_offset": 2, "status": "filled", "ingest_time": AT_US + 95_000_000}
    rows = {
        tables.SOURCE_GAPS: [recorded, filled, {**gap(7, 0, 40, "open"), "from_time": None}],
        tables.SDS_MESSAGES: [said("a1", "alice", 5), said("a2", "alice", 25, "a1")],
    }
    for table, some in rows.items():
        create_tables(paths, [table])
        append_rows(paths, table, as_arrow(some, table))

    def show(since_s: int, until_s: int) -> dict[str, tuple[str, int]]:
        begin, end = (dt.datetime.fromtimestamp(AT_US / 1e6 + seconds, dt.UTC) for seconds in (since_s, until_s))
        gaps = quarantine.source_gaps(TableWindow(Path(paths.data_dir), Window(begin, end)))
        return {row.name: (row.status, row.unbroken) for row in gaps.itertuples(index=False)}

    assert show(12, 15) == {"gap-1": ("filled", 1), "gap-7": ("open", 0)}
    assert show(20, 21).keys() == {"gap-1", "gap-7"} and show(0, 10).keys() == {"gap-7"}
    assert show(41, 100) == {}


def said(sds_id: str, sender: str, seconds: int, *history: str, late_s: int = 0) -> dict[str, Any]:
    """A message that came ``late_s`` after it was sent."""
    return {
        **CHANNEL,
        "kafka_topic": "waku.envelopes",
        "kafka_partition": 0,
        "kafka_offset": seconds,
        "event_time": AT_US + (seconds + late_s) * 1_000_000,
        "ingest_time": AT_US + (seconds + late_s) * 1_000_000,
        "sender_id": sender,
        "sds_id": sds_id,
        "sds_kind": "content",
        "lamport_timestamp": AT_US // 1_000 + seconds * 1_000,
        "causal_history": [{"sds_id": one, "retrieval_hint": None, "sender_id": None} for one in history],
    }


def test_the_senders_own_chains_say_of_whom_a_gap_can_hide_something(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    messages = [
        said("a1", "alice", 5),
        said("a2", "alice", 15, "a1", late_s=100),  # a store had it
        said("a3", "alice", 25, "a2", "b1"),
        said("b1", "bob", 6),
        said("b3", "bob", 26, "b2"),
        said("c1", "carol", 7),
        said("d1", "dave", 27),  # nothing is known of him before
        said("a4", "alice", 55, "lost", "a3"),
        said("b4", "bob", 56, "b3"),
    ]
    saw = {"source": "relay", "node": "http://own", "pubsub_topic": CHANNEL["pubsub_topic"]}
    sightings = [
        {**saw, "vantage": vantage, "message_hash": digit * 32, "seen_at": AT_US + at_s * 1_000_000}
        for vantage, digit, at_s in (("south", b"1", 12), ("south", b"1", 13), ("north", b"2", 14), ("south", b"3", 22))
    ]
    rows = {
        tables.SDS_MESSAGES: messages,
        tables.SIGHTINGS: sightings,
        tables.SOURCE_GAPS: [gap(1, 10, 20, "unfilled"), gap(2, 30, 40, "open")],
    }
    for table, some in rows.items():
        create_tables(paths, [table])
        append_rows(paths, table, as_arrow(some, table))
    found = quarantine.source_gaps(TableWindow(Path(paths.data_dir))).set_index("name")
    chains = found[["unbroken", "broken", "silent", "elsewhere"]].to_dict("index")
    assert chains == {
        "gap-1": {"unbroken": 1, "broken": 1, "silent": 1, "elsewhere": 1},
        "gap-2": {"unbroken": 2, "broken": 0, "silent": 2, "elsewhere": 0},
    }


def test_a_gap_whose_store_lacks_what_another_bridge_saw_is_shown_as_unfilled(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    topics = {"pubsub_topics": [CHANNEL["pubsub_topic"]], "content_topics": [CHANNEL["content_topic"]]}
    saw = {"vantage": "south", "source": "relay", "node": "http://own", "pubsub_topic": CHANNEL["pubsub_topic"]}
    place = {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "source": "relay", "ephemeral": False}
    times = [AT_US + at_s * 1_000_000 for at_s in (12, 14, 32)]
    hashes = [bytes([number]) * 32 for number in range(3)]
    from_store = {**saw, "vantage": "north", "source": "store", "message_hash": hashes[2], "seen_at": times[2]}
    rows = {
        tables.SOURCE_GAPS: [{**gap(1, 10, 20, "filled"), **topics}, {**gap(2, 30, 40, "filled"), **topics}],
        tables.SIGHTINGS: [
            *({**saw, "message_hash": hash_, "seen_at": at} for hash_, at in zip(hashes, times, strict=True)),
            from_store,
        ],
        tables.ENVELOPES: [
            {
                **CHANNEL,
                **place,
                "kafka_offset": number,
                "record_time": at,
                "event_time": at,
                "ingest_time": at,
                "message_hash": hash_,
                "sender_timestamp_ns": at * 1_000,
                "kind": "sds",
            }
            for number, (hash_, at) in enumerate(zip(hashes, times, strict=True))
        ],
        tables.DELIVERY_STATUS: [unknown("a", 25)],
    }
    for table, some in rows.items():
        create_tables(paths, [table])
        append_rows(paths, table, as_arrow(some, table))
    found = quarantine.source_gaps(TableWindow(Path(paths.data_dir))).set_index("name")
    assert found[["status", "elsewhere", "lacking", "named"]].to_dict("index") == {
        "gap-1": {"status": "unfilled", "elsewhere": 2, "lacking": 2, "named": 1},
        "gap-2": {"status": "filled", "elsewhere": 1, "lacking": 0, "named": 0},
    }
