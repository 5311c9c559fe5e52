"""The combiner rebuilds a usual message without a Reassembler, exactly as with one, and leaves all others to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.segmentation import Dialect, Segment, SegmentationConfig, split
from reliable_channel.core.wire.hashing import keccak256, sds_message_id
from reliable_channel.core.wire.segment import encode_segment
from reliable_channel.pipeline.reassembly.sets import HashSets, SegmentRow, take_at_once, take_rows

CONFIG = SegmentationConfig(segment_size_bytes=64, enable_reed_solomon=True, parity_rate=0.5)
SEGMENTS = split(bytes(range(200)), CONFIG)
DATA = [each for each in SEGMENTS if not each.is_parity]


def row(offset: int, segment, dialect: Dialect = Dialect.V01) -> SegmentRow:
    content = encode_segment(segment)
    sds_id = sds_message_id("alice", 100, content)
    record = ("t", 0, offset, offset * 1_000_000)
    return SegmentRow(*record, "p", "c", "talk", "spec", "alice", sds_id, 100 + offset, dialect.value, content)


USUAL = [row(offset, segment) for offset, segment in enumerate(DATA)]
LAST = len(USUAL) - 1


def judge(rows: list[SegmentRow], config: SegmentationConfig) -> tuple[list, bool]:
    def begin(blob: bytes | None) -> HashSets:
        return HashSets(config) if blob is None else HashSets.from_bytes(blob, config)

    sets, results = take_rows(begin(None), begin, rows, lambda row: row)
    return results, sets.must_persist


def change(number: int, **fields: object) -> list[SegmentRow]:
    return [each._replace(**fields) if at == number else each for at, each in enumerate(USUAL)]


def at_once(rows: list[SegmentRow], config: SegmentationConfig = CONFIG) -> list | None:
    return take_at_once(iter(rows), len(rows), config)


def test_a_usual_message_is_rebuilt_as_by_a_reassembler():
    results, must_persist = judge(USUAL, CONFIG)
    assert at_once(USUAL) == results
    assert not must_persist
    assert [each.row_kind for each in results[1:]] == ["repaired", "repaired", "completed"], "parity that nobody sent"


EQUAL = split(bytes(128), replace(CONFIG, enable_reed_solomon=False))
WHOLE = Segment(keccak256(b"all"), 0, 2, None, False, b"all")
UNUSUAL: dict[str, list[SegmentRow]] = {
    "one is missing": USUAL[:LAST],
    "one came twice": [*USUAL, USUAL[0]._replace(kafka_offset=9)],
    "parity follows": [*USUAL, row(LAST + 1, SEGMENTS[-1])],
    "in another order": [USUAL[1], USUAL[0], *USUAL[2:]],
    "of another sender": change(LAST, sender_id="bob"),
    "of another channel": change(LAST, channel_id="other"),
    "in another partition": change(LAST, kafka_partition=1),
    "encrypted": change(0, encrypted=True),
    "without a timestamp": change(0, lamport_timestamp=None),
    "of another send": change(LAST, lamport_timestamp=7),
    "after the time-out": change(LAST, event_us=CONFIG.set_timeout_ms * 1000),
    "before the first": change(LAST, event_us=-5_000_000),
    "of another payload": change(LAST, content=encode_segment(replace(DATA[LAST], payload=b"x"))),
    "of another hash": change(LAST, content=encode_segment(replace(DATA[LAST], entire_message_hash=b"h" * 32))),
    "of another count": change(LAST, content=encode_segment(replace(DATA[LAST], data_count=9))),
    "with a length": [
        each._replace(content=encode_segment(replace(DATA[at], original_length=200))) for at, each in enumerate(USUAL)
    ],
    "of equal bytes, in another order": [row(0, EQUAL[1]), row(1, EQUAL[0])],
    "its empty end of another sender": [
        row(0, WHOLE),
        row(1, replace(WHOLE, index=1, payload=b""))._replace(sender_id="bob"),
    ],
    "no segment": change(LAST, content=b"\xff"),
    "of no known dialect": change(LAST, segment_dialect="v9"),
    "of another dialect": [
        row(at, replace(each, dialect=Dialect.LIP243, parity_count=2), Dialect.LIP243) for at, each in enumerate(DATA)
    ],
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_any_other_is_left_to_the_reassembler(name):
    assert at_once(UNUSUAL[name]) is None


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_message_bytes": 199},
        {"max_buffered_bytes": 199},
        {"max_buffered_bytes_per_sender": 199},
        {"max_set_lifetime_ms": LAST * 1_000},
        {"set_timeout_ms": LAST * 1_000},
    ],
)
def test_a_message_that_meets_a_bound_is_left_to_the_reassembler(bounds):
    assert at_once(USUAL, replace(CONFIG, **bounds)) is None


CHANGES: list[Callable[[SegmentRow], SegmentRow]] = [
    lambda row: row,
    lambda row: row._replace(lamport_timestamp=row.lamport_timestamp + 1),
    lambda row: row._replace(event_us=row.event_us + 100_000_000),
    lambda row: row._replace(sds_id=USUAL[0].sds_id),
    lambda row: row._replace(sender_id="bob"),
    lambda row: row._replace(content=encode_segment(replace(DATA[0], payload=b"y"))),
]


@given(st.lists(st.tuples(st.sampled_from(range(len(SEGMENTS))), st.sampled_from(CHANGES)), min_size=1, max_size=7))
def test_whatever_is_rebuilt_at_once_is_what_a_reassembler_gives(chosen):
    rows = [alter(row(number, SEGMENTS[number]))._replace(kafka_offset=at) for at, (number, alter) in enumerate(chosen)]
    results = at_once(rows)
    assert results is None or (results, False) == judge(rows, CONFIG)
