"""The tables that reassembly writes: the input of ack, rebuilt payloads, and segment sets that stayed incomplete."""

from reliable_channel.lake.tables import columns
from reliable_channel.lake.tables.model import DAY_MS, Column, Table

ORDERED_SDS_MESSAGES = Table(
    "ordered_sds_messages",
    "Input of the ack job in record order (kafka_partition, kafka_offset, sub_order): metadata of every"
    " SDS message, and after the record that completed a segment set, its repaired and completed rows.",
    "jobs/reassembly.py",
    (
        *columns.COORDINATES,
        Column(
            "sub_order", "INT", "0: the record itself; 1 and up: repaired rows, then the completed row", example="0"
        ),
        Column("row_kind", "STRING", "message, repaired, completed, or tick (recorded clock)", example="message"),
        columns.EVENT_TIME,
        columns.SOURCE.describe(f"{columns.SOURCE.meaning}; null for repaired and completed rows"),
        *columns.CHANNEL,
        *columns.SDS_METADATA,
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
        *(
            column.describe(f"completed rows: {column.meaning}")
            for column in (columns.SDS_IDS, columns.PAYLOAD_BYTES, columns.FIRST_LAMPORT, columns.POSITION_EXACT)
        ),
    ),
    (*columns.RECORD_KEY, "sub_order"),
    retention_ms=7 * DAY_MS,
    clock_rows="row_kind",
)

REASSEMBLED_MESSAGES = Table(
    "reassembled_messages",
    "Payloads rebuilt from segments and verified by their Keccak-256. (Bare payloads are in sds_messages.)",
    "jobs/reassembly.py",
    (
        *columns.COORDINATES,
        columns.EVENT_TIME.describe("event time of the record that completed the set"),
        *columns.CHANNEL,
        columns.FAMILY,
        columns.SENDER,
        columns.ENTIRE_HASH,
        columns.FIRST_SDS_ID,
        columns.FIRST_LAMPORT,
        columns.POSITION_EXACT,
        columns.PAYLOAD,
        columns.PAYLOAD_BYTES,
        columns.DATA_COUNT,
        columns.PARITY_COUNT,
        Column("data_received", "INT", "data segments received when rebuilt", example="2"),
        Column("parity_received", "INT", "parity segments received when rebuilt", example="1"),
        Column(
            "repaired",
            "ARRAY<INT>",
            "indices of data segments rebuilt from parity or taken from another send of the payload",
            example="[1]",
        ),
        columns.SDS_IDS,
        Column("segment_dialect", "STRING", "wire dialect of the segments", example="v0.1"),
        columns.FIRST_SEEN,
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
    columns.RECORD_KEY,
    z_order_by=("content_topic", "event_time"),
    retention_ms=30 * DAY_MS,
)

INCOMPLETE_MESSAGES = Table(
    "incomplete_messages",
    "Segment sets that stayed incomplete, and what they lack: a row each time a set is overdue, and one when it is"
    " given up. A set that was overdue and is not given up is still open, or its message was rebuilt late.",
    "jobs/reassembly.py",
    (
        *columns.CHANNEL,
        columns.FAMILY,
        columns.SENDER,
        columns.ENTIRE_HASH,
        columns.EVENT_TIME.describe(
            "event time at which it was overdue or given up; for a timer, when due", "2026-01-01T00:09:03.285Z"
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
        columns.DETAIL,
        columns.DATA_COUNT,
        columns.PARITY_COUNT,
        Column("data_held", "ARRAY<INT>", "indices of the data segments received", example="[0, 2]"),
        Column("parity_held", "ARRAY<INT>", "indices of the parity segments received", example="[0]"),
        Column(
            "data_missing", "ARRAY<INT>", "indices of the missing data segments; null if k is unknown", example="[1]"
        ),
        columns.SDS_IDS.describe("SDS ids of the segments received", f'["{columns.AN_ID}", "{columns.ANOTHER_ID}"]'),
        columns.FIRST_SEEN.describe("event time of the first segment received"),
        Column("last_seen", "TIMESTAMP", "event time of the last segment received", example="2026-01-01T00:04:03.285Z"),
    ),
    (*columns.CHANNEL_KEY, "family", "sender_id", "entire_message_hash", "event_time", "status"),
    z_order_by=("content_topic", "event_time"),
    retention_ms=90 * DAY_MS,
)
