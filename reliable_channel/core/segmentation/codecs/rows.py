"""Multiplies and adds whole rows of field symbols, close to the speed of memory.

A row is a ``bytearray`` with a NumPy view on it: ``bytearray.translate`` with a table of 256 is the fastest
multiplication by a constant without native code (2.9 GB/s measured here; ``bytes.translate`` 1.6, because it also
checks whether anything changed; ``numpy.take`` 1.0 over bytes, 2.0 over pairs), and NumPy xors 64-bit words (22 GB/s).
Rows are short (``CHUNK``), so that those of a transform mostly stay in the cache.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from reliable_channel.core.segmentation.codecs.field import Elements, Field

CHUNK = 51_200
"""Bytes of a shard processed at once; a multiple of 64. Measured encoding (8,2) (64,8) (224,28) (227,29), MB/s: 16 KiB
1 600 890 560 320; 50 KiB 2 600 1 190 620 420; a whole 100 KiB shard 2 900 1 090 580 430."""

SHORT = 320
"""Shards of at most this many bytes are multiplied by look-ups of single symbols, because calls for whole rows cost
more."""

Words = NDArray[np.uint64]


class ShardRow:
    """The symbols of one chunk of a shard. Lengths are multiples of 8 bytes."""

    __slots__ = ("data", "times_w", "view")

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.times_w: bytearray | None = None
        """w times the row, once computed (:class:`Rows16`)."""
        self.view: Words = np.frombuffer(data, dtype=np.uint64)

    def add(self, other: Words) -> None:
        """Add (xor) in place."""
        np.bitwise_xor(self.view, other, out=self.view)
        self.times_w = None

    def copy(self) -> ShardRow:
        """Return an independent row with the same symbols."""
        return ShardRow(self.data[:])


class Rows8:
    """Rows over an 8-bit field: a byte is a symbol."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self._table = lru_cache(maxsize=256)(self._make_table)

    def load(self, chunk: memoryview) -> ShardRow:
        """Convert a shard's bytes to a row."""
        return ShardRow(bytearray(chunk))

    def store(self, row: ShardRow) -> bytearray:
        """Convert a row to bytes in the order of the shard."""
        return row.data

    def times(self, factor: int, row: ShardRow) -> Words:
        """Return ``factor`` · row as a new array."""
        return np.frombuffer(row.data.translate(self._table(factor)), dtype=np.uint64)

    def symbols(self, shards: list[bytes]) -> NDArray[np.uint16]:
        """Return the symbols of shards, one row each."""
        return np.frombuffer(b"".join(shards), np.uint8).astype(np.uint16).reshape(len(shards), -1)

    def shards(self, symbols: NDArray[np.uint16]) -> list[bytes]:
        """Convert rows of symbols to shards."""
        return [row.tobytes() for row in symbols.astype(np.uint8)]

    def _make_table(self, factor: int) -> bytes:
        return self.field.multiply(factor, np.arange(256)).astype(np.uint8).tobytes()


class Rows16:
    """Rows over Leopard's 16-bit field. On the wire symbol j of a 64-byte block has its low byte at j and its high byte
    at 32 + j; a row holds all low bytes, then all high bytes, so that one table look-up serves a whole plane.

    The constants below 256 are a subfield GF(2^8), and w = 256 is not in it: every element is l + h·w with both in the
    subfield, and w² = n + t·w. A row holds the l and the h of its symbols: h is the high byte, l the low byte xor the
    low byte of h·w. A constant c of the subfield then maps l to c·l and h to c·h by one table; another one, c + d·w,
    adds d·n·h to l and d·(l + t·h) to h. All tables are of the subfield: 256 of 256 bytes.
    """

    def __init__(self, field: Field) -> None:
        self.field = field
        small = np.arange(256)
        self._low = (field.multiply(small, 256) & 255).astype(np.uint8).tobytes()
        """Low bytes of h·w."""
        self._tables = [field.multiply(factor, small).astype(np.uint8).tobytes() for factor in range(256)]
        square = int(field.multiply(256, 256))
        self._n, self._t = self._parts(square)

    def _parts(self, element: int) -> tuple[int, int]:
        """Split an element into l and h."""
        high = element >> 8
        return (element & 255) ^ self._low[high], high

    def load(self, chunk: memoryview) -> ShardRow:
        """Convert a shard's bytes (a multiple of 64) to a row."""
        blocks = np.frombuffer(chunk, dtype=np.uint64).reshape(-1, 2, 4)
        row = ShardRow(bytearray(len(chunk)))
        row.view.reshape(2, -1, 4)[:] = blocks.transpose(1, 0, 2)
        self._change(row)
        return row

    def store(self, row: ShardRow) -> bytearray:
        """Convert a row to bytes in the order of the shard."""
        row = row.copy()
        self._change(row)
        data = bytearray(len(row.data))
        np.frombuffer(data, dtype=np.uint64).reshape(-1, 2, 4)[:] = row.view.reshape(2, -1, 4).transpose(1, 0, 2)
        return data

    def _change(self, row: ShardRow) -> None:
        """Convert low bytes to l, or back."""
        half = len(row.data) // 2
        low = row.view[: half // 8]
        np.bitwise_xor(low, np.frombuffer(row.data[half:].translate(self._low), dtype=np.uint64), out=low)

    def times(self, factor: int, row: ShardRow) -> Words:
        """Return ``factor`` · row as a new array."""
        small, large = self._parts(factor)
        out = np.frombuffer(row.data.translate(self._tables[small]), dtype=np.uint64)
        if large:
            times_w = row.times_w = row.times_w or self._times_w(row)
            np.bitwise_xor(out, np.frombuffer(times_w.translate(self._tables[large]), dtype=np.uint64), out=out)
        return out

    def _times_w(self, row: ShardRow) -> bytearray:
        """Return w · row."""
        half = len(row.data) // 2
        high = row.data[half:]
        data = high.translate(self._tables[self._n]) + high.translate(self._tables[self._t])
        view = np.frombuffer(data, dtype=np.uint64)[half // 8 :]
        np.bitwise_xor(view, row.view[: half // 8], out=view)
        return data

    def symbols(self, shards: list[bytes]) -> NDArray[np.uint16]:
        """Return the symbols of shards, one row each."""
        planes = np.frombuffer(b"".join(shards), np.uint8).reshape(len(shards), -1, 2, 32).astype(np.uint16)
        symbols: NDArray[np.uint16] = (planes[:, :, 0] | planes[:, :, 1] << 8).astype(np.uint16)
        return symbols.reshape(len(shards), -1)

    def shards(self, symbols: NDArray[np.uint16]) -> list[bytes]:
        """Convert rows of symbols to shards."""
        blocks = symbols.reshape(len(symbols), -1, 1, 32)
        planes = np.concatenate([blocks & 255, blocks >> 8], axis=2).astype(np.uint8)
        return [row.tobytes() for row in planes.reshape(len(symbols), -1)]


Rows = Rows8 | Rows16


def add_times(rows: Rows, target: ShardRow, factor: int, row: ShardRow) -> None:
    """Add ``factor`` · row to ``target``."""
    target.add(row.view if factor == 1 else rows.times(factor, row))


def chunks(length: int) -> list[slice]:
    """Divide a shard of ``length`` bytes into equal pieces near ``CHUNK``, each a multiple of 64 except the last."""
    pieces = max(1, -(-length // CHUNK))
    step = -(-length // (pieces * 64)) * 64
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def multiply_matrix(rows: Rows, matrix: Elements, shards: list[bytes], length: int) -> list[bytes]:
    """Compute matrix · shards: one new shard per matrix row. Lengths are multiples of 64 bytes for 16-bit rows, else of
    8."""
    if length <= SHORT:
        return rows.shards(rows.field.combine(matrix, rows.symbols(shards)))
    coefficients = [[int(factor) for factor in line] for line in matrix]
    views = [memoryview(shard) for shard in shards]
    results = [bytearray(length) for _ in coefficients]
    for piece in chunks(length):
        targets = [ShardRow(bytearray(piece.stop - piece.start)) for _ in coefficients]
        for column, view in enumerate(views):
            row = rows.load(view[piece])
            for target, line in zip(targets, coefficients, strict=True):
                if line[column]:
                    add_times(rows, target, line[column], row)
        for result, target in zip(results, targets, strict=True):
            result[piece] = rows.store(target)
    return [bytes(result) for result in results]


def xor_shards(shards: list[bytes]) -> bytes:
    """Return the xor of shards of equal length, a multiple of 8 bytes."""
    first = np.frombuffer(shards[0], dtype=np.uint64)
    if len(shards) == 1:
        return shards[0]
    total = first ^ np.frombuffer(shards[1], dtype=np.uint64)
    for shard in shards[2:]:
        np.bitwise_xor(total, np.frombuffer(shard, dtype=np.uint64), out=total)
    return total.tobytes()
