"""Defers Ctrl-C, SIGTERM and SIGHUP while Spark works, until the caller checks for them between two calls into the JVM.

PySpark's SIGINT handler calls the JVM inside the current call, which breaks the connection; Python's own handler raises
there. Here a signal is only recorded.

While modules are imported and settings are read, nothing is open yet, and an exception raised there can be lost (a
half-built class, "Exception ignored in …"), so a signal ends the process at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

RaiseIfInterrupted = Callable[[], None]
Result = TypeVar("Result")

_INTERRUPT_EVERY_S = 0.05
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command or a job: Ctrl-C, that of supervisors, and that of a terminal which is closed."""


@contextmanager
def end_at_once() -> Iterator[None]:
    """Let signals (:data:`ENDING`) end this process inside the block, with exit code 130, 143 or 129, without an
    exception or clean-up: only for code that opens nothing. Does nothing outside the main thread."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        if number == signal.SIGINT:
            sys.stderr.write("\nStopped.\n")
            sys.stderr.flush()
        os._exit(128 + number)

    with handle_signals(end):
        yield


def run_interruptibly(call: Callable[[], Result], interrupt: Callable[[], None]) -> Result:
    """Return the result of ``call``, which runs in another thread if this is the main one. What signals raise is raised
    here, as soon as ``interrupt`` has ended the call. For libraries that lose what a signal's handler raises
    inside them, or run for long without letting one run (DuckDB)."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    result: Future[Result] = Future()

    def run() -> None:
        if result.set_running_or_notify_cancel():
            try:
                result.set_result(call())
            except BaseException as error:  # whatever it is, the main thread raises it
                result.set_exception(error)

    try:
        # Not an executor: it forgets a thread if a signal comes while that starts, and the call would go on.
        threading.Thread(target=run).start()
        return result.result()
    except (KeyboardInterrupt, SystemExit):
        # Again and again: before DuckDB has begun a query, it hears no interrupt.
        while not (result.cancel() or result.done()):
            interrupt()
            wait([result], _INTERRUPT_EVERY_S)
        raise


@contextmanager
def note_interrupts() -> Iterator[RaiseIfInterrupted]:
    """Record signals (:data:`ENDING`) inside the block. If one has arrived, the yielded function and the end of the
    block raise ``KeyboardInterrupt``, ``SystemExit(143)`` or ``SystemExit(129)``. Does nothing outside the main
    thread."""
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)

    def raise_if_interrupted() -> None:
        if noted:
            raise KeyboardInterrupt if noted[0] == signal.SIGINT else SystemExit(128 + noted[0])

    with handle_signals(note):
        yield raise_if_interrupted
    raise_if_interrupted()


@contextmanager
def handle_signals(
    handler: Callable[[int, FrameType | None], object],
    numbers: Collection[int] = ENDING,
) -> Iterator[None]:
    """Let ``handler`` handle these signals inside the block; ``nohup`` still keeps SIGHUP away. Does nothing outside
    the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept_away = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set[int]()
    previous: dict[int, Any] = {number: signal.signal(number, handler) for number in numbers if number not in kept_away}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
