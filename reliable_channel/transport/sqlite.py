"""Opens SQLite files and runs transactions on them, alike for every database of a participant."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reliable_channel.transport.private_files import private_file

IN_MEMORY = ":memory:"
"""The path of a database without a file."""

LOG_BYTES = 32 * 1024 * 1024
"""The size to which a write-ahead log is cut after a larger transaction, for instance with many large segments. SQLite
would leave it as it is until the database is closed."""


def connect(path: Path | str, *, timeout_s: float) -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any thread under the caller's lock. Its file is made if it is
    missing, and can be read by its owner only: it holds plaintext. ``timeout_s``: how long a statement waits for other
    processes. Raises ``OSError`` and ``sqlite3.Error``."""
    if str(path) != IN_MEMORY:
        private_file(path)
    # isolation_level=None: Python would begin transactions by itself, before some statements and not before others.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=timeout_s)


FileIdentity = tuple[int, int] | None


def identify_file(path: Path | str) -> FileIdentity:
    """What distinguishes the file of a database from another one in its place: device and inode; ``None`` in memory.
    Raises ``OSError``."""
    if str(path) == IN_MEMORY:
        return None
    status = Path(path).stat()
    return status.st_dev, status.st_ino


def refuse_moved_file(path: Path | str, identity: FileIdentity) -> None:
    """Raise ``sqlite3.OperationalError`` if the file that was opened is not in its place any more. With a write-ahead
    log SQLite goes on writing to it, and nobody can open it again."""
    try:
        is_same = identify_file(path) == identity
    except FileNotFoundError:
        is_same = False
    if not is_same:
        raise sqlite3.OperationalError("its file was deleted, moved or replaced")


def write_ahead(connection: sqlite3.Connection, synchronous: str = "NORMAL") -> None:
    """Use a write-ahead log. A committed transaction survives the end of the process at any point; with ``NORMAL`` a
    power cut may undo the latest ones, with ``FULL`` none."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")


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
