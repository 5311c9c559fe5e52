"""What a Reassembler holds is bounded, in all and per sender; the least recently updated set pays, with an event."""

from __future__ import annotations

from dataclasses import replace

from reliable_channel.core.segmentation import (
    Dialect,
    EvictionReason,
    Reassembler,
    Refusal,
    SegmentationConfig,
    SegmentRefused,
    SetEvicted,
    SetExpired,
)
from reliable_channel.core.segmentation.held import MAX_COMPLETED_PER_KEY
from reliable_channel.core.wire.segment import encode_segment
from tests.unit.segmentation.feeding import ALICE, BOB, completed, completed_sets, feed, of_kind, send

CONFIG = SegmentationConfig(segment_size_bytes=64)


def payload(number: int) -> bytes:
    return number.to_bytes(4, "big") * 50


def test_open_sets_per_sender():
    config = replace(CONFIG, max_open_sets_per_sender=2)
    reassembler = Reassembler(config)
    sends = [send(payload(n), config, name=f"m{n}") for n in range(4)]
    feed(reassembler, [sends[0][0], sends[1][0], sends[0][1]])
    feed(reassembler, [sends[3][0]], scope=BOB)
    (evicted,) = feed(reassembler, [sends[2][0]], now=9)
    assert isinstance(evicted, SetEvicted)
    assert (evicted.reason, evicted.evicted_at) == (EvictionReason.OPEN_SETS_PER_SENDER, 9)
    assert [held.sds_id for held in evicted.incomplete.held] == [sends[1][0].sds_id]
    assert evicted.incomplete.missing_data == (1, 2, 3)
    assert completed(feed(reassembler, sends[0][2:]))


def test_open_sets_in_all():
    config = replace(CONFIG, max_open_sets=2)
    reassembler = Reassembler(config)
    feed(reassembler, [send(payload(1), config)[0]])
    feed(reassembler, [send(payload(2), config)[0]], scope=BOB)
    (evicted,) = feed(reassembler, [send(payload(3), config)[0]], scope=BOB)
    assert (evicted.reason, evicted.incomplete.scope) == (EvictionReason.OPEN_SETS, ALICE)
    assert reassembler.open_sets == 2


def test_a_flood_of_names_that_send_one_segment_each_ends_no_set_that_waits_for_its_last():
    config = replace(CONFIG, max_open_sets=8)
    reassembler = Reassembler(config)
    *first, last = send(bytes(range(200)), config)
    feed(reassembler, first)
    for number in range(50):
        feed(reassembler, [send(payload(number), config)[0]], now=number, scope=(*ALICE[:3], f"stranger {number}"))
    assert reassembler.open_sets == 8
    assert completed(feed(reassembler, [last], now=50))


def test_bytes_per_sender():
    config = replace(CONFIG, max_buffered_bytes_per_sender=200)
    reassembler = Reassembler(config)
    feed(reassembler, [*send(payload(1), config)[:2], send(payload(2), config)[0]])
    (evicted,) = feed(reassembler, [send(payload(3), config)[0]])
    assert evicted.reason is EvictionReason.BUFFERED_BYTES_PER_SENDER
    assert evicted.incomplete.buffered_bytes == 128
    assert reassembler.buffered_bytes == 128


def test_bytes_in_all():
    config = replace(CONFIG, max_buffered_bytes=200)
    reassembler = Reassembler(config)
    feed(reassembler, send(payload(1), config)[:2])
    feed(reassembler, [send(payload(2), config)[0]], scope=BOB)
    (evicted,) = feed(reassembler, [send(payload(3), config)[0]], scope=BOB)
    assert (evicted.reason, evicted.incomplete.scope) == (EvictionReason.BUFFERED_BYTES, ALICE)


def test_a_set_that_alone_would_break_the_byte_bound_is_refused_further_segments():
    config = replace(CONFIG, max_buffered_bytes_per_sender=150)
    reassembler = Reassembler(config)
    sent = send(payload(1), config)
    events = feed(reassembler, sent[:3])
    assert events == [
        SegmentRefused(ALICE, sent[2].segment.entire_message_hash, False, 2, sent[2].sds_id, Refusal.OVER_QUOTA)
    ]
    assert reassembler.buffered_bytes == 128


def test_the_growing_set_is_never_evicted_for_its_own_sake():
    config = replace(CONFIG, max_buffered_bytes=200, max_buffered_bytes_per_sender=200)
    reassembler = Reassembler(config)
    first, second = send(payload(1), config), send(payload(2), config)
    feed(reassembler, [*first[:2], second[0]])
    (evicted,) = feed(reassembler, [first[2]])
    assert [held.sds_id for held in evicted.incomplete.held] == [second[0].sds_id]


def test_messages_over_the_limit_are_refused_at_their_first_segment():
    sent = send(payload(1), CONFIG)
    assert feed(Reassembler(replace(CONFIG, max_message_bytes=193)), sent[:1]) == []
    config = replace(CONFIG, max_message_bytes=192)
    refused = feed(Reassembler(config), sent[:1])
    assert [event.reason for event in refused] == [Refusal.OVER_MESSAGE_LIMIT]


def test_a_last_segment_over_the_limit_is_refused():
    config = replace(CONFIG, max_message_bytes=100)
    last = send(payload(1), CONFIG)[3]
    long = replace(last, content=encode_segment(replace(last.segment, payload=bytes(101))))
    assert [event.reason for event in feed(Reassembler(config), [long])] == [Refusal.OVER_MESSAGE_LIMIT]


def test_a_stated_length_over_the_limit_is_refused():
    config = replace(CONFIG, dialect=Dialect.LIP243_LENGTH, segment_size_bytes=192)
    sent = send(payload(1), config)[0]
    false = replace(sent, content=encode_segment(replace(sent.segment, original_length=2_000_000)))
    assert [event.reason for event in feed(Reassembler(config), [false])] == [Refusal.OVER_MESSAGE_LIMIT]


def test_no_set_stays_open_for_ever_however_it_is_fed():
    """A stranger sends one more segment shortly before the set would expire, again and again."""
    config = replace(CONFIG, set_timeout_ms=300_000, max_set_lifetime_ms=3_600_000, completed_memory_ms=100_000_000)
    sent = send(bytes(range(250)) * 60, config)
    reassembler, expired = Reassembler(config), []
    for number, each in enumerate(sent[:-1]):
        reassembler = Reassembler.from_bytes(reassembler.to_bytes(), config)
        expired += of_kind(SetExpired, feed(reassembler, [each], now=290_000 * number))
        assert not reassembler.open_sets or reassembler.next_due() <= 290_000 * number + config.set_timeout_ms
    assert len(expired) == 1, "its later segments complete nothing, and open nothing"
    assert expired[0].expired_at - expired[0].incomplete.first_seen >= 3_600_000
    assert len(expired[0].incomplete.held) == 13
    assert reassembler.open_sets == 0


def test_copies_of_one_segment_keep_no_set_open_for_ever():
    config = replace(CONFIG, set_timeout_ms=300_000, max_set_lifetime_ms=3_600_000)
    first = send(bytes(range(250)) * 60, config)[0]
    reassembler, expired = Reassembler(config), []
    for number in range(30):
        expired += of_kind(SetExpired, feed(reassembler, [first], now=290_000 * number))
    assert len(expired) == 1, "its copies open nothing while it is remembered"


def test_a_lifetime_ends_on_time_even_where_nothing_comes():
    reassembler = Reassembler(replace(CONFIG, set_timeout_ms=500, max_set_lifetime_ms=200))
    feed(reassembler, send(payload(1), CONFIG)[:1], now=100)
    assert reassembler.next_due() == 300
    (expired,) = reassembler.expire(300)
    assert (type(expired), expired.expired_at) == (SetExpired, 300)
    assert reassembler.open_sets == 0


def test_completed_messages_are_remembered_up_to_a_number():
    config = replace(CONFIG, max_completed_sets=2)
    reassembler = Reassembler(config)
    for n in range(4):
        feed(reassembler, send(payload(n), config))
    assert completed_sets(reassembler) == 2
    assert completed(feed(reassembler, send(payload(0), config)))
    assert not completed(feed(reassembler, send(payload(3), config)))


def test_sends_of_one_payload_are_remembered_up_to_a_number():
    reassembler = Reassembler(CONFIG)
    for n in range(MAX_COMPLETED_PER_KEY + 3):
        (message,) = completed(feed(reassembler, send(payload(1), CONFIG, lamport=100 * n + 1)))
        assert message.send == n
    assert completed_sets(reassembler) == MAX_COMPLETED_PER_KEY


def test_a_flood_of_hashes_holds_no_more_than_the_bounds_say():
    config = replace(CONFIG, max_open_sets=50, max_open_sets_per_sender=20, max_buffered_bytes=2_000)
    reassembler = Reassembler(config)
    evicted = []
    for n in range(500):
        scope = (*ALICE[:3], f"sender {n % 7}")
        evicted += of_kind(SetEvicted, feed(reassembler, [send(payload(n), config)[n % 4]], now=n, scope=scope))
        assert reassembler.open_sets <= 50
        assert reassembler.buffered_bytes <= 2_000
    assert len(evicted) + reassembler.open_sets == 500
