"""Stores the records in SQLite (MESSAGING-API, *Message Storage*): one transaction per change, read by identifier.

Every method that changes a record returns it as it is stored then, so that events can follow. Knows neither transports
nor when to send. Thread-safe.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.records import MessageRecord, shorten
from reliable_channel.messaging.schema import TABLES, lock_database, open_database, table
from reliable_channel.transport.base import NodeStoppedError
from reliable_channel.transport.sqlite import OpenedFile, transaction
from reliable_channel.transport.store.model import split
from reliable_channel.transport.threads import OwnerProcess

_COLUMNS = (
    "record_id, change_seq, created_ms, message_hash, pubsub_topic, content_topic, payload, version, timestamp, meta, "
    "rate_limit_proof, ephemeral, sending, sent, stored, received, request_id, error"
)
_INT64 = 2**63 - 1
_QUEUED = 2
"""The value of column ``sending`` for a queued message; 0 and 1 are the specified values."""
_LIGHT_COLUMNS = _COLUMNS.replace("payload", "x''").replace("rate_limit_proof", "NULL")
"""Without what may have DEFAULT_MAX_BYTES in all records together."""
_SIZE = "length(payload) + coalesce(length(rate_limit_proof), 0)"

DEFAULT_MAX_BYTES = 256 * 1024 * 1024
BATCH = 10
"""Records read at once where there may be many: 1.5 MB of the largest, for each client that does not read on."""

FEW_CHANGES = 500
"""So many changes are looked through for those of a topic or subscription, instead of all its records for changes."""

RecordKey: TypeAlias = tuple[int, int]
"""A record's id and the number of its latest change."""

_BY_HASH = "record_id IN (SELECT record_id FROM every_hash WHERE message_hash = ?)"
_BY_TOPIC = "content_topic = ?"
_BY_SUBSCRIPTION = "record_id IN (SELECT record_id FROM every_subscription WHERE subscription_id = ?)"
# Without the plus SQLite takes the index of the topic, which may have all records.
_CHANGED_BY_TOPIC = "+content_topic = ?"
_CHANGED_BY_SUBSCRIPTION = (
    "EXISTS (SELECT 1 FROM every_subscription AS linked"
    " WHERE linked.subscription_id = ? AND linked.record_id = every_record.record_id)"
)


class NodeClosedError(NodeStoppedError):
    """A call that needs the records of a node that was closed."""


def _read_record(row: Sequence[Any]) -> MessageRecord:
    return MessageRecord(
        message=WakuMessage(
            payload=row[6],
            content_topic=row[5],
            version=row[7],
            timestamp=row[8],
            meta=row[9],
            rate_limit_proof=row[10],
            ephemeral=None if row[11] is None else bool(row[11]),
        ),
        sending=bool(row[12]),
        queued=row[12] == _QUEUED,
        sent=bool(row[13]),
        stored=bool(row[14]),
        received=bool(row[15]),
        request_id=row[16],
        error=row[17],
        message_hash=row[3],
        pubsub_topic=row[4],
        record_id=row[0],
        change_seq=row[1],
        created_ms=row[2],
    )


def _encode_sending(record: MessageRecord) -> int:
    return _QUEUED if record.queued else int(record.sending)


class RecordStore:
    """All records: at most ``max_records``, with ``max_bytes`` of payloads and proofs, and none older than
    ``max_age_ms``. The oldest go first, and never one whose request is pending."""

    def __init__(self, path: Path | str, max_records: int, max_age_ms: int, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._max_age_ms = max_age_ms
        self._lock = threading.RLock()
        self.owner = OwnerProcess()
        self._closed = False
        self._file_lock = lock_database(path)
        try:
            self._connection = open_database(path)
            self._file = OpenedFile(path)
        except BaseException:
            self._unlock()
            raise
        self._count, self._bytes = self._count_totals()
        self._next_id, self._next_seq = self._read_numbers()
        self._pending_below = 0
        """The request of each record with a smaller id is pending. All of them were looked at for each new record."""

    def close(self) -> None:
        """Close the database; closing twice does nothing."""
        with self._lock:
            self._closed = True
            self._connection.close()
            self._unlock()

    def refuse_closed(self) -> None:
        """Raise ``NodeClosedError`` if the database was closed."""
        if self._closed:
            raise NodeClosedError("The messaging node is closed.", "Make a new one with this database.")

    def _unlock(self) -> None:
        if self._file_lock is not None:
            self._file_lock.release()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction; nested ones join the outer. Raises ``EnvironmentFault`` when SQLite cannot write, and
        ``ForkedError`` in a forked process."""
        self.owner.refuse_fork()
        with self._lock:
            self.refuse_closed()
            if self._connection.in_transaction:
                yield self._connection
                return
            before = (self._count, self._bytes, self._next_id, self._next_seq)
            try:
                try:
                    self._file.refuse_moved()
                    with transaction(self._connection):
                        yield self._connection
                except BaseException:
                    # SQLite has undone the rows, and nothing has undone these.
                    self._count, self._bytes, self._next_id, self._next_seq = before
                    self.note_ended_request()
                    raise
            except sqlite3.Error as error:
                raise EnvironmentFault(
                    f"The message database cannot be written: {error}.", "Free some space, or start the node again."
                ) from error

    def _count_totals(self) -> tuple[int, int]:
        count, size = self._connection.execute(
            f"SELECT count(*), coalesce(sum({_SIZE}), 0) FROM every_record"  # noqa: S608
        ).fetchone()
        return count, size

    def _read_numbers(self) -> tuple[int, int]:
        record_id, change_seq = self._connection.execute("SELECT record_id, change_seq FROM main.cursor").fetchone()
        return record_id + 1, change_seq + 1

    def _advance(self, connection: sqlite3.Connection, records: int) -> None:
        """Reserve numbers, in the same transaction as the rows that use them."""
        self._next_id += records
        self._next_seq += 1
        connection.execute("UPDATE main.cursor SET record_id=?, change_seq=?", (self._next_id - 1, self._next_seq - 1))

    # -- changes ------------------------------------------------------------------------------------------------

    def add(self, record: MessageRecord, now: int, subscriptions: Collection[str] = ()) -> MessageRecord:
        """Insert a record; its ids and times are given here."""
        with self.transaction() as connection:
            record = replace(record, record_id=self._next_id, change_seq=self._next_seq, created_ms=now)
            message = record.message
            ephemeral = bool(message.ephemeral)
            values = (
                record.record_id, record.change_seq, now, record.message_hash, record.pubsub_topic,
                message.content_topic, message.payload, message.version, message.timestamp, message.meta,
                message.rate_limit_proof, message.ephemeral, _encode_sending(record), record.sent, record.stored,
                record.received, record.request_id, record.error,
            )  # fmt: skip
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO {table('record', ephemeral)} ({_COLUMNS}) VALUES ({marks})", values)  # noqa: S608
            self._link(connection, record, subscriptions)
            self._advance(connection, 1)
            self._count += 1
            self._bytes += message.size
            self._prune(connection, record)
        return record

    @property
    def is_full(self) -> bool:
        """Whether the records have too many bytes: those of pending requests, and the one added last."""
        return self._bytes > self._max_bytes

    def note_ended_request(self) -> None:
        """Note that a request may have ended: its record may now go."""
        self._pending_below = 0

    def update(self, record: MessageRecord, *, subscriptions: Collection[str] = (), **changes: Any) -> MessageRecord:
        """Store other properties of a record (``sending``, ``queued``, ``sent``, ``stored``, ``received``, ``error``,
        or a newer ``message`` with its ``message_hash``; older hashes still find it)."""
        if changes.get("error") is not None:
            changes["error"] = shorten(changes["error"])
        with self.transaction() as connection:
            after = replace(record, **changes, change_seq=self._next_seq)
            ephemeral = bool(after.message.ephemeral)
            connection.execute(
                f"UPDATE {table('record', ephemeral)} SET change_seq=?, message_hash=?, timestamp=?, sending=?, sent=?,"  # noqa: S608
                " stored=?, received=?, error=? WHERE record_id=?",
                (after.change_seq, after.message_hash, after.message.timestamp, _encode_sending(after), after.sent,
                 after.stored, after.received, after.error, after.record_id),
            )  # fmt: skip
            self._link(connection, after, subscriptions)
            self._advance(connection, 0)
        return after

    def _link(self, connection: sqlite3.Connection, record: MessageRecord, subscriptions: Collection[str]) -> None:
        ephemeral = bool(record.message.ephemeral)
        connection.execute(
            f"INSERT OR IGNORE INTO {table('hash', ephemeral)} VALUES (?, ?)",  # noqa: S608
            (record.message_hash, record.record_id),
        )
        for subscription_id in subscriptions:
            connection.execute(
                f"INSERT OR IGNORE INTO {table('subscription', ephemeral)} VALUES (?, ?)",  # noqa: S608
                (subscription_id, record.record_id),
            )

    def _prune(self, connection: sqlite3.Connection, added: MessageRecord) -> None:
        """Delete records beyond the bounds, but not the one added now: its request may follow."""
        free = (
            "NOT EXISTS (SELECT 1 FROM every_request AS request"
            " WHERE request.state = 'pending' AND request.record_id = every_record.record_id)"
        )
        select = f"SELECT record_id, {_SIZE} FROM every_record WHERE {free} AND"  # noqa: S608
        eldest = added.created_ms - self._max_age_ms
        gone = connection.execute(f"{select} created_ms < ?", (eldest,)).fetchall()
        count, size = self._count - len(gone), self._bytes - sum(length for _, length in gone)
        if count > self._max_records or size > self._max_bytes:
            those = f"{select} created_ms >= ? AND record_id >= ? AND record_id < ? ORDER BY record_id"
            for record_id, length in connection.execute(those, (eldest, self._pending_below, added.record_id)):
                if count <= self._max_records and size <= self._max_bytes:
                    break
                gone.append((record_id, length))
                count, size = count - 1, size - length
            else:
                record_id = added.record_id
            self._pending_below = record_id
        for name in TABLES if gone else ():
            for ephemeral in (False, True):
                connection.executemany(
                    f"DELETE FROM {table(name, ephemeral)} WHERE record_id = ?",  # noqa: S608
                    [(record_id,) for record_id, _ in gone],
                )
        self._count, self._bytes = count, size

    # -- look-ups -----------------------------------------------------------------------------------------------

    def by_request_id(self, request_id: str) -> MessageRecord | None:
        """The record of a send request."""
        return self._find_one("request_id = ?", request_id)

    def by_hash(self, message_hash: bytes) -> MessageRecord | None:
        """The newest record that has, or had before it was sent anew, this message hash."""
        return self._find_one(_BY_HASH, message_hash)

    def all_by_hash(self, message_hash: bytes) -> list[MessageRecord]:
        """Every record of a message hash: the same envelope may have been sent by several requests."""
        rows = self._query(f"SELECT {_COLUMNS} FROM every_record WHERE {_BY_HASH} ORDER BY record_id", (message_hash,))  # noqa: S608
        return [_read_record(row) for row in rows]

    def keys(
        self,
        content_topic: str | None,
        subscription_id: str | None,
        skip: int = 0,
        take: int | None = None,
        since: int | None = None,
    ) -> list[RecordKey]:
        """The keys of the records of a content topic, or else of those received under a subscription, in the order in
        which they were added; with ``since`` of those changed after that ``change_seq``, in the order of their latest
        change. Raises ``ValueError`` for negative numbers."""
        if skip < 0 or (take is not None and take < 0):
            raise ValueError("skip and take are not negative")
        order = "record_id" if since is None else "change_seq"
        limit = -1 if take is None else min(take, _INT64)  # sqlite3 raises OverflowError for a larger integer
        if since is not None and since > self.change_seq():
            since = 0  # a cursor of another database
        is_topic = content_topic is not None
        if since is not None and self.change_seq() - since <= FEW_CHANGES:
            where = _CHANGED_BY_TOPIC if is_topic else _CHANGED_BY_SUBSCRIPTION
        else:
            where = _BY_TOPIC if is_topic else _BY_SUBSCRIPTION
        rows = self._query(
            f"SELECT record_id, change_seq FROM every_record WHERE {where} AND change_seq > ?"  # noqa: S608
            f" ORDER BY {order} LIMIT ? OFFSET ?",
            (content_topic if is_topic else subscription_id, -1 if since is None else since, limit, min(skip, _INT64)),
        )
        return [(row[0], row[1]) for row in rows]

    def by_keys(self, keys: Sequence[RecordKey]) -> Iterator[MessageRecord]:
        """The records of these keys in their order, a batch at a time; those that are gone meanwhile are left out."""
        for batch in split(keys, BATCH):
            ids = [record_id for record_id, _ in batch]
            marks = ", ".join("?" * len(ids))
            rows = self._query(f"SELECT {_COLUMNS} FROM every_record WHERE record_id IN ({marks})", ids)  # noqa: S608
            by_id = {row[0]: _read_record(row) for row in rows}
            yield from (by_id[record_id] for record_id in ids if record_id in by_id)

    def read_unconfirmed(self, content_topics: Collection[str], since_ms: int) -> list[MessageRecord]:
        """Kept records of these topics, added since, that are not ephemeral and not known to be stored. Without their
        payloads: there may be many."""
        marks = ", ".join("?" * len(content_topics))
        rows = self._query(
            f"SELECT {_LIGHT_COLUMNS} FROM main.record"  # noqa: S608
            f" WHERE NOT stored AND created_ms >= ? AND content_topic IN ({marks}) ORDER BY record_id",
            (since_ms, *content_topics),
        )
        return [_read_record(row) for row in rows]

    def change_seq(self) -> int:
        """The ``change_seq`` of the latest change, 0 before the first."""
        return self._next_seq - 1

    def _find_one(self, where: str, value: object) -> MessageRecord | None:
        rows = self._query(
            f"SELECT {_COLUMNS} FROM every_record WHERE {where} ORDER BY record_id DESC LIMIT 1",  # noqa: S608
            (value,),
        )
        return _read_record(rows[0]) if rows else None

    def _query(self, statement: str, values: Sequence[object]) -> list[Any]:
        self.owner.refuse_fork()
        with self._lock:
            self.refuse_closed()
            try:
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise EnvironmentFault(f"The message database cannot be read: {error}.") from error
