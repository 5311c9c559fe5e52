"""Creates the rows that reassembly writes for a segment set that was completed, expired or failed.

A completed set gives its payload, the segments that were not received with their recomputed ids (*verified repair*,
LIP-109), and a row that marks the message as complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from reliable_channel.core.segmentation import (
    HashMismatch,
    IncompleteSet,
    MessageCompleted,
    ReceivedSegmentEvent,
    Scope,
    SegmentationConfig,
    find_repaired,
    id_scheme_of,
)
from reliable_channel.core.wire.hashing import sha256
from reliable_channel.lake import tables
from reliable_channel.lake.schema import Row, row_type
from reliable_channel.lake.tables import CHANNEL_KEY, RECORD_KEY
from reliable_channel.pipeline.guarded import EVENT

SCOPE = (*CHANNEL_KEY, "family", "sender_id")
"""The columns that name the sets of one sender: a ``Scope`` of the core."""

Message, Ordered = row_type(tables.REASSEMBLED_MESSAGES), row_type(tables.ORDERED_SDS_MESSAGES)
Event = row_type(tables.CHANNEL_EVENTS)


Record = tuple[str, int, int]
"""The Kafka topic, partition and offset of the record that caused a result."""

OVERDUE, GIVEN_UP = "overdue", "given_up"
"""The values of ``incomplete_messages.status``."""


class ReportedSet(NamedTuple):
    """A set that is overdue or was given up, for the driver: the columns of ``incomplete_messages``."""

    fields: dict[str, Any]


def make_completed_results(event: MessageCompleted, record: Record, config: SegmentationConfig) -> Iterator[Row]:
    """The row of the payload, then the rows of repaired segments, then the completed row."""
    scope, of_record = _name_scope(event.scope), _name_record(record)
    ids = {(s.is_parity, s.index): s.sds_id for s in event.received}
    repaired = list(_make_repaired_rows(event, config))
    ids |= {(r["segment_kind"] == "parity", r["segment_index"]): r["sds_id"] for r in repaired}
    # Where no segment states it (v0.1 data does not), at least as many as were seen or recomputed.
    parity_count = max([event.parity_count or 0, *(index + 1 for is_parity, index in ids if is_parity)])
    sds_ids = [ids.get((False, i)) for i in range(event.data_count)] + [ids.get((True, i)) for i in range(parity_count)]
    hash_ = event.entire_message_hash
    first = sds_ids[0] or next((i for i in sds_ids if i is not None), None)
    common = {
        **scope,
        **of_record,
        "entire_message_hash": hash_,
        "event_time": event.completed_at * 1000,
        "first_lamport_timestamp": event.first_lamport,
        "position_exact": sds_ids[0] is not None,
        "payload_bytes": len(event.payload),
        "data_count": event.data_count,
        "parity_count": parity_count,
        "sds_ids": sds_ids,
    }
    data_received = sum(not s.is_parity for s in event.received)
    yield Message(
        **common,
        payload=event.payload,
        first_sds_id=first,
        data_received=data_received,
        parity_received=len(event.received) - data_received,
        repaired=list(event.rebuilt_indices),
        segment_dialect=event.dialect.value,
        first_seen=event.first_seen * 1000,
        send=event.send,
        one_send=event.one_send,
    )
    for number, row in enumerate(repaired, start=1):
        yield Ordered(
            **scope,
            **of_record,
            **row,
            row_kind="repaired",
            sub_order=number,
            event_time=event.completed_at * 1000,
            entire_message_hash=hash_,
            data_count=event.data_count,
            causal_history=_name_predecessor(sds_ids, row["sds_id"]),
        )
    yield Ordered(**common, row_kind="completed", sub_order=len(repaired) + 1, sds_id=first)


def _name_predecessor(sds_ids: list[str | None], sds_id: str) -> list[dict[str, str | None]] | None:
    """The causal history of a repaired segment, as far as it is certain. A send's segments are wrapped in one step, so
    each has its predecessor in its causal past. Without it SDS would deliver the segment at once, and the message
    before its dependencies."""
    index = sds_ids.index(sds_id)
    before = sds_ids[index - 1] if index else None
    return None if before is None else [{"sds_id": before, "retrieval_hint": None, "sender_id": None}]


def _make_repaired_rows(event: MessageCompleted, config: SegmentationConfig) -> Iterator[dict[str, Any]]:
    """The segments that were not received, each with its recomputed SDS id (LIP-109). None if the ids of *received*
    segments cannot be recomputed either, because a guess would verify nothing."""
    count = None
    if event.parity_count is None and config.enable_reed_solomon:
        count = config.parity_count(event.data_count)
    if len(event.received) >= event.data_count + (event.parity_count or count or 0):
        return
    scheme = id_scheme_of(event)
    for sds_id, id_scheme, segment in find_repaired(event, count, () if scheme is None else (scheme,)):
        yield {
            "sds_id": sds_id,
            "sds_kind": "content",
            "lamport_timestamp": segment.lamport,
            "content_digest": sha256(segment.content),
            "content_bytes": len(segment.content),
            "segment_kind": "parity" if segment.is_parity else "data",
            "segment_index": segment.index,
            "parity_count": event.parity_count,
            "repaired_by": "message" if segment.is_parity else "parity",
            "id_scheme": id_scheme.value,
        }


def make_incomplete_result(
    incomplete: IncompleteSet, status: str, reason: str, at: int, detail: str | None = None
) -> ReportedSet:
    """Create the result for a set that is overdue, or was given up, at ``at`` (ms). A set that segments could not
    rebuild has the reason ``hash_mismatch`` unless a bound evicted it."""
    fields = {
        **_name_scope(incomplete.scope),
        "entire_message_hash": incomplete.entire_message_hash,
        "event_time": at * 1000,
        "status": status,
        "reason": "hash_mismatch" if incomplete.mismatch and reason != "over_limit" else reason,
        "detail": detail,
        "data_count": incomplete.data_count,
        "parity_count": incomplete.parity_count,
        "data_held": [s.index for s in incomplete.held if not s.is_parity],
        "parity_held": [s.index for s in incomplete.held if s.is_parity],
        "data_missing": list(incomplete.missing_data) if incomplete.data_count is not None else None,
        "sds_ids": [s.sds_id for s in incomplete.held],
        "first_seen": incomplete.first_seen * 1000,
        "last_seen": incomplete.last_seen * 1000,
    }
    return ReportedSet(fields)


NAMED_IDS = 16
"""The maximum number of ids named in an event. Each is cut to 64 characters, as ids of this program have."""


def make_mismatch_result(event: HashMismatch, record: Record, now: int) -> Row:
    """The event for segments that do not rebuild their message, with the ids that claim the same index."""
    ids = [segment.sds_id[:64] for segment in event.contested or event.held]
    shown = ", ".join(ids[:NAMED_IDS]) + (f" and {len(ids) - NAMED_IDS} more" if len(ids) > NAMED_IDS else "")
    more = f"nothing further is tried after {event.attempts} choices" if event.exhausted else "further ones may help"
    state = "contested" if event.contested else "held"
    detail = f"segments do not hash to {event.entire_message_hash.hex()}, {more}; {state}: {shown}"
    sds_id = (event.contested or event.held)[0].sds_id
    return _make_event("hash_mismatch", event.scope, sds_id, detail, now * 1000, record)


def make_event_result(event: ReceivedSegmentEvent, name: str, detail: str, record: Record, now: int) -> Row:
    """The event for a segment that was not accepted, with the reason."""
    segment = f"{'parity' if event.is_parity else 'data'} segment {event.index}"
    return _make_event(name, event.scope, event.sds_id, f"{detail} ({segment})", now * 1000, record)


def make_failure_result(scope: Scope | None, sds_id: str | None, detail: str, event_us: int, record: Record) -> Row:
    """The event for a row on which the program failed. ``sds_id``: of a segment, ``None`` for a tick."""
    detail = f"{'tick' if sds_id is None else 'segment'} row: {detail}"
    return _make_event(EVENT, scope, sds_id, detail, event_us, record)


def _make_event(
    name: str, scope: Sequence[str] | None, sds_id: str | None, detail: str, time_us: int, record: Record
) -> Row:
    """A row of ``channel_events``."""
    whose = _name_scope(scope or (None,) * len(SCOPE))
    del whose["family"]  # channel_events has no such column
    return Event(**whose, **_name_record(record), event=name, event_time=time_us, sds_id=sds_id, detail=detail)


def _name_record(record: Record) -> dict[str, Any]:
    return dict(zip(RECORD_KEY, record, strict=True))


def _name_scope(scope: Sequence[str | None]) -> dict[str, Any]:
    return dict(zip(SCOPE, scope, strict=True))
