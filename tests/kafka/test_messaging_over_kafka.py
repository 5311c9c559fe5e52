"""The Messaging API over Kafka: through the local loop to another node, and into the pipeline's topics."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer

from reliable_channel.config import Settings
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.messaging import Message, MessageRecord, PlainDecoder, PlainEncoder
from reliable_channel.messaging.pipeline_feed import KafkaFeed
from reliable_channel.messaging.sender_events import SenderEventKind
from reliable_channel.runtime.build import make_bridge
from reliable_channel.runtime.messaging import messaging_node
from reliable_channel.runtime.topics import ensure_evidence_topic
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.kafka_records import read_record
from reliable_channel.transport.sharding import NamedTopic
from tests.support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNode
from tests.support.messaging_site import Site, waku_site
from tests.support.messaging_world import CONTENT
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.kafka


@pytest.fixture
def loop(broker: Settings, tmp_path: Path) -> Iterator[Settings]:
    """The broker with the local loop running: what goes out comes in."""
    settings = broker.with_run_dir(tmp_path)
    ensure_evidence_topic(settings)
    bridge = make_bridge(settings, loop=True)
    bridge.start()
    yield settings
    bridge.stop()


def kafka_site(settings: Settings, **changes: Any) -> Site:
    transport = KafkaNode(settings.kafka.clients(), NamedTopic(PUBSUB_TOPIC), start_at="latest")
    site = Site(transport, publish=lambda message: None)
    site.start(**changes)
    return site


def records_of(settings: Settings, topic: str, wanted: int, having: Any) -> list[Any]:
    """The first records of a topic for which ``having`` is true, read from its beginning."""
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", **settings.kafka.clients().consumer)
    found: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while len(found) < wanted:
            assert time.monotonic() < deadline, f"{len(found)} of {wanted} records"
            for batch in consumer.poll(timeout_ms=200).values():
                found += [record for record in batch if having(record)]
    finally:
        consumer.close()
    return found


def test_two_nodes_talk_and_every_message_is_received_once(loop: Settings) -> None:
    alice, bob = kafka_site(loop), kafka_site(loop)
    try:
        heard: list[MessageRecord] = []
        bob.subscribe(heard.append)
        alice.subscribe()
        sent = []
        while not heard:  # what was sent before the reader stood at the end is not his
            sent.append(alice.send(b"%d" % len(sent)))
            alice.until(lambda: alice.record(sent[-1]).received)
        alice.until(lambda: all(alice.record(one).sent for one in sent))
        assert len({record.message_hash for record in heard}) == len(heard)
        assert all(record.received and record.pubsub_topic == PUBSUB_TOPIC for record in heard)
        assert alice.record(sent[-1]).error is None
        assert [name for name, _ in bob.events].count("message:received") == len(heard)
    finally:
        alice.node.close()
        bob.node.close()


def test_a_broker_that_is_gone_shows_in_the_health_and_the_records_error(broker: Settings) -> None:
    transport = KafkaNode(broker.kafka.clients(), NamedTopic(PUBSUB_TOPIC), max_block_s=2.0, delivery_timeout_s=1.0)
    site = Site(transport, publish=lambda message: None)
    site.start()
    try:
        transport.stop()
        request_id = site.send()
        site.until(lambda: site.record(request_id).error)
        assert site.node.get_pending_requests() == [request_id]
        site.until(lambda: site.node.health_indicator == "Unhealthy")
        transport.start()
        site.until(lambda: site.node.health_indicator == "Healthy")
        site.clock.advance(1_000)
        site.until(lambda: site.record(request_id).queued)
    finally:
        site.node.close()


def test_the_senders_own_records_and_the_envelopes_reach_kafka_from_a_waku_node(loop: Settings) -> None:
    feed = KafkaFeed(loop.kafka.clients(), evidence_topic=loop.bridge.evidence_topic)
    sds = SdsMessage("alice", uuid.uuid4().hex, "lobby", lamport_timestamp=5, content=b"a whole payload")
    with FakeWakuNode("nwaku") as fake:
        site = waku_site(fake, edge=True)
        site.feed = feed  # type: ignore[assignment]
        site.start()
        site.subscribe()
        request_id = site.send(encode_sds_message(sds))
        site.until(lambda: site.record(request_id).sent)
        fake.faults.status, fake.faults.paths = 400, "lightpush"
        never_sent = site.send(b"never sent")
        site.until(lambda: not site.record(never_sent).sending)
        site.node.close()
    assert feed.lost == 0

    def ours(record: Any) -> bool:
        return json.loads(record.value).get("request_id") in (request_id, never_sent)

    rows = [(one.key, json.loads(one.value)) for one in records_of(loop, loop.bridge.evidence_topic, 4, ours)]
    assert {key for key, _ in rows} == {CONTENT.encode()}
    assert [(row["request_id"], row["event"]) for _, row in rows] == [
        (request_id, SenderEventKind.QUEUED),
        (request_id, SenderEventKind.SENT),
        (never_sent, SenderEventKind.QUEUED),
        (never_sent, SenderEventKind.FAILED),
    ]
    sent = rows[1][1]
    assert (sent["kind"], sent["channel_id"], sent["sender_id"], sent["sds_id"]) == (
        "sender",
        "lobby",
        "alice",
        sds.message_id,
    )
    (copy,) = records_of(
        loop,
        loop.kafka.topics.envelopes,
        1,
        lambda record: sds.message_id.encode() in record.value,
    )
    record = read_record(copy.value, copy.headers)
    assert (record.source, record.pubsub_topic) == ("sender", PUBSUB_TOPIC)  # type: ignore[union-attr]


def test_the_configured_node_sends_over_the_configured_transport(loop: Settings) -> None:
    settings = loop.model_copy(update={"api": loop.api.model_copy(update={"group_id": uuid.uuid4().hex})})
    with messaging_node(settings) as node:
        topic = node.pubsub_topic_for(CONTENT)
        subscription_id = node.subscribe(PlainDecoder(topic, CONTENT), None)
        deadline = time.monotonic() + WAIT_S
        while not node.get_by_subscription_id(subscription_id):
            assert time.monotonic() < deadline
            request_id = node.send(PlainEncoder(topic, CONTENT), Message(b"configured"))
            while not (record := node.get_by_request_id(request_id)) or not record.sent:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(0.05)
    assert (Path(settings.paths.run_dir) / "messaging.sqlite").exists()
