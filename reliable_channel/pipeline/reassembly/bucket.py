"""Rebuilds payloads from the segments of one bucket of payload hashes. No Spark.

A set that is complete within the micro-batch leaves no state: ``reassembled_messages`` has all that must be remembered
of it. Of other hashes the bucket stores the sets, and when they have something due
(:mod:`reliable_channel.pipeline.keyed_state.due_times`).

If a hash is stored, its sets continue from there; otherwise from the completed sends in ``reassembled_messages``. Both
give the result of one large micro-batch, so the cut into micro-batches changes nothing.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from reliable_channel.config import PathSettings
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.lake.schema import Row
from reliable_channel.pipeline import guarded
from reliable_channel.pipeline.clock import TopicPartition
from reliable_channel.pipeline.keyed_state.due_times import Due, DueTimes
from reliable_channel.pipeline.reassembly import memory
from reliable_channel.pipeline.reassembly.set_results import failed_result
from reliable_channel.pipeline.reassembly.sets import STATE_VERSION, HashSets, SegmentRow
from reliable_channel.pipeline.result_files import Result

if TYPE_CHECKING:
    from reliable_channel.pipeline.keyed_state.buckets import BucketState

IN_TEXT = ("sds_kind", "entire_message_hash", *(name for name in SegmentRow._fields if name != "content"))
"""The columns of a row that are passed as one JSON text: Spark spends time on every column of every row."""

_PREFIX_BYTES = 8
_SETS = -1
"""The part under which the sets of a hash are stored."""


class Tick(NamedTuple):
    """How far (event time, µs) a Kafka partition has advanced."""

    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    event_us: int


class SetRules(NamedTuple):
    """How sets are rebuilt: the settings, the look-up of completed sends, and the decryption of a row."""

    config: SegmentationConfig
    paths: PathSettings
    decrypt: Callable[[SegmentRow], SegmentRow]


class StoredSets:
    """The stored sets of one bucket in one micro-batch. Raises ``RuntimeError`` for state of another version.

    The head names the hashes that are stored, by their first bytes: a micro-batch brings thousands of hashes, few are
    stored, and each look-up in Spark's state store takes a tenth of a millisecond."""

    def __init__(self, state: BucketState) -> None:
        self._state = state
        self._stored_head = state.head() or b""
        self._head = pb.SetsBucketProto.FromString(self._stored_head)
        if self._stored_head and self._head.version != STATE_VERSION:
            raise RuntimeError(
                f"Reassembly state of version {self._head.version} is unknown to this program (it writes"
                f" {STATE_VERSION}). Run the program that wrote it, or start over with `reliable-channel rebuild`."
            )
        self._dues = DueTimes(state, self._head.due)
        self._due: set[bytes] = set()

    @cached_property
    def _prefixes(self) -> Counter[bytes]:
        """Several hashes may have the same first bytes, so they are counted."""
        data = self._head.hashes
        return Counter(data[start : start + _PREFIX_BYTES] for start in range(0, len(data), _PREFIX_BYTES))

    def due(self, ticks: Iterable[Tick]) -> set[bytes]:
        """The hashes of which something may be due by these ticks, which are in record order."""
        last = {(tick.kafka_topic, tick.kafka_partition): tick.event_us for tick in ticks}
        self._due = {bytes.fromhex(key) for (key,), _ in self._dues.take(last)}
        return self._due

    def get(self, hash_: bytes) -> bytes | None:
        """The stored sets of a hash before this micro-batch; ``None`` if there are none."""
        return self._state.get(hash_, _SETS) if _prefix(hash_) in self._prefixes else None

    def put(self, hash_: bytes, sets: bytes | None, dues: Mapping[TopicPartition, int], before: _Before) -> None:
        """Store the sets of a hash (``None``: remove them), and enter the due times that have no entry."""
        for place, due_us in dues.items() if sets else ():
            entered = None if hash_ in self._due else before.dues.get(place)
            if entered is None or due_us < entered:
                self._dues.add(place, Due((hash_.hex(),)), due_us)
        if sets == before.stored:
            return
        if sets:
            self._state.put(hash_, _SETS, sets)
        else:
            self._state.remove(hash_, _SETS)
        self._prefixes[_prefix(hash_)] += bool(sets) - bool(before.stored)

    def close(self) -> None:
        """End the micro-batch: write the head, if it changed."""
        if "_prefixes" in self.__dict__:
            self._head.hashes = b"".join(sorted(self._prefixes.elements()))
        due = self._dues.write()
        del self._head.due[:]
        self._head.due.extend(due)
        self._head.version = STATE_VERSION
        head = self._head.SerializeToString()
        if head != self._stored_head and (self._stored_head or due or self._head.hashes):
            self._state.set_head(head)


def _prefix(hash_: bytes) -> bytes:
    return hash_[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, b"\0")


class _Before(NamedTuple):
    """The sets of a hash before the micro-batch."""

    stored: bytes | None
    dues: Mapping[TopicPartition, int]


def process(stored: StoredSets, frames: Iterable[pd.DataFrame], rules: SetRules) -> Iterator[Result]:
    """Apply a bucket's segments of a micro-batch, and its ticks to the hashes that have something due; yields the
    results."""
    segments, ticks = _in_record_order(frames)
    due = stored.due(ticks)
    blobs = {hash_: stored.get(hash_) for hash_ in segments}
    completed = _completed({hash_: segments[hash_] for hash_, blob in blobs.items() if blob is None}, rules)
    for hash_, rows in segments.items():
        steps: list[SegmentRow | Tick] = [*rows]
        if ticks:
            first = _place(rows[0])
            steps += [tick for tick in ticks if _place(tick) >= first]
            steps.sort(key=_place)
        yield from _process_hash(stored, hash_, blobs.pop(hash_), completed.get(hash_, ()), steps, rules)
    for hash_ in sorted(due - segments.keys()):
        if (blob := stored.get(hash_)) is not None:
            yield from _process_hash(stored, hash_, blob, (), ticks, rules)


def _process_hash(
    stored: StoredSets,
    hash_: bytes,
    blob: bytes | None,
    completed: Sequence[memory.Done],
    steps: Sequence[SegmentRow | Tick],
    rules: SetRules,
) -> Iterator[Result]:
    """Apply the segments of a hash, and ticks, in record order."""

    def restored(state: bytes | None) -> HashSets:
        found = blob if state is None else state
        return HashSets(rules.config, completed) if found is None else HashSets.from_bytes(found, rules.config)

    def take(sets: HashSets, row: SegmentRow | Tick) -> list[Row]:
        if isinstance(row, SegmentRow):
            return sets.add(rules.decrypt(row))
        return sets.tick((row.kafka_topic, row.kafka_partition), row.kafka_offset, row.event_us)

    sets = restored(None)
    before = _Before(blob, {} if blob is None else sets.dues())
    sets, failed = yield from guarded.taken(sets, restored, steps, take, _failed)
    if failed:
        yield guarded.FailedRows(len(failed))
    if blob is not None or sets.must_persist:
        stored.put(hash_, sets.to_bytes() or None, sets.dues(), before)


def _failed(sets: HashSets, row: SegmentRow | Tick, error: Exception) -> Row:
    kind = "segment" if isinstance(row, SegmentRow) else "tick"
    return failed_result({**row._asdict(), "kind": kind}, sets.scope(), guarded.kind_of(error))


def _completed(segments: Mapping[bytes, Sequence[SegmentRow]], rules: SetRules) -> dict[bytes, list[memory.Done]]:
    """The sends of these hashes that earlier micro-batches completed and that are still remembered."""
    if not segments:
        return {}
    rows = [row for some in segments.values() for row in some]
    since_us = min([row.event_us for row in rows]) - rules.config.completed_memory_ms * 1000
    places = {(row.kafka_topic, row.kafka_partition, row.kafka_offset) for row in rows}
    return memory.completed_before(rules.paths, segments.keys(), since_us, places)


def _place(row: SegmentRow | Tick) -> tuple[int, int, bool]:
    """The place in record order; a tick follows the last record that it covers."""
    return row.kafka_partition, row.kafka_offset, isinstance(row, Tick)


def _in_record_order(frames: Iterable[pd.DataFrame]) -> tuple[dict[bytes, list[SegmentRow]], list[Tick]]:
    """A bucket's segments by hash, and its ticks."""
    segments: dict[bytes, list[SegmentRow]] = {}
    ticks: list[Tick] = []
    for frame in frames:
        for text, content in zip(frame["row"].tolist(), frame["content"].tolist(), strict=True):
            fields = json.loads(text)
            if fields["sds_kind"] == "tick":
                ticks.append(Tick(*(fields[name] for name in Tick._fields)))
            else:
                row = SegmentRow._make([*map(fields.get, SegmentRow._fields)])._replace(content=bytes(content))
                segments.setdefault(b64decode(fields["entire_message_hash"]), []).append(row)
    for rows in (*segments.values(), ticks):
        rows.sort(key=_place)  # type: ignore[attr-defined]
    return segments, ticks
