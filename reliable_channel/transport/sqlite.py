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


class OpenedFile:
    """The file of a database that was just opened, to notice when it is not in its place any more. Raises ``OSError``
    if it is not there."""

    def __init__(self, path: Path | str) -> None:
        self._path = None if str(path) == IN_MEMORY else Path(path).absolute()
        self._identity = self._identify()

    def refuse_moved(self) -> None:
        """Raise ``sqlite3.OperationalError`` if the file was deleted, moved or replaced. With a write-ahead log SQLite
        goes on writing to it, and nobody can open it again."""
        try:
            is_same = self._identify() == self._identity
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise sqlite3.OperationalError("its file was deleted, moved or replaced")

    def _identify(self) -> tuple[int, int] | None:
        """Device and inode; ``None`` in memory."""
        if self._path is None:
            return None
        status = self._path.stat()
        return status.st_dev, status.st_ino


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
