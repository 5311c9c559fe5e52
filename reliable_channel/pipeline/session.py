"""Changes settings of a Spark session for a block of code: its configuration, and the workers of its Python
functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def set_meanwhile(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session within the block; afterwards they are as before, set or unset."""
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
    """Run the Python functions that are passed to Spark inside the block in separate workers, as many as run at once.

    Spark keeps idle workers by the environment of the function that they ran. Without this, a task gets any worker of
    the session, which seldom has cached the data that the task needs (docs/measurements-history.md, *Many channels*).
    """
    # Not a documented attribute: PySpark copies it into every function that is defined, and has no setting for workers.
    # Replaced, not changed: another query may define a function meanwhile, and its copy would fail.
    context = spark.sparkContext
    before = context.environment
    context.environment = {**before, _WORKERS: name}
    try:
        yield
    finally:
        context.environment = before


_WORKERS = "RELIABLE_CHANNEL_WORKERS"
