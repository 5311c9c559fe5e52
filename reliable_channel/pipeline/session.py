"""Settings of a Spark session for a block of code: its configuration, and the workers of its Python functions."""

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


@contextmanager
def own_workers(spark: SparkSession, name: str) -> Iterator[None]:
    """Python functions that are given to Spark inside the block run in workers of their own, as many as run at once.

    Spark keeps idle workers by the environment of the function that they ran. Without this, a task gets any worker of
    the session, and what a worker has kept in memory is seldom where it is needed."""
    environment = spark.sparkContext.environment
    environment[_WORKERS] = name
    try:
        yield
    finally:
        del environment[_WORKERS]


_WORKERS = "RELIABLE_CHANNEL_WORKERS"
