"""Serializes what one task of a query hands to the next, or to the driver, as a value of a binary column.

With pickle: the values are tuples and lists of Python's own types, and a key of reassembly often has two or three rows,
for which an Arrow batch costs twenty times as much (docs/decisions.md, *Results of keyed state as packed columns*). No
byte of it comes from a topic, a table or a checkpoint: pickle runs code that its bytes name.
"""

from __future__ import annotations

import pickle
from typing import Any


def serialize(value: Any) -> bytes:
    """Serialize ``value`` for a later task of the same micro-batch, or for the driver."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def deserialize(data: bytes) -> Any:
    """Restore what :func:`serialize` was given. Pass only bytes that a task of the same micro-batch made."""
    return pickle.loads(data)  # noqa: S301  not from the network
