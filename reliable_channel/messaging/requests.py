"""Stores the pending requests, so that a send survives a restart.

The same database and transactions as the records, another table. The schedule itself (``send_service``) is rebuilt from
these rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reliable_channel.messaging.schema import table
from reliable_channel.messaging.store import RecordStore

PENDING = "pending"


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """One row. ``retries`` is -1 before the initial attempt; ``own_stamp``: this node set the timestamp and may renew
    it. ``resent``: how often no store had the message; the first times (``sending.RESENDS``) it was sent again."""

    request_id: str
    record_id: int
    state: str = PENDING
    retries: int = -1
    in_doubt: bool = False
    own_stamp: bool = False
    resent: int = 0
    sent_ms: int | None = None


_COLUMNS = "request_id, record_id, state, retries, in_doubt, own_stamp, resent, sent_ms"


class RequestStore:
    """The request rows of a :class:`RecordStore`; use it inside ``records.transaction()``."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    def add(self, request: StoredRequest, ephemeral: bool) -> None:
        """A new request, beside its record."""
        with self._records.transaction() as connection:
            connection.execute(
                f"INSERT INTO {table('request', ephemeral)} ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                (request.request_id, request.record_id, request.state, request.retries, request.in_doubt,
                 request.own_stamp, request.resent, request.sent_ms),
            )  # fmt: skip

    def update(self, request_id: str, **changes: Any) -> None:
        """Set columns of a request; unknown ids are ignored (its record may have been dropped for age)."""
        assignments = ", ".join(f"{column} = ?" for column in changes)
        if "state" in changes:
            self._records.note_ended_request()
        with self._records.transaction() as connection:
            for ephemeral in (False, True):
                connection.execute(
                    f"UPDATE {table('request', ephemeral)} SET {assignments} WHERE request_id = ?",  # noqa: S608
                    (*changes.values(), request_id),
                )

    def find(self, request_id: str) -> StoredRequest | None:
        """One request."""
        with self._records.transaction() as connection:
            row = connection.execute(
                f"SELECT {_COLUMNS} FROM every_request WHERE request_id = ?",  # noqa: S608
                (request_id,),
            ).fetchone()
        return None if row is None else _read_request(row)

    def pending(self) -> list[StoredRequest]:
        """Requests that an earlier process left unfinished, oldest first."""
        with self._records.transaction() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM every_request WHERE state = ? ORDER BY record_id",  # noqa: S608
                (PENDING,),
            ).fetchall()
        return [_read_request(row) for row in rows]


def _read_request(row: tuple[Any, ...]) -> StoredRequest:
    return StoredRequest(row[0], row[1], row[2], row[3], bool(row[4]), bool(row[5]), row[6], row[7])
