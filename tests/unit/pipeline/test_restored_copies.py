"""Tables and checkpoints that do not belong together, after one of them was deleted, copied, restored or changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from reliable_channel.config import Settings, load
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.lake.append import BatchSink, append_rows
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
from reliable_channel.pipeline.ingest import stream
from reliable_channel.pipeline.ingest.stream import IngestWriter
from reliable_channel.pipeline.ingest.task import IngestResult
from reliable_channel.pipeline.maintenance.rebuild import _fit_to_rebuild
from reliable_channel.pipeline.runner.queries import ACK, CHAIN, INGEST, REASSEMBLY, Query
from reliable_channel.pipeline.runner.settings_guard import _WRITES, check
from reliable_channel.pipeline.verdict import verdicts
from reliable_channel.pipeline.verdict.gaps import NO_SILENCE
from reliable_channel.pipeline.verdict.position import USER_METADATA, find_position, make_position
from tests.support import error_page
from tests.support.checkpoints import (
    SESSION,
    append_batch,
    batch,
    delta,
    make_row,
    write_checkpoint,
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load("local", paths={"run_dir": str(tmp_path)})


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
    write_checkpoint(settings, query, [batch()], 1)
    check(settings, query, SESSION)


@pytest.mark.parametrize("query", CHAIN, ids=lambda query: query.name)
def test_a_query_does_not_go_on_over_new_tables_in_place_of_deleted_ones(query: Query, settings: Settings) -> None:
    def starts() -> None:
        check(settings, query.name, SESSION, query.tables)

    starts()
    create_tables(settings.paths, query.tables)
    write_checkpoint(settings, query.name, [batch()], 1, operators=0)
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


def test_tables_that_were_restored_from_an_older_copy_are_refused_by_ingest(settings: Settings) -> None:
    """Its records up to the checkpoint's offset would be in no table, and Kafka would not be asked for them again."""
    create_tables(settings.paths, INGEST.tables)
    for batch_id in range(3):
        append_batch(settings, CLOCK, batch_id)
    append_batch(settings, ENVELOPES, 1)  # not every micro-batch has envelopes
    root = write_checkpoint(settings, "ingest", [batch()] * 3, 3, operators=0)
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


def test_a_clock_that_somebody_emptied_is_refused_until_its_rows_are_back(settings: Settings) -> None:
    """Ingest would begin event times anew: in an idle topic they are ahead of the next record's."""
    create_tables(settings.paths, INGEST.tables)
    for batch_id in range(2):
        append_batch(settings, CLOCK, batch_id)
    write_checkpoint(settings, "ingest", [batch()] * 2, 2, operators=0)
    check(settings, "ingest", SESSION, INGEST.tables)
    open_table(settings.paths, CLOCK).delete()
    for refused in (
        lambda: check(settings, "ingest", SESSION, INGEST.tables),
        lambda: _fit_to_rebuild(settings.paths),
    ):
        with pytest.raises(ConfigurationError, match=r"All rows of the table clock, .* RESTORE its version before"):
            refused()
    open_table(settings.paths, CLOCK).restore(2)
    check(settings, "ingest", SESSION, INGEST.tables)
    assert _fit_to_rebuild(settings.paths) == 0
    append_batch(settings, CLOCK, 2)


def test_ingest_records_a_micro_batch_without_records_too(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an aborted transaction, for instance. Else its tables would look older than the checkpoint."""
    create_tables(settings.paths, INGEST.tables)
    monkeypatch.setattr(stream, "admit", lambda *_: IngestResult({}, [], []))
    append_batch(settings, CLOCK, 0)
    writer = IngestWriter(settings, lambda gaps: gaps)
    writer(cast(DataFrame, None), BatchSink(settings.paths, "b6cfcac8", 1))
    write_checkpoint(settings, "ingest", [batch()] * 2, 2, operators=0)
    check(settings, "ingest", SESSION, INGEST.tables)


def test_a_source_that_was_restored_from_an_older_copy_is_refused(settings: Settings) -> None:
    """Spark would wait until the source has as many commits as the old one had, and skip them."""
    create_tables(settings.paths, REASSEMBLY.tables)
    append_batch(settings, SDS_MESSAGES, 0)
    source = open_table(settings.paths, SDS_MESSAGES)
    read_all = delta(source.version() + 1, source.metadata().id)
    write_checkpoint(settings, "reassembly", [batch(read_all)], 1, operators=0)
    check(settings, "reassembly", SESSION, REASSEMBLY.tables)
    read_more = delta(source.version() + 2, source.metadata().id)
    write_checkpoint(settings, "reassembly", [batch(read_more)], 1, operators=0)
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
    write_checkpoint(settings, "ack", [batch()], 1)
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
    write_checkpoint(settings, "ack", [batch()], 1)
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
    write_checkpoint(settings, query.name, [batch(*([delta(1)] if source else []))], 1, operators=0)
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
        write_checkpoint(settings, query.name, [batch(own)], 1, operators=0)
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
    write_checkpoint(settings, "ingest", [batch()], 1, operators=0)
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


@pytest.mark.parametrize("query", CHAIN, ids=lambda query: query.name)
def test_a_checkpoint_that_was_restored_from_an_older_copy_is_refused(query: Query, settings: Settings) -> None:
    """Its next micro-batches would have numbers that the tables know, and their rows would be dropped as replays."""
    table = _WRITES[query.name]
    create_tables(settings.paths, query.tables)
    append_batch(settings, table, 2)
    write_checkpoint(
        settings, query.name, [batch()] * 3, 2, operators=0
    )  # the last one was interrupted and has written
    check(settings, query.name, SESSION, query.tables)
    append_batch(settings, table, 3)
    with pytest.raises(ConfigurationError) as fault:
        check(settings, query.name, SESSION, query.tables)
    assert error_page.pattern_of("A checkpoint that is older than its tables").fullmatch(str(fault.value))
