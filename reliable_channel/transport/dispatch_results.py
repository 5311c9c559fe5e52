"""Encodes and decodes the result of an envelope of the outgoing Kafka topic: one JSON record per step, written by the
bridge and read by senders.

::

    {"request_id", "status": "accepted", "timestamp": ns, "envelope_hash": hex, "near": null | [used, limit, until_ms],
     "at_ms"}
    {"request_id", "status": "delayed", "until_ms", "at_ms"}
    {"request_id", "status": "failed", "reason", "detail", "timestamp": ns | null, "utilization", "at_ms"}

The key is the content topic. Times without another unit are Unix ms of the bridge's clock; ``timestamp`` is that of the
envelope as it was published, so that a sender computes its hash from its own bytes: a record cannot name another's
envelope. ``reason`` is a :class:`~reliable_channel.transport.base.FailureReason`. Records without a known request id,
over :data:`MAX_RECORD_BYTES` or of another form are ignored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from reliable_channel.core import foreign_json
from reliable_channel.transport.base import FailureReason

MAX_RECORD_BYTES = 4_096
MAX_REQUEST_ID = 64
MAX_DETAIL = 300
_INT64 = range(-(2**63), 2**63)


class DispatchStatus(StrEnum):
    """The status in a record."""

    ACCEPTED = "accepted"
    """A Waku node accepted the envelope, or reports it as a duplicate."""
    DELAYED = "delayed"
    """The rate limit delays it."""
    FAILED = "failed"
    """It was refused, dropped or abandoned: this bridge will not send it."""


@dataclass(frozen=True, slots=True)
class DispatchResult:
    """One record. ``envelope_hash`` is for other readers; a sender of this project computes it."""

    request_id: str
    status: DispatchStatus
    at_ms: int
    timestamp: int | None = None
    envelope_hash: str | None = None
    reason: FailureReason | None = None
    detail: str = ""
    until_ms: int | None = None
    utilization: float = 0.0
    near: tuple[int, int, int] | None = None

    def to_bytes(self) -> bytes:
        """The record's value."""
        value = {**asdict(self), "detail": self.detail[:MAX_DETAIL]}
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def read_result(value: bytes | None) -> DispatchResult | None:
    """Decode a record; ``None`` if it is not a dispatch result."""
    if not value or len(value) > MAX_RECORD_BYTES:
        return None
    try:
        fields = foreign_json.loads(value)
        return _read_fields(fields) if isinstance(fields, dict) else None
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None


def _read_fields(fields: dict[str, Any]) -> DispatchResult | None:
    request_id, detail = fields["request_id"], fields.get("detail") or ""
    if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_REQUEST_ID or not isinstance(detail, str):
        return None
    reason = fields.get("reason")
    near = fields.get("near")
    used = fields.get("utilization") or 0.0
    result = DispatchResult(
        request_id,
        DispatchStatus(fields["status"]),
        _read_integer(fields["at_ms"]),
        None if fields.get("timestamp") is None else _read_integer(fields["timestamp"]),
        None,
        None if reason is None else FailureReason(reason),
        detail[:MAX_DETAIL],
        None if fields.get("until_ms") is None else _read_integer(fields["until_ms"]),
        min(1.0, max(0.0, float(used))),
        None if near is None else (_read_integer(near[0]), _read_integer(near[1]), _read_integer(near[2])),
    )
    complete = {
        DispatchStatus.ACCEPTED: result.timestamp is not None,
        DispatchStatus.DELAYED: result.until_ms is not None,
        DispatchStatus.FAILED: result.reason is not None,
    }
    return result if complete[result.status] else None


def _read_integer(value: object) -> int:
    if type(value) is not int or value not in _INT64:
        raise ValueError
    return value
