"""Serializes what one task of a query hands to the next, as a value of a binary column.

With pickle: the values are tuples and lists of Python's own types, and a key of reassembly often has two or three rows,
for which an Arrow batch costs twenty times as much (docs/decisions.md, *Results of keyed state as packed columns*). No
byte of it comes from a topic, a table or a checkpoint: pickle runs code that its bytes name.
"""

from __future__ import annotations

import pickle
from typing import Any


def serialize(values: tuple[Any, ...]) -> bytes:
    """Serialize ``values`` for a later task of the same micro-batch."""
    return pickle.dumps(values, pickle.HIGHEST_PROTOCOL)


def deserialize(data: bytes) -> tuple[Any, ...]:
    """Restore what :func:`serialize` was given. Pass only bytes that a task of the same micro-batch made."""
    values: tuple[Any, ...] = pickle.loads(data)  # noqa: S301  not from the network
    return values
