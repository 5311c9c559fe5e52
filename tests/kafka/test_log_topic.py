"""Log lines in a topic, as log shippers write them, become sightings, each once."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaError

from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.evidence import log_files, log_topic
from reliable_channel.evidence.log_topic import read_topic
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import SIGHTINGS
from reliable_channel.transport.kafka_consumer import OffsetReader
from tests.support.doc_blocks import ROOT, blocks_of
from tests.support.environment import environment
from tests.support.node_log_lines import geth_text, nim_json, nim_text, zap_console
from tests.support.odd_topics import create, delete_records, transact
from tests.support.waiting import WAIT_S, until

pytestmark = pytest.mark.kafka

AT_MS = 1_767_225_600_123
HASH = bytes(range(32))
Record = tuple[bytes | None, bytes | None]
_numbers = itertools.count()


@pytest.fixture
def topic(broker: Settings) -> str:
    name = f"logs-{os.getpid()}-{next(_numbers)}"
    create(broker, name, partitions=2)
    return name


@pytest.fixture
def read(broker: Settings, topic: str, tmp_path: Path) -> Callable[..., Any]:
    paths = PathSettings(run_dir=str(tmp_path / "run"))

    def read(**options: Any) -> log_files.LogCounts:
        return read_topic(paths, broker.kafka.clients(), topic, **options)

    return read


@pytest.fixture
def vantages(tmp_path: Path) -> Callable[[], list[tuple[str, int]]]:
    """Vantage, and ms after the first line, of all sightings."""

    def vantages() -> list[tuple[str, int]]:
        rows = rows_of(open_table(PathSettings(run_dir=str(tmp_path / "run")), SIGHTINGS))
        return sorted((row["vantage"], round(row["seen_at"].timestamp() * 1000) - AT_MS) for row in rows)

    return vantages


def put(broker: Settings, topic: str, *records: Record, partition: int = 0) -> None:
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    for sent in [producer.send(topic, value, key, partition=partition) for key, value in records]:
        sent.get(timeout=WAIT_S)
    producer.close()


def line_of(number: int, form: Callable[..., str] = geth_text) -> bytes:
    return form(AT_MS + number, "received", HASH, "16U*own111", "16U*peer22").encode()


def lines_of(*numbers: int) -> list[Record]:
    return [(b"amber", line_of(number)) for number in numbers]


def test_a_topic_is_read_from_where_the_last_time_ended(
    broker: Settings, topic: str, read: Any, vantages: Any, tmp_path: Path
) -> None:
    put(broker, topic, *lines_of(0, 1))
    put(broker, topic, *lines_of(2), partition=1)
    assert (read().new, read().lines) == (3, 0)
    put(broker, topic, *lines_of(3, 0), partition=1)
    counts = read()
    assert (counts.lines, counts.sightings, counts.new) == (2, 2, 1)
    assert vantages() == [("amber", number) for number in range(4)]
    others = PathSettings(run_dir=str(tmp_path / "others"))
    assert read_topic(others, broker.kafka.clients(), topic).new == 4  # other tables have their own position


def test_what_log_shippers_put_around_a_line_is_taken_off_and_names_the_node(
    broker: Settings, topic: str, read: Any, vantages: Any
) -> None:
    inner = [line_of(number, form).decode() for number, form in enumerate((geth_text, zap_console, nim_json, nim_text))]
    fluent_bit = {"@timestamp": 1.5, "log": inner[0] + "\n", "kubernetes": {"pod_name": "amber"}, "stream": "stdout"}
    vector = {"message": inner[1], "kubernetes": {"pod_name": "birch"}, "source_type": "kubernetes_logs"}
    filebeat = {
        "@metadata": {"beat": "filebeat"}, "log": {"offset": 7}, "message": inner[2], "host": {"name": "x"},
        "kubernetes": {"pod": {"name": "cedar"}},
    }  # fmt: skip
    written = [(None, json.dumps(each).encode()) for each in (fluent_bit, vector, filebeat)]
    put(broker, topic, *written, (b"dune", inner[3].encode()))
    assert read(node_field="kubernetes.pod_name").new == 4
    # Filebeat's field has another name: the line has the peer id of its node.
    assert vantages() == [("16U*own111", 2), ("amber", 0), ("birch", 1), ("dune", 3)]


def test_lines_that_name_no_node_are_counted_and_a_topic_of_them_is_refused_and_read_again(
    broker: Settings, topic: str, read: Any, vantages: Any
) -> None:
    put(broker, topic, (None, line_of(0)))
    with pytest.raises(LocalError, match="do not name their nodes"):
        read()
    assert read(node="amber").new == 1
    put(broker, topic, (None, line_of(1)), *lines_of(2))
    counts = read()
    assert (counts.unnamed, counts.new) == (1, 1)
    assert vantages() == [("amber", 0), ("amber", 2)]


def test_hostile_records_are_passed(broker: Settings, topic: str, read: Any, vantages: Any) -> None:
    put(
        broker,
        topic,
        (b"amber", None),
        (b"amber", b""),
        (b"amber", b"\xff\xfe" + line_of(9)),
        (b"amber", b"[" * 60_000 + b'0x "hash"'),
        (b"amber", line_of(8) + b" x=" + b"y" * log_files.MAX_LINE_BYTES),
        (b"\xff" * 5_000, line_of(1)),
        (b"amber", line_of(2) + b"\n" + line_of(3) + b"\n"),
    )
    counts = read(node_field="host.name")
    assert (counts.too_long, counts.new) == (1, 4)
    assert [at for _, at in vantages()] == [2, 3, 9, 1]
    assert max(len(vantage) for vantage, _ in vantages()) == 1_024


def test_offsets_are_committed_only_after_the_rows_are_in_the_table(
    broker: Settings, topic: str, read: Any, vantages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(broker, topic, *lines_of(0, 1))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk"):
        patch.setattr(log_files, "_append_new", lambda *_: (_ for _ in ()).throw(OSError("disk")))
        read()
    with monkeypatch.context() as patch, pytest.raises(KafkaError):
        patch.setattr(OffsetReader, "commit", lambda _, offsets: None if not any(offsets.values()) else _raise())
        read()
    counts = read()
    assert (counts.sightings, counts.new, vantages()) == (2, 0, [("amber", 0), ("amber", 1)])


def _raise() -> None:
    raise KafkaError


def test_a_topic_ends_although_records_were_deleted_or_aborted(
    broker: Settings, topic: str, read: Any, vantages: Any, caplog: pytest.LogCaptureFixture
) -> None:
    put(broker, topic, *lines_of(0, 1, 2))
    assert read().new == 3
    put(broker, topic, *lines_of(3, 4))
    transact(broker, topic, ["of another program"], commit=False)
    delete_records(broker, topic, 4)
    assert read().new == 1
    assert "gone before they were read" in caplog.text
    assert [at for _, at in vantages()] == [0, 1, 2, 4]


def test_records_that_an_open_transaction_withholds_are_counted(broker: Settings, topic: str, read: Any) -> None:
    """The topic seemed to be read to its end."""
    put(broker, topic, *lines_of(0))
    transact(broker, topic, ["open"], commit=None)
    put(broker, topic, *lines_of(1))
    counts = read()
    assert (counts.new, counts.withheld) == (1, 2)


def test_a_topic_is_followed(
    broker: Settings, topic: str, read: Any, vantages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_topic, "WAIT_S", 0.1)
    poll, stopped = OffsetReader.poll, threading.Event()

    def poll_until_stopped(reader: OffsetReader, _: int) -> Any:
        if stopped.is_set():
            raise InterruptedError
        return poll(reader, 50)

    monkeypatch.setattr(OffsetReader, "poll", poll_until_stopped)
    ended: list[BaseException] = []

    def follow() -> None:
        try:
            read(follow=True)
        except InterruptedError as error:
            ended.append(error)

    thread = threading.Thread(target=follow)
    assert read().lines == 0
    put(broker, topic, *lines_of(0))
    thread.start()
    try:
        until(lambda: vantages() == [("amber", 0)])
        put(broker, topic, *lines_of(1))
        until(lambda: vantages() == [("amber", 0), ("amber", 1)])
    finally:
        stopped.set()
        thread.join(WAIT_S)
    assert ended


def test_a_topic_that_does_not_exist_is_named(broker: Settings, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="topic none does not exist"):
        read_topic(PathSettings(run_dir=str(tmp_path)), broker.kafka.clients(), "none")


def test_the_command_of_the_page_reads_a_topic(broker: Settings, tmp_path: Path) -> None:
    (command,) = [
        command
        for block in blocks_of(ROOT / "docs" / "howto" / "node-logs.md")
        for command in block.commands()
        if "--topic" in command
    ]
    _, *arguments = shlex.split(command)
    topic = arguments[arguments.index("--topic") + 1]
    create(broker, topic)
    put(broker, topic, (None, json.dumps({"log": line_of(0).decode(), "kubernetes": {"pod_name": "amber"}}).encode()))
    done = subprocess.run(
        [sys.executable, "-m", "reliable_channel", *arguments],
        cwd=tmp_path, env=environment(broker.with_run_dir(tmp_path)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "Lines: 1. Sightings: 1, new: 1.\n", "")


@pytest.mark.parametrize(
    "arguments", [[], ["a.log", "--topic", "node-logs"], ["a.log", "--follow"], ["a.log", "--node-field", "x"]]
)
def test_either_files_or_a_topic_are_read(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reliable_channel", "evidence", "logs", *arguments],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and "Either files or a topic" in done.stderr
