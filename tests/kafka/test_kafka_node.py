"""The node port on the real broker."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import Any

import pytest

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message, message_hash
from reliable_channel.runtime.topics import ensure_topics
from reliable_channel.transport.base import (
    FailureReason,
    HealthChanged,
    Node,
    Queued,
    Received,
    SendBufferFull,
    SendDelayed,
    SendFailed,
    Sent,
)
from reliable_channel.transport.health import HealthState
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.kafka_producer import EnvelopeProducer
from reliable_channel.transport.kafka_records import OutRecord
from reliable_channel.transport.sharding import NamedTopic
from tests.support.error_page import pattern_of
from tests.support.odd_topics import configure
from tests.support.waiting import WAIT_S, until

pytestmark = pytest.mark.kafka

PUBSUB_TOPIC = "/waku/2/rs/16/32"
TOPIC = "/app/1/golden/proto"
_numbers = itertools.count()


@pytest.fixture
def topic(broker: Settings) -> str:
    """One topic for both ways: what is sent comes back."""
    name = f"node-{os.getpid()}-{next(_numbers)}"
    topics = broker.kafka.topics.model_copy(
        update={"envelopes": name, "outgoing": f"{name}-o", "dispatched": f"{name}-d", "partitions": 2}
    )
    ensure_topics(broker.kafka.model_copy(update={"topics": topics}))
    return name


class Participant:
    def __init__(self, broker: Settings, topic: str, **options: Any) -> None:
        self.events: list[Any] = []
        self.node = KafkaNode(
            broker.kafka.clients(),
            NamedTopic(PUBSUB_TOPIC),
            envelopes_topic=topic,
            outgoing_topic=topic,
            dispatched_topic=f"{topic}-d",
            **options,
        )
        self.node.add_listener(self.events.append)
        self.node.subscribe([TOPIC])

    def __enter__(self) -> Participant:
        self.node.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.node.stop()

    def failures(self) -> list[SendFailed]:
        return [event for event in self.events if isinstance(event, SendFailed)]

    def payloads(self) -> list[bytes]:
        return [e.envelope.message.payload for e in self.events if isinstance(e, Received)]


def test_it_is_a_node_and_gives_what_was_sent_in_order(broker: Settings, topic: str) -> None:
    with Participant(broker, topic) as one:
        assert isinstance(one.node, Node)
        ids = [one.node.send(WakuMessage(b"%d" % n, TOPIC)) for n in range(200)]
        one.node.send(WakuMessage(b"other", "/app/1/other/proto"))
        until(lambda: len(one.payloads()) == 200)
    assert one.payloads() == [b"%d" % n for n in range(200)]
    assert [e.request_id for e in one.events if isinstance(e, Queued)][:200] == ids
    assert not [e for e in one.events if isinstance(e, Sent)], "no bridge has said so"


def test_it_goes_on_where_its_group_stopped(broker: Settings, topic: str) -> None:
    with Participant(broker, topic, group_id="g") as one:
        one.node.send(WakuMessage(b"seen", TOPIC))
        until(lambda: one.payloads() == [b"seen"])
    with Participant(broker, topic) as stranger:
        stranger.node.send(WakuMessage(b"missed", TOPIC))
        until(lambda: stranger.payloads() == [b"missed"])
    with Participant(broker, topic, group_id="g") as again:
        until(lambda: again.payloads())
        assert again.payloads() == [b"missed"]


def test_records_that_are_no_envelopes_are_passed_over(broker: Settings, topic: str) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(**broker.kafka.clients().producer)
    good = encode_waku_message(WakuMessage(b"good", TOPIC, timestamp=1))
    with Participant(broker, topic) as one:
        for value, headers in [
            (None, []),
            (b"\xff" * 50, [("pubsub_topic", b"x")]),
            (good, []),
            (good, [("pubsub_topic", b"\xff\xfe")]),
            (good, [("pubsub_topic", PUBSUB_TOPIC.encode()), ("source", b"nonsense")]),
            (good, [("pubsub_topic", PUBSUB_TOPIC.encode())]),
            (good, [("pubsub_topic", PUBSUB_TOPIC.encode())]),
        ]:
            producer.send(topic, value=value, headers=headers, key=TOPIC.encode())
        producer.flush()
        one.node.send(WakuMessage(b"last", TOPIC))
        until(lambda: b"last" in one.payloads())
    producer.close()
    assert one.payloads() == [b"good", b"last"]


def test_after_a_record_that_the_broker_refuses_the_next_ones_are_taken(broker: Settings, topic: str) -> None:
    """kafka-python's idempotent producer takes nothing any more after a refusal."""
    configure(broker, topic, max_message_bytes="10000")
    with Participant(broker, topic) as one:
        for number in range(3):
            one.node.send(WakuMessage(os.urandom(50_000), TOPIC))
            until(lambda number=number: len(one.failures()) > number)  # type: ignore[misc]
            one.node.send(WakuMessage(b"%d" % number, TOPIC))
        until(lambda: len(one.payloads()) == 3)
    assert one.payloads() == [b"0", b"1", b"2"]
    assert [event.reason for event in one.failures()[:3]] == [FailureReason.TOO_LARGE] * 3


def test_after_a_record_that_was_not_acknowledged_in_time_the_next_ones_are_sent(broker: Settings, topic: str) -> None:
    """kafka-python's idempotent producer neither sends nor fails anything any more after it."""
    find = ["pgrep", "-f", rf"^\S*java .* kafka\.Kafka {broker.paths.run_dir}/"]
    pid = int(subprocess.run(find, capture_output=True, check=True).stdout)
    reasons: list[FailureReason | None] = []
    producer = EnvelopeProducer(broker.kafka.clients().producer, delivery_timeout_s=2.0)

    def send() -> None:
        with suppress(SendBufferFull):
            producer.send(OutRecord(topic, b"key", b"value"), lambda reason, _: reasons.append(reason), max_wait_s=0)

    def is_sent() -> bool:
        send()
        return None in reasons

    try:
        until(is_sent, every_s=0.5)
        reasons.clear()
        os.kill(pid, signal.SIGSTOP)
        send()
        until(lambda: reasons)
        os.kill(pid, signal.SIGCONT)
        assert set(reasons) == {FailureReason.UNREACHABLE}
        until(is_sent, every_s=0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
        producer.close()


def test_stopping_settles_every_send_and_leaves_no_thread(broker: Settings, topic: str) -> None:
    before = set(threading.enumerate())
    with Participant(broker, topic) as one:
        ids = {one.node.send(WakuMessage(bytes(1000), TOPIC)) for _ in range(500)}
    one.node.stop()
    settled = [e.request_id for e in one.events if isinstance(e, Sent | SendFailed)]
    assert sorted(settled) == sorted(ids)
    until(lambda: not {t for t in set(threading.enumerate()) - before if t.is_alive()})


def test_a_started_node_stopped_from_its_own_listener_ends(broker: Settings, topic: str) -> None:
    with Participant(broker, topic) as one:
        stopped = threading.Event()

        def stop(event: object) -> None:
            if isinstance(event, Received):
                one.node.stop()
                stopped.set()

        one.node.add_listener(stop)
        one.node.send(WakuMessage(b"x", TOPIC))
        assert stopped.wait(WAIT_S)


def test_health_is_healthy_once(broker: Settings, topic: str) -> None:
    with Participant(broker, topic) as one:
        until(lambda: one.node.health().state is HealthState.HEALTHY)
    assert [e.health.state for e in one.events if isinstance(e, HealthChanged)] == [
        HealthState.HEALTHY,
        HealthState.UNHEALTHY,
    ]


def test_a_topic_for_sends_that_does_not_exist_is_named(broker: Settings, topic: str) -> None:
    """It was "Kafka does not answer", after a minute; a broker that creates topics made one that no bridge reads."""
    node = KafkaNode(
        broker.kafka.clients(),
        NamedTopic(PUBSUB_TOPIC),
        envelopes_topic=topic,
        outgoing_topic=f"{topic}-misspelt",
        dispatched_topic=f"{topic}-d",
        max_block_s=1.0,
    )
    with pytest.raises(EnvironmentFault) as fault:
        node.start()
    assert pattern_of("A topic that a participant does not find").fullmatch(f"reliable-channel: {fault.value}")


def test_what_a_bridge_reports_settles_a_send_and_names_the_envelope_that_went_out(
    broker: Settings, topic: str
) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(**broker.kafka.clients().producer)

    def report(request_id: str, status: str, **more: object) -> None:
        value = json.dumps({"request_id": request_id, "status": status, "at_ms": 7, **more}).encode()
        producer.send(f"{topic}-d", key=TOPIC.encode(), value=value)  # as a bridge does

    with Participant(broker, topic) as one:
        ids = [one.node.send(WakuMessage(b"%d" % n, TOPIC)) for n in range(3)]
        until(lambda: len([e for e in one.events if isinstance(e, Queued)]) == 3)
        for hostile in (b"", b"no json", b"[" * 100_000, b'{"request_id": "stranger", "status": "accepted"}'):
            producer.send(f"{topic}-d", value=hostile)
        report("stranger", "accepted", timestamp=1)
        report(ids[0], "accepted", timestamp=99, envelope_hash="00" * 32)
        report(ids[0], "failed", reason="refused", detail="too late")
        report(ids[1], "delayed", until_ms=123)
        report(ids[1], "failed", reason="refused", detail="spam", timestamp=98)
        producer.flush()
        until(lambda: len([e for e in one.events if isinstance(e, Sent | SendFailed)]) == 2)
    sent, refused, stopped = [e for e in one.events if isinstance(e, Sent | SendFailed)]
    assert isinstance(sent, Sent)
    assert (sent.request_id, sent.message.timestamp) == (ids[0], 99)
    assert sent.message_hash == message_hash(PUBSUB_TOPIC, sent.message), "from its own bytes, whatever a record claims"
    assert isinstance(refused, SendFailed)
    assert (refused.request_id, refused.reason, refused.detail) == (ids[1], FailureReason.REFUSED, "spam")
    assert [e.until_ms for e in one.events if isinstance(e, SendDelayed)] == [123]
    assert isinstance(stopped, SendFailed)
    assert (stopped.request_id, stopped.reason) == (ids[2], FailureReason.STOPPED)
    producer.close()


def test_without_a_bridge_what_is_queued_is_bounded(
    broker: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliable_channel.transport.kafka.MAX_AWAITED_BYTES", 3_000)
    with Participant(broker, topic) as one:
        for _ in range(2):
            one.node.send(WakuMessage(bytes(1_000), TOPIC), max_wait_s=0)
        with pytest.raises(SendBufferFull, match="no bridge takes them"):
            one.node.send(WakuMessage(bytes(1_000), TOPIC), max_wait_s=0)
