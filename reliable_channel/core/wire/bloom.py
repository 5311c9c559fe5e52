"""Implements the bloom filter of SDS messages (LIP-109): sizes, hashes, bit positions and the two wire layouts.

Independent of channels. An invalid filter from outside becomes a :class:`Malformed`, never an exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import TypeAlias

import mmh3
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.settings import check_settings
from reliable_channel.core.wire._pb import sds_pb2 as pb
from reliable_channel.core.wire.farmhash import fingerprint64
from reliable_channel.core.wire.malformed import Malformed, Reason

WORD_BITS = 64
SECOND_HASH_SUFFIX = " b"
WORTH_AN_ARRAY = 16
"""The number of ids from which one array operation is faster than single operations."""

Bytes: TypeAlias = npt.NDArray[np.uint8]


class FilterFamily(StrEnum):
    """The hash and the layout of a filter (LIP-109)."""

    SPEC = "spec"
    """MurmurHash3 x86 32 read as signed, words big-endian, no header: the SDS specification and js-waku."""
    NIM = "nim"
    """FarmHash64 in a protobuf with little-endian words: nim-sds built with Nim 2.2 or newer."""
    NIM_MURMUR = "nim-murmur"
    """The same layout with unsigned MurmurHash3: nim-sds built with older Nim."""


Hashes: TypeAlias = tuple[int, int]
"""The hashes A of an id and B of the id + " b"."""


# The absolute value of a signed hash, also of FarmHash (docs/spec/sds-messages.md, *Bloom filter*).
def _murmur_signed(text: str) -> Hashes:
    return abs(mmh3.hash(text, 0, signed=True)), abs(mmh3.hash(text + SECOND_HASH_SUFFIX, 0, signed=True))


def _murmur_unsigned(text: str) -> Hashes:
    return mmh3.hash(text, 0, signed=False), mmh3.hash(text + SECOND_HASH_SUFFIX, 0, signed=False)


def _farm_signed(text: str) -> int:
    value = fingerprint64(text.encode("utf-8"))
    return abs(value - (1 << 64) if value >> 63 else value)


@lru_cache(maxsize=8_192)
def _farm(text: str) -> Hashes:
    """Hash in pure Python, cached because a rebuilt own filter hashes the newest ids again."""
    return _farm_signed(text), _farm_signed(text + SECOND_HASH_SUFFIX)


_HASHES: dict[FilterFamily, Callable[[str], Hashes]] = {
    FilterFamily.SPEC: _murmur_signed,
    FilterFamily.NIM: _farm,
    FilterFamily.NIM_MURMUR: _murmur_unsigned,
}


@dataclass(frozen=True)
class FilterFormat:
    """The size, hash and layout of a channel's filters.

    The default is n = 10 000, p = 0.001: 15 bits per element, k = 10, m = 150 000 bits, 2 344 words, 18 752 bytes.
    """

    family: FilterFamily = FilterFamily.SPEC
    capacity: int = 10_000
    error_rate: float = 0.001

    def __post_init__(self) -> None:
        check_settings(self, "sds.filter_format.", positive=("capacity",))
        if not 0.0 < self.error_rate < 1.0:
            raise ConfigurationError("sds.filter_format.error_rate is not between 0 and 1.", "Use the default, 0.001.")

    @cached_property
    def _bits_per_element(self) -> int:
        return math.ceil(-math.log(self.error_rate) / math.log(2) ** 2)

    @cached_property
    def hash_count(self) -> int:
        """k: bits set per element."""
        return round(math.log(2) * self._bits_per_element)

    @cached_property
    def bit_count(self) -> int:
        """m: bits in use."""
        return self.capacity * self._bits_per_element

    @cached_property
    def byte_count(self) -> int:
        """Bytes of the 64-bit words that hold m bits (one word more when m is a multiple of 64, as js-waku has it)."""
        return 8 * (1 + self.bit_count // WORD_BITS)

    @cached_property
    def hashes(self) -> Callable[[str], Hashes]:
        """The hash function of an id; the same for every filter size of a family."""
        return _HASHES[self.family]

    @cached_property
    def is_slow(self) -> bool:
        """Whether hashing an id takes 20 µs or more. The hashes of the newest 8 192 ids are cached."""
        return self.family is FilterFamily.NIM

    @cached_property
    def _is_spec(self) -> bool:
        return self.family is FilterFamily.SPEC

    @cached_property
    def _byte_flip(self) -> int:
        """Reverse the bytes within each word: the ``spec`` family writes the most significant byte first."""
        return 7 if self._is_spec else 0

    def bit_positions(self, message_id: str) -> list[int]:
        """The k bits of an id: ``(A + i·B) mod m``."""
        m = self.bit_count
        a, b = self.hashes(message_id)
        a, b = a % m, b % m
        return [(a + i * b) % m for i in range(self.hash_count)]

    def _bits(self, message_ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """The k bits (rows) of one or more ids (columns)."""
        hashes = np.array([*map(self.hashes, message_ids)], np.uint64).T
        a, b = (hashes % self.bit_count).astype(np.int64)
        bits: npt.NDArray[np.int64] = (a + np.arange(self.hash_count)[:, None] * b) % self.bit_count
        return bits

    def insert(self, words: bytearray, message_ids: Iterable[str]) -> None:
        """Set the bits of ``message_ids`` in ``words`` (``byte_count`` bytes, in wire order)."""
        ids = list(message_ids)
        flip = self._byte_flip
        if len(ids) < WORTH_AN_ARRAY:
            for message_id in ids:
                for bit in self.bit_positions(message_id):
                    words[(bit >> 3) ^ flip] |= 1 << (bit & 7)
            return
        bits = self._bits(ids)
        one_per_bit = np.zeros(self.byte_count * 8, np.uint8)
        one_per_bit[((bits >> 3) ^ flip) * 8 + (bits & 7)] = 1
        target = np.frombuffer(words, np.uint8)
        target |= np.packbits(one_per_bit, bitorder="little")

    def locate(self, message_id: str) -> tuple[list[int], list[int]]:
        """Byte index and bit mask of each of the k bits of an id, in wire order."""
        flip = self._byte_flip
        bits = self.bit_positions(message_id)
        return [(bit >> 3) ^ flip for bit in bits], [1 << (bit & 7) for bit in bits]

    def positions(self, message_ids: Sequence[str]) -> tuple[npt.NDArray[np.int64], Bytes]:
        """:meth:`locate` for one or more ids: the k bits in rows, the ids in columns."""
        bits = self._bits(message_ids)
        return (bits >> 3) ^ self._byte_flip, (1 << (bits & 7)).astype(np.uint8)

    def saturation(self, words: Bytes) -> float:
        """The share of the m bits that is set, 0 to 1. It is 0.49 at capacity; a filter of all ones would acknowledge
        everything."""
        return float(np.add.reduce(np.bitwise_count(words.view(np.uint64)), dtype=np.uint32)) / self.bit_count

    def encode(self, words: bytes | bytearray) -> bytes:
        """Encode the ``bloom_filter`` field."""
        if self.family is FilterFamily.SPEC:
            return bytes(words)
        return pb.NimBloomFilter(
            words=bytes(words),
            capacity=self.capacity,
            error_rate_millionths=round(self.error_rate * 1_000_000),
            hash_count=self.hash_count,
            bit_count=self.bit_count,
        ).SerializeToString()

    @cached_property
    def other_size(self) -> FilterFormat | None:
        """The other size that peers' filters may have: nim-sds (07491b2) rebuilds a full filter of 10 000 ids for 12
        000, with 180 000 bits. ``None`` for the ``spec`` family."""
        if self.family is FilterFamily.SPEC:
            return None
        return FilterFormat(self.family, self.capacity * 6 // 5, self.error_rate)

    def of(self, field: bytes) -> FilterFormat:
        """The format of a received ``bloom_filter`` field: this one, or the grown one if the field has its size."""
        if self.other_size is not None:
            try:
                bits = pb.NimBloomFilter.FromString(field).bit_count
            except DecodeError:
                return self
            if bits == self.other_size.bit_count:
                return self.other_size
        return self

    def decode(self, field: bytes) -> Bytes | Malformed:
        """Decode a ``bloom_filter`` field into a read-only array of words, or return why it is malformed: a filter of
        another size cannot be queried."""
        words = field
        if not self._is_spec:
            try:
                proto = pb.NimBloomFilter.FromString(field)
            except DecodeError as error:
                return Malformed(Reason.SDS_FILTER_SIZE, str(error)[:200])
            if (proto.bit_count, proto.hash_count) != (self.bit_count, self.hash_count):
                return Malformed(
                    Reason.SDS_FILTER_SIZE,
                    f"{proto.bit_count} bits and {proto.hash_count} hashes, not {self.bit_count} and {self.hash_count}",
                )
            words = proto.words
        if len(words) != self.byte_count:
            return Malformed(Reason.SDS_FILTER_SIZE, f"a filter of {len(words)} bytes, not {self.byte_count}")
        return np.frombuffer(words, np.uint8)


_USUAL_FORMATS = tuple(map(FilterFormat, FilterFamily))

SATURATED = 0.6
"""The share of set bits above which a filter proves nothing: a filter at capacity has 0.49, and one of ones would
acknowledge everything."""


def list_absent(field: bytes | None, message_ids: Sequence[str]) -> list[str] | None:
    """The ids that a ``bloom_filter`` field of unknown family certainly does not contain, in the order given.

    ``None`` when the field is no filter of the default size of any family. Filters of nim-sds do not say which hash
    they use: absent is what is absent by both."""
    filters = _read(field)
    if not filters:
        return None
    absent = np.ones(len(message_ids), bool)
    for filter_format, words in filters if message_ids else ():
        positions, masks = filter_format.positions(message_ids)
        absent &= ((words[positions] & masks) == 0).any(axis=0)
    return [message_id for message_id, is_absent in zip(message_ids, absent, strict=True) if is_absent]


def false_positive_rate(field: bytes | None) -> float | None:
    """How probably a ``bloom_filter`` field contains an id that was never inserted, 0 to 1, by the share of its bits
    that is set. ``None`` when the field is no filter of the default size of any family, or saturated."""
    for filter_format, words in _read(field):
        saturation = filter_format.saturation(words)
        return float(saturation**filter_format.hash_count) if saturation <= SATURATED else None
    return None


def _read(field: bytes | None) -> list[tuple[FilterFormat, Bytes]]:
    """The field in every format in which it can be read."""
    formats = [usual.of(field) for usual in _USUAL_FORMATS] if field else []
    decoded = [(filter_format, filter_format.decode(field or b"")) for filter_format in formats]
    return [(filter_format, words) for filter_format, words in decoded if not isinstance(words, Malformed)]
