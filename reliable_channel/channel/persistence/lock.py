"""Locks a sender and database for one process."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from reliable_channel.channel.errors import SenderLocked
from reliable_channel.channel.persistence.base import ChannelKey
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.file_lock import FileLock


def make_locked_error(key: ChannelKey) -> SenderLocked:
    """The error for a channel that is already open in this process, perhaps on another node."""
    return SenderLocked(
        f"Channel {key.channel_id!r} of sender {key.sender_id!r} is open in this process.",
        "Use the open handle, close it first, or take another sender id.",
    )


def lock_sender(database: Path, sender_id: str) -> FileLock:
    """Lock a file beside the database for a sender. Raises :class:`SenderLocked` at once when it is held, and
    ``EnvironmentFault`` if the file cannot be opened."""
    name = hashlib.sha256(sender_id.encode()).hexdigest()[:16]
    path = database.with_name(f"{database.name}.{name}.lock")
    try:
        lock = FileLock(path)
    except BlockingIOError:
        holder = path.read_text(encoding="ascii")[:32].strip()
        raise SenderLocked(
            f"Sender {sender_id!r} is in use on {database}" + (f" by process {holder}." if holder else "."),
            "Stop the other process, or take another sender id or database.",
        ) from None
    except OSError as error:
        raise EnvironmentFault(
            f"Sender {sender_id!r} cannot be locked: {path}: {error.strerror}.", "Make the file writable."
        ) from None
    lock.note(str(os.getpid()))
    return lock
