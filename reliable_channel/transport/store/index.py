"""Indexes files of envelopes on disk by (timestamp, message hash), so that reading a page does not scan the files.

A disposable SQLite database: it holds no payloads, only the file and row of each envelope, and is rebuilt if it is
missing or belongs to another version or table. An envelope may be in several files (received twice, or copied by a
compaction); it is returned once. Reads use a separate connection, so they do not wait while a file is indexed.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from reliable_channel.transport.sqlite import connect, execute_script, transaction, write_ahead
from reliable_channel.transport.store.model import StoreQuery
from reliable_channel.transport.store.source import Position

_SCHEMA = """
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL);
CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE envelopes (
  timestamp_ns INTEGER NOT NULL, hash BLOB NOT NULL, file INTEGER NOT NULL,
  pubsub INTEGER NOT NULL, content INTEGER NOT NULL, row INTEGER NOT NULL,
  PRIMARY KEY (timestamp_ns, hash, file)
) WITHOUT ROWID;
"""
_INDEXES = """
CREATE INDEX IF NOT EXISTS by_hash ON envelopes (hash);
CREATE INDEX IF NOT EXISTS by_content ON envelopes (content, timestamp_ns, hash, pubsub);
CREATE INDEX IF NOT EXISTS by_pubsub ON envelopes (pubsub, timestamp_ns, hash);
"""
_VERSION = 2

_BUSY_S = 30.0


class IndexRow(NamedTuple):
    """One envelope of a file: sender's timestamp in ns (0 when absent), message hash, topics, and its row, from 0."""

    timestamp_ns: int
    message_hash: bytes
    pubsub_topic: str
    content_topic: str
    row: int


class Location(NamedTuple):
    """The position of an envelope's bytes: its file and its row there, from 0."""

    message_hash: bytes
    pubsub_topic: str
    path: str
    row: int


class EnvelopeIndex:
    """The index of one table. ``table_id`` identifies the table: another one empties the index. Thread-safe."""

    def __init__(self, path: Path | str, table_id: str) -> None:
        self._lock = threading.RLock()
        self._write_lock = threading.Lock()
        try:
            self._connect(path, table_id)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # the disk, not the file
            self._writer.close()
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            self._connect(path, table_id)
        self._db = connect(path, timeout_s=_BUSY_S)

    def _connect(self, path: Path | str, table_id: str) -> None:
        self._writer = connect(path, timeout_s=_BUSY_S)
        write_ahead(self._writer)
        self.reset(table_id)

    def reset(self, table_id: str) -> None:
        """Empty the index unless it is of this table and version."""
        made_for = f"{_VERSION}:{table_id}"
        try:
            row = self._writer.execute("SELECT value FROM about WHERE name = 'made_for'").fetchone()
        except sqlite3.OperationalError:  # no such table: a new file
            row = None
        if row == (made_for,):
            return
        with self._writing():
            names = self._writer.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in names:
                self._writer.execute(f'DROP TABLE "{name}"')
            execute_script(self._writer, _SCHEMA)
            self._writer.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT)")
            self._writer.execute("INSERT INTO about VALUES ('made_for', ?)", (made_for,))

    def files(self) -> set[str]:
        """The indexed files."""
        with self._lock:
            return {path for (path,) in self._db.execute("SELECT path FROM files")}

    def add_file(self, path: str, rows: Iterable[IndexRow]) -> int:
        """Index one file, all or nothing; returns the number of its envelopes."""
        topics: dict[str, int] = {}
        with self._writing() as db:
            file = db.execute("INSERT INTO files (path) VALUES (?)", (path,)).lastrowid

            def values() -> Iterator[tuple[int | bytes | None, ...]]:
                for row in rows:
                    pubsub = self._add_topic(row.pubsub_topic, topics)
                    content = self._add_topic(row.content_topic, topics)
                    yield row.timestamp_ns, row.message_hash, file, pubsub, content, row.row

            # OR IGNORE: a compacted file holds what was received twice.
            cursor = db.executemany("INSERT OR IGNORE INTO envelopes VALUES (?, ?, ?, ?, ?, ?)", values())
            return cursor.rowcount

    def complete(self) -> None:
        """Build the SQL indexes after the files of a new index were added. Built at the end, the three indexes cost
        half of what they would row by row. Later calls do nothing, because added files keep them current."""
        with self._writing() as db:
            execute_script(db, _INDEXES)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Forget files that are no longer part of the table, and the topics that only they had: names are free."""
        paths = list(paths)
        if not paths:
            return
        with self._writing() as db:
            gone = [db.execute("SELECT id FROM files WHERE path = ?", (path,)).fetchone()[0] for path in paths]
            marks = ",".join(str(int(file)) for file in gone) or "NULL"
            db.execute(f"DELETE FROM envelopes WHERE file IN ({marks})")  # noqa: S608 — numbers only
            db.execute(f"DELETE FROM files WHERE id IN ({marks})")  # noqa: S608
            db.execute(
                "DELETE FROM topics WHERE NOT EXISTS (SELECT 1 FROM envelopes WHERE content = topics.id)"
                " AND NOT EXISTS (SELECT 1 FROM envelopes WHERE pubsub = topics.id)"
            )

    @contextmanager
    def hold_if_free(self) -> Iterator[bool]:
        """Yield whether no other thread reads; no thread reads until the block ends."""
        free = self._lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    def position(self, message_hash: bytes) -> Position | None:
        """The place of an envelope."""
        with self._lock:
            row = self._db.execute(
                "SELECT timestamp_ns FROM envelopes WHERE hash = ? ORDER BY 1 LIMIT 1", (message_hash,)
            ).fetchone()
        return None if row is None else Position(row[0], message_hash)

    def locate(self, message_hashes: Sequence[bytes]) -> list[Location]:
        """Locate these envelopes, each once, in the file that was indexed last; unknown ones are left out."""
        marks = ",".join("?" * len(message_hashes))
        with self._lock:
            rows = self._db.execute(
                "SELECT hash, topics.name, files.path, row, max(file) FROM envelopes "  # noqa: S608 — marks only
                "JOIN files ON files.id = file JOIN topics ON topics.id = pubsub "
                f"WHERE hash IN ({marks}) GROUP BY hash",
                message_hashes,
            ).fetchall()
        return [Location(*row[:4]) for row in rows]

    def select(self, query: StoreQuery, after: Position | None, limit: int) -> list[Position]:
        """See ``EnvelopeSource.select``: an ordered walk over one index, or a merge of one per content topic."""
        with self._lock:
            conditions, values = self._make_conditions(query, after)
            if query.hashes:
                marks = ",".join("?" * len(query.hashes))
                hashes = [f"hash IN ({marks})", *conditions]
                if query.content_topics:
                    numbers = [str(i) for i in map(self._find_topic, query.content_topics) if i is not None]
                    hashes.append(f"+content IN ({','.join(numbers) or 'NULL'})")
                walks = [self._walk(hashes, [*query.hashes, *values], query.forward, limit)]
            elif query.content_topics:
                known = [i for i in map(self._find_topic, dict.fromkeys(query.content_topics)) if i is not None]
                walks = [self._walk(["content = ?", *conditions], [i, *values], query.forward, limit) for i in known]
            else:
                walks = [self._walk(conditions, values, query.forward, limit, by_time=query.pubsub_topic is None)]
            return list(islice(merge(*walks, reverse=not query.forward), limit))

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        with self._lock:
            self._db.close()
        with self._write_lock:
            self._writer.close()

    def _make_conditions(self, query: StoreQuery, after: Position | None) -> tuple[list[str], list[int | bytes]]:
        conditions: list[str] = []
        values: list[int | bytes] = []
        if query.pubsub_topic is not None:
            known = self._find_topic(query.pubsub_topic)
            # With a plus SQLite does not search by the topic, which all envelopes may have.
            conditions.append("pubsub = ?" if not query.hashes else "+pubsub = ?")
            values.append(-1 if known is None else known)
        start, end = query.start_time_ns, query.end_time_ns
        # SQLite searches by one bound at each end. By the start of the time it would pass all pages before this one.
        if after is not None and query.forward and (start is None or start <= after.timestamp_ns):
            start = None
            conditions.append("(timestamp_ns, hash) > (?, ?)")
            values += after
        elif after is not None and not query.forward and (end is None or end >= after.timestamp_ns):
            end = None
            conditions.append("(timestamp_ns, hash) < (?, ?)")
            values += after
        if start is not None:
            conditions.append("timestamp_ns >= ?")
            values.append(start)
        if end is not None:
            conditions.append("timestamp_ns <= ?")
            values.append(end)
        return conditions, values

    def _walk(
        self,
        conditions: list[str],
        values: Sequence[int | bytes],
        forward: bool,
        limit: int,
        by_time: bool = False,
    ) -> list[Position]:
        where = " AND ".join(conditions) or "1"
        way = "" if forward else "DESC"
        # Without a topic the order of the table itself is the page's. The planner would scan an index of another order,
        # and sort the whole table, unless a bound of the time makes it search.
        index = "NOT INDEXED" if by_time else ""
        if by_time:
            where += f" AND timestamp_ns >= {-(2**63)}"
        rows = self._db.execute(
            f"SELECT timestamp_ns, hash FROM envelopes {index} WHERE {where} "  # noqa: S608 — only our own texts
            f"GROUP BY timestamp_ns, hash ORDER BY timestamp_ns {way}, hash {way} LIMIT ?",
            (*values, limit),
        )
        return [Position(timestamp_ns, message_hash) for timestamp_ns, message_hash in rows]

    def _find_topic(self, topic: str) -> int | None:
        row = self._db.execute("SELECT id FROM topics WHERE name = ?", (topic,)).fetchone()
        return None if row is None else int(row[0])

    def _add_topic(self, name: str, cache: dict[str, int]) -> int:
        if name not in cache:
            self._writer.execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (name,))
            cache[name] = self._writer.execute("SELECT id FROM topics WHERE name = ?", (name,)).fetchone()[0]
        return cache[name]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._write_lock, transaction(self._writer):
            yield self._writer
