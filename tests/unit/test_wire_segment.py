"""Segments on the wire (Segmentation 0.1): three dialects, validation exactly as written, everything else a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reliable_channel.core.wire._pb import segment_pb2 as pb
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.segment import (
    Dialect,
    Segment,
    decode_segment,
    encode_segment,
    lookalike,
    open_ephemeral,
)

HASH = bytes(range(32))
V01 = {Dialect.V01}
LIP243 = {Dialect.LIP243}
LENGTH = {Dialect.LIP243_LENGTH}
BOTH = V01 | LIP243
EVERY = set(Dialect)
ROOT = Path(__file__).parent
GOLDEN = json.loads((ROOT.parent / "vectors" / "segment_wire.json").read_text(encoding="utf-8"))["vectors"]
CORPUS = sorted((ROOT / "segmentation" / "corpus").glob("*.bin"))


def wire(**fields) -> bytes:
    """Field names as in the shared layout of v0.1 and lip243; the hash is there unless told otherwise."""
    return pb.SegmentMessageProto(**{"entire_message_hash": HASH, "payload": b"x", **fields}).SerializeToString()


def length_wire(**fields) -> bytes:
    return pb.LengthSegmentProto(**{"original_payload_hash": HASH, **fields}).SerializeToString()


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["name"])
def test_the_golden_bytes_of_the_length_dialect(vector):
    fields, data = vector["fields"], bytes.fromhex(vector["wire"])
    decoded = decode_segment(data, LENGTH)
    assert decoded == Segment(
        entire_message_hash=bytes.fromhex(fields["original_payload_hash"]),
        index=fields["index"],
        data_count=fields["data_segment_count"],
        parity_count=fields["parity_segment_count"],
        is_parity=fields["is_parity"],
        payload=bytes.fromhex(fields["segment_payload"]),
        original_length=fields["original_payload_length"],
        dialect=Dialect.LIP243_LENGTH,
    )
    assert encode_segment(decoded) == data


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["name"])
def test_the_length_dialect_is_configured_never_guessed(vector):
    assert isinstance(decode_segment(bytes.fromhex(vector["wire"]), BOTH), Malformed)
    decoded = decode_segment(bytes.fromhex(vector["wire"]), EVERY)
    assert isinstance(decoded, Segment)
    assert decoded.dialect is Dialect.LIP243_LENGTH


def test_the_bytes_of_a_v01_data_segment():
    segment = Segment(HASH, 1, 3, None, False, b"\xaa\xbb")
    assert encode_segment(segment) == b"\x0a\x20" + HASH + b"\x10\x01\x18\x03\x22\x02\xaa\xbb"
    assert decode_segment(encode_segment(segment)) == segment


def test_the_bytes_of_a_v01_parity_segment():
    segment = Segment(HASH, 1, None, 2, True, b"\xaa")
    assert encode_segment(segment) == b"\x0a\x20" + HASH + b"\x22\x01\xaa\x28\x01\x30\x02"
    assert decode_segment(encode_segment(segment)) == segment


def test_the_bytes_of_a_lip243_parity_segment():
    segment = Segment(HASH, 1, 3, 2, True, b"\xaa", dialect=Dialect.LIP243)
    assert encode_segment(segment) == b"\x0a\x20" + HASH + b"\x18\x03\x22\x01\xaa\x28\x01\x30\x02\x38\x01"
    assert decode_segment(encode_segment(segment), BOTH) == segment


@given(
    st.sampled_from([0, 1, 127, 128, 16_384]),
    st.sampled_from(list(Dialect)),
    st.booleans(),
    st.integers(0, 2),
    st.booleans(),
)
def test_a_segment_is_the_bytes_that_protobuf_writes(size, dialect, is_parity, index, with_length):
    data = encode_segment(Segment(HASH, index, 3, 3, is_parity, bytes(size), 300 if with_length else None, dialect))
    length = dialect is Dialect.LIP243_LENGTH
    proto = (pb.LengthSegmentProto if length else pb.SegmentMessageProto).FromString(data)
    assert proto.SerializeToString() == data
    assert len(proto.segment_payload if length else proto.payload) == size


def test_a_bare_segment_is_its_payload():
    assert encode_segment(Segment(HASH, 0, 1, 0, False, b"hello")) == b"hello"


ACCEPTED = {
    "v0.1 data": (V01, wire(index=1, segments_count=2), Dialect.V01, False, 1, 2, None),
    "v0.1 data, the most": (V01, wire(index=255, segments_count=256), Dialect.V01, False, 255, 256, None),
    "v0.1 parity": (V01, wire(parity_segment_index=1, parity_segments_count=2), Dialect.V01, True, 1, None, 2),
    "v0.1 parity, the most": (
        V01,
        wire(parity_segment_index=253, parity_segments_count=254),
        Dialect.V01,
        True,
        253,
        None,
        254,
    ),
    "v0.1 parity where lip243 is read too": (BOTH, wire(parity_segments_count=2), Dialect.V01, True, 0, None, 2),
    "lip243 data alone": (LIP243, wire(segments_count=1), Dialect.LIP243, False, 0, 1, 0),
    "lip243 single, both": (BOTH, wire(segments_count=1), Dialect.LIP243, False, 0, 1, 0),
    "lip243 data with parity, both": (
        BOTH,
        wire(segments_count=2, parity_segments_count=1),
        Dialect.LIP243,
        False,
        0,
        2,
        1,
    ),
    "data without parity is v0.1's": (BOTH, wire(segments_count=2), Dialect.V01, False, 0, 2, None),
    "data without parity, lip243 only": (LIP243, wire(segments_count=2), Dialect.LIP243, False, 0, 2, 0),
    "lip243 parity": (
        BOTH,
        wire(segments_count=2, parity_segments_count=3, parity_segment_index=2, is_parity_or_length=1),
        Dialect.LIP243,
        True,
        2,
        2,
        3,
    ),
    "among all three": (EVERY, wire(index=1, segments_count=2), Dialect.V01, False, 1, 2, None),
    "unknown fields": (V01, wire(segments_count=2) + b"\x98\x06\x07", Dialect.V01, False, 0, 2, None),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_validates(name):
    dialects, data, dialect, is_parity, index, data_count, parity_count = ACCEPTED[name]
    segment = decode_segment(data, dialects)
    assert isinstance(segment, Segment), segment
    assert (segment.dialect, segment.is_parity, segment.index) == (dialect, is_parity, index)
    assert (segment.data_count, segment.parity_count, segment.payload) == (data_count, parity_count, b"x")


REFUSED = {
    "no protobuf": (V01, b"\xff\xff\xff", Reason.MALFORMED_SEGMENT),
    "nothing": (V01, b"", Reason.SEGMENT_HASH_LENGTH),
    "a short hash": (V01, wire(entire_message_hash=HASH[:31], segments_count=2), Reason.SEGMENT_HASH_LENGTH),
    "a long hash": (V01, wire(entire_message_hash=HASH + b"x", segments_count=2), Reason.SEGMENT_HASH_LENGTH),
    "no counts": (V01, wire(), Reason.SEGMENT_COUNT),
    "one data segment": (V01, wire(segments_count=1), Reason.SEGMENT_COUNT),
    "too many data segments": (V01, wire(segments_count=257), Reason.SEGMENT_COUNT),
    "2^32 - 1 data segments": (V01, wire(segments_count=2**32 - 1), Reason.SEGMENT_COUNT),
    "index at the count": (V01, wire(index=2, segments_count=2), Reason.SEGMENT_INDEX),
    "parity index at the count": (
        V01,
        wire(parity_segment_index=2, parity_segments_count=2),
        Reason.SEGMENT_INDEX,
    ),
    "too much parity": (V01, wire(parity_segments_count=255), Reason.SEGMENT_COUNT),
    "data with a parity count": (V01, wire(index=1, segments_count=2, parity_segments_count=2), Reason.SEGMENT_COUNT),
    "data with a parity index": (V01, wire(index=1, segments_count=2, parity_segment_index=1), Reason.SEGMENT_COUNT),
    "data with too much parity for lip243": (
        BOTH,
        wire(index=1, segments_count=2, parity_segments_count=900),
        Reason.SEGMENT_COUNT,
    ),
    "parity with a data index": (V01, wire(index=77, parity_segments_count=2), Reason.SEGMENT_INDEX),
    "parity with a data index, both": (BOTH, wire(index=77, parity_segments_count=2), Reason.SEGMENT_INDEX),
    "lip243 parity where it is not read": (
        V01,
        wire(segments_count=2, parity_segments_count=2, is_parity_or_length=1),
        Reason.SEGMENT_COUNT,
    ),
    "v0.1 parity where it is not read": (LIP243, wire(parity_segments_count=2), Reason.SEGMENT_COUNT),
    "lip243: more than 256 in all": (LIP243, wire(segments_count=200, parity_segments_count=57), Reason.SEGMENT_COUNT),
    "lip243 parity: more than 256 in all": (
        LIP243,
        wire(segments_count=200, parity_segments_count=57, is_parity_or_length=1),
        Reason.SEGMENT_COUNT,
    ),
    "lip243 parity index": (
        LIP243,
        wire(segments_count=2, parity_segment_index=1, parity_segments_count=1, is_parity_or_length=1),
        Reason.SEGMENT_INDEX,
    ),
    "length: no protobuf": (LENGTH, b"\x0a\xff", Reason.MALFORMED_SEGMENT),
    "length: short hash": (
        LENGTH,
        length_wire(original_payload_hash=b"x", data_segment_count=1),
        Reason.SEGMENT_HASH_LENGTH,
    ),
    "length: no data": (LENGTH, length_wire(), Reason.SEGMENT_COUNT),
    "length: too many": (LENGTH, length_wire(data_segment_count=200, parity_segment_count=57), Reason.SEGMENT_COUNT),
    "length: index": (LENGTH, length_wire(data_segment_count=2, index=2), Reason.SEGMENT_INDEX),
    "length: parity index": (
        LENGTH,
        length_wire(data_segment_count=2, is_parity=True, parity_segment_count=1, index=1),
        Reason.SEGMENT_INDEX,
    ),
    "length: v0.1 is not read": (LENGTH, wire(segments_count=2), Reason.SEGMENT_COUNT),
    "none of the three": (EVERY, b"hello", Reason.MALFORMED_SEGMENT),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_validate_is_refused_with_its_reason(name):
    dialects, data, reason = REFUSED[name]
    refused = decode_segment(data, dialects)
    assert isinstance(refused, Malformed), refused
    assert refused.reason is reason


def test_field_7_above_one_is_the_length_that_status_go_writes():
    data = decode_segment(wire(segments_count=2, is_parity_or_length=150))
    parity = decode_segment(wire(parity_segments_count=2, is_parity_or_length=150))
    assert isinstance(data, Segment)
    assert isinstance(parity, Segment)
    assert (data.original_length, parity.original_length, data.is_parity, parity.is_parity) == (150, 150, False, True)
    assert decode_segment(encode_segment(data)) == data
    assert decode_segment(encode_segment(parity)) == parity


dialect_sets = st.sets(st.sampled_from(Dialect), min_size=1)


@given(st.binary(max_size=300), dialect_sets)
@example(b"\x0a\x20" + HASH, EVERY)
def test_no_bytes_break_the_decoder(data, dialects):
    check(data, dialects)


@given(
    st.builds(
        wire,
        entire_message_hash=st.sampled_from([HASH, b"", HASH * 2]),
        index=st.integers(0, 300),
        segments_count=st.integers(0, 300),
        parity_segment_index=st.integers(0, 300),
        parity_segments_count=st.integers(0, 300),
        is_parity_or_length=st.sampled_from([0, 1, 2, 2**64 - 1]),
    )
    | st.builds(
        length_wire,
        original_payload_length=st.integers(0, 2**32 - 1),
        index=st.integers(0, 300),
        data_segment_count=st.integers(0, 300),
        parity_segment_count=st.none() | st.integers(0, 300),
        is_parity=st.booleans(),
    ),
    dialect_sets,
    st.integers(0, 5),
)
def test_no_fields_and_no_truncation_break_the_decoder(data, dialects, cut):
    check(data[: len(data) - cut], dialects)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_the_kept_corpus(path):
    for dialects in (V01, LIP243, LENGTH, BOTH, EVERY):
        check(path.read_bytes(), dialects)


def test_there_is_a_corpus():
    assert len(CORPUS) >= 10


def check(data: bytes, dialects) -> None:
    """A value within the rules, which encodes to something that decodes to itself; or a reason. Nothing else."""
    decoded = decode_segment(data, dialects)
    if isinstance(decoded, Malformed):
        assert decoded.reason in Reason
        assert len(decoded.detail) <= 200
        return
    count = decoded.parity_count if decoded.is_parity else decoded.data_count
    assert decoded.dialect in dialects
    assert len(decoded.entire_message_hash) == 32
    assert count is not None
    assert 0 <= decoded.index < count <= 256
    assert (decoded.data_count or 0) + (decoded.parity_count or 0) <= 256
    assert decode_segment(encode_segment(decoded), dialects) == decoded


@pytest.mark.parametrize(
    ("content", "strange"),
    [
        (wire(index=9, segments_count=3), True),
        (wire(payload=b"x" * 30), True),
        (wire(entire_message_hash=b"\x01" * 16, index=9, segments_count=3), True),
        (wire(entire_message_hash=b"\x01" * 8, index=9, segments_count=3), False),
        (wire(payload=b"", index=9, segments_count=3), False),
        (wire(index=9, segments_count=3) + b"\x08", False),
        (b"plain text, no protobuf at all", False),
    ],
)
def test_bytes_that_were_probably_meant_as_a_segment_are_told_from_an_honest_payload(
    content: bytes, strange: bool
) -> None:
    refused = decode_segment(content, V01)
    assert isinstance(refused, Malformed)
    assert (lookalike(content, refused) is not None) is strange


@pytest.mark.parametrize(
    ("content", "dialects", "expected"),
    [
        (wire(segments_count=1, entire_message_hash=keccak256(b"x")), LIP243, b"x"),
        (b"no segment", V01, b"no segment"),
        (b"no segment", LIP243, Reason.MALFORMED_SEGMENT),
        (wire(segments_count=1), LIP243, Reason.SEGMENT_HASH_MISMATCH),
        (wire(segments_count=2), LIP243, Reason.SEGMENT_COUNT),
        (wire(parity_segments_count=2), V01, Reason.SEGMENT_COUNT),
    ],
    ids=["wrapped", "bare", "bare where v0.1 is not read", "another hash", "one of two", "parity"],
)
def test_an_ephemeral_message_has_exactly_one_segment(content, dialects, expected):
    opened = open_ephemeral(content, dialects)
    assert (opened.reason if isinstance(opened, Malformed) else opened) == expected
