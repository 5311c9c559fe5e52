"""Topics as others make them: transactions, compression, retention, partitions and topics that come and go.

What participants and the bridge read of them; ``tests/spark/test_odd_topics_in_spark.py`` reads the same topics with
the jobs.
"""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import kafka.codec
import pytest
from kafka import KafkaProducer

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.evidence.collecting import collect_evidence
from reliable_channel.pipeline.ingest.lost_offsets import LostRange, ask_broker
from reliable_channel.pipeline.ingest.task import OffsetGap
from reliable_channel.runtime.build import make_bridge
from reliable_channel.transport.base import Received, RecordsGone
from reliable_channel.transport.health import HealthState
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.kafka_consumer import GoneOffsets, OffsetReader
from reliable_channel.transport.sharding import NamedTopic
from tests.support import error_page
from tests.support.odd_topics import (
    HEADERS,
    PUBSUB_TOPIC,
    TOPIC,
    add_partitions,
    admin,
    compact,
    configure,
    create,
    delete_records,
    read_committed,
    transact,
    until,
    write,
    write_undecodable,
)

pytestmark = pytest.mark.kafka

_numbers = itertools.count()


@pytest.fixture
def topic(broker: Settings) -> str:
    name = f"odd-{os.getpid()}-{next(_numbers)}"
    create(broker, name)
    return name


class Participant:
    """A participant with a group; ``texts`` are what it received."""

    def __init__(self, broker: Settings, topic: str, group: str | None = "g", **options: Any) -> None:
        self.events: list[Any] = []
        self.node = KafkaNode(
            broker.kafka.clients(),
            NamedTopic(PUBSUB_TOPIC),
            envelopes_topic=topic,
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


def test_aborted_records_are_not_received(broker: Settings, topic: str) -> None:
    transact(broker, topic, ["committed"], commit=True)
    transact(broker, topic, ["aborted"], commit=False)
    write(broker, topic, ["after"])
    with Participant(broker, topic, None, start_at="earliest") as one:
        until(lambda: "after" in one.texts)
    assert one.texts == ["committed", "after"]


def test_aborted_records_are_received_by_those_who_want_them(broker: Settings, topic: str) -> None:
    transact(broker, topic, ["aborted"], commit=False)
    write(broker, topic, ["after"])
    everything = broker.model_copy(
        update={"kafka": broker.kafka.model_copy(update={"isolation_level": "read_uncommitted"})}
    )
    with Participant(everything, topic, None, start_at="earliest") as one:
        until(lambda: "after" in one.texts)
    assert one.texts == ["aborted", "after"]


def test_a_participant_whose_first_session_was_quiet_receives_what_came_while_it_was_away(
    broker: Settings, topic: str
) -> None:
    with Participant(broker, topic):
        pass
    write(broker, topic, ["one", "two", "three"])
    with Participant(broker, topic) as back:
        until(lambda: len(back.texts) == 3)
    assert back.texts == ["one", "two", "three"]


def test_a_partition_that_is_new_since_the_last_session_is_read_from_its_beginning(
    broker: Settings, topic: str
) -> None:
    with Participant(broker, topic):
        pass
    add_partitions(broker, topic, 2)
    write(broker, topic, ["new"], partition=1)
    with Participant(broker, topic) as back:
        until(lambda: back.texts == ["new"])


def test_of_a_compacted_topic_what_is_kept_is_received(broker: Settings, topic: str) -> None:
    write(broker, topic, [f"{number}" for number in range(5)])
    with Participant(broker, topic, start_at="earliest") as one:
        until(lambda: len(one.texts) == 5)
    write(broker, topic, [f"{number}" for number in range(5, 10)])
    compact(broker, topic)
    with Participant(broker, topic) as back:
        until(lambda: len(back.texts) >= 2)
    assert back.texts == ["9", "begins a segment"]
    lost = ask_broker(broker.kafka)({(topic, 0): [OffsetGap(5, 8, 0, 0)]})
    assert lost == {(topic, 0): [LostRange(OffsetGap(5, 8, 0, 0), "compaction")]}


@pytest.mark.parametrize("timestamp_ms", [0, 1, 2**31, 2**62])
def test_records_of_any_time_are_received_in_a_topic_of_either_kind_of_time(
    broker: Settings, topic: str, timestamp_ms: int
) -> None:
    configure(broker, topic, message_timestamp_after_max_ms=str(2**63 - 1))
    write(broker, topic, ["odd"], timestamp_ms=timestamp_ms)
    configure(broker, topic, message_timestamp_type="LogAppendTime")
    write(broker, topic, ["by the broker"], timestamp_ms=timestamp_ms)
    with Participant(broker, topic, None, start_at="earliest") as one:
        until(lambda: len(one.texts) == 2)
    assert one.texts == ["odd", "by the broker"]


def test_after_retention_it_continues_at_the_earliest_kept_record_and_names_the_range(
    broker: Settings, topic: str
) -> None:
    write(broker, topic, [f"{number}" for number in range(4)])
    with Participant(broker, topic, start_at="earliest") as one:
        until(lambda: len(one.texts) == 4)
    write(broker, topic, [f"{number}" for number in range(4, 10)])
    delete_records(broker, topic, 6)
    with Participant(broker, topic) as back:
        until(lambda: len(back.texts) == 4)
        until(lambda: "gone" in back.node.health().detail)
    assert back.texts == ["6", "7", "8", "9"]
    assert back.gone == [(0, 4, 6)]


def test_a_topic_that_was_created_anew_is_read_from_its_beginning(broker: Settings, topic: str) -> None:
    write(broker, topic, ["old 0", "old 1"])
    with Participant(broker, topic, start_at="earliest") as one:
        until(lambda: len(one.texts) == 2)
    client = admin(broker)
    client.delete_topics([topic])
    until(lambda: topic not in client.list_topics())
    client.close()
    create(broker, topic)
    write(broker, topic, [f"new {number}" for number in range(5)])
    with Participant(broker, topic) as back:
        until(lambda: len(back.texts) == 5)
    assert back.texts == [f"new {number}" for number in range(5)]
    assert [event.reason for event in back.events if isinstance(event, RecordsGone)] == ["the topic was created anew"]


def test_records_deleted_under_a_running_reader_are_named(broker: Settings, topic: str) -> None:
    gone: list[GoneOffsets] = []
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


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_received(broker: Settings, topic: str, codec: str) -> None:
    texts = [f"{codec} {number} " + "x" * 10_000 for number in range(200)]
    write(broker, topic, texts, compression_type=codec, linger_ms=50, batch_size=1 << 20)
    with Participant(broker, topic, None, start_at="earliest") as one:
        until(lambda: len(one.texts) == 200)
    assert one.texts == texts


def test_without_its_codec_a_participant_names_it_and_goes_on_when_it_is_there(
    broker: Settings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(broker, topic, ["before"])
    write(broker, topic, ["compressed"], compression_type="zstd")
    write(broker, topic, ["after"])
    with Participant(broker, topic, None, start_at="earliest") as one, monkeypatch.context() as without:
        without.setattr(kafka.codec, "zstd", None)
        until(lambda: one.node.health().state is HealthState.UNHEALTHY and "zstd" in one.node.health().detail)
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
    assert error_page.expected("A record that cannot be decoded").fullmatch(str(fault.value))
    assert "partition 0, offset 0" in str(fault.value)


def test_tombstones_and_records_without_headers_or_with_negative_times_stop_nobody(
    broker: Settings, topic: str
) -> None:
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    value = encode_waku_message(WakuMessage(b"no headers", TOPIC))
    for send in (
        lambda: producer.send(topic, None, TOPIC.encode(), HEADERS, 0),
        lambda: producer.send(topic, value, None, None, 0),
    ):
        send().get(timeout=30)
    producer.close()
    write(broker, topic, ["after"])
    with Participant(broker, topic, None, start_at="earliest") as one:
        until(lambda: "after" in one.texts)
    assert one.texts[-1] == "after"


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
    assert find_lost(missing) == {place: [LostRange(OffsetGap(1, 1, 0, 0))]}
    configure(broker, topic, cleanup_policy="compact")
    kept = [LostRange(gap, "compaction") for gap in missing[place][1:]]
    until(lambda: find_lost(missing) == {place: [LostRange(OffsetGap(1, 1, 0, 0)), *kept]})


def test_a_bridge_dispatches_what_is_committed_and_kept_however_it_is_compressed(broker: Settings, topic: str) -> None:
    """The outgoing topic is somebody else's, too: a producer with transactions, others with every codec."""
    outgoing = f"{topic}-o"
    topics = broker.kafka.topics.model_copy(
        update={"envelopes": topic, "outgoing": outgoing, "dispatched": f"{topic}-d"}
    )
    here = broker.model_copy(update={"kafka": broker.kafka.model_copy(update={"topics": topics})})
    here = here.model_copy(update={"bridge": here.bridge.model_copy(update={"group_id": topic})})
    bridge, again = make_bridge(here, loop=True), make_bridge(here, loop=True)
    transact(broker, outgoing, ["committed"], commit=True)
    transact(broker, outgoing, ["aborted"], commit=False)
    codecs = ("gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        write(broker, outgoing, [f"{codec} {number}" for number in range(3)], compression_type=codec)
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    producer.send(outgoing, None, TOPIC.encode(), HEADERS, 0).get(timeout=30)
    producer.close()
    write(broker, outgoing, ["of 1970"], timestamp_ms=0)
    configure(broker, outgoing, message_timestamp_type="LogAppendTime")
    write(broker, outgoing, ["by the broker"])
    bridge.start()
    try:
        with Participant(broker, topic, None, start_at="earliest") as one:
            until(lambda: len(one.texts) >= 15)
            bridge.stop()
            write(broker, outgoing, ["deleted", "kept"])
            delete_records(broker, outgoing, read_committed(broker, outgoing)[-1][1])
            again.start()
            until(lambda: len(one.texts) >= 16)
    finally:
        bridge.stop()
        again.stop()
    expected = [f"{codec} {number}" for codec in codecs for number in range(3)]
    assert one.texts == ["committed", *expected, "of 1970", "by the broker", "kept"]
