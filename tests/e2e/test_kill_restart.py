"""SIGKILL in the middle, at several points, and a full disk; the first restart goes on, and the tables are those of an
undisturbed run, on a local disk and on an object store.

The real command, a real broker, the real Delta tables. A point is a moment that the files of tables and checkpoints
show: the process and its JVM are killed as soon as they do, so each kill is somewhere in the window behind that moment.
The run stands on a small disk of its own (a tmpfs) where one can be mounted, and that is filled twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSelector

from reliable_channel.config import Settings, load
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.read import open_table, open_tables
from reliable_channel.lake.tables import ENVELOPES
from reliable_channel.pipeline.maintenance import maintain
from reliable_channel.runtime import jars
from reliable_channel.runtime.java import INTERPRETED
from reliable_channel.runtime.topics import ensure_topics
from reliable_channel.simulation.check.promises import check
from reliable_channel.simulation.check.tables import read_observed
from reliable_channel.simulation.presets import small_scenario
from reliable_channel.simulation.to_kafka import write_records
from reliable_channel.simulation.truth import Truth
from reliable_channel.simulation.world import simulate
from tests.e2e.demo_runs import ROOT
from tests.support.delta_tables import read_table
from tests.support.disk import filled, small_disk_at
from tests.support.error_page import pattern_of
from tests.support.object_store import object_store, s3_jars
from tests.support.waiting import WAIT_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

TOPIC = "kill.envelopes"
DEMO_SEED = 7


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory, seen from outside."""

    directory: Path

    def commits(self, table: str) -> int:
        """Delta commits of a table, its creation included."""
        return len(list((self.directory / "tables" / table / "_delta_log").glob("*.json")))

    def is_behind_ingest(self, commits: int) -> bool:
        """Whether ingest has done more micro-batches than these, or reassembly has planned one."""
        return self.batches("ingest", "commits") > commits or self.batches("reassembly", "offsets") > 0

    def has_state(self, query: str) -> bool:
        """Whether a partition of one of its operators has committed the state of the first micro-batch."""
        return any((self.directory / "checkpoints" / query).glob("state/*/*/1.changelog"))

    def batches(self, query: str, what: str) -> int:
        """Micro-batches that a checkpoint knows as planned (``offsets``) or done (``commits``)."""
        folder = self.directory / "checkpoints" / query / what
        return len([f for f in folder.iterdir() if f.name.isdigit()]) if folder.is_dir() else 0


POINTS: dict[str, Callable[[RunDirectory], bool]] = {
    "ingest planned a micro-batch": lambda p: p.batches("ingest", "offsets") >= 1,
    "ingest wrote envelopes or segments": lambda p: max(p.commits("envelopes"), p.commits("sds_messages")) >= 2,
    "reassembly commits its state": lambda p: p.has_state("reassembly"),
    "ack wrote what was delivered": lambda p: p.commits("delivered_messages") >= 2,
    "the closing tick is in the clock": lambda p: p.batches("ack", "commits") >= 1,
}
"""In the order in which a run comes by. Each holds from its moment on: a look that comes late still sees it. What is
exact, a kill at every single append, is in ``tests/spark/test_crashes.py``."""

FILLED_BEFORE = "reassembly commits its state"
"""On the way to this point the disk is filled once more: behind the micro-batch of ingest that the last kill broke off,
and so before reassembly begins."""

NOT_STABLE = {"ingest_time", "written_at", "kafka_topic"}
"""The clocks of the machine, and the topic's name; every other column must be the same."""

TABLES = (
    "envelopes",
    "sds_messages",
    "quarantine",
    "ordered_sds_messages",
    "reassembled_messages",
    "incomplete_messages",
    "deliveries",
    "acks",
    "refetch_requests",
    "lost_dependencies",
    "repair_requests",
    "channel_events",
    "delivered_messages",
)


@pytest.fixture(scope="module")
def conversation(broker: Settings) -> tuple[Settings, Truth]:
    """The small demo's records in a topic of their own, which keeps their times; and the truth about them."""
    topics = broker.kafka.topics.model_copy(
        update={"envelopes": TOPIC, "timestamp_type": "CreateTime", "retention_ms": -1}
    )
    ensure_topics(broker.kafka.model_copy(update={"topics": topics}))
    world = simulate(small_scenario(DEMO_SEED))
    written = write_records(world.records, TOPIC, broker.kafka.clients().producer)
    return broker, world.truth.locate(written)


def start(settings: Settings, place: RunDirectory, records: int = 20, **more: str) -> subprocess.Popen[str]:
    """``reliable-channel run --once`` on that broker, in a process group of its own, with ``records`` a micro-batch and
    ``more`` in its environment."""
    environment = {
        "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(place.directory),
        "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": settings.kafka.servers,
        "RELIABLE_CHANNEL__KAFKA__TOPICS__ENVELOPES": TOPIC,
        "RELIABLE_CHANNEL__SPARK__MASTER": "local[2]",
        "RELIABLE_CHANNEL__SPARK__SHUFFLE_PARTITIONS": "2",
        "RELIABLE_CHANNEL__SPARK__MAX_OFFSETS_PER_TRIGGER": str(records),
        "RELIABLE_CHANNEL__SPARK__DRIVER_MEMORY": "1g",
        "RELIABLE_CHANNEL__SPARK__CONF": json.dumps(INTERPRETED),
        "RELIABLE_CHANNEL__SEGMENTATION__MAX_SET_LIFETIME_MS": "3600000",  # what is incomplete is given up at the end
    }
    return subprocess.Popen(
        [sys.executable, "-m", "reliable_channel", "run", "--once", "--close-after-ms", "3600000"],
        cwd=ROOT,
        env={**os.environ, **environment, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Let it run to its end, which must be a good one."""
    try:
        output, _ = process.communicate(timeout=WAIT_S)
    finally:
        kill(process)
    assert process.returncode == 0, output


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the process, its JVM and its Python workers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_at(process: subprocess.Popen[str], place: RunDirectory, reached: Callable[[RunDirectory], bool]) -> None:
    """Kill it at that point; it must get there, which after an earlier kill means that the restart succeeded."""
    try:
        # Look every ms: two commits side by side are some ms apart.
        until(lambda: reached(place), process=process, every_s=0.001)
    finally:
        kill(process)


def fail(process: subprocess.Popen[str]) -> str:
    """Let it run into its fault; what it says."""
    try:
        output, _ = process.communicate(timeout=WAIT_S)
    finally:
        kill(process)
    assert process.returncode == 1, output
    return output


def rows(tables: str | Path, table: str) -> Counter[tuple[Any, ...]]:
    """The rows of a table as a multiset, without machine clocks and without ticks, which belong to micro-batches."""
    found = read_table(tables, table)
    names = [name for name in sorted(found.column_names) if name not in NOT_STABLE]
    kind = next((name for name in ("row_kind", "sds_kind") if name in found.column_names), None)
    return Counter(
        tuple(_hashable(row[name]) for name in names)
        for row in found.to_pylist()
        if kind is None or row[kind] != "tick"
    )


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in sorted(value.items()))
    return value


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, bool]]:
    """A directory, and whether it is a disk of its own that can be filled."""
    directory = tmp_path_factory.mktemp("killed")
    with small_disk_at(directory, 256) as mounted:
        yield directory, mounted


@dataclass(frozen=True)
class Killed:
    """A run with all its faults behind it, and what it said about the full disk: before the first table, in the
    middle."""

    place: RunDirectory
    about_the_disk: tuple[str, ...]


@pytest.fixture(scope="module")
def killed(conversation: tuple[Settings, Truth], small_disk: tuple[Path, bool]) -> Killed:
    """One run that is killed at every point in turn, started again each time, and let go at last."""
    settings, (directory, can_be_full) = conversation[0], small_disk
    place, said = RunDirectory(directory), []
    if can_be_full:
        with filled(place.directory):
            said.append(fail(start(settings, place)))
    for name, reached in POINTS.items():
        process = start(settings, place)
        if can_be_full and name == FILLED_BEFORE:
            done = place.batches("ingest", "commits")
            # On a busy machine the last kill may come so late that ingest has nothing left to do.
            until(lambda before=done: place.is_behind_ingest(before), process=process, every_s=0.001)  # type: ignore[misc]
            with filled(place.directory):
                said.append(fail(process))
            process = start(settings, place)
        kill_at(process, place, reached)
    finish(start(settings, place))
    return Killed(place, tuple(said))


@pytest.mark.parametrize("when", range(2), ids=["before the first table", "between micro-batches"])
def test_a_full_disk_is_one_sentence(killed: Killed, when: int) -> None:
    if not killed.about_the_disk:
        pytest.skip("no disk of its own can be mounted here: that takes root")
    said = killed.about_the_disk[when]
    assert "disk is full" in said
    assert "Traceback" not in said


def test_the_killed_run_is_true(conversation: tuple[Settings, Truth], killed: Killed) -> None:
    assert check(conversation[1], read_observed(killed.place.directory / "tables")) == []


@pytest.fixture(scope="module")
def undisturbed(conversation: tuple[Settings, Truth], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run over the same records in a single micro-batch, so that the comparison holds for the cuts as well."""
    place = RunDirectory(tmp_path_factory.mktemp("undisturbed"))
    finish(start(conversation[0], place, records=1_000_000))
    return place


@pytest.mark.parametrize("table", TABLES)
def test_the_killed_run_has_the_rows_of_an_undisturbed_one(
    undisturbed: RunDirectory, killed: Killed, table: str
) -> None:
    assert_same_rows(undisturbed, killed.place.directory / "tables", table)


def assert_same_rows(undisturbed: RunDirectory, tables: str | Path, table: str) -> None:
    wanted, found = rows(undisturbed.directory / "tables", table), rows(tables, table)
    lost, doubled = list((wanted - found).items())[:3], list((found - wanted).items())[:3]
    assert (lost, doubled) == ([], []), table


@dataclass(frozen=True)
class Stored:
    """A run on ``s3a://`` with its faults behind it. ``refused``: what the driver said that was too slow;
    ``without_jars``: what one said that has no jars for the store."""

    settings: Settings
    refused: str
    without_jars: str

    def uncommitted(self) -> Counter[str]:
        """How many data files lie beside each table that no commit names."""
        found: Counter[str] = Counter()
        for name, table in open_tables(self.settings.paths).items():
            files, root = filesystem(self.settings.paths.table(name))
            there = {file.base_name for file in files.get_file_info(FileSelector(root))}
            named = {uri.rpartition("/")[2] for uri in table.file_uris()}
            found[name] = sum(file.endswith(".parquet") for file in there - named)
        return +found


@pytest.fixture(scope="module")
def stored(conversation: tuple[Settings, Truth], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """The chain with tables and checkpoints on ``s3a://``. The store holds up a first driver's commit of ``envelopes``;
    a second driver makes it, and is killed when all of ``delivered_messages`` but the commit is there; a third ends."""
    paths = {"data_dir": "s3a://bucket/tables", "checkpoint_dir": "s3a://bucket/checkpoints"}
    settings = load("local", paths=paths, pipeline={"vacuum_retention_ms": 0})
    first_rows = "_delta_log/00000000000000000001.json"
    with (
        object_store(tmp_path_factory.mktemp("s3")) as store,
        pytest.MonkeyPatch.context() as patched,
        ExitStack() as processes,
    ):
        for name, value in store.credentials().items():
            patched.setenv(name, value)
        added = [*jars.paths("spark", settings.paths.cache_dir), *s3_jars()]
        more = {f"RELIABLE_CHANNEL__PATHS__{name.upper()}": place for name, place in paths.items()}
        elsewhere = {name: f"{place}-2" for name, place in more.items()}
        more["RELIABLE_CHANNEL__SPARK__CONF"] = json.dumps(
            INTERPRETED | store.spark_conf() | {"spark.jars": ",".join(map(str, added))}
        )

        def begin(name: str, more: dict[str, str] = more) -> subprocess.Popen[str]:
            """On a machine of its own."""
            place = RunDirectory(tmp_path_factory.mktemp(name))
            process = start(conversation[0], place, 1_000_000, **more, **store.credentials(name))
            processes.callback(kill, process)
            return process

        with store.holding("delivered", "PUT", f"/delivered_messages/{first_rows}") as all_but_committed:
            with store.holding("envelopes", "PUT", f"/envelopes/{first_rows}", "Credential=slow/") as held:
                slow, lacks_jars = begin("slow"), begin("lacks-jars", elsewhere)
                until(held.exists, process=slow, every_s=0.001)
                second = begin("second")
                until(lambda: open_table(settings.paths, ENVELOPES).version() > 0, process=second, every_s=0.5)
            refused, without_jars = fail(slow), fail(lacks_jars)
            until(all_but_committed.exists, process=second, every_s=0.001)
            kill(second)
        finish(begin("third"))
        yield Stored(settings, refused, without_jars)


def test_a_second_writer_on_an_object_store_is_refused(stored: Stored) -> None:
    assert "ingest failed: another driver runs it with the same checkpoint" in stored.refused
    assert "Traceback" not in stored.refused


def test_a_missing_jar_of_the_object_store_is_one_sentence(stored: Stored) -> None:
    *progress, said = stored.without_jars.splitlines()
    assert pattern_of("A file system without its jar").fullmatch(said.removeprefix("reliable-channel: "))
    assert [line.strip() for line in progress] == ["Starting Spark …", "ingest"]


def test_a_run_on_an_object_store_has_the_rows_of_one_on_a_disk_before_and_after_uncommitted_files_are_cleaned_up(
    undisturbed: RunDirectory, stored: Stored
) -> None:
    assert stored.uncommitted().keys() >= {"envelopes", "delivered_messages"}
    for table in TABLES:
        assert_same_rows(undisturbed, stored.settings.paths.data_dir, table)
    maintain.run(stored.settings, now_ms=0)  # no row is old
    assert stored.uncommitted() == Counter()
    for table in TABLES:
        assert_same_rows(undisturbed, stored.settings.paths.data_dir, table)
