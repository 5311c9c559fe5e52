"""For each cause the simulation injects it, and ``delivery_status`` names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliable_channel.analysis.bundle.archive import read_bundle
from reliable_channel.analysis.bundle.collect import collect
from reliable_channel.analysis.bundle.verify import CheckOutcome, verify
from reliable_channel.config import ChannelsSettings, ChannelTopic, Settings
from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.runner.run import run_once
from reliable_channel.pipeline.verdict import verdicts
from reliable_channel.pipeline.verdict.rules import Cause
from reliable_channel.simulation.evidence import sender_events
from reliable_channel.simulation.participant import channel_key
from reliable_channel.simulation.presets import demo_scenario
from reliable_channel.simulation.scenario import PERFECT, ChannelPlan, Fault, Scenario, SizeMix
from reliable_channel.simulation.truth import TrueMessage
from reliable_channel.simulation.world import World, simulate

from .chain import as_kafka, chain_over, rows
from .kafka_log import KafkaLog, Record

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BEFORE_OBSERVATION, LOST_IN_KAFKA = 0, 9
"""Messages whose records are deleted from the topic before ingest reads them: the channel's first, and one later."""
UNRESOLVED = 26
"""The last message that never comes: when judged, what depends on it waits still."""
FAULTS = {
    2: Fault.LATE,
    3: Fault.NEVER_SENT,
    5: Fault.RATE_LIMITED,
    7: Fault.SEGMENT_MISSING,
    11: Fault.UNDECODABLE,
    13: Fault.HASH_MISMATCH,
    15: Fault.NOT_STORED,
    UNRESOLVED: Fault.NOT_STORED,
}
EXPECTED = {
    Fault.LATE: ("delivered", "late"),
    Fault.NEVER_SENT: ("missing", "never_sent"),
    Fault.RATE_LIMITED: ("missing", "rate_limited"),
    Fault.NOT_STORED: ("missing", "propagated_not_stored"),
    Fault.SEGMENT_MISSING: ("missing", "segment_missing"),
    Fault.UNDECODABLE: ("missing", "undecodable"),
    Fault.HASH_MISMATCH: ("missing", "hash_mismatch"),
    Fault.UNDECRYPTABLE: ("missing", "undecryptable"),
}
TOPIC, SEALED_TOPIC, INSIDE_TOPIC = (f"/reliable-channel/1/{name}/proto" for name in ("field", "sealed", "inside"))
SETTLE_MS = 250_000


def faulty_scenario() -> Scenario:
    field = ChannelPlan(
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
    sealed = replace(
        field,
        channel_id="sealed",
        content_topic=SEALED_TOPIC,
        messages=4,
        duration_ms=60_000,
        encrypted=True,
        faults=((1, Fault.UNDECRYPTABLE),),
    )
    inside = replace(
        sealed,
        channel_id="inside",
        content_topic=INSIDE_TOPIC,
        encryption_layer=EncryptionLayer.INSIDE_SDS,
        sizes=SizeMix(short=0.0, medium=0.0, large=1.0, max_segments=4),
    )
    return replace(demo_scenario(3), channels=(field, sealed, inside), bad_input=0, plain_waku=0, drain_ms=240_000)


def kept_in_kafka(world: World) -> list[Record]:
    """The records, without those of two messages: their offsets are gaps."""
    lost = {("field", BEFORE_OBSERVATION), ("field", LOST_IN_KAFKA)}
    ids = {s.sds_id for s in world.truth.segments if (s.channel_id, s.message) in lost}
    produced = zip(as_kafka(world.records, partitions=1), world.records, strict=True)
    return [record for record, observed in produced if observed.sds_id not in ids]


def write_evidence(settings: Settings, world: World) -> None:
    """What the senders say, and what a store had that was asked for the messages that reached no store."""

    def bytes_of(hex_: str | None) -> bytes | None:
        return None if hex_ is None else bytes.fromhex(hex_)

    told: list[dict[str, Any]] = []
    for event in sender_events(world.journals):
        hashes = {name: bytes_of(event.get(name)) for name in ("entire_message_hash", "envelope_hash")}
        told.append({**event, **hashes, "event_time": event["at_ms"] * 1000})
    append_rows(settings.paths, tables.SENDER_EVENTS, as_arrow(told, tables.SENDER_EVENTS))
    asked = [
        {
            "node": "http://store.example",
            "message_hash": dispatch.envelope_hash,
            "outcome": "absent",
            "purpose": "audit",
            "asked_at": dispatch.at_ms * 1000,
        }
        for journal in world.journals
        for dispatch in journal.dispatches
        if (number := journal.sds[dispatch.sds_id].message) is not None
        and journal.messages[number].fault is Fault.NOT_STORED
    ]
    append_rows(settings.paths, tables.STORE_PRESENCE, as_arrow(asked, tables.STORE_PRESENCE))


def named_like_a_message(settings: Settings, row: dict[str, Any]) -> None:
    """An SDS id is any text: somebody depends on one that reads like the key of a delivered message."""
    channel = {name: row[name] for name in ("pubsub_topic", "content_topic", "channel_id")}
    at_us = int(row["first_seen"].timestamp() * 1_000_000)
    lost = {**channel, "sds_id": row["message_key"], "status": "lost", "missing_since": at_us, "event_time": at_us}
    append_rows(settings.paths, tables.LOST_DEPENDENCIES, as_arrow([lost], tables.LOST_DEPENDENCIES))


def expected(message: TrueMessage, as_of_ms: int) -> tuple[str, str | None]:
    """Verdict and cause of a message, from what was done to it and to those before it."""
    if message.fault is not None:
        return EXPECTED[Fault(message.fault)]
    if message.channel_id == "field" and message.number == BEFORE_OBSERVATION:
        return "unknown", "before_observation"
    if message.channel_id == "field" and message.number == LOST_IN_KAFKA:
        return "unknown", "source_gap"
    if message.channel_id == "field" and message.number > UNRESOLVED:
        settled = as_of_ms - message.sent_at_ms >= SETTLE_MS
        return ("missing", "dependency_missing") if settled else ("unknown", "unsettled")
    return "delivered", None


def test_every_injected_cause_is_named(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    world = simulate(faulty_scenario())
    topics = [ChannelTopic(content_topic=TOPIC)]
    for plan in world.scenario.channels[1:]:
        key_file = tmp_path / f"{plan.channel_id}.key"
        key_file.write_text(channel_key(plan).hex())
        topics.append(
            ChannelTopic(
                content_topic=plan.content_topic,
                decryption_key_files=(str(key_file),),
                encryption_layer=plan.encryption_layer,
                store_plaintext=False,
            )
        )
    configured = settings.model_copy(
        update={
            "channels": ChannelsSettings(content_topics=tuple(topics)),
            "pipeline": settings.pipeline.model_copy(update={"settle_delay_ms": SETTLE_MS}),
        }
    )
    log = KafkaLog(spark, tmp_path / "log")
    log.produce(kept_in_kafka(world))
    # A tick just behind the last record: what opened a set in the same micro-batch is only woken by the next one.
    run_once(spark, configured, close_after_ms=1, queries=chain_over(log))
    create_tables(configured.paths, (tables.SENDER_EVENTS, tables.STORE_PRESENCE))
    write_evidence(configured, world)
    verdicts.run(spark, configured)

    found = rows(configured, tables.DELIVERY_STATUS)
    by_id = {sds_id: row for row in found for sds_id in row["sds_ids"]}
    as_of_ms = int(found[0]["as_of"].timestamp() * 1000)
    told, wanted = {}, {}
    for m in world.truth.messages:
        row = by_id.get(m.first_sds_id) or by_id[m.last_sds_id]
        told[m.channel_id, m.number] = (row["verdict"], row["cause"])
        wanted[m.channel_id, m.number] = expected(m, as_of_ms)
    assert told == wanted
    causes = {cause for _, cause in wanted.values() if cause is not None}
    # No clock of the simulation is so far ahead that SDS refuses what it dates.
    assert causes == {*Cause} - {Cause.NOT_FOLLOWED, Cause.CLAIMED_BY_ONE, Cause.REFUSED}, (
        "every cause of honest messages that are read"
    )

    for cause in (None, *sorted(causes)):
        row = next(row for row in found if row["cause"] == cause)
        checks = verify(read_bundle(collect(configured, row["message_key"])), configured.channels)
        assert [str(each) for each in checks if each.outcome is CheckOutcome.DIFFERS] == []
        assert any(each.outcome is CheckOutcome.OK and each.what.startswith("verdict") for each in checks)

    named_like_a_message(configured, next(row for row in found if row["verdict"] == "delivered"))
    verdicts.run(spark, configured)
    assert rows(configured, tables.DELIVERY_STATUS) == found, "judged again on the same evidence, nothing changes"
