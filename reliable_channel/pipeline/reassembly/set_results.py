"""The rows that reassembly writes for what became of a set: values in, rows out.

A completed set gives its payload, the segments that were not received with their recomputed ids (*verified repair*,
protocol.md §4), and the row that says it is whole.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from reliable_channel.pipeline.clock import Place
from reliable_channel.segmentation import (
    HashMismatch,
    HeldSegment,
    IncompleteSet,
    MessageCompleted,
    PoisonedSegmentExcluded,
    SegmentationConfig,
    SegmentConflict,
    SegmentRefused,
    missing_segments,
)
from reliable_channel.wire.hashing import IdScheme, sha256


class Result(NamedTuple):
    """One output row. ``kind``: message, repaired, completed, incomplete, event or open_key; ``fields`` are columns of
    the table it belongs to, binary ones in base64, times in µs."""

    kind: str
    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    sub_order: int
    payload: bytes | None
    fields: dict[str, Any]

    def packable(self) -> tuple[str, dict[str, Any]]:
        """The kind, and all there is to say under the names of columns."""
        place = {"kafka_topic": self.kafka_topic, "kafka_partition": self.kafka_partition}
        if self.kind in ("event", "incomplete", "open_key"):
            return self.kind, {**place, **self.fields}
        place |= {"kafka_offset": self.kafka_offset}
        if self.kind == "message":
            return self.kind, {**place, **self.fields, "payload": self.payload}
        return self.kind, {**place, **self.fields, "sub_order": self.sub_order, "row_kind": self.kind}


def completed_results(
    event: MessageCompleted, offset: int, place: Place, config: SegmentationConfig
) -> Iterator[Result]:
    """The payload, then the repaired rows of what was not received, then the completed row."""
    scope = dict(zip(("pubsub_topic", "content_topic", "channel_id", "sender_id"), event.scope, strict=True))
    ids = {(s.is_parity, s.index): s.sds_id for s in event.received}
    repaired = list(_repaired(event, config))
    ids |= {(r["segment_kind"] == "parity", r["segment_index"]): r["sds_id"] for r in repaired}
    parity_count = max([event.parity_count or 0, *(index + 1 for is_parity, index in ids if is_parity)])
    sds_ids = [ids.get((False, i)) for i in range(event.data_count)] + [ids.get((True, i)) for i in range(parity_count)]
    hash_ = _base64(event.entire_message_hash)
    first = sds_ids[0] or next((i for i in sds_ids if i is not None), None)
    common = {
        **scope,
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
    message = {
        **common,
        "first_sds_id": first,
        "data_received": data_received,
        "parity_received": len(event.received) - data_received,
        "repaired": list(event.rebuilt_indices),
        "segment_dialect": event.dialect.value,
        "first_seen": event.first_seen * 1000,
        "send": event.send,
        "one_send": _one_send(event),
    }
    yield Result("message", *place, offset, 0, event.payload, message)
    for number, row in enumerate(repaired, start=1):
        fields = {**scope, **row, "event_time": event.completed_at * 1000, "entire_message_hash": hash_}
        fields["causal_history"] = _predecessor(sds_ids, row["sds_id"])
        yield Result("repaired", *place, offset, number, None, {**fields, "data_count": event.data_count})
    yield Result("completed", *place, offset, len(repaired) + 1, None, {**common, "sds_id": first})


def _one_send(event: MessageCompleted) -> bool:
    """Whether two or more segments came and all tell the same Lamport timestamp of the first one."""
    told = {
        None if s.lamport is None else s.lamport - s.index - (event.data_count if s.is_parity else 0)
        for s in event.received
    }
    return len(event.received) > 1 and len(told) == 1 and None not in told


def _predecessor(sds_ids: list[str | None], sds_id: str) -> list[dict[str, str | None]] | None:
    """The causal history of a repaired segment, as far as it is certain: a send's segments are wrapped in one step, so
    each has the one before it in its causal past. Without it SDS would deliver the segment at once, and the message
    before those it depends on."""
    place = sds_ids.index(sds_id)
    before = sds_ids[place - 1] if place else None
    return None if before is None else [{"sds_id": before, "retrieval_hint": None, "sender_id": None}]


def _repaired(event: MessageCompleted, config: SegmentationConfig) -> Iterator[dict[str, Any]]:
    """What was not received, each with its recomputed SDS id (protocol.md §4). None when the ids of what *was* received
    cannot be recomputed either: then the sender makes its ids in another way, and a guess would verify nothing."""
    count = None
    if event.parity_count is None and config.enable_reed_solomon:
        count = config.parity_count(event.data_count)
    missing = missing_segments(event, count)
    if not missing:
        return
    scheme = _id_scheme(event)
    if scheme is None:
        return
    for segment in missing:
        yield {
            "sds_id": scheme.message_id(event.scope[3], event.first_lamport, segment.content),
            "sds_kind": "content",
            "lamport_timestamp": segment.lamport,
            "content_digest": _base64(sha256(segment.content)),
            "content_bytes": len(segment.content),
            "segment_kind": "parity" if segment.is_parity else "data",
            "segment_index": segment.index,
            "parity_count": event.parity_count,
            "repaired_by": "message" if segment.is_parity else "parity",
            "id_scheme": scheme.value,
        }


def _id_scheme(event: MessageCompleted) -> IdScheme | None:
    """How this sender makes its ids, found on a segment that was received."""
    known: HeldSegment = next((s for s in event.received if not s.is_parity), event.received[0])
    parity = tuple(HeldSegment(True, index, "") for index in range(event.parity_count or 0))  # nothing to encode
    others = tuple(s for s in event.received if not s.is_parity and s != known) + (
        parity if not known.is_parity else ()
    )
    again = missing_segments(replace(event, received=others))
    content = next((s.content for s in again if (s.is_parity, s.index) == (known.is_parity, known.index)), None)
    if content is None:
        return None
    for scheme in IdScheme:
        if scheme.message_id(event.scope[3], event.first_lamport, content) == known.sds_id:
            return scheme
    return None


def incomplete_result(
    given_up: IncompleteSet, reason: str, detail: str | None, at: int, offset: int, place: Place
) -> Result:
    """A set that was given up, as a row of ``incomplete_messages``."""
    scope = dict(zip(("pubsub_topic", "content_topic", "channel_id", "sender_id"), given_up.scope, strict=True))
    lamports = [segment.lamport for segment in given_up.held if segment.lamport is not None]
    fields = {
        **scope,
        "entire_message_hash": _base64(given_up.entire_message_hash),
        "event_time": at * 1000,
        "reason": reason,
        "detail": detail,
        "data_count": given_up.data_count,
        "parity_count": given_up.parity_count,
        "data_held": [s.index for s in given_up.held if not s.is_parity],
        "parity_held": [s.index for s in given_up.held if s.is_parity],
        "data_missing": list(given_up.missing_data) if given_up.data_count is not None else None,
        "sds_ids": [s.sds_id for s in given_up.held],
        "first_seen": given_up.first_seen * 1000,
        "last_seen": given_up.last_seen * 1000,
        "oldest_lamport": min(lamports, default=None),  # no columns: for pipeline/reassembly/leftovers.py
        "newest_lamport": max(lamports, default=None),
    }
    return Result("incomplete", *place, offset, 0, None, fields)


NAMED_IDS = 16
"""An event names at most so many ids, and of each as many characters as an id of ours has."""


def mismatch_result(event: HashMismatch, offset: int, place: Place, now: int) -> Result:
    """Segments that do not make the message whose hash they name, with the ids that claim one place."""
    ids = [segment.sds_id[:64] for segment in event.contested or event.held]
    shown = ", ".join(ids[:NAMED_IDS]) + (f" and {len(ids) - NAMED_IDS} more" if len(ids) > NAMED_IDS else "")
    more = f"nothing further is tried after {event.attempts} choices" if event.exhausted else "further ones may help"
    told = "contested" if event.contested else "held"
    fields = {
        **dict(zip(("pubsub_topic", "content_topic", "channel_id", "sender_id"), event.scope, strict=True)),
        "event": "hash_mismatch",
        "event_time": now * 1000,
        "sds_id": (event.contested or event.held)[0].sds_id,
        "detail": f"segments do not hash to {event.entire_message_hash.hex()}, {more}; {told}: {shown}",
        "kafka_partition": place[1],
        "kafka_offset": offset,
    }
    return Result("event", *place, offset, 0, None, fields)


def event_result(
    event: SegmentRefused | SegmentConflict | PoisonedSegmentExcluded,
    name: str,
    detail: str,
    offset: int,
    place: Place,
    now: int,
) -> Result:
    scope = dict(zip(("pubsub_topic", "content_topic", "channel_id", "sender_id"), event.scope, strict=True))
    fields = {
        **scope,
        "event": name,
        "event_time": now * 1000,
        "sds_id": event.sds_id,
        "detail": f"{detail} ({'parity' if event.is_parity else 'data'} segment {event.index})",
        "kafka_partition": place[1],
        "kafka_offset": offset,
    }
    return Result("event", *place, offset, 0, None, fields)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
