"""The keyed state of reassembly: all segment sets of one ``entire_message_hash``, as Reassemblers of the core. No
Spark.

The combiner uses it for the rows of a hash within one micro-batch, the stateful function for sets that stay open.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from google.protobuf.message import DecodeError

from reliable_channel.config import ChannelsSettings
from reliable_channel.core import segmentation
from reliable_channel.core.errors import LocalError
from reliable_channel.core.segmentation.at_once import Arrival, complete_at_once
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.segment import Dialect, decode_segment
from reliable_channel.lake.schema import Row
from reliable_channel.lake.tables import TopicPartition
from reliable_channel.pipeline import guarded
from reliable_channel.pipeline.ingest.decryption import PayloadDecryptor
from reliable_channel.pipeline.reassembly.memory import MAX_COMPLETED_OF_HASH, Done
from reliable_channel.pipeline.reassembly.set_results import (
    GIVEN_UP,
    OVERDUE,
    Message,
    Record,
    make_completed_results,
    make_event_result,
    make_failure_result,
    make_incomplete_result,
    make_mismatch_result,
)

STATE_VERSION = 3
"""The version of the stored bytes, and of the file that names the hashes with state (:mod:`~.lake.open_hashes`)."""

SENIORS = 16
"""The scopes of a hash with the oldest open sets have at least half of its bounds among themselves, in equal parts."""

_ALONE = {dialect.value: frozenset({dialect}) for dialect in Dialect}


class SegmentRow(NamedTuple):
    """One segment as input of the stateful function. Times: event time, µs."""

    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    event_us: int
    pubsub_topic: str
    content_topic: str
    channel_id: str
    family: str
    sender_id: str
    sds_id: str
    lamport_timestamp: int | None
    segment_dialect: str
    content: bytes
    encrypted: bool = False

    @property
    def scope(self) -> segmentation.Scope:
        return (self.pubsub_topic, self.content_topic, self.channel_id, self.family, self.sender_id)


class Tick(NamedTuple):
    """How far (event time, µs) a Kafka partition has advanced, after the record at ``kafka_offset``."""

    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    event_us: int


InputRow = SegmentRow | Tick


class Held(NamedTuple):
    """What open sets hold."""

    buffered_bytes: int
    open_sets: int


class SegmentDecryptor:
    """Replaces the ciphertext in a segment's row by its plaintext (docs/pipeline.md *Encryption*). If no key decrypts a
    row any more, it stays unchanged and will not decode as a segment. Each process reads the keys itself; they are not
    pickled."""

    def __init__(self, channels: ChannelsSettings) -> None:
        self._channels = channels
        self._decryptor = PayloadDecryptor()

    def __call__(self, row: SegmentRow) -> SegmentRow:
        topic = self._channels.topic_for(row.content_topic, row.pubsub_topic) if row.encrypted else None
        if topic is None:
            return row
        content = self._decryptor.open_content(row.content, topic, row.pubsub_topic, row.content_topic)
        return row if content is None else row._replace(content=content)

    def __reduce__(self) -> tuple[type[SegmentDecryptor], tuple[ChannelsSettings]]:
        # Without the decryptor, which has the keys once it has read them.
        return SegmentDecryptor, (self._channels,)


class HashSets:
    """All segment sets of one hash, with one Reassembler per scope. A scope's rows come from one Kafka partition and so
    in order, while the times of different partitions must not expire each other's sets. All scopes together are bounded
    like one sender, because one hash is one state; of their completed sends the newest are remembered."""

    def __init__(self, config: segmentation.SegmentationConfig, done: Iterable[Done] = ()) -> None:
        """``done``: sends that were completed earlier, in the order of completion."""
        self._config = config
        self._scopes: dict[segmentation.Scope, tuple[TopicPartition, segmentation.Reassembler]] = {}
        self._known: set[tuple[segmentation.Scope, str]] = set()
        self._must_persist = False
        self._held = Held(0, 0)
        """What the open sets of all scopes hold. A stranger may have thousands of scopes, so nobody adds them up."""
        self._most_completed = 0
        """No more completed sends than this are remembered; fewer after some are forgotten by time."""
        for topic_partition, send in done:
            self._get_reassembler(send.scope, topic_partition).remember(send)
            self._most_completed += 1
            self._known.update((send.scope, i) for i in send.sds_ids if i is not None)
        self._limit_completed()

    def add(self, row: SegmentRow) -> list[Row]:
        """Apply one segment, in record order; returns rows of tables, and ``ReportedSet``. Timers due before it run
        first."""
        record, scope = (row.kafka_topic, row.kafka_partition, row.kafka_offset), row.scope
        reassembler = self._get_reassembler(scope, record[:2])
        now = row.event_us // 1000
        results = self._run_timers(reassembler, record, now) if reassembler.may_be_due(now) else []
        # In the dialect that ingest has recorded, whatever is configured now.
        segment = decode_segment(row.content, _ALONE[row.segment_dialect])
        if isinstance(segment, Malformed):  # ingest has decoded it, so these are not the bytes that ingest wrote
            return results
        before = _measure(reassembler)
        events = reassembler.add(segment, now, scope=scope, sds_id=row.sds_id, lamport=row.lamport_timestamp)
        self._count(reassembler, before)
        if len(self._scopes) > 1:
            self._make_room(events)
        results += [result for event in events for result in self._make_results(event, record, now)]
        if row.encrypted:
            return [r._replace(payload=None) if isinstance(r, Message) else r for r in results]
        return results

    def _make_room(self, events: list[segmentation.SegmentationEvent]) -> None:
        """Keep the bounds of a hash that several scopes share. With a single scope, its Reassembler keeps them."""
        while self._held.buffered_bytes > (bound := self._config.max_buffered_bytes_per_sender):
            self._evict(bound, attrgetter("buffered_bytes"), events)
        while self._held.open_sets > (bound := self._config.max_open_sets):
            self._evict(bound, attrgetter("open_sets"), events)

    def _evict(
        self,
        bound: int,
        count: Callable[[segmentation.Reassembler], int],
        events: list[segmentation.SegmentationEvent],
    ) -> None:
        """Evict a set of the scope that holds most."""
        every = [each for _, each in self._scopes.values() if each.open_sets]
        # Names are free, and with many every share is small. Nobody knows the hash before its first sender.
        seniors = heapq.nsmallest(SENIORS, every, key=attrgetter("open_since"))
        safe = {each for each in seniors if count(each) <= bound // (2 * SENIORS)}
        greediest = max((each for each in every if each not in safe), key=count)
        before = _measure(greediest)
        greediest.evict(events)
        self._count(greediest, before)

    def _count(self, reassembler: segmentation.Reassembler, before: Held) -> None:
        """Add to the sums what a Reassembler holds more than ``before``."""
        now = _measure(reassembler)
        self._held = Held(*(held + new - old for held, new, old in zip(self._held, now, before, strict=True)))

    def _run_timers(self, reassembler: segmentation.Reassembler, record: Record, until: int) -> list[Row]:
        """Run every timer due by ``until`` (ms) at its own due time, so that late ticks equal punctual ones."""
        before = _measure(reassembler)
        results: list[Row] = []
        while (due := reassembler.next_due()) is not None and due <= until:
            for event in reassembler.expire(due):
                results += self._make_results(event, record, until)
        self._count(reassembler, before)
        return results

    def _limit_completed(self) -> None:
        """Forget the oldest completed sends above :data:`~.memory.MAX_COMPLETED_OF_HASH`."""
        if self._most_completed <= MAX_COMPLETED_OF_HASH:
            return
        times = [(at, scope) for scope, (_, each) in self._scopes.items() for at in each.list_completed_times()]
        self._most_completed = min(len(times), MAX_COMPLETED_OF_HASH)
        if (excess := len(times) - MAX_COMPLETED_OF_HASH) <= 0:
            return
        for scope, count in Counter(scope for _, scope in heapq.nsmallest(excess, times)).items():
            _, reassembler = self._scopes[scope]
            reassembler.forget_completed(count)
            if reassembler.next_due() is None:
                del self._scopes[scope]

    def _get_reassembler(self, scope: segmentation.Scope, topic_partition: TopicPartition) -> segmentation.Reassembler:
        if scope not in self._scopes:
            self._scopes[scope] = (topic_partition, segmentation.Reassembler(self._config))
        return self._scopes[scope][1]

    def tick(self, topic_partition: TopicPartition, offset: int, now_us: int) -> list[Row]:
        """Run the timers due by ``now_us`` (µs) for the scopes in one Kafka partition."""
        results: list[Row] = []
        for reassembler in [each for where, each in self._scopes.values() if where == topic_partition]:
            results += self._run_timers(reassembler, (*topic_partition, offset), now_us // 1000)
        return results

    @property
    def must_persist(self) -> bool:
        """Whether it holds anything that ``reassembled_messages`` lacks and must therefore be stored in state."""
        return self._must_persist or any(reassembler.open_sets for _, reassembler in self._scopes.values())

    @property
    def is_blank(self) -> bool:
        """Whether it holds and remembers nothing."""
        return not self.dues()

    def scope(self) -> segmentation.Scope | None:
        """The scope of one of the sets, or ``None`` if there are none."""
        return next(iter(self._scopes), None)

    def dues(self) -> dict[TopicPartition, int]:
        """Kafka partition → when its next timer is due (µs)."""
        due_by_partition: dict[TopicPartition, int] = {}
        for topic_partition, reassembler in self._scopes.values():
            due = reassembler.next_due()
            if due is not None:
                due_by_partition[topic_partition] = min(due * 1000, due_by_partition.get(topic_partition, due * 1000))
        return due_by_partition

    def to_bytes(self) -> bytes:
        """Serialize the state; empty if it holds and remembers nothing."""
        scopes = [
            pb.ScopeStateProto(
                scope=scope,
                kafka_topic=topic_partition[0],
                kafka_partition=topic_partition[1],
                reassembler=r.to_bytes(),
            )
            for scope, (topic_partition, r) in self._scopes.items()
            if r.next_due() is not None
        ]
        return pb.HashStateProto(scopes=scopes).SerializeToString() if scopes else b""

    @classmethod
    def from_bytes(cls, data: bytes, config: segmentation.SegmentationConfig) -> HashSets:
        """Restore the result of :meth:`to_bytes`, which must be stored again. Raises ``LocalError`` for any other
        bytes."""
        restored = cls(config)
        restored._must_persist = True
        try:
            scopes = pb.HashStateProto.FromString(data).scopes
        except DecodeError as error:
            raise LocalError(
                f"Reassembly state cannot be read: {error}.", "Start over with `reliable-channel rebuild`."
            ) from error
        for scope in scopes:
            reassembler = segmentation.Reassembler.from_bytes(scope.reassembler, config)
            restored._scopes[tuple(scope.scope)] = ((scope.kafka_topic, scope.kafka_partition), reassembler)
            restored._count(reassembler, Held(0, 0))
            restored._most_completed += len(reassembler.list_completed_times())
        return restored

    def _forget_lost(self, scope: segmentation.Scope) -> None:
        """Drop what a Reassembler remembers of a set that it has given up: an observer reports what arrives later, and
        a stranger with many names could fill the state of one hash with such memories."""
        self._must_persist = True
        if scope in self._scopes:
            self._scopes[scope][1].forget_lost()

    def _make_results(self, event: segmentation.SegmentationEvent, record: Record, now: int) -> Iterator[Row]:
        match event:
            case segmentation.MessageCompleted():
                made = list(make_completed_results(event, record, self._config))
                ids = made[0].sds_ids
                send = segmentation.CompletedSend(
                    event.scope,
                    event.entire_message_hash,
                    event.send,
                    event.data_count,
                    event.first_lamport if event.one_send else None,
                    event.completed_at,
                    tuple(ids),
                )
                self._get_reassembler(event.scope, record[:2]).remember(send)
                self._most_completed += 1
                self._limit_completed()
                self._known.update((event.scope, i) for i in ids if i is not None)
                yield from made
            # A late copy under an id that the message's row in reassembled_messages lacks: only the state can keep it.
            case segmentation.SegmentDuplicate(late=True) if (event.scope, event.sds_id) not in self._known:
                self._known.add((event.scope, event.sds_id))
                self._must_persist = True
            case segmentation.SetOverdue():
                self._must_persist = True
                yield make_incomplete_result(event.incomplete, OVERDUE, "silent", event.overdue_at)
            case segmentation.SetExpired(incomplete, at):
                self._forget_lost(event.incomplete.scope)
                yield make_incomplete_result(incomplete, GIVEN_UP, "expired", at)
            case segmentation.SetEvicted(incomplete, why, at):
                self._forget_lost(event.incomplete.scope)
                yield make_incomplete_result(incomplete, GIVEN_UP, "over_limit", at, why.value)
            case segmentation.HashMismatch():
                yield make_mismatch_result(event, record, now)
            case segmentation.SegmentRefused():
                yield make_event_result(event, "segment_refused", event.reason.value, record, now)
            case segmentation.SegmentConflict():
                detail = "other bytes under an id that is held"
                yield make_event_result(event, "segment_conflict", detail, record, now)
            case segmentation.PoisonedSegmentExcluded():
                self._must_persist = True
                detail = "not a segment of the payload with this hash"
                yield make_event_result(event, "poisoned_segment", detail, record, now)


def take_at_once(rows: Iterator[SegmentRow], count: int, config: segmentation.SegmentationConfig) -> list[Row] | None:
    """The results of the ``count`` rows of a hash about which nothing else is known, if they are one message whose
    segments arrive once each and in order: those of :func:`take_rows`, which would leave nothing to remember. Else
    ``None``."""
    first = row = next(rows)
    scope = first.scope

    def arrivals() -> Iterator[Arrival]:
        nonlocal row
        for row in chain((first,), rows):
            if row.encrypted or row.kafka_partition != first.kafka_partition or row.scope != scope:
                return
            segment = decode_segment(row.content, _ALONE[row.segment_dialect])
            yield segment, row.event_us // 1000, row.sds_id, row.lamport_timestamp

    try:
        completed = complete_at_once(scope, arrivals(), count, config)
        return None if completed is None else [*make_completed_results(completed, row[:3], config)]
    except Exception:  # take_rows meets it too, and sets the row aside
        return None


def take_rows(
    sets: HashSets,
    restore: Callable[[bytes | None], HashSets],
    rows: Iterable[InputRow],
    decrypt: Callable[[SegmentRow], SegmentRow],
) -> tuple[HashSets, list[Row]]:
    """Apply the rows of a hash, in record order; returns its sets after them, and the results. A row on which the
    program fails becomes a ``channel_events`` row. ``restore``: as for :func:`.guarded.apply_guarded`."""

    def take(sets: HashSets, row: InputRow) -> list[Row]:
        if isinstance(row, SegmentRow):
            return sets.add(decrypt(row))
        return sets.tick((row.kafka_topic, row.kafka_partition), row.kafka_offset, row.event_us)

    results, (sets, failed) = guarded.collect(guarded.apply_guarded(sets, restore, rows, take, _make_failure_row))
    return sets, [*results, guarded.FailedRows(len(failed))] if failed else results


def _make_failure_row(sets: HashSets, row: InputRow, error: Exception) -> Row:
    scope, sds_id = (row.scope, row.sds_id) if isinstance(row, SegmentRow) else (sets.scope(), None)
    record = (row.kafka_topic, row.kafka_partition, row.kafka_offset)
    return make_failure_result(scope, sds_id, guarded.kind_of(error), row.event_us, record)


def _measure(reassembler: segmentation.Reassembler) -> Held:
    return Held(reassembler.buffered_bytes, reassembler.open_sets)
