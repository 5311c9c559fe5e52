"""The data the published parity vectors were computed from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

VECTORS = Path(__file__).parents[2] / "vectors"


def vectors(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def split_mix(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """``count`` outputs of SplitMix64, as the vectors' files describe it."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def words(seed: int, size: int) -> bytes:
    """``size`` bytes, eight of each output, little-endian."""
    return split_mix(seed, -(-size // 8)).astype("<u8").tobytes()[:size]


def low_bytes(seed: int, size: int) -> bytes:
    """``size`` bytes, the lowest of each output."""
    return (split_mix(seed, size) & np.uint64(255)).astype(np.uint8).tobytes()


def cut(data: bytes, count: int) -> list[bytes]:
    size = len(data) // count
    return [data[index * size : (index + 1) * size] for index in range(count)]
