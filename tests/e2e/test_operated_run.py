"""The pipeline as an operator runs it: a continuous run on a real broker, fed by a node of the Messaging API, watched,
asked again of a store, maintained while it runs, stopped, and judged at the end.

One conversation serves all of it. Alice sends through a Waku node with the evidence topic on: in the open, on a sealed
topic, more than her rate limit lets through, and once to a node that refuses. Bob is a stranger, of whose messages two
reach nobody but the store.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from kafka import KafkaConsumer, TopicPartition

from reliable_channel.channel import AesGcm, ReliableChannel, ReliableChannelConfig, create_reliable_channel
from reliable_channel.channel.events import ChannelEvent, MessageDelayed, MessageSent
from reliable_channel.config import Settings, load
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.sds import SdsChannel
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.lake.read import rows_of
from reliable_channel.messaging.channel_evidence import ChannelEvidence
from reliable_channel.messaging.events import CustomEvent, EventName
from reliable_channel.messaging.node import MessagingNode
from reliable_channel.runtime.broker import free_port
from reliable_channel.runtime.messaging import messaging_node
from reliable_channel.runtime.topics import ensure_evidence_topic, ensure_topics
from tests.support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNode
from tests.support.waiting import WAIT_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
OPEN, SEALED = "/reliable-channel/1/operated/proto", "/sealed/1/operated/proto"
DAY_MS = 24 * 3_600_000
"""A rate-limit epoch that no run outlasts."""
SECRET = b"nobody but the members may read this "
SMALL = SegmentationConfig(segment_size_bytes=512)


@dataclass
class Operated:
    """The configuration as files: one without store nodes for the run, one that asks the store."""

    settings: Settings
    alone: Path
    asking: Path

    def start(self, config: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "reliable_channel", "--config", str(config), *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, config: Path, *arguments: str) -> str:
        return self.finished(self.start(config, *arguments))

    def job(self, name: str, *arguments: str) -> str:
        command = [sys.executable, str(ROOT / "jobs" / f"{name}.py"), "--config", str(self.asking), *arguments]
        return self.finished(
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )

    @staticmethod
    def finished(process: subprocess.Popen[str]) -> str:
        try:
            said, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, said
        return said

    def rows(self, table: str) -> list[dict[str, Any]]:
        try:
            return rows_of(DeltaTable(self.settings.paths.table(table)))
        except TableNotFoundError:
            return []

    def delivered(self) -> list[bytes]:
        return [row["payload"] for row in self.rows("delivered_messages") if row["content_topic"] == OPEN]

    def asked_for(self) -> set[str]:
        """SDS ids."""
        return {row["sds_id"] for row in self.rows("refetch_requests")}

    def until_delivered(self, payload: bytes, process: subprocess.Popen[str]) -> None:
        until(lambda: payload in self.delivered(), f"{payload!r} was not delivered", process=process)


@pytest.fixture
def fake() -> Iterator[FakeWakuNode]:
    with FakeWakuNode("nwaku") as node:
        yield node


@pytest.fixture
def operated(broker: Settings, fake: FakeWakuNode, tmp_path: Path) -> Operated:
    """Topics, keys and configuration files."""
    key = tmp_path / "sealed.key"
    key.write_text(AesGcm.generate_key().hex())
    key.chmod(0o600)
    content: dict[str, Any] = {
        "paths": {"run_dir": str(tmp_path / "run")},
        "kafka": {
            "bootstrap_servers": broker.kafka.servers,
            "topics": {"envelopes": "operated.envelopes", "outgoing": "operated.outgoing", "partitions": 2},
        },
        "bridge": {"evidence_topic": "operated.evidence"},
        "spark": {"master": "local[2]", "shuffle_partitions": 2, "trigger_interval_ms": 2_000, "driver_memory": "1g"},
        "pipeline": {"vacuum_retention_ms": 60_000, "verdict_interval_ms": 20_000},
        "metrics": {"port": free_port()},
        "channels": {
            "content_topics": [
                {"content_topic": SEALED, "decryption_key_files": [str(key)], "store_plaintext": False},
                OPEN,
            ]
        },
        "node": {"url": fake.url, "mode": "edge", "pubsub_topic": PUBSUB_TOPIC},
        "api": {"transport": "waku-rest"},
        "alerts": {"rules": str(tmp_path / "alerts.yaml")},
        "messaging": {"mode": "edge", "cluster_id": 16, "shards": [32], "bootstrap_nodes": []},
    }
    loss = {"alert": "loss", "kind": "loss_rate", "above": 0.01, "window_ms": 7 * DAY_MS, "at_least": 1}
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump({"rules": [loss]}))
    alone, asking = tmp_path / "alone.yaml", tmp_path / "asking.yaml"
    alone.write_text(yaml.safe_dump(content))
    asking.write_text(yaml.safe_dump(content | {"store": {"nodes": [{"url": fake.url}]}}))
    settings = load(str(asking))
    ensure_topics(settings.kafka)
    ensure_evidence_topic(settings)
    return Operated(settings, alone, asking)


class Alice:
    """A participant on a node of the Messaging API, whose own records go to the evidence topic."""

    def __init__(self, settings: Settings, node: MessagingNode) -> None:
        self._settings, self._node = settings, node
        self.channels: dict[str, tuple[ReliableChannel, ChannelEvidence]] = {}
        self.events: list[ChannelEvent] = []
        self.refused: list[CustomEvent] = []
        node.events.add_event_listener(EventName.MESSAGE_ERROR, self.refused.append)

    def open(self, channel_id: str, topic: str = OPEN, **changes: Any) -> None:
        config = replace(ReliableChannelConfig(segmentation=SMALL, auto_start=False), **changes)
        channel = create_reliable_channel(self._node.port, channel_id, topic, "alice", config=config)
        evidence = ChannelEvidence(channel, self._node.pubsub_topic_for(topic), self._node.feed)
        evidence.follow()
        channel.on(ChannelEvent, self.events.append)
        channel.start()
        self.channels[channel_id] = channel, evidence

    def send(self, channel_id: str, payload: bytes) -> None:
        channel, evidence = self.channels[channel_id]
        evidence.record_queued(channel.send(payload), payload, time.time_ns() // 1_000_000)

    def close(self) -> None:
        for channel, _ in self.channels.values():
            channel.close()

    def count(self, kind: type[ChannelEvent]) -> int:
        return sum(isinstance(one, kind) for one in self.events)


@contextmanager
def alice_on(settings: Settings) -> Iterator[Alice]:
    with messaging_node(settings) as node:
        alice = Alice(settings, node)
        try:
            yield alice
        finally:
            alice.close()


class Bob:
    """A stranger in the mesh."""

    def __init__(self, fake: FakeWakuNode) -> None:
        self._fake, self._channel = fake, SdsChannel("strangers", "bob")

    def says(self, text: bytes, only_to_the_store: bool = False) -> str:
        """Its SDS id."""
        now = time.time_ns() // 1_000_000
        (message,) = self._channel.send(text, now).outgoing
        envelope = WakuMessage(message.data, OPEN, timestamp=now * 1_000_000)
        self._channel.set_retrieval_hint(message.message.message_id, message_hash(PUBSUB_TOPIC, envelope))
        if only_to_the_store:
            self._fake.network.archive.add(PUBSUB_TOPIC, envelope)
        else:
            assert self._fake.network.publish(PUBSUB_TOPIC, envelope)
        return message.message.message_id


def values_of(settings: Settings, topic: str) -> list[bytes]:
    """The records that the topic holds now."""
    consumer = KafkaConsumer(**settings.kafka.clients().consumer, auto_offset_reset="earliest")
    try:
        places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(places)
        end, found = consumer.end_offsets(places), []
        while any(consumer.position(place) < end[place] for place in places):
            found += [record.value for batch in consumer.poll(timeout_ms=500).values() for record in batch]
        return found
    finally:
        consumer.close()


def metrics(settings: Settings) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{settings.metrics.port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_an_operated_run_from_first_message_to_verdicts(operated: Operated, fake: FakeWakuNode) -> None:
    settings = operated.settings
    key = settings.channels.content_topics[0].decryption_key_files
    process = operated.start(operated.alone, "run", "--continuous")
    try:
        with alice_on(settings) as alice:
            alice.open("lobby")
            alice.open("members", SEALED, encryption=AesGcm.from_files(key))
            alice.open("refused")
            until(lambda: ("POST", "/filter/v2/subscriptions") in fake.requests, "the node subscribed to nothing")
            bob = Bob(fake)
            sent = [b"hello", b"a long one" * 150]
            for payload in sent:
                alice.send("lobby", payload)
            alice.send("members", SECRET + b"1")
            alice.send("members", SECRET * 40)
            until(lambda: alice.count(MessageSent) == 4, "not all that may be sent was sent")
            fake.faults.status, fake.faults.paths = 400, "lightpush"
            alice.send("refused", b"never sent")
            until(lambda: alice.refused, "the refusal was not noticed")
            alice.channels.pop("refused")[0].close()
            fake.faults.status = None

            # One of bob's messages is missing; a job that is run once asks the store for it.
            bob.says(b"bob's first")
            # Said within one millisecond the next might come first, and who is heard first is asked for nothing before.
            operated.until_delivered(b"bob's first", process=process)
            missing = bob.says(b"only the store has this", only_to_the_store=True)
            bob.says(b"names what is missing")
            # By its id: a sync message may have named what the rate limit holds back, and that is asked for as well.
            until(lambda: missing in operated.asked_for(), "the missing message was not asked for", process=process)
            assert "asked for 1 messages and 0 gaps, got 1" in operated.job("refetch", "--once")
            operated.until_delivered(b"only the store has this", process=process)
            until(lambda: len(operated.rows("sender_events")) > 5, "the run took no evidence", process=process)
            assert operated.job("evidence")
            taken = len(operated.rows("sender_events"))
            assert taken > 5

            # Maintenance beside the run, which goes on delivering what is said meanwhile: of what the streams read.
            tables = [f"--table={name}" for name in ("envelopes", "sds_messages", "ordered_sds_messages", "deliveries")]
            maintenance = operated.start(operated.alone, "maintain", *tables)
            said = 0
            while maintenance.poll() is None:
                sent.append(b"during maintenance %d" % said)
                alice.send("lobby", sent[-1])
                operated.until_delivered(sent[-1], process=process)
                said += 1
            report = operated.finished(maintenance)
            assert said > 0
            assert "envelopes: 0 rows deleted" in report
            operated.until_delivered(sent[-1], process=process)

            # From here on the node has a limit, which all its channels share; sync messages are free of it.
            limit = RateLimitConfig(enabled=True, messages_per_epoch=1, epoch_size_ms=DAY_MS, counts="messages")
            alice.open("limited", rate_limit=limit)
            alice.send("limited", b"within the limit")
            alice.send("limited", b"over the limit")
            until(lambda: alice.count(MessageDelayed) == 1, "the rate limit held nothing back")
            operated.until_delivered(b"within the limit", process=process)

            state = json.loads(operated.run(operated.alone, "status", "--json"))
            assert {job["job"] for job in state["jobs"]} == {"ingest", "reassembly", "ack"}
            series = metrics(settings)
            for query in ("ingest", "reassembly", "ack"):
                assert series[f'reliable_channel_query_running{{query="{query}"}}'] == 1
                assert series[f'reliable_channel_query_rows_total{{metric="input_rows",query="{query}"}}'] > 0
            until(lambda: operated.rows("delivery_status"), "nothing was judged while it ran", process=process)
            until(
                lambda: metrics(settings).get('reliable_channel_messages{verdict="delivered"}', 0) >= 3,
                "no verdict was counted for Prometheus",
                process=process,
            )
            assert time.time() - metrics(settings)["reliable_channel_last_record_timestamp_seconds"] < WAIT_S
            process.send_signal(signal.SIGTERM)
            assert "Stopped." in operated.finished(process)
            bob.says(b"the second that only the store has", only_to_the_store=True)
            bob.says(b"names the second")
            topic = settings.kafka.topics.envelopes
            until(
                lambda: any(b"names the second" in value for value in values_of(settings, topic)), "it did not arrive"
            )
    finally:
        process.kill()

    # The next run asks the store by itself, takes the evidence that came since, and judges.
    report = operated.run(operated.asking, "run", "--once", "--verdicts", "--close-after-ms", "3600000")
    assert "got 1 envelopes" in report
    strangers = [
        b"bob's first",
        b"only the store has this",
        b"names what is missing",
        b"the second that only the store has",
        b"names the second",
    ]
    assert Counter(operated.delivered()) == Counter([*sent, *strangers, b"within the limit"])
    fetched = [row for row in operated.rows("envelopes") if row["source"] == "store"]
    assert len(fetched) == 2
    by_hash = [row["outcome"] for row in operated.rows("store_presence") if row["purpose"] == "refetch"]
    assert by_hash == ["present"] * 2
    told = operated.rows("sender_events")
    assert len(told) == len(values_of(settings, settings.bridge.evidence_topic)), "every record of evidence once"

    # What is sealed is known by hash and size, and stands nowhere in the clear.
    sealed = [row for row in operated.rows("delivered_messages") if row["content_topic"] == SEALED]
    assert {row["payload"] for row in sealed} == {None}
    expected = [SECRET + b"1", SECRET * 40]
    assert {(row["entire_message_hash"], row["payload_bytes"]) for row in sealed} == {
        (keccak256(payload), len(payload)) for payload in expected
    }
    for table in (
        "envelopes",
        "sds_messages",
        "ordered_sds_messages",
        "reassembled_messages",
        "delivered_messages",
        "quarantine",
    ):
        for row in operated.rows(table):
            assert not any(isinstance(value, bytes) and SECRET in value for value in row.values()), table

    keys = [(row["channel_id"], row["message_key"]) for row in operated.rows("delivery_status")]
    assert len(keys) == len(set(keys)), "one row per message, however many told of it"
    verdicts = {row["entire_message_hash"]: (row["verdict"], row["cause"]) for row in operated.rows("delivery_status")}
    assert verdicts[keccak256(b"over the limit")] == ("missing", "rate_limited")
    assert verdicts[keccak256(b"never sent")] == ("missing", "never_sent")
    for payload in (*sent, *expected, *strangers, b"within the limit"):
        assert verdicts[keccak256(payload)][0] == "delivered", payload
    raised = {json.loads(row["subject"])[-1] for row in operated.rows("alerts") if row["state"] == "raised"}
    assert raised == {"limited", "refused"}, "the alerts follow from the verdicts"
