"""Tables in which somebody deleted or changed rows through delta-rs, which writes texts and bytes as views."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_channel.lake.read import dataset_of

ROWS = pa.table(
    {
        "channel_id": ["x", "y", "z"],
        "hash": [b"1", b"2", b"3"],
        "sds_ids": [["a"], [], None],
        "sender": [{"id": "alice", "key": b"k"}, None, {"id": "bob", "key": None}],
    }
)


def delete(table: DeltaTable) -> None:
    table.delete("channel_id = 'x'")


def update(table: DeltaTable) -> None:
    table.update(new_values={"channel_id": "y"}, predicate="channel_id = 'x'")


def merge(table: DeltaTable) -> None:
    row = ROWS.slice(0, 1)
    merger = table.merge(row, predicate="t.channel_id = s.channel_id", source_alias="s", target_alias="t")
    merger.when_matched_delete().execute()


@pytest.fixture(params=[delete, update, merge])
def changed(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaTable:
    change: Callable[[DeltaTable], None] = request.param
    write_deltalake(tmp_path, ROWS)
    change(DeltaTable(tmp_path))
    write_deltalake(tmp_path, ROWS, mode="append")
    table = DeltaTable(tmp_path)
    types = {pq.read_schema(tmp_path / name).field("channel_id").type for name in _list_names(table)}
    assert types == {pa.string(), pa.string_view()}
    return table


def _list_names(table: DeltaTable) -> list[str]:
    return [uri.rpartition("/")[2] for uri in table.file_uris()]


def test_arrow_filters_texts_and_bytes_of_all_files(changed: DeltaTable) -> None:
    dataset = dataset_of(changed)
    assert dataset.schema == ROWS.schema
    rows = dataset.to_table(filter=(pc.field("channel_id") == "z") & (pc.field("hash") == b"3"))
    assert rows.equals(pa.concat_tables([ROWS.slice(2)] * 2))


def test_duckdb_filters_texts_and_bytes_of_all_files(changed: DeltaTable) -> None:
    dataset = dataset_of(changed, ["channel_id"])  # noqa: F841 - read by name
    query = "SELECT count(*) FROM dataset WHERE channel_id IN ('z') AND hash = '3'::BLOB"
    assert duckdb.sql(query).fetchall() == [(2,)]


def test_a_file_that_is_gone_is_named_where_it_is_read(changed: DeltaTable, tmp_path: Path) -> None:
    for name in _list_names(changed):
        (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError):
        dataset_of(changed).to_table()
