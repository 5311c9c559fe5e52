"""A micro-batch of an internal stream never ends within a commit, where the order of rows would break."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.tables import SDS_MESSAGES
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.delta import read_stream
from reliable_channel.pipeline.ingest.stream import tick_files

pytestmark = pytest.mark.spark

FILES = 1_001
"""More than Delta's source takes by default."""


def test_a_commit_of_many_files_is_read_as_a_whole(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    create_tables(settings.paths, (SDS_MESSAGES,))
    (tick,) = tick_files(settings.paths, {("t", 0): Progress(10**15, 1)}, 10**15)
    files, directory = [tick._replace(path=f"{n}-{tick.path}") for n in range(FILES)], Path(settings.paths.data_dir)
    for file in files:
        os.link(directory / SDS_MESSAGES.name / tick.path, directory / SDS_MESSAGES.name / file.path)
    BatchSink(settings.paths, "stream", 0).add_files(SDS_MESSAGES, files)
    batches: list[int] = []
    rows = read_stream(spark, settings.paths, SDS_MESSAGES).writeStream
    rows = rows.foreachBatch(lambda batch, _: batches.append(batch.count()))
    rows.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert batches == [FILES]
