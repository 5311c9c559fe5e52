"""Channels and their commands over the real broker, with the local loop in place of a Waku node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka import KafkaConsumer, TopicPartition

from reliable_channel.channel import (
    AesGcm,
    MessageDelivered,
    MessageReceived,
    ReliableChannel,
    ReliableChannelConfig,
    create_reliable_channel,
)
from reliable_channel.config import Settings
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.runtime.build import kafka_node, make_bridge
from reliable_channel.runtime.participant import ParticipantOptions, participant
from reliable_channel.runtime.topics import ensure_evidence_topic, ensure_topics
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.kafka

TOPIC = "/reliable-channel/1/kafka-tests/proto"


@pytest.fixture(scope="module")
def looped(broker: Settings) -> Iterator[Settings]:
    """The broker with the local loop: what is sent comes back as received."""
    ensure_topics(broker.kafka)
    ensure_evidence_topic(broker)
    loop = make_bridge(broker, loop=True)
    loop.start()
    yield broker
    loop.stop()


class Inbox:
    """What a channel received, to be waited for."""

    def __init__(self, channel: ReliableChannel) -> None:
        self.payloads: list[bytes] = []
        self._changed = threading.Condition()
        channel.on_message_received(self._take)

    def _take(self, event: MessageReceived) -> None:
        with self._changed:
            self.payloads.append(event.message)
            self._changed.notify_all()

    def wait(self, count: int) -> list[bytes]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.payloads) >= count, WAIT_S), self.payloads
            return list(self.payloads)


def test_two_participants_talk_over_kafka_encrypted_with_parity_and_acknowledge(looped: Settings) -> None:
    config = ReliableChannelConfig(
        segmentation=SegmentationConfig(enable_reed_solomon=True),
        encryption=AesGcm(AesGcm.generate_key()),
        process_task_min_elapse_ms=0,
    )
    nodes = [kafka_node(looped), kafka_node(looped)]
    for node in nodes:
        node.start()
    try:
        with (
            create_reliable_channel(nodes[0], "kafka", TOPIC, "alice", config=config) as alice,
            create_reliable_channel(nodes[1], "kafka", TOPIC, "bob", config=config) as bob,
        ):
            to_alice, to_bob = Inbox(alice), Inbox(bob)
            delivered = threading.Event()
            alice.on(MessageDelivered, lambda _: delivered.set())
            payloads = [b"hello", bytes(range(256)) * 4096, b"bye"]
            ids = [alice.send(payload) for payload in payloads]
            assert to_bob.wait(3) == payloads
            bob.send(b"thanks")
            assert to_alice.wait(1) == [b"thanks"]
            assert delivered.wait(WAIT_S)
            assert alice.wait(ids, timeout_s=WAIT_S)
    finally:
        for node in nodes:
            node.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith(("reliable-channel", "kafka-node"))]


def test_a_participant_reports_the_message_that_it_gave_up(looped: Settings, tmp_path: Path) -> None:
    """Any participant over Kafka, not only channels of the API: the tables say *lost by bob* from it."""
    segmentation = replace(looped.segmentation, segment_size_bytes=1_000)
    large, small = (
        looped.model_copy(update={"segmentation": replace(segmentation, max_message_bytes=size)})
        for size in (1_000_000, 1_000)
    )
    consumer = KafkaConsumer(**looped.kafka.clients().consumer, group_id=None)
    consumer.assign([TopicPartition(looped.bridge.evidence_topic, 0)])
    consumer.seek_to_end()
    reports: list[dict[str, Any]] = []
    with (
        participant(small, ParticipantOptions("reports", TOPIC, "bob", tmp_path / "bob.sqlite")) as bob,
        participant(large, ParticipantOptions("reports", TOPIC, "alice", tmp_path / "alice.sqlite")) as alice,
    ):
        bob.start()
        alice.start()
        alice.channel.send(b"too large for bob" * 100)
        end = time.monotonic() + WAIT_S
        while not reports and time.monotonic() < end:
            records = [json.loads(each.value) for of in consumer.poll(200).values() for each in of]
            reports = [each for each in records if each["kind"] == "loss" and each["channel_id"] == "reports"]
    consumer.close()
    (report,) = reports
    assert (report["reported_by"], report["sender_id"], report["reason"]) == ("bob", "alice", "over_message_limit")


class Shell:
    """The command line with a configuration of its own."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        directory.mkdir()
        self.config = directory / "local.yaml"
        content = {
            "paths": {"run_dir": str(directory)},
            "kafka": {"bootstrap_servers": settings.kafka.servers},
            "sds": {"sync_min_interval_ms": 1_500},
        }
        self.config.write_text(yaml.safe_dump(content))

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "reliable_channel", "--config", str(self.config), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def run(self, *arguments: str, code: int = 0, given: str | None = None) -> str:
        process = self.start(*arguments, stdin=subprocess.PIPE)
        out, err = process.communicate(given, timeout=WAIT_S)
        assert process.returncode == code, err
        return out

    def listen(self, *arguments: str) -> subprocess.Popen[str]:
        """A listener that is ready: it listens from now."""
        process = self.start("listen", *arguments)
        assert process.stderr is not None
        assert "Listening" in process.stderr.readline()
        return process


@pytest.fixture
def shells(looped: Settings, tmp_path: Path) -> tuple[Shell, Shell]:
    return Shell(looped, tmp_path / "alice"), Shell(looped, tmp_path / "bob")


@pytest.mark.e2e
def test_texts_files_and_standard_input_arrive_at_a_listener(shells: tuple[Shell, Shell], tmp_path: Path) -> None:
    alice, bob = shells
    listener = bob.listen("shell-1", "--count", "5", "--seconds", str(WAIT_S))
    (tmp_path / "file").write_bytes(b"from a file\x1b[2J")
    alice.run("send", "shell-1", "one", "two", "--file", str(tmp_path / "file"), "--sender", "alice")
    alice.run("send", "shell-1", "--lines", "--sender", "alice", given="three\n\nfour\n")
    out, _ = listener.communicate(timeout=WAIT_S)
    assert listener.returncode == 0
    assert out.splitlines() == ["alice: one", "alice: two", "alice: from a file\\x1b[2J", "alice: three", "alice: four"]


@pytest.mark.e2e
def test_waiting_for_delivery_and_json_and_status(shells: tuple[Shell, Shell]) -> None:
    alice, bob = shells
    listener = bob.start("listen", "shell-2", "--json", "--seconds", str(WAIT_S), stdin=subprocess.DEVNULL)
    out = alice.run("send", "shell-2", "--stdin", "--wait", "delivered", "--json", given="a whole message")
    events = [json.loads(line) for line in out.splitlines()]
    assert [e["event"] for e in events if e["event"] != "channel-problem"] == [
        "reliable:message:sent",
        "reliable:message:delivered",
    ]
    listener.send_signal(signal.SIGINT)
    heard = [json.loads(line) for line in listener.communicate(timeout=WAIT_S)[0].splitlines()]
    assert listener.returncode == 130
    assert [e["text"] for e in heard if e["event"] == "reliable:message:received"] == ["a whole message"]
    (status,) = (json.loads(line) for line in alice.run("channel", "status", "shell-2", "--json").splitlines())
    assert status["sends"]["delivered"] == 1
    assert status["unacknowledged_segments"] == 0
    assert not status["in_use"]
    (status,) = (json.loads(line) for line in bob.run("channel", "status", "shell-2", "--json").splitlines())
    assert status["received"] == 1


@pytest.mark.e2e
def test_exit_codes_say_what_happened(shells: tuple[Shell, Shell]) -> None:
    alice, _ = shells
    alice.run("channel", "status", "nothing", code=3)
    alice.run("send", "x", code=2)
    alice.run("send", "x", "", code=2)
    alice.run("send", "x", "text", "--wait", "forever", code=2)
    alice.run("send", "x", "text", "--wait", "delivered", "--timeout", "2", code=1)
    alice.run("listen", "x", "--count", "1", "--seconds", "1", code=1)


@pytest.mark.e2e
@pytest.mark.faults
def test_a_sender_killed_or_interrupted_goes_on_where_it_stopped(shells: tuple[Shell, Shell]) -> None:
    alice, bob = shells
    for end in (signal.SIGINT, signal.SIGKILL):
        name = f"shell-{end.name}"
        sender = alice.start("send", name, "kept", "--wait", "delivered", "--json", stdin=subprocess.DEVNULL)
        assert sender.stdout is not None
        while "message:sent" not in sender.stdout.readline():
            pass
        os.kill(sender.pid, end)
        sender.communicate(timeout=WAIT_S)
        listener = bob.listen(name, "--count", "2", "--seconds", str(WAIT_S))
        alice.run("send", name, "and on")
        out, _ = listener.communicate(timeout=WAIT_S)
        assert [line.split(": ")[1] for line in out.splitlines()] == ["kept", "and on"]


@pytest.mark.e2e
@pytest.mark.faults
def test_a_listener_killed_while_its_output_is_not_read_loses_nothing(shells: tuple[Shell, Shell]) -> None:
    """A pipe that nobody reads blocks the callback. What was read behind it from Kafka is in memory only."""
    alice, bob = shells
    texts = [f"{number:02} " + "x" * 40_000 for number in range(20)]
    listener = bob.listen("shell-killed", "--seconds", str(WAIT_S))
    assert listener.stdout is not None
    alice.run("send", "shell-killed", *texts[:4], "--sender", "alice")
    printed = [listener.stdout.readline()]  # the others fill the pipe, and one of them blocks
    alice.run("send", "shell-killed", *texts[4:], "--sender", "alice")
    time.sleep(3)  # whatever is read and committed by then
    listener.kill()
    printed += listener.stdout.read().splitlines(keepends=True)
    again = bob.start("listen", "shell-killed", "--seconds", str(WAIT_S), stdin=subprocess.DEVNULL)
    alice.run("send", "shell-killed", "end", "--sender", "alice")
    assert again.stdout is not None
    while printed[-1] != "alice: end\n":
        printed.append(again.stdout.readline())
    again.kill()
    again.communicate(timeout=WAIT_S)
    assert [text[:2] for text in texts if f"alice: {text}\n" not in printed] == []
