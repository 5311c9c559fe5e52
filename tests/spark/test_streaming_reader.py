"""A stream of somebody else over a table of the jobs, as docs/questions.md shows it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from reliable_channel.lake.commit import delete_rows
from reliable_channel.lake.read import dataset_of
from tests.support.doc_blocks import blocks_of
from tests.support.questions import PAGE

pytestmark = pytest.mark.spark

(CODE,) = [block.text for block in blocks_of(PAGE) if Path(__file__).name in block.about]


def test_a_stream_of_others_gets_each_new_row_once_beside_maintenance(
    spark: SparkSession, sample_tables: Path, tmp_path: Path
) -> None:
    """Rows that were there and expire, and rows that come, with the option of the page; without it the stream ends."""
    acks = tmp_path / "tables" / "acks"
    shutil.copytree(sample_tables / "acks", acks)
    rows = dataset_of(DeltaTable(acks)).to_table()
    code = CODE.replace("build/demo/tables/acks", str(acks)).replace("build/copy", str(tmp_path))
    without = code.replace('.option("skipChangeCommits", "true")', "").replace(str(tmp_path) + "/", f"{tmp_path}/b-")
    without = without.replace(f"{tmp_path}/b-tables", f"{tmp_path}/tables")
    for text in (code, without):
        exec(text, {"spark": spark})  # noqa: S102  our own page
    DeltaTable(acks).optimize.compact()
    assert delete_rows(DeltaTable(acks), "sender_id = 'alice'")
    write_deltalake(acks, rows.slice(0, 5), mode="append")
    exec(code, {"spark": spark})  # noqa: S102  our own page
    assert dataset_of(DeltaTable(tmp_path / "acks")).count_rows() == rows.num_rows + 5
    with pytest.raises(StreamingQueryException):
        exec(without, {"spark": spark})  # noqa: S102
