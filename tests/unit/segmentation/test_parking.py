"""Payloads of overdue sets are in a store, not in memory; nothing else differs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.segmentation import Reassembler, SegmentationConfig
from reliable_channel.core.wire.segment import encode_segment
from tests.unit.segmentation.feeding import ALICE, BOB, completed, feed, send

CONFIG = SegmentationConfig(
    segment_size_bytes=64,
    enable_reed_solomon=True,
    parity_rate=0.5,
    set_timeout_ms=20,
    max_set_lifetime_ms=200,
    completed_memory_ms=200,
    max_open_sets_per_sender=3,
    max_buffered_bytes=1_500,
    max_rebuild_attempts=6,
)
SENT = [*send(bytes(range(200)), CONFIG, 100, "a"), *send(bytes(range(200)), CONFIG, 700, "b")]
SENT += [*send(bytes(300), CONFIG, 800, "c"), *send(b"other" * 60, CONFIG, 900, "d")]
FALSE = [
    replace(each, content=encode_segment(replace(each.segment, payload=each.segment.payload[::-1])))
    for each in SENT[::3]
]


class Kept:
    """A store that a process leaves to the next."""

    def __init__(self) -> None:
        self.payloads: dict[int, bytes] = {}

    def put(self, payloads: Mapping[int, bytes]) -> None:
        self.payloads.update(payloads)

    def get(self, numbers: Collection[int]) -> Mapping[int, bytes]:
        return {number: self.payloads[number] for number in numbers}

    def keep(self, numbers: Collection[int]) -> None:
        self.payloads = {number: self.payloads[number] for number in numbers}


steps = st.lists(
    st.tuples(st.sampled_from([*SENT, *FALSE]), st.sampled_from([ALICE, BOB]), st.integers(0, 45), st.booleans()),
    max_size=30,
)


@given(steps)
def test_a_store_changes_no_event_and_is_read_by_the_next_process(script):
    plain, store, now = Reassembler(CONFIG), Kept(), 0
    stored = Reassembler(CONFIG, store)
    for sent, scope, pause, restart in script:
        now += pause
        assert stored.expire(now) == plain.expire(now)
        assert feed(stored, [sent], now, scope) == feed(plain, [sent], now, scope)
        assert (stored.next_due(), stored.buffered_bytes) == (plain.next_due(), plain.buffered_bytes)
        if restart:
            snapshot = stored.to_bytes()
            store.keep(stored.list_parked())
            stored = Reassembler.from_bytes(snapshot, CONFIG, store)
            assert (stored.next_due(), stored.buffered_bytes) == (plain.next_due(), plain.buffered_bytes)
    assert stored.expire(now + 1_000) == plain.expire(now + 1_000)
    store.keep(stored.list_parked())
    assert not store.payloads


def test_an_overdue_set_is_in_the_store_and_neither_in_memory_nor_in_the_snapshot():
    config = replace(CONFIG, segment_size_bytes=64_000, max_buffered_bytes=1_000_000, max_message_bytes=500_000)
    payload = bytes(range(256)) * 1_000
    sent, store = send(payload, config), Kept()
    reassembler = Reassembler(config, store)
    feed(reassembler, sent[:3])
    assert len(reassembler.to_bytes()) > 3 * 64_000
    reassembler.expire(config.set_timeout_ms)
    assert len(reassembler.to_bytes()) < 1_000
    assert sum(map(len, store.payloads.values())) == reassembler.buffered_bytes == 3 * 64_000
    restored = Reassembler.from_bytes(reassembler.to_bytes(), config, store)
    assert [message.payload for message in completed(feed(restored, sent[3:], now=30))] == [payload]
