"""Our reliable channel and that of the published npm package ``@waku/sdk`` talk through the real broker, with loss.

The peer's node has three methods (``lightPush.send``, ``filter.subscribe``, ``store.queryGenerator``); what they carry
goes through a Kafka node of its own, on which envelopes get lost both ways. Needs Node and
``npm ci --prefix tests/interop``; skipped with a reason without them.
"""

from __future__ import annotations

import json
import queue
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reliable_channel.channel import (
    MessageDelivered,
    MessageDeliveryError,
    MessageReceived,
    MessageSendError,
    ReliableChannelConfig,
    create_reliable_channel,
)
from reliable_channel.config import Settings
from reliable_channel.core.sds import Retransmission, SdsParameters
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import decode_waku_message, encode_waku_message, message_hash
from reliable_channel.runtime.build import kafka_node, make_bridge
from reliable_channel.runtime.topics import ensure_evidence_topic, ensure_topics
from reliable_channel.transport.base import Node, NodeEvent, Received
from reliable_channel.transport.kafka import KafkaNode
from tests.support.waiting import WAIT_S, until

HERE = Path(__file__).parent
NODE = shutil.which("node")
PACKAGE = HERE / "node_modules" / "@waku" / "sdk" / "package.json"
CHANNEL = "interop"
TOPIC = "/reliable-channel/1/interop/proto"
MESSAGES = 12

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kafka,
    pytest.mark.node,
    pytest.mark.skipif(NODE is None, reason="Node was not found: the published peer needs it"),
    pytest.mark.skipif(not PACKAGE.exists(), reason="@waku/sdk is not installed: npm ci --prefix tests/interop"),
]


class Peer:
    """A process that runs ``ReliableChannel`` of ``@waku/sdk``, and its node on Kafka. ``loses`` decides for each
    envelope, both ways."""

    def __init__(self, node: KafkaNode, loses: Callable[[], bool]) -> None:
        assert NODE is not None
        self.node = node
        self.loses = loses
        self.lost = 0
        self.received: list[bytes] = []
        self.acknowledged: set[str] = set()
        self.sent: list[str] = []
        self.ready = threading.Event()
        self._stored: dict[bytes, str] = {}
        self._lines: queue.Queue[dict | None] = queue.Queue()
        self._process = subprocess.Popen(
            [NODE, str(HERE / "reliable_channel_peer.mjs"), CHANNEL, "peer", TOPIC, node.pubsub_topic_for(TOPIC)],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._write)]
        for thread in self._threads:
            thread.start()
        node.subscribe([TOPIC])
        node.add_listener(self._on_event)

    def say(self, what: str, **rest: object) -> None:
        self._lines.put({"what": what, **rest})

    def close(self) -> None:
        self.node.remove_listener(self._on_event)
        self._lines.put(None)
        self._process.kill()
        for thread in self._threads:
            thread.join()
        self._process.communicate()

    def _on_event(self, event: NodeEvent) -> None:
        if isinstance(event, Received):
            envelope = event.envelope
            data = encode_waku_message(envelope.message).hex()
            self._stored[envelope.message_hash] = data
            if self.loses():
                self.lost += 1
            else:
                self.say("envelope", data=data)

    def _write(self) -> None:
        assert self._process.stdin is not None
        while (line := self._lines.get()) is not None:
            try:
                self._process.stdin.write(json.dumps(line) + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                return

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            match said["what"]:
                case "ready":
                    self.ready.set()
                case "envelope":
                    self._send(said["data"])
                case "query":
                    found = [self._stored.get(bytes.fromhex(one)) for one in said["hashes"]]
                    self.say("answer", number=said["number"], data=[one for one in found if one is not None])
                case "received":
                    self.received.append(bytes.fromhex(said["payload"]))
                case "acknowledged":
                    self.acknowledged.add(said["id"])
                case "sent":
                    self.sent.append(said["id"])

    def _send(self, data: str) -> None:
        message = decode_waku_message(bytes.fromhex(data))
        assert not isinstance(message, Malformed)
        self._stored[message_hash(self.node.pubsub_topic_for(TOPIC), message)] = data
        if self.loses():
            self.lost += 1
        else:
            self.node.send(message)


@pytest.fixture
def nodes(broker: Settings) -> Iterator[tuple[KafkaNode, KafkaNode]]:
    """Two Kafka nodes, and the local loop between the topics."""
    ensure_topics(broker.kafka)
    ensure_evidence_topic(broker)
    loop = make_bridge(broker, loop=True)
    loop.start()
    pair = (kafka_node(broker), kafka_node(broker))
    for node in pair:
        node.start()
    yield pair
    for node in pair:
        node.stop()
    loop.stop()


def our_config() -> ReliableChannelConfig:
    sds = replace(
        SdsParameters(),
        acknowledgement_timeout_ms=1_500,
        retransmission=Retransmission.FIXED,
        max_retransmissions=60,
        sync_min_interval_ms=1_500,
        causal_history_size=10,
        before_observation=False,
    )
    return ReliableChannelConfig(sds=sds, query_on_connect=False, process_task_min_elapse_ms=100)


def test_both_see_every_message_and_every_acknowledgement_although_envelopes_get_lost(
    nodes: tuple[Node, KafkaNode],
) -> None:
    ours, theirs = nodes
    choose = random.Random(6)
    peer = Peer(theirs, lambda: choose.random() < 0.2)
    received: list[tuple[bytes, int | None]] = []
    delivered: set[str] = set()
    errors: list[str] = []
    try:
        assert peer.ready.wait(WAIT_S)
        with create_reliable_channel(ours, CHANNEL, TOPIC, "ours", config=our_config()) as channel:
            channel.on(MessageReceived, lambda event: received.append((event.message, event.lamport_timestamp)))
            channel.on(MessageDelivered, lambda event: delivered.add(event.request_id))
            channel.on(MessageSendError, lambda event: errors.append(event.error))
            channel.on(MessageDeliveryError, lambda event: errors.append(event.error))
            sent: list[str] = []
            for number in range(MESSAGES):
                sent.append(channel.send(b"ours %d" % number))
                peer.say("send", payload=(b"theirs %d" % number).hex())
                time.sleep(0.2)
            theirs_sent = [b"theirs %d" % number for number in range(MESSAGES)]
            ours_sent = {b"ours %d" % number for number in range(MESSAGES)}
            until(lambda: {payload for payload, _ in received} >= set(theirs_sent), lambda: str(received))
            until(lambda: set(peer.received) >= ours_sent, lambda: str(peer.received))
            until(lambda: delivered >= set(sent), lambda: str((len(delivered), errors)))
            until(
                lambda: len(peer.sent) == MESSAGES and peer.acknowledged >= set(peer.sent),
                lambda: str(peer.acknowledged),
            )
    finally:
        peer.close()
    # A retry of the peer that is queued when the acknowledgement arrives becomes a new message: a further send.
    assert len(received) == len(set(received))
    assert {payload for payload, _ in received} == set(theirs_sent)
    assert errors == []
    assert peer.lost > 0
