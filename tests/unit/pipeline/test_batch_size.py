"""A micro-batch is bounded in bytes: where the newest records are large, fewer are read at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import KafkaError

from reliable_channel.pipeline.ingest.batch_size import SAMPLED_RECORDS, count_records_within, sample_sizes


@given(st.lists(st.integers(0, 16 * 2**20), max_size=50), st.integers(1, 10**6), st.integers(1, 2**32))
def test_neither_limit_is_passed_by_records_of_the_mean_size(sizes: list[int], records: int, size: int) -> None:
    limit = count_records_within(sizes, records, size)
    assert 1 <= limit <= records
    if limit > 1 and sizes:
        assert limit * sum(sizes) <= size * len(sizes)
    if limit < records:
        assert (limit + 1) * sum(sizes) > size * len(sizes)


def test_an_empty_topic_and_small_records_take_nothing_away() -> None:
    assert (
        count_records_within([], 50_000, 2**30)
        == count_records_within([0, 0], 50_000, 2**30)
        == count_records_within([450] * 9, 50_000, 2**30)
        == 50_000
    )
    assert count_records_within([150_000], 50_000, 2**30) == 7_158


class Log:
    """Two partitions of a topic: 1 000 records, of which the newest are large, and none."""

    def __init__(self) -> None:
        self.at: dict[TopicPartition, int] = {}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {0, 1} if topic == "there" else None

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: 1_000 if each.partition == 0 else 7 for each in partitions}

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 7)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.at = dict.fromkeys(partitions, 0)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.at[partition] = offset

    def assignment(self) -> set[TopicPartition]:
        return set(self.at)

    def position(self, partition: TopicPartition) -> int:
        return self.at[partition]

    def highwater(self, partition: TopicPartition) -> int:
        return self.end_offsets([partition])[partition]

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        partition = TopicPartition("there", 0)
        start, self.at[partition] = self.at[partition], min(self.at[partition] + 90, 1_000)
        offsets = range(start, self.at[partition])
        return {partition: [SimpleNamespace(value=None if n % 2 else bytes(n)) for n in offsets]}


def test_the_newest_records_of_every_partition_are_looked_at() -> None:
    assert sample_sizes(Log(), "there") == [0 if n % 2 else n for n in range(1_000 - SAMPLED_RECORDS, 1_000)]
    assert sample_sizes(Log(), "not there") == []


class Undecodable(Log):
    """The last record has bytes that Python cannot decode."""

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        records = super().poll(timeout_ms)
        if self.at[TopicPartition("there", 0)] == 1_000:
            b"\xff".decode()
        return records


def test_a_record_that_only_spark_can_decode_is_left_out() -> None:
    assert len(sample_sizes(Undecodable(), "there")) == 180


class BeingCreated(Log):
    """The brokers know the partitions, and not yet where they begin."""

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        raise KeyError(partitions[0])


def test_a_topic_that_is_being_created_is_an_error_of_kafka() -> None:
    """It was a fault of the program, which ended the start of ingest."""
    with pytest.raises(KafkaError):
        sample_sizes(BeingCreated(), "there")
