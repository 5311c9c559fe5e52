"""Keeps Python's garbage collector from scanning objects that cannot be garbage."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_EVERY = 1_000
"""Calls of :func:`exempt_survivors` between two full scans."""

_calls = itertools.count(1)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector for a block that creates many acyclic objects.

    Scanning them repeatedly took an eighth of the ack job's Python time and a fifth of the combiner's
    (docs/measurements-history.md, *What made the difference*). Objects that outlive the block are scanned at its end,
    so do the work in a function that the block calls."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def exempt_survivors() -> None:
    """Exempt all existing objects from garbage collection; they are still freed when their last reference is gone.

    A Python worker of Spark collects garbage after every task, which would scan all objects of its cached channels,
    1 600 for a channel with a log of 500: half a second of CPU for as many channels as fit in the cache. Cycles among
    exempt objects are found by a full scan every :data:`COLLECT_EVERY` calls."""
    if next(_calls) % COLLECT_EVERY == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()
