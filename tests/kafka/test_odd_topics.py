"""What participants and the bridge read of odd topics; ``tests/spark/test_odd_topics_in_spark.py`` reads the same ones
with the ingest job."""

from __future__ import annotations

import itertools
import json
import os
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import kafka.codec
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pydantic import SecretStr

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.evidence.collecting import collect_evidence
from reliable_channel.pipeline.ingest.lost_offsets import ask_broker
from reliable_channel.pipeline.ingest.task import OffsetGap
from reliable_channel.runtime.build import make_bridge
from reliable_channel.runtime.topics import find_deviations
from reliable_channel.transport import kafka as kafka_node
from reliable_channel.transport import kafka_consumer
from reliable_channel.transport.base import Received, RecordsGone, SendFailed
from reliable_channel.transport.health import HealthState
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.kafka_consumer import OffsetReader, describe_topic
from reliable_channel.transport.sharding import NamedTopic
from tests.support import error_page
from tests.support.odd_topics import (
    ODD_TOPICS,
    PUBSUB_TOPIC,
    TOPIC,
    OddTopic,
    add_partitions,
    admin,
    configure,
    create,
    delete_records,
    make,
    make_anew,
    transact,
    write,
    write_undecodable,
)
from tests.support.waiting import WAIT_S, until

pytestmark = pytest.mark.kafka

_numbers = itertools.count()


@pytest.fixture
def topic(broker: Settings) -> str:
    name = f"odd-{os.getpid()}-{next(_numbers)}"
    create(broker, name)
    return name


class Participant:
    """A participant with a group; ``texts`` are what it received."""

    def __init__(
        self, broker: Settings, topic: str, group: str | None = "g", envelopes: str | None = None, **options: Any
    ) -> None:
        self.events: list[Any] = []
        self.node = KafkaNode(
            broker.kafka.clients(),
            NamedTopic(PUBSUB_TOPIC),
            envelopes_topic=envelopes or topic,
            outgoing_topic=f"{topic}-o",
            dispatched_topic=f"{topic}-d",
            group_id=None if group is None else f"{group}-{topic}",
            **options,
        )
        self.node.add_listener(self.events.append)
        self.node.subscribe([TOPIC])

    def __enter__(self) -> Participant:
        self.node.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.node.stop()

    @property
    def texts(self) -> list[str]:
        return [e.envelope.message.payload.decode() for e in self.events if isinstance(e, Received)]

    @property
    def gone(self) -> list[tuple[int, int, int]]:
        return [(e.partition, e.first, e.next) for e in self.events if isinstance(e, RecordsGone)]


@pytest.mark.parametrize("odd", ODD_TOPICS, ids=str)
def test_a_participant_reads_what_is_right_of_an_odd_topic(broker: Settings, topic: str, odd: OddTopic) -> None:
    envelopes = f"{topic}-odd"
    make(broker, envelopes)
    odd.before(broker, envelopes)
    with Participant(broker, topic, envelopes=envelopes, start_at="earliest") as one:
        until(lambda: len(one.texts) >= len(odd.read[0]))
    odd.away(broker, envelopes)
    with Participant(broker, topic, envelopes=envelopes, start_at="earliest") as back:
        until(lambda: len(back.texts) >= len(odd.read[1]))
    assert (one.texts, back.texts) == odd.read
    gone = [event for event in (*one.events, *back.events) if isinstance(event, RecordsGone)]
    anew = [event for event in gone if event.reason == "the topic was created anew"]
    assert bool(anew) == odd.created_anew
    assert [(e.partition, e.first, e.next) for e in gone if e not in anew] == deleted_ranges(odd)


@pytest.mark.parametrize("odd", ODD_TOPICS, ids=str)
def test_a_bridge_dispatches_what_is_right_of_an_odd_topic(
    broker: Settings, topic: str, odd: OddTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """The outgoing topic is somebody else's, too."""
    outgoing = f"{topic}-odd"
    make(broker, outgoing)
    topics = broker.kafka.topics.model_copy(
        update={"envelopes": topic, "outgoing": outgoing, "dispatched": f"{topic}-d"}
    )
    here = broker.model_copy(update={"kafka": broker.kafka.model_copy(update={"topics": topics})})
    here = here.model_copy(update={"bridge": here.bridge.model_copy(update={"group_id": topic})})
    expected = [*odd.read[0], *odd.read[1]]
    with Participant(broker, topic, None, start_at="earliest") as one:
        for happens, count in ((odd.before, len(odd.read[0])), (odd.away, len(expected))):
            happens(broker, outgoing)
            bridge = make_bridge(here, loop=True)
            bridge.start()
            try:
                until(lambda count=count: len(one.texts) >= count)  # type: ignore[misc]
            finally:
                bridge.stop()
        assert one.texts == expected
    warned = [record.args[0] for record in caplog.records if isinstance(record.args, tuple) and record.args]
    gone = [each for each in warned if isinstance(each, RecordsGone)]
    assert [(each.partition, each.first, each.next) for each in gone] == deleted_ranges(odd)


def deleted_ranges(odd: OddTopic) -> list[tuple[int, int, int]]:
    """The deleted offsets of a topic: partition, first, and the next kept one. Only the job asks for compaction."""
    return [(partition, first, last + 1) for partition, first, last, cause in odd.gaps if cause == "offset_jump"]


def test_a_participant_receives_a_record_of_the_farthest_future(broker: Settings, topic: str) -> None:
    """Spark cannot read it: tests/kafka/test_unreadable.py."""
    make(broker, f"{topic}-odd")
    write(broker, f"{topic}-odd", ["far"], timestamp_ms=2**62)
    with Participant(broker, topic, None, envelopes=f"{topic}-odd", start_at="earliest") as one:
        until(lambda: one.texts == ["far"])


def test_aborted_records_are_received_by_those_who_want_them(broker: Settings, topic: str) -> None:
    transact(broker, topic, ["aborted"], commit=False)
    write(broker, topic, ["after"])
    client = {"isolation_level": SecretStr("read_uncommitted")}
    everything = broker.model_copy(update={"kafka": broker.kafka.model_copy(update={"client": client})})
    with Participant(everything, topic, None, start_at="earliest") as one:
        until(lambda: "after" in one.texts)
    assert one.texts == ["aborted", "after"]


def test_the_end_of_a_partition_is_after_what_kafka_withholds(broker: Settings, topic: str) -> None:
    """Ingest lets no time pass in a partition until it has read that: a transaction, and a record of another
    producer."""
    transact(broker, topic, ["open"], commit=None)
    write(broker, topic, ["after"])
    clients = broker.kafka.clients()
    with closing(KafkaConsumer(**clients.consumer)) as reader:
        assert reader.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 0}
    assert describe_topic(clients, topic, with_ends=True).ends[0] == 2


def test_the_health_says_what_an_open_transaction_withholds(
    broker: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was "0 records behind", for as long as the transaction was open."""
    monkeypatch.setattr("reliable_channel.transport.kafka.CHECK_INTERVAL_S", 0.0)
    with Participant(broker, topic, None, start_at="earliest") as one:
        write(broker, topic, ["before"])
        until(lambda: "Kafka answers; 0 records behind" in one.node.health().detail and one.texts == ["before"])
        assert "withholds" not in one.node.health().detail
        transact(broker, topic, ["open", "open"], commit=None)
        write(broker, topic, ["behind it"])
        until(lambda: "0 records behind; an open transaction withholds 3" in one.node.health().detail)
        assert one.texts == ["before"]


def test_a_bridge_says_once_that_a_transaction_stays_open(
    broker: Settings, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It dispatched nothing, for as long as the transaction was open, and no log or health said why."""
    monkeypatch.setattr(kafka_consumer, "TOPIC_REFRESH_S", 0.0)
    with closing(OffsetReader(broker.kafka.clients(), topic, f"bridge-{topic}", "earliest")) as reader:
        write(broker, topic, ["before"])
        transact(broker, topic, ["open"], commit=None)
        write(broker, topic, ["behind it"])
        until(lambda: reader.poll(50) is not None and "stays open in partition 0" in caplog.text)
        for _ in range(3):
            reader.poll(50)
    assert caplog.text.count("stays open") == 1
    assert f"of {topic}: Kafka withholds what is there from offset 1 on" in caplog.text


def test_two_participants_of_one_group_are_named(
    broker: Settings, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As two API servers have it by default: the one that was away continued where the other one was, without a
    word."""
    monkeypatch.setattr("reliable_channel.transport.kafka.CHECK_INTERVAL_S", 0.0)
    shared = f"another process uses the group g-{topic}"
    with Participant(broker, topic) as one:
        until(lambda: "records behind" in one.node.health().detail)
        with Participant(broker, topic, "own"), Participant(broker, topic, None):
            write(broker, topic, ["read by all"])
            until(lambda: one.texts == ["read by all"])
        assert shared not in one.node.health().detail
        with Participant(broker, topic) as other:
            until(lambda: shared in one.node.health().detail)
            write(broker, topic, ["read by both"])
            until(lambda: "read by both" in one.texts and "read by both" in other.texts)
    assert shared in caplog.text


def test_records_deleted_under_a_running_reader_are_named(broker: Settings, topic: str) -> None:
    gone: list[RecordsGone] = []
    write(broker, topic, [f"{number}" for number in range(6)])
    reader = OffsetReader(broker.kafka.clients(), topic, None, "earliest", on_gone=gone.append)
    try:
        delete_records(broker, topic, 4)
        records: list[int] = []
        until(lambda: records.extend(each.offset for each in reader.poll(200)) or 5 in records)
    finally:
        reader.close()
    assert records[-2:] == [4, 5]
    assert [(each.first, each.next) for each in gone] == [(0, 4)]


def test_a_send_whose_report_is_deleted_unread_fails_and_may_be_repeated(
    broker: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A participant slept for longer than reports are kept, and its send stayed queued for ever."""
    poll, asleep, awake = OffsetReader.poll, threading.Event(), threading.Event()

    def poll_awake(reader: OffsetReader, timeout_ms: int) -> Any:
        if reader._topic == f"{topic}-d" and not awake.is_set():
            asleep.set()
            awake.wait(WAIT_S)
        return poll(reader, timeout_ms)

    monkeypatch.setattr(OffsetReader, "poll", poll_awake)
    with Participant(broker, topic, None) as one:
        assert asleep.wait(WAIT_S)
        request_id = one.node.send(WakuMessage(b"sent", TOPIC))
        write(broker, f"{topic}-d", ["report"] * 3)
        delete_records(broker, f"{topic}-d", 3)
        awake.set()
        until(lambda: any(isinstance(event, SendFailed) for event in one.events))
    (failed,) = [event for event in one.events if isinstance(event, SendFailed)]
    assert (failed.request_id, failed.retriable) == (request_id, True)
    assert "gone" in failed.detail


def test_a_send_whose_record_is_deleted_before_a_bridge_takes_it_fails_and_may_be_repeated(
    broker: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed queued for ever: the bridge that came then had nothing to report on."""
    monkeypatch.setattr(kafka_node, "CHECK_INTERVAL_S", 0.1)
    with Participant(broker, topic, None) as one:
        deleted = one.node.send(WakuMessage(b"deleted", TOPIC))
        until(lambda: one.node._awaited.list_places())
        delete_records(broker, f"{topic}-o", 1)
        waiting = one.node.send(WakuMessage(b"waiting", TOPIC))
        until(lambda: any(isinstance(event, SendFailed) for event in one.events))
        (failed,) = [event for event in one.events if isinstance(event, SendFailed)]
        assert (failed.request_id, failed.retriable) == (deleted, True)
        assert "gone" in failed.detail
        assert waiting in one.node._awaited


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers look every tenth of a second for what they look for every half minute, or every hour."""
    monkeypatch.setattr(kafka_consumer, "TOPIC_REFRESH_S", 0.1)
    monkeypatch.setattr(kafka_consumer, "RENEW_OFFSETS_S", 0.1)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("group", ["g", None], ids=["with a group", "without"])
def test_under_a_running_participant_a_partition_is_added_and_the_topic_created_anew(
    broker: Settings, topic: str, group: str | None
) -> None:
    envelopes = f"{topic}-odd"
    make(broker, envelopes)
    write(broker, envelopes, ["old 0", "old 1"])
    with Participant(broker, topic, group, envelopes=envelopes, start_at="earliest") as one:
        until(lambda: len(one.texts) == 2)
        add_partitions(broker, envelopes, 2)
        write(broker, envelopes, ["added"], partition=1)
        until(lambda: one.texts[2:] == ["added"])
        make_anew(broker, envelopes)
        write(broker, envelopes, [f"new {number}" for number in range(5)])
        until(lambda: {f"new {number}" for number in range(5)} <= {*one.texts})
        assert "the topic was created anew" in {event.reason for event in one.events if isinstance(event, RecordsGone)}


@pytest.mark.usefixtures("soon")
def test_offsets_that_the_broker_forgets_while_a_partition_is_quiet_are_committed_again(
    broker: Settings, topic: str
) -> None:
    """Kafka forgets an offset a week after its last commit; here somebody deletes it."""
    group, partition, client = f"g-{topic}", TopicPartition(topic, 0), admin(broker)

    def is_committed() -> bool:
        known = client.list_group_offsets(group)[group].get(partition)
        return known is not None and known.offset == 1

    write(broker, topic, ["read"])
    try:
        with Participant(broker, topic, start_at="earliest") as one:
            until(lambda: one.texts == ["read"])
            until(is_committed)
            client.delete_group_offsets(group, [partition])
            until(is_committed)
    finally:
        client.close()


def test_settings_of_a_topic_that_are_not_as_they_need_to_be_are_named(broker: Settings, topic: str) -> None:
    others = f"{topic}-others"
    make(broker, others)
    configure(broker, others, cleanup_policy="compact,delete", max_message_bytes="1000000")
    assert find_deviations(broker.kafka, [topic, others]) == {
        topic: [],
        others: [
            "message.timestamp.type=CreateTime (LogAppendTime is needed)",
            "max.message.bytes=1000000 (16777216 is needed)",
            "cleanup.policy=compact,delete (delete is needed)",
        ],
    }


def test_a_client_of_others_in_the_group_of_a_participant_is_named(
    broker: Settings, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was "Kafka does not answer"; where the other one had read, the participant continued without a word."""
    group, options = f"g-{topic}", broker.kafka.clients().consumer
    write(broker, topic, ["read by the other one"])
    with closing(KafkaConsumer(**options, group_id=group, auto_offset_reset="earliest")) as other:
        until(lambda: other.partitions_for_topic(topic))  # where it joins before it knows them, it never gets one
        other.subscribe([topic])
        until(lambda: bool(other.poll(200)))
        with pytest.raises(EnvironmentFault) as fault:
            Participant(broker, topic).node.start()
        other.commit()
    named = f"reliable-channel: {fault.value}"
    assert error_page.pattern_of("Another client in a consumer group").fullmatch(named)
    write(broker, topic, ["later"])
    with Participant(broker, topic) as one:
        until(lambda: one.texts == ["later"])
    assert f"another client set the group {group} to offset 1" in caplog.text


def test_without_its_codec_a_participant_names_it_and_goes_on_when_it_is_there(
    broker: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(broker, topic, ["before"])
    write(broker, topic, ["compressed"], compression_type="zstd")
    write(broker, topic, ["after"])
    with monkeypatch.context() as without:
        without.setattr(kafka.codec, "zstd", None)  # before anything is read: the participant may be quicker than this
        with Participant(broker, topic, None, start_at="earliest") as one:
            until(lambda: one.node.health().state is HealthState.UNHEALTHY and "[zstd]" in one.node.health().detail)
            without.undo()
            until(lambda: one.texts == ["before", "compressed", "after"])
            until(lambda: one.node.health().state is not HealthState.UNHEALTHY)


def test_a_record_that_cannot_be_decoded_is_named_and_a_participant_goes_on_when_it_is_deleted(
    broker: Settings, topic: str
) -> None:
    write(broker, topic, ["before"])
    write_undecodable(broker, topic)
    write(broker, topic, ["after"])
    with Participant(broker, topic, None, start_at="earliest") as one:
        until(lambda: "partition 0, offset 1" in one.node.health().detail)
        delete_records(broker, topic, 2)
        until(lambda: one.texts == ["before", "after"])
        assert one.gone == [(0, 1, 2)]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("kafka-node-")]


def test_evidence_that_cannot_be_decoded_ends_its_job_with_a_sentence(
    broker: Settings, topic: str, tmp_path: Path
) -> None:
    write_undecodable(broker, topic)
    here = broker.with_run_dir(tmp_path)
    with pytest.raises(EnvironmentFault) as fault:
        collect_evidence(here.model_copy(update={"bridge": here.bridge.model_copy(update={"evidence_topic": topic})}))
    assert error_page.pattern_of("A record that cannot be decoded").fullmatch(str(fault.value))
    assert "partition 0, offset 0" in str(fault.value)


def test_evidence_of_a_topic_that_was_created_anew_is_read(broker: Settings, topic: str, tmp_path: Path) -> None:
    name = f"{topic}-evidence"
    here = broker.with_run_dir(tmp_path)
    here = here.model_copy(update={"bridge": here.bridge.model_copy(update={"evidence_topic": name})})

    def collect(*events: str) -> int:
        with closing(KafkaProducer(**broker.kafka.clients().producer, acks="all")) as producer:
            for event in events:
                value = {"kind": "sender", "event": event, "at_ms": 1_767_225_600_000}
                producer.send(name, json.dumps(value).encode()).get(timeout=WAIT_S)
        return collect_evidence(here).written

    make(broker, name)
    assert (collect("queued", "sent"), collect()) == (2, 0)
    make_anew(broker, name)
    assert (collect("queued"), collect("sent", "failed"), collect()) == (1, 2, 0)


def test_evidence_that_an_open_transaction_withholds_is_counted(broker: Settings, topic: str, tmp_path: Path) -> None:
    """It was "0 records of evidence", and a run said nothing."""
    here = broker.with_run_dir(tmp_path)
    here = here.model_copy(update={"bridge": here.bridge.model_copy(update={"evidence_topic": topic})})
    with closing(KafkaProducer(**broker.kafka.clients().producer, acks="all")) as producer:

        def report(event: str) -> None:
            value = {"kind": "sender", "event": event, "at_ms": 1_767_225_600_000}
            producer.send(topic, json.dumps(value).encode()).get(timeout=WAIT_S)

        report("queued")
        transact(broker, topic, ["open"], commit=None)
        report("sent")
    assert str(collect_evidence(here)) == "1 records of evidence; an open transaction withholds 2"


def test_evidence_that_is_deleted_while_it_is_read_takes_nothing_else_with_it(
    broker: Settings, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was kept was skipped, up to the end of the topic."""
    here = broker.with_run_dir(tmp_path)
    here = here.model_copy(update={"bridge": here.bridge.model_copy(update={"evidence_topic": topic})})
    with closing(KafkaProducer(**broker.kafka.clients().producer, acks="all")) as producer:
        for event in ("queued", "sent", "failed"):
            value = {"kind": "sender", "event": event, "at_ms": 1_767_225_600_000}
            producer.send(topic, json.dumps(value).encode()).get(timeout=WAIT_S)
    find_ends = KafkaConsumer.end_offsets

    def delete_meanwhile(consumer: KafkaConsumer, partitions: list[TopicPartition]) -> Any:
        delete_records(broker, topic, 1)
        return find_ends(consumer, partitions)

    monkeypatch.setattr(KafkaConsumer, "end_offsets", delete_meanwhile)
    assert collect_evidence(here).written == 2


def test_only_what_the_broker_deleted_or_may_have_compacted_is_lost_among_missing_offsets(
    broker: Settings, topic: str
) -> None:
    """Five transactions, one aborted; the first ones are deleted. Then the topic is compacted."""
    for number in range(5):
        transact(broker, topic, [f"{number}"], commit=number != 3)  # each: a record and a marker
    delete_records(broker, topic, 3)
    place = (topic, 0)
    missing = {place: [OffsetGap(offset, offset, 0, 0) for offset in (1, 3, 5)] + [OffsetGap(6, 7, 0, 0)]}
    find_lost = ask_broker(broker.kafka)
    assert find_lost(missing) == {place: [OffsetGap(1, 1, 0, 0)]}
    configure(broker, topic, cleanup_policy="compact")
    kept = [replace(gap, cause="compaction") for gap in missing[place][1:]]
    until(lambda: find_lost(missing) == {place: [OffsetGap(1, 1, 0, 0), *kept]})
