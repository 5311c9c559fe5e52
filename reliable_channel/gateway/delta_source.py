"""The ``envelopes`` table as an envelope source, read with delta-rs and without Spark.

An index on disk (``index.py``) follows the table: new files are read once, columns only; files that are gone are
forgotten. Payloads are read for the envelopes of a page only, with times and hashes pushed down. So memory is bounded
by a page and a batch, whatever the size of the table. Ephemeral envelopes are in the table and not in a store.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reliable_channel.errors import EnvironmentFault
from reliable_channel.store.index import EnvelopeIndex, Row
from reliable_channel.store.source import Position, Selection
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.waku import WakuMessage, decode_waku_message

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger(__name__)

BATCH_ROWS = 8_192
REFRESH_S = 1.0
_INDEX_COLUMNS = ["sender_timestamp_ns", "message_hash", "pubsub_topic", "content_topic", "ephemeral"]


class DeltaSource:
    """Envelopes of one Delta table (``reliable_channel.pipeline.tables.ENVELOPES``). Thread-safe.

    ``location`` is a path or a URI that delta-rs knows; ``index_path`` a local file. The table may still be missing:
    then there is nothing stored yet. Raises ``EnvironmentFault`` for a table that cannot be read."""

    def __init__(
        self,
        location: str,
        index_path: Path | str,
        storage_options: Mapping[str, str] | None = None,
        refresh_s: float = REFRESH_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._location = location
        self._index_path = index_path
        self._storage_options = dict(storage_options or {})
        self._refresh_s = refresh_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._index: EnvelopeIndex | None = None
        self._refreshed = -refresh_s

    def position(self, message_hash: bytes) -> Position | None:
        index = self._current()
        return None if index is None else index.position(message_hash)

    def select(self, selection: Selection, after: Position | None, forward: bool, limit: int) -> list[Position]:
        index = self._current()
        return [] if index is None else index.select(selection, after, forward, limit)

    def load(self, message_hashes: Sequence[bytes]) -> dict[bytes, tuple[str, WakuMessage]]:
        index = self._current()
        if index is None or not message_hashes:
            return {}
        places = [place for place in map(index.position, message_hashes) if place is not None]
        try:
            return self._load(places)
        except Exception as error:  # delta-rs raises what its engine raises, of no one type
            # A file may have been vacuumed between the index and the read; the table names others for its rows.
            _log.info("reading envelopes again after %s", type(error).__name__)
            with self._lock:
                self._table = None
                self._follow()
        try:
            return self._load(places)
        except Exception as error:  # as above
            raise EnvironmentFault(
                f"Envelopes of {self._location} cannot be read ({type(error).__name__}).",
                "See that no file is missing.",
            ) from None

    def refresh(self) -> None:
        """Follow the table now."""
        with self._lock:
            self._follow()

    def close(self) -> None:
        """Close the index."""
        with self._lock:
            if self._index is not None:
                self._index.close()
                self._index = None
                self._table = None

    def _current(self) -> EnvelopeIndex | None:
        with self._lock:
            if self._monotonic() - self._refreshed >= self._refresh_s:
                self._follow()
            return self._index

    def _follow(self) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            if self._table is None:
                self._table = DeltaTable(self._location, storage_options=self._storage_options or None)
                changed = True
            else:
                before = self._table.version()
                self._table.update_incremental()
                changed = self._table.version() != before
            if changed:
                self._index_files(self._table)
        except TableNotFoundError:
            self._table = None
        except (DeltaError, OSError, sqlite3.Error) as error:
            self._table = None  # the next request opens it anew
            raise EnvironmentFault(
                f"The table {self._location} cannot be read, or its index not written ({type(error).__name__}).",
                "See paths.data_dir, and the space on the disk of paths.run_dir.",
            ) from None
        self._refreshed = self._monotonic()

    def _index_files(self, table: DeltaTable) -> None:
        from reliable_channel.pipeline.storage.arrow_files import dataset_of

        if self._index is None:
            self._index = EnvelopeIndex(self._index_path, f"{table.metadata().id}")
        fragments: dict[str, Any] = {fragment.path: fragment for fragment in dataset_of(table).get_fragments()}
        indexed = self._index.files()
        for path in sorted(set(fragments) - indexed):
            rows = self._index.add_file(path, _rows(fragments[path]))
            _log.debug("indexed %s rows of %s", rows, path)
        # Only now: what a compaction moved stays visible throughout.
        self._index.remove_files(indexed - set(fragments))

    def _load(self, places: Sequence[Position]) -> dict[bytes, tuple[str, WakuMessage]]:
        from deltalake import QueryBuilder

        table = self._table
        if table is None or not places:
            return {}
        # delta-rs's own engine: it prunes files and row groups by time, and reads views, which Arrow's filters do not.
        # Only digits are put into the text.
        times = ",".join(str(int(place.timestamp_ns)) for place in places)
        hashes = ",".join(f"X'{place.message_hash.hex()}'" for place in places)
        absent = " OR sender_timestamp_ns IS NULL" if any(place.timestamp_ns == 0 for place in places) else ""
        rows = (
            QueryBuilder()
            .register("envelopes", table)
            .execute(
                "SELECT message_hash, pubsub_topic, value FROM envelopes "  # noqa: S608
                f"WHERE (sender_timestamp_ns IN ({times}){absent}) AND message_hash IN ({hashes})"
            )
        )
        loaded: dict[bytes, tuple[str, WakuMessage]] = {}
        for batch in rows:
            found = (batch.column(name) for name in ("message_hash", "pubsub_topic", "value"))
            for message_hash, pubsub_topic, value in zip(*(column.to_pylist() for column in found), strict=True):
                message = decode_waku_message(value)
                if not isinstance(message, Malformed):
                    loaded[message_hash] = (pubsub_topic or "", message)
        return loaded


def _rows(fragment: Any) -> Iterator[Row]:
    for batch in fragment.to_batches(columns=_INDEX_COLUMNS, batch_size=BATCH_ROWS):
        columns = [batch.column(name).to_pylist() for name in _INDEX_COLUMNS]
        for timestamp_ns, found, pubsub_topic, content_topic, ephemeral in zip(*columns, strict=True):
            if found is not None and len(found) == 32 and not ephemeral:
                yield (timestamp_ns or 0, found, pubsub_topic or "", content_topic or "")
