"""Topics as others make them, for tests with a real broker: :data:`ODD_TOPICS` lists them with what is right to be read
of each, whoever reads it (participant, bridge or the ingest job)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource

from reliable_channel.config import Settings
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.runtime.topics import ensure_topics
from tests.support.waiting import WAIT_S, until

PUBSUB_TOPIC, TOPIC = "/waku/2/rs/16/32", "/app/1/golden/proto"
HEADERS = [("pubsub_topic", PUBSUB_TOPIC.encode()), ("source", b"relay")]
_numbers = itertools.count()


def create(broker: Settings, name: str, partitions: int = 1) -> None:
    """Create a topic."""
    topics = broker.kafka.topics.model_copy(
        update={"envelopes": name, "outgoing": f"{name}-o", "dispatched": f"{name}-d", "partitions": partitions}
    )
    ensure_topics(broker.kafka.model_copy(update={"topics": topics}))


def make(broker: Settings, topic: str) -> None:
    """Create a topic of somebody else's: one partition, times of the producers without a limit, kept for ever."""
    no_limit = str(2**63 - 1)
    configs = {
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": no_limit,
        "message.timestamp.before.max.ms": no_limit,
        "retention.ms": "-1",
    }
    client = admin(broker)
    client.create_topics({topic: {"num_partitions": 1, "replication_factor": 1, "configs": configs}})
    client.close()


def make_anew(broker: Settings, topic: str) -> None:
    """Delete a topic and create it again under the same name."""
    client = admin(broker)
    client.delete_topics([topic])
    until(lambda: topic not in client.list_topics())
    client.close()
    make(broker, topic)


def admin(broker: Settings) -> KafkaAdminClient:
    """A client that administrates."""
    return KafkaAdminClient(**broker.kafka.clients().admin)


def write(
    broker: Settings,
    topic: str,
    texts: list[str],
    partition: int = 0,
    *,
    key: bytes = TOPIC.encode(),
    timestamp_ms: int | None = None,
    **options: Any,
) -> None:
    """Write envelopes with these payloads; ``options`` are the producer's."""
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all", **options)
    sent = [
        producer.send(
            topic, encode_waku_message(WakuMessage(text.encode(), TOPIC)), key, HEADERS, partition, timestamp_ms
        )
        for text in texts
    ]
    for each in sent:
        each.get(timeout=WAIT_S)
    producer.close()


def transact(broker: Settings, topic: str, texts: list[str], commit: bool | None) -> None:
    """Write records in one transaction, and commit or abort it, or leave it open."""
    producer = KafkaProducer(**broker.kafka.clients().producer, transactional_id=f"t-{topic}-{next(_numbers)}")
    producer.init_transactions()
    producer.begin_transaction()
    for text in texts:
        producer.send(topic, encode_waku_message(WakuMessage(text.encode(), TOPIC)), TOPIC.encode(), HEADERS, 0)
    producer.flush()
    if commit:
        producer.commit_transaction()
    elif commit is False:
        producer.abort_transaction()
    producer.close()


class NotUtf8(str):
    """The key of a header as clients of other languages may write it."""

    def encode(self, *_: Any) -> bytes:
        return b"\xff" * len(self)


def write_undecodable(broker: Settings, topic: str, partition: int = 0) -> None:
    """Write a record that kafka-python cannot decode, and Kafka and Spark can."""
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    producer.send(topic, b"x", TOPIC.encode(), [*HEADERS, (NotUtf8("key"), b"value")], partition).get(timeout=WAIT_S)
    producer.close()


def configure(broker: Settings, name: str, kind: str = "TOPIC", **configs: str) -> None:
    """Set configurations of a topic or a broker, with _ for every full stop in their names."""
    client = admin(broker)
    client.alter_configs([ConfigResource(kind, name, {key.replace("_", "."): v for key, v in configs.items()})])
    client.close()


def add_partitions(broker: Settings, topic: str, count: int) -> None:
    """Give a topic more partitions, ``count`` in all, and wait until the broker shows them."""
    client = admin(broker)
    client.create_partitions({topic: count})
    until(lambda: len(client.describe_topics([topic])[0]["partitions"]) == count)
    client.close()


def read_committed(broker: Settings, topic: str, partitions: int = 1) -> list[tuple[int, int]]:
    """Partition and offset of every record that a reader of committed records gets, in order."""
    consumer = KafkaConsumer(**broker.kafka.clients().consumer, group_id=None)
    places = [TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(places)
    consumer.seek_to_beginning()
    ends, read = consumer.end_offsets(places), []
    while any(consumer.position(place) < ends[place] for place in places):
        read += [(r.partition, r.offset) for records in consumer.poll(200).values() for r in records]
    consumer.close()
    return sorted(read)


def compact(broker: Settings, topic: str, partition: int = 0) -> None:
    """Let the broker remove all but the newest record of each key, and wait until it has. The last segment of a log is
    never compacted, so something is written after what shall go."""
    before = len(read_committed(broker, topic, partition + 1))
    configure(
        broker,
        topic,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0",
        max_compaction_lag_ms="1",
    )
    configure(broker, "1", "BROKER", log_cleaner_backoff_ms="100")  # by default it looks every 15 s
    time.sleep(0.2)
    write(broker, topic, ["begins a segment"], partition, key=b"another")
    until(lambda: len(read_committed(broker, topic, partition + 1)) <= before)


def delete_records(broker: Settings, topic: str, before: int, partition: int = 0) -> None:
    """Delete what is before an offset, as retention does."""
    client = admin(broker)
    client.delete_records({TopicPartition(topic, partition): before})
    client.close()


def write_bare(broker: Settings, topic: str, value: bytes | None, headers: list[tuple[str, bytes]] | None) -> None:
    """Write one record with this value and these headers."""
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    producer.send(topic, value, TOPIC.encode(), headers, 0).get(timeout=WAIT_S)
    producer.close()


Step = Callable[[Settings, str], None]
"""Does something with a topic of the broker."""


def quiet(broker: Settings, topic: str) -> None:
    """Nothing happens."""


@dataclass(frozen=True)
class OddTopic:
    """A topic, what happens to it, and what is right to be read.

    ``before`` happens before a reader's first session, ``away`` between its two sessions; ``read`` are the texts that
    it receives, in order, in both. ``gaps``: partition, first and last lost offset, and the cause as in
    ``source_gaps``. Of a topic that was ``created_anew``, participants and the bridge read all records; the job refuses
    to mix them with those of the old one."""

    name: str
    before: Step
    away: Step
    read: tuple[list[str], list[str]]
    gaps: tuple[tuple[int, int, int, str], ...] = ()
    created_anew: bool = False

    def __str__(self) -> str:
        return self.name


def _writes(*texts: str, **options: Any) -> Step:
    return lambda broker, topic: write(broker, topic, [*texts], **options)


def _do(*steps: Step) -> Step:
    def all_steps(broker: Settings, topic: str) -> None:
        for step in steps:
            step(broker, topic)

    return all_steps


def _commits(*texts: str) -> Step:
    return lambda broker, topic: transact(broker, topic, [*texts], commit=True)


def _aborts(*texts: str) -> Step:
    return lambda broker, topic: transact(broker, topic, [*texts], commit=False)


def _deletes(before: int, partition: int = 0) -> Step:
    return lambda broker, topic: delete_records(broker, topic, before, partition)


def _adds_a_partition(broker: Settings, topic: str) -> None:
    add_partitions(broker, topic, 2)


def _is_stamped_by_the_broker(broker: Settings, topic: str) -> None:
    configure(broker, topic, message_timestamp_type="LogAppendTime")


_CODECS = ("gzip", "snappy", "lz4", "zstd")
_PACKED = {codec: [f"{codec} {number} " + "x" * 1_000 for number in range(20)] for codec in _CODECS}
_TIMES_MS = (-1, -1_000, -62_135_596_800_000, 0, 1, 2**31, 32_503_680_000_000)
"""Without a time, before 1970, the year 1, 1970, and the year 3000."""


def _of_any_time(broker: Settings, topic: str) -> None:
    for at_ms in _TIMES_MS:
        write(broker, topic, [f"{at_ms} ms"], timestamp_ms=at_ms)


ODD_TOPICS = (
    OddTopic("quiet-at-first", quiet, _writes("1", "2", "3"), ([], ["1", "2", "3"])),
    OddTopic(
        "transactions",
        _do(_commits("a", "b"), _aborts("c"), _commits("d")),
        _do(_aborts("e"), _commits("f", "g"), _aborts("h")),
        (["a", "b", "d"], ["f", "g"]),
    ),
    OddTopic(
        "compacted",
        _writes(*"01234"),
        _do(_writes(*"56789"), compact),
        ([*"01234"], ["9", "begins a segment"]),
        ((0, 5, 8, "compaction"),),
    ),
    OddTopic(
        "tombstones",
        _do(
            _writes("a"),
            lambda broker, topic: write_bare(broker, topic, None, HEADERS),
            lambda broker, topic: write_bare(broker, topic, b"no headers", None),
            _writes("b"),
        ),
        _do(lambda broker, topic: write_bare(broker, topic, None, None), _writes("c")),
        (["a", "b"], ["c"]),
    ),
    OddTopic("any-time", _of_any_time, _writes("now"), ([f"{at_ms} ms" for at_ms in _TIMES_MS], ["now"])),
    OddTopic(
        "no-time-first",
        _writes("none", timestamp_ms=-1),
        _writes("none again", timestamp_ms=-1),
        (["none"], ["none again"]),
    ),
    OddTopic(
        "log-append-time",
        _do(_is_stamped_by_the_broker, _writes("a", timestamp_ms=1), _writes("b", timestamp_ms=2**40)),
        _writes("c", timestamp_ms=0),
        (["a", "b"], ["c"]),
    ),
    OddTopic(
        "compressed",
        _do(*(_writes(*texts, compression_type=codec, linger_ms=50) for codec, texts in _PACKED.items())),
        quiet,
        ([text for texts in _PACKED.values() for text in texts], []),
    ),
    OddTopic("deleted-before", _do(_writes(*"0123"), _deletes(2)), _writes("4"), (["2", "3"], ["4"])),
    OddTopic(
        "deleted",
        _writes(*"0123"),
        _do(_writes(*"456789"), _deletes(6)),
        ([*"0123"], [*"6789"]),
        ((0, 4, 5, "offset_jump"),),
    ),
    OddTopic(
        "deleted-in-a-quiet-partition",
        _do(_adds_a_partition, _writes("a")),
        _do(_writes(*"0123", partition=1), _deletes(2, partition=1)),
        (["a"], ["2", "3"]),
        ((1, 0, 1, "offset_jump"),),
    ),
    OddTopic(
        "partition-added",
        _writes("a"),
        _do(_adds_a_partition, _writes("b", "c", partition=1)),
        (["a"], ["b", "c"]),
    ),
    OddTopic(
        "partition-added-and-deleted",
        _writes("a"),
        _do(_adds_a_partition, _writes(*"0123", partition=1), _deletes(2, partition=1)),
        (["a"], ["2", "3"]),
        ((1, 0, 1, "offset_jump"),),
    ),
    OddTopic(
        "created-anew-shorter",
        _writes(*"012"),
        _do(make_anew, _writes("new")),
        ([*"012"], ["new"]),
        created_anew=True,
    ),
    OddTopic(
        "created-anew-longer",
        _writes(*"012"),
        _do(make_anew, _writes(*"abcde")),
        ([*"012"], [*"abcde"]),
        created_anew=True,
    ),
    OddTopic(
        "created-anew-unread",
        _do(_writes(*"0123"), _deletes(4)),
        _do(make_anew, _writes(*"abcdef")),
        ([], [*"abcdef"]),
        created_anew=True,
    ),
)
"""Every kind of topic that Kafka makes possible and a reader may meet."""
