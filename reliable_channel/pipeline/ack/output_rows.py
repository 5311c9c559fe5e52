"""Creates the rows of the ack job's tables from SDS events. ``base`` has the columns of every row of a channel.

``deliveries`` has a row for every delivered SDS message, and one for every application message that it completes;
``base`` then also has the running numbers.
"""

from __future__ import annotations

from typing import Any

from reliable_channel.core import sds
from reliable_channel.lake import tables
from reliable_channel.lake.schema import Row, row_type
from reliable_channel.pipeline.ack.accepted_messages import AcceptedMessage
from reliable_channel.pipeline.ack.records import InputRow, coordinates

Base = dict[str, Any]

Delivery, Ack, ChannelEvent = map(row_type, (tables.DELIVERIES, tables.ACKS, tables.CHANNEL_EVENTS))
LostDependency, RefetchRequest = map(row_type, (tables.LOST_DEPENDENCIES, tables.REFETCH_REQUESTS))
RepairRequest = row_type(tables.REPAIR_REQUESTS)


def segment_row(base: Base, event: sds.Delivered, seen: AcceptedMessage | None) -> Row:
    """The row of a segment that SDS delivered; a bare payload is also a message. ``seen``: ``None`` if forgotten
    because too many waited."""
    fields: dict[str, Any] = {
        **base,
        "row_kind": "segment",
        "sender_id": event.sender_id,
        "sds_id": event.message_id,
        "lamport_timestamp": event.lamport_timestamp,
        "sds_kind": "content",
        "late": event.late,
        "lost_dependencies": event.lost_dependencies,
    }
    if seen is not None:
        fields.update(_make_segment_columns(seen))
        if seen.segment_kind == "bare":
            fields.update(_make_bare_columns(event.message_id, event.lamport_timestamp, seen))
    return Delivery(**fields)


def ephemeral_row(base: Base, row: InputRow, seen: AcceptedMessage) -> Row:
    """The row of the ephemeral message of ``row``."""
    sds_id = row.sds_id or ""
    fields: dict[str, Any] = {"sender_id": row.sender_id, "sds_id": sds_id, "sds_kind": "ephemeral", "late": False}
    return Delivery(
        **base, **fields, lost_dependencies=[], **_make_segment_columns(seen), **_make_bare_columns(sds_id, None, seen)
    )


def message_row(base: Base, row: InputRow, held: list[AcceptedMessage], repaired: int) -> Row:
    """The row of a rebuilt message. ``row``: its completed row; ``held``: its segments that SDS has delivered;
    ``repaired``: how many of its data segments were rebuilt."""
    own = set(row.sds_ids)
    stamps = [s.sender_timestamp_ns for s in held if not s.repaired_by and s.sender_timestamp_ns is not None]
    return Delivery(
        **base,
        row_kind="message",
        sender_id=row.sender_id,
        sds_id=row.sds_id,
        lamport_timestamp=row.first_lamport_timestamp,
        sds_kind="content",
        entire_message_hash=row.entire_message_hash,
        data_count=row.data_count,
        parity_count=row.parity_count,
        first_sds_id=row.sds_id,
        first_lamport_timestamp=row.first_lamport_timestamp,
        position_exact=row.position_exact,
        kafka_topic=row.kafka_topic,
        kafka_partition=row.kafka_partition,
        kafka_offset=row.kafka_offset,
        first_seen=min(seen.first_seen_ms for seen in held) * 1000,
        payload_bytes=row.payload_bytes,
        sender_timestamp_ns=min(stamps, default=None),
        sender_verified=all(seen.sender_verified for seen in held),
        repaired_segments=repaired,
        late=any(seen.late for seen in held),
        lost_dependencies=sorted({i for seen in held for i in seen.lost if i not in own}),
    )


def _make_bare_columns(sds_id: str, lamport: int | None, seen: AcceptedMessage) -> dict[str, Any]:
    return {
        "row_kind": "message",
        "first_sds_id": sds_id,
        "first_lamport_timestamp": lamport,
        "position_exact": True,
        "payload_bytes": seen.content_bytes,
        "repaired_segments": 0,
    }


def _make_segment_columns(seen: AcceptedMessage) -> dict[str, Any]:
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
        "sender_verified": seen.sender_verified,
        "repaired_by": seen.repaired_by or None,
    }


def ack(base: Base, event: sds.Acknowledged, seen: AcceptedMessage | None, row: InputRow | None) -> Row:
    """A row of ``acks``."""
    return Ack(
        **base,
        sds_id=event.message_id,
        sender_id=event.sender_id,
        acknowledged_by=event.by,
        **_WORDS[event.evidence],
        evidence_sds_id=event.via,
        entire_message_hash=seen.entire_message_hash if seen else None,
        latency_ms=event.at - event.since,
        copies=seen.copies if seen else None,
        **coordinates(row),
    )


_WORDS = {each: {"evidence": each.value, "certainty": each.certainty.value} for each in sds.Evidence}
"""Looked up once: the value of a member of an enumeration is a call of a function."""


def refetch(base: Base, event: sds.RefetchDue, needed_by: str | None) -> Row:
    """A row of ``refetch_requests``."""
    return RefetchRequest(
        **base,
        sds_id=event.message_id,
        sender_id=event.sender_id,
        retrieval_hint=event.retrieval_hint,
        attempt=event.attempt,
        needed_by=needed_by,
    )


def loss_row(base: Base, event: sds.DependencyLost, needed_by: str | None) -> Row:
    """A row of ``lost_dependencies``."""
    return LostDependency(
        **base,
        sds_id=event.message_id,
        sender_id=event.sender_id,
        retrieval_hint=event.retrieval_hint,
        status="lost",
        needed_by=needed_by or next(iter(event.waiting), None),
        missing_since=event.missing_since * 1000,
    )


def recovery_row(base: Base, event: sds.Delivered, needed_by: str | None) -> Row:
    """A row of ``lost_dependencies`` for a message that arrived after it had been declared lost."""
    return LostDependency(
        **base, sds_id=event.message_id, sender_id=event.sender_id, status="recovered", needed_by=needed_by
    )


def repair_request(base: Base, event: sds.RepairRequestSeen, row: InputRow | None) -> Row:
    """A row of ``repair_requests``."""
    return RepairRequest(
        **base,
        sds_id=event.message_id,
        requested_by=event.by,
        request_sds_id=event.via,
        held_here=event.have,
        sender_id=event.sender_id,
        **coordinates(row),
    )


def channel_event(
    base: Base, name: str, sds_id: str | None, sender_id: str | None, detail: str | None, row: InputRow | None
) -> Row:
    """A row of ``channel_events``."""
    topic = row.kafka_topic if row is not None else None
    return ChannelEvent(
        **base, event=name, sds_id=sds_id, sender_id=sender_id, detail=detail, kafka_topic=topic, **coordinates(row)
    )


def other(base: Base, event: sds.SdsEvent, participant_id: str | None, row: InputRow | None) -> list[Row]:
    """Rows of ``channel_events`` for events that users should see; none for others."""
    match event:
        case sds.Conflict():
            fields = ("conflict", event.message_id, event.sender_id, f"{event.why}; the {event.winner} one stands")
        case sds.MessageRefused():
            fields = ("refused", event.message_id, event.sender_id, f"{event.reason.value} {event.detail}".strip())
        case sds.Evicted():
            detail = f"{event.count} of the {event.memory} entries"
            return [channel_event(base, "evicted", None, event.sender_id, detail, row)]
        case sds.SaturatedFilter():
            detail = f"{event.saturation:.3f} of the bits are set"
            fields = ("saturated_filter", event.message_id, event.sender_id, detail)
        case sds.SendDelivered():
            return [channel_event(base, "send_delivered", event.send_id, participant_id, None, row)]
        case sds.DeliveryError():
            detail = f"{len(event.acknowledged)} of {event.required} needed segments acknowledged"
            fields = ("delivery_error", event.send_id, participant_id, detail)  # type: ignore[assignment]
        case _:
            return []
    return [channel_event(base, *fields, row)]
