"""The node on Kafka, without a broker: which records count as read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import Mock

import pytest
from kafka import TopicPartition
from kafka.cluster import ClusterMetadata
from kafka.errors import KafkaTimeoutError, LogTruncationError, MessageSizeTooLargeError, SaslAuthenticationFailedError
from kafka.future import Future
from kafka.producer.transaction_manager import ProducerIdAndEpoch, TransactionManager, TransactionState

from reliable_channel.channel import (
    MemoryPersistence,
    ReliableChannel,
    SqlitePersistence,
    create_reliable_channel,
)
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport import kafka_consumer, kafka_producer
from reliable_channel.transport.base import FailureReason, SendBufferFull
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_consumer import OffsetReader
from reliable_channel.transport.kafka_producer import EnvelopeProducer
from reliable_channel.transport.kafka_records import OutRecord, envelope_record
from reliable_channel.transport.sharding import NamedTopic
from tests.support.error_page import pattern_of
from tests.support.waiting import WAIT_S, until
from tests.unit.channel.channel_world import quick

PUBSUB, TOPIC = "/waku/2/rs/0/0", "/app/1/x/proto"


def test_what_comes_when_nobody_is_subscribed_any_more_is_read_by_the_next_process() -> None:
    node = KafkaNode(KafkaClients({}, {}, {}), NamedTopic(PUBSUB), group_id="listener")
    heard: list[object] = []
    node.add_listener(heard.append)
    node.subscribe([TOPIC])
    node._dispatcher.start()
    took = threading.Event()
    for offset in range(4):
        _take(node, offset, WakuMessage(b"%d" % offset, TOPIC, timestamp=1))
        if offset == 1:
            node._dispatcher.put(took.set)
            assert took.wait(WAIT_S)
            node.unsubscribe([TOPIC])
    node._dispatcher.stop()
    assert len(heard) == 2, "nothing arrives of what is not subscribed"
    assert node._read == {0: 2}


def test_the_proof_of_an_envelope_counts_among_the_bytes_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's envelopes may be all proof, and waited without a bound."""
    node = KafkaNode(KafkaClients({}, {}, {}), NamedTopic(PUBSUB))
    node.subscribe([TOPIC])
    sizes: list[int] = []
    monkeypatch.setattr(node._dispatcher, "put_bounded", lambda _, size: sizes.append(size))
    message = WakuMessage(b"x", TOPIC, timestamp=1, rate_limit_proof=bytes(99))
    _take(node, 0, message)
    assert sizes == [100]


def _take(node: KafkaNode, offset: int, message: WakuMessage) -> None:
    record = envelope_record("", message, PUBSUB, None)
    node._take(0, offset, record.value, record.headers)


def _take_records(node: KafkaNode, *offsets: int) -> None:
    for offset in offsets:
        _take(node, offset, WakuMessage(b"%d" % offset, TOPIC, timestamp=1))
    taken = threading.Event()
    node._dispatcher.put(taken.set)
    assert taken.wait(WAIT_S)


@pytest.fixture
def node() -> Iterator[KafkaNode]:
    node = KafkaNode(KafkaClients({}, {}, {}), NamedTopic(PUBSUB), group_id="listener")
    node._dispatcher.start()
    yield node
    node._dispatcher.stop()


def _open_channel(node: KafkaNode, path: Path, channel_id: str) -> ReliableChannel:
    config = quick(persistence=SqlitePersistence(path / f"{channel_id}.db"), query_on_connect=False)
    return create_reliable_channel(node, channel_id, TOPIC, "bob", config=config, threaded=False)


def test_offsets_are_committed_up_to_what_every_channel_has_stored(node: KafkaNode, tmp_path: Path) -> None:
    quick_one, slow = _open_channel(node, tmp_path, "quick"), _open_channel(node, tmp_path, "slow")
    _take_records(node, 0, 1)
    assert node._next_offsets() == {0: 0}
    quick_one.step()
    assert node._next_offsets() == {0: 0}, "the other channel has them in memory only"
    slow.step()
    assert node._next_offsets() == {0: 2}
    _take_records(node, 2, 3)
    slow.close()  # stores what has arrived
    assert node._next_offsets() == {0: 2}
    quick_one.close()
    assert node._next_offsets() == {0: 4}


def test_what_a_channel_could_not_store_is_read_again_and_the_health_names_it(
    node: KafkaNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sound = _open_channel(node, tmp_path, "broken"), _open_channel(node, tmp_path, "sound")
    _take_records(node, 0)

    def fail(*_: object) -> None:
        raise EnvironmentFault("The disk is full.")

    monkeypatch.setattr(broken._cycle.journal, "commit", fail)
    with pytest.raises(EnvironmentFault):
        broken.step()
    for offset in range(1, 50):
        _take_records(node, offset)
        sound.step()
    broken.close()
    assert node._next_offsets() == {0: 0}
    assert node._describe_unstored() == "; 50 records are read, and a channel has not stored all of them"
    sound.close()


def test_a_channel_without_a_journal_holds_no_offset_after_it_is_closed(node: KafkaNode) -> None:
    config = quick(persistence=MemoryPersistence(), query_on_connect=False)
    channel = create_reliable_channel(node, "lobby", TOPIC, "bob", config=config, threaded=False)
    _take_records(node, 0, 1)
    channel.close()
    assert node._next_offsets() == {0: 2}


def test_clients_wait_ten_seconds_for_a_broker_unless_the_configuration_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was kafka-python's half a minute, before a command said that there is no broker."""
    asked: list[int] = []

    def refuse(**options: int) -> None:
        asked.append(options["bootstrap_timeout_ms"])
        raise KafkaTimeoutError

    monkeypatch.setattr(kafka_producer, "KafkaProducer", refuse)
    monkeypatch.setattr(kafka_consumer, "KafkaConsumer", refuse)
    for given in ({}, {"bootstrap_timeout_ms": 45_000}):
        with pytest.raises(EnvironmentFault):
            EnvelopeProducer(given)
        with pytest.raises(EnvironmentFault):
            OffsetReader(KafkaClients(given, given, given), "topic", None)
    assert asked == [10_000, 10_000, 45_000, 45_000]


class Refusing:
    """A producer of kafka-python that has failed for good once its first record has."""

    made: ClassVar[list[Refusing]] = []
    fault: ClassVar[Exception | None] = None

    def __init__(self, **_: object) -> None:
        if Refusing.fault is not None:
            raise Refusing.fault
        self.made.append(self)
        self.closed = False
        self.sent: list[Future] = []
        self._metadata = ClusterMetadata()
        self.has_no_rights = False
        self._transaction_manager = SimpleNamespace(
            has_fatal_error=lambda: self.has_no_rights or (self.sent and self.sent[0].failed())
        )

    def send(self, *_: object, **__: object) -> Future:
        self.sent.append(Future())
        return self.sent[-1]

    def close(self, timeout: float) -> None:
        self.closed = True


@pytest.mark.parametrize("fault", [KafkaTimeoutError(), RuntimeError("can't start new thread")])
def test_a_producer_is_made_anew_when_kafka_has_refused_a_record(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr(kafka_producer, "KafkaProducer", Refusing)
    monkeypatch.setattr(Refusing, "made", [])
    producer, told = EnvelopeProducer({}), list[FailureReason | None]()
    record = OutRecord("topic", b"key", b"value")

    def send() -> None:
        producer.send(record, lambda reason, _: told.append(reason), max_wait_s=0)

    send()
    send()
    (first,) = Refusing.made
    monkeypatch.setattr(Refusing, "fault", fault)
    for waiting in first.sent:  # kafka-python ends what waits with the error of the first
        waiting.failure(MessageSizeTooLargeError("topic"))
    assert told == [FailureReason.TOO_LARGE, FailureReason.UNREACHABLE]
    with pytest.raises(SendBufferFull):
        send()
    monkeypatch.setattr(Refusing, "fault", None)
    until(lambda: len(Refusing.made) == 2 and first.closed)
    until(lambda: producer._renewing is None)
    send()
    Refusing.made[1].sent[0].success(SimpleNamespace(partition=0, offset=0))
    assert told[2:] == [None]
    producer.close()
    assert Refusing.made[1].closed


def open_without_rights(monkeypatch: pytest.MonkeyPatch) -> EnvelopeProducer:
    """A producer whose first client Kafka refuses, and the next one no more."""
    monkeypatch.setattr(kafka_producer, "KafkaProducer", Refusing)
    monkeypatch.setattr(Refusing, "made", [])
    producer = EnvelopeProducer({})
    Refusing.made[0].has_no_rights = True
    return producer


def test_a_send_that_may_wait_is_not_refused_for_rights_that_were_missing_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one after they were granted was, and the bridge waited once more before it tried again."""
    producer = open_without_rights(monkeypatch)
    producer.send(OutRecord("topic", b"key", b"value"), lambda *_: None, max_wait_s=WAIT_S)
    assert [len(each.sent) for each in Refusing.made] == [0, 1]
    producer.close()


def test_a_topic_that_goes_away_during_a_send_takes_its_producer_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python raises ValueError between two looks at its metadata: it ended the thread of the bridge that sent."""

    class Deleted(Refusing):
        def send(self, *_: object, **__: object) -> Future:
            raise ValueError("Partitioner did not assign a partition for topic topic!")

    monkeypatch.setattr(kafka_producer, "KafkaProducer", Deleted)
    producer = EnvelopeProducer({})
    record = OutRecord("topic", b"key", bytes(kafka_producer.BUFFER_BYTES // 2))
    for _ in range(3):  # of which two fit
        with pytest.raises(SendBufferFull, match="ValueError"):
            producer.send(record, lambda *_: pytest.fail("it was not accepted"), max_wait_s=0)
    producer.close()


def test_a_send_that_may_not_wait_is_refused_only_for_rights_that_were_missing_a_moment_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first send of a channel after they were granted failed, however long ago Kafka had refused."""
    producer = open_without_rights(monkeypatch)

    def send() -> None:
        producer.send(OutRecord("topic", b"key", b"value"), lambda *_: None, max_wait_s=0)

    send()
    assert [len(each.sent) for each in Refusing.made] == [1], "it fails with what Kafka has just said"
    monkeypatch.setattr(kafka_producer, "OLD_S", 0.0)
    monkeypatch.setattr(Refusing, "fault", KafkaTimeoutError())
    with pytest.raises(SendBufferFull):
        send()
    monkeypatch.setattr(Refusing, "fault", None)
    until(lambda: producer._renewing is None)
    send()
    assert [len(each.sent) for each in Refusing.made] == [1, 1]
    producer.close()


def test_a_send_that_waits_for_a_topic_does_not_outlast_its_producer() -> None:
    """A bridge whose producer was made anew meanwhile stood still for a minute: nobody fetches what it waits for."""
    without_a_broker = {"bootstrap_servers": "127.0.0.1:1", "api_version": (2, 5)}
    producer, faults = EnvelopeProducer(without_a_broker, max_block_s=10 * WAIT_S), list[SendBufferFull]()

    def send() -> None:
        try:
            producer.send(OutRecord("topic", b"key", b"value"), lambda *_: None)
        except SendBufferFull as fault:
            faults.append(fault)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    until(lambda: "topic" in producer._producer._sender._topics_to_add | producer._producer._metadata._topics)
    producer.close(1.0)
    sending.join(WAIT_S)
    assert len(faults) == 1


def test_a_producer_without_an_id_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python takes its id when a record is not acknowledged in time, and asks for another one only at a start."""
    transactions = TransactionManager()
    transactions.init_producer_id()
    transactions.set_producer_id_and_epoch(ProducerIdAndEpoch(1, 0))
    transactions._transition_to(TransactionState.READY)
    monkeypatch.setattr(kafka_producer, "KafkaProducer", lambda **_: SimpleNamespace(_transaction_manager=transactions))
    kafka_producer.open_producer({})
    transactions.reset_producer_id()
    transactions.init_producer_id()
    assert transactions.has_fatal_error()
    assert isinstance(transactions.last_error, KafkaTimeoutError)


def _time_out(*_: object, timeout_ms: int, **__: object) -> None:
    raise KafkaTimeoutError(timeout_ms)


def test_a_reader_continues_in_a_topic_that_was_restored_from_an_older_copy_while_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was "Kafka does not answer (LogTruncationError)" until a restart."""
    partition, gone = TopicPartition(TOPIC, 0), []
    consumer = Mock()
    consumer.position.return_value = 10
    consumer.beginning_offsets.return_value = {partition: 2}
    consumer.end_offsets.return_value = {partition: 7}
    consumer.poll.side_effect = LogTruncationError({partition: None})
    monkeypatch.setattr(kafka_consumer, "KafkaConsumer", lambda **_: consumer)
    described = kafka_consumer.DescribedTopic("id", frozenset({0}), {})
    monkeypatch.setattr(kafka_consumer, "describe_topic", lambda *_: described)
    reader = OffsetReader(KafkaClients({}, {}, {}), TOPIC, None, on_gone=gone.append)
    assert reader.poll(0) == []
    assert consumer.seek.call_args.args == (partition, 2)
    assert [(each.first, each.next) for each in gone] == [(10, 10)]


def test_a_password_that_kafka_refuses_is_named() -> None:
    """As when it is changed under a running participant; it was "Kafka does not answer", and to start it."""
    with pytest.raises(EnvironmentFault) as fault, kafka_producer.translate_errors():
        raise SaslAuthenticationFailedError("SaslAuthenticationFailedError: invalid credentials")
    assert pattern_of("A user name or password that Kafka refuses").fullmatch(f"bridge: {fault.value}")


def test_a_group_without_a_coordinator_is_named_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are fewer brokers than offsets.topic.replication.factor, `listen` waited for ever, without a word."""
    consumer = Mock()
    consumer.committed.side_effect = _time_out
    monkeypatch.setattr(kafka_consumer, "KafkaConsumer", lambda **_: consumer)
    described = kafka_consumer.DescribedTopic("id", frozenset({0}), {})
    monkeypatch.setattr(kafka_consumer, "describe_topic", lambda *_: described)
    with pytest.raises(EnvironmentFault) as fault:
        OffsetReader(KafkaClients({}, {}, {}), TOPIC, "g")
    assert pattern_of("A group without a coordinator").fullmatch(f"reliable-channel: {fault.value}")
    consumer.close.assert_called_once()


def test_no_broker_is_one_clear_sentence() -> None:
    nowhere = {"bootstrap_servers": ["127.0.0.1:9"], "bootstrap_timeout_ms": 1000}
    node = KafkaNode(KafkaClients(nowhere, nowhere, nowhere), NamedTopic(PUBSUB))
    with pytest.raises(EnvironmentFault, match="Kafka does not answer"):
        node.start()
    node.stop()
