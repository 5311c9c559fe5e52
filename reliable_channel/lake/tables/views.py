"""Defines the views over the tables, in SQL that Spark and DuckDB (with :data:`DUCKDB_MACROS`) both run.

A view is no table: nothing is stored, and it has the rows that its tables have at the time of the query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reliable_channel.core.wire.bloom import false_positive_rate, list_absent
from reliable_channel.lake.tables import BY_NAME
from reliable_channel.lake.tables.ack import ACKS
from reliable_channel.lake.tables.columns import CHANNEL_KEY
from reliable_channel.lake.tables.evidence import BRIDGE_SOURCES, SENDER_EVENTS, SIGHTINGS
from reliable_channel.lake.tables.ingest import SDS_MESSAGES
from reliable_channel.lake.tables.model import DAY_MS, Column, Table
from reliable_channel.lake.tables.outcome import DELIVERED_MESSAGES, DELIVERY_STATUS

DUCKDB_MACROS = """\
CREATE TEMP MACRO unix_millis(moment) AS epoch_ms(moment);
CREATE TEMP MACRO size(items) AS len(items);
CREATE TEMP MACRO explode(items) AS unnest(items);
CREATE TEMP MACRO struct(a, b) AS row(a, b);"""
"""Functions of Spark that DuckDB calls by another name: with them one statement serves both."""


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "absent_ids": (list_absent, ("BINARY", "ARRAY<STRING>"), "ARRAY<STRING>"),
    "false_positive_rate": (false_positive_rate, ("BINARY",), "DOUBLE"),
}
"""Functions of Bloom filters that views call, in neither engine: name → function, types of arguments and result."""


@dataclass(frozen=True, slots=True)
class View:
    """A view: its columns, the tables that it reads, and its query."""

    name: str
    comment: str
    tables: tuple[Table, ...]
    columns: tuple[Column, ...]
    sql: str

    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    def create(self) -> str:
        """The statement that creates the view for one session."""
        return f"CREATE OR REPLACE TEMP VIEW {self.name} AS\n{self.sql}"


_CHANNEL = ", ".join(CHANNEL_KEY)
_AGE_MS = "unix_millis(d.first_seen) - d.sender_timestamp_ns / 1e6"
_IS_PLAUSIBLE = "BETWEEN -86400000 AND 30 * 86400000.0"
"""Of the age of a sender's timestamp in ms: not more than 30 days before the arrival, nor a day after it."""
_STATUS = {column.name: column for column in DELIVERY_STATUS.columns}
_DELIVERED = {column.name: column for column in DELIVERED_MESSAGES.columns}

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
            "from the sender's timestamp to the delivery; null where that timestamp cannot be true (more than 30 days"
            " before the first segment, or a day after it)",
            unit="ms",
            example="1220",
        ),
        Column("waited_ms", "BIGINT", "from the first segment here to the delivery", unit="ms", example="15527"),
        *(_DELIVERED[name] for name in ("data_count", "parity_count")),
        Column(
            "segments_seen",
            "BIGINT",
            "number of its segments that arrived, data and parity, each counted once; as long as sds_messages is kept",
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
    SELECT {_CHANNEL}, message_key, acknowledged_by AS who, explode(sds_ids) AS sds_id FROM delivery_status
), segments AS (
    SELECT {_CHANNEL}, message_key, count(DISTINCT sds_id) AS segments_seen,
           max(data_count) AS data_count, max(parity_count) AS parity_count
    FROM ids JOIN sds_messages USING ({_CHANNEL}, sds_id) GROUP BY {_CHANNEL}, message_key
), delivered AS (
    SELECT *, row_number() OVER (PARTITION BY {_CHANNEL}, message_key ORDER BY delivery_seq, family) AS place
    FROM (SELECT *, concat_ws('-', lower(hex(entire_message_hash)),
                              coalesce(cast(causal_lamport AS STRING), causal_sds_id)) AS message_key
          FROM delivered_messages)
), acknowledgements AS (
    SELECT {_CHANNEL}, message_key, acknowledged_by, acknowledged,
           row_number() OVER (PARTITION BY {_CHANNEL}, message_key, acknowledged_by ORDER BY acknowledged) AS place
    FROM ids JOIN (SELECT {_CHANNEL}, sds_id, acknowledged_by, min(event_time) AS acknowledged
                   FROM acks GROUP BY {_CHANNEL}, sds_id, acknowledged_by) USING ({_CHANNEL}, sds_id)
    WHERE array_contains(who, acknowledged_by)
), acknowledged_times AS (
    SELECT {_CHANNEL}, message_key,
           map_from_entries(array_agg(struct(acknowledged_by, acknowledged))) AS acknowledged_at
    FROM (SELECT {_CHANNEL}, message_key, acknowledged_by,
                 max(acknowledged) FILTER (WHERE place <= coalesce(data_count, 1)) AS acknowledged
          FROM acknowledgements LEFT JOIN segments USING ({_CHANNEL}, message_key)
          GROUP BY {_CHANNEL}, message_key, acknowledged_by)
    GROUP BY {_CHANNEL}, message_key
), sighted AS (
    SELECT {_CHANNEL}, message_key, array_sort(array_agg(DISTINCT vantage)) AS seen_by
    FROM ids JOIN (SELECT {_CHANNEL}, sds_id, envelope_hash FROM sds_messages
                   UNION SELECT {_CHANNEL}, sds_id, envelope_hash FROM sender_events) USING ({_CHANNEL}, sds_id)
         JOIN (SELECT DISTINCT message_hash AS envelope_hash, vantage FROM sightings) USING (envelope_hash)
    GROUP BY {_CHANNEL}, message_key
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
LEFT JOIN (SELECT * FROM delivered WHERE place = 1) d USING ({_CHANNEL}, message_key)
LEFT JOIN segments p USING ({_CHANNEL}, message_key)
LEFT JOIN acknowledged_times a USING ({_CHANNEL}, message_key)
LEFT JOIN sighted v USING ({_CHANNEL}, message_key)""",  # noqa: S608 - text of our own only
)

_SENT = {column.name: column for column in SDS_MESSAGES.columns}

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
            "the envelope's timestamp; where that cannot be true (as of messages.latency_ms), first_seen",
            unit="ms since 1970",
            example="1767226190235",
        ),
        Column("first_seen", "TIMESTAMP", "smallest event_time of its copies", example="2026-01-01T00:01:12.455Z"),
        *(_SENT[name] for name in ("content_bytes", "entire_message_hash")),
    ),
    f"""\
WITH copies AS (
    SELECT {_CHANNEL}, sender_id, sds_id, sds_kind, segment_kind, envelope_hash, entire_message_hash, content_bytes,
           event_time, unix_millis(event_time) - sender_timestamp_ns / 1e6 AS age_ms, sender_timestamp_ns
    FROM sds_messages WHERE sds_kind <> 'tick'
), envelopes AS (
    SELECT {_CHANNEL}, sender_id, sds_id, sds_kind, segment_kind, envelope_hash, entire_message_hash, content_bytes,
           min(event_time) AS first_seen,
           min(CASE WHEN age_ms {_IS_PLAUSIBLE}
                    THEN cast(floor(sender_timestamp_ns / 1e6) AS BIGINT) ELSE unix_millis(event_time) END) AS sent_ms
    FROM copies
    GROUP BY {_CHANNEL}, sender_id, sds_id, sds_kind, segment_kind, envelope_hash, entire_message_hash, content_bytes
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY {_CHANNEL}, sds_id ORDER BY sent_ms, envelope_hash) AS number
    FROM envelopes
)
SELECT pubsub_topic, content_topic, channel_id, sender_id, sds_id, envelope_hash,
       CASE WHEN sds_kind <> 'content' THEN sds_kind WHEN number > 1 THEN 'repeat'
            WHEN segment_kind = 'parity' THEN 'parity' ELSE 'content' END AS role,
       sent_ms, first_seen, content_bytes, entire_message_hash
FROM numbered""",  # noqa: S608 - text of our own only
)

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
    SELECT {_CHANNEL}, sender_id, family, count(*) AS messages, min(event_time) AS since, max(event_time) AS last,
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
    FROM sds_messages WHERE sds_kind <> 'tick' GROUP BY {_CHANNEL}, sender_id, family
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

_TOLERANCE_MS = 300_000
_SETTLE_MS = 30_000
_CUT_OFF = 3
_CUT_OFF_MS = 60_000
_RECENT = 1_000
_MOST_PARTICIPANTS = 100
_MOST_SAMPLED = 20
_SLOT_MS = 20_000
_SPAN_MS = 900_000
_NEW_MS = 300_000
_MADE_MS = f"""CASE WHEN unix_millis(event_time) - lamport_timestamp BETWEEN 0 AND {DAY_MS} THEN lamport_timestamp
                        WHEN unix_millis(event_time) / 1e3 - lamport_timestamp BETWEEN 0 AND {DAY_MS} / 1e3
                        THEN lamport_timestamp * 1000 ELSE unix_millis(event_time) END"""
"""When a message was made: a copy that came late, as repairs do, shows what its sender knew then. Clocks of ms and of s
are understood; one that is ahead counts as the time of arrival."""


_IS_AHEAD = f"lamport_timestamp - unix_millis(event_time) BETWEEN {_TOLERANCE_MS} AND {DAY_MS}"
"""What participants refuse, and so lack without fault (docs/sds.md, *Lamport timestamps*)."""
_SHOWN = f"{_CHANNEL}, participant, shown_by"
_PARTICIPANTS = f"""\
SELECT pubsub_topic, content_topic, channel_id, participant, shown_by, made_ms, coalesce(messages, 0) AS messages,
       coalesce(has, 0) AS has, coalesce(lacks, 0) AS lacks, coalesce(messages - has - lacks, 0) AS may_lack,
       coalesce(in_filter, 0) AS in_filter, rate AS false_positive_rate, lacks_since, oldest_missing,
       cut_off_from, cut_off_since
FROM filters LEFT JOIN (
    SELECT {_SHOWN}, count(*) AS messages, count(*) FILTER (WHERE has) AS has, count(*) FILTER (WHERE lacks) AS lacks,
           count(*) FILTER (WHERE is_in_filter AND NOT has) AS in_filter,
           min(seen) FILTER (WHERE lacks) AS lacks_since, min_by(sds_id, seen) FILTER (WHERE lacks) AS oldest_missing
    FROM states GROUP BY {_SHOWN}
) USING ({_SHOWN}) LEFT JOIN (
    SELECT {_SHOWN}, array_sort(array_agg(sender_id)) AS cut_off_from, min(cut_off_since) AS cut_off_since
    FROM senders WHERE cut_off_since IS NOT NULL GROUP BY {_SHOWN}
) USING ({_SHOWN})"""  # noqa: S608 - text of our own only
_SENDERS = f"""\
SELECT {_CHANNEL}, participant, made_ms, sender_id, known, settled, last_had_ms,
       CASE WHEN cut_off_since IS NOT NULL THEN lacks_from_ms END AS cut_off_ms
FROM senders"""  # noqa: S608


def participant_views_sql(where: str = "true", every_ms: int | None = None) -> str:
    """The query of the view ``participant_views`` over the rows of ``sds_messages`` and ``acks`` for which the
    condition ``where`` on their common columns (channel key, ``event_time``) holds.

    With ``every_ms`` it has a row for each participant, each such time in which it sent anything, and each sender,
    about a sample of what that sender sent in the 15 minutes before: one SDS message in 20 s, rather one that somebody
    acknowledged, because strangers send in its name too. So its cost is bounded by the time it looks at, not by the
    traffic. Columns: channel key, participant, made_ms, sender_id, known and settled
    (number of SDS messages of the last 5 minutes that it had, and of those with evidence), last_had_ms (when the newest
    was made that it had), cut_off_ms (when the oldest was made since which it lacks all, null unless it is cut
    off)."""
    shown = _SHOWN
    if every_ms is None:
        place, most, counted, time = "sds_id", _MOST_PARTICIPANTS, f"c.place <= {_RECENT}", "0"
    else:
        place, most = f"unix_millis(seen) - unix_millis(seen) % {_SLOT_MS}", _MOST_SAMPLED
        counted, time = f"unix_millis(c.seen) > made_ms - {_SPAN_MS}", f"made_ms - made_ms % {every_ms}"
        counted += " AND unix_millis(c.seen) <= made_ms"
    # What it acknowledged at any time it still has; over time, what it had acknowledged by then.
    result, known = (_SENDERS, "<= shown_at") if every_ms else (_PARTICIPANTS, "IS NOT NULL")
    return f"""\
WITH sent AS (
    SELECT {_CHANNEL}, sender_id, sds_id, min(sds_kind) AS sds_kind, min(event_time) AS seen,
           min({_MADE_MS}) AS made_ms, coalesce(bool_or({_IS_AHEAD}), false) AS is_ahead,
           coalesce(max(hex(entire_message_hash)), sds_id) AS message
    FROM sds_messages WHERE sds_kind IN ('content', 'sync') AND id_verified IS NOT FALSE AND {where}
    GROUP BY {_CHANNEL}, sender_id, sds_id
), messages AS (
    SELECT {_CHANNEL}, sds_id, min(seen) AS seen, min(made_ms) AS sent_ms, min_by(sender_id, seen) AS sender_id,
           min(message) AS message
    FROM sent WHERE sds_kind = 'content' AND NOT is_ahead GROUP BY {_CHANNEL}, sds_id
), contents AS (
    SELECT *, row_number() OVER (PARTITION BY {_CHANNEL} ORDER BY seen DESC, sds_id) AS place
    FROM (SELECT *, row_number() OVER (PARTITION BY {_CHANNEL}, sender_id, {place}
                                       ORDER BY is_acknowledged IS NULL, seen, sds_id) AS number
          FROM messages LEFT JOIN (SELECT {_CHANNEL}, sds_id, true AS is_acknowledged FROM acks WHERE {where}
                                   GROUP BY {_CHANNEL}, sds_id) USING ({_CHANNEL}, sds_id))
    WHERE number = 1
), participants AS (
    SELECT {_CHANNEL}, sender_id, min(made_ms) AS joined_ms,
           row_number() OVER (PARTITION BY {_CHANNEL} ORDER BY count(*) DESC, sender_id) AS place
    FROM sent GROUP BY {_CHANNEL}, sender_id
), shown AS (
    SELECT {_CHANNEL}, sender_id AS participant, sds_id AS shown_by, seen AS shown_at, made_ms, joined_ms
    FROM (SELECT *, row_number() OVER (PARTITION BY {_CHANNEL}, sender_id, {time}
                                       ORDER BY made_ms DESC, sds_id) AS newest FROM sent)
    JOIN participants USING ({_CHANNEL}, sender_id) WHERE newest = 1 AND place <= {most}
), filters AS (
    SELECT *, false_positive_rate(bloom_filter) AS rate
    FROM (SELECT {shown}, shown_at, made_ms, joined_ms, min_by(bloom_filter, event_time) AS bloom_filter
          FROM shown JOIN (SELECT {_CHANNEL}, sender_id AS participant, sds_id AS shown_by, bloom_filter, event_time
                           FROM sds_messages
                           WHERE sds_kind IN ('content', 'sync') AND id_verified IS NOT FALSE AND {where})
                     USING ({shown})
          GROUP BY {shown}, shown_at, made_ms, joined_ms)
), pairs AS (
    SELECT {shown}, shown_at, made_ms, rate, c.sds_id, c.sender_id, c.message, c.seen, c.sent_ms,
           unix_millis(c.seen) <= made_ms - {_SETTLE_MS} AS was_there
    FROM filters JOIN contents c USING ({_CHANNEL})
    WHERE c.sender_id <> participant AND unix_millis(c.seen) > joined_ms AND {counted}
), absent AS (
    SELECT {shown}, explode(ids) AS sds_id
    FROM (SELECT {shown}, absent_ids(bloom_filter, ids) AS ids
          FROM filters JOIN (SELECT {shown}, array_agg(sds_id) AS ids FROM pairs WHERE was_there GROUP BY {shown})
                       USING ({shown}))
), acknowledged AS (
    SELECT {_CHANNEL}, acknowledged_by AS participant, sds_id, min(event_time) AS first_at,
           min(event_time) FILTER (WHERE certainty = 'certain') AS certain_at
    FROM acks WHERE {where} GROUP BY {_CHANNEL}, acknowledged_by, sds_id
), states AS (
    SELECT {shown}, made_ms, sds_id, sender_id, message, seen, sent_ms,
           coalesce(certain_at {known}, false) AS has,
           coalesce(a.is_absent AND NOT coalesce(first_at {known}, false), false) AS lacks,
           coalesce(was_there AND a.is_absent IS NULL AND rate IS NOT NULL, false) AS is_in_filter,
           coalesce(first_at {known}, false) AS is_acknowledged
    FROM pairs LEFT JOIN (SELECT *, true AS is_absent FROM absent) a USING ({shown}, sds_id)
         LEFT JOIN acknowledged USING ({_CHANNEL}, participant, sds_id)
), senders AS (
    SELECT {shown}, made_ms, sender_id, max(last_had_ms) AS last_had_ms,
           min(sent_ms) FILTER (WHERE is_last) AS lacks_from_ms,
           count(*) FILTER (WHERE is_known AND sent_ms > made_ms - {_NEW_MS}) AS known,
           count(*) FILTER (WHERE (is_known OR lacks) AND sent_ms > made_ms - {_NEW_MS}) AS settled,
           CASE WHEN count(DISTINCT message) FILTER (WHERE is_last) >= {_CUT_OFF}
                 AND unix_millis(min(seen) FILTER (WHERE is_last)) <= made_ms - {_CUT_OFF_MS}
                THEN min(seen) FILTER (WHERE is_last) END AS cut_off_since
    FROM (SELECT *, lacks AND (last_had_ms IS NULL OR sent_ms > last_had_ms) AS is_last
          FROM (SELECT *, is_in_filter OR is_acknowledged AS is_known,
                       max(CASE WHEN is_in_filter OR is_acknowledged THEN sent_ms END)
                           OVER (PARTITION BY {shown}, sender_id) AS last_had_ms FROM states))
    GROUP BY {shown}, made_ms, sender_id
)
{result}"""  # noqa: S608 - text of our own only


PARTICIPANT_VIEWS = View(
    "participant_views",
    "One row per participant of a channel: what it shows to have, and to lack, of the others' newest messages.",
    (SDS_MESSAGES, ACKS),
    (
        *(_SENT[name] for name in CHANNEL_KEY),
        Column("participant", "STRING", "SDS sender id; the 100 of a channel that say most", example="bob"),
        Column(
            "shown_by",
            "STRING",
            "SDS id of its newest message (content or sync), whose Bloom filter shows what it lacks",
            example=_SENT["sds_id"].example,
        ),
        Column("made_ms", "BIGINT", "when that message was made", unit="ms since 1970", example="1767226185235"),
        Column(
            "messages",
            "BIGINT",
            "number of SDS messages of others with content, among the newest 1 000 of the channel that were seen here,"
            " since it was first heard",
            example="120",
        ),
        Column("has", "BIGINT", "of these, it provably has: it named them in a causal history", example="71"),
        Column(
            "lacks",
            "BIGINT",
            "of these, it provably lacked when it made that message: they had been seen 30 s before, are not in its"
            " filter, and it never acknowledged them",
            example="37",
        ),
        Column("may_lack", "BIGINT", "the others: no evidence proves either", example="12"),
        Column("in_filter", "BIGINT", "of may_lack, those in its filter, which only almost proves it", example="10"),
        Column(
            "false_positive_rate",
            "DOUBLE",
            "how probably a message that it lacks is in its filter all the same; null if the filter cannot be read",
            example="0.00002",
        ),
        Column("lacks_since", "TIMESTAMP", "when the oldest of lacks was first seen", example="2026-01-01T00:01:12Z"),
        Column("oldest_missing", "STRING", "SDS id of the oldest of lacks", example=_SENT["sds_id"].example),
        Column(
            "cut_off_from",
            "ARRAY<STRING>",
            "senders of whose newest messages it lacks every one: three or more, for a minute or longer; else null",
            example='["carol"]',
        ),
        Column("cut_off_since", "TIMESTAMP", "when the oldest of those was first seen", example="2026-01-01T00:01:12Z"),
    ),
    participant_views_sql(),
)

_SILENCE_MS = 600_000
_ON_ITS_WAY_MS = 10_000
_LEAST_NODES = 3
_SEEN = {column.name: column for column in SIGHTINGS.columns}

NODE_LOGS = View(
    "node_logs",
    "One row per time that the log of a node covers for a pubsub topic, with the error of the node's clock.",
    (SIGHTINGS,),
    (
        Column("vantage", "STRING", "name of the node", example="16U*S6zwhq"),
        _SEEN["pubsub_topic"],
        Column(
            "since_ms",
            "BIGINT",
            "first sighting, by the common clock (less clock_error_ms); a silence of ten minutes ends a row",
            unit="ms since 1970",
            example="1767226185235",
        ),
        Column("until_ms", "BIGINT", "last sighting, likewise", unit="ms since 1970", example="1767226365235"),
        Column("sightings", "BIGINT", "number of sightings in that time", example="812"),
        Column(
            "clock_error_ms",
            "BIGINT",
            "how much the node's clock is ahead of the others': median, over the messages in three logs or more, of its"
            " first sighting less the median of all; null without such messages",
            unit="ms",
            example="-4200",
        ),
        Column("compared", "BIGINT", "number of those messages", example="310"),
    ),
    f"""\
WITH logs AS (
    SELECT vantage, pubsub_topic, message_hash, unix_millis(seen_at) AS ms FROM sightings
    WHERE source NOT IN {BRIDGE_SOURCES} AND seen_at IS NOT NULL
), firsts AS (
    SELECT vantage, message_hash, min(ms) AS ms FROM logs GROUP BY vantage, message_hash
), medians AS (
    SELECT message_hash, median(ms) AS middle FROM firsts GROUP BY message_hash HAVING count(*) >= {_LEAST_NODES}
), clocks AS (
    SELECT vantage, cast(round(median(ms - middle)) AS BIGINT) AS clock_error_ms, count(*) AS compared
    FROM firsts JOIN medians USING (message_hash) GROUP BY vantage
), begins AS (
    SELECT vantage, pubsub_topic, ms,
           CASE WHEN ms - lag(ms) OVER (PARTITION BY vantage, pubsub_topic ORDER BY ms) <= {_SILENCE_MS}
                THEN 0 ELSE 1 END AS begins
    FROM logs WHERE pubsub_topic IS NOT NULL
), spans AS (
    SELECT vantage, pubsub_topic, ms,
           sum(begins) OVER (PARTITION BY vantage, pubsub_topic ORDER BY ms ROWS UNBOUNDED PRECEDING) AS span
    FROM begins
)
SELECT vantage, pubsub_topic, min(ms) - coalesce(any_value(clock_error_ms), 0) AS since_ms,
       max(ms) - coalesce(any_value(clock_error_ms), 0) AS until_ms, count(*) AS sightings,
       any_value(clock_error_ms) AS clock_error_ms, coalesce(any_value(compared), 0) AS compared
FROM spans LEFT JOIN clocks USING (vantage) GROUP BY vantage, pubsub_topic, span""",  # noqa: S608 - text of our own only
)

MESSAGE_LOGS = View(
    "message_logs",
    "One row per message and node whose log covers the time at which it was sent: which of its envelopes the log has.",
    (DELIVERY_STATUS, SDS_MESSAGES, SENDER_EVENTS, SIGHTINGS),
    (
        *(_STATUS[name] for name in (*CHANNEL_KEY, "message_key")),
        Column("vantage", "STRING", "name of the node", example="16U*S6zwhq"),
        Column(
            "envelopes",
            "BIGINT",
            "number of its envelopes that were sent while the log was written (node_logs), 10 s before its end or"
            " earlier",
            example="3",
        ),
        Column("logged", "BIGINT", "of these, the number that the log has; 0: the node never had it", example="2"),
        Column("did", "ARRAY<STRING>", "sightings.source: what the node did with them", example='["received"]'),
        Column(
            "first_ms",
            "BIGINT",
            "first sighting, by the common clock (node_logs)",
            unit="ms since 1970",
            example="1767226185235",
        ),
    ),
    f"""\
WITH sent AS (
    SELECT {_CHANNEL}, message_key, envelope_hash, min(ms) AS ms
    FROM (SELECT {_CHANNEL}, message_key, explode(sds_ids) AS sds_id FROM delivery_status)
    JOIN (SELECT {_CHANNEL}, sds_id, envelope_hash, unix_millis(event_time) AS ms FROM sds_messages
          UNION ALL SELECT {_CHANNEL}, sds_id, envelope_hash, unix_millis(event_time) AS ms FROM sender_events
                    WHERE event IN ('sent', 'resent')) USING ({_CHANNEL}, sds_id)
    WHERE envelope_hash IS NOT NULL GROUP BY {_CHANNEL}, message_key, envelope_hash
), covered AS (
    SELECT s.pubsub_topic, s.content_topic, s.channel_id, s.message_key, s.envelope_hash, l.vantage, l.clock_error_ms
    FROM sent s JOIN ({NODE_LOGS.sql}) l
    ON l.pubsub_topic = s.pubsub_topic AND s.ms >= l.since_ms AND s.ms <= l.until_ms - {_ON_ITS_WAY_MS}
), logged AS (
    SELECT message_hash AS envelope_hash, vantage, source, min(unix_millis(seen_at)) AS ms FROM sightings
    WHERE source NOT IN {BRIDGE_SOURCES} GROUP BY message_hash, vantage, source
)
SELECT {_CHANNEL}, message_key, vantage, count(DISTINCT envelope_hash) AS envelopes,
       count(DISTINCT CASE WHEN ms IS NOT NULL THEN envelope_hash END) AS logged,
       array_sort(array_agg(DISTINCT source) FILTER (WHERE source IS NOT NULL)) AS did,
       min(ms - coalesce(clock_error_ms, 0)) AS first_ms
FROM covered LEFT JOIN logged USING (vantage, envelope_hash)
GROUP BY {_CHANNEL}, message_key, vantage""",  # noqa: S608 - text of our own only
)

VIEWS: dict[str, View] = {
    view.name: view for view in (MESSAGES, DISPATCHES, PEER_FORMATS, PARTICIPANT_VIEWS, NODE_LOGS, MESSAGE_LOGS)
}
"""All views by name."""

QUERYABLE: dict[str, View | Table] = {**VIEWS, **BY_NAME}
"""What a query can name: the views, then the tables in the order of the data flow."""
