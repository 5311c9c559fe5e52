"""Passes counts of a micro-batch that Spark's progress lacks from the writer to the metrics listener.

Both run in the driver: the writer counts while the micro-batch is written, and the listener takes the counts when Spark
reports the micro-batch as done. A replayed micro-batch counts again, so its last run decides.
"""

from __future__ import annotations

import threading

_KEPT = 1_000  # micro-batches, whose counts nobody takes without a listener
_lock = threading.Lock()
_counts: dict[tuple[str, int], dict[str, int]] = {}


def put(query_id: str, batch_id: int, **counts: int) -> None:
    """Store ``counts`` (metric → value) of a micro-batch. Without a listener the oldest are discarded."""
    with _lock:
        _counts.setdefault((query_id, batch_id), {}).update(counts)
        while len(_counts) > _KEPT:
            _counts.pop(next(iter(_counts)))


def take(query_id: str, batch_id: int) -> dict[str, int]:
    """Return the counts of a micro-batch, and forget them."""
    with _lock:
        return _counts.pop((query_id, batch_id), {})
