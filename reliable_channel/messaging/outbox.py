"""Runs the tasks that follow a stored change (events, listeners, sender records) strictly in the order of commits.

Tasks are queued under the lock of the change and run outside it, by one thread at a time. A listener may therefore call
the node, and never runs beside another listener.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)

Task = Callable[[], object]

MAX_WAITING = 10_000
"""Beyond this many waiting tasks, threads that add more wait for the one that runs them (back-pressure)."""


class Outbox:
    """A queue of tasks that is emptied by the threads that fill it."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._running = threading.Lock()
        self._runner: int | None = None

    def put(self, task: Task) -> None:
        """Run ``task`` at the next :meth:`drain`, after everything put before it."""
        self._tasks.append(task)

    def drain(self) -> None:
        """Run waiting tasks, unless another thread does so. Never call it while holding a lock that a listener may
        need."""
        while self._tasks and self._runner != threading.get_ident():
            if not self._running.acquire(blocking=len(self._tasks) > MAX_WAITING):
                return
            self._runner = threading.get_ident()
            try:
                self._run_all()
            finally:
                self._runner = None
                self._running.release()

    def _run_all(self) -> None:
        while self._tasks:
            task = self._tasks.popleft()
            try:
                task()
            except Exception:  # of the application: the changes behind it must still be told
                _log.exception("a listener raised; nobody else is affected")
