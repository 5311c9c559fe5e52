"""The one place that says which Delta tables exist: columns, units, keys, z-order, retention, and who writes them.

Values only; :mod:`reliable_channel.pipeline.storage.ddl` creates them, ``reliable-channel tables docs`` prints them as
``docs/tables.md``. Times are Spark ``TIMESTAMP`` (µs, UTC) unless the name says ``_ns`` or ``_ms``; hashes are bytes.
Deletion vectors stay off, so that plain readers (delta-rs, DuckDB, Polars) read every table (docs/decisions.md).
"""

from __future__ import annotations

from reliable_channel.pipeline.tables.ack import (
    ACKS,
    CHANNEL_EVENTS,
    DELIVERIES,
    LOST_DEPENDENCIES,
    REFETCH_REQUESTS,
    REPAIR_REQUESTS,
)
from reliable_channel.pipeline.tables.evidence import SENDER_EVENTS, SENT_ROWS, SIGHTINGS, STORE_PRESENCE
from reliable_channel.pipeline.tables.ingest import ENVELOPES, QUARANTINE, SEGMENTS, SOURCE_GAPS
from reliable_channel.pipeline.tables.model import DAY_MS, HISTORY_TYPE, INDEXED_COLUMNS, Column, Table
from reliable_channel.pipeline.tables.operations import ALERTS, CLOCK, OPEN_KEYS, PIPELINE_METRICS
from reliable_channel.pipeline.tables.outcome import DELIVERED_MESSAGES, DELIVERY_STATUS
from reliable_channel.pipeline.tables.reassembly import INCOMPLETE_MESSAGES, MESSAGES, SDS_INPUT

TABLES: tuple[Table, ...] = (
    ENVELOPES,
    SEGMENTS,
    QUARANTINE,
    SOURCE_GAPS,
    SDS_INPUT,
    MESSAGES,
    INCOMPLETE_MESSAGES,
    DELIVERIES,
    ACKS,
    REFETCH_REQUESTS,
    LOST_DEPENDENCIES,
    REPAIR_REQUESTS,
    CHANNEL_EVENTS,
    DELIVERED_MESSAGES,
    CLOCK,
    OPEN_KEYS,
    SENDER_EVENTS,
    SIGHTINGS,
    STORE_PRESENCE,
    SENT_ROWS,
    DELIVERY_STATUS,
    PIPELINE_METRICS,
    ALERTS,
)
"""All tables, in the order of the data flow."""

BY_NAME: dict[str, Table] = {table.name: table for table in TABLES}

__all__ = [
    "ACKS",
    "ALERTS",
    "BY_NAME",
    "CHANNEL_EVENTS",
    "CLOCK",
    "DAY_MS",
    "DELIVERED_MESSAGES",
    "DELIVERIES",
    "DELIVERY_STATUS",
    "ENVELOPES",
    "HISTORY_TYPE",
    "INCOMPLETE_MESSAGES",
    "INDEXED_COLUMNS",
    "LOST_DEPENDENCIES",
    "MESSAGES",
    "OPEN_KEYS",
    "PIPELINE_METRICS",
    "QUARANTINE",
    "REFETCH_REQUESTS",
    "REPAIR_REQUESTS",
    "SDS_INPUT",
    "SEGMENTS",
    "SENDER_EVENTS",
    "SENT_ROWS",
    "SIGHTINGS",
    "SOURCE_GAPS",
    "STORE_PRESENCE",
    "TABLES",
    "Column",
    "Table",
]
