"""Operations on real Spark and Delta: metrics, settings that a checkpoint froze, maintenance, rebuild."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.analysis.status import collect
from reliable_channel.channel import AesGcm
from reliable_channel.config import ChannelsSettings, ChannelTopic, Settings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.sds import SdsChannel
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.evidence import intake
from reliable_channel.lake import tables
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.pipeline.ingest import stream as ingest_stream
from reliable_channel.pipeline.ingest import ticks
from reliable_channel.pipeline.maintenance import maintain
from reliable_channel.pipeline.maintenance import rebuild as rebuilding
from reliable_channel.pipeline.runner.metrics import record_metrics
from reliable_channel.pipeline.verdict import verdicts
from reliable_channel.simulation.presets import small_scenario
from reliable_channel.simulation.world import World, simulate
from tests.support import error_page

from .chain import as_kafka, chain_over, rows, run_once
from .kafka_log import KafkaLog, Record

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(small_scenario())


@pytest.fixture
def configured(settings: Settings, world: World) -> Settings:
    topics = tuple(ChannelTopic(content_topic=t) for t in sorted({c.content_topic for c in world.scenario.channels}))
    return settings.model_copy(update={"channels": ChannelsSettings(content_topics=topics)})


def test_progress_is_recorded_and_a_frozen_setting_is_named(
    spark: SparkSession, configured: Settings, world: World, tmp_path: Path
) -> None:
    log = KafkaLog(spark, tmp_path / "log")
    log.produce(as_kafka(world.records))
    with record_metrics(spark, configured, serve=False):
        run_once(spark, configured, chain_over(log)[:2])

    found = {(r["query"], r["metric"]): r["value"] for r in rows(configured, tables.PIPELINE_METRICS)}
    assert found["ingest", "input_rows"] == len(world.records)
    assert found["ingest", "quarantined_rows"] == len(world.truth.bad)
    assert found["reassembly", "lag_commits"] == 0
    assert found["reassembly", "state_rows"] > 0
    assert found["reassembly", "state_memory_bytes"] > 0
    keys = [(r["query"], r["run_id"], r["batch_id"], r["metric"]) for r in rows(configured, tables.PIPELINE_METRICS)]
    assert len(keys) == len(set(keys))
    assert {job["job"]: job["micro_batch"] for job in collect(configured)["jobs"]} == {"ingest": 0, "reassembly": 0}

    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        with pytest.raises(ConfigurationError, match=r"shuffle_partitions=2, and the configuration says 7") as fault:
            run_once(spark, configured, chain_over(log)[1:2])
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))
    assert error_page.pattern_of("A checkpoint that was made with another setting").fullmatch(str(fault.value))


# A tick that was deleted comes back from the clock, which keeps its event time and its own time of recording.
VOLATILE = {"delivered_messages": ["written_at"], "sds_messages": ["ingest_time"]}
DERIVED = (
    tables.ENVELOPES,
    tables.SDS_MESSAGES,
    tables.QUARANTINE,
    tables.ORDERED_SDS_MESSAGES,
    tables.REASSEMBLED_MESSAGES,
    tables.INCOMPLETE_MESSAGES,
    tables.DELIVERIES,
    tables.ACKS,
    tables.REFETCH_REQUESTS,
    tables.LOST_DEPENDENCIES,
    tables.CHANNEL_EVENTS,
    tables.DELIVERED_MESSAGES,
)
CARRIED = (tables.CLOCK, tables.SOURCE_GAPS)
PLACE = ("kafka_topic", "kafka_partition", "kafka_offset")
MAINTAINED = ("sds_messages", "deliveries", "clock")
EVENT = dict(zip(tables.CHANNEL_KEY, ("/p", "/c", "talk"), strict=True)) | {"sds_id": "a", "at_ms": 1_767_225_600_000}
EVENT |= {"kind": "sender", "event": "queued"}
SEEN = {"kind": "sightings", "vantage": "north", "source": "relay", "hashes": ["ab" * 32], "at_ms": EVENT["at_ms"]}
SEALED, SECRET = "/sealed/1/operations/proto", b"only with the key"


def everything(settings: Settings, *more: tables.Table) -> dict[str, list[dict[str, Any]]]:
    """The tables' rows; of quarantine without those that were requeued, which a rebuild does not refuse any more."""
    found = {t.name: rows(settings, t, VOLATILE.get(t.name, [])) for t in (*DERIVED, *CARRIED, *more)}
    found["quarantine"] = [row for row in found["quarantine"] if row["disposition"] != "requeued"]
    return found


def assert_unchanged(found: dict[str, list[dict[str, Any]]], expected: dict[str, list[dict[str, Any]]]) -> None:
    """But for columns that were added, and their order."""
    for name, before in expected.items():
        columns = before[0] if before else ()
        now = [{column: row[column] for column in columns} for row in found[name]]
        assert sorted(now, key=repr) == before, name


def sealed_record(key: bytes, partition: int, offset: int, time_ms: int) -> Record:
    """A record of a channel whose key the pipeline may not have yet."""
    (outgoing,) = SdsChannel("sealed", "alice").send(SECRET, time_ms).outgoing
    sealed = AesGcm(key, pubsub_topic="/waku/2/rs/1/0", content_topic=SEALED).encrypt(outgoing.data)
    envelope = encode_waku_message(WakuMessage(sealed, SEALED, timestamp=time_ms * 1_000_000))
    return Record(envelope, offset, time_ms, partition)


def test_operations_spare_a_stream_that_lags_and_give_back_every_table(
    spark: SparkSession, configured: Settings, world: World, tmp_path: Path, shell: Callable[..., str]
) -> None:
    key_file = tmp_path / "sealed.key"
    sealed_topic = ChannelTopic(content_topic=SEALED, decryption_key_files=(str(key_file),))
    topics = ChannelsSettings(content_topics=(sealed_topic, *configured.channels.content_topics))
    pipeline = configured.pipeline.model_copy(update={"vacuum_retention_ms": 0})
    eager = configured.model_copy(update={"pipeline": pipeline, "channels": topics})
    recorded = as_kafka(world.records)
    shift_ms = time.time_ns() // 1_000_000 - max(record.time_ms for record in recorded)  # young enough to be kept
    records = [replace(record, time_ms=record.time_ms + shift_ms) for record in recorded]
    key, last = AesGcm.generate_key(), records[-1]
    records.append(sealed_record(key, last.partition, last.offset + 1, last.time_ms))
    log = KafkaLog(spark, tmp_path / "log")
    ingest, *others = chain_over(log)
    log.produce(records[: len(records) // 2])
    run_once(spark, eager, (ingest, *others))
    log.produce(records[len(records) // 2 :])
    run_once(spark, eager, (ingest,))

    # The other jobs lag behind by a commit whose files OPTIMIZE replaces, and VACUUM would take at once.
    before = everything(eager)
    written = len(open_table(eager.paths, tables.SDS_MESSAGES).file_uris())
    planned = {outcome.table: outcome for outcome in maintain.run(eager, dry_run=True, only=MAINTAINED)}
    assert_unchanged(everything(eager), before)
    assert len(open_table(eager.paths, tables.SDS_MESSAGES).file_uris()) == written
    assert planned["sds_messages"].held_by == "reassembly"
    done = {outcome.table: outcome for outcome in maintain.run(eager, only=MAINTAINED)}
    assert done["sds_messages"].files_vacuumed == 0
    assert done["deliveries"].held_by is None
    assert_unchanged(everything(eager), before)
    run_once(spark, eager, others)
    read = {tuple(row[c] for c in PLACE) for row in rows(eager, tables.ORDERED_SDS_MESSAGES)}
    assert read == {tuple(row[c] for c in PLACE) for row in rows(eager, tables.SDS_MESSAGES)}
    assert len(rows(eager, tables.ORDERED_SDS_MESSAGES)) > len(before["ordered_sds_messages"])
    true = {(m.channel_id, m.sender, m.payload) for m in world.truth.messages if m.outcome == "delivered"}
    delivered = rows(eager, tables.DELIVERED_MESSAGES)
    assert {(r["channel_id"], r["sender_id"], r["payload"]) for r in delivered} <= true

    # The key comes, and what waited for it goes on, once.
    assert [row["reason"] for row in rows(eager, tables.QUARANTINE)].count("undecryptable") == 1
    key_file.write_text(key.hex())
    key_file.chmod(0o600)
    assert "1 record can be decoded now; the next run" in shell(eager, "requeue", "--reason", "undecryptable")
    assert "0 records can be decoded now." in shell(eager, "requeue", "--reason", "undecryptable")
    run_once(spark, eager, others)
    assert [r["payload"] for r in rows(eager, tables.DELIVERED_MESSAGES) if r["content_topic"] == SEALED] == [SECRET]
    verdicts.run(spark, eager)

    # Plain Waku traffic is deleted from envelopes, which a rebuild then cannot bring back; all else stays.
    DeltaTable.forPath(spark, eager.paths.table("envelopes")).delete("kind = 'plain'")
    reference = everything(eager, tables.DELIVERY_STATUS)
    count = len(reference["envelopes"])
    assert count < len(records)

    # Nobody lags any more: the replaced files go, and streams from the first commit could not be read again.
    report = shell(eager, "maintain", "--table", "sds_messages", "--table", "envelopes")
    removed = {name: int(count) for name, count in re.findall(r"^(\w+): .* (\d+) removed from disk", report, re.M)}
    assert removed["sds_messages"] > 0 < removed["envelopes"]
    for damaged in (tables.SDS_MESSAGES, tables.REASSEMBLED_MESSAGES, tables.DELIVERIES):
        DeltaTable.forPath(spark, eager.paths.table(damaged.name)).delete("kafka_partition = 0")
    # The tables of a program that knew another schema: a column too few where rows are derived, one too many elsewhere.
    messages = eager.paths.table("reassembled_messages")
    older = spark.read.format("delta").load(messages).drop("repaired").localCheckpoint()
    older.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(messages)
    for name in ("acks", "clock"):
        spark.sql(f"ALTER TABLE delta.`{eager.paths.table(name)}` ADD COLUMNS (legacy STRING)")
    # A power failure cut a commit off.
    torn = open_table(eager.paths, tables.REPAIR_REQUESTS).version() + 1
    (Path(eager.paths.table("repair_requests")) / "_delta_log" / f"{torn:020d}.json").write_text("{")
    # Somebody clusters these.
    for table in (tables.ENVELOPES, tables.SDS_MESSAGES, tables.DELIVERED_MESSAGES):
        spark.sql(f"ALTER TABLE delta.`{eager.paths.table(table.name)}` CLUSTER BY (content_topic, event_time)")
        with pytest.raises(ConfigurationError, match=f"{table.name} has the table feature clustering"):
            create_tables(eager.paths, (table,))

    # Evidence that was read twice: an earlier version's rebuild forgot the position, and that version knew no send_id.
    for topic, more in (("evidence", {}), ("evidence again", {"send_id": "a"})):
        events = [EVENT | more, EVENT | more | {"event": "sent"}, SEEN]
        evidence = [intake.EvidenceRecord(0, at, json.dumps(event).encode()) for at, event in enumerate(events)]
        intake.write(eager.paths, topic, evidence, "waku.envelopes")
    report = shell(eager, "rebuild")
    assert intake.read_position(eager.paths, "evidence", 0) == 3, "read on from there, or all rows would come twice"
    kept = [(row["event"], row["send_id"]) for row in rows(eager, tables.SENDER_EVENTS)]
    assert sorted(kept) == [("queued", "a"), ("sent", "a")]
    assert [r["vantage"] for r in rows(eager, tables.SIGHTINGS)] == ["north"]
    assert f"Rebuilt from {count:,} envelopes." in report
    assert "The old tables are in" in report
    assert_unchanged(everything(eager, tables.DELIVERY_STATUS), reference)
    assert open_table(eager.paths, tables.REASSEMBLED_MESSAGES).schema().to_arrow().field("repaired") is not None
    run_once(spark, eager, (ingest, *others))
    # The jobs go on where they were.
    assert_unchanged(everything(eager, tables.DELIVERY_STATUS), reference)
    # Spark names files of the state by the place where they were made, which the second micro-batch there notices.
    for _ in range(2):
        assert ticks.close(eager, 1_000)
        run_once(spark, eager, others)


def test_a_rebuild_keeps_the_order_of_records_read_while_the_clock_was_set_back(
    spark: SparkSession, configured: Settings, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild writes several commits. One before those with its past would change all that follows."""
    records = as_kafka(world.records)
    newest_s = max(record.time_ms for record in records) / 1000
    pieces = [records[first : first + len(records) // 4 + 1] for first in range(0, len(records), len(records) // 4 + 1)]
    log = KafkaLog(spark, tmp_path / "log")
    chain = chain_over(log)
    for piece, ahead_s in zip(pieces, (7_200, 7_260, 3_600, 3_660), strict=True):
        time_of_batch = F.timestamp_seconds(F.lit(newest_s + ahead_s))
        monkeypatch.setattr(ingest_stream, "read_batch_time", lambda at=time_of_batch: at)
        log.produce(piece)
        run_once(spark, configured, chain[:1])
    run_once(spark, configured, chain[1:])
    before = everything(configured)
    assert len({row["ingest_time"] for row in before["envelopes"]}) == len(pieces)
    small = configured.spark.model_copy(update={"max_offsets_per_trigger": len(records) // 4})
    monkeypatch.setattr(rebuilding, "_COMMITS_AT_ONCE", 1)
    rebuilding.rebuild(spark, configured.model_copy(update={"spark": small}))
    assert_unchanged(everything(configured), before)
