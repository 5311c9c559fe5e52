"""Measures splitting, decoding and reassembling (issue *protocol core*): segments per second of CPU time, since the
machine is shared. The bookkeeping is the combiner's cost per record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from bench.registry import MB, SIZES, Result, bench, best_of
from reliable_channel.core.segmentation import (
    MessageCompleted,
    Reassembler,
    Segment,
    SegmentationConfig,
    SegmentationEvent,
    contents_for,
    split,
)
from reliable_channel.core.wire.segment import decode_segment

_SCOPE = ("/waku/2/rs/2/1", "/app/1/chat/proto", "channel")
_MANY = SegmentationConfig(segment_size_bytes=64, max_open_sets=10**6, max_open_sets_per_sender=10**6)
DEAREST = 2.5
"""Target: the most expensive segment / splitting the same message with the same parity."""
_Record = tuple[Segment, tuple[str, ...], str, int]


@bench
def bookkeeping() -> Iterator[Result]:
    """Measure 20 000 messages of five small segments by twenty senders, interleaved."""
    records = _records(SIZES.scale_count(20_000, 50))
    seconds = _cpu(lambda: _feed(records))
    yield Result("reassemble, 5 small segments a message", len(records) / seconds, "segments/s")
    incomplete = [record for record in records if record[0].index > 0]
    seconds = _cpu(lambda: _feed(incomplete))
    yield Result("bookkeeping only, no set completes", len(incomplete) / seconds, "segments/s")


@bench
def full_size() -> Iterator[Result]:
    """Measure a 1 MiB message of 100 KiB segments with parity: split, and reassemble with one loss."""
    config = SegmentationConfig(enable_reed_solomon=True)
    payload = np.random.default_rng(1).integers(0, 256, 1_048_576, dtype=np.uint8).tobytes()
    contents = contents_for(payload, config)
    seconds = _cpu(lambda: contents_for(payload, config))
    yield Result("split 1 MiB, parity 0.125", len(payload) / MB / seconds, "MB/s")

    def receive() -> None:
        reassembler = Reassembler(config)
        events: list[SegmentationEvent] = []
        for content in contents[1:]:
            segment = decode_segment(content)
            assert isinstance(segment, Segment)
            events += reassembler.add(segment, 0)
        assert _completes_one(events)

    yield Result("decode and reassemble 1 MiB, one loss", len(payload) / MB / _cpu(receive), "MB/s")


@bench
def snapshot() -> Iterator[Result]:
    """Measure writing and reading the state of 1 000 open sets of 1 KiB."""
    held, sets = Reassembler(_MANY), SIZES.scale_count(1_000, 50)
    for segment, scope, sds_id, lamport in _records(sets, 2_000)[::2]:
        held.add(segment, 0, scope=scope, sds_id=sds_id, lamport=lamport)
    size = len(held.to_bytes())
    yield Result(
        f"snapshot of {sets} open sets, write + read",
        _cpu(lambda: Reassembler.from_bytes(held.to_bytes(), _MANY)) * 1_000,
        "ms",
    )
    yield Result(f"snapshot of {sets} open sets", size / 1_000, "kB")


@bench
def dearest_input() -> Iterator[Result]:
    """Measure the most expensive segment of a 1 MiB message with the largest loss for which parity is used
    (docs/segmentation.md, *Work*). The last three codes have 16-bit symbols."""
    codes = ((11, 5, 0.5), (11, 10, 1.0), (128, 127, 1.0), (131, 35, 0.5), (199, 48, 0.28), (227, 28, 0.125))
    for data, lost, rate in codes:
        size = 1_048_576 // data // 64 * 64
        config = SegmentationConfig(segment_size_bytes=size, enable_reed_solomon=True, parity_rate=rate)
        payload = np.random.default_rng(1).integers(0, 256, 1_048_576, dtype=np.uint8).tobytes()
        segments = split(payload, config)
        k = sum(not segment.is_parity for segment in segments)
        arriving = segments[min(lost, len(segments) - k) :]
        dearest = min(_dearest(arriving, config) for _ in range(SIZES.count_repetitions(3)))
        splitting = _cpu(lambda payload=payload, config=config: contents_for(payload, config))  # type: ignore[misc]
        name = f"dearest segment of 1 MiB, {k} + {len(segments) - k} segments, {len(segments) - len(arriving)} lost"
        yield Result(name, dearest * 1_000, "ms")
        yield Result(f"{name} / splitting", dearest / splitting, "ratio", DEAREST, True, "splitting with parity")


def _dearest(segments: list[Segment], config: SegmentationConfig) -> float:
    """The CPU time (s) of the most expensive call."""
    reassembler, dearest = Reassembler(config), 0.0
    events: list[SegmentationEvent] = []
    for segment in segments:
        began = time.thread_time()
        events += reassembler.add(segment, 0)
        dearest = max(dearest, time.thread_time() - began)
    assert _completes_one(events)
    return dearest


def _completes_one(events: list[SegmentationEvent]) -> bool:
    return sum(isinstance(event, MessageCompleted) for event in events) == 1


def _records(messages: int, size: int = 300) -> list[_Record]:
    by_message = []
    for number in range(messages):
        segments = split(number.to_bytes(8, "big") + bytes(size), _MANY)
        scope = (*_SCOPE, f"sender {number % 20}")
        by_message.append(
            [(each, scope, f"{number}-{index}", number * 100 + index) for index, each in enumerate(segments)]
        )
    width = 50
    return [
        record
        for start in range(0, messages, width)
        for column in zip(*by_message[start : start + width], strict=True)
        for record in column
    ]


def _feed(records: list[_Record]) -> None:
    reassembler = Reassembler(_MANY)
    for segment, scope, sds_id, lamport in records:
        reassembler.add(segment, 0, scope=scope, sds_id=sds_id, lamport=lamport)


def _cpu(action: Callable[[], object]) -> float:
    return best_of(action, seconds=0.0, repetitions=3, clock=time.thread_time)
