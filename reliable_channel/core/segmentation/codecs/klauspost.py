"""Implements status-go's parity code (docs/spec/segmentation.md): GF(2^8), polynomial 0x11D, ordinary coordinates. With
V[r][c] = r^c for k + m rows, the parity matrix is the last m rows of V times the inverse of its top k × k block. Shards
may have any length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from reliable_channel.core.segmentation.codecs.base import MAX_SHARDS, check_decode, check_encode, products_work
from reliable_channel.core.segmentation.codecs.field import Elements, ordinary_field
from reliable_channel.core.segmentation.codecs.lagrange import interpolation
from reliable_channel.core.segmentation.codecs.rows import SHORT, Rows8, multiply_matrix

_WORD = 8


class KlauspostCodec:
    """The codec named ``klauspost``; see :class:`reliable_channel.core.segmentation.codecs.Codec`."""

    name = "klauspost"
    alignment = 1

    def supports(self, data_count: int, parity_count: int) -> bool:
        """Any counts that fit the field: 256 shards in all."""
        return data_count >= 1 and parity_count >= 1 and data_count + parity_count <= MAX_SHARDS

    def decoding_work(self, data_count: int, parity_count: int, lost: int, length: int) -> int:
        """Every lost shard depends on every held one."""
        return products_work(lost * data_count, length, short=length <= SHORT)

    def encode(self, data_shards: Sequence[bytes], parity_count: int) -> list[bytes]:
        """Encode the parity shards."""
        length = check_encode(self, data_shards, parity_count)
        if parity_count == 0:
            return []
        k = len(data_shards)
        matrix = _compute_matrix(tuple(range(k)), tuple(range(k, k + parity_count)))
        return _multiply(matrix, list(data_shards), length)

    def decode(self, shards: Sequence[bytes | None], data_count: int) -> list[bytes]:
        """Decode the data shards from the first k held shards."""
        length = check_decode(self, shards, data_count)
        data = list(shards[:data_count])
        missing = tuple(index for index, shard in enumerate(data) if shard is None)
        if missing:
            held = tuple(index for index, shard in enumerate(shards) if shard is not None)[:data_count]
            used = [shard for shard in (shards[index] for index in held) if shard is not None]
            for index, shard in zip(missing, _multiply(_compute_matrix(held, missing), used, length), strict=True):
                data[index] = shard
        return [shard for shard in data if shard is not None]


@lru_cache(maxsize=16)
def _compute_matrix(held: tuple[int, ...], wanted: tuple[int, ...]) -> Elements:
    """The matrix that maps the held shards to the wanted ones. A shard is the value of a polynomial of degree below k
    at its position in data then parity, which is equivalent to the Vandermonde matrices above."""
    return interpolation(ordinary_field(), held, wanted)


def _multiply(matrix: Elements, shards: list[bytes], length: int) -> list[bytes]:
    """Multiply the matrix by shards of any length. Rows consist of words of 8 bytes, so shards are padded and the
    results cut."""
    padded = -(-length // _WORD) * _WORD
    if padded != length:
        shards = [shard.ljust(padded, b"\0") for shard in shards]
    return [shard[:length] for shard in multiply_matrix(_rows(), matrix, shards, padded)]


@cache
def _rows() -> Rows8:
    return Rows8(ordinary_field())
