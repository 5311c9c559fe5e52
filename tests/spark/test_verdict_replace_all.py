"""A round over all verdicts replaces them in Spark, and leaves what a round over few leaves in the driver."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.commit import data_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import DELIVERY_STATUS
from reliable_channel.pipeline.lookup import Lookup
from reliable_channel.pipeline.verdict import replace
from reliable_channel.pipeline.verdict.replace import replace_all_verdicts, replace_verdicts

AT = 1_767_225_600_000_000
SINCE = dt.datetime.fromtimestamp(AT / 1_000_000, dt.UTC)
PARTS = 4


def row(draw: random.Random, number: int, as_of: int) -> dict[str, Any]:
    return {
        "pubsub_topic": None if number % 5 == 0 else "/waku/2/rs/1/0",
        "content_topic": "/a/1/b/proto",
        "channel_id": f"c{number % 2}",
        "message_key": f"{number // 2}",
        "verdict": draw.choice(["missing", "missing", "delivered"]),
        "sds_ids": [f"id {number}"],
        "first_seen": AT + (number - 3) * 1_000_000,
        "settled": draw.random() < 0.8,
        "as_of": AT + as_of,
    }


def judge_again(draw: random.Random, before: list[dict[str, Any]], spared: set[int]) -> list[dict[str, Any]]:
    """Later verdicts: some messages are gone, some are new, some changed; not in the parts ``spared``."""
    judged: list[dict[str, Any]] = []
    for number, was in enumerate(before):
        if number % PARTS in spared:
            was["settled"] = True
            judged.append(was | {"as_of": AT + 9})
        elif draw.random() < 0.7:
            judged.append(row(draw, number, 9))
    return judged + [row(draw, number, 9) for number in range(len(before), len(before) + draw.randrange(4))]


def put(paths: PathSettings, before: list[dict[str, Any]]) -> DeltaTable:
    create_tables(paths, (DELIVERY_STATUS,))
    for part in range(PARTS):
        append_rows(paths, DELIVERY_STATUS, as_arrow(before[part::PARTS], DELIVERY_STATUS))
    return open_table(paths, DELIVERY_STATUS)


def everything(paths: PathSettings) -> list[dict[str, Any]]:
    return sorted(rows_of(open_table(paths, DELIVERY_STATUS)), key=repr)


def test_what_is_replaced_in_spark_is_what_is_replaced_in_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replace, "ROWS_OF_A_FILE", 5)
    for seed, spared in enumerate([set[int](), {1, 3}, set(range(PARTS))]):
        draw = random.Random(seed)
        before = [row(draw, number, 0) for number in range(24)]
        judged = as_arrow(judge_again(draw, before, spared), DELIVERY_STATUS)
        driver, tasks = (PathSettings(run_dir=str(tmp_path / f"{seed}-{name}")) for name in ("driver", "tasks"))
        to = put(driver, before)
        whole = as_arrow(before, DELIVERY_STATUS)
        replace_verdicts(driver, to, Lookup(driver, DELIVERY_STATUS, data_files(to)), whole, judged, SINCE, {})
        to = put(tasks, before)
        files = set(to.file_uris())
        frame = spark.createDataFrame(judged, spark.read.format("delta").load(to.table_uri).schema)
        replace_all_verdicts(spark, tasks, to, frame, SINCE, {"userMetadata": "here"})
        assert everything(tasks) == everything(driver), seed
        now = open_table(tasks, DELIVERY_STATUS)
        assert len(files & set(now.file_uris())) == len(spared), "files without changes stay"
        assert now.history(1)[0]["userMetadata"] == "here"
        if seed == 0:
            ends = pa.table(now.get_add_actions(flatten=True)).to_pylist()
            spans = sorted((each["min.first_seen"], each["max.first_seen"]) for each in ends)
            assert len(spans) > 2 and all(one[1] <= two[0] for one, two in itertools.pairwise(spans))


def test_a_compaction_in_between_is_a_conflict_and_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    draw, paths = random.Random(1), PathSettings(run_dir=str(tmp_path))
    before = [row(draw, number, 0) for number in range(12)]
    to = put(paths, before)
    judged = as_arrow(judge_again(draw, before, set()), DELIVERY_STATUS)
    frame = spark.createDataFrame(judged, spark.read.format("delta").load(to.table_uri).schema)
    open_table(paths, DELIVERY_STATUS).optimize.compact()
    there, files = everything(paths), set(Path(paths.table(DELIVERY_STATUS.name)).glob("*.parquet"))
    with pytest.raises(CommitFailedError):
        replace_all_verdicts(spark, paths, to, frame, SINCE, {})
    assert everything(paths) == there
    assert set(Path(paths.table(DELIVERY_STATUS.name)).glob("*.parquet")) == files
