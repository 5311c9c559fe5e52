"""Defines the views ``messages`` and ``dispatches``: the fate of each application message and of its envelopes."""

from reliable_channel.lake.tables import (
    ACKS,
    CHANNEL_KEY,
    DELIVERED_MESSAGES,
    DELIVERY_STATUS,
    SDS_MESSAGES,
    SENDER_EVENTS,
    SIGHTINGS,
    Column,
)
from reliable_channel.lake.tables.views.model import CHANNEL, View

_AGE_MS = "unix_millis(d.first_seen) - d.sender_timestamp_ns / 1e6"
_IS_PLAUSIBLE = "BETWEEN -86400000 AND 30 * 86400000.0"
"""Of the age of a sender's timestamp in ms: not more than 30 days before the arrival, nor a day after it."""
_STATUS = DELIVERY_STATUS.by_name()
_DELIVERED = DELIVERED_MESSAGES.by_name()
_SENT = SDS_MESSAGES.by_name()

MESSAGES = View(
    "messages",
    "One row per message known to exist, with everything that is usually asked about it.",
    (DELIVERY_STATUS, DELIVERED_MESSAGES, SDS_MESSAGES, ACKS, SENDER_EVENTS, SIGHTINGS),
    (
        *(_STATUS[name] for name in (*CHANNEL_KEY, "message_key", "sender_id", "verdict", "cause", "detail")),
        *(_STATUS[name] for name in ("settled", "first_seen", "delivered_at")),
        _DELIVERED["delivery_seq"],
        Column("late", "BOOLEAN", "delivered after it had been given up", example="false"),
        *(_DELIVERED[name] for name in ("ephemeral", "payload_bytes")),
        Column(
            "latency_ms",
            "BIGINT",
            "from the sender's timestamp to the delivery; null where that timestamp is implausible (more than 30 days"
            " before the first segment, or a day after it)",
            unit="ms",
            example="1220",
        ),
        Column("waited_ms", "BIGINT", "from the first segment here to the delivery", unit="ms", example="15527"),
        *(_DELIVERED[name] for name in ("data_count", "parity_count")),
        Column(
            "segments_seen",
            "BIGINT",
            "number of its segments that arrived, data and parity, each counted once; null if none did; as long as"
            " sds_messages is kept",
            example="3",
        ),
        _DELIVERED["repaired_segments"],
        *(_STATUS[name] for name in ("data_missing", "acknowledged_by")),
        Column(
            "acknowledged_at",
            "MAP<STRING, TIMESTAMP>",
            "for each of acknowledged_by, when it had acknowledged enough segments; as long as acks is kept",
            example='{"bob": "2026-01-01T00:01:12.455Z"}',
        ),
        _STATUS["lost_by"],
        Column(
            "seen_by",
            "ARRAY<STRING>",
            "bridges and nodes (sightings.vantage) that saw an envelope of it; as long as sightings is kept",
            example='["north", "south"]',
        ),
        *(_STATUS[name] for name in ("sds_ids", "entire_message_hash", "as_of")),
    ),
    f"""\
WITH ids AS (
    SELECT {CHANNEL}, message_key, acknowledged_by AS who, explode(sds_ids) AS sds_id FROM delivery_status
), segments AS (
    SELECT {CHANNEL}, message_key, count(DISTINCT sds_id) AS segments_seen,
           max(data_count) AS data_count, max(parity_count) AS parity_count
    FROM ids JOIN sds_messages USING ({CHANNEL}, sds_id) GROUP BY {CHANNEL}, message_key
), delivered AS (
    SELECT *, row_number() OVER (PARTITION BY {CHANNEL}, message_key ORDER BY delivery_seq, family) AS place
    FROM (SELECT *, concat_ws('-', lower(hex(entire_message_hash)),
                              coalesce(cast(causal_lamport AS STRING), causal_sds_id)) AS message_key
          FROM delivered_messages)
), acknowledgements AS (
    SELECT {CHANNEL}, message_key, acknowledged_by, acknowledged,
           row_number() OVER (PARTITION BY {CHANNEL}, message_key, acknowledged_by ORDER BY acknowledged) AS place
    FROM ids JOIN (SELECT {CHANNEL}, sds_id, acknowledged_by, min(event_time) AS acknowledged
                   FROM acks GROUP BY {CHANNEL}, sds_id, acknowledged_by) USING ({CHANNEL}, sds_id)
    WHERE array_contains(who, acknowledged_by)
), acknowledged_times AS (
    SELECT {CHANNEL}, message_key,
           map_from_entries(array_agg(struct(acknowledged_by, acknowledged))) AS acknowledged_at
    FROM (SELECT {CHANNEL}, message_key, acknowledged_by,
                 max(acknowledged) FILTER (WHERE place <= coalesce(data_count, 1)) AS acknowledged
          FROM acknowledgements LEFT JOIN segments USING ({CHANNEL}, message_key)
          GROUP BY {CHANNEL}, message_key, acknowledged_by)
    GROUP BY {CHANNEL}, message_key
), sighted AS (
    SELECT {CHANNEL}, message_key, array_sort(array_agg(DISTINCT vantage)) AS seen_by
    FROM ids JOIN (SELECT {CHANNEL}, sds_id, envelope_hash FROM sds_messages
                   UNION SELECT {CHANNEL}, sds_id, envelope_hash FROM sender_events) USING ({CHANNEL}, sds_id)
         JOIN (SELECT DISTINCT message_hash AS envelope_hash, vantage FROM sightings) USING (envelope_hash)
    GROUP BY {CHANNEL}, message_key
)
SELECT s.pubsub_topic, s.content_topic, s.channel_id, s.message_key, s.sender_id, s.verdict, s.cause, s.detail,
       s.settled, s.first_seen, s.delivered_at, d.delivery_seq, coalesce(s.cause = 'late', false) AS late,
       d.ephemeral, d.payload_bytes,
       CASE WHEN {_AGE_MS} {_IS_PLAUSIBLE}
            THEN cast(round(unix_millis(s.delivered_at) - d.sender_timestamp_ns / 1e6) AS BIGINT) END AS latency_ms,
       unix_millis(s.delivered_at) - unix_millis(d.first_seen) AS waited_ms,
       coalesce(d.data_count, p.data_count) AS data_count, coalesce(d.parity_count, p.parity_count) AS parity_count,
       p.segments_seen, d.repaired_segments, s.data_missing, s.acknowledged_by, a.acknowledged_at, s.lost_by,
       v.seen_by, s.sds_ids, s.entire_message_hash, s.as_of
FROM delivery_status s
LEFT JOIN (SELECT * FROM delivered WHERE place = 1) d USING ({CHANNEL}, message_key)
LEFT JOIN segments p USING ({CHANNEL}, message_key)
LEFT JOIN acknowledged_times a USING ({CHANNEL}, message_key)
LEFT JOIN sighted v USING ({CHANNEL}, message_key)""",  # noqa: S608 - text of our own only
)

DISPATCHES = View(
    "dispatches",
    "One row per envelope of a channel that was seen: what a sender's rate limit was spent on.",
    (SDS_MESSAGES,),
    (
        *(_SENT[name] for name in (*CHANNEL_KEY, "sender_id", "sds_id", "envelope_hash")),
        Column(
            "role",
            "STRING",
            "content (data segments and bare payloads), parity, repeat (an SDS message that was sent before: a"
            " retransmission, or a repair by anybody), sync or ephemeral",
            example="content",
        ),
        Column(
            "sent_ms",
            "BIGINT",
            "the envelope's timestamp; where that is implausible (as of messages.latency_ms), first_seen",
            unit="ms since 1970",
            example="1767226190235",
        ),
        Column("first_seen", "TIMESTAMP", "smallest event_time of its copies", example="2026-01-01T00:01:12.455Z"),
        *(_SENT[name] for name in ("content_bytes", "entire_message_hash")),
    ),
    f"""\
WITH copies AS (
    SELECT {CHANNEL}, sender_id, sds_id, sds_kind, segment_kind, envelope_hash, entire_message_hash, content_bytes,
           event_time, unix_millis(event_time) - sender_timestamp_ns / 1e6 AS age_ms, sender_timestamp_ns
    FROM sds_messages WHERE sds_kind <> 'tick'
), envelopes AS (
    SELECT {CHANNEL}, sender_id, sds_id, sds_kind, segment_kind, envelope_hash, entire_message_hash, content_bytes,
           min(event_time) AS first_seen,
           min(CASE WHEN age_ms {_IS_PLAUSIBLE}
                    THEN cast(floor(sender_timestamp_ns / 1e6) AS BIGINT) ELSE unix_millis(event_time) END) AS sent_ms
    FROM copies
    GROUP BY {CHANNEL}, sender_id, sds_id, sds_kind, segment_kind, envelope_hash, entire_message_hash, content_bytes
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY {CHANNEL}, sds_id ORDER BY sent_ms, envelope_hash) AS number
    FROM envelopes
)
SELECT pubsub_topic, content_topic, channel_id, sender_id, sds_id, envelope_hash,
       CASE WHEN sds_kind <> 'content' THEN sds_kind WHEN number > 1 THEN 'repeat'
            WHEN segment_kind = 'parity' THEN 'parity' ELSE 'content' END AS role,
       sent_ms, first_seen, content_bytes, entire_message_hash
FROM numbered""",  # noqa: S608 - text of our own only
)
