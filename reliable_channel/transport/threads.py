"""Waits for the end of a thread, or of what a thread does, without waiting for itself; reports the faults of threads in
the background, which go on after them; and keeps a forked process (``os.fork``, ``multiprocessing``, servers with
workers) from using what its parent has opened: there its threads do not run, and SQLite forbids the use of a
connection."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from reliable_channel.core.errors import EnvironmentFault, LocalError

_log = logging.getLogger(__name__)

FAULT_WAIT_S = 1.0
"""How long a thread in the background waits after a fault before it tries again."""

TURN_TIMEOUT_S = 60.0
"""How long :meth:`TurnLock.take` waits for a thread that does not end its turn."""

_joins: dict[threading.Thread, threading.Thread] = {}
"""Which thread waits for the end of which other one."""
_changed = threading.Condition()
"""Guards ``_joins`` and the holders of all turns."""


def join(thread: threading.Thread, timeout_s: float | None = None) -> bool:
    """Wait until a thread has ended, at most ``timeout_s``; returns ``False`` if it is late. Does nothing if the thread
    waits for this one, or is this one: a listener may stop what calls it, and callbacks may close each other's
    channels. Nor if it could not be started."""
    me = threading.current_thread()
    with _changed:
        if _waits_for_me(thread) or thread.ident is None:
            return True
        _joins[me] = thread
        _changed.notify_all()
    try:
        thread.join(timeout_s)
    finally:
        with _changed:
            del _joins[me]
    return not thread.is_alive()


def _waits_for_me(thread: threading.Thread) -> bool:
    """Whether a thread waits for the end of this one, or is this one. Call it with ``_changed``."""
    me = threading.current_thread()
    last: threading.Thread | None = thread
    while last is not None and last is not me:
        last = _joins.get(last)
    return last is me


class TurnLock:
    """Lets one thread after the other start, stop and close an object."""

    def __init__(self) -> None:
        self._holder: threading.Thread | None = None

    @contextmanager
    def take(self) -> Iterator[bool]:
        """Wait for this thread's turn, and hold it. Yields ``False`` where it cannot be had: its holder waits for this
        thread, is this thread, or is late."""
        with _changed:
            # Not in ``_joins``: a holder that comes to join this thread later must wait for it, and it must go on then.
            _changed.wait_for(lambda: self._holder is None or _waits_for_me(self._holder), TURN_TIMEOUT_S)
            mine = self._holder is None
            if mine:
                self._holder = threading.current_thread()
        try:
            yield mine
        finally:
            if mine:
                with _changed:
                    self._holder = None
                    _changed.notify_all()


class RoundFaults:
    """The faults of a thread in the background. The rule for all of them: no error ends the thread, because a dead one
    does nothing more and nobody learns of it. It is logged, once while it lasts, and with its traceback if nobody
    foresaw it; then the thread tries again. Where its work has a health, the health names it.

    ``what`` says in the log what is not done."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last: type[BaseException] | None = None

    def note(self, error: BaseException) -> str:
        """Log the error of a round, inside its ``except``; returns it as a text for a health."""
        is_foreseen = isinstance(error, EnvironmentFault | OSError)
        if type(error) is not self._last:
            _log.error("%s: %s", self._what, error, exc_info=None if is_foreseen else error)
        self._last = type(error)
        return str(error) if is_foreseen else f"{self._what}: {type(error).__name__}; the log has more"

    def clear(self) -> None:
        """Note a round without a fault."""
        self._last = None


class ForkedError(LocalError):
    """A channel, node or database of the process from which this one was forked."""


class OwnerProcess:
    """The process that made an object, for the object to tell when it is used in a fork."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self._id

    def refuse_fork(self) -> None:
        """Raise :class:`ForkedError` in any other process."""
        if not self.is_current:
            raise ForkedError(
                f"Process {self._id} has opened this, and process {os.getpid()} was forked from it.",
                "Open nodes and channels after the fork, in each process under its own sender id and database.",
            )
