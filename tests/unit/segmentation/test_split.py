"""Splitting (Segmentation 0.1, *Sending*): sizes, thresholds, refusals, and bare payloads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.errors import ConfigurationError, EmptyMessage, MessageTooLarge
from reliable_channel.core.segmentation import (
    Dialect,
    Segment,
    SegmentationConfig,
    contents_for,
    get_codec,
    split,
    validates_as_segment,
)
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.segment import decode_segment, encode_segment

SMALL = SegmentationConfig(segment_size_bytes=64)
PARITY = replace(SMALL, enable_reed_solomon=True)


def test_the_specified_defaults():
    config = SegmentationConfig()
    assert (config.segment_size_bytes, config.parity_rate, config.max_total_segments) == (102_400, 0.125, 256)
    assert (config.enable_reed_solomon, config.max_message_bytes) == (False, 1_048_576)
    assert (config.dialect, config.codec) == (Dialect.V01, "leopard")


@given(st.binary(min_size=1, max_size=64))
def test_a_payload_up_to_the_segment_size_is_sent_unmodified(payload):
    (segment,) = split(payload, SMALL)
    assert segment.is_bare
    assert contents_for(payload, SMALL) == [payload]


def test_one_byte_more_makes_two_segments():
    segments = split(bytes(65), SMALL)
    assert [(len(each.payload), each.index, each.data_count) for each in segments] == [(64, 0, 2), (1, 1, 2)]
    assert {each.entire_message_hash for each in segments} == {keccak256(bytes(65))}
    assert not any(each.is_bare for each in segments)


@given(st.binary(min_size=65, max_size=2_000), st.integers(64, 200))
def test_the_data_segments_joined_are_the_payload_and_all_but_the_last_are_full(payload, size):
    config = SegmentationConfig(segment_size_bytes=size, enable_reed_solomon=True)
    segments = [each for each in split(payload, config) if not each.is_parity]
    if not segments[0].is_bare:
        assert b"".join(each.payload for each in segments) == payload
        assert {len(each.payload) for each in segments[:-1]} == {size - size % 64}


@given(st.sampled_from(Dialect), st.binary(min_size=1, max_size=900))
def test_what_is_encoded_decodes_to_itself(dialect, payload):
    config = SegmentationConfig(
        segment_size_bytes=192, enable_reed_solomon=True, parity_rate=0.5, dialect=dialect, max_total_segments=100
    )
    for segment in split(payload, config):
        if not segment.is_bare:
            assert decode_segment(encode_segment(segment), {dialect}) == segment


@given(st.sampled_from(Dialect), st.binary(min_size=1, max_size=900), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_segment_is_read_as_its_own_dialect_where_all_are_accepted(dialect, payload, rate):
    config = SegmentationConfig(
        segment_size_bytes=192, enable_reed_solomon=True, parity_rate=rate, dialect=dialect, max_total_segments=100
    )
    for segment in split(payload, config):
        decoded = decode_segment(encode_segment(segment))
        if segment.is_bare:
            assert isinstance(decoded, Malformed)
        elif dialect is Dialect.LIP243 and segment.data_count != 1 and not segment.parity_count:
            assert replace(decoded, dialect=dialect, parity_count=0) == segment  # the same bytes as in v0.1
        else:
            assert decoded == segment


@pytest.mark.parametrize("dialect", [Dialect.LIP243, Dialect.LIP243_LENGTH])
def test_the_newer_dialects_wrap_small_payloads_too(dialect):
    config = replace(SMALL, dialect=dialect, segment_size_bytes=192)
    (segment,) = split(b"small", config)
    assert (segment.is_bare, segment.data_count, segment.payload) == (False, 1, b"small")
    assert contents_for(b"small", config) != [b"small"]


def test_a_bare_payload_that_would_be_taken_for_a_segment_is_split_in_two():
    inner = encode_segment(split(bytes(200), SMALL)[0])
    config = SegmentationConfig()
    segments = split(inner, config)
    assert [each.data_count for each in segments] == [2, 2]
    assert b"".join(each.payload for each in segments) == inner
    assert all(
        decode_segment(content) == each for content, each in zip(contents_for(inner, config), segments, strict=True)
    )


def test_the_two_halves_of_such_a_payload_can_have_parity_if_they_are_long_enough():
    config = SegmentationConfig(enable_reed_solomon=True, parity_rate=0.5)
    long = encode_segment(split(bytes(200), SMALL)[0])
    assert [len(each.payload) for each in split(long, config)] == [64, len(long) - 64, 64]
    short = encode_segment(Segment(keccak256(b""), 0, 2, None, False, b""))
    assert len(short) < 64
    assert [each.is_parity for each in split(short, config)] == [False, False]


@given(st.binary(max_size=80))
def test_a_bare_payload_never_validates_as_a_segment(payload):
    assert not validates_as_segment(payload)
    assert isinstance(decode_segment(payload), Malformed)


def test_parity_is_the_floor_of_rate_times_data_but_one_at_least_and_none_when_it_does_not_fit():
    assert [PARITY.parity_count(k) for k in (1, 2, 7, 8, 15, 16, 227, 228, 256)] == [0, 1, 1, 1, 1, 2, 28, 28, 0]
    assert replace(PARITY, parity_rate=0.128).parity_count(227) == 29
    assert replace(PARITY, parity_rate=1.0).parity_count(128) == 128
    assert replace(PARITY, parity_rate=1.0).parity_count(129) == 0
    assert replace(PARITY, parity_rate=0.0).parity_count(100) == 0
    assert SMALL.parity_count(100) == 0
    assert replace(PARITY, max_total_segments=10).parity_count(9) == 1
    assert replace(PARITY, max_total_segments=9).parity_count(9) == 0


def test_parity_is_the_ceiling_in_the_length_dialect_capped_at_the_data_count():
    config = SegmentationConfig(enable_reed_solomon=True, dialect=Dialect.LIP243_LENGTH)
    assert [config.parity_count(k) for k in (1, 8, 9, 16, 17)] == [1, 1, 2, 2, 3]
    assert replace(config, parity_rate=1.0).parity_count(3) == 3


def test_the_chunk_size_of_each_dialect():
    thousand = SegmentationConfig(segment_size_bytes=1_000)
    assert thousand.chunk_size() == 1_000
    assert replace(thousand, enable_reed_solomon=True).chunk_size() == 960
    assert replace(thousand, dialect=Dialect.LIP243).chunk_size() == 1_000
    assert replace(thousand, dialect=Dialect.LIP243_LENGTH).chunk_size() == 832


@pytest.mark.parametrize("parity", [False, True])
@pytest.mark.parametrize("dialect", [Dialect.V01, Dialect.LIP243])
def test_the_segment_size_is_the_largest_payload_of_one_segment(dialect, parity):
    config = SegmentationConfig(segment_size_bytes=1_000, dialect=dialect, enable_reed_solomon=parity)
    assert [len(segment.payload) for segment in split(bytes(1_000), config)] == [1_000]
    longer = split(bytes(1_001), config)
    assert [len(segment.payload) for segment in longer] == ([960, 41, 960] if parity else [1_000, 1])


def test_the_effective_size_leaves_room_for_the_headers():
    config = SegmentationConfig()
    assert config.fit_envelope(19_000) == config
    assert config.fit_envelope(60_000, 28).segment_size_bytes == 150_000 - 60_000 - 28 - 100 - 1_024
    with pytest.raises(ConfigurationError, match="no room"):
        config.fit_envelope(149_000)


def test_an_empty_payload_is_refused():
    with pytest.raises(EmptyMessage):
        split(b"", SMALL)


def test_a_message_over_the_limit_is_refused_with_both_sizes():
    with pytest.raises(MessageTooLarge, match="1048577 bytes, the limit is 1048576"):
        split(bytes(1_048_577), SegmentationConfig())
    assert len(split(bytes(1_048_576), SegmentationConfig())) == 11


def test_a_message_of_too_many_segments_is_refused():
    assert len(split(bytes(256 * 64), SMALL)) == 256
    with pytest.raises(MessageTooLarge, match="256 segments of 64 bytes hold 16384"):
        split(bytes(256 * 64 + 1), SMALL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_size_bytes": 63},
        {"segment_size_bytes": 150_001},
        {"parity_rate": -0.1},
        {"parity_rate": 1.1},
        {"max_total_segments": 257},
        {"max_total_segments": 1},
        {"codec": "rot13"},
        {"accepted_dialects": frozenset()},
        {"max_open_sets": 0},
        {"segment_size_bytes": 191, "dialect": Dialect.LIP243_LENGTH},
    ],
    ids=str,
)
def test_wrong_settings_are_refused_by_name(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        SegmentationConfig(**wrong)


@pytest.mark.parametrize("size", [64, 100, 127, 128, 1_000])
def test_a_receiver_that_joins_rebuilt_shards_as_they_are_gets_the_payload_at_any_segment_size(size):
    """Nobody else pads data segments for coding and takes the padding out again."""
    config = SegmentationConfig(segment_size_bytes=size, enable_reed_solomon=True, parity_rate=0.5)
    payload = bytes(range(1, 251)) * 13
    segments = split(payload, config)
    k = sum(not segment.is_parity for segment in segments)
    shards = [segment.payload.ljust(config.chunk_size(), b"\0") for segment in segments]
    for lost in range(k):
        held = [None if place == lost else shard for place, shard in enumerate(shards)]
        assert b"".join(get_codec("leopard").decode(held, k)).rstrip(b"\0") == payload
    assert {len(segment.payload) for segment in segments[: k - 1]} == {size - size % 64}
    assert max(len(segment.payload) for segment in segments) <= size
