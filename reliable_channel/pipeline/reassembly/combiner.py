"""Rebuilds the payloads whose segments are complete within one micro-batch, without keyed state: most messages are, and
a key that is touched costs milliseconds (docs/decisions.md, *The shape*).

The combiner is a function for ``mapInArrow`` after a shuffle by ``entire_message_hash``. It writes the files of the
sets it completes, and returns what the keyed state must process (:class:`ForState`): sets that stay open, segments of
hashes that are already in state, ticks by which something of a hash is due. Ticks have no hash, so one task receives
them all. The combiner's reports to the driver have none either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings, Settings
from reliable_channel.lake.open_hashes import OpenHashes, read_open_hashes
from reliable_channel.lake.tables import CHANNEL_KEY, RECORD_KEY, SDS_MESSAGES
from reliable_channel.pipeline.delta import running
from reliable_channel.pipeline.gc_paused import gc_paused
from reliable_channel.pipeline.handover import deserialize, serialize
from reliable_channel.pipeline.reassembly import memory
from reliable_channel.pipeline.reassembly.set_results import Message
from reliable_channel.pipeline.reassembly.sets import (
    HashSets,
    InputRow,
    SegmentDecryptor,
    SegmentRow,
    Tick,
    take_at_once,
    take_rows,
)
from reliable_channel.pipeline.result_files import Result, ResultFiles, gather, group_by_table, pack

FLUSH_BYTES = 16 * 1024 * 1024
"""The combiner writes payloads, and returns what is for the keyed state, when it holds this many bytes of them."""

HASH = "entire_message_hash"
"""The key of the state. Null for ticks, and for the combiner's reports, which pass through the keyed operator."""

_TAKEN = (*RECORD_KEY, *CHANNEL_KEY, "family", "sender_id", "sds_id", "lamport_timestamp", "segment_dialect", "content")
INPUT_COLUMNS = {
    **{name: SDS_MESSAGES.by_name()[name].type for name in (HASH, *_TAKEN, "encrypted")},
    "event_us": "BIGINT",
}
"""The input of the combiner: segments and ticks."""

_OUTPUT_SCHEMA = pa.schema([(HASH, pa.binary()), ("given", pa.binary())])


_Given = tuple[bytes | None, bytes]
"""A hash, and what its state is given; without a hash, a report to the driver."""


class ForState(NamedTuple):
    """What the keyed state of a hash is given: ``sets``, if it has none yet (else empty), and rows in record order.

    One binary column: a key of ``applyInPandasWithState`` costs what its columns cost (docs/decisions.md)."""

    sets: bytes
    rows: Sequence[InputRow]

    def to_bytes(self) -> bytes:
        """Serialize it for :meth:`from_bytes`."""
        return serialize(tuple(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> ForState:
        """Restore the result of :meth:`to_bytes`."""
        return cls(*deserialize(data))


class Combiner:
    """Rebuilds, in record order, the sets that are complete within the micro-batch.

    If a hash is in state, all its rows go to the state; otherwise its sets start from the completed sends in
    ``reassembled_messages``. Both give the result of one large micro-batch, so the cut into micro-batches changes
    nothing."""

    def __init__(self, settings: Settings) -> None:
        self._paths, self._config = settings.paths, settings.segmentation
        self._decrypt = SegmentDecryptor(settings.channels)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the segments and ticks of one task; yields hashes with what the state of each is given."""
        segments: list[pa.RecordBatch] = []
        ticks: list[Tick] = []
        for batch in batches:
            is_tick = batch.column(HASH).is_null()
            if is_tick.true_count:
                ticks += [Tick(**row) for row in batch.filter(is_tick).select(Tick._fields).to_pylist()]
                batch = batch.filter(pc.invert(is_tick))
            if batch.num_rows:
                segments.append(batch)
        if not segments and not ticks:
            return
        given = self._list_given(segments, ticks, read_open_before(self._paths))
        for some in gather(given, lambda each: len(each[1]), FLUSH_BYTES):
            columns = [pa.array(column, pa.binary()) for column in zip(*some, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=_OUTPUT_SCHEMA)

    def _list_given(
        self, segments: Sequence[pa.RecordBatch], ticks: Iterable[Tick], in_state: OpenHashes
    ) -> Iterator[_Given]:
        if segments:
            with gc_paused():
                yield from self._combine(_Segments(pa.Table.from_batches(segments)), in_state)
        for hash_, some in _group_by_due_hash(ticks, in_state).items():
            yield hash_, ForState(b"", some).to_bytes()

    def _combine(self, segments: _Segments, in_state: OpenHashes) -> Iterator[_Given]:
        """Pass the rows of hashes in state on; rebuild all other hashes from their rows and from what was completed
        before, and pass on only the sets that stay open."""
        open_hashes = in_state.select_open(segments.by_hash)
        since_us = segments.oldest_us - self._config.completed_memory_ms * 1000
        done = memory.find_completed(self._paths, segments.by_hash.keys(), since_us, segments.topic_partitions())
        with ResultFiles(self._paths) as files:
            written = _Written(files)
            for hash_ in segments.by_hash:
                if hash_ in open_hashes:
                    # In parts: a stranger can send any number of segments of a hash.
                    for some in gather(segments.rows(hash_), lambda row: len(row.content), FLUSH_BYTES):
                        yield hash_, ForState(b"", some).to_bytes()
                    continue
                sets, results = self._rebuild(segments, hash_, done.get(hash_, ()))
                written.add(results)
                if sets is not None and sets.must_persist and (blob := sets.to_bytes()):
                    yield hash_, ForState(blob, ()).to_bytes()
            written.flush()
            for blob in pack([*files.for_driver, *files.finish()]):
                yield None, blob

    def _rebuild(
        self, segments: _Segments, hash_: bytes, known: Sequence[memory.Done]
    ) -> tuple[HashSets | None, list[Result]]:
        """Apply the rows of one hash; returns its sets, or ``None`` if nothing is to be remembered, and their
        results."""
        if not known:
            at_once = take_at_once(segments.rows(hash_), len(segments.by_hash[hash_]), self._config)
            if at_once is not None:
                return None, at_once

        def begin(blob: bytes | None) -> HashSets:
            return HashSets(self._config, known) if blob is None else HashSets.from_bytes(blob, self._config)

        return take_rows(begin(None), begin, segments.rows(hash_), self._decrypt)


def read_open_before(paths: PathSettings) -> OpenHashes:
    """The hashes with state before the running micro-batch."""
    now = running()
    return OpenHashes() if now is None else read_open_hashes(paths, now[1] - 1)


def _group_by_due_hash(ticks: Iterable[Tick], in_state: OpenHashes) -> dict[bytes, list[Tick]]:
    """Hash → the ticks by which something of it is due."""
    due: dict[bytes, list[Tick]] = {}
    for tick in ticks:
        for hash_ in in_state.due((tick.kafka_topic, tick.kafka_partition), tick.event_us):
            due.setdefault(hash_, []).append(tick)
    return due


class _Segments:
    """The segments of one task, grouped by hash, in record order within each hash."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._columns: dict[str, Any] = {
            name: _OneByOne(table[name]) if name == "content" else table[name].to_pylist()
            for name in SegmentRow._fields
        }
        self.by_hash: dict[bytes, list[int]] = {}
        hashes = table[HASH].to_pylist()
        # A shuffle keeps no order. Every row is of one Kafka topic, so partition and offset are the record order.
        order = pc.sort_indices(table, [("kafka_partition", "ascending"), ("kafka_offset", "ascending")])
        for index in order.to_pylist():
            self.by_hash.setdefault(hashes[index], []).append(index)

    @property
    def oldest_us(self) -> int:
        """The earliest event time (µs)."""
        return int(pc.min(self._table["event_us"]).as_py())

    def topic_partitions(self) -> set[tuple[Any, ...]]:
        """The Kafka coordinates of all segments."""
        return set(zip(*(self._columns[name] for name in RECORD_KEY), strict=True))

    def rows(self, hash_: bytes) -> Iterator[SegmentRow]:
        """The segments of a hash, in record order."""
        for index in self.by_hash[hash_]:
            yield SegmentRow._make([values[index] for values in self._columns.values()])


class _Written:
    """Buffers results, and writes them to their tables when they exceed :data:`FLUSH_BYTES`, and at the end."""

    def __init__(self, files: ResultFiles) -> None:
        self._files = files
        self._results: list[Result] = []
        self._bytes = 0

    def add(self, results: Sequence[Result]) -> None:
        self._results += results
        self._bytes += sum(len(each.payload or b"") for each in results if isinstance(each, Message))
        if self._bytes > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        self._files.add_results(group_by_table(self._results))
        self._results, self._bytes = [], 0


class _OneByOne:
    """A column of payloads, converted to Python objects one at a time; the other columns are small and converted at
    once."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __getitem__(self, index: int) -> Any:
        return self._column[index].as_py()
