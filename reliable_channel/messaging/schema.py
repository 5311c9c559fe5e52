"""Defines the SQLite tables of the records, and opens them safely.

Two sets of equal tables: ``main`` is the file; ``temp`` lives in memory and holds ephemeral messages, which *SHOULD not
be persisted* (MESSAGING-API, ``ephemeral``). The views unite them.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.file_lock import FileLock
from reliable_channel.transport.sqlite import IN_MEMORY, connect, execute_script, transaction, write_ahead

VERSION = 1

_TABLES = """
CREATE TABLE IF NOT EXISTS {schema}.{prefix}record (
  record_id INTEGER PRIMARY KEY, change_seq INTEGER NOT NULL, created_ms INTEGER NOT NULL,
  message_hash BLOB NOT NULL, pubsub_topic TEXT NOT NULL, content_topic TEXT NOT NULL,
  payload BLOB NOT NULL, version INTEGER, timestamp INTEGER, meta BLOB, rate_limit_proof BLOB, ephemeral INTEGER,
  sending INTEGER NOT NULL, sent INTEGER NOT NULL, stored INTEGER NOT NULL, received INTEGER NOT NULL,
  request_id TEXT UNIQUE, error TEXT);
CREATE INDEX IF NOT EXISTS {schema}.{prefix}record_topic ON {prefix}record (content_topic, record_id);
CREATE INDEX IF NOT EXISTS {schema}.{prefix}record_change ON {prefix}record (change_seq);
CREATE INDEX IF NOT EXISTS {schema}.{prefix}record_age ON {prefix}record (created_ms);
CREATE TABLE IF NOT EXISTS {schema}.{prefix}hash (
  message_hash BLOB NOT NULL, record_id INTEGER NOT NULL, PRIMARY KEY (message_hash, record_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {schema}.{prefix}hash_record ON {prefix}hash (record_id);
CREATE TABLE IF NOT EXISTS {schema}.{prefix}subscription (
  subscription_id TEXT NOT NULL, record_id INTEGER NOT NULL, PRIMARY KEY (subscription_id, record_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {schema}.{prefix}subscription_record ON {prefix}subscription (record_id);
CREATE TABLE IF NOT EXISTS {schema}.{prefix}request (
  request_id TEXT PRIMARY KEY, record_id INTEGER NOT NULL, state TEXT NOT NULL, retries INTEGER NOT NULL DEFAULT 0,
  in_doubt INTEGER NOT NULL DEFAULT 0, own_stamp INTEGER NOT NULL DEFAULT 0, resent INTEGER NOT NULL DEFAULT 0,
  sent_ms INTEGER);
CREATE INDEX IF NOT EXISTS {schema}.{prefix}request_record ON {prefix}request (record_id);
CREATE INDEX IF NOT EXISTS {schema}.{prefix}request_pending ON {prefix}request (record_id) WHERE state = 'pending';
"""

_VIEW = "CREATE TEMP VIEW every_{table} AS SELECT * FROM main.{table} UNION ALL SELECT * FROM temp.volatile_{table}"

_CURSOR = """
CREATE TABLE IF NOT EXISTS main.cursor (
  id INTEGER PRIMARY KEY CHECK (id = 1), record_id INTEGER NOT NULL, change_seq INTEGER NOT NULL)"""
"""The last numbers used, also by deleted records, because a client's cursor must never be reused."""

_IDEMPOTENCY = (
    """
CREATE TABLE IF NOT EXISTS main.idempotency (
  scope TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, request_id TEXT NOT NULL, created_ms INTEGER NOT NULL,
  PRIMARY KEY (scope, key)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS main.idempotency_age ON idempotency (created_ms)",
)
"""The request that a caller's key created."""

TABLES = ("record", "hash", "subscription", "request")


def table(name: str, ephemeral: bool) -> str:
    """The qualified name of a table for kept or for ephemeral messages."""
    return f"temp.volatile_{name}" if ephemeral else f"main.{name}"


def lock_database(path: Path | str) -> FileLock | None:
    """Exclude other nodes from a database: two nodes on one would each send what the other has pending. Raises
    ``EnvironmentFault`` when another node uses it.

    SQLite's own locks are not enough: they are POSIX locks, which the system releases as soon as this process closes
    any other descriptor of the same file, for example after copying the database."""
    if str(path) == IN_MEMORY:
        return None
    try:
        return FileLock(Path(path).with_name(f"{Path(path).name}.lock"))
    except OSError as error:
        raise _make_fault(path, error) from error


def open_database(path: Path | str) -> sqlite3.Connection:
    """A connection in WAL mode that no other node shares, in autocommit mode, usable from any thread under the
    caller's lock. Raises ``EnvironmentFault`` when the file is in use, unreadable or from a newer version."""
    connection: sqlite3.Connection | None = None
    try:
        connection = connect(path, timeout_s=0.5)
        # Before WAL mode: its index then needs no shared memory (https://www.sqlite.org/wal.html, *Use of WAL Without
        # Shared-Memory*).
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        write_ahead(connection)
        connection.execute("PRAGMA temp_store=MEMORY")  # the ephemeral messages; by default they may go to a file
        _create(connection, path)
    except (OSError, sqlite3.Error) as error:
        if connection is not None:
            connection.close()
        raise _make_fault(path, error) from error
    return connection


def _make_fault(path: Path | str, error: Exception) -> EnvironmentFault:
    reason = "another node uses it" if isinstance(error, BlockingIOError) else str(error)
    in_use = isinstance(error, BlockingIOError) or getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
    return EnvironmentFault(
        f"The message database {path} cannot be opened: {reason}.",
        "Stop the other process that uses it, or name another file." if in_use else "Name another file, or restore it.",
    )


def _create(connection: sqlite3.Connection, path: Path | str) -> None:
    version = connection.execute("PRAGMA main.user_version").fetchone()[0]
    if version > VERSION:
        connection.close()
        raise EnvironmentFault(
            f"The message database {path} has version {version}, newer than {VERSION}.", "Upgrade this program."
        )
    with transaction(connection):
        for schema, prefix in (("main", ""), ("temp", "volatile_")):
            execute_script(connection, _TABLES.format(schema=schema, prefix=prefix))
        for statement in (*_IDEMPOTENCY, _CURSOR):
            connection.execute(statement)
        connection.execute("INSERT OR IGNORE INTO main.cursor VALUES (1, 0, 0)")
        for name in TABLES:
            connection.execute(_VIEW.format(table=name))
        connection.execute(f"PRAGMA main.user_version={VERSION}")
