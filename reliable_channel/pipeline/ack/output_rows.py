"""Makes the rows of ``acks``, ``refetch_requests``, ``lost_dependencies``, ``repair_requests`` and ``channel_events``
from events of SDS. ``base`` has the columns of every row."""

from __future__ import annotations

from typing import Any

from reliable_channel.core.sds import (
    Acknowledged,
    Conflict,
    Delivered,
    DependencyLost,
    Evicted,
    MessageRefused,
    RefetchDue,
    RepairRequestSeen,
    SaturatedFilter,
    SdsEvent,
    SendDelivered,
    SendError,
)
from reliable_channel.pipeline.ack.message_records import MessageRecord
from reliable_channel.pipeline.ack.records import InputRow, Output, base64_of, coordinates

Base = dict[str, Any]


def ack(base: Base, event: Acknowledged, seen: MessageRecord | None, row: InputRow | None) -> Output:
    """A row of ``acks``."""
    fields = {
        **base,
        "sds_id": event.message_id,
        "sender_id": event.sender_id,
        "acknowledged_by": event.by,
        "evidence": event.evidence.value,
        "certainty": event.evidence.certainty.value,
        "evidence_sds_id": event.via,
        "entire_message_hash": seen.entire_message_hash if seen else None,
        "latency_ms": event.at - event.since,
        "copies": seen.copies if seen else None,
        **coordinates(row),
    }
    return Output("acks", fields)


def refetch(base: Base, event: RefetchDue, needed_by: str | None) -> Output:
    """A row of ``refetch_requests``."""
    fields = {
        **base,
        "sds_id": event.message_id,
        "sender_id": event.sender_id,
        "retrieval_hint": base64_of(event.retrieval_hint),
        "attempt": event.attempt,
        "needed_by": needed_by,
    }
    return Output("refetch_requests", fields)


def lost(base: Base, event: DependencyLost, needed_by: str | None) -> Output:
    """A row of ``lost_dependencies``."""
    fields = {
        **base,
        "sds_id": event.message_id,
        "sender_id": event.sender_id,
        "status": "lost",
        "needed_by": needed_by or next(iter(event.waiting), None),
        "missing_since": event.missing_since * 1000,
    }
    return Output("lost_dependencies", fields)


def recovered(base: Base, event: Delivered, needed_by: str | None) -> Output:
    """A row of ``lost_dependencies`` for a message that came after it had been declared lost."""
    fields = {"sds_id": event.message_id, "sender_id": event.sender_id, "status": "recovered", "needed_by": needed_by}
    return Output("lost_dependencies", {**base, **fields})


def repair_request(base: Base, event: RepairRequestSeen, row: InputRow | None) -> Output:
    """A row of ``repair_requests``."""
    entry = next((e for e in row.repair_request if e.message_id == event.message_id), None) if row else None
    fields = {
        **base,
        "sds_id": event.message_id,
        "requested_by": event.by,
        "request_sds_id": event.via,
        "held_here": event.have,
        "sender_id": entry.sender_id if entry else None,
    }
    return Output("repair_requests", fields | coordinates(row))


def channel_event(
    base: Base, name: str, sds_id: str | None, sender_id: str | None, detail: str | None, row: InputRow | None
) -> Output:
    """A row of ``channel_events``."""
    fields = {**base, "event": name, "sds_id": sds_id, "sender_id": sender_id, "detail": detail}
    fields["kafka_topic"] = row.kafka_topic if row is not None else None
    return Output("channel_events", fields | coordinates(row))


def other(base: Base, event: SdsEvent, participant_id: str | None, row: InputRow | None) -> list[Output]:
    """Rows of ``channel_events`` for the events that people should know of; none for the others."""
    match event:
        case Conflict():
            found = ("conflict", event.message_id, event.sender_id, f"{event.why}; the {event.winner} one stands")
        case MessageRefused():
            found = ("refused", event.message_id, event.sender_id, f"{event.reason.value} {event.detail}".strip())
        case Evicted():
            detail = f"{event.count} of the {event.memory} entries"
            return [channel_event(base, "evicted", None, event.sender_id, detail, row)]
        case SaturatedFilter():
            detail = f"{event.saturation:.3f} of the bits are set"
            found = ("saturated_filter", event.message_id, event.sender_id, detail)
        case SendDelivered():
            return [channel_event(base, "send_delivered", event.send_id, participant_id, None, row)]
        case SendError():
            detail = f"{len(event.acknowledged)} of {event.required} needed segments acknowledged"
            found = ("send_error", event.send_id, participant_id, detail)  # type: ignore[assignment]
        case _:
            return []
    return [channel_event(base, *found, row)]
