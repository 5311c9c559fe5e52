"""What all tests share: one Spark session for those that need one; unit tests never start it."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reliable_channel.config import Settings, load
from reliable_channel.runtime.java import INTERPRETED, SHORT_LIVED
from tests.support.waiting import WAIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Background jobs of a shell ignore Ctrl-C, and so would every command that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Every plan of a test runs a few times: without the optimizing compiler the tests of Spark take two thirds of the CPU
# time, those of Kafka nine tenths. Not to verify the bytecode of jars whose digests are checked saves another twelfth.
# Commands that tests start inherit this.
JVM_OPTIONS = f"{SHORT_LIVED} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM_OPTIONS)
os.environ.setdefault("KAFKA_OPTS", JVM_OPTIONS)


GROUPS = {
    "tests/kafka/test_broker_restart.py": "spark",
    "tests/kafka/test_unreadable.py": "spark",
    "tests/spark/": "spark",
    "tests/kafka/": "kafka",
    "tests/object_store/": "kafka",
    "tests/e2e/test_api_serve.py": "kafka",
    "tests/e2e/test_broker.py": "kafka",
    "tests/e2e/test_operated_run.py": "kafka",
    "tests/e2e/test_signals.py": "kafka",
    "tests/e2e/test_spark_submit.py": "kafka",
}
"""Where a test's node id begins so, it belongs to that group: its tests share a Spark session or a broker. The first
that fits counts."""
EACH_ALONE = tuple(f"tests/e2e/test_{name}.py" for name in ("abuse", "benches", "readers", "what_if_accuracy"))
"""Files of long tests that share nothing: the workers divide them."""
LONGEST = (
    "tests/e2e/test_kill_restart.py", "spark", "kafka", "tests/e2e/test_soak.py", "tests/e2e/test_one_shell.py",
    "tests/e2e/test_what_if_accuracy.py", "tests/e2e/test_spark_cluster.py", "tests/e2e/test_installed.py",
    "tests/e2e/test_benches.py", "tests/browser/test_dashboard_browser.py",
)  # fmt: skip
"""Begun first, or one worker would still run them when the others have nothing left to do."""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadgroup`` one worker runs all tests of a group, while the others take the remaining tests file by
    file. (The mark that this is made for changes nothing: pytest-xdist 3.8 appends it to ``_nodeid``, and pytest 9.2
    does not read that.)"""
    from xdist.scheduler import LoadFileScheduling

    class OneWorkerForEachGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return find_group(nodeid)

    return OneWorkerForEachGroup(config, log) if config.getvalue("dist") == "loadgroup" else None


def find_group(nodeid: str) -> str:
    if nodeid.startswith(EACH_ALONE):
        return nodeid
    return next((name for start, name in GROUPS.items() if nodeid.startswith(start)), nodeid.partition("::")[0])


def rank(group: str) -> int:
    return next((place for place, start in enumerate(LONGEST) if group.startswith(start)), len(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Half a million objects are created that stay to the end: the garbage collector looks through them in vain, while
    they become more and in every test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """At exit Python collects only what is not frozen, and DuckDB would print a hundred lines of "leaked" objects."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests with the same id: pytest-xdist would run one of them, and say nothing of the others. Begin with the
    longest."""
    repeated = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    if repeated:
        raise pytest.UsageError(f"Several tests have the same id: {', '.join(repeated)}")
    items.sort(key=lambda item: rank(find_group(item.nodeid)))


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """A command or job that runs inside a test changes its process as if that were its own: handlers of signals, the
    environment, the umask, and where the package's logs go. The next test finds all of it as it was."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    environment = dict(os.environ)
    umask = os.umask(0o077)
    os.umask(umask)
    loggers = [logging.getLogger(name) for name in ("reliable_channel", "kafka", "uvicorn")]
    destinations = [([*logger.handlers], logger.propagate) for logger in loggers]
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
    os.umask(umask)
    for logger, (log_handlers, propagate) in zip(loggers, destinations, strict=True):
        logger.handlers[:], logger.propagate = log_handlers, propagate


@pytest.fixture
def heed_hangups(_process_as_before: None) -> None:
    """SIGHUP reaches this process and those that it starts, also if ``nohup`` has started pytest and ignores it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def _patient_queries() -> Iterator[None]:
    """No query of a report or page is interrupted because the machine is busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reliable_channel.analysis.report.snapshot.PATIENCE_S", WAIT_S)
        yield


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The configuration of the shared session: two cores, two shuffle partitions, everything under a test directory."""
    run = tmp_path_factory.mktemp("spark")
    spark = {"master": "local[2]", "shuffle_partitions": 2, "conf": INTERPRETED}
    return load("local", paths={"run_dir": str(run)}, spark=spark)


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


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The one real broker of the test run, on a free port, topics created; yields the settings that point to it."""
    from reliable_channel.runtime import jars
    from reliable_channel.runtime.broker import running_broker

    settings = load("local", paths={"run_dir": str(tmp_path_factory.mktemp("kafka"))})
    jars.ensure(settings.paths.cache_dir, settings.paths.ivy_settings)
    with running_broker(settings) as there:
        yield there


@pytest.fixture(scope="session")
def sample_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a small set of real Delta tables that hold one of everything (tests/support/sample_tables.py).
    Shared by all tests: copy it before you write into it."""
    from tests.support.sample_tables import write

    place = tmp_path_factory.mktemp("sample") / "tables"
    write(place)
    return place
