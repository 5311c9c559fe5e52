"""Parity codes: byte-exact where the wire fixes the bytes, and any k of k + m rebuild in all of them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.errors import LocalError
from reliable_channel.core.segmentation import SegmentationConfig, get_codec
from reliable_channel.core.segmentation.codecs.erasures import products, rebuild_by_transform
from reliable_channel.core.segmentation.codecs.field import leopard_field, ordinary_field
from reliable_channel.core.segmentation.codecs.leopard import _rows as leopard_rows
from reliable_channel.core.segmentation.codecs.leopard import field_bits, next_power_of_two
from reliable_channel.core.segmentation.codecs.rows import CHUNK, Rows8, Rows16, chunks
from reliable_channel.core.segmentation.codecs.transform import multiplications
from tests.support.examples import examples
from tests.unit.segmentation.shards import cut, low_bytes, vectors, words

LEOPARD = vectors("leopard_parity")["cases"]
KLAUSPOST = vectors("klauspost_parity")["cases"]


@pytest.mark.parametrize("case", LEOPARD, ids=lambda case: f"{case['k']}+{case['m']}x{case['L']}")
def test_leopard_writes_the_bytes_of_native_leopard(case):
    data = words(case["seed"], case["k"] * case["L"])
    assert hashlib.sha256(data).hexdigest() == case["data_sha256"]
    parity = get_codec("leopard").encode(cut(data, case["k"]), case["m"])
    assert [shard.hex() for shard in parity] == case["parity_hex"]


@pytest.mark.parametrize("case", KLAUSPOST, ids=lambda case: f"{case['k']}+{case['m']}x{case['L']}")
def test_klauspost_writes_the_bytes_of_status_go(case):
    data = low_bytes(case["seed"], case["k"] * case["L"])
    parity = get_codec("klauspost").encode(cut(data, case["k"]), case["m"])
    assert [shard.hex() for shard in parity] == case["parity_hex"]


def parity_matrix(data_count: int, parity_count: int):
    """G, parity rows × data columns, for two or more parity shards: the definition that the butterflies compute."""
    size = next_power_of_two(parity_count)
    points = size + np.arange(data_count)
    rows = np.arange(parity_count)
    return leopard_field(field_bits(data_count, parity_count)).divide(
        np.broadcast_to(points >> size.bit_length() - 1, (parity_count, data_count)), rows[:, None] ^ points[None, :]
    )


def test_leopard_matrix_is_the_one_published_for_four_data_and_two_parity_shards():
    assert parity_matrix(4, 2).tolist() == [[3, 2, 5, 4], [2, 3, 4, 5]]


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 64, 128])
def test_leopard_butterflies_equal_the_matrix_for_every_data_count(size):
    """All (k, m) with 2 ≤ m ≤ k and k + m ≤ 256. Within one M and one field the matrix of fewer rows is the top of that
    of more, so the formula is computed once per (k, field) for the most rows there are, over a few symbols: a wrong
    coefficient shows in each of them. Every k is tried with the most rows or the fewest, in turn, and one k in 32
    with every number of rows, which is where the forward transform stops early."""
    data = cut(words(size, 256 * 64), 256)
    for k in range(size // 2 + 1, 255):
        counts = range(size // 2 + 1, min(size, k, 256 - k) + 1)
        if not counts:
            continue
        bits, most = field_bits(k, counts[-1]), counts[-1]
        symbols = np.stack([_symbols(shard, bits) for shard in data[:k]])
        shown = symbols[:, :: 16 if bits == 8 else 8]
        field, rows = leopard_field(bits), parity_matrix(k, most)
        expected = np.stack([np.bitwise_xor.reduce(field.multiply(row[:, None], shown), axis=0) for row in rows])
        for m in counts if k % 32 == 0 else (most, counts[0])[k % 2 :][:1]:
            parity = get_codec("leopard").encode(data[:k], m)
            actual = np.stack([_symbols(shard, bits)[:: 16 if bits == 8 else 8] for shard in parity])
            assert np.array_equal(actual, expected[:m]), (k, m)


def _symbols(shard: bytes, bits: int):
    raw = np.frombuffer(shard, dtype=np.uint8).astype(np.int64)
    return raw if bits == 8 else raw[:32] | raw[32:] << 8


def test_the_field_changes_where_the_rounded_sum_passes_256():
    assert (field_bits(224, 32), field_bits(225, 29), field_bits(227, 29)) == (8, 16, 16)
    assert field_bits(128, 128) == 8


@pytest.mark.parametrize(("k", "m"), [(227, 29), (64, 8), (200, 56), (128, 128), (9, 5), (240, 16)])
def test_leopard_rebuilds_many_losses_in_either_field(k, m):
    data = cut(words(k * m, k * 128), k)
    shards: list[bytes | None] = [*data, *get_codec("leopard").encode(data, m)]
    lost = np.random.default_rng(k).permutation(k + m)[:m]
    for index in lost:
        shards[index] = None
    assert get_codec("leopard").decode(shards, k) == data


@given(st.data())
@pytest.mark.parametrize("name", ["leopard", "klauspost", "reedsolo"])
def test_any_k_of_k_plus_m_shards_rebuild_the_data(name, data):
    codec = get_codec(name)
    k = data.draw(st.integers(1, 20), label="k")
    m = data.draw(st.integers(1, k if name == "leopard" else 12), label="m")
    length = data.draw(st.integers(1, 4)) * 64 if name == "leopard" else data.draw(st.integers(1, 70))
    originals = cut(words(data.draw(st.integers(0, 1 << 32)), k * length), k)
    shards: list[bytes | None] = [*originals, *codec.encode(originals, m)]
    for index in data.draw(st.sets(st.integers(0, k + m - 1), max_size=m), label="lost"):
        shards[index] = None
    assert codec.decode(shards, k) == originals


@settings(max_examples=examples(25))
@given(st.data())
def test_all_codes_agree_with_the_independent_one_on_what_is_rebuilt(data):
    """reedsolo is another code, so parity differs, but what a set of losses leaves recoverable must not."""
    k, m = data.draw(st.integers(2, 12)), data.draw(st.integers(1, 2))
    originals = cut(words(data.draw(st.integers(0, 1 << 32)), k * 64), k)
    lost = data.draw(st.sets(st.integers(0, k + m - 1), min_size=1, max_size=m + 1))
    outcomes = set()
    for name in ("leopard", "klauspost", "reedsolo"):
        codec = get_codec(name)
        shards = [*originals, *codec.encode(originals, m)]
        held = [None if index in lost else shard for index, shard in enumerate(shards)]
        try:
            outcomes.add(tuple(codec.decode(held, k)))
        except LocalError as error:
            outcomes.add(error.cause)
    assert len(outcomes) == 1


@pytest.mark.parametrize("length", [64, CHUNK - 64, CHUNK, CHUNK + 64, 2 * CHUNK + 128, 102_400])
def test_long_shards_are_worked_on_in_pieces_that_change_nothing(length):
    pieces = chunks(length)
    assert [piece.start for piece in pieces][1:] == [piece.stop for piece in pieces][:-1]
    assert pieces[-1].stop == length
    data = cut(words(length, 3 * length), 3)
    whole = get_codec("leopard").encode(data, 2)
    blocks = [get_codec("leopard").encode([shard[at : at + 64] for shard in data], 2) for at in range(0, length, 64)]
    assert whole == [b"".join(block[row] for block in blocks) for row in range(2)]


def test_zero_data_has_zero_parity():
    assert get_codec("leopard").encode([bytes(64)] * 5, 3) == [bytes(64)] * 3


def test_a_transform_needs_fewer_products_than_the_matrix():
    for k, m in ((8, 2), (64, 8), (224, 28), (227, 29)):
        assert multiplications(k, m) < k * m


@pytest.mark.parametrize("name", ["leopard", "klauspost", "reedsolo"])
def test_without_parity_there_is_nothing_to_encode(name):
    codec = get_codec(name)
    assert codec.encode([bytes(64)] * 3, 0) == []
    assert codec.decode([bytes(64)] * 3, 3) == [bytes(64)] * 3


@pytest.mark.parametrize("name", ["leopard", "klauspost", "reedsolo"])
def test_no_decoder_runs_when_no_data_shard_is_missing(name):
    """False parity would not be noticed: it is not looked at."""
    data = cut(words(1, 4 * 64), 4)
    assert get_codec(name).decode([*data, bytes(64), None], 4) == data


MISUSE = {
    "no data": lambda codec: codec.encode([], 1),
    "too many": lambda codec: codec.encode([bytes(64)] * 250, 7),
    "negative parity": lambda codec: codec.encode([bytes(64)], -1),
    "unequal lengths": lambda codec: codec.encode([bytes(64), bytes(128)], 1),
    "empty shards": lambda codec: codec.encode([b"", b""], 1),
    "not enough shards": lambda codec: codec.decode([bytes(64), None, None, None], 2),
    "fewer shards than data": lambda codec: codec.decode([bytes(64)], 2),
}


@pytest.mark.parametrize("name", ["leopard", "klauspost", "reedsolo"])
@pytest.mark.parametrize("misuse", MISUSE)
def test_misuse_is_a_local_error(name, misuse):
    with pytest.raises(LocalError):
        MISUSE[misuse](get_codec(name))


def test_leopard_takes_multiples_of_64_bytes_and_no_more_parity_than_data():
    with pytest.raises(LocalError, match="multiple of 64"):
        get_codec("leopard").encode([bytes(65)] * 2, 1)
    with pytest.raises(LocalError, match="does not exist"):
        get_codec("leopard").encode([bytes(64)] * 2, 3)
    assert not get_codec("leopard").supports(2, 3)


def test_reedsolo_stops_at_255_shards():
    with pytest.raises(LocalError, match="does not exist"):
        get_codec("reedsolo").encode([bytes(1)] * 254, 2)


def test_an_unknown_codec_is_refused_by_name():
    with pytest.raises(LocalError, match="rot13"):
        get_codec("rot13")


def test_codecs_are_shared():
    assert get_codec("leopard") is get_codec("leopard")


@pytest.mark.parametrize("field", [leopard_field(8), ordinary_field()], ids=["cantor", "ordinary"])
def test_a_field_is_a_field(field):
    everything = np.arange(256)
    products = field.multiply(everything[:, None], everything[None, :])
    assert np.array_equal(products, products.T)
    assert np.array_equal(products[1], everything)
    assert sorted(products[77]) == list(range(256))
    assert np.array_equal(field.divide(products[:, 1:], everything[1:]), np.repeat(everything[:, None], 255, axis=1))
    assert np.array_equal(field.multiply(9, everything ^ 5), products[9] ^ products[9][5])


def test_the_next_power_of_two():
    assert [next_power_of_two(n) for n in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(("k", "m"), [(2, 2), (5, 3), (64, 40), (100, 28), (128, 128), (227, 29), (200, 56)])
@pytest.mark.parametrize("seed", [1, 2])
def test_lost_shards_come_back_by_transforms_as_by_the_matrix(k: int, m: int, seed: int) -> None:
    """In both fields, with as many losses as there is parity for, and with parity lost as well."""
    choose, length = np.random.default_rng(seed), 2 * 64
    data = cut(words(seed, k * length), k)
    parity = get_codec("leopard").encode(data, m)
    lost = set(choose.choice(k + m, size=m, replace=False).tolist())
    held = [None if index in lost else shard for index, shard in enumerate(data)]
    rows = [None if k + row in lost else shard for row, shard in enumerate(parity)]
    rebuilt = rebuild_by_transform(leopard_rows(field_bits(k, m)), held, rows, length)
    assert rebuilt == [data[index] for index in sorted(lost) if index < k]


def test_a_decoding_of_many_losses_among_long_shards_takes_the_transforms() -> None:
    k, m, length = 128, 128, 8 * 1_024
    data = cut(words(3, k * length), k)
    parity = get_codec("leopard").encode(data, m)
    assert products(k, m) < k * k
    assert get_codec("leopard").decode([*[None] * k, *parity], k) == list(data)


@pytest.mark.parametrize("length", [64, 320, 384, 1_024, None])
def test_no_leopard_decoding_of_a_largest_message_is_dear(length: int | None):
    """5 units a byte are some 16 ms; what is lost costs no less than fewer losses do."""
    codec, largest = get_codec("leopard"), SegmentationConfig().max_message_bytes
    for parity_count in range(1, 129):
        for data_count in range(parity_count, 257 - parity_count):
            size = length or largest // data_count // 64 * 64
            assert codec.decoding_work(data_count, parity_count, parity_count, size) <= 5 * largest


@pytest.mark.parametrize(
    ("data_count", "parity_count", "lost"),
    [(128, 128, 40), (128, 128, 127), (132, 66, 35), (200, 56, 48), (150, 100, 100), (129, 127, 20), (227, 29, 29)],
)
def test_leopard_decodes_with_the_look_ups_that_are_counted(
    monkeypatch: pytest.MonkeyPatch, data_count: int, parity_count: int, lost: int
):
    looked_up = 0

    def counting(kind: type[Rows8] | type[Rows16]) -> None:
        times = kind.times

        def counted(self: Any, factor: int, row: Any) -> Any:
            nonlocal looked_up
            looked_up += 1 if factor < 256 else 2
            return times(self, factor, row)

        monkeypatch.setattr(kind, "times", counted)

    counting(Rows8)
    counting(Rows16)
    length = 384
    data = [bytes([index]) * length for index in range(data_count)]
    codec = get_codec("leopard")
    parity = codec.encode(data, parity_count)
    looked_up = 0
    held = [None if index < lost else shard for index, shard in enumerate([*data, *parity[:lost]])]
    held += [None] * (parity_count - lost)
    assert codec.decode(held, data_count) == data
    # Of a product in a transform two thirds are counted: that is what it takes.
    assert looked_up <= codec.decoding_work(data_count, parity_count, lost, length) * 9 // (length + 4_096) * 3 // 2 + 2
