"""Makes the rows of ``deliveries``: SDS messages that were delivered, and application messages that are complete by
it. ``base`` has the columns of every row, with the running numbers."""

from __future__ import annotations

from typing import Any

from reliable_channel.core.sds import Delivered
from reliable_channel.pipeline.ack.message_records import MessageRecord
from reliable_channel.pipeline.ack.records import InputRow, Output, base64_of

Base = dict[str, Any]


def segment(base: Base, event: Delivered, seen: MessageRecord | None) -> Output:
    """A segment that SDS has delivered; a bare payload is a message as well. ``seen``: ``None`` when more waited than
    is remembered."""
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
        fields.update(_place_of(seen))
        if seen.segment_kind == "bare":
            fields.update(_bare(event.message_id, event.lamport_timestamp, seen))
    return Output("deliveries", fields)


def ephemeral(base: Base, row: InputRow, seen: MessageRecord) -> Output:
    """The ephemeral message of ``row``."""
    sds_id = row.sds_id or ""
    fields: dict[str, Any] = {"sender_id": row.sender_id, "sds_id": sds_id, "sds_kind": "ephemeral", "late": False}
    fields |= {"lost_dependencies": [], **_place_of(seen), **_bare(sds_id, None, seen)}
    return Output("deliveries", {**base, **fields})


def message(base: Base, row: InputRow, held: list[MessageRecord]) -> Output:
    """A rebuilt message. ``row``: its completed row; ``held``: those of its segments that SDS has delivered."""
    own = set(row.sds_ids)
    stamps = [s.sender_timestamp_ns for s in held if not s.repaired_by and s.sender_timestamp_ns is not None]
    fields = {
        **base,
        "row_kind": "message",
        "sender_id": row.sender_id,
        "sds_id": row.sds_id,
        "lamport_timestamp": row.first_lamport_timestamp,
        "sds_kind": "content",
        "entire_message_hash": base64_of(row.entire_message_hash),
        "data_count": row.data_count,
        "parity_count": row.parity_count,
        "first_sds_id": row.sds_id,
        "first_lamport_timestamp": row.first_lamport_timestamp,
        "position_exact": row.position_exact,
        "kafka_topic": row.kafka_topic,
        "kafka_partition": row.kafka_partition,
        "kafka_offset": row.kafka_offset,
        "first_seen": min(seen.first_seen_ms for seen in held) * 1000,
        "payload_bytes": row.payload_bytes,
        "sender_timestamp_ns": min(stamps, default=None),
        "sender_verified": all(seen.sender_verified for seen in held),
        "repaired_segments": sum(seen.repaired_by == "parity" for seen in held),
        "late": any(seen.late for seen in held),
        "lost_dependencies": sorted({i for seen in held for i in seen.lost if i not in own}),
    }
    return Output("deliveries", fields)


def _bare(sds_id: str, lamport: int | None, seen: MessageRecord) -> dict[str, Any]:
    return {
        "row_kind": "message",
        "first_sds_id": sds_id,
        "first_lamport_timestamp": lamport,
        "position_exact": True,
        "payload_bytes": seen.content_bytes,
        "repaired_segments": 0,
    }


def _place_of(seen: MessageRecord) -> dict[str, Any]:
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
