"""Reads the Delta tables into plain values, without Spark and JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.lake.read import no_table_fault
from reliable_channel.simulation.check.observed import (
    Acknowledgement,
    DeliveredMessage,
    DeliveredSegment,
    IncompleteMessage,
    Observed,
    Quarantined,
)
from reliable_channel.simulation.check.verdicts import Judged

PATIENCE_S = 600.0
"""Whole tables are read, unlike by a page."""


def read_observed(data_dir: str | Path) -> Observed:
    """Everything the comparison with the truth needs, from the tables under ``data_dir``. Raises
    :class:`EnvironmentFault` if one does not exist or cannot be read."""
    lake = TableSnapshot(PathSettings(data_dir=str(data_dir)), PATIENCE_S)
    observed = Observed(
        messages=[
            DeliveredMessage(**row)
            for row in lake.select(
                """SELECT channel_id, sender_id AS sender, payload, causal_lamport AS lamport,
                          causal_sds_id AS first_sds_id, delivery_seq, coalesce(ephemeral, false) AS ephemeral
                   FROM delivered_messages""",
            )
        ],
        segments=[
            DeliveredSegment(**row | {"lost_dependencies": tuple(row["lost_dependencies"])})
            for row in lake.select(
                """SELECT channel_id, sds_id, row_seq, coalesce(late, false) AS late,
                          repaired_by IS NOT NULL AS repaired, coalesce(sender_id, '') AS sender,
                          coalesce(lost_dependencies, []) AS lost_dependencies
                   FROM deliveries WHERE segment_kind IS NOT NULL AND sds_kind IS DISTINCT FROM 'ephemeral'""",
            )
        ],
        row_numbers=_select_tuples(lake, "SELECT channel_id, row_seq FROM deliveries"),
        incomplete=[
            IncompleteMessage(**row | {"missing_data": tuple(row["missing_data"])})
            for row in lake.select(
                """SELECT channel_id, sender_id AS sender, lower(hex(entire_message_hash)) AS payload_hash,
                          coalesce(data_missing, []) AS missing_data, data_count
                   FROM incomplete_messages WHERE status IS DISTINCT FROM 'overdue'""",
            )
        ],
        # given up in the end: lost or before observation, and not recovered since
        lost=_select_tuples(
            lake,
            """SELECT channel_id, sds_id, status FROM lost_dependencies l WHERE NOT EXISTS (
                   SELECT 1 FROM lost_dependencies r
                   WHERE r.status = 'recovered' AND r.channel_id = l.channel_id AND r.sds_id = l.sds_id)""",
        ),
        acks=[
            Acknowledgement(**row)
            for row in lake.select(
                """SELECT channel_id, sds_id, acknowledged_by AS "by", evidence, certainty = 'certain' AS certain
                   FROM acks"""
            )
        ],
        quarantine=[
            Quarantined(**row)
            for row in lake.select(
                """SELECT kafka_topic AS topic, kafka_partition AS "partition", kafka_offset AS "offset", reason, raw
                   FROM quarantine""",
            )
        ],
        envelopes=lake.select("SELECT count(*) AS number FROM envelopes")[0]["number"],
    )
    _require_all(lake)
    return observed


def read_verdicts(data_dir: str | Path) -> list[Judged]:
    """The rows of ``delivery_status``."""
    lake = TableSnapshot(PathSettings(data_dir=str(data_dir)), PATIENCE_S)
    rows = lake.select("SELECT channel_id, sds_ids, verdict, cause, detail FROM delivery_status")
    _require_all(lake)
    return [Judged(**row | {"sds_ids": tuple(row["sds_ids"])}) for row in rows]


def _select_tuples(lake: TableSnapshot, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in lake.select(sql)]


def _require_all(lake: TableSnapshot) -> None:
    for name in lake.absent():
        raise no_table_fault(f"{lake.data_dir}/{name}")
