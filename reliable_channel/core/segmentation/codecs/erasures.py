"""Decodes many lost shards of a Leopard code by transforms, in O(n log n) products instead of a matrix's O(n²).

The received shards are values of a polynomial at the points 0 … n − 1: parity at its row, data at M + its index, zeros
after the data. Multiplied by the polynomial that vanishes at the lost points they interpolate a product whose formal
derivative, at a lost point, is the lost value times the locator's derivative (Lin, Al-Naffouri and Han, *FFT Algorithm
for Binary Extension Finite Fields and its Application to Reed-Solomon Codes*). Native Leopard decodes like this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reliable_channel.core.segmentation.codecs.lagrange import log_sums, power
from reliable_channel.core.segmentation.codecs.rows import Rows, ShardRow, add_times, chunks
from reliable_channel.core.segmentation.codecs.transform import forward, inverse


def points_of(data_count: int, parity_count: int) -> int:
    """The number of points of the transforms."""
    size = 1 << (parity_count - 1).bit_length()
    return 1 << (size + data_count - 1).bit_length()


def products(data_count: int, parity_count: int) -> int:
    """The number of rows that are multiplied: the cost of decoding by transforms."""
    points = points_of(data_count, parity_count)
    return points * (points.bit_length() - 1) + 2 * points


def rebuild_by_transform(
    rows: Rows, data: Sequence[bytes | None], parity: Sequence[bytes | None], length: int
) -> list[bytes]:
    """Return the lost data shards, in order. As many shards as there are data shards must be held. Lengths are in
    bytes."""
    size = 1 << (len(parity) - 1).bit_length()
    n, k = points_of(len(data), len(parity)), len(data)
    shards: list[bytes | None] = [*parity, *[None] * (size - len(parity)), *data]
    lost = np.array([point for point, shard in enumerate(shards) if shard is None])
    wanted = [size + index for index, shard in enumerate(data) if shard is None]
    # Of each point, the product of its differences from the lost points other than itself.
    locator = power(rows.field, log_sums(rows.field, np.arange(n), lost))
    views = [None if shard is None else memoryview(shard) for shard in shards]
    results = {point: bytearray(length) for point in wanted}
    for piece in chunks(length):
        work: list[ShardRow | None] = [None] * n
        for point, view in enumerate(views):
            if view is not None:
                work[point] = _scale(rows, int(locator[point]), rows.load(view[piece]))
        inverse(rows, work, 0, n)
        full = [row or ShardRow(bytearray(piece.stop - piece.start)) for row in work]
        _differentiate(full)
        forward(rows, full, size + k)
        for point in wanted:
            factor = int(rows.field.divide(1, int(locator[point])))
            results[point][piece] = rows.store(_scale(rows, factor, full[point]))
    return [bytes(results[point]) for point in wanted]


def _scale(rows: Rows, factor: int, row: ShardRow) -> ShardRow:
    if factor == 1:
        return row
    product = ShardRow(bytearray(len(row.data)))
    add_times(rows, product, factor, row)
    return product


def _differentiate(work: list[ShardRow]) -> None:
    """Compute the formal derivative of a polynomial in the transform's basis, in place."""
    for index in range(1, len(work)):
        width = index & -index
        for step in range(width):
            work[index - width + step].add(work[index + step].view)
