"""One bad row never spoils what batch jobs read with it: over tables with such rows they do what they do without."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    DELIVERED_MESSAGES,
    DELIVERY_STATUS,
    ENVELOPES,
    QUARANTINE,
    SDS_MESSAGES,
    Table,
)
from reliable_channel.pipeline.ingest.requeue import requeue
from reliable_channel.pipeline.maintenance.rebuild import rebuild
from reliable_channel.pipeline.verdict import verdicts
from tests.support.bad_rows import spoil
from tests.support.sample_values import KAFKA_TOPIC, PUBSUB_TOPIC, topic_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HONEST = ("talk", "files", "sealed", "quiet")


@pytest.fixture
def both(sample_tables: Path, settings: Settings, tmp_path: Path) -> list[Settings]:
    """The sample tables, and those with bad rows."""
    places = []
    for name in ("honest", "spoiled"):
        place = settings.with_run_dir(tmp_path / name)
        shutil.copytree(sample_tables, place.paths.data_dir)
        places.append(place)
    spoil(Path(places[1].paths.data_dir), beyond=True)
    return places


def rows(place: Settings, table: Table) -> list[dict[str, Any]]:
    return rows_of(open_table(place.paths, table))


def test_verdicts_of_honest_messages_are_the_same(spark: SparkSession, both: list[Settings]) -> None:
    shutil.rmtree(both[0].paths.table(DELIVERY_STATUS.name))  # a first round needs no Spark
    found: list[dict[Any, Any]] = []
    for place, session in zip(both, (None, spark), strict=True):
        verdicts.run(session, place)  # type: ignore[arg-type]
        kept = ("channel_id", "message_key", "sender_id", "verdict", "cause", "first_seen", "sds_ids")
        honest = [row for row in rows(place, DELIVERY_STATUS) if row["channel_id"] in HONEST]
        found.append({(row["channel_id"], row["message_key"]): [row[name] for name in kept] for row in honest})
    assert len(found[0]) > 50
    assert found[1] == found[0]


def plant(place: Settings) -> None:
    """A record that was refused, and can be decoded."""
    message = SdsMessage("alice", "held back", "talk", 1_793_541_600_000, content=b"hello")
    value = encode_waku_message(WakuMessage(encode_sds_message(message), topic_of("talk"), timestamp=1))
    row = {
        "kafka_topic": KAFKA_TOPIC,
        "kafka_partition": 0,
        "kafka_offset": 1_000_000,
        **dict.fromkeys(("record_time", "event_time", "ingest_time"), 1_793_541_600_000_000),
        "pubsub_topic": PUBSUB_TOPIC,
        "content_topic": topic_of("talk"),
        "source": "relay",
    }
    said = {"stage": "quota", "reason": "over_quota", "disposition": "dropped", "raw": value, "raw_bytes": len(value)}
    kept = {"value": value, "value_bytes": len(value), "ephemeral": False, "kind": "quarantined"}
    append_rows(place.paths, QUARANTINE, as_arrow([row | said], QUARANTINE))
    append_rows(place.paths, ENVELOPES, as_arrow([row | kept], ENVELOPES))


def test_what_is_requeued_is_the_same(spark: SparkSession, both: list[Settings]) -> None:
    for place in both:
        plant(place)
        assert requeue(spark, place) == 1
        assert [row["content"] for row in rows(place, SDS_MESSAGES) if row["sds_id"] == "held back"] == [b"hello"]


def is_honest(row: dict[str, Any]) -> bool:
    return bool(row.get("kafka_topic", KAFKA_TOPIC) == KAFKA_TOPIC)


def test_what_is_rebuilt_is_the_same(spark: SparkSession, both: list[Settings]) -> None:
    for place in both:
        plant(place)
        rebuild(spark, place)
    for table in (ENVELOPES, SDS_MESSAGES, QUARANTINE, DELIVERED_MESSAGES):
        honest, beside_bad_rows = (
            sorted(repr(row | {"written_at": None}) for row in rows(place, table) if is_honest(row)) for place in both
        )
        assert honest, table.name
        assert beside_bad_rows == honest, table.name
