"""The report counts what each gap can hide: what others name of it beside what senders recorded."""

from __future__ import annotations

from pathlib import Path

from reliable_channel.analysis.report import quarantine
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.config import PathSettings
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow

CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/reliable-channel/1/v/proto", "channel_id": "c"}
AT_US = 1_767_225_600_000_000


def gap(number: int, begin_s: int, end_s: int, status: str) -> dict[str, object]:
    return {
        "kafka_topic": "waku.evidence",
        "kafka_partition": 0,
        "first_offset": number,
        "last_offset": number,
        "cause": "bridge_restart",
        "name": f"gap-{number}",
        "status": status,
        "from_time": AT_US + begin_s * 1_000_000,
        "to_time": AT_US + end_s * 1_000_000,
        "ingest_time": AT_US + end_s * 1_000_000,
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
