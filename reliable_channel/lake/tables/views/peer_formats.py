"""Defines the view ``peer_formats``: the formats of a sender's messages, which show what software it runs."""

from reliable_channel.lake.tables import CHANNEL_KEY, SDS_MESSAGES, Column
from reliable_channel.lake.tables.views.model import CHANNEL, View

_SENT = SDS_MESSAGES.by_name()

PEER_FORMATS = View(
    "peer_formats",
    "One row per sender of a channel and wire family: the formats of its SDS messages, by which one tells which"
    " software it runs. Senders of different families cannot read each other; of different encryption layers only"
    " software that reads both can, as this project's does.",
    (SDS_MESSAGES,),
    (
        *(_SENT[name] for name in (*CHANNEL_KEY, "sender_id", "family")),
        Column("messages", "BIGINT", "number of its SDS messages, of all kinds", example="62"),
        Column("since", "TIMESTAMP", "first of them", example="2026-01-01T00:01:12.455Z"),
        Column("last", "TIMESTAMP", "last of them", example="2026-01-01T00:14:02.101Z"),
        Column("dialects", "ARRAY<STRING>", "wire dialects of its segments; null if it sent none", example='["v0.1"]'),
        Column("bare", "BIGINT", "number of its messages whose content is no segment", example="0"),
        Column(
            "clock",
            "STRING",
            "what its newest Lamport timestamp is near to: ms, s or ns since 1970, else count; null if it sent none",
            example="ms",
        ),
        Column(
            "encryption_layers",
            "ARRAY<STRING>",
            "what it encrypts: around_sds, whole SDS messages, inside_sds, their contents; null if nothing",
            example='["around_sds"]',
        ),
        Column(
            "id_schemes",
            "ARRAY<STRING>",
            "schemes by which the ids of its messages with content were recomputed; unproven where none does; null if"
            " it sent no content",
            example='["keccak"]',
        ),
        Column("proven_ids", "BIGINT", "number of its messages whose id was recomputed from them", example="62"),
        Column("unproven_ids", "BIGINT", "number of those whose id was not", example="0"),
        Column("history_length", "INT", "longest causal history that it sent", example="10"),
        Column("filter_bytes", "INT", "size of the largest Bloom filter that it sent", unit="bytes", example="1200"),
        Column("repair_requests", "BIGINT", "number of its messages that request repairs (SDS-R)", example="0"),
        Column("syncs", "BIGINT", "number of its sync messages", example="12"),
    ),
    f"""\
WITH senders AS (
    SELECT {CHANNEL}, sender_id, family, count(*) AS messages, min(event_time) AS since, max(event_time) AS last,
           array_sort(array_agg(DISTINCT segment_dialect) FILTER (WHERE segment_dialect IS NOT NULL)) AS dialects,
           count(segment_dialect) AS segments, count(*) FILTER (WHERE segment_kind = 'bare') AS bare,
           max(lamport_timestamp) / 1e0 AS lamport, unix_millis(max(event_time)) / 1e0 AS last_ms,
           array_sort(array_agg(DISTINCT encryption_layer) FILTER (WHERE encryption_layer IS NOT NULL)) AS layers,
           count(encryption_layer) AS encrypted,
           array_sort(array_agg(DISTINCT coalesce(id_scheme, 'unproven')) FILTER (WHERE sds_kind = 'content'))
           AS schemes, count(*) FILTER (WHERE sds_kind = 'content') AS contents,
           count(*) FILTER (WHERE id_verified) AS proven_ids, count(*) FILTER (WHERE NOT id_verified) AS unproven_ids,
           cast(max(size(causal_history)) AS INT) AS history_length,
           cast(max(octet_length(bloom_filter)) AS INT) AS filter_bytes,
           count(*) FILTER (WHERE size(repair_request) > 0) AS repair_requests,
           count(*) FILTER (WHERE sds_kind = 'sync') AS syncs
    FROM sds_messages WHERE sds_kind <> 'tick' GROUP BY {CHANNEL}, sender_id, family
)
SELECT pubsub_topic, content_topic, channel_id, sender_id, family, messages, since, last,
       CASE WHEN segments > 0 THEN dialects END AS dialects, bare,
       CASE WHEN lamport IS NULL THEN NULL WHEN abs(lamport - last_ms) < 30 * 86400000.0 THEN 'ms'
            WHEN abs(lamport * 1e3 - last_ms) < 30 * 86400000.0 THEN 's'
            WHEN abs(lamport / 1e6 - last_ms) < 30 * 86400000.0 THEN 'ns' ELSE 'count' END AS clock,
       CASE WHEN encrypted > 0 THEN layers END AS encryption_layers,
       CASE WHEN contents > 0 THEN schemes END AS id_schemes,
       proven_ids, unproven_ids, history_length, filter_bytes, repair_requests, syncs
FROM senders""",  # noqa: S608 - text of our own only
)
