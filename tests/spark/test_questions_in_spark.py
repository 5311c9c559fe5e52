"""The questions of docs/questions.md in Spark SQL: the same answers as DuckDB gives over the same tables.

The page's own lines open a few Delta tables; the rest come to Spark as Arrow: reading two dozen Delta logs takes long.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.lake import tables
from reliable_channel.lake.read import public_dataset
from reliable_channel.pipeline import delta
from reliable_channel.runtime import spark as runtime
from tests.support.doc_blocks import blocks_of
from tests.support.questions import PAGE, comparable, questions

pytestmark = [pytest.mark.spark, pytest.mark.slow]
OPENED = (tables.DELIVERY_STATUS, tables.QUARANTINE)


def test_spark_and_duckdb_give_the_same_answers(
    spark: SparkSession, sample_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/questions.md opens the tables itself; the session is the shared one."""
    monkeypatch.setattr(runtime, "open_session", lambda settings: spark)
    monkeypatch.setattr(delta, "exists", lambda paths, table: table in OPENED)
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__DATA_DIR", str(sample_tables))
    (opening,) = [
        block for block in blocks_of(PAGE) if block.language == "python" and Path(__file__).name in block.about
    ]
    exec(compile(opening.text, str(opening), "exec"), {"__name__": "example"})  # noqa: S102  our own document
    for name in tables.BY_NAME.keys() - {table.name for table in OPENED}:
        rows = public_dataset(DeltaTable(str(sample_tables / name))).to_table()
        given = spark.createDataFrame(rows if rows.num_rows else [], tables.BY_NAME[name].ddl())
        given.createOrReplaceTempView(name)
    lake = TableSnapshot(PathSettings(data_dir=str(sample_tables)))
    different = {}
    for question in questions():
        ours = comparable(spark.sql(question.spark).toArrow().to_pylist())
        theirs = comparable(lake.arrow(question.duckdb).to_pylist())
        if ours != theirs:
            different[question.title] = (ours[:3], theirs[:3])
    assert different == {}
