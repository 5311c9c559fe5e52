"""The adapter between the ack job's keyed state and the core: one channel at this point of observation.

Rows of ``sds_input`` in, rows of the ack job's tables out; pure Python around :class:`reliable_channel.sds.SdsChannel`.
It adds what SDS does not know: where a message stands in Kafka, and which application message a segment belongs to. An
application message is delivered when it has been rebuilt and SDS has delivered k of its segments (design.md *What
"delivered" means*).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reliable_channel.pipeline.ack import delivery_rows
from reliable_channel.pipeline.ack import observer_rows as rows
from reliable_channel.pipeline.ack.observed import (
    InputRow,
    Output,
    hash_of,
    message_key,
    row_from_json,
    row_to_json,
)
from reliable_channel.pipeline.ack.seen import Seen, SeenMessages
from reliable_channel.sds import (
    Acknowledged,
    Delivered,
    DependencyBeforeObservation,
    DependencyLost,
    DuplicateSeen,
    EphemeralReceived,
    Event,
    MissingDependency,
    RefetchDue,
    RepairRequestSeen,
    SdsChannel,
    SdsConfig,
)
from reliable_channel.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.wire.sds import SdsMessage

STATE_VERSION = 2
MAX_SETTLED = 2_000
"""SDS messages that are delivered, of which the place is still remembered, for acknowledgements. Those of application
messages that wait may be more."""
MAX_UNSETTLED = 20_000
"""SDS messages not yet delivered, of which the place is remembered."""
MAX_PENDING = 2_000
MAX_FINISHED = 2_000
DAY_MS = 24 * 3_600_000

ChannelKey = tuple[str, str, str]
"""Pubsub topic, content topic, channel id."""


class ChannelObserver:
    """One channel. ``key`` is (pubsub topic, content topic, channel id).

    A channel that was silent for ``expiry_ms`` (``None``: for ever) rests: of its state only the counters and how far
    it came are left, so that nothing is delivered twice, whenever a store brings it back."""

    def __init__(
        self, key: ChannelKey, participant_id: str | None, config: SdsConfig, expiry_ms: int | None = None
    ) -> None:
        self._key = key
        self._columns: dict[str, Any] = dict(zip(("pubsub_topic", "content_topic", "channel_id"), key, strict=True))
        self._channel = SdsChannel(key[2], participant_id, config)
        self._participant_id = participant_id
        self._expiry_ms = expiry_ms
        self._last_heard = 0
        self._now = 0
        self._row_seq = 0
        self._delivery_seq = 0
        self._seen = SeenMessages(MAX_UNSETTLED, MAX_SETTLED)
        self._pending: dict[str, InputRow] = {}
        self._needed_by: dict[str, str] = {}
        self._finished: dict[str, None] = {}
        self.place: tuple[str, int] = ("", 0)

    def take(self, row: InputRow) -> list[Output]:
        """Take one row, in record order. Timers due before it run first, each at its own time."""
        out: list[Output] = []
        now = max(self._now, row.event_us // 1000)
        while (due := self._rest_due()) is not None and due <= now:
            self._run_timers(due, out)
            self._rest(out)
        self._run_timers(now, out)
        match row.row_kind:
            case "message":
                self.place = (row.kafka_topic, row.kafka_partition)
                self._last_heard = now
                self._message(row, out)
            case "repaired":
                self._repaired(row, out)
            case "completed":
                self._completed(row, out)
        return out

    def next_due_us(self) -> int | None:
        """When the next timer is due (event time, µs)."""
        dues = [due for due in (self._channel.next_due(), self._rest_due()) if due is not None]
        return min(dues) * 1000 if dues else None

    # ---- time ----------------------------------------------------------------------------------------------------

    def _run_timers(self, now: int, out: list[Output]) -> None:
        self._now = now
        self._report(self._channel.tick(now).events, None, out)

    def _rest_due(self) -> int | None:
        """When the channel rests if nothing more comes (ms): at the end of a day, or every message would move it."""
        if self._expiry_ms is None or not self._last_heard:
            return None
        return -(-(self._last_heard + self._expiry_ms) // DAY_MS) * DAY_MS

    def _rest(self, out: list[Output]) -> None:
        """Let everything go but what is to be known for ever; not while something is missing that is not given up."""
        if self._channel.missing_ids():
            self._last_heard = self._now
            return
        for row in self._pending.values():
            out.append(self._dropped(row, "the channel was silent"))
        for memory in (self._pending, self._needed_by, self._finished):
            memory.clear()
        self._seen.clear()
        self._channel.forget()
        self._last_heard = 0

    # ---- input ---------------------------------------------------------------------------------------------------

    def _message(self, row: InputRow, out: list[Output]) -> None:
        sds_id = row.sds_id or ""
        ephemeral = row.sds_kind == "ephemeral"
        known = self._seen.get(sds_id)
        if known is not None and ephemeral:
            known.copies += 1
            return
        if known is None and row.content_digest is not None and not self._is_past(sds_id, row.lamport_timestamp):
            known = Seen.first(row, self._now)
            self._seen.add(known)
        self._give(row, row.repaired_by is not None, out)
        if ephemeral and known is not None:
            self._seen.deliver(known)

    def _give(self, row: InputRow, repaired: bool, out: list[Output]) -> None:
        message = SdsMessage(
            sender_id=row.sender_id or "",
            message_id=row.sds_id or "",
            channel_id=self._key[2],
            lamport_timestamp=row.lamport_timestamp,
            causal_history=row.causal_history,
            bloom_filter=row.bloom_filter,
            repair_request=row.repair_request,
        )
        if self._participant_id is not None and row.sender_id == self._participant_id:
            step = self._channel.observe_sent(
                message, self._now, retrieval_hint=row.envelope_hash, content_digest=row.content_digest
            )
        else:
            step = self._channel.receive(
                message,
                self._now,
                retrieval_hint=row.envelope_hash,
                repaired=repaired,
                content_digest=row.content_digest,
                id_verified=True if repaired else None,
            )
        self._report(step.events, row, out)

    def _repaired(self, row: InputRow, out: list[Output]) -> None:
        """A rebuilt segment is taken as received; when the segment itself comes after all, only its acknowledgements
        are new."""
        sds_id = row.sds_id or ""
        if sds_id in self._seen or row.lamport_timestamp is None or self._is_past(sds_id, row.lamport_timestamp):
            return
        self._seen.add(Seen.first(row, self._now))
        self._give(row, True, out)

    def _completed(self, row: InputRow, out: list[Output]) -> None:
        key = message_key(row)
        if key in self._finished or key in self._pending or row.sender_id == self._participant_id:
            return
        if not self._can_be_delivered(row):
            return
        self._pending[key] = row
        if len(self._pending) > MAX_PENDING:
            given_up = self._pending.pop(next(iter(self._pending)))
            out.append(self._dropped(given_up, "too many wait"))
        self._finish(key, self._now, out)

    def _can_be_delivered(self, row: InputRow) -> bool:
        """Whether SDS may have k segments of a rebuilt message delivered that were not delivered with it before: what a
        store brings back after all memory of it has gone was delivered then."""
        first = row.first_lamport_timestamp
        possible = 0
        for ordinal, sds_id in enumerate(row.sds_ids):
            if sds_id is None:
                continue
            if (seen := self._seen.get(sds_id)) is not None:
                possible += not seen.settled
            else:
                possible += first is None or not self._is_past(sds_id, first + ordinal)
        return possible >= (row.data_count or 1)

    def _is_past(self, sds_id: str, lamport: int | None) -> bool:
        return lamport is not None and self._channel.is_past(sds_id, lamport)

    def _dropped(self, row: InputRow, why: str) -> Output:
        return rows.channel_event(self._base(self._now), "pending_message_dropped", row.sds_id, row.sender_id, why, row)

    # ---- events --------------------------------------------------------------------------------------------------

    def _report(self, events: Iterable[Event], row: InputRow | None, out: list[Output]) -> None:
        for event in events:
            match event:
                case Delivered():
                    self._delivered(event, out)
                case EphemeralReceived(at, message_id):
                    self._ephemeral(at, message_id, row, out)
                case DuplicateSeen(_, message_id):
                    if (again := self._seen.get(message_id)) is not None:
                        again.copies += 1
                case Acknowledged():
                    out.append(rows.ack(self._base(event.at), event, self._seen.get(event.message_id), row))
                case MissingDependency(_, message_id, named_by):
                    self._needed_by[message_id] = named_by
                case RefetchDue():
                    out.append(rows.refetch(self._base(event.at), event, self._needed_by.get(event.message_id)))
                case DependencyLost():
                    out.append(rows.lost(self._base(event.at), event, self._needed_by.get(event.message_id)))
                case DependencyBeforeObservation(at, message_id, named_by):
                    fields = {"sds_id": message_id, "status": "before_observation", "needed_by": named_by}
                    out.append(Output("lost_dependencies", {**self._base(at), **fields, "missing_since": at * 1000}))
                case RepairRequestSeen():
                    out.append(rows.repair_request(self._base(event.at), event, row))
                case _:
                    out.extend(rows.other(self._base(event.at), event, self._participant_id, row))

    def _delivered(self, event: Delivered, out: list[Output]) -> None:
        seen = self._seen.get(event.message_id)
        if event.late:
            out.append(rows.recovered(self._base(event.at), event, self._needed_by.get(event.message_id)))
        self._needed_by.pop(event.message_id, None)
        if seen is None:  # forgotten: more waited than is remembered
            out.append(delivery_rows.segment(self._numbered(event.at), event, None))
            return
        self._seen.deliver(seen)
        seen.late, seen.lost = event.late, event.lost_dependencies
        base = self._numbered(event.at, message=seen.segment_kind == "bare")
        out.append(delivery_rows.segment(base, event, seen))
        if self._pending:
            for key in [k for k, p in self._pending.items() if hash_of(p) == seen.entire_message_hash]:
                self._finish(key, event.at, out)
        self._forget()

    def _ephemeral(self, at: int, message_id: str, source: InputRow | None, out: list[Output]) -> None:
        seen = self._seen.get(message_id)
        if seen is None or source is None:
            return
        out.append(delivery_rows.ephemeral(self._numbered(at, message=True), message_id, seen))
        self._forget()

    def _finish(self, key: str, at: int, out: list[Output]) -> None:
        """Deliver a rebuilt message if SDS has delivered k of its segments. ``at`` (ms): when, which for a timer is the
        time it was due, not that of the row or tick which let it fire."""
        row = self._pending[key]
        parts = [self._seen.get(i) for i in row.sds_ids if i is not None]
        held = [seen for seen in parts if seen is not None and seen.delivered]
        if len(held) < (row.data_count or 1):
            return
        del self._pending[key]
        for seen in held:
            seen.settled = True
        self._finished[key] = None
        if len(self._finished) > MAX_FINISHED:
            del self._finished[next(iter(self._finished))]
        out.append(delivery_rows.message(self._numbered(at, message=True), row, held))

    def _numbered(self, at: int, *, message: bool = False) -> dict[str, Any]:
        """The columns that every row of ``deliveries`` has, with the next numbers."""
        self._row_seq += 1
        base = self._base(at)
        base["row_seq"] = self._row_seq
        if message:
            self._delivery_seq += 1
            base["delivery_seq"] = self._delivery_seq
        return base

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _base(self, at: int) -> dict[str, Any]:
        return {**self._columns, "event_time": at * 1000}

    def _forget(self) -> None:
        """Bound what is remembered, but for the parts of messages that wait."""
        self._seen.forget(lambda: {hash_of(row) for row in self._pending.values()})

    # ---- state ---------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The state as one blob."""
        proto = pb.ObserverStateProto(
            channel=self._channel.to_bytes(with_kept=False),
            now_ms=self._now,
            row_seq=self._row_seq,
            delivery_seq=self._delivery_seq,
            pending=[pb.PendingProto(row=row_to_json(row)) for row in self._pending.values()],
            needed_by=self._needed_by,
            finished=list(self._finished),
            kafka_topic=self.place[0],
            kafka_partition=self.place[1],
            last_heard_ms=self._last_heard,
        )
        self._seen.write(proto)
        return proto.SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        key: ChannelKey,
        participant_id: str | None,
        config: SdsConfig,
        expiry_ms: int | None = None,
    ) -> ChannelObserver:
        """Restore what :meth:`to_bytes` gave; the configuration is given again."""
        proto = pb.ObserverStateProto.FromString(data)
        restored = cls(key, participant_id, config, expiry_ms)
        restored._last_heard = proto.last_heard_ms
        restored._channel = SdsChannel.from_bytes(proto.channel, config)
        restored._now = proto.now_ms
        restored._row_seq = proto.row_seq
        restored._delivery_seq = proto.delivery_seq
        restored._seen.read(proto)
        pending = [row_from_json(p.row) for p in proto.pending]
        restored._pending = {message_key(row): row for row in pending}
        restored._needed_by = dict(proto.needed_by)
        restored._finished = dict.fromkeys(proto.finished)
        restored.place = (proto.kafka_topic, proto.kafka_partition)
        return restored
