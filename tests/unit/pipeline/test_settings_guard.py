"""Checkpoints are read as Spark 4.2 wrote them, and a setting that disagrees with one is named in one sentence."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from kafka import TopicPartition
from pyspark.sql import DataFrame, SparkSession

from reliable_channel.config import PathSettings, Settings, load
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault, LocalError
from reliable_channel.evidence.intake import WRITTEN, EvidenceRecord, read_position
from reliable_channel.evidence.intake import write as write_evidence
from reliable_channel.lake.append import BatchSink, append_rows
from reliable_channel.lake.checkpoints import (
    RECORD,
    parse_offsets,
    read_checkpoint,
    read_checkpoints,
    read_record,
    repoint_state_schemas,
    write_record,
)
from reliable_channel.lake.commit import delete_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    CLOCK,
    DELIVERIES,
    DELIVERY_STATUS,
    ENVELOPES,
    QUARANTINE,
    SDS_MESSAGES,
    SENDER_EVENTS,
    Table,
)
from reliable_channel.pipeline.ack.stream import BUCKETS_PER_PARTITION, _count_buckets
from reliable_channel.pipeline.ingest import stream
from reliable_channel.pipeline.ingest.recreated_topic import refuse_recreated_topic
from reliable_channel.pipeline.ingest.stream import IngestWriter
from reliable_channel.pipeline.ingest.task import IngestResult
from reliable_channel.pipeline.maintenance.rebuild import _fit_to_rebuild, choose_staging, copy_transactions
from reliable_channel.pipeline.runner.queries import ACK, CHAIN, INGEST, REASSEMBLY, Query
from reliable_channel.pipeline.runner.settings_guard import _WRITES, check, list_frozen_settings
from reliable_channel.pipeline.verdict import verdicts
from reliable_channel.pipeline.verdict.gaps import NO_SILENCE
from reliable_channel.pipeline.verdict.position import USER_METADATA, find_position, make_position
from tests.support import error_page
from tests.support.disk import files_up_to

PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SESSION = {PARTITIONS: "4", PROVIDER: "org.apache.x.RocksDBStateStoreProvider"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load("local", paths={"run_dir": str(tmp_path)})


def batch(*sources: dict[str, object], **conf: str) -> str:
    """An entry of the offset log, in the form of Spark 4.2 (taken from a real checkpoint)."""
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1795262323497, "conf": {PARTITIONS: "4", **conf}}
    return "\n".join(["v1", json.dumps(metadata), *map(json.dumps, sources)])


def delta(version: int, table: str = "19dd145e") -> dict[str, object]:
    return {
        "sourceVersion": 1,
        "reservoirId": table,
        "reservoirVersion": version,
        "index": -1,
        "isStartingVersion": False,
    }


def write(settings: Settings, query: str, offsets: list[str], commits: int, operators: int = 1) -> Path:
    root = Path(settings.paths.checkpoint(query))
    for part in ("offsets", "commits", *(f"state/{number}" for number in range(operators))):
        (root / part).mkdir(parents=True, exist_ok=True)
    (root / "metadata").write_text('{"id":"b6cfcac8"}')
    version = list_frozen_settings(settings, query, {}).get("state_version")
    if version is not None and not (root / RECORD).exists():
        (root / RECORD).write_text(json.dumps({"state_version": version}))
    for number, text in enumerate(offsets):
        (root / "offsets" / str(number)).write_text(text)
        (root / "offsets" / f".{number}.crc").write_bytes(b"crc\x00")
    for number in range(commits):
        (root / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return root


def test_offsets_of_kafka_and_of_delta_are_read() -> None:
    found = parse_offsets(batch({"waku.envelopes": {"0": 12, "1": 7}}, delta(3), delta(2)))
    assert found.kafka == {"waku.envelopes": {0: 12, 1: 7}}
    assert found.delta == {"19dd145e": 2}, "of two readers of one table the slower one counts"
    assert found.conf[PARTITIONS] == "4"
    assert found.batch_time_ms == 1795262323497


@pytest.mark.parametrize("text", ["", "v1", "v1\n{", "v9\n-\n[1]\n{}", "\x00\xff"])
def test_what_is_not_an_offset_log_says_nothing(text: str) -> None:
    assert parse_offsets(text).delta == {}


def test_the_position_is_that_of_the_last_committed_batch(settings: Settings) -> None:
    write(settings, "ack", [batch(delta(1)), batch(delta(5)), batch(delta(9))], commits=2)
    found = read_checkpoint(settings.paths, "ack")
    assert found is not None
    assert (found.query_id, found.committed, found.planned, found.interrupted) == ("b6cfcac8", 1, 2, True)
    assert found.offsets.delta == {"19dd145e": 5}


def test_before_the_first_commit_everything_is_still_needed(settings: Settings) -> None:
    write(settings, "ack", [batch(delta(9))], commits=0)
    found = read_checkpoint(settings.paths, "ack")
    assert found is not None
    assert found.offsets.delta == {"19dd145e": 0}


def test_a_query_that_never_started_has_no_checkpoint(settings: Settings) -> None:
    assert read_checkpoint(settings.paths, "ack") is None
    assert read_checkpoints(settings.paths) == []


def test_a_new_checkpoint_is_recorded_and_agrees_with_itself(settings: Settings) -> None:
    check(settings, "ack", SESSION)
    recorded = json.loads((Path(settings.paths.checkpoint("ack")) / RECORD).read_text())
    assert recorded["spark.shuffle_partitions"] == "4"
    check(settings, "ack", SESSION)


def test_other_shuffle_partitions_are_refused_with_cause_and_remedy(settings: Settings) -> None:
    write(settings, "ack", [batch(delta(1))], commits=1)
    with pytest.raises(ConfigurationError) as refused:
        check(settings, "ack", {**SESSION, PARTITIONS: "8"})
    assert str(refused.value) == (
        "The checkpoint of ack was made with spark.shuffle_partitions=4, and the configuration says 8."
        " Set it back, or run `reliable-channel rebuild`, which derives the tables again with new checkpoints."
    )


def test_ack_counts_its_buckets_by_the_partitions_that_are_compared() -> None:
    """Not by the configuration, before which Spark's own setting stands: no channel moves without a refusal."""
    session = cast(SparkSession, SimpleNamespace(conf=SESSION))
    assert _count_buckets(session) == int(SESSION[PARTITIONS]) * BUCKETS_PER_PARTITION


def test_a_query_without_state_may_change_its_partitions(settings: Settings) -> None:
    write(settings, "ingest", [batch(delta(1))], commits=1, operators=0)
    check(settings, "ingest", {**SESSION, PARTITIONS: "8"})


def test_another_state_store_is_refused(settings: Settings) -> None:
    write(settings, "ack", [batch(delta(1), **{PROVIDER: "org.apache.x.HDFSBackedStateStoreProvider"})], commits=1)
    with pytest.raises(ConfigurationError, match=r"made with .*=HDFSBackedStateStoreProvider.* says RocksDB"):
        check(settings, "ack", SESSION)


def test_a_state_store_that_ack_cannot_use_is_refused_before_any_query_starts(settings: Settings) -> None:
    session = {**SESSION, PROVIDER: "org.apache.x.HDFSBackedStateStoreProvider"}
    check(settings, "reassembly", session)
    with pytest.raises(
        ConfigurationError, match=r"in RocksDB, and spark\.sql.*is HDFSBackedStateStoreProvider\. Leave"
    ):
        check(settings, "ack", session)


def test_another_topic_is_refused_although_spark_would_not_notice(settings: Settings) -> None:
    write(settings, "ingest", [batch({"other.topic": {"0": 4}})], commits=1, operators=0)
    with pytest.raises(ConfigurationError, match=r"kafka\.topics\.envelopes=other\.topic, and"):
        check(settings, "ingest", SESSION)


def test_another_participant_is_refused(settings: Settings) -> None:
    check(settings, "ack", SESSION)
    write(settings, "ack", [batch(delta(1))], commits=1)
    alice = settings.model_copy(update={"channels": settings.channels.model_copy(update={"participant_id": "alice"})})
    with pytest.raises(ConfigurationError, match="participant_id=nothing, and the configuration says alice"):
        check(alice, "ack", SESSION)


@pytest.mark.parametrize("query", ["ingest", "reassembly", "ack"])
def test_a_query_without_its_checkpoint_does_not_write_its_rows_again(query: str, settings: Settings) -> None:
    table = _WRITES[query]
    create_tables(settings.paths, [table])
    check(settings, query, SESSION)
    shutil.rmtree(settings.paths.checkpoint(query), ignore_errors=True)
    append_rows(settings.paths, table, make_row(table))
    with pytest.raises(ConfigurationError) as fault:
        check(settings, query, SESSION)
    assert table.name in str(fault.value)
    if query != "ingest":
        assert error_page.pattern_of("A missing checkpoint").fullmatch(str(fault.value))
    write(settings, query, [batch()], 1)
    check(settings, query, SESSION)


@pytest.mark.parametrize("query", CHAIN, ids=lambda query: query.name)
def test_a_query_does_not_go_on_over_new_tables_in_place_of_deleted_ones(query: Query, settings: Settings) -> None:
    def starts() -> None:
        check(settings, query.name, SESSION, query.tables)

    starts()
    create_tables(settings.paths, query.tables)
    write(settings, query.name, [batch()], 1, operators=0)
    for table in query.tables:
        place = Path(settings.paths.table(table.name))
        place.rename(place.with_suffix(".away"))
        with pytest.raises(ConfigurationError) as fault:
            starts()
        assert table.name in str(fault.value)
        if table not in (ENVELOPES, CLOCK):
            assert error_page.pattern_of("A checkpoint without its table").fullmatch(str(fault.value))
        place.with_suffix(".away").rename(place)
        starts()


def append_batch(settings: Settings, table: Table, batch_id: int) -> None:
    """One micro-batch of the checkpoint that :func:`write` makes."""
    BatchSink(settings.paths, "b6cfcac8", batch_id).append_small(make_row(table), table)


def make_row(table: Table, **more: str) -> pa.Table:
    values = {"STRING": "x", "INT": 0, "BIGINT": 0, "TIMESTAMP": 0}
    return as_arrow([{c.name: values[c.type] for c in table.columns if c.type in values} | more], table)


def test_tables_that_were_restored_from_an_older_copy_are_refused_by_ingest(settings: Settings) -> None:
    """Its records up to the checkpoint's offset would be in no table, and Kafka would not be asked for them again."""
    create_tables(settings.paths, INGEST.tables)
    for batch_id in range(3):
        append_batch(settings, CLOCK, batch_id)
    append_batch(settings, ENVELOPES, 1)  # not every micro-batch has envelopes
    root = write(settings, "ingest", [batch()] * 3, 3, operators=0)
    check(settings, "ingest", SESSION, INGEST.tables)
    (root / "offsets" / "3").write_text(batch())
    (root / "commits" / "3").write_text("v1")
    with pytest.raises(ConfigurationError) as fault:
        check(settings, "ingest", SESSION, INGEST.tables)
    assert error_page.pattern_of("Tables that are older than a checkpoint").fullmatch(str(fault.value))
    with pytest.raises(ConfigurationError, match="older than the checkpoint of ingest"):
        _fit_to_rebuild(settings.paths)
    append_batch(settings, CLOCK, 3)
    check(settings, "ingest", SESSION, INGEST.tables)
    assert _fit_to_rebuild(settings.paths) == 1


def test_ingest_records_a_micro_batch_without_records_too(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an aborted transaction, for instance. Else its tables would look older than the checkpoint."""
    create_tables(settings.paths, INGEST.tables)
    monkeypatch.setattr(stream, "admit", lambda *_: IngestResult({}, [], []))
    append_batch(settings, CLOCK, 0)
    writer = IngestWriter(settings, lambda gaps: gaps)
    writer(cast(DataFrame, None), BatchSink(settings.paths, "b6cfcac8", 1))
    write(settings, "ingest", [batch()] * 2, 2, operators=0)
    check(settings, "ingest", SESSION, INGEST.tables)


def test_a_source_that_was_restored_from_an_older_copy_is_refused(settings: Settings) -> None:
    """Spark would wait until the source has as many commits as the old one had, and skip them."""
    create_tables(settings.paths, REASSEMBLY.tables)
    append_batch(settings, SDS_MESSAGES, 0)
    source = open_table(settings.paths, SDS_MESSAGES)
    read_all = delta(source.version() + 1, source.metadata().id)
    write(settings, "reassembly", [batch(read_all)], 1, operators=0)
    check(settings, "reassembly", SESSION, REASSEMBLY.tables)
    read_more = delta(source.version() + 2, source.metadata().id)
    write(settings, "reassembly", [batch(read_more)], 1, operators=0)
    with pytest.raises(ConfigurationError, match=r"sds_messages is older than .* of reassembly: .*rebuild"):
        check(settings, "reassembly", SESSION, REASSEMBLY.tables)


def test_a_table_that_was_restored_alone_is_refused_if_verdicts_were_given_on_it(
    settings: Settings, tmp_path: Path
) -> None:
    """Messages whose deliveries are gone would turn missing. No checkpoint has the version of this table."""
    paths, place = settings.paths, Path(settings.paths.table(DELIVERIES.name))
    create_tables(paths, (*ACK.tables, *verdicts.TABLES_READ, DELIVERY_STATUS))
    append_batch(settings, CLOCK, 0)
    shutil.copytree(place, tmp_path / "older")
    append_batch(settings, DELIVERIES, 0)
    write(settings, "ack", [batch()], 1)
    position = make_position(verdicts.open_evidence(paths), settings, NO_SILENCE)
    properties = CommitProperties(custom_metadata={USER_METADATA: position.text()})
    status, no_rows = open_table(paths, DELIVERY_STATUS), as_arrow([], DELIVERY_STATUS)
    write_deltalake(status, no_rows, mode="append", commit_properties=properties)
    check(settings, "ack", SESSION, ACK.tables)
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "older", place)
    with pytest.raises(ConfigurationError) as fault:
        check(settings, "ack", SESSION, ACK.tables)
    assert error_page.pattern_of("Tables that are older than a checkpoint").fullmatch(str(fault.value))
    with pytest.raises(ConfigurationError, match="deliveries is older than the verdicts"):
        verdicts.run(cast(SparkSession, None), settings)
    shutil.rmtree(paths.table(DELIVERY_STATUS.name) + "/_delta_log")
    check(settings, "ack", SESSION, ACK.tables)  # a damaged table of verdicts is for the next round to name


def test_a_table_that_was_restored_by_its_log_is_refused_and_verdicts_that_were_are_given_again(
    settings: Settings,
) -> None:
    """Its version number goes on, and so it looks newer than the checkpoint and the verdicts."""
    paths = settings.paths
    create_tables(paths, (*ACK.tables, *verdicts.TABLES_READ, DELIVERY_STATUS))
    for table in (CLOCK, DELIVERIES):
        append_batch(settings, table, 0)
    write(settings, "ack", [batch()], 1)
    position = make_position(verdicts.open_evidence(paths), settings, NO_SILENCE)
    properties = CommitProperties(custom_metadata={USER_METADATA: position.text()})
    status, no_rows = open_table(paths, DELIVERY_STATUS), as_arrow([], DELIVERY_STATUS)
    for _ in range(2):
        write_deltalake(status, no_rows, mode="append", commit_properties=properties)
    assert find_position(paths, status) == position
    status.restore(1)
    assert find_position(paths, status) is None
    check(settings, "ack", SESSION, ACK.tables)
    open_table(paths, DELIVERIES).restore(0)
    for refused in (
        lambda: check(settings, "ack", SESSION, ACK.tables),
        lambda: verdicts.run(cast(SparkSession, None), settings),
    ):
        with pytest.raises(ConfigurationError, match="RESTORE took rows out of the table deliveries"):
            refused()


@pytest.mark.parametrize("query", CHAIN, ids=lambda query: query.name)
def test_a_checkpoint_of_other_tables_is_refused(query: Query, settings: Settings) -> None:
    """Copied from another run. Ingest would go on in Kafka where that one was, and Spark names a deleted table."""
    create_tables(settings.paths, query.tables)
    source = query.reads if isinstance(query.reads, Table) else None
    if source is None:
        BatchSink(settings.paths, "of another run", 0).append_small(make_row(CLOCK), CLOCK)
    write(settings, query.name, [batch(*([delta(1)] if source else []))], 1, operators=0)
    with pytest.raises(ConfigurationError) as fault:
        check(settings, query.name, SESSION, query.tables)
    assert error_page.pattern_of("A checkpoint of other tables").fullmatch(str(fault.value))
    if source is None:
        with pytest.raises(ConfigurationError, match="belongs to other tables"):
            _fit_to_rebuild(settings.paths)
        # As rebuilds left it until 29 November 2026: without the transaction.
        append_rows(settings.paths, CLOCK, make_row(CLOCK, query_id="b6cfcac8"))
    else:
        own = delta(1, open_table(settings.paths, source).metadata().id)
        write(settings, query.name, [batch(own)], 1, operators=0)
    check(settings, query.name, SESSION, query.tables)


def test_records_that_could_not_be_decoded_are_not_written_again_without_the_checkpoint(settings: Settings) -> None:
    """A topic of nothing else leaves envelopes empty."""
    create_tables(settings.paths, INGEST.tables)
    for table in (CLOCK, QUARANTINE):
        append_batch(settings, table, 0)
    with pytest.raises(ConfigurationError, match="ingest has no checkpoint, but its table clock has rows"):
        check(settings, "ingest", SESSION, INGEST.tables)


def change_verdicts(status: DeltaTable) -> dict[str, Callable[[], object]]:
    rows = as_arrow([{"channel_id": "talk", "message_key": "m", "first_seen": 0, "as_of": 0}], DELIVERY_STATUS)
    return {
        "delete": lambda: status.delete("channel_id = 'talk'"),
        "update": lambda: status.update(updates={"verdict": "'delivered'"}, predicate="channel_id = 'talk'"),
        "overwrite": lambda: write_deltalake(status, rows, mode="overwrite"),
        "append": lambda: write_deltalake(status, rows, mode="append"),
        "compaction": lambda: status.optimize.compact(),
        "a column": lambda: status.alter.add_columns([Field("note", "string")]),
        "retention": lambda: delete_rows(status, "as_of < '2020-01-01T00:00:00.000000Z'"),
    }


@pytest.mark.parametrize("change", ["delete", "update", "overwrite", "append", "compaction", "a column", "retention"])
def test_verdicts_that_somebody_changed_are_all_given_again(settings: Settings, change: str) -> None:
    """A round would judge only what has new evidence, and leave what somebody else wrote or deleted as it is."""
    paths = settings.paths
    create_tables(paths, (*verdicts.TABLES_READ, DELIVERY_STATUS))
    old = {"channel_id": "talk", "message_key": "m", "first_seen": 0, "as_of": 0}
    for _ in range(2):
        append_rows(paths, DELIVERY_STATUS, as_arrow([old], DELIVERY_STATUS))
    position = make_position(verdicts.open_evidence(paths), settings, NO_SILENCE)
    properties = CommitProperties(custom_metadata={USER_METADATA: position.text()})
    write_deltalake(
        open_table(paths, DELIVERY_STATUS), as_arrow([], DELIVERY_STATUS), mode="append", commit_properties=properties
    )
    status = open_table(paths, DELIVERY_STATUS)
    change_verdicts(status)[change]()
    changed = open_table(paths, DELIVERY_STATUS)
    assert changed.version() > 3
    expected = position if change in ("compaction", "a column", "retention") else None
    assert find_position(paths, changed) == expected


def test_envelopes_that_were_restored_alone_are_refused_if_verdicts_were_given_since(
    settings: Settings, tmp_path: Path
) -> None:
    """Everything else is there, until a rebuild derives it from what is left of them."""
    paths, place = settings.paths, Path(settings.paths.table(ENVELOPES.name))
    create_tables(paths, (*INGEST.tables, *verdicts.TABLES_READ, DELIVERY_STATUS))
    shutil.copytree(place, tmp_path / "older")
    for table in (CLOCK, ENVELOPES):
        append_batch(settings, table, 0)
    write(settings, "ingest", [batch()], 1, operators=0)
    channel = {"pubsub_topic": "p", "content_topic": "c", "channel_id": "talk", "sender_id": "alice"}
    sent = {**channel, "entire_message_hash": b"p", "sds_id": "1", "event": "queued", "event_time": 0}
    append_rows(paths, SENDER_EVENTS, as_arrow([sent], SENDER_EVENTS))
    assert verdicts.run(cast(SparkSession, None), settings) == 1
    check(settings, "ingest", SESSION, INGEST.tables)
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "older", place)
    for refused in (
        lambda: check(settings, "ingest", SESSION, INGEST.tables),
        lambda: _fit_to_rebuild(paths),
        lambda: verdicts.run(cast(SparkSession, None), settings),
    ):
        with pytest.raises(ConfigurationError, match=r"envelopes is older than the verdicts: .* new places") as fault:
            refused()
        assert error_page.pattern_of("Tables that are older than a checkpoint").fullmatch(str(fault.value))


@pytest.mark.parametrize("part", ["offsets", "offsets/1", "metadata"])
@pytest.mark.parametrize("query", ["ingest", "reassembly", "ack"])
def test_a_checkpoint_of_which_a_part_was_deleted_is_refused(query: str, part: str, settings: Settings) -> None:
    root = write(settings, query, [batch(), batch()], commits=2)
    check(settings, query, SESSION)
    gone = root / part
    (shutil.rmtree if gone.is_dir() else os.remove)(gone)
    with pytest.raises(ConfigurationError, match=f"lacks {part}") as fault:
        check(settings, query, SESSION)
    assert error_page.pattern_of("A checkpoint of which a part is missing").fullmatch(str(fault.value))
    if part == "offsets":
        (root / "metadata").unlink()  # only the commits are left
        with pytest.raises(ConfigurationError, match="lacks metadata"):
            check(settings, query, SESSION)


@pytest.mark.parametrize("query", CHAIN, ids=lambda query: query.name)
def test_a_checkpoint_that_was_restored_from_an_older_copy_is_refused(query: Query, settings: Settings) -> None:
    """Its next micro-batches would have numbers that the tables know, and their rows would be dropped as replays."""
    table = _WRITES[query.name]
    create_tables(settings.paths, query.tables)
    append_batch(settings, table, 2)
    write(settings, query.name, [batch()] * 3, 2, operators=0)  # the last one was interrupted and has written
    check(settings, query.name, SESSION, query.tables)
    append_batch(settings, table, 3)
    with pytest.raises(ConfigurationError) as fault:
        check(settings, query.name, SESSION, query.tables)
    assert error_page.pattern_of("A checkpoint that is older than its tables").fullmatch(str(fault.value))


def test_a_rebuild_of_an_interrupted_ingest_names_who_can_finish_it(settings: Settings) -> None:
    create_tables(settings.paths, (ENVELOPES, CLOCK))
    write(settings, "ingest", [batch()] * 2, 1, operators=0)
    with pytest.raises(
        EnvironmentFault, match=r"interrupted .*ingest\.py --once.* with the version that was interrupted"
    ):
        _fit_to_rebuild(settings.paths)
    write(settings, "ingest", [batch()] * 2, 2, operators=0)
    assert _fit_to_rebuild(settings.paths) == 0


@pytest.mark.parametrize("name", ["data_dir", "checkpoint_dir"])
def test_a_rebuild_of_the_root_of_a_file_system_is_refused_before_it_begins(
    settings: Settings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = getattr(settings.paths, name)
    monkeypatch.setattr(os.path, "ismount", lambda directory: directory == root)
    with pytest.raises(LocalError, match=r"cannot be replaced .*--data-dir and --checkpoint-dir"):
        choose_staging(settings.paths)


def test_a_table_that_a_new_version_adds_is_no_deleted_one(settings: Settings) -> None:
    check(settings, "ingest", SESSION, (ENVELOPES,))
    create_tables(settings.paths, (ENVELOPES,))
    write(settings, "ingest", [batch()], 1, operators=0)
    check(settings, "ingest", SESSION, (ENVELOPES, CLOCK))


def test_a_rebuilt_table_keeps_the_positions_in_the_topic_of_evidence(settings: Settings, tmp_path: Path) -> None:
    """Else the topic would be read again from its beginning, and every row of it would be there twice."""

    def collect(paths: PathSettings, offset: int) -> int:
        event = {"kind": "sender", "event": "queued", "at_ms": 1_767_225_600_000}
        records = [EvidenceRecord(0, at, json.dumps(event).encode()) for at in range(offset + 1)]
        new = [record for record in records if record.offset >= read_position(paths, "evidence/id", 0)]
        return write_evidence(paths, "evidence/id", new, "waku.envelopes").written

    rebuilt = settings.with_run_dir(tmp_path / "rebuilt").paths
    assert [collect(settings.paths, 0), collect(settings.paths, 1)] == [1, 1]
    open_table(settings.paths, SENDER_EVENTS).create_checkpoint()
    (Path(settings.paths.table(SENDER_EVENTS.name)) / "_delta_log" / f"{1:020d}.json").unlink()
    assert collect(settings.paths, 2) == 1
    create_tables(rebuilt, WRITTEN)
    for table in WRITTEN:
        copy_transactions(settings.paths, rebuilt, table)
    assert read_position(rebuilt, "evidence/id", 0) == 3
    assert collect(rebuilt, 2) == 0
    assert open_table(rebuilt, SENDER_EVENTS).count() == 0


def test_the_state_of_a_moved_checkpoint_names_its_own_files(settings: Settings) -> None:
    """In the form of Spark 4.2: the path of the schema before the move, and of one that was added after it."""
    root = write(settings, "ack", [batch()], 1)
    place, schema = root / "state" / "0" / "_metadata" / "v2", "state/0/_stateSchema/default"
    place.mkdir(parents=True)
    paths = [f"file:/srv/old place/ack/{schema}/0_49ab", f"file:{root}/{schema}/1_db11"]
    stores = [{"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": paths}]
    info = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": stores, "operatorPropertiesJson": '{"timeMode":"x"}'}
    metadata, checksum = place / "0", place / ".0.crc"
    metadata.write_text(f"v2\n{json.dumps(info)}")
    checksum.write_bytes(b"of the old content")
    repoint_state_schemas(settings.paths, "ack")
    paths[0] = f"file:{root}/{schema}/0_49ab"
    assert metadata.read_text() == f"v2\n{json.dumps(info)}"
    assert not checksum.exists()
    checksum.write_bytes(b"of the new content")
    repoint_state_schemas(settings.paths, "ack")
    assert checksum.exists(), "what is right is not written again"


def test_a_full_disk_leaves_the_files_of_a_checkpoint_as_they_are(settings: Settings) -> None:
    """They were cut off, and then ack could not start again: its state named no schema, or no version."""
    check(settings, "ack", SESSION)
    root = write(settings, "ack", [batch()], 1)
    place = root / "state" / "0" / "_metadata" / "v2"
    place.mkdir(parents=True)
    (place / "0").write_text('v2\n{"stateSchemaFilePaths":["file:/old/ack/state/0/_stateSchema/default/0_49ab"]}')
    before = {file: file.read_text() for file in (place / "0", root / RECORD)}
    recorded = read_record(settings.paths, "ack")
    for replace in (
        lambda: repoint_state_schemas(settings.paths, "ack"),
        lambda: write_record(settings.paths, "ack", recorded | {"another": "setting"}),
    ):
        with files_up_to(10), pytest.raises(OSError, match="File too large"):
            replace()
    assert {file: file.read_text() for file in before} == before
    repoint_state_schemas(settings.paths, "ack")
    assert (place / "0").read_text() == before[place / "0"].replace("/old/ack", str(root))
    check(settings, "ack", SESSION)


class NewTopic:
    """Partition 0 ends at 12, partition 1 at 7."""

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0, 1}

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: (12, 7)[each.partition] for each in partitions}


@pytest.mark.parametrize("topic_id", ["", "the same"], ids=["a broker without ids", "an id"])
def test_a_topic_that_is_shorter_than_what_was_read_is_refused(settings: Settings, topic_id: str) -> None:
    topic = settings.kafka.topics.envelopes
    refuse_recreated_topic(NewTopic(), topic_id, settings)
    write(settings, "ingest", [batch({topic: {"0": 12, "1": 7}})], commits=1, operators=0)
    refuse_recreated_topic(NewTopic(), topic_id, settings)
    write(settings, "ingest", [batch({topic: {"0": 12, "1": 8}})], commits=1, operators=0)
    with pytest.raises(ConfigurationError) as fault:
        refuse_recreated_topic(NewTopic(), topic_id, settings)
    assert error_page.pattern_of("A topic that was recreated").fullmatch(str(fault.value))


def test_a_topic_with_another_id_is_refused_however_long_it_is(settings: Settings) -> None:
    check(settings, "ingest", SESSION)
    refuse_recreated_topic(NewTopic(), "first", settings)
    check(settings, "ingest", SESSION)
    refuse_recreated_topic(NewTopic(), "first", settings)
    with pytest.raises(ConfigurationError) as fault:
        refuse_recreated_topic(NewTopic(), "second", settings)
    assert error_page.pattern_of("A topic that was recreated").fullmatch(str(fault.value))
    refuse_recreated_topic(NewTopic(), "", settings)


@pytest.mark.parametrize("query", ["ack", "reassembly"])
def test_the_state_of_another_version_is_refused(settings: Settings, query: str) -> None:
    """Also if a setting differs: that the operator sets it back would not help. The record once had no version."""
    check(settings, query, SESSION)
    root = write(settings, query, [batch(delta(1))], commits=1)
    check(settings, query, SESSION)
    recorded = json.loads((root / RECORD).read_text())
    del recorded["state_version"]
    (root / RECORD).write_text(json.dumps(recorded))
    with pytest.raises(
        ConfigurationError, match=f"{query} was made by another version .*Run that version, or .*rebuild"
    ):
        check(settings, query, SESSION | {"spark.sql.shuffle.partitions": "8"})


@pytest.mark.parametrize("query", ["ack", "reassembly"])
def test_the_first_state_of_a_checkpoint_is_of_the_version_that_wrote_it(settings: Settings, query: str) -> None:
    """Not of the one that was killed in its first micro-batch, before it wrote any."""
    root = write(settings, query, [batch(delta(1))], commits=0, operators=0)
    (root / RECORD).write_text(json.dumps({"state_version": "of another version"}))
    check(settings, query, SESSION)
    write(settings, query, [], commits=1)
    check(settings, query, SESSION)
