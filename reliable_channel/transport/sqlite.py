"""Opens SQLite files and runs transactions on them, alike for every database of a participant."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reliable_channel.transport.private_files import private_file

IN_MEMORY = ":memory:"
"""The path of a database without a file."""


def connect(path: Path | str, *, timeout_s: float) -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any thread under the caller's lock. Its file is made if it is
    missing, and can be read by its owner only: it holds plaintext. ``timeout_s``: how long a statement waits for other
    processes. Raises ``OSError`` and ``sqlite3.Error``."""
    if str(path) != IN_MEMORY:
        private_file(path)
    # isolation_level=None: Python would begin transactions by itself, before some statements and not before others.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=timeout_s)


def write_ahead(connection: sqlite3.Connection, synchronous: str = "NORMAL") -> None:
    """Use a write-ahead log. A committed transaction survives the end of the process at any point; with ``NORMAL`` a
    power cut may undo the latest ones, with ``FULL`` none."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")


def execute_script(connection: sqlite3.Connection, script: str) -> None:
    """Execute statements that end with semicolons, in the transaction that is open."""
    # Not executescript(), which would commit that transaction first.
    for statement in script.split(";"):
        connection.execute(statement)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction, which is rolled back if the block raises."""
    # IMMEDIATE: another process may write too, and a read that turns into a write would fail with SQLITE_BUSY at once.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has ended it itself if the disk is full
            connection.execute("ROLLBACK")
        raise
