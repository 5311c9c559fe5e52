"""Rebuilds the payloads whose segments are complete within one micro-batch, without keyed state.

The combiner is a function for ``mapInArrow`` after a shuffle by ``entire_message_hash``. It writes the files of the
sets it completes, and returns rows for the keyed state: sets that stay open, segments of hashes that are already in
state, keys whose timers are due by a tick, and its own reports to the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.lake.schema import ARROW_TYPES, Row
from reliable_channel.lake.tables import CHANNEL_KEY, RECORD_KEY, SDS_MESSAGES
from reliable_channel.pipeline import guarded
from reliable_channel.pipeline.gc_paused import gc_paused
from reliable_channel.pipeline.reassembly import memory, timers
from reliable_channel.pipeline.reassembly.set_results import Message, failure_result
from reliable_channel.pipeline.reassembly.sets import HashSets, SegmentDecryptor, SegmentRow
from reliable_channel.pipeline.result_files import RESULTS, Result, ResultFiles, group_by_table, pack

FLUSH_BYTES = 16 * 1024 * 1024
"""The combiner writes payloads, and returns open sets, when it holds this many bytes of them."""

REPORTS = b"#"
"""The state key under which the combiner's reports pass through the keyed operator; hashes are longer."""

_TAKEN = (*RECORD_KEY, *CHANNEL_KEY, "sender_id", "sds_id", "segment_dialect", "content", "encrypted")
ROW_COLUMNS = {
    "state_key": "BINARY",
    "kind": "STRING",
    **SDS_MESSAGES.types(*_TAKEN),
    "lamport_timestamp": "STRING",  # pandas converts numbers beside a null to floats, which are inexact for large ones
    "event_us": "BIGINT",
    "sub_order": "INT",
}
"""The input of the combiner and of the keyed state. ``kind``: ``segment``, ``sets``, ``results`` or ``tick``."""

TICK, TICKS = "tick", b"#tick"
"""The kind of a tick row, and the shuffle key of all ticks: one combiner task receives them."""

ROW_SCHEMA = pa.schema([(name, ARROW_TYPES[type_]) for name, type_ in ROW_COLUMNS.items()])


class Combiner:
    """Rebuilds, in record order, the sets that are complete within the micro-batch.

    If a hash is in state, all its rows go to the state; otherwise its sets start from the completed sends in
    ``reassembled_messages``. Both give the result of one large micro-batch, so the cut into micro-batches changes
    nothing."""

    def __init__(self, settings: Settings) -> None:
        self._paths, self._config = settings.paths, settings.segmentation
        self._decrypt = SegmentDecryptor(settings.channels)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the segments and ticks of one task; yields rows of ``ROW_SCHEMA`` for the keyed state."""
        segments: list[pa.RecordBatch] = []
        ticks: list[dict[str, Any]] = []
        for batch in batches:
            is_tick = pc.equal(batch.column("kind"), TICK)
            if pc.any(is_tick).as_py():
                ticks += batch.filter(is_tick).to_pylist()
                batch = batch.filter(pc.invert(is_tick))
            if batch.num_rows:
                segments.append(batch)
        if segments:
            with gc_paused():
                yield from self._combine(_Segments(pa.Table.from_batches(segments)))
        if ticks and (due := self._due(ticks)):
            yield pa.RecordBatch.from_pylist(due, schema=ROW_SCHEMA)

    def _due(self, ticks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """One row for every key whose timer is due by a tick."""
        open_keys = timers.timers_of(self._paths)
        return [
            {**tick, "state_key": bytes.fromhex(key)}
            for tick in ticks
            for key in open_keys.due((tick["kafka_topic"], tick["kafka_partition"]), tick["event_us"])
        ]

    def _combine(self, segments: _Segments) -> Iterator[pa.RecordBatch]:
        in_state = timers.timers_of(self._paths)
        since_us = segments.oldest_us - self._config.completed_memory_ms * 1000
        done = memory.find_completed(self._paths, segments.by_hash.keys(), since_us, segments.places())
        to_state: list[bytes] = []
        open_sets = _OpenSets()
        with ResultFiles(self._paths) as files:
            written = _Written(files)
            for hash_ in segments.by_hash:
                if in_state.is_open(hash_.hex()):
                    to_state.append(hash_)
                    continue
                sets, results, failed = self._rebuild(segments.rows(hash_), done.get(hash_, ()))
                written.add(results, len(failed))
                if sets.must_persist and (blob := sets.to_bytes()):
                    yield from open_sets.add(hash_, blob, segments.last_place(hash_))
            written.flush()
            reports = pack([*files.for_driver, *files.finish()])
            open_sets.rows += ({"state_key": REPORTS, "kind": RESULTS, "content": blob} for blob in reports)
        yield from open_sets.flush()
        if to_state:
            yield from segments.of(to_state)

    def _rebuild(
        self, rows: Iterator[SegmentRow], known: Sequence[memory.Done]
    ) -> tuple[HashSets, list[Result], list[int]]:
        """Apply the rows of one hash; returns its sets, their results, and the positions of rows on which the program
        failed."""

        def begin(blob: bytes | None) -> HashSets:
            return HashSets(self._config, known) if blob is None else HashSets.from_bytes(blob, self._config)

        steps = guarded.apply_guarded(begin(None), begin, rows, self._take, _failure_row)
        results, (sets, failed) = guarded.collect(steps)
        return sets, results, failed

    def _take(self, sets: HashSets, row: SegmentRow) -> list[Result]:
        return sets.add(self._decrypt(row))


def _failure_row(sets: HashSets, row: SegmentRow, error: Exception) -> Row:
    return failure_result({**row._asdict(), "kind": "segment"}, sets.scope(), guarded.kind_of(error))


class _Segments:
    """The segments of one task, grouped by hash, in record order within each hash."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._columns = {name: _values(name, table[name]) for name in SegmentRow._fields}
        self.by_hash: dict[bytes, list[int]] = {}
        keys = table["state_key"].to_pylist()
        order = pc.sort_indices(table, [("kafka_partition", "ascending"), ("kafka_offset", "ascending")])
        for index in order.to_pylist():
            self.by_hash.setdefault(keys[index], []).append(index)

    @property
    def oldest_us(self) -> int:
        """The earliest event time (µs)."""
        return int(pc.min(self._table["event_us"]).as_py())

    def places(self) -> set[tuple[Any, ...]]:
        """The Kafka coordinates of all segments."""
        return set(zip(*(self._columns[name] for name in RECORD_KEY), strict=True))

    def rows(self, hash_: bytes) -> Iterator[SegmentRow]:
        """The segments of a hash, in record order."""
        for index in self.by_hash[hash_]:
            yield SegmentRow._make([values[index] for values in self._columns.values()])

    def last_place(self, hash_: bytes) -> dict[str, Any]:
        """The Kafka coordinates of the last segment of a hash."""
        return {name: self._columns[name][self.by_hash[hash_][-1]] for name in RECORD_KEY}

    def of(self, hashes: Sequence[bytes]) -> list[pa.RecordBatch]:
        """The unchanged rows of some hashes."""
        indices = [index for hash_ in hashes for index in self.by_hash[hash_]]
        batches: list[pa.RecordBatch] = self._table.take(pa.array(indices)).cast(ROW_SCHEMA).to_batches()
        return batches


class _Written:
    """Buffers results, and writes them to their tables when they exceed :data:`FLUSH_BYTES`, and at the end."""

    def __init__(self, files: ResultFiles) -> None:
        self._files = files
        self._results: list[Result] = []
        self._bytes = 0

    def add(self, results: Sequence[Result], failed: int) -> None:
        self._results += results
        if failed:
            self._results.append(guarded.FailedRows(failed))
        self._bytes += sum(len(each.payload or b"") for each in results if isinstance(each, Message))
        if self._bytes > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        self._files.add(group_by_table(self._results))
        self._results, self._bytes = [], 0


class _OpenSets:
    """Buffers rows for the keyed state, and returns them when they exceed :data:`FLUSH_BYTES`, and at the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, hash_: bytes, blob: bytes, place: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        self.rows.append({"state_key": hash_, "kind": "sets", "content": blob, "sub_order": 0, **place})
        self._bytes += len(blob)
        if self._bytes > FLUSH_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        if self.rows:
            yield pa.RecordBatch.from_pylist(self.rows, schema=ROW_SCHEMA)
            self.rows, self._bytes = [], 0


def _values(name: str, column: pa.ChunkedArray) -> list[Any] | _OneByOne:
    match name:
        case "content":
            return _OneByOne(column)
        case "lamport_timestamp":
            return [None if digits is None else int(digits) for digits in column.to_pylist()]
        case _:
            return list(column.to_pylist())


class _OneByOne:
    """A column of payloads, converted to Python objects one at a time; the other columns are small and converted at
    once."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __getitem__(self, index: int) -> Any:
        return self._column[index].as_py()
