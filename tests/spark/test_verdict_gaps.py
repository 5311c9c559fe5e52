"""When a missing message was sent, as Spark finds it."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from reliable_channel.lake import tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.verdict.gather import SENT_SINCE_IN_SPARK
from tests.support.verdict_round import at, named, said

pytestmark = pytest.mark.spark


def test_of_two_that_name_a_missing_message_at_once_the_lesser_id_counts(spark: SparkSession) -> None:
    came = [
        said(0, "a", "alice", 10, ()),
        said(1, "b", "bob", 20, ()),
        said(2, "namer-1", "carol", 60, ("a", "missing")),
        said(3, "namer-2", "dave", 61, ("b", "missing")),
    ]
    spark.createDataFrame(as_arrow(came, tables.SDS_MESSAGES)).createOrReplaceTempView("sds_messages")
    namings = [named("missing", "namer-1", 62), named("missing", "namer-2", 62)]
    for order in (namings, namings[::-1]):
        rows = spark.createDataFrame(as_arrow(order, tables.LOST_DEPENDENCIES)).coalesce(1)
        rows.createOrReplaceTempView("named_since_gaps")
        (row,) = spark.sql(f"select unix_micros(sent_since) as us from ({SENT_SINCE_IN_SPARK})").collect()  # noqa: S608
        assert row.us == at(10)
