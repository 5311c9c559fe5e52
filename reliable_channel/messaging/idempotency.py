"""Remembers the request that an ``Idempotency-Key`` created, so that a repeated call sends once.

A key is kept for a day, across restarts, in the database of the records and in the transaction of its request. The
number of keys is bounded; beyond it the oldest are deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from reliable_channel.core.errors import LocalError
from reliable_channel.messaging.store import RecordStore

KEPT_MS = 24 * 3_600_000
MOST_KEYS = 100_000
CHECK_EVERY = 100
"""The number of new keys after which all keys are counted, since counting reads them all."""


class KeyReusedError(LocalError):
    """The key was given before with another message."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's ``key`` within a ``scope`` (``send``, or one channel); ``digest`` identifies the message."""

    scope: str
    key: str
    digest: bytes


class KeyStore:
    """The keys of one node. Use it inside a transaction of the records."""

    def __init__(self, records: RecordStore, most: int = MOST_KEYS) -> None:
        self._records = records
        self._most = most
        self._given = 0

    def find(self, key: IdempotencyKey, now: int) -> str | None:
        """The request id that this key created; None if the key is new or older than a day. ``now`` is Unix time in ms.
        Raises :class:`KeyReusedError` when it came with another message."""
        with self._records.transaction() as connection:
            row = connection.execute(
                "SELECT request_id, digest FROM main.idempotency WHERE scope = ? AND key = ? AND created_ms > ?",
                (key.scope, key.key, now - KEPT_MS),
            ).fetchone()
        if row is None:
            return None
        if row[1] != key.digest:
            raise KeyReusedError(
                "This Idempotency-Key was used for another message.", "Give each message a key of its own."
            )
        return str(row[0])

    def keep(self, key: IdempotencyKey, request_id: str, now: int) -> None:
        """Store the request of a key, and delete old keys."""
        with self._records.transaction() as connection:
            connection.execute("DELETE FROM main.idempotency WHERE created_ms <= ?", (now - KEPT_MS,))
            connection.execute(
                "INSERT OR REPLACE INTO main.idempotency VALUES (?, ?, ?, ?, ?)",
                (key.scope, key.key, key.digest, request_id, now),
            )
            self._given += 1
            if self._given % CHECK_EVERY:
                return
            (count,) = connection.execute("SELECT count(*) FROM main.idempotency").fetchone()
            if count > self._most:
                connection.execute(
                    "DELETE FROM main.idempotency WHERE (scope, key) IN"
                    " (SELECT scope, key FROM main.idempotency ORDER BY created_ms LIMIT ?)",
                    (count - self._most,),
                )
