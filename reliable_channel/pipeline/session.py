"""Changes settings of a Spark session for a block, and restores them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def set_meanwhile(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for a while; afterwards they are as they were, those that were not set too."""
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
