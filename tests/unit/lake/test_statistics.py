"""Readers that skip files by their statistics see every row, whatever the rows hold."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import example, given
from hypothesis import strategies as st

from reliable_channel.config import load
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.commit import append_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.files import TaskFiles, indexed
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import Column, Table

LAST = "\U0010ffff"
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


def write_files(paths: Any, values: pa.Table) -> None:
    with TaskFiles(paths) as writer:
        writer.add(TABLE, values)
        written = writer.finish()
    append_files(open_table(paths, TABLE), written)


def matches(values: pa.Table, name: str, value: Any) -> int:
    return values.filter(pc.equal(values[name], pa.scalar(value, values.schema.field(name).type))).num_rows


@pytest.mark.parametrize("writer", ["task", "delta-rs", "compacted"])
@given(files=st.lists(st.lists(rows, min_size=1, max_size=3), min_size=1, max_size=3))
@example(files=[[dict.fromkeys(TABLE.names()) | {"text": LAST, "flag": True, "number": float("nan")}]])
@example(files=[[dict.fromkeys(TABLE.names()) | {"text": LAST * 40, "number": -0.0}, dict.fromkeys(TABLE.names())]])
def test_filters_on_every_column_find_every_row(
    writer: str, files: list[list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = load("local").with_run_dir(tmp_path_factory.mktemp("t")).paths
    create_tables(paths, (TABLE,))
    for file in files:
        values = as_arrow(file, TABLE)
        if writer == "task":
            write_files(paths, values)
        else:
            append_rows(paths, TABLE, values)
    if writer == "compacted":
        open_table(paths, TABLE).optimize.compact()
    table = DeltaTable(paths.table(TABLE.name))
    everything = as_arrow([row for file in files for row in file], TABLE)
    place = paths.table(TABLE.name)
    dataset = table.to_pyarrow_dataset(filesystem=pafs.SubTreeFileSystem(place, pafs.LocalFileSystem()))
    for name in TABLE.names():
        for value in {v for v in everything[name].to_pylist() if v is not None and v == v}:
            scalar = pa.scalar(value, everything.schema.field(name).type)
            assert dataset.to_table(filter=pc.field(name) == scalar).num_rows == matches(everything, name, value)
        nulls = dataset.to_table(filter=pc.field(name).is_null()).num_rows
        assert nulls == everything[name].null_count
    for value in {v for v in everything["text"].to_pylist() if v and "\x00" not in v}:
        quoted = value.replace("'", "''")
        found = pa.table(
            QueryBuilder().register("t", table).execute(f"SELECT whole FROM t WHERE text = '{quoted}'")  # noqa: S608
        )
        assert found.num_rows == matches(everything, "text", value)


def test_a_table_of_an_earlier_version_gets_the_columns_with_statistics(tmp_path: Path) -> None:
    paths = load("local").with_run_dir(tmp_path).paths
    create_tables(paths, (TABLE,))
    name = "delta.dataSkippingStatsColumns"
    open_table(paths, TABLE).alter.set_table_properties({name: "text"})
    create_tables(paths, (TABLE,))
    version = open_table(paths, TABLE).version()
    assert open_table(paths, TABLE).metadata().configuration[name] == ",".join(c.name for c in indexed(TABLE))
    create_tables(paths, (TABLE,))
    assert open_table(paths, TABLE).version() == version
