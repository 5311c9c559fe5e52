"""Measures the parity codes (issue *protocol core*, Segmentation): MB/s of data at 100 KiB shards in one thread, by its
CPU time, encoding as a ratio to a memory copy of the same bytes in the same run, decoding as one to encoding."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench.registry import MB, SIZES, Result, bench, best_of, memory_copy
from reliable_channel.core.segmentation import get_codec

_SHARD = 102_400
_LEOPARD = {(8, 1): 0.15, (8, 2): 0.02, (64, 8): 0.01, (224, 28): 0.015, (227, 29): 0.01}
"""Targets of encoding, as shares of the speed of a memory copy."""
_KLAUSPOST = ((8, 2), (64, 8))


@bench
def leopard() -> Iterator[Result]:
    """Compare encoding with its targets, and decoding of one lost data shard with half of the encoding rate measured
    here."""
    for (k, m), target in _LEOPARD.items():
        yield from _both("leopard", k, m, target)


@bench
def klauspost() -> Iterator[Result]:
    """Measure status-go's code, for which no targets are set."""
    for k, m in _KLAUSPOST:
        yield from _both("klauspost", k, m, None)


@bench
def reedsolo() -> Iterator[Result]:
    """Measure the independent code; with small shards, because it is pure Python."""
    yield from _both("reedsolo", 8, 2, None, shard=2_048)


def _both(name: str, k: int, m: int, target: float | None, shard: int = _SHARD) -> Iterator[Result]:
    codec, shard = get_codec(name), SIZES.scale_count(shard // 64, 8) * 64
    data = np.random.default_rng(k * 1_000 + m).integers(0, 256, k * shard, dtype=np.uint8).tobytes()
    shards = [data[i * shard : (i + 1) * shard] for i in range(k)]
    copy = memory_copy(k * shard)
    encode = k * shard / MB / best_of(lambda: codec.encode(shards, m), clock=time.thread_time)
    yield Result(f"{name} ({k},{m}) encode", encode, "MB/s")
    yield Result(f"{name} ({k},{m}) encode / memory copy", encode / copy, "ratio", target, against="a copy of the data")
    lost: list[bytes | None] = [*shards, *codec.encode(shards, m)]
    lost[k // 2] = None
    assert codec.decode(lost, k) == shards
    decode = k * shard / MB / best_of(lambda: codec.decode(lost, k), clock=time.thread_time)
    yield Result(f"{name} ({k},{m}) decode, one loss", decode, "MB/s")
    half = 0.5 if target else None
    yield Result(f"{name} ({k},{m}) decode, one loss / encode", decode / encode, "ratio", half, against="encoding")
