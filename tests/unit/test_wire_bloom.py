"""Bloom filters on the wire, against js-waku's published vectors and known FarmHash values (LIP-109)."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.wire._pb import sds_pb2 as pb
from reliable_channel.core.wire.bloom import FilterFamily, FilterFormat, false_positive_rate, list_absent
from reliable_channel.core.wire.farmhash import fingerprint64
from reliable_channel.core.wire.malformed import Malformed, Reason
from tests.support.sds_inside import has_id

VECTORS = Path(__file__).parents[1] / "vectors"
HASHES = json.loads((VECTORS / "bloom_hash.json").read_text())["vectors"]
FILTERS = json.loads((VECTORS / "sds_wire.json").read_text())["bloom"]
FAMILIES = list(FilterFamily)


def test_the_default_has_the_published_sizes() -> None:
    default = FilterFormat()
    assert (default.hash_count, default.bit_count, default.byte_count) == (10, 150_000, 18_752)


@pytest.mark.parametrize("vector", HASHES, ids=lambda vector: f"{vector['input'][:12]!r}/{vector['n']}")
def test_the_hashes_are_those_of_js_waku(vector: dict) -> None:
    a, b = (hashed % vector["maxValue"] for hashed in FilterFormat().hashes(vector["input"]))
    nth = (a + vector["n"] * b) % vector["maxValue"]
    expected = vector["expected"]
    assert (a, b, nth) == (expected["hashA"], expected["hashB"], expected["hashC"])


@pytest.mark.parametrize("vector", FILTERS, ids=lambda vector: vector["name"])
def test_a_filter_has_the_bytes_and_answers_of_js_waku(vector: dict) -> None:
    options = vector["options"]
    filter_format = FilterFormat(capacity=options["capacity"], error_rate=options["errorRate"])
    assert filter_format.bit_count == vector["totalBits"]
    assert filter_format.hash_count == vector["kHashes"]
    words = bytearray(filter_format.byte_count)
    filter_format.insert(words, vector["ids"])
    field = filter_format.encode(words)
    assert field == gzip.decompress(base64.b64decode(vector["gz"]))
    assert hashlib.sha256(field).hexdigest() == vector["sha256"]
    decoded = filter_format.decode(field)
    assert not isinstance(decoded, Malformed)
    assert round(filter_format.saturation(decoded) * filter_format.bit_count) == vector["bits"]
    for message_id, held in vector["lookups"]:
        assert has_id(filter_format, decoded, message_id) is held


@given(st.lists(st.text(max_size=80), max_size=60), st.sampled_from(FAMILIES))
def test_many_ids_at_once_set_the_bits_of_each(ids: list[str], family: FilterFamily) -> None:
    filter_format = FilterFormat(family, capacity=100)
    together, one_by_one = bytearray(filter_format.byte_count), bytearray(filter_format.byte_count)
    filter_format.insert(together, ids)
    for message_id in ids:
        filter_format.insert(one_by_one, [message_id])
    assert together == one_by_one
    decoded = filter_format.decode(filter_format.encode(together))
    assert not isinstance(decoded, Malformed)
    for message_id in ids:
        assert has_id(filter_format, decoded, message_id)
        at, masks = filter_format.positions([message_id])
        assert (decoded.take(at) & masks).all()
        assert [at.T.tolist()[0], masks.T.tolist()[0]] == [*filter_format.locate(message_id)]


def test_the_nim_layout_is_little_endian_in_a_protobuf() -> None:
    filter_format = FilterFormat(FilterFamily.NIM)
    words = bytearray(filter_format.byte_count)
    filter_format.insert(words, ["id"])
    proto = pb.NimBloomFilter.FromString(filter_format.encode(words))
    assert (proto.capacity, proto.error_rate_millionths, proto.hash_count, proto.bit_count) == (
        10_000,
        1_000,
        10,
        150_000,
    )
    as_words = np.frombuffer(proto.words, "<u8")
    for bit in filter_format.bit_positions("id"):
        assert int(as_words[bit // 64]) >> (bit % 64) & 1


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 11160318154034397263),
        (b"a", 12917804110809363939),
        (b"abcd", 1897425971756105985),
        (b"abcdefgh", 18368443631171807497),
        (b"x" * 17, 11306081951414300581),
        (b"y" * 33, 8610735037765521150),
        (b"z" * 64, 294799756062990872),
        (b"a" * 66, 13120140547090569137),
        (b"b" * 129, 5958553128406173412),
        (b"1footrue", -1541654101129638711 % 2**64),
        (b"2applefalse", 2794438866806483259),
        (b"3true", -4880158226897771312 % 2**64),
    ],
)
def test_fingerprint64_gives_the_values_of_the_reference(data: bytes, expected: int) -> None:
    assert fingerprint64(data) == expected


def test_the_nim_families_hash_differently() -> None:
    ids = [f"id {number}" for number in range(20)]
    positions = {tuple(tuple(FilterFormat(family).bit_positions(one)) for one in ids) for family in FAMILIES}
    assert len(positions) == 3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [0, 1, 18_751, 18_753, 40_000])
def test_a_filter_of_another_size_is_refused(family: FilterFamily, size: int) -> None:
    refused = FilterFormat(family).decode(bytes(size))
    assert isinstance(refused, Malformed)
    assert refused.reason is Reason.SDS_FILTER_SIZE


def test_a_nim_filter_with_other_parameters_or_short_words_is_refused() -> None:
    filter_format = FilterFormat(FilterFamily.NIM)
    other = FilterFormat(FilterFamily.NIM, capacity=20_000)
    assert isinstance(filter_format.decode(other.encode(bytes(other.byte_count))), Malformed)
    assert isinstance(filter_format.decode(filter_format.encode(bytes(8))), Malformed)


@given(st.binary(max_size=400), st.sampled_from(FAMILIES))
def test_any_bytes_give_words_or_a_reason(data: bytes, family: FilterFamily) -> None:
    filter_format = FilterFormat(family, capacity=100)
    decoded = filter_format.decode(data)
    assert isinstance(decoded, Malformed) or len(decoded) == filter_format.byte_count


@pytest.mark.parametrize("family", FilterFamily)
def test_a_field_of_unknown_family_shows_what_it_does_not_contain(family: FilterFamily) -> None:
    known, unknown = [f"known {n}" for n in range(500)], [f"unknown {n}" for n in range(500)]
    made = FilterFormat(family)
    words = bytearray(made.byte_count)
    made.insert(words, known)
    field = made.encode(words)
    assert list_absent(field, known + unknown) == unknown
    assert list_absent(field, []) == []
    assert false_positive_rate(field) == pytest.approx((500 * 10 / made.bit_count) ** 10, rel=0.3)


@pytest.mark.parametrize("field", [None, b"", b"\xff", bytes(100), b"\x08\x01", FilterFormat(capacity=99).encode(b"")])
def test_what_is_no_filter_shows_nothing(field: bytes | None) -> None:
    assert list_absent(field, ["a"]) is None
    assert false_positive_rate(field) is None


def test_a_saturated_filter_contains_everything_and_has_no_rate() -> None:
    field = b"\xff" * FilterFormat().byte_count
    assert list_absent(field, ["a"]) == []
    assert false_positive_rate(field) is None
