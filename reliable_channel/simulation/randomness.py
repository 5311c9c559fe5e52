"""Draws random values that depend on *what* is decided, never on the order or place of the draws.

Every draw is keyed by the seed and a path (channel, message number, link …), so a workload split over partitions,
processes or runs stays the same data.
"""

from __future__ import annotations

import hashlib
import random

Key = str | int


def _digest(seed: int, path: tuple[Key, ...]) -> bytes:
    # Lengths are part of the key: ("ab", "c") and ("a", "bc") are different places.
    digest = hashlib.blake2b(str(seed).encode(), digest_size=32)
    for part in path:
        raw = f"{type(part).__name__}:{part}".encode()
        digest.update(len(raw).to_bytes(4, "big") + raw)
    return digest.digest()


def stream(seed: int, *path: Key) -> random.Random:
    """An independent stream of draws for the place ``path``."""
    return random.Random(_digest(seed, path))  # noqa: S311  a simulation, not a secret


def random_bytes(size: int, seed: int, *path: Key) -> bytes:
    """``size`` bytes for the place ``path``; as incompressible as an encrypted payload."""
    return hashlib.shake_128(_digest(seed, path)).digest(size)
