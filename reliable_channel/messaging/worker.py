"""Runs work when it is due on background threads, none of which outlives :meth:`Worker.stop`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from reliable_channel.transport.clock import Clock, now_ms
from reliable_channel.transport.threads import FAULT_WAIT_S, RoundFaults, join

_log = logging.getLogger(__name__)

MAX_WAIT_S = 1.0
"""The longest single wait, because clocks are changed and machines are suspended."""


class Worker:
    """Calls ``work`` whenever ``next_due`` (Unix ms, None for never) has come, or :meth:`wake` was called."""

    def __init__(self, name: str, clock: Clock, work: Callable[[], object], next_due: Callable[[], int | None]) -> None:
        self._name = name
        self._clock = clock
        self._work = work
        self._next_due = next_due
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; starting twice does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Check for due work at once."""
        self._wake.set()

    def stop(self, timeout_s: float = 30.0) -> None:
        """End after the current piece of work; stopping twice does nothing. Called from the worker's own thread (by a
        listener) it does not wait for itself."""
        thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None and not join(thread, timeout_s):
            _log.error("%s did not end within %s s", self._name, timeout_s)

    def _run(self) -> None:
        me = threading.current_thread()
        faults = RoundFaults(f"{self._name} failed and goes on")
        while self._thread is me:  # one that an earlier stop left behind must not go on
            self._wake.clear()
            try:
                self._work()
                wait_s = self._wait_s(self._next_due())
                faults.clear()
            except BaseException as error:  # a store that answers nonsense, sys.exit() in a listener
                faults.note(error)
                wait_s = FAULT_WAIT_S
            if self._thread is me:
                self._wake.wait(wait_s)

    def _wait_s(self, due: int | None) -> float:
        return MAX_WAIT_S if due is None else min(max(due - now_ms(self._clock), 0) / 1000, MAX_WAIT_S)
