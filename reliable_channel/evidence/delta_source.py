"""Serves the ``envelopes`` table as an envelope source, read with delta-rs and Arrow, without Spark.

An index on disk (``store/index.py``) follows the table: only some columns of each new file are read, once, concurrently
with queries; removed files leave the index. The payloads of a page are read by file and row (``envelope_files.py``), so
a page and a cache bound the memory, whatever the size of the table. Ephemeral envelopes are in the table, but a store
does not serve them.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import WakuMessage, decode_waku_message
from reliable_channel.evidence.envelope_files import EnvelopeFiles
from reliable_channel.lake.read import dataset_of
from reliable_channel.transport.store.index import EnvelopeIndex, IndexRow
from reliable_channel.transport.store.model import StoreQuery
from reliable_channel.transport.store.source import EnvelopeReading, Position
from reliable_channel.transport.threads import RoundFaults

_log = logging.getLogger(__name__)

BATCH_ROWS = 8_192
AT_ONCE_BYTES = 64 * 1024
"""Larger pages (bytes) are decoded and encoded outside the thread that accepts all requests."""
_INDEX_COLUMNS = ["sender_timestamp_ns", "message_hash", "pubsub_topic", "content_topic", "ephemeral"]

STARTING = "the archive is being indexed"
MISSING = "the envelopes table is not there"
UNREADABLE = "the envelopes table cannot be read"


class DeltaSource:
    """Envelopes of one Delta table (``reliable_channel.lake.tables.ENVELOPES``). Thread-safe.

    ``location`` is a path or a URI that delta-rs knows; ``index_path`` a local file. Queries see the table at the last
    :meth:`refresh`; :meth:`follow` refreshes in the background. A table that does not exist yet counts as empty.
    Queries raise ``EnvironmentFault`` before the first refresh, and while the table cannot be read."""

    def __init__(self, location: str, index_path: Path | str) -> None:
        self._location = location
        self._index_path = index_path
        self._refreshing = threading.Lock()
        self._table: DeltaTable | None = None
        self._index: EnvelopeIndex | None = None
        self._files: EnvelopeFiles | None = None
        self._table_id: str | None = None
        self._fault: str | None = STARTING
        self._stopping = threading.Event()
        self._follower: threading.Thread | None = None

    def fault(self) -> str | None:
        """Why queries cannot be answered now, without paths of this machine; None if they can."""
        return self._fault

    @contextmanager
    def read_without_waiting(self) -> Iterator[EnvelopeReading | None]:
        """See ``EnvelopeSource.read_without_waiting``."""
        index = self._current()
        with nullcontext(True) if index is None else index.hold_if_free() as free:
            yield _CachedReading(self) if free else None

    def position(self, message_hash: bytes) -> Position | None:
        index = self._current()
        return None if index is None else index.position(message_hash)

    def select(self, query: StoreQuery, after: Position | None, limit: int) -> list[Position]:
        index = self._current()
        return [] if index is None else index.select(query, after, limit)

    def load(self, message_hashes: Sequence[bytes]) -> dict[bytes, tuple[str, WakuMessage]]:
        if not message_hashes:
            return {}
        self._current()
        try:
            return self._load(message_hashes)
        except Exception as error:  # Arrow and file systems raise errors of many types
            # A file may have been vacuumed after it was indexed; the table then has its rows in other files.
            _log.info("reading envelopes again after %s", type(error).__name__)
            self.refresh()
        try:
            return self._load(message_hashes)
        except Exception as error:  # as above
            raise EnvironmentFault(
                f"Envelopes of {self._location} cannot be read ({type(error).__name__}).",
                "Check that no file is missing.",
            ) from None

    def refresh(self) -> None:
        """Update the index to the current version of the table. Queries meanwhile use the previous state.

        Raises ``EnvironmentFault`` if the table or the index cannot be read, and after :meth:`close`; queries then
        raise it too."""
        with self._refreshing:
            if self._stopping.is_set():  # a query that met it would open the index again, and nobody would close it
                raise EnvironmentFault("The archive is closed.", "Start the store again.")
            try:
                self._fault = self._refresh()
            except Exception:
                self._table = None  # the next refresh opens it again
                self._fault = UNREADABLE
                raise
            if self._fault is not None:
                raise EnvironmentFault(f"There is no table at {self._location} any more.", "See paths.data_dir.")

    def follow(self, every_s: float) -> None:
        """Refresh every ``every_s`` seconds on a separate thread, the first time at once, until :meth:`close`."""
        self._follower = threading.Thread(target=self._follow, args=(every_s,), name="store-index", daemon=True)
        self._follower.start()

    def close(self) -> None:
        """End the thread and close the index."""
        self._stopping.set()
        if self._follower is not None:
            self._follower.join()
        with self._refreshing:
            self._fault = STARTING
            if self._index is not None:
                self._index.close()
            self._index = self._files = self._table = None

    def _follow(self, every_s: float) -> None:
        faults = RoundFaults("the archive is not followed")
        while not self._stopping.is_set():
            try:
                self.refresh()
                faults.clear()
            except Exception as error:
                if not self._stopping.is_set():
                    faults.note(error)
            self._stopping.wait(every_s)

    def _current(self) -> EnvelopeIndex | None:
        if self._fault is not None:
            raise EnvironmentFault(f"{self._fault[0].upper()}{self._fault[1:]}.", "Try again later.")
        return self._index

    def _refresh(self) -> str | None:
        """Update the index from the table; returns why queries cannot be answered, or None."""
        try:
            if not DeltaTable.is_deltatable(self._location):
                self._table = None
                # With an index it was there before, so its clients must not take it for an empty one.
                return MISSING if self._index is not None or Path(self._index_path).exists() else None
            if self._table is None:
                self._table = DeltaTable(self._location)
            else:
                before = self._table.version()
                self._table.update_incremental()
                if self._table.version() == before:
                    return None
            self._index_files(self._table)
        except (DeltaError, pa.ArrowException, OSError, sqlite3.Error) as error:
            raise EnvironmentFault(
                f"The table {self._location} cannot be read, or its index not written ({type(error).__name__}).",
                "See paths.data_dir, and the space on the disk of paths.run_dir.",
            ) from None
        return None

    def _index_files(self, table: DeltaTable) -> None:
        table_id = f"{table.metadata().id}"
        if self._index is None:
            self._index = EnvelopeIndex(self._index_path, table_id)
        elif self._table_id != table_id:
            self._fault, self._files = STARTING, None
            self._index.reset(table_id)
        index, self._table_id = self._index, table_id
        dataset = dataset_of(table)
        fragments: dict[str, Any] = {fragment.path: fragment for fragment in dataset.get_fragments()}
        indexed = index.files()
        fresh = sorted(set(fragments) - indexed)
        for number, path in enumerate(fresh):
            if self._stopping.is_set():
                return
            if self._fault is not None:
                self._fault = f"{STARTING}: {number} of {len(fresh)} new files are done"
            _log.debug("indexed %s envelopes of %s", index.add_file(path, _read_index_rows(fragments[path])), path)
        index.complete()
        # Only now, so that rows moved by a compaction stay visible throughout.
        index.remove_files(indexed - set(fragments))
        if self._files is None:
            self._files = EnvelopeFiles(dataset.filesystem)

    def load_kept(self, message_hashes: Sequence[bytes]) -> dict[bytes, tuple[str, WakuMessage]]:
        """:meth:`load` for small envelopes in memory; raises ``BlockingIOError`` for any other."""
        return self._load(message_hashes, only_kept=True)

    def _load(
        self, message_hashes: Sequence[bytes], *, only_kept: bool = False
    ) -> dict[bytes, tuple[str, WakuMessage]]:
        index, files = self._current(), self._files
        if index is None or files is None:
            return {}
        by_file: dict[str, list[Any]] = defaultdict(list)
        for location in index.locate(message_hashes):
            by_file[location.path].append(location)
        loaded: dict[bytes, tuple[str, WakuMessage]] = {}
        size = 0
        for path, locations in by_file.items():
            values = files.values(path, [location.row for location in locations], only_kept=only_kept)
            size += sum(map(len, values))
            if only_kept and size > AT_ONCE_BYTES:
                raise BlockingIOError
            for location, value in zip(locations, values, strict=True):
                message = decode_waku_message(value)
                if not isinstance(message, Malformed):
                    loaded[location.message_hash] = (location.pubsub_topic, message)
        return loaded


class _CachedReading:
    """A source that reads payloads only from memory."""

    def __init__(self, source: DeltaSource) -> None:
        self.position, self.select, self.load = source.position, source.select, source.load_kept


def _read_index_rows(fragment: Any) -> Iterator[IndexRow]:
    begin = 0
    for batch in fragment.to_batches(columns=_INDEX_COLUMNS, batch_size=BATCH_ROWS):
        columns = [batch.column(name).to_pylist() for name in _INDEX_COLUMNS]
        for row, (timestamp_ns, message_hash, pubsub_topic, content_topic, ephemeral) in enumerate(
            zip(*columns, strict=True), begin
        ):
            if message_hash is not None and len(message_hash) == 32 and not ephemeral:
                yield IndexRow(timestamp_ns or 0, message_hash, pubsub_topic or "", content_topic or "", row)
        begin += batch.num_rows
