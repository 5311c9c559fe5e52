"""Real Delta tables of a simulated conversation with the verdicts on its messages, written without Spark."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from reliable_channel.config import ChannelsSettings, ChannelTopic, Settings, load
from reliable_channel.lake import tables
from reliable_channel.lake.tables import BY_NAME, CHANNEL_KEY, Table
from reliable_channel.pipeline.ingest.decode import Decoded, RecordDecoder
from reliable_channel.pipeline.lookup import search_ids
from reliable_channel.pipeline.verdict.in_duckdb import gather_evidence
from reliable_channel.pipeline.verdict.judge import judge_message
from reliable_channel.pipeline.verdict.touched import COLUMNS
from reliable_channel.simulation.evidence import sender_events
from reliable_channel.simulation.participant import channel_key
from reliable_channel.simulation.world import World
from tests.support.adapters import TOPIC, Adapters
from tests.support.delta_tables import read_table
from tests.support.simulated_tables import write

Rows = dict[Table, list[dict[str, Any]]]


def write_judged(directory: Path, world: World, store_plaintext: bool = True) -> Settings:
    """What ingest, reassembly, ack, evidence and verdict would write about a world; returns the settings for it."""
    settings = _configure(directory, world, store_plaintext)
    adapters = Adapters(decoder=RecordDecoder(settings.channels))
    rows: Rows = defaultdict(list)
    for offset, record in enumerate(world.records):
        if record.value is not None:
            row = adapters.record(offset, record.value, dict(record.headers), record.at_ms)
            _note(rows, row, offset, record.value, record.at_ms * 1000)
    end_ms = max(record.at_ms for record in world.records) + 24 * 3_600_000
    adapters.close(end_ms)
    for one in [*adapters.rows, *adapters.rebuilt]:
        rows[BY_NAME[type(one).__name__]].append(_plain(one._asdict()))
    for each in adapters.given_up:
        rows[tables.INCOMPLETE_MESSAGES].append(each.fields)
    for event in sender_events(world.journals):
        hashes = {n: bytes.fromhex(event[n]) for n in ("entire_message_hash", "envelope_hash") if event.get(n)}
        rows[tables.SENDER_EVENTS].append({**event, **hashes, "event_time": event["at_ms"] * 1000})
    for table in (*COLUMNS, tables.ENVELOPES, tables.SIGHTINGS, tables.SOURCE_GAPS):
        write(directory, table, rows[table])
    write(directory, tables.DELIVERY_STATUS, _judge(settings, rows, end_ms))
    return settings


def _configure(directory: Path, world: World, store_plaintext: bool) -> Settings:
    topics = []
    for plan in world.scenario.channels:
        keys: tuple[str, ...] = ()
        if plan.encrypted:
            file = directory / f"{plan.channel_id}.key"
            file.write_text(channel_key(plan).hex())
            keys = (str(file),)
        topic = ChannelTopic(content_topic=plan.content_topic, family=plan.family, decryption_key_files=keys,
                             encryption_layer=plan.encryption_layer, store_plaintext=store_plaintext)  # fmt: skip
        topics.append(topic)
    settings = load("local")
    paths = settings.paths.model_copy(update={"data_dir": str(directory)})
    return settings.model_copy(update={"channels": ChannelsSettings(content_topics=tuple(topics)), "paths": paths})


def _note(rows: Rows, row: Decoded, offset: int, value: bytes, at_us: int) -> None:
    fields = _plain({name: getattr(row, name) for name in Decoded.__annotations__})
    fields |= {"kafka_topic": TOPIC, "kafka_partition": 0, "kafka_offset": offset, "record_time": at_us,
               "event_time": at_us, "ingest_time": at_us, "value": value, "value_bytes": len(value),
               "envelope_hash": row.message_hash, "raw": value, "raw_bytes": len(value),
               "raw_digest": hashlib.sha256(value).digest()}  # fmt: skip
    if row.kind is not None:
        rows[tables.ENVELOPES].append(fields)
    if row.kind == "sds":
        rows[tables.SDS_MESSAGES].append(fields)
    if row.reason is not None:
        rows[tables.QUARANTINE].append(fields)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Values as rows have them: entries of a history are structs."""
    for name in ("causal_history", "repair_request"):
        fields[name] = [
            {"sds_id": e.message_id, "retrieval_hint": e.retrieval_hint, "sender_id": e.sender_id}
            for e in fields.get(name) or ()
        ]
    return fields


def _judge(settings: Settings, rows: Rows, end_ms: int) -> list[dict[str, Any]]:
    """The verdicts on all messages."""
    names = (*CHANNEL_KEY, "sds_id")
    about = {tuple(row.get(name) for name in names) for table in COLUMNS for row in rows[table] if row.get("sds_id")}
    ids = pa.Table.from_pylist([dict(zip(names, each, strict=True)) for each in sorted(about)])
    suspected = {name for row in rows[tables.QUARANTINE] for name in search_ids(row["stage"], row["raw"])}
    evidence = {table: read_table(settings.paths.data_dir, table.name) for table in COLUMNS}
    as_of, settle_ms = dt.datetime.fromtimestamp(end_ms / 1000, dt.UTC), settings.pipeline.settle_delay_ms
    return [
        judge_message(row, as_of, settle_ms, [], followed=True, ask_stores=False)
        for row in gather_evidence(evidence, ids, suspected, None).to_pylist()
    ]
