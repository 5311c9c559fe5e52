"""Locks a file for one process, and not for those that are forked from it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO
from weakref import WeakSet

from reliable_channel.transport.private_files import private_file

_held: WeakSet[FileLock] = WeakSet()


class FileLock:
    """An exclusive lock. A process that is forked from this one does not share it, so it ends with this process. The
    file stays: removing it would race with a process that just opened it.

    Raises ``BlockingIOError`` at once while it is held elsewhere, and another ``OSError`` if the file cannot be
    opened."""

    def __init__(self, path: Path) -> None:
        private_file(path)
        # Without a buffer: a second thread that releases the lock would flush it after the first has closed the file.
        self._file: IO[bytes] = path.open("rb+", buffering=0)
        try:
            # Not lockf(): a POSIX lock ends when the process closes any descriptor of the file (man 2 fcntl).
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise
        _held.add(self)

    def note(self, text: str) -> None:
        """Write a text into the file, for those who find it locked."""
        self._file.truncate(0)
        self._file.seek(0)
        self._file.write(text.encode("ascii"))

    def release(self) -> None:
        """Release the lock. Releasing twice does nothing, also by two threads at once."""
        self._file.close()


# A child inherits the open file, and so the lock, which would be held for as long as the child lives.
def _release_in_fork() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_fork)
