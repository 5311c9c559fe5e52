"""Channels of both wire families beside each other in one run, each with a participant of ours and one of theirs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.core.wire.sds import WireFamily
from reliable_channel.lake import tables
from reliable_channel.pipeline.runner.run import run_once
from reliable_channel.simulation.foreign import Foreign
from reliable_channel.simulation.scenario import ChannelPlan, LinkQuality, Scenario, SizeMix
from reliable_channel.simulation.world import simulate

from .chain import as_kafka, chain_over, configured, rows
from .kafka_log import KafkaLog

pytestmark = pytest.mark.spark

MINUTE_MS = 60_000
PERFECT = LinkQuality()


def channel(name: str, family: WireFamily, other: Foreign) -> ChannelPlan:
    """Alice is ours, Bob is not; nothing is lost between them."""
    return ChannelPlan(
        channel_id=name,
        content_topic=f"/reliable-channel/1/{name}/proto",
        participants=("alice", "bob"),
        messages=12,
        duration_ms=3 * MINUTE_MS,
        segment_size=256,
        sizes=SizeMix(short=0.7, medium=0.1, large=0.2, max_segments=3),
        between=PERFECT,
        to_observer=PERFECT,
        repeats=0.0,
        family=family,
        foreign=(("bob", other),),
    )


def test_both_families_are_followed_in_one_run(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    plans = (channel("js", WireFamily.SPEC, Foreign.JS_WAKU), channel("nim", WireFamily.NIM, Foreign.NIM_SDS))
    world = simulate(Scenario(seed=5, channels=plans, drain_ms=3 * MINUTE_MS))
    here = configured(settings, world, tmp_path / "run")
    log = KafkaLog(spark, tmp_path / "log")
    log.produce(as_kafka(world.records))
    run_once(spark, here, close_after_ms=60 * MINUTE_MS, queries=chain_over(log))

    delivered = Counter((r["channel_id"], r["sender_id"], r["payload"]) for r in rows(here, tables.DELIVERED_MESSAGES))
    sent = Counter((m.channel_id, m.sender, m.payload) for m in world.truth.messages if m.outcome == "delivered")
    assert delivered == sent
    for table in (tables.QUARANTINE, tables.REFETCH_REQUESTS):
        assert rows(here, table) == [], table.name
    # What came in another order than it was sent is named before it comes.
    assert {row["status"] for row in rows(here, tables.LOST_DEPENDENCIES)} <= {"before_observation", "recovered"}
    acknowledged = {(row["channel_id"], row["acknowledged_by"]) for row in rows(here, tables.ACKS)}
    assert acknowledged >= {(name, who) for name in ("js", "nim") for who in ("alice", "bob")}
