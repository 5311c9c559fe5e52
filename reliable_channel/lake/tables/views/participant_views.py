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
_PARTICIPANTS = f"""\
SELECT {CHANNEL}, participant, shown_by, made_ms, coalesce(messages, 0) AS messages,
       coalesce(has, 0) AS has, coalesce(lacks, 0) AS lacks, coalesce(messages - has - lacks, 0) AS may_lack,
       coalesce(in_filter, 0) AS in_filter, rate AS false_positive_rate, lacks_since, oldest_missing,
       cut_off_from, cut_off_since
FROM filters LEFT JOIN (
    SELECT shown_no, count(*) AS messages, count(*) FILTER (WHERE has) AS has, count(*) FILTER (WHERE lacks) AS lacks,
           count(*) FILTER (WHERE is_in_filter AND NOT has) AS in_filter,
           min(seen) FILTER (WHERE lacks) AS lacks_since, min_by(sds_id, seen) FILTER (WHERE lacks) AS oldest_missing
    FROM states JOIN (SELECT content_no, sds_id, seen FROM contents) USING (content_no) GROUP BY shown_no
) USING (shown_no) LEFT JOIN (
    SELECT shown_no, array_sort(array_agg(sender_id)) AS cut_off_from, min(cut_off_since) AS cut_off_since
    FROM senders JOIN (SELECT channel_no, sender_no, sender_id FROM participants) USING (channel_no, sender_no)
    WHERE cut_off_since IS NOT NULL GROUP BY shown_no
) USING (shown_no)"""  # noqa: S608 - text of our own only
_SENDERS = f"""\
SELECT {CHANNEL}, participant, made_ms, sender_id, known, settled, last_had_ms,
       CASE WHEN cut_off_since IS NOT NULL THEN lacks_from_ms END AS cut_off_ms
FROM senders LEFT JOIN (SELECT channel_no, sender_no, sender_id FROM participants) USING (channel_no, sender_no)"""  # noqa: S608


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
    shown = f"{CHANNEL}, channel_no, participant, participant_no, shown_by, shown_no, shown_at, made_ms, joined_ms"
    if every_ms is None:
        slot, most, recent, counted, time = "sds_id", _MOST_PARTICIPANTS, f"place <= {_RECENT}", "true", "0"
        pairs, sender = "filters JOIN contents USING (channel_no)", "sender_no"
    else:
        slot, most, recent = f"unix_millis(seen) - unix_millis(seen) % {_SLOT_MS}", _MOST_SAMPLED, "true"
        counted, time = f"unix_millis(seen) > made_ms - {_SPAN_MS}", f"made_ms - made_ms % {every_ms}"
        counted += " AND unix_millis(seen) <= made_ms"
        # By spans: else every message of the whole time is compared with each filter.
        pairs = f"""(SELECT *, unnest([made_ms // {_SPAN_MS}, made_ms // {_SPAN_MS} - 1]) AS span FROM filters)
         JOIN (SELECT *, unix_millis(seen) // {_SPAN_MS} AS span FROM contents) USING (channel_no, span)"""  # noqa: S608
        # A channel may have a thousand senders; only those that are looked at can be apart.
        sender = f"CASE WHEN sender_no <= {_MOST_SAMPLED} THEN sender_no END"
    # What it acknowledged at any time it still has; over time, what it had acknowledged by then. A message whose first
    # copies were lost here shows that time, not the one at which a repair brought it.
    result, known = (_SENDERS, "<= shown_at") if every_ms else (_PARTICIPANTS, "IS NOT NULL")
    # There are millions of pairs, in which names of 64 characters would take gigabytes: they have numbers instead.
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
), participants AS (
    SELECT {CHANNEL}, sender_id, min(made_ms) AS joined_ms, dense_rank() OVER (ORDER BY {CHANNEL}) AS channel_no,
           cast(row_number() OVER (PARTITION BY {CHANNEL} ORDER BY count(*) DESC, sender_id) AS int) AS sender_no
    FROM sent GROUP BY {CHANNEL}, sender_id
), contents AS (
    SELECT channel_no, sds_id, seen, sent_ms, sender_no,
           cast(row_number() OVER (ORDER BY channel_no, sds_id) AS int) AS content_no,
           dense_rank() OVER (ORDER BY message) AS message_no
    FROM (SELECT *, row_number() OVER (PARTITION BY {CHANNEL} ORDER BY seen DESC, sds_id) AS place
          FROM (SELECT *, row_number() OVER (PARTITION BY {CHANNEL}, sender_id, {slot}
                                             ORDER BY is_acknowledged IS NULL, seen, sds_id) AS number
                FROM messages LEFT JOIN (SELECT {CHANNEL}, sds_id, true AS is_acknowledged FROM acks WHERE {where}
                                         GROUP BY {CHANNEL}, sds_id) USING ({CHANNEL}, sds_id))
          WHERE number = 1)
    JOIN participants USING ({CHANNEL}, sender_id) WHERE {recent}
), shown AS (
    SELECT {CHANNEL}, channel_no, sender_id AS participant, sender_no AS participant_no, sds_id AS shown_by, made_ms,
           joined_ms, least(unix_millis(seen), made_ms + {_SETTLE_MS}) AS shown_at,
           cast(row_number() OVER (ORDER BY channel_no, sender_no, sds_id) AS int) AS shown_no
    FROM (SELECT *, row_number() OVER (PARTITION BY {CHANNEL}, sender_id, {time}
                                       ORDER BY made_ms DESC, sds_id) AS newest FROM sent)
    JOIN participants USING ({CHANNEL}, sender_id) WHERE newest = 1 AND sender_no <= {most}
), filters AS (
    SELECT *, false_positive_rate(bloom_filter) AS rate
    FROM (SELECT {shown}, min_by(bloom_filter, event_time) AS bloom_filter
          FROM shown JOIN (SELECT {CHANNEL}, sender_id AS participant, sds_id AS shown_by, bloom_filter, event_time
                           FROM sds_messages
                           WHERE sds_kind IN ('content', 'sync') AND id_verified IS NOT FALSE AND {where})
                     USING ({CHANNEL}, participant, shown_by)
          GROUP BY {shown})
), acknowledged AS (
    SELECT participant_no, content_no, first_at, certain_at
    FROM (SELECT channel_no, sds_id, sender_no AS participant_no, min(event_time) AS first_at,
                 min(event_time) FILTER (WHERE certainty = 'certain') AS certain_at
          FROM (SELECT {CHANNEL}, acknowledged_by AS sender_id, sds_id, event_time, certainty FROM acks WHERE {where})
          JOIN participants USING ({CHANNEL}, sender_id) WHERE sender_no <= {most}
          GROUP BY channel_no, sds_id, sender_no)
    JOIN (SELECT channel_no, sds_id, content_no FROM contents) USING (channel_no, sds_id)
), pairs AS (
    SELECT shown_no, content_no, {sender} AS sender_no, sent_ms, sent_ms > made_ms - {_NEW_MS} AS is_new,
           unix_millis(seen) <= made_ms - {_SETTLE_MS} AS was_there, rate IS NOT NULL AS is_readable,
           coalesce(unix_millis(certain_at) {known}, false) AS has,
           coalesce(unix_millis(first_at) {known}, false) AS is_acknowledged
    FROM {pairs} LEFT JOIN acknowledged USING (participant_no, content_no)
    WHERE sender_no <> participant_no AND unix_millis(seen) > joined_ms AND {counted}
), absent AS (
    SELECT shown_no, content_no, true AS is_absent
    FROM (SELECT channel_no, shown_no, explode(ids) AS sds_id
          FROM (SELECT channel_no, shown_no, absent_ids(bloom_filter, ids) AS ids
                FROM filters JOIN (SELECT shown_no, array_agg(sds_id) AS ids
                                   FROM pairs JOIN (SELECT content_no, sds_id FROM contents) USING (content_no)
                                   WHERE was_there AND NOT has GROUP BY shown_no) USING (shown_no)))
    JOIN (SELECT channel_no, sds_id, content_no FROM contents) USING (channel_no, sds_id)
), states AS (
    SELECT shown_no, content_no, sender_no, sent_ms, is_new, has, is_in_filter,
           coalesce(is_absent AND NOT is_acknowledged, false) AS lacks, is_in_filter OR is_acknowledged AS is_known
    FROM (SELECT *, was_there AND is_readable AND is_absent IS NULL AS is_in_filter
          FROM pairs LEFT JOIN absent USING (shown_no, content_no))
), had AS (
    SELECT shown_no, sender_no, max(sent_ms) FILTER (WHERE is_known) AS last_had_ms,
           count(*) FILTER (WHERE is_known AND is_new) AS known,
           count(*) FILTER (WHERE (is_known OR lacks) AND is_new) AS settled
    FROM states GROUP BY shown_no, sender_no
), lacked AS (
    SELECT shown_no, sender_no, min(sent_ms) AS lacks_from_ms, min(seen) AS lacks_from,
           count(DISTINCT message_no) AS messages
    FROM (SELECT shown_no, content_no, sender_no, sent_ms
          FROM states JOIN (SELECT shown_no, sender_no, last_had_ms FROM had) USING (shown_no, sender_no)
          WHERE lacks AND (last_had_ms IS NULL OR sent_ms > last_had_ms))
    JOIN (SELECT content_no, message_no, seen FROM contents) USING (content_no) GROUP BY shown_no, sender_no
), senders AS (
    SELECT {CHANNEL}, channel_no, participant, shown_no, made_ms, sender_no, known, settled, last_had_ms, lacks_from_ms,
           CASE WHEN messages >= {_CUT_OFF} AND unix_millis(lacks_from) <= made_ms - {_CUT_OFF_MS}
                THEN lacks_from END AS cut_off_since
    FROM had LEFT JOIN lacked USING (shown_no, sender_no)
         JOIN (SELECT {CHANNEL}, channel_no, participant, shown_no, made_ms FROM filters) USING (shown_no)
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
