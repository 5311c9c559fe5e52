"""Both wire families in one channel and one run, each with a participant of ours and one of theirs."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliable_channel.analysis.alerts.measure import measure_rule
from reliable_channel.analysis.alerts.rules import load_rules
from reliable_channel.analysis.figures import read_clock
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import Settings
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import WireFamily, decode_in_families, encode_sds_message
from reliable_channel.core.wire.waku import decode_waku_message, encode_waku_message
from reliable_channel.lake import tables
from reliable_channel.pipeline.runner.run import run_once
from reliable_channel.pipeline.verdict import verdicts
from reliable_channel.simulation.journal import ObserverRecord
from reliable_channel.simulation.scenario import ChannelPlan, LinkQuality, Scenario, SizeMix
from reliable_channel.simulation.world import simulate
from tests.support.js_waku_sds import JsWakuSds
from tests.support.nim_sds import NimSds

from .chain import as_kafka, chain_over, configured, rows
from .kafka_log import KafkaLog

pytestmark = pytest.mark.spark

MINUTE_MS = 60_000
PERFECT = LinkQuality()


def channel(family: WireFamily, ours: str, theirs: str, other: type) -> ChannelPlan:
    """One participant is ours, the other is not; nothing is lost between them."""
    return ChannelPlan(
        channel_id="talk",
        content_topic="/reliable-channel/1/talk/proto",
        participants=(ours, theirs),
        messages=12,
        duration_ms=3 * MINUTE_MS,
        segment_size=256,
        sizes=SizeMix(short=0.7, medium=0.1, large=0.2, max_segments=3),
        between=PERFECT,
        to_observer=PERFECT,
        repeats=0.0,
        family=family,
        foreign=((theirs, other),),
    )


def forge(record: ObserverRecord) -> ObserverRecord | None:
    """What a stranger sends in the other family who has seen a message of Alice: other content under her id."""
    envelope = decode_waku_message(record.value)
    if isinstance(envelope, Malformed):
        return None
    decoded = decode_in_families(envelope.payload, (WireFamily.SPEC,))
    if isinstance(decoded, Malformed) or not decoded[1].content or decoded[1].sender_id != "alice":
        return None
    message = replace(
        decoded[1],
        lamport_timestamp=(decoded[1].lamport_timestamp or 0) // 1000,
        causal_history=(),
        bloom_filter=None,
        content=b"forged " + decoded[1].message_id.encode(),
    )
    payload = encode_sds_message(message, WireFamily.NIM)
    return replace(record, value=encode_waku_message(replace(envelope, payload=payload)), sds_id=None)


def test_both_families_of_a_channel_are_followed_in_one_run(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    plans = (
        channel(WireFamily.SPEC, "alice", "bob", JsWakuSds),
        channel(WireFamily.NIM, "carol", "dave", NimSds),
    )
    world = simulate(Scenario(seed=5, channels=plans, drain_ms=3 * MINUTE_MS))
    here = configured(settings, world, tmp_path / "run")
    log = KafkaLog(spark, tmp_path / "log")
    forged = [(record, forge(record)) for record in world.records]
    log.produce(as_kafka([record for pair in forged for record in pair if record is not None]))
    run_once(spark, here, close_after_ms=60 * MINUTE_MS, queries=chain_over(log))

    every = Counter((r["family"], r["sender_id"], r["payload"]) for r in rows(here, tables.DELIVERED_MESSAGES))
    families = {name: plan.family.value for plan in plans for name in plan.participants}
    sent = [m for m in world.truth.messages if m.outcome == "delivered"]
    strangers = Counter({key: count for key, count in every.items() if key[2].startswith(b"forged ")})
    assert {key[:2] for key in strangers} == {("nim", "alice")}
    assert every - strangers == Counter((families[m.sender], m.sender, m.payload) for m in sent)
    for table in (tables.QUARANTINE, tables.REFETCH_REQUESTS):
        assert rows(here, table) == [], table.name
    # What came in another order than it was sent is named before it comes.
    assert {row["status"] for row in rows(here, tables.LOST_DEPENDENCIES)} <= {"before_observation", "recovered"}
    acknowledged = {(row["sender_id"], row["acknowledged_by"]) for row in rows(here, tables.ACKS)}
    assert acknowledged == {("alice", "bob"), ("bob", "alice"), ("carol", "dave"), ("dave", "carol")}
    numbers = Counter((row["family"], row["row_seq"]) for row in rows(here, tables.DELIVERIES))
    assert set(numbers.values()) == {1}
    verdicts.run(spark, here)
    found = Counter(
        (r["sender_id"], r["entire_message_hash"], r["verdict"]) for r in rows(here, tables.DELIVERY_STATUS)
    )
    assert found == Counter((m.sender, keccak256(m.payload), "delivered") for m in sent), "no forgery takes an id"
    lake = TableSnapshot(here.paths)
    formats = {(row["sender_id"], row["family"]) for row in lake.select("SELECT * FROM peer_formats")}
    assert formats == {*families.items(), ("alice", "nim")}
    rule = next(rule for rule in load_rules() if rule.alert == "mixed_families")
    (reading,) = measure_rule(lake, rule, read_clock(lake), dt.datetime.now(dt.UTC))
    assert reading.value == 2, "alice and bob"
