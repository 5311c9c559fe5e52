"""Measures the view ``participant_views``, the search for splits and the budget of each sender over 100 000 SDS
messages of one channel, all with Bloom filters: CPU seconds of one core, beside reading the filters alone."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from bench.registry import SIZES, Result, bench, cpu_of
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.splits import find_splits, read_contacts
from reliable_channel.config import PathSettings
from reliable_channel.core.sds.filter import OwnFilter
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.lake.create import create_table
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import ACKS, SDS_MESSAGES, Table

MESSAGES, SENDERS, CHUNK = 100_000, 5, 5_000
EVERY_MS = 60_000
START = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
KEY = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/bench/1/views/proto", "channel_id": "views"}

BUDGET = """
    SELECT sender_id, sent_ms - sent_ms % 600000 AS epoch, count(*) AS used,
           count(*) FILTER (role IN ('repeat', 'sync')) AS control
    FROM dispatches GROUP BY ALL"""


@bench
def who_is_behind_and_who_sends() -> Iterator[Result]:
    """Measure all three over a day of one channel: ten messages a minute and sender, everything heard by everybody."""
    messages = SIZES.scale_count(MESSAGES)
    with tempfile.TemporaryDirectory(prefix="bench-views-") as directory:
        _make_tables(Path(directory), messages)
        lake = TableSnapshot(PathSettings(data_dir=directory), patience_s=600)
        reading = cpu_of(lambda: lake.select("SELECT sum(octet_length(bloom_filter)) FROM sds_messages"))
        yield Result(f"reading the filters of {messages:,} messages", reading, "s")
        behind = cpu_of(lambda: lake.select("SELECT * FROM participant_views"))
        yield Result(f"participant_views over {messages:,} messages", behind, "s")

        def find() -> None:
            for key, rows in read_contacts(lake, "true", {}, EVERY_MS).items():
                assert not find_splits(lake, key, rows, EVERY_MS)

        splits = cpu_of(find)
        yield Result(f"splits over {messages:,} messages, every minute", splits, "s")
        yield Result(
            "participant_views / reading the filters", behind / reading, "ratio", 3.0, True, "reading the filters"
        )
        yield Result("splits / reading the filters", splits / reading, "ratio", 20.0, True, "reading the filters")
        budget = cpu_of(lambda: lake.select(BUDGET))
        yield Result(f"budget of each sender and epoch over {messages:,} messages", budget, "s")
        yield Result("budget / reading the filters", budget / reading, "ratio", 0.5, True, "reading the filters")


def _make_tables(directory: Path, messages: int) -> None:
    for table in (SDS_MESSAGES, ACKS):
        create_table(directory / table.name, table)
    own = OwnFilter(FilterFormat())
    ids = [f"{number:064x}" for number in range(messages)]
    for first in range(0, messages, CHUNK):
        rows: dict[Table, list[dict[str, Any]]] = {SDS_MESSAGES: [], ACKS: []}
        for number in range(first, min(first + CHUNK, messages)):
            if own.count >= FilterFormat().capacity:
                own.roll_over(ids[number - FilterFormat().capacity // 2 : number])
            at = START + dt.timedelta(milliseconds=number * 60_000 // (10 * SENDERS))
            sender = f"sender {number % SENDERS}"
            common = {**KEY, "sds_id": ids[number], "sender_id": sender, "event_time": at, "kafka_topic": "t"}
            common |= {"kafka_partition": 0, "kafka_offset": number, "sds_kind": "content", "segment_kind": "bare"}
            lamport = int(at.timestamp() * 1000)
            common |= {"envelope_hash": number.to_bytes(32, "big"), "sender_timestamp_ns": lamport * 1_000_000}
            rows[SDS_MESSAGES].append({**common, "bloom_filter": own.encode(), "lamport_timestamp": lamport})
            rows[ACKS] += [
                {**common, "sds_id": named, "sender_id": f"sender {(number - back) % SENDERS}",
                 "acknowledged_by": sender, "evidence": "causal_history", "certainty": "certain"}
                for back in (1, 2) for named in ids[number - back : number - back + 1]
            ]  # fmt: skip
            own.insert(ids[number])
        for table, made in rows.items():
            complete = [{name: row.get(name) for name in table.names()} for row in made]
            batch = pa.Table.from_pylist(complete, schema=arrow_schema(table))
            write_deltalake(str(directory / table.name), batch, mode="append")
