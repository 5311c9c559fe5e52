"""Rows that are rewritten or filled in while a stream appends to the table, on real Delta."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from reliable_channel.config import Settings
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.tables import SDS_MESSAGES
from reliable_channel.pipeline import rewrite as rewriting
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.delta import read_table
from reliable_channel.pipeline.ingest.stream import tick_files
from reliable_channel.pipeline.rewrite import insert_missing, rewrite

from .chain import rows

pytestmark = pytest.mark.spark

PLACE = ("kafka_topic", "kafka_partition", "kafka_offset")


def append(spark: SparkSession, settings: Settings, batch_id: int) -> None:
    """What a micro-batch of a stream does: rows of four partitions, whose offset is its number."""
    reached = {("t", partition): Progress(10**15 + batch_id, batch_id + 1) for partition in range(4)}
    files = tick_files(settings.paths, reached, 10**15)
    BatchSink(settings.paths, "stream", batch_id).add_files(SDS_MESSAGES, files)


def assert_left(settings: Settings, expected: list[tuple[int, int]]) -> None:
    """The partitions and offsets of the table's rows."""
    assert sorted((r["kafka_partition"], r["kafka_offset"]) for r in rows(settings, SDS_MESSAGES)) == expected


def delete(spark: SparkSession, settings: Settings, gone: str) -> int:
    """Delete the rows for which ``gone`` is true; how many they are."""
    return rewrite(
        spark, settings.paths, SDS_MESSAGES, lambda rows: rows.where(gone), lambda rows: rows.where(f"not ({gone})")
    )


def test_what_is_appended_meanwhile_neither_hinders_a_rewrite_nor_goes_with_it(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(settings.paths, (SDS_MESSAGES,))
    append(spark, settings, 0)

    def while_appending(rows: DataFrame) -> DataFrame:
        append(spark, settings, 1)
        return rows.where("kafka_partition < 3")

    really = rewriting.replace_files  # type: ignore[attr-defined]

    def too_late(*arguments: Any) -> None:
        append(spark, settings, 2)
        really(*arguments)

    monkeypatch.setattr(rewriting, "replace_files", too_late)
    left_over = rewrite(
        spark, settings.paths, SDS_MESSAGES, while_appending, lambda rows: rows.where("kafka_partition >= 3")
    )
    assert left_over == 3
    assert_left(settings, [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2)])


def test_of_two_that_rewrite_a_file_the_second_looks_again(spark: SparkSession, settings: Settings) -> None:
    create_tables(settings.paths, (SDS_MESSAGES,))
    append(spark, settings, 0)
    others = iter([lambda: delete(spark, settings, "kafka_partition = 0")])

    def while_another_deletes(rows: DataFrame) -> DataFrame:
        for other in others:
            assert other() == 1
        return rows.where("kafka_partition < 2")

    concerned = rewrite(
        spark, settings.paths, SDS_MESSAGES, while_another_deletes, lambda rows: rows.where("kafka_partition >= 2")
    )
    assert concerned == 1
    assert_left(settings, [(2, 0), (3, 0)])


def test_of_two_that_fill_in_at_a_time_each_row_is_there_once(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(settings.paths, (SDS_MESSAGES,))
    append(spark, settings, 0)
    append(spark, settings, 1)
    lacking = read_table(spark, settings.paths, SDS_MESSAGES).localCheckpoint()
    assert delete(spark, settings, "kafka_offset = 1") == 4
    really = rewriting.write_rows  # type: ignore[attr-defined]

    def after_the_other(*arguments: Any) -> Any:
        monkeypatch.setattr(rewriting, "write_rows", really)
        insert_missing(spark, settings.paths, SDS_MESSAGES, lacking, "test", PLACE)
        return really(*arguments)

    monkeypatch.setattr(rewriting, "write_rows", after_the_other)
    insert_missing(spark, settings.paths, SDS_MESSAGES, lacking, "test", PLACE)
    assert_left(settings, [(partition, offset) for partition in range(4) for offset in range(2)])
