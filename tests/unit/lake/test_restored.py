"""RESTORE and overwrites by others: a table that lacks rows of a micro-batch, or gives them to a stream twice, is not
written to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_channel.config import PathSettings, load
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.evidence import intake
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.follow import list_added_files
from reliable_channel.lake.read import dataset_of, open_table
from reliable_channel.lake.restored import refuse_restored
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ACKS, CLOCK, ENVELOPES, SDS_MESSAGES, SENDER_EVENTS, Table
from reliable_channel.pipeline.clock import IngestClock, read_progress
from reliable_channel.pipeline.ingest.ticks import advance
from tests.support import error_page


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    """Three tables with the rows of two micro-batches, a commit each."""
    made = load("local").with_run_dir(tmp_path).paths
    create_tables(made, (ACKS, ENVELOPES, SDS_MESSAGES))
    for table in (ACKS, ENVELOPES, SDS_MESSAGES):
        for batch_id in range(2):
            append_batch(made, table, batch_id)
    return made


def append_batch(paths: PathSettings, table: Table, batch_id: int) -> None:
    values = {"STRING": "x", "INT": 0, "BIGINT": batch_id, "TIMESTAMP": 0}
    row = {c.name: values[c.type] for c in table.columns if c.type in values}
    BatchSink(paths, "a query", batch_id).append_small(as_arrow([row], table), table)


def check(paths: PathSettings, table: Table) -> None:
    refuse_restored(paths, table, open_table(paths, table))


def restore(paths: PathSettings, table: Table, version: int) -> DeltaTable:
    opened = open_table(paths, table)
    opened.restore(version)
    return opened


@pytest.mark.parametrize("name", ["a\x85b", "a\u2028b", "a\u2029b", "a\r\nb"], ids=ascii)
def test_a_name_with_a_line_end_in_a_table_does_not_stop_its_writers(paths: PathSettings, name: str) -> None:
    """The statistics of a file repeat it, and some line ends stand unescaped in JSON."""
    row = {"channel_id": name, "message_id": name, "event_time": 0}
    BatchSink(paths, "a query", 2).append_small(as_arrow([row], ACKS), ACKS)
    check(paths, ACKS)
    assert len(list_added_files(paths, ACKS, open_table(paths, ACKS), 2) or {}) == 1


@pytest.mark.parametrize("table", [ACKS, ENVELOPES, SDS_MESSAGES], ids=lambda table: table.name)
def test_a_table_that_lost_a_micro_batch_is_not_written_to_until_its_rows_are_back(
    paths: PathSettings, table: Table
) -> None:
    """A deletion by mistake, undone after a job had written more. The job would go on without those rows."""
    open_table(paths, table).delete("kafka_offset = 0" if table != ACKS else "event_time is not null")
    append_batch(paths, table, 2)
    restore(paths, table, 2).optimize.compact()
    for write in (lambda: check(paths, table), lambda: append_batch(paths, table, 3)):
        with pytest.raises(ConfigurationError, match=r"took rows out of the table \w+ that") as fault:
            write()
        assert error_page.pattern_of("A table that somebody restored or overwrote").fullmatch(str(fault.value))
        assert ("Restore its version 4, or" in str(fault.value)) == (table != SDS_MESSAGES)
        assert ("new places" in str(fault.value)) == (table == ENVELOPES)


def test_rows_that_are_back_are_no_fault(paths: PathSettings) -> None:
    restore(paths, ENVELOPES, 1)
    restore(paths, ENVELOPES, 2)
    append_batch(paths, ENVELOPES, 2)
    check(paths, ENVELOPES)


@pytest.mark.parametrize("predicate", ["kafka_offset = 1", None], ids=["some rows", "all rows"])
def test_a_change_by_others_may_be_undone_where_no_stream_reads(paths: PathSettings, predicate: str | None) -> None:
    open_table(paths, ENVELOPES).delete(predicate)
    restore(paths, ENVELOPES, 2)
    check(paths, ENVELOPES)
    table = open_table(paths, ENVELOPES)
    write_deltalake(table, dataset_of(table).to_table(), mode="append")
    restore(paths, ENVELOPES, 4)
    append_batch(paths, ENVELOPES, 2)
    check(paths, ENVELOPES)


@pytest.mark.parametrize("table", [ACKS, ENVELOPES, SDS_MESSAGES], ids=lambda table: table.name)
def test_a_table_that_somebody_overwrote_is_not_written_to_until_its_rows_are_back(
    paths: PathSettings, table: Table
) -> None:
    """With the result of a query, instead of a table of their own. The job would go on without its rows."""
    opened = open_table(paths, table)
    write_deltalake(opened, dataset_of(opened).to_table(), mode="overwrite")
    open_table(paths, table).alter.set_table_properties({"delta.logRetentionDuration": "interval 8 days"})
    for write in (lambda: check(paths, table), lambda: append_batch(paths, table, 2)):
        with pytest.raises(ConfigurationError, match=r"^An overwrite took rows out of the table \w+ that") as fault:
            write()
        assert error_page.pattern_of("A table that somebody restored or overwrote").fullmatch(str(fault.value))
        assert ("Restore its version 2, or" in str(fault.value)) == (table != SDS_MESSAGES)
    restore(paths, table, 2)
    append_batch(paths, table, 2)
    check(paths, table)


def test_an_overwrite_with_a_predicate_changes_rows_as_an_update_does(paths: PathSettings) -> None:
    opened = open_table(paths, ENVELOPES)
    changed = dataset_of(opened).to_table().slice(0, 1)
    offset = changed["kafka_offset"][0].as_py()
    write_deltalake(opened, changed, mode="overwrite", predicate=f"kafka_offset = {offset}")
    check(paths, ENVELOPES)


def report_sender(paths: PathSettings, offset: int) -> None:
    event = json.dumps({"kind": "sender", "event": "queued", "at_ms": 1_767_225_600_000}).encode()
    intake.write(paths, "evidence", [intake.EvidenceRecord(0, offset, event)], "waku.envelopes")


def tick(paths: PathSettings, number: int) -> None:
    advance(paths, IngestClock(paths, read_progress(paths)), "idle", 10**15 + number)


@pytest.mark.parametrize(("table", "write"), [(SDS_MESSAGES, tick), (CLOCK, tick), (SENDER_EVENTS, report_sender)])
def test_what_is_no_micro_batch_does_not_hide_that_rows_are_gone(
    paths: PathSettings, table: Table, write: Callable[[PathSettings, int], None]
) -> None:
    """Nobody looks behind the commit that appended last, and in an idle topic that is a tick."""
    create_tables(paths, (CLOCK, *intake.WRITTEN))
    for number in range(2):
        append_batch(paths, CLOCK, number)
    for number in range(2):
        write(paths, number)
    restore(paths, table, 1)
    with pytest.raises(ConfigurationError, match=f"RESTORE took rows out of the table {table.name} that"):
        write(paths, 2)


def test_a_source_whose_rows_would_be_read_twice_is_refused(paths: PathSettings) -> None:
    """The commit only adds files, so a stream that skips changed rows takes it for an append."""
    open_table(paths, SDS_MESSAGES).delete()
    restored = restore(paths, SDS_MESSAGES, 2)
    with pytest.raises(ConfigurationError, match=r"put rows back into the table sds_messages, .* Run `reliable"):
        append_batch(paths, SDS_MESSAGES, 2)
    assert list_added_files(paths, SDS_MESSAGES, restored, 2) is None, "a round of verdicts judges everything"
