"""Locks a sender and database for one process, with a lock that the operating system releases when the process dies."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from reliable_channel.channel.errors import SenderLocked
from reliable_channel.channel.persistence.base import ChannelKey
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.forking import close_in_fork


def make_locked_error(key: ChannelKey) -> SenderLocked:
    """The error for a channel that is already open in this process, perhaps on another node."""
    return SenderLocked(
        f"Channel {key.channel_id!r} of sender {key.sender_id!r} is open in this process.",
        "Use the open handle, close it first, or take another sender id.",
    )


class SenderLock:
    """An exclusive ``flock`` on a file beside the database. Raises :class:`SenderLocked` at once when it is held, and
    ``EnvironmentFault`` if the file cannot be opened."""

    def __init__(self, database: Path, sender_id: str) -> None:
        name = hashlib.sha256(sender_id.encode()).hexdigest()[:16]
        path = database.with_name(f"{database.name}.{name}.lock")
        try:
            self._file = path.open("a+", encoding="ascii")
            close_in_fork(self._file)
        except OSError as error:
            raise EnvironmentFault(
                f"Sender {sender_id!r} cannot be locked: {path}: {error.strerror}.", "Make the file writable."
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read(32).strip()
            self._file.close()
            raise SenderLocked(
                f"Sender {sender_id!r} is in use on {database}" + (f" by process {holder}." if holder else "."),
                "Stop the other process, or take another sender id or database.",
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Release the lock. The file stays: removing it would race with a process that just opened it."""
        if not self._file.closed:
            self._file.close()
