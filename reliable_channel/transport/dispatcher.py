"""Calls a node's listeners in order on one thread of its own, so that no transport thread runs application code."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)

Task = Callable[[], None]

MAX_WAITING = 10_000
"""The maximum number of received events that wait for the listeners; beyond it receiving waits (back-pressure)."""


class Dispatcher:
    """Runs tasks one after the other on its own thread, from :meth:`start` until :meth:`stop`.

    ``put`` never blocks: it is for events that some other bound already limits (one per accepted send). ``put_bounded``
    waits while too many of its kind are waiting. A task that raises is logged, without its arguments.
    """

    def __init__(self, name: str, max_waiting: int = MAX_WAITING) -> None:
        self._name = name
        self._max_waiting = max_waiting
        self._tasks: deque[tuple[Task, bool]] = deque()
        self._waiting = 0
        self._changed = threading.Condition()
        self._running = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with self._changed:
            if self._running:
                return
            self._running = True
            self._thread = threading.Thread(target=self._run, name=f"{self._name}-events", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Run waiting tasks, then end. Called from a listener, it does not wait for itself."""
        with self._changed:
            self._running = False
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
            if thread.is_alive():
                _log.error(
                    "a listener of %s did not return within %s s; its thread is left behind", self._name, timeout_s
                )

    def put(self, task: Task) -> None:
        """Run ``task`` after everything put before it."""
        with self._changed:
            self._tasks.append((task, False))
            self._changed.notify_all()

    def put_bounded(self, task: Task) -> bool:
        """The same with back-pressure; ``False`` when the dispatcher was stopped meanwhile and the task not taken."""
        with self._changed:
            while self._running and self._waiting >= self._max_waiting:
                self._changed.wait()
            if not self._running:
                return False
            self._waiting += 1
            self._tasks.append((task, True))
            self._changed.notify_all()
            return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._running and not self._tasks:
                    self._changed.wait()
                if not self._tasks:
                    return
                task, bounded = self._tasks.popleft()
                if bounded:
                    self._waiting -= 1
                    self._changed.notify_all()
            run_safely(task)


def run_safely(task: Task) -> None:
    """Run application code: its exceptions are logged by type and place and do not spread."""
    try:
        task()
    except Exception:  # foreign code; the one thread that tells everybody must live on
        _log.exception("a listener raised; the event is not repeated to it")
