"""Computes where messages were lost and how they could have been repaired: frames for the notebook ``loss`` and the
report.

=====================  =================================================================================================
``causes``             verdict, cause (``unexplained`` where no evidence says why), messages; missing and unknown only
``causes_by_channel``  content_topic, channel_id, verdict, cause, messages
``missing``            the newest missing messages: first_seen (UTC), content_topic, channel_id, sender_id, message_key,
                       cause, detail, acknowledged_by (text)
``over_time``          time (UTC), verdict, cause, messages; ``seconds`` in ``attrs``
``bursts``             content_topic, channel_id, length (messages lost one after another), bursts, expected (as many as
                       if losses did not know of each other)
``by_segment_index``   segment_kind, segment_index, expected, lost, loss (share)
``parity``             parity_count, outcome (whole, repaired, one short, more short), messages
``incomplete``         event_time, content_topic, channel_id, sender_id, payload_hash (hex), status, reason,
                       data_count, parity_count, data_held, parity_held (numbers), short (segments), data_missing (text)
``stores``             node, purpose, asked, present, absent, error
``store_disagreement`` message_hash (hex), channel_id, sds_id, present (nodes), absent (nodes); newest first
``refetch``            attempt, requests, answered, found, failed; ``found`` is at any node
``refetch_outcome``    hint (whether a hash was known), outcome (arrived after all, lost, waiting), messages
=====================  =================================================================================================
"""

from __future__ import annotations

import pandas as pd

from reliable_channel.analysis.figures import COUNTED
from reliable_channel.analysis.report.dimensions import bin_seconds
from reliable_channel.analysis.report.source import TableWindow

UNEXPLAINED = "unexplained"
_CAUSE = f"coalesce(cause, '{UNEXPLAINED}') AS cause"


def causes(source: TableWindow) -> pd.DataFrame:
    """How many messages were not delivered, by verdict and cause."""
    return source.query(
        f"""SELECT verdict, {_CAUSE}, count(*) AS messages FROM delivery_status WHERE verdict <> 'delivered'
            GROUP BY ALL ORDER BY messages DESC, verdict, cause"""  # noqa: S608 - constants of our own
    )


def causes_by_channel(source: TableWindow) -> pd.DataFrame:
    """The same for each channel."""
    return source.query(
        f"""SELECT content_topic, channel_id, verdict, {_CAUSE}, count(*) AS messages FROM delivery_status
            WHERE verdict <> 'delivered' GROUP BY ALL
            ORDER BY messages DESC, channel_id, content_topic, verdict, cause"""  # noqa: S608 - constants of our own
    )


def missing(source: TableWindow, limit: int = 100) -> pd.DataFrame:
    """The missing messages, the newest first."""
    return source.query(
        f"""SELECT first_seen, content_topic, channel_id, sender_id, message_key, {_CAUSE}, detail,
                   array_to_string(acknowledged_by, ', ') AS acknowledged_by
            FROM delivery_status WHERE verdict = 'missing'
            ORDER BY first_seen DESC, message_key, content_topic, channel_id, pubsub_topic LIMIT $limit""",  # noqa: S608 - constants of our own
        limit=limit,
    )


def losses_over_time(source: TableWindow) -> pd.DataFrame:
    """Messages not delivered, in bins of the time at which they were first seen or missed; ids that one participant
    alone claims are none."""
    width = bin_seconds(source, "delivery_status", "first_seen")
    frame = source.query(
        f"""SELECT time_bucket(to_seconds($seconds), first_seen) AS time, verdict, {_CAUSE}, count(*) AS messages
            FROM delivery_status WHERE verdict <> 'delivered' AND first_seen IS NOT NULL AND {COUNTED}
            GROUP BY ALL ORDER BY time, verdict, cause""",  # noqa: S608 - constants of our own
        seconds=width,
    )
    frame.attrs["seconds"] = width
    return frame


def bursts(source: TableWindow) -> pd.DataFrame:
    """Runs of messages lost one after another in a channel, in the order of their first trace; beside how many runs of
    that length would be there if each message were lost by itself with the channel's own probability p: of n messages
    n · (1 − p)² · pˡ. More long runs than that is a bursty link, fewer an even one."""
    return source.query(
        """
        WITH ordered AS (
            SELECT content_topic, channel_id, verdict = 'missing' AS lost,
                   row_number() OVER (PARTITION BY content_topic, channel_id
                                      ORDER BY first_seen, message_key, pubsub_topic) AS n
            FROM delivery_status WHERE verdict <> 'unknown'),
        gone AS (
            SELECT content_topic, channel_id,
                   n - row_number() OVER (PARTITION BY content_topic, channel_id ORDER BY n) AS run
            FROM ordered WHERE lost),
        runs AS (
            SELECT content_topic, channel_id, count(*) AS length FROM gone GROUP BY content_topic, channel_id, run),
        channels AS (
            SELECT content_topic, channel_id, count(*) AS messages, avg(lost::INT) AS p FROM ordered GROUP BY ALL)
        SELECT content_topic, channel_id, length, count(*) AS bursts,
               any_value(messages * pow(1 - p, 2) * pow(p, length)) AS expected
        FROM runs JOIN channels USING (content_topic, channel_id)
        GROUP BY content_topic, channel_id, length ORDER BY content_topic, channel_id, length
        """
    )


_SETS = """
    SELECT content_topic, channel_id, data_count, coalesce(parity_count, 0) AS parity_count, true AS whole,
           repaired AS missing, data_received AS held, parity_received AS parity_held
    FROM reassembled_messages
    UNION ALL
    SELECT content_topic, channel_id, data_count, coalesce(parity_count, 0), false, data_missing, len(data_held),
           len(parity_held)
    FROM incomplete_messages WHERE data_count IS NOT NULL AND status = 'given_up' AND reason = 'expired'
"""
"""Every finished set of segments, complete or not. In a complete set, the missing data segments are those that parity
rebuilt; if a set was complete before all of its segments arrived, fewer may be counted as missing than were lost."""


def by_segment_index(source: TableWindow) -> pd.DataFrame:
    """Whether the position in a message matters: for every index of a data segment, how many sets had one, and in how
    many it never arrived. Equal shares mean that loss does not depend on the position; a rise towards the end indicates
    a sender that stops, a limit that takes effect, or a link that fills up."""
    return source.query(
        f"""
        WITH sets AS ({_SETS}), expected AS (
            SELECT segment_index, count(*) AS expected
            FROM (SELECT unnest(range(0, least(data_count, 256))) AS segment_index FROM sets) GROUP BY segment_index),
        lost AS (
            SELECT segment_index, count(*) AS lost
            FROM (SELECT unnest(missing) AS segment_index FROM sets) GROUP BY segment_index)
        SELECT 'data' AS segment_kind, segment_index::INT AS segment_index, expected, coalesce(lost, 0) AS lost,
               coalesce(lost, 0) / expected AS loss
        FROM expected LEFT JOIN lost USING (segment_index) ORDER BY segment_index
        """  # noqa: S608 - constants of our own
    )


def parity(source: TableWindow) -> pd.DataFrame:
    """The effect of parity on messages of several segments, by the number of parity segments they were sent with."""
    return source.query(
        f"""
        WITH sets AS ({_SETS})
        SELECT parity_count, CASE WHEN whole AND len(missing) = 0 THEN 'whole' WHEN whole THEN 'repaired'
                   WHEN data_count - held - parity_held = 1 THEN 'one short' ELSE 'more short' END AS outcome,
               count(*) AS messages
        FROM sets GROUP BY ALL ORDER BY parity_count, outcome
        """  # noqa: S608 - constants of our own
    )


def incomplete(source: TableWindow, limit: int = 100) -> pd.DataFrame:
    """The newest sets of segments that stayed incomplete, and how many more segments would have completed them: of each
    the last report, unless the message was rebuilt later, also after the window."""
    in_window, values = source.window.where()
    return source.aftermath().query(
        f"""
        SELECT event_time, content_topic, channel_id, sender_id, lower(hex(entire_message_hash)) AS payload_hash,
               status, reason, data_count, coalesce(parity_count, 0) AS parity_count, len(data_held) AS data_held,
               len(parity_held) AS parity_held, data_count - len(data_held) - len(parity_held) AS short,
               array_to_string(data_missing, ', ') AS data_missing
        FROM incomplete_messages i
        WHERE {in_window} AND NOT EXISTS (
            SELECT 1 FROM reassembled_messages r WHERE r.entire_message_hash = i.entire_message_hash
              AND r.channel_id = i.channel_id AND r.content_topic = i.content_topic AND r.sender_id = i.sender_id
              AND list_has_all(r.sds_ids, i.sds_ids))
        QUALIFY row_number() OVER (
            PARTITION BY pubsub_topic, content_topic, channel_id, sender_id, entire_message_hash, first_seen
            ORDER BY event_time DESC, status, sds_ids) = 1
        ORDER BY event_time DESC, payload_hash, content_topic, channel_id, sender_id, sds_ids, pubsub_topic LIMIT $limit
        """,  # noqa: S608 - names of columns; values are bound
        limit=limit,
        **values,
    )


def stores(source: TableWindow) -> pd.DataFrame:
    """How each store node answered, by what it was asked for."""
    return source.query(
        """SELECT node, purpose, count(*) AS asked, count(*) FILTER (outcome = 'present') AS present,
               count(*) FILTER (outcome = 'absent') AS absent, count(*) FILTER (outcome = 'error') AS error
           FROM store_presence GROUP BY ALL ORDER BY node, purpose"""
    )


_ANSWERS = """
    SELECT message_hash, node, min(channel_id) AS channel_id, min(sds_id) AS sds_id,
           arg_max(outcome, (asked_at, outcome)) AS outcome, max(asked_at) AS asked_at
    FROM store_presence WHERE message_hash IS NOT NULL AND outcome <> 'error' GROUP BY message_hash, node
"""


def store_disagreement(source: TableWindow, limit: int = 100) -> pd.DataFrame:
    """Envelopes that one store node had and another had not, by the newest answer of each, the newest first."""
    return source.query(
        f"""
        SELECT lower(hex(message_hash)) AS message_hash, min(channel_id) AS channel_id, min(sds_id) AS sds_id,
               string_agg(node, ', ' ORDER BY node) FILTER (outcome = 'present') AS present,
               string_agg(node, ', ' ORDER BY node) FILTER (outcome = 'absent') AS absent
        FROM ({_ANSWERS}) GROUP BY message_hash
        HAVING bool_or(outcome = 'present') AND bool_or(outcome = 'absent')
        ORDER BY max(asked_at) DESC, message_hash LIMIT $limit
        """,  # noqa: S608 - constants of our own
        limit=limit,
    )


def refetch(source: TableWindow) -> pd.DataFrame:
    """Requests for missing dependencies by attempt: how many went out, got an answer, were found at some node, failed
    at every node. Requests without a hash are in :func:`refetch_outcome` only."""
    in_window, values = source.window.where()
    return source.aftermath().query(
        f"""
        WITH answers AS (
            SELECT content_topic, channel_id, sds_id, attempt, bool_or(outcome = 'present') AS found,
                   bool_and(outcome = 'error') AS failed
            FROM store_presence WHERE purpose = 'refetch' GROUP BY ALL)
        SELECT r.attempt, count(*) AS requests, count(*) FILTER (NOT a.failed) AS answered,
               count(*) FILTER (a.found) AS found, count(*) FILTER (a.failed) AS failed
        FROM refetch_requests r LEFT JOIN answers a USING (content_topic, channel_id, sds_id, attempt)
        WHERE octet_length(r.retrieval_hint) = 32 AND {in_window} GROUP BY r.attempt ORDER BY r.attempt
        """,  # noqa: S608 - names of columns; values are bound
        **values,
    )


def refetch_outcome(source: TableWindow) -> pd.DataFrame:
    """The outcome of refetches: what became of the messages that were requested, also after the window."""
    in_window, values = source.window.where()
    return source.aftermath().query(
        f"""
        WITH asked AS (
            SELECT content_topic, channel_id, sds_id,
                   bool_or(octet_length(retrieval_hint) IS NOT DISTINCT FROM 32) AS hint
            FROM refetch_requests WHERE {in_window} GROUP BY content_topic, channel_id, sds_id),
        here AS (
            SELECT DISTINCT content_topic, channel_id, sds_id, true AS here
            FROM deliveries SEMI JOIN asked USING (content_topic, channel_id, sds_id)),
        gone AS (
            SELECT content_topic, channel_id, sds_id, bool_or(status = 'recovered') AS recovered
            FROM lost_dependencies GROUP BY content_topic, channel_id, sds_id)
        SELECT hint, CASE WHEN here OR recovered THEN 'arrived after all' WHEN g.sds_id IS NOT NULL THEN 'lost'
                   ELSE 'waiting' END AS outcome, count(*) AS messages
        FROM asked a LEFT JOIN here USING (content_topic, channel_id, sds_id)
        LEFT JOIN gone g USING (content_topic, channel_id, sds_id)
        GROUP BY ALL ORDER BY hint DESC, outcome
        """,  # noqa: S608 - names of columns; values are bound
        **values,
    )
