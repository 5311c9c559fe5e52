"""The tables that reassembly writes: the input of ack, rebuilt payloads, and segment sets that stayed incomplete."""

from __future__ import annotations

from reliable_channel.lake.tables.columns import (
    AN_ID,
    ANOTHER_ID,
    CHANNEL,
    CHANNEL_KEY,
    COORDINATES,
    DATA_COUNT,
    ENTIRE_HASH,
    EVENT_TIME,
    FAMILY,
    PARITY_COUNT,
    PAYLOAD,
    PAYLOAD_BYTES,
    POSITION_EXACT,
    RECORD_KEY,
    SDS_METADATA,
    SENDER,
    SOURCE,
)
from reliable_channel.lake.tables.model import DAY_MS, Column, Table

ORDERED_SDS_MESSAGES = Table(
    "ordered_sds_messages",
    "Input of the ack job in record order (kafka_partition, kafka_offset, sub_order): metadata of every"
    " SDS message, and after the record that completed a segment set, its repaired and completed rows.",
    "jobs/reassembly.py",
    (
        *COORDINATES,
        Column(
            "sub_order", "INT", "0: the record itself; 1 and up: repaired rows, then the completed row", example="0"
        ),
        Column("row_kind", "STRING", "message, repaired, completed, or tick (recorded clock)", example="message"),
        EVENT_TIME,
        SOURCE,
        *CHANNEL,
        *SDS_METADATA,
        Column(
            "repaired_by",
            "STRING",
            "repaired rows: parity, or message (re-encoded from the complete payload)",
            example="parity",
        ),
        Column(
            "id_scheme",
            "STRING",
            "scheme by which the SDS id was recomputed, also that of a repaired row: keccak, keccak_joined, sha256,"
            " keccak_content (docs/sds.md, Message ids); null if by none",
            example="keccak",
        ),
        Column(
            "sds_ids",
            "ARRAY<STRING>",
            "completed rows: SDS ids of the segments, data then parity; null if unknown",
            example=f'["{AN_ID}", null, "{ANOTHER_ID}"]',
        ),
        Column("payload_bytes", "BIGINT", "completed rows: size of the payload", unit="bytes", example="300000"),
        Column(
            "first_lamport_timestamp",
            "BIGINT",
            "completed rows: Lamport timestamp of the send's first segment",
            unit="ms since 1970",
            example="1767226185235",
        ),
        Column(
            "position_exact",
            "BOOLEAN",
            "completed rows: the first segment's SDS id was received or recomputed",
            example="true",
        ),
    ),
    (*RECORD_KEY, "sub_order"),
    retention_ms=7 * DAY_MS,
    clock_rows="row_kind",
)

REASSEMBLED_MESSAGES = Table(
    "reassembled_messages",
    "Payloads rebuilt from segments and verified by their Keccak-256. (Bare payloads are in sds_messages.)",
    "jobs/reassembly.py",
    (
        *COORDINATES,
        Column(
            "event_time",
            "TIMESTAMP",
            "event time of the record that completed the set",
            example="2026-01-01T00:01:12.455Z",
        ),
        *CHANNEL,
        FAMILY,
        SENDER,
        ENTIRE_HASH,
        Column("first_sds_id", "STRING", "SDS id of the first segment, or of the first one known", example=AN_ID),
        Column(
            "first_lamport_timestamp",
            "BIGINT",
            "Lamport timestamp of the send's first segment",
            unit="ms since 1970",
            example="1767226185235",
        ),
        POSITION_EXACT,
        PAYLOAD,
        PAYLOAD_BYTES,
        DATA_COUNT,
        PARITY_COUNT,
        Column("data_received", "INT", "data segments received when rebuilt", example="2"),
        Column("parity_received", "INT", "parity segments received when rebuilt", example="1"),
        Column(
            "repaired",
            "ARRAY<INT>",
            "indices of data segments rebuilt from parity or taken from another send of the payload",
            example="[1]",
        ),
        Column(
            "sds_ids",
            "ARRAY<STRING>",
            "SDS ids of the segments, data then parity; null if unknown",
            example=f'["{AN_ID}", null, "{ANOTHER_ID}"]',
        ),
        Column("segment_dialect", "STRING", "wire dialect of the segments", example="v0.1"),
        Column(
            "first_seen", "TIMESTAMP", "event time of the first segment of the set", example="2026-01-01T00:00:56.928Z"
        ),
        Column(
            "send",
            "INT",
            "number of this send of the payload by its sender, from 0; old ones are forgotten",
            example="0",
        ),
        Column(
            "one_send", "BOOLEAN", "ids or equal timestamps prove one send; else segments may be of two", example="true"
        ),
    ),
    RECORD_KEY,
    z_order_by=("content_topic", "event_time"),
    retention_ms=30 * DAY_MS,
)

INCOMPLETE_MESSAGES = Table(
    "incomplete_messages",
    "Segment sets that stayed incomplete, and what they lack: a row each time a set is overdue, and one when it is"
    " given up. A set that was overdue and is not given up is still open, or its message was rebuilt late.",
    "jobs/reassembly.py",
    (
        *CHANNEL,
        FAMILY,
        SENDER,
        ENTIRE_HASH,
        Column(
            "event_time",
            "TIMESTAMP",
            "event time at which it was overdue or given up; for a timer, when due",
            example="2026-01-01T00:09:03.285Z",
        ),
        Column(
            "status",
            "STRING",
            "overdue (still open; store nodes are asked for its segments) or given_up",
            example="overdue",
        ),
        Column(
            "reason",
            "STRING",
            "overdue: silent; given_up: expired or over_limit; both: hash_mismatch",
            example="silent",
        ),
        Column(
            "detail",
            "STRING",
            "human-readable detail, no payload bytes",
            example="Keccak-256 of the rebuilt payload differs",
        ),
        DATA_COUNT,
        PARITY_COUNT,
        Column("data_held", "ARRAY<INT>", "indices of the data segments received", example="[0, 2]"),
        Column("parity_held", "ARRAY<INT>", "indices of the parity segments received", example="[0]"),
        Column(
            "data_missing", "ARRAY<INT>", "indices of the missing data segments; null if k is unknown", example="[1]"
        ),
        Column("sds_ids", "ARRAY<STRING>", "SDS ids of the segments received", example=f'["{AN_ID}", "{ANOTHER_ID}"]'),
        Column(
            "first_seen", "TIMESTAMP", "event time of the first segment received", example="2026-01-01T00:00:56.928Z"
        ),
        Column("last_seen", "TIMESTAMP", "event time of the last segment received", example="2026-01-01T00:04:03.285Z"),
    ),
    (*CHANNEL_KEY, "family", "sender_id", "entire_message_hash", "event_time", "status"),
    z_order_by=("content_topic", "event_time"),
    retention_ms=90 * DAY_MS,
)
