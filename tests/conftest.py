"""What all tests share: one Spark session for those that need one; unit tests never start it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reliable_channel.config import Settings, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The configuration of the shared session: two cores, two shuffle partitions, everything under a test directory."""
    run = tmp_path_factory.mktemp("spark")
    return load("local", paths={"run_dir": str(run)}, spark={"master": "local[2]", "shuffle_partitions": 2})


@pytest.fixture(scope="session")
def spark(spark_settings: Settings) -> Iterator[SparkSession]:
    """The one Spark session of the test run."""
    from reliable_channel.runtime.spark import close_session, open_session

    session = open_session(spark_settings, "tests")
    yield session
    close_session(session)


@pytest.fixture
def settings(spark_settings: Settings, tmp_path: Path) -> Settings:
    """The configuration with a run directory of its own: fresh tables and checkpoints, the shared session."""
    return spark_settings.with_run_dir(tmp_path)
