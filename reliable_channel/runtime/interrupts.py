"""Defers Ctrl-C and SIGTERM while Spark works, until the caller asks for them between two calls into the JVM.

PySpark's SIGINT handler calls the JVM from inside whatever call is going on, which breaks the connection; Python's own
raises there. Here a signal is only noted.

While modules are imported and settings are read nothing is open yet, and an exception raised there can be swallowed
halfway (a class half built, "Exception ignored in …"): a signal ends the process at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

RaiseIfInterrupted = Callable[[], None]


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Inside the block SIGINT and SIGTERM end this process with exit code 130 or 143, without an exception and without
    cleaning up: only for code that opens nothing. Outside the main thread it does nothing."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        if number == signal.SIGINT:
            sys.stderr.write("\nStopped.\n")
            sys.stderr.flush()
        os._exit(128 + number)

    with _handled_by(end):
        yield


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

    with _handled_by(note):
        yield raise_if_interrupted
    raise_if_interrupted()


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[int, Any] = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
