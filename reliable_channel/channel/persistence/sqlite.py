"""Persists in one SQLite file (``historyBackend: sqlite``), in WAL mode, with one transaction per step; or in memory
until the process ends (``historyBackend: memory``), where tests reopen channels."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from reliable_channel.channel.errors import DamagedStore, SenderLocked
from reliable_channel.channel.persistence.base import ChannelKey, LabelledSend, StoredChannel
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.file_lock import FileLock
from reliable_channel.transport.sqlite import (
    IN_MEMORY,
    OpenedFile,
    connect,
    execute_script,
    transaction,
    write_ahead,
)
from reliable_channel.transport.threads import OwnerProcess

_log = logging.getLogger(__name__)

SCHEMA_VERSION = 6

CHECKPOINT_PAGES = 4_000
"""Pages of 4 KiB in the write-ahead log before they go into the database: 16 MiB, a dozen large messages. SQLite's own
1 000 are full after four, and then all is written and synchronized once more."""

_SCHEMA = """
CREATE TABLE channel (
  id INTEGER PRIMARY KEY,
  pubsub_topic TEXT NOT NULL, content_topic TEXT NOT NULL, channel_id TEXT NOT NULL, sender_id TEXT NOT NULL,
  fingerprint TEXT NOT NULL DEFAULT '', sequence INTEGER NOT NULL DEFAULT 0,
  UNIQUE (pubsub_topic, content_topic, channel_id, sender_id)
);
CREATE TABLE snapshot (channel INTEGER PRIMARY KEY REFERENCES channel(id), data BLOB NOT NULL);
CREATE TABLE journal (
  id INTEGER PRIMARY KEY, channel INTEGER NOT NULL REFERENCES channel(id), entry BLOB NOT NULL
);
CREATE INDEX journal_of_channel ON journal(channel, id);
CREATE TABLE reported (
  channel INTEGER NOT NULL REFERENCES channel(id), event TEXT NOT NULL, PRIMARY KEY (channel, event)
) WITHOUT ROWID;
CREATE TABLE labelled (
  channel INTEGER NOT NULL REFERENCES channel(id), label TEXT NOT NULL, send_id TEXT NOT NULL,
  required INTEGER NOT NULL, delivered INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (channel, label)
) WITHOUT ROWID;
CREATE INDEX label_of_send ON labelled(channel, send_id);
CREATE TABLE labelled_segment (
  channel INTEGER NOT NULL REFERENCES channel(id), label TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL,
  PRIMARY KEY (channel, label, number)
);
CREATE TABLE segment (
  channel INTEGER NOT NULL REFERENCES channel(id), number INTEGER NOT NULL, data BLOB NOT NULL,
  PRIMARY KEY (channel, number)
);
CREATE TABLE value (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""

_shared: dict[Path, SqlitePersistence] = {}
"""The backends that :meth:`SqlitePersistence.share` has given out, by file."""
_shared_lock = threading.Lock()
# https://www.sqlite.org/howtocorrupt.html, *Carrying an open database across a fork*: a child opens its own.
os.register_at_fork(after_in_child=_shared.clear)


class SqlitePersistence:
    """``path``: the database file, made with its directory when missing, readable by its owner only: it holds
    plaintext. ``synchronous``: ``NORMAL`` survives the end of the process at any point, ``FULL`` also a power cut."""

    keeps_journal = True
    """Whether it keeps what only a later process reads: inputs, snapshots and the keys of reported events."""

    def __init__(self, path: Path | str, *, synchronous: Literal["NORMAL", "FULL"] = "NORMAL") -> None:
        self.path = Path(path) if path == IN_MEMORY else Path(path).expanduser().resolve()
        self._lock = threading.Lock()
        self._owner = OwnerProcess()
        self._users = 1
        self._held: dict[str, tuple[FileLock, int]] = {}
        self._open: set[ChannelKey] = set()
        self._ids: dict[ChannelKey, int] = {}
        try:
            self._connection = connect(self.path, timeout_s=10.0)
            self._file = OpenedFile(self.path)
            self._prepare(synchronous)
        except (OSError, sqlite3.Error) as error:
            raise EnvironmentFault(
                f"The channel database {self.path} cannot be opened: {error}.", "Choose another place, or restore it."
            ) from error

    @classmethod
    def share(cls, path: Path | str) -> SqlitePersistence:
        """The backend of a database file that all channels of this process use together, so that several channels of
        one sender can be open. Everybody who asked for it closes it; the last one really does."""
        resolved = Path(path).expanduser().resolve()
        with _shared_lock:
            known = _shared.get(resolved)
            if known is None:
                known = _shared[resolved] = cls(resolved)
            else:
                known._users += 1
            return known

    def _prepare(self, synchronous: str) -> None:
        write_ahead(self._connection, synchronous)
        self._connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        with self._transaction() as do:
            version = do.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA_VERSION):
                raise DamagedStore(
                    f"The channel database {self.path} has schema {version}, this program knows {SCHEMA_VERSION}.",
                    "Use the version of the program that wrote it, or move it away (docs/howto/upgrade.md).",
                )
            if version == 0:
                execute_script(do, _SCHEMA)
            do.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._owner.refuse_fork()
        with self._lock:
            try:
                try:
                    with transaction(self._connection):
                        yield self._connection
                except BaseException:
                    self._ids.clear()  # some may be of rows that are gone again
                    raise
            except sqlite3.Error as error:
                # The path is for the log only: events and answers of a server carry the text to its clients.
                _log.error("the channel database %s cannot be written: %s", self.path, error)
                raise EnvironmentFault(
                    f"The channel database cannot be written: {error}.",
                    "Free space, close what locks it, or restore it; then close the channel, and open it again.",
                ) from error

    def acquire(self, sender_id: str, key: ChannelKey | None = None) -> Callable[[], None]:
        with self._lock:
            if key is not None and key in self._open:
                raise make_locked_error(key)
            held, count = self._held.get(sender_id) or (lock_sender(self.path, sender_id), 0)
            self._held[sender_id] = (held, count + 1)
            if key is not None:
                self._open.add(key)
        released = False

        def release() -> None:
            nonlocal released
            with self._lock:
                if released or sender_id not in self._held:
                    return
                released = True
                if key is not None:
                    self._open.discard(key)
                lock, holders = self._held.pop(sender_id)
                if holders > 1:
                    self._held[sender_id] = (lock, holders - 1)
                else:
                    lock.release()

        return release

    def sender_id(self) -> str:
        with self._transaction() as do:
            do.execute("INSERT OR IGNORE INTO value VALUES ('sender_id', ?)", (uuid.uuid4().hex.encode(),))
            kept: bytes = do.execute("SELECT value FROM value WHERE name='sender_id'").fetchone()[0]
            return kept.decode()

    def channels(self) -> list[ChannelKey]:
        """The channels in this database."""
        with self._transaction() as do:
            rows = do.execute("SELECT pubsub_topic, content_topic, channel_id, sender_id FROM channel ORDER BY id")
            return [ChannelKey(*row) for row in rows.fetchall()]

    def load(self, key: ChannelKey) -> StoredChannel:
        with self._transaction() as do:
            channel = self._find(do, key)
            if channel is None:
                return StoredChannel()
            snapshot, fingerprint, sequence = do.execute(
                "SELECT data, fingerprint, sequence FROM channel LEFT JOIN snapshot ON snapshot.channel=id WHERE id=?",
                (channel,),
            ).fetchone()
            journal = do.execute("SELECT entry FROM journal WHERE channel=? ORDER BY id", (channel,)).fetchall()
            reported = do.execute("SELECT event FROM reported WHERE channel=?", (channel,)).fetchall()
        return StoredChannel(
            snapshot, tuple(row[0] for row in journal), frozenset(row[0] for row in reported), sequence, fingerprint
        )

    def append(
        self,
        key: ChannelKey,
        entries: Sequence[bytes],
        fingerprint: str,
        labelled: LabelledSend | None = None,
        delivered: Sequence[str] = (),
    ) -> None:
        with self._transaction() as do:
            self._file.refuse_moved()
            channel = self._id(do, key)
            journal = entries if self.keeps_journal else ()
            do.executemany("INSERT INTO journal(channel, entry) VALUES (?, ?)", [(channel, entry) for entry in journal])
            do.execute(
                "UPDATE channel SET fingerprint=? WHERE id=? AND fingerprint<>?", (fingerprint, channel, fingerprint)
            )
            if labelled is not None:
                do.execute(
                    "INSERT INTO labelled(channel, label, send_id, required) VALUES (?,?,?,?)",
                    (channel, labelled.label, labelled.send_id, labelled.required),
                )
                do.executemany(
                    "INSERT INTO labelled_segment VALUES (?,?,?,?)",
                    [(channel, labelled.label, number, data) for number, data in enumerate(labelled.segments)],
                )
            do.executemany(
                "UPDATE labelled SET delivered=1 WHERE channel=? AND send_id=?", [(channel, one) for one in delivered]
            )

    def forget_label(self, key: ChannelKey, label: str) -> None:
        with self._transaction() as do:
            where = (self._id(do, key), label)
            do.execute("DELETE FROM labelled WHERE channel=? AND label=?", where)
            do.execute("DELETE FROM labelled_segment WHERE channel=? AND label=?", where)

    def find_send(self, key: ChannelKey, label: str) -> LabelledSend | None:
        with self._transaction() as do:
            where = (self._id(do, key), label)
            row = do.execute(
                "SELECT send_id, required, delivered FROM labelled WHERE channel=? AND label=?", where
            ).fetchone()
            if row is None:
                return None
            segments = do.execute(
                "SELECT data FROM labelled_segment WHERE channel=? AND label=? ORDER BY number", where
            ).fetchall()
            return LabelledSend(label, row[0], row[1], tuple(segment[0] for segment in segments), bool(row[2]))

    def compact(self, key: ChannelKey, snapshot: bytes, fingerprint: str) -> None:
        if not self.keeps_journal:
            return
        with self._transaction() as do:
            self._file.refuse_moved()
            channel = self._id(do, key)
            do.execute("INSERT OR REPLACE INTO snapshot VALUES (?, ?)", (channel, snapshot))
            do.execute("UPDATE channel SET fingerprint=? WHERE id=?", (fingerprint, channel))
            do.execute("DELETE FROM journal WHERE channel=?", (channel,))
            do.execute("DELETE FROM reported WHERE channel=?", (channel,))

    def mark_reported(self, key: ChannelKey, events: Sequence[str], sequence: int) -> None:
        with self._transaction() as do:
            channel = self._id(do, key)
            kept = [(channel, event) for event in events if self.keeps_journal]
            do.executemany("INSERT OR IGNORE INTO reported VALUES (?, ?)", kept)
            do.execute("UPDATE channel SET sequence=? WHERE id=?", (sequence, channel))

    def put_segments(self, key: ChannelKey, payloads: Mapping[int, bytes]) -> None:
        with self._transaction() as do:
            channel = self._id(do, key)
            rows = [(channel, number, data) for number, data in payloads.items()]
            do.executemany("INSERT OR REPLACE INTO segment VALUES (?, ?, ?)", rows)

    def segments(self, key: ChannelKey, numbers: Collection[int]) -> dict[int, bytes]:
        with self._transaction() as do:
            channel = self._id(do, key)
            one = "SELECT number, data FROM segment WHERE channel=? AND number=?"
            return dict(row for number in numbers for row in do.execute(one, (channel, number)))

    def keep_segments(self, key: ChannelKey, numbers: Collection[int]) -> None:
        with self._transaction() as do:
            channel = self._id(do, key)
            stored = do.execute("SELECT number FROM segment WHERE channel=?", (channel,)).fetchall()
            gone = [(channel, number) for (number,) in stored if number not in numbers]
            do.executemany("DELETE FROM segment WHERE channel=? AND number=?", gone)

    def get(self, name: str) -> bytes | None:
        with self._transaction() as do:
            row = do.execute("SELECT value FROM value WHERE name=?", (name,)).fetchone()
            return None if row is None else bytes(row[0])

    def put(self, name: str, value: bytes) -> None:
        with self._transaction() as do:
            do.execute(
                "INSERT INTO value VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET value=excluded.value", (name, value)
            )

    def close(self) -> None:
        if not self._owner.is_current:
            return  # SQLite forbids even that
        with _shared_lock:
            self._users = max(0, self._users - 1)
            if self._users:
                return
            if _shared.get(self.path) is self:
                del _shared[self.path]
        with self._lock:
            for lock, _ in self._held.values():
                lock.release()
            self._held.clear()
            self._open.clear()
            self._connection.close()

    def _id(self, do: sqlite3.Connection, key: ChannelKey) -> int:
        """The number of a channel's row, which is made if it is missing."""
        if self._find(do, key) is None:
            do.execute(
                "INSERT INTO channel(pubsub_topic, content_topic, channel_id, sender_id) VALUES (?,?,?,?)",
                (key.pubsub_topic, key.content_topic, key.channel_id, key.sender_id),
            )
            self._find(do, key)
        return self._ids[key]

    def _find(self, do: sqlite3.Connection, key: ChannelKey) -> int | None:
        if key not in self._ids:
            row = do.execute(
                "SELECT id FROM channel WHERE pubsub_topic=? AND content_topic=? AND channel_id=? AND sender_id=?",
                (key.pubsub_topic, key.content_topic, key.channel_id, key.sender_id),
            ).fetchone()
            if row is not None:
                self._ids[key] = row[0]
        return self._ids.get(key)


class MemoryPersistence(SqlitePersistence):
    """``keeps_journal=False`` (the default) keeps sequence, labels and node values only: no later process could read a
    journal. ``True`` makes it behave as a durable backend whose owner crashes and comes back."""

    def __init__(self, *, keeps_journal: bool = False) -> None:
        super().__init__(IN_MEMORY)
        self.keeps_journal = keeps_journal

    def acquire(self, sender_id: str, key: ChannelKey | None = None) -> Callable[[], None]:
        """Locks nothing: no other process can use this database, and an owner that crashed releases nothing."""
        return lambda: None

    def close(self) -> None:
        """Nothing to release; the values stay, so that a test can open again."""


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
