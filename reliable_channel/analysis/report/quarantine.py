"""Computes quarantined records and gaps: frames for the report and the dashboard.

===============  =======================================================================================================
``reasons``      stage, reason, disposition, records, raw_bytes (sum), newest (UTC)
``share``        records, refused (dropped ones only), share
``source_gaps``  name, cause, kafka_topic, kafka_partition, first_offset, last_offset, status, from_time, to_time: the
                 last word on each gap, unfilled also if its store lacks what others saw; sent, unseen: what senders'
                 own records dispatched in that time, how many of it never arrived; unbroken, broken, silent: senders
                 by their own chains (:func:`source_gaps`); named: messages that others name and that may have been lost
                 in it; elsewhere: envelopes that other bridges saw in that time; lacking: those of them that a store
                 should have had, and did not
``vantages``     vantage, nodes, seen, not_seen, from_a_store, newest (UTC): which bridge got how many envelopes
===============  =======================================================================================================
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pandas as pd

from reliable_channel.analysis import figures
from reliable_channel.analysis.report.source import TableWindow, Window
from reliable_channel.lake.gap_witnesses import count_lacking, read_last_rows
from reliable_channel.lake.tables import LATEST_SEND_TIME
from reliable_channel.lake.tables.evidence import BRIDGE_SOURCES


def reasons(source: TableWindow) -> pd.DataFrame:
    """Why records were quarantined, the most frequent reason first."""
    return source.query(
        """SELECT stage, reason, disposition, count(*) AS records, coalesce(sum(raw_bytes), 0)::BIGINT AS raw_bytes,
                  max(event_time) AS newest
           FROM quarantine GROUP BY ALL ORDER BY records DESC, stage, reason, disposition"""
    )


def share(source: TableWindow) -> pd.DataFrame:
    """How many records arrived, and which share of them was dropped, null without any. A filter by channel does not
    apply to records that could not be read."""
    return source.query(
        f"""SELECT records, refused, refused / nullif(records, 0) AS share
            FROM (SELECT {figures.records()} AS records, {figures.drops()} AS refused)"""  # noqa: S608
    )


AROUND = dt.timedelta(hours=1)
"""The time before and after a gap in which senders show what it can hide."""
_CHAIN_STATES = ("unbroken", "broken", "silent")
_GAP_COLUMNS = (
    *("name", "cause", "kafka_topic", "kafka_partition", "first_offset", "last_offset", "status", "from_time"),
    *("to_time", "sent", "unseen", "named", "elsewhere", "lacking"),
    *_CHAIN_STATES,
)
_CHAINS = f"""
    WITH said AS (
        SELECT kafka_topic, kafka_partition, pubsub_topic, content_topic, channel_id, sender_id, sds_id,
               min(lamport_timestamp) AS lamport,
               min({LATEST_SEND_TIME}) AS sent_by,
               any_value(list_ids(causal_history)) AS history
        FROM sds_messages WHERE sds_kind = 'content' AND sender_id IS NOT NULL GROUP BY ALL
    ), links AS (
        SELECT *, lag(sent_by) OVER chain AS before, coalesce(list_contains(history, lag(sds_id) OVER chain), false)
               AS linked, lead(sent_by) OVER chain IS NULL AS newest
        FROM said WINDOW chain AS (
            PARTITION BY kafka_topic, kafka_partition, pubsub_topic, content_topic, channel_id, sender_id
            ORDER BY lamport, sds_id)
    ), gaps AS (
        SELECT name, any_value(kafka_topic) AS kafka_topic, any_value(kafka_partition) AS kafka_partition,
               arg_max(from_time, ingest_time) AS from_time, arg_max(to_time, ingest_time) AS to_time
        FROM source_gaps GROUP BY name
    ), senders AS (
        SELECT name, pubsub_topic, content_topic, channel_id, sender_id,
               bool_and(linked) FILTER (before <= to_time AND sent_by >= from_time) AS unbroken,
               bool_or(newest AND sent_by < to_time) AS silent
        FROM gaps JOIN links ON gaps.kafka_partition < 0
            OR (gaps.kafka_topic = links.kafka_topic AND gaps.kafka_partition = links.kafka_partition)
        GROUP BY ALL
    )
    SELECT name, count(*) FILTER (unbroken AND NOT silent) AS unbroken, count(*) FILTER (NOT unbroken) AS broken,
           count(*) FILTER (silent AND unbroken IS DISTINCT FROM false) AS silent
    FROM senders GROUP BY name
"""  # noqa: S608 - constant text


def source_gaps(source: TableWindow) -> pd.DataFrame:
    """Gaps in what was read, those that are still open first, with what each can hide.

    ``sent`` messages were sent during the gap, by the senders' own records, and ``unseen`` of them never arrived:
    without such records both are 0, which proves nothing. The senders' own chains tell more: each message names the
    previous one of its sender. ``unbroken`` senders have a chain of messages that are here over the whole gap: of them
    it hides nothing. ``broken`` ones may each have sent one message or more that it hides, ``silent`` ones were not
    heard since. ``named`` messages are known by the causal histories of others only, and their verdict blames a gap:
    the last one that had begun before they were first named. ``elsewhere``: what bridges that listened saw
    meanwhile; ``lacking``: those of them that the store which filled the gap did not have. Such a gap is unfilled.

    A gap is in the window if any of its time is; what it can hide is read :data:`AROUND` it, too."""
    names = set(source.query("SELECT DISTINCT name FROM source_gaps")["name"])
    if not names:  # all messages and their histories are read for gaps only
        return pd.DataFrame(columns=[*_GAP_COLUMNS])
    source = _look_around(source)
    # the envelopes that speak against the store that filled a gap, by its name; as verdicts see it, in no window
    lacking = count_lacking(read_last_rows(source.read_whole), source.read_whole)
    gaps = source.query(
        """WITH gaps AS (
               SELECT name, cause, kafka_topic, kafka_partition, first_offset, last_offset,
                      CASE WHEN list_contains($lacking, name) THEN 'unfilled' ELSE status END AS status,
                      from_time, to_time, vantage
               FROM source_gaps
               QUALIFY row_number() OVER (PARTITION BY name ORDER BY ingest_time DESC, first_offset DESC) = 1
           ), seen AS (
               SELECT DISTINCT pubsub_topic, content_topic, channel_id, sds_id FROM sds_messages
           ), reported AS (
               SELECT e.pubsub_topic, e.content_topic, e.channel_id, e.sds_id, min(e.event_time) AS first_sent,
                      bool_and(s.sds_id IS NULL) AS unseen
               FROM sender_events e LEFT JOIN seen s
               ON (s.pubsub_topic, s.content_topic, s.channel_id, s.sds_id)
                = (e.pubsub_topic, e.content_topic, e.channel_id, e.sds_id)
               WHERE e.event IN ('sent', 'resent') AND e.sds_id IS NOT NULL GROUP BY ALL
           ), open AS (
               SELECT name, from_time AS begun, lead(from_time) OVER (ORDER BY from_time, name) AS next_begun
               FROM gaps WHERE status <> 'filled' AND from_time IS NOT NULL
           ), blamed AS (
               SELECT open.name, count(*) AS named FROM open JOIN delivery_status ON cause = 'source_gap'
                   AND first_seen >= begun AND (next_begun IS NULL OR first_seen < next_begun) GROUP BY open.name
           )
           SELECT gaps.* EXCLUDE (vantage),
                  (SELECT count(*) FROM reported WHERE first_sent BETWEEN from_time AND to_time) AS sent,
                  (SELECT count(*) FROM reported WHERE first_sent BETWEEN from_time AND to_time AND unseen) AS unseen,
                  coalesce(blamed.named, 0) AS named,
                  (SELECT count(DISTINCT message_hash) FROM sightings WHERE seen_at BETWEEN from_time AND to_time
                       AND source IN ('relay', 'filter') AND sightings.vantage <> gaps.vantage) AS elsewhere
           FROM gaps LEFT JOIN blamed USING (name) ORDER BY status = 'filled', to_time DESC, name""",
        lacking=sorted(lacking),
    )
    gaps = gaps[gaps["name"].isin(names)]
    gaps["lacking"] = [lacking.get(name, 0) for name in gaps["name"]]
    merged = gaps.merge(source.query(_CHAINS), on="name", how="left")
    return merged.assign(**{name: merged[name].fillna(0).astype(int) for name in _CHAIN_STATES})[[*_GAP_COLUMNS]]


def _look_around(source: TableWindow) -> TableWindow:
    """The tables in a window that holds all of its gaps, and :data:`AROUND` them."""
    # An hour before or after any time that a row may have is not always a time.
    (span,) = source.select(
        """SELECT greatest(min(coalesce(from_time, to_timestamp(0))), to_timestamp(0)) AS first,
                  least(max(coalesce(to_time, to_timestamp(0))), TIMESTAMPTZ '9000-01-01') AS last FROM source_gaps"""
    )
    window = source.window
    since = window.since and min(window.since, span["first"] - AROUND)
    until = window.until and max(window.until, span["last"] + AROUND)
    around = replace(window, since=since, until=until)
    return source if around == window else TableWindow(source.snapshot, around)


def vantages(source: TableWindow) -> pd.DataFrame:
    """What each bridge saw of the envelopes that any bridge knows of: by its own node, or because it dispatched them
    (``seen``), not so (``not_seen``), and how many of those a store node had (``from_a_store``).

    An envelope is in the window in which it was first seen. Bridges see it a moment apart, and a store gives it later:
    so sightings of an hour before and after the window count, too."""
    in_window, values = Window(since=source.window.since, until=source.window.until).where("first_at")
    around = source.beforehand().aftermath()
    return around.query(
        f"""WITH sighted AS (
               SELECT message_hash, vantage, node, source, seen_at,
                      {"min(seen_at) OVER (PARTITION BY message_hash)" if values else "seen_at"} AS first_at
               FROM sightings WHERE source IN {BRIDGE_SOURCES}
           ), bridged AS (
               SELECT message_hash, vantage, node, source, seen_at FROM sighted WHERE {in_window}
           ), known AS (
               SELECT vantage, message_hash, bool_or(source <> 'store') AS own, bool_or(source = 'store') AS stored
               FROM bridged GROUP BY ALL
           )
           SELECT vantage, any_value(nodes) AS nodes, count(*) FILTER (own) AS seen,
                  (SELECT count(DISTINCT message_hash) FROM bridged) - count(*) FILTER (own) AS not_seen,
                  count(*) FILTER (stored AND NOT own) AS from_a_store, any_value(newest) AS newest
           FROM known JOIN (
               SELECT vantage, max(seen_at) AS newest,
                      string_agg(DISTINCT node, ', ' ORDER BY node) FILTER (source <> 'store') AS nodes
               FROM bridged GROUP BY vantage) USING (vantage)
           GROUP BY vantage ORDER BY vantage""",  # noqa: S608 - text of our own only; values are bound
        **values,
    )
