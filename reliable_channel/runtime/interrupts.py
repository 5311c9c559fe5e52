"""Defers Ctrl-C and SIGTERM while Spark works, until the caller asks for them between two calls into the JVM.

PySpark's SIGINT handler calls the JVM from inside whatever call is going on, which breaks the connection; Python's own
raises there. Here a signal is only noted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

RaiseIfInterrupted = Callable[[], None]


@contextmanager
def noted_interrupts() -> Iterator[RaiseIfInterrupted]:
    """Inside the block SIGINT and SIGTERM are noted; the yielded function raises ``KeyboardInterrupt`` or
    ``SystemExit(143)`` when one came, and so does the end of the block. Outside the main thread it does nothing."""
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)

    def raise_if_interrupted() -> None:
        if noted:
            raise KeyboardInterrupt if noted[0] == signal.SIGINT else SystemExit(143)

    if threading.current_thread() is not threading.main_thread():
        yield raise_if_interrupted
        return
    previous: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield raise_if_interrupted
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    raise_if_interrupted()
