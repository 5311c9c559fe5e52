"""Python's search for cycles among objects, put off while tasks make many objects that have none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """For work whose objects are many, hold no cycles and are gone by the end of the block: to look at all of them
    again and again was an eighth of the ack job's Python time and a fifth of the combiner's (docs/pipeline.md
    *Measurements*). What is still there at the end would be looked at then: leave it to a function called inside."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
