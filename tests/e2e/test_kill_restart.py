"""SIGKILL in the middle, at several points, and a full disk; the first restart goes on, and the tables are those of an
undisturbed run.

The real command, a real broker, the real Delta tables. A point is a moment that the files of tables and checkpoints
show: the process and its JVM are killed as soon as they do, so each kill is somewhere in the window behind that moment.
The run stands on a small disk of its own (a tmpfs) where one can be mounted, and that is filled twice.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from demo_runs import ROOT

from reliable_channel.analysis.report.check import check
from reliable_channel.analysis.report.tables import read_observed, read_table
from reliable_channel.config import Settings
from reliable_channel.runtime.topics import ensure_topics
from reliable_channel.simulation.presets import small_scenario
from reliable_channel.simulation.to_kafka import write_records
from reliable_channel.simulation.truth import Truth
from reliable_channel.simulation.world import simulate

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

TOPIC = "kill.envelopes"
PATIENCE_S = 900.0
DEMO_SEED = 7


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory, seen from outside."""

    directory: Path

    def commits(self, table: str) -> int:
        """Delta commits of a table, its creation included."""
        return len(list((self.directory / "tables" / table / "_delta_log").glob("*.json")))

    def has_state(self, query: str) -> bool:
        """Whether a partition of one of its operators has committed the state of the first micro-batch."""
        return any((self.directory / "checkpoints" / query).glob("state/*/*/1.changelog"))

    def batches(self, query: str, what: str) -> int:
        """Micro-batches that a checkpoint knows as planned (``offsets``) or done (``commits``)."""
        folder = self.directory / "checkpoints" / query / what
        return len([f for f in folder.iterdir() if f.name.isdigit()]) if folder.is_dir() else 0


POINTS: dict[str, Callable[[RunDirectory], bool]] = {
    "ingest planned a micro-batch, and wrote nothing yet": lambda p: (
        p.batches("ingest", "offsets") >= 1 and p.commits("envelopes") == 1
    ),
    "ingest wrote envelopes or segments, and not yet both": lambda p: (
        min(wrote := (p.commits("envelopes"), p.commits("sds_messages"))) >= 1 and wrote[0] != wrote[1]
    ),
    "reassembly commits its state": lambda p: p.has_state("reassembly") and p.batches("reassembly", "commits") == 0,
    "ack wrote what was delivered, and the checkpoint does not know it": lambda p: (
        p.commits("delivered_messages") >= 2 and p.batches("ack", "commits") == 0
    ),
    "the closing tick is in the clock": lambda p: p.batches("ack", "commits") >= 1,
}
"""In the order in which a run comes by."""

FILLED_BEFORE = "reassembly commits its state"
"""On the way to this point the disk is filled once more: behind the micro-batch of ingest that the last kill broke off,
and so before reassembly begins."""

_BALLAST = bytes(1 << 20)

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
    written = write_records(world.records, TOPIC, broker.kafka.client_options())
    return broker, world.truth.located(written)


def start(settings: Settings, place: RunDirectory, records: int = 40) -> subprocess.Popen[str]:
    """``reliable-channel run --once`` on that broker, in a process group of its own, with ``records`` a micro-batch."""
    environment = {
        "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(place.directory),
        "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": settings.kafka.servers,
        "RELIABLE_CHANNEL__KAFKA__TOPICS__ENVELOPES": TOPIC,
        "RELIABLE_CHANNEL__SPARK__MASTER": "local[2]",
        "RELIABLE_CHANNEL__SPARK__SHUFFLE_PARTITIONS": "2",
        "RELIABLE_CHANNEL__SPARK__MAX_OFFSETS_PER_TRIGGER": str(records),
        "RELIABLE_CHANNEL__SPARK__DRIVER_MEMORY": "1g",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "reliable_channel.cli", "run", "--once", "--close-after-ms", "3600000"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Let it run to its end, which must be a good one."""
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
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
        wait_for(process, place, reached)
    finally:
        kill(process)


def wait_for(process: subprocess.Popen[str], place: RunDirectory, reached: Callable[[RunDirectory], bool]) -> None:
    """Wait until it has reached that point."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached(place):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the point was not reached"
        time.sleep(0.001)  # the two commits are side by side, some ms apart


@contextmanager
def filled(place: RunDirectory) -> Iterator[None]:
    """Not a byte of room on the place's disk; what the run gives back meanwhile is taken at once (state stores lay out
    their files with megabytes to spare, which was once enough for the rest of a run)."""
    ballast, over = place.directory / "ballast", threading.Event()

    def take_all(file: BinaryIO) -> None:
        with suppress(OSError):
            while file.write(_BALLAST):
                pass

    def keep_taking(file: BinaryIO) -> None:
        while not over.wait(0.001):
            take_all(file)

    with ballast.open("wb", buffering=0) as file:
        take_all(file)
        taker = threading.Thread(target=keep_taking, args=(file,))
        taker.start()
        try:
            yield
        finally:
            over.set()
            taker.join()
    ballast.unlink()


def fail(process: subprocess.Popen[str]) -> str:
    """Let it run into its fault; what it says."""
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        kill(process)
    assert process.returncode == 1, output
    return output


def rows(place: RunDirectory, table: str) -> Counter[tuple[Any, ...]]:
    """The rows of a table as a multiset, without machine clocks and without ticks, which belong to micro-batches."""
    found = read_table(place.directory / "tables", table)
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
    mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(directory)]
    mounted = (
        shutil.which("mount") is not None and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    )
    yield directory, mounted
    if mounted:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


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
        with filled(place):
            said.append(fail(start(settings, place)))
    for name, reached in POINTS.items():
        process = start(settings, place)
        if can_be_full and name == FILLED_BEFORE:
            done = place.batches("ingest", "commits")
            wait_for(process, place, lambda p, before=done: p.batches("ingest", "commits") > before)
            with filled(place):
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
    expected, found = rows(undisturbed, table), rows(killed.place, table)
    lost, doubled = list((expected - found).items())[:3], list((found - expected).items())[:3]
    assert (lost, doubled) == ([], [])
