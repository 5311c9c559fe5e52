"""The column functions as Arrow UDFs, in DataFrames and in SQL."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from reliable_channel.config import load
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, encode_sds_message
from reliable_channel.core.wire.segment import Segment, encode_segment
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message, message_hash
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.tables import ENVELOPES, SDS_MESSAGES
from reliable_channel.pipeline import functions as rc
from tests.support.doc_blocks import blocks

pytestmark = pytest.mark.spark

PUBSUB, TOPIC, LAMPORT = "/waku/2/rs/1/0", "/app/1/chat/proto", 1_767_225_600_000
WHOLE = b"what is sent in two segments"
PART = encode_segment(Segment(keccak256(WHOLE), 1, 2, None, False, WHOLE[14:]))
HISTORY = (HistoryEntry("m0", b"h" * 32, "bob"), HistoryEntry("m1"))
MESSAGE = encode_sds_message(
    SdsMessage("alice", "m2", "talk", LAMPORT, causal_history=HISTORY, bloom_filter=b"filter", content=PART)
)
ENVELOPE = WakuMessage(MESSAGE, TOPIC, timestamp=LAMPORT * 10**6, ephemeral=False)
VALUE = encode_waku_message(ENVELOPE)
NAMES = [*("topic", "time", "ephemeral", "hash", "id", "sender", "lamport", "history", "repair", "whole", "index")]
NAMES += ["count", "payload", "e", "m", "s"]
HISTORY_ROWS = [("m0", bytearray(b"h" * 32), "bob"), ("m1", None, None)]


@pytest.fixture
def values(spark: SparkSession) -> DataFrame:
    rows = [(PUBSUB, bytearray(VALUE)), (PUBSUB, None), (PUBSUB, bytearray(b"\xff\xff"))]
    return spark.createDataFrame(rows, "pubsub_topic string, value binary")


def test_one_function_after_the_other_takes_an_envelope_apart(spark: SparkSession, values: DataFrame) -> None:
    found = (
        values.select(rc.decode_envelope("value").alias("e"), rc.waku_message_hash("pubsub_topic", "value").alias("h"))
        .select("e", "h", rc.decode_sds_message("e.payload").alias("m"))
        .select("e", "h", "m", rc.decode_segment("m.content").alias("s"))
        .select(
            "e.content_topic", "e.timestamp_ns", "e.ephemeral", "h", "m.sds_id", "m.sender_id", "m.lamport_timestamp",
            "m.causal_history", "m.repair_request", "s.entire_message_hash", "s.segment_index", "s.data_count",
            "s.payload", "e.reason", "m.reason", "s.reason",
        )
        .toDF(*NAMES)
    )  # fmt: skip
    whole: tuple[Any, ...] = (
        TOPIC, LAMPORT * 10**6, False, bytearray(message_hash(PUBSUB, ENVELOPE)), "m2", "alice", LAMPORT, HISTORY_ROWS,
        [], bytearray(keccak256(WHOLE)), 1, 2, bytearray(WHOLE[14:]), None, None, None,
    )  # fmt: skip
    nothing = (None,) * 13
    expected = spark.createDataFrame(
        [
            whole,
            (*nothing, "null_value", "null_value", "null_value"),
            (*nothing, "malformed_envelope", "null_value", "null_value"),
        ],
        found.schema,
    )
    assert_df_equality(found, expected)


def test_sql_knows_them_after_one_call(spark: SparkSession, values: DataFrame) -> None:
    rc.register(spark)
    values.createOrReplaceTempView("values_of_kafka")
    found = spark.sql(
        """
        SELECT e.content_topic, decode_sds_message(e.payload).sds_id AS sds_id,
               decode_segment(decode_sds_message(e.payload).content).segment_kind AS kind, hash
        FROM (SELECT decode_envelope(value) AS e, waku_message_hash(pubsub_topic, value) AS hash FROM values_of_kafka)
        WHERE e.reason IS NULL
        """
    )
    expected = spark.createDataFrame(
        [(TOPIC, "m2", "data", bytearray(message_hash(PUBSUB, ENVELOPE)))],
        "content_topic string, sds_id string, kind string, hash binary",
    )
    assert_df_equality(found, expected, ignore_nullable=True)


def test_the_code_of_the_architecture_page_runs(spark: SparkSession, tmp_path: Path) -> None:
    """The block of docs/architecture.md, over empty tables."""
    (block,) = [one for one in blocks() if one.page == "docs/architecture.md" and one.language == "python"]
    create_tables(load("local").with_run_dir(tmp_path / "run").paths, (ENVELOPES, SDS_MESSAGES))
    code = block.text.replace('"run/tables/envelopes"', repr(str(tmp_path / "run" / "tables" / "envelopes")))
    spark.read.format("delta").load(str(tmp_path / "run" / "tables" / "sds_messages")).createOrReplaceTempView(
        "sds_messages"
    )
    found: dict[str, Any] = {"spark": spark}
    exec(code, found)  # noqa: S102  our own page
    assert found["decoded"].select("m.sds_id", "m.reason").collect() == []


def test_workers_begin_with_the_imports_done_and_exempt_from_garbage_collection(spark: SparkSession) -> None:
    def frozen(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"objects": [gc.get_freeze_count()]})

    (row,) = spark.range(0, 1, 1, 1).mapInPandas(frozen, "objects long").collect()
    assert row.objects > 50_000


def test_a_task_has_one_thread_for_reading(spark: SparkSession) -> None:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"threads": [pa.io_thread_count()]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(count, "threads long").collect()
    assert row.threads == 1
