"""An error of Java asks its JVM for its text: it is one sentence all the same when the session has ended."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from reliable_channel.config import load
from reliable_channel.core.errors import EnvironmentFault, ReliableChannelError
from reliable_channel.runtime import spark
from reliable_channel.runtime.failures import explain_failure
from reliable_channel.runtime.faults import as_fault, print_fault
from tests.support.error_page import pattern_of

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
    assert print_fault(fault.value, "ack") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert pattern_of("A file system without its jar").fullmatch(line.removeprefix("ack: "))


def test_an_error_that_leaves_the_session_unread_is_one_line(jvm: Jvm, capsys: pytest.CaptureFixture[str]) -> None:
    jvm.runs = False
    assert print_fault(JavaError(jvm, MISSING), "ack") == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ack: This should not have happened: JavaError: An error occurred while calling o61.load.")


def test_a_pyspark_of_another_installation_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`PYTHONPATH` names it, and a module of ours imports what it does not have."""
    monkeypatch.setattr(pyspark, "__version__", "3.5.3")
    assert print_fault(ModuleNotFoundError("No module named 'pyspark.x'", name="pyspark.x"), "ack") == 1
    assert pattern_of("Another PySpark").fullmatch(capsys.readouterr().err.strip())


def test_a_user_without_a_name_is_told_before_the_jvm_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_user: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", refuse)
    with pytest.raises(EnvironmentFault) as fault:
        spark.open_session(load("local", paths={"cache_dir": "/nowhere"}))
    assert pattern_of("A user without a name").fullmatch(f"ack: {fault.value}")


def test_a_library_in_a_directory_without_programs_is_named() -> None:
    file = "/srv/librocksdbjni1.so"
    error = RuntimeError(f"java.lang.UnsatisfiedLinkError: {file}: {file}: failed to map segment from shared object")
    fault = explain_failure("ack", error)
    assert pattern_of("A directory without native libraries").fullmatch(str(fault))


def test_errors_that_are_not_sparks_pass_as_they_are(jvm: Jvm) -> None:
    with pytest.raises(KeyError), spark.spark_session(load("local")):
        raise KeyError("x")
    assert not jvm.runs


SENTENCES = (
    *(
        (pattern_of("A table that was altered while jobs ran"), f"Traceback (most recent call last):\n{last_line}")
        for last_line in (
            "_internal.CommitFailedError: Unsupported table features required: [DomainMetadata]",
            "reliable_channel.core.errors.ConfigurationError: RESTORE took rows out of the table acks that a job had"
            " written. Restore its version 4, or run `reliable-channel rebuild`",
            "reliable_channel.core.errors.ConfigurationError: An overwrite took rows out of the table acks that a job",
        )
    ),
    (
        pattern_of("A certificate that is not accepted"),
        "org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed",
    ),
    (
        pattern_of("A user name or password that Kafka refuses"),
        "org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed during authentication due to"
        " invalid credentials with SASL mechanism SCRAM-SHA-512",
    ),
    (
        pattern_of("Two drivers on one checkpoint"),
        "org.apache.spark.SparkException: [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple"
        " streaming jobs detected for 1.",
    ),
    (
        pattern_of("Two drivers on one checkpoint"),
        "[STREAM_FAILED] Query [id = 846d, runId = 9e1f] terminated with exception: batch 20 doesn't exist SQLSTATE:"
        " XXKST",
    ),
    (
        pattern_of("A table that was deleted"),
        "java.io.FileNotFoundException: File file:/srv/run/tables/sds_messages/_delta_log does not exist",
    ),
    (
        pattern_of("Rows that were vacuumed too early"),
        "org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file"
        " file:/srv/run/tables/sds_messages/part-1.parquet. File does not exist.",
    ),
    (
        pattern_of("A table that was deleted"),
        "[STREAM_FAILED] Query [id = 6ff2, runId = 31d5] terminated with exception: [DIFFERENT_DELTA_TABLE_READ_BY"
        "_STREAMING_SOURCE] The streaming query was reading from an unexpected Delta table (id = '3558').",
    ),
    (
        pattern_of("Rows that were vacuumed too early"),
        "FileNotFoundError: [Errno 2] Failed to open local file '/srv/run/tables/timers/job=ack/part-1.parquet'."
        " Detail: [errno 2] No such file or directory",
    ),
    (
        pattern_of("Tables that cannot be written"),
        "OSError: [Errno 30] Failed to open local file '/srv/run/tables/envelopes/part-1.parquet'. Detail: [errno 30]"
        " Read-only file system",
    ),
    (
        pattern_of("Tables that cannot be written"),
        "[STREAM_FAILED] Query [id = 80d9, runId = 79ea] terminated with exception: /srv/run/checkpoints/ingest/offsets"
        "/.1.fc71.tmp (Read-only file system) SQLSTATE: XXKST",
    ),
    (
        pattern_of("A damaged file of a table"),
        "java.lang.RuntimeException: file:/srv/run/tables/sds_messages/part-75be.parquet is not a Parquet file."
        " Expected magic number at tail, but found [4, 0, 21, 0]\n\tat shuffle and checkpoint",
    ),
    (
        pattern_of("A damaged checkpoint"),
        "[STREAM_FAILED] Query [id = 24c7, runId = ed6d] terminated with exception: Failed to read log file"
        " file:/srv/run/checkpoints/reassembly/offsets/0. Incomplete log file SQLSTATE: XXKST",
    ),
    (
        pattern_of("Executors that were lost"),
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 9.0 failed 4 times, most"
        " recent failure: Lost task 1.3 in stage 9.0 (TID 31) (127.0.0.1 executor 5): ExecutorLostFailure (executor 5"
        " exited caused by one of the running tasks) Reason: Command exited with code 137",
    ),
    (
        pattern_of("A Python that was not shipped"),
        'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file or directory',
    ),
    (
        pattern_of("A Python worker that was killed"),
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting …",
    ),
    (
        pattern_of("An account that lacks a right"),
        "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [waku.envelopes]",
    ),
    (
        pattern_of("A partition without a leader"),
        "[STREAM_FAILED] Query [id = 6f] terminated with exception: org.apache.kafka.common.errors.TimeoutException:"
        " Call(callName=listOffsets(api=METADATA), deadlineMs=1796031124073, tries=139419) timed out SQLSTATE: XXKST",
    ),
    (
        pattern_of("A Python worker that was killed"),
        "org.apache.spark.SparkException: EOFException occurred while reading the port number from"
        " reliable_channel.pipeline.worker_daemon's stdout and terminated with code: 137..",
    ),
)


def test_an_error_of_arrow_in_the_driver_is_one_sentence() -> None:
    """Its attribute ``filename`` is empty: the name is in the text."""
    text = "Failed to open local file '/srv/run/tables/clock/part-1.parquet'. Detail: [errno 13] Permission denied"
    fault = str(as_fault(PermissionError(13, text)))
    assert fault == (
        "Writing a table failed: it has no permission to write its tables or checkpoints."
        " Grant the permission and start it again; nothing is lost."
    )


@pytest.mark.usefixtures("heed_hangups")
@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (signal.SIGKILL, pattern_of("A JVM that was killed")),
        (signal.SIGTERM, pattern_of("A JVM that was ended by a signal")),
        (signal.SIGHUP, pattern_of("A JVM that was ended by a signal")),
    ],
)
def test_a_jvm_that_was_killed_is_one_sentence(
    jvm: Jvm, monkeypatch: pytest.MonkeyPatch, number: int, sentence: re.Pattern[str]
) -> None:
    """Whatever the call that found it gone raises."""
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(number)
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        with pytest.raises(EnvironmentFault) as fault, spark.spark_session(load("local")):
            raise ConnectionRefusedError(111, "Connection refused")
    assert sentence.fullmatch(str(fault.value))


def test_a_commit_that_conflicted_is_no_table_that_cannot_be_read() -> None:
    error = CommitFailedError("Failed to commit transaction: a concurrent transactions added new data.")
    assert pattern_of("A table changed by another writer").fullmatch(f"evidence: {as_fault(error)}")


@pytest.mark.parametrize(
    "text",
    [
        "When getting information for key 'checkpoints/ingest/metadata' in bucket 'bucket': AWS Error"
        " NETWORK_CONNECTION during HeadObject operation: curlCode: 7, Could not connect to server",
        "Kernel error -> Operation not supported",
        "Generic S3 error: Error performing GET http://127.0.0.1:1/bucket",
    ],
)
def test_an_object_store_that_does_not_answer(text: str) -> None:
    """As Arrow and delta-rs say it."""
    assert pattern_of("An object store that does not answer").fullmatch(str(as_fault(OSError(text))))


@pytest.mark.parametrize(("sentence", "text"), SENTENCES)
def test_what_spark_says_of_an_operators_mistake_is_one_sentence(sentence: re.Pattern[str], text: str) -> None:
    """As Spark 4.2 says it."""
    assert sentence.fullmatch(f"ingest: {explain_failure('ingest', RuntimeError(text))}")


@pytest.mark.parametrize("said", ["odd", "odd."])
def test_an_error_that_nobody_knows_is_a_sentence_too(said: str) -> None:
    fault = explain_failure("ingest", RuntimeError(f"java.lang.IllegalStateException: {said}"))
    assert str(fault) == "The query ingest failed: IllegalStateException: odd. The Spark log has the details."


def test_a_jvm_that_is_killed_while_it_starts_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """py4j then finds its connection broken, in one of several ways."""

    class Builder:
        def config(self, **_: Any) -> Builder:
            return self

        def getOrCreate(self) -> None:  # noqa: N802 - Spark's name
            raise Py4JNetworkError("Error while sending or receiving")

    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(spark, "java", lambda: None)
    monkeypatch.setattr(spark, "local_conf", lambda _: {})
    monkeypatch.setattr(spark, "end_jvm", lambda: None)
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGKILL)
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        with pytest.raises(EnvironmentFault) as fault:
            spark.open_session(load("local", paths={"run_dir": str(tmp_path)}))
    assert pattern_of("A JVM that was killed").fullmatch(str(fault.value))
