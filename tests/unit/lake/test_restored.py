"""RESTORE by others: a table that lacks rows of a micro-batch, or gives them to a stream twice, is not written to."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_channel.config import PathSettings, load
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.follow import list_added_files
from reliable_channel.lake.read import dataset_of, open_table
from reliable_channel.lake.restored import refuse_restored
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ACKS, ENVELOPES, SDS_MESSAGES, Table
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
        assert error_page.pattern_of("A table that somebody restored").fullmatch(str(fault.value))
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


def test_a_source_whose_rows_would_be_read_twice_is_refused(paths: PathSettings) -> None:
    """The commit only adds files, so a stream that skips changed rows takes it for an append."""
    open_table(paths, SDS_MESSAGES).delete()
    restored = restore(paths, SDS_MESSAGES, 2)
    with pytest.raises(ConfigurationError, match=r"put rows back into the table sds_messages, .* Run `reliable"):
        append_batch(paths, SDS_MESSAGES, 2)
    assert list_added_files(paths, SDS_MESSAGES, restored, 2) is None, "a round of verdicts judges everything"
