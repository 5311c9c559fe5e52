"""Encodes Leopard's parity by butterflies (docs/spec/segmentation.md, *Parity*).

The data is divided into blocks of M rows. Each block is transformed inversely at the offset of its points, the blocks
are xored, and the sum is transformed forward at offset 0; the first m rows are the parity. A butterfly multiplies once:
inverse ``y ^= x; x ^= t·y``, forward ``x ^= t·y; y ^= x``, with t = (offset + row) >> level.

The last inverse level has one t per block, 2b for block b, and coordinates add by xor. So instead of one product per
block the y rows are summed per *bit* of 2b and multiplied once per bit: log2 of the number of blocks instead of that
number.
"""

from __future__ import annotations

from functools import lru_cache

from reliable_channel.core.segmentation.codecs.rows import Rows, ShardRow, add_times, chunks


def parity_by_transform(rows: Rows, data: list[bytes | None], parity_count: int) -> list[bytes]:
    """Encode two or more parity shards. ``None`` in ``data`` is a shard of zeros; at least one shard is held."""
    length = next(len(shard) for shard in data if shard is not None)
    size = 1 << (parity_count - 1).bit_length()
    views = [None if shard is None else memoryview(shard) for shard in data]
    parity = [bytearray(length) for _ in range(parity_count)]
    for piece in chunks(length):
        total = _Sum(rows, size // 2, piece.stop - piece.start)
        for start in range(0, len(views), size):
            block = [None if view is None else rows.load(view[piece]) for view in views[start : start + size]]
            block += [None] * (size - len(block))
            inverse(rows, block, size + start, size // 2)
            total.add(block, (size + start) // (size // 2))
        transformed = total.finish()
        forward(rows, transformed, parity_count)
        for shard, row in zip(parity, transformed, strict=False):
            shard[piece] = rows.store(row)
    return [bytes(shard) for shard in parity]


@lru_cache(maxsize=256)
def multiplications(data_count: int, parity_count: int) -> int:
    """The number of rows that are multiplied: the cost of encoding."""
    size = 1 << (parity_count - 1).bit_length()
    levels, half = size.bit_length() - 1, size // 2
    blocks = -(-data_count // size)
    inverse = blocks * (levels - 1) * half + blocks.bit_length() * half
    forward = sum(half - (1 << level) for level in range(levels))
    return inverse + forward


def inverse(rows: Rows, block: list[ShardRow | None], offset: int, until: int) -> None:
    """Apply the inverse levels whose rows are less than ``until`` apart, in place; ``None`` is a row of zeros."""
    distance, level = 1, 0
    while distance < until:
        for start in range(0, len(block), 2 * distance):
            factor = (offset + start) >> level
            for index in range(start, start + distance):
                x, y = block[index], _add(block[index + distance], block[index])
                if y is not None:
                    block[index + distance] = y
                    if not factor:
                        continue
                    if x is None:
                        x = block[index] = ShardRow(bytearray(len(y.data)))
                    add_times(rows, x, factor, y)
        distance, level = 2 * distance, level + 1


def _add(y: ShardRow | None, x: ShardRow | None) -> ShardRow | None:
    if x is None:
        return y
    if y is None:
        return x.copy()
    y.add(x.view)
    return y


class _Sum:
    """The sum of all blocks through the last inverse level: x rows, y rows, and y rows per bit of the factor."""

    def __init__(self, rows: Rows, half: int, length: int) -> None:
        self._rows, self._half, self._length = rows, half, length
        self._x = self._zeros()
        self._y = self._zeros()
        self._by_bit: dict[int, list[ShardRow]] = {}

    def _zeros(self) -> list[ShardRow]:
        return [ShardRow(bytearray(self._length)) for _ in range(self._half)]

    def add(self, block: list[ShardRow | None], factor: int) -> None:
        """Add a block. ``factor`` is that of the last level, 2b: the block's offset divided by half its size."""
        bits = [1 << bit for bit in range(factor.bit_length()) if factor >> bit & 1]
        for bit in bits:
            if bit not in self._by_bit:
                self._by_bit[bit] = self._zeros()
        for index in range(self._half):
            x, y = block[index], _add(block[index + self._half], block[index])
            if x is not None:
                self._x[index].add(x.view)
            if y is not None:
                self._y[index].add(y.view)
                for bit in bits:
                    self._by_bit[bit][index].add(y.view)

    def finish(self) -> list[ShardRow]:
        """Return the rows of the sum of the inversely transformed blocks."""
        for bit, summed in self._by_bit.items():
            for x, y in zip(self._x, summed, strict=True):
                add_times(self._rows, x, bit, y)
        return [*self._x, *self._y]


def forward(rows: Rows, work: list[ShardRow], wanted: int) -> None:
    """Apply the forward transform at offset 0, in place; only the first ``wanted`` rows are valid afterwards."""
    distance = len(work) // 2
    level = distance.bit_length() - 1
    while distance:
        for start in range(0, wanted, 2 * distance):
            factor = start >> level
            for index in range(start, start + distance):
                x, y = work[index], work[index + distance]
                if factor:
                    add_times(rows, x, factor, y)
                y.add(x.view)
        distance, level = distance // 2, level - 1
