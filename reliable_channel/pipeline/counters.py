"""Hands counts of a micro-batch from the writer to the metrics listener, where Spark's progress has no such count.

Both live in the driver: the writer counts while the micro-batch is written, and the listener takes the counts when
Spark reports the micro-batch done. A micro-batch that runs again counts again, so the last run decides.
"""

from __future__ import annotations

import threading

_KEPT = 1_000
_lock = threading.Lock()
_counts: dict[tuple[str, int], dict[str, int]] = {}


def put(query_id: str, batch_id: int, **counts: int) -> None:
    """Remember ``counts`` (metric → value) of a micro-batch. Without a listener the oldest are forgotten."""
    with _lock:
        _counts.setdefault((query_id, batch_id), {}).update(counts)
        while len(_counts) > _KEPT:
            _counts.pop(next(iter(_counts)))


def take(query_id: str, batch_id: int) -> dict[str, int]:
    """What was counted in a micro-batch; it is forgotten then."""
    with _lock:
        return _counts.pop((query_id, batch_id), {})
