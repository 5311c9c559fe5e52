"""Reads the Delta tables with ``deltalake`` and Arrow, without Spark and JVM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from reliable_channel.analysis.report import delta
from reliable_channel.lake.read import open_at, unreadable
from reliable_channel.simulation.check.observed import (
    Acknowledgement,
    DeliveredMessage,
    DeliveredSegment,
    IncompleteMessage,
    Observed,
    Quarantined,
)
from reliable_channel.simulation.check.verdicts import Judged

EPHEMERAL, CERTAIN, RECOVERED = "ephemeral", "certain", "recovered"


def read_table(data_dir: str | Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """One table as Arrow. Raises :class:`EnvironmentFault` when there is none, or when it cannot be read."""
    location = str(data_dir)
    table = open_at(delta.place_of(location, name))
    if table is None:
        raise delta.absent(location, name)
    try:
        return delta.dataset(table).to_table(columns=list(columns) if columns else None)
    except (DeltaError, pa.ArrowException, OSError) as error:
        raise unreadable(name, error) from error


def read_observed(data_dir: str | Path) -> Observed:
    """Everything the comparison with the truth needs, from the tables under ``data_dir``."""
    deliveries = _rows(
        data_dir,
        "deliveries",
        "channel_id row_seq sds_id sds_kind segment_kind sender_id late repaired_by lost_dependencies",
    )
    return Observed(
        messages=[_message(row) for row in _rows(data_dir, "delivered_messages", _MESSAGE)],
        segments=[
            DeliveredSegment(
                channel_id=row["channel_id"],
                sds_id=row["sds_id"],
                row_seq=row["row_seq"],
                late=bool(row["late"]),
                repaired=row["repaired_by"] is not None,
                lost_dependencies=tuple(row["lost_dependencies"] or ()),
                sender=row["sender_id"] or "",
            )
            for row in deliveries
            if row["segment_kind"] is not None and row["sds_kind"] != EPHEMERAL
        ],
        row_numbers=[(row["channel_id"], row["row_seq"]) for row in deliveries],
        incomplete=[
            IncompleteMessage(
                channel_id=row["channel_id"],
                sender=row["sender_id"],
                payload_hash=row["entire_message_hash"].hex(),
                missing_data=tuple(row["data_missing"] or ()),
                data_count=row["data_count"],
            )
            for row in _rows(
                data_dir,
                "incomplete_messages",
                "channel_id sender_id entire_message_hash data_missing data_count status",
            )
            if row["status"] != "overdue"
        ],
        lost=_read_lost(data_dir),
        acks=[
            Acknowledgement(
                channel_id=row["channel_id"],
                sds_id=row["sds_id"],
                by=row["acknowledged_by"],
                evidence=row["evidence"],
                certain=row["certainty"] == CERTAIN,
            )
            for row in _rows(data_dir, "acks", "channel_id sds_id acknowledged_by evidence certainty")
        ],
        quarantine=[
            Quarantined(
                topic=row["kafka_topic"],
                partition=row["kafka_partition"],
                offset=row["kafka_offset"],
                reason=row["reason"],
                raw=row["raw"],
            )
            for row in _rows(data_dir, "quarantine", "kafka_topic kafka_partition kafka_offset reason raw")
        ],
        envelopes=read_table(data_dir, "envelopes", ["kafka_offset"]).num_rows,
    )


_MESSAGE = "channel_id sender_id payload causal_lamport causal_sds_id delivery_seq ephemeral"


def read_verdicts(data_dir: str | Path) -> list[Judged]:
    """The rows of ``delivery_status``."""
    rows = _rows(data_dir, "delivery_status", "channel_id sds_ids verdict cause detail")
    return [Judged(r["channel_id"], tuple(r["sds_ids"]), r["verdict"], r["cause"], r["detail"]) for r in rows]


def _rows(data_dir: str | Path, name: str, columns: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(data_dir, name, columns.split()).to_pylist()
    return rows


def _message(row: dict[str, Any]) -> DeliveredMessage:
    return DeliveredMessage(
        channel_id=row["channel_id"],
        sender=row["sender_id"],
        payload=row["payload"],
        lamport=row["causal_lamport"],
        first_sds_id=row["causal_sds_id"],
        delivery_seq=row["delivery_seq"],
        ephemeral=bool(row["ephemeral"]),
    )


def _read_lost(data_dir: str | Path) -> list[tuple[str, str, str]]:
    """Dependencies given up in the end: lost or before observation, and not recovered since."""
    rows = _rows(data_dir, "lost_dependencies", "channel_id sds_id status")
    recovered = {(row["channel_id"], row["sds_id"]) for row in rows if row["status"] == RECOVERED}
    return [
        (row["channel_id"], row["sds_id"], row["status"])
        for row in rows
        if row["status"] != RECOVERED and (row["channel_id"], row["sds_id"]) not in recovered
    ]
