"""For each cause the simulation injects it, and ``delivery_status`` names it."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import ChannelsSettings, ChannelTopic, Settings
from reliable_channel.pipeline import tables, verdict
from reliable_channel.pipeline.ddl import create_tables
from reliable_channel.pipeline.io import append_rows, as_arrow
from reliable_channel.pipeline.run import run_once
from reliable_channel.simulation.evidence import held_by_store, sender_events
from reliable_channel.simulation.presets import demo_scenario
from reliable_channel.simulation.scenario import PERFECT, ChannelPlan, Fault, Scenario, SizeMix
from reliable_channel.simulation.world import World, simulate

from .chain import as_kafka, chain_over, rows
from .kafka_log import KafkaLog

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FAULTS = {
    4: Fault.NEVER_SENT,
    8: Fault.RATE_LIMITED,
    12: Fault.NOT_STORED,
    16: Fault.SEGMENT_MISSING,
    20: Fault.UNDECODABLE,
    24: Fault.HASH_MISMATCH,
}
CAUSES = {
    Fault.NEVER_SENT: "never_sent",
    Fault.RATE_LIMITED: "rate_limited",
    Fault.NOT_STORED: "propagated_not_stored",
    Fault.SEGMENT_MISSING: "segment_missing",
    Fault.UNDECODABLE: "undecodable",
    Fault.HASH_MISMATCH: "hash_mismatch",
}
TOPIC = "/reliable-channel/1/field/proto"


def faulty_scenario() -> Scenario:
    plan = ChannelPlan(
        channel_id="field",
        content_topic=TOPIC,
        participants=("alice", "bob", "carol"),
        messages=30,
        duration_ms=300_000,
        sizes=SizeMix(short=0.4, medium=0.0, large=0.6, max_segments=4),
        between=PERFECT,
        to_observer=PERFECT,
        repeats=0.0,
        faults=tuple(FAULTS.items()),
    )
    return replace(demo_scenario(3), channels=(plan,), bad_input=0, plain_waku=0, drain_ms=120_000)


def write_evidence(settings: Settings, world: World) -> None:
    """What the senders say, and what a store that was asked for every envelope had."""

    def base64_of(hex_: str | None) -> str | None:
        return None if hex_ is None else base64.b64encode(bytes.fromhex(hex_)).decode()

    told: list[dict[str, Any]] = []
    for event in sender_events(world.journals):
        hashes = {name: base64_of(event.get(name)) for name in ("entire_message_hash", "envelope_hash")}
        told.append({**event, **hashes, "event_time": event["at_ms"] * 1000})
    append_rows(settings.paths, tables.SENDER_EVENTS, as_arrow(told, tables.SENDER_EVENTS))
    held = held_by_store(world.journals)
    asked = [
        {
            "node": "http://store.example",
            "message_hash": base64.b64encode(dispatch.envelope_hash).decode(),
            "outcome": "present" if dispatch.envelope_hash in held else "absent",
            "purpose": "audit",
            "asked_at": dispatch.at_ms * 1000,
        }
        for journal in world.journals
        for dispatch in journal.dispatches
        if journal.messages.get(journal.sds[dispatch.sds_id].message or -1) is not None
        and journal.messages[journal.sds[dispatch.sds_id].message or -1].fault is Fault.NOT_STORED
    ]
    append_rows(settings.paths, tables.STORE_PRESENCE, as_arrow(asked, tables.STORE_PRESENCE))


def test_every_injected_cause_is_named(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    topics = ChannelsSettings(content_topics=(ChannelTopic(content_topic=TOPIC),))
    configured = settings.model_copy(update={"channels": topics})
    world = simulate(faulty_scenario())
    log = KafkaLog(spark, tmp_path / "log")
    log.produce(as_kafka(world.records, partitions=1))
    run_once(spark, configured, close_after_ms=3_600_000, queries=chain_over(log))
    create_tables(spark, configured.paths, (tables.SENDER_EVENTS, tables.STORE_PRESENCE))
    write_evidence(configured, world)
    verdict.run(spark, configured)

    found = rows(configured, tables.DELIVERY_STATUS)
    by_id = {sds_id: row for row in found for sds_id in row["sds_ids"]}
    judged = {m.number: by_id.get(m.first_sds_id) or by_id[m.last_sds_id] for m in world.truth.messages}
    expected = {number: ("missing", CAUSES[fault]) for number, fault in FAULTS.items()}
    told = {number: (judged[number]["verdict"], judged[number]["cause"]) for number in FAULTS}
    assert told == expected
    others = [m for m in world.truth.messages if m.fault is None]
    assert Counter(judged[m.number]["verdict"] for m in others) == {"delivered": len(others)}
    assert all(row["settled"] for row in found)

    before = rows(configured, tables.DELIVERY_STATUS)
    verdict.run(spark, configured)
    assert rows(configured, tables.DELIVERY_STATUS) == before, "judged again on the same evidence, nothing changes"
