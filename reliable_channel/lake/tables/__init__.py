"""Defines every Delta table: columns, units, keys, z-order, retention, and the job that writes it.

Values only: :mod:`reliable_channel.lake.create` creates the tables, docs/tables.md is generated from
them. Times are Spark ``TIMESTAMP`` (µs, UTC) unless a name ends in ``_ns`` or ``_ms``; hashes are bytes.
Deletion vectors are off, so that plain readers (delta-rs, DuckDB, Polars) read every table (docs/decisions.md).
"""

from __future__ import annotations

from reliable_channel.lake.tables.ack import (
    ACKS,
    CHANNEL_EVENTS,
    DELIVERIES,
    LOST_DEPENDENCIES,
    REFETCH_REQUESTS,
    REPAIR_REQUESTS,
)
from reliable_channel.lake.tables.columns import CHANNEL_KEY, RECORD_KEY
from reliable_channel.lake.tables.evidence import SENDER_EVENTS, SENT_ROWS, SIGHTINGS, STORE_PRESENCE
from reliable_channel.lake.tables.ingest import ENVELOPES, LATEST_SEND_TIME, QUARANTINE, SDS_MESSAGES, SOURCE_GAPS
from reliable_channel.lake.tables.model import (
    DAY_MS,
    EPOCH,
    HISTORY_TYPE,
    INDEXED_COLUMNS,
    Column,
    Table,
    TopicPartition,
    micros,
)
from reliable_channel.lake.tables.operations import ALERTS, CLOCK, PIPELINE_METRICS
from reliable_channel.lake.tables.outcome import DELIVERED_MESSAGES, DELIVERY_STATUS
from reliable_channel.lake.tables.reassembly import INCOMPLETE_MESSAGES, ORDERED_SDS_MESSAGES, REASSEMBLED_MESSAGES

TABLES: tuple[Table, ...] = (
    ENVELOPES,
    SDS_MESSAGES,
    QUARANTINE,
    SOURCE_GAPS,
    ORDERED_SDS_MESSAGES,
    REASSEMBLED_MESSAGES,
    INCOMPLETE_MESSAGES,
    DELIVERIES,
    ACKS,
    REFETCH_REQUESTS,
    LOST_DEPENDENCIES,
    REPAIR_REQUESTS,
    CHANNEL_EVENTS,
    DELIVERED_MESSAGES,
    CLOCK,
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
    "CHANNEL_KEY",
    "CLOCK",
    "DAY_MS",
    "DELIVERED_MESSAGES",
    "DELIVERIES",
    "DELIVERY_STATUS",
    "ENVELOPES",
    "EPOCH",
    "HISTORY_TYPE",
    "INCOMPLETE_MESSAGES",
    "INDEXED_COLUMNS",
    "LATEST_SEND_TIME",
    "LOST_DEPENDENCIES",
    "ORDERED_SDS_MESSAGES",
    "PIPELINE_METRICS",
    "QUARANTINE",
    "REASSEMBLED_MESSAGES",
    "RECORD_KEY",
    "REFETCH_REQUESTS",
    "REPAIR_REQUESTS",
    "SDS_MESSAGES",
    "SENDER_EVENTS",
    "SENT_ROWS",
    "SIGHTINGS",
    "SOURCE_GAPS",
    "STORE_PRESENCE",
    "TABLES",
    "Column",
    "Table",
    "TopicPartition",
    "micros",
]
