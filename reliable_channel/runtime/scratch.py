"""Spark's scratch space in the run directory: block manager, state stores, sockets, native libraries.

A session that is killed leaves its own there, 40 to 60 MB each time. Where a supervisor starts a job again and again,
this would fill the disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

_in_use: list[int] = []
"""Descriptors with shared locks, which tell other processes that a session runs; the system releases them when this
process ends, however it ends."""


def enter_scratch(directory: Path) -> None:
    """Use ``directory`` until this process ends; first remove what is in it, unless a session of this or another
    process uses it."""
    lock = os.open(directory.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    _in_use.append(lock)
    with suppress(OSError):  # another session runs, or the file system has no locks
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in directory.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()
    with suppress(OSError):  # from exclusive to shared, so that others see a session and may join it
        fcntl.flock(lock, fcntl.LOCK_SH)
