"""Implements Leopard-RS byte for byte, the parity code on the wire (Segmentation 0.1, *Reed–Solomon*;
docs/spec/segmentation.md).

Data shard d sits at the point x_d = M + d, parity row i at i, M = NextPow2(m); the field is 8-bit where NextPow2(M + k)
≤ 256, else 16-bit. The whole encoder is the matrix G[i][d] = (x_d >> log2 M) / (i xor x_d); it is computed by
butterflies (``transform``), or row by row if few rows are wanted. As in native Leopard, the code does not exist for
more parity than data shards: :meth:`LeopardCodec.supports` returns false and ``encode`` raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

from reliable_channel.core.segmentation.codecs.base import check_decode, check_encode, products_work
from reliable_channel.core.segmentation.codecs.erasures import products, rebuild_by_transform
from reliable_channel.core.segmentation.codecs.field import Elements, leopard_field
from reliable_channel.core.segmentation.codecs.lagrange import cauchy_solution
from reliable_channel.core.segmentation.codecs.rows import SHORT, Rows, Rows8, Rows16, multiply_matrix, xor_shards
from reliable_channel.core.segmentation.codecs.transform import multiplications, parity_by_transform


class LeopardCodec:
    """The codec named ``leopard``; see :class:`reliable_channel.core.segmentation.codecs.Codec`."""

    name = "leopard"
    alignment = 64

    def supports(self, data_count: int, parity_count: int) -> bool:
        """1 ≤ m ≤ k, as in native Leopard."""
        return 1 <= parity_count <= data_count

    def decoding_work(self, data_count: int, parity_count: int, lost: int, length: int) -> int:
        """The cost of the cheapest of the three decoding methods; a sum for one parity shard."""
        if parity_count == 1 or not lost:
            return data_count * length // 30
        direct, encoding, transforms = _count_products(data_count, parity_count, lost)
        if length <= SHORT:
            return products_work(lost * data_count, length, short=True)
        return products_work(min(direct, encoding, transforms), length)

    def encode(self, data_shards: Sequence[bytes], parity_count: int) -> list[bytes]:
        """Encode the parity shards: copies for one data shard, the xor for one parity shard, else the Leopard code."""
        check_encode(self, data_shards, parity_count)
        shards = list(data_shards)
        if parity_count <= 1:
            return [xor_shards(shards)] * parity_count
        return parity_by_transform(
            _rows(field_bits(len(shards), parity_count)), list[bytes | None](shards), parity_count
        )

    def decode(self, shards: Sequence[bytes | None], data_count: int) -> list[bytes]:
        """Decode the data shards. The missing shards are the solution of a linear system over the received parity,
        which always has exactly one (a Cauchy matrix with scaled columns)."""
        length = check_decode(self, shards, data_count)
        data, parity = list(shards[:data_count]), shards[data_count:]
        missing = [index for index, shard in enumerate(data) if shard is None]
        if missing:
            used = [row for row, shard in enumerate(parity) if shard is not None][: len(missing)]
            if len(parity) == 1:
                rebuilt = [xor_shards([shard for shard in shards if shard is not None])]
            else:
                rebuilt = _solve(data, parity, tuple(missing), tuple(used), length)
            for index, shard in zip(missing, rebuilt, strict=True):
                data[index] = shard
        return [shard for shard in data if shard is not None]


def _solve(
    data: list[bytes | None],
    parity: Sequence[bytes | None],
    missing: tuple[int, ...],
    used: tuple[int, ...],
    length: int,
) -> list[bytes]:
    """Decode by the cheapest of three methods. Few losses, or short shards: one matrix over all held shards. More:
    encode the held data by butterflies, then solve. Many: transforms over all points."""
    k, m, lost = len(data), len(parity), len(missing)
    rows = _rows(field_bits(k, m))
    direct, encoding, transforms = _count_products(k, m, lost)
    if transforms < min(direct, encoding) and length > SHORT:
        return rebuild_by_transform(rows, data, parity, length)
    received = [shard for shard in (parity[row] for row in used) if shard is not None]
    solution, mixed = _compute_solution(k, m, missing, used)
    if direct <= encoding or length <= SHORT:
        held = [shard for shard in data if shard is not None]
        return multiply_matrix(rows, np.concatenate([mixed, solution], axis=1), [*held, *received], length)
    encoded = parity_by_transform(rows, data, m)
    syndrome = [xor_shards([encoded[row], shard]) for row, shard in zip(used, received, strict=True)]
    return multiply_matrix(rows, solution, syndrome, length)


def _count_products(k: int, m: int, lost: int) -> tuple[int, int, int]:
    """The cost of each of the three decoding methods, in row products of a matrix over the 8-bit field. Over the 16-bit
    field, a product in a matrix takes twice as long; in the butterflies, almost all of whose factors are below 256, as
    long as in 8 bits; the transforms over all points count 2/3 of their products, because many are skipped."""
    each = field_bits(k, m) // 8
    return each * lost * k, multiplications(k, m) + each * lost**2, products(k, m) * 2 // 3


@lru_cache(maxsize=16)
def _compute_solution(k: int, m: int, missing: tuple[int, ...], used: tuple[int, ...]) -> tuple[Elements, Elements]:
    """The two matrices that map the received parity and the held data to the missing shards. G is a Cauchy matrix with
    scaled columns, so both have a closed form."""
    field, size = leopard_field(field_bits(k, m)), next_power_of_two(m)
    lost = set(missing)
    held = [index for index in range(k) if index not in lost]
    inverse, mixed = cauchy_solution(field, used, [size + d for d in missing], [size + h for h in held])
    shift = size.bit_length() - 1
    scale_missing = (size + np.array(missing)) >> shift
    scale_held = (size + np.array(held, dtype=np.int64)) >> shift
    return (
        field.divide(inverse, scale_missing[:, None]),
        field.multiply(field.divide(mixed, scale_missing[:, None]), scale_held[None, :]),
    )


def field_bits(data_count: int, parity_count: int) -> int:
    """8 or 16: the test is on M + k, not on k + m; 227 + 29 shards are 16-bit."""
    return 8 if next_power_of_two(next_power_of_two(parity_count) + data_count) <= 256 else 16


def next_power_of_two(count: int) -> int:
    """The smallest power of two that is not below ``count`` (1 or more)."""
    return 1 << (count - 1).bit_length()


@cache
def _rows(bits: int) -> Rows:
    field = leopard_field(bits)
    return Rows8(field) if bits == 8 else Rows16(field)
