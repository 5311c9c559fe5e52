"""The adapter between the ack job's keyed state and the core: one channel at this point of observation.

Rows of ``sds_input`` in, rows of the ack job's tables out; pure Python around :class:`reliable_channel.sds.SdsChannel`.
It adds what SDS does not know: where a message stands in Kafka, and which application message a segment belongs to. An
application message is delivered when it has been rebuilt and SDS has delivered k of its segments (design.md *What
"delivered" means*).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reliable_channel.sds import (
    Acknowledged,
    Conflict,
    Delivered,
    DependencyBeforeObservation,
    DependencyLost,
    DuplicateSeen,
    EphemeralReceived,
    Event,
    MissingDependency,
    RefetchDue,
    Refused,
    RepairRequestSeen,
    SaturatedFilter,
    SdsChannel,
    SdsConfig,
    SendDelivered,
    SendError,
)
from reliable_channel.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.wire.sds import HistoryEntry, SdsMessage

STATE_VERSION = 1
MAX_SETTLED = 2_000
"""Messages that are delivered, of which the place is still remembered, for acknowledgements."""
MAX_UNSETTLED = 20_000
"""Messages not yet delivered, or whose application message is not, of which the place is remembered."""
MAX_PENDING = 2_000
MAX_FINISHED = 2_000

ChannelKey = tuple[str, str, str]
"""Pubsub topic, content topic, channel id."""


class InputRow(NamedTuple):
    """One row of ``sds_input``; ``event_us`` in µs, hashes in base64."""

    row_kind: str
    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    event_us: int
    sender_id: str | None = None
    sds_id: str | None = None
    sds_kind: str | None = None
    lamport_timestamp: int | None = None
    causal_history: tuple[HistoryEntry, ...] = ()
    bloom_filter: bytes | None = None
    repair_request: tuple[HistoryEntry, ...] = ()
    content_digest: bytes | None = None
    content_bytes: int | None = None
    envelope_hash: bytes | None = None
    sender_timestamp_ns: int | None = None
    segment_kind: str | None = None
    entire_message_hash: bytes | None = None
    segment_index: int | None = None
    data_count: int | None = None
    parity_count: int | None = None
    repaired_by: str | None = None
    sds_ids: tuple[str | None, ...] = ()
    payload_bytes: int | None = None
    first_lamport_timestamp: int | None = None
    position_exact: bool | None = None


class Output(NamedTuple):
    """One row for ``table``: columns as JSON values, times in µs, binary ones in base64."""

    table: str
    fields: dict[str, Any]


@dataclass
class _Seen:
    """Where an SDS message stands, and what it is a part of."""

    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    first_seen_ms: int
    sender_id: str
    segment_kind: str
    entire_message_hash: str
    segment_index: int | None
    data_count: int | None
    parity_count: int | None
    sender_timestamp_ns: int | None
    content_bytes: int | None
    repaired_by: str | None = None
    copies: int = 1
    delivered: bool = False
    lost: list[str] = field(default_factory=list)
    late: bool = False


class ChannelObserver:
    """One channel. ``key`` is (pubsub topic, content topic, channel id)."""

    def __init__(self, key: ChannelKey, participant_id: str | None, config: SdsConfig) -> None:
        self._key = key
        self._channel = SdsChannel(key[2], participant_id, config)
        self._participant_id = participant_id
        self._now = 0
        self._row_seq = 0
        self._delivery_seq = 0
        self._seen: dict[str, _Seen] = {}
        self._pending: dict[str, InputRow] = {}
        self._needed_by: dict[str, str] = {}
        self._finished: dict[str, None] = {}
        self.place: tuple[str, int] = ("", 0)

    def take(self, row: InputRow) -> list[Output]:
        """Take one row, in record order. Timers due before it run first, each at its own time."""
        self._now = max(self._now, row.event_us // 1000)
        out: list[Output] = []
        self._report(self._channel.tick(self._now).events, None, out)
        match row.row_kind:
            case "message":
                self.place = (row.kafka_topic, row.kafka_partition)
                self._message(row, out)
            case "repaired":
                self._repaired(row, out)
            case "completed":
                self._completed(row, out)
        return out

    def next_due_us(self) -> int | None:
        """When the next timer is due (event time, µs)."""
        due = self._channel.next_due()
        return None if due is None else due * 1000

    # ---- input ---------------------------------------------------------------------------------------------------

    def _message(self, row: InputRow, out: list[Output]) -> None:
        sds_id = row.sds_id or ""
        ephemeral = row.sds_kind == "ephemeral"
        known = self._seen.get(sds_id)
        if known is not None and ephemeral:
            known.copies += 1
            return
        if known is None and row.content_digest is not None:
            self._remember(sds_id, row)
        self._give(row, row.repaired_by is not None, out)
        if ephemeral and sds_id in self._seen:
            self._seen[sds_id].delivered = True

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
        if sds_id in self._seen or row.lamport_timestamp is None:
            return
        self._remember(sds_id, row)
        self._give(row, True, out)

    def _completed(self, row: InputRow, out: list[Output]) -> None:
        key = _message_key(row)
        if key in self._finished or key in self._pending or row.sender_id == self._participant_id:
            return
        self._pending[key] = row
        if len(self._pending) > MAX_PENDING:
            oldest = next(iter(self._pending))
            given_up = self._pending.pop(oldest)
            out.append(
                self._event("pending_message_dropped", given_up.sds_id, given_up.sender_id, "too many wait", row)
            )
        self._finish(key, self._now, out)

    # ---- events --------------------------------------------------------------------------------------------------

    def _report(self, events: Iterable[Event], row: InputRow | None, out: list[Output]) -> None:
        for event in events:
            match event:
                case Delivered():
                    self._delivered(event, out)
                case EphemeralReceived(at, message_id):
                    self._ephemeral(at, message_id, row, out)
                case DuplicateSeen(_, message_id):
                    if message_id in self._seen:
                        self._seen[message_id].copies += 1
                case Acknowledged():
                    out.append(self._ack(event, row))
                case MissingDependency(_, message_id, named_by):
                    self._needed_by[message_id] = named_by
                case RefetchDue():
                    out.append(self._refetch(event))
                case DependencyLost():
                    out.append(self._lost(event))
                case DependencyBeforeObservation(at, message_id, named_by):
                    fields = {"sds_id": message_id, "status": "before_observation", "needed_by": named_by}
                    out.append(Output("lost_dependencies", {**self._base(at), **fields, "missing_since": at * 1000}))
                case RepairRequestSeen():
                    out.append(self._repair_request(event, row))
                case _:
                    out.extend(self._other(event, row))

    def _delivered(self, event: Delivered, out: list[Output]) -> None:
        seen = self._seen.get(event.message_id)
        if event.late:
            fields = {"sds_id": event.message_id, "sender_id": event.sender_id, "status": "recovered"}
            needed_by = self._needed_by.get(event.message_id)
            out.append(Output("lost_dependencies", {**self._base(event.at), **fields, "needed_by": needed_by}))
        self._needed_by.pop(event.message_id, None)
        self._row_seq += 1
        row: dict[str, Any] = {
            **self._base(event.at),
            "row_seq": self._row_seq,
            "row_kind": "segment",
            "sender_id": event.sender_id,
            "sds_id": event.message_id,
            "lamport_timestamp": event.lamport_timestamp,
            "sds_kind": "content",
            "late": event.late,
            "lost_dependencies": list(event.lost_dependencies),
        }
        if seen is None:  # forgotten: more waited than is remembered
            out.append(Output("deliveries", row))
            return
        seen.delivered, seen.late, seen.lost = True, event.late, list(event.lost_dependencies)
        row |= self._place_of(seen)
        if seen.segment_kind == "bare":
            row |= self._bare(event.message_id, event.lamport_timestamp, seen)
        out.append(Output("deliveries", row))
        for key in [k for k, p in self._pending.items() if _hash_of(p) == seen.entire_message_hash]:
            self._finish(key, event.at, out)
        self._forget()

    def _ephemeral(self, at: int, message_id: str, source: InputRow | None, out: list[Output]) -> None:
        seen = self._seen.get(message_id)
        if seen is None or source is None:
            return
        self._row_seq += 1
        out.append(
            Output(
                "deliveries",
                {
                    **self._base(at),
                    "row_seq": self._row_seq,
                    "row_kind": "message",
                    "sender_id": seen.sender_id,
                    "sds_id": message_id,
                    "sds_kind": "ephemeral",
                    "late": False,
                    "lost_dependencies": [],
                    **self._place_of(seen),
                    **self._bare(message_id, None, seen),
                },
            )
        )
        self._forget()

    def _bare(self, sds_id: str, lamport: int | None, seen: _Seen) -> dict[str, Any]:
        self._delivery_seq += 1
        return {
            "row_kind": "message",
            "delivery_seq": self._delivery_seq,
            "first_sds_id": sds_id,
            "first_lamport_timestamp": lamport,
            "position_exact": True,
            "payload_bytes": seen.content_bytes,
            "repaired_segments": 0,
        }

    def _finish(self, key: str, at: int, out: list[Output]) -> None:
        """Deliver a rebuilt message if SDS has delivered k of its segments. ``at`` (ms): when, which for a timer is the
        time it was due, not that of the row or tick which let it fire."""
        row = self._pending[key]
        parts = [(i, self._seen.get(i)) for i in row.sds_ids if i is not None]
        held = [(i, seen) for i, seen in parts if seen is not None and seen.delivered]
        if len(held) < (row.data_count or 1):
            return
        del self._pending[key]
        self._finished[key] = None
        if len(self._finished) > MAX_FINISHED:
            del self._finished[next(iter(self._finished))]
        self._row_seq += 1
        self._delivery_seq += 1
        own = set(row.sds_ids)
        lost = sorted({i for _, seen in held for i in seen.lost if i not in own})
        received = [seen for _, seen in held if seen.repaired_by is None]
        stamps = [seen.sender_timestamp_ns for seen in received if seen.sender_timestamp_ns is not None]
        fields = {
            **self._base(at),
            "row_seq": self._row_seq,
            "row_kind": "message",
            "delivery_seq": self._delivery_seq,
            "sender_id": row.sender_id,
            "sds_id": row.sds_id,
            "lamport_timestamp": row.first_lamport_timestamp,
            "sds_kind": "content",
            "entire_message_hash": _base64(row.entire_message_hash),
            "data_count": row.data_count,
            "parity_count": row.parity_count,
            "first_sds_id": row.sds_id,
            "first_lamport_timestamp": row.first_lamport_timestamp,
            "position_exact": row.position_exact,
            "kafka_topic": row.kafka_topic,
            "kafka_partition": row.kafka_partition,
            "kafka_offset": row.kafka_offset,
            "first_seen": min(seen.first_seen_ms for _, seen in held) * 1000,
            "payload_bytes": row.payload_bytes,
            "sender_timestamp_ns": min(stamps, default=None),
            "repaired_segments": sum(seen.repaired_by == "parity" for _, seen in held),
            "late": any(seen.late for _, seen in held),
            "lost_dependencies": lost,
        }
        out.append(Output("deliveries", fields))

    def _ack(self, event: Acknowledged, row: InputRow | None) -> Output:
        seen = self._seen.get(event.message_id)
        fields = {
            **self._base(event.at),
            "sds_id": event.message_id,
            "sender_id": event.sender_id,
            "acknowledged_by": event.by,
            "evidence": event.evidence.value,
            "certainty": "certain" if event.evidence.certain else "probable",
            "evidence_sds_id": event.via,
            "entire_message_hash": seen.entire_message_hash if seen else None,
            "latency_ms": event.at - event.since,
            "copies": seen.copies if seen else None,
        }
        return Output("acks", fields | _coordinates(row))

    def _refetch(self, event: RefetchDue) -> Output:
        fields = {
            **self._base(event.at),
            "sds_id": event.message_id,
            "sender_id": event.sender_id,
            "retrieval_hint": _base64(event.retrieval_hint),
            "attempt": event.attempt,
            "needed_by": self._needed_by.get(event.message_id),
        }
        return Output("refetch_requests", fields)

    def _lost(self, event: DependencyLost) -> Output:
        needed_by = self._needed_by.get(event.message_id) or next(iter(event.waiting), None)
        fields = {
            **self._base(event.at),
            "sds_id": event.message_id,
            "sender_id": event.sender_id,
            "status": "lost",
            "needed_by": needed_by,
            "missing_since": event.missing_since * 1000,
        }
        return Output("lost_dependencies", fields)

    def _repair_request(self, event: RepairRequestSeen, row: InputRow | None) -> Output:
        fields = {
            **self._base(event.at),
            "sds_id": event.message_id,
            "requested_by": event.by,
            "request_sds_id": event.via,
            "held_here": event.have,
        }
        entry = next((e for e in row.repair_request if e.message_id == event.message_id), None) if row else None
        fields["sender_id"] = entry.sender_id if entry else None
        return Output("repair_requests", fields | _coordinates(row))

    def _other(self, event: Event, row: InputRow | None) -> list[Output]:
        match event:
            case Conflict():
                detail = f"{event.why}; the {event.winner} one stands"
                return [self._event("conflict", event.message_id, event.sender_id, detail, row, event.at)]
            case Refused():
                detail = f"{event.reason.value} {event.detail}".strip()
                return [self._event("refused", event.message_id, event.sender_id, detail, row, event.at)]
            case SaturatedFilter():
                detail = f"{event.saturation:.3f} of the bits are set"
                return [self._event("saturated_filter", event.message_id, event.sender_id, detail, row, event.at)]
            case SendDelivered():
                return [self._event("send_delivered", event.send_id, self._participant_id, None, row, event.at)]
            case SendError():
                detail = f"{len(event.acknowledged)} of {event.required} needed segments acknowledged"
                return [self._event("send_error", event.send_id, self._participant_id, detail, row, event.at)]
        return []

    def _event(
        self,
        name: str,
        sds_id: str | None,
        sender_id: str | None,
        detail: str | None,
        row: InputRow | None,
        at: int | None = None,
    ) -> Output:
        fields = {**self._base(self._now if at is None else at), "event": name, "sds_id": sds_id}
        return Output("channel_events", fields | {"sender_id": sender_id, "detail": detail} | _coordinates(row))

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _base(self, at: int) -> dict[str, Any]:
        pubsub_topic, content_topic, channel_id = self._key
        return {
            "pubsub_topic": pubsub_topic,
            "content_topic": content_topic,
            "channel_id": channel_id,
            "event_time": at * 1000,
        }

    def _remember(self, sds_id: str, row: InputRow) -> None:
        self._seen[sds_id] = _Seen(
            row.kafka_topic,
            row.kafka_partition,
            row.kafka_offset,
            self._now,
            row.sender_id or "",
            row.segment_kind or "",
            _base64(row.entire_message_hash) or "",
            row.segment_index,
            row.data_count,
            row.parity_count,
            row.sender_timestamp_ns,
            row.content_bytes,
            row.repaired_by,
        )

    def _forget(self) -> None:
        """Bound what is remembered: of settled messages the oldest go first."""
        if len(self._seen) <= MAX_SETTLED + MAX_PENDING:
            return
        open_hashes = {_hash_of(row) for row in self._pending.values()}
        settled = [i for i, s in self._seen.items() if s.delivered and s.entire_message_hash not in open_hashes]
        surplus = len(settled) - MAX_SETTLED
        for sds_id in settled[: max(surplus, 0)]:
            del self._seen[sds_id]
        for sds_id in list(self._seen)[: max(len(self._seen) - MAX_UNSETTLED, 0)]:
            del self._seen[sds_id]

    @staticmethod
    def _place_of(seen: _Seen) -> dict[str, Any]:
        return {
            "segment_kind": seen.segment_kind,
            "entire_message_hash": seen.entire_message_hash or None,
            "segment_index": seen.segment_index,
            "data_count": seen.data_count,
            "parity_count": seen.parity_count,
            "kafka_topic": seen.kafka_topic,
            "kafka_partition": seen.kafka_partition,
            "kafka_offset": seen.kafka_offset,
            "first_seen": seen.first_seen_ms * 1000,
            "sender_timestamp_ns": seen.sender_timestamp_ns,
            "repaired_by": seen.repaired_by,
        }

    # ---- state ---------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The state as one blob."""
        proto = pb.ObserverStateProto(
            channel=self._channel.to_bytes(with_kept=False),
            now_ms=self._now,
            row_seq=self._row_seq,
            delivery_seq=self._delivery_seq,
            seen=[_seen_to_proto(sds_id, seen) for sds_id, seen in self._seen.items()],
            pending=[pb.PendingProto(row=_row_to_json(row)) for row in self._pending.values()],
            needed_by=self._needed_by,
            finished=list(self._finished),
            kafka_topic=self.place[0],
            kafka_partition=self.place[1],
        )
        return proto.SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes, key: ChannelKey, participant_id: str | None, config: SdsConfig) -> ChannelObserver:
        """Restore what :meth:`to_bytes` gave; the configuration is given again."""
        proto = pb.ObserverStateProto.FromString(data)
        restored = cls(key, participant_id, config)
        restored._channel = SdsChannel.from_bytes(proto.channel, config)
        restored._now = proto.now_ms
        restored._row_seq = proto.row_seq
        restored._delivery_seq = proto.delivery_seq
        restored._seen = {seen.sds_id: _seen_from_proto(seen) for seen in proto.seen}
        pending = [_row_from_json(p.row) for p in proto.pending]
        restored._pending = {_message_key(row): row for row in pending}
        restored._needed_by = dict(proto.needed_by)
        restored._finished = dict.fromkeys(proto.finished)
        restored.place = (proto.kafka_topic, proto.kafka_partition)
        return restored


def _message_key(row: InputRow) -> str:
    """A message of a sender: its hash and its send, told by the first Lamport timestamp or, failing that, an SDS id."""
    send = row.first_lamport_timestamp if row.first_lamport_timestamp is not None else row.sds_id
    return f"{row.sender_id}\x00{_hash_of(row)}\x00{send}"


def _hash_of(row: InputRow) -> str:
    return _base64(row.entire_message_hash) or ""


def _coordinates(row: InputRow | None) -> dict[str, Any]:
    if row is None:
        return {"kafka_partition": None, "kafka_offset": None}
    return {"kafka_partition": row.kafka_partition, "kafka_offset": row.kafka_offset}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _row_to_json(row: InputRow) -> str:
    """A completed row: it has no history and no filter."""
    fields = row._asdict()
    for name in ("content_digest", "envelope_hash", "entire_message_hash"):
        fields[name] = _base64(fields[name])
    for name in ("causal_history", "bloom_filter", "repair_request"):
        del fields[name]
    return json.dumps(fields)


def _row_from_json(text: str) -> InputRow:
    fields = json.loads(text)
    for name in ("content_digest", "envelope_hash", "entire_message_hash"):
        fields[name] = None if fields[name] is None else base64.b64decode(fields[name])
    fields["sds_ids"] = tuple(fields["sds_ids"])
    return InputRow(**fields)


def _seen_to_proto(sds_id: str, seen: _Seen) -> pb.SeenProto:
    fields = {name: getattr(seen, name) for name in _Seen.__dataclass_fields__}
    return pb.SeenProto(sds_id=sds_id, **{k: v for k, v in fields.items() if v is not None})


def _seen_from_proto(proto: pb.SeenProto) -> _Seen:
    optional = {
        name: getattr(proto, name) if proto.HasField(name) else None
        for name in ("segment_index", "data_count", "parity_count", "sender_timestamp_ns", "content_bytes")
    }
    return _Seen(
        proto.kafka_topic,
        proto.kafka_partition,
        proto.kafka_offset,
        proto.first_seen_ms,
        proto.sender_id,
        proto.segment_kind,
        proto.entire_message_hash,
        **optional,
        repaired_by=proto.repaired_by or None,
        copies=proto.copies,
        delivered=proto.delivered,
        lost=list(proto.lost),
        late=proto.late,
    )
