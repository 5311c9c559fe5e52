"""Describes why a streaming query failed in one sentence with a remedy; the full error is in the Spark log."""

from __future__ import annotations

import re

from reliable_channel.core.errors import EnvironmentFault, ReliableChannelError

_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full.",
        "Free some space; the next start repeats the interrupted micro-batch, nothing is lost.",
    ),
    (
        r"SaslAuthenticationException",
        "Kafka refuses the user name or the password.",
        "Correct kafka.security.sasl_username and sasl_password, and start again.",
    ),
    (
        r"SslAuthenticationException",
        "TLS with Kafka fails, as where a certificate has expired, is not trusted, or is of another host.",
        "Check those of the brokers and of kafka.security.",
    ),
    (
        r"TopicAuthorizationException",
        "Kafka refuses this account a topic that it reads.",
        "Grant it what docs/howto/kafka.md lists.",
    ),
    (
        r"TimeoutException: Timed out waiting for a node assignment|Failed to construct kafka|No resolvable bootstrap",
        "Kafka cannot be reached.",
        "Start it with `reliable-channel kafka start`, or set kafka.bootstrap_servers.",
    ),
    (
        r"TimeoutException: Call\(callName=listOffsets",
        "Kafka does not say where the topic ends, as when a partition has no leader.",
        "`reliable-channel kafka topics` names such partitions; start the brokers that have them.",
    ),
    (
        r"UnknownTopicOrPartition",
        "the Kafka topic does not exist.",
        "Create it (`reliable-channel kafka topics`), or set kafka.topics.envelopes.",
    ),
    (
        r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are concurrently using|Concurrent transaction failed"
        r"|batch \d+ doesn't exist",  # since the other one has removed its old micro-batches
        "another driver runs it with the same checkpoint.",
        "Stop one of the two; every row is in the tables once.",
    ),
    (
        r"The table \w+ was deleted|/_delta_log does not exist|DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",
        "a table that it reads or writes was deleted while it ran.",
        "Restore it from a copy; `reliable-channel rebuild` derives all tables except envelopes again. On a cluster,"
        " put paths.data_dir where all machines see it.",
    ),
    (
        r"(RESTORE|overwrite) (took|put) rows |Unsupported table features required",
        "somebody changed a table so that jobs must not write it.",
        "Start it again: it then names the table, and what to do.",
    ),
    (
        r"which a task wrote, is not on this machine's disk",
        "files that its tasks wrote are not on the driver's disk.",
        "Put paths.data_dir where all machines see it (docs/scale-out.md), and vacuum only with jobs/maintain.py;"
        " nothing is lost.",
    ),
    (
        r"startingVersion(?!' or)|DELTA_VERSION_NOT_CONTIGUOUS|DELTA_FILE_NOT_FOUND|VACUUM"
        r"|FAILED_READ_FILE\.\w*FILE_NOT_EXIST|\.parquet does not exist"
        r"|Failed to open local file '[^']*\.parquet'\. Detail: \[errno 2\]",
        "rows that it had not read yet were removed by VACUUM.",
        "Run `reliable-channel rebuild`, and vacuum only with jobs/maintain.py, which keeps what the slowest reader"
        " needs.",
    ),
    (
        r"is not a Parquet file|Parquet magic bytes not found|CANNOT_READ_FILE_FOOTER",
        "a file of a table is damaged.",
        "Restore it from a copy; `reliable-channel rebuild` derives all tables except envelopes again.",
    ),
    (
        r"Failed to read log file|Incomplete log file|CHECKPOINT_FILE_CHECKSUM|CANNOT_LOAD_STATE_STORE",
        "its checkpoint is damaged.",
        "Restore it from a copy; `reliable-channel rebuild` recreates those of reassembly and ack.",
    ),
    (
        r"Read-only file system|Permission denied|AccessDenied|ACCESS_DENIED",
        "it has no permission to write its tables or checkpoints.",
        "Grant the permission and start it again; nothing is lost.",
    ),
    (
        r"does not exist under .* Run the pipeline first",
        "a table it needs is missing.",
        "Start the jobs in the order ingest, reassembly, ack.",
    ),
    (
        r"PYTHON_VERSION_MISMATCH",
        "the executors run another version of Python than the driver.",
        "Set PYSPARK_PYTHON to the same minor version on all machines (docs/scale-out.md).",
    ),
    (
        r"Cannot run program \"\S*python",
        "a machine has no Python where PYSPARK_PYTHON says.",
        "Ship one with --archives, or point PYSPARK_PYTHON to it on all machines (docs/scale-out.md).",
    ),
    (
        r"ModuleNotFoundError: No module named",
        "an executor lacks a Python package.",
        "Ship this package with --py-files and its dependencies with --archives (docs/scale-out.md).",
    ),
    (
        r"Failed to find (the )?data source: `?(kafka|delta)|DATA_SOURCE_NOT_FOUND|ClassNotFoundException: "
        r"(io\.delta|org\.apache\.spark\.sql\.(delta|kafka))|CANNOT_LOAD_CATALOG|PLUGIN_CLASS_NOT_FOUND"
        r"|'JavaPackage' object is not callable",
        "the jars of Delta or Kafka are missing or damaged.",
        "Run `reliable-channel setup`, which downloads them again; give spark-submit"
        ' --jars "$(reliable-channel jars)".',
    ),
    (
        r"Class org\.apache\.hadoop\.fs\.\S+ not found|No FileSystem for scheme"
        r"|NoClassDefFoundError: (org/apache/hadoop/fs|software/amazon)",
        "a jar for the file system of its paths is missing.",
        "Give Spark the jars that the store needs (docs/scale-out.md, Object stores).",
    ),
    (
        r"failed to map segment from shared object",
        "a native library cannot be loaded from its directory, which is usually mounted with noexec.",
        "Set paths.run_dir to a directory where programs may be; data_dir and checkpoint_dir can stay where they are.",
    ),
    (
        r"OutOfMemoryError",
        "the JVM ran out of memory.",
        "Raise spark.driver_memory (executors: spark.executor.memory), or lower spark.max_offsets_per_trigger.",
    ),
    (
        r"ExecutorLostFailure|Master removed our application",
        "its executors were lost again and again, usually because their machines are out of memory.",
        "Raise spark.executor.memory and the memory of the workers, or lower spark.max_offsets_per_trigger; the next"
        " start repeats the micro-batch, nothing is lost.",
    ),
    (
        r"Python worker exited unexpectedly|'s stdout and terminated with code: 137",  # while its daemon starts
        "a Python worker was killed, usually because the system is out of memory.",
        "Start it again, nothing is lost; if it happens again, lower spark.max_offsets_per_trigger.",
    ),
)


_RECORD_TIME = re.compile(
    r"Record at topic (\S+) partition (\d+) offset (\d+) has timestamp value -?\d+ that overflows"
)
"""The error of Spark's Kafka source for a record time beyond the range of its timestamps. No setting avoids it."""


_PASSING: tuple[tuple[str, str, str], ...] = (
    (
        r"Python worker failed to connect back",
        "Python did not start within ten seconds.",
        "Reduce the load on the machine and start again; nothing is lost.",
    ),
    (
        r"Timeout of \d+ms expired before the position for partition|Cannot fetch record for offset \d+ in \d+ millis",
        "Kafka stopped answering while a task read from it.",
        "Check its brokers; the next start repeats the interrupted micro-batch, nothing is lost.",
    ),
    (
        r"DELTA_SCHEMA_CHANGED",
        "columns of the table that it reads were changed while it ran.",
        "Start it again; nothing is lost.",
    ),
)


class PassingFault(EnvironmentFault):
    """A query failed of what may be over at once, as when a machine is busy or a broker pauses: start it again."""


def explain_failure(query: str, error: Exception) -> ReliableChannelError:
    """Convert the ``error`` of a streaming query to an ``EnvironmentFault``, or return this package's own error that it
    contains."""
    text = str(error)
    if isinstance(error.__cause__, ReliableChannelError):
        return error.__cause__
    if (record := _RECORD_TIME.search(text)) is not None:
        topic, partition, offset = record.groups()
        return EnvironmentFault(
            f"The query {query} failed: Spark cannot read the time of the record in {topic}, partition {partition},"
            f" offset {offset}.",
            "Give the topic message.timestamp.type=LogAppendTime, and delete the record (docs/howto/kafka.md).",
        )
    if (fault := explain_known_error(f"The query {query}", text)) is not None:
        return fault
    for pattern, cause, remedy in _PASSING:
        if re.search(pattern, text):
            return PassingFault(f"The query {query} failed: {cause}", remedy)
    said = last_exception(text).rstrip(".")
    return EnvironmentFault(f"The query {query} failed: {said}.", "The Spark log has the details.")


def explain_known_error(who: str, text: str) -> EnvironmentFault | None:
    """Return the fault for a stack trace with a known cause; ``who`` failed."""
    for pattern, cause, remedy in _KNOWN:
        if re.search(pattern, text):
            return EnvironmentFault(f"{who} failed: {cause}", remedy)
    return None


_FAILED = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: | SQLSTATE: \w+$")
"""The text with which Spark wraps the error of every query."""


def last_exception(text: str) -> str:
    """Return the most informative line of a stack trace: the last exception named in it, else its first line."""
    named = re.findall(r"^(?:Caused by: |pyspark\.\S+: )?(\S*(?:Error|Exception|Fault)): (.+)$", text, re.MULTILINE)
    if named:
        name, message = named[-1]
        return f"{name.rsplit('.', 1)[-1]}: {message[:300]}"
    return _FAILED.sub("", text.strip().splitlines()[0])[:300] if text.strip() else "no reason was given."
