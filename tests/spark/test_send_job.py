"""The sender in the Spark driver: one SDS identity per row, whatever happens between its runs."""

from __future__ import annotations

import datetime
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import Row, SparkSession

from reliable_channel.channel import ReliableChannelConfig, SqlitePersistence, create_reliable_channel
from reliable_channel.config import Settings
from reliable_channel.errors import ConfigurationError, EmptyMessage
from reliable_channel.gateway.build import kafka_node, make_bridge
from reliable_channel.gateway.participant import Participant
from reliable_channel.gateway.topics import ensure_evidence_topic
from reliable_channel.transport.base import NodeEvent, Received
from reliable_channel.transport.memory import MemoryNetwork
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.sds import decode_sds_message

JOB = Path(__file__).parents[2] / "jobs" / "send.py"
WHO = Participant("outbox", sender_id="driver")

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("send_job", JOB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["send_job"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def on_wire(broker: Settings) -> Iterator[list[bytes]]:
    """The SDS bytes that reach the network on the job's topic."""
    ensure_evidence_topic(broker)
    loop, listener = make_bridge(broker, loop=True), kafka_node(broker)
    seen: list[bytes] = []

    def note(event: NodeEvent) -> None:
        if isinstance(event, Received):
            seen.append(event.envelope.message.payload)

    listener.subscribe([WHO.topic])
    listener.add_listener(note)
    loop.start()
    listener.start()
    yield seen
    listener.stop()
    loop.stop()


def until_quiet(seen: list[bytes], count: int) -> None:
    import time

    deadline = time.monotonic() + 60
    while len(seen) < count and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.kafka
def test_a_rerun_over_a_grown_table_sends_the_same_bytes_for_the_same_rows(
    spark: SparkSession, settings: Settings, broker: Settings, job: ModuleType, on_wire: list[bytes], tmp_path: Path
) -> None:
    here = settings.with_servers(broker.kafka.servers)
    sent_table = str(tmp_path / "sent")
    rows = [Row(row_id=f"row {number}", payload=bytearray(b"%d " % number * 40_000)) for number in range(3)]
    source = spark.createDataFrame(rows, "row_id STRING, payload BINARY")
    assert job.send_table(spark, here, WHO, source, sent_table, 120.0) == 3
    until_quiet(on_wire, 3)
    grown = spark.createDataFrame([*rows, Row(row_id="row 3", payload=bytearray(b"new"))], source.schema)
    assert job.send_table(spark, here, WHO, grown, sent_table, 120.0) == 4
    until_quiet(on_wire, 7)

    sent = {row["row_id"]: row for row in spark.read.format("delta").load(sent_table).collect()}
    assert sorted(sent) == ["row 0", "row 1", "row 2", "row 3"]
    assert sent["row 0"]["required"] == len(sent["row 0"]["sds_ids"]) == 1
    by_id: dict[str, bytes] = {}
    for data in on_wire:
        message = decode_sds_message(data)
        assert not isinstance(message, Malformed)
        if message.content:
            assert by_id.setdefault(message.message_id, data) == data
    assert set(by_id) == {sds_id for row in sent.values() for sds_id in row["sds_ids"]}


def test_the_sent_table_gets_no_row_twice(spark: SparkSession, job: ModuleType, tmp_path: Path) -> None:
    row = Row(row_id="a", send_id="s", content_topic="t", channel_id="c", sender_id="me", required=1, sds_ids=["s"])
    for _ in range(2):
        job.append_new(spark, [row], str(tmp_path / "sent"))
    assert spark.read.format("delta").load(str(tmp_path / "sent")).count() == 1


def test_a_row_is_acknowledged_when_enough_of_its_segments_are_by_one_participant(
    spark: SparkSession, job: ModuleType
) -> None:
    def sent_row(row_id: str, required: int, *sds_ids: str) -> Row:
        return Row(
            row_id=row_id,
            send_id=sds_ids[0],
            content_topic="t",
            channel_id="c",
            sender_id="me",
            required=required,
            sds_ids=list(sds_ids),
        )

    sent = spark.createDataFrame(
        [sent_row("whole", 2, "a", "b", "p"), sent_row("half", 2, "d", "e"), sent_row("none", 1, "f")],
        job.SENT_SCHEMA,
    )
    at = [datetime.datetime(2026, 1, 1, 0, 0, second) for second in range(6)]
    acks = spark.createDataFrame(
        [
            ("a", "t", "c", "me", "bob", at[1]),
            ("a", "t", "c", "me", "bob", at[5]),
            ("p", "t", "c", "me", "bob", at[2]),
            ("d", "t", "c", "me", "bob", at[1]),
            ("e", "t", "c", "me", "carol", at[1]),
            ("f", "t", "another", "me", "bob", at[1]),
        ],
        "sds_id STRING, content_topic STRING, channel_id STRING, sender_id STRING, acknowledged_by STRING, "
        "event_time TIMESTAMP",
    )
    found = {row["row_id"]: row for row in job.with_acknowledgements(sent, acks).collect()}
    assert {key: row["acknowledged_by"] for key, row in found.items()} == {"whole": ["bob"], "half": [], "none": []}
    assert found["whole"]["acknowledged_at"] == at[2]


def test_a_source_without_the_columns_is_refused_by_name(
    spark: SparkSession, settings: Settings, job: ModuleType
) -> None:
    with pytest.raises(ConfigurationError, match="payload"):
        job.send_table(spark, settings, WHO, spark.createDataFrame([("a",)], "row_id STRING"), "unused", 1.0)


def test_a_row_that_cannot_be_sent_is_named(job: ModuleType, tmp_path: Path) -> None:
    node = MemoryNetwork().node("driver")
    node.start()
    config = ReliableChannelConfig(persistence=SqlitePersistence(tmp_path / "c.db"))
    with (
        create_reliable_channel(node, "c", "/t/1/x/proto", "me", config=replace(config), threaded=False) as channel,
        pytest.raises(EmptyMessage, match="row 7"),
    ):
        list(job.send_rows(channel, [Row(row_id="row 7", payload=b"")]))
