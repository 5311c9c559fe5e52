"""Readers that skip files by their statistics see every row, whatever the rows hold."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reliable_channel.config import PathSettings, load
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.commit import append_files, delete_rows, replace_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.files import TaskFiles, columns_with_statistics
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import Column, Table
from reliable_channel.pipeline.maintenance import maintain
from tests.support.examples import examples
from tests.support.table_readers import Readers, differences

LAST = "\U0010ffff"
LINE_ENDS = "a\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029b"
"""Where ``str.splitlines`` splits, besides ``\\n`` and ``\\r``. A Delta log holds the last three unescaped."""
TABLE = Table(
    "odd_values",
    "Odd values.",
    "nobody",
    (
        Column("text", "STRING", "a text"),
        Column("whole", "BIGINT", "a number"),
        Column("small", "INT", "a small number"),
        Column("at", "TIMESTAMP", "a time"),
        Column("number", "DOUBLE", "a fraction"),
        Column("flag", "BOOLEAN", "a flag"),
        Column("bytes", "BINARY", "bytes"),
    ),
    ("text",),
    z_order_by=("text", "at"),
)

texts = st.one_of(
    st.text(max_size=50),
    st.sampled_from([LAST, "a", "\x00", "\ud7ff", "\ue000", "\U0010fc00", "\uffff", "e\u0301", "\U0001f600"]).flatmap(
        lambda c: st.integers(0, 1_024).map(lambda n: c * n)
    ),
    st.integers(1_101, 3_000).map(lambda n: LAST * n),
)
# From 2^56 us on (the year 4253), delta-rs rounds the millisecond wrong that it adds to a bound of its own
# (docs/questions.md).
times = st.one_of(
    st.datetimes(dt.datetime(1, 1, 2), dt.datetime(4253, 1, 1)),
    st.just(dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)),
).map(lambda t: t.replace(tzinfo=dt.UTC))
rows = st.fixed_dictionaries(
    {
        "text": st.none() | texts,
        "whole": st.none() | st.sampled_from([-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]),
        "small": st.none() | st.sampled_from([-(2**31), 0, 2**31 - 1]),
        "at": st.none() | times,
        "number": st.none() | st.floats(),
        "flag": st.none() | st.booleans(),
        "bytes": st.none() | st.binary(max_size=3),
    }
)


EMPTY = dict.fromkeys(TABLE.names())
GONE = EMPTY | {"small": 7, "text": "gone", "bytes": b"gone"}
THE_GONE = "small = 7"


def write_files(paths: Any, values: pa.Table) -> None:
    with TaskFiles(paths) as writer:
        writer.add(TABLE, values)
        written = writer.finish()
    append_files(open_table(paths, TABLE), written)


WRITERS = ("task", "delta-rs", "compacted", "z-ordered", "rows deleted", "rows replaced")
FOREIGN = ("foreign merge", "foreign update", "foreign delete")


def write(writer: str, paths: PathSettings, files: list[list[dict[str, Any]]]) -> pa.Table:
    """Write rows as ``writer`` does, into files that also held others where it rewrites files; returns the rows."""
    create_tables(paths, (TABLE,))
    rewrites = writer.startswith(("rows", "foreign"))
    for file in files:
        values = as_arrow([*file, *([GONE] if rewrites else [])], TABLE)
        if writer == "delta-rs":
            append_rows(paths, TABLE, values)
        else:
            write_files(paths, values)
    table, everything = open_table(paths, TABLE), as_arrow([row for file in files for row in file], TABLE)
    match writer:
        case "compacted":
            table.optimize.compact()
        case "z-ordered":
            maintain._optimize(paths, TABLE)
            table.update_incremental()
            table.create_checkpoint()  # which tells the statistics to readers in another form
        case "rows deleted":
            delete_rows(table, THE_GONE)
        case "rows replaced":
            replace_rows(table, THE_GONE, as_arrow([GONE], TABLE))
            everything = pa.concat_tables([everything, as_arrow([GONE], TABLE)])
        case "foreign merge":
            new = as_arrow([GONE], TABLE)
            table.merge(new, "s.small = t.small", source_alias="s", target_alias="t").when_matched_delete().execute()
        case "foreign update":
            table.update(updates={"bytes": "null"}, predicate=THE_GONE)
            gone = as_arrow([GONE | {"bytes": None}] * len(files), TABLE)
            everything = pa.concat_tables([everything, gone])
        case "foreign delete":
            table.delete(THE_GONE)
    return everything


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=examples(20))
@given(files=st.lists(st.lists(rows, min_size=1, max_size=3), min_size=1, max_size=3))
@example(files=[[EMPTY | {"text": LAST, "flag": True, "number": float("nan")}]])
@example(files=[[EMPTY | {"text": LAST * 40, "number": -0.0}, EMPTY]])
@example(files=[[EMPTY | {"text": "c" * 70}]])
@example(files=[[EMPTY | {"text": LINE_ENDS}], [EMPTY]])
def test_filters_on_every_column_find_every_row(
    writer: str, files: list[list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = load("local").with_run_dir(tmp_path_factory.mktemp("t")).paths
    everything = write(writer, paths, files)
    readers = Readers(paths.table(TABLE.name))
    assert set(readers.counts().values()) == {everything.num_rows}
    assert not differences(everything, readers.counts_of)
    for name in TABLE.names():
        assert set(readers.counts_of_null(name).values()) == {everything[name].null_count}


@pytest.mark.parametrize("writer", FOREIGN)
@settings(max_examples=examples(15))
@given(files=st.lists(st.lists(rows, min_size=1, max_size=3), min_size=1, max_size=3))
@example(files=[[EMPTY | {"text": "c" * 70}]])
def test_what_others_rewrite_with_delta_rs_hides_no_row_and_maintenance_makes_it_readable_by_all(
    writer: str, files: list[list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = load("local").with_run_dir(tmp_path_factory.mktemp("t")).paths
    everything = write(writer, paths, files)
    readers = Readers(paths.table(TABLE.name))

    def counts_or_refusals(name: str, value: pa.Scalar) -> dict[str, int]:
        try:
            return readers.counts_of(name, value)
        except (pa.ArrowNotImplementedError, duckdb.InvalidInputException) as error:
            assert "_view)" in str(error)
            return readers.counts_of_others(name, value)

    assert set(readers.counts().values()) == {everything.num_rows}
    assert not differences(everything, counts_or_refusals)
    write_files(paths, as_arrow([EMPTY], TABLE))
    open_table(paths, TABLE).optimize.z_order(["text"])
    readers, everything = Readers(paths.table(TABLE.name)), pa.concat_tables([everything, as_arrow([EMPTY], TABLE)])
    assert not differences(everything, readers.counts_of)


def test_a_table_is_created_with_its_columns_with_statistics_and_a_log_of_a_week(tmp_path: Path) -> None:
    paths = load("local").with_run_dir(tmp_path).paths
    create_tables(paths, (TABLE,))
    configuration = open_table(paths, TABLE).metadata().configuration
    indexed = ",".join(column.name for column in columns_with_statistics(TABLE))
    assert configuration["delta.dataSkippingStatsColumns"] == indexed
    assert configuration["delta.logRetentionDuration"] == "interval 7 days"
    assert configuration["delta.enableExpiredLogCleanup"] == "false"


def test_what_somebody_chose_for_a_table_stays(tmp_path: Path) -> None:
    paths, name = load("local").with_run_dir(tmp_path).paths, "delta.logRetentionDuration"
    create_tables(paths, (TABLE,))
    open_table(paths, TABLE).alter.set_table_properties({name: "interval 60 days"})
    version = open_table(paths, TABLE).version()
    create_tables(paths, (TABLE,))
    kept = open_table(paths, TABLE)
    assert kept.metadata().configuration[name] == "interval 60 days" and kept.version() == version
