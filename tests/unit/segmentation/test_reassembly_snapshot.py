"""Snapshots: taken anywhere in a run and restored, the run continues identically; stored blobs stay readable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.errors import LocalError
from reliable_channel.core.segmentation import Dialect, Reassembler, SegmentationConfig
from reliable_channel.core.wire.segment import encode_segment
from tests.unit.segmentation.feeding import ALICE, BOB, Sent, completed, completed_sets, feed, held_segments, send

CONFIG = SegmentationConfig(
    segment_size_bytes=64,
    enable_reed_solomon=True,
    parity_rate=0.5,
    set_timeout_ms=40,
    completed_memory_ms=90,
    max_open_sets_per_sender=3,
    max_buffered_bytes=1_500,
    max_rebuild_attempts=6,
)
BLOBS = Path(__file__).parent / "blobs"


def corrupt(sent: Sent, same_id: bool) -> Sent:
    false = replace(sent.segment, payload=sent.segment.payload[::-1])
    return replace(sent, content=encode_segment(false), sds_id=sent.sds_id if same_id else f"evil-{sent.sds_id}")


SENT = [
    *send(bytes(range(200)), CONFIG, 100, "a"),
    *send(bytes(range(200)), CONFIG, 700, "b"),
    *send(bytes(300), CONFIG, 800, "c"),
    *send(b"lip" * 60, replace(CONFIG, dialect=Dialect.LIP243), 850, "l"),
]
STEPS = st.tuples(
    st.sampled_from([*SENT, *(corrupt(each, n % 2 == 0) for n, each in enumerate(SENT))]),
    st.sampled_from([ALICE, BOB]),
    st.integers(0, 12),
)


@given(st.lists(STEPS, max_size=40), st.integers(0, 40))
def test_a_run_continues_identically_from_a_snapshot_taken_anywhere(steps, cut):
    straight, now = Reassembler(CONFIG), 0
    for number, (sent, scope, pause) in enumerate(steps):
        if number == cut:
            restored = Reassembler.from_bytes(straight.to_bytes(), CONFIG)
            assert restored.to_bytes() == straight.to_bytes()
            assert restored.next_due() == straight.next_due()
        now += pause
        events = feed(straight, [sent], now, scope)
        if number >= cut:
            assert feed(restored, [sent], now, scope) == events
            assert restored.to_bytes() == straight.to_bytes()
            assert (restored.open_sets, completed_sets(restored), restored.buffered_bytes) == (
                straight.open_sets,
                completed_sets(straight),
                straight.buffered_bytes,
            )
    if len(steps) > cut:
        assert restored.expire(now + 1_000) == straight.expire(now + 1_000)


def test_the_number_of_a_send_survives_the_eviction_of_the_newest():
    config = replace(CONFIG, max_open_sets_per_sender=1, set_timeout_ms=10_000, completed_memory_ms=10_000)
    reassembler = Reassembler(config)
    feed(reassembler, SENT[:4])
    feed(reassembler, SENT[6:7])  # a second send of the same payload, evicted by another message
    feed(reassembler, SENT[12:13])
    restored = Reassembler.from_bytes(reassembler.to_bytes(), config)
    assert completed(feed(restored, send(bytes(range(200)), CONFIG, 900, "z")))[0].send == 2


def stored() -> Reassembler:
    """What the stored blobs hold; do not change: write a new blob for a new version."""
    config = replace(CONFIG, set_timeout_ms=300_000, completed_memory_ms=3_600_000, max_buffered_bytes=10_000)
    reassembler = Reassembler(config)
    feed(reassembler, SENT[:5], now=1_000)
    feed(reassembler, [SENT[6], corrupt(SENT[6], True), *SENT[12:14]], now=2_000)
    feed(reassembler, [corrupt(SENT[12], False), *SENT[12:16]], now=3_000, scope=BOB)
    return reassembler


def test_the_stored_snapshot_is_still_read():
    restored = Reassembler.from_bytes((BLOBS / "reassembler_v2.bin").read_bytes())
    assert (restored.open_sets, completed_sets(restored)) == (stored().open_sets, 1)
    assert held_segments(restored) == held_segments(stored())
    (message,) = completed(feed(restored, SENT[7:10], now=4_000))
    assert (message.payload, message.send, message.first_lamport) == (bytes(range(200)), 1, 700)


def test_the_stored_snapshot_of_version_2_is_still_written():
    assert stored().to_bytes() == (BLOBS / "reassembler_v2.bin").read_bytes()


@pytest.mark.parametrize(
    "blob", [b"", b"\x08\x01", b"\x08\x03", b"\xff\xff", b"\x08\x02\x1a\x02\x22\x00", b"\x08\x02\x22\x03\x42\x01\x01"]
)
def test_what_is_no_snapshot_is_refused_with_a_remedy(blob):
    with pytest.raises(LocalError, match="delete the state"):
        Reassembler.from_bytes(blob)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(blob):
    try:
        Reassembler.from_bytes(blob)
    except LocalError as error:
        assert error.remedy


def test_an_empty_reassembler_has_a_small_snapshot_and_nothing_due():
    fresh = Reassembler()
    assert len(fresh.to_bytes()) < 20
    assert fresh.next_due() is None
    assert Reassembler.from_bytes(fresh.to_bytes()).next_due() is None
