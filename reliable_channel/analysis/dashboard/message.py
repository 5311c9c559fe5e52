"""Builds the page of one message: its verdict, segments, acknowledgements, time line and causal graph."""

from __future__ import annotations

from functools import partial
from typing import Any

from reliable_channel.analysis.dashboard.figures import MESSAGE_FIGURES
from reliable_channel.analysis.dashboard.sections import section
from reliable_channel.analysis.report.investigate import MessageFacts, list_envelopes
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.lake.tables.evidence import BRIDGE_SOURCES

MOST_ROWS = 600
"""The maximum number of rows: a message has at most 256 segments, and the same bound applies to participants."""


def page(lake: TableSnapshot, message: MessageFacts) -> dict[str, Any]:
    """The parts of the page."""
    return {
        "segments": section(lake, ("sds_messages", "deliveries"), lambda: segments(lake, message)),
        "places": section(lake, ("sds_messages", "sightings"), lambda: places(lake, message)),
        "confirmations": section(lake, ("acks",), lambda: confirmations(lake, message)),
        "figures": {
            name: section(lake, ("sds_messages",), partial(make, lake, message))
            for name, make in MESSAGE_FIGURES.items()
        },
    }


def _make_parameters(message: MessageFacts) -> dict[str, Any]:
    return {**message.channel.parameters, "ids": list(message.sds_ids)}


def segments(lake: TableSnapshot, message: MessageFacts) -> list[dict[str, Any]]:
    """One row per known SDS message of the message: received, rebuilt or neither."""
    here = message.channel.where()
    return lake.select(
        f"""
        WITH seen AS (
            SELECT sds_id, any_value(segment_kind) AS segment_kind, any_value(segment_index) AS segment_index,
                   any_value(sds_kind) AS sds_kind, count(*) AS copies, min(event_time) AS first_seen,
                   string_agg(DISTINCT source, ', ' ORDER BY source) AS sources,
                   any_value(envelope_hash) AS envelope_hash, any_value(content_bytes) AS content_bytes,
                   any_value(data_count) AS data_count, any_value(parity_count) AS parity_count
            FROM sds_messages WHERE {here} AND list_contains($ids, sds_id) GROUP BY sds_id),
        came AS (
            SELECT sds_id, any_value(repaired_by) AS repaired_by, min(event_time) AS delivered,
                   any_value(segment_kind) AS segment_kind, any_value(segment_index) AS segment_index
            FROM deliveries WHERE {here} AND list_contains($ids, sds_id) AND segment_kind IS NOT NULL GROUP BY sds_id),
        named AS (SELECT unnest($ids::VARCHAR[]) AS sds_id)
        SELECT n.sds_id, coalesce(s.segment_kind, c.segment_kind) AS segment_kind, sds_kind,
               coalesce(s.segment_index, c.segment_index) AS segment_index, coalesce(copies, 0) AS copies, first_seen,
               sources, envelope_hash, content_bytes, data_count, parity_count, repaired_by, delivered
        FROM named n LEFT JOIN seen s USING (sds_id) LEFT JOIN came c USING (sds_id)
        ORDER BY segment_kind, segment_index, n.sds_id LIMIT {MOST_ROWS}
        """,  # noqa: S608 - names of columns; values are bound
        _make_parameters(message),
    )


def places(lake: TableSnapshot, message: MessageFacts) -> list[dict[str, Any]]:
    """Per bridge: how many of the message's envelopes that any bridge knows of its own node gave it or it dispatched,
    how many not, how many of those a store had, and the first time. Per node whose log covers the time (``is_log``):
    how many are in its log, how many not, and the first time, corrected by its clock."""
    return lake.select(
        f"""
        WITH mine AS (SELECT DISTINCT envelope_hash AS message_hash FROM ({list_envelopes(message.channel.where())})),
        bridged AS (
            SELECT vantage, message_hash, source, seen_at FROM sightings WHERE source IN {BRIDGE_SOURCES}),
        known AS (
            SELECT vantage, message_hash, bool_or(source <> 'store') AS own, bool_or(source = 'store') AS stored,
                   min(seen_at) AS seen_at
            FROM bridged SEMI JOIN mine USING (message_hash) GROUP BY ALL)
        SELECT v.vantage, count(*) FILTER (own) AS seen, count(*) FILTER (own IS DISTINCT FROM true) AS not_seen,
               count(*) FILTER (stored AND NOT own) AS from_a_store, min(seen_at) AS first_at, false AS is_log
        FROM (SELECT DISTINCT vantage FROM bridged) v CROSS JOIN (SELECT DISTINCT message_hash FROM known) e
        LEFT JOIN known k ON k.vantage = v.vantage AND k.message_hash = e.message_hash
        GROUP BY v.vantage
        UNION ALL
        SELECT vantage, logged, envelopes - logged, NULL, to_timestamp(first_ms / 1000), true
        FROM message_logs WHERE {message.channel.where()} AND message_key = $key
        ORDER BY is_log, vantage LIMIT {MOST_ROWS}
        """,  # noqa: S608 - names of columns; values are bound
        {**_make_parameters(message), "key": message.message_key},
    )


def confirmations(lake: TableSnapshot, message: MessageFacts) -> list[dict[str, Any]]:
    """Per participant: of how many of its SDS messages there is an acknowledgement, the evidence, the best certainty
    (the names sort so), and the first time."""
    here = message.channel.where()
    return lake.select(
        f"""
        SELECT acknowledged_by, count(DISTINCT sds_id) AS segments, min(certainty) AS certainty,
               string_agg(DISTINCT evidence, ', ' ORDER BY evidence) AS evidence, min(latency_ms) AS latency_ms,
               min(event_time) AS first_at
        FROM acks WHERE {here} AND list_contains($ids, sds_id)
        GROUP BY acknowledged_by ORDER BY first_at, acknowledged_by LIMIT {MOST_ROWS}
        """,  # noqa: S608 - names of columns; values are bound
        _make_parameters(message),
    )
