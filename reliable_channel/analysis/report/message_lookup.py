"""Finds one message by its exact name: the key of its verdict, or the SDS id of any of its SDS messages.

(:func:`reliable_channel.analysis.report.investigate.find` looks for the beginning of a hash or id.) Filters reach the
files, so that a link to a message opens fast in large tables.
"""

from __future__ import annotations

from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.investigate import MessageFacts, make_facts
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.lake.tables import CHANNEL_KEY

_CHANNEL = ", ".join(CHANNEL_KEY)


def lookup(lake: TableSnapshot, name: str, key: ChannelFilter | None = None, limit: int = 20) -> list[MessageFacts]:
    """The messages with exactly this key or SDS id, in one channel or in all; those with a verdict when there are any.

    Without a verdict, segments are grouped by the payload's hash; of a message that is only named by others, only the
    id is known."""
    here = "true" if key is None else key.where()
    values = {"name": name, "limit": limit, **(key.parameters if key else {})}
    judged = lake.select(
        f"""
        SELECT *, lower(hex(entire_message_hash)) AS payload_hash FROM delivery_status
        WHERE {here} AND (message_key = $name OR list_contains(sds_ids, $name))
        ORDER BY message_key <> $name, first_seen DESC, message_key, {_CHANNEL} LIMIT $limit
        """,  # noqa: S608 - text of our own only
        values,
    )
    return [
        make_facts(row)
        for row in judged or lake.select(_messages_sql(here), values) or lake.select(_dependencies_sql(here), values)
    ]


def of_channel_or_sender(lake: TableSnapshot, name: str, limit: int) -> list[MessageFacts]:
    """The newest messages in the channel, or of the sender, of exactly this name."""
    rows = lake.select(
        f"""SELECT *, lower(hex(entire_message_hash)) AS payload_hash FROM delivery_status
           WHERE channel_id = $name OR sender_id = $name
           ORDER BY first_seen DESC, message_key, {_CHANNEL} LIMIT $limit""",  # noqa: S608 - text of our own only
        {"name": name, "limit": limit},
    )
    return [make_facts(row) for row in rows]


def _messages_sql(here: str) -> str:
    return f"""
    WITH wanted AS (
        SELECT DISTINCT {_CHANNEL}, sender_id, entire_message_hash, sds_id FROM sds_messages
        WHERE {here} AND sds_id = $name ORDER BY ALL LIMIT $limit)
    SELECT w.pubsub_topic, w.content_topic, w.channel_id, w.sds_id AS message_key, w.sender_id,
           lower(hex(w.entire_message_hash)) AS payload_hash,
           list_sort(list_distinct(list_append(list(s.sds_id), w.sds_id))) AS sds_ids, min(s.event_time) AS first_seen
    FROM wanted w JOIN sds_messages s ON w.pubsub_topic IS NOT DISTINCT FROM s.pubsub_topic
         AND w.content_topic IS NOT DISTINCT FROM s.content_topic AND w.channel_id IS NOT DISTINCT FROM s.channel_id
         AND (s.sds_id = w.sds_id OR (s.entire_message_hash = w.entire_message_hash AND s.sender_id = w.sender_id))
    GROUP BY w.pubsub_topic, w.content_topic, w.channel_id, w.sds_id, w.sender_id, w.entire_message_hash
    ORDER BY first_seen DESC, w.pubsub_topic, w.content_topic, w.channel_id, w.sender_id, w.entire_message_hash
"""  # noqa: S608 - text of our own only


def _dependencies_sql(here: str) -> str:
    return f"""
    SELECT {_CHANNEL}, sds_id AS message_key, min(sender_id) AS sender_id, NULL AS payload_hash,
           [sds_id] AS sds_ids, min(event_time) AS first_seen
    FROM (SELECT {_CHANNEL}, sds_id, sender_id, event_time FROM lost_dependencies
          UNION ALL SELECT {_CHANNEL}, sds_id, sender_id, event_time FROM refetch_requests)
    WHERE {here} AND sds_id = $name GROUP BY {_CHANNEL}, sds_id ORDER BY first_seen DESC, {_CHANNEL} LIMIT $limit
"""  # noqa: S608 - text of our own only
