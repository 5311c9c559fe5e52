"""The development broker as a user has it: whole processes, one real Kafka."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliable_channel.config import Settings, load
from reliable_channel.runtime.broker import BrokerFiles, free_port, running_pid
from reliable_channel.runtime.topics import ensure_topics, topic_configs
from tests.support.waiting import WAIT_S, until

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.slow]


class Cli:
    """``reliable-channel`` with a run directory and a port of its own."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.port = free_port()
        self.environment = os.environ | {
            "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(run_dir),
            "RELIABLE_CHANNEL__KAFKA__BROKER__PORT": str(self.port),
        }

    def __call__(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "reliable_channel", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=180, check=False, **options
        )  # type: ignore[call-overload]

    @property
    def files(self) -> BrokerFiles:
        return BrokerFiles(self.run_dir / "kafka")

    @property
    def pid(self) -> int:
        return int(self.files.pid.read_text(encoding="ascii"))


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path / "run")
    yield cli
    cli("kafka", "stop")


def brokers_of(directory: Path) -> list[str]:
    """The command lines of brokers whose state lies under a directory."""
    lines = []
    for proc in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = proc.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "kafka.Kafka" in line and str(directory) in line:
            lines.append(line)
    return lines


def test_start_status_stop_are_idempotent_and_survive_a_kill(cli: Cli) -> None:
    cli.environment["KAFKA_OPTS"] = "-Xss1m -Dof.the.user='two words'"
    assert cli("kafka", "status").returncode == 3
    started = cli("kafka", "start")
    assert started.returncode == 0, started.stderr
    assert ["-Dof.the.user=two words" in line for line in brokers_of(cli.run_dir)] == [True]
    assert f"127.0.0.1:{cli.port}" in started.stdout
    first = cli.pid

    assert cli("kafka", "start").returncode == 0
    assert cli.pid == first
    assert cli("kafka", "status").returncode == 0
    assert "waku.envelopes: exists" in cli("kafka", "topics").stdout

    os.kill(first, signal.SIGKILL)  # leaves a stale pid file
    while running_pid(cli.files) is not None:
        time.sleep(0.05)
    assert cli("kafka", "status").returncode == 3
    again = cli("kafka", "start")
    assert again.returncode == 0, again.stderr
    assert cli.pid != first
    assert "waku.envelopes: exists" in cli("kafka", "topics").stdout

    assert cli("kafka", "stop").stdout == "Kafka stopped\n"
    assert brokers_of(cli.run_dir) == []
    assert cli("kafka", "stop").stdout == "Kafka was not running\n"
    assert "INFO" in cli.files.log.read_text(encoding="utf-8")


def test_a_pid_file_of_another_process_is_not_believed(cli: Cli) -> None:
    cli.files.home.mkdir(parents=True)
    cli.files.pid.write_text(str(os.getpid()), encoding="ascii")
    assert cli("kafka", "status").returncode == 3
    assert cli("kafka", "stop").stdout == "Kafka was not running\n"


def test_a_taken_port_is_one_sentence(cli: Cli) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", cli.port))
        other.listen()
        done = cli("kafka", "start")
    assert done.returncode == 1
    assert done.stderr.startswith(f"reliable-channel: Port {cli.port} on 127.0.0.1 is taken")
    assert done.stderr.count("\n") == 1
    assert brokers_of(cli.run_dir) == []


def test_a_full_disk_is_one_sentence_and_leaves_no_process(cli: Cli) -> None:
    limited = 1_000_000  # the broker's own files are larger, the ones before it are not
    done = cli("kafka", "start", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limited, limited)))
    assert done.returncode == 1
    assert "The disk is full" in done.stderr
    assert brokers_of(cli.run_dir) == []


def test_an_existing_cluster_is_not_started_but_used(cli: Cli) -> None:
    cli.environment["RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS"] = f"127.0.0.1:{cli.port}"
    started = cli("kafka", "start")
    assert started.returncode == 2
    assert "an existing cluster is in use" in started.stderr
    topics = cli("kafka", "topics")
    assert topics.returncode == 1
    assert topics.stderr.startswith(f"reliable-channel: Kafka at 127.0.0.1:{cli.port} cannot be used")
    assert "Check kafka.bootstrap_servers" in topics.stderr


BLOCK = """
import os, signal, sys
from pathlib import Path
from reliable_channel.config import load
from reliable_channel.runtime.broker import running_broker
with running_broker(load(), Path(sys.argv[1])) as there:
    print("up", flush=True)
    os.kill(os.getpid(), int(sys.argv[2]))
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_block_leaves_no_broker_when_its_process_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BLOCK, str(tmp_path / "kafka"), str(int(number))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.wait(WAIT_S)
    until(lambda: not brokers_of(tmp_path))


def test_the_topics_have_the_settings_the_pipeline_relies_on(broker: Settings) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource

    admin = KafkaAdminClient(**broker.kafka.clients().admin)
    try:
        for topic in (broker.kafka.topics.envelopes, broker.kafka.topics.outgoing):
            described = admin.describe_configs([ConfigResource("TOPIC", topic)])
            for key, value in topic_configs(broker.kafka).items():
                assert f"'{value}'" in str(described) or f'"{value}"' in str(described), (topic, key)
            assert len(admin.describe_topics([topic])[0]["partitions"]) == broker.kafka.topics.partitions
    finally:
        admin.close()


def test_ensuring_topics_again_creates_nothing(broker: Settings) -> None:
    assert ensure_topics(broker.kafka) == []


def test_a_record_has_the_brokers_time_and_ten_megabytes_fit(broker: Settings) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    topic, payload = broker.kafka.topics.outgoing, os.urandom(10_000_000)
    year_2100_ms = 4_102_444_800_000
    before = int(time.time() * 1000)
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all", max_request_size=16 * 1024 * 1024)
    sent = producer.send(topic, payload, key=b"/a/1/b/proto", timestamp_ms=year_2100_ms).get(WAIT_S)
    producer.close()
    consumer = KafkaConsumer(**broker.kafka.clients().consumer, max_partition_fetch_bytes=32 * 1024 * 1024)
    try:
        place = TopicPartition(topic, sent.partition)
        consumer.assign([place])
        consumer.seek(place, sent.offset)
        records = []
        deadline = time.monotonic() + WAIT_S
        while not records and time.monotonic() < deadline:
            records = consumer.poll(timeout_ms=1000).get(place, [])
    finally:
        consumer.close()
    assert records[0].value == payload
    assert before <= records[0].timestamp <= int(time.time() * 1000)


def test_the_fixture_is_on_a_port_of_its_own(broker: Settings) -> None:
    assert broker.kafka.servers != load("local").kafka.servers
