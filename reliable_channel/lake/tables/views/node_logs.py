"""Defines the views ``node_logs`` and ``message_logs``: what the logs of nodes cover, and which envelopes they have."""

from reliable_channel.lake.tables import (
    CHANNEL_KEY,
    DELIVERY_STATUS,
    SDS_MESSAGES,
    SENDER_EVENTS,
    SIGHTINGS,
    Column,
)
from reliable_channel.lake.tables.evidence import BRIDGE_SOURCES
from reliable_channel.lake.tables.views.model import CHANNEL, View

_STATUS = DELIVERY_STATUS.by_name()

_SILENCE_MS = 600_000  # a longer one ends the time that a log covers
_ON_ITS_WAY_MS = 10_000  # what was sent so shortly before a log ends may have reached the node after that
_LEAST_NODES = 3  # of two logs the median does not show whose clock is wrong
_SEEN = SIGHTINGS.by_name()

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
    SELECT {CHANNEL}, message_key, envelope_hash, min(ms) AS ms
    FROM (SELECT {CHANNEL}, message_key, explode(sds_ids) AS sds_id FROM delivery_status)
    JOIN (SELECT {CHANNEL}, sds_id, envelope_hash, unix_millis(event_time) AS ms FROM sds_messages
          UNION ALL SELECT {CHANNEL}, sds_id, envelope_hash, unix_millis(event_time) AS ms FROM sender_events
                    WHERE event IN ('sent', 'resent')) USING ({CHANNEL}, sds_id)
    WHERE envelope_hash IS NOT NULL GROUP BY {CHANNEL}, message_key, envelope_hash
), covered AS (
    SELECT s.pubsub_topic, s.content_topic, s.channel_id, s.message_key, s.envelope_hash, l.vantage, l.clock_error_ms
    FROM sent s JOIN ({NODE_LOGS.sql}) l
    ON l.pubsub_topic = s.pubsub_topic AND s.ms >= l.since_ms AND s.ms <= l.until_ms - {_ON_ITS_WAY_MS}
), logged AS (
    SELECT message_hash AS envelope_hash, vantage, source, min(unix_millis(seen_at)) AS ms FROM sightings
    WHERE source NOT IN {BRIDGE_SOURCES} GROUP BY message_hash, vantage, source
)
SELECT {CHANNEL}, message_key, vantage, count(DISTINCT envelope_hash) AS envelopes,
       count(DISTINCT CASE WHEN ms IS NOT NULL THEN envelope_hash END) AS logged,
       array_sort(array_agg(DISTINCT source) FILTER (WHERE source IS NOT NULL)) AS did,
       min(ms - coalesce(clock_error_ms, 0)) AS first_ms
FROM covered LEFT JOIN logged USING (vantage, envelope_hash)
GROUP BY {CHANNEL}, message_key, vantage""",  # noqa: S608 - text of our own only
)
