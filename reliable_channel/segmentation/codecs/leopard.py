"""Leopard-RS, byte for byte (protocol.md §3 *Parity: Leopard-RS*): the wire's parity.

Data shard d sits at the point x_d = M + d, parity row i at i, M = NextPow2(m); the field is 8-bit where
NextPow2(M + k) ≤ 256, else 16-bit. The whole encoder is the matrix G[i][d] = (x_d >> log2 M) / (i xor x_d); it is
computed by butterflies (``transform``), or row by row where few rows are wanted. Like native Leopard the code does not
exist for more parity than data shards: :meth:`LeopardCodec.supports` says no and ``encode`` raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from reliable_channel.segmentation.codecs.base import check_decode, check_encode
from reliable_channel.segmentation.codecs.field import Elements, leopard_field
from reliable_channel.segmentation.codecs.rows import Rows, Rows8, Rows16, multiply_matrix, xor_shards
from reliable_channel.segmentation.codecs.transform import multiplications, parity_by_transform


class LeopardCodec:
    """The codec named ``leopard``; see :class:`reliable_channel.segmentation.codecs.Codec`."""

    name = "leopard"
    alignment = 64

    def supports(self, data_count: int, parity_count: int) -> bool:
        """1 ≤ m ≤ k, as in native Leopard."""
        return 1 <= parity_count <= data_count

    def encode(self, data_shards: Sequence[bytes], parity_count: int) -> list[bytes]:
        """The parity shards: copies for one data shard, the xor for one parity shard, else the code proper."""
        check_encode(self, data_shards, parity_count)
        shards = list(data_shards)
        if parity_count <= 1:
            return [xor_shards(shards)] * parity_count
        return parity_by_transform(_rows(len(shards), parity_count), list[bytes | None](shards), parity_count)

    def decode(self, shards: Sequence[bytes | None], data_count: int) -> list[bytes]:
        """The data shards. The held data is encoded with zeros for what is missing; xored with the received parity that
        is the missing shards' share, a system that always has one solution (a Cauchy matrix with scaled columns)."""
        length = check_decode(self, shards, data_count)
        data, parity = list(shards[:data_count]), shards[data_count:]
        missing = [index for index, shard in enumerate(data) if shard is None]
        if missing:
            used = [row for row, shard in enumerate(parity) if shard is not None][: len(missing)]
            received = [shard for shard in (parity[row] for row in used) if shard is not None]
            held = [shard for shard in data if shard is not None]
            if len(parity) == 1:
                rebuilt = [xor_shards([*held, *received])]
            else:
                rebuilt = _solve(data, held, received, tuple(missing), tuple(used), len(parity), length)
            for index, shard in zip(missing, rebuilt, strict=True):
                data[index] = shard
        return [shard for shard in data if shard is not None]


def _solve(
    data: list[bytes | None],
    held: list[bytes],
    received: list[bytes],
    missing: tuple[int, ...],
    used: tuple[int, ...],
    parity_count: int,
    length: int,
) -> list[bytes]:
    """Few losses: one matrix over everything that is held. Many: encode by butterflies, then solve."""
    k, rows = len(data), _rows(len(data), parity_count)
    solution, whole = _solution(k, parity_count, missing, used)
    if len(missing) * k <= multiplications(k, parity_count) + len(missing) ** 2:
        return multiply_matrix(rows, whole, [*held, *received], length)
    encoded = parity_by_transform(rows, data, parity_count)
    syndrome = [xor_shards([encoded[row], shard]) for row, shard in zip(used, received, strict=True)]
    return multiply_matrix(rows, solution, syndrome, length)


@lru_cache(maxsize=64)
def _solution(k: int, m: int, missing: tuple[int, ...], used: tuple[int, ...]) -> tuple[Elements, Elements]:
    """The inverse of the missing columns in the used rows, and the matrix that maps all held shards, data then parity,
    to the missing ones."""
    field = leopard_field(field_bits(k, m))
    rows = parity_matrix(k, m)[list(used)]
    solution = field.inverse(rows[:, list(missing)])
    held = [index for index in range(k) if index not in set(missing)]
    return solution, np.concatenate([field.product(solution, rows[:, held]), solution], axis=1)


@lru_cache(maxsize=64)
def parity_matrix(data_count: int, parity_count: int) -> Elements:
    """G, parity rows × data columns, for two or more parity shards."""
    size = next_power_of_two(parity_count)
    points = size + np.arange(data_count)
    rows = np.arange(parity_count)
    return leopard_field(field_bits(data_count, parity_count)).divide(
        np.broadcast_to(points >> size.bit_length() - 1, (parity_count, data_count)), rows[:, None] ^ points[None, :]
    )


def field_bits(data_count: int, parity_count: int) -> int:
    """8 or 16: the test is on M + k, not on k + m; 227 + 29 shards are 16-bit."""
    return 8 if next_power_of_two(next_power_of_two(parity_count) + data_count) <= 256 else 16


def next_power_of_two(count: int) -> int:
    """The smallest power of two that is not below ``count`` (1 or more)."""
    return 1 << (count - 1).bit_length()


_ROWS: dict[int, Rows] = {}


def _rows(data_count: int, parity_count: int) -> Rows:
    bits = field_bits(data_count, parity_count)
    if bits not in _ROWS:
        field = leopard_field(bits)
        _ROWS[bits] = Rows8(field) if bits == 8 else Rows16(field)
    return _ROWS[bits]
