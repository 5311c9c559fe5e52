"""What goes to the pipeline: rows as documented, each envelope once, and nothing that a dead broker could stop."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.sds import SdsMessage, WireFamily, encode_sds_message
from reliable_channel.core.wire.segment import Dialect, Segment, encode_segment
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.messaging import KafkaFeed
from reliable_channel.messaging.records import MessageRecord
from reliable_channel.messaging.sender_events import SenderEventKind, make_sender_event, to_json
from reliable_channel.transport.base import FailureReason, ReceivedEnvelope, SendBufferFull, Source
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_records import OutRecord
from tests.support.messaging_world import CONTENT, PUBSUB

MESSAGE = WakuMessage(b"plain", CONTENT, timestamp=1)


class FakeProducer:
    """Takes records, or fails in the ways a producer does."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.headers: list[dict[str, bytes]] = []
        self.fault: FailureReason | None = None
        self.full = False
        self.waits: list[float | None] = []

    def send(self, record: OutRecord, done: Any, max_wait_s: float | None = None) -> None:
        self.waits.append(max_wait_s)
        if self.full:
            raise SendBufferFull("full")
        self.sent.append((record.topic, record.key, record.value))
        self.headers.append(dict(record.headers))
        done(self.fault, "detail")

    def close(self, timeout_s: float) -> None: ...


@pytest.fixture
def producer() -> FakeProducer:
    return FakeProducer()


def feed(producer: FakeProducer, **options: Any) -> KafkaFeed:
    made = KafkaFeed(KafkaClients({}, {}, {}), **options)
    made._producer = producer  # type: ignore[assignment]
    return made


def row(message: WakuMessage = MESSAGE, kind: SenderEventKind = SenderEventKind.SENT) -> Any:
    record = MessageRecord(
        message, sending=True, request_id="request", message_hash=message_hash(PUBSUB, message), pubsub_topic=PUBSUB
    )
    return make_sender_event(kind, 5, record, "why")


def received(message: WakuMessage) -> ReceivedEnvelope:
    return ReceivedEnvelope(message, PUBSUB, message_hash(PUBSUB, message), Source.FILTER)


def test_a_row_is_one_json_object_of_the_documented_names() -> None:
    assert json.loads(to_json(row())) == {
        "kind": "sender",
        "event": "sent",
        "at_ms": 5,
        "request_id": "request",
        "pubsub_topic": PUBSUB,
        "content_topic": CONTENT,
        "envelope_hash": message_hash(PUBSUB, MESSAGE).hex(),
        "detail": "why",
    }


def test_an_sds_message_names_its_channel_and_the_whole_message() -> None:
    whole = keccak256(b"whole")
    segment = Segment(whole, 0, 2, None, False, b"part", dialect=Dialect.V01)
    for content, digest in ((encode_segment(segment), whole), (b"bare", keccak256(b"bare"))):
        sds = SdsMessage("alice", "id", "lobby", lamport_timestamp=1, content=content)
        found = json.loads(to_json(row(WakuMessage(encode_sds_message(sds), CONTENT, timestamp=1))))
        assert (found["channel_id"], found["sender_id"], found["sds_id"]) == ("lobby", "alice", "id")
        assert found["entire_message_hash"] == digest.hex()


@pytest.mark.parametrize("further", [{"index": 1}, {"is_parity": True, "data_count": None, "parity_count": 1}])
def test_a_further_segment_names_no_message_because_it_does_not_state_of_which_send_it_is(further: Any) -> None:
    segment = replace(Segment(keccak256(b"whole"), 0, 2, None, False, b"part", dialect=Dialect.V01), **further)
    sds = SdsMessage("alice", "id", "lobby", lamport_timestamp=1, content=encode_segment(segment))
    made = row(WakuMessage(encode_sds_message(sds), CONTENT, timestamp=1))
    assert (made.sds_id, made.send_id, made.entire_message_hash) == ("id", None, None)


def test_rows_go_to_the_evidence_topic_under_the_content_topic(producer: FakeProducer) -> None:
    feed(producer).record(row())
    assert producer.sent == [("waku.evidence", CONTENT.encode(), to_json(row()))]


@pytest.mark.parametrize("family", WireFamily)
def test_a_row_names_its_message_in_either_wire_family(family: WireFamily) -> None:
    """Else a send that was held back and then left would be *rate-limited* for ever in a channel of logos-delivery."""
    sds = SdsMessage("alice", "m1", "talk", 5, content=b"hi")
    made = row(WakuMessage(encode_sds_message(sds, family), CONTENT, timestamp=1))
    assert (made.channel_id, made.sender_id, made.sds_id) == ("talk", "alice", "m1")
    assert made.entire_message_hash == keccak256(b"hi")


def test_each_envelope_is_copied_once_with_its_first_source(producer: FakeProducer) -> None:
    made = feed(producer)
    made.record_dispatched(MESSAGE, PUBSUB)
    made.record_received(received(MESSAGE))
    other = WakuMessage(b"other", CONTENT, timestamp=2)
    made.record_received(received(other))
    made.record_received(received(other))
    assert [topic for topic, _, _ in producer.sent] == ["waku.envelopes"] * 2
    assert [headers["source"] for headers in producer.headers] == [b"sender", b"filter"]


def test_behind_a_bridge_no_envelope_is_copied(producer: FakeProducer) -> None:
    made = feed(producer, envelopes=False)
    made.record_dispatched(MESSAGE, PUBSUB)
    made.record_received(received(MESSAGE))
    assert producer.sent == []


def test_what_kafka_does_not_take_is_counted_and_stops_nobody(producer: FakeProducer) -> None:
    made = feed(producer)
    producer.fault = FailureReason.UNREACHABLE
    made.record(row())
    producer.full = True
    made.record(row())
    made.record_dispatched(MESSAGE, PUBSUB)
    made._producer = None
    made.record(row())
    made.record_received(received(WakuMessage(b"late", CONTENT, timestamp=3)))
    assert made.lost == 5


def test_a_broker_that_does_not_answer_is_named_at_the_start() -> None:
    made = KafkaFeed(KafkaClients({}, {"bootstrap_servers": ["127.0.0.1:1"], "bootstrap_timeout_ms": 100}, {}))
    before = threading.active_count()
    with pytest.raises(EnvironmentFault):
        made.start()
    made.stop()
    assert threading.active_count() <= before


def test_a_dead_broker_is_waited_for_once_and_not_by_every_envelope(producer: FakeProducer) -> None:
    """The thread that waits here is the one on which all envelopes arrive."""
    kept = feed(producer)
    producer.full = True
    for number in range(3):
        kept.record_received(received(WakuMessage(b"%d" % number, CONTENT, timestamp=1)))
    kept.record(row())
    producer.full = False
    for _ in range(2):
        kept.record(row())
    assert producer.waits == [None, 0, 0, 0, 0, None]
    assert kept.lost == 4


def test_an_outage_of_kafka_is_logged_once(producer: FakeProducer, caplog: pytest.LogCaptureFixture) -> None:
    """Each row was a line of the log."""
    made = feed(producer)
    for fault in (FailureReason.UNREACHABLE,) * 3 + (None, FailureReason.UNREACHABLE):
        producer.fault = fault
        made.record(row())
    assert (made.lost, len(caplog.records)) == (4, 2)
