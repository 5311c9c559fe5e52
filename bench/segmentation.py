"""Splitting, decoding and reassembling (issue *protocol core*): segments per second of CPU time, since the machine is
shared; the bookkeeping is what a combiner pays for every record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from bench.registry import MB, Result, bench, best_of
from reliable_channel.segmentation import Reassembler, Segment, SegmentationConfig, contents_for, split
from reliable_channel.wire.segment import decode_segment

_SCOPE = ("/waku/2/rs/2/1", "/app/1/chat/proto", "channel")
_MANY = SegmentationConfig(segment_size_bytes=64, max_open_sets=10**6, max_open_sets_per_sender=10**6)
_Record = tuple[Segment, tuple[str, ...], str, int]


@bench
def bookkeeping() -> Iterator[Result]:
    """20 000 messages of five small segments by twenty senders, interleaved as they come."""
    records = _records(20_000)
    seconds = _cpu(lambda: _feed(records))
    yield Result("reassemble, 5 small segments a message", len(records) / seconds, "segments/s")
    incomplete = [record for record in records if record[0].index > 0]
    seconds = _cpu(lambda: _feed(incomplete))
    yield Result("bookkeeping only, no set completes", len(incomplete) / seconds, "segments/s")


@bench
def full_size() -> Iterator[Result]:
    """A 1 MiB message, 100 KiB segments with parity: split, and reassemble with one loss."""
    config = SegmentationConfig(enable_reed_solomon=True)
    payload = np.random.default_rng(1).integers(0, 256, 1_048_576, dtype=np.uint8).tobytes()
    contents = contents_for(payload, config)
    seconds = _cpu(lambda: contents_for(payload, config))
    yield Result("split 1 MiB, parity 0.125", len(payload) / MB / seconds, "MB/s")

    def receive() -> None:
        reassembler = Reassembler(config)
        for content in contents[1:]:
            segment = decode_segment(content)
            assert isinstance(segment, Segment)
            reassembler.add(segment, 0)
        assert reassembler.completed_sets == 1

    yield Result("decode and reassemble 1 MiB, one loss", len(payload) / MB / _cpu(receive), "MB/s")


@bench
def snapshot() -> Iterator[Result]:
    """The state of 1 000 open sets of 1 KiB, written and read back."""
    held = Reassembler(_MANY)
    for segment, scope, sds_id, lamport in _records(1_000, 2_000)[::2]:
        held.add(segment, 0, scope=scope, sds_id=sds_id, lamport=lamport)
    size = len(held.to_bytes())
    yield Result(
        "snapshot of 1 000 open sets, write + read",
        _cpu(lambda: Reassembler.from_bytes(held.to_bytes(), _MANY)) * 1_000,
        "ms",
    )
    yield Result("snapshot of 1 000 open sets", size / 1_000, "kB")


def _records(messages: int, size: int = 300) -> list[_Record]:
    by_message = []
    for number in range(messages):
        segments = split(number.to_bytes(8, "big") + bytes(size), _MANY)
        scope = (*_SCOPE, f"sender {number % 20}")
        by_message.append(
            [(each, scope, f"{number}-{place}", number * 100 + place) for place, each in enumerate(segments)]
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
