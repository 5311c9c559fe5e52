"""The errors of docs/errors.md that only Spark can make: each provoked, and said as the page says it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import Settings
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import ENVELOPES
from reliable_channel.pipeline.runner.queries import INGEST
from reliable_channel.pipeline.runner.run import run_to_end
from reliable_channel.runtime.faults import as_fault
from tests.support.error_page import pattern_of
from tests.support.ports import refusing_port

pytestmark = pytest.mark.spark
IMPATIENT = {"default.api.timeout.ms": "300", "request.timeout.ms": "200", "retries": "0"}


def elsewhere(settings: Settings, servers: str, topic: str, spark: dict[str, str]) -> Settings:
    topics = settings.kafka.topics.model_copy(update={"envelopes": topic})
    changes = {"bootstrap_servers": servers, "topics": topics, "spark": spark}
    kafka = type(settings.kafka).model_validate(settings.kafka.model_dump() | changes | {"topics": topics.model_dump()})
    return settings.model_copy(update={"kafka": kafka})


def test_a_broker_that_does_not_answer(spark: SparkSession, settings: Settings) -> None:
    with refusing_port() as port, pytest.raises(EnvironmentFault) as fault:
        run_to_end(spark, elsewhere(settings, f"127.0.0.1:{port}", "x", IMPATIENT), INGEST)
    assert pattern_of("Spark does not reach Kafka").fullmatch(str(fault.value))


@pytest.mark.kafka
@pytest.mark.slow  # a second broker beside a session
def test_a_topic_that_does_not_exist(spark: SparkSession, settings: Settings, broker: Settings) -> None:
    there = elsewhere(settings, broker.kafka.servers, "no.such.topic", {})
    with pytest.raises(EnvironmentFault) as fault:
        run_to_end(spark, there, INGEST)
    assert pattern_of("A topic that does not exist").fullmatch(str(fault.value))


def test_a_table_of_another_version(spark: SparkSession, settings: Settings) -> None:
    older = [field for field in arrow_schema(ENVELOPES) if field.name != "kind"]
    DeltaTable.create(settings.paths.table(ENVELOPES.name), pa.schema(older))
    with pytest.raises(ConfigurationError) as fault:
        run_to_end(spark, settings, INGEST)
    assert pattern_of("A table of another version").fullmatch(str(fault.value))


def test_executors_with_another_python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.8")
    with pytest.raises(Exception, match="PYTHON_VERSION_MISMATCH") as error:
        spark.range(1).select(F.udf(str)("id")).collect()
    assert pattern_of("Another Python").fullmatch(str(as_fault(error.value)))


def test_a_package_that_was_not_shipped(spark: SparkSession) -> None:
    def needs_it(_: int) -> str:
        import no_such_package  # type: ignore[import-not-found]

        return str(no_such_package)

    with pytest.raises(Exception, match="no_such_package") as error:
        spark.range(1).select(F.udf(needs_it)("id")).collect()
    assert pattern_of("A package that was not shipped").fullmatch(str(as_fault(error.value)))


def test_jars_that_spark_does_not_find(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND") as error:
        spark.read.format("kafka-of-another-version").load()
    said = pattern_of("Jars that Spark does not find")
    assert said.fullmatch(f"ingest: {as_fault(error.value)}")


def test_a_file_system_without_its_jar(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="S3AFileSystem") as error:
        spark.read.text("s3a://bucket/file").collect()
    assert pattern_of("A file system without its jar").fullmatch(str(as_fault(error.value)))
