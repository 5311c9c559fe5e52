"""The sender in the Spark driver: one SDS identity per row, whatever happens between its runs."""

from __future__ import annotations

import datetime as dt
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from reliable_channel.channel import (
    MemoryPersistence,
    ReliableChannelConfig,
    SqlitePersistence,
    create_reliable_channel,
)
from reliable_channel.config import Settings
from reliable_channel.core.errors import ConfigurationError, EmptyMessage, EnvironmentFault
from reliable_channel.core.sds import Retransmission
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import ACKS, SENT_ROWS
from reliable_channel.pipeline.delta import read_table
from reliable_channel.runtime.build import kafka_node, make_bridge
from reliable_channel.runtime.participant import ParticipantOptions
from reliable_channel.runtime.topics import ensure_evidence_topic
from reliable_channel.transport.base import NodeEvent, Received
from reliable_channel.transport.clock import ManualClock
from reliable_channel.transport.memory import DEFAULT_PUBSUB_TOPIC, MemoryNetwork
from tests.support.waiting import until

from .chain import chain_over, run_once
from .kafka_log import KafkaLog, Record

JOB = Path(__file__).parents[2] / "jobs" / "send.py"
WHO = ParticipantOptions("outbox", sender_id="driver")

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


@pytest.mark.kafka
def test_a_rerun_over_a_grown_table_sends_the_same_bytes_for_the_same_rows(
    spark: SparkSession, settings: Settings, broker: Settings, job: ModuleType, on_wire: list[bytes], tmp_path: Path
) -> None:
    here = settings.with_servers(broker.kafka.servers)
    rows = [Row(row_id=f"row {number}", payload=bytearray(b"%d " % number * 40_000)) for number in range(3)]
    source = spark.createDataFrame(rows, "row_id STRING, payload BINARY")
    assert job.send_table(spark, here, WHO, source, 120.0) == job.SentTable(rows=3, new=3, acknowledged=0)
    until(lambda: len(on_wire) >= 3)
    grown = spark.createDataFrame([*rows, Row(row_id="row 3", payload=bytearray(b"new"))], source.schema)
    assert job.send_table(spark, here, WHO, grown, 120.0) == job.SentTable(rows=4, new=1, acknowledged=0)
    until(lambda: len(on_wire) >= 7)

    sent = {row["row_id"]: row for row in read_table(spark, here.paths, SENT_ROWS).collect()}
    assert sorted(sent) == ["row 0", "row 1", "row 2", "row 3"]
    assert sent["row 0"]["required"] == len(sent["row 0"]["sds_ids"]) == 1
    by_id: dict[str, bytes] = {}
    for data in on_wire:
        message = decode_sds_message(data)
        assert not isinstance(message, Malformed)
        if message.content:
            assert by_id.setdefault(message.message_id, data) == data
    assert set(by_id) == {sds_id for row in sent.values() for sds_id in row["sds_ids"]}


@pytest.mark.kafka
def test_when_its_wait_ends_the_table_is_complete_and_the_acknowledgements_of_the_tables_count(
    spark: SparkSession, settings: Settings, broker: Settings, job: ModuleType, on_wire: list[bytes]
) -> None:
    """Nobody listens: the wait ends without an acknowledgement. Then the pipeline's table has them, heard elsewhere."""
    quick = replace(
        settings.sds, acknowledgement_timeout_ms=500, retransmission=Retransmission.FIXED, max_retransmissions=1_000
    )
    here = settings.with_servers(broker.kafka.servers).model_copy(update={"sds": quick})
    rows = [Row(row_id=name, payload=bytearray(name.encode())) for name in ("a", "b")]
    source = spark.createDataFrame(rows, "row_id STRING, payload BINARY")
    with pytest.raises(EnvironmentFault, match="2 of 2 rows are not delivered within 2 s"):
        job.send_table(spark, here, WHO, source, 2.0, "delivered")
    sent = read_table(spark, here.paths, SENT_ROWS).collect()
    assert sorted(row["row_id"] for row in sent) == ["a", "b"]
    contents = [message.message_id for message in map(decode_sds_message, on_wire) if message.content]  # type: ignore[union-attr]
    assert len(contents) > len(set(contents)) == 2, "it retransmitted while it ran"
    write_acks(here, [(row, sds_id) for row in sent for sds_id in row["sds_ids"]])
    found = job.send_table(spark, here, WHO, source, 60.0, "delivered")
    assert found == job.SentTable(rows=2, new=0, acknowledged=2)


def write_acks(settings: Settings, acknowledged: list[tuple[Row, str]]) -> None:
    """Acknowledgements by Bob in the table that the ack job writes."""
    create_tables(settings.paths, [ACKS])
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    rows = [
        {
            **{name: row[name] for name in ("pubsub_topic", "content_topic", "channel_id", "sender_id")},
            "sds_id": sds_id,
            "acknowledged_by": "bob",
            "event_time": at,
        }
        for row, sds_id in acknowledged
    ]
    append_rows(settings.paths, ACKS, pa.Table.from_pylist(rows, arrow_schema(ACKS)))


def sent_row(row_id: str, required: int, *sds_ids: str, channel_id: str = "c") -> Row:
    values = (row_id, sds_ids[0], "p", "t", channel_id, "me", required, list(sds_ids), dt.datetime(2026, 1, 1))
    return Row(**dict(zip(SENT_ROWS.names(), values, strict=True)))


def test_the_sent_table_gets_no_row_twice_and_every_channel_has_rows_of_its_own(
    spark: SparkSession, settings: Settings, job: ModuleType
) -> None:
    for _ in range(2):
        job.append_new(spark, settings, [sent_row("a", 1, "s"), sent_row("a", 1, "z", channel_id="another")])
    found = read_table(spark, settings.paths, SENT_ROWS).collect()
    assert sorted((row["channel_id"], row["send_id"]) for row in found) == [("another", "z"), ("c", "s")]


def test_a_row_is_acknowledged_when_enough_of_its_segments_are_by_one_participant(
    spark: SparkSession, job: ModuleType
) -> None:
    rows = [sent_row("whole", 2, "a", "b", "p"), sent_row("half", 2, "d", "e"), sent_row("none", 1, "f")]
    sent = spark.createDataFrame([tuple(row) for row in rows], SENT_ROWS.ddl())
    at = [dt.datetime(2026, 1, 1, 0, 0, second) for second in range(6)]
    acks = spark.createDataFrame(
        [
            ("p", "t", "c", "me", "a", "bob", at[1]),
            ("p", "t", "c", "me", "a", "bob", at[5]),
            ("p", "t", "c", "me", "p", "bob", at[2]),
            ("p", "t", "c", "me", "d", "bob", at[1]),
            ("p", "t", "c", "me", "e", "carol", at[1]),
            ("p", "t", "another", "me", "f", "bob", at[1]),
            ("elsewhere", "t", "c", "me", "f", "bob", at[1]),
        ],
        "pubsub_topic STRING, content_topic STRING, channel_id STRING, sender_id STRING, sds_id STRING, "
        "acknowledged_by STRING, event_time TIMESTAMP",
    )
    found = {row["row_id"]: row for row in job.with_acknowledgements(sent, acks).collect()}
    assert {key: row["acknowledged_by"] for key, row in found.items()} == {"whole": ["bob"], "half": [], "none": []}
    assert found["whole"]["acknowledged_at"] == at[2]
    events = spark.createDataFrame(
        [("p", "t", "c", "me", "b", "lost", "bob"), ("p", "t", "c", "me", "a", "sent", None)],
        "pubsub_topic STRING, content_topic STRING, channel_id STRING, sender_id STRING, sds_id STRING, event STRING,"
        " reported_by STRING",
    )
    after = {row["row_id"]: row["acknowledged_by"] for row in job.with_acknowledgements(sent, acks, events).collect()}
    assert after == {"whole": [], "half": [], "none": []}, "who reports a loss has not acknowledged the message"


def test_rows_are_followed_in_the_acknowledgements_that_the_ack_job_wrote(
    spark: SparkSession, settings: Settings, job: ModuleType, tmp_path: Path
) -> None:
    """The driver sends three rows, one of them in segments with parity; Bob hears two and says something."""
    # Of the past: what claims to come from the future is refused.
    clock = ManualClock(int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000_000)
    network, wire = MemoryNetwork(clock=clock), []

    def link(sender: str, receiver: str, message: WakuMessage) -> tuple[float, ...]:
        if receiver == "observer":
            wire.append((clock.now_ns() // 1_000_000, message))
        return () if receiver == "bob" and b"nobody hears" in message.payload else (0.0,)

    network.link = link
    config = ReliableChannelConfig(
        persistence=MemoryPersistence(),
        segmentation=SegmentationConfig(segment_size_bytes=1_024, enable_reed_solomon=True, parity_rate=0.5),
        query_on_connect=False,
        process_task_min_elapse_ms=0,
    )
    opened_by_sender = {}
    for name in ("driver", "bob", "observer"):
        network.node(name).start()
    for name in ("driver", "bob"):
        opened_by_sender[name] = create_reliable_channel(
            network.node(name), WHO.channel_id, WHO.topic, name, config=config, clock=clock, threaded=False
        )

    def talk() -> None:
        for _ in range(5):
            network.run(100)
            for opened in opened_by_sender.values():
                opened.step()

    payloads = {"long": b"la " * 1_000, "short": b"la", "unheard": b"nobody hears this"}
    rows = [Row(row_id=key, payload=payload) for key, payload in payloads.items()]
    sent_rows = list(job.send_rows(opened_by_sender["driver"], rows))
    talk()
    opened_by_sender["bob"].send(b"I heard you")
    for _ in range(5):  # what his answer does not name, a sync message does soon
        talk()
    for opened in opened_by_sender.values():
        opened.close()
    job.append_new(spark, settings, sent_rows)
    assert [(row["row_id"], row["required"], len(row["sds_ids"])) for row in sent_rows] == [
        ("long", 3, 4),
        ("short", 1, 1),
        ("unheard", 1, 1),
    ]

    log = KafkaLog(spark, tmp_path / "kafka")
    log.produce(
        [
            Record(encode_waku_message(message), offset, at_ms, pubsub_topic=DEFAULT_PUBSUB_TOPIC.encode())
            for offset, (at_ms, message) in enumerate(wire)
        ]
    )
    run_once(spark, settings, [query for query in chain_over(log) if query.name in ("ingest", "reassembly", "ack")])
    sent, acks = (read_table(spark, settings.paths, table) for table in (SENT_ROWS, ACKS))
    found = {row["row_id"]: row["acknowledged_by"] for row in job.with_acknowledgements(sent, acks).collect()}
    assert found == {"long": ["bob"], "short": ["bob"], "unheard": []}


def test_a_source_without_the_columns_is_refused_by_name(
    spark: SparkSession, settings: Settings, job: ModuleType
) -> None:
    with pytest.raises(ConfigurationError, match="payload"):
        job.send_table(spark, settings, WHO, spark.createDataFrame([("a",)], "row_id STRING"), 1.0)


def test_a_row_that_cannot_be_sent_is_named(job: ModuleType, tmp_path: Path) -> None:
    node = MemoryNetwork().node("driver")
    node.start()
    config = ReliableChannelConfig(persistence=SqlitePersistence(tmp_path / "c.db"))
    with (
        create_reliable_channel(node, "c", "/t/1/x/proto", "me", config=replace(config), threaded=False) as channel,
        pytest.raises(EmptyMessage, match="row 7"),
    ):
        list(job.send_rows(channel, [Row(row_id="row 7", payload=b"")]))
