"""Reads single rows of the ``envelopes`` table's Parquet files, by the row numbers in the index.

A Parquet file is read by row group, so the ``value`` column of the most recently read groups is cached, bounded in
bytes: it serves the next page and most look-ups by hash. Of a row group that is too large for the cache only the
requested rows are held. Either is read a few rows at a time.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reliable_channel.lake.follow import LONG_ROWS

CACHE_BYTES = 192 * 1024 * 1024
GROUP_BYTES = 48 * 1024 * 1024
"""Larger row groups (bytes) are not cached."""

MOST_FILES = 1_000
"""Maximum number of files whose footers are cached."""

_COLUMN = "value"


class EnvelopeFiles:
    """The files of one table. ``filesystem`` is Arrow's, rooted at the table; thread-safe."""

    def __init__(self, filesystem: Any, cache_bytes: int = CACHE_BYTES, group_bytes: int = GROUP_BYTES) -> None:
        self._filesystem = filesystem
        self._cache_bytes, self._group_bytes = cache_bytes, group_bytes
        self._footers: OrderedDict[str, tuple[Any, list[int]]] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()
        self._reading = threading.BoundedSemaphore(2)
        """Limits concurrent reads, because each holds a whole row group in memory."""

    def values(self, path: str, rows: Sequence[int], *, only_kept: bool = False) -> list[bytes]:
        """Return the ``value`` of these rows of one file, in the given order. Raises ``OSError`` if the file is gone,
        Arrow's errors if it is damaged, and with ``only_kept`` ``BlockingIOError`` if the file would have to be
        read."""
        metadata, starts = self._footer(path, only_kept)
        wanted: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            wanted[bisect_right(starts, row) - 1].append(row)
        values: dict[int, bytes] = {}
        for group, in_group in wanted.items():
            offsets = [row - starts[group] for row in in_group]
            if only_kept and self._get_kept((path, group)) is None:
                raise BlockingIOError
            values |= zip(in_group, self._group_values(path, metadata, group, offsets), strict=True)
        return [values[row] for row in rows]

    def _group_values(self, path: str, metadata: Any, group: int, offsets: list[int]) -> list[bytes]:
        key = (path, group)
        kept = self._get_kept(key)
        if kept is None:
            with self._reading:
                kept = self._get_kept(key)  # another thread may have read it meanwhile
                if kept is None:
                    kept = self._read_group(path, metadata, group)
                    if kept is None:
                        return self._read_rows(path, metadata, group, offsets)
                    self._keep(key, kept)
        return [kept[offset].as_py() for offset in offsets]

    def _read_group(self, path: str, metadata: Any, group: int) -> Any | None:
        """All values of a row group, in one array with 64-bit offsets, because every access to a chunked array would
        search for the chunk; ``None`` if they are too large to be kept."""
        if _measure_column(metadata, group) > self._group_bytes:
            return None
        read, size = [], 0
        with self._iterate(path, metadata, group) as parts:
            for part in parts:
                size += part.nbytes
                if size > self._group_bytes:  # repeated values are once in the file
                    return None
                read.append(part.cast(pa.large_binary()))
        return pa.concat_arrays(read)

    def _read_rows(self, path: str, metadata: Any, group: int, offsets: list[int]) -> list[bytes]:
        values: dict[int, bytes] = {}
        begin, wanted = 0, {*offsets}
        with self._iterate(path, metadata, group) as parts:
            for part in parts:
                end = begin + len(part)
                values |= {offset: part[offset - begin].as_py() for offset in wanted if begin <= offset < end}
                if len(values) == len(wanted):
                    break
                begin = end
        return [values[offset] for offset in offsets]

    @contextmanager
    def _iterate(self, path: str, metadata: Any, group: int) -> Iterator[Iterator[Any]]:
        """The values of a row group, a few at a time."""
        with self._filesystem.open_input_file(path) as file:
            batches = pq.ParquetFile(file, metadata=metadata).iter_batches(
                LONG_ROWS, row_groups=[group], columns=[_COLUMN], use_threads=False
            )
            yield (batch.column(0) for batch in batches)

    def _footer(self, path: str, only_kept: bool) -> tuple[Any, list[int]]:
        with self._lock:
            if path in self._footers:
                self._footers.move_to_end(path)
                return self._footers[path]
        if only_kept:
            raise BlockingIOError
        with self._filesystem.open_input_file(path) as file:
            metadata = pq.read_metadata(file)
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        footer = metadata, list(accumulate(sizes[:-1], initial=0))
        with self._lock:
            self._footers[path] = footer
            while len(self._footers) > MOST_FILES:
                self._footers.popitem(last=False)
        return footer

    def _get_kept(self, key: tuple[str, int]) -> Any | None:
        with self._lock:
            group = self._groups.get(key)
            if group is not None:
                self._groups.move_to_end(key)
            return group

    def _keep(self, key: tuple[str, int], values: Any) -> None:
        with self._lock:
            if key not in self._groups:
                self._groups[key] = values
                self._kept_bytes += values.nbytes
            while self._kept_bytes > self._cache_bytes and len(self._groups) > 1:
                self._kept_bytes -= self._groups.popitem(last=False)[1].nbytes


def _measure_column(metadata: Any, group: int) -> int:
    """The uncompressed bytes of the ``value`` column of a row group, of repeated values once."""
    columns = metadata.row_group(group)
    return next(
        (
            int(columns.column(number).total_uncompressed_size)
            for number in range(columns.num_columns)
            if columns.column(number).path_in_schema == _COLUMN
        ),
        0,
    )
