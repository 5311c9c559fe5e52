"""Checkpoints are read as Spark 4.2 wrote them, and a setting that disagrees with one is named in one sentence."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from kafka import TopicPartition
from pyspark.sql import SparkSession

from reliable_channel.config import PathSettings, Settings, load
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault, LocalError
from reliable_channel.evidence.intake import WRITTEN, EvidenceRecord, read_position
from reliable_channel.evidence.intake import write as write_evidence
from reliable_channel.lake.checkpoints import (
    RECORD,
    parse_offsets,
    read_checkpoint,
    read_checkpoints,
    read_record,
    repoint_state_schemas,
    write_record,
)
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.tables import (
    CLOCK,
    ENVELOPES,
    SENDER_EVENTS,
    Table,
)
from reliable_channel.pipeline.ack.stream import BUCKETS_PER_PARTITION, _count_buckets
from reliable_channel.pipeline.ingest.recreated_topic import refuse_recreated_topic
from reliable_channel.pipeline.maintenance import rebuild
from reliable_channel.pipeline.maintenance.rebuild import _fit_to_rebuild, choose_staging, copy_transactions
from reliable_channel.pipeline.runner.settings_guard import check
from tests.support import error_page
from tests.support.checkpoints import (
    PARTITIONS,
    PROVIDER,
    SESSION,
    batch,
    delta,
    write_checkpoint,
)
from tests.support.disk import files_up_to


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load("local", paths={"run_dir": str(tmp_path)})


def test_offsets_of_kafka_and_of_delta_are_read() -> None:
    offsets = parse_offsets(batch({"waku.envelopes": {"0": 12, "1": 7}}, delta(3), delta(2)))
    assert offsets.kafka == {"waku.envelopes": {0: 12, 1: 7}}
    assert offsets.delta == {"19dd145e": 2}, "of two readers of one table the slower one counts"
    assert offsets.conf[PARTITIONS] == "4"
    assert offsets.batch_time_ms == 1795262323497


@pytest.mark.parametrize("text", ["", "v1", "v1\n{", "v9\n-\n[1]\n{}", "\x00\xff"])
def test_what_is_not_an_offset_log_says_nothing(text: str) -> None:
    assert parse_offsets(text).delta == {}


def test_the_position_is_that_of_the_last_committed_batch(settings: Settings) -> None:
    write_checkpoint(settings, "ack", [batch(delta(1)), batch(delta(5)), batch(delta(9))], commits=2)
    checkpoint = read_checkpoint(settings.paths, "ack")
    assert checkpoint is not None
    assert (checkpoint.query_id, checkpoint.committed, checkpoint.planned, checkpoint.interrupted) == (
        "b6cfcac8",
        1,
        2,
        True,
    )
    assert checkpoint.offsets.delta == {"19dd145e": 5}


def test_before_the_first_commit_everything_is_still_needed(settings: Settings) -> None:
    write_checkpoint(settings, "ack", [batch(delta(9))], commits=0)
    checkpoint = read_checkpoint(settings.paths, "ack")
    assert checkpoint is not None
    assert checkpoint.offsets.delta == {"19dd145e": 0}


def test_a_query_that_never_started_has_no_checkpoint(settings: Settings) -> None:
    assert read_checkpoint(settings.paths, "ack") is None
    assert read_checkpoints(settings.paths) == []


def test_a_new_checkpoint_is_recorded_and_agrees_with_itself(settings: Settings) -> None:
    check(settings, "ack", SESSION)
    recorded = json.loads((Path(settings.paths.checkpoint("ack")) / RECORD).read_text())
    assert recorded["spark.shuffle_partitions"] == "4"
    check(settings, "ack", SESSION)


def test_other_shuffle_partitions_are_refused_with_cause_and_remedy(settings: Settings) -> None:
    write_checkpoint(settings, "ack", [batch(delta(1))], commits=1)
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
    write_checkpoint(settings, "ingest", [batch(delta(1))], commits=1, operators=0)
    check(settings, "ingest", {**SESSION, PARTITIONS: "8"})


def test_another_state_store_is_refused(settings: Settings) -> None:
    write_checkpoint(
        settings, "ack", [batch(delta(1), **{PROVIDER: "org.apache.x.HDFSBackedStateStoreProvider"})], commits=1
    )
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
    write_checkpoint(settings, "ingest", [batch({"other.topic": {"0": 4}})], commits=1, operators=0)
    with pytest.raises(ConfigurationError, match=r"kafka\.topics\.envelopes=other\.topic, and"):
        check(settings, "ingest", SESSION)


def test_another_participant_is_refused(settings: Settings) -> None:
    check(settings, "ack", SESSION)
    write_checkpoint(settings, "ack", [batch(delta(1))], commits=1)
    alice = settings.model_copy(update={"channels": settings.channels.model_copy(update={"participant_id": "alice"})})
    with pytest.raises(ConfigurationError, match="participant_id=nothing, and the configuration says alice"):
        check(alice, "ack", SESSION)


@pytest.mark.parametrize("part", ["offsets", "offsets/1", "metadata"])
@pytest.mark.parametrize("query", ["ingest", "reassembly", "ack"])
def test_a_checkpoint_of_which_a_part_was_deleted_is_refused(query: str, part: str, settings: Settings) -> None:
    root = write_checkpoint(settings, query, [batch(), batch()], commits=2)
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


def test_a_rebuild_of_an_interrupted_ingest_names_who_can_finish_it(settings: Settings) -> None:
    create_tables(settings.paths, (ENVELOPES, CLOCK))
    write_checkpoint(settings, "ingest", [batch()] * 2, 1, operators=0)
    with pytest.raises(
        EnvironmentFault, match=r"interrupted .*ingest\.py --once.* with the version that was interrupted"
    ):
        _fit_to_rebuild(settings.paths)
    write_checkpoint(settings, "ingest", [batch()] * 2, 2, operators=0)
    assert _fit_to_rebuild(settings.paths) == 0


@pytest.mark.parametrize("name", ["data_dir", "checkpoint_dir"])
def test_a_rebuild_of_the_root_of_a_file_system_is_refused_before_it_begins(
    settings: Settings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = getattr(settings.paths, name)
    monkeypatch.setattr(os.path, "ismount", lambda directory: directory == root)
    with pytest.raises(LocalError, match=r"cannot be replaced .*--data-dir and --checkpoint-dir"):
        choose_staging(settings.paths)


def test_a_rebuild_replaces_the_directory_to_which_a_link_leads(settings: Settings, tmp_path: Path) -> None:
    """It renamed the link, and the new tables were on another disk than the old ones."""
    link, disk = Path(settings.paths.data_dir), tmp_path / "disk"
    (disk / "tables" / "old").mkdir(parents=True)
    link.symlink_to(disk / "tables")
    staging = choose_staging(settings.paths)
    (Path(staging.data_dir) / "new").mkdir(parents=True)
    Path(staging.checkpoint_dir).mkdir()
    old = Path(rebuild.swap(settings.paths, staging))
    assert link.readlink() == disk / "tables"
    assert [each.name for each in link.iterdir()] == ["new"]
    assert (old.parent, [each.name for each in old.iterdir()]) == (disk, ["old"])


def test_a_rebuild_that_fails_leaves_nothing_of_its_tables(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They filled the disk until the next rebuild, and the jobs could not go on beside them."""
    create_tables(settings.paths, (ENVELOPES, CLOCK))
    before = sorted(tmp_path.iterdir())

    def fill_disk(paths: PathSettings, tables: Collection[Table]) -> None:
        create_tables(paths, tables)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rebuild, "create_tables", fill_disk)
    with pytest.raises(OSError, match="No space left"):
        rebuild.rebuild(cast(SparkSession, None), settings)
    assert sorted(tmp_path.iterdir()) == before


def test_a_table_that_a_new_version_adds_is_no_deleted_one(settings: Settings) -> None:
    check(settings, "ingest", SESSION, (ENVELOPES,))
    create_tables(settings.paths, (ENVELOPES,))
    write_checkpoint(settings, "ingest", [batch()], 1, operators=0)
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
    root = write_checkpoint(settings, "ack", [batch()], 1)
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
    root = write_checkpoint(settings, "ack", [batch()], 1)
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
    write_checkpoint(settings, "ingest", [batch({topic: {"0": 12, "1": 7}})], commits=1, operators=0)
    refuse_recreated_topic(NewTopic(), topic_id, settings)
    write_checkpoint(settings, "ingest", [batch({topic: {"0": 12, "1": 8}})], commits=1, operators=0)
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
    root = write_checkpoint(settings, query, [batch(delta(1))], commits=1)
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
    root = write_checkpoint(settings, query, [batch(delta(1))], commits=0, operators=0)
    (root / RECORD).write_text(json.dumps({"state_version": "of another version"}))
    check(settings, query, SESSION)
    write_checkpoint(settings, query, [], commits=1)
    check(settings, query, SESSION)
