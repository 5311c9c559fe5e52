"""Opens the Spark session for jobs, ``run``, tests and notebooks; nothing else does.

Started by Python, the session is local: jars from the cache, settings from the configuration, the JVM's own output in
``<run_dir>/logs/spark.log``. Started by ``spark-submit``, its settings (command line, ``spark-defaults.conf``) have
priority, and only missing ones that can still be set are added; :data:`REQUIRED` holds in both cases.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import as_file
from pathlib import Path
from typing import TYPE_CHECKING

from reliable_channel.config import Settings
from reliable_channel.config.loading import find_shipped
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.runtime import jars
from reliable_channel.runtime.faults import as_fault
from reliable_channel.runtime.interrupts import note_interrupts
from reliable_channel.runtime.java import IN_ENGLISH, java, jvm_environment
from reliable_channel.runtime.jvm import (
    end_jvm,
    forward_signals,
    is_submitted,
    jvm_exit_code,
    leave_out_trace_of_killed_jvm,
    stderr_to,
)
from reliable_channel.transport.private_files import private_directory

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


SPAWNING = "-Djdk.lang.Process.launchMechanism=VFORK"
"""Makes Java start processes directly instead of by a helper. Without Hadoop's native library, which PySpark does not
include, every new file of a checkpoint or a table's log starts a `chmod` and several `readlink` processes, about 250
per round of the queries (docs/measurements-history.md)."""

IN_UTC = "-Duser.timezone=UTC"
"""The time zone of every JVM. In any other time zone Delta verifies the file list of each commit with two Spark jobs,
which takes ten times as long as the commit itself (docs/measurements-history.md, *What made the difference*)."""

FEWER_PROCESSES = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
"""For a local disk: a Delta commit starts 7 processes instead of 20, 3 ms each, and a checkpoint file 2 instead of 6.
Checkpoints keep Hadoop's checksums; Delta's log has none (docs/measurements-history.md)."""

WORKER_DAEMON = "reliable_channel.pipeline.worker_daemon"
"""The daemon that forks Python workers, with all imports done and excluded from the garbage collection after each task.
Its docstring has what that saves."""

WORKER_PATH = Path(__file__).parent / "worker_path"
"""The first entry of ours on the Python workers' path: its ``sitecustomize`` lets them import the installed PySpark
instead of the source in Spark's zip file."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

ENDED_BY = {code: number.name for number in (signal.SIGTERM, signal.SIGHUP) for code in (128 + number, -number)}
"""Exit codes of a JVM that got a signal, and its name: the JVM ends by itself, or before it can."""

SOCKET_PATH = 103
"""The longest path (bytes) of a Unix socket that every system accepts."""
_SOCKET_NAME = len("/.8dbc4544-b90f-92d8-3d8d-f4db26c30c11.sock")

ARROW_BATCH_BYTES = 4 * 1024 * 1024
"""The size of a batch to a Python worker, unless 2 000 rows are reached first: such buffers stay in the
processor's caches and are reused. With Spark's default, 64 MiB, every batch is written to memory newly allocated by the
system (docs/measurements-history.md)."""

MICRO_BATCHES_KEPT = 20
"""The number of micro-batches that checkpoints can go back to; Spark deletes older files when there are a third more. A
start needs the last two. With Spark's default, 100, every file that RocksDB compacted away in the last 130
micro-batches is kept: several times the state itself if the state is large (docs/measurements-history.md, *20 000
channels held*)."""

CHECK_STALE_FILES = "spark.sql.streaming.stateStore.rocksdb.checkStaleReusedFilesInSnapshot"
"""Whether each upload of state, once a minute, copies all files older than `MICRO_BATCHES_KEPT` to the checkpoint
again. Spark does so by default, in case the partition has moved and its former executor has deleted them
(https://github.com/apache/spark/pull/54697). With one executor no partition moves, and a large state would be copied as
a whole every minute (docs/measurements-history.md, *20 000 channels held*)."""

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""``transformWithState`` requires it; Spark's default keeps all state in the memory of the JVM."""

REQUIRED = {
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
}
"""Spark's defaults, whatever a site has set. Without the first three tasks cannot read what Spark gives them: the types
of Arrow's columns, the texts of the rows in the state of ack, which have no nulls, and times, which have a zone. Spark
does not start reassembly with the other format of state."""


def session_conf(settings: Settings) -> dict[str, str]:
    """Return the settings that every session of this project needs, however it was started."""
    spark = settings.spark
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        # Shuffle partitions are frozen in every checkpoint; Delta's default of 50 snapshot partitions costs seconds per
        # commit.
        "spark.sql.shuffle.partitions": str(spark.shuffle_partitions),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        # A micro-batch writes what it changed to the checkpoint, and not a snapshot of RocksDB's files.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.minBatchesToRetain": str(MICRO_BATCHES_KEPT),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
        # By default, Arrow's allocator in the workers returns memory after 10 ms, and every batch allocates it again,
        # page by page.
        "spark.executorEnv.MIMALLOC_PURGE_DELAY": "10000",
        # Each thread has a heap of its own in that allocator, which keeps what other threads free. With Arrow's eight
        # threads for reading, workers grew to twice the memory (docs/measurements-history.md).
        "spark.executorEnv.ARROW_IO_THREADS": "1",
        # For a JVM started by `spark-submit` in another time zone (see IN_UTC).
        "spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled": "false",
        # Simple Delta readers refuse deletion vectors (docs/decisions.md).
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
        # Options of the Kafka source appear in query plans, and a JAAS line contains the password.
        "spark.sql.redaction.options.regex": "(?i)url|jaas|password|secret|keystore[.]key",
        "spark.ui.showConsoleProgress": "false",
        **spark.conf,
        **REQUIRED,
    }


def local_conf(settings: Settings) -> dict[str, str]:
    """Return the settings that only a session with its own JVM can set: memory, jars, directories, addresses."""
    spark, run = settings.spark, Path(settings.paths.run_dir)
    with as_file(find_shipped("log4j2.properties")) as log4j2:
        logging = f"-Dlog4j2.configurationFile=file:{log4j2}"
    conf = {
        "spark.master": spark.master,
        "spark.driver.memory": spark.driver_memory,
        _JAVA_OPTIONS: f"{logging} {SPAWNING} {IN_UTC} {IN_ENGLISH}",
        "spark.executor.extraJavaOptions": f"{SPAWNING} {IN_UTC} {IN_ENGLISH}",
        "spark.jars": ",".join(str(jar) for jar in jars.paths("spark", settings.paths.cache_dir)),
        "spark.ui.enabled": str(spark.ui).lower(),
        "spark.local.dir": str(run / "spark"),
        "spark.sql.warehouse.dir": str(run / "warehouse"),
    }
    if spark.master.startswith("local"):
        # Loopback: by default Spark listens on the address of the machine's name, which need not even resolve.
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} | FEWER_PROCESSES
        conf["spark.hadoop.fs.defaultFS"] = "file:///"  # where Hadoop is configured, paths are of its file system
        conf[CHECK_STALE_FILES] = str(spark.master.startswith("local-cluster")).lower()  # which has several executors
        conf["spark.python.daemon.module"] = WORKER_DAEMON
        conf["spark.executorEnv.PYTHONPATH"] = str(WORKER_PATH)
        scratch = (run / "spark").absolute()
        if re.fullmatch(r"[\w./+-]+", str(scratch)) and _JAVA_OPTIONS not in spark.conf:  # needs no quotes
            # Also for native libraries: on many machines no program may be in /tmp (noexec).
            conf[_JAVA_OPTIONS] += f" -Djava.io.tmpdir={scratch}"
            if takes_unix_sockets(scratch):
                conf["spark.python.unix.domain.socket.enabled"] = "true"
    return conf


def takes_unix_sockets(directory: Path) -> bool:
    """Whether Python workers can use Unix sockets in this directory instead of TCP: its path must be short and have no
    capital letter. PySpark 4.2 puts what the JVM tells a worker in lower case, also the path of its
    state's socket (``pyspark.worker_util.Conf.get``), and ack then ended with a ``FileNotFoundError``.

    Spark leaves Nagle's algorithm on for its TCP sockets, and both sides write twice before they read, so each second
    write waits 40 ms for the other side's delayed acknowledgement (docs/measurements-history.md). The directory must be
    private: anyone who can connect to a worker can run code in it, and over Unix sockets Spark requires no secret."""
    path = str(directory)
    return len(path.encode()) + _SOCKET_NAME <= SOCKET_PATH and path == path.lower()


def open_session(settings: Settings, application: str = "reliable-channel") -> SparkSession:
    """Return the session of this process; start it if there is none.

    Raises ``EnvironmentFault`` if Java is missing or too old, the user has no name, the jars are not set up, or the
    JVM does not start.
    """
    import pyspark
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    wanted = session_conf(settings)
    if not is_submitted() and settings.spark.master.startswith("local"):
        # What another installation of Spark needs: its settings, Python, scratch directories, addresses.
        for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
            if name != "SPARK_SUBMIT_OPTS":  # options of the JVM for who measures it
                del os.environ[name]
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Without it workers run the first python3 on the path, not that of this environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_submitted():
        SparkContext._ensure_initialized()  # else SparkConf does not see the settings of spark-submit
        conf = SparkConf().setIfMissing("spark.app.name", application)
        for key, value in wanted.items():
            conf.setIfMissing(key, value)
        conf.setAll([*REQUIRED.items()])
        with note_interrupts():  # PySpark's own handler of SIGINT, which breaks the connection, does not stay
            spark = SparkSession.builder.config(conf=conf).getOrCreate()
            forward_signals()
    else:
        java()
        _refuse_nameless_user()
        wanted = local_conf(settings) | wanted
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # that of no other installation
        os.environ.update(jvm_environment())
        leave_out_trace_of_killed_jvm()
        run = Path(settings.paths.run_dir)
        for part in ("logs", "spark"):
            private_directory(run / part)
        enter_scratch(run / "spark")
        for directory in (settings.paths.data_dir, settings.paths.checkpoint_dir):
            if "://" not in directory:
                private_directory(directory)
        conf = SparkConf(loadDefaults=False).setAppName(application).setAll(list(wanted.items()))
        log = run / "logs" / "spark.log"
        try:
            spark = _start_session(conf, log)
        except (KeyboardInterrupt, SystemExit):
            end_jvm()
            raise
        except Exception as error:
            if type(error).__name__ == "PySparkRuntimeError":
                fault: Exception = EnvironmentFault("Spark's JVM did not start.", f"Read {log}: {_read_last_line(log)}")
            else:
                fault = as_fault(_explain(error))  # before the JVM ends, because the JVM holds the error's text
            end_jvm()
            raise fault from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _start_session(conf: SparkConf, log: Path) -> SparkSession:
    """Start the JVM and the session. Raises what a signal raises that came meanwhile; also one to all processes, which
    ends the JVM."""
    from pyspark.sql import SparkSession

    # Ctrl-C between the start of the JVM and the session would leave the JVM running.
    with note_interrupts() as raise_if_interrupted, stderr_to(log):
        try:
            return SparkSession.builder.config(conf=conf).getOrCreate()
        except Exception:
            raise_if_interrupted()
            raise


def _refuse_nameless_user() -> None:
    """Hadoop's login would fail with a NullPointerException."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EnvironmentFault(
            f"The user {os.geteuid()} has no name, and Spark does not start without one.",
            "Add a line for it to /etc/passwd, or run this as a user who has one.",
        ) from None


def close_session(spark: SparkSession) -> None:
    """Stop the session and, if this process started it, its JVM; a later ``open_session`` starts a new one."""
    with note_interrupts():  # a second Ctrl-C must not leave the JVM either
        with suppress(Exception):  # a call broken by Ctrl-C leaves the connection unusable; the JVM is ended anyway
            spark.stop()
        end_jvm()


@contextmanager
def spark_session(settings: Settings, application: str = "reliable-channel") -> Iterator[SparkSession]:
    """Open a session for the block and close it at the end, also on errors and Ctrl-C. A Spark error is first converted
    to a ``ReliableChannelError``, because its text is in the JVM, which ends here; so is every error caused by a JVM
    that has already ended."""
    spark = open_session(settings, application)
    try:
        yield spark
    except Exception as error:
        if (fault := _explain(error)) is error:
            raise
        raise fault from error
    finally:
        close_session(spark)


def _explain(error: Exception) -> Exception:
    """A ``ReliableChannelError`` in place of an error of Spark, or of one caused by a JVM that has ended; else the
    error itself."""
    of_spark = type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}
    if not of_spark and not isinstance(error, OSError):
        return error
    code = jvm_exit_code()
    if code is None:
        return as_fault(error) if of_spark else error
    if code in ENDED_BY:
        return EnvironmentFault(
            f"Spark's JVM was ended by {ENDED_BY[code]}.",
            "To stop a run, send the signal to Python alone, which lets the micro-batch end first (systemd:"
            " KillMode=mixed); nothing is lost.",
        )
    return EnvironmentFault(
        f"Spark's JVM was killed or crashed (exit code {code}).",
        "Usually the machine is out of memory: lower spark.driver_memory or stop other programs, and start"
        " again; nothing is lost.",
    )


def _read_last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return lines[-1] if lines else "it is empty."


_in_use: list[int] = []
"""Descriptors with shared locks, which tell other processes that a session runs; the system releases them when this
process ends, however it ends."""


def enter_scratch(directory: Path) -> None:
    """Use ``directory`` for Spark's scratch space (block manager, state stores, sockets, native libraries) until this
    process ends; first remove what is in it, unless a session of this or another process uses it. A session that is
    killed leaves 40 to 60 MB there: where a supervisor starts a job again and again, the disk would fill."""
    lock = os.open(directory.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    _in_use.append(lock)
    with suppress(OSError):  # another session runs, or the file system has no locks
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in directory.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()
    with suppress(OSError):  # from exclusive to shared, so that others see a session and may join it
        fcntl.flock(lock, fcntl.LOCK_SH)
