"""Limits how many bytes wait somewhere: who wants to add some waits for room."""

from __future__ import annotations

import threading

from reliable_channel.transport.base import SendBufferFull


class ByteBudget:
    """Limits the bytes in use to ``limit``: kafka-python 3 has no ``buffer.memory``, so the queue of a producer would
    grow without limit. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def take(self, size: int, timeout_s: float) -> None:
        """Take ``size`` bytes, waiting for room. One item larger than the limit passes alone.

        Raises ``SendBufferFull`` after ``timeout_s``."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._used or self._used + size <= self._limit, timeout_s):
                raise SendBufferFull(
                    f"The buffer of {self._limit} outgoing bytes stayed full for {timeout_s:g} s.",
                    "Send more slowly, or see why the network does not take envelopes.",
                )
            self._used += size

    def give_back(self, size: int) -> None:
        """Return what was taken."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()
