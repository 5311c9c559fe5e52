"""A usual message is rebuilt without a Reassembler, exactly as by one; for any other there is no answer."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.segmentation import Dialect, Reassembler, SegmentationConfig
from reliable_channel.core.segmentation.at_once import Arrival, complete_at_once
from reliable_channel.core.wire.malformed import Malformed, Reason
from tests.unit.segmentation.feeding import ALICE, feed, held_segments, send

CONFIG = SegmentationConfig(segment_size_bytes=64, enable_reed_solomon=False)
SENT = send(bytes(range(200)), CONFIG)
COUNT = len(SENT)
USUAL: list[Arrival] = [(each.segment, 1_000, each.sds_id, each.lamport) for each in SENT]


def test_the_message_is_what_a_reassembler_reports():
    reassembler = Reassembler(CONFIG)
    assert [complete_at_once(ALICE, USUAL, COUNT, CONFIG)] == feed(reassembler, SENT, 1_000)
    assert not held_segments(reassembler)


CHANGES = {
    "as sent": lambda arrival: arrival,
    "later": lambda arrival: (arrival[0], arrival[1] + 500, *arrival[2:]),
    "earlier": lambda arrival: (arrival[0], arrival[1] - 500, *arrival[2:]),
    "too late": lambda arrival: (arrival[0], arrival[1] + CONFIG.max_set_lifetime_ms, *arrival[2:]),
    "under another timestamp": lambda arrival: (*arrival[:3], arrival[3] + 7),
    "without a timestamp": lambda arrival: (*arrival[:3], None),
    "of another hash": lambda arrival: (replace(arrival[0], entire_message_hash=b"h" * 32), *arrival[1:]),
    "of another payload": lambda arrival: (replace(arrival[0], payload=b"x"), *arrival[1:]),
    "of another dialect": lambda arrival: (replace(arrival[0], dialect=Dialect.LIP243), *arrival[1:]),
    "with a length": lambda arrival: (replace(arrival[0], original_length=200), *arrival[1:]),
}


@given(st.lists(st.tuples(st.integers(0, COUNT - 1), st.sampled_from(sorted(CHANGES))), min_size=1, max_size=COUNT + 1))
def test_what_is_rebuilt_at_once_is_what_a_reassembler_completes(chosen):
    arrivals = [CHANGES[change](USUAL[number]) for number, change in chosen]
    completed = complete_at_once(ALICE, arrivals, len(arrivals), CONFIG)
    if completed is not None:
        reassembler, events = Reassembler(CONFIG), []
        for segment, now, sds_id, lamport in arrivals:
            events += reassembler.add(segment, now, scope=ALICE, sds_id=sds_id, lamport=lamport)
        assert events == [completed]
        assert not held_segments(reassembler)


@given(st.integers(0, COUNT - 1), st.sampled_from(sorted(set(CHANGES) - {"as sent", "later", "earlier"})))
def test_an_unusual_segment_is_left_to_the_reassembler(number, change):
    arrivals = [CHANGES[change](each) if place == number else each for place, each in enumerate(USUAL)]
    assert complete_at_once(ALICE, arrivals, COUNT, CONFIG) is None


def test_what_is_no_segment_is_left_to_the_reassembler():
    nothing = (Malformed(Reason.MALFORMED_SEGMENT, "no segment"), 1_000, "m", 1_000)
    assert complete_at_once(ALICE, [*USUAL[:-1], nothing], COUNT, CONFIG) is None


@given(st.integers(1, 400))
def test_a_message_that_meets_a_bound_is_left_to_the_reassembler(most):
    for bound in ("max_message_bytes", "max_buffered_bytes", "max_buffered_bytes_per_sender"):
        completed = complete_at_once(ALICE, USUAL, COUNT, replace(CONFIG, **{bound: most}))
        assert completed is None or most >= len(completed.payload)
