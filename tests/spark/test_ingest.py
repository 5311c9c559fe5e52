"""Ingest on real Spark and Delta: every record has its place, exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from reliable_channel.channel.aes_gcm import AesGcm
from reliable_channel.config import ChannelsSettings, ChannelTopic, PathSettings, QuotaSettings, Settings
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.lake import tables
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.pipeline.delta import each_batch
from reliable_channel.pipeline.ingest import requeue as requeueing
from reliable_channel.pipeline.ingest.requeue import requeue
from reliable_channel.pipeline.ingest.stream import TABLES_WRITTEN, IngestWriter, select_records
from reliable_channel.pipeline.rewrite import insert_missing

from .kafka_log import KafkaLog, Record

pytestmark = pytest.mark.spark

TOPIC = "/app/1/chat/proto"
START_MS = 1_767_225_600_000


@pytest.fixture
def configured(settings: Settings) -> Settings:
    topic = ChannelTopic(content_topic=TOPIC)
    return settings.model_copy(update={"channels": ChannelsSettings(content_topics=(topic,))})


def make_writer(settings: Settings) -> IngestWriter:
    """All missing offsets are lost: no broker can be asked."""
    return IngestWriter(settings, lambda gaps: gaps)


def envelope(number: int, topic: str = TOPIC) -> bytes:
    sds = SdsMessage("alice", f"m{number}", "talk", START_MS + number, content=f"hello {number}".encode())
    return encode_waku_message(WakuMessage(encode_sds_message(sds), topic, timestamp=number))


def run_ingest(
    spark: SparkSession, settings: Settings, log: KafkaLog, writer: Callable[[DataFrame, BatchSink], None] | None = None
) -> None:
    create_tables(settings.paths, (*TABLES_WRITTEN, tables.CLOCK))
    query = (
        log.stream()
        .transform(select_records(settings.pipeline))
        .writeStream.foreachBatch(each_batch(spark, settings.paths, writer or make_writer(settings)))
        .option("checkpointLocation", settings.paths.checkpoint("ingest"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def rows(settings: Settings, table: tables.Table) -> list[dict[str, object]]:
    return rows_of(open_table(settings.paths, table))


def test_good_bad_and_plain_records_each_have_their_place(
    spark: SparkSession, configured: Settings, tmp_path: Path
) -> None:
    log = KafkaLog(spark, tmp_path / "log")
    log.produce([Record(envelope(n), n, START_MS + n) for n in range(3)])
    log.produce(
        [
            Record(None, 3, START_MS + 3),
            Record(b"\xff" * 200_000, 4, START_MS + 2),
            Record(envelope(5, "/other/1/x/json"), 5, START_MS + 5),
            Record(envelope(6), 9, START_MS + 9),
        ]
    )
    run_ingest(spark, configured, log)
    for table in TABLES_WRITTEN:
        fields = open_table(configured.paths, table).schema().fields
        assert [(f.name, f.metadata["comment"]) for f in fields] == [(c.name, c.comment) for c in table.columns]

    segments = sorted(rows(configured, tables.SDS_MESSAGES), key=lambda r: (r["kafka_offset"], r["sds_kind"] == "tick"))
    assert [(r["kafka_offset"], r["sds_id"], r["content"]) for r in segments if r["sds_kind"] == "content"] == [
        (n, f"m{m}", f"hello {m}".encode()) for n, m in [(0, 0), (1, 1), (2, 2), (9, 6)]
    ]
    assert [r["kafka_offset"] for r in segments if r["sds_kind"] == "tick"] == [2, 9]
    times = [int(r["event_time"].timestamp() * 1000) - START_MS for r in segments]  # type: ignore[attr-defined]
    assert times == sorted(times)
    kinds = {r["kafka_offset"]: r["kind"] for r in rows(configured, tables.ENVELOPES)}
    assert kinds == {0: "sds", 1: "sds", 2: "sds", 5: "plain", 9: "sds"}
    refused = {r["kafka_offset"]: (r["reason"], r["raw_bytes"]) for r in rows(configured, tables.QUARANTINE)}
    assert refused == {3: ("null_value", None), 4: ("malformed_envelope", 200_000)}
    gaps = [(r["first_offset"], r["last_offset"]) for r in rows(configured, tables.SOURCE_GAPS)]
    assert gaps == [(6, 8)]


def test_a_quiet_partition_of_a_busy_topic_has_ticks(spark: SparkSession, configured: Settings, tmp_path: Path) -> None:
    """So that what is missing in it is asked for, and in the end lost, however long the others have records."""
    log = KafkaLog(spark, tmp_path / "log")
    log.produce([Record(envelope(n), 0, START_MS, partition=n) for n in range(2)])
    for minute in (1, 2):
        log.produce([Record(envelope(2), minute, START_MS + minute * 60_000, partition=1)])
    log.produce([Record(envelope(3), 1, START_MS)])
    run_ingest(spark, configured, log)
    quiet = [r for r in rows(configured, tables.SDS_MESSAGES) if r["kafka_partition"] == 0]
    quiet.sort(key=lambda r: (r["kafka_offset"], r["event_time"], r["sds_kind"] == "tick"))  # type: ignore[comparison-overlap]
    minutes = [(int(r["event_time"].timestamp() * 1000) - START_MS) // 60_000 for r in quiet]  # type: ignore[attr-defined]
    kinds = [(r["kafka_offset"], r["sds_kind"]) for r in quiet]
    assert kinds == [(0, "content"), (0, "tick"), (0, "tick"), (0, "tick"), (1, "content"), (1, "tick")]
    assert minutes == [0, 0, 1, 2, 2, 2]


def test_a_second_run_goes_on_with_clock_and_quotas_and_what_is_above_one_waits_until_it_is_raised(
    spark: SparkSession, configured: Settings, tmp_path: Path
) -> None:
    def with_quota(messages: int) -> Settings:
        quota = QuotaSettings().sender.model_copy(update={"messages": messages})
        return configured.model_copy(update={"quotas": QuotaSettings(sender=quota)})

    def sent() -> list[int]:
        return sorted(r["kafka_offset"] for r in rows(configured, tables.SDS_MESSAGES) if r["sds_kind"] == "content")  # type: ignore[misc]

    log = KafkaLog(spark, tmp_path / "log")
    log.produce([Record(envelope(n), n, START_MS) for n in range(2)])
    run_ingest(spark, with_quota(3), log)
    log.produce([Record(envelope(n), n, START_MS - 5_000) for n in range(3, 7)])
    run_ingest(spark, with_quota(3), log)
    assert len({r["event_time"] for r in rows(configured, tables.ENVELOPES)}) == 1, "event time never goes back"
    assert [(r["first_offset"], r["last_offset"]) for r in rows(configured, tables.SOURCE_GAPS)] == [(2, 2)]
    assert sent() == [0, 1, 3], "a restart counts what was admitted before"
    refused = {r["kafka_offset"]: (r["stage"], r["reason"], r["detail"]) for r in rows(configured, tables.QUARANTINE)}
    assert refused == dict.fromkeys([4, 5, 6], ("quota", "over_quota", "quotas.sender.messages is 3 in 600000 ms"))
    kinds = {r["kafka_offset"]: r["kind"] for r in rows(configured, tables.ENVELOPES)}
    assert kinds == {**dict.fromkeys([0, 1, 3], "sds"), **dict.fromkeys([4, 5, 6], "quarantined")}

    assert requeue(spark, with_quota(5)) == 2
    assert sent() == [0, 1, 3, 4, 5]
    told = {r["kafka_offset"]: r["disposition"] for r in rows(configured, tables.QUARANTINE)}
    assert told == {4: "requeued", 5: "requeued", 6: "dropped"}
    kinds = {r["kafka_offset"]: r["kind"] for r in rows(configured, tables.ENVELOPES)}
    assert kinds == {**dict.fromkeys([0, 1, 3, 4, 5], "sds"), 6: "quarantined"}


def test_a_key_that_comes_later_brings_back_what_it_opens_exactly_once(
    spark: SparkSession, configured: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file = tmp_path / "channel.key"
    topic = ChannelTopic(content_topic=TOPIC, decryption_key_files=(str(key_file),))
    secret = configured.model_copy(update={"channels": ChannelsSettings(content_topics=(topic,))})
    key = AesGcm.generate_key()
    cipher = AesGcm(key).for_topics("/waku/2/rs/1/0", TOPIC)
    sds = SdsMessage("alice", "m0", "talk", START_MS, content=b"secret")
    value = encode_waku_message(WakuMessage(cipher.encrypt(encode_sds_message(sds)), TOPIC, timestamp=1))
    log = KafkaLog(spark, tmp_path / "log")
    log.produce([Record(value, 0, START_MS), Record(b"\xff" * 40, 1, START_MS)])
    run_ingest(spark, secret, log)
    refused = {r["kafka_offset"]: r["reason"] for r in rows(secret, tables.QUARANTINE)}
    assert refused == {0: "undecryptable", 1: "malformed_envelope"}

    key_file.write_text(key.hex())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(requeueing, "insert_missing", interrupted_after(insert_missing, tables.SDS_MESSAGES))
        requeue(spark, secret)
    assert requeue(spark, secret) == 1
    assert requeue(spark, secret) == 0
    for table, wanted, expected in (
        (tables.SDS_MESSAGES, ("sds_id", "content"), [("m0", b"secret")]),
        (tables.QUARANTINE, ("kafka_offset", "disposition"), [(0, "requeued"), (1, "dropped")]),
        (tables.ENVELOPES, ("kafka_offset", "kind"), [(0, "sds")]),
    ):
        found = [row for row in rows(secret, table) if row.get("sds_kind") != "tick"]
        assert sorted(tuple(row[name] for name in wanted) for row in found) == expected
    removed = [action for action in commits(secret, tables.SDS_MESSAGES) if "remove" in action]
    assert not removed, "the streams that read segments take what was requeued as appended"


def interrupted_after(insert: Callable[..., None], last: tables.Table) -> Callable[..., None]:
    """``insert``, and after it wrote the table ``last`` the process ends."""

    def inserted(spark: SparkSession, paths: PathSettings, table: tables.Table, *arguments: Any) -> None:
        insert(spark, paths, table, *arguments)
        if table is last:
            raise KeyboardInterrupt

    return inserted


def commits(settings: Settings, table: tables.Table) -> list[dict[str, object]]:
    """Every action in a table's log."""
    log = Path(settings.paths.table(table.name)) / "_delta_log"
    return [json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines()]


def test_a_micro_batch_compiles_nothing_of_its_own(spark: SparkSession, configured: Settings, tmp_path: Path) -> None:
    """What differs from one to the next, its time, is no part of the code that Spark generates."""

    def compiled() -> int:
        metrics = getattr(spark._jvm.org.apache.spark.metrics.source, "CodegenMetrics$").__getattr__("MODULE$")
        return int(metrics.METRIC_COMPILATION_TIME().getCount())

    log, writer = KafkaLog(spark, tmp_path / "log"), make_writer(configured)
    for number in range(5):
        log.produce([Record(envelope(number), number, START_MS + number)])
    counts: list[int] = []

    def counted(records: DataFrame, sink: BatchSink) -> None:
        writer(records, sink)
        counts.append(compiled())

    run_ingest(spark, configured, log, counted)
    assert len(counts) == 5
    assert counts[1:] == [counts[1]] * 4
