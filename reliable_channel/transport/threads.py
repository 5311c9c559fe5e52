"""Waits for the end of a thread, whoever asks for it."""

from __future__ import annotations

import threading

_joins: dict[threading.Thread, threading.Thread] = {}
"""Which thread waits for the end of which other one."""
_joins_lock = threading.Lock()


def join(thread: threading.Thread, timeout_s: float | None = None) -> bool:
    """Wait until a thread has ended, at most ``timeout_s``; returns ``False`` if it is late. Does nothing if the thread
    waits for this one, or is this one: a listener may stop what calls it, and callbacks may close each other's
    channels."""
    me = threading.current_thread()
    with _joins_lock:
        last: threading.Thread | None = thread
        while last is not None and last is not me:
            last = _joins.get(last)
        if last is me:
            return True
        _joins[me] = thread
    try:
        thread.join(timeout_s)
    finally:
        with _joins_lock:
            del _joins[me]
    return not thread.is_alive()
