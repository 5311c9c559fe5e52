"""Remembers when the channels of a bucket have something due, so that a tick reaches only those channels.

A tick goes to every bucket. Due times are in pages, by Kafka partition and by minute; the head of the bucket, which is
read anyway, names the minutes and the earliest due time of each. So a tick by which nothing is due costs no further
read, and a new due time costs one page, however many channels the bucket holds.

Pages are only appended to. A channel with a due time has an entry that is not later; an entry may be too early,
because a channel whose timer was cancelled or moved back keeps it. When an entry is due, the channel itself decides
what is to be done, and its next due time is added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.lake.tables import TopicPartition

if TYPE_CHECKING:
    from reliable_channel.pipeline.ack.buckets import StoredBucket
    from reliable_channel.pipeline.ack.observer import ChannelKey

SLOT_US = 60_000_000
"""The length (µs) of a slot. All entries of a slot are read when its first one is due; shorter slots make the head
longer."""
PAGE_BYTES = 4 * 1024
"""A page is full at this size (bytes): about forty channels."""
_NAME_BYTES = 24
"""Names of channels have 32 bytes, those of settings 16."""


class Due(NamedTuple):
    """What is due of a channel: ``is_end``: it becomes dormant or is deleted; otherwise a timer of SDS runs. They have
    separate entries, because a channel has one end and many timers: each timer would add another entry for the end."""

    key: ChannelKey
    is_end: bool


@dataclass
class _Slot:
    least_us: int
    pages: int = 0


class DueTimes:
    """The due times of one bucket in one micro-batch. ``topic_partitions``: what the bucket's head holds."""

    def __init__(self, state: StoredBucket, topic_partitions: Iterable[pb.DuePlaceProto]) -> None:
        self._state = state
        self._slots: dict[tuple[TopicPartition, int], _Slot] = {
            ((topic_partition.kafka_topic, topic_partition.kafka_partition), slot.number): _Slot(
                slot.least_us, slot.pages
            )
            for topic_partition in topic_partitions
            for slot in topic_partition.slots
        }
        self._added: dict[tuple[TopicPartition, int], dict[Due, int]] = {}

    def take(self, ticks: Mapping[TopicPartition, int]) -> set[Due]:
        """Remove and return what is due. ``ticks``: how far (event time, µs) each Kafka partition has advanced."""
        dues: set[Due] = set()
        for (topic_partition, number), slot in list(self._slots.items()):
            until_us = ticks.get(topic_partition)
            if until_us is None or slot.least_us > until_us:
                continue
            del self._slots[topic_partition, number]
            name = _make_name(topic_partition, number)
            for page in range(slot.pages):
                for channel in pb.DuePageProto.FromString(self._state.get(name, page) or b"").channels:
                    pubsub_topic, content_topic, channel_id, family = channel.key
                    due = Due((pubsub_topic, content_topic, channel_id, family), channel.is_end)
                    if channel.due_us <= until_us:
                        dues.add(due)
                    else:  # later in the minute: the slot goes as a whole, so it is entered again
                        self.add(topic_partition, due, channel.due_us)
                self._state.remove(name, page)
        return dues

    def add(self, topic_partition: TopicPartition, due: Due, due_us: int) -> None:
        """Add a due time (µs) of a channel whose rows come from ``topic_partition``."""
        added = self._added.setdefault((topic_partition, due_us // SLOT_US), {})
        added[due] = min(due_us, added.get(due, due_us))

    def write(self) -> list[pb.DuePlaceProto]:
        """Write the added due times; returns what the head of the bucket must hold."""
        for (topic_partition, number), added in self._added.items():
            slot = self._slots.setdefault((topic_partition, number), _Slot(min(added.values())))
            slot.least_us = min(slot.least_us, *added.values())
            self._append(_make_name(topic_partition, number), slot, added)
        self._added = {}
        topic_partitions: dict[TopicPartition, pb.DuePlaceProto] = {}
        for (topic_partition, number), slot in self._slots.items():
            proto = topic_partitions.setdefault(
                topic_partition, pb.DuePlaceProto(kafka_topic=topic_partition[0], kafka_partition=topic_partition[1])
            )
            proto.slots.append(pb.DueSlotProto(number=number, least_us=slot.least_us, pages=slot.pages))
        return list(topic_partitions.values())

    def _append(self, name: bytes, slot: _Slot, added: Mapping[Due, int]) -> None:
        page = pb.DuePageProto()
        # The last page is written again until it is full; the pages before it are not read.
        if slot.pages and len(last := self._state.get(name, slot.pages - 1) or b"") < PAGE_BYTES:
            page.ParseFromString(last)
            slot.pages -= 1
        size = page.ByteSize()
        for due, due_us in added.items():
            channel = page.channels.add(key=due.key, due_us=due_us, is_end=due.is_end)
            size += channel.ByteSize()
            if size >= PAGE_BYTES:
                self._state.put(name, slot.pages, page.SerializeToString())
                page, size = pb.DuePageProto(), 0
                slot.pages += 1
        if page.channels:
            self._state.put(name, slot.pages, page.SerializeToString())
            slot.pages += 1


def _make_name(topic_partition: TopicPartition, number: int) -> bytes:
    """The name of a slot in the bucket."""
    topic, partition = topic_partition
    return hashlib.sha256(f"{number} {partition} {topic}".encode()).digest()[:_NAME_BYTES]
