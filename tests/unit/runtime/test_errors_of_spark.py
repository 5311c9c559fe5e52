"""An error of Java asks its JVM for its text: it is one sentence all the same when the session has ended."""

from __future__ import annotations

import re

import pytest

from reliable_channel.config import load
from reliable_channel.core.errors import ReliableChannelError
from reliable_channel.runtime import spark
from reliable_channel.runtime.failures import explained
from reliable_channel.runtime.faults import ended_by
from tests.support.error_page import expected

MISSING = """An error occurred while calling o61.load.
: java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found
\tat org.apache.hadoop.conf.Configuration.getClass(Configuration.java:2737)
"""


class Jvm:
    def __init__(self) -> None:
        self.runs = True


class JavaError(Exception):
    """As py4j's: the text comes from the JVM."""

    __module__ = "py4j.protocol"

    def __init__(self, jvm: Jvm, text: str) -> None:
        super().__init__("An error occurred while calling o61.load.", jvm)
        self._text = text

    def __str__(self) -> str:
        if not self.args[1].runs:
            raise ConnectionRefusedError(111, "Connection refused")
        return self._text


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Jvm:
    jvm = Jvm()
    monkeypatch.setattr(spark, "open_session", lambda settings, application: jvm)
    monkeypatch.setattr(spark, "close_session", lambda session: setattr(session, "runs", False))
    return jvm


def test_a_missing_jar_is_one_sentence_after_the_session_has_ended(
    jvm: Jvm, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ReliableChannelError) as fault, spark.spark_session(load("local")):
        raise JavaError(jvm, MISSING)
    assert not jvm.runs
    assert ended_by(fault.value, "ack") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert expected("A file system without its jar").fullmatch(line.removeprefix("ack: "))


def test_an_error_that_leaves_the_session_unread_is_one_line(jvm: Jvm, capsys: pytest.CaptureFixture[str]) -> None:
    jvm.runs = False
    assert ended_by(JavaError(jvm, MISSING), "ack") == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ack: This should not have happened: JavaError: An error occurred while calling o61.load.")


def test_errors_that_are_not_sparks_pass_as_they_are(jvm: Jvm) -> None:
    with pytest.raises(KeyError), spark.spark_session(load("local")):
        raise KeyError("x")
    assert not jvm.runs


SENTENCES = (
    (
        expected("Two drivers on one checkpoint"),
        "org.apache.spark.SparkException: [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple"
        " streaming jobs detected for 1.",
    ),
    (
        expected("A table that was deleted"),
        "java.io.FileNotFoundException: File file:/srv/run/tables/sds_messages/_delta_log does not exist",
    ),
    (
        expected("Rows that were vacuumed too early"),
        "org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file"
        " file:/srv/run/tables/sds_messages/part-1.parquet. File does not exist.",
    ),
)


@pytest.mark.parametrize(("sentence", "text"), SENTENCES)
def test_what_spark_says_of_an_operators_mistake_is_one_sentence(sentence: re.Pattern[str], text: str) -> None:
    """As Spark 4.2 says it."""
    assert sentence.fullmatch(f"ingest: {explained('ingest', RuntimeError(text))}")
