"""SIGKILL in the middle, at several points; the first restart goes on, and the tables are those of an undisturbed run.

The real command, a real broker, the real Delta tables. A point is a moment that the files of tables and checkpoints
show: the process and its JVM are killed as soon as they do, so each kill is somewhere in the window behind that moment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from demo_runs import ROOT, DemoRun

from reliable_channel.config import Settings
from reliable_channel.report.check import check
from reliable_channel.report.tables import read_observed, read_table
from reliable_channel.runtime.topics import ensure_topics
from reliable_channel.simulation.presets import small_scenario
from reliable_channel.simulation.to_kafka import write_records
from reliable_channel.simulation.truth import Truth
from reliable_channel.simulation.world import simulate

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

TOPIC = "kill.envelopes"
PATIENCE_S = 900.0
DEMO_SEED = 7
"""The small demo's, so that its tables are those of an undisturbed run."""


@dataclass(frozen=True)
class Place:
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


POINTS: dict[str, Callable[[Place], bool]] = {
    "ingest planned a micro-batch, and wrote nothing yet": lambda p: (
        p.batches("ingest", "offsets") >= 1 and p.commits("envelopes") == 1
    ),
    "ingest wrote envelopes, and not yet segments": lambda p: p.commits("envelopes") > p.commits("segments") >= 1,
    "reassembly commits its state": lambda p: p.has_state("reassembly") and p.batches("reassembly", "commits") == 0,
    "deliver wrote its output, and the checkpoint does not know it": lambda p: (
        p.commits("delivered_messages") >= 2 and p.batches("deliver", "commits") == 0
    ),
    "the closing tick is in the clock": lambda p: p.batches("deliver", "commits") >= 1,
}
"""In the order in which a run comes by."""

NOT_STABLE = {"ingest_time", "written_at", "kafka_topic"}
"""The clocks of the machine, and the topic's name; every other column must be the same."""

TABLES = (
    "envelopes",
    "segments",
    "quarantine",
    "sds_input",
    "messages",
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


def start(settings: Settings, place: Place) -> subprocess.Popen[str]:
    """``reliable-channel run --once`` on that broker, in a process group of its own, in several micro-batches."""
    environment = {
        "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(place.directory),
        "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": settings.kafka.servers,
        "RELIABLE_CHANNEL__KAFKA__TOPICS__ENVELOPES": TOPIC,
        "RELIABLE_CHANNEL__SPARK__MASTER": "local[2]",
        "RELIABLE_CHANNEL__SPARK__SHUFFLE_PARTITIONS": "2",
        "RELIABLE_CHANNEL__SPARK__MAX_OFFSETS_PER_TRIGGER": "80",
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


def kill_at(process: subprocess.Popen[str], place: Place, reached: Callable[[Place], bool]) -> None:
    """Kill it at that point; it must get there, which after an earlier kill means that the restart succeeded."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not reached(place):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "the point was not reached"
            time.sleep(0.005)
    finally:
        kill(process)


def rows(place: Place, table: str) -> Counter[tuple[Any, ...]]:
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
def killed(conversation: tuple[Settings, Truth], tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One run that is killed at every point in turn, started again each time, and let go at last."""
    place = Place(tmp_path_factory.mktemp("killed"))
    for reached in POINTS.values():
        kill_at(start(conversation[0], place), place, reached)
    finish(start(conversation[0], place))
    return place


def test_the_killed_run_is_true(conversation: tuple[Settings, Truth], killed: Place) -> None:
    assert check(conversation[1], read_observed(killed.directory / "tables")) == []


@pytest.mark.parametrize("table", TABLES)
def test_the_killed_run_has_the_rows_of_an_undisturbed_one(demo: DemoRun, killed: Place, table: str) -> None:
    """The demo read the same records in a single micro-batch, so this holds for the cuts as well."""
    expected, found = rows(Place(demo.place), table), rows(killed, table)
    assert found == expected, (
        f"lost {list((expected - found).items())[:3]}, doubled {list((found - expected).items())[:3]}"
    )
