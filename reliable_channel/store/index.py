"""An index on disk over files of envelopes: (timestamp, hash) in order, so that a page costs a page and not a scan.

SQLite, disposable: it holds no payloads and is built again from the files whenever it is missing or of another table.
An envelope may stand in several files (received twice, or copied by a compaction); it is shown once.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import islice
from pathlib import Path

from reliable_channel.store.source import Position, Selection

_SCHEMA = """
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL);
CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE envelopes (
  timestamp_ns INTEGER NOT NULL, hash BLOB NOT NULL, file INTEGER NOT NULL,
  pubsub INTEGER NOT NULL, content INTEGER NOT NULL,
  PRIMARY KEY (timestamp_ns, hash, file)
) WITHOUT ROWID;
CREATE INDEX by_hash ON envelopes (hash);
CREATE INDEX by_content ON envelopes (content, timestamp_ns, hash, pubsub);
CREATE INDEX by_pubsub ON envelopes (pubsub, timestamp_ns, hash);
"""
_VERSION = 1

Row = tuple[int, bytes, str, str]
"""timestamp in ns, message hash, pubsub topic, content topic."""


class EnvelopeIndex:
    """The index of one table. ``table_id`` tells tables apart: another one empties the index. Thread-safe."""

    def __init__(self, path: Path | str, table_id: str) -> None:
        self._lock = threading.RLock()
        if str(path) != ":memory:":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connect(path, table_id)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # the disk, not the file
            self._db.close()
            Path(path).unlink()
            self._connect(path, table_id)

    def _connect(self, path: Path | str, table_id: str) -> None:
        self._db = sqlite3.connect(str(path), check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._open(table_id)

    def _open(self, table_id: str) -> None:
        made_for = f"{_VERSION}:{table_id}"
        try:
            found = self._db.execute("SELECT value FROM about WHERE name = 'made_for'").fetchone()
        except sqlite3.OperationalError:  # no such table: a new file
            found = None
        if found == (made_for,):
            return
        with self._writing():
            names = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in names:
                self._db.execute(f'DROP TABLE "{name}"')
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT)")
            self._db.execute("INSERT INTO about VALUES ('made_for', ?)", (made_for,))

    def files(self) -> set[str]:
        """The indexed files."""
        with self._lock:
            return {path for (path,) in self._db.execute("SELECT path FROM files")}

    def add_file(self, path: str, rows: Iterable[Row]) -> int:
        """Index one file, all or nothing; rows and new topics written."""
        topics: dict[str, int] = {}
        with self._writing():
            file = self._db.execute("INSERT INTO files (path) VALUES (?)", (path,)).lastrowid
            before = self._db.total_changes
            self._db.executemany(
                "INSERT OR IGNORE INTO envelopes VALUES (?, ?, ?, ?, ?)",
                (
                    (timestamp_ns, found, file, self._topic(pubsub_topic, topics), self._topic(content_topic, topics))
                    for timestamp_ns, found, pubsub_topic, content_topic in rows
                ),
            )
            return self._db.total_changes - before

    def remove_files(self, paths: Iterable[str]) -> None:
        """Forget files that are no longer part of the table."""
        paths = list(paths)
        if not paths:
            return
        with self._writing():
            gone = [self._db.execute("SELECT id FROM files WHERE path = ?", (path,)).fetchone()[0] for path in paths]
            marks = ",".join(str(int(file)) for file in gone) or "NULL"
            self._db.execute(f"DELETE FROM envelopes WHERE file IN ({marks})")  # noqa: S608 — numbers only
            self._db.execute(f"DELETE FROM files WHERE id IN ({marks})")  # noqa: S608

    def position(self, message_hash: bytes) -> Position | None:
        """The place of an envelope."""
        with self._lock:
            row = self._db.execute(
                "SELECT timestamp_ns FROM envelopes WHERE hash = ? ORDER BY 1 LIMIT 1", (message_hash,)
            ).fetchone()
        return None if row is None else Position(row[0], message_hash)

    def select(self, selection: Selection, after: Position | None, forward: bool, limit: int) -> list[Position]:
        """See ``EnvelopeSource.select``: an ordered walk over one index, or a merge of one per content topic."""
        with self._lock:
            conditions, values = self._conditions(selection, after, forward)
            if selection.hashes is not None:
                marks = ",".join("?" * len(selection.hashes))
                hashes = [f"hash IN ({marks})", *conditions]
                if selection.content_topics is not None:
                    numbers = [str(i) for i in map(self._known, selection.content_topics) if i is not None]
                    hashes.append(f"content IN ({','.join(numbers) or 'NULL'})")
                walks = [self._walk(hashes, [*selection.hashes, *values], forward, limit)]
            elif selection.content_topics is not None:
                known = [i for i in map(self._known, dict.fromkeys(selection.content_topics)) if i is not None]
                walks = [self._walk(["content = ?", *conditions], [i, *values], forward, limit) for i in known]
            else:
                walks = [self._walk(conditions, values, forward, limit)]
            return list(islice(merge(*walks, reverse=not forward), limit))

    def __len__(self) -> int:
        with self._lock:
            count: int = self._db.execute("SELECT count(DISTINCT hash) FROM envelopes").fetchone()[0]
        return count

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        with self._lock:
            self._db.close()

    def _conditions(
        self, selection: Selection, after: Position | None, forward: bool
    ) -> tuple[list[str], list[int | bytes]]:
        conditions: list[str] = []
        values: list[int | bytes] = []
        if selection.pubsub_topic is not None:
            known = self._known(selection.pubsub_topic)
            conditions.append("pubsub = ?")
            values.append(-1 if known is None else known)
        if selection.start_time_ns is not None:
            conditions.append("timestamp_ns >= ?")
            values.append(selection.start_time_ns)
        if selection.end_time_ns is not None:
            conditions.append("timestamp_ns <= ?")
            values.append(selection.end_time_ns)
        if after is not None:
            conditions.append(f"(timestamp_ns, hash) {'>' if forward else '<'} (?, ?)")
            values += [after.timestamp_ns, after.message_hash]
        return conditions, values

    def _walk(self, conditions: list[str], values: Sequence[int | bytes], forward: bool, limit: int) -> list[Position]:
        where = " AND ".join(conditions) or "1"
        way = "" if forward else "DESC"
        rows = self._db.execute(
            f"SELECT timestamp_ns, hash FROM envelopes WHERE {where} "  # noqa: S608 — only our own texts are put in
            f"GROUP BY timestamp_ns, hash ORDER BY timestamp_ns {way}, hash {way} LIMIT ?",
            (*values, limit),
        )
        return [Position(timestamp_ns, found) for timestamp_ns, found in rows]

    def _known(self, topic: str) -> int | None:
        row = self._db.execute("SELECT id FROM topics WHERE name = ?", (topic,)).fetchone()
        return None if row is None else int(row[0])

    def _topic(self, name: str, cache: dict[str, int]) -> int:
        if name not in cache:
            self._db.execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (name,))
            cache[name] = self._db.execute("SELECT id FROM topics WHERE name = ?", (name,)).fetchone()[0]
        return cache[name]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
