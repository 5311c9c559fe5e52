"""Defines the view ``participant_views``: what each participant shows to have and to lack."""

from __future__ import annotations

from reliable_channel.lake.tables import ACKS, CHANNEL_KEY, DAY_MS, SDS_MESSAGES, Column
from reliable_channel.lake.tables.views.model import CHANNEL, View

_SENT = SDS_MESSAGES.by_name()

_TOLERANCE_MS = 300_000  # the default of sds.lamport_tolerance_ms
_SETTLE_MS = 30_000  # what was seen here later than that may still be on its way to the participant
# Cut off from a sender: it lacks so many of its newest messages, and has lacked the first of them for so long.
_CUT_OFF = 3
_CUT_OFF_MS = 60_000
# Every participant is compared with every message: the newest so many of the channel, and so many participants.
_RECENT = 1_000
_MOST_PARTICIPANTS = 100
# Over time there are many comparisons: fewer participants, with one message in each slot of the span before.
_MOST_SAMPLED = 20
_SLOT_MS = 20_000
_SPAN_MS = 900_000
_NEW_MS = 300_000  # the messages that ``known`` and ``settled`` count
_MADE_MS = f"""CASE WHEN unix_millis(event_time) - lamport_timestamp BETWEEN 0 AND {DAY_MS} THEN lamport_timestamp
                        WHEN unix_millis(event_time) / 1e3 - lamport_timestamp BETWEEN 0 AND {DAY_MS} / 1e3
                        THEN lamport_timestamp * 1000 ELSE unix_millis(event_time) END"""
"""When a message was made: a copy that came late, as repairs do, shows what its sender knew then. Clocks of ms and of s
are understood; one that is ahead counts as the time of arrival."""


_IS_AHEAD = f"lamport_timestamp - unix_millis(event_time) BETWEEN {_TOLERANCE_MS} AND {DAY_MS}"
"""What participants refuse, and so lack without fault (docs/sds.md, *Lamport timestamps*)."""
_SHOWN = f"{CHANNEL}, participant, shown_by"
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
SELECT {CHANNEL}, participant, made_ms, sender_id, known, settled, last_had_ms,
       CASE WHEN cut_off_since IS NOT NULL THEN lacks_from_ms END AS cut_off_ms
FROM senders"""  # noqa: S608


def participant_views_sql(where: str = "true", every_ms: int | None = None) -> str:
    """The query of the view ``participant_views`` over the rows of ``sds_messages`` and ``acks`` for which the
    condition ``where`` on their common columns (channel key, ``event_time``) holds.

    With ``every_ms`` it has a row for each participant, each such time in which it sent anything, and each sender,
    about a sample of what that sender sent in the 15 minutes before: one SDS message in 20 s, rather one that somebody
    acknowledged, because strangers send in its name too. So its cost is bounded by the time it looks at, not by the
    traffic. Columns: channel key, participant, made_ms, sender_id (null: all senders that are no participants here),
    known and settled (number of SDS messages of the last 5 minutes that it had, and of those with evidence),
    last_had_ms (when the newest was made that it had), cut_off_ms (when the oldest was made since which it lacks all,
    null unless it is cut off)."""
    shown = _SHOWN
    if every_ms is None:
        place, most, counted, time = "sds_id", _MOST_PARTICIPANTS, f"c.place <= {_RECENT}", "0"
        pairs, sender = f"filters JOIN contents c USING ({CHANNEL})", "c.sender_id"
    else:
        place, most = f"unix_millis(seen) - unix_millis(seen) % {_SLOT_MS}", _MOST_SAMPLED
        counted, time = f"unix_millis(c.seen) > made_ms - {_SPAN_MS}", f"made_ms - made_ms % {every_ms}"
        counted += " AND unix_millis(c.seen) <= made_ms"
        # By spans: else every message of the whole time is compared with each filter.
        pairs = f"""(SELECT *, unnest([made_ms // {_SPAN_MS}, made_ms // {_SPAN_MS} - 1]) AS span FROM filters)
         JOIN (SELECT contents.*, p.place AS sender_place, unix_millis(seen) // {_SPAN_MS} AS span
               FROM contents JOIN participants p USING ({CHANNEL}, sender_id)) c USING ({CHANNEL}, span)"""  # noqa: S608
        # A channel may have a thousand senders; only those that are looked at can be apart.
        sender = f"CASE WHEN c.sender_place <= {_MOST_SAMPLED} THEN c.sender_id END"
    # What it acknowledged at any time it still has; over time, what it had acknowledged by then. A message whose first
    # copies were lost here shows that time, not the one at which a repair brought it.
    result, known = (_SENDERS, "<= shown_at") if every_ms else (_PARTICIPANTS, "IS NOT NULL")
    return f"""\
WITH sent AS (
    SELECT {CHANNEL}, sender_id, sds_id, min(sds_kind) AS sds_kind, min(event_time) AS seen,
           min({_MADE_MS}) AS made_ms, coalesce(bool_or({_IS_AHEAD}), false) AS is_ahead,
           coalesce(max(hex(entire_message_hash)), sds_id) AS message
    FROM sds_messages WHERE sds_kind IN ('content', 'sync') AND id_verified IS NOT FALSE AND {where}
    GROUP BY {CHANNEL}, sender_id, sds_id
), messages AS (
    SELECT {CHANNEL}, sds_id, min(seen) AS seen, min(made_ms) AS sent_ms, min_by(sender_id, seen) AS sender_id,
           min(message) AS message
    FROM sent WHERE sds_kind = 'content' AND NOT is_ahead GROUP BY {CHANNEL}, sds_id
), contents AS (
    SELECT *, row_number() OVER (PARTITION BY {CHANNEL} ORDER BY seen DESC, sds_id) AS place
    FROM (SELECT *, row_number() OVER (PARTITION BY {CHANNEL}, sender_id, {place}
                                       ORDER BY is_acknowledged IS NULL, seen, sds_id) AS number
          FROM messages LEFT JOIN (SELECT {CHANNEL}, sds_id, true AS is_acknowledged FROM acks WHERE {where}
                                   GROUP BY {CHANNEL}, sds_id) USING ({CHANNEL}, sds_id))
    WHERE number = 1
), participants AS (
    SELECT {CHANNEL}, sender_id, min(made_ms) AS joined_ms,
           row_number() OVER (PARTITION BY {CHANNEL} ORDER BY count(*) DESC, sender_id) AS place
    FROM sent GROUP BY {CHANNEL}, sender_id
), shown AS (
    SELECT {CHANNEL}, sender_id AS participant, sds_id AS shown_by, made_ms, joined_ms,
           least(unix_millis(seen), made_ms + {_SETTLE_MS}) AS shown_at
    FROM (SELECT *, row_number() OVER (PARTITION BY {CHANNEL}, sender_id, {time}
                                       ORDER BY made_ms DESC, sds_id) AS newest FROM sent)
    JOIN participants USING ({CHANNEL}, sender_id) WHERE newest = 1 AND place <= {most}
), filters AS (
    SELECT *, false_positive_rate(bloom_filter) AS rate
    FROM (SELECT {shown}, shown_at, made_ms, joined_ms, min_by(bloom_filter, event_time) AS bloom_filter
          FROM shown JOIN (SELECT {CHANNEL}, sender_id AS participant, sds_id AS shown_by, bloom_filter, event_time
                           FROM sds_messages
                           WHERE sds_kind IN ('content', 'sync') AND id_verified IS NOT FALSE AND {where})
                     USING ({shown})
          GROUP BY {shown}, shown_at, made_ms, joined_ms)
), pairs AS (
    SELECT {shown}, shown_at, made_ms, rate, c.sds_id, {sender} AS sender_id, c.message, c.seen, c.sent_ms,
           unix_millis(c.seen) <= made_ms - {_SETTLE_MS} AS was_there
    FROM {pairs}
    WHERE c.sender_id <> participant AND unix_millis(c.seen) > joined_ms AND {counted}
), absent AS (
    SELECT {shown}, explode(ids) AS sds_id
    FROM (SELECT {shown}, absent_ids(bloom_filter, ids) AS ids
          FROM filters JOIN (SELECT {shown}, array_agg(sds_id) AS ids FROM pairs WHERE was_there GROUP BY {shown})
                       USING ({shown}))
), acknowledged AS (
    SELECT {CHANNEL}, acknowledged_by AS participant, sds_id, min(event_time) AS first_at,
           min(event_time) FILTER (WHERE certainty = 'certain') AS certain_at
    FROM acks WHERE {where} GROUP BY {CHANNEL}, acknowledged_by, sds_id
), states AS (
    SELECT *, is_in_filter OR is_acknowledged AS is_known
    FROM (SELECT {shown}, made_ms, sds_id, sender_id, message, seen, sent_ms,
                 coalesce(unix_millis(certain_at) {known}, false) AS has,
                 coalesce(a.is_absent AND NOT coalesce(unix_millis(first_at) {known}, false), false) AS lacks,
                 coalesce(was_there AND a.is_absent IS NULL AND rate IS NOT NULL, false) AS is_in_filter,
                 coalesce(unix_millis(first_at) {known}, false) AS is_acknowledged
          FROM pairs LEFT JOIN (SELECT *, true AS is_absent FROM absent) a USING ({shown}, sds_id)
               LEFT JOIN acknowledged USING ({CHANNEL}, participant, sds_id))
), had AS (
    SELECT {shown}, made_ms, sender_id, max(sent_ms) FILTER (WHERE is_known) AS last_had_ms,
           count(*) FILTER (WHERE is_known AND sent_ms > made_ms - {_NEW_MS}) AS known,
           count(*) FILTER (WHERE (is_known OR lacks) AND sent_ms > made_ms - {_NEW_MS}) AS settled
    FROM states GROUP BY {shown}, made_ms, sender_id
), lacked AS (
    SELECT {shown}, sender_id, min(sent_ms) AS lacks_from_ms, min(seen) AS lacks_from,
           count(DISTINCT message) AS messages
    FROM states JOIN had USING ({shown}, made_ms, sender_id)
    WHERE lacks AND (last_had_ms IS NULL OR sent_ms > last_had_ms) GROUP BY {shown}, sender_id
), senders AS (
    SELECT {shown}, made_ms, sender_id, known, settled, last_had_ms, lacks_from_ms,
           CASE WHEN messages >= {_CUT_OFF} AND unix_millis(lacks_from) <= made_ms - {_CUT_OFF_MS}
                THEN lacks_from END AS cut_off_since
    FROM had LEFT JOIN lacked USING ({shown}, sender_id)
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
