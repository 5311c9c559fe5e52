"""Real Delta tables of a simulated conversation, written without Spark: what ingest and ack would write."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import ChannelsSettings, ChannelTopic, PathSettings, load
from reliable_channel.lake.create import create_table
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import ACKS, CLOCK, SDS_MESSAGES, Table
from reliable_channel.pipeline.ack.output_rows import Ack
from reliable_channel.pipeline.ingest.decode import RecordDecoder
from reliable_channel.simulation.world import World
from tests.support.adapters import TOPIC, Adapters


def write_simulated(place: Path, world: World) -> TableSnapshot:
    """``sds_messages``, ``acks`` and ``clock`` of a world."""
    plans = world.scenario.channels
    topics = tuple(ChannelTopic(content_topic=plan.content_topic) for plan in plans)
    settings = load("local").model_copy(update={"channels": ChannelsSettings(content_topics=topics)})
    adapters = Adapters(decoder=RecordDecoder(settings.channels))
    records = []
    for offset, record in enumerate(world.records):
        if record.value is None:
            continue
        row = adapters.record(offset, record.value, dict(record.headers), record.at_ms)
        if row.kind == "sds":
            at = {"kafka_topic": TOPIC, "kafka_partition": 0, "kafka_offset": offset, "event_time": record.at_ms * 1000}
            known = {name: getattr(row, name, None) for name in SDS_MESSAGES.names()}
            named = [{"sds_id": each.message_id} for each in row.causal_history]
            more = {"envelope_hash": row.message_hash, "causal_history": named, "repair_request": []}
            records.append({**known, **more, **at})
    write(place, SDS_MESSAGES, records)
    write(place, ACKS, (row._asdict() for row in adapters.rows if isinstance(row, Ack)))
    last = records[-1]["event_time"]
    write(place, CLOCK, [{"kafka_topic": TOPIC, "kafka_partition": 0, "query_id": "q", "batch_id": 0, "kind": "batch",
                          "event_time": last, "next_offset": 1, "recorded_at": last}])  # fmt: skip
    return TableSnapshot(PathSettings(data_dir=str(place)))


def write(place: Path, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    """Create a table with these rows; their times are µs since 1970."""
    create_table(place / table.name, table)
    if rows := list(rows):
        schema = arrow_schema(table)
        columns = {field.name: [_plain(row.get(field.name), field) for row in rows] for field in schema}
        write_deltalake(str(place / table.name), pa.table(columns, schema=schema), mode="append")


def _plain(value: Any, field: pa.Field) -> Any:
    is_time = pa.types.is_timestamp(field.type) and isinstance(value, int)
    return dt.datetime.fromtimestamp(value / 1e6, dt.UTC) if is_time else value
