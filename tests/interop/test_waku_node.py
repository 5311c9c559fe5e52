"""Participants, the published light node, the bridge and the jobs on running go-waku nodes.

``make test-node`` builds go-waku and runs these; skipped with a reason without it."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliable_channel.channel import (
    MessageDelivered,
    MessageDeliveryError,
    MessageReceived,
    MessageSendError,
    ReliableChannel,
    ReliableChannelConfig,
    SegmentQueued,
    SegmentSent,
    create_reliable_channel,
)
from reliable_channel.config import Settings, StoreNodeSettings
from reliable_channel.core.sds import Retransmission, SdsParameters
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, message_hash
from reliable_channel.lake import tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.pipeline.runner.run import run_once
from reliable_channel.runtime.build import kafka_node, make_bridge
from reliable_channel.transport.base import Node, Source
from reliable_channel.transport.bridge import Bridge
from reliable_channel.transport.bridge_inbound import REJOIN_MAX_S
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.kafka_consumer import OffsetReader
from reliable_channel.transport.kafka_records import KafkaEnvelope, read_record
from reliable_channel.transport.sharding import NamedTopic
from reliable_channel.transport.waku_api import WakuApi
from reliable_channel.transport.waku_rest import Pace, WakuRestNode
from tests.support.environment import environment
from tests.support.waiting import WAIT_S, until
from tests.support.waku_process import CLUSTER_ID, PROGRAM, PUBSUB_TOPIC, SHARD, WakuProcess

pytestmark = [
    pytest.mark.waku,
    pytest.mark.kafka,
    pytest.mark.skipif(not PROGRAM, reason="no Waku node was built: make test-node"),
]

HERE = Path(__file__).parent
NODE = shutil.which("node")
YAMUX = HERE / "node_modules" / "@chainsafe" / "libp2p-yamux" / "package.json"
CHANNEL, TOPIC = "interop", "/reliable-channel/1/running-node/proto"


def soon(**changes: Any) -> ReliableChannelConfig:
    """A channel with short waits, and enough of them for a busy machine."""
    sds = replace(
        SdsParameters(),
        acknowledgement_timeout_ms=3_000,
        retransmission=Retransmission.FIXED,
        max_retransmissions=60,
        sync_min_interval_ms=2_000,
        causal_history_size=10,
        before_observation=False,
    )
    return ReliableChannelConfig(sds=sds, query_on_connect=False, process_task_min_elapse_ms=100, **changes)


@dataclass
class Participant:
    """One of our channels over the REST interface of a node, with what it was told."""

    channel: ReliableChannel
    received: list[bytes] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    delivered: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    told: list[SegmentQueued | SegmentSent] = field(default_factory=list)

    @classmethod
    def on(cls, node: WakuProcess, sender: str, stack: ExitStack, topic: str = TOPIC) -> Participant:
        port = WakuRestNode(WakuApi(BoundedHttp(node.url)), NamedTopic(PUBSUB_TOPIC), pace=Pace(poll_s=0.05))
        return cls.over(port, sender, stack, topic)

    @classmethod
    def over(cls, port: Node, sender: str, stack: ExitStack, topic: str) -> Participant:
        port.start()
        stack.callback(port.stop)
        found = cls(stack.enter_context(create_reliable_channel(port, CHANNEL, topic, sender, config=soon())))
        found.channel.on(MessageReceived, lambda event: found.received.append(event.message))
        found.channel.on(MessageDelivered, lambda event: found.delivered.add(event.request_id))
        found.channel.on(MessageSendError, lambda event: found.errors.append(event.error))
        found.channel.on(MessageDeliveryError, lambda event: found.errors.append(event.error))
        for kind in (SegmentQueued, SegmentSent):
            found.channel.on(kind, found.told.append)
        return found

    def send(self, payload: bytes) -> None:
        self.sent.append(self.channel.send(payload))


class LightNode:
    """A process with the published ``ReliableChannel`` on the published light node (``waku_light_node.mjs``)."""

    def __init__(self, node: WakuProcess) -> None:
        assert NODE is not None
        self.received: list[bytes] = []
        self.sent: list[str] = []
        self.acknowledged: set[str] = set()
        self.ready = threading.Event()
        arguments = [node.address(websocket=True), str(CLUSTER_ID), str(SHARD), CHANNEL, "light", TOPIC]
        self._process = subprocess.Popen(
            [NODE, str(HERE / "waku_light_node.mjs"), *arguments],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def send(self, payload: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"what": "send", "payload": payload.hex()}) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._reader.join()
        self._process.communicate()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            match said["what"]:
                case "ready":
                    self.ready.set()
                case "received":
                    self.received.append(bytes.fromhex(said["payload"]))
                case "acknowledged":
                    self.acknowledged.add(said["id"])
                case "sent":
                    self.sent.append(said["id"])


@dataclass
class Conversation:
    """What was said over three nodes, by whom, and the settings whose tables hold it."""

    settings: Settings
    said: dict[str, list[bytes]]
    alice: Participant
    bob: Participant
    light: LightNode | None


@pytest.fixture(scope="class")
def conversation(nodes: list[WakuProcess], settings_of: Callable[[WakuProcess], Settings]) -> Iterator[Conversation]:
    """The bridge and the light node at the first node, Alice at the second, Bob at the third."""
    here = settings_of(nodes[0])
    pieces = random.Random(17)
    said = {
        "alice": [b"hello from alice", pieces.randbytes(350_000)],
        "bob": [b"hello from bob", pieces.randbytes(250_000)],
        "light": [],
    }
    with ExitStack() as stack:
        bridge = make_bridge(here)
        bridge.start()
        stack.callback(bridge.stop)
        until(lambda: bridge.status().reachable, "the bridge reads")
        alice, bob = (Participant.on(node, name, stack) for node, name in zip(nodes[1:], ("alice", "bob"), strict=True))
        light = None
        if NODE is not None and YAMUX.exists():
            light = LightNode(nodes[0])
            stack.callback(light.close)
            until(light.ready.is_set, "the light node is connected")
            said["light"] = [b"hello from the light node", b"and again"]
        for participant, name in ((alice, "alice"), (bob, "bob"), (light, "light")):
            for payload in said[name]:
                assert participant is not None
                participant.send(payload)
        yield Conversation(here, said, alice, bob, light)
        assert bridge.failure is None


def others(conversation: Conversation, name: str) -> Counter[bytes]:
    return Counter(payload for who, payloads in conversation.said.items() if who != name for payload in payloads)


class TestConversation:
    """What these share ends with them: two bridges at one node take each other's envelopes."""

    def test_participants_on_two_nodes_receive_everything_with_segments(self, conversation: Conversation) -> None:
        for participant, name in ((conversation.alice, "alice"), (conversation.bob, "bob")):
            expected = others(conversation, name)
            until(lambda p=participant, e=expected: len(p.received) >= e.total(), f"{name} receives all")  # type: ignore[misc]
            assert Counter(participant.received) == expected

    def test_participants_on_two_nodes_learn_that_everything_was_delivered(self, conversation: Conversation) -> None:
        for participant in (conversation.alice, conversation.bob):
            until(lambda p=participant: p.delivered >= set(p.sent), "all is delivered")  # type: ignore[misc]
            assert participant.errors == []

    @pytest.mark.skipif(
        NODE is None or not YAMUX.exists(), reason="the light node needs Node and npm ci in tests/interop"
    )
    def test_the_published_light_node_takes_part_over_a_websocket(self, conversation: Conversation) -> None:
        light = conversation.light
        assert light is not None
        # Its package hands over segments as they are: our segmentation is not part of it.
        whole = {payload for payload in others(conversation, "light") if len(payload) < 1_000}
        until(lambda: set(light.received) >= whole, "the light node receives what is not segmented")
        until(lambda: len(light.sent) == 2 and light.acknowledged >= set(light.sent), "the light node is acknowledged")

    def test_what_the_nodes_relayed_is_in_the_tables(self, spark: SparkSession, conversation: Conversation) -> None:
        self.test_participants_on_two_nodes_receive_everything_with_segments(conversation)
        here = conversation.settings
        run_once(spark, here)
        rows = [row for row in rows_of(open_table(here.paths, tables.DELIVERIES)) if row["row_kind"] == "message"]
        found = Counter((row["sender_id"], bytes(row["entire_message_hash"])) for row in rows)
        assert found == Counter(
            (name, keccak256(payload)) for name, payloads in conversation.said.items() for payload in payloads
        )
        assert rows_of(open_table(here.paths, tables.QUARANTINE)) == []


class Talker:
    """Publishes numbered envelopes at a node on a content topic of its own, and remembers which the node took."""

    def __init__(self, node: WakuProcess) -> None:
        self._api = WakuApi(BoundedHttp(node.url))
        self.topic = f"/reliable-channel/1/plain-{time.time_ns()}/proto"
        self.published: set[bytes] = set()

    def talk(self, count: int) -> None:
        for _ in range(count):
            payload = b"%d" % len(self.published)
            message = WakuMessage(payload, self.topic, timestamp=time.time_ns(), meta=RELIABLE_CHANNEL_META)
            until(lambda m=message: self._api.relay_publish(PUBSUB_TOPIC, m).reason is None, "the node publishes")  # type: ignore[misc]
            self.published.add(payload)

    def in_kafka(self, settings: Settings) -> Counter[bytes]:
        """Payloads of its envelopes in the envelopes topic, with how often they are there."""
        return Counter(one.message.payload for one in envelopes(settings, self.topic))


def envelopes(settings: Settings, content_topic: str) -> list[KafkaEnvelope]:
    """What the envelopes topic holds of a content topic, in its order. What a store gives for a gap may hold others."""
    reader = OffsetReader(settings.kafka.clients(), settings.kafka.topics.envelopes, None, "earliest")
    found: list[KafkaEnvelope] = []
    while records := reader.poll(2_000):
        read = [read_record(record.value, record.headers) for record in records]
        found += [one for one in read if not isinstance(one, Malformed) and one.message.content_topic == content_topic]
    reader.close()
    return found


def gaps_told(settings: Settings) -> list[dict[str, Any]]:
    """What the bridge said of gaps, in order."""
    reader = OffsetReader(settings.kafka.clients(), settings.bridge.evidence_topic, None, "earliest")
    found: list[dict[str, Any]] = []
    while records := reader.poll(2_000):
        found += [json.loads(record.value or b"{}") for record in records]
    reader.close()
    return [one for one in found if one["kind"] == "gap"]


@contextmanager
def bridging(settings: Settings) -> Iterator[Bridge]:
    """A bridge that reads its node."""
    bridge = make_bridge(settings)
    bridge.start()
    try:
        until(lambda: bridge.status().reachable, "the bridge reads")
        yield bridge
    finally:
        bridge.stop()
    assert bridge.failure is None


@pytest.fixture
def command() -> Iterator[Callable[[Settings], subprocess.Popen[str]]]:
    """Starts ``reliable-channel bridge`` as a process of its own; none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(settings: Settings) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-m", "reliable_channel", "bridge"]
        process = subprocess.Popen(arguments, env=environment(settings), stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Bridge between")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_kills_of_the_bridge_and_of_its_node_lose_nothing_that_the_store_has(
    nodes: list[WakuProcess],
    settings_of: Callable[[WakuProcess], Settings],
    command: Callable[[Settings], subprocess.Popen[str]],
) -> None:
    first, second, third = nodes
    here = settings_of(first)
    talker = Talker(second)
    process = command(here)
    state = Path(here.paths.run_dir) / "bridge" / "state.json"
    until(state.exists, "the bridge reads")
    talker.talk(20)
    process.kill()
    process.wait(WAIT_S)
    talker.talk(20)
    process = command(here)
    talker.talk(5)
    until(lambda: set(talker.in_kafka(here)) >= talker.published, "what came while the bridge was dead is there")
    first.kill()
    first.start()
    second.connect(first)
    third.connect(first)
    talker.talk(20)
    until(lambda: set(talker.in_kafka(here)) >= talker.published, "the bridge reads the restarted node")
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 143
    assert talker.in_kafka(here) == Counter(talker.published)  # what Store v1 gave without meta is not there twice


def test_coming_and_going_bridges_leave_the_node_its_shard(
    nodes: list[WakuProcess], settings_of: Callable[[WakuProcess], Settings]
) -> None:
    first, second, third = nodes
    here = settings_of(third)
    talker = Talker(second)
    for number in range(8):
        bridge = make_bridge(here)
        bridge.start()
        until(lambda b=bridge: b.status().reachable, f"bridge {number} reads")  # type: ignore[misc]
        talker.talk(2)
        bridge.stop()
        assert bridge.failure is None
    until(lambda: third.count_stored(talker.topic) == 16, "the node still stores what it hears")
    until(lambda: third.sees(first), "it is still of the shard")
    bridge = make_bridge(here)
    bridge.start()
    until(lambda: set(talker.in_kafka(here)) >= talker.published, "and gives all of it to the last bridge")
    node = kafka_node(here)
    node.start()
    node.send(WakuMessage(b"out", talker.topic))
    until(lambda: bridge.status().dispatched == 1, "which can publish")
    node.stop()
    bridge.stop()


def test_a_participant_over_kafka_is_told_what_the_node_behind_the_bridge_took(
    nodes: list[WakuProcess], settings_of: Callable[[WakuProcess], Settings]
) -> None:
    topic = "/reliable-channel/1/over-kafka/proto"
    here = settings_of(nodes[0])
    pieces = random.Random(18)
    to_bob, to_alice = [b"over kafka", pieces.randbytes(250_000)], [b"over http", pieces.randbytes(150_000)]
    with bridging(here), ExitStack() as stack:
        alice = Participant.over(kafka_node(here), "alice", stack, topic)
        bob = Participant.on(nodes[1], "bob", stack, topic)
        for one, payloads in ((alice, to_bob), (bob, to_alice)):
            for payload in payloads:
                one.send(payload)
        for one, other in ((alice, to_alice), (bob, to_bob)):
            until(lambda o=one, e=other: len(o.received) >= len(e), "everything is received")  # type: ignore[misc]
            assert Counter(one.received) == Counter(other)
            until(lambda o=one: o.delivered >= set(o.sent), "everything is delivered")  # type: ignore[misc]
            assert one.errors == []
        until(lambda: isinstance(alice.told[-1], SegmentSent), "the last segment is told sent")
    firsts: dict[str, type] = {}
    for event in alice.told:
        firsts.setdefault(event.sds_id, type(event))
    assert set(firsts.values()) == {SegmentQueued}
    dispatched = envelopes(here, topic)
    gone = {message_hash(one.pubsub_topic, one.message) for one in dispatched if one.source is Source.SENDER}
    assert gone >= {event.message_hash for event in alice.told if isinstance(event, SegmentSent)}


def test_a_bridge_reads_again_soon_after_its_node_is_back_and_has_one_gap(
    nodes: list[WakuProcess], settings_of: Callable[[WakuProcess], Settings]
) -> None:
    first, _, third = nodes
    here = settings_of(third)
    with bridging(here) as bridge:
        third.kill()
        until(lambda: not bridge.status().reachable, "the bridge notices")
        time.sleep(3 * REJOIN_MAX_S)  # by then its waits are the longest
        third.start()
        back = time.monotonic()
        until(lambda: bridge.status().reachable, "the bridge reads again")
        assert time.monotonic() - back < REJOIN_MAX_S + 8  # the rest is for a busy machine
        until(lambda: bridge.status().open_gaps == 0, "the store of the node fills the gap")
    told = gaps_told(here)
    assert len({gap["name"] for gap in told}) == 1
    assert {gap["cause"] for gap in told} == {"node_unreachable"}
    # Its own store is all there is, and was away as well.
    assert (told[0]["status"], told[-1]["status"]) == ("open", "unfilled")
    assert {*told[-1]["stores"].values()} == {"was_unreachable"}
    third.connect(first)


def test_a_node_that_hangs_is_said_and_nothing_is_lost_that_a_store_has(
    nodes: list[WakuProcess], settings_of: Callable[[WakuProcess], Settings]
) -> None:
    first, second, third = nodes
    here = settings_of(third)
    stores = [StoreNodeSettings(url=node.url) for node in (third, first)]
    here = here.model_copy(
        update={
            "node": here.node.model_copy(update={"timeout_ms": 1_000}),
            "store": here.store.model_copy(update={"nodes": stores}),
        }
    )
    talker = Talker(second)
    with bridging(here) as bridge:
        talker.talk(5)
        with third.stop():
            until(lambda: not bridge.status().reachable, "the bridge notices")
            assert here.node.url in bridge.status().fault
            talker.talk(20)
        until(lambda: bridge.status().reachable, "the bridge reads again")
        assert bridge.status().fault == ""
        until(lambda: set(talker.in_kafka(here)) >= talker.published, "what came while the node hung is there")


def test_envelopes_of_one_timestamp_keep_the_order_in_which_the_node_took_them(
    nodes: list[WakuProcess], settings_of: Callable[[WakuProcess], Settings]
) -> None:
    topic = "/reliable-channel/1/one-time/proto"
    here = settings_of(nodes[0])
    api, at = WakuApi(BoundedHttp(nodes[0].url)), time.time_ns()
    payloads = [b"%d" % number for number in range(40)]
    with bridging(here):
        for payload in payloads:
            assert api.relay_publish(PUBSUB_TOPIC, WakuMessage(payload, topic, timestamp=at)).reason is None
        until(lambda: len(envelopes(here, topic)) == len(payloads), "all of it is in Kafka")
    assert [one.message.payload for one in envelopes(here, topic)] == payloads
